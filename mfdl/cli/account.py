"""`mfdl account`: what an attacker learns of every node, for one mechanism on one graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..reporting.account_config import AccountConfig
from ..reporting.output import rounded_up
from . import options
from .command import Answer, command

WORST_SHOWN = 10


@command(AccountConfig, "Folder for results.json and pictures.")
def account(config: AccountConfig, out: Path | None) -> Answer:
    """What an attacker learns of every node: one mechanism, one graph, one trust model.

    Two numbers per victim: mu for gradients fixed in advance, and mu_adaptive, which holds for training. Secret batches
    (--participation balls-in-bins) have no mu, and one epsilon, which holds for training.
    """
    from ..reporting.accounting import run_account

    answer = run_account(config, out).answer
    return answer, lambda: _show(answer, out), 0


def _show(answer: dict[str, Any], out: Path | None) -> None:
    many, fixed_only = "victims" not in answer, not answer["adaptive"]
    each = answer["attackers"] if many else [{"attacker": "", "victims": answer["victims"]}]
    pairs = [(against["attacker"], row) for against in each for row in against["victims"]]
    measure = "epsilon" if answer["worst_mu"] is None else "mu"
    pairs.sort(key=lambda pair: (-float(pair[1][f"{measure}_adaptive"]), -float(pair[1][measure])))
    placed = any(row["distance"] is not None for _, row in pairs)
    title = (
        f"{answer['mechanism']} on {answer['graph']}, trust {answer['trust']}, {answer['unit']} level, "
        f"noise std {answer['noise_std']:.4g}{_released(answer['release'])}: "
        f"the {min(WORST_SHOWN, len(pairs))} largest of {len(pairs):,} losses"
    )
    kinds = (", fixed", ", adaptive") if fixed_only else ("",)
    shown = ("mu", "epsilon") if measure == "mu" else ("epsilon",)
    numbers = ["distance"] * placed + [f"{what}{kind}" for kind in kinds for what in shown]
    table = options.table(["attacker"] * many + ["victim", *numbers], title=title, right=numbers)
    for attacker, row in pairs[:WORST_SHOWN]:
        values = [_bounded(row, what) for what in shown]
        values += [_bounded(row, what, "adaptive") for what in shown] * fixed_only
        distance = ["" if row["distance"] is None else str(row["distance"])] * placed
        table.add_row(*[attacker] * many, row["victim"], *distance, *values)
    options.say([table, f"epsilon is at delta = {answer['delta']:g}."])
    if placed:
        _show_by_distance([row for _, row in pairs], "pairs" if many else "victims", measure)
    options.say([answer["guarantee"], *(f"Note: {note}" for note in answer["notes"])], out)


def _released(release: str) -> str:
    """Which final models the attacker sees besides, where that decides the losses."""
    return "" if release == "not applicable" else f", released models: {release}"


def _show_by_distance(rows: list[dict[str, Any]], counted: str, measure: str) -> None:
    from ..reporting.account import by_distance

    columns = ("distance", counted, "lowest", "mean", "highest", "highest, adaptive")
    table = options.table(columns, title=f"{measure} by distance", right=columns)
    hops = [row["distance"] for row in rows]  # known for all or for none
    fixed, adaptive = (by_distance(hops, [float(row[key]) for row in rows]) for key in (measure, f"{measure}_adaptive"))
    for at, held in zip(fixed, adaptive, strict=True):
        values = (rounded_up(value) for value in (at.lowest, at.mean, at.highest, held.highest))
        table.add_row(str(at.distance), f"{at.victims:,}", *values)
    options.answers().print(table, markup=False)


def _bounded(row: dict[str, Any], what: str, kind: str = "") -> str:
    """A number rounded up, marked where it is a bound; mu alone where epsilon stands beside it."""
    name, bound = (f"{what}_{kind}", row[f"{kind}_bound"]) if kind else (what, row["bound"])
    alone = what == "mu" or row["mu"] is None
    return f"{'<= ' if alone and bound != 'exact' else ''}{rounded_up(row[name])}"

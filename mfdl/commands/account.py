"""`mfdl account`: what an attacker learns of every node, for one mechanism on one graph; its tables and sentences."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import files
from ..progress import Progress, reporter
from ..runs.output import require_folder, rounded_up
from . import terminal
from .configs import AccountConfig
from .terminal import Answer, command

if TYPE_CHECKING:
    from .account_losses import Account, SecretAccount

RESULTS, WORST_SHOWN = "results.json", 10
Pair = tuple[str, dict[str, Any]]  # attacker, row


@command(AccountConfig, "Folder for results.json and pictures.")
def account(config: AccountConfig, out: Path | None) -> Answer:
    """Compute the privacy loss of every node for one mechanism, graph and trust model.

    Two numbers per victim: mu for non-adaptive gradients, and mu_adaptive for adaptive gradients, as in training. With
    secret batches there is no mu, and epsilon holds for adaptive gradients.
    """
    losses = run_account(config, out)
    return losses.answer, lambda: show(losses.answer, losses.worst_in_words(), out), 0


def run_account(
    config: AccountConfig, out: str | os.PathLike[str] | None = None, *, progress: Progress = "auto"
) -> Account | SecretAccount:
    from .account_losses import accounted

    began, screen = time.perf_counter(), reporter(progress)
    if out is not None:
        require_folder(out)
    account = accounted(config, screen)
    account.answer["seconds"] = time.perf_counter() - began
    if out is not None:
        from .loss_pictures import write_pictures  # matplotlib only where pictures are wanted

        with screen.status("drawing"):
            write_pictures(account, Path(out))
            files.atomic_write_json(Path(out) / RESULTS, account.answer)
    return account


def show(answer: dict[str, Any], worst: str, out: Path | None) -> None:
    from mfdl_solvers.ties import ranked

    many = "victims" not in answer
    each = answer["attackers"] if many else [{"attacker": "", "victims": answer["victims"]}]
    pairs = [(against["attacker"], row) for against in each for row in against["victims"]]
    measure = "epsilon" if answer["worst_mu"] is None else "mu"
    pairs = ranked(pairs, key=lambda pair: float(pair[1][measure]), descending=True)
    pairs = ranked(pairs, key=lambda pair: float(pair[1][f"{measure}_adaptive"]), descending=True)
    rows, kind = [row for _, row in pairs], "pair" if many else "victim"
    same = "" if answer["adaptive"] else _same_for_adaptive(rows, measure, kind)
    groups = _equal_rows(pairs)
    title = "{mechanism} on {graph}, trust {trust}, base noise std {noise_std:.4g}".format_map(answer)
    title += f": {WORST_SHOWN} largest of {len(groups):,}" * (len(groups) > WORST_SHOWN)
    kinds = {"": "" if answer["adaptive"] or same else ",\nnon-adaptive"}
    kinds |= {} if answer["adaptive"] or same else {"adaptive": ",\nadaptive"}
    losses = ("mu", "epsilon") if measure == "mu" else ("epsilon",)
    placed = any(row["distance"] is not None for row in rows)
    numbers = ["distance"] * placed + [f"{loss}{words}" for words in kinds.values() for loss in losses]
    table = terminal.table(["attacker"] * many + ["victim", *numbers], title=title, right=numbers)
    every = "nodes" if len(pairs) == answer["nodes"] and answer["config"].get("owners") is None else f"{kind}s"
    for group in groups[:WORST_SHOWN]:
        attacker, row = group[0]
        others = f", one of {len(group):,} {kind}s" * (len(group) > 1)
        victim = f"all {len(pairs):,} {every}" if 1 < len(group) == len(pairs) else f"{row['victim']}{others}"
        distance = ["" if row["distance"] is None else str(row["distance"])] * placed
        table.add_row(
            *[attacker] * many, victim, *distance, *(_bounded(row, loss, k) for k in kinds for loss in losses)
        )
    terminal.say([table, *[same] * bool(same)])
    terminal.say([f"Largest loss: {worst}. epsilon is at delta = {answer['delta']:g}."])
    if placed:
        _show_by_distance(rows, f"{kind}s", measure, adaptive=not same)
    terminal.say([answer["guarantee"], *(f"Note: {note}" for note in answer["notes"])], out)


def _same_for_adaptive(rows: list[dict[str, Any]], measure: str, kind: str) -> str:
    """Replaces the columns for adaptive gradients if they repeat the others; empty if they do not."""
    import numpy as np

    from mfdl_solvers.ties import equal_to_largest

    fixed, adaptive = (np.array([float(row[key]) for row in rows]) for key in (measure, f"{measure}_adaptive"))
    if equal_to_largest([fixed, adaptive], axis=0).all():
        return f"The losses of each {kind} for adaptive gradients are the same."
    if not equal_to_largest(adaptive).all():
        return ""
    losses = [f"{loss} {_bounded(rows[0], loss, 'adaptive')}" for loss in dict.fromkeys((measure, "epsilon"))]
    return f"Losses above are for non-adaptive gradients; for adaptive ones each {kind} has {', '.join(losses)}."


def _equal_rows(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Neighbours at one distance whose losses are equal up to rounding."""
    groups: list[list[Pair]] = []
    for pair in pairs:
        if groups and _equal(groups[-1][0][1], pair[1]):
            groups[-1].append(pair)
        else:
            groups.append([pair])
    return groups


def _equal(first: dict[str, Any], other: dict[str, Any]) -> bool:
    from mfdl_solvers.ties import SAME

    losses = ("mu", "mu_adaptive", "epsilon", "epsilon_adaptive")
    alike = all(first[key] == other[key] for key in ("distance", "bound", "adaptive_bound"))
    return alike and all(
        first[key] == other[key] or math.isclose(float(first[key]), float(other[key]), rel_tol=SAME) for key in losses
    )


def _show_by_distance(rows: list[dict[str, Any]], counted: str, measure: str, *, adaptive: bool) -> None:
    from ..runs.privacy_plots import by_distance

    columns = ("distance", counted, "lowest", "mean", "highest", *["highest, adaptive"] * adaptive)
    table = terminal.table(columns, title=f"{measure} by distance", right=columns)
    hops = [row["distance"] for row in rows]  # known for all or for none
    kinds = (by_distance(hops, [float(row[key]) for row in rows]) for key in (measure, f"{measure}_adaptive"))
    for at, in_training in zip(*kinds, strict=True):
        values = (at.lowest, at.mean, at.highest, *[in_training.highest] * adaptive)
        table.add_row(str(at.distance), f"{at.victims:,}", *map(rounded_up, values))
    terminal.say([table])


def _bounded(row: dict[str, Any], loss: str, kind: str = "") -> str:
    """A number rounded up, marked where it is a bound; mu alone where epsilon stands beside it."""
    name, bound = (f"{loss}_{kind}", row[f"{kind}_bound"]) if kind else (loss, row["bound"])
    alone = loss == "mu" or row["mu"] is None
    return f"{'<= ' if alone and bound != 'exact' else ''}{rounded_up(row[name])}"

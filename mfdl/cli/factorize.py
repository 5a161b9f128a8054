"""`mfdl factorize`: the encoder of one mechanism on one graph, with its certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..reporting.factorize_config import FactorizeConfig
from . import options
from .command import Answer, command

STOPPED_EXIT_CODE = 3


@command(FactorizeConfig, "Keep the result; file:FILE names it later.", metavar="FILE")
def factorize(config: FactorizeConfig, out: Path | None) -> Answer:
    """Factorize the error of decentralized learning: loss, certified lower bound, gap.

    Over time (mafalda, d-mf, ...) and over time and nodes (time-space, ...) loss is sensitivity^2 tr(H X^-1), the
    variance of the noise in all models together per unit of noise and coordinate. Over nodes (corn, corn-pairwise,
    decor) it is tr(W R W^T), R the covariance of one step, at [R^-1]_ii <= 1 for every node unless --max-inverse-
    diagonal says otherwise; there are no epochs. For secret batches (--participation balls-in-bins --epsilon E) it is
    tr(H X^-1) with max M_rr = 1, and the root error is its root times the noise that meets the target. Where a
    mechanism is not the best of its kind the gap says what a better one would save. Exits with 3 when the solver
    stopped before the tolerance.
    """
    from ..reporting.factorize import run_factorize

    answer = run_factorize(config, out)
    return answer, lambda: _show(answer, out), STOPPED_EXIT_CODE * (answer["status"] == FactorizeConfig.STOPPED)


def _show(answer: dict[str, Any], out: Path | None) -> None:
    table = options.table(("", " "), title=f"{answer['mechanism']} on {answer['graph']}", right=(" ",))
    table.show_header = False
    rows = {
        "nodes": f"{answer['nodes']:,}",
        **_shape(answer),
        "gossip": answer["gossip"],
        "objective": answer["objective"],
        "loss": _number(answer["loss"]) + _bar(answer),
        "lower bound": _number(answer["lower_bound"]),
        "gap": "inf" if isinstance(answer["gap"], str | None) else f"{answer['gap']:.2e}",
        "status": answer["status"],
        "iterations": f"{answer['iterations']:,}",
        "seconds": f"{answer['seconds']:.2f}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    options.say([table, _sentence(answer), *(f"Note: {note}" for note in answer["notes"])])
    if out is not None:
        kind = "Covariance" if answer["steps"] is None else "Noise" if "independent_loss" in answer else "Encoder"
        options.say([f"{kind} kept in {out}; use it as the mechanism file:{out}."])


def _shape(answer: dict[str, Any]) -> dict[str, str]:
    """Rows that only some mechanisms have."""
    rows = {}
    if answer["steps"] is not None:
        rows["steps"] = f"{answer['steps']:,} ({answer['epochs']} epochs of {answer['period']})"
    if answer["error_weights"] is not None:
        rows["models that count"] = answer["error_weights"]
    if "root_error" in answer:
        rows["secret bins"] = f"{answer['period']}, correlated at most {answer['correlation']:.3g}"
        rows["target"] = f"epsilon = {answer['epsilon']:g} at delta = {answer['delta']:g}, {answer['adjacency']}"
        rows["noise std"] = _number(answer["noise_std"])
        rows["root error"] = f"{_number(answer['root_error'])} (at least {_number(answer['root_error_bound'])})"
    if "independent_loss" not in answer:
        return rows
    rows["against"] = f"coalitions of {answer['coalition']}" if answer["coalition"] else "an outsider"
    if answer["steps"] is None:
        rows["[R^-1]_ii at most"] = f"{answer['max_inverse_diagonal']:g}"
    rows["shared seeds"] = f"{answer['groups']:,}"
    rows["private std"] = _number(answer["private_std"])
    if answer.get("sigma_pair") is not None:
        rows["pairwise std"] = _number(answer["sigma_pair"])
    return {**rows, "loss of independent noise": _number(answer["independent_loss"])}


def _number(value: float | str | None) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.1f}" if value >= 1e4 else f"{value:.6g}"


def _bar(answer: dict[str, Any]) -> str:
    """The error bar of a loss that refers to an estimate."""
    return f" +- {answer['loss_error']:.2g} (95 %)" if "loss_error" in answer else ""


def _sentence(answer: dict[str, Any]) -> str:
    gap = answer["gap"]
    if not isinstance(gap, float):
        return "No finite gap is certified."
    share = f"{100 * max(gap, 0.0) / (1 + max(gap, 0.0)):.2g} %"
    what = answer.get("bound_over", "encoder, of any shape,")
    estimated = "loss_error" in answer
    certified = f"No {what} can save more than {share} of this loss (certified{' of the estimate' * estimated})."
    if answer["status"] == FactorizeConfig.STOPPED:
        return f"Stopped before the tolerance; raise --max-iterations or --tolerance. {certified}"
    return certified

"""`mfdl factorize`: the encoder of one mechanism on one graph, with its certificate; its tables and sentences."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ..runs.output import rounded_up
from . import terminal
from .configs import FactorizeConfig
from .terminal import Answer, command

STOPPED_EXIT_CODE = 3


@command(FactorizeConfig, "File of the result; file:FILE is then a mechanism.", metavar="FILE")
def factorize(config: FactorizeConfig, out: Path | None) -> Answer:
    """Factorize the error of decentralized learning: objective, certified lower bound, gap.

    Over time (mafalda, d-mf, ...) and over time and nodes (kronecker, ...) objective is sensitivity^2 tr(H X^-1), the
    variance of the noise in all models together per unit of noise and coordinate; with --measure maximum, in the
    models after the worst step. Over nodes (corn, corn-pairwise, decor) it is tr(W R W^T), R the covariance of one
    step, at [R^-1]_ii <= 1 for every node, or the bound of --max-inverse-diagonal; there are no epochs. For
    balls-in-bins (--participation balls-in-bins --epsilon E) it is tr(H X^-1) with max M_rr = 1, and the root error is
    its root times the noise that meets the target. The objective is at most the gap above the optimum. Exits with 3
    when the solver stopped before the tolerance.
    """
    from .factorize_jobs import run_factorize

    answer = run_factorize(config, out)
    return answer, lambda: _show(answer, out), STOPPED_EXIT_CODE * (answer["status"] == FactorizeConfig.STOPPED)


def _show(answer: dict[str, Any], out: Path | None) -> None:
    table = terminal.table(("", " "), title=f"{answer['mechanism']} on {answer['graph']}", right=(" ",))
    table.show_header = False
    bar = f" +- {answer['objective_error']:.2g} (95 %)" if "objective_error" in answer else ""
    rows = {
        "nodes": f"{answer['nodes']:,}", **_shape(answer), "gossip": answer["gossip"],
        "counted_models": answer["counted_models"], "objective": _number(answer["objective"]) + bar,
        **({} if _error_hides_gap(answer) else {"lower bound": _number(answer["lower_bound"])}),
        "gap": "within the error of the estimate" if _error_hides_gap(answer) else _percent(answer["gap"]) or "inf",
        "status": answer["status"], "iterations": f"{answer['iterations']:,}", "seconds": f"{answer['seconds']:.2f}",
    }  # fmt: skip
    for name, value in rows.items():
        table.add_row(name, value)
    terminal.say([table, _sentence(answer), *(f"Note: {note}" for note in answer["notes"])])
    if out is not None:
        kind = "Covariance" if answer["steps"] is None else "Noise" if "independent_objective" in answer else "Encoder"
        terminal.say([f"{kind} written to {out}; use it as the mechanism file:{out}."])


def _shape(answer: dict[str, Any]) -> dict[str, str]:
    rows = {}
    if answer["steps"] is not None:
        rows["steps"] = f"{answer['steps']:,} ({answer['epochs']} epochs of {answer['period']})"
    if answer["error_weights"] is not None:
        rows["error weights"] = answer["error_weights"]
    if "measure" in answer:
        rows["measure"] = f"{answer['measure']} of the errors of the steps"
    if "root_error" in answer:
        rows["balls-in-bins"] = f"{answer['period']}, correlated at most {answer['correlation']:.3g}"
        rows["target"] = f"epsilon = {answer['epsilon']:g} at delta = {answer['delta']:g}, {answer['adjacency']}"
        rows["base noise std"] = _number(answer["noise_std"])
        rows["root error"] = f"{_number(answer['root_error'])} (at least {_number(answer['root_error_bound'])})"
    if "independent_objective" not in answer:
        return rows
    rows["against"] = f"coalitions of {answer['coalition']}" if answer["coalition"] else "an outsider"
    if answer["steps"] is None:
        rows["[R^-1]_ii at most"] = f"{answer['max_inverse_diagonal']:g}"
    rows["shared seeds"] = f"{answer['groups']:,}"
    rows["private std"] = _number(answer["private_std"])
    if answer.get("sigma_cor") is not None:
        rows["pairwise std"] = _number(answer["sigma_cor"])
    return {**rows, "objective of independent noise": _number(answer["independent_objective"])}


def _number(value: float | str | None) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.1f}" if value >= 1e4 else f"{value:.6g}"


def _error_hides_gap(answer: dict[str, Any]) -> bool:
    """Whether the objective is estimated less precisely than the gap is certified."""
    gap = answer["gap"]
    return isinstance(gap, float) and gap * answer["objective"] <= answer.get("objective_error", -math.inf)


def _percent(gap: float | str | None) -> str:
    """A certified gap: an upper bound, rounded up; empty if not finite."""
    return f"at most {rounded_up(100 * max(gap, 0.0))} %" if isinstance(gap, float) else ""


def _sentence(answer: dict[str, Any]) -> str:
    if not (at_most := _percent(answer["gap"])):
        return "No finite gap is certified."
    best = answer.get("bound_over", "encoder of any shape")
    scope = "certified for the estimate" if "objective_error" in answer else "certified"
    certified = f"The objective is {at_most} above that of the best {best} ({scope})."
    if _error_hides_gap(answer):
        error = f"{100 * answer['objective_error'] / answer['objective']:.1g} %"
        certified = f"The objective is that of the best {best} up to the error of the estimate, {error}."
    if answer["status"] == FactorizeConfig.STOPPED:
        return f"Stopped before the tolerance; raise --max-iterations or --tolerance. {certified}"
    return certified

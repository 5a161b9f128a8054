"""`mfdl factorize`: the encoder of one mechanism on one graph, with its certificate."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInput, unknown_name
from . import options
from ._factorize_jobs import PER_NODE, STOPPED, OverNodes, OverTime, OverTimeAndNodes

if TYPE_CHECKING:
    from ..factorization import Factorization, NodeFactorizations, SpaceTimeFactorization, SpatialFactorization
    from ..gossip import Gossip

TEMPORAL = ("mafalda", *PER_NODE, "d-mf", "bsr")
SPATIAL = ("corn", "corn-pairwise", "decor")
BOTH = ("time-space", "adapted", "space-time")
STOPPED_EXIT_CODE = 3


def factorize(
    context: typer.Context,
    config: options.Config = None,
    mechanism: Annotated[
        str,
        typer.Option(
            "--mechanism",
            metavar="NAME",
            help="Over time: mafalda, mafalda-classes, mafalda-l, d-mf, bsr, file:FILE.npz. Over nodes: corn, "
            "corn-pairwise, decor. Over both: time-space, adapted, space-time.",
        ),
    ] = "mafalda",
    graph: options.Graph = "florentine",
    largest_component: options.LargestComponent = False,
    gossip: options.Gossip = "metropolis-hastings",
    epochs: options.Epochs = 20,
    period: options.Period = 16,
    objective: Annotated[
        str, typer.Option("--objective", help="Which models count: post-average, or message (before averaging).")
    ] = "post-average",
    error_weights: Annotated[
        str | None,
        typer.Option(
            "--error-weights",
            metavar="STEPS[/TARGET]",
            help="Which models count: all, last:M, last:M:FLOOR, exponential:H, or any of these with /average.",
        ),
    ] = None,
    momentum: options.Momentum = 0.0,
    weight_decay: options.WeightDecay = 0.0,
    lr: Annotated[
        float, typer.Option("--lr", help="Learning rate: counts with weight decay; the loss is in units of its square.")
    ] = 1.0,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance", help="Certified relative gap to reach; default 1e-4, for adapted and seed groups 1e-3."
        ),
    ] = None,
    solver: Annotated[
        str, typer.Option("--solver", help="dense (L-BFGS) or autodiff (torch); corn with groups: newton or conic.")
    ] = "dense",
    max_iterations: Annotated[int, typer.Option("--max-iterations", help="Iterations after which to stop.")] = 5000,
    coalition: Annotated[
        int,
        typer.Option(
            "--coalition", metavar="Q", help="corn, decor, time-space: any Q nodes pool all they know; 0: none."
        ),
    ] = 0,
    groups: Annotated[
        Path | None,
        typer.Option(
            "--groups",
            metavar="FILE.json",
            help="corn, time-space: who shares a seed, a JSON list of lists of node labels; default all nodes, or with "
            "--coalition both ends of every edge.",
        ),
    ] = None,
    max_inverse_diagonal: Annotated[
        float,
        typer.Option("--max-inverse-diagonal", metavar="R", help="Noise over nodes: the bound on [R^-1]_ii."),
    ] = 1.0,
    horizon: Annotated[
        int, typer.Option("--horizon", metavar="STEPS", help="Noise over nodes: steps whose models count.")
    ] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.npz", help="Keep the result; file:FILE.npz names it later.")
    ] = None,
    device: options.Device = None,
    jobs: Annotated[int | None, typer.Option("--jobs", help="CPU threads of the linear algebra; default: all.")] = None,
    data_home: options.DataHome = None,
    as_json: options.Json = False,
) -> None:
    """Factorize the error of decentralized learning: loss, certified lower bound, gap.

    Over time (mafalda, d-mf, ...) and over time and nodes (time-space, ...) loss is sensitivity^2 tr(H X^-1), the
    variance of the noise in all models together per unit of noise and coordinate. Over nodes (corn, corn-pairwise,
    decor) it is tr(W R W^T), R the covariance of one step, at [R^-1]_ii <= 1 for every node unless --max-inverse-
    diagonal says otherwise; there are no epochs. Where a mechanism is not the best of its kind the gap says what a
    better one would save. Exits with 3 when the solver stopped before the tolerance.
    """
    if not mechanism.startswith("file:") and mechanism not in TEMPORAL + SPATIAL + BOTH:
        raise unknown_name("mechanism", mechanism, [*TEMPORAL, *SPATIAL, *BOTH, "file:FILE.npz"])
    _require_meant(context, mechanism)
    from .. import check
    from ..error_weights import ErrorWeights
    from ..reporting.output import require_device, require_writable

    require_device(device)
    check.integer_at_least(1, max_iterations=max_iterations)
    options.require_steps(epochs * period)
    weights = None if error_weights is None else ErrorWeights.parse(error_weights)
    if jobs is not None:
        check.integer_at_least(1, jobs=jobs)
    if out is not None:
        if out.suffix != ".npz":
            raise InvalidInput(f"--out must end in .npz, got {str(out)!r}; e.g. --out {out.stem or 'noise'}.npz.")
        require_writable(out)
    from threadpoolctl import threadpool_limits

    from .. import factorization
    from ..dynamics import Dynamics
    from ..participation import Cyclic

    loaded, matrix = options.load_gossip(graph, largest_component, gossip, data_home)
    dynamics = Dynamics(matrix, learning_rate=lr, momentum=momentum, weight_decay=weight_decay)
    where = None if groups is None else factorization.read_groups(groups, matrix.labels)
    if tolerance is None:
        grouped = factorization.default_tolerance(where, coalition)
        tolerance = factorization.ADAPTED_TOLERANCE if mechanism == "adapted" else grouped
    asked = {
        "objective": objective,
        "error_weights": None if weights is None else weights.describe(),
        "momentum": momentum,
        "weight_decay": weight_decay,
        "lr": lr,
    }
    if mechanism in SPATIAL:
        posed = OverNodes(
            dynamics, weights, objective, horizon, coalition, where, max_inverse_diagonal, tolerance, max_iterations
        )
        with threadpool_limits(jobs):
            began = time.perf_counter()
            found = posed.run(mechanism, solver)
            seconds = time.perf_counter() - began
        answer = {
            **_facts(mechanism, graph, loaded, matrix, asked, found, seconds),
            "steps": None,
            "epochs": None,
            "period": None,
            **_covariance_facts(found, horizon),
        }
        if out is not None:
            factorization.save_spatial(out, found, header=_header(mechanism, graph, loaded, matrix, asked))
    else:
        participation = Cyclic(epochs=epochs, period=period)
        solved: Factorization | NodeFactorizations | SpaceTimeFactorization
        with threadpool_limits(jobs):
            began = time.perf_counter()
            if mechanism in BOTH:
                solved = OverTimeAndNodes(
                    dynamics, participation, weights, objective, coalition, where, tolerance, max_iterations
                ).run(mechanism)
            else:
                job = OverTime(dynamics, participation, weights, objective, tolerance, solver, max_iterations, device)
                solved, grams = job.run(mechanism)
            seconds = time.perf_counter() - began
        answer = {
            **_facts(mechanism, graph, loaded, matrix, asked, solved, seconds),
            "steps": participation.num_steps,
            "epochs": epochs,
            "period": period,
            "sensitivity": solved.sensitivity,
        }
        if isinstance(solved, factorization.SpaceTimeFactorization):
            answer |= _joint_facts(solved)
        if out is not None:
            header = {
                **_header(mechanism, graph, loaded, matrix, asked),
                "participation": participation.to_dict(),
                "learning_rate": f"constant, {lr:g}; H and loss are in units of its square",
            }
            if isinstance(solved, factorization.SpaceTimeFactorization):
                factorization.save_space_time(out, solved, header=header)
            else:
                factorization.save(out, solved, grams=grams, header=header)
    if as_json:
        typer.echo(json.dumps(answer, allow_nan=False))
    else:
        _show(answer, out)
    if answer["status"] == STOPPED:
        raise typer.Exit(STOPPED_EXIT_CODE)


def _require_meant(context: typer.Context, mechanism: str) -> None:
    """Refuses typed options that the mechanism does not have, instead of ignoring them."""
    over_nodes = mechanism in SPATIAL
    reasons: dict[str, str]
    if mechanism in BOTH:
        one_solver = "it has one solver, on the CPU"
        reasons = {"max_inverse_diagonal": "its scale is unit sensitivity", "horizon": "its steps are epochs x period"}
        reasons |= dict.fromkeys(("solver", "device"), one_solver)
        if mechanism != "time-space":
            reasons |= dict.fromkeys(("coalition", "groups"), "it has one seed for all; for groups use time-space")
    elif over_nodes:
        reasons = dict.fromkeys(("epochs", "period", "device"), "it is noise over nodes, fresh in every step")
    else:
        reasons = dict.fromkeys(("coalition", "groups", "max_inverse_diagonal", "horizon"), "it is noise over time")
    if mechanism != "corn" and over_nodes:
        searched = "it searches one ratio, with no solver"
        reasons |= dict.fromkeys(("solver", "tolerance", "max_iterations"), searched)
        reasons["groups"] = "it has one seed per edge; for other groups use --mechanism corn"
    if mechanism == "corn-pairwise":
        reasons["coalition"] = "it is against an outsider; for coalitions use --mechanism decor"
    for name, reason in reasons.items():
        if options.from_command_line(context, name):
            raise InvalidInput(f"--{name.replace('_', '-')} does not apply to {mechanism}: {reason}.")


def _facts(
    mechanism: str,
    graph: str,
    loaded: Any,
    matrix: Gossip,
    asked: dict[str, Any],
    solved: Factorization | NodeFactorizations | SpatialFactorization | SpaceTimeFactorization,
    seconds: float,
) -> dict[str, Any]:
    from .. import graphs
    from ..reporting.output import json_number

    return {
        "mechanism": mechanism,
        "graph": graph,
        "nodes": matrix.num_nodes,
        **asked,
        "loss": json_number(solved.loss),
        "lower_bound": json_number(solved.lower_bound),
        "gap": json_number(solved.gap),
        "status": solved.status,
        "iterations": solved.iterations,
        "seconds": seconds,
        "gossip": matrix.name,
        "graph_hash": graphs.content_hash(loaded),
        "notes": list(solved.notes),
    }


def _covariance_facts(solved: SpatialFactorization, horizon: int) -> dict[str, Any]:
    return {
        "max_inverse_diagonal": solved.max_inverse_diagonal,
        "coalition": solved.coalition_size,
        "groups": len(solved.groups),
        "horizon": horizon,
        "private_std": math.sqrt(solved.private_variance),
        "sigma_local": solved.sigma_local,
        "sigma_pair": solved.sigma_pair,
        "independent_loss": solved.independent_loss,
        "bound_over": solved.bound_over,
    }


def _joint_facts(solved: SpaceTimeFactorization) -> dict[str, Any]:
    return {
        "coalition": solved.coalition_size,
        "groups": 1 if solved.space is None else len(solved.space.groups),
        "private_std": 0.0 if solved.space is None else math.sqrt(solved.space.private_variance),
        "independent_loss": solved.independent_loss,
        "bound_over": "noise over time and nodes, against an outsider,",
    }


def _header(mechanism: str, graph: str, loaded: Any, matrix: Gossip, asked: dict[str, Any]) -> dict[str, Any]:
    from .. import graphs
    from ..reporting.output import versions

    return {
        "mechanism": mechanism,
        **asked,
        "graph": graph,
        "graph_hash": graphs.content_hash(loaded),
        "gossip": matrix.name,
        "gossip_hash": matrix.content_hash,
        "node_labels": [str(label) for label in matrix.labels],
        "versions": versions(),
    }


def _show(answer: dict[str, Any], out: Path | None) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(f"{answer['mechanism']} on {answer['graph']}"), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    rows = {
        "nodes": f"{answer['nodes']:,}",
        **_shape(answer),
        "gossip": answer["gossip"],
        "objective": answer["objective"],
        "loss": _number(answer["loss"]),
        "lower bound": _number(answer["lower_bound"]),
        "gap": "inf" if isinstance(answer["gap"], str | None) else f"{answer['gap']:.2e}",
        "status": answer["status"],
        "iterations": f"{answer['iterations']:,}",
        "seconds": f"{answer['seconds']:.2f}",
    }
    for name, value in rows.items():
        table.add_row(escape(name), escape(value))
    console = options.answers()
    console.print(table)
    console.print(_sentence(answer), highlight=False, markup=False)
    for note in answer["notes"]:
        console.print(f"Note: {note}", highlight=False, markup=False)
    if out is not None:
        kind = "Covariance" if answer["steps"] is None else "Noise" if "bound_over" in answer else "Encoder"
        console.print(f"{kind} kept in {out}; use it as the mechanism file:{out}.", highlight=False, markup=False)


def _shape(answer: dict[str, Any]) -> dict[str, str]:
    """Rows that only some mechanisms have."""
    rows = {}
    if answer["steps"] is not None:
        rows["steps"] = f"{answer['steps']:,} ({answer['epochs']} epochs of {answer['period']})"
    if answer["error_weights"] is not None:
        rows["models that count"] = answer["error_weights"]
    if "bound_over" not in answer:
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


def _sentence(answer: dict[str, Any]) -> str:
    gap = answer["gap"]
    if not isinstance(gap, float):
        return "No finite gap is certified."
    share = f"{100 * max(gap, 0.0) / (1 + max(gap, 0.0)):.2g} %"
    what = answer.get("bound_over", "encoder, of any shape,")
    certified = f"No {what} can save more than {share} of this loss (certified)."
    if answer["status"] == STOPPED:
        return f"Stopped before the tolerance; raise --max-iterations or --tolerance. {certified}"
    return certified

"""`mfdl factorize`: the encoder of one mechanism on one graph, with its certificate."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInput, unknown_name
from . import options

if TYPE_CHECKING:
    from ..check import FloatArray
    from ..dynamics import Dynamics
    from ..factorization import Factorization, NodeFactorizations, SpatialFactorization
    from ..factorization.groups import Groups
    from ..gossip import Gossip
    from ..participation import Cyclic

TEMPORAL = ("mafalda", "mafalda-l", "d-mf", "bsr")
SPATIAL = ("corn", "corn-pairwise", "decor")
STOPPED = "stopped"
STOPPED_EXIT_CODE = 3


def factorize(
    context: typer.Context,
    config: options.Config = None,
    mechanism: Annotated[
        str,
        typer.Option(
            "--mechanism",
            metavar="NAME",
            help="Over time: mafalda, mafalda-l, d-mf, bsr, file:FILE.npz. Over nodes: corn, corn-pairwise, decor.",
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
    tolerance: Annotated[float, typer.Option("--tolerance", help="Certified relative gap to reach.")] = 1e-4,
    solver: Annotated[
        str, typer.Option("--solver", help="dense (L-BFGS) or autodiff (torch); corn with groups: newton or conic.")
    ] = "dense",
    max_iterations: Annotated[int, typer.Option("--max-iterations", help="Iterations after which to stop.")] = 5000,
    coalition: Annotated[
        int,
        typer.Option("--coalition", metavar="Q", help="corn, decor: any Q nodes pool their secrets; 0: none."),
    ] = 0,
    groups: Annotated[
        Path | None,
        typer.Option(
            "--groups",
            metavar="FILE.json",
            help="corn: who shares a seed, a JSON list of lists of node labels; default all nodes, or with --coalition "
            "both ends of every edge.",
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
        Path | None, typer.Option("--out", metavar="FILE.npz", help="Keep the encoder; file:FILE.npz names it later.")
    ] = None,
    device: options.Device = None,
    jobs: Annotated[int | None, typer.Option("--jobs", help="CPU threads of the linear algebra; default: all.")] = None,
    data_home: options.DataHome = None,
    as_json: options.Json = False,
) -> None:
    """Factorize the error of decentralized learning: loss, certified lower bound, gap.

    Over time (mafalda, mafalda-l, d-mf, bsr) loss is sensitivity^2 tr(H X^-1), the variance of the noise in all models
    together per unit of noise and coordinate. Over nodes (corn, corn-pairwise, decor) it is tr(W R W^T), R the
    covariance of one step, at [R^-1]_ii <= 1 for every node unless --max-inverse-diagonal says otherwise; there are no
    epochs. Where a mechanism is not the best of its kind the gap says what a better one would save. Exits with 3 when
    the solver stopped before the tolerance.
    """
    prefixed = mechanism.startswith("file:")
    if not prefixed and mechanism not in TEMPORAL + SPATIAL:
        raise unknown_name("mechanism", mechanism, [*TEMPORAL, *SPATIAL, "file:FILE.npz"])
    _require_meant(context, mechanism)
    from .. import check
    from ..reporting.output import require_device, require_writable

    require_device(device)
    check.integer_at_least(1, max_iterations=max_iterations)
    if jobs is not None:
        check.integer_at_least(1, jobs=jobs)
    if out is not None:
        if out.suffix != ".npz":
            raise InvalidInput(f"--out must end in .npz, got {str(out)!r}; e.g. --out {out.with_suffix('.npz')}.")
        require_writable(out)
    from threadpoolctl import threadpool_limits

    from .. import factorization
    from ..dynamics import Dynamics
    from ..participation import Cyclic

    loaded, matrix = options.load_gossip(graph, largest_component, gossip, data_home)
    if mechanism in SPATIAL:
        where = None if groups is None else factorization.read_groups(groups, matrix.labels)
        posed = _Spatial(matrix, objective, horizon, coalition, where, max_inverse_diagonal, tolerance, max_iterations)
        with threadpool_limits(jobs):
            began = time.perf_counter()
            found = posed.run(mechanism, solver)
            seconds = time.perf_counter() - began
        answer = {
            **_facts(mechanism, graph, loaded, matrix, objective, found, seconds),
            "steps": None,
            "epochs": None,
            "period": None,
            **_covariance_facts(found, horizon),
        }
        if out is not None:
            factorization.save_spatial(out, found, header=_header(mechanism, graph, loaded, matrix, objective))
    else:
        dynamics, participation = Dynamics(matrix), Cyclic(epochs=epochs, period=period)
        with threadpool_limits(jobs):
            began = time.perf_counter()
            job = _Job(dynamics, participation, objective, tolerance, solver, max_iterations, device)
            solved, grams = job.run(mechanism)
            seconds = time.perf_counter() - began
        answer = {
            **_facts(mechanism, graph, loaded, matrix, objective, solved, seconds),
            "steps": participation.num_steps,
            "epochs": epochs,
            "period": period,
            "sensitivity": solved.sensitivity,
        }
        if out is not None:
            header = {
                **_header(mechanism, graph, loaded, matrix, objective),
                "participation": participation.to_dict(),
                "learning_rate": "constant; H and loss are stated for learning rate 1",
            }
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
    if over_nodes:
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
    objective: str,
    solved: Factorization | NodeFactorizations | SpatialFactorization,
    seconds: float,
) -> dict[str, Any]:
    from .. import graphs
    from ..reporting.output import json_number

    return {
        "mechanism": mechanism,
        "graph": graph,
        "nodes": matrix.num_nodes,
        "objective": objective,
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


def _header(mechanism: str, graph: str, loaded: Any, matrix: Gossip, objective: str) -> dict[str, Any]:
    from .. import graphs
    from ..reporting.output import versions

    return {
        "mechanism": mechanism,
        "objective": objective,
        "graph": graph,
        "graph_hash": graphs.content_hash(loaded),
        "gossip": matrix.name,
        "gossip_hash": matrix.content_hash,
        "node_labels": [str(label) for label in matrix.labels],
        "versions": versions(),
    }


@dataclasses.dataclass(frozen=True)
class _Spatial:
    """A covariance over nodes and the options of its solver."""

    gossip: Gossip
    objective: str
    horizon: int
    coalition: int
    groups: Groups | None
    max_inverse_diagonal: float
    tolerance: float
    max_iterations: int

    def run(self, mechanism: str, solver: str) -> SpatialFactorization:
        from ..dynamics import Dynamics
        from ..factorization import COVARIANCE_SOLVERS, optimal_covariance, optimal_pairwise

        if solver != "dense" and solver not in COVARIANCE_SOLVERS:
            raise unknown_name("solver of noise over nodes", solver, ["dense", *COVARIANCE_SOLVERS])
        common: dict[str, Any] = {
            "max_inverse_diagonal": self.max_inverse_diagonal,
            "horizon": self.horizon,
            "objective": self.objective,
        }
        dynamics = Dynamics(self.gossip)
        with options.messages().status(f"factorizing {self.gossip.num_nodes} nodes"):
            if mechanism != "corn":
                return optimal_pairwise(dynamics, coalition_size=self.coalition, **common)
            everybody = [list(range(self.gossip.num_nodes))]
            asked = solver != "dense" and self.coalition == 0  # the program for groups, with one group
            return optimal_covariance(
                dynamics,
                groups=everybody if self.groups is None and asked else self.groups,
                coalition_size=self.coalition,
                tolerance=self.tolerance,
                max_iterations=self.max_iterations,
                method="newton" if solver == "dense" else solver,
                **common,
            )


class _Job:
    """One problem and the options of its solver."""

    def __init__(
        self,
        dynamics: Dynamics,
        participation: Cyclic,
        objective: str,
        tolerance: float,
        solver: str,
        max_iterations: int,
        device: str | None,
    ) -> None:
        from .. import check
        from ..error_gram import OBJECTIVES
        from ..factorization import SOLVERS

        check.positive(tolerance=tolerance)
        if objective not in OBJECTIVES:
            raise unknown_name("objective", objective, OBJECTIVES)
        if solver not in SOLVERS:
            raise unknown_name("solver", solver, SOLVERS)
        self.dynamics, self.participation, self.objective = dynamics, participation, objective
        self.limits: dict[str, Any] = {"tolerance": tolerance, "max_iterations": max_iterations}
        self.solver, self.device = solver, device

    def run(self, mechanism: str) -> tuple[Factorization | NodeFactorizations, FloatArray]:
        """The factorization and the error Gram (one per node where the encoders are) it is measured by."""
        from ..algorithms.registry import build
        from ..operators import LocalNoise

        if mechanism == "mafalda-l":
            return self._per_node(None)
        if mechanism == "mafalda":
            return self._shared(None)
        if mechanism == "d-mf":
            return self._prefix_sums()
        # bsr and file:FILE.npz are built without optimising anything; a file is checked against nodes and steps
        noise = build(mechanism, self.dynamics, self.participation).noise
        if not isinstance(noise, LocalNoise):
            raise InvalidInput(
                f"{mechanism} holds a covariance over nodes, whose loss and bound are in the file; factorize puts "
                "encoders to the test. Use it as a mechanism of `mfdl compare` or `mfdl account`."
            )
        return self._shared(noise.encoder) if noise.shared else self._per_node(noise.encoder)

    def _prefix_sums(self) -> tuple[Factorization, FloatArray]:
        from ..factorization import PREFIX_SUM_TOLERANCE, NotConverged, prefix_sum_encoder

        try:
            limits = {**self.limits, "tolerance": min(self.limits["tolerance"], PREFIX_SUM_TOLERANCE)}
            return self._shared(prefix_sum_encoder(self.participation, **limits).encoder)
        except NotConverged as error:  # still a valid encoder, and its loss is what it is
            solved, gram = self._shared(error.factorization.encoder)
            note = "the prefix-sum encoder itself stopped before the tolerance"
            return dataclasses.replace(solved, status=STOPPED, notes=(*solved.notes, note)), gram

    def _shared(self, encoder: FloatArray | None) -> tuple[Factorization, FloatArray]:
        from .. import factorization

        posed = factorization.problem(self.dynamics, self.participation, objective=self.objective)
        with options.messages().status(f"factorizing {posed.size} steps"):
            best = factorization.solve_problem(posed, solver=self.solver, device=self.device, **self.limits)
        if encoder is None:
            return best, posed.error_gram
        fixed = factorization.evaluate(posed, encoder, lower_bound=best.lower_bound)
        return dataclasses.replace(fixed, notes=(*best.notes, *_loose_bound(best))), posed.error_gram

    def _per_node(self, encoders: FloatArray | None) -> tuple[NodeFactorizations, FloatArray]:
        import numpy as np

        from .. import factorization
        from ..error_gram import node_error_grams

        if self.solver != "dense":
            raise InvalidInput("one encoder per node is solved by --solver dense only.")
        with options.progress_bar() as bar:
            task = bar.add_task("factorizing nodes", total=self.dynamics.num_nodes)
            best = factorization.factorize_nodes(
                self.dynamics,
                self.participation,
                objective=self.objective,
                allow_stopped=True,
                progress=lambda: bar.advance(task),
                **self.limits,
            )
        grams = np.stack(list(node_error_grams(self.dynamics, self.participation.num_steps, objective=self.objective)))
        if encoders is None:
            return best, grams
        bounds = [one.lower_bound for one in best.nodes]
        return factorization.evaluate_nodes(grams, self.participation, encoders, lower_bounds=bounds), grams


def _loose_bound(best: Factorization) -> tuple[str, ...]:
    if best.status != STOPPED:
        return ()
    return (f"the lower bound is valid but loose: its solver stopped at gap {best.gap:.2g}",)


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
        kind = "Encoder" if answer["steps"] is not None else "Covariance"
        console.print(f"{kind} kept in {out}; use it as the mechanism file:{out}.", highlight=False, markup=False)


def _shape(answer: dict[str, Any]) -> dict[str, str]:
    """Rows that only noise over time, or only noise over nodes, has."""
    if answer["steps"] is not None:
        return {"steps": f"{answer['steps']:,} ({answer['epochs']} epochs of {answer['period']})"}
    rows = {
        "against": f"coalitions of {answer['coalition']}" if answer["coalition"] else "an outsider",
        "[R^-1]_ii at most": f"{answer['max_inverse_diagonal']:g}",
        "shared seeds": f"{answer['groups']:,}",
        "private std": _number(answer["private_std"]),
    }
    if answer["sigma_pair"] is not None:
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
    what = "encoder, of any shape," if answer["steps"] is not None else answer["bound_over"]
    certified = f"No {what} can save more than {share} of this loss (certified)."
    if answer["status"] == STOPPED:
        return f"Stopped before the tolerance; raise --max-iterations or --tolerance. {certified}"
    return certified

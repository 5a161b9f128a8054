"""`mfdl factorize`: the encoder of one mechanism on one graph, with its certificate."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInput, unknown_name
from . import options

if TYPE_CHECKING:
    from ..check import FloatArray
    from ..dynamics import Dynamics
    from ..factorization import Factorization, NodeFactorizations
    from ..participation import Cyclic

MECHANISMS = ("mafalda", "mafalda-l", "d-mf", "bsr")
STOPPED = "stopped"
STOPPED_EXIT_CODE = 3


def factorize(
    config: options.Config = None,
    mechanism: Annotated[
        str, typer.Option("--mechanism", metavar="NAME", help="mafalda, mafalda-l, d-mf, bsr, or file:FILE.npz.")
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
        str, typer.Option("--solver", help="dense (L-BFGS on the Gram matrix) or autodiff (torch).")
    ] = "dense",
    max_iterations: Annotated[int, typer.Option("--max-iterations", help="Iterations after which to stop.")] = 5000,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.npz", help="Keep the encoder; file:FILE.npz names it later.")
    ] = None,
    device: options.Device = None,
    jobs: Annotated[int | None, typer.Option("--jobs", help="CPU threads of the linear algebra; default: all.")] = None,
    data_home: options.DataHome = None,
    as_json: options.Json = False,
) -> None:
    """Factorize the error of decentralized learning: loss, certified lower bound, gap.

    loss is sensitivity^2 tr(H X^-1), the variance of the noise in all models together per unit of noise and
    coordinate. For bsr, d-mf and file:FILE.npz the gap says what a better encoder would save. Exits with 3 when the
    solver stopped before the tolerance.
    """
    prefixed = mechanism.startswith("file:")
    if not prefixed and mechanism not in MECHANISMS:
        raise unknown_name("mechanism", mechanism, [*MECHANISMS, "file:FILE.npz"])
    from .. import check, graphs
    from ..reporting.output import json_number, require_device, require_writable, versions

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
    dynamics, participation = Dynamics(matrix), Cyclic(epochs=epochs, period=period)
    began = time.perf_counter()
    with threadpool_limits(jobs):
        job = _Job(dynamics, participation, objective, tolerance, solver, max_iterations, device)
        solved, grams = job.run(mechanism)
        seconds = time.perf_counter() - began
    answer = {
        "mechanism": mechanism,
        "graph": graph,
        "nodes": dynamics.num_nodes,
        "steps": participation.num_steps,
        "epochs": epochs,
        "period": period,
        "objective": objective,
        "loss": json_number(solved.loss),
        "lower_bound": json_number(solved.lower_bound),
        "gap": json_number(solved.gap),
        "sensitivity": solved.sensitivity,
        "status": solved.status,
        "iterations": solved.iterations,
        "seconds": seconds,
        "gossip": matrix.name,
        "graph_hash": graphs.content_hash(loaded),
        "notes": list(solved.notes),
    }
    if out is not None:
        header = {
            "mechanism": mechanism,
            "objective": objective,
            "participation": participation.to_dict(),
            "graph": graph,
            "graph_hash": graphs.content_hash(loaded),
            "gossip": matrix.name,
            "gossip_hash": matrix.content_hash,
            "node_labels": [str(label) for label in matrix.labels],
            "learning_rate": "constant; H and loss are stated for learning rate 1",
            "versions": versions(),
        }
        factorization.save(out, solved, grams=grams, header=header)
    if as_json:
        typer.echo(json.dumps(answer, allow_nan=False))
    else:
        _show(answer, out)
    if solved.status == STOPPED:
        raise typer.Exit(STOPPED_EXIT_CODE)


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
        assert isinstance(noise, LocalNoise)
        return self._shared(noise.encoder) if noise.shared else self._per_node(noise.encoder)

    def _prefix_sums(self) -> tuple[Factorization, FloatArray]:
        from ..factorization import NotConverged, prefix_sum_encoder

        try:
            return self._shared(prefix_sum_encoder(self.participation, **self.limits).encoder)
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
    from rich.table import Table

    table = Table(title=f"{answer['mechanism']} on {answer['graph']}", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    rows = {
        "nodes": f"{answer['nodes']:,}",
        "steps": f"{answer['steps']:,} ({answer['epochs']} epochs of {answer['period']})",
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
        table.add_row(name, value)
    console = options.answers()
    console.print(table)
    console.print(_sentence(answer), highlight=False)
    for note in answer["notes"]:
        console.print(f"Note: {note}", highlight=False)
    if out is not None:
        console.print(f"Encoder kept in {out}; use it as the mechanism file:{out}.", highlight=False, markup=False)


def _number(value: float | str | None) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.1f}" if value >= 1e4 else f"{value:.6g}"


def _sentence(answer: dict[str, Any]) -> str:
    gap = answer["gap"]
    if not isinstance(gap, float):
        return "No finite gap is certified."
    share = f"{100 * max(gap, 0.0) / (1 + max(gap, 0.0)):.2g} %"
    certified = f"No encoder, of any shape, can save more than {share} of this loss (certified)."
    if answer["status"] == STOPPED:
        return f"Stopped before the tolerance; raise --max-iterations or --tolerance. {certified}"
    return certified

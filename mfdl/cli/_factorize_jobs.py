"""The problems behind `mfdl factorize`: over time, over nodes, over both; each solved with a bar or a status line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInput, unknown_name
from . import options

if TYPE_CHECKING:
    from ..check import FloatArray
    from ..dynamics import Dynamics
    from ..error_weights import ErrorWeights
    from ..factorization import Factorization, NodeFactorizations, SpaceTimeFactorization, SpatialFactorization
    from ..factorization.groups import Groups
    from ..participation import Cyclic

PER_NODE = ("mafalda-l", "mafalda-classes")
STOPPED = "stopped"


@dataclasses.dataclass(frozen=True)
class OverNodes:
    """A covariance over nodes and the options of its solver."""

    dynamics: Dynamics
    weights: ErrorWeights | None
    objective: str
    horizon: int
    coalition: int
    groups: Groups | None
    max_inverse_diagonal: float
    tolerance: float
    max_iterations: int

    def run(self, mechanism: str, solver: str) -> SpatialFactorization:
        from ..factorization import COVARIANCE_SOLVERS, optimal_covariance, optimal_pairwise

        if solver != "dense" and solver not in COVARIANCE_SOLVERS:
            raise unknown_name("solver of noise over nodes", solver, ["dense", *COVARIANCE_SOLVERS])
        common: dict[str, Any] = {
            "max_inverse_diagonal": self.max_inverse_diagonal,
            "horizon": self.horizon,
            "objective": self.objective,
            "weights": self.weights,
        }
        dynamics = self.dynamics
        with options.messages().status(f"factorizing {dynamics.num_nodes} nodes"):
            if mechanism != "corn":
                return optimal_pairwise(dynamics, coalition_size=self.coalition, **common)
            everybody = [list(range(dynamics.num_nodes))]
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


class OverTime:
    """One problem and the options of its solver."""

    def __init__(
        self,
        dynamics: Dynamics,
        participation: Cyclic,
        weights: ErrorWeights | None,
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
        self.dynamics, self.participation = dynamics, participation
        self.counted: dict[str, Any] = {"weights": weights, "objective": objective}
        self.limits: dict[str, Any] = {"tolerance": tolerance, "max_iterations": max_iterations}
        self.solver, self.device = solver, device

    def run(self, mechanism: str) -> tuple[Factorization | NodeFactorizations, FloatArray]:
        """The factorization and the error Gram (one per node where the encoders are) it is measured by."""
        from ..algorithms.registry import build
        from ..operators import LocalNoise

        if mechanism in PER_NODE:
            return self._per_node(None, by_class=mechanism == "mafalda-classes")
        if mechanism == "mafalda":
            return self._shared(None)
        if mechanism == "d-mf":
            return self._prefix_sums()
        # bsr and file:FILE.npz are built without optimising anything; a file is checked against nodes and steps
        noise = build(mechanism, self.dynamics, self.participation).noise
        if not isinstance(noise, LocalNoise):
            raise InvalidInput(
                f"{mechanism} holds noise correlated over nodes, whose loss and bound are in the file; factorize puts "
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

        posed = factorization.problem(self.dynamics, self.participation, **self.counted)
        with options.messages().status(f"factorizing {posed.size} steps"):
            best = factorization.solve_problem(posed, solver=self.solver, device=self.device, **self.limits)
        if encoder is None:
            return best, posed.error_gram
        fixed = factorization.evaluate(posed, encoder, lower_bound=best.lower_bound)
        return dataclasses.replace(fixed, notes=(*best.notes, *_loose_bound(best))), posed.error_gram

    def _per_node(
        self, encoders: FloatArray | None, *, by_class: bool = False
    ) -> tuple[NodeFactorizations, FloatArray]:
        import numpy as np

        from .. import factorization
        from ..error_gram import node_error_grams

        if self.solver != "dense":
            raise InvalidInput("one encoder per node is solved by --solver dense only.")
        with options.progress_bar() as bar:
            nodes, solve = self.dynamics.num_nodes, factorization.factorize_nodes
            if by_class:
                nodes = len(set(factorization.degree_labels(self.dynamics, self.participation.num_steps).tolist()))
                solve = factorization.factorize_classes
            task = bar.add_task("factorizing", total=nodes)
            best = solve(
                self.dynamics,
                self.participation,
                **self.counted,
                allow_stopped=True,
                progress=lambda: bar.advance(task),
                **self.limits,
            )
        grams = np.stack(list(node_error_grams(self.dynamics, self.participation.num_steps, **self.counted)))
        if encoders is None:
            return best, grams
        bounds = [one.lower_bound for one in best.nodes]
        return factorization.evaluate_nodes(grams, self.participation, encoders, lower_bounds=bounds), grams


@dataclasses.dataclass(frozen=True)
class OverTimeAndNodes:
    """Noise over steps and nodes at once and the options of its solver."""

    dynamics: Dynamics
    participation: Cyclic
    weights: ErrorWeights | None
    objective: str
    coalition: int
    groups: Groups | None
    tolerance: float
    max_iterations: int

    def run(self, mechanism: str) -> SpaceTimeFactorization:
        from .. import factorization

        solve: Callable[..., SpaceTimeFactorization] = {
            "time-space": factorization.optimal_time_space,
            "adapted": factorization.optimal_adapted,
            "space-time": factorization.optimal_space_time,
        }[mechanism]
        seeds: dict[str, Any] = {}
        if mechanism == "time-space":
            seeds = {"coalition_size": self.coalition, "groups": self.groups}
        with options.messages().status(f"factorizing {self.participation.num_steps} steps x {self.dynamics.num_nodes}"):
            return solve(
                self.dynamics,
                self.participation,
                weights=self.weights,
                objective=self.objective,
                tolerance=self.tolerance,
                max_iterations=self.max_iterations,
                **seeds,
            )


def _loose_bound(best: Factorization) -> tuple[str, ...]:
    if best.status != STOPPED:
        return ()
    return (f"the lower bound is valid but loose: its solver stopped at gap {best.gap:.2g}",)

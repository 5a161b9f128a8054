"""What noise over the steps costs and who takes part when, checked; what solvers refuse, as InvalidInput."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from mfdl_solvers.problem import ProblemError, Stopping

from .. import check
from ..check import FloatArray
from ..dynamics import Dynamics
from ..errors import InvalidInput
from ..noise.general import require_joint_size
from ..objective import ErrorWeights, NoiseObjective
from ..participation import Participation

USUAL_TOLERANCE = 1e-4
"""The certified relative gap that is asked for by default."""
STEPS, NODES, BOTH = SHAPES = ("steps", "nodes", "both")
"""One encoder for all nodes, one per node, or one over time x nodes."""


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """What noise costs, and what one record can reach.

    Attributes:
        dynamics, participation: what trains, and who takes part when.
        weights, counted_models: which models count; default all alike, after averaging ("message": before).

    Raises: InvalidInput: dynamics or participation that is none.
    """

    dynamics: Dynamics
    participation: Participation
    _: dataclasses.KW_ONLY
    weights: ErrorWeights | None = None
    counted_models: str = "post-average"

    def __post_init__(self) -> None:
        check.instance(Dynamics, dynamics=self.dynamics)
        check.instance(Participation, participation=self.participation)

    @property
    def noise_objective(self) -> NoiseObjective:
        """What noise costs over the steps of the participation; raises InvalidInput."""
        weights = ErrorWeights() if self.weights is None else self.weights
        return NoiseObjective(self.dynamics, self.participation.num_steps, weights, self.counted_models)

    def classes(self) -> Any:
        """The class of each step; raises InvalidInput: other nodes, UnsupportedMechanism: patterns not disjoint."""
        self.participation.require_nodes(self.dynamics.num_nodes)
        return self.participation.classes()

    def gram_over(self, shape: str, recursion: Any = None) -> FloatArray:
        """H for one encoder of all nodes, (T, T), one per node or one over both, (T n, T n)."""
        T, n = self.participation.num_steps, self.dynamics.num_nodes
        require_joint_size(T, n, "take over='steps', or factorize_nodes")
        if recursion is not None:
            H = recursion.error_gram(ErrorWeights() if self.weights is None else self.weights, self.counted_models)
        elif shape == BOTH:
            H = self.noise_objective.over_both()
        else:
            H = np.zeros((T, n, T, n))
            for u, gram in enumerate(self.noise_objective.over_steps_of_nodes()):
                H[:, u, :, u] = gram
        H = H.reshape(T, n, T, n)
        if shape == STEPS:
            return np.asarray(np.einsum("tusu->ts", H))
        return (H if shape == BOTH else H * np.eye(n)[:, None, :]).reshape(T * n, T * n)

    def during(self, kind: str) -> str:
        return f"factorizing {self.participation.num_steps} steps x {self.dynamics.num_nodes} nodes, {kind}"


@contextlib.contextmanager
def solver_refusals() -> Iterator[None]:
    """What a solver refuses, an objective beyond float64 above all, is raised as InvalidInput."""
    try:
        yield
    except ProblemError as error:
        raise InvalidInput(str(error)) from None


def checked_stopping(tolerance: float, max_iterations: int) -> Stopping:
    return Stopping(check.positive(tolerance=tolerance), check.integer_at_least(1, max_iterations=max_iterations))

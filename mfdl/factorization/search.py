"""What a factorization over steps is asked: who trains, who takes part when, which models count, when it ends."""

from __future__ import annotations

import dataclasses
from typing import Any

from numpy.typing import ArrayLike

from mfdl_solvers import Stopping

from .. import check
from ..check import FloatArray
from ..dynamics import Dynamics
from ..gossip import RandomGossip
from ..objective import ErrorWeights, EstimatedGram, NoiseObjective, Probes
from ..participation import Participation
from ..progress import Progress
from .boundary import checked_stopping


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """What noise costs, and what one record can reach.

    Attributes:
        dynamics, participation: what trains, and who takes part when.
        weights, objective: which models count; default all alike, after averaging ("message": before).

    Raises: InvalidInput: dynamics or participation that is none.
    """

    dynamics: Dynamics
    participation: Participation
    _: dataclasses.KW_ONLY
    weights: ErrorWeights | None = None
    objective: str = "post-average"

    def __post_init__(self) -> None:
        check.instance(Dynamics, dynamics=self.dynamics)
        check.instance(Participation, participation=self.participation)

    @property
    def noise_objective(self) -> NoiseObjective:
        """What noise costs over the steps of the participation; raises InvalidInput."""
        weights = ErrorWeights() if self.weights is None else self.weights
        return NoiseObjective(self.dynamics, self.participation.num_steps, weights, self.objective)

    def classes(self) -> Any:
        """The class of each step; raises InvalidInput: other nodes, UnsupportedMechanism: patterns not disjoint."""
        self.participation.require_nodes(self.dynamics.num_nodes)
        return self.participation.classes()


@dataclasses.dataclass(frozen=True, eq=False)
class EncoderSetting(Setting):
    """One encoder for all nodes.

    Attributes:
        probes: of H where the graph is too large for its exact form (`NoiseObjective.estimated`); default 8.
        averaged_over: the encoder is made for the mean of H over gossip that is drawn anew in each round
            (`NoiseObjective.averaged`), in place of the gossip of `dynamics`: for all draws, before any.
    """

    probes: Probes | None = None
    averaged_over: RandomGossip | None = None

    def gram(self) -> FloatArray | EstimatedGram:
        """H, exact where that can be had."""
        if self.averaged_over is not None:
            return self.noise_objective.averaged(self.averaged_over, self.probes)
        return self.noise_objective.exact_or_estimated(self.probes)


@dataclasses.dataclass(frozen=True, eq=False)
class Search(Setting):
    """A setting, and when a solver ends.

    Attributes:
        tolerance: certified relative gap to reach, > 0; default `usual_tolerance`.
        max_iterations: of the solver.
        progress: True, False, "auto" (see `mfdl.progress`), or a function: called with the iterations so far and the
            certified gap, by the solvers that certify on their way.
    """

    tolerance: float | None = None
    max_iterations: int = 5000
    progress: Progress = "auto"

    def of_both(self, kind: str) -> str:
        """What a search over steps and nodes does, in words."""
        return f"factorizing {self.participation.num_steps} steps x {self.dynamics.num_nodes} nodes, {kind}"

    @property
    def usual_tolerance(self) -> float:
        """What is asked for by default."""
        return 1e-4

    @property
    def stopping(self) -> Stopping:
        """Checked; raises InvalidInput."""
        wanted = self.usual_tolerance if self.tolerance is None else self.tolerance
        return checked_stopping(wanted, self.max_iterations)


@dataclasses.dataclass(frozen=True, eq=False)
class EncoderSearch(Search):
    """One encoder for all nodes.

    Attributes:
        solver: "dense" (the dual; L-BFGS on X for a singular H) or "autodiff" (torch, same optimum).
        allow_stopped: return a factorization that did not reach the tolerance instead of raising.
        probes, averaged_over: those of `EncoderSetting`.
    """

    solver: str = "dense"
    allow_stopped: bool = False
    probes: Probes | None = None
    averaged_over: RandomGossip | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class NodeSearch(Search):
    """An encoder for each node.

    Attributes: allow_stopped: as for one encoder; progress: a function is called after each solution.
    """

    allow_stopped: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class ClassSearch(NodeSearch):
    """An encoder for each class of nodes.

    Attributes: labels: an integer per node, shape (n,); nodes with one label and one participation are a class. Default
        `degree_labels`: nodes with equally many neighbours.
    """

    labels: ArrayLike | None = None

"""An encoder over the steps for each node, or each class of nodes, with the error Gram of its own noise.

Local noise is independent over nodes, so the problems are separate. Totals over nodes behave like one `Factorization`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

import mfdl_solvers
from mfdl_solvers import Factorization, FactorizationProblem
from mfdl_solvers.problem import FIXED, OPTIMAL, STOPPED, Stopping, relative_gap

from .. import check
from ..check import FloatArray
from ..display import short_repr
from ..dynamics import Dynamics
from ..errors import InvalidInput
from ..objective import ErrorWeights
from ..participation import Participation
from ..progress import Progress, reporter
from ..spec import refusing, storable
from . import solutions
from .setting import USUAL_TOLERANCE, Setting, checked_stopping, solver_refusals
from .temporal import evaluate


@storable
@dataclasses.dataclass(frozen=True, eq=False)
class NodeFactorizations:
    """One factorization per node (MAFALDA-L)."""

    __repr__ = short_repr

    nodes: tuple[Factorization, ...]
    seconds: float

    @property
    def encoder(self) -> FloatArray:
        """C_u, shape (n, T, T)."""
        return np.stack([f.encoder for f in self.nodes])

    @property
    def objective(self) -> float:
        return sum(f.objective for f in self.nodes)

    @property
    def lower_bound(self) -> float:
        return sum(f.lower_bound for f in self.nodes)

    @property
    def gap(self) -> float:
        """objective / lower_bound - 1: the objective is at most this far above the optimum."""
        return relative_gap(self.objective, self.lower_bound)

    @property
    def status(self) -> str:
        """optimal when every node is, fixed when nothing was optimised, else stopped."""
        (status, *others) = {f.status for f in self.nodes}
        return STOPPED if others or status not in (OPTIMAL, FIXED) else status

    @property
    def iterations(self) -> int:
        return sum(f.iterations for f in self.nodes)

    @property
    def sensitivity(self) -> float:
        return max(f.sensitivity for f in self.nodes)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(note for f in self.nodes for note in f.notes))


@refusing({})
def factorize_nodes(
    dynamics: Dynamics,
    participation: Participation,
    *,
    weights: ErrorWeights | None = None,
    counted_models: str = "post-average",
    tolerance: float | None = None,
    max_iterations: int = 5000,
    progress: Progress = "auto",
    allow_stopped: bool = False,
) -> NodeFactorizations:
    """One encoder per node from its own error Gram H_u (MAFALDA-L).

    Each node starts from the solution of the node before, so later nodes take fewer iterations; nodes with the
    same Gram (symmetric graphs) and the same participation share one solution.

    Args: as for `factorize`; progress: a function is called after each solution.
    Raises: NotConverged; UnsupportedMechanism: a node's patterns not disjoint; InvalidInput: a participation for
        another number of nodes, an objective beyond float64.
    """
    setting = Setting(dynamics, participation, weights=weights, counted_models=counted_models)
    labels = _labels_of_nodes(participation, dynamics.num_nodes)
    turns = _Turns(checked_stopping(USUAL_TOLERANCE if tolerance is None else tolerance, max_iterations), allow_stopped)
    grams, began = setting.noise_objective.over_steps_of_nodes(), time.perf_counter()
    with reporter(progress, words=0).bar("factorizing nodes", len(labels)) as advance:
        solved = turns.solved(zip(grams, labels, strict=True), advance)
    return NodeFactorizations(solved, time.perf_counter() - began)


@storable
@dataclasses.dataclass(frozen=True, eq=False)
class ClassFactorizations(NodeFactorizations):
    """One factorization per class of nodes: `nodes[labels[u]]` is that of node u, at the sum of its class's Grams.

    Attributes: labels: the class of each node, integers from 0, shape (n,), read-only.
    """

    labels: NDArray[np.intp]

    @property
    def encoder(self) -> FloatArray:
        """C_u, shape (n, T, T): that of its class at every node."""
        return np.stack([f.encoder for f in self.nodes])[self.labels]


@refusing({})
def factorize_classes(
    dynamics: Dynamics,
    participation: Participation,
    *,
    weights: ErrorWeights | None = None,
    counted_models: str = "post-average",
    tolerance: float | None = None,
    max_iterations: int = 5000,
    progress: Progress = "auto",
    allow_stopped: bool = False,
    labels: ArrayLike | None = None,
) -> ClassFactorizations:
    """One encoder per class of nodes, the best for the sum H_c of its nodes' error Grams.

    Under LDP each encoder has sensitivity 1 whatever the classes, so the objective lies between that of an encoder per
    node and, where all share a participation, that of one for all, up to the tolerance.

    Args: labels: an integer per node, shape (n,); nodes with one label and one participation are a class. Default
        `degree_labels`: nodes with equally many neighbours. The others: as for `factorize_nodes`.
    Raises: as `factorize_nodes`; InvalidInput: labels for another number of nodes.
    Cost: n Grams, one at a time, (classes) T^2 memory, and one solution per class.
    """
    setting = Setting(dynamics, participation, weights=weights, counted_models=counted_models)
    turns = _Turns(checked_stopping(USUAL_TOLERANCE if tolerance is None else tolerance, max_iterations), allow_stopped)
    n, T = dynamics.num_nodes, participation.num_steps
    steps = _labels_of_nodes(participation, n)
    given = degree_labels(dynamics, T) if labels is None else _node_labels(labels, n)
    gathered = participation.shared_by(range(n))
    schemes = np.empty(n, dtype=np.intp)
    for number, (_, members) in enumerate(gathered):
        schemes[members] = number
    _, first, of_node = np.unique(np.stack([given, schemes]), axis=1, return_index=True, return_inverse=True)
    of_node = np.asarray(of_node, dtype=np.intp).reshape(n)
    of_node.setflags(write=False)
    began = time.perf_counter()
    sums = np.zeros((first.size, T, T))
    with np.errstate(over="ignore"):  # an infinite sum is refused
        for u, H in enumerate(setting.noise_objective.over_steps_of_nodes()):
            sums[of_node[u]] += H
    cases = ((H, steps[u]) for H, u in zip(sums, first.tolist(), strict=True))
    with reporter(progress, words=0).bar("factorizing classes of nodes", len(sums)) as advance:
        solved = turns.solved(cases, advance)
    return ClassFactorizations(solved, time.perf_counter() - began, of_node)


def degree_labels(dynamics: Dynamics, num_steps: int) -> NDArray[np.intp]:
    """A label per node, equal for nodes with equally many neighbours in every gossip round of training, shape (n,)."""
    check.instance(Dynamics, dynamics=dynamics)
    check.integer_at_least(1, num_steps=num_steps)
    rounds = {W.content_hash: W for W in map(dynamics.gossip.at, range(num_steps * dynamics.gossip_rounds))}
    degrees = np.array([[degree for _, degree in W.graph().degree()] for W in rounds.values()])
    _, labels = np.unique(degrees, axis=1, return_inverse=True)
    return np.asarray(labels, dtype=np.intp).reshape(dynamics.num_nodes)


def _node_labels(labels: ArrayLike, num_nodes: int) -> NDArray[np.intp]:
    array = check.as_array(labels=labels)
    if array.shape != (num_nodes,) or array.dtype.kind not in "iu":
        raise InvalidInput(
            f"labels must be one integer per node, shape ({num_nodes},), got shape {array.shape} of {array.dtype}."
        )
    return array.astype(np.intp)


def _labels_of_nodes(participation: Participation, num_nodes: int) -> list[NDArray[np.intp]]:
    """The class of each step for each node's records, one (T,) array per node, shared by nodes that agree."""
    participation.require_nodes(num_nodes)
    labels: dict[int, NDArray[np.intp]] = {}
    for scheme, members in participation.shared_by(range(num_nodes)):
        labels |= dict.fromkeys(members, scheme.classes())
    return [labels[node] for node in range(num_nodes)]


@dataclasses.dataclass(frozen=True)
class _Turns:
    stopping: Stopping
    allow_stopped: bool

    def solved(
        self, cases: Iterable[tuple[FloatArray, NDArray[np.intp]]], advance: Callable[[], object]
    ) -> tuple[Factorization, ...]:
        """Each (H, classes of steps), from the last solution with these classes; equal cases share a solution."""
        seen: list[tuple[FloatArray, NDArray[np.intp], Factorization]] = []
        solutions: list[Factorization] = []
        for H, labels in cases:
            alike = [(gram, before) for gram, classes, before in seen if np.array_equal(classes, labels)]
            result = next((before for gram, before in alike if np.array_equal(gram, H)), None)
            if result is None:
                result = _solved(H, labels, self.stopping, start=alike[-1][1].gram if alike else None)
                if not self.allow_stopped:
                    result.require_converged(self.stopping.tolerance)
                seen.append((H, labels, result))
            solutions.append(result)
            advance()
        if not math.isfinite(sum(result.objective for result in solutions)):
            raise InvalidInput("the objective of all nodes together is beyond float64; take smaller error weights.")
        return tuple(solutions)


@solver_refusals()
def _solved(H: FloatArray, labels: NDArray[np.intp], stopping: Stopping, *, start: FloatArray | None) -> Factorization:
    """The dense solver; for H = 0, independent noise at unit sensitivity: noise that no counted model meets is free."""
    if H.any():
        return solutions.solved(mfdl_solvers.solve, FactorizationProblem(H, labels), stopping=stopping, start=start)
    X = np.diag(1.0 / np.bincount(labels)[labels])
    note = "the noise of some nodes reaches no counted model, so any encoder serves them: theirs is independent noise"
    return Factorization(
        np.sqrt(X), X, objective=0.0, lower_bound=0.0, status=OPTIMAL, iterations=0, seconds=0.0, notes=(note,)
    )


def evaluate_nodes(
    grams: FloatArray, participation: Participation, encoders: FloatArray, *, lower_bounds: Sequence[float]
) -> NodeFactorizations:
    """Given encoders, one per node, at the nodes' error Grams; all are scaled by the largest sensitivity.

    Args: grams, encoders: shape (n, T, T), a Gram may be zero; lower_bounds: of the best encoder of each node.
    """
    check.instance(Participation, participation=participation)
    grams, encoders = check.finite_array(3, grams=grams), check.finite_array(3, encoders=encoders)
    lower_bounds = check.listed("numbers, one for each node", lower_bounds=lower_bounds)
    T = participation.num_steps
    for name, array in (("grams", grams), ("encoders", encoders)):
        if array.shape != (len(lower_bounds), T, T):
            raise InvalidInput(
                f"{name} must have shape ({len(lower_bounds)}, {T}, {T}), a matrix of all steps for each of the "
                f"lower_bounds, got {array.shape}."
            )
    began = time.perf_counter()
    labels = _labels_of_nodes(participation, len(grams))
    any_gram = np.eye(T)  # where no counted model meets the noise: its objective is set to 0 below
    posed = [FactorizationProblem(H if H.any() else any_gram, steps) for H, steps in zip(grams, labels, strict=True)]
    worst = max(p.sensitivity_squared(C.T @ C) for p, C in zip(posed, encoders, strict=True)) ** 0.5
    nodes = []
    for p, C, H, bound in zip(posed, encoders, grams, lower_bounds, strict=True):
        unit = evaluate(p, C, lower_bound=bound)
        share = p.sensitivity_squared(C.T @ C) ** 0.5 / worst  # one noise level serves all nodes
        objective = unit.objective / share**2 if H.any() else 0.0
        scaled = {"encoder": C / worst, "gram": unit.gram * share**2, "sensitivity": unit.sensitivity * share}
        nodes.append(dataclasses.replace(unit, objective=objective, **scaled))
    return NodeFactorizations(tuple(nodes), time.perf_counter() - began)

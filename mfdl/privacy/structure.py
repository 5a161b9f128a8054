"""Facts of an algorithm's maps that forms and proofs rest on, each decided on the maps and never by name.

A linear algorithm is given in float64, so a relation such as "the weights of the messages cancel" holds up to rounding
at best. A remainder at that level is taken for zero, which is safe only where a true remainder cannot be as small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..algorithms import LinearAlgorithm
from ..view import AlgorithmView

SMALLEST_WEIGHT = 1e-6  # with smaller weights a true remainder could pass for rounding

Fact = TypeVar("Fact")
REMEMBERED = 8  # facts of an algorithm: of the masks that one question is about
_facts: WeakKeyDictionary[LinearAlgorithm, dict[tuple[str, str], Any]] = WeakKeyDictionary()


def remembered(view: AlgorithmView, name: str, compute: Callable[[AlgorithmView], Fact]) -> Fact:
    """A fact of an algorithm under masks, computed once for the questions that are asked about them in turn."""
    of_algorithm = _facts.setdefault(view.algorithm, {})
    key = (name, view.knowledge.digest())
    if key not in of_algorithm:
        while len(of_algorithm) >= REMEMBERED:
            del of_algorithm[next(iter(of_algorithm))]
        of_algorithm[key] = compute(view)
    fact: Fact = of_algorithm[key]
    return fact


def is_plain_gossip(algorithm: LinearAlgorithm, *, absences: bool = False) -> bool:
    """Whether m = s + Q (g + e) with Q diagonal and negative (m = s in further gossip rounds), s' = K m, models = s.

    Forms for hidden messages assume it. With `absences` entries of Q may be zero: those of nodes that are away.
    """
    eye = sp.eye_array(algorithm.num_nodes, format="csr")

    def is_identity(matrix: sp.csr_array | None) -> bool:
        return matrix is not None and matrix.shape == eye.shape and (matrix != eye).nnz == 0

    if not algorithm.noise_enters_with_gradients or not is_identity(algorithm.model_from_state):
        return False
    of_steps = set(algorithm.kind_of_round[np.array(algorithm.step_of_round) >= 0].tolist())
    for number, kind in enumerate(algorithm.kinds):
        if kind.state_from_state is not None or kind.state_from_gradient is not None:
            return False
        Q = kind.message_from_gradient
        if not is_identity(kind.message_from_state) or kind.state_from_message is None:
            return False
        if Q is None:
            if number in of_steps and not absences:
                return False
            continue
        entering = Q.diagonal()
        if Q.nnz != np.count_nonzero(entering) or (entering > 0).any() or not (absences or entering.all()):
            return False
    return True


def gradients_enter(algorithm: LinearAlgorithm) -> NDArray[np.bool_]:
    """Which gradients a message or state takes in at all, bool (T, n): not those of nodes that are away in a step."""
    of_kind = np.zeros((len(algorithm.kinds), algorithm.num_nodes), dtype=bool)
    for number, kind in enumerate(algorithm.kinds):
        for entering in (kind.message_from_gradient, kind.state_from_gradient):
            if entering is not None:
                of_kind[number, entering.indices] = True
    steps = np.array(algorithm.step_of_round) >= 0
    return of_kind[algorithm.kind_of_round[steps]]


def smallest_weight(algorithm: LinearAlgorithm) -> float:
    """The smallest weight, in magnitude and other than zero, with which a message enters a state; inf if none does."""
    smallest = np.inf
    for kind in algorithm.kinds:
        if kind.state_from_message is not None:
            sizes = np.abs(kind.state_from_message.data)
            smallest = min(smallest, float(sizes[sizes > 0].min(initial=np.inf)))
    return smallest

"""What a form of X_u is, and what it answers: Grams with bounds on their rounding errors.

Laws of every form (`tests/privacy/test_forms.py`): the true X lies within `errors` and `inflation`; leaks are the exact
ones, or the Gram is marked an upper bound; one who sees and knows more never learns less.

A linear algorithm is given in float64, so a relation such as "the weights of the messages cancel" holds up to rounding
at best. A remainder at that level is taken for zero, which is safe only where a true remainder cannot be as small.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from mfdl_solvers.encoders import Encoder
from mfdl_solvers.ties import ranking

from ...algorithms import LinearAlgorithm
from ...check import FloatArray
from ...display import short_repr
from ...floats import UNIT
from ...noise.encoder_arguments import written_out
from ...trust.view import AlgorithmView, View

AS_THEY_ARE = (
    "which float64 cannot tell from rounding: entries count as they are, so give computed ones as the fractions that "
    "they stand for (mfdl.entries.as_fractions)"
)
KNOWN_NOISE = "the attacker knows its noise"
SMALLEST_WEIGHT = 1e-6  # with smaller weights a true remainder could pass for rounding
Group = tuple[int, ...]  # the nodes that hold one record, several and distinct
GramChange = Callable[[Group, "ViewGram"], "ViewGram"]  # of a Gram and its owners
Fact = TypeVar("Fact")
REMEMBERED = 8  # facts of an algorithm: of the masks that one question is about


@dataclasses.dataclass(frozen=True, eq=False)
class Structured:
    """X = weight C^T C of an encoder with structure, `weight` within `error`, never written out unless asked."""

    encoder: Encoder
    weight: float = 1.0
    error: float = 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class ViewGram:
    """X of one victim with bounds on how far the float64 array can be from the truth.

    Attributes:
        values: X, shape (T, T); or its diagonal, shape (T,), where X is diagonal (noise fresh in every step), or just T
            zeros where it is `structured`.
        errors: the true X is, in the positive semidefinite order, between 1 / `inflation` and `inflation` times
            matrices within `errors` of `values`, entrywise.
        inflation: >= 1; infinite: nothing proves a finite loss.
        leaks: bool (T,), steps whose gradient shows in a noiseless combination: infinite loss for a record that takes
            part there. Not given: none, or all as an upper bound where `inflation` is infinite.
        why: what leaks, in words; form: which form computed it.
        tolerance: relative size below which noise counts as absent (0 where no rank decision was made).
        upper: X is only known to be at most `matrix` (the Gram of a view that sees more, or with faint noise left out).
        structured: X by the encoder that it is made of.
    """

    __repr__ = short_repr

    values: FloatArray
    errors: FloatArray
    inflation: float = 1.0
    leaks: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, dtype=bool))
    why: str = ""
    form: str = "all messages seen"
    tolerance: float = 0.0
    upper: bool = False
    structured: Structured | None = None

    def __post_init__(self) -> None:
        if not self.leaks.size:
            unproven = math.isinf(self.inflation)
            object.__setattr__(self, "leaks", np.full(len(self.values), unproven))
            object.__setattr__(self, "upper", self.upper or unproven)

    @classmethod
    def silent(cls, num_steps: int, why: str, *, form: str = "all messages seen", upper: bool = False) -> ViewGram:
        everything = np.ones(num_steps, dtype=bool)
        return cls(np.ones(num_steps), np.zeros(num_steps), math.inf, everything, why, form, upper=upper)

    def over_noise(self, scale: float) -> ViewGram:
        """X where the victim's noise is `scale` > 0 times as large: X / scale^2."""
        if scale == 1:
            return self
        a = 1 / scale**2
        off = self.errors * a + 4 * UNIT * a * (np.abs(self.values) + self.errors)
        of, structured = self.structured, None
        if of is not None:
            structured = Structured(of.encoder, a * of.weight, a * of.error + 4 * UNIT * a * (of.weight + of.error))
        return dataclasses.replace(self, values=self.values * a, errors=off, structured=structured)

    def mapped(self, owners: Group, change: GramChange) -> ViewGram:
        return change(owners, self)

    @property
    def is_diagonal(self) -> bool:
        return self.values.ndim == 1 and self.structured is None

    @property
    def matrix(self) -> FloatArray:
        """X, shape (T, T). Raises: UnsupportedMechanism: of an encoder with structure over too many steps."""
        if self.structured is not None:
            C = np.asarray(written_out(self.structured.encoder).array)
            return np.asarray(self.structured.weight * (C.T @ C))
        return np.diag(self.values) if self.is_diagonal else self.values

    @property
    def entry_error(self) -> FloatArray:
        if self.structured is not None:
            C, of = np.abs(np.asarray(written_out(self.structured.encoder).array)), self.structured
            return np.asarray((of.error + 64 * len(C) * UNIT * of.weight) * (C.T @ C))
        return np.diag(self.errors) if self.is_diagonal else self.errors


@dataclasses.dataclass(frozen=True, eq=False)
class Blocks:
    """X_S of owners that share no noise, block diagonal. Attributes: parts: X_u of each owner."""

    __repr__ = short_repr

    parts: tuple[ViewGram, ...]

    def mapped(self, owners: Group, change: GramChange) -> Blocks:
        return Blocks(tuple(change((u,), gram) for u, gram in zip(owners, self.parts, strict=True)))


class ViewForm(abc.ABC):
    """One way to X_u, for the views that it covers.

    Attributes: of_any_view: no structure is needed; asks_encoder: Grams are those of noise made step by step.
    """

    of_any_view: ClassVar[bool] = False
    asks_encoder = False

    @classmethod
    def from_view(cls, view: View) -> Self | None:
        """The form of a view, or None where it does not cover it: by default that of an algorithm."""
        return cls.from_algorithm(view) if isinstance(view, AlgorithmView) else None

    @classmethod
    def from_algorithm(cls, view: AlgorithmView) -> Self | None:
        return None

    def cost(self, victims: Sequence[int]) -> float:
        """About how many multiplications `grams` takes, of a form by structure."""
        return 0.0

    @abc.abstractmethod
    def grams(self, victims: Sequence[int]) -> list[ViewGram | None]:
        """X_u of each victim, None where float64 leaves it undecided; equal Grams are one object."""

    def joint_grams(self, groups: Sequence[Group]) -> list[ViewGram | Blocks | None]:
        """X_S = A_S^T (B B^T)^+ A_S of the owners S of one record, owner after owner, each in time order; None:
        undecided, or no rule.
        """
        return [None] * len(groups)


def leak_in_words(step: int, combination: FloatArray, row_name: Callable[[int], str]) -> str:
    """The combination of rows that shows the gradient, by its four largest weights; rows of equal weight in order."""
    if not combination.any():  # exact ranks tell of a leak that is faint in float64
        return f"the gradient of step {step} shows without noise in a combination of what is seen"
    top = ranking(np.abs(combination), descending=True)[:4].tolist()
    terms = " ".join(f"{combination[i] / np.abs(combination).max():+.2g} {row_name(i)}" for i in top)
    more = " ..." if np.count_nonzero(np.abs(combination) > 1e-9 * np.abs(combination).max()) > 4 else ""
    return f"the gradient of step {step} shows without noise in {terms}{more}"


_facts: WeakKeyDictionary[LinearAlgorithm, dict[tuple[str, str], Any]] = WeakKeyDictionary()


def remembered(view: AlgorithmView, name: str, compute: Callable[[AlgorithmView], Fact]) -> Fact:
    of_algorithm = _facts.setdefault(view.algorithm, {})
    key = (name, view.knowledge.digest())
    if key not in of_algorithm:
        while len(of_algorithm) >= REMEMBERED:
            del of_algorithm[next(iter(of_algorithm))]
        of_algorithm[key] = compute(view)
    fact: Fact = of_algorithm[key]
    return fact


def is_plain_gossip(algorithm: LinearAlgorithm, *, node_dropout: bool = False) -> bool:
    """Whether m = s + Q (g + e) with Q diagonal and negative (m = s in further gossip rounds), s' = K m, models = s.

    With `node_dropout` entries of Q may be zero: those of offline nodes.
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
            if number in of_steps and not node_dropout:
                return False
            continue
        entering = Q.diagonal()
        if Q.nnz != np.count_nonzero(entering) or (entering > 0).any() or not (node_dropout or entering.all()):
            return False
    return True


def states_are_of_messages(algorithm: LinearAlgorithm) -> bool:
    bypasses = ((k.state_from_state, k.state_from_gradient, k.state_from_noise) for k in algorithm.kinds)
    return all(matrix is None for maps in bypasses for matrix in maps)


def gradients_enter(algorithm: LinearAlgorithm) -> NDArray[np.bool_]:
    """Gradients that enter a message or state, bool (T, n): not those of nodes that are offline in a step."""
    of_kind = np.zeros((len(algorithm.kinds), algorithm.num_nodes), dtype=bool)
    for number, kind in enumerate(algorithm.kinds):
        for entering in (kind.message_from_gradient, kind.state_from_gradient):
            if entering is not None:
                of_kind[number, entering.indices] = True
    steps = np.array(algorithm.step_of_round) >= 0
    return of_kind[algorithm.kind_of_round[steps]]


def smallest_weight(algorithm: LinearAlgorithm) -> float:
    """The smallest weight other than zero, in magnitude, with which a message enters a state; inf if none does."""
    smallest = np.inf
    for kind in algorithm.kinds:
        if kind.state_from_message is not None:
            sizes = np.abs(kind.state_from_message.data)
            smallest = min(smallest, float(sizes[sizes > 0].min(initial=np.inf)))
    return smallest

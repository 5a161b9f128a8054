"""Interface of every noise: the operator N in `injected = N Z`, and questions about its structure.

Rows of N are (step, injection slot), columns the independent parts of the base noise by step, both time-major. With
Z ~ N(0, nu^2) iid the injected noise has covariance nu^2 N N^T. Callers ask a noise (`is_zero`, `fresh`,
`local`, or `causal` and `joint` for the parts of these structures), never which class it is of.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..check import FloatArray
from ..errors import InvalidInput, UnsupportedMechanism
from ..operators import Selection, StructuredOperator

if TYPE_CHECKING:
    from .causal import CausalNoise, JointNoise


class NoiseOperator(StructuredOperator, abc.ABC):
    """N over time x injection slots. A noise of your own gives sizes, both products, `variances` and its holders.

    Attributes:
        num_steps: T; num_nodes: n.
        fresh: base noise of a step enters in that step alone, in all steps alike: nothing is correlated in time.
        local: each node injects base noise that it alone holds.
        in_blocks: `over_time` takes any steps, and those of later steps add nothing; else it takes all at once.
        instead_in_files: what to write in the place of a noise that is not `storable`.
    """

    num_steps: int
    num_nodes: int
    fresh = False
    local = False
    in_blocks = False
    instead_in_files = "write it as a CausalNoise or a JointNoise of mfdl.noise"

    @abc.abstractmethod
    def variances(self) -> FloatArray:
        """diag(N N^T), shape (num_steps, slots per step): variance of the injected noise per unit nu^2."""

    @property
    def kind(self) -> str:
        """The name of its structure, part of every content hash."""
        return type(self).__name__

    @property
    def causal(self) -> CausalNoise | None:
        """This noise if N[(t, i), (s, k)] = F[i, k] E_k[t, s], else None."""
        return None

    @property
    def joint(self) -> JointNoise | None:
        """This noise if N is the inverse of one encoder over time x nodes, else None."""
        return None

    @property
    def step_factor(self) -> sp.csr_array | None:
        """F where each step adds F times base noise of its own, in all steps alike; None for any other noise."""
        return None

    @property
    def is_zero(self) -> bool:
        """Whether there are no columns, hence no noise."""
        return self.shape[1] == 0

    @property
    def slots_per_step(self) -> int:
        """Injection slots per step; the rows of N are time-major."""
        return self.shape[0] // self.num_steps

    @property
    def columns_per_step(self) -> int:
        """Independent parts of the base noise per step; the columns of N are time-major."""
        return self.shape[1] // self.num_steps

    def holders(self) -> sp.csr_array:
        """Holders of each independent part of a step's base noise: bool (columns per step, n)."""
        return sp.csr_array(sp.eye_array(self.num_nodes, dtype=bool))

    def pattern(self) -> sp.csr_array:
        """Parts of the base noise that a slot uses at any step: bool (slots per step, columns per step)."""
        return sp.csr_array(np.ones((self.slots_per_step, self.columns_per_step), dtype=bool))

    def absolute_rmatmat(self, X: FloatArray) -> FloatArray:
        """|N|^T X, |N| the entries' absolute values: what could cancel in N^T X."""
        return np.asarray(np.abs(self.to_dense()).T @ X)

    def content(self) -> bytes:
        """Input of the content hash besides kind and sizes; by default N and its holders, dense."""
        return self.to_dense().tobytes() + self.holders().toarray().tobytes()

    def scaled(self, slots: FloatArray) -> NoiseOperator:
        """The same with slot i of every step multiplied by slots[i] > 0: diag(slots) N.

        Raises: UnsupportedMechanism: a noise of the user's own.
        """
        raise UnsupportedMechanism(
            f"noise {type(self).__name__} cannot be given another scale at each node; write it as a CausalNoise or a "
            "JointNoise of mfdl.noise."
        )

    def first_steps(self, steps: int) -> NoiseOperator:
        """The noise of the first steps alone. Raises: UnsupportedMechanism: of another structure than an encoder's."""
        raise UnsupportedMechanism(f"noise {type(self).__name__} cannot be cut to its first steps.")

    def factors(self) -> tuple[FloatArray, ...]:
        """Arrays whose entries, one of each, multiply to the entries of N; by default N itself, dense."""
        return (self.to_dense(),)

    # ---- in pieces, for streams ----------------------------------------------------------------------------------

    def cut(self, slots: Sequence[int] | None = None) -> tuple[NDArray[np.intp], NoiseOperator]:
        """(columns, N'): the columns of a step that the slots use, and N for these slots and columns alone.

        Args: slots: distinct rows of a step, in the order wanted; default all.
        """
        if slots is None:
            return np.arange(self.columns_per_step), self
        used = np.zeros(self.columns_per_step, dtype=bool)
        for rows in flat(slots, self.shape[0], self.num_steps).reshape(self.num_steps, -1):
            unit = np.zeros((self.shape[0], rows.size))
            unit[rows, np.arange(rows.size)] = 1
            used |= self.rmatmat(unit).reshape(self.num_steps, used.size, rows.size).any(axis=(0, 2))
        columns = np.flatnonzero(used)
        return columns, _Cut(self, slots, columns)

    def over_time(self, rows: slice, columns: slice, base: FloatArray) -> FloatArray:
        """Map from the base noise of some steps to others, before `spread`: (steps, columns, d) to (steps, ., d)."""
        return self.matmat(base.reshape(self.shape[1], -1)).reshape(self.num_steps, self.slots_per_step, base.shape[2])

    def spread(self, columns: FloatArray) -> FloatArray:
        """Spreads the result of `over_time` to the injection slots, step by step: (steps, slots, d)."""
        return columns


class _Cut(NoiseOperator):
    """Some slots and columns of any noise; the columns left out are those that the slots do not use."""

    def __init__(self, whole: NoiseOperator, slots: Sequence[int], columns: NDArray[np.intp]) -> None:
        self.num_steps, self.num_nodes, self._whole = whole.num_steps, whole.num_nodes, whole
        self._rows = flat(slots, whole.shape[0], self.num_steps)
        columns_in_all = flat(columns, whole.shape[1], self.num_steps)
        self._operator = Selection(self._rows, whole.shape[0]) @ whole @ Selection(columns_in_all, whole.shape[1]).T
        self._held = whole.holders()[columns]
        super().__init__(self._operator.shape)

    def holders(self) -> sp.csr_array:
        return self._held

    def _matmat(self, X: FloatArray) -> FloatArray:
        return np.asarray(self._operator.matmat(X))

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        return np.asarray(self._operator.rmatmat(X))

    def variances(self) -> FloatArray:
        return self._whole.variances().ravel()[self._rows].reshape(self.num_steps, -1)


def flat(places: Sequence[int] | NDArray[np.intp], size: int, num_steps: int) -> NDArray[np.intp]:
    """Time-major indices, in all steps, of some places of a step; `size` is that of all places in all steps."""
    return np.add.outer(np.arange(num_steps) * (size // num_steps), np.asarray(places, dtype=np.intp)).ravel()


def require_products_kept(kind: type) -> None:
    """Raises InvalidInput where a subclass of a noise of some structure has products of its own, hence another one."""
    changed = [name for name in ("_matmat", "_rmatmat", "over_time", "spread", "cut") if name in vars(kind)]
    if changed:
        raise InvalidInput(
            f"{kind.__name__} must not change {changed[0]}: encoder and factor say what is accounted and streamed; "
            "subclass NoiseOperator for a noise of your own."
        )

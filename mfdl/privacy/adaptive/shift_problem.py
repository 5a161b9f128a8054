"""What shift reduction is about: two neighbouring runs, as arrays. Algorithms and trust models are not known here."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ... import check
from ...check import FloatArray
from ...errors import InvalidInput

BoolArray: TypeAlias = NDArray[np.bool_]
SMALLEST, LARGEST = 1e-60, 1e60  # range of rates, divisors and weights: their squares and ratios stay normal numbers


@dataclasses.dataclass(frozen=True, eq=False)
class ShiftProblem:
    """What the two neighbouring runs share, and where they may differ.

    A round takes models x(r) to messages, and messages to models x(r + 1) = W_r (messages). In the round of gradient
    step t, message_j = x_j - eta_t (g_j(x_j) + noise_j(t)) / m_j; in a gossip round, message_j = x_j.

    Attributes:
        mixing: |W_r|, R matrices of shape (n, n), dense or sparse, entries >= 0; row j weighs what j receives.
            Passing one object for equal rounds saves memory.
        step_of_round: (R,) gradient step of each round, -1 for a gossip round; the steps 0 .. T - 1 in order.
        rates: (T,) public step sizes eta_t >= 0; a step with rate 0 moves nothing, and its noise hides nothing.
        lipschitz: (T,) L_t >= 0 such that x -> x - eta_t g_j(x) / m_j is L_t-Lipschitz for every node and record.
        divisors: (n,) public batch sizes m_j > 0.
        seen: (R, n) the message of j in round r is seen, so r_j(r) = 0.
        pinned: (R + 1, n) s_j(r) = 0 is required: the model of j before round r (r = R: the final model) is seen or
            released, or the gradient of j in round r is known. A victim whose own gradients are known has infinite
            loss; that case is the caller's and must not be asked for here.
        noisy: (n,) j has noise that the attacker does not know; otherwise a_j = 0.
        noise_gram: X_j = C_j^T C_j of local noise C_j^-1 Z_j, (T, T) for all nodes or (n, T, T); None with
            `noise_weights` None stands for independent noise of standard deviation 1. With b_j(t) = a_j(t) m_j / eta_t,
            the cost of node j is b_j^T |X_j| b_j where |X_j| (entrywise) is positive semi-definite, always so for
            X_j >= 0, else sum_t lam_j(t) b_j(t)^2 with lam_j the row sums of |X_j|.
        noise_weights: (T, n) lam > 0 instead of a Gram: any lam with diag(lam) >= S^-1 in the positive semi-definite
            order, S the invertible covariance of the noise (shape (T n, T n)) that the attacker does not know.
        present: (T, n) who takes the step; message_j = x_j of the others, without gradient or noise. None: everybody.

    Raises:
        InvalidInput: wrong shapes, non-finite or negative entries, steps out of order, both forms of noise given, a
            Gram that is not symmetric positive definite.
    """

    mixing: Sequence[Any]
    step_of_round: Any
    rates: Any
    lipschitz: Any
    divisors: Any
    seen: Any
    pinned: Any
    noisy: Any
    noise_gram: Any = None
    noise_weights: Any = None
    present: Any = None

    def __post_init__(self) -> None:
        rates = _non_negative(rates=self.rates)
        lipschitz = _non_negative(lipschitz=self.lipschitz)
        divisors = _non_negative(divisors=self.divisors)
        num_steps, n, num_rounds = len(rates), len(divisors), len(self.mixing)
        if n == 0 or num_steps == 0:
            raise InvalidInput("shift reduction needs at least one node and one gradient step.")
        if not (divisors > 0).all():
            raise InvalidInput(f"divisors must be > 0, got {divisors.min()}.")
        for name, array in (("rates", rates), ("divisors", divisors)):
            if ((array > 0) & ((array < SMALLEST) | (array > LARGEST))).any():
                raise InvalidInput(f"{name} must lie between {SMALLEST:g} and {LARGEST:g} (a rate may be 0).")
        if len(lipschitz) != num_steps:
            raise InvalidInput(f"lipschitz must have one entry per step, got {len(lipschitz)} for {num_steps} steps.")
        steps = np.array(self.step_of_round)
        if steps.shape != (num_rounds,) or steps.dtype.kind not in "iu":
            raise InvalidInput(
                f"step_of_round must hold {num_rounds} integers, one per matrix of mixing, got shape {steps.shape} of "
                f"{steps.dtype}."
            )
        if not np.array_equal(steps[steps >= 0], np.arange(num_steps)) or (steps < -1).any():
            raise InvalidInput(
                f"step_of_round must hold every step 0 .. {num_steps - 1} once, in order, and -1 for gossip rounds."
            )
        if self.noise_gram is not None and self.noise_weights is not None:
            raise InvalidInput("give either noise_gram or noise_weights, not both.")
        everybody = np.ones((num_steps, n), dtype=bool)
        own: dict[int, csr_array] = {}
        for r, weights in enumerate(self.mixing):
            if id(weights) not in own:
                own[id(weights)] = _mixing_matrix(weights, n, r)
        fields: dict[str, Any] = {
            "mixing": tuple(own[id(weights)] for weights in self.mixing),
            "step_of_round": steps.astype(np.int64),
            "rates": rates,
            "lipschitz": lipschitz,
            "divisors": divisors,
            "seen": _mask((num_rounds, n), seen=self.seen),
            "pinned": _mask((num_rounds + 1, n), pinned=self.pinned),
            "noisy": _mask((n,), noisy=self.noisy),
            "present": _mask((num_steps, n), present=everybody if self.present is None else self.present),
        }
        if self.noise_gram is not None:
            fields["noise_gram"] = _noise_gram(self.noise_gram, n, num_steps)
        if self.noise_weights is not None:
            lam = check.finite_array(2, noise_weights=self.noise_weights)
            if lam.shape != (num_steps, n) or not (lam >= SMALLEST).all() or lam.max() > LARGEST:
                raise InvalidInput(
                    f"noise_weights must have shape {(num_steps, n)} and entries from {SMALLEST:g} to {LARGEST:g}."
                )
            fields["noise_weights"] = lam
        for name, value in fields.items():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
            object.__setattr__(self, name, value)

    @property
    def num_rounds(self) -> int:
        return len(self.mixing)

    @property
    def num_steps(self) -> int:
        return len(self.rates)

    @property
    def num_nodes(self) -> int:
        return len(self.divisors)


def _non_negative(**named: Any) -> FloatArray:
    ((name, _),) = named.items()
    array = check.finite_array(1, **named)
    if (array < 0).any():
        raise InvalidInput(f"{name} must be >= 0, got {array.min()}.")
    return array


def _mask(shape: tuple[int, ...], **named: Any) -> BoolArray:
    ((name, value),) = named.items()
    array = np.array(value)
    if array.shape != shape or array.dtype != np.bool_:
        raise InvalidInput(f"{name} must be a boolean array of shape {shape}, got {array.dtype} of {array.shape}.")
    return array


def _mixing_matrix(weights: Any, n: int, r: int) -> csr_array:
    W = csr_array(weights, dtype=np.float64, copy=True)
    if W.shape != (n, n):
        raise InvalidInput(f"mixing[{r}] must have shape {(n, n)}, got {W.shape}.")
    W.sum_duplicates()
    W.eliminate_zeros()
    W.sort_indices()
    if not np.isfinite(W.data).all() or (W.data < 0).any():
        raise InvalidInput(f"mixing[{r}] must hold the finite magnitudes |W|, entries >= 0.")
    return W


def _noise_gram(gram: Any, n: int, num_steps: int) -> FloatArray:
    ndim = np.ndim(gram)
    X = check.finite_array(3 if ndim == 3 else 2, noise_gram=gram)
    if X.shape[-2:] != (num_steps, num_steps) or (ndim == 3 and X.shape[0] != n):
        raise InvalidInput(
            f"noise_gram must have shape {(num_steps, num_steps)} or {(n, num_steps, num_steps)}, got {X.shape}."
        )
    blocks = X if ndim == 3 else X[None]
    size = np.abs(blocks).max(axis=(1, 2))
    if (np.abs(blocks - np.swapaxes(blocks, 1, 2)).max(axis=(1, 2)) > 1e-12 * size).any():
        raise InvalidInput("noise_gram must be symmetric.")
    # the larger of two mirror entries, by magnitude: never less than either
    mirrored = np.swapaxes(blocks, 1, 2)
    blocks = np.where(np.abs(blocks) >= np.abs(mirrored), blocks, mirrored)
    smallest = min(float(np.linalg.eigvalsh(block)[0]) for block in blocks)
    if not smallest > 0:
        raise InvalidInput(
            f"noise_gram must be positive definite, the inverse of the covariance of a node's noise, got eigenvalue "
            f"{smallest:.3g}; a singular covariance is not covered by shift reduction."
        )
    return blocks if ndim == 3 else blocks[0]

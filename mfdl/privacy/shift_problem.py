"""The problem of shift reduction, two neighbouring runs as arrays, and its program; symbols as in `shift_reduction`.

Whatever a solver proposes is repaired and recomputed here, rounded up. Algorithms and trust models are not known here.

Rounds that are alike: let all rounds of a step be those of the next step, in their masks, weights, rates and constants.
A feasible choice of shifts that is moved by one step, with no shifts in the step that is new, is feasible for the
pattern that is moved, and costs no more where the cost of a step is at most that of the step it came from,

- one step later, if no final model is released: nothing is required at the end;
- one step earlier, if all are: what is left at the end is zero, and so it stays one step longer.

So of patterns that are the same but for a shift in time the first bounds all in the one case, the last in the other.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput
from ..floats import UNIT

BoolArray: TypeAlias = NDArray[np.bool_]
SMALLEST, LARGEST = 1e-60, 1e60  # range of rates, divisors and weights: their squares and ratios stay normal numbers
DENSE_BYTES = 2**28  # mixing matrices are multiplied as dense arrays while they fit here
PSD_TOLERANCE = 1e-12  # only decides which of two valid forms of the cost is used


@dataclasses.dataclass(frozen=True, eq=False)
class ShiftProblem:
    """Two neighbouring runs: their common data, and where they may differ.

    A round takes models x(r) to messages, and messages to models x(r + 1) = W_r (messages). In the round of gradient
    step t, message_j = x_j - eta_t (g_j(x_j) + noise_j(t)) / m_j; in a gossip round, message_j = x_j.

    Attributes:
        mixing: |W_r|, R matrices of shape (n, n), entries >= 0; row j weighs what j receives; one object for equal
            rounds saves memory.
        step_of_round: (R,) gradient step of each round, -1 for a gossip round; the steps 0 .. T - 1 in order.
        rates: (T,) public step sizes eta_t >= 0; a step with rate 0 moves nothing, and its noise hides nothing.
        lipschitz: (T,) L_t >= 0 such that x -> x - eta_t g_j(x) / m_j is L_t-Lipschitz for every node and record.
        divisors: (n,) public batch sizes m_j > 0.
        seen: (R, n) the message of j in round r is seen, so r_j(r) = 0.
        pinned: (R + 1, n) s_j(r) = 0 is required: the model of j before round r (r = R: the final model) is seen or
            released, or the gradient of j in round r is known. A victim whose own gradients are known has infinite
            loss: the caller's case.
        noisy: (n,) j has noise that the attacker does not know; otherwise a_j = 0.
        noise_gram: X_j = C_j^T C_j of local noise C_j^-1 Z_j, (T, T) for all nodes or (n, T, T); None with
            `noise_weights` None stands for independent noise of standard deviation 1. With b_j(t) = a_j(t) m_j / eta_t,
            the cost of node j is b_j^T |X_j| b_j where |X_j| (entrywise) is positive semi-definite, always so for X_j
            >= 0, else sum_t lam_j(t) b_j(t)^2 with lam_j the row sums of |X_j|.
        noise_weights: (T, n) lam > 0 instead of a Gram: any lam with diag(lam) >= S^-1 in the positive semi-definite
            order, S the invertible covariance of the noise (shape (T n, T n)) that the attacker does not know.
        present: (T, n) who takes the step; message_j = x_j of the others, without gradient or noise. None: everybody.

    Raises: InvalidInput: entries that are not finite or out of range, a Gram that is not positive definite.
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
        rates, lipschitz, divisors = (
            check.finite_array(1, **{name: getattr(self, name)}) for name in ("rates", "lipschitz", "divisors")
        )
        num_steps, n = len(rates), len(divisors)
        for name, array in (("rates", rates[rates != 0]), ("divisors", divisors)):
            if ((array < SMALLEST) | (array > LARGEST)).any():
                raise InvalidInput(
                    f"{name} must lie between {SMALLEST:g} and {LARGEST:g} (a rate may be 0), got {array.min():g} to "
                    f"{array.max():g}."
                )
        present = np.ones((num_steps, n), dtype=bool) if self.present is None else self.present
        masks = {"seen": self.seen, "pinned": self.pinned, "noisy": self.noisy, "present": present}
        distinct = {id(weights): _mixing_matrix(weights) for weights in self.mixing}
        fields: dict[str, Any] = {
            "mixing": tuple(distinct[id(weights)] for weights in self.mixing),
            "step_of_round": np.array(self.step_of_round, dtype=np.int64),
            "rates": rates,
            "lipschitz": lipschitz,
            "divisors": divisors,
            **{name: np.array(mask, dtype=bool) for name, mask in masks.items()},
        }
        if self.noise_gram is not None:
            fields["noise_gram"] = _noise_gram(self.noise_gram)
        if self.noise_weights is not None:
            lam = check.finite_array(2, noise_weights=self.noise_weights)
            if not (lam >= SMALLEST).all() or lam.max() > LARGEST:
                raise InvalidInput(
                    f"noise_weights must have entries from {SMALLEST:g} to {LARGEST:g}, got {lam.min():g} to "
                    f"{lam.max():g}."
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


def _mixing_matrix(weights: Any) -> csr_array:
    W = csr_array(weights, dtype=np.float64, copy=True)
    W.sum_duplicates()
    W.eliminate_zeros()
    W.sort_indices()
    return W


def _noise_gram(gram: Any) -> FloatArray:
    X = check.finite_array(np.ndim(gram), noise_gram=gram)
    blocks = X if X.ndim == 3 else X[None]
    # the larger of two mirror entries, by magnitude: never less than either
    mirrored = np.swapaxes(blocks, 1, 2)
    blocks = np.where(np.abs(blocks) >= np.abs(mirrored), blocks, mirrored)
    smallest = min(float(np.linalg.eigvalsh(block)[0]) for block in blocks)
    if not smallest > 0:
        raise InvalidInput(
            f"noise_gram must be positive definite, the inverse of the covariance of a node's noise, got eigenvalue "
            f"{smallest:.3g}; a singular covariance is not covered by shift reduction."
        )
    return blocks if X.ndim == 3 else blocks[0]


@dataclasses.dataclass(frozen=True, eq=False)
class Repaired:
    value: FloatArray  # (B,)
    absorbed: FloatArray  # (R, n, B)
    shifts: FloatArray  # (R, n, B)


class System:
    """The recursion with its masks: which r are free, which are 0, which must pass on all of d.

    Required zeros on nodes without noise travel backward: r_j = d_j = 0 needs s_j = 0 (unless L = 0), which needs r = 0
    at everybody j hears from, until it meets noise, or the source of the victim, which is a leak.
    """

    def __init__(self, problem: ShiftProblem) -> None:
        self.problem = problem
        R, n = problem.num_rounds, problem.num_nodes
        steps = problem.step_of_round
        injects = steps >= 0
        self.step_rounds = np.flatnonzero(injects)
        self.rate = np.where(injects, problem.rates[steps], 0.0)
        acts = injects[:, None] & problem.present[steps]
        self.growth = np.where(acts, problem.lipschitz[steps, None], 1.0)
        acts &= (self.rate > 0)[:, None]
        self.noise = acts & problem.noisy
        self.zero = problem.seen.copy()
        must_match = problem.pinned.copy()
        distinct = {id(W): W for W in problem.mixing}
        # any stored weight > 0 counts; sums of signs cannot underflow
        heard = {key: (W > 0).astype(np.float64).T.tocsr() for key, W in distinct.items()}
        for r in range(R - 1, -1, -1):
            self.zero[r] |= heard[id(problem.mixing[r])] @ must_match[r + 1] > 0
            must_match[r] |= self.zero[r] & ~self.noise[r] & (self.growth[r] > 0)
        # what reaches no message or model that must match may pass on everything: absorbing it would win nothing
        matters = np.zeros(n, dtype=bool)
        for r in range(R - 1, -1, -1):
            idle = self.noise[r] & ~self.zero[r] & ~matters
            self.noise[r] &= ~idle
            of_d = np.where(self.zero[r], self.noise[r], matters)
            if r > 0:
                matters = (self.growth[r] > 0) & (heard[id(problem.mixing[r - 1])] @ of_d > 0)
        self.free = self.noise & ~self.zero
        self.forced = ~self.noise & ~self.zero
        self.passing = np.flatnonzero(self.forced[:-1].any(axis=1)).tolist()
        self.exposed = self.zero & ~self.noise & acts
        self.scale = np.zeros((R, n))  # b = scale * a is the shift of the unit noise, rounded up
        np.divide(problem.divisors[None, :], self.rate[:, None], out=self.scale, where=self.noise)
        self.scale *= 1 + 4 * UNIT
        self.cost = Cost(problem)
        self.curvature = np.zeros((R, n))  # of the cost by a, where it is diagonal
        self.curvature[self.step_rounds] = self.scale[self.step_rounds] ** 2 * self.cost.diagonal
        if 8 * n * n * len(distinct) <= DENSE_BYTES and max(W.nnz for W in distinct.values()) >= 0.02 * n * n:
            operators: dict[int, Any] = {key: W.toarray() for key, W in distinct.items()}
        else:
            operators = dict(distinct)
        transposed = {key: W.T.tocsr() if issparse(W) else np.ascontiguousarray(W.T) for key, W in operators.items()}
        self.forward_weights = _stacked([operators[id(W)] for W in problem.mixing])
        self.backward_weights = _stacked([transposed[id(W)] for W in problem.mixing])
        longest = {key: int(np.diff(W.indptr).max(initial=0)) for key, W in distinct.items()}
        self.rounding = [1 + 2 * (longest[id(W)] + 4) * UNIT for W in problem.mixing]  # of one entry of W r, r >= 0

    def in_single_precision(self) -> System:
        """The same for products that only lead to a start; itself where numbers may leave float32."""
        curvature = self.curvature[self.noise]
        narrow = curvature.min(initial=1.0) > 1e-9 and curvature.max(initial=1.0) < 1e9
        if not (narrow and isinstance(self.forward_weights, np.ndarray) and self.growth.max() <= 1):
            return self
        rounded = copy.copy(self)
        for name in ("growth", "curvature", "forward_weights", "backward_weights"):
            value = getattr(self, name)
            repeated = value.ndim == 3 and value.strides[0] == 0
            single = (value[0] if repeated else value).astype(np.float32)
            setattr(rounded, name, np.broadcast_to(single, value.shape))
        return rounded

    def leaks(self, victim: int, steps: NDArray[np.int64]) -> bool:
        return bool(self.exposed[self.step_rounds[steps], victim].any())

    def sources(self, columns: Sequence[tuple[int, NDArray[np.int64]]]) -> FloatArray:
        source = np.zeros((self.problem.num_rounds, self.problem.num_nodes, len(columns)))
        for k, (u, steps) in enumerate(columns):
            rounds = self.step_rounds[steps]
            moved = self.rate[rounds] / self.problem.divisors[u] * (1 + 2 * UNIT)
            source[rounds, u, k] = np.where(self.problem.present[steps, u], moved, 0.0)
        return source

    def repaired(self, shifts: FloatArray, source: FloatArray) -> Repaired:
        """The nearest feasible point in the order of rounds, with its cost rounded up.

        All quantities are sums of products of numbers >= 0, each inflated by its own relative error bound; d - r is
        then an upper bound on what must be absorbed.
        """
        R, n, width = source.shape
        absorbed, remaining = np.empty((R, n, width)), np.empty((R, n, width))
        s = np.zeros((n, width))
        leak = np.zeros(width, dtype=bool)
        pinned, seen, silent = self.problem.pinned, self.problem.seen, self.zero & ~self.noise
        for r in range(R):
            d = (self.growth[r][:, None] * s + source[r]) * (1 + 4 * UNIT)
            np.clip(shifts[r], 0.0, d, out=remaining[r])
            np.copyto(remaining[r], 0.0, where=~self.free[r][:, None])
            np.copyto(remaining[r], d, where=self.forced[r][:, None])
            np.subtract(d, remaining[r], out=absorbed[r])
            # the masks above leave none of these; checked all the same, against the problem itself
            for rows, difference in ((pinned, s), (seen, remaining[r]), (silent, d)):
                leak |= (difference[rows[r]] > 0).any(axis=0)
            s = (self.forward_weights[r] @ remaining[r]) * self.rounding[r]
        np.copyto(absorbed, 0.0, where=~self.noise[:, :, None])
        absorbed *= 1 + 2 * UNIT
        leak |= (s[pinned[R]] > 0).any(axis=0)
        b = (self.scale[:, :, None] * absorbed)[self.step_rounds]
        terms = 2 * self.problem.num_steps + 10
        value = np.einsum("tnb,tnb->b", b, self.cost.apply(b)) * (1 + 4 * (terms + b.shape[0] * n) * UNIT)
        valid = np.isfinite(value) & ~leak  # overflow, and all that follows from it, is inf
        value = np.where(value > 0, np.nextafter(value, np.inf), 0.0)
        return Repaired(np.where(valid, value, math.inf), absorbed, remaining)


def _stacked(operators: list[Any]) -> Any:
    first = operators[0]
    if all(W is first for W in operators):
        return operators if issparse(first) else np.broadcast_to(first, (len(operators), *first.shape))
    return operators if issparse(first) or len(operators) * first.nbytes > DENSE_BYTES else np.stack(operators)


def products(weights: Any, right: FloatArray) -> FloatArray:
    if isinstance(weights, np.ndarray):
        return np.asarray(weights @ right)
    out = np.empty_like(right)  # of no round, too
    for i, W in enumerate(weights):
        out[i] = W @ right[i]
    return out


class Cost:
    """The quadratic form sum_j b_j^T Q_j b_j of unit-noise shifts b, shape (T, n, B): Q >= 0 entrywise, convex."""

    def __init__(self, problem: ShiftProblem) -> None:
        T, n = problem.num_steps, problem.num_nodes
        self.matrix: FloatArray | None = None  # (T, T) shared or (n, T, T)
        if problem.noise_weights is not None:
            self.diagonal = problem.noise_weights
        elif problem.noise_gram is None:
            self.diagonal = np.ones((T, n))
        else:
            magnitudes = np.abs(problem.noise_gram)
            blocks = magnitudes if magnitudes.ndim == 3 else magnitudes[None]
            forms = np.stack([_convex_form(block) for block in blocks])
            diagonals = np.diagonal(forms, axis1=1, axis2=2)
            self.diagonal = np.broadcast_to(diagonals.T, (T, n))
            if np.count_nonzero(forms) > np.count_nonzero(diagonals):
                self.matrix = forms if magnitudes.ndim == 3 else forms[0]

    def apply(self, b: FloatArray) -> FloatArray:
        if self.matrix is None:
            return self.diagonal[:, :, None] * b
        T, n, width = b.shape
        if self.matrix.ndim == 2:
            return (self.matrix @ b.reshape(T, n * width)).reshape(T, n, width)
        return np.moveaxis(self.matrix @ np.moveaxis(b, 1, 0), 0, 1)


def _convex_form(magnitudes: FloatArray) -> FloatArray:
    """|X| if positive semi-definite (then the tighter form), else its row sums as a diagonal, rounded up."""
    spectrum = np.linalg.eigvalsh(magnitudes)
    if spectrum[0] >= -PSD_TOLERANCE * spectrum[-1]:
        return magnitudes
    T = len(magnitudes)
    return np.diag(magnitudes.sum(axis=1) * (1 + 2 * T * UNIT))


# Boundary


SHORTEST = 96  # rounds of the run that is solved first, and at least
PERIODS = 3


def worst_patterns(problem: ShiftProblem, patterns: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    ordered = [tuple(sorted(pattern)) for pattern in patterns]
    labels, at_end = _labels(problem), problem.pinned[-1]
    steps = np.flatnonzero(problem.step_of_round >= 0)
    ahead = int(steps[1]) if len(steps) > 1 else len(labels)  # rounds of a step
    if steps[0] or (labels[ahead:] != labels[:-ahead]).any() or not (at_end.all() or not at_end.any()):
        return ordered
    cost = Cost(problem)
    if cost.matrix is None:
        earlier, later = cost.diagonal[:-1], cost.diagonal[1:]
    else:
        earlier, later = cost.matrix[..., :-1, :-1], cost.matrix[..., 1:, 1:]
    if (later > earlier).any() if not at_end.any() else (earlier > later).any():
        return ordered
    by_gaps: dict[bytes, tuple[int, ...]] = {}
    for pattern in sorted(ordered, reverse=not at_end.any()):
        by_gaps[np.diff(pattern).tobytes()] = pattern
    return list(by_gaps.values())


@dataclasses.dataclass(frozen=True, eq=False)
class ShortRun:
    """A run with rounds between two ends left out: the best shifts of a long run that repeats are those of a shorter
    run at both ends, and repeat between, up to what decays. They are a start for the solver, and no bound rests on
    them.

    Attributes: first, period, repeats: shifts of the `period` rounds before `first` stand `repeats` times more in the
        long run.
    """

    problem: ShiftProblem
    columns: list[tuple[int, NDArray[np.int64]]]
    first: int
    period: int
    repeats: int

    @classmethod
    def from_problem(cls, problem: ShiftProblem, columns: list[tuple[int, NDArray[np.int64]]]) -> ShortRun | None:
        R, steps, rounds = problem.num_rounds, problem.step_of_round, np.flatnonzero(problem.step_of_round >= 0)
        if problem.noise_gram is not None or len(columns[0][1]) < 2:
            return None
        period = int(np.diff(rounds[np.sort(columns[0][1])[:2]])[0])
        joined = np.zeros((len(columns), R), dtype=bool)
        for k, (_, pattern) in enumerate(columns):
            joined[k, rounds[pattern]] = True
        labels = _labels(problem)
        if (labels[period:] != labels[:-period]).any() or (joined[:, period:] != joined[:, :-period]).any():
            return None
        length = max(PERIODS, -(-SHORTEST // period))
        repeats, first = R // period - length, -(-length // 2) * period
        if repeats < length:
            return None
        keep = np.r_[0:first, first + repeats * period : R]
        left = steps[keep][steps[keep] >= 0]
        numbers = np.cumsum(steps[keep] >= 0) - 1
        weights = problem.noise_weights
        short = dataclasses.replace(
            problem,
            mixing=[problem.mixing[r] for r in keep],
            step_of_round=np.where(steps[keep] >= 0, numbers, -1),
            rates=problem.rates[left],
            lipschitz=problem.lipschitz[left],
            seen=problem.seen[keep],
            pinned=problem.pinned[np.r_[keep, R]],
            noise_weights=None if weights is None else weights[left],
            present=problem.present[left],
        )
        columns = [(u, numbers[j[keep]]) for (u, _), j in zip(columns, joined, strict=True)]
        return cls(short, columns, first, period, repeats)

    def stretched(self, shifts: FloatArray) -> FloatArray:
        middle = np.tile(shifts[self.first - self.period : self.first], (self.repeats, 1, 1))
        return np.concatenate([shifts[: self.first], middle, shifts[self.first :]])


def _labels(problem: ShiftProblem) -> NDArray[np.intp]:
    numbers: dict[tuple[object, ...], int] = {}
    labels = []
    for r, t in enumerate(problem.step_of_round.tolist()):
        key: tuple[object, ...] = (id(problem.mixing[r]), problem.seen[r].tobytes(), problem.pinned[r].tobytes())
        if t >= 0:
            weights = b"" if problem.noise_weights is None else problem.noise_weights[t].tobytes()
            key += (problem.rates[t], problem.lipschitz[t], problem.present[t].tobytes(), weights)
        labels.append(numbers.setdefault(key, len(numbers)))
    return np.asarray(labels)

"""Reconstruction: which gradients can an attacker solve for, and how well can it guess the others?

Combinations N O with N B = 0 carry no noise, so the row space of N A is known exactly: a unit vector in it is a
gradient read off. Without noise N = I, and with gradients at step 0 only this is the attack on gossip averaging by its
knowledge matrix and reduced row echelon form (arXiv:2402.10001); gradients that are the same at every step are its
attack on training. All gradients the attacker does not know are solved for at once. Start models count as known.

Ranks are decided twice, as numbers in float64 cannot settle what is faint. The cautious reader trusts only singular
values that stand clear of rounding, and takes every other trace of noise for noise; the generous one takes whatever is
above rounding for seen, and faint noise for none. What both expose is exposed, what neither does is hidden, and the
rest is undecided. Where singular values fall to rounding without a gap, no direction is shown to be unseen.
"""

from __future__ import annotations

import dataclasses
import itertools
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from mfdl_solvers.arithmetic import blas_threads

from .. import check
from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..display import short_repr
from ..errors import InvalidInput, UnsupportedMechanism, require_known
from ..floats import EPS
from ..mechanism import Mechanism
from ..trust import TrustModel
from ..trust.knowledge import Knowledge
from ..trust.view import AlgorithmView, View
from . import observation
from .observation import with_all_noise

ROUNDING = 8.0 * EPS  # times the size: relative singular values below it are taken for rounding
CLEAR = 1e-9  # relative singular values above it are no rounding, whatever was computed before
SOLVED = 1e-7  # an unknown is solved for if at most this of the others is mixed in,
UNSOLVED = 1e-5  # and is not if at least this is; in between it is undecided
BLOCK = 256

Mask = NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """One reader's solution.

    Attributes:
        seen: orthonormal rows that span what is seen without noise, shape (r, unknowns).
        noisy: orthonormal rows, orthogonal to `seen`, of what is seen through noise, shape (q, unknowns).
        strength: signal over unit noise of each row of `noisy`, > 0, shape (q,).
        open_ended: singular values fell to rounding without a gap, so that more may be seen.
        estimator: unknowns <- observations, shape (unknowns, rows): exact on `seen`, best linear unbiased on `noisy`.
    """

    seen: FloatArray
    noisy: FloatArray
    strength: FloatArray
    open_ended: bool
    estimator: FloatArray

    @cached_property
    def residual(self) -> FloatArray:
        """Distance of each unit vector to the span of `seen`, in [0, 1], shape (unknowns,)."""
        return _residual(self.seen)

    def error_std(self, noise_std: float) -> FloatArray:
        """Standard deviation of the best linear unbiased estimate of each unknown; inf where there is none."""
        beyond = _residual(np.concatenate([self.seen, self.noisy]))
        spread = noise_std * np.linalg.norm(self.noisy / self.strength[:, None], axis=0)
        return np.where(beyond <= UNSOLVED, np.where(self.residual <= SOLVED, 0.0, spread), np.inf)

    def posterior_ratio(self, prior_over_noise: float) -> FloatArray:
        """Posterior over prior standard deviation of each unknown for independent Gaussian priors, in [0, 1]."""
        learned = np.ones_like(self.strength)
        if np.isfinite(prior_over_noise):
            with np.errstate(over="ignore", divide="ignore"):  # either end has its limit
                learned = 1 / (1 + 1 / (prior_over_noise * self.strength) ** 2)
        squared = self.residual**2 - learned @ self.noisy**2
        return np.sqrt(np.clip(squared, 0.0, 1.0))


@dataclasses.dataclass(frozen=True, eq=False)
class SolvedEquations:
    """What both readers say; unknowns that are neither exposed nor undecided are hidden."""

    exposed: Mask
    undecided: Mask
    cautious: Solution
    generous: Solution


def solve(A: FloatArray, B: FloatArray) -> SolvedEquations:
    """Solves for x from A x + B z, of shapes (rows, unknowns) and (rows, noises), as far as that goes.

    Cost: one SVD of B and at most two each of noiseless and noisy part of A: O(rows unknowns min(rows, unknowns)).
    """
    rows, unknowns = A.shape
    scale = np.maximum(np.linalg.norm(A, axis=1), np.linalg.norm(B, axis=1) if B.shape[1] else 0.0)
    used = np.flatnonzero(scale > 0)
    A, B = A[used] / scale[used, None], B[used] / scale[used, None]
    B = B[:, B.any(axis=0)]
    if B.shape[1]:
        U, sigma, _ = np.linalg.svd(B, full_matrices=B.shape[0] > B.shape[1])
    else:
        U, sigma = np.zeros((len(used), 0)), np.zeros(0)
    rounding = ROUNDING * max(*A.shape, B.shape[1], 1)
    largest = float(sigma[0]) if sigma.size else 1.0
    ranks = [int(np.count_nonzero(sigma > level * largest)) for level in (rounding, CLEAR)]
    columns = np.zeros((unknowns, rows))

    def read(rank: int, cautious: bool) -> tuple[Solution, bool]:
        basis, sizes = U[:, :rank], sigma[:rank]
        quiet = U[:, rank:] if sigma.size else sp.eye_array(len(used), format="csr")  # dense it would fill the memory
        lost = largest / float(sizes[-1]) if rank else 1.0  # magnifies rounding errors of the null space
        level = rounding * lost
        E, whitened = quiet.T @ A, (basis.T @ A) / sizes[:, None]
        seen, inverse, faint, open_ended = _span(E, level, cautious, _norm_bound(A))
        estimator = np.asarray(inverse @ quiet.T)
        rest = whitened - (whitened @ seen.T) @ seen
        noisy, undo, fainter, _ = _span(rest, level, False, _norm_bound(whitened))
        strength = 1 / np.linalg.norm(noisy @ undo, axis=1)  # noisy_i undo = u_i^T / sigma_i
        estimator = estimator + undo @ ((basis / sizes).T - whitened @ estimator)
        full = columns.copy()
        full[:, used] = estimator / scale[used]
        return Solution(seen, noisy, strength, open_ended, full), faint or fainter

    cautious, doubtful = read(ranks[0], True)
    generous = read(ranks[1], False)[0] if doubtful or ranks[0] != ranks[1] else cautious
    exposed = (cautious.residual <= SOLVED) & (generous.residual <= SOLVED)
    hidden = (cautious.residual >= UNSOLVED) & (generous.residual >= UNSOLVED)
    if generous.open_ended:
        hidden &= ~A.any(axis=0)  # a column of zeros is not seen
    return SolvedEquations(exposed, ~(exposed | hidden), cautious, generous)


def reduced_rows(seen: FloatArray, exposed: Mask) -> FloatArray:
    """A reduced echelon form, (c, unknowns), of what orthonormal rows show besides the exposed unknowns."""
    rows = seen[:, ~exposed].copy()
    pivot_rows = 0
    for column in range(rows.shape[1]):
        if pivot_rows == len(rows):
            break
        best = pivot_rows + int(np.abs(rows[pivot_rows:, column]).argmax())  # bound: any pivot, one form
        if abs(rows[best, column]) <= CLEAR * 10:
            rows[pivot_rows:, column] = 0.0
            continue
        rows[[pivot_rows, best]] = rows[[best, pivot_rows]]
        rows[pivot_rows] /= rows[pivot_rows, column]
        factors = rows[:, column].copy()
        factors[pivot_rows] = 0.0
        rows -= factors[:, None] * rows[pivot_rows]
        pivot_rows += 1
    out = np.zeros((pivot_rows, seen.shape[1]))
    rows = rows[:pivot_rows]
    rows[np.abs(rows) <= CLEAR * 10 * np.abs(rows).max(axis=1, keepdims=True, initial=0.0)] = 0.0
    out[:, ~exposed] = rows
    return out


def _span(matrix: FloatArray, level: float, cautious: bool, size: float) -> tuple[FloatArray, FloatArray, bool, bool]:
    """(orthonormal rows, pseudo-inverse, whether some are faint, whether no gap is below), of numbers of this size."""
    if 0 in matrix.shape:
        return np.zeros((0, matrix.shape[1])), np.zeros((matrix.shape[1], matrix.shape[0])), False, False
    left, sigma, right = np.linalg.svd(matrix, full_matrices=False)
    clear, above = int(np.count_nonzero(sigma > max(CLEAR, level) * size)), int(np.count_nonzero(sigma > level * size))
    faint = above > clear
    # as far below the last one again, the next singular value would be rounding: that it is one proves no rank
    falling = above > 0 and sigma[above - 1] < max(CLEAR, 10 * np.sqrt(level)) * size
    open_ended = (faint or falling) and above < min(matrix.shape[0], int(np.count_nonzero(matrix.any(axis=0))))
    rank = clear if cautious else above
    inverse = right[:rank].T @ (left[:, :rank] / sigma[:rank]).T
    return right[:rank], inverse, faint, open_ended


def _norm_bound(matrix: FloatArray) -> float:
    """At least the largest singular value, and at most sqrt(rank) times it."""
    return float(np.linalg.norm(matrix)) if matrix.size else 1.0


def _residual(rows: FloatArray) -> FloatArray:
    """Distance of each unit vector to the span of orthonormal rows; blockwise, without cancellation."""
    out = np.ones(rows.shape[1])
    for first in range(0, rows.shape[1], BLOCK):
        last = min(first + BLOCK, rows.shape[1])
        left = -rows.T @ rows[:, first:last]
        left[np.arange(first, last), np.arange(last - first)] += 1.0
        out[first:last] = np.linalg.norm(left, axis=0)
    return out


GRADIENTS = ("per step", "constant", "first step")
MAX_WORK = 3e10  # of dense singular value decompositions, about half a minute on one core

EXPOSED_ERROR = 1e-7  # clipping norms: what is known so well is not called hidden, whatever noise there is

EXPOSED, PARTLY, COMBINED = "exposed", "partly exposed", "in a combination"
UNDECIDED, HIDDEN, ATTACKER = "undecided", "hidden", "attacker"


@dataclasses.dataclass(frozen=True, eq=False)
class Reconstruction:
    """What one attacker can solve for. Arrays of unknowns have shape (S, n): S = T for gradients "per step", else 1.

    Attributes:
        exposed: read off without noise, up to rounding that `amplification` magnifies.
        undecided: neither shown to be exposed nor to be hidden; a cautious reader counts them as exposed.
        known: the attacker knows them anyway, as its own.
        combinations: what is read off besides exposed gradients, csr (c, S n): rows of a reduced echelon form over the
            unknowns t n + u. Known gradients have been subtracted.
        error_std: of the best linear unbiased estimate of one coordinate, in units of the clipping norm: 0 where
            exposed, inf where no unbiased estimate exists. What is undecided counts as seen.
        posterior_ratio: posterior over prior standard deviation of one coordinate, had all unknown gradients
            independent Gaussian coordinates of standard deviation clip_norm; 0 exposed, 1 nothing learned.
        amplification: norm of the combination of observations that estimates each unknown; inf without one.
        gradients: "per step", "constant" or "first step".
        estimator: unknowns <- observations, shape (S n, rows): exact where exposed, else best linear unbiased.
    """

    __repr__ = short_repr

    exposed: Mask
    undecided: Mask
    known: Mask
    combinations: sp.csr_array
    error_std: FloatArray
    posterior_ratio: FloatArray
    amplification: FloatArray
    gradients: str
    noise_std: float
    clip_norm: float
    view: View
    estimator: FloatArray

    @property
    def hidden(self) -> Mask:
        """Neither exposed, nor undecided, nor known; a combination may still hold it."""
        return ~(self.exposed | self.undecided | self.known)

    @cached_property
    def combined(self) -> Mask:
        """Not exposed, but part of a combination that is."""
        touched = np.asarray(abs(self.combinations).sum(axis=0)).ravel() > 0
        return touched.reshape(self.exposed.shape) & ~self.exposed

    def node_status(self) -> list[str]:
        """One word per node, the worst that holds: all of its gradients exposed, some, a combination of them, ..."""
        words = []
        for u in range(self.exposed.shape[1]):
            unknown = ~self.known[:, u]
            status = {
                ATTACKER: not unknown.any(),
                EXPOSED: self.exposed[unknown, u].all(),
                PARTLY: self.exposed[:, u].any(),
                UNDECIDED: self.undecided[:, u].any(),
                COMBINED: self.combined[:, u].any(),
            }
            words.append(next((word for word, holds in status.items() if holds), HIDDEN))
        return words

    def observations(
        self,
        messages: ArrayLike,
        *,
        start_models: ArrayLike | None = None,
        final_models: ArrayLike | None = None,
        known_gradients: ArrayLike | None = None,
        known_noise: ArrayLike | None = None,
    ) -> FloatArray:
        """The rows O of the view in the transcript of a run, with everything the attacker knows subtracted.

        Args:
            messages: of all rounds, as the executor sends them: (T, messages of a step, d) or (rounds, messages of a
                round, d); what the attacker does not see is not read and may be nan.
            start_models: (n, d), public; default zero.
            final_models: (n, d), needed where they, or their average, are released.
            known_gradients: (T, n, d), read where the attacker knows them, nan elsewhere will do; needed if it knows
                any.
            known_noise: base noise (columns of N, d), standard deviation included, read where the attacker knows it;
                default zero.

        Returns: (rows, d). Raises: InvalidInput: something needed is missing, not finite, not of numbers or not of
            exactly the shape given here; nothing is broadcast.
        """
        algorithm, knowledge = self._algorithm_knowledge()
        sent = observation.by_round(algorithm, messages)
        d, T, n = sent.shape[2], algorithm.num_steps, algorithm.num_nodes
        shaped, view = observation.shaped, self.view
        start = np.zeros((n, d)) if start_models is None else shaped("start_models", start_models, (n, d))
        from_start, models = observation.without_gradients(algorithm, start)
        rows = observation.seen_rows(algorithm, knowledge, (sent - from_start).reshape(-1, d))
        if not np.isfinite(rows).all():
            raise InvalidInput(
                f"messages must be finite where {view.attacker} sees them, got nan or infinity in "
                f"{int((~np.isfinite(rows).all(axis=1)).sum())} of {len(rows)} rows; record those messages too."
            )
        if view.release in ("all", "average"):
            if final_models is None:
                raise InvalidInput(
                    "final_models must be given, since the view contains released models; or reconstruct with "
                    "release='none'."
                )
            rows = observation.with_models(rows, shaped("final_models", final_models, (n, d)) - models, view.release)
        if view.known_gradients.any():
            if known_gradients is None:
                raise InvalidInput(
                    "known_gradients must be given, shape (T, n, d): the attackers subtract their own gradients; "
                    "entries of other nodes are not read."
                )
            known = observation.known_part("known_gradients", known_gradients, view.known_gradients, d)
            rows = rows - view.gradients.matmat(known.reshape(T * n, d))
        if known_noise is not None:
            Z = observation.known_part("known_noise", known_noise, knowledge.known_noise.ravel(), d)
            rows = rows - np.asarray(with_all_noise(view, algorithm, knowledge).noise.matmat(Z))
        return rows

    def solve(self, observations: ArrayLike) -> FloatArray:
        """Estimates of all unknowns, (S, n, d), from the rows of the view: exact where exposed, nan where none is."""
        rows = check.finite_array(2, observations=observations)
        if rows.shape[0] != self.estimator.shape[1]:
            raise InvalidInput(f"observations must have {self.estimator.shape[1]} rows, got {rows.shape[0]}.")
        estimate = (self.estimator @ rows).reshape(*self.exposed.shape, -1)
        return np.where((np.isfinite(self.amplification) & ~self.known)[:, :, None], estimate, np.nan)

    def recover(self, messages: ArrayLike, **given: Any) -> FloatArray:
        """`solve` of `observations` of the transcript of a run, with its arguments: gradients read off or estimated."""
        return self.solve(self.observations(messages, **given))

    def _algorithm_knowledge(self) -> tuple[LinearAlgorithm, Knowledge]:
        if not isinstance(self.view, AlgorithmView):
            raise InvalidInput("a bare view has no transcript; give its rows to solve(observations).")
        return self.view.algorithm, self.view.knowledge


def reconstruct(
    mechanism: LinearAlgorithm | Mechanism | View,
    trust: TrustModel | None = None,
    *,
    gradients: str = "per step",
    noise_std: float | None = None,
    clip_norm: float | None = None,
    release: str | None = None,
    victim: int | None = None,
) -> Reconstruction:
    """Which gradients an attacker can solve for, exactly and approximately.

    Args:
        mechanism: what runs; or a bare view, without `trust`.
        gradients: "per step": all T n gradients are unknown; "constant": those of a node are the same at every step
            (full batches of a model that hardly moves); "first step": there are none after step 0, so that values
            given once are averaged by gossip.
        noise_std: nu; default that of the mechanism, 0 for an algorithm without noise; 0 asks what the same messages
            would show without noise.
        clip_norm: unit of `error_std`; default that of the mechanism, else 1.
        release: final models published besides, "none", "average" or "all"; default that of the mechanism's guarantee
            under this trust model, else as for `mfdl.account`.
        victim: whose view is meant where the trust model has one per victim.

    Guarantees:
        Reports of leaks err on the loud side: what float64 cannot decide is `undecided`, and counts as seen in
        `error_std` and `posterior_ratio`.
        Exposed gradients are solved for with at most 1e-7 of the other gradients mixed in.
    Raises: InvalidInput: arguments that do not fit; UnsupportedMechanism: a trust model without a single view, or a
        view too large for dense linear algebra (work above MAX_WORK).
    Cost: O(rows U min(rows, U)) for U unknowns, and O(rows^2 m) for m columns of noise.
    Source: arXiv:2402.10001, Algorithms 1 to 3, with noise and with several steps.

    >>> from mfdl import Cyclic, Dynamics, algorithms, gossip, trust
    >>> ring = Dynamics(gossip.metropolis_hastings("ring:n=5"))
    >>> reconstruction = reconstruct(algorithms.dsgd(ring, Cyclic(epochs=1, period=3)), trust.PNDP([0]),
    ...                              gradients="first step", release="none")
    >>> reconstruction.node_status()
    ['attacker', 'exposed', 'exposed', 'exposed', 'exposed']
    """
    require_known("gradients", gradients, GRADIENTS)
    view = _view(mechanism, trust, release, victim)
    nu, clip = _scales(mechanism, view, noise_std, clip_norm)
    A, known = _unknown_columns(view, gradients, 0 if nu == 0 else view.noise.shape[1])
    B = view.dense_noise() if nu > 0 else np.zeros((A.shape[0], 0))
    with blas_threads(max(A.shape)):
        answer = solve(A, B)
    return _reconstruction(view, answer, known, gradients, nu, clip)


def _reconstruction(
    view: View, answer: SolvedEquations, known: Mask, gradients: str, noise_std: float, clip_norm: float
) -> Reconstruction:
    unknown = np.flatnonzero(~known.ravel())

    def spread(values: NDArray[Any], fill: Any) -> NDArray[Any]:
        out = np.full(known.size, fill, dtype=values.dtype)
        out[unknown] = values
        return out.reshape(known.shape)

    generous, cautious = answer.generous, answer.cautious
    error_std = generous.error_std(noise_std) / clip_norm
    error_std[answer.exposed | ((error_std <= 0) & answer.undecided)] = 0.0
    ratio = generous.posterior_ratio(np.inf if noise_std == 0 else clip_norm / noise_std)
    undecided = answer.undecided | (~answer.exposed & (np.minimum(error_std, ratio) <= EXPOSED_ERROR))
    estimator = np.zeros((known.size, cautious.estimator.shape[1]))
    estimator[unknown] = cautious.estimator
    estimable = np.isfinite(cautious.error_std(noise_std))
    size = np.where(estimable, np.linalg.norm(cautious.estimator, axis=1), np.inf)
    reduced = reduced_rows(cautious.seen, answer.exposed)
    rows = np.zeros((len(reduced), known.size))
    rows[:, unknown] = reduced
    return Reconstruction(
        exposed=spread(answer.exposed, False),
        undecided=spread(undecided, False),
        known=known,
        combinations=sp.csr_array(rows),
        error_std=spread(error_std, 0.0),
        posterior_ratio=spread(np.where(answer.exposed, 0.0, ratio), 0.0),
        amplification=spread(size, 0.0),
        gradients=gradients,
        noise_std=noise_std,
        clip_norm=clip_norm,
        view=view,
        estimator=estimator,
    )


def _view(
    mechanism: LinearAlgorithm | Mechanism | View, trust: TrustModel | None, release: str | None, victim: int | None
) -> View:
    if isinstance(mechanism, View):
        if trust is not None:
            raise InvalidInput("a view has its attacker already; leave trust out.")
        return mechanism
    algorithm = mechanism.algorithm if isinstance(mechanism, Mechanism) else mechanism
    if not isinstance(algorithm, LinearAlgorithm):
        raise InvalidInput(
            f"mechanism must be a LinearAlgorithm, a Mechanism or a View, got {type(mechanism).__name__}."
        )
    check.instance(TrustModel, trust=trust)
    assert trust is not None
    if release is None and isinstance(mechanism, Mechanism):
        release = mechanism.released_to(trust)
    if victim is not None:
        victim = check.integer_at_least(0, victim=victim)
        if victim >= algorithm.num_nodes:
            raise InvalidInput(f"victim must be below num_nodes={algorithm.num_nodes}, got {victim}.")
        return trust.view(algorithm, victim, release=release)
    if len(list(itertools.islice(trust.members(algorithm), 2))) != 1:
        raise UnsupportedMechanism(
            f"trust model {trust.name!r} has more than one view, so there is no single attacker to reconstruct for; "
            "name the attackers, e.g. PNDP([0]), or the victim."
        )
    return trust.view(algorithm, release=release)


def _scales(
    mechanism: LinearAlgorithm | Mechanism | View, view: View, noise_std: float | None, clip_norm: float | None
) -> tuple[float, float]:
    if isinstance(mechanism, Mechanism):
        noise_std = mechanism.noise_std if noise_std is None else noise_std
        clip_norm = mechanism.clip_norm if clip_norm is None else clip_norm
    elif noise_std is None:
        silent = view.noise.shape[1] == 0 or (isinstance(view, AlgorithmView) and view.algorithm.noise.is_zero)
        if not silent:
            raise InvalidInput(
                "noise_std must be given where there is noise (0: as if there were none); or give a Mechanism."
            )
        noise_std = 0.0
    return check.non_negative(noise_std=noise_std), check.positive(clip_norm=1.0 if clip_norm is None else clip_norm)


def _unknown_columns(view: View, gradients: str, noises: int) -> tuple[FloatArray, Mask]:
    """Columns of A for what the attacker does not know, dense, and bool (S, n) of what it knows."""
    T, n = view.axis.num_steps, view.axis.num_nodes
    known = view.known_gradients.copy()
    if gradients != "per step":  # one known step of constant gradients determines them all
        known = (known.any(axis=0) if gradients == "constant" else known[0]).reshape(1, n)
    unknown = np.flatnonzero(~known.ravel())
    rows = view.gradients.shape[0]
    work = float(rows) * unknown.size * min(rows, unknown.size) + float(rows) ** 2 * noises
    if work > MAX_WORK:
        raise UnsupportedMechanism(
            f"reconstruction solves {rows} equations for {unknown.size} gradients"
            f"{f' under {noises} parts of noise' if noises else ''} by dense linear algebra, about {work:.1e} "
            f"operations, above the limit of {MAX_WORK:.0e}; use fewer steps or a smaller graph"
            f"{', or gradients=constant' if gradients == 'per step' else ''}."
        )
    if gradients == "per step":
        return view.dense_gradients_by_time()[:, unknown], known
    inject = np.zeros((T, n, unknown.size))
    inject[slice(None) if gradients == "constant" else 0, unknown, np.arange(unknown.size)] = 1.0
    return np.asarray(view.gradients.matmat(inject.reshape(T * n, -1))), known

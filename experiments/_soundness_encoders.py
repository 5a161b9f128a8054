"""Statements on encoders with structure and on encoders near singular; registered beside those on views.

Drawn are banded, Toeplitz and buffered encoders, inverses of them, and arrays, with gaps and sign changes, over up to
12 steps, and participations whose uses lie any number of steps apart. The oracle writes C out, inverses in fractions,
and tries all signs on all patterns, which it lists itself. It shares no code with the rules for structure.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np
from _campaign import Case, Excluded, shortfall
from _soundness_statements import ROUNDING, STATEMENTS, statement

import mfdl
from mfdl import algorithms, gossip, trust
from mfdl.check import FloatArray
from mfdl.dynamics import Dynamics
from mfdl.factorization.encoders import Banded, Buffered, Encoder, Inverse, Toeplitz
from mfdl.noise import LocalNoise, NoiseOperator
from mfdl.participation import (
    Cyclic,
    EveryStep,
    Explicit,
    MinSeparation,
    OncePerEpoch,
    Participation,
    ParticipationByNode,
    Single,
)
from mfdl.privacy.attacking_sets import sensitivity_by_victim
from mfdl.privacy.forms.separable import Separable
from mfdl.privacy.gram_sensitivity import Sensitivity, sensitivities
from mfdl.sensitivity.encoder_bounds import structured_bound

__all__ = ["STATEMENTS"]

Steps = tuple[int, ...]
PAIR = gossip.from_array(np.full((2, 2), 0.5))
MOST_STEPS = 12
MOST_SIGNS = 200_000  # pairs of a pattern and signs on it
LARGEST = 1e4  # of an inverse: beyond, rounding of the run is more than ROUNDING
ORDER = 60  # binary orders of magnitude of a diagonal


@dataclasses.dataclass(frozen=True, eq=False)
class Drawn:
    """An encoder as the library takes it, the same as an array, and what it was made of."""

    encoder: Encoder | FloatArray
    C: FloatArray
    kind: str
    words: str


# ---- draws ---------------------------------------------------------------------------------------------------------


def drawn_entries(rng: np.random.Generator, shape: int | tuple[int, int]) -> FloatArray:
    """Halves, many of them zero; of one sign or of both."""
    signs = rng.choice([1.0, -1.0], shape) if rng.random() < 0.5 else 1.0
    return np.asarray(signs * rng.integers(1, 5, shape) / 2 * (rng.random(shape) < rng.choice([0.2, 0.5, 1.0])))


def drawn_encoder(rng: np.random.Generator, T: int) -> Drawn:
    kind = str(rng.choice(["banded", "toeplitz", "buffered", "inverse banded", "inverse toeplitz", "array"]))
    w = int(rng.integers(1, T + 1))
    if kind == "buffered":
        scales, decays = rng.choice([0.25, 0.5, -0.25], 2), rng.choice([0.5, -0.5, 0.75, 0.25], 2)
        series = np.array([1.0, *((scales * decays**j).sum() for j in range(T - 1))])
        return Drawn(Buffered(scales, decays, T), toeplitz_of(series, T), kind, f"scales {scales}, decays {decays}")
    if "toeplitz" in kind:
        series = drawn_entries(rng, w)
        series[0] = abs(series[0]) + 0.5
        encoder: Encoder = Toeplitz(series, T)
        C, words = toeplitz_of(series, T), f"series {series.tolist()}"
    else:
        bands = drawn_entries(rng, (T, w)) * (np.arange(w) <= np.arange(T)[:, None])
        bands[:, 0] = np.abs(bands[:, 0]) + 0.5
        C = np.zeros((T, T))
        for j in range(w):
            C[np.arange(j, T), np.arange(T - j)] = bands[j:, j]
        encoder, words = Banded(bands), f"bands {bands.tolist()}"
    if kind.startswith("inverse"):
        C = np.array([[float(x) for x in row] for row in inverse_of(C)])
        encoder = Inverse(encoder)
    if np.abs(C).max() > LARGEST or (kind == "array" and largest_of_inverse(C) > LARGEST):
        raise Excluded("an inverse that grows")
    return Drawn(C if kind == "array" else encoder, C, kind, words)


def toeplitz_of(series: FloatArray, T: int) -> FloatArray:
    return np.array([[series[t - s] if 0 <= t - s < len(series) else 0.0 for s in range(T)] for t in range(T)])


def inverse_of(N: FloatArray) -> list[list[Fraction]]:
    """The inverse of a lower triangular N in fractions."""
    T, rows = len(N), [[Fraction(x) for x in row] for row in N.tolist()]
    C = [[Fraction(0)] * T for _ in range(T)]
    for s in range(T):
        for t in range(s, T):
            known = sum((rows[t][r] * C[r][s] for r in range(s, t) if rows[t][r]), Fraction(0))
            C[t][s] = (int(s == t) - known) / rows[t][t]
    return C


def largest_of_inverse(C: FloatArray) -> float:
    return max(float(abs(x)) for row in inverse_of(C) for x in row)


def drawn_scheme(rng: np.random.Generator, T: int) -> tuple[Participation, list[Steps]]:
    """A participation, and its patterns, listed anew."""
    if rng.random() < 0.6:
        k, b = int(rng.choice([1, 2, 2, 3, 4])), int(rng.integers(1, T + 1, 2).min())
        return MinSeparation(T, k, b), separated(T, k, b)
    period = int(rng.choice([b for b in range(1, T + 1) if T % b == 0]))
    epochs = T // period
    regular = [tuple(range(r, T, period)) for r in range(period)]
    given = [tuple(np.flatnonzero(rng.random(T) < 0.4).tolist()) or (0,) for _ in range(3)]
    each = [range(e * period, (e + 1) * period) for e in range(epochs)]
    schemes: list[Callable[[], tuple[Participation, list[Steps]]]] = [
        lambda: (Cyclic(epochs, period), regular),
        lambda: (EveryStep(T), [tuple(range(T))]),
        lambda: (Single(T), [(t,) for t in range(T)]),
        lambda: (Explicit(given, T), given),
        lambda: (OncePerEpoch(epochs, period), list(itertools.product(*each))),
    ]
    return schemes[rng.integers(len(schemes))]()


def separated(T: int, k: int, b: int) -> list[Steps]:
    """All sets of at most k steps, b or more apart; the maximal ones are among them."""
    patterns: list[Steps] = []
    newest: list[Steps] = [()]
    for _ in range(k):
        newest = [(*p, t) for p in newest for t in range(p[-1] + b if p else 0, T)]
        patterns += newest
    return patterns


# ---- the truth, from below -------------------------------------------------------------------------------------------


def signed_loss(X: FloatArray, patterns: Iterable[Steps]) -> float:
    """The largest d^T X d over patterns and all signs d."""
    largest = 0.0
    by_length: dict[int, list[Steps]] = {}
    for pattern in patterns:
        by_length.setdefault(len(pattern), []).append(pattern)
    for length, steps in by_length.items():
        if len(steps) * 2**length > MOST_SIGNS:
            raise Excluded("too many signs on too many patterns")
        index = np.array(steps)
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=length - 1))).reshape(2 ** (length - 1), -1)
        signs = np.hstack([np.ones((len(signs), 1)), signs])
        forms = (signs[:, :, None] * signs[:, None, :]).reshape(len(signs), -1)
        largest = max(largest, float((X[index[:, :, None], index[:, None, :]].reshape(len(index), -1) @ forms.T).max()))
    return largest


# ---- statements ------------------------------------------------------------------------------------------------------


def judged(truth: float, squared: float, drawn: Drawn, scheme: Participation, layer: str) -> Case:
    off = shortfall(truth, squared)
    name = type(scheme).__name__
    words = f"true {truth!r}, stated {squared!r}: {drawn.kind}, {drawn.words}; {scheme.describe()}"
    size = int(np.count_nonzero(drawn.C)) + 100 * len(drawn.C)
    return Case(off, f"{drawn.kind} | {name} | {layer}", size, words if off > ROUNDING else "")


@statement("encoders with structure: all signs <= their rules")
def rules(rng: np.random.Generator) -> Case:
    T = int(rng.integers(1, MOST_STEPS + 1))
    drawn = drawn_encoder(rng, T)
    if drawn.kind == "array":
        raise Excluded("no structure")
    scheme, patterns = drawn_scheme(rng, T)
    bound = structured_bound(drawn.encoder, scheme, "exact" if rng.random() < 0.02 else "certified")
    return judged(signed_loss(drawn.C.T @ drawn.C, patterns), bound.upper, drawn, scheme, "encoders")


@statement("encoders with structure, accounted under LDP: all signs <= library", share=0.1)
def accounted(rng: np.random.Generator) -> Case:
    T = int(rng.integers(1, MOST_STEPS + 1))
    drawn = drawn_encoder(rng, T)
    scheme, patterns = drawn_scheme(rng, T)
    if rng.random() < 0.2:
        other, more = drawn_scheme(rng, T)
        scheme, patterns = ParticipationByNode([scheme, other]), [*patterns, *more]
    truth = signed_loss(drawn.C.T @ drawn.C, patterns)
    algorithm = algorithms.mf_dsgd(Dynamics(PAIR, 0.5), scheme, drawn.encoder)
    guarantee = mfdl.account(algorithm, mfdl.Privacy(trust.LDP(), adjacency="zero-out", clip_norm=1.0), noise_std=1.0)
    return judged(truth, guarantee.sensitivity**2, drawn, scheme, "accounted")


def sensitivity_of(drawn: Drawn, scheme: Participation, *, whole: bool) -> tuple[NoiseOperator, Sensitivity]:
    """The noise of node 0 and its sensitivity under LDP; whole: by all of accounting, of two nodes."""
    if not whole:
        noise = LocalNoise(drawn.encoder, 1)
        form = Separable.from_noise(noise, np.zeros((noise.num_steps, 1), dtype=bool))
        return noise, sensitivities(form.grams([0]), scheme, nodes=[0])[0]
    algorithm = algorithms.mf_dsgd(Dynamics(PAIR, 0.5), scheme, drawn.encoder)
    (loss,) = sensitivity_by_victim(algorithm, trust.LDP(), victims=[0], participation=scheme)
    return algorithm.noise, loss.non_adaptive_sensitivity


@statement("encoders near singular: exact fractions <= library, and infinity is no value", share=0.2)
def near_singular(rng: np.random.Generator) -> Case:
    """Noise is what is injected: N of an array, and for structure C^-1 up to rounding that is bounded or not told."""
    T = int(rng.integers(1, 5))
    diagonal = 2.0 ** -rng.integers(0, ORDER, T)
    C = np.tril(drawn_entries(rng, (T, T)), -1) + np.diag(diagonal)
    bands = np.array([[C[t, t - j] if t >= j else 0.0 for j in range(T)] for t in range(T)])
    structured = bool(rng.random() < 0.3)
    drawn = Drawn(Banded(bands) if structured else C, C, "near singular", f"C {C.tolist()}")
    scheme, patterns = drawn_scheme(rng, T)
    noise, sensitivity = sensitivity_of(drawn, scheme, whole=bool(rng.random() < 0.1))
    columns = noise.matmat(np.eye(noise.shape[1]))[:: noise.num_nodes, :: noise.num_nodes]
    encoder = C.tolist() if structured else inverse_of(columns)
    exact = [[Fraction(x) for x in row] for row in encoder]
    X = np.array([[float(sum(row[s] * row[t] for row in exact)) for t in range(T)] for s in range(T)])
    case = judged(signed_loss(X, patterns), sensitivity.squared, drawn, scheme, "near singular")
    if math.isinf(sensitivity.squared) and (sensitivity.exact or not structured):
        words = f"{drawn.words}: an infinite loss ({sensitivity.bound}), though nothing leaks"
        return dataclasses.replace(case, difference=math.inf, words=words)
    return case

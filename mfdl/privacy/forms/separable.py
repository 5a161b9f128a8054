"""X_u where all messages are seen and the noise is correlated over steps and nodes at once.

The gossip drops out, and the view is the injected noise itself: A = I_T (x) e_u and B = N without its known columns.
Three noises have a form of their own, with F' the factor without known columns, C_k the encoders and E_k = C_k^-1:

- one encoder for all columns: B B^T = (C^T C)^-1 (x) F' F'^T, so X_u = [(F' F'^T)^+]_uu C^T C, infinite where e_u is
  outside the range of F' (injections can then be combined to show u's gradient and no noise);
- one encoder per column, F square and nothing known: B^-1 = blockdiag(C_k) (I (x) F^-1), so with g = F^-1 e_u
  X_u = sum_k g_k^2 C_k^T C_k;
- joint noise N = C^-1 and nothing known: X_u = C_u^T C_u, C_u the columns of u.

Rounding is carried along. N is what the executor uses, C_k^-1 up to rounding: the Gram of an encoder comes with a bound
on that, a factor in the positive semidefinite order. That of F^-1 is no such factor where encoders differ: g is off by
(F^-1 - G) e_u, entry by entry, and a weak column may carry a strong encoder. With G F = I + E, F^-1 - G = -E F^-1, so
|g - G e_u|_k <= ||E_k|| ||g|| and ||g|| <= ||G e_u|| / (1 - ||E||).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...check import FloatArray
from ...noise import CausalNoise, JointNoise, NoiseOperator
from .whitening import whiten

UNIT = float(np.finfo(np.float64).eps) / 2
SINGULAR = "its encoder is singular to working precision"
MAX_DEFECT = 0.1  # ||G F - I|| above which F is left to the dense form, which tells ranks better


class EncoderGram(Protocol):
    """C^T C with `errors` entrywise; the Gram of the injected noise is at most `inflation` times a matrix within."""

    @property
    def values(self) -> FloatArray: ...

    @property
    def errors(self) -> FloatArray: ...

    @property
    def inflation(self) -> float: ...


@dataclasses.dataclass(frozen=True, eq=False)
class SpaceTimeGram:
    """X_u, in the terms of `ViewGram`; `leaks`: every step does."""

    values: FloatArray
    errors: FloatArray
    inflation: float = 1.0
    leaks: bool = False
    why: str = ""
    tolerance: float = 0.0
    upper: bool = False


def space_time_grams(
    noise: NoiseOperator,
    known: NDArray[np.bool_],
    victims: Sequence[int],
    encoder_gram: Callable[[FloatArray, FloatArray], EncoderGram],
) -> list[SpaceTimeGram] | None:
    """X_u of each victim, or None where no form above covers what is known.

    Args:
        known: bool (columns,), those the attacker knows in every step.
        encoder_gram: (C, its inverse as the executor uses it) to C^T C with bounds on both roundings.
    Cost: T^3 per encoder; one SVD of F', or the inverse of F and T^2 columns per victim; (T n)^3 for joint noise.
    """
    if known.all():
        T = noise.num_steps
        why = "there is no noise that the attacker does not know"
        return [SpaceTimeGram(np.ones(T), np.zeros(T), math.inf, True, why)] * len(victims)
    if noise.joint is not None:
        return None if known.any() else _joint(noise.joint, victims)
    if (causal := noise.causal) is None:
        return None
    if causal.shared:
        return _one_encoder(causal, known, victims, encoder_gram(causal.encoder_of(0), causal.inverse_of(0)))
    if known.any() or noise.shape[0] != noise.shape[1]:
        return None
    return _one_encoder_per_column(causal, victims, encoder_gram)


def _one_encoder(
    noise: CausalNoise, known: NDArray[np.bool_], victims: Sequence[int], gram: EncoderGram
) -> list[SpaceTimeGram]:
    chosen = np.asarray(victims, dtype=np.intp)
    white = whiten(np.eye(noise.num_nodes)[:, chosen], noise.mixing.toarray() * ~known, given_noise=True)
    squared, off = (white.whitened**2).sum(axis=0), np.diagonal(white.gram_error())
    size = np.abs(gram.values) + gram.errors
    singular = math.isinf(gram.inflation)
    why = SINGULAR if singular else "noise that is known or missing cancels in a combination of the injections"
    made: list[SpaceTimeGram] = []
    for i, (a, da) in enumerate(zip(squared, off, strict=True)):
        leaks = bool(singular or white.leaks[i] or white.undecided[i])
        errors = a * gram.errors + (da + 4 * UNIT * (a + da)) * size
        upper = bool(white.undecided[i] or (white.assumed and white.leaks[i])) and not singular
        made.append(SpaceTimeGram(a * gram.values, errors, gram.inflation, leaks, why * leaks, white.tolerance, upper))
    return made


def _one_encoder_per_column(
    noise: CausalNoise, victims: Sequence[int], encoder_gram: Callable[[FloatArray, FloatArray], EncoderGram]
) -> list[SpaceTimeGram] | None:
    found = _inverse_factor(noise.mixing.toarray())
    if found is None:
        return None
    G, defect = found
    grams = [encoder_gram(noise.encoder_of(k), noise.inverse_of(k)) for k in range(len(G))]
    values, errors = (np.stack([getattr(gram, name) for gram in grams]) for name in ("values", "errors"))
    sizes = np.abs(values) + errors
    inflation = max(gram.inflation for gram in grams)
    why = "" if math.isfinite(inflation) else "an encoder is singular to working precision"
    rounding = (len(G) + 4) * UNIT  # of a sum of that many products of three
    made = []
    for u in victims:
        g = np.abs(G[:, u])
        off = defect * float(np.linalg.norm(g))
        slack = (2 * g + off) * off + rounding * g**2  # of g_k^2
        X = np.tensordot(g**2, values, 1)
        wrong = np.tensordot(g**2, errors, 1) + (1 + rounding) * np.tensordot(slack, sizes, 1)
        made.append(SpaceTimeGram(X, wrong, inflation, bool(why), why))
    return made


def _inverse_factor(F: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """(G, b) with |F^-1 - G| x <= b ||G x|| entrywise for every unit vector x; None where F may be singular."""
    n = len(F)
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            G = np.asarray(np.linalg.inv(F), dtype=np.float64)
        except np.linalg.LinAlgError:
            return None
        defect = np.abs(G @ F - np.eye(n)) + (n + 2) * UNIT / (1 - (n + 2) * UNIT) * (np.abs(G) @ np.abs(F))
    size = float(np.linalg.norm(defect))
    if not size < MAX_DEFECT:
        return None
    return G, np.asarray(np.linalg.norm(defect, axis=1) * (1 + 2 * n * UNIT) / (1 - size))


def _joint(noise: JointNoise, victims: Sequence[int]) -> list[SpaceTimeGram]:
    """With C N = I + E, N^-1 = (I + E)^-1 C, so X_u <= C_u^T C_u / (1 - ||E||)^2."""
    C, N, n = noise.encoder, noise.inverse, noise.num_nodes
    terms = len(C) * UNIT / (1 - len(C) * UNIT)
    defect = C @ N
    defect[np.diag_indices(len(C))] -= 1.0
    size = float(np.linalg.norm(defect)) + terms * float(np.linalg.norm(np.abs(C) @ np.abs(N)))
    singular = not size < 1
    inflation = math.inf if singular else (1 - size) ** -2
    why = SINGULAR if singular else ""
    made = []
    for u in victims:
        own = C[:, u::n]
        errors = terms * (np.abs(own).T @ np.abs(own))
        made.append(SpaceTimeGram(own.T @ own, errors, inflation, singular, why))
    return made

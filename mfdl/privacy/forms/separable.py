"""X_u where every injected sum is seen and the noise has a structure: all of it in closed form.

The gossip drops out, and the view is the injected noise itself: A = I_T (x) e_u and B = N without its known columns.
With F' the factor without known columns (the identity if there is none), C_k the encoders and E_k = C_k^-1:

- noise fresh in each step: X_u is diagonal, entry t = [(F'_t F'_t^T)^+]_uu;
- one encoder for all columns: B B^T = (C^T C)^-1 (x) F' F'^T, so X_u = [(F' F'^T)^+]_uu C^T C, infinite where e_u is
outside the range of F'; with structure C^T C is not formed (`sensitivity.encoder_bounds`);
- noise of its own at each node, s_u times: X_u = C_u^T C_u / s_u^2;
- one encoder per column, F square and nothing known: B^-1 = blockdiag(C_k) (I (x) F^-1), so with g = F^-1 e_u X_u =
sum_k g_k^2 C_k^T C_k;
- joint noise N = C^-1 and nothing known: X_u = C_u^T C_u, C_u the columns of u.

Rounding is carried along. N is what the executor uses, C_k^-1 up to rounding, which is a factor of X
(`Encoder.defect`); where that is not near 1, X = N^-T N^-1 comes from N itself, of as many bits as it takes
(`exact_arithmetic`). Without either, infinity is an upper bound that nothing attains. The rounding of F^-1 is no such
factor where encoders differ: g is off by (F^-1 - G) e_u, entry by entry, and a weak column may carry a strong encoder.
With G F = I + E, F^-1 - G = -E F^-1, so |g - G e_u|_k <= ||E_k|| ||g|| and ||g|| <= ||G e_u|| / (1 - ||E||).

`Injections` is the upper bound for all other attackers: X_u of one who sees every injected sum (gradient plus noise).
Where noise enters exactly where gradients do, messages and models are functions of the injected sums and of public
start models, so by data processing who knows no more gradients and noise learns no more. And every gradient is taken at
a function of earlier sums, so the bound holds for gradients chosen adaptively. Gradients that enter nothing, those of
offline nodes, may be taken for zero.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from mfdl_solvers.encoders import Encoder, defect_inflation, inverse_defect

from ...check import FloatArray
from ...floats import UNIT, sum_rounding
from ...noise import CausalNoise, NoiseOperator
from ...noise.encoder_arguments import MAX_DENSE_STEPS, written_out
from ...trust.view import AlgorithmView
from ..exact_arithmetic import gram_of_noise
from .base import KNOWN_NOISE, Blocks, Group, Structured, ViewForm, ViewGram, gradients_enter
from .dense_form import DenseForm
from .noise_of_nodes import joint_node_noise, node_noise

SINGULAR = "its encoder is singular to working precision"
UNPROVEN = f"{SINGULAR}, so that infinity is only an upper bound; an encoder of better condition has a finite one"
WELL_CONDITIONED = 1e-6  # rounding of N that adds more to X is computed, not bounded
CANCELS = "noise that is known or missing cancels in a combination of the injections"
MAX_DEFECT = 0.1  # ||G F - I|| above which F is left to the dense form, which tells ranks better
Known = NDArray[np.bool_]
INJECTIONS = "injections seen"


class Separable(ViewForm):
    asks_encoder = True

    def __init__(self, noise: NoiseOperator, known: Known) -> None:
        self.noise, self.known = noise, known

    @classmethod
    def from_algorithm(cls, view: AlgorithmView) -> Self | None:
        return cls.from_noise(view.algorithm.noise, view.knowledge.known_noise) if view.shows_injections else None

    @classmethod
    def from_noise(cls, noise: NoiseOperator, known: Known) -> Self | None:
        """The form of the injections themselves."""
        causal = noise.causal
        covered = (
            noise.is_zero
            or noise.step_factor is not None
            or (
                not (known != known[0]).any()
                and (
                    (causal is not None and (causal.shared or _own_column(causal) or _invertible(causal, known)))
                    or (noise.joint is not None and not known.any())
                    or bool(known.all())
                )
            )
        )
        return cls(noise, known) if covered else None

    def grams(self, victims: Sequence[int]) -> list[ViewGram | None]:
        noise, T = self.noise, self.noise.num_steps
        if noise.is_zero:
            return [ViewGram.silent(T, "there is no noise")] * len(victims)
        if self.known.all() and not noise.local:
            return [ViewGram.silent(T, "there is no noise that the attacker does not know")] * len(victims)
        causal = noise.causal
        if causal is not None and _own_column(causal):
            return list(self._own_columns(causal, victims))
        if causal is not None and causal.shared:
            if (F := causal.step_factor) is not None:
                return self._fresh(F, victims)
            return _one_encoder(causal, self.known[0], victims)
        return list(self._mixed_encoders([(u,) for u in victims]))

    def joint_grams(self, groups: Sequence[Group]) -> list[ViewGram | Blocks | None]:
        noise, causal = self.noise, self.noise.causal
        if noise.is_zero or self.known.all() or (causal is not None and _own_column(causal)):
            nodes = list(dict.fromkeys(u for group in groups for u in group))
            of = dict(zip(nodes, self.grams(nodes), strict=True))
            return [Blocks(tuple(g for u in group if (g := of[u]) is not None)) for group in groups]
        if causal is not None and causal.shared:
            return list(_products(causal, self.known, groups))
        return list(self._mixed_encoders(groups))

    def _mixed_encoders(self, groups: Sequence[Group]) -> Sequence[ViewGram | None]:
        if (joint := self.noise.joint) is not None:
            columns = np.arange(self.noise.shape[1], dtype=np.intp).reshape(self.noise.num_steps, -1).T
            parts = [np.concatenate([columns[u] for u in group]) for group in groups]
            return _part_grams(joint.array, joint.inverse, parts)
        assert self.noise.causal is not None
        return _one_encoder_per_column(self.noise.causal, groups) or [None] * len(groups)

    def _own_columns(self, noise: CausalNoise, victims: Sequence[int]) -> list[ViewGram]:
        computed: dict[tuple[int, float], ViewGram] = {}
        scales = np.ones(noise.slots_per_step) if noise.factor is None else noise.node_scales

        def own_gram(u: int) -> ViewGram:
            known = self.known[:, u]
            if known.all():
                return ViewGram.silent(noise.num_steps, KNOWN_NOISE)
            if noise.fresh:
                why = KNOWN_NOISE if known.any() else ""
                return ViewGram(np.ones(noise.num_steps), np.zeros(noise.num_steps), leaks=known.copy(), why=why)
            return gram_of_column(noise, u)

        grams, partly = [], np.asarray(self.known.any(axis=0))
        for u in victims:
            alike = -1 if noise.shared and not partly[u] else u, float(scales[u])
            if alike not in computed:
                computed[alike] = own_gram(u).over_noise(alike[1])
            grams.append(computed[alike])
        return grams

    def _fresh(self, factor: sp.csr_array, victims: Sequence[int]) -> list[ViewGram | None]:
        T, size = self.noise.num_steps, len(victims)
        values, errors, leaks = np.zeros((size, T)), np.zeros((size, T)), np.zeros((size, T), dtype=bool)
        tolerance, upper, undecided = 0.0, np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
        distinct, of_step = np.unique(self.known, axis=0, return_inverse=True)
        for number, known in enumerate(distinct):
            steps = np.flatnonzero(of_step.ravel() == number)
            left = node_noise(factor, known, victims)
            values[:, steps], errors[:, steps] = left.inverse[:, None], left.errors[:, None]
            leaks[:, steps] = left.open[:, None]
            tolerance = max(tolerance, left.tolerance)
            upper, undecided = upper | left.upper, undecided | left.undecided
        grams: list[ViewGram | None] = [
            ViewGram(x, off, leaks=open_, why=CANCELS if open_.any() else "", tolerance=tolerance, upper=bool(a))
            for x, off, open_, a in zip(values, errors, leaks, upper, strict=True)
        ]
        return [None if u else gram for gram, u in zip(grams, undecided, strict=True)]


def _own_column(noise: CausalNoise) -> bool:
    """Whether slot i of every step adds column i and no other."""
    return noise.factor is None or noise.local


def encoder_gram(encoder: Encoder) -> ViewGram:
    """C^T C for the noise N that is really injected, N = C^-1 up to rounding; not formed where C has structure."""
    if encoder.in_blocks:
        written = written_out(encoder)
        assert written.array is not None
        assert written.inverse is not None
        return _part_grams(written.array, written.inverse, [slice(None)])[0]
    T, inflation = encoder.size, encoder.inflation
    unproven = math.isinf(inflation)
    structured = Structured(encoder)
    return ViewGram(np.zeros(T), np.zeros(T), inflation, why=UNPROVEN * unproven, upper=unproven, structured=structured)


def gram_of_column(noise: CausalNoise, column: int) -> ViewGram:
    if noise.shared:
        return encoder_gram(noise.encoder)
    return _part_grams(noise.column_encoder(column), noise.column_inverse(column), [slice(None)])[0]


def _part_grams(C: FloatArray, N: FloatArray, parts: Sequence[slice | NDArray[np.intp]]) -> list[ViewGram]:
    """C^T C of some columns each; from N alone where C is not its inverse up to a small factor."""
    inflation = defect_inflation(inverse_defect(C, N))
    known = gram_of_noise(N) if inflation > 1 + WELL_CONDITIONED else None
    if known is None:
        return [_product_gram(C[:, part], inflation) for part in parts]
    X, errors = known
    return [ViewGram(X[part][:, part], errors[part][:, part]) for part in parts]


def _product_gram(C: FloatArray, inflation: float) -> ViewGram:
    """C^T C; this product and C N carry at most one unit roundoff a term, relative to products of absolute values."""
    why = "" if math.isfinite(inflation) else UNPROVEN
    return ViewGram(C.T @ C, sum_rounding(len(C)) * (np.abs(C).T @ np.abs(C)), inflation, why=why)


def injected_inflation(noise: CausalNoise) -> float:
    """Factor by which rounding of noise with an encoder raises X at any node: >= 1, infinite where it is not told."""
    made_by_steps = 1.0 if noise.in_blocks else noise.encoder.inflation
    return made_by_steps * noise.written.inflation


def _one_encoder(noise: CausalNoise, known: Known, victims: Sequence[int]) -> list[ViewGram | None]:
    gram = encoder_gram(noise.encoder)
    left = node_noise(noise.mixing, known, victims)
    size, singular = np.abs(gram.values) + gram.errors, math.isinf(gram.inflation)

    @functools.cache
    def scaled(a: float, da: float, shows: bool, upper: bool) -> ViewGram:
        open_, off = singular or shows, da + 4 * UNIT * (a + da)
        return ViewGram(
            a * gram.values,
            a * gram.errors + off * size,
            gram.inflation,
            np.full(noise.num_steps, open_),
            (CANCELS if shows else UNPROVEN) * open_,
            tolerance=left.tolerance,
            upper=upper or (singular and not shows),
            structured=None if gram.structured is None else Structured(noise.encoder, a, off),
        )

    numbers = zip(*(x.tolist() for x in (left.inverse, left.errors, left.open, left.upper)), strict=True)
    return [None if u else scaled(*each) for each, u in zip(numbers, left.undecided, strict=True)]


def _products(noise: CausalNoise, known: Known, groups: Sequence[Group]) -> list[ViewGram | None]:
    """X_t (x) [(F' F'^T)^+]_SS, X_t = I where noise is fresh: then F' may differ from step to step."""
    nodes, T = list(dict.fromkeys(u for group in groups for u in group)), noise.num_steps
    distinct, of_step = np.unique(known, axis=0, return_inverse=True)
    parts = [part for mask in distinct if (part := joint_node_noise(noise.mixing, mask, nodes)) is not None]
    if len(parts) < len(distinct) or (not noise.fresh and T * max(map(len, groups)) > MAX_DENSE_STEPS):
        return [None] * len(groups)
    over_time = None if noise.fresh else encoder_gram(noise.encoder)
    inflation = 1.0 if over_time is None else over_time.inflation
    singular = math.isinf(inflation)

    def gram(group: Group) -> ViewGram:
        at = [nodes.index(u) for u in group]
        open_ = np.stack([part.open[at] for part in parts])[of_step.ravel()].T.ravel() | singular
        M, off = (np.stack([getattr(part, name)[np.ix_(at, at)] for part in parts]) for name in ("inverse", "errors"))
        off = off + 4 * UNIT * (np.abs(M) + off)
        if over_time is None:
            X, errors = (_block_diagonal(entries[of_step.ravel()]) for entries in (M, off))
        else:
            size = np.abs(over_time.matrix) + over_time.entry_error
            X = np.kron(M[0], over_time.matrix)
            errors = np.kron(np.abs(M[0]), over_time.entry_error) + np.kron(off[0], size)
        upper = singular or any(part.upper[at].any() for part in parts)
        why = (UNPROVEN if singular else CANCELS) * bool(open_.any())
        tolerance = max(part.tolerance for part in parts)
        return ViewGram(X, errors, inflation, open_, why, tolerance=tolerance, upper=upper)

    return [gram(group) for group in groups]


def _block_diagonal(entries: FloatArray) -> FloatArray:
    """Arrays of owners for each step, shape (T, s, s), as one over owners and steps."""
    T, owners, _ = entries.shape
    joint, steps = np.zeros((owners, T, owners, T)), np.arange(T)
    joint[:, steps, :, steps] = entries
    return joint.reshape(owners * T, owners * T)


def _invertible(noise: CausalNoise, known: Known) -> bool:
    F = noise.mixing
    return not known.any() and F.shape[0] == F.shape[1] and inverse_factor(F.toarray()) is not None


def _one_encoder_per_column(noise: CausalNoise, groups: Sequence[Group]) -> list[ViewGram] | None:
    """sum_k g_k g_k^T (x) C_k^T C_k, g_k the entries of the owners."""
    inverse = inverse_factor(noise.mixing.toarray())
    if inverse is None:
        return None
    G, defect = inverse
    grams = [gram_of_column(noise, k) for k in range(len(G))]
    values, errors = (np.stack([getattr(gram, name) for gram in grams]) for name in ("values", "errors"))
    sizes = np.abs(values) + errors
    inflation = max(gram.inflation for gram in grams)
    why = "" if math.isfinite(inflation) else UNPROVEN
    rounding = (len(G) + 4) * UNIT  # of a sum of that many products of three
    mixed = []
    for group in groups:
        g = G[:, group]
        off = defect[:, None] * np.linalg.norm(g, axis=0)
        weights, size, slack = _pairs(g, g), _pairs(np.abs(g), np.abs(g)), _pairs(np.abs(g), off)
        slack = slack + slack.transpose(0, 2, 1) + _pairs(off, off) + rounding * size  # of the weights
        wrong = _mixed(size, errors) + (1 + rounding) * _mixed(slack, sizes)
        mixed.append(ViewGram(_mixed(weights, values), wrong, inflation, why=why))
    return mixed


def _pairs(a: FloatArray, b: FloatArray) -> FloatArray:
    """a_k b_k^T of each row, shape (rows, owners, owners)."""
    return np.asarray(a[:, :, None] * b[:, None, :])


def _mixed(weights: FloatArray, grams: FloatArray) -> FloatArray:
    X = np.tensordot(weights, grams, (0, 0)).transpose(0, 2, 1, 3)
    return np.asarray(X.reshape(X.shape[0] * X.shape[1], -1))


def inverse_factor(F: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """(G, b) with |F^-1 - G| x <= b ||G x|| entrywise for every unit vector x; None where F may be singular."""
    n = len(F)
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            G = np.asarray(np.linalg.inv(F), dtype=np.float64)
        except np.linalg.LinAlgError:
            return None
        defect = np.abs(G @ F - np.eye(n)) + sum_rounding(n + 2) * (np.abs(G) @ np.abs(F))
    size = float(np.linalg.norm(defect))
    if not size < MAX_DEFECT:
        return None
    return G, np.asarray(np.linalg.norm(defect, axis=1) * (1 + 2 * n * UNIT) / (1 - size))


class Injections(ViewForm):
    of_any_view = True

    def __init__(self, form: Separable | DenseForm, enters: NDArray[np.bool_]) -> None:
        self.form, self.enters, self.asks_encoder = form, enters, form.asks_encoder  # (T, n)

    @classmethod
    def from_algorithm(cls, view: AlgorithmView) -> Self | None:
        if not view.algorithm.noise_enters_with_gradients:
            return None
        noise, masks = view.algorithm.noise, view.knowledge
        form = Separable.from_noise(noise, masks.known_noise) or DenseForm.from_injections(view.algorithm, masks)
        return None if form is None else cls(form, gradients_enter(view.algorithm))

    def grams(self, victims: Sequence[int]) -> list[ViewGram | None]:
        pairs = zip(victims, self.form.grams(victims), strict=True)
        return [None if gram is None else self._bound((u,), gram) for u, gram in pairs]

    def joint_grams(self, groups: Sequence[Group]) -> list[ViewGram | Blocks | None]:
        pairs = zip(groups, self.form.joint_grams(groups), strict=True)
        return [None if gram is None else gram.mapped(group, self._bound) for group, gram in pairs]

    def _bound(self, owners: Group, gram: ViewGram) -> ViewGram:
        enters = np.concatenate([self.enters[:, u] for u in owners])
        bound = dataclasses.replace(gram, upper=True, form=INJECTIONS)
        if enters.all() or math.isinf(gram.inflation):
            return bound
        values, errors, both = gram.values, gram.errors, enters
        if not gram.is_diagonal:
            values, errors, both = gram.matrix, gram.entry_error, np.outer(enters, enters)
        leaks = gram.leaks & enters
        return dataclasses.replace(bound, values=values * both, errors=errors * both, leaks=leaks, structured=None)

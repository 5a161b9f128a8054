"""Factorizations in files, with the header that says what they were made for.

A file is read as a claim. Arrays are checked against one another and the numbers about them for what can be told from
the file alone; what also needs dynamics or participation is carried as it stands (`load`).
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mfdl_solvers import Factorization, KroneckerFactorization, PerModeFactorization
from mfdl_solvers.balls_in_bins_encoder import BinFactorization
from mfdl_solvers.coalitions import CoalitionFactorization
from mfdl_solvers.problem import FIXED, OPTIMAL, STATIONARY, STOPPED, Certified
from mfdl_solvers.structured import BinEncoder, StructuredFactorization

from .. import archive, check
from ..check import FloatArray
from ..display import short_repr
from ..errors import InvalidInput
from ..participation import Participation
from ..spec import storable
from .encoders import Banded, Buffered, Encoder, Inverse, Toeplitz
from .nodes import NodeFactorizations
from .seeded_covariances import SpatialFactorization, checked_groups
from .spatio_temporal import SpatioTemporalFactorization

FACTORIZATION = "factorization"
OfAnyKind = Certified | NodeFactorizations

for _solved in (
    Factorization, BinFactorization, KroneckerFactorization, PerModeFactorization, CoalitionFactorization,
    StructuredFactorization, BinEncoder, Toeplitz, Banded, Buffered, Inverse,
):  # fmt: skip
    storable(_solved)  # the solvers know nothing of files, so their door says what of theirs may stand in one


@dataclasses.dataclass(frozen=True, eq=False)
class SavedFactorization:
    """What a file holds.

    Attributes:
        factorization: as it was saved.
        header: what it was made for; encoders serve the public form of `header["participation"]`, if there is one.
        error_gram: H over the steps, shape (T, T), or one for each node, (n, T, T); None where it was not saved.
    """

    __repr__ = short_repr

    factorization: OfAnyKind
    header: dict[str, Any]
    error_gram: FloatArray | None = None

    @property
    def encoder(self) -> FloatArray | Encoder:
        """Of noise over time: C, shape (T, T) or (n, T, T), or an encoder with structure."""
        solved: Any = self.factorization
        return solved.encoder


def save(
    path: str | os.PathLike[str],
    factorization: OfAnyKind,
    *,
    header: Mapping[str, Any],
    grams: FloatArray | None = None,
) -> Path:
    """Writes a factorization of any kind to exactly this path, whole or not at all.

    Args: header: plain values, or what else a file may hold; grams: `error_gram` of `SavedFactorization`.
    Raises: InvalidInput: the path cannot be written, or a value is no plain one.
    """
    content = {FACTORIZATION: factorization, "header": dict(header), "error_gram": grams}
    return archive.write(path, FACTORIZATION, content)


def load(path: str | os.PathLike[str]) -> SavedFactorization:
    """What `save` wrote.

    Checked: arrays are real, fit one another and make noise that a node can add; 0 <= lower_bound <= objective; the
    status is one there is; over nodes, and over time and nodes, also that numbers are finite, no [R^-1]_ii is above
    `max_inverse_diagonal` for an outsider, and the sensitivity is 1.
    Carried, not checked: objective, lower bound and status, which need dynamics and error weights; that the encoders
    have the sensitivity, which needs the participation; the constraint for coalitions. No guarantee rests on any of
    them: accounting takes the arrays.

    Raises: InvalidInput: missing, damaged, another format, or claims that contradict one another or the arrays.
    """
    content = archive.read(path, FACTORIZATION)
    with archive.refusing(path, FACTORIZATION):
        saved = SavedFactorization(**{**content, "header": dict(content["header"])})
        if (made_for := saved.header.get("participation")) is not None:
            check.instance(Participation, participation=made_for)
        if saved.error_gram is not None:
            _require_real(error_gram=saved.error_gram)
        _require_claims(saved.factorization)
    return saved


# ---- claims ------------------------------------------------------------------------------------------------------

STATUSES = (OPTIMAL, STATIONARY, STOPPED, FIXED)
ROUNDING = 1e-6
"""How far numbers that rounding alone tells apart may lie from one another, relative."""


@functools.singledispatch
def _require_claims(solved: Any) -> None:
    """Raises InvalidInput, or an error of the wrong type, where a factorization contradicts itself."""
    raise InvalidInput(f"factorization must be one of mfdl, got {type(solved).__name__}.")


@_require_claims.register(Factorization)
@_require_claims.register(BinFactorization)
@_require_claims.register(NodeFactorizations)
def _encoder_claims(solved: Factorization | BinFactorization | NodeFactorizations) -> None:
    for each in solved.nodes if isinstance(solved, NodeFactorizations) else (solved,):
        _require_ends(each)
    _require_real(encoder=solved.encoder)
    encoder = solved.encoder
    if encoder.ndim not in (2, 3) or encoder.shape[-1] != encoder.shape[-2] or not np.isfinite(encoder).all():
        raise InvalidInput(f"encoder must be finite with shape (T, T) or (n, T, T), got {encoder.shape}.")


@_require_claims.register(StructuredFactorization)
@_require_claims.register(BinEncoder)
def _structured_claims(solved: StructuredFactorization | BinEncoder) -> None:
    _require_finite_ends(solved)
    check.instance(Encoder, encoder=solved.encoder)


@_require_claims.register(SpatialFactorization)
def _over_nodes(solved: SpatialFactorization) -> None:
    _require_parts(solved)
    _require_pairwise(solved)
    _require_price(solved)


@_require_claims.register(SpatioTemporalFactorization)
def _over_both(solved: SpatioTemporalFactorization) -> None:
    _require_facts(solved)
    check.integer_at_least(1, num_steps=solved.num_steps)
    check.non_negative(independent_objective=solved.independent_objective)
    if abs(check.positive(sensitivity=solved.sensitivity) - 1) > ROUNDING:
        raise InvalidInput(f"sensitivity must be 1 up to rounding, got {solved.sensitivity!r}.")
    if not isinstance(solved.participation, dict):
        raise InvalidInput(f"participation must be its JSON form, got {solved.participation!r}.")
    _require_real(encoder=solved.encoder)
    if solved.directions is not None:
        _require_real(directions=solved.directions)
    if solved.space is not None:
        _over_nodes(solved.space)
        if solved.space.gossip_hash != solved.gossip_hash:
            raise InvalidInput("the covariance over nodes must be for the same gossip matrix as the whole, and is not.")
    noise = solved.noise()  # checks encoders, directions and holders against one another
    if (noise.num_steps, noise.num_nodes) != (solved.num_steps, solved.num_nodes):
        raise InvalidInput(f"encoder must be over {solved.num_steps} steps, got shape {solved.encoder.shape}.")


def _require_real(**named: Any) -> None:
    ((name, array),) = named.items()
    if array.dtype.kind not in "fiu":
        raise InvalidInput(f"{name} must be real numbers, got {array.dtype}.")


def _require_ends(solved: Certified) -> None:
    """Bound, objective, status and notes; the objective is infinite if the Gram is singular in float64."""
    objective, lower_bound = solved.objective, check.non_negative(lower_bound=solved.lower_bound)
    if not lower_bound <= objective * (1 + ROUNDING):
        raise InvalidInput(
            f"lower_bound must be at most the objective, got {lower_bound!r} for an objective of {objective!r}."
        )
    if solved.status not in STATUSES:
        raise InvalidInput(f"status must be one of {', '.join(STATUSES)}, got {solved.status!r}.")
    if not isinstance(solved.notes, tuple) or not all(isinstance(note, str) for note in solved.notes):
        raise InvalidInput(f"notes must be a tuple of texts, got {solved.notes!r}.")
    check.integer_at_least(0, iterations=solved.iterations)
    check.non_negative(seconds=solved.seconds)


def _require_finite_ends(solved: Certified) -> None:
    check.non_negative(objective=solved.objective)
    _require_ends(solved)


def _require_facts(solved: SpatialFactorization | SpatioTemporalFactorization) -> None:
    """What factorizations over nodes, and over time and nodes, say alike."""
    _require_finite_ends(solved)
    check.integer_at_least(1, num_nodes=solved.num_nodes)
    if not isinstance(solved.gossip_hash, str):
        raise InvalidInput(f"gossip_hash must be text, got {solved.gossip_hash!r}.")


def _require_parts(solved: SpatialFactorization) -> None:
    """Numbers in their ranges, groups of nodes, and a covariance for each."""
    _require_facts(solved)
    check.non_negative(private_variance=solved.private_variance)
    check.positive(max_inverse_diagonal=solved.max_inverse_diagonal)
    if check.integer_at_least(0, coalition_size=solved.coalition_size) >= solved.num_nodes:
        raise InvalidInput(f"coalition_size must be below {solved.num_nodes} nodes, got {solved.coalition_size}.")
    if solved.independent_objective is not None:
        check.non_negative(independent_objective=solved.independent_objective)
    if solved.horizon is not None:
        check.integer_at_least(1, horizon=solved.horizon)
    if not isinstance(solved.bound_over, str):
        raise InvalidInput(f"bound_over must be text, got {solved.bound_over!r}.")
    checked_groups(solved.groups, solved.num_nodes)
    if len(solved.groups) != len(solved.parts):
        raise InvalidInput(f"parts must be one for each of {len(solved.groups)} groups, got {len(solved.parts)}.")
    for group, part in zip(solved.groups, solved.parts, strict=True):
        _require_covariance(part, group)


def _require_covariance(part: FloatArray, group: tuple[int, ...]) -> None:
    _require_real(parts=part)
    if part.shape != (len(group), len(group)):
        raise InvalidInput(f"parts must have shape {(len(group), len(group))} for {list(group)}, got {part.shape}.")
    values = np.linalg.eigvalsh((part + part.T) / 2) if np.isfinite(part).all() else np.array([np.nan])
    if not values[0] >= -1e-9 * abs(values[-1]) or np.abs(part - part.T).max() > 1e-9 * abs(values[-1]):
        raise InvalidInput(f"the covariance of group {list(group)} must be symmetric and positive semidefinite.")


def _require_pairwise(solved: SpatialFactorization) -> None:
    """sigma_ldp and sigma_cor are those of the parts: the same noise on every edge."""
    local, pair = solved.sigma_ldp, solved.sigma_cor
    if local is None and pair is None:
        return
    local, pair = check.non_negative(sigma_ldp=local), check.non_negative(sigma_cor=pair)
    edge = pair**2 * np.array([[1.0, -1.0], [-1.0, 1.0]])
    same = [part.shape == (2, 2) and np.abs(part - edge).max() <= ROUNDING * pair**2 for part in solved.parts]
    private = abs(local**2 - solved.private_variance) <= ROUNDING * solved.private_variance
    if not private or not all(same) or bool(same) != (pair > 0):
        raise InvalidInput(f"sigma_ldp and sigma_cor must be those of the parts, got {local!r} and {pair!r}.")


def _require_price(solved: SpatialFactorization) -> None:
    """[R^-1]_ii <= r for an outsider, which every coalition size implies; never refused for rounding."""
    R, r, n = solved.covariance, solved.max_inverse_diagonal, solved.num_nodes
    scale = float(np.abs(R).sum(axis=1).max())
    # the inverse of a slightly larger matrix, by more than rounding, lies below that of R
    more = 16 * n * np.finfo(np.float64).eps * np.eye(n)
    if not scale > 0 or np.linalg.inv(R / scale + more).diagonal().max() > r * scale * (1 + ROUNDING):
        raise InvalidInput(
            f"max_inverse_diagonal must bound [R^-1]_ii at every node, and {r:g} is below that of the covariance."
        )

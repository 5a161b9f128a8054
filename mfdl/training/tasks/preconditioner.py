"""Preconditioners: a public linear change of the features before clipping, which costs no privacy.

Gradient descent learns direction j at the rate eta lambda_j; features x -> M (x - c) with M near lambda^(-1/2) make
all directions alike. A model with first weights V on the new features has the weights V M on the old ones: training is
gradient descent preconditioned by M^2, with gradients clipped after M. M and c are functions of public numbers, so
every sensitivity stands. In a loop of your own it is `node.step(preconditioner(features), targets)`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from ... import check
from ...check import FloatArray
from ...display import short_repr
from ...errors import InvalidInput
from ...matrices import read_only
from ...spec import Entry, Registry

PRECONDITIONERS: Registry[Entry] = Registry("preconditioner", supplied=("num_features",), by_position=True)
LARGEST_RATIO = 1e6  # of singular values of M: beyond it float32 features lose a direction to rounding
RIDGE = 1e-3  # share of the mean eigenvalue that is added to every eigenvalue of public features
Features = TypeVar("Features", NDArray[Any], torch.Tensor)


@dataclasses.dataclass(frozen=True, eq=False)
class Preconditioner:
    """The map x -> M (x - c) of feature vectors.

    Attributes:
        scales: M, the diagonal of shape (d,), or a matrix of shape (d, d), regular.
        center: c, shape (d,); default 0.
        source: of M and c, in words; part of the name of the task.
        records: digests of the records that M was computed from, if any, so that a task can refuse its own.

    >>> Preconditioner([1.0, 2.0])(np.array([[3.0, 4.0]]))
    array([[3., 8.]])
    """

    __repr__ = short_repr

    scales: ArrayLike
    center: ArrayLike | None = None
    source: str = "declared"
    records: frozenset[bytes] = dataclasses.field(default=frozenset(), repr=False)

    def __post_init__(self) -> None:
        M = np.asarray(self.scales)
        M = check.finite_array(1 if M.ndim < 2 else 2, scales=M)
        d = len(M)
        if d == 0 or M.shape not in ((d,), (d, d)):
            raise InvalidInput(f"scales must have shape (d,) or (d, d) with d >= 1, got {M.shape}.")
        sizes = np.abs(M) if M.ndim == 1 else np.linalg.svd(M, compute_uv=False)
        if not sizes.max() <= LARGEST_RATIO * sizes.min():
            raise InvalidInput(
                f"scales must have singular values within a factor of {LARGEST_RATIO:g}, got {sizes.min():.3g} to "
                f"{sizes.max():.3g}; take a smaller exponent, or add a ridge to the spectrum."
            )
        c = np.zeros(d) if self.center is None else check.finite_array(1, center=self.center)
        if c.shape != (d,):
            raise InvalidInput(f"center must have shape ({d},), got {c.shape}.")
        if not isinstance(self.source, str) or not self.source.strip():
            raise InvalidInput(f"source must say in words what scales were computed from, got {self.source!r}.")
        object.__setattr__(self, "scales", read_only(M))
        object.__setattr__(self, "center", read_only(c))

    @classmethod
    def from_spectrum(cls, eigenvalues: ArrayLike, exponent: float = 0.5) -> Preconditioner:
        """M = diag(lambda^-exponent) of a declared spectrum lambda > 0 of second moments by coordinate, shape (d,).

        The exponent 0.5 makes all directions alike, 0.25 goes half of the way.

        >>> Preconditioner.from_spectrum([1.0, 0.25]).scales
        array([1., 2.])
        """
        spectrum = check.finite_array(1, eigenvalues=eigenvalues)
        if not (spectrum > 0).all():
            raise InvalidInput("eigenvalues must be > 0; add a ridge to those that are 0.")
        power = check.non_negative(exponent=exponent)
        return cls(spectrum**-power, source=f"a declared spectrum, exponent {power:g}")

    @classmethod
    def from_public_features(
        cls, features: ArrayLike, exponent: float = 0.5, *, public: str, diagonal: bool = False, center: bool = False
    ) -> Preconditioner:
        """M = (S + ridge)^-exponent, S the second moment of public or unlabelled features, in any basis.

        Args:
            features: public records, shape (N, d). They are published by training; no guarantee covers them.
            public: which records these are and why they are public, in words.
            diagonal: each coordinate by itself; center: subtract the mean of the public features first.

        Raises: InvalidInput: features that are not finite or all 0, `public` empty.

        >>> P = Preconditioner.from_public_features(np.diag([3.0, 1.0]), public="two published records")
        >>> (P.scales @ np.diag([4.5, 0.5]) @ P.scales.T).round(2) + 0.0
        array([[1., 0.],
               [0., 1.]])
        """
        X, power = check.finite_array(2, features=features), check.non_negative(exponent=exponent)
        if not isinstance(public, str) or not public.strip():
            raise InvalidInput(f"public must say which records these are and why they are public, got {public!r}.")
        c = X.mean(axis=0) if check.flag(center=center) else np.zeros(X.shape[1])
        S = (X - c).T @ (X - c) / len(X)
        if not (mean := float(np.trace(S)) / len(S)) > 0:
            raise InvalidInput("features must have variance, got public features that are all alike.")
        if check.flag(diagonal=diagonal):
            scales = (np.diag(S) + RIDGE * mean) ** -power
        else:
            values, vectors = np.linalg.eigh(S)
            scales = (vectors * (np.maximum(values, 0) + RIDGE * mean) ** -power) @ vectors.T
        return cls(scales, c, f"public features ({public.strip()}), exponent {power:g}", record_digests(X))

    @property
    def num_features(self) -> int:
        return len(np.asarray(self.scales))

    def __call__(self, features: Features) -> Features:
        """M (x - c) of each row, in the type and on the device of the features, shape (..., d)."""
        if features.ndim < 1 or features.shape[-1] != self.num_features:
            raise InvalidInput(
                f"features must be vectors of {self.num_features} entries, got shape {tuple(features.shape)}."
            )
        if not getattr(features.dtype, "is_floating_point", getattr(features.dtype, "kind", "") == "f"):
            raise InvalidInput(f"features must be of a real floating-point type, got {features.dtype}.")
        if isinstance(features, torch.Tensor):
            mapped = torch.as_tensor(self._mapped(features.detach().double().cpu().numpy()))
            return mapped.to(device=features.device, dtype=features.dtype)
        return self._mapped(features.astype(np.float64)).astype(features.dtype)

    def weights(self, weights: ArrayLike) -> FloatArray:
        """V M: the weights on the original features, of weights V on preconditioned ones, shape (..., d)."""
        V, M = np.asarray(weights, dtype=np.float64), np.asarray(self.scales)
        return V * M if M.ndim == 1 else V @ M

    def _mapped(self, x: FloatArray) -> FloatArray:
        M, centered = np.asarray(self.scales), x - np.asarray(self.center)
        return centered * M if M.ndim == 1 else centered @ M.T


def record_digests(records: ArrayLike) -> frozenset[bytes]:
    rows = np.ascontiguousarray(np.asarray(records, dtype=np.float32) + 0.0)  # -0 and 0 are alike
    return frozenset(hashlib.blake2b(row.tobytes(), digest_size=12).digest() for row in rows)


@PRECONDITIONERS.register(example="power:0.5")
def power(exponent: float, decay: float = 1.0, *, num_features: int) -> Preconditioner:
    """By a declared spectrum lambda_j = j^-decay of the features j = 1, ..., d: scales lambda_j^-exponent."""
    return Preconditioner.from_spectrum(np.arange(1, num_features + 1) ** -check.non_negative(decay=decay), exponent)


@PRECONDITIONERS.register(name="file", example="file:scales.csv")
def scales_file(path: str) -> Preconditioner:
    """Scales, one a feature, or a matrix, from a file of numbers: .npy, or text with commas or spaces."""
    return Preconditioner(check.numbers_in_file(path, contents="preconditioner"), source=f"scales of {Path(path).name}")


@PRECONDITIONERS.register(name="public-features", example="public-features:0.5:public.csv")
def public_features_file(exponent: float, path: str) -> Preconditioner:
    """By the second moment of public records in a file, one a row: .npy, or text with commas or spaces."""
    return Preconditioner.from_public_features(
        check.numbers_in_file(path, contents="preconditioner"), exponent, public=f"those of {Path(path).name}"
    )


def parse(spec: Preconditioner | str, num_features: int) -> Preconditioner:
    """The preconditioner of a text; a `Preconditioner` as it is.

    Raises: InvalidInput: another text, a file that cannot be read, another number of features.

    >>> parse("power:0.5", 4).scales.round(3)
    array([1.   , 1.414, 1.732, 2.   ])
    """
    if isinstance(spec, Preconditioner):
        chosen = spec
    else:
        count = check.integer_at_least(1, num_features=num_features)
        chosen = PRECONDITIONERS.make(check.text("'power:0.5'", precondition=spec), num_features=count)
    if chosen.num_features != num_features:
        raise InvalidInput(f"the preconditioner is for {chosen.num_features} features, and there are {num_features}.")
    return chosen

"""Encoders of other libraries as encoders of this one: JAX Privacy 2.0 and opake 0.16.

In: a strategy object of the other library, or its fields as they were saved. Out: an `Encoder`. Objects are read by
their fields, so neither library need be installed. Only the numbers that define C are read: a sensitivity or a noise
multiplier that the other library states has no effect, and the encoder is accounted as every other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mfdl_solvers.encoders import Banded, Buffered, Dense, Encoder, Identity, Inverse, Toeplitz
from mfdl_solvers.structured.searches import rows_from_columns

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput, UnsupportedMechanism, require_known
from .encoders import square_root_series
from .setting import solver_refusals

MAX_BAND_ENTRIES = 5 * 10**7
"""Numbers in the bands of a column-normalized encoder, 400 MB."""
Fields = Mapping[str, Any]


# ---- JAX Privacy -----------------------------------------------------------------------------------------------------


@solver_refusals()
def from_jax_privacy(strategy: Any, *, num_steps: int, column_normalized: bool = False) -> Encoder:
    """The encoder of a strategy of `jax_privacy.matrix_factorization`.

    Args:
        strategy: a `BufferedToeplitz` (fields buf_decay, output_scale), a `ColumnNormalizedBanded` (params), the
            Toeplitz coefficients of C (shape (b,), b <= T), or C as an array, shape (T, T); of an object also its
            fields as a mapping, such as a .npz file.
        num_steps: T.
        column_normalized: of Toeplitz coefficients only: every column of C over its norm, as
            `toeplitz.inverse_as_streaming_matrix(coef, column_normalize_for_n=T)` has it.

    Returns: `Buffered`, `Banded`, `Toeplitz` or `Dense`, over T steps.
    Guarantees: the numbers of the strategy, exactly; norms of columns are computed here, in float64.
    Raises: InvalidInput: numbers that are not finite, another number of steps, a C that is not lower triangular with a
        positive diagonal, a decay outside [-1, 1]; UnsupportedMechanism: another object, such as a `StreamingMatrix`.
    Source: JAX Privacy 2.0.0; arXiv:2408.08868 (BLT), arXiv:2306.08153 (banded).

    >>> from_jax_privacy({"buf_decay": [0.5], "output_scale": [0.25]}, num_steps=3).dense().tolist()
    [[1.0, 0.0, 0.0], [0.25, 1.0, 0.0], [0.125, 0.25, 1.0]]
    """
    T = check.integer_at_least(1, num_steps=num_steps)
    normalized = check.flag(column_normalized=column_normalized)
    for names, read in _JAX_OBJECTS.items():
        fields = _named_fields(strategy, names)
        if fields is not None:
            if normalized:
                raise InvalidInput(
                    "column_normalized is for Toeplitz coefficients; leave it out for a strategy object."
                )
            return read(*fields, T)
    if isinstance(strategy, Mapping) or hasattr(strategy, "multiply_next"):
        raise UnsupportedMechanism(
            f"strategy must be a BufferedToeplitz, a ColumnNormalizedBanded, Toeplitz coefficients or C as an array, "
            f"got {check.brief(strategy)}; of a StreamingMatrix give the object or the coefficients it was made from."
        )
    axes = check.as_array(strategy=strategy).ndim
    if axes != 1 and normalized:
        raise InvalidInput(f"column_normalized is for Toeplitz coefficients, shape (b,), got {axes} axes.")
    if axes == 1:
        return _toeplitz(strategy, T, normalized=normalized)
    dense = Dense(check.square_array(strategy=strategy))
    if dense.size != T:
        raise InvalidInput(f"num_steps must be that of the strategy, {dense.size}, got {T}.")
    return dense


def _buffered(buf_decay: Any, output_scale: Any, T: int) -> Encoder:
    return Buffered(
        check.finite_array(1, output_scale=np.atleast_1d(check.as_array(output_scale=output_scale))),
        check.finite_array(1, buf_decay=np.atleast_1d(check.as_array(buf_decay=buf_decay))),
        size=T,
    )


def _normalized_columns(params: Any, T: int) -> Encoder:
    """C[s + j, s] = params[s, j] over the norm of row s."""
    columns = check.finite_array(2, params=params)
    steps, width = columns.shape
    if steps != T:
        raise InvalidInput(f"num_steps must be that of the strategy, {steps}, got {T}.")
    after = np.arange(T)[:, None] + np.arange(width) >= T
    if columns[after].any():
        raise InvalidInput("params must be 0 at [s, j] with s + j >= T: there are no steps after the last.")
    return Banded(rows_from_columns(columns / _positive_norms(columns)[:, None]))


_JAX_OBJECTS: Mapping[tuple[str, ...], Callable[..., Encoder]] = {
    ("buf_decay", "output_scale"): _buffered,
    ("params",): _normalized_columns,
}


# ---- opake -----------------------------------------------------------------------------------------------------------


@solver_refusals()
def from_opake(strategy: Any, *, num_steps: int, coefficients: Any = None) -> Encoder:
    """The encoder of a strategy of `opake.dpftrl`.

    Args:
        strategy: a strategy (identity, BSR, BISR, lambda-CGD, BandMF, BLT), or its state as `opake.serialization` or a
            .npz file has it: a mapping with the class under "type" and its fields. The state of an `MfGaussian` or of
            an amplified process is read as that of the strategy in it.
        num_steps: T.
        coefficients: of C, shape (T,), as `strategy.coefficients(...)` gives them: for BandMF and BLT, whose recipes
            leave them to a search; they may also be a field of the state.

    Returns: `Identity`, `Toeplitz`, or `Inverse` of a `Toeplitz` or, with normalized columns, of a `Banded` encoder.
    Guarantees: C as its recipe defines it, computed here in float64.
    Raises: InvalidInput: an unknown class or field, a number in the state that is infinite or undefined, a state for
        another number of steps, coefficients that are missing or not those of a causal C with a positive diagonal, or
        inverse coefficients of another number than the bandwidth of the state.
    Source: opake 0.16.1; arXiv:2405.13763 (BSR), arXiv:2505.12128 (BISR), arXiv:2601.22334 (lambda-CGD).

    >>> state = {"type": "LambdaCgdStrategy", "lambda_": 0.5, "normalized": False}
    >>> from_opake(state, num_steps=3).dense().tolist()
    [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.25, 0.5, 1.0]]
    """
    T = check.integer_at_least(1, num_steps=num_steps)
    state = _state(strategy)
    while (inner := state.get("inner", state.get("strategy"))) is not None:
        _require_finite({**state, "inner": None, "strategy": None})
        steps = state.get("n_steps")
        if steps is not None and check.integer_at_least(1, n_steps=steps) != T:
            raise InvalidInput(f"num_steps must be that of the state, {steps}, got {T}.")
        state = _state(inner)
    _require_finite(state)
    kind = str(state.get("type"))
    require_known("opake strategy", kind, _OPAKE)
    if coefficients is not None:
        state = {**state, "coefficients": coefficients}
    read, fields = _OPAKE[kind]
    for name in set(state) - {"type"}:
        require_known(f"field of {kind}", name, fields)
    return read(state, T)


def _square_root(state: Fields, T: int) -> Encoder:
    """c_j = sum_i alpha^(j - i) r_(j - i) r_i beta^i, arXiv:2405.13763, Theorem 1."""
    width = min(check.integer_at_least(1, bandwidth=state.get("bandwidth")), T)
    parts = (check.non_negative(alpha=state.get("alpha")), check.non_negative(beta=state.get("beta")))
    return Toeplitz(_product_series(width, *parts, inverse=False), T)


def _banded_inverse(state: Fields, T: int) -> Encoder:
    given = state.get("inv_coefficients")
    width = check.integer_at_least(1, bandwidth=state.get("bandwidth"))
    if given is None:
        momentum = check.non_negative(momentum=state.get("momentum", 0.0))
        series = _product_series(min(width, T), 1.0, momentum, inverse=True)
    else:
        series = check.finite_array(1, inv_coefficients=given)
        if series.size != width:
            raise InvalidInput(
                f"inv_coefficients must be as many as bandwidth={width}, got {series.size}; give both as the strategy "
                "has them."
            )
    return _encoder_from_noising(series[:T], T, state)


def _back_share(state: Fields, T: int) -> Encoder:
    share = check.non_negative(lambda_=state.get("lambda_"))
    return _encoder_from_noising(np.array([1.0, -share][:T]), T, state)


def _encoder_from_noising(series: FloatArray, T: int, state: Fields) -> Encoder:
    """C^-1 with these coefficients, its rows times the norms of the columns of C where these are normalized."""
    if state.get("lr_schedule") is not None:
        raise InvalidInput("lr_schedule must be None: the encoder of this strategy has no learning rates.")
    noising = Toeplitz(series, T)
    if not check.flag(normalized=state.get("normalized", True)):
        return Inverse(noising)
    rows = np.tril(np.broadcast_to(series, (T, series.size))) * _norms_of_columns(noising.inverse_series, T)[:, None]
    return Inverse(Banded(rows))


def _encoder_from_coefficients(state: Fields, T: int) -> Encoder:
    if state.get("coefficients") is None:
        raise InvalidInput(
            f"coefficients are needed for a {state['type']}, whose recipe leaves them to a search; give "
            "coefficients=strategy.coefficients(n_steps=T, ...)."
        )
    return _toeplitz(state["coefficients"], T, normalized=False)


_SEARCHED = ("bands", "max_buffers", "momentum", "lr_schedule", "coefficients")
_OPAKE: Mapping[str, tuple[Callable[[Fields, int], Encoder], tuple[str, ...]]] = {
    "IdentityStrategy": (lambda _, T: Identity(T), ()),
    "BsrStrategy": (_square_root, ("bandwidth", "alpha", "beta")),
    "BisrStrategy": (_banded_inverse, ("bandwidth", "normalized", "momentum", "lr_schedule", "inv_coefficients")),
    "LambdaCgdStrategy": (_back_share, ("lambda_", "normalized", "lr_schedule")),
    "BandMfStrategy": (_encoder_from_coefficients, _SEARCHED),
    "BltStrategy": (_encoder_from_coefficients, _SEARCHED),
}
"""How each class of strategies is read, and its fields."""


def _state(given: Any) -> dict[str, Any]:
    """The fields of a strategy, plain values as such."""
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        fields = {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
        return {"type": type(given).__name__, **fields}
    state = check.mapping('fields with the class under "type"', strategy=given)
    return {str(name): _plain(value) for name, value in state.items()}


def _plain(value: Any) -> Any:
    """A number or a text of a .npz file is an array without axes."""
    return value.item() if isinstance(value, np.ndarray) and not value.ndim else value


def _require_finite(value: Any, name: str = "strategy") -> None:
    """Raises InvalidInput: a number at any depth of a state that is infinite or undefined."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            _require_finite(each, f"{name}.{key}")
        return
    numbers = check.as_array(**{name: value})
    if numbers.dtype.kind in "fc" and not np.isfinite(numbers).all():
        raise InvalidInput(f"{name} must be finite, got {check.brief(value)} that is infinite or undefined, in part.")


# ---- series ----------------------------------------------------------------------------------------------------------


def _toeplitz(coefficients: Any, T: int, *, normalized: bool) -> Encoder:
    series = check.finite_array(1, coefficients=coefficients)
    encoder = Toeplitz(series[: max(1, np.trim_zeros(series, "b").size)], T)
    if not normalized:
        return encoder
    width = encoder.bandwidth
    if T * width > MAX_BAND_ENTRIES:
        raise UnsupportedMechanism(
            f"normalized columns take T * b numbers, at most {MAX_BAND_ENTRIES:g}, got {T} * {width}; give the "
            "coefficients without column_normalized."
        )
    columns = encoder.series / _norms_of_columns(encoder.series, T)[:, None]
    columns[np.arange(T)[:, None] + np.arange(width) >= T] = 0.0
    return Banded(rows_from_columns(columns))


def _product_series(width: int, alpha: float, beta: float, *, inverse: bool) -> FloatArray:
    """The first coefficients of ((1 - alpha x)(1 - beta x))^(-1/2), or of its inverse."""
    root, powers = square_root_series(width, inverse=inverse), np.arange(width)
    return np.convolve(root * alpha**powers, root * beta**powers)[:width]


def _norms_of_columns(series: FloatArray, T: int) -> FloatArray:
    """Of each column of the Toeplitz C with these coefficients, shape (T,)."""
    squares = np.zeros(T)
    squares[: series.size] = series**2
    return np.sqrt(np.cumsum(squares))[::-1]


def _positive_norms(columns: FloatArray) -> FloatArray:
    norms = np.linalg.norm(columns, axis=1)
    if not (norms > 0).all():
        step = int(np.argmax(~(norms > 0)))  # exact: booleans
        raise InvalidInput(f"C must have no column of zeros, got one at step {step}.")
    return np.asarray(norms)


def _named_fields(given: Any, names: tuple[str, ...]) -> tuple[Any, ...] | None:
    """The values of all these names, of an object or a mapping; None where there is no such object."""
    if isinstance(given, Mapping):
        return tuple(given[name] for name in names) if set(given) == set(names) else None
    return tuple(getattr(given, name) for name in names) if all(hasattr(given, name) for name in names) else None

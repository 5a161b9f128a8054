"""What noise guarantees and what a guarantee costs, whatever the participation: public patterns, or secret bins.

Public participation has a mu (`mfdl.mechanism`); secret bins have epsilon at delta (`mfdl.sampled`). Here each is asked
by its own words, and what only one of them has is refused for the other. To type checkers a call that gives mu, or a
noise multiplier, is one of public patterns: its answer has a mu.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping
from typing import Any, overload

from . import mechanism, sampled
from .algorithms import LinearAlgorithm
from .errors import UnsupportedMechanism
from .mechanism import Mechanism
from .participation import BallsInBins
from .privacy.guarantee import Guarantee
from .privacy.sampled_guarantee import SampledGuarantee
from .sampled import SampledMechanism

_TEXTS = ("__doc__", "__name__", "__qualname__")


@overload
def account(algorithm: LinearAlgorithm, *, noise_multiplier: float, **asked: Any) -> Guarantee: ...
@overload
def account(algorithm: LinearAlgorithm, **asked: Any) -> Guarantee | SampledGuarantee: ...


@functools.wraps(mechanism.account, assigned=_TEXTS)
def account(algorithm: LinearAlgorithm, **asked: Any) -> Guarantee | SampledGuarantee:
    if not has_bins(algorithm):
        return mechanism.account(algorithm, **asked)
    if asked.get("noise_multiplier") is not None:
        raise UnsupportedMechanism(f"{_scheme(algorithm)} take noise_std: noise_multiplier is of public patterns.")
    return sampled.account(algorithm, **_of_bins(algorithm, asked, "noise_multiplier"))


@overload
def calibrate(algorithm: LinearAlgorithm, *, mu: float | Mapping[Hashable, float], **asked: Any) -> Mechanism: ...
@overload
def calibrate(algorithm: LinearAlgorithm, **asked: Any) -> Mechanism | SampledMechanism: ...


@functools.wraps(mechanism.calibrate, assigned=_TEXTS)
def calibrate(algorithm: LinearAlgorithm, **asked: Any) -> Mechanism | SampledMechanism:
    if not has_bins(algorithm):
        return mechanism.calibrate(algorithm, **asked)
    if asked.get("mu") is not None:
        raise UnsupportedMechanism(f"{_scheme(algorithm)} have no mu; give epsilon and delta.")
    return sampled.calibrate(algorithm, **_of_bins(algorithm, asked, "mu"))


@functools.wraps(mechanism.with_noise, assigned=_TEXTS)
def with_noise(algorithm: LinearAlgorithm, **asked: Any) -> Mechanism | SampledMechanism:
    if not has_bins(algorithm):
        return mechanism.with_noise(algorithm, **asked)
    return sampled.with_noise(algorithm, **_of_bins(algorithm, asked))


@functools.wraps(mechanism.without_noise, assigned=_TEXTS)
def without_noise(algorithm: LinearAlgorithm, **asked: Any) -> Mechanism | SampledMechanism:
    if not has_bins(algorithm):
        return mechanism.without_noise(algorithm, **asked)
    return sampled.with_noise(algorithm, noise_std=0.0, **_of_bins(algorithm, asked))


def has_bins(algorithm: LinearAlgorithm) -> bool:
    """Whether an algorithm's records draw secret bins."""
    return isinstance(algorithm, LinearAlgorithm) and isinstance(algorithm.participation, BallsInBins)


def _scheme(algorithm: LinearAlgorithm) -> str:
    return algorithm.participation.describe()


def _of_bins(algorithm: LinearAlgorithm, asked: dict[str, Any], *left_out: str) -> dict[str, Any]:
    """What secret bins take of the options; the rest must be left as it is.

    Raises: UnsupportedMechanism: an option that only public patterns have.
    """
    usual: dict[str, Any] = {"release": None, "lipschitz": None, "unit": "record", "participation": None}
    methods = ("exact", *sampled.METHODS)
    refused = [name for name, value in usual.items() if asked.get(name, value) != value]
    if not isinstance(method := asked.get("method", "exact"), sampled.MonteCarlo) and method not in methods:
        refused.append("method")
    for name in refused:
        raise UnsupportedMechanism(
            f"{_scheme(algorithm)} are accounted for one record, all messages seen, by a certified bound or by Monte "
            f"Carlo (method='monte-carlo'); leave out {name}, got {asked[name]!r}, or take a public participation such "
            "as Cyclic."
        )
    kept = {name: value for name, value in asked.items() if name not in (*usual, "progress", *left_out)}
    return kept | {"method": "certified" if method == "exact" else method}

"""Algorithms by name, as the command line and configurations use them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from .. import check
from ..check import FloatArray
from ..dynamics import Dynamics
from ..errors import InvalidInput, unknown_name
from ..factorization import load
from ..factorization.seeded_covariances import SpatialFactorization
from ..factorization.spatio_temporal import SpatioTemporalFactorization
from ..objective import ErrorWeights
from ..participation import BallsInBins, Participation
from ..spec import PREFIX, Parameter, given_value, setting
from .building import LOCAL, MECHANISMS, OF_BALLS_IN_BINS, SHARED, MechanismEntry, builder, shares_noise
from .factorized import mf_dsgd
from .linear_algorithm import LinearAlgorithm

FILE_PREFIX = "file:"
OUTSIDE = (FILE_PREFIX, PREFIX)  # of files, and of objects of the caller (`spec.Given`)
WEIGHTS_MARK = "@"


def split(name: str) -> tuple[str, ErrorWeights | None]:
    """A mechanism and the error weights it is optimised for: "mafalda@last:48:0.01" or just "mafalda".

    >>> split("mafalda")
    ('mafalda', None)

    Raises: InvalidInput: weights that mean nothing, or a mechanism that optimises nothing.
    """
    check.text("'mafalda'", name=name)
    base, at, text = (name, "", "") if name.startswith(OUTSIDE) else name.partition(WEIGHTS_MARK)
    if not at:
        return base, None
    if base in MECHANISMS and not MECHANISMS[base].weighted:
        every = {**MECHANISMS, **OF_BALLS_IN_BINS}
        able = ", ".join(other for other, entry in every.items() if entry.weighted)
        raise InvalidInput(f"{base!r} optimises nothing, so it takes no error weights ({text}); these do: {able}.")
    return base, ErrorWeights.parse(text)


def find_entry(name: str) -> MechanismEntry | None:
    base = split(name)[0]
    return MECHANISMS.get(base) or OF_BALLS_IN_BINS.get(base)


def is_of_balls_in_bins(name: str) -> bool:
    return split(name)[0] in OF_BALLS_IN_BINS


def serves(name: str, scheme: str) -> bool:
    """Whether a mechanism can be built for the participation of that name, e.g. "cyclic"."""
    return scheme == BallsInBins.scheme or not is_of_balls_in_bins(name)


def settable_parameters(name: str) -> Mapping[str, Parameter]:
    entry = find_entry(name)
    return {} if entry is None else entry.parameters


def parse_parameters(name: str, settings: Iterable[str]) -> dict[str, Any]:
    """`key=value` texts as arguments of a mechanism's builder.

    Raises: InvalidInput: not key=value, a key the mechanism does not have, a value of another type.
    """
    entry, given = find_entry(name), list(settings)
    if entry is None and given:
        raise InvalidInput(f"mechanism {name!r} has no parameters, got {given[0]!r}.")
    return {} if entry is None else entry.arguments(map(setting, given))


def check_name(name: str) -> str:
    """The name itself. Raises: InvalidInput: it cannot be built, with the nearest name."""
    base, _ = split(name)
    if not name.startswith(OUTSIDE) and base not in MECHANISMS and base not in OF_BALLS_IN_BINS:
        if len(name.split()) > 1:
            raise InvalidInput(f"mechanisms are separated by commas, got {name!r}; write {','.join(name.split())!r}.")
        raise unknown_name("mechanism", base, [*MECHANISMS, *OF_BALLS_IN_BINS, "file:FILE"])
    return name


@builder
def build(name: str, dynamics: Dynamics, participation: Participation, **parameters: Any) -> LinearAlgorithm:
    """The named algorithm with its parameters (see MECHANISMS).

    `NAME@WEIGHTS` is optimised for the models that these `ErrorWeights` count, free parameters included. `file:FILE` is
    MF-D-SGD with that file's encoder, or the noise of its factorization.
    Raises: InvalidInput: unknown name, parameters beside weights that decide them, or a file made for another
        participation, or, if its noise is not one encoder for all nodes, for other nodes or gossip.
    """
    check_name(name)
    if name.startswith(PREFIX):
        return _built_by_caller(given_value(name, "mechanisms"), dynamics, participation)
    if is_of_balls_in_bins(name):
        return _made_for_target(name, dynamics, participation, **parameters)
    if participation.public is not participation:
        public = build(name, dynamics, participation.public, **parameters)
        return public.with_fields(participation=participation)  # where the map from records to steps is secret
    if (entry := find_entry(name)) is not None:
        builder = entry.build if split(name)[1] is None else entry.best
        if parameters and builder is not entry.build:  # both would decide the same
            raise InvalidInput(
                f"{name!r} chooses {', '.join(entry.parameters)} for these error weights itself, got "
                f"{', '.join(parameters)}; leave that out, or the weights."
            )
        return _built(builder, name, dynamics, participation, **parameters)
    path = name.removeprefix(FILE_PREFIX)
    saved = load(path)
    if isinstance(saved.factorization, SpatialFactorization | SpatioTemporalFactorization):
        return mf_dsgd(dynamics, participation, saved.factorization, name=name)
    made_for = saved.header.get("participation")
    if made_for is not None and made_for.public != participation:  # encoders for balls-in-bins serve public ones
        raise InvalidInput(
            f"{path} was made for {made_for.to_dict()}, not for {participation.to_dict()}; factorize again with this "
            "participation."
        )
    algorithm = mf_dsgd(dynamics, participation, saved.encoder, name=name)
    shared = algorithm.noise.causal is None or algorithm.noise.causal.shared
    of_gossip = "" if shared else saved.header.get("gossip_hash", "")  # its nodes are that one's
    if of_gossip not in ("", dynamics.gossip.content_hash):
        raise InvalidInput(
            f"{path} holds an encoder for each node of another gossip matrix, so they would go to other nodes here; "
            "factorize again."
        )
    return algorithm


def _built_by_caller(given: Any, dynamics: Dynamics, participation: Participation) -> LinearAlgorithm:
    """Raises: InvalidInput: the caller's algorithm is of another graph, other step sizes or another participation."""
    algorithm = given if isinstance(given, LinearAlgorithm) else given(dynamics, participation)
    check.instance(LinearAlgorithm, mechanism=algorithm)
    theirs, remedy = algorithm.dynamics, "build it with that one, or give a function of (dynamics, participation)"
    if theirs.gossip.labels != dynamics.gossip.labels:
        raise InvalidInput(f"{algorithm.name!r} is of other nodes than this graph has, {theirs.num_nodes}; {remedy}.")
    if algorithm.participation != participation:
        raise InvalidInput(
            f"{algorithm.name!r} has participation {algorithm.participation.describe()}, and this run has "
            f"{participation.describe()}; {remedy}."
        )
    steps = algorithm.num_steps
    if not np.array_equal(theirs.learning_rates(steps), dynamics.learning_rates(steps)):
        raise InvalidInput(f"{algorithm.name!r} has other learning rates than this run; {remedy}.")
    return algorithm


def meant_models(name: str, algorithm: LinearAlgorithm) -> tuple[str, ...]:
    """Names of trust models under which a mechanism protects as it is meant to, its own first; none without noise."""
    if (entry := find_entry(name)) is not None:
        return entry.models
    return SHARED if shares_noise(algorithm) else LOCAL


def shortsighted(algorithm: LinearAlgorithm) -> str:
    """Warning about noise over nodes that is optimal for one step, in a run of several, or empty."""
    one_step = isinstance(algorithm.factorization, SpatialFactorization) and algorithm.factorization.horizon == 1
    if not one_step or (T := algorithm.num_steps) == 1:
        return ""
    return (
        f"{algorithm.name} minimises the noise in the models after one step, as published, but this run has {T:,} "
        f"steps: error weights all, or horizon={T}, minimise the noise in the models of all steps."
    )


@builder
def build_tuned(
    name: str,
    dynamics: Dynamics,
    participation: Participation,
    *,
    coalition_size: int = 0,
    noise_std: Callable[[FloatArray], float] | None = None,
) -> LinearAlgorithm:
    """The named algorithm with its free parameters at their best; noise_std: for `OF_BALLS_IN_BINS`."""
    entry = find_entry(check_name(name))
    if is_of_balls_in_bins(name):
        return _made_for_target(name, dynamics, participation, noise_std=noise_std)
    if participation.public is not participation:
        public = build_tuned(name, dynamics, participation.public, coalition_size=coalition_size)
        return public.with_fields(participation=participation)
    if entry is None:
        return build(name, dynamics, participation)
    against = {"coalition_size": coalition_size} if entry.takes("coalition_size") else {}
    return _built(entry.best, name, dynamics, participation, **against)


def _made_for_target(name: str, dynamics: Dynamics, participation: Participation, **parameters: Any) -> LinearAlgorithm:
    if parameters.get("noise_std") is None:
        raise InvalidInput(
            f"{name} is optimised for a target under balls-in-bins: give --participation balls-in-bins "
            "with --epsilon (in Python mfdl.calibrate(name, privacy, dynamics=..., epsilon=..., delta=...)), or "
            "take mafalda."
        )
    entry = find_entry(name)
    assert entry is not None
    return _built(entry.build, name, dynamics, participation, **parameters)


def _built(
    builder: Callable[..., LinearAlgorithm],
    name: str,
    dynamics: Dynamics,
    participation: Participation,
    **parameters: Any,
) -> LinearAlgorithm:
    _, weights = split(name)
    if weights is None:
        return builder(dynamics, participation, **parameters)
    weights.weights_by_step(participation.num_steps)  # refused before anything is solved
    weights.target_diagonal(dynamics.num_nodes)
    return builder(dynamics, participation, weights=weights, **parameters).named(name)

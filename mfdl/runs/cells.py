"""A cell: one training run, named by the content of what decides its numbers.

`Grid` gives the cells of a config over lists of values, for all seeds.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import itertools
import json
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .. import __version__
from ..algorithms import registry
from ..errors import InvalidInput
from ..objective import Curvature
from .experiment import Experiment
from .shared import WITHOUT_NOISE, Shared

OF_ATTACKERS = ("attackers", "colluders", "coalition_size", "release")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One mechanism, one budget, one rate, one seed, on one graph and task.

    Attributes:
        config: with exactly one mechanism, whose error weights are in its name, and one seed.
        shared: what cells of one call have in common; None: made when it is needed.

    Two cells are equal if their configs are: what says the same is written in one way (numbers as floats, settings in
    order), and "none", which no privacy target and no attacker changes, has none of them.

    Raises: InvalidInput: several mechanisms or seeds.
    """

    config: Experiment
    shared: Shared | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.config.mechanisms) != 1 or self.config.seeds != 1:
            raise InvalidInput(
                f"a cell is one run: one mechanism and one seed, got {len(self.config.mechanisms)} mechanisms and "
                f"{self.config.seeds} seeds; seeds=1 with first_seed names one."
            )
        object.__setattr__(self, "config", _canonical(self.config))

    def __getstate__(self) -> dict[str, Any]:
        """Sent to a worker: the config alone, so that the hash there is that of the graph and the task there."""
        return {"config": self.config, "shared": None}

    @property
    def mechanism(self) -> str:
        """Its name, with error weights."""
        return self.config.mechanisms[0]

    @property
    def seed(self) -> int:
        """Of data split, first model, batch order and noise."""
        return self.config.first_seed

    @property
    def num_steps(self) -> int:
        """T."""
        return self.config.epochs * self.config.period

    def with_shared(self, shared: Shared) -> Cell:
        """The same cell, which takes from there what it needs."""
        if self.shared is None:
            object.__setattr__(self, "shared", shared)
        return self

    @functools.cached_property
    def options(self) -> dict[str, Any]:
        """What was asked, as the options of `compare` are called, without where it is computed; JSON-ready."""
        return self.config.deciding_options() | ({"mu": None} if self.mechanism == WITHOUT_NOISE else {})

    @functools.cached_property
    def hash(self) -> str:
        """16 hex digits: options, version, and the content of graph, gossip matrix, task and curvature.

        Raises: InvalidInput: a graph, matrix or task that cannot be loaded.
        """
        shared = self.shared or Shared()
        _, gossip = shared.network(self.config)
        content: dict[str, Any] = {
            "options": self.options,
            "mfdl": __version__,
            "graph": shared.graph_hash(self.config),
            "gossip": gossip.content_hash,
            "task": shared.task(self.config).content_hash,
        }
        if self.mechanism.startswith(registry.OUTSIDE):
            content["file"] = shared.file_hash(self.config)
        else:
            weights = registry.split(self.mechanism)[1]
            if weights is not None and weights.curvature is not None:  # perhaps of a file
                content["curvature"] = typing.cast(Curvature, weights.curvature).pairs
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _canonical(config: Experiment) -> Experiment:
    changed: dict[str, Any] = {}
    for name, (kind, _, _) in config.fields().items():
        value = getattr(config, name)
        if float in (kind, *typing.get_args(kind)) and isinstance(value, int):
            changed[name] = float(value)
    if config.epsilon is None and config.mu is None:
        changed["mu"] = config.target_mu_or_default
    changed |= {"error_weights": (), "curvature": None, "settings": tuple(sorted(config.settings))}
    if config.mechanisms == (WITHOUT_NOISE,):
        default = {field.name: field.default for field in dataclasses.fields(Experiment)}
        changed |= {name: default[name] for name in ("mu", "epsilon", "trust", "across_trust_models", *OF_ATTACKERS)}
    same = all(getattr(config, name) == value for name, value in changed.items())
    same &= all(type(getattr(config, name)) is type(value) for name, value in changed.items())
    return config if same else dataclasses.replace(config, **changed)


@dataclasses.dataclass(frozen=True)
class Grid:
    """Configs that differ in some fields: `Grid(base, {"mu": (0.5, 1.0), "learning_rate": (0.1, 0.5)})` are four.

    Attributes:
        base: what they have in common.
        over: values by field, the last field fastest.
        point: from the values of one combination to the fields that are changed, None for no config there.
    """

    base: Experiment
    over: Mapping[str, Sequence[Any]]
    point: Callable[[dict[str, Any]], dict[str, Any] | None] = dict

    def configs(self) -> Iterator[Experiment]:
        """One for each combination. Raises: InvalidInput: what `Experiment` refuses."""
        for values in itertools.product(*self.over.values()):
            changed = self.point(dict(zip(self.over, values, strict=True)))
            if changed is not None:
                yield dataclasses.replace(self.base, **changed)

    def cells(self, seeds: Iterable[int], shared: Shared) -> list[Cell]:
        """One for each config and seed, the seed fastest; those that are the same stand there once."""
        every = list(seeds)
        return list(dict.fromkeys(Cell(_at_seed(config, seed), shared) for config in self.configs() for seed in every))


def _at_seed(config: Experiment, seed: int) -> Experiment:
    """Nothing else depends on the seed, so nothing is checked again."""
    copied = copy.copy(config)
    object.__setattr__(copied, "first_seed", seed)
    return copied


def alone(config: Experiment, name: str) -> dict[str, Any]:
    """The fields in which the config of a cell differs from one of several mechanisms and seeds."""
    settings = tuple(text for text in config.settings if text.startswith(f"{name}."))
    return {"mechanisms": (name,), "settings": settings, "error_weights": (), "seeds": 1}


def cells_of(config: Experiment, shared: Shared) -> list[Cell]:
    """The runs of a comparison: every mechanism with every seed, the seed fastest."""
    mechanisms = Grid(config, {"name": config.mechanisms}, lambda chosen: alone(config, chosen["name"]))
    return mechanisms.cells(config.seed_list, shared)

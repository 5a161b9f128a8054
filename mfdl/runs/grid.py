"""A grid of runs: a config over lists of values, one config for each combination, and the cells of all seeds."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .cells import Cell
from .experiment import Experiment
from .shared import Shared


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

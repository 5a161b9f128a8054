"""Rates by successive halving: all on few seeds, the better half on twice as many, and so on, then the best.

The seeds on which rates are chosen are none of those of the tables, so that no table profits from the choice.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from scipy import stats

from mfdl_solvers.ties import ranked

from .. import check
from ..errors import InvalidInput, require_known
from .options import require_seeds

Key = TypeVar("Key")
ORDERS = ("mean", "rank")


@dataclasses.dataclass(frozen=True)
class Tuning:
    """How rates are chosen.

    Attributes:
        seeds: how many seeds decide the last round; earlier rounds take the first of them.
        first_seed: the first one.
        first_round: how many seeds the first round takes.
        share: of the settings that go on after each round, in (0, 1).
        at_least: so many go on, while more than one round is left.
        by: "mean", of the losses, or "rank": the mean over seeds of a setting's rank among those still left, which one
            extreme seed cannot decide.

    Raises: InvalidInput: a value out of range.
    """

    seeds: int = 4
    first_seed: int = 10_000
    first_round: int = 1
    share: float = 0.5
    at_least: int = 2
    by: str = "mean"

    def __post_init__(self) -> None:
        check.integer_at_least(0, first_seed=self.first_seed)
        for name in ("seeds", "first_round", "at_least"):
            check.integer_at_least(1, **{name: getattr(self, name)})
        require_seeds(self.seeds, self.first_seed)
        check.open_unit(share=self.share)
        require_known("by", self.by, ORDERS)
        if self.first_round > self.seeds:
            raise InvalidInput(f"first_round must be at most seeds={self.seeds}, got {self.first_round}.")

    def require_fresh(self, seeds: Sequence[int]) -> None:
        """Refuses seeds of a table among those of the choice."""
        both = sorted(set(seeds) & set(self.rounds()[-1]))
        if both:
            raise InvalidInput(
                f"seed {both[0]} would be used for tuning and for the tables; tuning takes seeds from "
                f"first_seed={self.first_seed} on, the tables {len(seeds)} from {min(seeds)} on: change one "
                "of them."
            )

    def rounds(self) -> list[list[int]]:
        """The seeds of every round, twice as many each time.

        >>> Tuning(seeds=5, first_seed=100).rounds()
        [[100], [100, 101], [100, 101, 102, 103], [100, 101, 102, 103, 104]]
        """
        counts = [self.first_round]
        while counts[-1] < self.seeds:
            counts.append(min(2 * counts[-1], self.seeds))
        return [list(range(self.first_seed, self.first_seed + count)) for count in counts]


def ordered(losses: Mapping[Key, np.ndarray], by: str = "mean") -> list[Key]:
    """Keys by their mean over seeds, best first, equal ones as given; a seed that diverged (nan) is infinitely bad.

    Args: by: "mean", or "rank": by the mean of their ranks among each other at every seed, then by their mean; those
        that diverged at any seed come last.

    >>> losses = {"steady": np.array([2.0, 2.0, 2.0]), "lucky once": np.array([0.0, 2.5, 2.5])}
    >>> ordered(losses), ordered(losses, "rank")
    (['lucky once', 'steady'], ['steady', 'lucky once'])
    """
    finite = {key: np.where(np.isnan(values), np.inf, values) for key, values in losses.items()}
    means = {key: float(values.mean()) for key, values in finite.items()}
    order = ranked(list(losses), key=means.__getitem__)
    if by == "rank" and finite:
        ranks = stats.rankdata(np.array(list(finite.values())), axis=0).mean(axis=1)
        order = ranked(order, key=dict(zip(finite, ranks.tolist(), strict=True)).__getitem__)
        order.sort(key=lambda key: math.isinf(means[key]))  # exact: flags
    return order


def advancing(losses: Mapping[Key, np.ndarray], share: float, at_least: int, by: str = "mean") -> list[Key]:
    """The best share of the keys, rounded up, and at least so many of them."""
    return ordered(losses, by)[: max(at_least, math.ceil(share * len(losses)))]


def halved(
    groups: Mapping[str, Sequence[Key]],
    tuning: Tuning,
    losses_of: Callable[[Sequence[Key], Sequence[int]], Mapping[Key, np.ndarray]],
) -> dict[str, Key]:
    """The best setting of every group; all groups go through a round together.

    Args: groups: settings among which one is chosen; losses_of: (settings, seeds) to the losses of each, a value for
        each seed, nan where it diverged or failed.
    """
    left = {name: list(settings) for name, settings in groups.items()}
    rounds = tuning.rounds()
    for number, seeds in enumerate(rounds):
        tried = [setting for settings in left.values() if len(settings) > 1 for setting in settings]
        losses = losses_of(tried, seeds) if tried else {}
        last = number == len(rounds) - 1
        for name, settings in left.items():
            if len(settings) > 1:
                of_group = {setting: losses[setting] for setting in settings}
                more = advancing(of_group, tuning.share, tuning.at_least, tuning.by)
                left[name] = ordered(of_group, tuning.by)[:1] if last else more
    return {name: settings[0] for name, settings in left.items()}

"""Runs put together: those that differ in their seed alone, the rate that is shown, who is ahead.

In: records as the store has them. Out: groups with mean, spread and range; nothing is computed that is not a mean, a
standard deviation, a smallest or a largest of the records' own numbers.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..reporting.output import mu_rounded_up
from .source import Record

WITHOUT_NOISE = "none"
# options that tell curves, panels or runs apart, or say how it was computed; the others make a setting
OF_THE_SERIES = {
    "mechanism", "mechanisms", "mu", "epsilon", "delta", "lr", "trust", "attackers", "colluders", "coalition_size",
    "release", "across_trust_models", "error_weights", "set", "seeds", "first_seed", "jobs", "device", "data_home",
    "out", "metrics",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ in their seed alone."""

    records: tuple[Record, ...]

    def __getattr__(self, name: str) -> Any:
        """mechanism, label, trust, lr, guarantee, ...: what all of them say."""
        try:
            return self.records[0][name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def secret(self) -> bool:
        """Whether batches were secret, so that there is no mu."""
        return self.records[0]["mu"] is None

    @property
    def budget(self) -> float:
        """mu of the guarantee, or the epsilon that secret batches were held to; inf without noise."""
        if not self.secret:
            return float(self.records[0]["mu"])
        return float(self.config["epsilon"]) if isinstance(self.epsilon, float) else math.inf

    @property
    def symbol(self) -> str:
        """Of the budget."""
        return "ε" if self.secret else "μ"

    @property
    def budget_in_words(self) -> str:
        """mu rounded up as guarantees say it, epsilon as it was asked for."""
        return f"{self.symbol} = {f'{self.budget:g}' if self.secret else mu_rounded_up(self.budget)}"

    @property
    def private(self) -> bool:
        """Whether anything is guaranteed."""
        return math.isfinite(self.budget)

    @property
    def seeds(self) -> list[int]:
        """In the order of the records."""
        return [record["seed"] for record in self.records]

    @property
    def diverged(self) -> int:
        """How many of the runs."""
        return sum(bool(record["diverged"]) for record in self.records)

    def of(self, metric: str) -> Spread | None:
        """Mean and spread of final_METRIC; None where a run has none."""
        values = [record.get(f"final_{metric}") for record in self.records]
        known = [float(value) for value in values if isinstance(value, int | float)]
        return Spread(tuple(known)) if len(known) == len(values) else None


@dataclasses.dataclass(frozen=True)
class Spread:
    """Of one number over seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return float(np.mean(self.values))

    @property
    def std(self) -> float | None:
        """Of the sample; one seed has none."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    @property
    def low(self) -> float:
        """The smallest."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest."""
        return max(self.values)


@dataclasses.dataclass(frozen=True, eq=False)
class Panel:
    """The groups with noise under one trust model, those without noise apart."""

    trust: str
    groups: tuple[Group, ...]
    free: tuple[Group, ...]

    @cached_property
    def budgets(self) -> list[float]:
        """mu, or epsilon where batches are secret, the smallest first."""
        return sorted({group.budget for group in self.groups})

    @property
    def symbol(self) -> str:
        """Of the budget."""
        return self.groups[0].symbol

    @property
    def middle(self) -> float:
        """The budget that is shown where one has to be chosen."""
        return self.budgets[len(self.budgets) // 2]

    @cached_property
    def names(self) -> list[str]:
        """Series with noise, the lowest loss at the middle budget first."""
        ranked = {group.label: _rank(group) for group in self.at(self.middle)}
        everyone = dict.fromkeys(group.label for group in self.groups)
        return sorted(everyone, key=lambda name: ranked.get(name, (math.inf, math.inf)))

    def at(self, budget: float) -> list[Group]:
        """Each mechanism with noise at its best rate."""
        return best_rates(group for group in self.groups if group.budget == budget)

    def without_noise(self) -> list[Group]:
        """Each without noise, at its best rate."""
        return best_rates(self.free)

    def finding(self) -> str:
        """Who is ahead, claimed only where every seed agrees."""
        ahead: dict[str, list[str]] = {}
        for budget in self.budgets:
            ahead.setdefault(leader(self.at(budget)), []).append(f"{budget:g}")
        said = [
            f"at {self.symbol} = {', '.join(at)} {name} has the lowest test loss in every seed"
            for name, at in ahead.items()
            if name
        ]
        said += [
            f"at {self.symbol} = {', '.join(at)} nobody is ahead in every seed"
            for name, at in ahead.items()
            if not name
        ]
        sentence = "; ".join(said)
        return f"{sentence[:1].upper()}{sentence[1:]}." if any(ahead) else "Nobody is ahead in every seed."


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """All runs on one task, one graph, one schedule: their losses can be compared.

    Attributes: name: what tells it from the other settings, or task and graph.
    """

    name: str
    records: tuple[Record, ...]
    panels: tuple[Panel, ...]

    @property
    def rates(self) -> list[float]:
        """All of them."""
        return sorted({record["lr"] for record in self.records})

    @property
    def chooses_rates(self) -> bool:
        """Whether a mechanism has several at one budget."""
        rates: dict[tuple[str, float], set[float]] = {}
        for group in grouped(self.records):
            rates.setdefault((group.label, group.budget), set()).add(group.lr)
        return any(len(own) > 1 for own in rates.values())

    @property
    def seeds(self) -> list[int]:
        """All of them."""
        return sorted({record["seed"] for record in self.records})

    @property
    def metrics(self) -> list[str]:
        """Names of final numbers that some run has, test loss first."""
        names = dict.fromkeys(name for record in self.records for name, value in record.items() if value is not None)
        finals = [name.removeprefix("final_") for name in names if name.startswith("final_")]
        return sorted(finals, key=lambda name: (name != "loss", name != "accuracy", name))

    def level(self, name: str) -> float | None:
        """Mean over seeds of untrained_loss, or chance_loss."""
        of_seed = {record["seed"]: record.get(name) for record in self.records}
        known = [float(value) for value in of_seed.values() if isinstance(value, int | float)]
        return float(np.mean(known)) if known else None


def settings(records: Sequence[Record]) -> list[Setting]:
    """In the order of the records."""
    apart: dict[str, list[Record]] = {}
    for record in records:
        apart.setdefault(json.dumps(_setting_of(record), sort_keys=True), []).append(record)
    each = [json.loads(key) for key in apart]
    names = sorted({name for one in each for name in one})
    differ = [name for name in names if len({json.dumps(one.get(name)) for one in each}) > 1]
    made = []
    for one, own in zip(each, apart.values(), strict=True):
        known = {"task": own[0]["task"], "graph": own[0]["graph"]}
        more = [
            f"{name.replace('_', ' ')} {one.get(name, UNSAID.get(name))}"
            for name in differ
            if name not in (*known, *HASHES)
        ]
        made.append(Setting(", ".join([f"{known['task']} on {known['graph']}", *more]), tuple(own), _panels(own)))
    return made


UNSAID = {"participation": "cyclic", "release_model": "last"}
"""What options are that stand in no file at their defaults."""
HASHES = ("graph_hash", "gossip_hash", "task_hash")


def _setting_of(record: Record) -> dict[str, Any]:
    options = {name: value for name, value in record["config"].items() if name not in OF_THE_SERIES}
    return {**options, **{name: record.get(name) for name in HASHES}}


def _panels(records: Sequence[Record]) -> tuple[Panel, ...]:
    groups = grouped(records)
    free = tuple(group for group in groups if not group.private)
    trusts = dict.fromkeys(trust_of(group) for group in groups if group.private)
    made = [Panel(name, tuple(g for g in groups if g.private and trust_of(g) == name), free) for name in trusts]
    return tuple(made)


def trust_of(group: Group) -> str:
    """The trust model in a few words, with who attacks and what is released where that was chosen."""
    config, words = group.config, [str(group.trust)]
    for option in ("attackers", "colluders", "coalition_size", "release"):
        value = config.get(option)
        if value is not None:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            words.append(f"{option.replace('_', ' ')} {shown}")
    return ", ".join(words)


def grouped(records: Iterable[Record]) -> list[Group]:
    """Runs that differ in their seed alone, in the order of the records."""
    apart: dict[str, list[Record]] = {}
    for record in records:
        told = {name: value for name, value in record["config"].items() if name not in ("seeds", "first_seed")}
        key = {**told, **{name: record.get(name) for name in ("mechanism", "trust", "mu", "lr", *HASHES)}}
        apart.setdefault(json.dumps(key, sort_keys=True), []).append(record)
    return [Group(tuple(own)) for own in apart.values()]


def best_rates(groups: Iterable[Group]) -> list[Group]:
    """Of each mechanism the rate with the fewest diverged runs, then with the lowest mean final loss."""
    best: dict[str, Group] = {}
    for group in groups:
        if group.label not in best or _rank(group) < _rank(best[group.label]):
            best[group.label] = group
    return list(best.values())


def _rank(group: Group) -> tuple[float, float]:
    loss = group.of("loss")
    return group.diverged, math.inf if loss is None else loss.mean


def leader(groups: Sequence[Group]) -> str:
    """The one whose loss is below all others' in every seed; empty where there is none, or nobody to compare with."""
    usable = [group for group in groups if group.of("loss") is not None]
    if len(usable) < 2 or len({tuple(sorted(group.seeds)) for group in usable}) > 1:
        return ""
    by_seed = [{record["seed"]: record["final_loss"] for record in group.records} for group in usable]
    for own, group in zip(by_seed, usable, strict=True):
        if all(own[seed] < other[seed] for other in by_seed if other is not own for seed in own):
            return str(group.label)
    return ""

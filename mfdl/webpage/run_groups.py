"""Runs grouped for a page: those that differ in their seed alone, their best learning rates, which mechanism is ahead.

In: records of runs. Out: groups with mean, standard deviation and range of the records' own numbers.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from mfdl_solvers.ties import ranking

from ..metrics import metric_of, result_key
from ..runs.output import ahead_in_every_seed, mu_rounded_up
from .source import Record

# options that tell curves, panels or runs apart, or say how it was computed; the others make `ComparableRuns`
OF_THE_SERIES = {
    "mechanism", "mechanisms", "mu", "epsilon", "delta", "lr", "trust", "attackers", "colluders", "coalition_size",
    "release", "across_trust_models", "error_weights", "set", "seeds", "first_seed", "jobs", "device", "data_home",
    "out", "metrics",
}  # fmt: skip
DEFAULTS = {
    "participation": "cyclic",
    "release_model": "last",
    "gossip_rounds": 1,
}  # of options that no file holds where they are these
HASHES = ("graph_hash", "gossip_hash", "task_hash")


@dataclasses.dataclass(frozen=True)
class SeedSpread:
    """A number over seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return float(np.mean(self.values))

    @property
    def std(self) -> float | None:
        """Standard deviation of the sample; None for a single seed."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None


@dataclasses.dataclass(frozen=True, eq=False)
class RunGroup:
    """Runs that differ in their seed alone."""

    records: tuple[Record, ...]

    def __getattr__(self, name: str) -> Any:
        """mechanism, label, trust, lr, guarantee, ...: a field that all records share."""
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
        """mu of the guarantee, or the epsilon that secret sampling was calibrated to; inf without noise."""
        if not self.secret:
            return float(self.records[0]["mu"])
        return float(self.config["epsilon"]) if isinstance(self.epsilon, float) else math.inf

    @property
    def symbol(self) -> str:
        """Symbol of the budget."""
        return "ε" if self.secret else "μ"

    @property
    def budget_in_words(self) -> str:
        """mu rounded up as in guarantees, epsilon as it was given."""
        return f"{self.symbol} = {f'{self.budget:g}' if self.secret else mu_rounded_up(self.budget)}"

    @property
    def private(self) -> bool:
        """Whether anything is guaranteed."""
        return math.isfinite(self.budget)

    @property
    def diverged(self) -> int:
        """Number of diverged runs."""
        return sum(bool(record["diverged"]) for record in self.records)

    @property
    def trust_in_words(self) -> str:
        """The trust model in a few words, with attackers and release where they were chosen."""
        words = [str(self.trust)]
        for option in ("attackers", "colluders", "coalition_size", "release"):
            value = self.config.get(option)
            if value is not None:
                text = ", ".join(map(str, value)) if isinstance(value, list) else value
                words.append(f"{option.replace('_', ' ')} {text}")
        return ", ".join(words)

    def final(self, metric: str) -> SeedSpread | None:
        """final_METRIC over the seeds; None where a run has none."""
        values = [record.get(result_key("final", metric)) for record in self.records]
        known = [float(value) for value in values if isinstance(value, int | float)]
        return SeedSpread(tuple(known)) if len(known) == len(values) else None

    def row(self, metrics: Sequence[str]) -> dict[str, Any]:
        """The group in the table and its CSV: of each metric the mean, and METRIC_std."""
        record = self.records[0]
        row = {"mechanism": self.label, **{name: record[name] for name in ("trust", "mu", "epsilon", "delta", "lr")}}
        for metric in metrics:
            spread = self.final(metric)
            row |= {metric: spread and spread.mean, f"{metric}_std": spread and spread.std}
        row |= {"seeds": len(self.records), "diverged": self.diverged}
        return row | {
            name: record.get(name) for name in ("noise_std", "injected_noise_std", "sensitivity", "guarantee")
        }


@dataclasses.dataclass(frozen=True, eq=False)
class TrustPanel:
    """The groups with noise under one trust model."""

    trust: str
    groups: Sequence[RunGroup]

    @cached_property
    def budgets(self) -> list[float]:
        """mu, or epsilon where batches are secret, the smallest first."""
        return sorted({group.budget for group in self.groups})

    @property
    def symbol(self) -> str:
        """Symbol of the budget."""
        return self.groups[0].symbol

    @property
    def middle(self) -> float:
        """The budget that is shown where one has to be chosen."""
        return self.budgets[len(self.budgets) // 2]

    @cached_property
    def names(self) -> list[str]:
        """Series with noise, the lowest loss at the middle budget first."""
        return list(dict.fromkeys(group.label for group in [*best_first(self.best_at(self.middle)), *self.groups]))

    def best_at(self, budget: float) -> list[RunGroup]:
        """Each mechanism with noise at its best rate."""
        return best_rates(group for group in self.groups if group.budget == budget)

    def finding(self) -> str:
        """Which mechanism is ahead, claimed only where every seed agrees."""
        ahead: dict[str, list[str]] = {}
        for budget in self.budgets:
            ahead.setdefault(leader(self.best_at(budget)), []).append(f"{budget:g}")
        undecided = ahead.pop("", None)
        if not ahead:
            return "No mechanism is ahead in every seed."
        parts = [
            f"at {self.symbol} = {', '.join(budgets)} {name} has the lowest test loss in every seed"
            for name, budgets in ahead.items()
        ]
        if undecided:
            parts.append(f"at {self.symbol} = {', '.join(undecided)} no mechanism is ahead in every seed")
        sentence = "; ".join(parts)
        return f"{sentence[:1].upper()}{sentence[1:]}."


@dataclasses.dataclass(frozen=True, eq=False)
class ComparableRuns:
    """All runs on one task, one graph, one schedule: their losses can be compared.

    Attributes: name: task and graph, and the options in which these runs differ from others of the page.
    """

    name: str
    records: tuple[Record, ...]

    @cached_property
    def groups(self) -> list[RunGroup]:
        """Runs that differ in their seed alone."""
        return grouped(self.records)

    @cached_property
    def panels(self) -> list[TrustPanel]:
        """One per trust model."""
        private: dict[str, list[RunGroup]] = {}
        for group in self.groups:
            if group.private:
                private.setdefault(group.trust_in_words, []).append(group)
        return [TrustPanel(name, groups) for name, groups in private.items()]

    @property
    def noiseless(self) -> list[RunGroup]:
        """Each mechanism without noise, at its best rate."""
        return best_rates(group for group in self.groups if not group.private)

    @property
    def rates(self) -> list[float]:
        """All learning rates."""
        return sorted({record["lr"] for record in self.records})

    @property
    def chooses_rates(self) -> bool:
        """Whether a mechanism has several rates at one budget."""
        rates: dict[tuple[str, float], set[float]] = {}
        for group in self.groups:
            rates.setdefault((group.label, group.budget), set()).add(group.lr)
        return any(len(of_label) > 1 for of_label in rates.values())

    @property
    def seeds(self) -> list[int]:
        """All seeds."""
        return sorted({record["seed"] for record in self.records})

    @property
    def metrics(self) -> list[str]:
        """Names of final numbers that some run has, test loss first."""
        names = dict.fromkeys(name for record in self.records for name, value in record.items() if value is not None)
        finals = [metric_of(name) for name in names if name.startswith("final_")]
        return sorted(finals, key=lambda name: (name != "loss", name != "accuracy", name))  # exact: names

    def level(self, name: str) -> float | None:
        """Mean over seeds of untrained_loss, or chance_loss."""
        by_seed = {record["seed"]: record.get(name) for record in self.records}
        known = [float(value) for value in by_seed.values() if isinstance(value, int | float)]
        return float(np.mean(known)) if known else None


def comparable(records: Sequence[Record]) -> list[ComparableRuns]:
    """In the order of the records."""
    apart = _apart(records, _setting)
    settings = [json.loads(key) for key in apart]
    names = sorted({name for setting in settings for name in setting} - {"task", "graph", *HASHES})
    differ = [name for name in names if len({json.dumps(setting.get(name)) for setting in settings}) > 1]
    return [
        ComparableRuns(
            ", ".join(
                [f"{runs[0]['task']} on {runs[0]['graph']}"]
                + [f"{name.replace('_', ' ')} {setting.get(name, DEFAULTS.get(name))}" for name in differ]
            ),
            tuple(runs),
        )
        for setting, runs in zip(settings, apart.values(), strict=True)
    ]


def grouped(records: Iterable[Record]) -> list[RunGroup]:
    """Runs that differ in their seed alone, in the order of the records."""
    return [RunGroup(tuple(runs)) for runs in _apart(records, _group).values()]


def _setting(record: Record) -> dict[str, Any]:
    options = {name: value for name, value in record["config"].items() if name not in OF_THE_SERIES}
    return options | {name: record.get(name) for name in HASHES}


def _group(record: Record) -> dict[str, Any]:
    options = {name: value for name, value in record["config"].items() if name not in ("seeds", "first_seed")}
    return options | {name: record.get(name) for name in ("mechanism", "trust", "mu", "lr", *HASHES)}


def _apart(records: Iterable[Record], key: Callable[[Record], dict[str, Any]]) -> dict[str, list[Record]]:
    """The records by their key as JSON."""
    apart: dict[str, list[Record]] = {}
    for record in records:
        apart.setdefault(json.dumps(key(record), sort_keys=True), []).append(record)
    return apart


def best_first(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Fewest diverged runs first, then the lowest mean final loss; equal ones as they are given."""
    means = [group.final("loss") for group in groups]
    by_loss = ranking([math.inf if loss is None else loss.mean for loss in means])
    return sorted((groups[i] for i in by_loss), key=lambda group: group.diverged)  # exact: counts


def best_rates(groups: Iterable[RunGroup]) -> list[RunGroup]:
    """Each mechanism at its best rate."""
    rates: dict[str, list[RunGroup]] = {}
    for group in groups:
        rates.setdefault(group.label, []).append(group)
    return [best_first(of_label)[0] for of_label in rates.values()]


def leader(groups: Sequence[RunGroup]) -> str:
    """The mechanism that is ahead in every seed, see `ahead_in_every_seed`."""
    return ahead_in_every_seed(
        {str(g.label): {record["seed"]: record["final_test_loss"] for record in g.records} for g in groups}
    )

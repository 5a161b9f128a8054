"""Runs grouped for a page: by all but their seed, with their best learning rates and the leading mechanism."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mfdl_solvers.ties import ranking

from ..errors import InvalidInput
from ..metrics import metric_of, result_key
from ..runs.experiment import USUAL
from ..runs.output import ahead_in_every_seed, mu_rounded_up
from ..runs.store import CELLS, RESULTS, STEPS, SWEEP, RunSteps, Store, load_steps
from ..runs.store import names as column_names

# options that tell curves, panels or runs apart, or say how it was computed; the others make `ComparableRuns`
OF_THE_SERIES = {
    "mechanism", "mechanisms", "mu", "epsilon", "delta", "lr", "trust", "attackers", "colluders", "coalition_size",
    "release", "across_trust_models", "error_weights", "set", "seeds", "first_seed", "jobs", "device", "data_home",
    "out", "metrics",
}  # fmt: skip
HASHES = ("graph_hash", "gossip_hash", "task_hash")


@dataclasses.dataclass(frozen=True)
class SeedSpread:
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def std(self) -> float | None:
        """Standard deviation of the sample; None for a single seed."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None


@dataclasses.dataclass(frozen=True, eq=False)
class RunGroup:
    records: tuple[Record, ...]

    def __getattr__(self, name: str) -> Any:
        """mechanism, label, trust, lr, guarantee, ...: a field that all records share."""
        try:
            return self.records[0][name]
        except KeyError:
            raise AttributeError(name) from None

    @cached_property
    def _target(self) -> tuple[str, float, str]:
        """Symbol, value and text: mu, rounded up as in guarantees; epsilon as it was given, with secret sampling."""
        if (mu := self.records[0]["mu"]) is not None:
            return "μ", float(mu), mu_rounded_up(float(mu))
        epsilon = float(self.config["epsilon"]) if isinstance(self.epsilon, float) else math.inf
        return "ε", epsilon, f"{epsilon:g}"

    @property
    def budget(self) -> float:
        """mu of the guarantee, or the epsilon that secret sampling was calibrated to; inf without noise."""
        return self._target[1]

    @property
    def symbol(self) -> str:
        return self._target[0]

    @property
    def budget_in_words(self) -> str:
        return f"{self.symbol} = {self._target[2]}"

    @property
    def private(self) -> bool:
        return math.isfinite(self.budget)

    @property
    def diverged(self) -> int:
        return sum(bool(record["diverged"]) for record in self.records)

    @property
    def trust_in_words(self) -> str:
        """The trust model in a few words, with chosen attackers and release."""
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
        last = ("noise_std", "injected_noise_std", "sensitivity", "guarantee")
        return row | {name: record.get(name) for name in last}


@dataclasses.dataclass(frozen=True, eq=False)
class TrustPanel:
    trust: str
    groups: Sequence[RunGroup]

    @cached_property
    def budgets(self) -> list[float]:
        """mu, or epsilon where batches are secret, the smallest first."""
        return sorted({group.budget for group in self.groups})

    @property
    def symbol(self) -> str:
        return self.groups[0].symbol

    @property
    def middle(self) -> float:
        return self.budgets[len(self.budgets) // 2]

    @cached_property
    def names(self) -> list[str]:
        """Series with noise, the lowest loss at the middle budget first."""
        return list(dict.fromkeys(group.label for group in [*best_first(self.best_at(self.middle)), *self.groups]))

    def best_at(self, budget: float) -> list[RunGroup]:
        return best_rates(group for group in self.groups if group.budget == budget)

    def finding(self) -> str:
        """The leading mechanism, claimed only where every seed agrees."""
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
        return grouped(self.records)

    @cached_property
    def panels(self) -> list[TrustPanel]:
        private: dict[str, list[RunGroup]] = {}
        for group in self.groups:
            if group.private:
                private.setdefault(group.trust_in_words, []).append(group)
        return [TrustPanel(name, groups) for name, groups in private.items()]

    @property
    def noiseless(self) -> list[RunGroup]:
        return best_rates(group for group in self.groups if not group.private)

    @property
    def rates(self) -> list[float]:
        return sorted({record["lr"] for record in self.records})

    @property
    def chooses_rates(self) -> bool:
        rates: dict[tuple[str, float], set[float]] = {}
        for group in self.groups:
            rates.setdefault((group.label, group.budget), set()).add(group.lr)
        return any(len(of_label) > 1 for of_label in rates.values())

    @property
    def seeds(self) -> list[int]:
        return sorted({record["seed"] for record in self.records})

    @property
    def metrics(self) -> list[str]:
        """Names of final numbers of some run, test loss first."""
        names = dict.fromkeys(name for record in self.records for name, value in record.items() if value is not None)
        finals = [metric_of(name) for name in names if name.startswith("final_")]
        return sorted(finals, key=lambda name: (name != "loss", name != "accuracy", name))  # exact: names

    def level(self, name: str) -> float | None:
        by_seed = {record["seed"]: record.get(name) for record in self.records}
        known = [float(value) for value in by_seed.values() if isinstance(value, int | float)]
        return float(np.mean(known)) if known else None


def comparable(records: Sequence[Record]) -> list[ComparableRuns]:
    apart = _apart(records, _setting)
    settings = [json.loads(key) for key in apart]
    names = sorted({name for setting in settings for name in setting} - {"task", "graph", *HASHES})
    differ = [name for name in names if len({json.dumps(setting.get(name)) for setting in settings}) > 1]
    comparable_runs = []
    for setting, runs in zip(settings, apart.values(), strict=True):
        words = [f"{name.replace('_', ' ')} {setting.get(name, USUAL.get(name))}" for name in differ]
        name = ", ".join([f"{runs[0]['task']} on {runs[0]['graph']}", *words])
        comparable_runs.append(ComparableRuns(name, tuple(runs)))
    return comparable_runs


def grouped(records: Iterable[Record]) -> list[RunGroup]:
    return [RunGroup(tuple(runs)) for runs in _apart(records, _group).values()]


def _setting(record: Record) -> dict[str, Any]:
    options = {name: value for name, value in record["config"].items() if name not in OF_THE_SERIES}
    return options | {name: record.get(name) for name in HASHES}


def _group(record: Record) -> dict[str, Any]:
    options = {name: value for name, value in record["config"].items() if name not in ("seeds", "first_seed")}
    return options | {name: record.get(name) for name in ("mechanism", "trust", "mu", "lr", *HASHES)}


def _apart(records: Iterable[Record], key: Callable[[Record], dict[str, Any]]) -> dict[str, list[Record]]:
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
    rates: dict[str, list[RunGroup]] = {}
    for group in groups:
        rates.setdefault(group.label, []).append(group)
    return [best_first(of_label)[0] for of_label in rates.values()]


def leader(groups: Sequence[RunGroup]) -> str:
    return ahead_in_every_seed(
        {str(g.label): {record["seed"]: record["final_test_loss"] for record in g.records} for g in groups}
    )


Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Source:
    """The content of a folder: what a page is made of.

    Attributes: records: one per finished run, as the JSON of a cell has it; steps: from a record to its evaluated
        steps; failures: errors of runs; missing: number of runs that are neither finished nor failed; tuned: rates were
        chosen on other seeds; files: files beside the page: words and path.
    """

    folder: Path
    kind: str
    records: list[Record]
    steps: Callable[[Record], RunSteps]
    failures: list[dict[str, Any]]
    missing: int
    config: dict[str, Any]
    versions: dict[str, str]
    files: list[tuple[str, str]]
    tuned: bool = False


def read(folder: Path) -> Source:
    """The folder of a sweep, else that of a comparison. Raises: InvalidInput: it is neither, or no run is finished."""
    if (folder / SWEEP).exists():
        source = _sweep(folder)
    elif (folder / RESULTS).exists():
        source = _comparison(folder)
    else:
        raise InvalidInput(
            f"{folder} holds no {SWEEP} and no {RESULTS}; give the folder of `mfdl sweep` or `mfdl compare`."
        )
    if not source.records:
        failed = f"; {len(source.failures)} failed" if source.failures else ""
        raise InvalidInput(f"no run in {folder} is finished{failed}: run the {source.kind} again to resume.")
    return source


def _sweep(folder: Path) -> Source:
    store = Store.load(folder)
    header, status = store.sweep(), store.status()

    def steps(record: Record) -> RunSteps:
        return store.steps(record["cell"])

    lies = [("the configuration", SWEEP), ("two files per run: its results, its evaluated steps", f"{CELLS}/")]
    missing, config = len(status.missing), header["config"] or {}
    tuned = bool(header.get("chosen"))
    return Source(
        folder, "sweep", store.records(), steps, store.failures(), missing, config, header["versions"], lies, tuned
    )


def _comparison(folder: Path) -> Source:
    """results.json and steps.mfdl of `mfdl compare`, its runs as cells of a sweep."""
    result = _json(folder / RESULTS)
    try:
        same = {name: result[name] for name in column_names(level="setting")} | {"lr": result.get("learning_rate")}
        same |= {"untrained_loss": result["untrained_loss_mean"], "chance_loss": result["chance_loss"]}
        records = []
        for run in result["runs"]:
            key = {name: run[name] for name in column_names("key") if name in run}  # budget and rate if several
            row = next(row for row in result["mechanisms"] if all(row[name] == key[name] for name in key))
            of_mechanism = {name: row[name] for name in column_names(level="mechanism")} | key
            finished = {name: run[name] for name in run if name not in ("seconds", "node_steps_per_second")}
            options = {"mechanisms": [run["mechanism"]], "seeds": 1, "first_seed": run["seed"]}
            if isinstance(key.get("mu"), float):
                options |= {"mu": key["mu"], "epsilon": None}
            if isinstance(key.get("epsilon"), float):  # the target under secret sampling, where mu is null
                options["epsilon"] = min(each for each in result["config"]["epsilon"] if each >= key["epsilon"])
            options |= {"lr": key["lr"]} if "lr" in key else {}
            records.append({**same, **of_mechanism, **finished, "config": {**result["config"], **options}})
        missing = len(result["seeds"]) * len(result["mechanisms"]) - len(records)
        config, versions = result["config"], result["versions"]
        every = load_steps(folder / STEPS) if records else []
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise InvalidInput(
            f"{folder} is no comparison of this version ({error!r}); run `mfdl compare` again."
        ) from None

    def steps(record: Record) -> RunSteps:
        budget = "epsilon" if record["mu"] is None else "mu"
        of_run = {name: record[name] for name in ("mechanism", "seed", "lr")} | {budget: float(record[budget])}
        run = next((run for run in every if of_run.items() <= run.conditions.items()), None)
        if run is None:
            raise InvalidInput(f"{folder / STEPS} lacks a run of {RESULTS}; run `mfdl compare` again.")
        return run

    lies = [("all results", RESULTS), ("every evaluated step", STEPS)]
    return Source(folder, "comparison", records, steps, [], missing, config, versions, lies)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "it is not JSON"
        raise InvalidInput(f"cannot read {path}: {reason}; run what wrote it again.") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"{path} must hold an object, got {type(value).__name__}; run what wrote it again.")
    return value

"""Options of a sweep: those of `mfdl compare`, of which some take lists, the resulting cells, and tuning of rates."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from scipy import stats

from mfdl_solvers.ties import ranked

from .. import check
from ..algorithms import registry
from ..errors import InvalidInput, UnsupportedMechanism, require_known, unknown_name
from ..privacy import gaussian
from ..trust.base import models_by_parameter
from .cells import Cell, Grid, Shared, alone
from .experiment import Experiment
from .option_files import GivenOption, Known, OptionFile, as_text, split
from .options import BINS, SECRET, require_seeds

Key = TypeVar("Key")
ORDERS = ("mean", "rank")


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Choice of rates by successive halving: all on few seeds, the better share on twice as many, and so on.

    Attributes:
        seeds, first_seed: those of the last round, none of them in the tables; earlier rounds take the first of them.
        first_round: number of seeds of the first round.
        share, at_least: share in (0, 1), and least number, of the settings that remain after each round but the last.
        by: "mean", of the losses, or "rank": the mean over seeds of a setting's rank among those still left.
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

    Args: by: "mean", or "rank": by the mean of their ranks at every seed, then by their mean; those that diverged at
        any seed come last.

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


def halved(
    groups: Mapping[str, Sequence[Key]],
    tuning: Tuning,
    seed_losses: Callable[[Sequence[Key], Sequence[int]], Mapping[Key, np.ndarray]],
) -> dict[str, Key]:
    """The best setting of every group; all groups go through a round together.

    Args: seed_losses: (settings, seeds) to the losses of each, a value for each seed, nan where it diverged or failed.
    """
    left = {name: list(settings) for name, settings in groups.items()}
    rounds = tuning.rounds()
    for number, seeds in enumerate(rounds):
        tried = [setting for settings in left.values() if len(settings) > 1 for setting in settings]
        losses = seed_losses(tried, seeds) if tried else {}
        last = number == len(rounds) - 1
        for name, settings in left.items():
            if len(settings) > 1:
                best = ordered({setting: losses[setting] for setting in settings}, tuning.by)
                left[name] = best[: 1 if last else max(tuning.at_least, math.ceil(tuning.share * len(settings)))]
    return {name: settings[0] for name, settings in left.items()}


LISTED = ("graph", "task", "trust", "participation", "mu", "epsilon", "learning_rate")
"""Fields that take several values, besides mechanisms and error weights."""
OF_TRUST = models_by_parameter()


class SweepConfig:
    """Everything that decides the numbers of a sweep, and how they are computed.

    Args:
        tuning: choose the rate of each mechanism on other seeds; None: every rate is a part of the sweep.
        options: those of `Experiment`; graph, task, trust, participation, mu, epsilon and learning_rate also as
            lists. Attackers, colluders and coalition_size go to the trust model that they belong to. Balls-in-bins has
            no mu: a budget mu is the epsilon that it gives at delta (`converted`).
    Attributes: common: the options with the first value of every list; lists: the values by field.
    """

    def __init__(self, *, tuning: Tuning | None = None, **options: Any) -> None:
        known = Experiment.fields()
        for name in options:
            if name not in known:
                raise unknown_name("option", name, known)
        self.tuning = tuning
        self.lists = {name: _several(name, options[name]) for name in LISTED if options.get(name) is not None}
        self.of_trust = {name: options.pop(name) for name in OF_TRUST if options.get(name) is not None}
        trusts = self.lists.get("trust", (Experiment.trust,))
        for name in self.of_trust:
            if not set(OF_TRUST[name]) & set(trusts):
                owners = " or ".join(OF_TRUST[name])
                raise InvalidInput(f"{name} belongs to trust model {owners}; those given: {', '.join(trusts)}.")
        first = {name: values[0] for name, values in self.lists.items()}
        if BINS in self.lists.get("participation", ()):
            first["participation"] = BINS  # under which every mechanism may stand
        self.common = Experiment(**_budgeted({**options, **first, **self._trust_options(trusts[0])}))
        for name, values in self.lists.items():
            for value in values:
                changed = {**options, **first, name: value}
                scheme = changed.get("participation", Experiment.participation)
                if scheme != BINS and "mechanisms" in changed:
                    public = (each for each in self.common.mechanisms if registry.serves(each, scheme))
                    changed |= {"mechanisms": tuple(public) or ("none",), "error_weights": ()}
                Experiment(**_budgeted(changed | self._trust_options(changed.get("trust", trusts[0]))))
        if self.common.ranks is not None:
            raise InvalidInput(
                f"ranks shares the nodes of one run among processes, got {self.common.ranks}, but a sweep "
                "trains several runs in parallel; leave it out, or use mfdl compare."
            )
        for trust, mechanism in itertools.product(trusts, self.common.mechanisms):
            self._is_left_out(mechanism, trust, trusts)
        if tuning is not None:
            tuning.require_fresh(self.common.seed_list)

    @classmethod
    def load(cls, path: str | os.PathLike[str], **changed: Any) -> SweepConfig:
        """The config in a TOML file: keys outside of tables, `[sweep]` and `[tuning]`; `changed` fields win."""
        return cls.written(SweepFile.read(path), **changed)

    @classmethod
    def written(cls, file: SweepFile, **changed: Any) -> SweepConfig:
        def build(options: dict[str, Any], tuning: dict[str, Any] | None) -> SweepConfig:
            config = cls(tuning=None if tuning is None else Tuning(**tuning), **{**options, **changed})
            if options.get("epsilon") is not None and "delta" not in {**options, **changed}:
                raise InvalidInput("epsilon needs a delta in (0, 1), e.g. delta = 1e-6.")
            return config

        return file.tried(build)

    @property
    def seeds(self) -> list[int]:
        return self.common.seed_list

    def options(self) -> dict[str, Any]:
        """Options by their names in a file, without where it is computed; JSON-ready."""
        flags = {name: option.flags[0].lstrip("-") for name, (_, option, _) in self.common.fields().items()}
        options = self.common.deciding_options()
        options |= {"epsilon": None} if "mu" in self.lists else {}  # under balls-in-bins it follows
        options |= {flags[name]: list(values) for name, values in self.lists.items()}
        options |= {name: list(value) if isinstance(value, tuple) else value for name, value in self.of_trust.items()}
        return options | ({} if self.tuning is None else {"tuning": dataclasses.asdict(self.tuning)})

    @property
    def converted(self) -> list[dict[str, float]]:
        """Epsilon at delta of each mu where batches are secret; else empty."""
        if not set(SECRET) & set(self.lists.get("participation", (self.common.participation,))):
            return []
        delta = self.common.delta
        return [
            {"mu": float(mu), "epsilon": gaussian.epsilon_from_mu(mu, delta), "delta": delta}
            for mu in self.lists.get("mu", ())
        ]

    def cells(self, seeds: Iterable[int] | None = None) -> list[Cell]:
        """Cells over graph, task, trust model, participation, mechanism, budget, rate and seed, the last one fastest.

        A mechanism has no cells under trust models that it is not meant for; "none" has them once for every rate.
        """
        return Grid(self.common, self._over(), self._point).cells(self.seeds if seeds is None else seeds, Shared())

    def _over(self) -> dict[str, Sequence[Any]]:
        values = {name: self.lists.get(name, (getattr(self.common, name),)) for name in LISTED}
        if "mu" in self.lists:
            values["epsilon"] = (None,)
        targets = {name: values.pop(name) for name in ("mu", "epsilon", "learning_rate")}
        return {**values, "mechanism": self.common.mechanisms, **targets}

    def _point(self, values: dict[str, Any]) -> dict[str, Any] | None:
        """Changes of the common options; None where the mechanism is not meant for this place."""
        name, trust = values.pop("mechanism"), values["trust"]
        if self._is_left_out(name, trust, self.lists.get("trust", (self.common.trust,))):
            return None
        if not registry.serves(name, values["participation"]):
            return None  # it comes with balls-in-bins
        single = alone(self.common, name)
        return _budgeted({**values, **self._trust_options(trust), **single, "delta": self.common.delta})

    def _trust_options(self, trust: str) -> dict[str, Any]:
        """Options of a trust model, None for those of the others."""
        return {name: self.of_trust.get(name) if trust in owners else None for name, owners in OF_TRUST.items()}

    def _is_left_out(self, name: str, trust: str, trusts: Sequence[str]) -> bool:
        """Whether a mechanism is meant for another one of the trust models; refused if it is meant for none."""
        entry = registry.find_entry(name)
        if entry is None or not entry.models or trust in entry.models:
            return False
        if any(other in entry.models for other in trusts):
            return True
        if self.common.across_trust_models:
            return trust != trusts[0]  # it comes once, under its own
        raise UnsupportedMechanism(
            f"mechanism {name!r} is meant for {', '.join(entry.models)}, and trust is {', '.join(trusts)}: add one of "
            "them, leave the mechanism out, or set across-trust-models."
        )


def _budgeted(options: dict[str, Any]) -> dict[str, Any]:
    """The options, with a budget mu of secret batches as the epsilon that it gives at delta."""
    mu, delta = options.get("mu"), options.get("delta", Experiment.delta)
    if options.get("participation") not in SECRET or mu is None:
        return options
    Experiment(mu=mu, epsilon=options.get("epsilon"), delta=delta)  # refuses either, and both targets
    return options | {"mu": None, "epsilon": gaussian.epsilon_from_mu(mu, delta)}


def _several(name: str, given: Any) -> tuple[Any, ...]:
    """A value, or a list of distinct ones; objects as their texts."""
    given = [as_text(name, value) for value in given] if isinstance(given, list | tuple) else as_text(name, given)
    for value in given if isinstance(given, list) else [given]:
        if name in ("trust", "participation") and not isinstance(value, str):
            from ..check import brief

            raise InvalidInput(
                f"a sweep takes each {name} by its name, got {brief(value)}; mfdl.compare takes objects."
            )
    if isinstance(given, Mapping) or not isinstance(given, list | tuple):
        return (given,)
    if not given:
        raise InvalidInput(f"{name} must hold at least one value, got an empty list.")
    twice = [value for value in given if list(given).count(value) > 1]
    if twice:
        raise InvalidInput(f"{name} must hold distinct values, got {twice[0]!r} twice.")
    return tuple(given)


TABLE, TUNING = "sweep", "tuning"
OF_THE_CALLER = ("out", "engine", "scheduler")  # keys that say where a sweep is computed
LISTED_KINDS = (str, float, float | None)  # types of fields that hold one value and may be a list in a sweep

Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class SweepFile:
    """The content of a file: options by field of `Experiment`, entries by field, those of tuning as tuning.FIELD."""

    file: OptionFile
    options: dict[str, Any]
    tuning: dict[str, Any] | None
    caller: dict[str, Any]
    entries: dict[str, GivenOption]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        file = OptionFile(Path(path))
        read = cls(file, {}, {} if TUNING in file.content else None, {}, {})
        known = Experiment.known_in_files(dict.fromkeys(OF_THE_CALLER, str))
        for entry in (*file.entries(known), *file.entries(known, TABLE)):
            read.entries[entry.name] = entry
            if entry.name in OF_THE_CALLER:
                read.caller[entry.name] = entry.checked(entry.value)
            else:
                read.options[entry.name] = _typed(entry)
        names = [field.name for field in dataclasses.fields(Tuning)]
        of_tuning: Known = {name.replace("_", "-"): (name, None, None) for name in names}
        for entry in file.entries(of_tuning, TUNING):
            read.entries[f"{TUNING}.{entry.name}"] = entry
            read.tuning[entry.name] = entry.value  # type: ignore[index]  # there is such a table
        for table in file.tables:
            if table not in (TABLE, TUNING):
                raise file.refusal(file.line(table, None), table, f"unknown table; known: {TABLE}, {TUNING}.")
        return read

    def tried(self, make: Callable[[dict[str, Any], dict[str, Any] | None], Config]) -> Config:
        """`make(options, tuning)`; a refusal is reported with the line of the last key without which there is none."""
        try:
            return make(dict(self.options), self.tuning)
        except InvalidInput as error:
            to_blame = None
            attempts = {name: (_without(self.options, name), self.tuning) for name in self.options}
            for name in self.tuning or {}:
                attempts[f"{TUNING}.{name}"] = dict(self.options), _without(self.tuning or {}, name)
            for name, attempt in attempts.items():
                with contextlib.suppress(InvalidInput):
                    make(*attempt)
                    to_blame = name
            if to_blame is None:
                raise InvalidInput(f"{self.file.path}: {error}") from None
            raise InvalidInput(f"{self.entries[to_blame].place} {error}") from None


def _without(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


def _typed(entry: GivenOption) -> Any:
    value, listed = entry.value, entry.option is not None and entry.option.listed
    if entry.is_of_texts:
        texts = split(value) if isinstance(value, str) and listed else value
        return [entry.checked(text, str) for text in (texts if isinstance(texts, list | tuple) else [texts])]
    if isinstance(value, list) and entry.kind in LISTED_KINDS:
        return [entry.checked(item) for item in value]
    return entry.checked(value)

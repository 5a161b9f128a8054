"""What a sweep is asked: the options of `mfdl compare`, of which some take lists, and the cells that they come to.

Also what a sweep's TOML file says: its options by field, and the line of each, so that what is refused is found.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from ..algorithms import registry
from ..errors import InvalidInput, UnsupportedMechanism, unknown_name
from ..privacy import gaussian
from ..trust.base import models_by_parameter
from .cells import Cell, Grid, alone
from .experiment import Experiment
from .objects import as_text
from .option_files import GivenOption, Known, OptionFile, split
from .options import BINS, SECRET
from .shared import Shared
from .tuning import Tuning

LISTED = ("graph", "task", "trust", "participation", "mu", "epsilon", "learning_rate")
"""Fields that take several values; mechanisms and error weights always did."""
OF_TRUST = models_by_parameter()


class SweepConfig:
    """Everything that decides the numbers of a sweep, and (those that decide nothing) how they are computed.

    Args:
        tuning: choose the rate of each mechanism on other seeds; None: every rate is a part of the sweep.
        options: those of `Experiment`; graph, task, trust, participation, mu, epsilon and learning_rate also as
            lists. `seeds` is a count. Attackers, colluders and coalition_size go to the trust model that they belong
            to. Balls-in-bins has no mu: a budget mu is the epsilon that it gives at delta (`converted`).

    Attributes: common: the options with the first value of every list; lists: the values by field.
    Raises: InvalidInput: what `Experiment` refuses, a value given twice, tuning seeds among those of the sweep,
        or a mechanism that is meant for none of the trust models.
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
        self.common = Experiment(**_budgeted({**options, **first, **self._of_trust(trusts[0])}))
        for name, values in self.lists.items():
            for value in values:
                changed = {**options, **first, name: value}
                if changed.get("participation") != BINS and "mechanisms" in changed:
                    public = (each for each in self.common.mechanisms if not registry.is_of_balls_in_bins(each))
                    changed |= {"mechanisms": tuple(public) or ("none",), "error_weights": ()}
                Experiment(**_budgeted(changed | self._of_trust(changed.get("trust", trusts[0]))))
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
        """The config in a TOML file: top-level keys, those of its table `[sweep]`, and its table `[tuning]`.

        Args: changed: fields that win over the file.
        Raises: InvalidInput: a file that cannot be read, an unknown key, or a value that is refused, with its line.
        """
        return cls.written(SweepFile.read(path), **changed)

    @classmethod
    def written(cls, file: SweepFile, **changed: Any) -> SweepConfig:
        """The config of a file that was read."""

        def build(options: dict[str, Any], tuning: dict[str, Any] | None) -> SweepConfig:
            config = cls(tuning=None if tuning is None else Tuning(**tuning), **{**options, **changed})
            if options.get("epsilon") is not None and "delta" not in {**options, **changed}:
                raise InvalidInput("epsilon needs a delta in (0, 1), e.g. delta = 1e-6.")
            return config

        return file.tried(build)

    @property
    def seeds(self) -> list[int]:
        """Of the sweep; those of tuning are others."""
        return self.common.seed_list

    def options(self) -> dict[str, Any]:
        """As they are called in a file, without where it is computed; JSON-ready."""
        flags = {name: option.flags[0].lstrip("-") for name, (_, option, _) in self.common.fields().items()}
        options = self.common.deciding_options()
        options |= {"epsilon": None} if "mu" in self.lists else {}  # under balls-in-bins it follows
        options |= {flags[name]: list(values) for name, values in self.lists.items()}
        options |= {name: list(value) if isinstance(value, tuple) else value for name, value in self.of_trust.items()}
        return options | ({} if self.tuning is None else {"tuning": dataclasses.asdict(self.tuning)})

    @property
    def converted(self) -> list[dict[str, float]]:
        """What each mu comes to where batches are secret: epsilon at delta of Gaussian DP; else empty."""
        if not set(SECRET) & set(self.lists.get("participation", (self.common.participation,))):
            return []
        delta = self.common.delta
        return [
            {"mu": float(mu), "epsilon": gaussian.epsilon_from_mu(mu, delta), "delta": delta}
            for mu in self.lists.get("mu", ())
        ]

    # ---- cells -----------------------------------------------------------------------------------------------------

    def cells(self, seeds: Iterable[int] | None = None) -> list[Cell]:
        """Over graph, task, trust model, participation, mechanism, budget, rate and seed, the last one fastest.

        A mechanism has no cells under trust models that it is not meant for; "none" has them once for every rate.

        Args: seeds: default those of the sweep.
        """
        return Grid(self.common, self._over(), self._point).cells(self.seeds if seeds is None else seeds, Shared())

    def _over(self) -> dict[str, Sequence[Any]]:
        """The values of every field that may be a list, and the mechanisms before the targets."""
        values = {name: self.lists.get(name, (getattr(self.common, name),)) for name in LISTED}
        if "mu" in self.lists:
            values["epsilon"] = (None,)
        targets = {name: values.pop(name) for name in ("mu", "epsilon", "learning_rate")}
        return {**values, "mechanism": self.common.mechanisms, **targets}

    def _point(self, values: dict[str, Any]) -> dict[str, Any] | None:
        """What is changed of the common options; None where the mechanism is not meant for this place."""
        name, trust = values.pop("mechanism"), values["trust"]
        if self._is_left_out(name, trust, self.lists.get("trust", (self.common.trust,))):
            return None
        if registry.is_of_balls_in_bins(name) and values["participation"] != BINS:
            return None  # it comes with balls-in-bins
        single = alone(self.common, name)
        return _budgeted({**values, **self._of_trust(trust), **single, "delta": self.common.delta})

    def _of_trust(self, trust: str) -> dict[str, Any]:
        """What belongs to a trust model, and nothing of the others."""
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
    """The options, a budget mu of secret batches as the epsilon that it gives at delta."""
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
OF_THE_CALLER = ("out", "engine", "scheduler")
"""Keys that say where, not what."""
LISTED_KINDS = (str, float, float | None)
"""Of fields that hold one value and may be a list in a sweep."""

Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class SweepFile:
    """What a file says.

    Attributes: options: by field of `Experiment`; tuning: by field of `Tuning`, None without that table; caller:
        by key of `OF_THE_CALLER`; entries: where each of them stands, by field, those of tuning as tuning.FIELD.
    """

    file: OptionFile
    options: dict[str, Any]
    tuning: dict[str, Any] | None
    caller: dict[str, Any]
    entries: dict[str, GivenOption]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a file.

        Raises: InvalidInput: it cannot be read, is no TOML, or has an unknown key or one of another type.
        """
        file = OptionFile(Path(path))
        read = cls(file, {}, {} if TUNING in file.content else None, {}, {})
        known = Experiment.known_in_files(dict.fromkeys(OF_THE_CALLER, str))
        for entry in (*file.entries(known), *file.entries(known, TABLE)):
            read.entries[entry.name] = entry
            if entry.name in OF_THE_CALLER:
                read.caller[entry.name] = entry.checked(entry.value)
            else:
                read.options[entry.name] = _typed(entry)
        of_tuning: Known = {
            field.name.replace("_", "-"): (field.name, None, None) for field in dataclasses.fields(Tuning)
        }
        for entry in file.entries(of_tuning, TUNING):
            read.entries[f"{TUNING}.{entry.name}"] = entry
            read.tuning[entry.name] = entry.value  # type: ignore[index]  # there is such a table
        for table in file.tables:
            if table not in (TABLE, TUNING):
                raise file.refusal(file.line(table, None), table, f"unknown table; known: {TABLE}, {TUNING}.")
        return read

    def tried(self, make: Callable[[dict[str, Any], dict[str, Any] | None], Config]) -> Config:
        """`make(options, tuning)`; what it refuses is reported with the line of the key that is to blame.

        That is the last one without which it would not be refused; where there is none the file alone is named.
        """
        try:
            return make(dict(self.options), self.tuning)
        except InvalidInput as error:
            to_blame = None
            for name in self.options:
                try:
                    make({key: value for key, value in self.options.items() if key != name}, self.tuning)
                except InvalidInput:
                    continue
                to_blame = name
            for name in self.tuning or {}:
                try:
                    make(dict(self.options), {key: value for key, value in (self.tuning or {}).items() if key != name})
                except InvalidInput:
                    continue
                to_blame = f"{TUNING}.{name}"
            if to_blame is None:
                raise InvalidInput(f"{self.file.path}: {error}") from None
            raise InvalidInput(f"{self.entries[to_blame].place} {error}") from None


def _typed(entry: GivenOption) -> Any:
    """As the field holds it, or a list of such values where a sweep takes several."""
    value, listed = entry.value, entry.option is not None and entry.option.listed
    if entry.is_of_texts:
        texts = split(value) if isinstance(value, str) and listed else value
        return [entry.checked(text, str) for text in (texts if isinstance(texts, list | tuple) else [texts])]
    if isinstance(value, list) and entry.kind in LISTED_KINDS:
        return [entry.checked(item) for item in value]
    return entry.checked(value)

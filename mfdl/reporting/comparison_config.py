"""What a comparison is asked: every value checked before any work, without the libraries that do the work."""

from __future__ import annotations

import dataclasses
from typing import Any

from .. import check, trust
from ..algorithms import registry
from ..dynamics import Dynamics
from ..error_weights import ErrorWeights
from ..errors import InvalidInput, unknown_name
from ..gossip import Gossip, from_array
from ..participation import Cyclic, EveryStep, Participation
from ..privacy import UNITS, gaussian
from ..trust import TrustModel
from ..view import RELEASES

DEFAULT_MECHANISMS = ("none", "dp-dsgd", "d-mf", "mafalda")
DEFAULT_MU = 2.0


@dataclasses.dataclass(frozen=True)
class ComparisonConfig:
    """Everything that decides the numbers of a comparison, and (jobs, device, data_home) how they are computed.

    Attributes:
        graph, largest_component, gossip: as `graphs.load` and `gossip.load` read them.
        task: name of a learning task.
        epochs, period: (k, b)-cyclic participation, k b steps.
        mu: target of Gaussian DP; or epsilon at delta; neither means mu = 2. With mu, delta only says where
            the equivalent epsilon is reported.
        adjacency, clip_norm, learning_rate, momentum, weight_decay: of all mechanisms.
        unit: "record", or "user": all data of a node, which then clips its mean gradient and takes part in every step.
        trust, attackers, colluders, coalition_size: the trust model, as `trust.named` reads them; one for all.
        release: which final models are published, where messages are hidden.
        across_trust_models: let mechanisms that are not meant for `trust` in, each under its own model and so labelled.
        partition: who holds which record, as `tasks.partition.parse` reads it; default the task's own.
        settings: parameters of mechanisms, "NAME.KEY=VALUE"; a mechanism with any is built with these instead of tuned.
        mechanisms: distinct registry names, with error weights or without; "none" trains without noise.
        error_weights: each mechanism that optimises, and names no weights itself, is there once for each of these.
        seeds, first_seed: how many seeds, counted from the first.
        eval_every: steps between evaluations; default the period.
        device: torch device; default CUDA when there is one.
        jobs: worker processes.
        data_home: data folder.

    Raises: InvalidInput: a value out of range, an unknown mechanism, or two targets.
    """

    graph: str = "florentine"
    largest_component: bool = False
    gossip: str = "metropolis-hastings"
    task: str = "digits"
    epochs: int = 20
    period: int = 16
    mu: float | None = None
    epsilon: float | None = None
    delta: float = 1e-6
    adjacency: str = "replace-one"
    clip_norm: float = 1.0
    learning_rate: float = 0.5
    momentum: float = 0.0
    weight_decay: float = 0.0
    unit: str = "record"
    trust: str = "ldp"
    attackers: tuple[str, ...] | None = None
    colluders: tuple[str, ...] | None = None
    coalition_size: int | None = None
    release: str | None = None
    across_trust_models: bool = False
    partition: str | None = None
    settings: tuple[str, ...] = ()
    mechanisms: tuple[str, ...] = DEFAULT_MECHANISMS
    error_weights: tuple[str, ...] = ()
    seeds: int = 3
    first_seed: int = 0
    eval_every: int | None = None
    device: str | None = None
    jobs: int = 1
    data_home: str | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "period", "seeds", "jobs"):
            check.integer_at_least(1, **{name: getattr(self, name)})
        check.integer_at_least(0, first_seed=self.first_seed)
        if self.eval_every is not None:
            check.integer_at_least(1, eval_every=self.eval_every)
        check.positive(learning_rate=self.learning_rate)
        self.dynamics(from_array([[1.0]]))
        gaussian.record_shift(self.adjacency, self.clip_norm)
        if self.unit not in UNITS:
            raise unknown_name("unit", self.unit, UNITS)
        if self.release not in (None, *RELEASES):
            raise unknown_name("release", str(self.release), RELEASES)
        for name in ("attackers", "colluders"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(getattr(self, name)))
        self.trust_model()
        if self.adjacency == "add-remove":
            raise InvalidInput(
                "--adjacency add-remove cannot be trained: split, record-to-step map and batch sizes follow the number "
                "of records; use zero-out or replace-one."
            )
        if self.mu is not None and self.epsilon is not None:
            raise InvalidInput("give one target: mu, or epsilon with delta, not both.")
        if self.epsilon is not None:
            check.positive(epsilon=self.epsilon)
        else:
            check.positive(mu=self.target_mu_or_default)
        check.open_unit(delta=self.delta)
        object.__setattr__(self, "mechanisms", tuple(self.mechanisms))
        if not self.mechanisms:
            raise InvalidInput("mechanisms must name at least one mechanism, e.g. none,dp-dsgd,mafalda.")
        for name in self.mechanisms:
            registry.check_name(name)
        object.__setattr__(self, "error_weights", tuple(self.error_weights))
        object.__setattr__(self, "mechanisms", self._with_weights())
        object.__setattr__(self, "settings", tuple(self.settings))
        for text in self.settings:
            owner, dot, _ = text.partition(".")
            if not dot or owner not in self.mechanisms:
                raise InvalidInput(
                    f"a setting must read NAME.KEY=VALUE with NAME one of {', '.join(self.mechanisms)}, got {text!r}."
                )
        for name in self.mechanisms:
            self.parameters(name)
        twice = [name for name in self.mechanisms if self.mechanisms.count(name) > 1]
        if twice:
            raise InvalidInput(f"mechanisms must be distinct, got {twice[0]!r} twice.")

    def _with_weights(self) -> tuple[str, ...]:
        """The mechanisms, those that optimise once for each of the error weights; again applied, it changes nothing."""
        for text in self.error_weights:
            ErrorWeights.parse(text).of_steps(self.epochs * self.period)
        expanded: list[str] = []
        for name in self.mechanisms:
            base, own = registry.split(name)
            if own is not None:
                own.of_steps(self.epochs * self.period)
            entry = registry.entry_of(name)
            if entry is None or not entry.weighted or own is not None or not self.error_weights:
                expanded.append(name)
            else:
                expanded += [f"{base}{registry.WEIGHTS_MARK}{text}" for text in self.error_weights]
        return tuple(expanded)

    def dynamics(self, gossip: Gossip) -> Dynamics:
        """Step sizes, momentum and decay on a gossip matrix."""
        return Dynamics(gossip, self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay)

    @property
    def target_mu_or_default(self) -> float:
        """The given mu, or the default one."""
        return DEFAULT_MU if self.mu is None else self.mu

    @property
    def target(self) -> dict[str, Any]:
        """Keyword arguments of `calibrate`."""
        if self.epsilon is not None:
            return {"epsilon": self.epsilon, "delta": self.delta}
        return {"mu": self.target_mu_or_default}

    @property
    def participation(self) -> Participation:
        """(epochs, period)-cyclic, or every step at user level."""
        if self.unit == "user":
            return EveryStep(self.epochs * self.period)
        return Cyclic(epochs=self.epochs, period=self.period)

    def parameters(self, name: str) -> dict[str, Any]:
        """The settings of one mechanism, as its builder takes them."""
        own = [text.removeprefix(f"{name}.") for text in self.settings if text.startswith(f"{name}.")]
        return registry.parse_parameters(name, own)

    def trust_model(self) -> TrustModel:
        """The trust model of the ranking."""
        return trust.named(
            self.trust, attackers=self.attackers, colluders=self.colluders, coalition_size=self.coalition_size
        )

    @property
    def seed_list(self) -> list[int]:
        """The seeds themselves."""
        return list(range(self.first_seed, self.first_seed + self.seeds))

    @property
    def total_steps(self) -> int:
        """Steps over all mechanisms and seeds: the length of a progress bar."""
        return self.epochs * self.period * self.seeds * len(self.mechanisms)

    def options(self) -> dict[str, Any]:
        """The values as the options of `mfdl compare` are called; JSON-ready."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values["lr"] = values.pop("learning_rate")
        values["set"] = values.pop("settings")
        for name in ("mechanisms", "error_weights", "attackers", "colluders", "set"):
            if values[name] is not None:
                values[name] = list(values[name])
        if self.epsilon is None:
            values["mu"] = self.target_mu_or_default
        return values

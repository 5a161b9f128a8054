"""The options of the commands: every command is a frozen dataclass whose fields are its options.

Fields `name: Annotated[type, Option(help, ...)] = default` give the same names, defaults and words for Python, files
(`option_files`) and the command line (`mfdl.commands.terminal`). Libraries that do the work are imported in functions.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import types
import typing
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from ..errors import InvalidInput
from ..graph_formats import SUFFIXES
from ..spec import given_value
from .option_files import WORDS_OF_KINDS, Known, Option, OptionFile, as_text, is_tuple, split

if TYPE_CHECKING:
    from ..check import FloatArray
    from ..dynamics import Dynamics
    from ..gossip import Gossip, GossipMatrix
    from ..graphs import SparseGraph
    from ..participation import Participation
    from ..trust import TrustModel


OF_THE_CALLER: dict[str, Any] = {"out": str, "resume": bool}
"""Keys of files that belong to the command, not to its config, and the type of their values."""
TABLES = ("account", "attack", "audit", "compare", "factorize", "plan", "sweep", "tuning")
"""Tables of a TOML file: options of one command each, and tuning of a sweep."""
RELEASES = ("none", "average", "all")
BINS = "balls-in-bins"  # as BallsInBins.scheme, which a test holds
SECRET = (BINS, "cyclic-poisson", "random-allocation", "min-separation-sampling")
"""Participations with secret batches, as `mfdl.participation.sampling` registers them (tested)."""
SAMPLED_AT_A_RATE = ("cyclic-poisson", "min-separation-sampling")
ONLY_PUBLIC = {
    "mu": "has no mu; give --epsilon, which is met at --delta",
    "noise_multiplier": "has no sensitivity to scale by; give --noise-std, or --epsilon",
    "lipschitz": "assumes that every message is seen, so a Lipschitz constant has no effect; leave it out",
    "release": "assumes that every message and every released model is seen; leave it out",
    "all_attackers": (
        "assumes that every message is seen, so every attacker learns the same; name attackers with --attackers"
    ),
}
"""Options that participations with secret batches do not take, and why."""
MAX_STEPS, MAX_SEEDS = 10**6, 10**5  # beyond these a typing error would exhaust the machine before any refusal
LARGEST_SEED = 2**63 - 1  # tables hold seeds as int64


Graph = Annotated[str, Option(
    "Named graph (florentine, ego-facebook, ring:n=16, erdos-renyi:n=100,p=0.2,seed=1, ...) or file "
    f"({', '.join(SUFFIXES)}, other suffixes as .txt); `mfdl graph inspect FILE` says what is read.",
    metavar="SPEC|FILE",
)]  # fmt: skip
Epochs = Annotated[int, Option("k: how often each record takes part.", least=1)]
Period = Annotated[int, Option("b: steps per epoch; the run has k b steps.", least=1)]
Momentum = Annotated[float, Option("Heavy-ball momentum of every node, in [0, 1).")]
WeightDecay = Annotated[float, Option("Weight decay, outside of clipping.")]
LearningRateSchedule = Annotated[str | None, Option(
    "Schedule of the learning rate from step t = 0 on: constant (default), inverse-time:T0 "
    "(factor 1 / (1 + t / T0)), inverse-sqrt (factor 1 / sqrt(t + 1)), or step-decay:T0:F (factor F from T0 on).",
    metavar="RULE",
)]  # fmt: skip
Device = Annotated[
    str | None, Option("torch device, e.g. cpu or cuda; default: CUDA when there is one.", decides="nothing")
]
Settings = Annotated[
    tuple[str, ...], Option("A parameter of the mechanism; may be repeated.", ("--set",), metavar="KEY=VALUE")
]
Attackers = Annotated[
    str | None,
    Option("pndp: nodes that attack together, by label or as #INDEX.", ("--attackers", "--attacker"), metavar="A,B"),
]
Colluders = Annotated[str | None, Option("colluding: nodes that share their secrets.", metavar="A,B")]
CoalitionSize = Annotated[int | None, Option("coalitions: how many nodes collude.", metavar="Q")]
AttackerList = Annotated[
    tuple[str, ...] | None, Option("pndp: the attacking nodes; default: any single node.", metavar="A,B", listed=True)
]
ColluderList = Annotated[
    tuple[str, ...] | None, Option("colluding: nodes that share their secrets.", metavar="A,B", listed=True)
]
Mechanisms = Annotated[
    tuple[str, ...],
    Option("Names of `mfdl mechanisms`, and file:FILE.", ("--mechanism",), metavar="A,B,...", listed=True),
]
Delta = Annotated[
    float,
    Option("delta of epsilon: required with --epsilon, else where it is reported.", rule="open_unit", decides="run"),
]
Release = Annotated[
    str | None, Option("Final models that are published: none, average or all; default all.", among=RELEASES)
]
ReleaseModel = Annotated[str, Option(
    "Released model of each node, which is evaluated and published: last, average:M (mean of its "
    "last M models), or exponential:M (of all, weights halved every M steps back); +G adds G "
    "more rounds of gossip.",
    metavar="MODEL",
)]  # fmt: skip
Curvature = Annotated[str | None, Option(
    "Curvature of the loss in the objective of optimised mechanisms: power:EXPONENT[:DIMENSION[:LARGEST]], "
    "features:FILE[:FACTOR] (public records in rows; logistic loss: 0.25), or a FILE of eigenvalues (.npy, .csv).",
    metavar="SPECTRUM",
)]  # fmt: skip
Adjacency = Annotated[str, Option("replace-one, zero-out or add-remove.")]
Batches = Annotated[str, Option(
    "cyclic (public batches), or with secret batches: balls-in-bins (each record draws one of b bins), "
    "random-allocation (one step of each epoch), cyclic-poisson (its step of each epoch, at a rate) or "
    "min-separation-sampling (each step at a rate, at least b steps apart).",
    metavar="NAME", among=("cyclic", *SECRET),
)]  # fmt: skip
SamplingRate = Annotated[float | None, Option(
    "cyclic-poisson, min-separation-sampling: probability that a record joins a step that it can join.",
    rule="open_unit",
)]  # fmt: skip
Jobs = Annotated[int | None, Option("Worker processes; default: one per core.", least=1)]


class Config:
    """Base of all configs.

    Attributes: command: name of the command, and of its table in a TOML file; SEVERAL: numbers of which the command
        takes several at once, as A,B, though a config holds one.
    """

    command: ClassVar[str]
    SEVERAL: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Keeps several texts, given as any sequence or as one text A,B, as a tuple."""
        for name, (kind, option, _) in self.fields().items():
            value = as_text(name, given := getattr(self, name))
            if value is not given:
                object.__setattr__(self, name, value)
            if is_tuple(kind) and value is not None:
                texts = split(value) if isinstance(value, str) and option.listed else value
                if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
                    raise InvalidInput(f"{name} must be a list of texts, got {value!r}.")
                object.__setattr__(self, name, tuple(texts))
            if value is None and types.NoneType not in typing.get_args(kind):
                raise InvalidInput(f"{name} must not be None; leave it out for the default.")
            option.require(name, value)

    @classmethod
    @functools.cache
    def fields(cls) -> dict[str, tuple[Any, Option, Any]]:
        """Type, `Option` and default by the name of the field; those of the class before inherited ones."""
        hints = typing.get_type_hints(cls, include_extras=True)
        by_name = {}
        every: Any = dataclasses.fields(cls)  # type: ignore[arg-type]  # its subclasses are dataclasses
        for field in sorted(every, key=lambda field: field.name not in cls.__annotations__):  # exact: flags
            kind, option = typing.get_args(hints[field.name])
            flags = option.flags or (f"--{field.name.replace('_', '-')}",)
            by_name[field.name] = kind, dataclasses.replace(option, flags=flags), field.default
        return by_name

    @classmethod
    @functools.cache
    def deciding(cls, level: str) -> dict[str, Any]:
        """Fields that decide an algorithm, a run, or nothing (`Option.decides`), with their defaults."""
        return {name: default for name, (_, option, default) in cls.fields().items() if option.decides == level}

    @classmethod
    def load(cls, path: str | os.PathLike[str], **changed: Any) -> Self:
        """The config in a file: TOML, or the results.json of an earlier run; `changed` fields win over it."""
        fields, values = cls.fields(), cls.in_file(Path(path))
        for name, value in values.items():  # several numbers, as A,B, are for the command line
            if name in cls.SEVERAL and isinstance(value, str):
                raise InvalidInput(f"{name} must be {WORDS_OF_KINDS[float]}, got several ({value}); give one of them.")
        given = {name: value for name, value in values.items() if name in fields}
        return cls(**{**given, **changed})

    @classmethod
    def in_file(cls, path: Path, of_the_caller: Collection[str] = tuple(OF_THE_CALLER)) -> dict[str, Any]:
        """The values in a file by field; lists of texts are joined to A,B but where options are repeated."""
        file = OptionFile(path, "--config")
        for table in file.tables:
            if table not in TABLES:
                raise file.refusal(file.line(table, None), table, f"unknown table; known: {', '.join(TABLES)}.")
        known = cls.known_in_files({name: OF_THE_CALLER[name] for name in of_the_caller})
        values: dict[str, Any] = {}
        for entry in (*file.entries(known), *file.entries(known, cls.command)):
            name, value = entry.name, entry.value
            if name in cls.SEVERAL and isinstance(value, list):
                values[name] = ",".join(repr(entry.checked(item)) for item in value)
                continue
            texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
            if isinstance(value, dict) or (isinstance(value, list) and not texts):
                raise InvalidInput(f"{entry.place} must be a text, a number or a list of texts, got {value!r}.")
            if value is not None:  # null in results.json: not set
                joined = texts and (not entry.is_of_texts or (entry.option is not None and entry.option.listed))
                value = ",".join(value) if joined else value
                values[name] = value if entry.is_of_texts else entry.checked(value)
        return values

    @classmethod
    def known_in_files(cls, caller: Mapping[str, Any]) -> Known:
        """Keys of files; caller: those that belong to the command, and the type of their values."""
        fields = {option.flags[0].lstrip("-"): (name, kind, option) for name, (kind, option, _) in cls.fields().items()}
        return fields | {name: (name, kind, None) for name, kind in caller.items()}

    def values(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}

    def options(self) -> dict[str, Any]:
        """The given values by name of the option; JSON-ready, and `load` reads them back."""
        values = {option.flags[0].lstrip("-"): getattr(self, name) for name, (_, option, _) in self.fields().items()}
        return {flag: str(v) if isinstance(v, Path) else v for flag, v in values.items() if v is not None and v != ()}


@dataclasses.dataclass(frozen=True)
class OnGraph(Config):
    graph: Graph = "florentine"
    largest_component: Annotated[bool, Option("Keep the largest connected component only.")] = False
    gossip: Annotated[str, Option(
        "metropolis-hastings, uniform, fastest-mixing, least-noise:rounds=K, or a row-stochastic matrix as .npy or "
        ".csv, rows in label order.",
        metavar="NAME|FILE",
    )] = "metropolis-hastings"  # fmt: skip
    data_home: Annotated[
        Path | None, Option("Data folder; default: $MFDL_DATA, else the user's cache folder.", decides="nothing")
    ] = None

    def sparse_network(self) -> tuple[SparseGraph, GossipMatrix]:
        """The connected graph as arrays, for millions of nodes, and its gossip matrix."""
        from .. import gossip, graphs

        source = given_value(self.graph, "graph")
        loaded = graphs.load_sparse(source, largest_component=self.largest_component, data_home=self.data_home)
        graphs.require_connected(loaded)
        weights = given_value(self.gossip, "gossip")
        if isinstance(weights, str):
            return loaded, gossip.load(weights, loaded)
        if isinstance(weights, gossip.GossipMatrix):
            if weights.labels != loaded.labels:
                from ..check import brief

                raise InvalidInput(
                    f"gossip must have the nodes of the graph in their order, {brief(loaded.labels)}, got "
                    f"{brief(weights.labels)}; build it on the graph."
                )
            gossip.from_array(weights.weights, loaded)  # refuses weights where the graph has no edge
            return loaded, weights
        return loaded, gossip.from_array(weights, loaded)


@dataclasses.dataclass(frozen=True)
class Protects(Config):
    unit: Annotated[str, Option(
        "Unit of protection: record (each record's gradient is clipped), or user (all data of a "
        "node; its mean gradient is clipped).",
        metavar="UNIT", among=("record", "user"),
    )] = "record"  # fmt: skip
    clip_norm: Annotated[float, Option("Clipping norm of one record's gradient, or of a node's mean gradient.")] = 1.0
    adjacency: Adjacency = "replace-one"

    def __post_init__(self) -> None:
        super().__post_init__()
        from ..privacy import gaussian

        gaussian.record_shift(self.adjacency, self.clip_norm)

    @property
    def protected(self) -> dict[str, Any]:
        return self.values("unit", "clip_norm", "adjacency")


@dataclasses.dataclass(frozen=True)
class TakesPart(Protects):
    """Participation of the records; typed: fields given on purpose."""

    epochs: Epochs = 20
    period: Period = 16
    participation: Annotated[str, Option(
        "cyclic, once-per-epoch, every-step (needed by --unit user), single, min-separation (at most "
        "k uses, at least b steps apart); with secret batches: balls-in-bins (each record draws one of b "
        "bins), random-allocation (one step of each epoch), cyclic-poisson (its step of each epoch, at a "
        "rate) or min-separation-sampling (each step at a rate, at least b steps apart).",
        metavar="NAME",
    )] = "cyclic"  # fmt: skip
    sampling_rate: SamplingRate = None
    steps: Annotated[int | None, Option("T; default k b.")] = None
    lr_schedule: LearningRateSchedule = None
    typed: dataclasses.InitVar[Collection[str]] = ()

    def __post_init__(self, typed: Collection[str]) -> None:
        super().__post_init__()
        require_for_secret_batches(self)
        stepping(self.lr_schedule, 1.0, self.scheme(typed).num_steps)

    @property
    def has_secret_batches(self) -> bool:
        return self.participation in SECRET

    def scheme(self, typed: Collection[str] = ()) -> Participation:
        from ..participation import Cyclic
        from ..participation.schemes import SCHEMES

        name, epochs, period = self.participation, self.epochs, self.period
        entry = SCHEMES.entry(name)
        T = epochs * period if self.steps is None else self.steps
        require_steps(max(T, epochs * period))
        if entry.takes == {"steps"}:
            given = (epochs, period) != (type(self).epochs, type(self).period) or {"epochs", "period"} & set(typed)
            if self.steps is not None and given and epochs * period != T:
                raise InvalidInput(
                    f"--steps must be epochs * period, got --steps {T} with {epochs} epochs of {period} steps; "
                    f"{name} participation needs --steps alone."
                )
        elif "steps" not in entry.takes:
            Cyclic(epochs=epochs, period=period, steps=self.steps)  # refuses steps that do not fit
        scheme: Participation = entry.from_run(epochs=epochs, period=period, steps=T, rate=self.sampling_rate)
        if self.unit == "user" and not scheme.in_every_step:
            raise InvalidInput(
                f"--unit user needs --participation every-step, as a user's data take part in every step, got "
                f"{scheme.describe()}."
            )
        return scheme

    def dynamics(self, gossip: Gossip) -> Dynamics:
        from ..dynamics import Dynamics

        return Dynamics(gossip, stepping(self.lr_schedule, 1.0, self.scheme().num_steps))


def named_trust(config: Any) -> TrustModel:
    from .. import trust

    names = ("attackers", "colluders", "coalition_size")
    return trust.named(config.trust, **{name: getattr(config, name) for name in names})


def stepping(rule: str | None, first_rate: float, num_steps: int) -> float | FloatArray:
    from ..dynamics import schedule

    return first_rate if rule is None else schedule(rule, first_rate, num_steps)


def require_for_secret_batches(config: Config) -> None:
    name, rate = getattr(config, "participation", None), getattr(config, "sampling_rate", None)
    if (rate is None) == (name in SAMPLED_AT_A_RATE):
        raise InvalidInput(
            f"--participation {name} needs --sampling-rate, from 0 to 1."
            if rate is None
            else f"--sampling-rate {rate:g} is for --participation {' or '.join(SAMPLED_AT_A_RATE)}; leave it out."
        )
    if name not in SECRET:
        return
    for option, why in ONLY_PUBLIC.items():
        value = getattr(config, option, None)
        if value not in (None, False):
            given = "" if value is True else f" {value}"
            raise InvalidInput(f"--{option.replace('_', '-')}{given}: --participation {name} {why}.")


def weights_in_full(text: str, release_model: str, curvature: str | None) -> str:
    """Weights as `ErrorWeights.parse` takes them: "released" is the released model, the curvature is added."""
    from ..objective.error_weights import released_in_full

    text = released_in_full(text, release_model)
    return text if curvature is None or "/curvature=" in text else f"{text}/curvature={curvature}"


def require_seeds(seeds: int, first_seed: int) -> None:
    if seeds > MAX_SEEDS:
        raise InvalidInput(f"a comparison has at most {MAX_SEEDS:,} seeds, got more; lower --seeds.")
    if first_seed + seeds - 1 > LARGEST_SEED:
        raise InvalidInput(
            f"a seed is at most {LARGEST_SEED} in the tables of a comparison, got {seeds} from {first_seed} on; "
            "lower --first-seed."
        )


def require_steps(steps: int) -> None:
    if steps > MAX_STEPS:
        raise InvalidInput(f"a run has at most {MAX_STEPS:,} steps, got more; lower --epochs, --period or --steps.")

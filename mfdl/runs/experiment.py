"""Options of a comparison, checked before any work, without the libraries that do the work."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from .. import metrics
from ..errors import InvalidInput
from ..spec import given_value, text_label
from . import options
from .option_files import is_own, shipped_trust, trust_text
from .options import OnGraph, Option, Protects

if TYPE_CHECKING:
    from ..check import FloatArray
    from ..dynamics import Dynamics
    from ..gossip import Gossip
    from ..objective import ErrorWeights
    from ..participation import Participation
    from ..trust import TrustModel


DEFAULT_MECHANISMS = ("none", "dp-dsgd", "d-mf", "mafalda")
DEFAULT_MU = 2.0
USUAL = {
    **dict.fromkeys(("metrics", "lr_schedule", "clip_schedule", "curvature", "precondition", "step_rule", "ranks")),
    **dict.fromkeys(("design", "sampling_rate")), "release_model": "last", "participation": "cyclic",
    "gossip_rounds": 1, "polynomial": "powers", "clipping": "flat",
}  # fmt: skip
"""Values of options that files leave out."""


@dataclasses.dataclass(frozen=True)
class Experiment(Protects, OnGraph):
    """Everything that decides the numbers of a comparison, and how they are computed.

    Attributes: as their options; mu, or epsilon at delta: with mu, delta only says where the equivalent epsilon is
        reported.
        clip_schedule: step t clips to clip_norm c_t and adds c_t times the noise, at the same privacy; not with
            momentum or weight decay.
        clipping, step_rule: as `replay` reads them; no clip schedule or curvature with the former, no hidden messages
            with the latter.
        error_weights: each mechanism that optimises, and names no weights itself, is there once for each of these.
    Raises: InvalidInput: a value out of range, an unknown mechanism, or two targets.
    """

    command: ClassVar[str] = "compare"
    SEVERAL: ClassVar[tuple[str, ...]] = ("mu", "epsilon", "learning_rate")

    mechanisms: options.Mechanisms = DEFAULT_MECHANISMS
    task: Annotated[str, Option(
        "digits, housing, a9a, mnist, ..., perhaps with parameters: mnist:split=pool,fraction=0.2; or a file of "
        "yours, own.csv:target=COLUMN or mytasks.py:FUNCTION (docs/howto_data.md).",
        metavar="NAME",
    )] = "digits"  # fmt: skip
    epochs: options.Epochs = 20
    period: options.Period = 16
    participation: options.Batches = "cyclic"
    sampling_rate: options.SamplingRate = None
    mu: Annotated[float | None, Option(
        "Privacy target: mu-Gaussian-DP; default 2 without --epsilon.",
        instead_of=("epsilon",), rule="positive", decides="run",
    )] = None  # fmt: skip
    epsilon: Annotated[
        float | None, Option("Privacy target instead of --mu.", instead_of=("mu",), rule="positive", decides="run")
    ] = None
    delta: options.Delta = 1e-6
    trust: Annotated[str, Option("Trust model of the ranking: a name of `mfdl trust list`.", metavar="NAME")] = "ldp"
    attackers: options.AttackerList = None
    colluders: options.ColluderList = None
    coalition_size: options.CoalitionSize = None
    release: options.Release = None
    release_model: options.ReleaseModel = "last"
    across_trust_models: Annotated[
        bool, Option("Also mechanisms meant for other trust models, each labelled with its own.")
    ] = False
    settings: Annotated[tuple[str, ...], Option(
        "A parameter of a mechanism, e.g. muffliato.gossip_rounds=4.", ("--set",), metavar="NAME.KEY=VALUE"
    )] = ()  # fmt: skip
    partition: Annotated[str | None, Option("Records of each node: uniform, or dirichlet:alpha=10.")] = None
    error_weights: Annotated[tuple[str, ...], Option(
        "Weights of the models in the objective of optimised mechanisms: all, last:M, last:M:FLOOR, "
        "exponential:H, released (the models of --release-model), or any of these with /average; "
        "/on-the-way=A adds A times the mean over the models at which gradients are taken. If repeated, each "
        "mechanism is trained once for each.",
        metavar="STEPS[/TARGET][/on-the-way=A]",
    )] = ()  # fmt: skip
    curvature: options.Curvature = None
    learning_rate: Annotated[float, Option("Learning rate.", ("--lr",), rule="positive")] = 0.5
    lr_schedule: options.LearningRateSchedule = None
    clip_schedule: Annotated[str | None, Option(
        "Schedule of the clipping norm, which scales the noise in proportion: a rule as for --lr-schedule.",
        metavar="RULE",
    )] = None  # fmt: skip
    clipping: Annotated[str, Option(
        "How gradients are scaled to --clip-norm C at most: flat (only longer ones), automatic[:GAMMA] (each g "
        "becomes C / (||g|| + GAMMA) g), quantile[:Q[:SHARE]] (flat at a norm that follows a quantile of the "
        "norms), or layers[:RATIO:...] (each layer at its own norm); at the same cost in privacy.",
        metavar="RULE", decides="run",
    )] = "flat"  # fmt: skip
    gossip_rounds: Annotated[int, Option("Gossip rounds after each step.", least=1)] = 1
    polynomial: Annotated[str, Option(
        "Polynomial of W in the rounds of a step: powers, chebyshev or least-noise (docs/gossip.md).", metavar="NAME",
    )] = "powers"  # fmt: skip
    design: Annotated[str | None, Option(
        "A design of `mfdl plan`, such as dp-dsgd,b=1,k=160,rounds=5,average:80, instead of --mechanism, --epochs, "
        "--period, --participation, --gossip-rounds, --polynomial and --release-model.",
        metavar="NAME",
    )] = None  # fmt: skip
    precondition: Annotated[str | None, Option(
        "A public linear map of the features before clipping: power:EXPONENT[:DECAY] for feature variances "
        "j^-DECAY, file:FILE with one scale a feature or a matrix, public-features:EXPONENT:FILE.",
        metavar="MAP",
    )] = None  # fmt: skip
    step_rule: Annotated[str | None, Option(
        "What nodes make of privatised gradients, at no cost in privacy where all messages are seen: normalised, "
        "nesterov:BETA, rms[:EXPONENT:DECAY:FLOOR], or messages[:EXPONENT:DECAY:FLOOR] (before clipping).",
        metavar="RULE", decides="run",
    )] = None  # fmt: skip
    momentum: options.Momentum = 0.0
    weight_decay: options.WeightDecay = 0.0
    seeds: Annotated[int, Option("Number of seeds.", least=1, decides="run")] = 3
    first_seed: Annotated[int, Option("The first seed.", least=0, decides="run")] = 0
    eval_every: Annotated[
        int | None, Option("Steps between evaluations; default one epoch.", least=1, decides="run")
    ] = None
    metrics: Annotated[tuple[str, ...], Option(
        "Further metrics besides the test loss and accuracy of each node: train_loss, average_loss, "
        "average_accuracy, average_train_loss (of the average model).",
        metavar="A,B", listed=True, decides="run",
    )] = ()  # fmt: skip
    device: options.Device = None
    jobs: Annotated[int, Option("Worker processes.", least=1, decides="nothing")] = 1
    ranks: Annotated[int | None, Option(
        "Number of processes that share the nodes of each run, including this one; an interrupted "
        "run then resumes from its last epoch.",
        least=1, decides="nothing",
    )] = None  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expand_design()
        if self.ranks is not None and self.jobs > 1:
            raise InvalidInput(
                f"--ranks {self.ranks} shares the nodes of one run, --jobs {self.jobs} trains several at a time; give "
                "one of them."
            )
        from ..algorithms import registry
        from ..gossip import from_array
        from ..released import ReleasedModel

        object.__setattr__(self, "metrics", metrics.requested(self.metrics))
        options.require_steps(self.epochs * self.period)
        options.require_seeds(self.seeds, self.first_seed)
        self.dynamics(from_array([[1.0]]))
        ReleasedModel(self.release_model).weights_by_step(self.epochs * self.period)
        if self.clip_schedule is not None and (self.momentum or self.weight_decay):
            raise InvalidInput(
                f"--clip-schedule {self.clip_schedule} scales the input of each step, but momentum "
                f"({self.momentum:g}) and weight decay ({self.weight_decay:g}) mix steps of different scales; "
                "leave them or the schedule out."
            )
        if self.clipping != "flat":
            self._check_clipping()
        if self.step_rule is not None:
            from ..training import step_rules

            object.__setattr__(self, "step_rule", str(step_rules.parse(self.step_rule)))
        if not isinstance(self.trust, str):
            self._name_trust(self.trust)
        self.trust_model()
        options.require_for_secret_batches(self)
        if self.has_secret_batches and self.unit == "user":
            raise InvalidInput(
                f"--unit user needs every record in every step, and {self.participation} is for --unit record."
            )
        if self.adjacency == "add-remove":
            raise InvalidInput(
                "--adjacency add-remove cannot be trained: split, record-to-step map and batch sizes depend "
                "on the number of records; use zero-out or replace-one."
            )
        if self.mu is not None and self.epsilon is not None:
            raise InvalidInput("give one privacy target: --mu, or --epsilon with --delta, not both.")
        if self.has_secret_batches and self.epsilon is None and set(self.mechanisms) - {"none"}:
            raise InvalidInput(f"--participation {self.participation} has no mu; give --epsilon, met at --delta.")
        if not self.mechanisms:
            raise InvalidInput("mechanisms must name at least one mechanism, e.g. none,dp-dsgd,mafalda.")
        parts = ((name, *name.partition(registry.WEIGHTS_MARK)) for name in self.mechanisms)
        in_full = (f"{base}{mark}{self._in_full(weights)}" if mark else name for name, base, mark, weights in parts)
        object.__setattr__(self, "mechanisms", tuple(in_full))  # names of the caller's objects as they are
        for name in self.mechanisms:
            registry.check_name(name)
            if not registry.serves(name, self.participation):
                raise InvalidInput(f"{name} is for balls-in-bins; add --participation {options.BINS}, or leave it out.")
        object.__setattr__(self, "mechanisms", self._with_weights())
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
        labels = [text_label(name) for name in self.mechanisms]
        if alike := [label for label in labels if labels.count(label) > 1]:
            raise InvalidInput(
                f"mechanisms must have names that differ, and two are called {alike[0]!r}: rename the function or the "
                "algorithm (algorithm.named(...))."
            )

    def _check_clipping(self) -> None:
        from ..training.clipping import parse_rule

        object.__setattr__(self, "clipping", str(parse_rule(self.clipping, self.clip_norm)))
        if self.clip_schedule is not None:
            raise InvalidInput(
                f"--clip-schedule {self.clip_schedule} changes the norm at which gradients are clipped, and "
                f"--clipping {self.clipping} has none; use --lr-schedule."
            )

    def _name_trust(self, model: Any) -> None:
        """Replaces a trust model by the options that name it, or one of the caller by its text."""
        from .. import check
        from ..algorithms import registry
        from ..trust import TrustModel

        check.instance(TrustModel, trust=model)
        options_of_model = shipped_trust(model)
        if not options_of_model or any("#" in str(nodes) for nodes in options_of_model.values()):
            probe = registry.build("dp-dsgd", self.dynamics(self.sparse_network()[1]), self.scheme())
            model.attackers(probe)  # refuses a number that may be an index or a label
            options_of_model = options_of_model or {"trust": trust_text(model, probe)}
        for name, value in options_of_model.items():
            object.__setattr__(self, name, value)

    def _expand_design(self) -> None:
        from ..planning.design import Design

        if self.design is None:
            return
        for name, value in Design.parse(self.design).options().items():
            _, option, default = self.fields()[name]
            if getattr(self, name) not in (default, value):
                raise InvalidInput(f"--design {self.design} sets {option.flags[0]}; give one of the two.")
            object.__setattr__(self, name, value)
        object.__setattr__(self, "design", None)

    def _in_full(self, weights: str) -> str:
        return options.weights_in_full(weights, self.release_model, self.curvature)

    def _with_weights(self) -> tuple[str, ...]:
        """The mechanisms, those that optimise once for each of the error weights; idempotent."""
        from ..algorithms import registry
        from ..objective import ErrorWeights

        texts = self.error_weights or (("all",) if self.curvature is not None else ())
        every = list(map(self._in_full, texts))
        for text in every:
            self._require_weights(ErrorWeights.parse(text))
        expanded: list[str] = []
        for name in self.mechanisms:
            base, weights = registry.split(name)
            if weights is not None:
                self._require_weights(weights)
            entry = registry.find_entry(name)
            if entry is None or not entry.weighted or weights is not None or not every:
                expanded.append(name)
            else:
                expanded += [f"{base}{registry.WEIGHTS_MARK}{text}" for text in every]
        return tuple(expanded)

    def _require_weights(self, weights: ErrorWeights) -> None:
        """Refuses weights of other steps, and a curvature that the run does not have or does not survive."""
        from ..gossip import from_array
        from ..objective import NoiseObjective

        weights.weights_by_step(self.epochs * self.period)
        if weights.curvature is None:
            return
        if self.clip_schedule is not None or self.clipping != "flat":
            option = "--clipping" if self.clip_schedule is None else "--clip-schedule"
            raise InvalidInput(
                f"{option} {self.clip_schedule or self.clipping} scales gradients, and with them the curvature of "
                "the loss; leave out one of them."
            )
        one_node = dataclasses.replace(weights, target="nodes")
        NoiseObjective(self.dynamics(from_array([[1.0]])), self.epochs * self.period, one_node)

    def dynamics(self, gossip: Gossip) -> Dynamics:
        """Momentum, decay and step sizes at gradients clipped to clip_norm, on a gossip matrix."""
        from ..dynamics import Dynamics

        T = self.epochs * self.period
        rates = options.stepping(self.lr_schedule, self.learning_rate, T) * options.stepping(self.clip_schedule, 1.0, T)
        more = self.values("momentum", "weight_decay", "gossip_rounds", "polynomial")
        return Dynamics(gossip, rates, **more)

    @property
    def clips(self) -> FloatArray | None:
        """c_t of each step; None where they are all 1."""
        from ..dynamics import schedule

        clips = schedule(self.clip_schedule or "constant", 1.0, self.epochs * self.period)
        return None if isinstance(clips, float) else clips

    @property
    def has_secret_batches(self) -> bool:
        return self.participation in options.SECRET

    @property
    def target_mu_or_default(self) -> float | None:
        return None if self.has_secret_batches else DEFAULT_MU if self.mu is None else self.mu

    @property
    def target(self) -> dict[str, Any]:
        """Keyword arguments of `calibrate`."""
        if self.epsilon is not None:
            return {"epsilon": self.epsilon, "delta": self.delta}
        return {"mu": self.target_mu_or_default}

    def scheme(self) -> Participation:
        from ..participation import EveryStep
        from ..participation.schemes import SCHEMES

        steps = self.epochs * self.period
        if self.unit == "user":
            return EveryStep(steps)
        run = self.values("epochs", "period") | {"steps": steps, "rate": self.sampling_rate}
        scheme: Participation = SCHEMES.entry(self.participation).from_run(**run)
        return scheme

    def parameters(self, name: str) -> dict[str, Any]:
        from ..algorithms import registry

        given = [text.removeprefix(f"{name}.") for text in self.settings if text.startswith(f"{name}.")]
        return registry.parse_parameters(name, given)

    def trust_model(self) -> TrustModel:
        model: TrustModel = given_value(self.trust, "trust") if is_own(self.trust) else options.named_trust(self)
        return model

    @property
    def seed_list(self) -> list[int]:
        return list(range(self.first_seed, self.first_seed + self.seeds))

    @property
    def measured_besides(self) -> tuple[str, ...]:
        """Fields of runs and results besides `final_test_loss` and `final_accuracy`, in their order."""
        final = tuple(metrics.result_key("final", name) for name in self.metrics)
        if self.release_model == "last":
            return final
        return (*final, *(metrics.result_key("last", name) for name in ("loss", "accuracy", *self.metrics)))

    def deciding_options(self) -> dict[str, Any]:
        return {name: value for name, value in self.options().items() if name not in self.deciding("nothing")}

    def options(self) -> dict[str, Any]:
        """Values by the names of the options of `mfdl compare`, JSON-ready; null where not set."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values["lr"] = values.pop("learning_rate")
        values["set"] = values.pop("settings")
        values["data_home"] = None if self.data_home is None else str(self.data_home)
        if self.epsilon is None:
            values["mu"] = self.target_mu_or_default
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if name not in USUAL or value not in ((), "", USUAL[name])
        }

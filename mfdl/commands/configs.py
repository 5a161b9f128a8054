"""Options of `mfdl account` and `mfdl factorize`, and which of the latter apply to which mechanism."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from ..errors import InvalidInput, require_known, unknown_name
from ..runs import options
from ..runs.options import OnGraph, Option, TakesPart, require_steps

if TYPE_CHECKING:
    from ..objective import ErrorWeights


@dataclasses.dataclass(frozen=True)
class AccountConfig(TakesPart, OnGraph):
    """One mechanism, graph and trust model; at most one of noise_std, noise_multiplier, mu, epsilon and budgets."""

    command: ClassVar[str] = "account"

    mechanism: Annotated[str, Option("One of `mfdl mechanisms`, or file:FILE.", metavar="NAME")] = "dp-dsgd"
    settings: options.Settings = ()
    trust: Annotated[str, Option("One of `mfdl trust list`.", metavar="NAME")] = "ldp"
    attackers: options.Attackers = None
    colluders: options.Colluders = None
    coalition_size: options.CoalitionSize = None
    all_attackers: Annotated[bool, Option("pndp: each node attacks alone, in turn.")] = False
    victims: Annotated[str | None, Option(
        "Nodes whose privacy loss is computed; default: all nodes that do not attack.", metavar="A,B"
    )] = None  # fmt: skip
    owners: Annotated[str | None, Option(
        "Nodes that may hold the same record: any Q nodes, or groups A+B,C+D of labels; each group is a victim "
        "besides the nodes.",
        metavar="Q|A+B",
    )] = None  # fmt: skip
    same_steps: Annotated[bool, Option("The owners of a record use it in the same steps (shared batches).")] = False
    noise_std: Annotated[
        float | None, Option("nu, the standard deviation of the base noise Z; default 1.", rule="non_negative")
    ] = None
    noise_multiplier: Annotated[
        float | None, Option("nu in units of worst sensitivity times record shift.", rule="non_negative")
    ] = None
    mu: Annotated[float | None, Option("Find the least nu for which mu is met.", rule="positive")] = None
    epsilon: Annotated[
        float | None, Option("Find the least nu for which this epsilon at --delta is met.", rule="positive")
    ] = None
    budgets: Annotated[Path | None, Option(
        'Instead of --mu: a JSON file {"LABEL": mu, ...} with the budget of each node, which scales '
        "the noise of that node."
    )] = None  # fmt: skip
    calibrate_under: Annotated[
        str | None, Option("Trust model under which the target is met; default --trust.", metavar="TRUST")
    ] = None
    delta: options.Delta = 1e-6
    lipschitz: Annotated[float | None, Option(
        "Lipschitz constant of the maps x -> x - learning rate * gradient(x); it gives smaller adaptive losses.",
        rule="non_negative",
    )] = None  # fmt: skip
    release: options.Release = None
    bound: Annotated[str, Option(
        "exact (upper and lower bound meet), or certified (fast upper bound).", among=("exact", "certified")
    )] = "exact"  # fmt: skip
    jobs: options.Jobs = None

    def __post_init__(self, typed: Collection[str]) -> None:
        super().__post_init__(typed)
        from .. import trust
        from ..algorithms import registry

        require_known("trust model", self.trust, trust.base.MODELS)
        registry.check_name(self.mechanism)
        self.parameters()
        names = ("noise_std", "noise_multiplier", "mu", "epsilon", "budgets")
        given = [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidInput(
                "give one of --noise-std, --noise-multiplier, --mu, --epsilon and --budgets, got "
                f"{' and '.join(given)}."
            )
        if self.calibrate_under is not None and self.target is None and self.budgets is None:
            raise InvalidInput(
                "--calibrate-under is the trust model under which a target is met; give --mu, --epsilon or "
                "--budgets, or leave it out."
            )
        if self.budgets is not None and (self.all_attackers or self.has_secret_batches):
            which, way_out = ("--all-attackers", "name the attackers with --attackers")
            if self.has_secret_batches:
                which, way_out = (self.participation, "give --epsilon, or a public participation")
            raise InvalidInput(
                f"--budgets needs one set of attackers and a mu for each node, which {which} does not have; {way_out}."
            )
        self._check_owners()
        if self.unit == "user" and self.lipschitz is not None:
            raise InvalidInput("--lipschitz belongs to per-record clipping, i.e. to --unit record; leave it out.")

    def _check_owners(self) -> None:
        if self.owners is None:
            if self.same_steps:
                raise InvalidInput("--same-steps says how several owners use a record; give --owners, or leave it out.")
            return
        excluded = {"--victims": self.victims, "--all-attackers": self.all_attackers, "--budgets": self.budgets}
        given = [name for name, value in excluded.items() if value]
        if given:
            needs = "--owners computes every node and every group of owners for one set of attackers"
            raise InvalidInput(f"{needs}; leave out {' and '.join(given)}.")

    def parameters(self) -> dict[str, Any]:
        """The settings, as the builder takes them; covariances are made against the coalitions that attack."""
        from ..algorithms import registry

        given = registry.parse_parameters(self.mechanism, self.settings)
        if "coalition_size" in registry.settable_parameters(self.mechanism) and self.coalition_size is not None:
            given.setdefault("coalition_size", self.coalition_size)
        return given

    @property
    def target(self) -> dict[str, Any] | None:
        """Keyword arguments of `calibrate`; None where the noise is given."""
        if self.epsilon is not None:
            return self.values("epsilon", "delta")
        return None if self.mu is None else self.values("mu")

    @property
    def accounting(self) -> dict[str, Any]:
        """Keyword arguments of `sensitivity_by_victim` besides algorithm, trust model and victims."""
        return {"release": self.release, "method": self.bound, "lipschitz": self.lipschitz, "unit": self.unit}


PER_NODE = ("mafalda-l", "mafalda-classes")
SECRET = "mafalda-bins"
TEMPORAL = ("mafalda", SECRET, *PER_NODE, "d-mf", "bsr")
SPATIAL = ("corn", "corn-pairwise", "decor")
BOTH = ("kronecker", "per-mode", "joint")
FORMS = ("toeplitz", "banded", "buffered", "inverse", "banded-inverse")  # as of long_runs, by a test
BIN_FORMS = FORMS[:2]  # those that are searched for balls-in-bins too
IGNORED = (  # by which mechanisms (none: all over time) which fields, and why
    ((), "coalition groups max_inverse_diagonal horizon", "it is noise over time"),
    ([SECRET], "tolerance max_iterations device counted_models", "it has one search"),
    (SPATIAL, "epochs period device", "it is noise over nodes, fresh in every step"),
    (SPATIAL[1:], "solver tolerance max_iterations", "it searches one ratio, with no solver"),
    (SPATIAL[1:], "groups", "it has one seed per edge; for other groups use --mechanism corn"),
    (["corn-pairwise"], "coalition", "it is against an outsider; for coalitions use --mechanism decor"),
    (BOTH, "max_inverse_diagonal", "its scale is unit sensitivity"),
    (BOTH, "horizon", "its steps are epochs x period"),
    (BOTH, "solver device", "it has one solver, on the CPU"),
    ((*PER_NODE, SECRET, *SPATIAL, *BOTH), "measure", "its objective is a sum"),
    ((*PER_NODE, SECRET, *SPATIAL, *BOTH), "probes probe_seed", "its error Gram is never estimated"),
    (BOTH[1:], "coalition groups", "it has one seed for all; for groups use kronecker"),
)


@dataclasses.dataclass(frozen=True)
class FactorizeConfig(OnGraph):
    """One mechanism on one graph. Args: typed: fields given on purpose, even at their defaults."""

    command: ClassVar[str] = "factorize"
    STOPPED: ClassVar[str] = "stopped"  # status of a solver that ran out of iterations

    mechanism: Annotated[str, Option(
        "Over time: mafalda, mafalda-bins (under balls-in-bins), mafalda-classes, mafalda-l, d-mf, bsr, file:FILE. "
        "Over nodes: corn, corn-pairwise, decor. Over both: kronecker, per-mode, joint.",
        metavar="NAME",
    )] = "mafalda"  # fmt: skip
    epochs: options.Epochs = 20
    period: options.Period = 16
    participation: options.Batches = "cyclic"
    epsilon: Annotated[float | None, Option(
        "Balls-in-bins: the target epsilon at --delta for which the encoder is optimised.", rule="positive"
    )] = None  # fmt: skip
    delta: options.Delta = 1e-6
    adjacency: options.Adjacency = "replace-one"
    counted_models: Annotated[str, Option("Models in the objective: post-average, or message (before averaging).")] = (
        "post-average"
    )
    error_weights: Annotated[str | None, Option(
        "Weights of the models in the objective: all, last:M, last:M:FLOOR, exponential:H, released "
        "(the models of --release-model), or any of these with /average; /on-the-way=A adds A times the mean "
        "over the models at which gradients are taken.",
        metavar="STEPS[/TARGET][/on-the-way=A]",
    )] = None  # fmt: skip
    release_model: options.ReleaseModel = "last"
    curvature: options.Curvature = None
    measure: Annotated[str, Option(
        "Of the errors of the models after each step: their sum, or the maximum.",
        metavar="NAME", among=("sum", "maximum"),
    )] = "sum"  # fmt: skip
    momentum: options.Momentum = 0.0
    weight_decay: options.WeightDecay = 0.0
    lr: Annotated[float, Option(
        "Learning rate; it matters with weight decay or curvature. The objective is in units of its square."
    )] = 1.0  # fmt: skip
    tolerance: Annotated[
        float | None, Option("Certified relative gap to reach; default 1e-4, for per-mode and seed groups 1e-3.")
    ] = None
    solver: Annotated[str, Option(
        "dense (dual, L-BFGS) or autodiff (torch); corn with groups: newton or conic. mafalda over many steps, the "
        "best of a form: toeplitz, banded (these two for balls-in-bins too), buffered, inverse, banded-inverse."
    )] = "dense"  # fmt: skip
    bandwidth: Annotated[int | None, Option(
        "Number of diagonals, for the forms that have diagonals; default: the period (at most 32, "
        "except for toeplitz).",
        least=1,
    )] = None  # fmt: skip
    buffers: Annotated[int, Option("buffered: exponentials.", least=1)] = 6
    max_iterations: Annotated[int, Option("Iterations after which to stop.", least=1)] = 5000
    coalition: Annotated[int, Option(
        "corn, decor, kronecker: protect against any Q colluding nodes; 0: against an outsider.", metavar="Q"
    )] = 0  # fmt: skip
    groups: Annotated[Path | None, Option(
        "corn, kronecker: groups of nodes that share a seed, a JSON list of lists of node labels; "
        "default: all nodes, or with --coalition the two ends of every edge.",
        metavar="FILE.json",
    )] = None  # fmt: skip
    max_inverse_diagonal: Annotated[float, Option("Noise over nodes: the bound on [R^-1]_ii.", metavar="R")] = 1.0
    horizon: Annotated[int, Option("Noise over nodes: number of steps in the objective.", metavar="STEPS")] = 1
    probes: Annotated[
        int, Option("Random probes of the error Gram of graphs too large for its exact form.", least=2)
    ] = 8
    probe_seed: Annotated[int, Option("Seed of the probes.", least=0)] = 0
    device: options.Device = None
    jobs: Annotated[int | None, Option("CPU threads of the linear algebra; default: all.", least=1)] = None
    typed: dataclasses.InitVar[Collection[str]] = ()

    def __post_init__(self, typed: Collection[str]) -> None:
        if not self.mechanism.startswith("file:") and self.mechanism not in TEMPORAL + SPATIAL + BOTH:
            raise unknown_name("mechanism", self.mechanism, [*TEMPORAL, *SPATIAL, *BOTH, "file:FILE"])
        self._require_target(typed)
        for mechanisms, names, reason in IGNORED:
            for name in names.split():
                value, usual = getattr(self, name), getattr(type(self), name)
                applies = self.mechanism not in (mechanisms or [self.mechanism] * self.over_time)
                if not applies and (name in typed or value != usual):
                    raise InvalidInput(
                        f"--{name.replace('_', '-')} does not apply to {self.mechanism}: {reason}; got {value!r}, "
                        f"leave it out{'' if name in typed else f' or at {usual!r}'}."
                    )
        super().__post_init__()
        from .. import check

        check.device(device=self.device)
        self._require_form_options()
        require_steps(self.epochs * self.period)
        self.weights  # noqa: B018 - parsed

    def _require_target(self, typed: Collection[str]) -> None:
        """Balls-in-bins needs a target and one mechanism, which mafalda names too; the others have neither."""
        if self.participation == options.BINS:
            if self.mechanism not in ("mafalda", SECRET):
                raise InvalidInput(
                    f"--participation {options.BINS} needs --mechanism {SECRET} (or mafalda, which means the same "
                    f"there), got {self.mechanism}; leave one of them out."
                )
            if self.epsilon is None:
                raise InvalidInput(
                    f"--participation {options.BINS} has no sensitivity, so the best encoder depends on the "
                    "target; give --epsilon, met at --delta."
                )
            from ..privacy import gaussian

            gaussian.record_shift(self.adjacency, 1.0)
            object.__setattr__(self, "mechanism", SECRET)
            return
        if self.mechanism == SECRET:
            raise InvalidInput(
                f"{SECRET} is for balls-in-bins; add --participation {options.BINS} --epsilon E, or use mafalda."
            )
        for name in ("epsilon", "delta", "adjacency"):
            if name in typed or getattr(self, name) != getattr(type(self), name):
                raise InvalidInput(
                    f"--{name} {getattr(self, name)} is for --participation {options.BINS}: the best encoder for "
                    "public batches does not depend on the target; leave it out."
                )

    @property
    def form(self) -> str | None:
        return self.solver if self.solver in FORMS and self.over_time else None

    def _require_form_options(self) -> None:
        if self.mechanism == SECRET and self.solver not in ("dense", *BIN_FORMS):
            raise InvalidInput(
                f"--solver {self.solver} does not apply to {SECRET}; take dense, or for many steps "
                f"{' or '.join(BIN_FORMS)}."
            )
        if self.form is None:
            if self.bandwidth is not None or self.buffers != type(self).buffers:
                raise InvalidInput(f"--bandwidth and --buffers are for --solver {', '.join(FORMS)}; leave them out.")
        elif self.mechanism not in ("mafalda", SECRET):
            raise InvalidInput(f"--solver {self.solver} searches an encoder for all nodes; use it with mafalda.")
        elif self.measure != "sum":
            raise InvalidInput(f"--measure {self.measure} is for --solver dense; leave one of them out.")
        elif self.tolerance is not None:
            raise InvalidInput(
                f"--tolerance is for other solvers: the gap of the best {self.solver} encoder cannot be chosen."
            )

    @property
    def weights(self) -> ErrorWeights | None:
        """Counted errors; the released model alone where one is named and nothing else is given."""
        from ..objective import ErrorWeights

        text = self.error_weights
        if text is None and self.release_model != "last":
            text = "released"
        if text is None and self.curvature is None:
            return None
        return ErrorWeights.parse(
            options.weights_in_full("all" if text is None else text, self.release_model, self.curvature)
        )

    @property
    def over_time(self) -> bool:
        return self.mechanism not in SPATIAL + BOTH

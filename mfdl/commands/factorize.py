"""`mfdl factorize`: the encoder of one mechanism on one graph, with its certificate: its options and its words."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from ..errors import InvalidInput, unknown_name
from ..runs import options
from ..runs.options import OnGraph, Option, require_steps
from ..runs.output import rounded_up
from . import terminal
from .terminal import Answer, command

if TYPE_CHECKING:
    from ..objective import ErrorWeights


PER_NODE = ("mafalda-l", "mafalda-classes")
SECRET = "mafalda-bins"
TEMPORAL = ("mafalda", SECRET, *PER_NODE, "d-mf", "bsr")
SPATIAL = ("corn", "corn-pairwise", "decor")
BOTH = ("kronecker", "per-mode", "joint")
FORMS = (
    "toeplitz",
    "banded",
    "buffered",
    "inverse",
    "banded-inverse",
)  # as of long_runs, by a test
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
    """One mechanism on one graph.

    Args: typed: fields given on purpose, even at their defaults.
    Raises: InvalidInput: an unknown mechanism, a field that it does not have (typed, or not at its default), a value
        out of range, a device that cannot be used.
    """

    command: ClassVar[str] = "factorize"
    STOPPED: ClassVar[str] = "stopped"  # status of a solver that ran out of iterations

    mechanism: Annotated[
        str,
        Option(
            "Over time: mafalda, mafalda-bins (under balls-in-bins), mafalda-classes, mafalda-l, d-mf, bsr, file:FILE. "
            "Over nodes: corn, corn-pairwise, decor. Over both: kronecker, per-mode, joint.",
            metavar="NAME",
        ),
    ] = "mafalda"
    epochs: options.Epochs = 20
    period: options.Period = 16
    participation: options.Batches = "cyclic"
    epsilon: Annotated[
        float | None,
        Option("Balls-in-bins: the target epsilon at --delta for which the encoder is optimised.", rule="positive"),
    ] = None
    delta: options.Delta = 1e-6
    adjacency: options.Adjacency = "replace-one"
    counted_models: Annotated[str, Option("Models in the objective: post-average, or message (before averaging).")] = (
        "post-average"
    )
    error_weights: Annotated[
        str | None,
        Option(
            "Weights of the models in the objective: all, last:M, last:M:FLOOR, exponential:H, released "
            "(the models of --release-model), or any of these with /average; /on-the-way=A adds A times the mean "
            "over the models at which gradients are taken.",
            metavar="STEPS[/TARGET][/on-the-way=A]",
        ),
    ] = None
    release_model: options.ReleaseModel = "last"
    curvature: options.Curvature = None
    measure: Annotated[
        str,
        Option(
            "Of the errors of the models after each step: their sum, or the maximum.",
            metavar="NAME",
            among=("sum", "maximum"),
        ),
    ] = "sum"
    momentum: options.Momentum = 0.0
    weight_decay: options.WeightDecay = 0.0
    lr: Annotated[
        float,
        Option("Learning rate; it matters with weight decay or curvature. The objective is in units of its square."),
    ] = 1.0
    tolerance: Annotated[
        float | None, Option("Certified relative gap to reach; default 1e-4, for per-mode and seed groups 1e-3.")
    ] = None
    solver: Annotated[
        str,
        Option(
            "dense (dual, L-BFGS) or autodiff (torch); corn with groups: newton or conic. mafalda over many steps, the "
            "best of a form: toeplitz, banded (these two for balls-in-bins too), buffered, inverse, banded-inverse."
        ),
    ] = "dense"
    bandwidth: Annotated[
        int | None,
        Option(
            "Number of diagonals, for the forms that have diagonals; default: the period (at most 32, "
            "except for toeplitz).",
            least=1,
        ),
    ] = None
    buffers: Annotated[int, Option("buffered: exponentials.", least=1)] = 6
    max_iterations: Annotated[int, Option("Iterations after which to stop.", least=1)] = 5000
    coalition: Annotated[
        int,
        Option("corn, decor, kronecker: protect against any Q colluding nodes; 0: against an outsider.", metavar="Q"),
    ] = 0
    groups: Annotated[
        Path | None,
        Option(
            "corn, kronecker: groups of nodes that share a seed, a JSON list of lists of node labels; "
            "default: all nodes, or with --coalition the two ends of every edge.",
            metavar="FILE.json",
        ),
    ] = None
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
        """Balls-in-bins has a target and one mechanism, for which mafalda stands; the others have neither."""
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
        """The form with structure that is searched; None where the solver has none."""
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
        """What counts; the released model alone where one is named and nothing else is said."""
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
        """Noise over steps, the same at every node or of its own."""
        return self.mechanism not in SPATIAL + BOTH


STOPPED_EXIT_CODE = 3


@command(FactorizeConfig, "File of the result; file:FILE is then a mechanism.", metavar="FILE")
def factorize(config: FactorizeConfig, out: Path | None) -> Answer:
    """Factorize the error of decentralized learning: objective, certified lower bound, gap.

    Over time (mafalda, d-mf, ...) and over time and nodes (kronecker, ...) objective is sensitivity^2 tr(H X^-1), the
    variance of the noise in all models together per unit of noise and coordinate; with --measure maximum, in the
    models after the worst step. Over nodes (corn, corn-pairwise,
    decor) it is tr(W R W^T), R the covariance of one step, at [R^-1]_ii <= 1 for every node, or the bound of
    --max-inverse-diagonal; there are no epochs. For balls-in-bins (--participation balls-in-bins --epsilon E) it is
    tr(H X^-1) with max M_rr = 1, and the root error is its root times the noise that meets the target. The
    objective is at most the gap above the optimum. Exits with 3 when the solver stopped before the tolerance.
    """
    from .factorize_jobs import run_factorize

    answer = run_factorize(config, out)
    return answer, lambda: _show(answer, out), STOPPED_EXIT_CODE * (answer["status"] == FactorizeConfig.STOPPED)


def _show(answer: dict[str, Any], out: Path | None) -> None:
    table = terminal.table(("", " "), title=f"{answer['mechanism']} on {answer['graph']}", right=(" ",))
    table.show_header = False
    rows = {
        "nodes": f"{answer['nodes']:,}",
        **_shape(answer),
        "gossip": answer["gossip"],
        "counted_models": answer["counted_models"],
        "objective": _number(answer["objective"]) + _bar(answer),
        **({} if _error_hides_gap(answer) else {"lower bound": _number(answer["lower_bound"])}),
        "gap": "within the error of the estimate" if _error_hides_gap(answer) else _percent(answer["gap"]) or "inf",
        "status": answer["status"],
        "iterations": f"{answer['iterations']:,}",
        "seconds": f"{answer['seconds']:.2f}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    terminal.say([table, _sentence(answer), *(f"Note: {note}" for note in answer["notes"])])
    if out is not None:
        kind = "Covariance" if answer["steps"] is None else "Noise" if "independent_objective" in answer else "Encoder"
        terminal.say([f"{kind} written to {out}; use it as the mechanism file:{out}."])


def _shape(answer: dict[str, Any]) -> dict[str, str]:
    """Rows that only some mechanisms have."""
    rows = {}
    if answer["steps"] is not None:
        rows["steps"] = f"{answer['steps']:,} ({answer['epochs']} epochs of {answer['period']})"
    if answer["error_weights"] is not None:
        rows["error weights"] = answer["error_weights"]
    if "measure" in answer:
        rows["measure"] = f"{answer['measure']} of the errors of the steps"
    if "root_error" in answer:
        rows["balls-in-bins"] = f"{answer['period']}, correlated at most {answer['correlation']:.3g}"
        rows["target"] = f"epsilon = {answer['epsilon']:g} at delta = {answer['delta']:g}, {answer['adjacency']}"
        rows["base noise std"] = _number(answer["noise_std"])
        rows["root error"] = f"{_number(answer['root_error'])} (at least {_number(answer['root_error_bound'])})"
    if "independent_objective" not in answer:
        return rows
    rows["against"] = f"coalitions of {answer['coalition']}" if answer["coalition"] else "an outsider"
    if answer["steps"] is None:
        rows["[R^-1]_ii at most"] = f"{answer['max_inverse_diagonal']:g}"
    rows["shared seeds"] = f"{answer['groups']:,}"
    rows["private std"] = _number(answer["private_std"])
    if answer.get("sigma_cor") is not None:
        rows["pairwise std"] = _number(answer["sigma_cor"])
    return {**rows, "objective of independent noise": _number(answer["independent_objective"])}


def _number(value: float | str | None) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.1f}" if value >= 1e4 else f"{value:.6g}"


def _bar(answer: dict[str, Any]) -> str:
    """The error bar of an objective that refers to an estimate."""
    return f" +- {answer['objective_error']:.2g} (95 %)" if "objective_error" in answer else ""


def _error_hides_gap(answer: dict[str, Any]) -> bool:
    """Whether the objective is estimated less precisely than the gap is certified."""
    gap = answer["gap"]
    return isinstance(gap, float) and gap * answer["objective"] <= answer.get("objective_error", -math.inf)


def _percent(gap: float | str | None) -> str:
    """A certified gap: an upper bound, rounded up; empty where it is not finite."""
    return f"at most {rounded_up(100 * max(gap, 0.0))} %" if isinstance(gap, float) else ""


def _sentence(answer: dict[str, Any]) -> str:
    if not (at_most := _percent(answer["gap"])):
        return "No finite gap is certified."
    best = answer.get("bound_over", "encoder of any shape")
    scope = "certified for the estimate" if "objective_error" in answer else "certified"
    certified = f"The objective is {at_most} above that of the best {best} ({scope})."
    if _error_hides_gap(answer):
        error = f"{100 * answer['objective_error'] / answer['objective']:.1g} %"
        certified = f"The objective is that of the best {best} up to the error of the estimate, {error}."
    if answer["status"] == FactorizeConfig.STOPPED:
        return f"Stopped before the tolerance; raise --max-iterations or --tolerance. {certified}"
    return certified

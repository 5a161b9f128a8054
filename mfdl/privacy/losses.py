"""One question about an algorithm, and everything that can be said in answer: losses, guarantees, calibrated noise."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from .. import check
from ..algorithms import LinearAlgorithm
from ..algorithms.registry import misplaced
from ..errors import InvalidInput, require_known
from ..participation import Participation
from ..progress import Progress
from ..shown import rounded_up
from ..trust import TrustModel
from . import budgets, gaussian
from .accounting import MOST_SHOWN, VictimLoss, asked_participation, victim_losses, worst_loss
from .explanation import explanation
from .fingerprint import Fingerprint
from .guarantee import DELTA, EVERY_NODE, UNITS, Guarantee
from .loss_tables import Cells, LossTable, distances
from .sensitivity import Sensitivity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHIFT_NOTE = "assuming that the local maps x - eta g(x) are Lipschitz with constant"
SHOWN_VICTIMS = 20  # in a notebook


@dataclasses.dataclass(frozen=True)
class Question:
    """What a privacy number is asked for.

    Attributes:
        trust: who sees and knows what.
        adjacency: "zero-out", "add-remove" or "replace-one".
        clip_norm: bound on the norm of one record's gradient, or of a node's mean gradient at user level, > 0.
        participation: default the algorithm's own; with one per node, each victim is held to its own.
        release: "none", "average" or "all" final models published, where messages are hidden; default the trust
            model's own, `trust.default_release`.
        unit: "record", or "user" for all data of a node, which needs participation in every step.
        method: "exact" or "certified" (fast upper bound).
        lipschitz: L of the local gradient maps, for shift reduction where the view alone is not adaptive; with
            unit "record" only.
    """

    trust: TrustModel
    adjacency: str
    clip_norm: float
    participation: Participation | None = None
    release: str | None = None
    unit: str = "record"
    method: str = "exact"
    lipschitz: float | None = None

    @property
    def record_shift(self) -> float:
        """How far one record moves a sum of clipped gradients. Raises: InvalidInput: adjacency or clip_norm."""
        return gaussian.record_shift(self.adjacency, self.clip_norm)

    def participation_in(self, algorithm: LinearAlgorithm) -> Participation:
        """The participation that is asked about."""
        return asked_participation(algorithm, self.participation)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Losses(LossTable):
    """The losses of the victims that a question is about, and what follows from them for a noise.

    Raises: InvalidInput: no losses, or losses of another question or algorithm than those beside them.

    >>> from mfdl import Dynamics, algorithms, gossip, participation, trust
    >>> algorithm = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("ring:n=4")), participation.Cyclic(2, 2))
    >>> losses = Losses.of(algorithm, Question(trust.LDP(), adjacency="zero-out", clip_norm=1.0))
    >>> round(losses.guarantee(noise_std=1.0).mu, 6), round(losses.calibrate(mu=1.0).noise_std, 6)
    (1.414214, 1.414214)
    """

    algorithm: LinearAlgorithm
    question: Question
    of_victims: tuple[VictimLoss, ...]

    def __post_init__(self) -> None:
        if not self.of_victims:
            raise InvalidInput("losses must be of at least one victim.")
        require_unit(self.question.unit, self.question.participation_in(self.algorithm))
        # the models that a view holds need not be those asked for, and statements name those that it holds
        require_same(self.of_victims, self.algorithm, dataclasses.replace(self.question, release=None))

    @classmethod
    def of(
        cls,
        algorithm: LinearAlgorithm,
        question: Question,
        *,
        victims: Sequence[int] | None = None,
        progress: Progress = "auto",
    ) -> Losses:
        """Computes them; see `accounting.victim_losses`.

        Raises: InvalidInput: an argument out of range, or a unit that cannot be protected (`require_unit`).
        """
        q = question
        check.instance(Question, question=q)
        require_unit(q.unit, q.participation_in(algorithm), lipschitz=q.lipschitz)
        gaussian.record_shift(q.adjacency, q.clip_norm)  # what is wrong with them is said before any work
        losses = victim_losses(
            algorithm,
            q.trust,
            victims=victims,
            participation=q.participation,
            release=q.release,
            method=q.method,
            lipschitz=q.lipschitz,
            unit=q.unit,
            progress=progress,
        )
        return cls(algorithm, question, tuple(losses))

    def _sentence(self) -> str:
        q = self.question
        return (
            f"of {len(self.of_victims)} nodes of {self.algorithm.name!r} against {q.trust.attacker} ({q.trust.name}), "
            f"{q.adjacency}, clip {q.clip_norm:g}: sensitivity of the worst {rounded_up(self.worst.value, 6)} "
            f"({self.worst.bound}), so mu = {rounded_up(self.worst.value * q.record_shift, 6)} / noise_std"
            f"{''.join(f', {note}' for note in shift_notes(self.rests_on))}"
        )

    def _rows(self) -> list[tuple[str, str]]:
        table = self.table()
        rows = [
            (row["victim"], f"{rounded_up(row['adaptive_sensitivity_squared'] ** 0.5, 6)} ({row['adaptive_bound']})")
            for row in table[:SHOWN_VICTIMS]
        ]
        return [("victim", "sensitivity"), *rows, *([("...", f"{len(table)} nodes")] if len(table) > len(rows) else [])]

    def _figure(self) -> Figure | None:
        return cast("Figure", self.heatmap().figure) if len(self.of_victims) <= SHOWN_VICTIMS else None

    @property
    def worst(self) -> Sensitivity:
        """The largest number for training."""
        return worst_loss(self.of_victims).trained

    @property
    def rests_on(self) -> float | None:
        """The least Lipschitz constant if any victim is covered by shift reduction: the worst of them need not be."""
        return min((loss.lipschitz for loss in self.of_victims if loss.lipschitz is not None), default=None)

    def guarantee(self, noise_std: float, *, each: bool = False) -> Guarantee:
        """What base noise of this standard deviation guarantees to every node, for adaptive gradients.

        Args: each: state the mu of each victim too, `Guarantee.by_victim`.
        Raises: InvalidInput: losses of some victims only; those are stated one by one (`by_victim`).
        """
        self._require_everybody()
        return self._of_everybody(check.non_negative(noise_std=noise_std), worst_loss(self.of_victims), each=each)

    def _of_everybody(self, noise_std: float, worst: VictimLoss, *, each: bool = False) -> Guarantee:
        participation = self.question.participation_in(self.algorithm)
        shown = max({loss.release for loss in self.of_victims}, key=MOST_SHOWN.index)
        return self._stated(noise_std, worst, participation, EVERY_NODE, shown, self.rests_on, each=each)

    def _worst_victim(self, worst: VictimLoss) -> str:
        return f"node {self.algorithm.dynamics.gossip.labels[worst.victim]!r}, the worst victim"

    def by_victim(self, noise_std: float, *, adaptive: bool = True) -> list[Guarantee]:
        """One guarantee for each victim, naming its own participation.

        Args: adaptive: the numbers for adaptive gradients; False: for gradients fixed in advance, and so labelled.
        """
        labels, scheme = self.algorithm.dynamics.gossip.labels, self.question.participation_in(self.algorithm)
        stated = []
        for loss in self.of_victims:
            own, name = scheme.of_node(loss.victim), str(labels[loss.victim])
            stated.append(self._stated(noise_std, loss, own, name, loss.release, loss.lipschitz, adaptive=adaptive))
        return stated

    def calibrate(
        self,
        *,
        mu: float | Mapping[Hashable, float] | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
    ) -> Guarantee:
        """The guarantee of the least noise that meets a target for adaptive gradients, never overshooting it.

        Args: mu > 0, or epsilon > 0 and delta in (0, 1); mu may be a budget for each node by its label, which the
            worst of the nodes decides, so that the algorithm should be `budgets.scaled` to them.
        Raises: InvalidInput: no target or two, or an infinite loss.
        """
        each = isinstance(mu, Mapping)
        if isinstance(mu, Mapping):
            targets = budgets.of_nodes(self.algorithm, mu).tolist()
        else:
            targets = [target_mu(mu, epsilon, delta)] * self.algorithm.num_nodes
        self._require_everybody()
        worst, name, shift = worst_loss(self.of_victims), self.algorithm.name, self.question.record_shift
        if math.isinf(worst.trained.squared):
            if self.algorithm.noise.is_zero:
                raise InvalidInput(
                    f"{name!r} has no noise to scale, so no target can be met; use without_noise(algorithm, ...)."
                )
            raise InvalidInput(
                f"{name!r} has infinite loss under trust model {self.question.trust.name!r} for "
                f"{self._worst_victim(worst)}, whatever the noise: "
                f"{worst.trained.why or 'no number holds for training'}; choose another trust model or mechanism."
            )
        held = [(loss, targets[loss.victim]) for loss in (self.of_victims if each else [worst])]
        std = max(gaussian.noise_std(1 / target, loss.trained.value, shift) for loss, target in held)

        def overshoots(stated: Guarantee) -> bool:
            if epsilon is not None and delta is not None and stated.epsilon(delta) > epsilon:
                return True
            return any(loss.mu(record_shift=shift, noise_std=stated.noise_std) > target for loss, target in held)

        stated, more = self._of_everybody(std, worst, each=each), 2.0**-52
        while overshoots(stated):  # by rounding only, so a few doublings of the last bit end it
            std = max(stated.noise_std * (1 + more), sys.float_info.min)  # 0 would not grow
            stated, more = self._of_everybody(std, worst, each=each), 2 * more
        return stated if delta is None else dataclasses.replace(stated, stated_delta=delta)

    def noise_std(self, *, noise_std: float | None = None, noise_multiplier: float | None = None) -> float:
        """nu, given as it is or as a multiple of sensitivity times record shift; exactly one of the two."""
        require_noise(noise_std, noise_multiplier)
        if noise_std is not None:
            return check.non_negative(noise_std=noise_std)
        worst = self.worst
        if math.isinf(worst.squared):
            raise InvalidInput(
                "noise_multiplier needs a mechanism with noise that the attacker does not know, i.e. a finite "
                "sensitivity; give noise_std."
            )
        multiplier = check.non_negative(noise_multiplier=noise_multiplier)
        return gaussian.noise_std(multiplier, worst.value, self.question.record_shift)

    def _require_everybody(self) -> None:
        victims, asked = {loss.fixed.node for loss in self.of_victims}, set[int]()
        for _, of_member in self.question.trust.members(self.algorithm):
            asked |= set(of_member)
            if len(asked) == self.algorithm.num_nodes:
                break
        if missing := asked - victims:
            raise InvalidInput(
                f"what is stated of every node needs the losses of all of them, and node {min(missing)} was not asked "
                "about; leave victims out, or state single victims with by_victim."
            )

    def table(self) -> list[dict[str, Any]]:
        """One row for each victim: both squared sensitivities, what they are, and where the second comes from."""
        labels = self.algorithm.dynamics.gossip.labels
        return [
            {
                "victim": str(labels[loss.victim]),
                "sensitivity_squared": loss.sensitivity_squared,
                "bound": loss.bound,
                "adaptive_sensitivity_squared": loss.adaptive_sensitivity_squared,
                "adaptive_bound": loss.adaptive_bound,
                "adaptive_by": loss.adaptive_by,
                "why": explanation(loss),
            }
            for loss in self.of_victims
        ]

    # ---- tables and pictures -------------------------------------------------------------------------------

    def rows(self, noise_std: float = 1.0, *, delta: float = DELTA, adaptive: bool = True) -> list[dict[str, Any]]:
        """One row for each victim: who attacks, how far away, mu and epsilon at a noise, for long tables.

        Args: noise_std: of base noise; the default 1 gives mu per unit noise. adaptive: the numbers that hold for
            training; False: those for gradients fixed in advance.
        """
        check.non_negative(noise_std=noise_std)
        q, labels = self.question, self.algorithm.dynamics.gossip.labels
        nodes = q.trust.attackers(self.algorithm)
        hops = distances(self.algorithm, nodes)
        who = ", ".join(str(labels[v]) for v in nodes) if nodes else q.trust.attacker
        rows: list[dict[str, Any]] = []
        for loss in self.of_victims:
            mu = loss.mu(record_shift=q.record_shift, noise_std=noise_std, adaptive=adaptive)
            rows.append(
                {
                    "attacker": who,
                    "victim": str(labels[loss.victim]),
                    "distance": hops.get(loss.victim),
                    "mu": mu,
                    "epsilon": gaussian.epsilon_from_mu(mu, delta),
                    "delta": delta,
                    "noise_std": float(noise_std),
                    "adaptive": adaptive or loss.adaptive,
                    "bound": loss.held(adaptive=adaptive).bound,
                    "trust": q.trust.name,
                }
            )
        return rows

    def _cells(self, rows: list[dict[str, Any]], metric: str, *, adaptive: bool) -> Cells:
        title = f"{self.algorithm.name}: what each node loses"
        return Cells([[row[metric]] for row in rows], [row["victim"] for row in rows], [rows[0]["attacker"]], title)

    def _stated(
        self,
        noise_std: float,
        loss: VictimLoss,
        participation: Participation,
        victim: str,
        release: str,
        rests_on: float | None,
        *,
        adaptive: bool = True,
        each: bool = False,
    ) -> Guarantee:
        """The guarantee of one loss; release and Lipschitz constant are those of all that it is the worst of."""
        q, shift, sensitivity = self.question, self.question.record_shift, loss.held(adaptive=adaptive)
        assert loss.fingerprint is not None
        whose = self._worst_victim(loss) if victim == EVERY_NODE else ""
        reason = explanation(loss, adaptive=adaptive, whose=whose)
        return Guarantee(
            mu=gaussian.mu_from_noise_std(sensitivity.value, shift, noise_std),
            trust=q.trust.name,
            adjacency=q.adjacency,
            clip_norm=q.clip_norm,
            record_shift=shift,
            participation=participation.describe(),
            victim=victim,
            attacker=q.trust.attacker,
            adaptive=adaptive or loss.adaptive,
            bound=sensitivity.bound,
            noise_std=noise_std,
            sensitivity=sensitivity.value,
            tolerance=sensitivity.tolerance,
            release=release,
            notes=notes_of(self.algorithm, release, rests_on),
            unit=q.unit,
            by_victim=self._of_each(noise_std) if each else (),
            why=" ".join(filter(None, (reason, misplaced(self.algorithm, q.trust.name)))),
        ).sealed(dataclasses.replace(loss.fingerprint, release=release).text)

    def _of_each(self, noise_std: float) -> tuple[tuple[str, float], ...]:
        labels, shift = self.algorithm.dynamics.gossip.labels, self.question.record_shift
        return tuple((str(labels[x.victim]), x.mu(record_shift=shift, noise_std=noise_std)) for x in self.of_victims)


def notes_of(algorithm: LinearAlgorithm, release: str, lipschitz: float | None) -> tuple[str, ...]:
    """Further conditions of a guarantee: what is released in the place of final models, and a Lipschitz constant."""
    if algorithm.released.is_last or release not in ("average", "all"):
        return shift_notes(lipschitz)
    instead = f"in the place of its final model each node releases {algorithm.released.describe()} of its models"
    return (instead, *shift_notes(lipschitz))


def shift_notes(lipschitz: float | None) -> tuple[str, ...]:
    """What a guarantee says of a constant that it rests on."""
    return () if lipschitz is None else (f"{SHIFT_NOTE} {float(lipschitz)!r}",)


def require_noise(noise_std: float | None, noise_multiplier: float | None) -> None:
    """Raises: InvalidInput: none or two, or one out of range."""
    if (noise_std is None) == (noise_multiplier is None):
        raise InvalidInput("give exactly one of noise_std and noise_multiplier.")
    for name, value in (("noise_std", noise_std), ("noise_multiplier", noise_multiplier)):
        if value is not None:
            check.non_negative(**{name: value})


def target_mu(mu: float | None, epsilon: float | None, delta: float | None) -> float:
    """A target as mu. Raises: InvalidInput: none or two, or one out of range."""
    if (mu is None) == (epsilon is None):
        raise InvalidInput("give exactly one target: mu, or epsilon with delta.")
    if mu is not None:
        return check.positive(mu=mu)
    if delta is None:
        raise InvalidInput("epsilon needs a delta in (0, 1), e.g. delta=1e-6.")
    return gaussian.mu_from_epsilon(check.positive(epsilon=epsilon), check.open_unit(delta=delta))


def require_unit(unit: str, participation: Participation, *, lipschitz: float | None = None) -> None:
    """Refuses a unit of privacy that these circumstances cannot protect; "record" is never refused.

    Args: lipschitz: the constant that a guarantee would rest on; bounded for sums of clipped per-record gradients
        only, as the clipped mean of a node is another map.

    Raises: InvalidInput: an unknown unit; "user" where not every step is one of the user's, or with `lipschitz`.
    """
    require_known("unit", unit, UNITS)
    if unit == "record":
        return
    check.instance(Participation, participation=participation)
    if not participation.in_every_step:
        raise InvalidInput(
            f"unit 'user' needs participation in every step, got {participation.describe()}: a user's data take part "
            f"in every step; build the algorithm with EveryStep({participation.num_steps})."
        )
    if lipschitz is not None:
        raise InvalidInput(
            f"unit 'user' cannot rest on lipschitz={lipschitz!r}: the constant is one of local maps with per-record "
            "clipping, and a clipped mean gradient is another map; leave lipschitz out."
        )


def require_same(losses: Sequence[VictimLoss], algorithm: LinearAlgorithm, question: Question) -> None:
    """Raises InvalidInput where losses were computed for another question; any release, if the question names none."""
    q = question
    asked = Fingerprint.of(algorithm, q.trust, q.participation_in(algorithm), q.release or "", q.unit)
    for loss in {(loss.fingerprint, loss.unit, loss.release): loss for loss in losses}.values():  # one of each
        if loss.fingerprint is None:
            raise InvalidInput("losses must be those of victim_losses, which says what they were computed for.")
        what = "the losses were computed"
        if loss.unit != q.unit:
            what += f" for unit {loss.unit!r}, not {q.unit!r}:"
        loss.fingerprint.require(asked if q.release else dataclasses.replace(asked, release=loss.release), what=what)
    if q.unit == "user" and any(loss.lipschitz is not None for loss in losses):
        raise InvalidInput("unit 'user' cannot rest on shift reduction; compute the losses without lipschitz.")

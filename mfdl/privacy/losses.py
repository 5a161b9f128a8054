"""Privacy losses of all victims: guarantees, calibrated noise and tables, from the exposures of an accountant."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from numpy.typing import ArrayLike
from scipy.sparse.csgraph import dijkstra

from .. import check
from ..algorithms import LinearAlgorithm
from ..algorithms.building import misplaced
from ..display import Shown, data_frame, rounded_up
from ..errors import InvalidInput, require_known
from ..participation import (
    BallsInBins,
    CyclicPoisson,
    MinSeparationSampling,
    Participation,
    PoissonSampling,
    RandomAllocation,
)
from ..progress import Progress
from ..trust import TrustModel
from ..trust.view import View
from . import gaussian, questions
from .curves import PrivacyCurve
from .exposures import Exposures, PublicExposures, privacy_of_view, public_exposures, require_same, view_exposures
from .gram_sensitivity import Sensitivity
from .guarantee import Guarantee
from .guarantee_texts import DELTA, EVERY_NODE
from .owners import Owners, Victim, require_unshared, victim_name, victim_nodes
from .questions import Privacy, Target, lipschitz_notes, require_noise
from .victim_sensitivity import VictimSensitivity

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _secret_exposures(scheme: type, *question: Any, **options: Any) -> Exposures:
    from .sampled_exposures import SECRET_ACCOUNTANTS

    return SECRET_ACCOUNTANTS[scheme](*question, **options)


SECRET = (PoissonSampling, BallsInBins, CyclicPoisson, RandomAllocation, MinSeparationSampling)
ACCOUNTANTS: dict[type, Callable[..., Exposures]] = {
    Participation: public_exposures,
    **{scheme: functools.partial(_secret_exposures, scheme) for scheme in SECRET},
}
"""Functions of (algorithm, privacy, *, victims, progress) by participation; a class has that of its nearest base."""


SHOWN_VICTIMS = 20  # in a notebook
LOSS_COLUMNS = (
    "attacker", "victim", "distance", "mu", "epsilon", "delta", "noise_std", "adaptive", "bound", "trust"
)  # fmt: skip
LOSS_METRICS = ("mu", "epsilon")


class Cells(NamedTuple):
    """The cells of a heat map: victims down, attackers across; nan where there is no number."""

    values: ArrayLike
    victims: list[str]
    attackers: list[str]
    title: str


class LossTable(Shown):
    @abc.abstractmethod
    def rows(self, noise_std: float = 1.0, *, delta: float = DELTA, adaptive: bool = True) -> list[dict[str, Any]]: ...
    @abc.abstractmethod
    def _cells(self, rows: list[dict[str, Any]], metric: str, *, adaptive: bool) -> Cells: ...
    def to_pandas(self, noise_std: float = 1.0, *, delta: float = DELTA, adaptive: bool = True) -> pandas.DataFrame:
        """`rows` as a data frame with the columns LOSS_COLUMNS. Raises: MissingExtra: pandas is not installed."""
        return data_frame(self.rows(noise_std, delta=delta, adaptive=adaptive), LOSS_COLUMNS)

    def heatmap(
        self,
        ax: Axes | None = None,
        *,
        noise_std: float = 1.0,
        metric: str = "mu",
        delta: float = DELTA,
        adaptive: bool = True,
    ) -> Axes:
        """Victims down, attackers across; grey where a node attacks itself; numbers in the cells up to 20 nodes.

        Args: ax: default those of a new Figure, `.figure` of what is returned. metric: "mu" or "epsilon" at `delta`.
            noise_std, adaptive: as for `rows`. The title says where every cell is the bound with all messages seen.
        """
        from ..pictures.drawings import heat_map  # matplotlib only where a picture is wanted

        require_known("metric", metric, LOSS_METRICS)
        cells = self._cells(self.rows(noise_std, delta=delta, adaptive=adaptive), metric, adaptive=adaptive)
        at = "per unit noise" if noise_std == 1 else f"at noise {noise_std:.4g}"
        kind = "" if adaptive else ", non-adaptive gradients"
        words = f"{'μ' if metric == 'mu' else f'ε at δ = {delta:g}'} {at}{kind}"
        return heat_map(cells.values, cells.victims, cells.attackers, words, title=cells.title, ax=ax)


def distances(algorithm: LinearAlgorithm, nodes: Sequence[int]) -> dict[int, int]:
    """Hops from the nearest of these nodes, by node index, over links of any round; empty without nodes."""
    if not nodes:
        return {}
    gossip, rounds = algorithm.dynamics.gossip, algorithm.num_steps * algorithm.dynamics.gossip_rounds
    matrices = {id(W): W.weights for W in (gossip.at(step) for step in range(1 if gossip.is_constant else rounds))}
    links = sum(matrices.values())
    hops = dijkstra(links + links.T, unweighted=True, indices=list(nodes), min_only=True)
    return {u: int(hop) for u, hop in enumerate(hops) if hop < math.inf}


def worst_in_words(name: str, tied: int, *, kind: str = "victim") -> str:
    """A victim, or a pair of attacker and victim, with the largest loss, and how many share it.

    >>> worst_in_words("node 0", 8), worst_in_words("node 3", 1)
    ('node 0, one of 8 that lose most', 'node 3, the worst victim')
    """
    if tied == 1:
        return f"{name}, the worst {kind}"
    return f"{name}, one of {tied}{' pairs' * (kind == 'pair')} that lose most"


def least_noise(
    pairs: Sequence[tuple[VictimSensitivity, Target]], privacy: Privacy, *, adaptive: bool
) -> tuple[float, int]:
    """The least standard deviation with which every loss meets its target, and how often it had to be raised."""
    std, tries = max(loss.least_noise(privacy, target, adaptive=adaptive) for loss, target in pairs), 0
    more = max(loss.retry_step for loss, _ in pairs)
    # by rounding, which a few doublings of the last bit end, or because fresh samples say more
    while any(target.missed_by(loss.curve(privacy, std, adaptive=adaptive, tries=tries)) for loss, target in pairs):
        std, more, tries = max(std * (1 + more), sys.float_info.min), 2 * more, tries + 1  # 0 would not grow
    return std, tries


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Losses(LossTable):
    """The losses of victims, and guarantees and noise that follow from them.

    Attributes: algorithm: or a bare view; exposures: computed by the accountant of the participation.

    Raises: InvalidInput: no losses, or losses of another question or algorithm than those beside them.

    >>> from mfdl import Dynamics, algorithms, gossip, participation, trust
    >>> algorithm = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("ring:n=4")), participation.Cyclic(2, 2))
    >>> losses = Losses.from_algorithm(algorithm, Privacy(trust.LDP(), adjacency="zero-out", clip_norm=1.0))
    >>> round(losses.guarantee(noise_std=1.0).mu, 6), round(losses.calibrate(mu=1.0).noise_std, 6)
    (1.414214, 1.414214)
    """

    algorithm: LinearAlgorithm | View
    privacy: Privacy
    exposures: Exposures

    def __post_init__(self) -> None:
        self.exposures.require(cast("LinearAlgorithm", self.algorithm), self.privacy)

    @classmethod
    def from_algorithm(
        cls,
        algorithm: LinearAlgorithm | View,
        privacy: Privacy,
        *,
        victims: Sequence[Victim] | None = None,
        progress: Progress = "auto",
    ) -> Losses:
        """Computes them, by the accountant of the algorithm's participation (`ACCOUNTANTS`).

        Args: victims: nodes, or groups such as (0, 3) for a record that nodes 0 and 3 both hold; default all nodes that
            do not attack, and the groups of `privacy.owners`.
        Raises: InvalidInput: an argument out of range, a unit that cannot be protected, what the accountant refuses.
        """
        check.instance(Privacy, privacy=privacy)
        if isinstance(algorithm, View):
            privacy = privacy_of_view(algorithm, privacy)
            scheme = privacy.participation
            if not (isinstance(scheme, Participation) and scheme.secret):
                return cls(algorithm, privacy, view_exposures(algorithm, privacy, victims=victims))
        else:
            check.instance(LinearAlgorithm, algorithm=algorithm)
            check.instance(TrustModel, trust=privacy.trust)
            scheme = algorithm.participation
        if scheme.secret:
            require_unshared(privacy.owners, victims, scheme.describe())
        accountant = next(ACCOUNTANTS[kind] for kind in type(scheme).__mro__ if kind in ACCOUNTANTS)
        return cls(algorithm, privacy, accountant(algorithm, privacy, victims=victims, progress=progress))

    @classmethod
    def from_sensitivities(
        cls, algorithm: LinearAlgorithm, privacy: Privacy, losses: Sequence[VictimSensitivity]
    ) -> Losses:
        """Losses that `sensitivity_by_victim` computed for this question.

        Raises: InvalidInput: losses of another one; of another release, if the question names one.
        """
        hidden = [loss for loss in losses if loss.release != "not applicable"]
        require_same(hidden, algorithm, privacy)  # the release too
        return cls(algorithm, privacy, PublicExposures(tuple(losses)))

    def _sentence(self) -> str:
        q, worst = self.privacy, self.exposures.together
        adaptive = self.exposures.adaptive
        curve, sensitivity = worst.curve(q, 1.0, adaptive=adaptive), worst.sensitivity(adaptive=adaptive)
        strength = "" if curve.mu is None else f", so mu = {rounded_up(sensitivity * q.record_shift, 6)} / noise_std"
        return (
            f"of {len(self.sensitivities)} nodes of {self.algorithm.name!r} against {q.trust.attacker} "
            f"({q.trust.name}), {q.adjacency}, clip {q.clip_norm:g}: sensitivity {rounded_up(sensitivity, 6)} "
            f"({worst.adaptive_bound if adaptive else worst.bound}) of {self._worst_victim(worst)}{strength}"
            f"{'' if adaptive else ', for non-adaptive gradients'}"
            f"{''.join(f', {note}' for note in lipschitz_notes(self.rests_on))}"
        )

    def _rows(self) -> list[tuple[str, str]]:
        table = self.table()
        rows = [
            (row["victim"], f"{rounded_up(row['adaptive_sensitivity_squared'] ** 0.5, 6)} ({row['adaptive_bound']})")
            for row in table[:SHOWN_VICTIMS]
        ]
        return [("victim", "sensitivity"), *rows, *([("...", f"{len(table)} nodes")] if len(table) > len(rows) else [])]

    def _figure(self) -> Figure | None:
        if len(self.sensitivities) > SHOWN_VICTIMS:
            return None
        gaussian_curve = self.exposures.together.curve(self.privacy, 1.0).mu is not None
        return cast("Figure", self.heatmap(metric="mu" if gaussian_curve else "epsilon").figure)

    @property
    def _trained(self) -> LinearAlgorithm | None:
        return None if isinstance(self.algorithm, View) else self.algorithm

    @property
    def sensitivities(self) -> tuple[VictimSensitivity, ...]:
        return self.exposures.each

    @property
    def worst(self) -> Sensitivity:
        """The largest adaptive number; its `node` is the first of the victims that have it up to rounding (`tied`)."""
        return self.exposures.together.adaptive_sensitivity

    @property
    def tied(self) -> int:
        """Number of victims whose number is the largest, within a relative 1e-9."""
        return self.exposures.tied

    @property
    def rests_on(self) -> float | None:
        """The least Lipschitz constant if any victim is covered by shift reduction: the worst of them need not be."""
        return self.exposures.together.lipschitz

    def curves(self, noise_std: float, *, adaptive: bool = True, tries: int = 0) -> dict[Victim, PrivacyCurve]:
        check.non_negative(noise_std=noise_std)
        curve = functools.cache(lambda loss: loss.curve(self.privacy, noise_std, adaptive=adaptive, tries=tries))
        return {loss.victim: curve(loss) for loss in self.sensitivities}

    def guarantee(self, noise_std: float, *, each: bool = False, tries: int = 0) -> Guarantee:
        """The guarantee of base noise of this standard deviation for every node, for adaptive gradients.

        Args: each: state the mu of each victim too; tries: for numbers by samples, how often fresh ones were drawn
            before.
        Raises: InvalidInput: losses of some victims only; those are stated one by one (`by_victim`).
        """
        self._require_everybody()
        std = check.non_negative(noise_std=noise_std)
        adaptive = self.exposures.adaptive
        return self._guarantee(self.exposures.together, None, std, adaptive=adaptive, each=each, tries=tries)

    def by_victim(self, noise_std: float, *, adaptive: bool | None = None) -> list[Guarantee]:
        """One guarantee for each victim, naming its own participation.

        Args: adaptive: False: numbers for non-adaptive gradients, so labelled. Default: adaptive, but for matrices that
            do not prove it.
        """
        adaptive = self.exposures.adaptive if adaptive is None else adaptive
        labels = self.algorithm.labels
        if EVERY_NODE in map(str, labels):
            raise InvalidInput(f"no node may be called {EVERY_NODE!r}, which guarantees say of all; relabel it.")
        return [
            self._guarantee(loss, victim_name(loss.victim, labels), noise_std, adaptive=adaptive)
            for loss in self.sensitivities
        ]

    def calibrate(
        self,
        *,
        mu: float | Mapping[Hashable, float] | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        by: str = "tightest",
    ) -> Guarantee:
        """The guarantee of the least noise that meets a target for adaptive gradients, never overshooting it.

        By samples, the noise is chosen by samples of its own and the guarantee drawn afresh.

        Args: mu > 0, or epsilon > 0 and delta in (0, 1); mu may be a budget for each node by its label, which the worst
            of the nodes decides, for the algorithm of `questions.scaled_to_budgets`. by: as for `Target`.
        Raises: InvalidInput: no target or two, or an infinite loss. UnsupportedMechanism: a mu where there is none.
        """
        self.exposures.refuse(mu=mu, by=by)
        worst, each = self.exposures.together, isinstance(mu, Mapping)
        if isinstance(mu, Mapping):
            budget = questions.budgets_by_node(self.algorithm.labels, mu)
            pairs = [
                (loss, Target(mu=float(budget[list(victim_nodes(loss.victim))].min()))) for loss in self.sensitivities
            ]
        else:
            pairs = [(worst, Target(mu, epsilon, delta, by))]
        self._require_everybody()
        self._require_finite(worst)
        std, tries = least_noise(pairs, self.privacy, adaptive=self.exposures.adaptive)
        guarantee = self.guarantee(std, each=each, tries=tries)
        return guarantee if delta is None else guarantee.at_delta(delta)

    def noise_std(self, *, noise_std: float | None = None, noise_multiplier: float | None = None) -> float:
        """nu, given as it is or as a multiple of sensitivity times record shift; exactly one of the two."""
        self.exposures.refuse(noise_multiplier=noise_multiplier)
        require_noise(noise_std, noise_multiplier)
        if noise_std is not None:
            return float(noise_std)
        worst = self.exposures.together.number(adaptive=self.exposures.adaptive)
        if math.isinf(worst.squared):
            raise InvalidInput(
                "noise_multiplier needs a mechanism with noise that the attacker does not know, i.e. a finite "
                "sensitivity; give noise_std."
            )
        return gaussian.noise_std(
            check.non_negative(noise_multiplier=noise_multiplier), worst.value, self.privacy.record_shift
        )

    def _require_finite(self, worst: VictimSensitivity) -> None:
        if not math.isinf(worst.sensitivity(adaptive=self.exposures.adaptive)):
            return
        name = self.algorithm.name
        if self._trained is not None and self._trained.noise.is_zero:
            raise InvalidInput(
                f"{name!r} has no noise to scale, so no target can be met; "
                "mfdl.calibrate(algorithm, privacy, noise_std=0.0) trains it without a guarantee."
            )
        why = worst.number(adaptive=self.exposures.adaptive).why
        raise InvalidInput(
            f"{name!r} has infinite loss under trust model {self.privacy.trust.name!r} for "
            f"{self._worst_victim(worst)}, whatever the noise: "
            f"{why or 'no number holds for adaptive gradients'}; choose another trust model or mechanism."
        )

    def _require_everybody(self) -> None:
        victims, everybody = self.exposures.nodes, set[int]()
        for _, of_member in self.privacy.trust.members(cast("LinearAlgorithm", self.algorithm)):
            everybody |= set(of_member)
            if len(everybody) == self.algorithm.num_nodes:
                break
        if missing := everybody - victims:
            raise InvalidInput(
                f"a guarantee for every node needs the losses of all nodes, but node {min(missing)} is "
                "missing; leave victims out, or state single victims with by_victim."
            )

    def _worst_victim(self, worst: VictimSensitivity) -> str:
        labels, victim = self.algorithm.labels, worst.victim
        several = isinstance(victim, tuple)
        name = f"a record that nodes {victim_name(victim, labels)} hold" if several else f"node {labels[worst.node]!r}"
        return worst_in_words(name, self.tied)

    def _guarantee(
        self,
        loss: VictimSensitivity,
        victim: str | None,
        noise_std: float,
        *,
        adaptive: bool = True,
        each: bool = False,
        tries: int = 0,
    ) -> Guarantee:
        """The guarantee of one victim by its label, or, if that is None, of every node by the loss of all together."""
        q, everybody, loss = self.privacy, victim is None, loss.for_gradients(adaptive=adaptive)
        assert loss.fingerprint is not None
        worst = self._worst_victim(loss) if everybody else ""
        reasons = (
            loss.explanation(adaptive=adaptive, victim=worst),
            "" if self._trained is None else misplaced(self._trained, q.trust.name),
            "" if adaptive else self.exposures.why,
        )
        labels, scheme = self.algorithm.labels, q.scheme(self.algorithm)
        parts = (scheme.at_node(u).describe() for u in victim_nodes(loss.victim))
        owners = Owners([loss.victim], same_steps=q.owners.same_steps) if isinstance(loss.victim, tuple) else Owners()
        notes: tuple[str, ...] = ()
        if self._trained is not None and not self._trained.released.is_last and loss.release in ("average", "all"):
            released = self._trained.released.describe()
            notes = (f"in the place of its final model each node releases {released} of its models",)
        curves = functools.partial(self.curves, noise_std, adaptive=adaptive, tries=tries)
        return Guarantee(
            curve=loss.curve(q, noise_std, adaptive=adaptive, tries=tries),
            trust=q.trust.name,
            clip_norm=q.clip_norm,
            participation=scheme.describe() if everybody else "; ".join(dict.fromkeys(parts)),
            victim=EVERY_NODE if victim is None else victim,
            attacker=q.trust.attacker,
            adaptive=adaptive or loss.adaptive,
            noise_std=noise_std,
            sensitivity=loss.sensitivity(adaptive=adaptive),
            tolerance=loss.number(adaptive=adaptive).tolerance,
            release=loss.release,
            notes=notes,
            lipschitz=loss.lipschitz,
            unit=q.unit,
            victims=tuple((victim_name(victim, labels), curve) for victim, curve in curves().items()) if each else (),
            owners=q.owners if everybody else owners,
            why=" ".join(filter(None, reasons)),
        ).sealed(
            dataclasses.replace(loss.fingerprint, release=loss.release).text,
            by_victim=(lambda: by_label(labels, curves())) if everybody else None,
        )

    def table(self) -> list[dict[str, Any]]:
        """One row for each victim: both squared sensitivities, what they are, and where the second comes from."""
        labels = self.algorithm.labels
        names = ("sensitivity_squared", "bound", "adaptive_sensitivity_squared", "adaptive_bound", "adaptive_by")
        return [
            {
                "victim": victim_name(loss.victim, labels),
                **{name: getattr(loss, name) for name in names},
                "why": loss.explanation(),
            }
            for loss in self.sensitivities
        ]

    def rows(self, noise_std: float = 1.0, *, delta: float = DELTA, adaptive: bool = True) -> list[dict[str, Any]]:
        """A row for each victim: attacker, distance, mu (None if not Gaussian) and epsilon at this base noise."""
        q, labels = self.privacy, self.algorithm.labels
        curves = self.curves(noise_std, adaptive=adaptive)
        epsilon = functools.cache(lambda curve: curve.epsilon(delta))
        algorithm = cast("LinearAlgorithm", self.algorithm)
        nodes = q.trust.attackers(algorithm)
        hops = distances(algorithm, nodes)
        attacker = ", ".join(str(labels[v]) for v in nodes) if nodes else q.trust.attacker
        return [
            {
                "attacker": attacker,
                "victim": victim_name(loss.victim, labels),
                "distance": min((hops[u] for u in victim_nodes(loss.victim) if u in hops), default=None),
                "mu": (curve := curves[loss.victim]).mu,
                "epsilon": epsilon(curve),
                "delta": delta,
                "noise_std": float(noise_std),
                "adaptive": adaptive or loss.adaptive,
                "bound": curve.bound,
                "trust": q.trust.name,
            }
            for loss in self.sensitivities
        ]

    def _cells(self, rows: list[dict[str, Any]], metric: str, *, adaptive: bool) -> Cells:
        title = f"{self.algorithm.name}: privacy loss of each node"
        return Cells([[row[metric]] for row in rows], [row["victim"] for row in rows], [rows[0]["attacker"]], title)


def by_label(labels: Sequence[Hashable], curves: Mapping[Victim, PrivacyCurve]) -> dict[str, PrivacyCurve]:
    """Raises: InvalidInput: two victims whose labels read alike."""
    named = {victim_name(victim, labels): curve for victim, curve in curves.items()}
    if len(named) < len(curves):
        raise InvalidInput("labels of two nodes read alike, such as 1 and '1'; relabel them, or use losses.curves.")
    return named

"""Losses against many attackers at once: one process per core, the matrix mu[u, v]."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from threadpoolctl import threadpool_limits

from mfdl_solvers.ties import equal_to_largest, first_largest

from .. import check
from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..display import rounded_up
from ..errors import InvalidInput, require_known
from ..privacy import gaussian
from ..privacy.attacking_sets import sensitivity_by_victim
from ..privacy.guarantee_texts import DELTA
from ..privacy.losses import LOSS_METRICS, Cells, Losses, LossTable, worst_in_words
from ..privacy.questions import Privacy, lipschitz_notes, require_unit
from ..privacy.victim_sensitivity import VictimSensitivity
from ..progress import Progress, reporter
from ..trust import PNDP, TrustModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SHOWN_NODES = 40  # up to which a notebook draws the heat map


def pairwise_losses(
    algorithm: LinearAlgorithm,
    make_trust: Callable[[int], TrustModel],
    attackers: Sequence[int] | None = None,
    *,
    victims: Sequence[int] | None = None,
    jobs: int | None = None,
    progress: Progress = "auto",
    **accounting: Any,
) -> dict[int, list[VictimSensitivity]]:
    """The losses of all victims against each attacker, in node order, attackers in parallel.

    Args:
        make_trust: the trust model of one attacker (a node index), e.g. `lambda v: PNDP([v])`; called in this process.
        attackers, victims: node indices; default all; an attacker is left out of its own list.
        jobs: worker processes, each with one BLAS thread; default one per core; 1 stays in this process.
        progress: True, False, "auto" (see `mfdl.progress`), or a function: called after each attacker.
        accounting: participation, release, method, lipschitz and unit of `sensitivity_by_victim`.
    Raises: InvalidInput: jobs below 1, or refusals of `sensitivity_by_victim`.
    """
    nodes = list(range(algorithm.num_nodes)) if attackers is None else list(attackers)
    everybody = list(range(algorithm.num_nodes))
    if victims is not None:
        given = check.listed("node indices, e.g. [0]", victims=victims)
        everybody = [check.integer_at_least(0, victim=victim) for victim in given]
    import joblib  # asyncio and all: a twentieth of a second, which one attacker does not need

    workers = min(joblib.cpu_count() if jobs is None else check.integer_at_least(1, jobs=jobs), len(nodes))
    # in this process joblib keeps to the order and starts nothing
    pool = joblib.Parallel(n_jobs=max(workers, 1), return_as="generator_unordered" if workers > 1 else "generator")
    finished = pool(
        joblib.delayed(_against)(algorithm, v, make_trust(v), [u for u in everybody if u != v], accounting)
        for v in nodes
    )
    losses: dict[int, list[VictimSensitivity]] = {}
    screen = reporter(progress, words=0)
    with contextlib.closing(finished), screen.bar(f"losses of {algorithm.name}, attackers", len(nodes)) as advance:
        for attacker, its_losses in finished:
            losses[attacker] = its_losses
            advance()
    return {v: losses[v] for v in nodes}


def _against(
    algorithm: LinearAlgorithm, attacker: int, trust: TrustModel, victims: list[int], accounting: Mapping[str, Any]
) -> tuple[int, list[VictimSensitivity]]:
    with threadpool_limits(1):
        return attacker, sensitivity_by_victim(
            algorithm, trust, victims=victims, progress=False, **accounting
        ) if victims else []


def pairwise_matrix(
    losses: Mapping[int, Sequence[VictimSensitivity]], num_nodes: int, value: Callable[[VictimSensitivity], float]
) -> FloatArray:
    """value[u, v] of victim u against attacker v, shape (num_nodes, num_nodes).

    nan for other pairs; inf on the diagonal of the attackers, who know their own records.
    """
    matrix = np.full((num_nodes, num_nodes), math.nan)
    for attacker, its_losses in losses.items():
        matrix[attacker, attacker] = math.inf
        for loss in its_losses:
            matrix[loss.node, attacker] = value(loss)
    return matrix


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PairwiseLosses(LossTable):
    """`Losses` of every victim by the attacking node. Raises: InvalidInput: no attacker with a victim."""

    of_attackers: Mapping[int, Losses]

    def __post_init__(self) -> None:
        if not self.of_attackers:
            raise InvalidInput("pairwise losses must be of at least one attacker that has a victim.")

    @property
    def algorithm(self) -> LinearAlgorithm:
        return cast("LinearAlgorithm", next(iter(self.of_attackers.values())).algorithm)

    def worst(self, *, adaptive: bool = True) -> tuple[int, int]:
        """(attacker, victim), the first pair with the largest number up to rounding; `tied` counts them."""
        pairs = [(v, loss.node) for v, losses in self.of_attackers.items() for loss in losses.sensitivities]
        return pairs[first_largest(self._numbers(adaptive=adaptive))]

    def tied(self, *, adaptive: bool = True) -> int:
        """Number of pairs of attacker and victim whose number is the largest, within a relative 1e-9."""
        return int(equal_to_largest(self._numbers(adaptive=adaptive)).sum())

    def _numbers(self, *, adaptive: bool) -> list[float]:
        every = (loss for losses in self.of_attackers.values() for loss in losses.sensitivities)
        return [loss.number(adaptive=adaptive).squared for loss in every]

    def rows(self, noise_std: float = 1.0, *, delta: float = DELTA, adaptive: bool = True) -> list[dict[str, Any]]:
        accounting: dict[str, Any] = {"delta": delta, "adaptive": adaptive}
        return [row for losses in self.of_attackers.values() for row in losses.rows(noise_std, **accounting)]

    def matrix(
        self, noise_std: float = 1.0, *, metric: str = "mu", delta: float = DELTA, adaptive: bool = True
    ) -> FloatArray:
        """[u, v]: privacy loss of victim u to attacker v, shape (n, n); nan for other pairs, inf on the diagonal."""
        require_known("metric", metric, LOSS_METRICS)
        check.non_negative(noise_std=noise_std)
        shift = next(iter(self.of_attackers.values())).privacy.record_shift

        def value(loss: VictimSensitivity) -> float:
            mu = loss.mu(record_shift=shift, noise_std=noise_std, adaptive=adaptive)
            return mu if metric == "mu" else gaussian.epsilon_from_mu(mu, delta)

        of = {v: losses.sensitivities for v, losses in self.of_attackers.items()}
        return pairwise_matrix(of, self.algorithm.num_nodes, value)

    def _cells(self, rows: list[dict[str, Any]], metric: str, *, adaptive: bool) -> Cells:
        labels = [str(label) for label in self.algorithm.dynamics.gossip.labels]
        of = {(row["victim"], row["attacker"]): row[metric] for row in rows}
        attacking = {str(labels[v]) for v in self.of_attackers}
        values = np.array(
            [[math.inf if u == v and v in attacking else of.get((u, v), math.nan) for v in labels] for u in labels]
        )
        title = f"{self.algorithm.name}: privacy loss to each attacker" + self._all_equal(values, adaptive=adaptive)
        return Cells(values, labels, labels, title)

    def _all_equal(self, values: FloatArray, *, adaptive: bool) -> str:
        """Further lines of the title, where the bound of LDP hides the differences."""
        known = values[np.isfinite(values)]
        bounded = adaptive and not any(loss.adaptive for of in self.of_attackers.values() for loss in of.sensitivities)
        if not bounded or known.size < 2 or not equal_to_largest(known).all():
            return ""
        return "\nall equal: the bound with all messages seen,\nfor adaptive gradients where messages are hidden"

    def _sentence(self) -> str:
        attacker, victim = self.worst()
        labels, privacy = self.algorithm.dynamics.gossip.labels, self.of_attackers[attacker].privacy
        mu = max(losses.worst.value for losses in self.of_attackers.values()) * privacy.record_shift
        constants = (losses.rests_on for losses in self.of_attackers.values())
        rests_on = min((constant for constant in constants if constant is not None), default=None)
        return (
            f"of {self.algorithm.name!r} on {self.algorithm.num_nodes} nodes, {len(self.of_attackers)} attackers "
            f"({privacy.trust.name}), {privacy.adjacency}, clip {privacy.clip_norm:g}; "
            f"{worst_in_words(f'attacker {labels[attacker]} and victim {labels[victim]}', self.tied(), kind='pair')}, "
            f"have mu = {rounded_up(mu, 6)} / noise_std"
            f"{''.join(f', {note}' for note in lipschitz_notes(rests_on))}"
        )

    def _rows(self) -> list[tuple[str, str]]:
        labels, first = self.algorithm.dynamics.gossip.labels, list(self.of_attackers.items())[:SHOWN_NODES]
        words = "{} victims, worst sensitivity {}".format
        return [
            (f"attacker {labels[v]}", words(len(losses.sensitivities), rounded_up(losses.worst.value, 4)))
            for v, losses in first
        ]

    def _figure(self) -> Figure | None:
        return cast("Figure", self.heatmap().figure) if self.algorithm.num_nodes <= SHOWN_NODES else None


def pairwise(
    algorithm: LinearAlgorithm,
    privacy: Privacy,
    *,
    make_trust: Callable[[int], TrustModel] | None = None,
    attackers: Sequence[int] | None = None,
    victims: Sequence[int] | None = None,
    jobs: int | None = 1,
    progress: Progress = "auto",
) -> PairwiseLosses:
    """Every node against every attacker.

    Raises: InvalidInput: as for `mfdl.account`, or no attacker.

    >>> from mfdl import Dynamics, EveryStep, Privacy, algorithms, gossip
    >>> path = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("path:n=3")), EveryStep(2))
    >>> losses = pairwise(path, Privacy(adjacency="zero-out", clip_norm=1.0, release="none"))
    >>> losses.matrix(noise_std=2.0, adaptive=False).round(2).tolist()
    [[inf, 0.71, 0.16], [0.69, inf, 0.69], [0.16, 0.71, inf]]

    Args: privacy: without a trust model and owners; method "exact" or "certified". make_trust: the trust model of one
        attacking node; default `PNDP([v])`. attackers, victims, progress: as for `pairwise_losses`. jobs: worker
        processes; None: one per core, worth it above some dozens of nodes.
    """
    if make_trust is not None:
        check.function("lambda v: mfdl.trust.PNDP([v])", make_trust=make_trust)
    models = {v: PNDP([f"#{v}"]) if make_trust is None else make_trust(v) for v in _nodes(algorithm, attackers)}
    check.instance(Privacy, privacy=privacy)
    if privacy.trust is not None or privacy.owners.shared:
        raise InvalidInput(
            "pairs have one attacker and one victim each: leave trust and owners out of Privacy, and give the trust "
            "model of an attacking node as make_trust=lambda v: mfdl.trust.PNDP([v])."
        )
    assert privacy.record_shift  # refuses adjacency and clip_norm before any work
    require_unit(privacy.unit, privacy.participation_in(algorithm), lipschitz=privacy.lipschitz)
    accounting: dict[str, Any] = {
        name: getattr(privacy, name) for name in ("participation", "release", "unit", "lipschitz")
    }
    computing = {"victims": victims, "jobs": jobs, "progress": progress, "method": str(privacy.method), **accounting}
    by_attacker = pairwise_losses(algorithm, lambda v: models[v], list(models), **computing)
    questions = {v: dataclasses.replace(privacy, trust=model) for v, model in models.items()}
    return PairwiseLosses(
        {v: Losses.from_sensitivities(algorithm, questions[v], its) for v, its in by_attacker.items() if its}
    )


def _nodes(algorithm: LinearAlgorithm, attackers: Sequence[int] | None) -> list[int]:
    check.instance(LinearAlgorithm, algorithm=algorithm)
    n = algorithm.num_nodes
    given = range(n) if attackers is None else check.listed("node indices, e.g. [0]", attackers=attackers)
    nodes = [check.integer_at_least(0, attacker=v) for v in given]
    if not nodes or max(nodes) >= n:
        raise InvalidInput(f"attackers must be node indices below {n}, at least one, got {attackers!r}.")
    return nodes

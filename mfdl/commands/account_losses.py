"""Answers of `mfdl account`: losses of every victim, for one attacking set or for every node as the attacker.

With secret batches mu and sensitivities are null, and epsilon for non-adaptive gradients is that for training.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from threadpoolctl import threadpool_limits

from mfdl_solvers.ties import equal_to_largest, first_largest

from ..algorithms import LinearAlgorithm, registry
from ..errors import InvalidInput
from ..privacy import gaussian, questions
from ..privacy.attacking_sets import sensitivity_by_victim
from ..privacy.curves import PrivacyCurve
from ..privacy.guarantee import Guarantee
from ..privacy.losses import Losses, worst_in_words
from ..privacy.owners import Owners, victim_name
from ..privacy.questions import Privacy
from ..privacy.sampled_exposures import noise_of_bins
from ..privacy.victim_sensitivity import VictimSensitivity, worst_loss
from ..progress import Silent
from ..runs.named_nodes import Named
from ..runs.output import circumstances, json_number
from ..runs.pairwise_losses import pairwise_losses
from ..trust import TrustModel

if TYPE_CHECKING:
    from ..graphs import SparseGraph
    from .configs import AccountConfig


NON_ADAPTIVE_ONLY = (
    "mu and epsilon of single victims hold for non-adaptive gradients only: gradients in training react to "
    "messages that this attacker does not see. For training use those of the guarantee, in JSON mu_adaptive and "
    "epsilon_adaptive."
)

Nodes = tuple[int, ...]
SQUARES = ("sensitivity_squared", "adaptive_sensitivity_squared")


def accounted(config: AccountConfig, screen: Silent) -> Account | SecretAccount:
    """Losses of every victim. Raises: InvalidInput: nodes that are not in the graph, before any work."""
    graph, gossip = config.sparse_network()
    named = Named(graph, config.attackers, config.colluders, config.coalition_size, config.all_attackers)
    named.require_used([config.trust, *([config.calibrate_under] if config.calibrate_under else [])])
    victims = None if config.victims is None else named.indices("victims", config.victims)
    with screen.status(f"building {config.mechanism}"):
        more = made_for(config) if registry.is_of_balls_in_bins(config.mechanism) else {}
        algorithm = registry.build(
            config.mechanism, config.dynamics(gossip), config.scheme(), **config.parameters(), **more
        )
    each = None if config.budgets is None else named.budgets(config.budgets)
    if each is not None:
        algorithm = questions.scaled_to_budgets(algorithm, questions.budgets_by_node(algorithm.labels, each))
    if config.has_secret_batches:
        with screen.status(f"accounting for {config.participation}"):
            return secret_account(config, graph, named, algorithm, victims)
    models, losses = _losses(config, algorithm, named, victims, screen)
    return Account(config, graph, named, algorithm, models, losses, victims, each)


def _losses(
    config: AccountConfig, algorithm: LinearAlgorithm, named: Named, victims: Sequence[int] | None, progress: Silent
) -> tuple[dict[Nodes, TrustModel], dict[Nodes, list[VictimSensitivity]]]:
    if config.all_attackers:
        models: dict[Nodes, TrustModel] = {(v,): named.model(config.trust, v) for v in range(algorithm.num_nodes)}
        more: dict[str, Any] = {"victims": victims, "jobs": config.jobs, "progress": progress}
        each = pairwise_losses(algorithm, lambda v: models[(v,)], **more, **config.accounting)
        if not any(each.values()):
            raise InvalidInput("no victim is left: every node that was named is an attacker.")
        return models, {(v,): losses for v, losses in each.items()}
    model, owners = named.model(config.trust), named.owners(config.owners, same_steps=config.same_steps)
    with threadpool_limits(config.jobs):
        losses = sensitivity_by_victim(
            algorithm, model, victims=victims, owners=owners, progress=progress, **config.accounting
        )
    nodes = model.attackers(algorithm)
    return {nodes: model}, {nodes: losses}


@dataclasses.dataclass(frozen=True, eq=False)
class Account:
    """A question with its answer: models and losses by attacking nodes; victims: None for all; each: mu by node."""

    config: AccountConfig
    graph: SparseGraph
    named: Named
    algorithm: LinearAlgorithm
    models: Mapping[Nodes, TrustModel]
    losses: Mapping[Nodes, Sequence[VictimSensitivity]]
    victims: Sequence[int] | None
    each: Mapping[Any, float] | None = None

    @functools.cached_property
    def answer(self) -> dict[str, Any]:
        config, algorithm, every = self.config, self.algorithm, self.everything
        labels = self.named.labels
        who: dict[str, Any] = {"attackers": [labels[v] for v in self.attackers]}
        if config.all_attackers:
            who = {"attackers": [{"attacker": labels[v], "victims": self.rows((v,))} for (v,) in self.losses]}
        else:
            who["victims"] = self.rows(self.attackers)
        return {
            **_circumstances(config, self.graph, algorithm),
            "release": next((loss for loss in every if loss.victim not in self.attackers), every[0]).release,
            "adaptive": self.adaptive, **who, "noise_std": self.noise_std, "guarantee": self._sentence(),
            "notes": self._notes(), "tied": len(self._worst_pairs(adaptive=True)),
            "worst_mu": json_number(self.mu(self.worst(adaptive=False)[1], adaptive=False)),
            "worst_mu_adaptive": json_number(self.mu(self.worst(adaptive=True)[1], adaptive=True)),
            "worst_epsilon": json_number(self._worst_epsilon(adaptive=False)),
            "worst_epsilon_adaptive": json_number(self._worst_epsilon(adaptive=True)),
        }  # fmt: skip

    @property
    def owners(self) -> Owners:
        return self.named.owners(self.config.owners, same_steps=self.config.same_steps)

    @property
    def attackers(self) -> Nodes:
        """The attacking nodes where there is one set of them; empty where each node attacks in turn."""
        return () if self.config.all_attackers else next(iter(self.losses))

    @property
    def everything(self) -> list[VictimSensitivity]:
        return [loss for losses in self.losses.values() for loss in losses]

    @property
    def adaptive(self) -> bool:
        """Whether all numbers for non-adaptive gradients hold for adaptive gradients."""
        return all(loss.adaptive for loss in self.everything)

    def worst(self, *, adaptive: bool) -> tuple[Nodes, VictimSensitivity]:
        """Attackers and the victim that loses most, the first of equal ones, with a number that no other exceeds."""
        nodes, loss = self._worst_pairs(adaptive=adaptive)[0]
        numbers = (every.number(adaptive=adaptive) for every in self.everything)
        largest = max(numbers, key=operator.attrgetter("squared"))  # bound
        return nodes, loss.raised_to(largest, adaptive=adaptive)

    def _worst_pairs(self, *, adaptive: bool) -> list[tuple[Nodes, VictimSensitivity]]:
        """All pairs with the largest number up to rounding; among equal adaptive ones the largest non-adaptive."""
        pairs = [(nodes, loss) for nodes, losses in self.losses.items() for loss in losses]
        for kind in (True, False)[not adaptive :]:
            largest = equal_to_largest([loss.number(adaptive=kind).squared for _, loss in pairs])
            pairs = list(itertools.compress(pairs, largest))
        return pairs

    def worst_in_words(self) -> str:
        nodes, loss = self.worst(adaptive=True)
        labels, tied = self.named.labels, self.answer["tied"]
        if not self.config.all_attackers:
            several = isinstance(loss.victim, tuple)
            return worst_in_words(f"node{'s' * several} {victim_name(loss.victim, labels)}", tied)
        return worst_in_words(f"attacker {labels[nodes[0]]} and victim {labels[loss.node]}", tied, kind="pair")

    @functools.cached_property
    def noise_std(self) -> float:
        """nu, 0 for a mechanism without noise; --mu and --noise-multiplier read the adaptive losses."""
        config = self.config
        if config.noise_multiplier is not None:
            sensitivity = worst_loss(self.everything).adaptive_sensitivity
            if math.isinf(sensitivity.squared):
                why = "needs a finite sensitivity, got infinite loss; give --noise-std."
                raise InvalidInput(f"--noise-multiplier {why}")
            shift = gaussian.record_shift(config.adjacency, config.clip_norm)
            return gaussian.noise_std(config.noise_multiplier, sensitivity.value, shift)
        target = config.target if self.each is None else {"mu": self.each}
        if target is None:
            given = 1.0 if config.noise_std is None else config.noise_std
            return 0.0 if self.algorithm.noise.is_zero else given
        under = config.calibrate_under
        worst, weakest = self.worst(adaptive=True)
        same = under in (None, config.trust)
        model = self.models[worst] if same else self.named.model(str(under))  # under which the worst loss arises
        privacy = Privacy(model, owners=self.owners, **config.protected | config.accounting)
        if same and self.victims is None:
            losses = Losses.from_sensitivities(self.algorithm, privacy, self.losses[worst])
        else:  # noise is for all victims, whoever is asked about
            losses = Losses.from_algorithm(self.algorithm, privacy)
        if same:  # attackers tie up to rounding: no loss to another one overshoots either
            every = [weakest if loss.victim == weakest.victim else loss for loss in losses.sensitivities]
            losses = Losses.from_sensitivities(self.algorithm, privacy, every)
        return losses.calibrate(**target).noise_std

    def mu(self, loss: VictimSensitivity, adaptive: bool) -> float:
        shift = gaussian.record_shift(self.config.adjacency, self.config.clip_norm)
        return _mu(loss.number(adaptive=adaptive).value, shift, self.noise_std)

    def _worst_epsilon(self, *, adaptive: bool) -> float:
        return _epsilon(self.mu(self.worst(adaptive=adaptive)[1], adaptive=adaptive), self.config.delta)

    def rows(self, attackers: Nodes) -> list[dict[str, Any]]:
        hops, delta = self.named.distances(attackers), self.config.delta
        rows: list[dict[str, Any]] = []
        for loss in self.losses[attackers]:
            mu, adaptive = self.mu(loss, False), self.mu(loss, True)
            row: dict[str, Any] = {"victim": victim_name(loss.victim, self.named.labels)}
            row["distance"] = self.named.distance(loss.victim, hops)
            numbers = {name: getattr(loss, name) for name in SQUARES} | {"mu": mu, "mu_adaptive": adaptive}
            numbers |= {"epsilon": _epsilon(mu, delta), "epsilon_adaptive": _epsilon(adaptive, delta)}
            row |= {name: json_number(number) for name, number in numbers.items()}
            rows.append(row | {name: getattr(loss, name) for name in ("bound", "adaptive_bound", "adaptive_by")})
        return rows

    def _sentence(self) -> str:
        nodes, loss = self.worst(adaptive=True)
        privacy = Privacy(self.models[nodes], owners=self.owners, **self.config.protected)
        losses = Losses.from_sensitivities(self.algorithm, privacy, [loss])
        (guarantee,) = losses.by_victim(self.noise_std)
        return str(guarantee.at_delta(self.config.delta))

    def _notes(self) -> list[str]:
        inside = set(self.attackers)
        among = [self.named.labels[u] for u in sorted(set(self.victims or []) & inside)]
        notes = [f"{label} is one of the attackers: its loss is infinite." for label in among]
        infinite = [loss for loss in self.everything if math.isinf(loss.sensitivity_squared)]
        leaks = dict.fromkeys(loss.non_adaptive_sensitivity.why for loss in infinite if loss.victim not in inside)
        notes += [f"Infinite loss: {why}." for why in list(leaks)[:3] if why]
        if self.noise_std == 0:
            notes.append("noise_std is 0: the privacy loss is infinite wherever the view depends on the record.")
        if not self.adaptive:
            by = sorted({loss.adaptive_by for loss in self.everything} - {"the view"})
            notes.append(f"{NON_ADAPTIVE_ONLY} Method of these numbers: {', '.join(by)}.")
        return notes


_epsilon = functools.cache(gaussian.epsilon_from_mu)  # of many victims that lose the same
_mu = functools.cache(gaussian.mu_from_noise_std)


WITHOUT_MU = (
    "Secret batches have no mu: mu and sensitivities are null, and epsilon is at delta. The "
    "attacker is assumed to see every message, and gradients may be adaptive."
)


@dataclasses.dataclass(frozen=True, eq=False)
class SecretAccount:
    """A question with its answer: the guarantee of every node, losses by victim and their rule; victims: None: all."""

    config: AccountConfig
    graph: SparseGraph
    named: Named
    algorithm: LinearAlgorithm
    attackers: tuple[int, ...]
    guarantee: Guarantee
    losses: Mapping[int, PrivacyCurve]
    rule: str
    victims: Sequence[int] | None

    @functools.cached_property
    def answer(self) -> dict[str, Any]:
        labels, epsilons = self.named.labels, list(self.epsilons.values())
        worst = json_number(max(epsilons))
        return {
            **_circumstances(self.config, self.graph, self.algorithm), "release": self.guarantee.release,
            "adaptive": True, "attackers": [labels[v] for v in self.attackers], "victims": self._rows(),
            "noise_std": self.guarantee.noise_std, "guarantee": str(self.guarantee), "notes": self._notes(),
            "tied": int(equal_to_largest(epsilons).sum()), **dict.fromkeys(("worst_mu", "worst_mu_adaptive")),
            **dict.fromkeys(("worst_epsilon", "worst_epsilon_adaptive"), worst),
        }  # fmt: skip

    @functools.cached_property
    def epsilons(self) -> dict[int, float]:
        """Epsilon of each requested victim at the delta of the config; inf for an attacker."""
        epsilon = functools.cache(lambda loss: loss.epsilon(self.config.delta))
        every = self.losses if self.victims is None else self.victims
        return {u: epsilon(self.losses[u]) if u in self.losses else math.inf for u in every}

    def worst_in_words(self) -> str:
        worst = list(self.epsilons)[first_largest(list(self.epsilons.values()))]
        return worst_in_words(f"node {self.named.labels[worst]}", self.answer["tied"])

    def _rows(self) -> list[dict[str, Any]]:
        hops = self.named.distances(self.attackers)
        return [
            {
                "victim": self.named.labels[u],
                "distance": hops.get(u),
                **dict.fromkeys((*SQUARES, "mu", "mu_adaptive")),
                **dict.fromkeys(("epsilon", "epsilon_adaptive"), json_number(epsilon)),
                **dict.fromkeys(("bound", "adaptive_bound"), "upper"),
                "adaptive_by": self.rule,
            }
            for u, epsilon in self.epsilons.items()
        ]

    def _notes(self) -> list[str]:
        among = [self.named.labels[u] for u in self.epsilons if u not in self.losses]
        notes = [f"{label} is one of the attackers: its loss is infinite." for label in among]
        if self.guarantee.noise_std == 0:
            notes.append("noise_std is 0: the privacy loss is infinite wherever the view depends on the record.")
        return [*notes, WITHOUT_MU]


def secret_account(
    config: AccountConfig, graph: SparseGraph, named: Named, algorithm: LinearAlgorithm, victims: Sequence[int] | None
) -> SecretAccount:
    model = named.model(config.trust)
    owners = named.owners(config.owners, same_steps=config.same_steps)
    losses = Losses.from_algorithm(algorithm, Privacy(model, owners=owners, **config.values("adjacency", "clip_norm")))
    if config.target is None:
        given = 1.0 if config.noise_std is None else config.noise_std
        noise_std = 0.0 if algorithm.noise.is_zero else given
    elif config.calibrate_under is None:
        noise_std = losses.calibrate(**config.target).noise_std
    else:
        privacy = dataclasses.replace(losses.privacy, trust=named.model(config.calibrate_under))
        noise_std = Losses.from_algorithm(algorithm, privacy).calibrate(**config.target).noise_std
    guarantee = losses.guarantee(noise_std).at_delta(config.delta)
    attackers = model.attackers(algorithm)
    curves = {u: curve for u, curve in losses.curves(noise_std).items() if isinstance(u, int)}
    rule = losses.sensitivities[0].adaptive_by
    return SecretAccount(config, graph, named, algorithm, attackers, guarantee, curves, rule, victims)


def made_for(config: AccountConfig) -> dict[str, Any]:
    """Further arguments of builders of mechanisms for balls-in-bins: the noise of the target."""
    if config.epsilon is None:
        return {}
    target = {"epsilon": config.epsilon, **config.values("delta", "adjacency")}
    return {"noise_std": noise_of_bins(bins=config.period, **target)}


def _circumstances(config: AccountConfig, graph: SparseGraph, algorithm: LinearAlgorithm) -> dict[str, Any]:
    return {
        **circumstances(config, graph, algorithm.dynamics.gossip),
        **config.values("mechanism", "trust", "adjacency", "unit", "clip_norm", "delta"),
        "participation": algorithm.participation.to_dict(),
        "steps": algorithm.num_steps,
    }

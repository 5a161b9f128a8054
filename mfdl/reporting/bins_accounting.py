"""Losses of one mechanism where batches are secret: epsilon at delta of every victim, and no mu.

In: an `AccountConfig` whose participation is balls-in-bins. Out: a `BinsAccount`, whose answer has the keys of any
account: epsilon for gradients fixed in advance is that for training, and mu and sensitivities are null.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..algorithms import LinearAlgorithm
from ..privacy.curves import PrivacyCurve
from ..privacy.guarantee import Guarantee
from ..privacy.losses import PrivacyLosses
from ..privacy.question import Question
from ..privacy.sampled_exposures import noise_of_bins
from .output import asked_of, json_number
from .question import Named

if TYPE_CHECKING:
    from ..graphs import SparseGraph
    from .account_config import AccountConfig

BY = "the bins' pair"
WITHOUT_MU = (
    "Secret batches have epsilon at delta and no mu: mu and sensitivities are null. Every message counts as seen, and "
    "gradients may be adaptive."
)


@dataclasses.dataclass(frozen=True, eq=False)
class BinsAccount:
    """What was asked and what came out.

    Attributes: guarantee: that of every node; losses: by victim; asked: the victims, None for all.
    """

    config: AccountConfig
    graph: SparseGraph
    named: Named
    algorithm: LinearAlgorithm
    attackers: tuple[int, ...]
    guarantee: Guarantee
    losses: Mapping[int, PrivacyCurve]
    asked: Sequence[int] | None

    @functools.cached_property
    def answer(self) -> dict[str, Any]:
        """Everything, JSON-ready, as it stands in results.json."""
        labels, worst = self.named.labels, json_number(max(self.epsilons.values(), default=math.inf))
        return {
            **asked_of(self.config, self.graph, self.algorithm),
            "release": self.guarantee.release,
            "adaptive": True,
            "attackers": [labels[v] for v in self.attackers],
            "victims": self._rows(),
            "noise_std": self.guarantee.noise_std,
            "guarantee": str(self.guarantee),
            "notes": self._notes(),
            **dict.fromkeys(("worst_mu", "worst_mu_adaptive")),
            **dict.fromkeys(("worst_epsilon", "worst_epsilon_adaptive"), worst),
        }

    @functools.cached_property
    def epsilons(self) -> dict[int, float]:
        """Of each victim that was asked about, at the delta of the config; inf for an attacker."""
        epsilon = functools.cache(lambda loss: loss.epsilon(self.config.delta))
        every = self.losses if self.asked is None else self.asked
        return {u: epsilon(self.losses[u]) if u in self.losses else math.inf for u in every}

    def _rows(self) -> list[dict[str, Any]]:
        """One JSON object per victim."""
        hops = self.named.distances(self.attackers)
        without = ("sensitivity_squared", "adaptive_sensitivity_squared", "mu", "mu_adaptive")
        return [
            {
                "victim": self.named.labels[u],
                "distance": hops.get(u),
                **dict.fromkeys(without),
                **dict.fromkeys(("epsilon", "epsilon_adaptive"), json_number(epsilon)),
                **dict.fromkeys(("bound", "adaptive_bound"), "upper"),
                "adaptive_by": BY,
            }
            for u, epsilon in self.epsilons.items()
        ]

    def _notes(self) -> list[str]:
        among = [self.named.labels[u] for u in self.epsilons if u not in self.losses]
        notes = [f"{label} is one of the attackers: its loss is infinite." for label in among]
        if self.guarantee.noise_std == 0:
            notes.append("noise_std is 0: no number is finite where the view depends on the record at all.")
        return [*notes, WITHOUT_MU]


def bins_account(
    config: AccountConfig, graph: SparseGraph, named: Named, algorithm: LinearAlgorithm, asked: Sequence[int] | None
) -> BinsAccount:
    """Accounts for every victim, at the noise or for the target of the config.

    Raises: UnsupportedMechanism: where the theorem does not reach (`privacy.sampled_exposures`).
    """
    model = named.model(config.trust)
    losses = PrivacyLosses.of(algorithm, Question(model, **config.values("adjacency", "clip_norm")))
    if config.target is None:
        given = 1.0 if config.noise_std is None else config.noise_std
        noise_std = 0.0 if algorithm.noise.is_zero else given
    elif config.calibrate_under is None:
        noise_std = losses.calibrate(**config.target).noise_std
    else:
        question = dataclasses.replace(losses.question, trust=named.model(config.calibrate_under))
        noise_std = PrivacyLosses.of(algorithm, question).calibrate(**config.target).noise_std
    guarantee = losses.guarantee(noise_std).at_delta(config.delta)
    attackers = model.attackers(algorithm)
    return BinsAccount(config, graph, named, algorithm, attackers, guarantee, losses.curves(noise_std), asked)


def made_for(config: AccountConfig) -> dict[str, Any]:
    """What builders of mechanisms of secret batches take besides: what the target asks of encoders."""
    if config.epsilon is None:
        return {}
    target = {"epsilon": config.epsilon, **config.values("delta", "adjacency")}
    return {"noise_std": noise_of_bins(bins=config.period, **target)}

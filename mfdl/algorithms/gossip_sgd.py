"""D-SGD and its noises without a factorization: none, independent, and what papers add to it.

All share one round: send (1 - eta decay) theta - eta v, v = momentum v + g + e, and average what was sent with W.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from .. import matrices
from ..dynamics import POWERS, Dynamics, PlainRounds
from ..errors import require_known
from ..gossip import GossipMatrix
from ..noise import IndependentNoise, LocalNoise, NoiseOperator, ZeroNoise
from ..participation import Participation
from .building import ALL_SEEN, MECHANISMS, builder
from .linear_algorithm import LinearAlgorithm
from .round import Round

if TYPE_CHECKING:
    from .linear_algorithm import CertifiedNoise


def decentralized(
    name: str,
    dynamics: Dynamics,
    participation: Participation,
    noise: NoiseOperator | None = None,
    *,
    factorization: CertifiedNoise | None = None,
) -> LinearAlgorithm:
    """The round above, noise (default independent) on the gradient sums, then the dynamics' further gossip rounds."""
    plain = PlainRounds(dynamics)
    schedule = plain.schedule(participation.num_steps)
    receivers_of = matrices.once(receivers)  # the same at every rate
    rounds: dict[tuple[int, float], Round] = {}

    def at_rate(weights: sp.csr_array, rate: float) -> Round:
        key = id(weights), rate  # of the schedule, which keeps them
        if key not in rounds:
            last = next(reversed(rounds.values()), None)
            rounds[key] = Round.from_recursion(plain.step_maps(weights, rate), receivers_of(weights), like=last)
        return rounds[key]

    algorithm = LinearAlgorithm(
        name=name,
        dynamics=dynamics,
        participation=participation,
        rounds=tuple(at_rate(weights, rate) for _, weights, rate in schedule),
        noise=IndependentNoise(participation.num_steps, dynamics.num_nodes) if noise is None else noise,
        model_from_state=plain.model_from_state,
        message_sender=np.arange(dynamics.num_nodes),
        divisors=np.ones(dynamics.num_nodes),
        factorization=factorization,
        step_of_round=tuple(step for step, _, _ in schedule),
    )
    return algorithm.known_plain()


def receivers(weights: sp.csr_array) -> sp.csr_array:
    """Receivers of each node's message, the others that give it weight; shape (n, n), bool."""
    return matrices.sparse_mask(receivers=(weights.T != 0) > sp.eye_array(weights.shape[0], dtype=bool))


@MECHANISMS.register(name="none", trust="none", models=())
@builder
def dsgd(dynamics: Dynamics, participation: Participation) -> LinearAlgorithm:
    """D-SGD without noise: no privacy at all, the accuracy ceiling of every comparison."""
    noise = ZeroNoise(participation.num_steps, dynamics.num_nodes)
    return decentralized("none", dynamics, participation, noise)


@MECHANISMS.register(
    paper="the baseline of arXiv:2510.17480, 2405.01031 and 2501.14644",
    erratum="clipping at Delta under replace-one moves a gradient by 2 Delta: adjacency is named, never assumed",
)
@builder
def dp_dsgd(dynamics: Dynamics, participation: Participation) -> LinearAlgorithm:
    """DP-D-SGD: fresh independent noise at every node and step, C = I (the LDP baseline)."""
    return decentralized("dp-dsgd", dynamics, participation)


@MECHANISMS.register(
    paper="arXiv:2206.05091",
    erratum="its sum of squared marginal losses is no bound for noise shared by messages; (K-1) n zero rows, not K n",
    trust="pndp",
    models=("pndp", *ALL_SEEN),
)
@builder
def muffliato(
    dynamics: Dynamics, participation: Participation, *, gossip_rounds: int | None = None, polynomial: str | None = None
) -> LinearAlgorithm:
    """Muffliato-SGD(K): DP-D-SGD with K gossip rounds per gradient; communication rounds K T.

    Args: gossip_rounds, polynomial: instead of the dynamics' own; the paper's acceleration is "chebyshev".
    Source: as a factorization arXiv:2510.17480, with (K-1) n zero rows per step.
    """
    given: dict[str, Any] = {"gossip_rounds": gossip_rounds, "polynomial": polynomial}
    dynamics = dataclasses.replace(dynamics, **{name: value for name, value in given.items() if value is not None})
    return decentralized("muffliato", dynamics, participation)


AVERAGES = ("complete", "topology")


@MECHANISMS.register(
    paper="the baseline of arXiv:2405.01031 and 2501.14644",
    erratum="the code of 2501.14644 adds sqrt(n) times more noise to the average than this trust model needs",
    trust="central",
    models=("central",),
)
@builder
def cdp(dynamics: Dynamics, participation: Participation, *, average: str = "complete") -> LinearAlgorithm:
    """CDP: independent node noise, of which one sees the average of all messages only.

    With complete averaging mu = record_shift sqrt(T) / (sqrt(n) nu) under the central trust model at user level. On a
    topology with doubly stochastic gossip that number is one for non-adaptive gradients: hidden models carry a gradient
    to neighbours, whose own gradients react to it. For training no more is shown there than for DP-D-SGD; and the
    accountant has only its dense form, minutes from some 400 steps of 16 nodes on.

    Args: average: "complete": W = 11^T / n, as a server averages, replaces the gossip; "topology": nodes average by it.
    Source: the baseline of arXiv:2405.01031 and of arXiv:2501.14644v2; the code of the latter adds sqrt(n) times more.
    """
    require_known("average of cdp", average, AVERAGES)
    if average == "topology":
        return decentralized("cdp", dynamics, participation)
    n = dynamics.num_nodes
    averaging = GossipMatrix(np.full((n, n), 1 / n), dynamics.gossip.labels, "server")
    central = dataclasses.replace(dynamics, gossip=averaging, gossip_rounds=1, polynomial=POWERS)
    return decentralized("cdp", central, participation)


@MECHANISMS.register(
    paper="arXiv:2510.17480, Appendix",
    erratum="noise must be scaled by the sensitivity of C, which Algorithm 1 leaves out; D acts per node, D (x) I_n",
)
@builder
def anti_pgd(dynamics: Dynamics, participation: Participation) -> LinearAlgorithm:
    """Anti-PGD: node noise z_t - z_{t-1}, i.e. C = ones lower triangular.

    Its sensitivity is large (b k (k+1) (2k+1) / 6 squared, for k epochs of b steps), and the noise is scaled by it.
    """
    noise = LocalNoise(np.tri(participation.num_steps), dynamics.num_nodes)
    return decentralized("anti-pgd", dynamics, participation, noise)

"""D-SGD and its node-local noises: none, independent, or any causal C_local (MF-D-SGD).

All share one round: send theta - eta (g + e), average what was sent with W. Under LDP the gossip drops out of
privacy, so what distinguishes the mechanisms here is the encoder alone.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from ..dynamics import Dynamics
from ..errors import InvalidInput
from ..factorization import Factorization, NodeFactorizations
from ..operators import IndependentNoise, LocalNoise, NoiseOperator, ZeroNoise
from ..participation import Participation
from .linear_algorithm import LinearAlgorithm, Round


def _decentralized(
    name: str,
    dynamics: Dynamics,
    participation: Participation,
    noise: NoiseOperator,
    factorization: Factorization | NodeFactorizations | None = None,
) -> LinearAlgorithm:
    T, n = participation.num_steps, dynamics.num_nodes
    eye = sp.csr_array(sp.eye_array(n))
    made: dict[tuple[int, float], Round] = {}
    rounds = []
    for t, eta in enumerate(dynamics.learning_rates(T)):
        gossip = dynamics.gossip.at(t)
        key = (id(gossip), float(eta))
        if key not in made:
            injection = sp.csr_array(-eta * eye)
            made[key] = Round(
                message_from_state=eye,
                message_from_gradient=injection,
                message_from_noise=injection,
                state_from_message=gossip.weights,
            )
        rounds.append(made[key])
    return LinearAlgorithm(
        name=name,
        dynamics=dynamics,
        participation=participation,
        rounds=tuple(rounds),
        noise=noise,
        model_from_state=eye,
        message_sender=np.arange(n),
        divisors=np.ones(n),
        factorization=factorization,
    )


def dsgd(dynamics: Dynamics, participation: Participation) -> LinearAlgorithm:
    """D-SGD without noise: no privacy at all, the accuracy ceiling of every comparison."""
    noise = ZeroNoise(participation.num_steps, dynamics.num_nodes)
    return _decentralized("none", dynamics, participation, noise)


def dp_dsgd(dynamics: Dynamics, participation: Participation) -> LinearAlgorithm:
    """DP-D-SGD: fresh independent noise at every node and step, C = I (the LDP baseline)."""
    noise = IndependentNoise(participation.num_steps, dynamics.num_nodes)
    return _decentralized("dp-dsgd", dynamics, participation, noise)


def mf_dsgd(
    dynamics: Dynamics,
    participation: Participation,
    encoder: ArrayLike,
    *,
    name: str = "mf-dsgd",
    factorization: Factorization | NodeFactorizations | None = None,
) -> LinearAlgorithm:
    """MF-D-SGD: node u adds (C^-1 Z_u)_t for a causal encoder C, shared (T, T) or per node (n, T, T).

    Raises: InvalidInput: C not lower triangular with a positive diagonal, or not T x T.
    Source: arXiv:2510.17480, Algorithm 1, with the noise scaled by the sensitivity of C.
    """
    noise = LocalNoise(np.asarray(encoder, dtype=np.float64), dynamics.num_nodes)
    if noise.num_steps != participation.num_steps:
        raise InvalidInput(
            f"encoder must be T x T with T = {participation.num_steps} steps of {participation.describe()}, "
            f"got {noise.num_steps} x {noise.num_steps}."
        )
    return _decentralized(name, dynamics, participation, noise, factorization)


def anti_pgd(dynamics: Dynamics, participation: Participation) -> LinearAlgorithm:
    """Anti-PGD: node noise z_t - z_{t-1}, i.e. C = ones lower triangular.

    Its sensitivity is large (b k (k+1) (2k+1) / 6 squared, for k epochs of b steps), and the noise is scaled by it.
    """
    T = participation.num_steps
    return mf_dsgd(dynamics, participation, np.tri(T), name="anti-pgd")

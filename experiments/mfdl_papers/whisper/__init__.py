"""Whisper D-SGD, arXiv:2501.14644v1, the first version of CorN-DSGD: its Theorem 2, which is no bound."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from mfdl import check, node_covariances
from mfdl.testing.oracles.curve_oracles import exact_epsilon

from ..corn import corn_claims
from ..corn.corn_claims import NoisySystem, epsilon_spent, mu_of_all_messages, systems
from ..facts import errata
from ..paper_claims import statements
from ..published import PublishedBound


def whisper_theorem(covariance: Any, *, delta: float, clip_norm: float = 1.0, num_steps: int = 1) -> PublishedBound:
    """epsilon as printed in the first version of [CorN]: 2 C^2 T r / n + r C sqrt(2 T L / n). Not a bound.

    Source: [Whisper] arXiv:2501.14644v1, Theorem 2, (8); r = max_i [R^-1]_ii.
    Claims: (epsilon, delta) against an eavesdropper.
    Errata: `whisper-theorem-2`; its (10) is `whisper-10`.
    Validity: "refuted: reports far too little"; kept for comparison only.

    Args, Raises, Cost: those of `corn_theorem`.
    """
    C = check.positive(clip_norm=clip_norm)
    T = check.integer_at_least(1, num_steps=num_steps)
    L = -math.log(check.open_unit(delta=delta))
    R = check.square_array(covariance=covariance)
    r, n = node_covariances.inverse_diagonal(R), len(R)
    return PublishedBound(
        2 * C**2 * T * r / n + r * C * math.sqrt(2 * T * L / n),
        "epsilon",
        "[Whisper] arXiv:2501.14644v1, Theorem 2 (8)",
        errata("whisper-theorem-2"),
        "refuted: 1.17 printed where the exact epsilon is 9.997 (R = I, n = 20, C = T = 1, delta = 1e-5)",
    )


published_claim = statements(system=systems(), epsilon=corn_claims.EPSILONS, delta=corn_claims.DELTAS)


@published_claim("whisper-condition")
def whisper_condition(delta: float, epsilon: int) -> Any:
    assume(epsilon >= -math.log(delta))
    return epsilon_spent(epsilon, delta), epsilon


@published_claim("whisper-theorem-2", system=systems(min_nodes=2), num_steps=st.integers(1, 2))
def whisper_theorem_2(system: NoisySystem, num_steps: int, delta: float) -> Any:
    printed = whisper_theorem(system.R, delta=delta, num_steps=num_steps).value
    return printed, float(exact_epsilon(mu_of_all_messages(system, num_steps), delta))


@published_claim("whisper-10", max_inverse_diagonal=st.sampled_from([1.0, 0.5, 0.25, 2.0]))
def whisper_10(system: NoisySystem, max_inverse_diagonal: float) -> Any:
    assume(np.linalg.inv(system.R).diagonal().min() >= max_inverse_diagonal)
    return 2 * math.sqrt(max_inverse_diagonal), mu_of_all_messages(system, 1)

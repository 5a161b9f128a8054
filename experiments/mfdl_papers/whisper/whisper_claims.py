"""The condition on epsilon, Theorem 2 and the constraint (10), as the first version prints them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from mfdl.testing.oracles.curve_oracles import exact_epsilon

from ..corn.corn_claims import DELTAS, EPSILONS, NoisySystem, epsilon_spent, mu_of_all_messages, systems
from ..paper_claims import statements
from . import whisper_theorem

published_claim = statements(system=systems(), epsilon=EPSILONS, delta=DELTAS)


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

"""How fast gossip averages: the mixing parameter is the contraction of squared distances, and it is met."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from mfdl import InvalidInput, gossip
from mfdl.testing import gossip_matrices


@settings(deadline=None)
@given(W=gossip_matrices(max_nodes=6, kinds=["symmetric", "singular"]), seed=st.integers(0, 99))
def test_mixing_parameter_bounds_every_contraction_and_is_met(W, seed):
    p, n = W.mixing_parameter, W.num_nodes
    x = np.random.default_rng(seed).standard_normal(n)
    x -= x.mean()
    after = W.dense() @ x
    assert after @ after <= (1 - p + 1e-12) * (x @ x)
    second = np.sort(np.linalg.eigvalsh(W.dense().T @ W.dense()))[-2] if n > 1 else 0.0
    assert_allclose(1 - p, second, atol=1e-12)


def test_mixing_parameter_of_special_cases():
    assert gossip.from_array([[1.0]]).mixing_parameter == 1.0
    assert gossip.from_array(np.eye(3)).mixing_parameter == 0.0
    one_way = np.roll(np.eye(4), 1, axis=1)  # doubly stochastic, not symmetric
    ring = gossip.from_array((np.eye(4) + one_way) / 2)
    assert_allclose(ring.mixing_parameter, 0.5, rtol=1e-12)
    with pytest.raises(InvalidInput, match="must be doubly stochastic: otherwise the average moves"):
        _ = gossip.uniform("star:n=5").mixing_parameter

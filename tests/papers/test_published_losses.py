"""Published bounds in the picture of `mfdl account`: where they are stated, and that they are those of the paper."""

import numpy as np
import pytest

import mfdl
import mfdl_papers as papers
from mfdl import extensions, gossip

ONE, ANY = [(0,)], [(0,), (2,)]


def algorithm(scheme, rounds=1):
    W = gossip.metropolis_hastings("path:n=4")
    return mfdl.algorithms.dp_dsgd(mfdl.Dynamics(W, gossip_rounds=rounds), scheme)


def stated(mechanism, trust, of, attackers):
    (published_losses,) = extensions.every(extensions.PUBLISHED_LOSSES)
    return published_losses(mechanism, trust, of, attackers)


@pytest.mark.parametrize("scheme", [mfdl.EveryStep(3), mfdl.Single(3), mfdl.Cyclic(1, 3)])
def test_both_bounds_of_every_attacker(scheme):
    of = algorithm(scheme, rounds=2)
    squared, coded = stated("dp-dsgd", "pndp", of, ANY)
    known = {"num_steps": 3, "gossip_rounds": 2, "every_step": scheme == mfdl.EveryStep(3)}
    for published, bound in ((squared, papers.muffliato_squared), (coded, papers.muffliato_as_coded)):
        assert list(published.squared) == ANY
        for (node,), values in published.squared.items():
            printed = bound(of.dynamics.gossip, f"#{node}", **known)
            np.testing.assert_array_equal(values, printed.value)
            assert published.validity == printed.validity


@pytest.mark.parametrize(
    ("mechanism", "trust", "scheme", "attackers"),
    [
        ("bsr", "pndp", mfdl.EveryStep(4), ONE),
        ("dp-dsgd", "ldp", mfdl.EveryStep(4), [()]),
        ("dp-dsgd", "pndp", mfdl.Cyclic(2, 2), ONE),
        ("muffliato", "pndp", mfdl.EveryStep(4), [(0, 1)]),
    ],
)
def test_nothing_is_stated_elsewhere(mechanism, trust, scheme, attackers):
    assert stated(mechanism, trust, algorithm(scheme), attackers) == []

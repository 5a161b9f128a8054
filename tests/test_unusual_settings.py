"""Settings that are rarely meant: a warning names the way out, and settings near them warn of nothing."""

import numpy as np
import pytest
from vocabulary import each
from wrong_turns import D, P, W

import mfdl

IDENTITY = mfdl.gossip.from_array(np.eye(4))


def maps(size: float):
    return mfdl.algorithms.from_maps({"P": np.eye(4), "Q": -np.eye(4), "K": size * W.dense()}, P)


WARNED = {
    "no averaging": (lambda: mfdl.Dynamics(IDENTITY), ["4 nodes", "never average", "metropolis_hastings"]),
    "no averaging in any round": (lambda: mfdl.Dynamics(mfdl.gossip.sequence([IDENTITY, IDENTITY])), ["never average"]),
    "a wide root": (lambda: mfdl.algorithms.bsr(D, P, bandwidth=9), ["bandwidth 9", "T = 6 steps", "at most 6"]),
    "a wide inverse": (lambda: mfdl.algorithms.bisr(D, P, bandwidth=9), ["bandwidth 9", "T = 6 steps"]),
    "a wide encoder": (lambda: mfdl.factorization.square_root_encoder(3, 4), ["bandwidth 4", "T = 3 steps"]),
    "wide bands": (lambda: mfdl.algorithms.toeplitz(D, mfdl.EveryStep(6), bandwidth=9), ["bandwidth 9", "T = 6"]),
    "maps that grow": (lambda: maps(1.5), ["unstable", "1.5 times", "in 6 steps", "rows of K that sum to 1"]),
}


@pytest.mark.parametrize("name", WARNED)
def test_a_setting_that_is_rarely_meant_is_a_warning_with_the_way_out(name):
    call, words = WARNED[name]
    with pytest.warns(mfdl.errors.UnusualSetting) as caught:
        call()
    (message,) = {str(warning.message) for warning in caught}
    assert [word for word in words if word not in message] == [], message


@pytest.mark.filterwarnings("error::mfdl.errors.UnusualSetting")
@each(
    "call",
    lambda: mfdl.Dynamics(mfdl.gossip.from_array(np.eye(1))),
    lambda: mfdl.Dynamics(mfdl.gossip.sequence([IDENTITY, W])),
    lambda: mfdl.algorithms.dp_dsgd(mfdl.Dynamics(W, 0.1, momentum=0.99), P),
    lambda: mfdl.algorithms.bsr(D, P, bandwidth=6),
    lambda: mfdl.algorithms.bisr(D, P),
    lambda: maps(1.0),
    lambda: mfdl.algorithms.gradient_tracking(mfdl.Dynamics(W, 0.1), P),
    lambda: mfdl.algorithms.exact_diffusion(mfdl.Dynamics(W, 0.1), P),
    lambda: mfdl.algorithms.delayed_dsgd(D, P),
    lambda: mfdl.algorithms.two_hop_dsgd(D, P),
)
def test_no_false_alarm(call):
    call()

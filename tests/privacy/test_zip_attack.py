"""An attack on the claim for users of Zip-DL: likelihood ratios of runs, beside the bound and beyond its conditions."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm

from mfdl import Cyclic, Dynamics, EveryStep, Privacy, algorithms, calibrate, gossip, trust
from mfdl.privacy import sensitivity_by_victim
from mfdl.privacy.forms import view_grams

MH = gossip.metropolis_hastings


def total_variation(mu):
    return 2 * norm.cdf(mu / 2) - 1


def zip_runs(W, T, worlds, gradients, nu, runs, seed):
    """log p(view in world 0) - log p(view in world 1) of runs in world 0, all sent messages seen, learning rate 1.

    Written out from arXiv:2403.11795, Algorithm 1. `worlds` are two functions (step, own model) -> gradient of node 0,
    `gradients` the one of all other nodes. The attacker knows all three, and follows both hypotheses on its own: by
    sum_v W_va Z_{a->v} = 0 it replaces the message a -> a, which it does not see.
    """
    rng, n = np.random.default_rng(seed), len(W)
    around = [np.flatnonzero(W[:, a]) for a in range(n)]
    x, believed = np.zeros((runs, n)), [np.zeros((runs, n)) for _ in worlds]
    ratio = np.zeros(runs)

    def steps(t, models, world):
        g = gradients(t, models)
        g[:, 0] = world(t, models[:, 0])
        return models - g

    for t in range(T):
        half = steps(t, x, worlds[0])
        guess = [steps(t, models, world) for models, world in zip(believed, worlds, strict=True)]
        after = np.zeros((runs, n))
        moved = [h.copy() for h in guess]
        for a in range(n):
            w = W[around[a], a]
            F = np.eye(len(w)) - np.outer(1 / (len(w) * w), w)
            messages = half[:, [a]] + nu * rng.standard_normal((runs, len(w))) @ F.T
            after[:, around[a]] += messages * W[around[a], a]
            sent = around[a] != a
            precision = np.linalg.inv(nu**2 * (F @ F.T)[np.ix_(sent, sent)])
            for sign, h, m in zip((1, -1), guess, moved, strict=True):
                off = messages[:, sent] - h[:, [a]]
                ratio -= sign * np.einsum("ri,ij,rj->r", off, precision, off) / 2
                m[:, a] -= messages[:, sent] @ w[sent]
                m[:, around[a][sent]] += messages[:, sent] * W[around[a], a][sent]
        x, believed = after, moved
        assert_allclose(believed[0], x, atol=1e-8 * nu)  # the right hypothesis finds every model
    return ratio


def attack(ratio):
    """(estimated total variation, its standard error) from log likelihood ratios in world 0."""
    positive_parts = np.clip(1 - np.exp(-ratio), 0, None)
    return positive_parts.mean(), positive_parts.std() / math.sqrt(len(positive_parts))


RUNS = 20_000
STEP_BACK = {
    "constant": lambda t, x: np.ones_like(x),
    "sign of the model": lambda t, x: np.sign(x),
    "square wave": lambda t, x: np.sign(np.sin(math.pi * x)),
    "steep": lambda t, x: np.clip(5 * x, -1, 1),
}


@pytest.mark.parametrize("name", STEP_BACK)
@pytest.mark.parametrize("T", [2, 3])
def test_no_gradient_of_a_user_breaks_the_guarantee(name, T):
    """Data that turn the sign of the user's gradient, adversarial ones of all others: mu = 1, replace-one, C = 1/2."""
    algorithm = algorithms.zip_dl(Dynamics(MH("ring:n=4")), EveryStep(T))
    calibrated = calibrate(
        algorithm,
        Privacy(trust.Eavesdropper(), adjacency="replace-one", clip_norm=0.5, release="none", unit="user"),
        mu=1.0,
    )
    assert calibrated.noise_std == pytest.approx({2: math.sqrt(30), 3: math.sqrt(84)}[T], rel=1e-6)
    shape = STEP_BACK[name]
    worlds = [lambda t, x, s=sign: s * shape(t, x) / 2 if t else np.full_like(x, s / 2) for sign in (1, -1)]
    ratio = zip_runs(MH("ring:n=4").dense(), T, worlds, lambda t, x: np.sign(x) / 2, calibrated.noise_std, RUNS, seed=T)
    assert np.exp(-ratio).mean() == pytest.approx(1, abs=0.06)  # a likelihood ratio
    variation, error = attack(ratio)
    assert variation <= total_variation(1.0) + 4 * error
    if name == "constant":
        assert variation >= total_variation(1.0) - 4 * error


def test_with_one_step_per_record_the_claim_is_false():
    """Two nodes, two steps, two records of node 0. The first takes part in step 0 or not; the second in step 1.

    X = [[4, 2], [2, 2]], so a record in step 0 alone would weigh 4, mu = 1/2 at nu = 4. But given the messages, the
    model of step 1 is one lower with the first record than without, and that turns the sign of the second's gradient.
    """
    W, nu = np.full((2, 2), 0.5), 4.0
    algorithm = algorithms.zip_dl(Dynamics(gossip.from_array(W)), Cyclic(1, 2))
    (gram, _) = view_grams(trust.Eavesdropper().view(algorithm, 0, release="none"), [0, 1])
    assert_allclose(gram.matrix, [[4, 2], [2, 2]], rtol=1e-12)
    wave = STEP_BACK["square wave"]
    worlds = [lambda t, x, g=first: wave(t, x) if t else np.full_like(x, g) for first in (1.0, 0.0)]
    variation, error = attack(zip_runs(W, 2, worlds, lambda t, x: np.zeros_like(x), nu, RUNS, seed=0))
    assert variation - 10 * error > total_variation(2 / nu)
    # with equal or opposite signs of (1, +-2): energy 20 or 4, half of the time each
    assert variation == pytest.approx((total_variation(math.sqrt(20) / nu) + total_variation(2 / nu)) / 2, abs=0.03)
    assert [
        x.adaptive_sensitivity_squared for x in sensitivity_by_victim(algorithm, trust.Eavesdropper(), release="none")
    ] == [math.inf] * 2

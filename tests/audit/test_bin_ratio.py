"""The likelihood ratio of balls-in-bins against dense densities, and the runs it takes against exact binomials."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.stats
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

import mfdl
from mfdl import trust
from mfdl.audit.audited_claims import AuditSettings
from mfdl.audit.auditing import FEWEST, BinRatio, BinsAttack, whitened
from mfdl.audit.bounds import EPSILONS, ErrorRates, clopper_pearson_upper_bound
from mfdl.privacy import gaussian


@examples(40)
@given(
    epochs=st.integers(1, 2), bins=st.integers(1, 3), adjacency=st.sampled_from(["zero-out", "replace-one"]),
    public=st.booleans(), seed=st.integers(0, 100),
)  # fmt: skip
def test_the_statistic_is_the_ratio_of_dense_mixtures(epochs, bins, adjacency, public, seed):
    """Of an encoder, by densities of all rows at once; a public bin is one of them."""
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("path:n=2"), 0.1)
    cyclic = mfdl.algorithms.mafalda(dynamics, mfdl.Cyclic(epochs, bins))
    algorithm = dataclasses.replace(cyclic, participation=mfdl.BallsInBins(epochs, bins))
    settings = AuditSettings(algorithm, trust=trust.LDP(), adjacency=adjacency, clip_norm=1.3, noise_std=0.7)
    canary = BinsAttack(settings).candidates([0])[0]
    view = canary.view
    rng = np.random.default_rng(seed)
    o = 0.7 * (rng.standard_normal((4, view.noise.shape[1])) @ view.noise.T) + rng.normal() * canary.shift
    drawn = rng.integers(bins, size=4)
    P, ratio = whitened(canary, settings.circumstances, bins_seen=public)
    statistic = ratio.of(o @ P.T / 0.7, drawn)
    law = scipy.stats.multivariate_normal(
        np.zeros(len(view.noise)), 0.49 * view.noise @ view.noise.T, allow_singular=True
    )
    joins = [canary.signs * (np.arange(epochs * bins) % bins == r) for r in range(bins)]
    means = [1.3 * view.columns_of(0) @ joined for joined in joins]
    for run, r in enumerate(drawn):
        some = [means[r]] if public else means
        present = sum(law.pdf(o[run] - mean) for mean in some)
        without = (
            sum(law.pdf(o[run] + mean) for mean in some) if adjacency == "replace-one" else len(some) * law.pdf(o[run])
        )
        assert statistic[run] == pytest.approx(math.log(present / without), rel=1e-6, abs=1e-6)


def test_as_many_runs_as_are_needed_refute_public_bins_nearly_always_and_half_of_them_do_not():
    """By exact binomials: two independent counts at the best threshold, each at its 90th percentile."""
    ratio = BinRatio(np.eye(4) * 1.2, replaced=False, bins_seen=True)
    claimed = np.array([gaussian.delta_from_mu(0.7, epsilon) for epsilon in EPSILONS])
    needed = ratio.trials_needed(1.0, claimed, 0.01)
    assert FEWEST < needed < 10_000

    def refuted(runs, quantile):
        for t in np.linspace(-3, 3, 121):
            alpha, beta = scipy.stats.norm.sf((t + 0.72) / 1.2), scipy.stats.norm.cdf((t - 0.72) / 1.2)
            counts = [int(scipy.stats.binom.ppf(quantile, runs, rate)) for rate in (alpha, beta)]
            if (ErrorRates(*(clopper_pearson_upper_bound(k, runs, 0.005) for k in counts)).deltas > claimed).any():
                return True
        return False

    assert refuted(int(needed), 0.9)
    assert not refuted(int(needed) // 2, 0.9)


@pytest.mark.parametrize("replaced", [False, True])
def test_simulated_error_rates_are_those_of_one_bin(replaced):
    """Where they are Gaussian, also with half the noise; public and secret ones are the same there."""
    shift = np.array([[0.8, 0.6]])
    s = 2.0 if replaced else 1.0
    claimed = np.array([gaussian.delta_from_mu(s, epsilon) for epsilon in EPSILONS])
    for public in (False, True):
        ratio = BinRatio(shift, replaced, public)
        alpha, beta = ratio.error_rates(0.5)
        middle = int(np.argmin(np.abs(alpha - beta)))
        assert alpha[middle] == pytest.approx(scipy.stats.norm.sf(s / 2 / 0.5), abs=0.005)
        assert math.isinf(ratio.trials_needed(1.0, claimed, 0.01))  # a claim that holds is never expected to fall
        assert FEWEST <= ratio.trials_needed(0.5, claimed, 0.01) < 3000

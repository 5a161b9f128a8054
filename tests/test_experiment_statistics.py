"""Statistics of the comparison: intervals that hold what they say, Holm against its definition, shares and ratios."""

import itertools
import math

import _paired_statistics as statistics
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import stats

P = st.floats(0, 1) | st.sampled_from([0.0, 0.01, 0.02, 0.05, 1.0])


@given(p_values=st.lists(P, min_size=1, max_size=6))
@examples(200)
def test_holm_is_closed_testing_by_bonferroni(p_values):
    """A hypothesis is rejected at alpha if every set of hypotheses that holds it is, by Bonferroni."""
    corrected, m = statistics.holm(p_values), range(len(p_values))
    for k in m:
        sets = (s for size in m for s in itertools.combinations(m, size + 1) if k in s)
        assert_allclose(corrected[k], max(min(1.0, len(s) * min(p_values[i] for i in s)) for s in sets), rtol=1e-12)


def made_up(rng, scenes, seeds, spread, noise):
    """Scenes whose mean log ratio is -.3 in all, each with its own, and the seeds of a scene shared by all rows."""
    for _ in range(scenes):
        common = rng.normal(size=seeds) * 0.4
        effect = -0.3 + spread * rng.normal()
        yield {
            "reference": np.exp(common),
            "loss": np.exp(common + effect + noise * rng.normal(size=seeds)),
            "none": np.exp(common) / 2,
        }


@pytest.mark.parametrize("scenes", [1, *(pytest.param(count, marks=pytest.mark.slow) for count in (4, 9))])
def test_intervals_hold_the_truth_about_as_often_as_they_say(scenes, monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 300)
    rng, hits, tries = np.random.default_rng(scenes), 0, 200
    for k in range(tries):
        drawn = list(made_up(rng, scenes, 8, 0.2 * (scenes > 1), 0.1))
        estimate = statistics.over_scenes(statistics.log_ratio, drawn, seed=k)
        hits += estimate.low <= -0.3 <= estimate.high
    assert 0.91 <= hits / tries <= 0.995  # .95 +- 2.6 standard errors; scenes and seeds both drawn err to the wide side


def test_plain_percentiles_of_few_scenes_would_be_too_narrow(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 300)
    monkeypatch.setattr(statistics, "expanded_tail", lambda units: 0.025)
    rng, hits = np.random.default_rng(5), 0
    for k in range(200):
        drawn = list(made_up(rng, 4, 8, 0.2, 0.02))
        estimate = statistics.over_scenes(statistics.log_ratio, drawn, seed=k)
        hits += estimate.low <= -0.3 <= estimate.high
    assert hits / 200 < 0.9


@given(losses=st.lists(st.tuples(*[st.floats(0.1, 10)] * 3), min_size=2, max_size=6), scale=st.floats(0.01, 100))
@examples(50)
def test_ratios_and_shares_are_those_of_the_definitions(losses, scale):
    loss, reference, none = np.array(losses).T + np.array([[0.0], [20.0], [0.0]])
    drawn = {"loss": loss, "reference": reference, "none": none}
    assert_allclose(
        statistics.log_ratio(drawn), np.mean([math.log(a / b) for a, b, _ in np.transpose([loss, reference, none])])
    )
    assert_allclose(
        statistics.share(drawn), (reference.sum() - loss.sum()) / (reference.sum() - none.sum()), atol=1e-12
    )
    scaled = {name: values * scale for name, values in drawn.items()}
    assert_allclose(statistics.share(scaled), statistics.share(drawn), atol=1e-9)
    assert_allclose(statistics.log_ratio(scaled), statistics.log_ratio(drawn), atol=1e-9)
    assert_allclose(statistics.share({**drawn, "loss": none}), 1)
    assert statistics.share({**drawn, "loss": reference}) == 0


def test_the_order_of_pairs_and_which_is_first_do_not_change_a_test():
    rng = np.random.default_rng(0)
    loss, reference = np.exp(rng.normal(size=(2, 20)) * 0.1) * np.array([[0.95], [1.0]])
    p = statistics.signed_rank(loss, reference)
    assert_allclose(p, statistics.signed_rank(reference[::-1], loss[::-1]))
    assert_allclose(p, stats.wilcoxon(np.log(loss), np.log(reference)).pvalue)
    assert statistics.signed_rank(loss, loss) == 1.0
    assert_allclose(statistics.signed_rank(loss / 9, reference), 2 / 2**20)  # all pairs on one side


def test_one_extreme_pair_does_not_decide_a_share_of_seeds_that_all_agree():
    """Pairs stay together when seeds are drawn: rows that differ by a constant factor have an interval of no width."""
    reference = np.array([1.0, 2.0, 50.0, 3.0])
    estimate = statistics.over_scenes(
        statistics.log_ratio, [{"loss": reference / 2, "reference": reference, "none": reference / 4}]
    )
    assert_allclose([estimate.middle, estimate.low, estimate.high], -math.log(2))

"""DECOR's accountant of sampled batches beside integrals and an independent implementation, and its rates."""

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

import mfdl
import mfdl_papers as papers
from mfdl_papers.decor import rate_comparison


def divergence(order, std, rate, common):
    """D_order of (1 - g) N(c) + g N(1) from (1 - g) N(c) + g N(-1) on a grid; the means are of a batch's output."""
    x = np.linspace(-14 * std - 20, 14 * std + 20, 60_001)

    def log_density(mean):
        parts = [-((x - m) ** 2) / (2 * std**2) + np.log(w) for m, w in ((common, 1 - rate), (mean, rate)) if w > 0]
        return np.logaddexp.reduce(parts) - math.log(std * math.sqrt(2 * math.pi))

    return math.log(np.trapezoid(np.exp(order * log_density(1.0) + (1 - order) * log_density(-1.0)), x)) / (order - 1)


@given(st.integers(2, 8), st.floats(0.8, 8), st.floats(0.01, 1), st.floats(-1, 1))
def test_the_sampled_bound_is_above_the_divergence_of_every_batch(order, std, rate, common):
    slope = 2**2 / (2 * std**2)  # a replaced record moves the mean by 2
    bound = papers.sampled_renyi(slope, order=order, rate=rate)
    assert bound >= divergence(order, std, rate, common) * (1 - 1e-6) - 1e-9


@pytest.mark.parametrize(("multiplier", "rate", "steps"), [(0.8, 0.01, 100), (2.0, 0.1, 10), (5.0, 0.02, 1000)])
def test_epsilon_is_no_lower_than_that_of_another_implementation(multiplier, rate, steps):
    import dp_accounting
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(
        orders=list(range(2, 41)),  # its best ones are 5, 12 and 17; those beyond 200 take seconds
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE,
    )
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        1000, round(1000 * rate), dp_accounting.GaussianDpEvent(multiplier)
    )
    theirs = accountant.compose(event, steps).get_epsilon(1e-5)
    ours = papers.sampled_epsilon(1 / (2 * multiplier**2), 1e-5, rate=rate, num_steps=steps)
    assert ours.valid
    assert theirs <= ours.value <= 3 * theirs + 1


def test_steps_add_up_and_numbers_out_of_range_are_refused():
    single_step, ten = (papers.sampled_renyi(0.1, order=4, rate=0.05, num_steps=t) for t in (1, 10))
    assert ten == pytest.approx(10 * single_step)
    assert papers.sampled_renyi(0.0, order=2, rate=0.5) == 0.0
    for wrong in ({"order": 1, "rate": 0.5}, {"order": 2, "rate": 1.5}, {"order": 2, "rate": 0.0}):
        refuses(".", papers.sampled_renyi, 0.1, **wrong)


def test_rates_are_the_printed_formulas():
    common = {"epsilon": 2.0, "dimension": 3}
    assert papers.central_rate(10, **common) == pytest.approx(3 / (100 * 4))
    assert papers.local_rate(10, **common) == pytest.approx(3 / (10 * 4))
    ring = np.roll(np.eye(10), 1, 1)
    mixing = 1 - np.sort(np.linalg.eigvalsh((np.eye(10) + ring + ring.T) / 3) ** 2)[-2]
    assert papers.muffliato_rate("ring:n=10", **common) == pytest.approx(2 / math.sqrt(mixing) * 3 / 400)
    lines = rate_comparison.rates("ring")
    assert lines["DECOR"] / lines["central"] == pytest.approx(32 * math.log(1e5))


def test_verdicts_on_rates():
    lines = {family: rate_comparison.rates(family) for family in ("ring", "complete")}
    assert [part.verdict for part in rate_comparison.judged(lines)] == ["confirmed", "confirmed"]
    lines["ring"]["DECOR"] = lines["ring"]["local"]
    lines["ring"]["Muffliato"] = lines["ring"]["central"]
    assert [part.verdict for part in rate_comparison.judged(lines)] == ["refuted", "refuted"]


@pytest.mark.parametrize("spec", ["path:n=4", "star:n=5", "complete:n=4"])
def test_the_flow_is_of_least_energy(spec):
    graph = mfdl.graphs.load(spec)
    K, n = nx.incidence_matrix(graph, oriented=True).toarray(), len(graph)
    flows = [np.linalg.lstsq(K, np.eye(n)[i] - 1 / n, rcond=None)[0] for i in range(n)]
    expected = 2 * max(1 / (n * 4) + t @ t / 9 for t in flows)
    assert papers.flow_theorem(graph, sigma_ldp=2.0, sigma_cor=3.0).value == pytest.approx(expected)


def test_a_flow_needs_noise_on_its_edges():
    assert papers.flow_theorem("ring:n=4", sigma_ldp=1.0, sigma_cor=0.0).value == math.inf
    alone = papers.flow_theorem("star:n=4", sigma_ldp=2.0, sigma_cor=3.0, num_colluders=1)
    assert alone.value == pytest.approx(2 / 4)  # without the centre each node hides by its own noise alone
    for wrong in ({"epsilon": 0.0, "delta": 0.1}, {"epsilon": 1.0, "delta": 1.0}):
        refuses(".", papers.largest_theta, **wrong)

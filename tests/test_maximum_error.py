"""The measure "maximum" of a factorization: Grams of each step, its door, mechanisms, the command, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from refusals import refuses

from mfdl import Cyclic, Dynamics, ErrorWeights, InvalidInput, UnsupportedMechanism, algorithms, factorization, gossip
from mfdl.commands.factorize import FactorizeConfig
from mfdl.commands.factorize_jobs import run_factorize
from mfdl.objective import NoiseObjective, Probes, spectra
from mfdl.testing import gossip_matrices, gossip_sequences

RING, PART = Dynamics(gossip.metropolis_hastings("ring:n=5"), 0.5), Cyclic(2, 3)


@examples(100)
@given(
    W=st.one_of(gossip_matrices(max_nodes=4), gossip_sequences(max_nodes=3)),
    T=st.integers(1, 5),
    momentum=st.sampled_from([0.0, 0.5]),
    target=st.sampled_from(["nodes", "average"]),
    counted_models=st.sampled_from(["post-average", "message"]),
    curved=st.booleans(),
    by_nodes=st.booleans(),
)
def test_each_step_is_counted_alone(W, T, momentum, target, counted_models, curved, by_nodes):
    W = W if W.is_constant else gossip.sequence(W.matrices)
    rates = np.linspace(1.0, 0.5, T)
    dynamics = Dynamics(W, rates, momentum=0.0 if curved else momentum, weight_decay=0.2)
    curvature = "power:1:3" if curved else None
    w = np.arange(T) % 3 + (T == 1)
    with pytest.MonkeyPatch.context() as patch:
        if by_nodes:
            patch.setattr(spectra, "MAX_MEASURE_RATIO", 0.0)
        grams = NoiseObjective(dynamics, T, ErrorWeights(w, target, curvature=curvature), counted_models)
        by_step = grams.over_each_step()
    alone = [ErrorWeights(row, target, curvature=curvature) for row in np.diag(w.astype(float))[w > 0]]
    expected = [NoiseObjective(dynamics, T, weights, counted_models).over_steps() for weights in alone]
    assert_allclose(by_step, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("weights", [ErrorWeights(), ErrorWeights("last:4:0.1", curvature="power:1:20")])
def test_the_largest_error_is_less_than_that_of_the_best_sum(weights):
    best = factorization.factorize(RING, PART, weights=weights, measure="maximum")
    usual = factorization.factorize(RING, PART, weights=weights)
    posed = factorization.maximum_problem(RING, PART, weights=weights)
    judged = factorization.evaluate(posed, usual.encoder, lower_bound=best.lower_bound)
    assert best.lower_bound <= best.objective <= best.lower_bound * (1 + 1e-4)
    assert best.objective < judged.objective
    noise = algorithms.mf_dsgd(RING, PART, best.encoder).noise
    w = weights.of_steps(6)
    errors = [
        NoiseObjective(RING, 6, ErrorWeights(row, curvature=weights.curvature)).noise_error(noise).value
        for row in np.diag(w)
    ]
    assert_allclose(max(errors), best.objective, rtol=1e-6)


def test_mechanisms_and_files(tmp_path):
    algorithm = algorithms.build("mafalda", RING, PART, measure="maximum")
    best = factorization.factorize(RING, PART, measure="maximum")
    assert_allclose(algorithm.factorization.objective, best.objective)
    file = tmp_path / "worst.mfdl"
    small = {"graph": "ring:n=5", "epochs": 2, "period": 3, "lr": 0.5}
    answer = run_factorize(FactorizeConfig(measure="maximum", **small), file)
    assert answer["measure"] == "maximum"
    assert_allclose(answer["objective"], best.objective)
    assert_allclose(factorization.load(file).encoder, best.encoder)
    of_file = run_factorize(FactorizeConfig(mechanism=f"file:{file}", measure="maximum", **small))
    assert_allclose(of_file["objective"], best.objective, rtol=1e-9)
    assert "measure" not in run_factorize(FactorizeConfig(**small))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: factorization.factorize(RING, PART, measure="maximal"), "did you mean 'maximum'"),
        (lambda: factorization.factorize(RING, PART, measure="maximum", probes=Probes()), "neither probes nor"),
        (lambda: factorization.factorize(RING, PART, measure="maximum", solver="autodiff"), "by solver='dense'"),
        (
            lambda: factorization.maximum_problem(RING, PART, weights=ErrorWeights("released:last")),
            "count one released model",
        ),
        (lambda: NoiseObjective(RING, 513).over_each_step(), "512 steps at most, got 513"),
        (lambda: FactorizeConfig(mechanism="kronecker", measure="maximum"), "its objective is a sum"),
        (lambda: FactorizeConfig(solver="toeplitz", measure="maximum"), "is for --solver dense"),
        (lambda: FactorizeConfig(measure="mean"), "unknown measure 'mean'"),
    ],
)
def test_what_has_no_largest_error_is_refused(call, message):
    refuses(message, call, error=(InvalidInput, UnsupportedMechanism))

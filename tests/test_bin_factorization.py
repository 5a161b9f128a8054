"""The encoder for balls-in-bins: which one is kept, what it costs in models, what is refused."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from refusals import refuses

from mfdl import Cyclic, Dynamics, ErrorWeights, UnsupportedMechanism, algorithms, gossip
from mfdl.algorithms import noise_error
from mfdl.factorization import factorize_balls_in_bins
from mfdl.factorization.solutions import Solutions, keeping

RING = Dynamics(gossip.metropolis_hastings("ring:n=6"))


def hull(M):
    """A scale that grows in the diagonal and in the correlation."""
    d, c = np.diagonal(M).max(), (M - np.diag(np.diagonal(M))).max()
    return d**0.5 * (0.5 + (c / d) ** 0.5)


@pytest.mark.parametrize("weights", [ErrorWeights(), ErrorWeights("released:average:6")])
def test_the_kept_encoder_is_the_least_error_of_those_tried_and_costs_what_it_says(weights):
    factorization = factorize_balls_in_bins(
        RING, 3, 4, hull, weights=weights, correlations=(0.3, 0.0, 0.1), progress=False
    )
    assert [correlation for correlation, _, _ in factorization.tried] == [0.0, 0.1, 0.3]
    errors = [std * solved.objective**0.5 for _, std, solved in factorization.tried]
    assert_allclose(factorization.root_error, min(errors), rtol=1e-12)
    assert len(set(errors)) == 3
    algorithm = algorithms.mf_dsgd(RING, Cyclic(3, 4), factorization.encoder)
    assert_allclose(
        factorization.noise_std * noise_error(algorithm, weights=weights).value ** 0.5,
        factorization.root_error,
        rtol=1e-9,
    )
    for _, _, solved in factorization.tried:
        assert 0 < solved.lower_bound <= solved.objective * (1 + 1e-9) < 1.3 * solved.lower_bound


def test_a_problem_is_solved_once_where_answers_are_kept(tmp_path):
    options = {"correlations": (0.2,), "progress": False}
    with keeping(Solutions(tmp_path)):
        first = factorize_balls_in_bins(RING, 2, 3, hull, **options)
    with keeping(Solutions(tmp_path)):
        again = factorize_balls_in_bins(RING, 2, 3, hull, **options)
    assert again.encoder.tolist() == first.encoder.tolist()
    assert again.best.seconds == 0.0


@pytest.mark.parametrize("form", ["toeplitz", pytest.param("banded", marks=pytest.mark.slow)])
def test_a_form_with_structure_costs_what_it_says_and_no_more_than_independent_noise(form):
    factorization = factorize_balls_in_bins(
        RING, 3, 4, hull, form=form, bandwidth=3, correlations=(0.0, 0.1), progress=False
    )
    assert factorization.error_gram is None
    assert factorization.encoder is factorization.best.encoder
    algorithm = algorithms.mf_dsgd(RING, Cyclic(3, 4), factorization.encoder)
    assert_allclose(factorization.noise_std * noise_error(algorithm).value ** 0.5, factorization.root_error, rtol=1e-9)
    assert (
        factorization.root_error_bound
        <= factorization.root_error
        <= factorization.tried[0][1] * factorization.tried[0][2].objective ** 0.5
    )


def test_what_means_nothing_is_refused():
    refuses(r"correlations must be numbers in \[0, 1\]", factorize_balls_in_bins, RING, 2, 3, hull, correlations=(1.5,))
    refuses("bins must be an integer >= 1", factorize_balls_in_bins, RING, 2, 0, hull)
    refuses("bandwidth 2 is of a form with diagonals", factorize_balls_in_bins, RING, 2, 3, hull, bandwidth=2)
    refuses("unknown form 'buffered'", factorize_balls_in_bins, RING, 2, 3, hull, form="buffered")
    with pytest.raises(UnsupportedMechanism, match="count models step by step"):
        factorize_balls_in_bins(RING, 2, 3, hull, form="toeplitz", weights=ErrorWeights("released:average:2"))
    refuses("no encoder", factorize_balls_in_bins, RING, 2, 3, lambda M: np.inf, correlations=(0.0,), progress=False)

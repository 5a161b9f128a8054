"""Views that are functions of other views, given by their factors or rounded: never below the number of the factors."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.linalg import aslinearoperator

import mfdl
from mfdl.errors import InvalidInput
from mfdl.participation import EveryStep
from mfdl.privacy import view_losses
from mfdl.trust.view import View

STEPS = EveryStep(3)
FIRST_ORDER = 1e-6  # what rounding at 2^-53 may change where nothing is ill-conditioned


@st.composite
def factors(draw):
    """(S, M, N): k combinations of r messages over 3 steps of 2 nodes; entries of 40 bits, so that products round."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    r = draw(st.integers(1, 6))

    def entries(*shape):
        return np.ldexp(rng.integers(-(2**39), 2**39, size=shape).astype(float), -38)

    N = np.hstack([np.eye(6), entries(6, draw(st.integers(0, 3)))])
    return entries(draw(st.integers(1, 9)), r), entries(r, 6), N


def numbers(view):
    return [loss.sensitivity_squared for loss in view_losses(view, STEPS)]


@examples(60)
@given(case=factors(), as_operator=st.booleans())
def test_a_processed_view_has_the_number_of_its_factors_and_at_most_that_of_its_source(case, as_operator):
    S, M, N = case
    exact, source = View([S, M], [S, M, N], num_nodes=2), View(M, [M, N], num_nodes=2)
    if as_operator:
        source = View(aslinearoperator(M), aslinearoperator(M @ N), num_nodes=2)
    processed = View.processed(S, source)
    for value, of_factors, of_source in zip(numbers(processed), numbers(exact), numbers(source), strict=True):
        assert of_factors <= value * (1 + FIRST_ORDER)
        assert value <= of_source
        assert as_operator or value <= of_factors * (1 + FIRST_ORDER)


def test_what_is_known_and_proven_of_the_source_is_of_the_processed_view():
    algorithm = mfdl.algorithms.decor(mfdl.Dynamics(mfdl.gossip.metropolis_hastings("ring:n=4")), STEPS)
    source = mfdl.trust.PNDP([0]).view(algorithm, 1)
    of_source = view_losses(source, STEPS)
    rng = np.random.default_rng(0)
    for rows in (3, source.num_rows + 2):
        losses = view_losses(View.processed(rng.normal(size=(rows, source.num_rows)), source), STEPS)
        assert [loss.victim for loss in losses] == [loss.victim for loss in of_source]
        for loss, bound in zip(losses, of_source, strict=True):
            assert loss.sensitivity_squared <= bound.sensitivity_squared
            assert loss.adaptive_sensitivity_squared <= bound.adaptive_sensitivity_squared
    assert losses == of_source


def test_factors_that_do_not_fit_are_refused():
    view = View(np.eye(3), np.eye(3))
    with pytest.raises(InvalidInput, match=r"combinations must have 3 columns"):
        View.processed(np.eye(2), view)
    with pytest.raises(InvalidInput, match=r"factors of noise must fit each other"):
        View(np.eye(2), [np.eye(2), sp.eye_array(3)])
    with pytest.raises(InvalidInput, match="operator"):
        View(np.eye(2), [np.eye(2), aslinearoperator(np.eye(2))])
    assert math.isclose(numbers(View([np.eye(3), np.eye(3)], [np.eye(3)]))[0], 3)

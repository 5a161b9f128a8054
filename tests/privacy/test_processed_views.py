"""Views that are functions of other views, given by their factors or rounded: never below the number of the factors."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.sparse as sp
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from scipy.sparse.linalg import aslinearoperator

import mfdl
from mfdl import EveryStep, InvalidInput, View
from mfdl.errors import UnusualSetting
from mfdl.privacy import view_losses

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
        source = View(1.0 * aslinearoperator(M), 1.0 * aslinearoperator(M @ N), num_nodes=2)
    processed = View.processed(S, source)
    for value, of_factors, of_source in zip(numbers(processed), numbers(exact), numbers(source), strict=True):
        assert of_factors <= value * (1 + FIRST_ORDER)
        assert value <= of_source
        assert as_operator or value <= of_factors * (1 + FIRST_ORDER)


def test_what_is_known_of_the_source_is_known_of_the_processed_view():
    source = View(np.eye(3), [[1, 0], [0, 1], [1, 1]], known_noise=[True, False], known_combinations=[[1, 0, 0]])
    processed = View.processed([[1, 0, 0], [0, 0, 1]], source)
    assert (processed.known_gradients == source.known_gradients).all()
    assert processed.dense_noise().tolist() == [[0, 0], [0, 1]]


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


def test_losses_of_one_source_do_not_answer_for_another():
    """Both show the same first rows; with rank="numerical" the numbers are those of the sources."""
    gradients, S = [[1.0, 0.0], [0.1, 0.7], [0.3, 0.2]], np.eye(3)[:2]
    first, second = (
        View.processed(S, View(gradients, np.diag([1.0, 1.0, noise]), rank="numerical", rank_tolerance=tolerance))
        for noise, tolerance in ((1.0, 2.0**-40), (0.1, 2.0**-12))
    )
    privacy = mfdl.Privacy(adjacency="zero-out", clip_norm=1.0, participation=EveryStep(2))
    losses = mfdl.losses(first, privacy)
    refuses("trust must be left out", dataclasses.replace, losses, algorithm=second)


def test_factors_that_do_not_fit_are_refused():
    view = View(np.eye(3), np.eye(3))
    refuses(r"combinations must have 3 columns", View.processed, np.eye(2), view)
    refuses(r"factors of noise must fit each other", View, np.eye(2), [np.eye(2), sp.eye_array(3)])
    refuses("operator", lambda: View(np.eye(2), [np.eye(2), aslinearoperator(np.eye(2))]))
    assert math.isclose(numbers(View([np.eye(3), np.eye(3)], [np.eye(3)]))[0], 3)


# ---- entries that are rounded products ------------------------------------------------------------------------------


@examples(100)
@given(case=factors(), seed=st.integers(0, 2**32))
def test_the_number_of_matrices_near_a_rounded_product_is_that_of_the_factors(case, seed):
    S, M, N = case
    of_factors = numbers(View([S, M], [S, M, N], num_nodes=2))
    A, B = S @ M, S @ M @ N
    nearby = numbers(View(A, B, num_nodes=2, rank="numerical"))
    as_they_are = numbers(View(A, B, num_nodes=2, rank="exact"))
    for near, literal, exact in zip(nearby, as_they_are, of_factors, strict=True):
        assert near >= exact
        assert literal >= exact * (1 - FIRST_ORDER)
        assert math.isinf(near) or near <= exact * (1 + 1e-3) + 1e-3  # S may be badly conditioned
    C = np.random.default_rng(seed).normal(size=(6, 6))
    sensitivity = mfdl.privacy.general_sensitivity(C, [S, M], STEPS, num_nodes=2)
    near = mfdl.privacy.general_sensitivity(C, S @ M, STEPS, num_nodes=2, rank="numerical")
    assert sensitivity.squared <= near.squared <= sensitivity.squared * (1 + 1e-3)
    assert near.lower <= sensitivity.squared


@examples(60)
@given(case=factors(), size=st.sampled_from([0.0, 0.5, 1.0]), scale=st.sampled_from([2.0**-30, 1.0, 2.0**30]))
def test_the_number_covers_every_matrix_of_the_rank_within_the_tolerance(case, size, scale):
    S, M, N = case
    tolerance = 2.0**-20
    rng = np.random.default_rng(len(S))
    moved = M * (1 + size * tolerance * rng.uniform(-1, 1, M.shape) / 64)
    A, B = S @ M * scale, S @ M @ N
    near = numbers(View(A, B, num_nodes=2, rank="numerical", rank_tolerance=tolerance))
    if within(S @ moved, S @ M, tolerance) and within(S @ moved @ N, S @ M @ N, tolerance):
        meant = numbers(View([S, moved * scale], [S, moved, N], num_nodes=2))
        assert all(bound >= exact for bound, exact in zip(near, meant, strict=True))


def within(moved, entries, tolerance):
    norms = np.linalg.norm(entries[:, ::2], axis=1), np.linalg.norm(entries[:, 1::2], axis=1)
    return (np.linalg.norm(moved - entries, axis=1) <= tolerance / 4 * np.minimum(*norms)).all()


def projections():
    rng = np.random.default_rng(3)
    return rng.normal(size=(5, 3)), rng.normal(size=(3, 6)), np.hstack([np.eye(6), rng.normal(size=(6, 4))])


def test_both_numbers_are_named_where_they_differ_and_the_choice_silences():
    S, M, N = projections()
    with pytest.warns(UnusualSetting, match=r"for the entries as they are.*every matrix of rank 3") as record:
        by_default = numbers(View(S @ M, S @ M @ N, num_nodes=2))
    assert len(record) == 1
    literal, near = (numbers(View(S @ M, S @ M @ N, num_nodes=2, rank=rank)) for rank in ("exact", "numerical"))
    assert by_default == literal
    assert max(literal) > 1.01 * max(near)
    with pytest.warns(UnusualSetting, match=r"rows depend on each other"):
        mfdl.privacy.general_sensitivity(np.eye(6), S @ M, STEPS, num_nodes=2)
    loss = view_losses(View(S @ M, S @ M @ N, num_nodes=2, rank="numerical"), STEPS)[0]
    assert loss.bound == "upper"
    assert "every matrix of rank 3" in loss.explanation(adaptive=False)
    numbers(View(M, M @ N, num_nodes=2))  # rows do not depend on each other: no warning


def test_a_noise_that_may_vanish_near_the_given_rows_has_no_finite_number():
    S, M, N = projections()
    N[:, :] = 0
    N[0, 0] = 1  # three rows of rank three, one noise
    losses = view_losses(View(S @ M, S @ M @ N, num_nodes=2, rank="numerical"), STEPS)
    assert all(math.isinf(loss.sensitivity_squared) and "may show" in loss.explanation() for loss in losses)


def test_ranks_that_do_not_fit_are_refused():
    for arguments, match in (
        ({"rank": "low"}, "rank"),
        ({"rank_tolerance": 0.1}, "rank_tolerance"),
        ({"noise": 1.0 * aslinearoperator(np.eye(2)), "rank": "numerical"}, "operator"),
    ):
        refuses(match, View, np.eye(2), **{"noise": np.eye(2)} | arguments)
    with pytest.raises(InvalidInput, match="workload"):
        mfdl.privacy.general_sensitivity(np.eye(2), np.eye(2), EveryStep(2), workload=np.eye(2), rank="numerical")

"""The oracles against definitions, exact arithmetic and each other; some cases of every line of the agreement table."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import oracle_agreement as agreement
import pytest
from numpy.testing import assert_allclose
from vocabulary import assume, each, given, refuses, st

from mfdl.node_covariances import laplacian
from mfdl.testing import strategies
from mfdl.testing.oracles import (
    Reaction,
    adaptive_delta,
    adaptive_total_variation,
    clear_rank,
    composed_delta,
    exact_delta,
    exact_epsilon,
    exact_gram,
    exact_leaks,
    exact_mu,
    exact_renyi,
    exact_view_gram,
    pinv_gram,
    rank,
    rational,
    rows_span,
    to_float,
)

PATH = np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3  # u - w - v, Metropolis-Hastings
COMMON = {"attacker": 2, "victim": 0}
TWO_NEIGHBOURS = np.array([[1, 1, 1, 0], [1, 1, 0, 1], [1, 0, 1, 1], [0, 1, 1, 1]]) / 3  # of every node


def small_matrices(rows, columns, largest=3):
    entries = st.lists(st.integers(-largest, largest), min_size=rows * columns, max_size=rows * columns)
    return entries.map(lambda flat: np.array(flat, dtype=float).reshape(rows, columns))


@pytest.mark.parametrize("name", agreement.STATEMENTS)
def test_two_oracles_agree(name):
    comparison = agreement.compare(name, range(2 if agreement.STATEMENTS[name].share < 0.2 else 8), seed=1)
    assert comparison.cases >= 1
    assert comparison.disagreements == []


def test_a_disagreement_is_counted_and_an_excluded_case_is_not_one(monkeypatch):
    def differ(rng):
        number = rng.integers(4)
        if number == 0:
            raise agreement.Excluded("a reason")
        return float(number) if number < 3 else math.nan

    monkeypatch.setitem(agreement.STATEMENTS, "probe", agreement.Statement("probe", differ, 1.0, 1.0))
    draws = [int(np.random.default_rng([7, len(agreement.STATEMENTS) - 1, k]).integers(4)) for k in range(40)]
    comparison = agreement.compare("probe", range(40), seed=7)
    assert comparison.disagreements == [k for k, number in enumerate(draws) if number >= 2]
    assert comparison.excluded == {"a reason": draws.count(0)}
    assert (comparison.cases, comparison.largest) == (40 - draws.count(0), 2.0)
    assert set(draws) == {0, 1, 2, 3}


@given(60, data=st.data(), rows=st.integers(1, 5), steps=st.integers(1, 3))
def test_with_independent_noise_columns_the_view_gram_is_the_encoder_gram(data, rows, steps):
    """A = B C and B of full column rank leave X = C^T C, as fractions."""
    B = data.draw(small_matrices(rows, data.draw(st.integers(1, rows))))
    C = data.draw(small_matrices(B.shape[1], steps))
    assume(rank(rational(B)) == B.shape[1])
    assert exact_view_gram(rational(B @ C), rational(B)) == exact_gram(C)


@given(60, view=strategies.integer_views(), data=st.data())
def test_a_row_that_repeats_others_changes_nothing(view, data):
    A, B = view
    A = B @ data.draw(small_matrices(B.shape[1], A.shape[1]))  # no leak
    mix = data.draw(small_matrices(1, len(B)))
    more = exact_view_gram(rational(np.vstack([A, mix @ A])), rational(np.vstack([B, mix @ B])))
    assert more == exact_view_gram(rational(A), rational(B))
    assert not any(exact_leaks(rational(A), rational(B)))


@given(60, view=strategies.integer_views())
def test_the_rational_view_is_the_pseudo_inverse_also_where_columns_leak(view):
    A, B = view
    assume(clear_rank(B))
    X, outside = pinv_gram(A, B)
    assert_allclose(to_float(exact_view_gram(rational(A), rational(B))), X, rtol=1e-9, atol=1e-9)
    assert exact_leaks(rational(A), rational(B)) == outside.tolist()
    assert exact_leaks(rational(A), rational(B)) == [not rows_span(B.T, column[None]) for column in A.T]


@given(view=strategies.integer_views())
def test_the_rational_view_gram_needs_no_scale(view):
    """B = s B_0 divides X by s^2 exactly, for s far below the rounding of float64."""
    A, B = (rational(part) for part in view)
    s = Fraction(1, 10**30)
    scaled = exact_view_gram(A, [[s * x for x in row] for row in B])
    assert scaled == [[x / s**2 for x in row] for row in exact_view_gram(A, B)]


def test_floats_are_the_fractions_that_they_are():
    nearly = np.array([[0.1, 0.3], [1, 3]])  # 3 * 0.1 is not 0.3 in binary
    assert (np.linalg.matrix_rank(nearly), rank(rational(nearly))) == (1, 2)
    assert (rank(rational(np.array([[0.1, 0.2], [1, 2]]))), rank([])) == (1, 0)


def test_the_path_with_and_without_a_reaction():
    """mu^2 = X = 0.1 for non-adaptive gradients: (1/3)^2 / (1 + (1/3)^2)."""
    fixed = math.sqrt((1 / 9) / (1 + 1 / 9))
    assert (fixed**2, exact_delta(fixed, 0.0)) == (pytest.approx(0.1), pytest.approx(0.1256, abs=5e-5))
    assert exact_delta(fixed, 1.0) == pytest.approx(1.1e-4, abs=5e-6)
    for epsilon in (0.0, 0.3, 1.0):
        still = adaptive_delta(PATH, epsilon, reactions={}, **COMMON)
        assert still.value == pytest.approx(float(exact_delta(fixed, epsilon)), abs=max(still.error, 1e-7))
    reacting = {1: Reaction(2.0, offset=-1 / 3, clip=1.0)}  # clip(2 (r - 1/6), 1)
    assert adaptive_total_variation(PATH, reactions=reacting, **COMMON).value == pytest.approx(0.271, abs=5e-4)
    assert adaptive_delta(PATH, 1.0, reactions=reacting, **COMMON).value == pytest.approx(0.0249, abs=5e-5)
    linear = adaptive_total_variation(PATH, reactions={1: Reaction(2.0, clip=math.inf)}, **COMMON)
    assert linear.value == pytest.approx(float(exact_delta(math.sqrt(0.5), 0.0)), abs=1e-4)


def on_the_path(epsilon, shift, reaction, std):
    """The residual r + g(r) + z with r ~ N(shift / 3, 1/9): one integral inside another, on plain grids."""
    r = np.linspace(-4, 4 + shift, 701)
    y = np.linspace(-8 - reaction.clip, 8 + shift + reaction.clip, 701) * max(1, std)
    inner = np.exp(-0.5 * ((y[:, None] - std * r - reaction(std * r)) / std) ** 2) / (std * math.sqrt(2 * math.pi))
    worlds = []
    for mean in (0, shift / std / 3):
        weight = np.exp(-0.5 * (3 * (r - mean)) ** 2) * 3 / math.sqrt(2 * math.pi)
        worlds.append(np.trapezoid(inner * weight, r, axis=1))
    p, q = worlds
    return max(np.trapezoid(np.maximum(a - math.exp(epsilon) * b, 0), y) for a, b in ((p, q), (q, p)))


@given(
    20, slope=st.integers(-12, 12).map(lambda i: i / 4), offset=st.integers(-4, 4).map(lambda i: i / 4),
    clip=st.integers(0, 8).map(lambda i: i / 4), shift=st.sampled_from([0.5, 1.0, 2.0]),
    std=st.sampled_from([0.5, 1.0, 2.0]), epsilon=st.sampled_from([0.0, 0.25, 1.0]),
)  # fmt: skip
def test_one_reaction_is_a_double_integral(slope, offset, clip, shift, std, epsilon):
    reaction = Reaction(slope, offset, clip)
    delta = adaptive_delta(PATH, epsilon, reactions={1: reaction}, record_shift=shift, noise_std=std, **COMMON)
    expected = on_the_path(epsilon, shift, reaction, std)
    assert abs(delta.value - expected) <= delta.error + 2e-4
    assert delta.error <= 2e-3


@st.composite
def runs(draw, max_steps=3):
    graph = draw(strategies.connected_graphs(3, 4))
    n = len(graph)
    attacker, victim = draw(st.permutations(range(n)))[:2]
    quarters = st.integers(-8, 8).map(lambda i: i / 4)
    others = [j for j in range(n) if j != attacker]
    reactions = {j: Reaction(draw(quarters), draw(quarters), draw(st.sampled_from([0.5, 1.0]))) for j in others}
    W = np.eye(n) - laplacian(graph).toarray() / 4
    return W, {"attacker": attacker, "victim": victim, "reactions": reactions}


@given(25, run=runs(), epsilon=st.sampled_from([0.0, 0.5, 1.0]))
def test_no_reaction_beats_the_sight_of_all_messages(run, epsilon):
    W, case = run
    two = adaptive_delta(W, epsilon, num_steps=2, resolution=8, **case)
    assert 0 <= two.value <= float(exact_delta(1.0, epsilon)) + two.error + 1e-9
    single_step = adaptive_delta(W, epsilon, num_steps=1, resolution=8, **case)
    assert single_step.value <= two.value + single_step.error + two.error + 1e-9  # more is seen


@given(10, run=runs(), k=st.sampled_from([0.5, 3.0]))
def test_units_do_not_matter_and_the_error_says_how_far_a_finer_grid_moves(run, k):
    W, case = run
    coarse = adaptive_total_variation(W, resolution=12, **case)
    stretched = {j: Reaction(r.slope, k * r.offset, k * r.clip) for j, r in case["reactions"].items()}
    again = adaptive_total_variation(W, resolution=12, record_shift=k, noise_std=k, **(case | {"reactions": stretched}))
    assert again.value == pytest.approx(coarse.value, abs=1e-9)
    fine = adaptive_total_variation(W, resolution=36, **case)
    assert abs(fine.value - coarse.value) <= coarse.error + 1e-4


def test_what_never_reaches_the_attacker_is_not_seen():
    line = np.array([[3, 1, 0, 0], [1, 2, 1, 0], [0, 1, 2, 1], [0, 0, 1, 3]]) / 4
    far = {"attacker": 3, "victim": 0, "reactions": {1: Reaction(2.0), 2: Reaction(2.0)}}
    assert adaptive_total_variation(line, num_steps=2, **far).value == pytest.approx(0, abs=1e-12)
    assert adaptive_total_variation(line, num_steps=3, **far).value > 0.01
    assert adaptive_total_variation(PATH, reactions={}, num_steps=1, **COMMON) == (0.0, 0.0)
    neighbour = adaptive_total_variation(PATH, attacker=2, victim=1, reactions={1: Reaction(2.0)})
    assert neighbour.value == pytest.approx(float(exact_delta(1.0, 0.0)), abs=2e-4)


@each(
    "changed, message",
    ({"weights": np.eye(5)}, "at most 4 nodes"), ({"weights": np.ones((2, 3))}, "weights must be square"),
    ({"victim": 2}, "two of the nodes 0 to 2"), ({"victim": 3}, "two of the nodes 0 to 2"),
    ({"num_steps": 4}, "num_steps must be 1 to 3"), ({"reactions": {2: Reaction(1.0)}}, "other than the attacker"),
    ({"pattern": (2,)}, "pattern must hold steps 0 to 1"),
    ({"noise_std": 0.0}, "noise_std must be a finite number > 0"),
    ({"record_shift": -1.0}, "record_shift must be a finite number >= 0"),
    ({"resolution": 1}, "resolution must be an integer >= 2"),
    ({"weights": TWO_NEIGHBOURS, "num_steps": 3, "pattern": (0, 1)}, "at most 4 telling messages, got 5"),
)  # fmt: skip
def test_runs_that_the_grids_cannot_hold_are_refused(changed, message):
    case = {"weights": PATH, "attacker": 2, "victim": 0, "reactions": {}} | changed
    refuses(message, lambda: adaptive_total_variation(case.pop("weights"), **case))


@pytest.mark.parametrize("mu", [0.05, 1.0, 6.0])
@pytest.mark.parametrize("epsilon", [0.0, 3.0])
def test_delta_is_the_integral_of_its_definition(mu, epsilon):
    """int max(p - e^epsilon q, 0) for p = N(mu, 1), q = N(0, 1); they cross at epsilon / mu + mu / 2."""
    with mpmath.workdps(40):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        start = e / m + m / 2
        size = mpmath.npdf(start)  # the quadrature's error is absolute
        both = size * mpmath.quad(
            lambda x: (mpmath.npdf(x, m) - mpmath.exp(e) * mpmath.npdf(x)) / size,
            [start + length / max(1, start) for length in (0, 3, 12, 50 + 10 * m)],
        )
        assert abs(both / exact_delta(mu, epsilon) - 1) < 1e-12


@given(8, mu=st.floats(1e-3, 30), delta=st.floats(1e-12, 0.4))
def test_the_three_conversions_are_inverses(mu, delta):
    epsilon = exact_epsilon(mu, delta)
    if epsilon == 0:
        assert exact_delta(mu, 0.0) <= delta
        return
    assert abs(exact_delta(mu, epsilon) / delta - 1) < 1e-15
    assert abs(exact_mu(epsilon, delta) / mu - 1) < 1e-15


def test_a_budget_of_almost_nothing_has_a_mu_of_almost_nothing():
    """delta(0) = 2 Phi(mu / 2) - 1, about mu / sqrt(2 pi)."""
    for delta in (1e-9, 1e-12, 1e-30):
        assert float(exact_mu(0.0, delta)) == pytest.approx(delta * math.sqrt(2 * math.pi), rel=1e-9)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-9, math.nan])
def test_bisection_refuses_what_it_would_never_reach(delta):
    for convert in (exact_epsilon, exact_mu):
        refuses("delta must be a number strictly between 0", convert, 1.0, delta)


@pytest.mark.parametrize(("first", "second"), [(1.0, 1.0), (5.0, 0.01), (0.1, 0.3)])
def test_composition_and_renyi_are_those_of_gaussians(first, second):
    with mpmath.workdps(30):
        together = mpmath.sqrt(mpmath.mpf(first) ** 2 + mpmath.mpf(second) ** 2)
        assert abs(composed_delta(first, second, first) / exact_delta(together, first) - 1) < 1e-12
        assert abs(exact_renyi(first, 3.5) / (mpmath.mpf(3.5) * mpmath.mpf(first) ** 2 / 2) - 1) < 1e-12

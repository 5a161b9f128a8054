"""Shared seeds against coalitions: every constraint holds, bounds hold, and objectives match semidefinite programs."""

import itertools
import math
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from exact import inverse
from hypothesis import reject
from last_bits import nudged
from numpy.testing import assert_allclose
from vocabulary import assume, each, given, refuses, st

import mfdl_solvers
from mfdl import gossip
from mfdl.testing.oracles import coalition_inverse_diagonal, coalition_loss_reference
from mfdl_solvers import FactorizationProblem, ProblemError, Stopping
from mfdl_solvers.coalition_problem import CoalitionProblem, InfeasibleCoalition, lower_bound, outsider_bound
from mfdl_solvers.coalitions import feasible, solve


def error_gram(graph):
    W = gossip.metropolis_hastings(graph).dense()
    return W.T @ W


@given(20, seed=st.integers(0, 2**32 - 1))
def test_of_equal_constraints_the_first_one_is_named(seed):
    """On a ring all nodes and all coalitions are alike."""
    ring = nx.cycle_graph(6)
    for coalition_size, worst in ((0, ((), 0)), (1, ((0,), 1))):
        problem = CoalitionProblem(error_gram(ring), tuple(ring.edges), coalition_size)
        parts = [nudged([[1.0, -1.0], [-1.0, 1.0]], seed + k) for k in range(len(problem.groups))]
        assert feasible(problem, 0.5, parts)[2][:2] == worst


PRISM = nx.circular_ladder_graph(3)  # 3-regular on six nodes, tr H = 1.5


@st.composite
def error_grams(draw, size, ridges=(1.0, 1e-2)):
    """B^T B + ridge I with integer B of any rank."""
    rank = draw(st.integers(1, size))
    B = np.array(draw(st.lists(st.integers(-3, 3), min_size=rank * size, max_size=rank * size))).reshape(rank, size)
    if not B.any():
        B[0, 0] = 1
    return B.T @ B + draw(st.sampled_from(ridges)) * np.eye(size)


@st.composite
def group_lists(draw, size):
    """Half of the time most pairs, so that few coalitions expose a node; otherwise any sets."""
    sets = st.lists(st.integers(0, size - 1), min_size=1, max_size=size, unique=True).map(tuple)
    if size == 1 or draw(st.booleans()):
        return tuple(draw(st.lists(sets, min_size=1, max_size=6)))
    dropped = draw(st.lists(st.integers(0, size * (size - 1) // 2 - 1), max_size=size // 2, unique=True))
    pairs = [pair for k, pair in enumerate(itertools.combinations(range(size), 2)) if k not in dropped]
    return tuple(pairs + draw(st.lists(sets, max_size=2)))


@st.composite
def problems(draw, max_size=6, ridges=(1.0, 1e-2), max_coalition=2):
    size = draw(st.integers(1, max_size))
    H, groups = draw(error_grams(size, ridges)), draw(group_lists(size))
    q = draw(st.integers(0, min(max_coalition, size - 1)))
    try:
        return CoalitionProblem(H, groups, q, private=draw(st.booleans()))
    except InfeasibleCoalition:
        return CoalitionProblem(H, groups, q)


@st.composite
def noises(draw, problem, exponents=(0,)):
    """s and R_k = B B^T with integer B and scales 10^exponent."""
    parts = []
    for group in problem.groups:
        g = len(group)
        B = np.array(draw(st.lists(st.integers(-3, 3), min_size=g * g, max_size=g * g))).reshape(g, g)
        parts.append(10.0 ** draw(st.sampled_from(exponents)) * (B @ B.T).astype(float))
    return 10.0 ** draw(st.sampled_from(exponents)) if problem.private else 0.0, parts


def largest_left_side(problem, solved):
    return coalition_inverse_diagonal(
        solved.private_variance, solved.parts, problem.groups, problem.size, problem.coalition_size
    )


@given(100, problem=problems(ridges=(1.0, 1e-2, 1e-6, 0.0)), tolerance=st.sampled_from([1e-3, 1e-5]))
def test_every_coalition_is_withstood_and_the_gap_is_reached(problem, tolerance):
    solved = solve(problem, Stopping(tolerance))
    # every subset of at most q nodes, tried one by one; the bound is on float64, so no tolerance
    assert largest_left_side(problem, solved) <= 1
    assert solved.status == "optimal"
    assert -1e-12 <= solved.gap <= tolerance
    assert all(np.linalg.eigvalsh(part)[0] >= -1e-12 * np.abs(part).max() for part in solved.parts)
    R = solved.private_variance * np.eye(problem.size)
    for group, part in zip(problem.groups, solved.parts, strict=True):
        R[np.ix_(group, group)] += part
    assert_allclose(solved.covariance, R, atol=1e-14 * R.max())
    assert_allclose(solved.objective, np.trace(problem.error_gram @ R), rtol=1e-6)  # singular H: entries of R up to 1e6
    if problem.private:
        assert solved.objective <= np.trace(problem.error_gram) * (1 + 1e-12)
    else:
        assert solved.private_variance == 0


@given(25, problem=problems(max_size=4, ridges=(1.0, 0.1)))
@pytest.mark.slow
def test_the_loss_is_that_of_the_semidefinite_program(problem):
    try:
        optimum = coalition_loss_reference(
            problem.error_gram, problem.groups, problem.coalition_size, private=problem.private
        )
    except RuntimeError:
        reject()  # the reference gave no accurate solution; Hypothesis fails the test if that is frequent
    solved = solve(problem, Stopping(1e-4))
    # 1e-6: what two interior-point programs agree to
    assert optimum * (1 - 1e-6) <= solved.objective <= optimum * (1 + 1e-4 + 1e-6)
    assert solved.lower_bound <= optimum * (1 + 1e-6)


@given(20, problem=problems())
@pytest.mark.slow
def test_the_conic_method_agrees_and_certifies_itself(problem):
    conic, newton = solve(problem, method="conic"), solve(problem)
    assert conic.status == newton.status == "optimal"
    assert largest_left_side(problem, conic) <= 1
    assert newton.lower_bound <= conic.objective * (1 + 1e-12)
    assert conic.lower_bound <= newton.objective * (1 + 1e-12)


@given(80, data=st.data(), problem=problems(max_size=4, ridges=(1.0, 1e-2, 0.0)))
def test_no_weights_and_vectors_give_a_bound_above_a_feasible_loss(data, problem):
    assume(problem.blocks.constrained.any())
    block_of, node_of = np.nonzero(problem.blocks.constrained)
    J = len(block_of)
    lam = np.array(data.draw(st.lists(st.integers(0, 4), min_size=J, max_size=J)), dtype=float)
    Y = np.array(data.draw(st.lists(st.integers(-3, 3), min_size=J * problem.size, max_size=J * problem.size)))
    Y = Y.reshape(J, problem.size) + 2.0 * np.eye(problem.size)[node_of]
    solved = solve(problem, Stopping(1e-6))
    for vectors in (Y, np.eye(problem.size)[node_of]):
        assert lower_bound(problem, lam, vectors, block_of, node_of) <= solved.objective * (1 + 1e-12)
    s, parts, _ = feasible(problem, *data.draw(noises(problem)))
    assert solved.lower_bound <= problem.objective(s, parts) * (1 + 1e-12)


def test_the_bound_needs_every_group_and_the_private_noise():
    """Two hand-made cases in which forgetting one condition of the certificate would overstate it."""
    H = np.diag([1.0, 100.0])
    groups = ((0, 1),)
    private, without = CoalitionProblem(H, groups, 0), CoalitionProblem(H, groups, 0, private=False)
    lam, Y = np.array([1.0, 10.0]), np.array([[1.0, 0.0], [0.0, 1.0]])
    where = np.array([0, 0]), np.array([0, 1])
    for problem in (private, without):
        assert lower_bound(problem, lam, Y, *where) <= 101
    expensive = CoalitionProblem(np.array([[1.0, -0.9], [-0.9, 1.0]]), groups, 0)
    solved = solve(expensive, Stopping(1e-6))
    # y = e_i, lam = 1: allowed by tr H = 2, but S = I exceeds H along (1, 1) unless it is scaled to 0.1
    assert lower_bound(expensive, np.ones(2), Y, *where) <= solved.objective
    assert solved.objective < 1.5


@given(80, data=st.data(), problem=problems())
def test_the_kept_constraints_are_all_that_matter(data, problem):
    s, parts = data.draw(noises(problem))
    parts = [part + 0.5 * np.eye(len(part)) for part in parts]
    worst = coalition_inverse_diagonal(s, parts, problem.groups, problem.size, problem.coalition_size)
    largest = problem.inverse_diagonal_upper_bounds(s, parts).max(initial=-math.inf)
    assert_allclose(largest if problem.exposed is None else max(largest, 1 / s), worst, rtol=1e-9)
    for coalition, groups in zip(problem.blocks.coalitions, problem.blocks.groups, strict=True):
        assert len(coalition) == problem.coalition_size
        assert not any(set(coalition) & set(problem.groups[k]) for k in np.flatnonzero(groups))


@given(60, graph_size=st.integers(3, 6), q=st.integers(1, 2), data=st.data())
def test_an_exposed_node_is_one_whose_seeds_are_all_known(graph_size, q, data):
    problem = CoalitionProblem(np.eye(graph_size), data.draw(group_lists(graph_size)), q)
    exposed = [
        (coalition, i)
        for coalition in itertools.combinations(range(graph_size), q)
        for i in range(graph_size)
        if i not in coalition and not any(i in g and not set(g) & set(coalition) for g in problem.groups)
    ]
    assert problem.exposed == (exposed[0] if exposed else None)
    if exposed:
        with pytest.raises(InfeasibleCoalition, match="private=False is infeasible") as caught:
            CoalitionProblem(np.eye(graph_size), problem.groups, q, private=False)
        assert (caught.value.coalition, caught.value.node) == exposed[0]


@given(
    100, data=st.data(), groups=st.sampled_from([((0, 1, 2),), ((0, 1), (1, 2)), ((0, 1), (1, 2), (0, 2), (0, 1, 2))])
)
def test_left_sides_are_rounded_up(data, groups):
    problem = CoalitionProblem(np.eye(3), groups, 0)
    s, parts = data.draw(noises(problem, exponents=(-9, -5, 0, 5, 9)))
    M = [[Fraction(s) * int(i == j) for j in range(3)] for i in range(3)]
    for group, part in zip(groups, parts, strict=True):
        for (a, i), (b, j) in itertools.product(enumerate(group), repeat=2):
            M[i][j] += Fraction(part[a, b])
    exact = np.diagonal(inverse(M))
    upper = problem.inverse_diagonal_upper_bounds(s, parts)[0]
    assert all(math.isinf(up) or Fraction(up) >= true for up, true in zip(upper, exact, strict=True))


@given(60, data=st.data(), problem=problems())
def test_any_direction_is_scaled_to_the_boundary(data, problem):
    s, parts = data.draw(noises(problem, exponents=(-4, 0, 4)))
    if conditioned := data.draw(st.booleans()):
        parts = [part + 0.1 * np.abs(part).max() * np.eye(len(part)) + np.eye(len(part)) for part in parts]
    s, parts, (coalition, node, value) = feasible(problem, s, parts)
    # singular directions are rounded up by as much as a factor of two
    assert (1 - 1e-9 if conditioned else 0.4) <= value <= 1
    assert coalition_inverse_diagonal(s, parts, problem.groups, problem.size, problem.coalition_size) <= 1
    assert node not in coalition
    assert len(coalition) == problem.coalition_size


@pytest.mark.parametrize("private", [True, False])
def test_no_noise_at_all_is_repaired(private):
    problem = CoalitionProblem(np.eye(3), ((0, 1), (1, 2)), 0, private=private)
    for s in (0.0, 1e-300) if private else (0.0,):
        s, parts, (_, _, value) = feasible(problem, s, [np.zeros((2, 2)), np.zeros((2, 2))])
        assert coalition_inverse_diagonal(s, parts, problem.groups, 3, 0) <= 1
        assert 1 - 1e-9 <= value <= 1
    exposed = CoalitionProblem(np.eye(3), ((0, 1),), 0)
    s, parts, worst = feasible(exposed, 0.0, [np.ones((2, 2))])
    assert coalition_inverse_diagonal(s, parts, exposed.groups, 3, 0) <= 1
    assert worst[1] == 2


@given(30, data=st.data(), size=st.integers(2, 6))
def test_one_group_of_all_nodes_against_an_outsider_is_the_plain_problem(data, size):
    H = data.draw(error_grams(size))
    plain = mfdl_solvers.solve(FactorizationProblem(H, np.arange(size)), Stopping(1e-6))
    for private in (True, False):
        solved = solve(CoalitionProblem(H, (tuple(range(size)),), 0, private=private), Stopping(1e-6))
        assert plain.lower_bound <= solved.objective * (1 + 1e-12)
        assert solved.lower_bound <= plain.objective * (1 + 1e-12)


@given(40, data=st.data(), size=st.integers(2, 6))
def test_disjoint_groups_and_all_but_one_colluding_are_ldp(data, size):
    H = data.draw(error_grams(size))
    cuts = sorted(data.draw(st.sets(st.integers(1, size - 1))))
    disjoint = tuple(tuple(range(a, b)) for a, b in itertools.pairwise([0, *cuts, size]))
    pairs = tuple(itertools.combinations(range(size), 2))
    cases = [(pairs, size - 1), (((0, 1), *pairs), size - 1)]
    if any(len(group) > 1 for group in disjoint):
        cases += [(disjoint, q) for q in range(1, size)]
    else:  # a seed of one node is as good as private noise, and no better
        assert_allclose(solve(CoalitionProblem(H, disjoint, 0, private=False)).objective, np.trace(H), rtol=1e-3)
    for groups, q in cases:
        solved = solve(CoalitionProblem(H, groups, q))
        assert (solved.private_variance, solved.status) == (1, "optimal")
        assert_allclose([solved.objective, solved.lower_bound], np.trace(H), rtol=1e-12)
        assert "shared seeds cannot help" in solved.notes[0]
    nobody = solve(CoalitionProblem(H, (), 0))
    assert (nobody.objective, nobody.private_variance, nobody.parts) == (pytest.approx(np.trace(H)), 1.0, ())
    assert nobody.worst == ((), 0, 1.0)


@pytest.mark.parametrize("tolerance", [1e-3, 1e-5])
@pytest.mark.parametrize("q", [0, 1, 2])
def test_complete_graph_reaches_the_infimum_that_is_not_attained(q, tolerance):
    """W = 11^T / 5: pairwise noise costs nothing, so only the sum over the n - q honest nodes must be hidden."""
    complete = nx.complete_graph(5)
    solved = solve(CoalitionProblem(error_gram(complete), tuple(complete.edges), q), Stopping(tolerance))
    assert solved.status == "optimal"
    infimum = 1 / (5 - q)
    assert solved.lower_bound <= infimum * (1 + 1e-12)
    assert infimum <= solved.objective <= infimum * (1 + tolerance)
    assert "error_gram is singular" in solved.notes[0]
    assert f"the largest eigenvalue of R is {np.linalg.eigvalsh(solved.covariance)[-1]:.3g}" in solved.notes[0]


def test_the_smaller_block_is_the_one_that_is_kept():
    """Two cliques share node 3: if it colludes each is alone, and that implies what other coalitions leave there."""
    cliques = nx.compose(nx.complete_graph([0, 1, 2, 3]), nx.complete_graph([3, 4, 5, 6]))
    blocks = CoalitionProblem(error_gram(cliques), tuple(cliques.edges), 1).blocks
    alone = [set(np.flatnonzero(nodes)) for nodes in blocks.nodes if nodes.sum() == 3]
    assert sorted(map(sorted, alone)) == [[0, 1, 2], [4, 5, 6]]
    assert blocks.constrained[:, :3].sum(axis=0).tolist() == [3, 3, 3]  # node 0: without 3, and without 1 or 2


def test_overlapping_groups_with_kernels_reach_the_gap_after_all():
    """H of rank 5 on 7 nodes; the first cost put on the kernels leaves a gap of 0.16%, so a smaller one is tried."""
    B = np.array(
        [
            [-3, 2, -3, -3, 1, -1, -3], [1, -1, -3, -2, -1, -3, 0], [0, 2, 1, -2, -2, 0, -1],
            [2, -2, 0, -2, -2, -1, -2], [3, -3, -2, 1, -2, 2, -2],
        ]
    )  # fmt: skip
    groups = ((1, 5, 6, 4, 3), (6, 0, 5, 4, 1), (4, 6, 3), (3, 2, 5, 6), (6, 5, 1, 3, 2, 0), (0, 2, 5, 6))
    problem = CoalitionProblem(B.T @ B, groups, 0, private=False)
    solved = solve(problem)
    assert solved.status == "optimal"
    assert largest_left_side(problem, solved) <= 1


@pytest.mark.parametrize("q", [0, 1])
def test_twenty_nodes_with_a_seed_per_edge(q):
    graph = nx.erdos_renyi_graph(20, 0.3, seed=1)
    problem = CoalitionProblem(error_gram(graph), tuple(graph.edges), q)
    solved = solve(problem)
    assert solved.status == "optimal"
    assert solved.iterations <= 30
    assert solved.objective < np.trace(problem.error_gram)
    assert max(problem.inverse_diagonal_upper_bounds(solved.private_variance, solved.parts).max(), 0) <= 1
    coalition, node, value = solved.worst
    M = solved.private_variance * np.eye(20)
    for group, part in zip(problem.groups, solved.parts, strict=True):
        if not set(group) & set(coalition):
            M[np.ix_(group, group)] += part
    assert_allclose(np.linalg.inv(M)[node, node], value, rtol=1e-9)
    assert outsider_bound(problem) < solved.lower_bound


def test_a_stopped_search_is_still_feasible_and_bounded():
    problem = CoalitionProblem(error_gram(PRISM), tuple(PRISM.edges), 1)
    optimum = solve(problem, Stopping(1e-6))
    for iterations in range(4):
        solved = solve(problem, Stopping(1e-3, iterations))
        assert (solved.status, solved.iterations) == ("stopped", iterations)
        assert largest_left_side(problem, solved) <= 1
        assert solved.lower_bound <= optimum.objective <= solved.objective * (1 + 1e-6)
        assert solved.gap > 1e-3


@each(
    "H, groups, options, message",
    (np.eye(3), ((),), {}, r"must not be empty, got no node in group 0"),
    (np.eye(3), ((0, 1), (1, 3)), {}, r"indices from 0 to 2, got \(1, 3\) in group 1"),
    (np.eye(3), ((0, 1.5),), {}, r"node indices from 0 to 2"),
    (np.eye(3), ((0, 0),), {}, r"distinct nodes, got \(0, 0\) in group 0"),
    (np.eye(3), ((0, 1),), {"coalition_size": 3}, r"q must be below n = 3 nodes, got 3"),
    (np.eye(3), ((0, 1),), {"coalition_size": -1}, r"integer from 0, and q must be below n"),
    (np.eye(3), ((0, 1),), {"coalition_size": True}, r"got True"),
    (np.eye(3), ((0, 1),), {"coalition_size": 1, "max_coalitions": 2}, r"makes 3 coalitions, more than"),
    (np.eye(40), ((0, 1),), {"coalition_size": 5}, r"658008 coalitions, more than max_coalitions=20000"),
    (-np.eye(3), ((0, 1),), {}, r"positive semidefinite"),
    (np.ones(3), ((0, 1),), {}, r"square matrix"),
    (np.eye(3), ((0, 1),), {"private": False}, r"node 2 is in no group"),
    (np.eye(2), ((0, 1),), {"coalition_size": 1, "private": False}, r"coalition \(0,\) knows every seed of"),
)
def test_problems_that_are_refused(H, groups, options, message):
    refuses(message, CoalitionProblem, H, groups, **{"coalition_size": 0} | options, error=ProblemError)


@each(
    "size, options, message",
    (2, {"method": "magic"}, r"method must be one of"),
    (120, {}, r"7260 unknowns, more than 5000; take smaller groups"),
)
def test_options_that_are_refused(size, options, message):
    with pytest.raises(ProblemError, match=message):
        solve(CoalitionProblem(np.eye(size), (tuple(range(size)),), 0), **options)


@given(30, problem=problems(max_size=5), factor=st.sampled_from([1e-6, 1e6]), data=st.data())
def test_scales_with_the_error_gram_and_ignores_the_order_of_nodes(problem, factor, data):
    solved = solve(problem)
    order = np.array(data.draw(st.permutations(range(problem.size))))
    place = np.argsort(order)
    moved = CoalitionProblem(
        factor * problem.error_gram[np.ix_(order, order)],
        tuple(tuple(int(place[i]) for i in group) for group in reversed(problem.groups)),
        problem.coalition_size,
        private=problem.private,
    )
    again = solve(moved)
    assert again.lower_bound <= factor * solved.objective * (1 + 1e-9)
    assert factor * solved.lower_bound <= again.objective * (1 + 1e-9)

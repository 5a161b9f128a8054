"""Shift reduction: never below the truth, the optimum of its program, and safe whatever the solver does."""

import dataclasses
import math

import networkx as nx
import numpy as np
import pytest
from numpy.testing import assert_allclose
from vocabulary import assume, each, given, refuses, st

from mfdl import gossip, graphs
from mfdl.privacy.shift_problem import System, worst_patterns
from mfdl.privacy.shift_reduction import ShiftProblem, solve
from mfdl.testing import exact_cost, linear_systems_with_record, quadratic_program_value

REFERENCE_ACCURACY = 1e-6  # relative, of an interior-point solver


def one_attacker(W, num_steps, *, attacker, **changes):
    """The attacker reads what its neighbours send it and knows its own noise and gradients; no model is released.

    So the messages of its neighbours carry no difference, its own noise absorbs none, and its models, at which it knows
    the gradients, are equal in both runs. The latter holds by itself: it mixes only its own and seen messages.
    """
    n = len(W)
    receives = (W[attacker] > 0) & (np.arange(n) != attacker)
    pinned = np.zeros((num_steps + 1, n), dtype=bool)
    pinned[:num_steps, attacker] = True
    fields = {
        "mixing": [W] * num_steps, "step_of_round": np.arange(num_steps), "rates": np.ones(num_steps),
        "lipschitz": np.ones(num_steps), "divisors": np.ones(n), "seen": np.tile(receives, (num_steps, 1)),
        "pinned": pinned, "noisy": np.arange(n) != attacker,
    }  # fmt: skip
    return ShiftProblem(**(fields | changes))


def florentine(slope, **changes):
    families = nx.florentine_families_graph()
    W = gossip.metropolis_hastings(families)
    # the graph's own node order, which the figures use, not the label order
    order = [list(graphs.labels(graphs.load(families))).index(name) for name in families]
    return one_attacker(
        W.dense()[np.ix_(order, order)], 10, attacker=0, **({"lipschitz": np.full(10, slope)} | changes)
    )


def value(problem, victim, pattern, **options):
    return float(solve(problem, [victim], [pattern], **options).sensitivity_squared[0, 0])


def cost_upper_bound(problem, victim, pattern, shifts):
    """mu^2 of one choice of shifts after repair."""
    system, column = System(problem), (victim, np.array(pattern))
    with np.errstate(over="ignore", invalid="ignore"):
        repaired = system.repaired(np.nan_to_num(shifts, nan=0.0)[:, :, None], system.sources([column]))
    return math.inf if system.leaks(*column) else repaired.value[0]


def spread(base, seed, share):
    """`base` with more entries set."""
    return base | (np.random.default_rng(seed).random(base.shape) < share)


class TestReferenceValues:
    @pytest.mark.parametrize("lipschitz", [1.0, 0.9])
    def test_florentine_from_above(self, lipschitz):
        bound = solve(florentine(lipschitz), range(1, 15), [range(10)], tolerance=1e-8)
        assert bound.converged
        squared = bound.sensitivity_squared[:, 0]
        for victim in (1, 5, 14):
            reference = quadratic_program_value(florentine(lipschitz), victim, range(10))
            assert squared[victim - 1] == pytest.approx(reference, rel=REFERENCE_ACCURACY)
        assert (bound.lower_estimate[:, 0] <= squared).all()

    def test_the_attackers_pins_hold_by_themselves(self):
        free = florentine(1.0, pinned=np.zeros((11, 15), dtype=bool))
        both = [
            solve(p, range(1, 15), [range(10)], tolerance=1e-9).sensitivity_squared for p in (free, florentine(1.0))
        ]
        assert_allclose(*both, rtol=1e-8)


class TestAgainstTheTrueLoss:
    """The counterexample: path u - w - v, attacker v, the record of u takes part in step 0, a gradient of w expands."""

    PATH = gossip.metropolis_hastings("path:n=3").dense()

    @given(500, linear_systems_with_record())
    def test_never_below_the_exact_loss_of_a_linear_system(self, case):
        system, victim, pattern = case
        truth, leak = system.true_loss(victim, pattern)
        assume(leak < 1e-8 or leak > 1e-5)
        computed = value(system.problem, victim, pattern, tolerance=1e-5, iterations=2000)
        if leak > 1e-5:
            assert computed == math.inf
        else:
            assert computed >= truth * (1 - 1e-8) - 1e-12

    @pytest.mark.parametrize("lipschitz", [0.0, 1.0, 3.0])
    def test_attained_by_a_linear_gradient_on_the_path(self, lipschitz):
        # minimise (1 - r)^2 + (L r / 3)^2: the loss of y = L x + z for x = (theta + z') / 3
        expected = (lipschitz / 3) ** 2 / (1 + (lipschitz / 3) ** 2)
        assert value(one_attacker(self.PATH, 2, attacker=2, lipschitz=[lipschitz] * 2), 0, [0]) == pytest.approx(
            expected, rel=1e-6
        )

    @pytest.mark.parametrize("lipschitz", [0.0, 1.0, 3.0])
    def test_who_is_away_neither_forgets_nor_hides(self, lipschitz):
        # the message of w in step 1 is its model, with no noise of that step: u alone must absorb its record
        away = np.array([[True, True, True], [True, False, True]])
        problem = one_attacker(self.PATH, 2, attacker=2, lipschitz=[lipschitz] * 2, present=away)
        assert (value(problem, 0, [0]), value(problem, 1, [1])) == (pytest.approx(1.0, rel=1e-9), 0.0)
        assert value(problem, 0, [1]) == 0.0  # too late to be heard


class TestTheProgram:
    @given(120, linear_systems_with_record(max_nodes=5, max_steps=5))
    def test_the_optimum_from_above(self, case):
        system, victim, pattern = case
        oracle = quadratic_program_value(system.problem, victim, pattern)
        assume(not math.isnan(oracle))
        bound = solve(system.problem, [victim], [pattern], tolerance=1e-5)
        squared, lower = bound.sensitivity_squared[0, 0], bound.lower_estimate[0, 0]
        if math.isinf(oracle):
            assert squared == math.inf
            return
        assert bound.converged
        assert squared <= oracle * (1 + 1e-4) + 1e-7
        assert squared >= oracle * (1 - 1e-6) - 1e-7
        assert lower <= oracle * (1 + 1e-6) + 1e-7

    @given(100, linear_systems_with_record(), st.integers(0, 2**32 - 1), st.sampled_from([0.1, 1.0, 1e6]))
    def test_any_shifts_and_no_iterations_only_give_larger_values(self, case, seed, size):
        system, victim, pattern = case
        best = solve(system.problem, [victim], [pattern], tolerance=1e-5)
        lower = best.lower_estimate[0, 0]
        rng = np.random.default_rng(seed)
        proposed = rng.normal(size=(system.problem.num_rounds, system.problem.num_nodes)) * size
        proposed[rng.random(proposed.shape) < 0.1] = rng.choice([math.nan, math.inf, -math.inf])
        at_random = cost_upper_bound(system.problem, victim, pattern, proposed)
        unsolved = value(system.problem, victim, pattern, iterations=0)
        few = value(system.problem, victim, pattern, iterations=3)
        assert min(at_random, unsolved, few) >= lower * (1 - 1e-9)
        assert unsolved >= few * (1 - 1e-12)
        assert few >= best.sensitivity_squared[0, 0] * (1 - 1e-12)

    @given(60, linear_systems_with_record(max_nodes=3, max_steps=3))
    def test_rounded_up_against_rational_arithmetic(self, case):
        system, victim, pattern = case
        bound = solve(system.problem, [victim], [pattern], return_shifts=True, iterations=100)
        if not math.isinf(bound.sensitivity_squared[0, 0]):
            exact = exact_cost(system.problem, victim, pattern, bound.shifts[0, 0])
            assert bound.sensitivity_squared[0, 0] >= exact
            assert bound.sensitivity_squared[0, 0] <= float(exact) * (1 + 1e-10)

    def test_all_victims_and_patterns_at_once_equal_one_by_one(self, monkeypatch):
        problem = florentine(0.9, divisors=np.arange(1.0, 16.0), rates=1 / np.sqrt(np.arange(1.0, 11.0)))
        patterns = [range(10), [0], [1, 4, 7]]
        together = solve(problem, [3, 9, 14], patterns, tolerance=1e-7)
        monkeypatch.setattr("mfdl.privacy.shift_reduction.CHUNK_ENTRIES", 1)
        apart = solve(problem, [3, 9, 14], patterns, tolerance=1e-7)
        assert together.sensitivity_squared.shape == (3, 3)
        assert_allclose(together.sensitivity_squared, apart.sensitivity_squared, rtol=1e-6)
        at_victim = value(problem, 9, [1, 4, 7], tolerance=1e-7)
        assert together.sensitivity_squared[1, 2] == pytest.approx(at_victim, rel=1e-6)

    def test_sparse_and_dense_products_agree(self, monkeypatch):
        dense = solve(florentine(1.0), [2, 5], [range(10)]).sensitivity_squared
        monkeypatch.setattr("mfdl.privacy.shift_problem.DENSE_BYTES", 0)
        assert_allclose(solve(florentine(1.0), [2, 5], [range(10)]).sensitivity_squared, dense, rtol=1e-9)


class TestRepeatedRounds:
    @staticmethod
    def problem(seed, num_steps, released, *, rounds=1, n=5):
        """The same matrix, masks, constant and rate in every step; models of all nodes are released, or of none."""
        rng = np.random.default_rng(seed)
        W = np.where(rng.random((n, n)) < 0.6, rng.random((n, n)), 0.0) + np.eye(n)
        pinned = np.zeros((rounds * num_steps + 1, n), dtype=bool)
        pinned[-1] = released
        steps = np.where(np.arange(rounds * num_steps) % rounds, -1, np.arange(rounds * num_steps) // rounds)
        fields = {
            "rates": np.full(num_steps, 0.5),
            "lipschitz": np.full(num_steps, rng.choice([0.5, 1.0, 1.1])),
            "divisors": rng.integers(1, 4, n),
            "seen": np.tile(rng.random((rounds, n)) < 0.3, (num_steps, 1)),
            "noise_gram": np.eye(num_steps) if seed % 3 else None,
        }
        args = [[W / W.sum(axis=1, keepdims=True)] * (rounds * num_steps), steps]
        rest = {"pinned": pinned, "noisy": rng.random(n) < 0.9}
        return ShiftProblem(*args, **fields, **rest)

    @given(60, st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([1, 2]), st.data())
    def test_patterns_that_are_left_out_never_cost_more(self, seed, released, rounds, data):
        problem = self.problem(seed, 6, released, rounds=rounds)
        any_steps = st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True)
        patterns = [tuple(range(b, 6, 3)) for b in range(3)] + [data.draw(any_steps)]
        worst = worst_patterns(problem, patterns)
        assert len(worst) <= 2
        bounds = [
            solve(problem, range(5), p, tolerance=1e-8).sensitivity_squared.max(axis=1) for p in (patterns, worst)
        ]
        assert_allclose(*bounds, rtol=1e-6, atol=1e-12)

    def test_patterns_of_rounds_that_differ_are_all_asked(self):
        rates = 1 / np.arange(1.0, 11.0)
        assert len(worst_patterns(florentine(1.0, rates=rates), [[0], [3], [9]])) == 3
        assert worst_patterns(florentine(1.0), [[0], [3], [9]]) == [(0,)]

    @pytest.mark.parametrize("released", [True, False])
    @pytest.mark.parametrize("period", [1, 40])
    def test_a_long_run_starts_where_a_short_one_ends(self, period, released, monkeypatch):
        """The iterations of the long run, which cost the most, do not grow with its length."""
        pinned = np.zeros((481, 9), dtype=bool)
        pinned[:480, 0], pinned[480] = True, released
        problem = one_attacker(gossip.metropolis_hastings("ring:n=9").dense(), 480, attacker=0, pinned=pinned)
        victims, pattern = [2, 3, 4], range(0, 480, period)
        long = solve(problem, victims, [pattern])
        assert long.converged
        monkeypatch.setattr("mfdl.privacy.shift_problem.SHORTEST", 10**9)
        whole = solve(problem, victims, [pattern])
        assert long.iterations <= 0.7 * whole.iterations
        assert_allclose(long.sensitivity_squared, whole.sensitivity_squared, rtol=1e-8)


class TestLaws:
    @given(
        100, linear_systems_with_record(), st.integers(0, 2**32 - 1),
        st.sampled_from(["seen", "pinned", "lipschitz", "noisy"]),
    )  # fmt: skip
    def test_more_seen_more_released_larger_lipschitz_less_noise_never_smaller(self, case, seed, change):
        system, victim, pattern = case
        before = system.problem
        if change == "lipschitz":
            changed = before.lipschitz + np.random.default_rng(seed).random(before.num_steps)
        elif change == "noisy":
            changed = ~spread(~before.noisy, seed, 0.3)
        else:
            changed = spread(getattr(before, change), seed, 0.3)
        after = dataclasses.replace(before, **{change: changed})
        smaller, larger = (value(p, victim, pattern, tolerance=1e-5) for p in (before, after))
        assert larger >= smaller * (1 - 2e-5)

    @given(60, linear_systems_with_record())
    def test_all_messages_seen_is_the_sum_over_the_pattern(self, case):
        system, victim, pattern = case
        p = system.problem
        everything = dataclasses.replace(
            p, seen=np.ones_like(p.seen), noisy=np.ones_like(p.noisy), noise_gram=None, noise_weights=None
        )
        joined = [t for t in pattern if p.present[t, victim]]
        assert value(everything, victim, pattern) == pytest.approx(len(joined), rel=1e-10)
        gram = p.noise_gram
        if gram is not None:
            magnitudes = np.abs(gram if gram.ndim == 2 else gram[victim])
            if np.linalg.eigvalsh(magnitudes)[0] >= 0:
                local = dataclasses.replace(everything, noise_gram=gram)
                expected = magnitudes[np.ix_(joined, joined)].sum()
                assert value(local, victim, pattern) == pytest.approx(expected, rel=1e-10)

    def test_what_nobody_sees_costs_nothing(self):
        nothing = {"seen": np.zeros((10, 15), dtype=bool), "pinned": np.zeros((11, 15), dtype=bool)}
        assert value(florentine(1.0, **nothing), 3, range(10)) == 0.0
        last = np.zeros((10, 15), dtype=bool)
        last[:5] = True
        assert value(florentine(1.0, **(nothing | {"seen": last})), 3, range(5, 10)) == 0.0

    def test_public_divisors_cancel_where_only_the_victim_pays(self):
        problem = florentine(1.0, seen=np.ones((10, 15), dtype=bool), divisors=np.arange(2.0, 17.0))
        assert value(problem, 3, range(10)) == pytest.approx(10, rel=1e-12)

    def test_amplification_by_iteration(self):
        """One node, only the last model released: the record of step 0 is hidden by all later noise, mu^2 = 1 / T."""
        for T in (1, 2, 7):
            pinned = np.zeros((T + 1, 1), dtype=bool)
            pinned[T] = True
            problem = ShiftProblem(
                [np.eye(1)] * T, np.arange(T), np.ones(T), np.ones(T), [1.0], np.zeros((T, 1), bool), pinned, [True]
            )
            assert value(problem, 0, [0]) == pytest.approx(1 / T, rel=1e-5)


class TestRefusals:
    def test_a_source_without_noise_that_is_seen_is_infinite(self):
        problem = florentine(1.0)
        silent = dataclasses.replace(problem, noisy=np.zeros(15, dtype=bool))
        factorization = solve(silent, [1, 2], [[0]])
        assert np.isinf(factorization.sensitivity_squared[0, 0])
        assert np.isinf(factorization.lower_estimate[0, 0])
        assert factorization.converged
        assert cost_upper_bound(silent, 1, [0], np.zeros((10, 15))) == math.inf

    def test_zeros_travel_back_through_gossip_rounds_to_the_source(self):
        n = 3
        seen = np.zeros((3, n), dtype=bool)
        seen[2, 2] = True
        problem = ShiftProblem(
            [gossip.metropolis_hastings("path:n=3").dense()] * 3,
            np.array([0, -1, -1]), [1.0], [1.0], np.ones(n), seen, np.zeros((4, n), bool), [False, True, True],
        )  # fmt: skip
        assert value(problem, 0, [0]) == math.inf
        assert value(dataclasses.replace(problem, noisy=[True] * 3), 0, [0]) == pytest.approx(1.0)

    def test_a_step_with_rate_zero_reveals_and_hides_nothing(self):
        rates = np.ones(10)
        rates[4] = 0.0
        problem = florentine(1.0, rates=rates)
        assert (value(problem, 1, [4]), value(problem, 1, range(10))) == (0.0, pytest.approx(9, rel=1e-6))

    def test_overflow_is_infinite_not_zero(self):
        problem = florentine(1e200, seen=spread(np.zeros((10, 15), dtype=bool), 0, 0.3))
        assert value(problem, 3, range(10), iterations=50) >= 9  # the last message of node 3 is unseen
        assert cost_upper_bound(problem, 3, range(10), np.full((10, 15), 1e300)) == math.inf

    @each(
        "changes, message",
        ({"rates": np.full(10, 1e-200)}, "rates must lie between"),
        ({"rates": -np.ones(10)}, "rates must lie between"),
        ({"divisors": np.zeros(15)}, "divisors must lie between"),
        ({"noise_gram": np.ones((10, 10))}, "positive definite"),
        ({"noise_weights": np.zeros((10, 15))}, "noise_weights must have entries"),
    )
    def test_bad_problems(self, changes, message):
        refuses(message, florentine, 1.0, **changes)

    @pytest.mark.parametrize(
        ("victim", "pattern", "message"),
        [(15, [0], "below 15"), (-1, [0], "victim"), (1, [], "pattern"), (1, [10], "pattern"), (1, [2, 2], "pattern")],
    )
    def test_bad_victims_and_patterns(self, victim, pattern, message):
        refuses(message, lambda: solve(florentine(1.0), [victim], [pattern]))

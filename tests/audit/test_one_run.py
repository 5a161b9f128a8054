"""Audits of one run: bounds from guesses against linear programs over all mechanisms, true claims, planted bugs."""

import functools
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from _privacy import applied
from scipy import stats
from scipy.optimize import linprog
from scipy.special import comb
from vocabulary import dynamics_on, example, given, refuses, st, unsupported

import mfdl
from mfdl.algorithms import registry
from mfdl.audit import Training, audit_one_run, bounds, one_run
from mfdl.audit.one_run import Guesses
from mfdl.errors import InvalidInput
from mfdl.trust import LDP, PNDP, Eavesdropper

DYNAMICS = dynamics_on("ring:n=4", 0.5)
SCHEME = mfdl.Cyclic(epochs=2, period=2)
SETTINGS = {"adjacency": "replace-one", "clip_norm": 1.0, "noise_std": 2.0}
NAMES = ("dp-dsgd", "mafalda", "decor", "muffliato")


@functools.cache
def build(name, scheme=SCHEME):
    return registry.build(name, DYNAMICS, scheme)


def audited(algorithm, trust=None, bug=None, **more):
    system = bug and bug(algorithm, noise_std=SETTINGS["noise_std"], clip_norm=SETTINGS["clip_norm"])
    return audit_one_run(algorithm, trust=trust or LDP(), **(SETTINGS | {"system": system} | more))


# ---- bounds from guesses ---------------------------------------------------------------------------------------------
def refutes(m, r, v, epsilon, delta, probability):
    inverse = one_run.approximate_inverse(delta)
    return bool(Guesses(m, r, v).refuted(np.array([epsilon]), inverse, probability)[0])


def most_by_program(m, r, v, epsilon, delta):
    """The largest P(N >= v) of a distribution of N that satisfies all inequalities of the proof, by linear programming.

    A_k <= h(B_{k-1}) for k = 1..r, each of the two slopes of h of its own.
    """
    j = np.arange(r + 1)
    rows, limits = [], []
    for k in range(1, r + 1):
        A, B = np.where(j >= k, j / m, 0.0), np.where(j >= k - 1, (r - j) / m, 0.0)
        rows += [A - np.exp(epsilon) * B, A - np.exp(-epsilon) * B]
        limits += [delta, 1 - np.exp(-epsilon) * (1 - delta)]
    answer = linprog(-(j >= v).astype(float), A_ub=rows, b_ub=limits, A_eq=[np.ones(r + 1)], b_eq=[1.0])
    return -answer.fun


@given(
    30, m=st.integers(1, 12), share=st.floats(0, 1), right=st.floats(0, 1), epsilon=st.floats(0, 4),
    delta=st.floats(0, 0.3)
)  # fmt: skip
def test_the_recursion_is_the_optimum_of_the_program(m, share, right, epsilon, delta):
    r = max(1, round(share * m))
    v = max(1, round(right * r))
    most = most_by_program(m, r, v, epsilon, delta)
    assert not refutes(m, r, v, epsilon, delta, min(most * (1 - 1e-6), 1.0))
    if most < 0.999:
        assert refutes(m, r, v, epsilon, delta, most * (1 + 1e-5))


def most_of_all_mechanisms(m, v, epsilon, delta):
    """The largest P(N >= v) of any (epsilon, delta)-private mechanism that guesses m fair coins.

    Unknown are P(guesses | coins), and one excess per guess for each pair of neighbours, of sum at most delta.
    """
    words = list(itertools.product((0, 1), repeat=m))
    pairs = [(a, b) for a in words for b in words if sum(x != y for x, y in zip(a, b, strict=True)) == 1]
    size, number = len(words), {word: i for i, word in enumerate(words)}
    unknowns = size * size + len(pairs) * size
    rows, limits = [], []
    for index, (a, b) in enumerate(pairs):
        excess = size * size + index * size
        for t in range(size):
            row = np.zeros(unknowns)
            row[number[a] * size + t], row[number[b] * size + t], row[excess + t] = 1.0, -np.exp(epsilon), -1.0
            rows.append(row)
            limits.append(0.0)
        total = np.zeros(unknowns)
        total[excess : excess + size] = 1.0
        rows.append(total)
        limits.append(delta)
    equal, gain = np.zeros((size, unknowns)), np.zeros(unknowns)
    for s, coins in enumerate(words):
        equal[s, s * size : (s + 1) * size] = 1.0
        for t, guess in enumerate(words):
            gain[s * size + t] = sum(x == y for x, y in zip(coins, guess, strict=True)) >= v
    answer = linprog(-gain / size, A_ub=np.array(rows), b_ub=limits, A_eq=equal, b_eq=np.ones(size))
    return -answer.fun


@given(12, m=st.integers(1, 3), right=st.integers(1, 3), epsilon=st.floats(0, 3), delta=st.floats(0, 0.3))
def test_no_private_mechanism_guesses_better_than_the_bound(m, right, epsilon, delta):
    v = min(right, m)
    most = most_of_all_mechanisms(m, v, epsilon, delta)
    assert not refutes(m, m, v, epsilon, delta, most * (1 - 1e-6))
    if m == 1 and most < 0.999:  # then the bound is the best
        assert refutes(m, m, v, epsilon, delta, most * (1 + 1e-5))


def mu_of_guesses(of_word, canaries):
    """mu of the mechanism that guesses a random subset, each of its words with P(word) by the number of right guesses.

    Words with j right guesses, one of them that of a given canary, have j - 1 where its coin is turned.
    """
    r = len(of_word) - 1
    words = comb(r - 1, np.arange(1, r + 1) - 1) * r / canaries
    pairs = np.stack([words * of_word[1:], words * of_word[:-1]])
    pairs = np.hstack([pairs, pairs[::-1], [[1 - r / canaries]] * 2])
    pairs = pairs[:, np.argsort(-pairs[0] / pairs[1])]
    both = np.stack([pairs.cumsum(1)[:, :-1], pairs[:, ::-1].cumsum(1)[:, -2::-1]])  # accepted, and left out
    accepted, left = stats.norm.ppf(both[0]), -stats.norm.ppf(both[1])
    quantiles = np.where(both[0] < 0.5, accepted, left)
    return float((quantiles[0] - quantiles[1]).max())


@given(
    logs=st.lists(st.floats(-3, 3), min_size=2, max_size=6), tilt=st.floats(0, 2), more=st.integers(1, 6),
    share=st.floats(0, 1)
)  # fmt: skip
@example([0.0, 0.0], 1.0, 1, 1.0)  # one guess, where the bound is the best
def test_no_mechanism_whose_guesses_depend_on_each_other_shows_more_than_its_mu(logs, tilt, more, share):
    r = len(logs) - 1
    j = np.arange(r + 1)
    of_number = comb(r, j) * np.exp(tilt * j + np.array(logs))
    of_number /= of_number.sum()
    right = max(1, round(share * r))
    shown = Guesses(r + more, r, right).mu(min(of_number[right:].sum(), 0.999999))
    assert shown <= mu_of_guesses(of_number / comb(r, j), r + more) + 1e-6


@given(m=st.integers(1, 400), mu=st.floats(0.01, 4), right=st.floats(0, 1))
def test_independent_gaussians_are_never_refuted_at_their_probability(m, mu, right):
    v = max(1, round(right * m))
    probability = stats.binom.sf(v - 1, m, stats.norm.cdf(mu / 2))
    refuted = Guesses(m, m, v).refuted(np.array([mu]), one_run.gaussian_inverse, min(probability, 1.0))
    assert not refuted[0]


@given(y=st.floats(0, 1), loss=st.floats(0, 6), delta=st.floats(0, 0.5))
def test_inverses_undo_the_trade_off_functions(y, loss, delta):
    x = float(one_run.gaussian_inverse(np.array(loss), np.array(y)))
    assert stats.norm.cdf(stats.norm.ppf(x) + loss) <= y + 1e-9
    x = float(one_run.approximate_inverse(delta)(np.array(loss), np.array(y)))
    blown_up = min(1.0, delta + np.exp(loss) * x, 1 - np.exp(-loss) * (1 - delta - x))
    assert blown_up >= y - 1e-9
    assert x == 0 or blown_up <= y + 1e-9


@pytest.mark.parametrize(("mu", "count"), [(0.5, 100), (1.0, 250), (3.0, 1000)])
def test_the_chance_of_a_right_guess_is_that_of_simulated_guesses(mu, count):
    rng, right = np.random.default_rng(0), []
    for _ in range(200):
        coins = rng.choice([-1, 1], 1000)
        seen = coins * mu / 2 + rng.standard_normal(1000)
        right.append((np.sign(seen) == coins)[np.argsort(-np.abs(seen))[:count]].mean())
    assert one_run.chance_of_right(count / 1000, mu) == pytest.approx(np.mean(right), abs=0.01)


# ---- audits ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_a_true_claim_stands_and_the_bounds_are_not_far_from_it(name, adjacency):
    result = audited(build(name), PNDP([1]), victim=0, adjacency=adjacency)
    assert not result.violated, result.sentence()
    assert result.mu_gaussian > (0.7 if adjacency == "replace-one" else 0.5) * result.mu_claimed
    assert result.mu_guesses > 0.4 * result.mu_claimed
    assert 0 < result.epsilon_guesses < result.epsilon_claimed
    assert "not refuted" in result.sentence()
    assert result.to_dict()["violated"] is False


class HalfTheNoise(Training):
    def stream(self, key, dim, first_step):
        stream = super().stream(key, dim, first_step)
        stream.noise_std /= 2
        return stream


class SharedByCoordinates(Training):
    def stream(self, key, dim, first_step):
        honest = super().stream(key, 1, first_step)
        return SimpleNamespace(step=lambda t: np.repeat(honest.step(t), dim, axis=1))


class Unclipped(Training):
    def clip(self, gradients):
        return gradients


class NoNoiseInOneStep(Training):
    def stream(self, key, dim, first_step):
        honest = super().stream(key, dim, first_step)
        return SimpleNamespace(step=lambda t: (t != 1) * honest.step(t))


@pytest.mark.parametrize("bug", [HalfTheNoise, SharedByCoordinates, Unclipped])
@pytest.mark.parametrize("name", NAMES)
def test_a_planted_bug_is_refuted(name, bug):
    result = audited(build(name), Eavesdropper(), bug=bug, victim=0)
    assert result.violated
    assert "REFUTED" in result.sentence()


def test_the_planted_bug_of_the_library_is_half_the_noise():
    by_option = audited(build("mafalda"), PNDP([1]), victim=0, noise_halved=True)
    assert by_option == audited(build("mafalda"), PNDP([1]), bug=HalfTheNoise, victim=0)
    assert by_option.epsilon_audited > by_option.epsilon_claimed


def test_half_the_noise_is_refuted_by_guesses_alone_in_most_runs():
    results = [audited(build("mafalda"), PNDP([1]), bug=HalfTheNoise, victim=0, seed=seed) for seed in range(6)]
    assert sum(result.mu_guesses > result.mu_claimed for result in results) >= 5


def test_a_bug_in_one_step_is_seen_by_the_patterns_that_hold_it():
    algorithm = build("dp-dsgd", mfdl.Cyclic(epochs=1, period=2))
    blind, seeing = (audited(algorithm, bug=NoNoiseInOneStep, patterns=count) for count in (1, 2))
    assert blind.patterns == ((0,),)  # both steps lose the same: the first is taken
    assert (seeing.patterns, blind.violated, seeing.violated) == (((0,), (1,)), False, True)


def test_a_true_claim_is_refuted_less_often_than_the_level_allows():
    level, draws = 0.7, 60
    refuted = sum(audited(build("dp-dsgd"), level=level, seed=seed, trials=64).violated for seed in range(draws))
    assert refuted <= stats.binom.isf(1e-3, draws, 1 - level)  # exceeded once in a thousand at that level


@pytest.mark.parametrize("patterns", [1, 2])
def test_failure_probabilities_add_up_to_what_the_level_leaves(monkeypatch, patterns):
    failures = {"guesses": set(), "samples": []}
    of_guesses, of_samples = Guesses.mu, bounds.gaussian_mu

    def mu(guesses, failure):
        failures["guesses"].add(failure)
        return of_guesses(guesses, failure)

    def gaussian_mu(low, high, *, failure):
        failures["samples"].append(failure)
        return of_samples(low, high, failure=failure)

    monkeypatch.setattr(Guesses, "mu", mu)
    monkeypatch.setattr(bounds, "gaussian_mu", gaussian_mu)
    audited(build("dp-dsgd", mfdl.Cyclic(epochs=1, period=2)), level=0.7, patterns=patterns)
    (guessed,) = failures["guesses"]
    assert (len(failures["samples"]), guessed + sum(failures["samples"])) == (patterns, pytest.approx(0.3))


def test_the_victim_of_the_largest_claim_is_audited_and_one_seed_gives_one_result():
    first = audited(build("mafalda"), seed=3)
    assert first.mu_claimed == pytest.approx(applied(mfdl.account, build("mafalda"), {"trust": LDP(), **SETTINGS}).mu)
    assert audited(build("mafalda"), seed=3) == first
    assert audited(build("mafalda"), seed=4) != first


def test_what_one_run_cannot_audit_is_refused():
    refuses("trials must be from 50 to 4096 canaries", lambda: audited(build("dp-dsgd"), trials=10))
    for wrong in (0, 30):
        refuses("patterns must", audited, build("dp-dsgd"), patterns=wrong, trials=200)
    unsupported("drawn secretly", lambda: audited(build("dp-dsgd", mfdl.BallsInBins(2, 2))))
    unsupported("drawn secretly", lambda: audited(build("dp-dsgd", mfdl.PoissonSampling(0.5, 4))))
    refuses("plants a bug in the library's system", lambda: audited(build("dp-dsgd"), bug=Training, noise_halved=True))
    unsupported("a node is one user", lambda: audited(build("dp-dsgd", mfdl.EveryStep(4)), unit="user"))
    with pytest.raises(InvalidInput, match="run_once"):
        audit_one_run(build("dp-dsgd"), trust=LDP(), system=SimpleNamespace(run=None), **SETTINGS)
    refuses("claims nothing that an audit could refute", lambda: audited(build("dp-dsgd"), PNDP([1]), victim=1))

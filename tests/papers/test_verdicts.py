"""The rule of verdicts: intervals beside an independent t test, error rates, algebra, effects of paired losses."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from vocabulary import assume, each, given, refuses, st

from mfdl_papers.figures import VERDICTS, Verdict, trained_panels, verdicts
from mfdl_papers.figures.verdicts import Effect

CONFIRMED, DIRECTION, UNSETTLED, REFUTED, NOT_RUN = VERDICTS
VALUES = st.lists(st.floats(-2, 2), min_size=1, max_size=8)
CLAIMED = st.one_of(st.just(0.0), st.floats(0.05, 1.5))
INF = math.inf


@each(
    "values, claimed, word",
    ([0.30, 0.32, 0.35], 0.31, CONFIRMED),
    ([0.40, 0.42, 0.41], 0.31, CONFIRMED),  # more than claimed
    ([0.10, 0.12, 0.11], 0.31, DIRECTION),
    ([0.9, -0.8, 0.85], 0.31, UNSETTLED),  # reaches the claim, and no effect as well
    ([0.01, -0.01, 0.0], 0.31, REFUTED),  # a direction is not excluded, the size is
    ([-0.1, -0.12, -0.2], 0.31, REFUTED),
    ([-0.039, 0.4, -0.6], 0.31, UNSETTLED),  # a mean on the wrong side settles nothing
    ([0.35], 0.31, UNSETTLED),  # one seed
    ([-5.0], 0.0, UNSETTLED),
    ([0.1, 0.2, 0.15], 0.0, CONFIRMED),
    ([-0.1, -0.2, -0.15], 0.0, REFUTED),
    ([0.1, 0.9, -0.4], 0.0, UNSETTLED),
    ([INF, INF], 0.31, CONFIRMED),
    ([-INF, -INF], 0.0, REFUTED),
    ([0.3, INF, 0.3], 0.31, UNSETTLED),
    ([INF, -INF], 0.0, UNSETTLED),
    ([math.nan, 1.0], 0.0, UNSETTLED),
)
def test_the_word_of_one_effect(values, claimed, word):
    assert Effect.sampled("", values, claimed).word() == word


@each(
    "value, claimed, error, word",
    (2.0, 1.0, 0.0, CONFIRMED), (0.5, 1.0, 0.0, DIRECTION), (0.95, 1.0, 0.1, CONFIRMED), (0.0, 0.0, 0.0, REFUTED),
    (-1.0, 1.0, 0.0, REFUTED), (0.1, 0.0, 0.2, UNSETTLED), (INF, 1.0, 0.0, CONFIRMED),
)  # fmt: skip
def test_a_number_without_randomness(value, claimed, error, word):
    assert Effect.exact("", value, claimed, error=error).word() == word


@given(VALUES, CLAIMED, st.floats(0.5, 0.999))
def test_the_words_say_what_the_interval_of_a_t_test_excludes(values, claimed, level):
    assume(len(values) > 1 and np.ptp(values) > 1e-6)
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(level)
    assume(min(abs(low), abs(high), abs(high - claimed)) > 1e-9)
    effect = Effect.sampled("", values, claimed)
    assert effect.interval(level) == pytest.approx((low, high), rel=1e-7, abs=1e-9)
    word = effect.word(level)
    assert (word in (CONFIRMED, DIRECTION)) == (low > 0)
    assert (word in (DIRECTION, REFUTED)) == (high < claimed if claimed else high < 0)


@given(VALUES, CLAIMED)
def test_a_confirmed_size_has_a_mean_of_at_least_half_of_it(values, claimed):
    effect = Effect.sampled("", values, claimed)
    if effect.word() == CONFIRMED:
        assert effect.mean > 0
        assert effect.mean >= claimed / 2 - 1e-12
    if effect.word() == REFUTED:
        assert effect.mean < claimed or claimed == effect.mean == 0


@given(VALUES, CLAIMED, st.floats(0.1, 10.0))
def test_the_unit_does_not_matter_and_a_weaker_claim_is_no_worse(values, claimed, unit):
    word = Effect.sampled("", values, claimed).word()
    scaled = Effect.sampled("", [unit * value for value in values], unit * claimed)
    assume(all(abs(end) > 1e-9 and abs(end - claimed) > 1e-9 for end in Effect.sampled("", values).interval()))
    assert scaled.word() == word
    weaker = Effect.sampled("", values, claimed / 2).word()
    assert word != CONFIRMED or weaker == CONFIRMED
    assert word != UNSETTLED or weaker == UNSETTLED


@pytest.mark.parametrize(("points", "seeds"), [(1, 3), (1, 20), (6, 4)])
@pytest.mark.parametrize(("truth", "wrong"), [(0.0, (CONFIRMED, DIRECTION)), (1.0, (DIRECTION, REFUTED))])
def test_wrong_words_are_as_rare_as_stated(points, seeds, truth, wrong):
    """Effects of no size and of the claimed size: one side of a joint 95 % interval errs in 2.5 % of the cases."""
    rng, cases = np.random.default_rng(7), 1500
    counted = 0
    for values in truth + rng.standard_normal((cases, points, seeds)):
        verdict = Verdict("", [Effect.sampled(i, row, 1.0) for i, row in enumerate(values)], "")
        counted += any(word in wrong for word in verdict.words)
    assert counted <= stats.binom.ppf(1 - 1e-6, cases, 0.025)
    assert points > 1 or counted >= stats.binom.ppf(1e-6, cases, 0.025)


def verdict_by_words(*words, quantifier="every"):
    values = {CONFIRMED: 2.0, DIRECTION: 0.5, REFUTED: -1.0}
    effects = [Effect.exact(word, values.get(word, 0.0), 1.0, error=5.0 * (word == UNSETTLED)) for word in words]
    return Verdict("", effects, "", quantifier=quantifier)


def test_claims_of_every_and_of_some_point():
    words = [CONFIRMED, DIRECTION, UNSETTLED, REFUTED]
    for count in range(1, 5):
        assert verdict_by_words(*words[:count]).verdict == words[count - 1]
        assert verdict_by_words(*words[-count:], quantifier="some").verdict == words[-count]
    assert verdict_by_words().verdict == NOT_RUN


def test_a_claim_of_some_point_names_the_points_it_rests_on():
    clear, smaller, none = (Effect.exact(f"mu = {k}", value, 1.0, error=0.1) for k, value in enumerate((2, 0.5, 0)))
    unlearned = Effect("mu = 3", [2.0], 1.0, 0.1, unsupported="diverged")
    some = Verdict("", [clear, smaller, none, unlearned], "", quantifier="some").remark
    assert some.startswith("rests on mu = 0: at 1 of 4 points the interval includes no effect; ")
    assert some.endswith("points without a verdict, 1 of 4: diverged")
    assert Verdict("", [clear, smaller], "", quantifier="some").remark == ""
    assert Verdict("", [smaller, none], "", quantifier="some").remark == ""
    assert Verdict("", [clear, none], "").remark == ""


def test_more_points_widen_the_intervals_of_samples_only():
    single = Effect.sampled("a", [0.9, 1.0, 1.1])
    alone, beside = Verdict("", [single], ""), Verdict("", [single] * 5, "")
    assert (alone.level, beside.level) == pytest.approx((0.95, 0.99))
    assert Verdict("", [single, Effect.exact("b", 1.0)], "").level == alone.level
    assert single.interval(beside.level)[0] < single.interval(alone.level)[0]


def test_runs_that_learned_nothing_support_no_verdict_and_say_so():
    low, high = np.array([12.7, 13.0, 12.9]), np.array([22.0, 21.0, 22.5])
    verdict = Verdict("a", trained_panels.below({"p = 0.2": (low, high)}, guess=2.3), "lower")
    assert verdict.verdict == UNSETTLED
    assert "neither has a loss below that of a guess, 2.3" in verdict.remark
    assert Verdict("a", trained_panels.below({"p": (low / 10, high)}, guess=2.3), "").verdict == CONFIRMED
    diverged = np.full(3, np.nan)
    assert Verdict("a", trained_panels.below({"p": (diverged, diverged)}), "").verdict == UNSETTLED
    assert Verdict("a", trained_panels.below({"p": (low, diverged)}), "").verdict == CONFIRMED
    assert Verdict("a", trained_panels.below({"p": (diverged, low)}), "").verdict == REFUTED


@given(st.lists(st.builds(Effect.sampled, st.text(max_size=5), VALUES, CLAIMED), max_size=4))
def test_a_verdict_is_computed_anew_from_what_is_stored(effects):
    for quantifier, beyond in itertools.product(("every", "some"), (INF, -INF, math.nan)):
        more = [*effects, Effect.sampled("diverged", [beyond] * 2), Effect.exact("exact", 0.3, 0.2, error=0.01)]
        verdict = Verdict("claim", more, "finding", beyond, None, quantifier)
        stored = verdict.result()
        again = Verdict.from_result(stored)
        assert again.verdict == stored["verdict"] == verdict.verdict
        assert again.result() == stored


def test_the_verdict_of_a_figure_is_the_worst_of_what_was_run():
    parts, missing = [verdict_by_words(word) for word in (CONFIRMED, DIRECTION)], Verdict.not_run("e", "no data")
    assert verdicts.overall([*parts, missing]) == DIRECTION
    assert verdicts.overall([missing]) == missing.verdict == NOT_RUN


@each(
    "wrong, message",
    (lambda: Effect.sampled("a", []), "a value for each seed"),
    (lambda: Effect("a", [1.0, 2.0], error=0.0), "a value for each seed"),
    (lambda: Effect.exact("a", 1.0, -1.0), "must be >= 0"),
    (lambda: Verdict("a", [], "", quantifier="evry"), "did you mean 'every'"),
    (lambda: trained_panels.log_ratios(np.array([]), np.array([])), "paired losses"),
    (lambda: trained_panels.log_ratios(np.ones(3), np.ones(1)), "paired losses"),
)
def test_bad_numbers_are_refused(wrong, message):
    refuses(message, wrong)


LOW, MIDDLE, HIGH = np.array([1.0, 1.1, 0.9]), np.array([2.0, 0.9, 1.2]), np.array([3.0, 3.3, 2.9])
ONE = np.array([1.0])


@each(
    "points, verdict",
    ({3: (LOW, HIGH), 10: (LOW, HIGH)}, CONFIRMED),
    ({3: (LOW, HIGH), 10: (LOW, MIDDLE)}, UNSETTLED),  # below in the mean, not surely
    ({3: (LOW, HIGH), 10: (HIGH, LOW)}, REFUTED),
    ({3: (ONE, 2 * ONE)}, UNSETTLED),  # one seed
    ({3: (np.array([1.0, np.nan, 1.0]), np.array([np.nan, 2.0, 2.0]))}, UNSETTLED),
)
def test_orders(points, verdict):
    assert Verdict("", trained_panels.below(points), "").verdict == verdict


@each(
    "a, b, verdict",
    (LOW, LOW * np.array([1.05, 0.95, 1.0]), CONFIRMED), (LOW, 1.5 * LOW, CONFIRMED), (LOW, 3 * LOW, REFUTED),
    (LOW, MIDDLE, UNSETTLED), (ONE, ONE, UNSETTLED),
)  # fmt: skip
def test_ties_are_tests_of_equivalence(a, b, verdict):
    for pair in ((a, b), (b, a)):
        assert Verdict("", trained_panels.tied("p = 1", *pair), "").verdict == verdict


def test_pseudo_values_of_a_mean_are_the_values():
    values = np.array([1.0, 2.0, 6.0])
    np.testing.assert_allclose(trained_panels.jackknifed(lambda part: float(part.mean()), values), values)
    assert trained_panels.jackknifed(lambda part: INF, values).tolist() == [INF]


def test_lowest_and_ratios_take_a_diverged_run_as_infinitely_bad():
    assert trained_panels.lowest({"a": np.array([1.0, np.nan]), "b": HIGH}) == "b"
    assert trained_panels.mean_ratio(HIGH, LOW) == pytest.approx(9.2 / 3)
    assert trained_panels.mean_ratio(np.array([np.nan, 1.0]), np.array([1.0, 1.0])) == INF
    assert math.isnan(trained_panels.mean_ratio(np.array([np.nan]), np.array([np.nan])))

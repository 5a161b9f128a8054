"""Claims: searched, shrunk, worded, and collected by pytest."""

import math
import subprocess
import sys
import traceback

import networkx as nx
import numpy as np
import pytest
from vocabulary import assume, each, refuses, st

from mfdl.errors import InvalidInput
from mfdl.testing import brute_force_sensitivity, check_claim, claim, describe, encoders, participations, strategies


def bound(limit, **options):
    @claim("a draft", "Lemma 1", n=st.integers(0, 10**6), **options)
    def below(n):
        """No number exceeds the limit."""
        return limit, n

    return below


@pytest.mark.parametrize("limit", [0, 1, 7, 100, 2**16])
@pytest.mark.parametrize("seed", [0, 1, 99])
def test_the_counterexample_is_the_smallest(limit, seed):
    result = check_claim(bound(limit), seed=seed)
    assert result.verdict == "refuted"
    assert result.case == {"n": limit + 1}
    assert (result.claimed, result.truth) == (limit, limit + 1)
    assert result.counterexample == f"n = {limit + 1}: claimed {limit:.6g}, true {limit + 1:.6g}"
    assert not result.as_registered


@pytest.mark.parametrize("examples", [1, 10, 50])
def test_what_no_case_refutes_holds_and_says_how_many_were_tried(examples):
    result = check_claim(bound(10**6), examples=examples)
    assert result.verdict == "holds"
    assert 1 <= result.tried <= examples
    assert result.counterexample is None
    assert str(result.tried) in str(result)


@pytest.mark.slow
def test_one_seed_gives_one_result():
    @claim("a draft", "Lemma 2", encoder=encoders(), participation=participations())
    def diagonal(encoder, participation):
        """The squared sensitivity is at most the trace."""
        assume(len(encoder) == participation.num_steps)
        return np.trace(encoder.T @ encoder), brute_force_sensitivity(encoder, participation) ** 2

    first, again = (check_claim(diagonal, seed=3) for _ in range(2))
    assert first.verdict == "refuted"
    assert first.counterexample == again.counterexample


def test_conditions_that_no_case_meets_leave_a_claim_untested():
    @claim("a draft", "Lemma 3", n=st.integers(0, 5))
    def never(n):
        """Holds for numbers that there are not."""
        assume(n > 7)
        return 0, 1

    result = check_claim(never)
    assert result.verdict == "untested"
    assert not result.as_registered


@each(
    "claimed, truth, verdict",
    (math.inf, math.inf, "holds"),
    (math.inf, 1, "holds"),
    (1, math.inf, "refuted"),
    (-math.inf, 0, "refuted"),
    (0, -math.inf, "holds"),
    (1, 1 + 1e-12, "holds"),
    (1e6, 1e6 + 1e-4, "holds"),  # tolerance is relative above 1
    (1, 1 + 1e-8, "refuted"),
    ([2, 2], [1, 3], "refuted"),
    (0, [0.0, -1.0], "holds"),
    ([], [], "holds"),
)
def test_what_counts_as_a_violation(claimed, truth, verdict):
    @claim("a draft", "Lemma 4", n=st.just(0))
    def function(n):
        """The truth is below."""
        return claimed, truth

    assert check_claim(function).verdict == verdict


def test_the_tolerance_is_the_users():
    assert check_claim(bound(10**6 - 1, tolerance=1e-5)).verdict == "holds"
    assert check_claim(bound(10**6 - 1, tolerance=0.0, expect="refuted"), examples=1000).as_registered


@pytest.mark.parametrize("answer", [None, 3, (1, 2, 3), ("a", 1), ([1, 2], [1, 2, 3])])
def test_a_function_that_returns_no_pair_is_named(answer):
    @claim("a draft", "Lemma 5", n=st.just(0))
    def wrong(n):
        """Nothing."""
        return answer

    refuses("claim 'a-draft-lemma-5' must return", check_claim, wrong)


def test_nan_is_no_truth():
    @claim("a draft", "Lemma 6", n=st.just(0))
    def wrong(n):
        """Nothing."""
        return 1, math.nan

    refuses(r"returned nan for n = 0", check_claim, wrong)


def test_an_error_of_the_function_names_claim_and_case_in_one_line():
    @claim("a draft", "Lemma 9", algorithm=strategies.linear_algorithms(["dp-dsgd"]))
    def wrong(algorithm):
        """There is an encoder, it says."""
        return 0, algorithm.factorization.encoder

    with pytest.raises(AttributeError, match="'encoder'") as raised:
        check_claim(wrong)
    lines = traceback.format_exception(raised.value)
    (note,) = raised.value.__notes__
    assert note.startswith(
        "The function of claim 'a-draft-lemma-9' raised AttributeError for algorithm = dp-dsgd on W ="
    )
    assert lines[-1] == f"{note}\n"
    assert not any("hypothesis" in line or "Failing test case" in line for line in lines)


@each(
    "keywords, message",
    ({}, "takes .'n'. and has strategies for nothing"),
    ({"n": st.just(0), "m": st.just(0)}, "strategies for .'m', 'n'."),
    ({"n": 3}, "must be a Hypothesis strategy, got 3"),
    ({"n": st.just(0), "expect": "maybe"}, "expect must be one of holds, refuted"),
)
def test_a_claim_that_is_not_well_stated_is_refused(keywords, message):
    with pytest.raises(InvalidInput, match=message):

        @claim("a draft", "Lemma 8", **keywords)
        def function(n):
            """Nothing."""
            return 0, 0


def test_a_claim_needs_a_statement_and_check_claim_a_claim():
    with pytest.raises(InvalidInput, match="its first line is the statement"):

        @claim("a draft", "Lemma 9", n=st.just(0))
        def silent(n):
            return 0, 0

    refuses("decorate the function first", check_claim, lambda n: (0, 0))


def test_cases_in_words():
    graph = nx.Graph([(0, 1)])
    graph.add_node(2)
    assert describe(graph) == "{0-1, 2}"
    assert (
        describe({"W": np.array([[2 / 3, 1 / 3]]), "x": math.pi, "y": -0.125})
        == "W = [[2/3, 1/3]], x = 3.14159, y = -1/8"
    )
    assert describe([True, None, math.inf, np.int64(3)]) == "[True, None, inf, 3]"


MODULE = '''
import pytest
from hypothesis import strategies as st
from mfdl.testing import claim
from {other} import imported


@pytest.mark.claim(n=st.integers(0, 9))
def test_marked_and_true(n):
    """Squares are at most nine times their root."""
    return 9 * n, n * n


@pytest.mark.claim(n=st.integers(0, 99))
def test_marked_and_false(n):
    """Squares are at most nine times their root."""
    return 9 * n, n * n


@pytest.mark.skip(reason="not today")
@pytest.mark.claim(n=st.integers(0, 99))
def test_skipped(n):
    """Squares are at most nine times their root."""
    return 9 * n, n * n


@claim("a draft", "Lemma 1", n=st.integers(0, 99), expect="refuted")
def known_to_fail(n):
    """Squares are at most nine times their root."""
    return 9 * n, n * n


def test_plain():
    assert True
'''
OTHER = '''
from hypothesis import strategies as st
from mfdl.testing import claim


@claim("a draft", "Lemma 2", n=st.integers(0, 99))
def imported(n):
    """Fails where it stands, not where it is imported."""
    return 0, n
'''


@pytest.mark.slow
def test_pytest_collects_claims(tmp_path):
    (tmp_path / "test_it.py").write_text(MODULE.format(other="stated_elsewhere"), encoding="utf-8")
    (tmp_path / "stated_elsewhere.py").write_text(OTHER, encoding="utf-8")
    arguments = ["-p", "no:cacheprovider", "-v", "--strict-markers", "-W", "error", str(tmp_path)]
    code = f"import pytest; pytest.main({arguments}); pytest.main({[*arguments, '-m', 'claim']})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    output = run.stdout
    assert "1 failed, 3 passed, 1 skipped" in output, output + run.stderr
    assert "test_marked_and_false FAILED" in output
    assert "known_to_fail PASSED" in output
    assert "found: refuted by n = 10: claimed 90, true 100" in output
    assert "imported" not in output
    assert "1 failed, 2 passed, 1 skipped, 1 deselected" in output


def test_every_public_strategy_and_oracle_has_a_docstring():
    for name in strategies.__all__:
        value = getattr(strategies, name)
        assert not callable(value) or value.__doc__

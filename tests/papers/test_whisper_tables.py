"""What Whisper prints: verdicts on made-up numbers, and its own numbers."""

import pytest

from mfdl_papers.whisper import whisper_tables


def draws(ldp, pairwise, corn):
    return [{"LDP": ldp, "pairwise": pairwise, "CorN": corn, "gap": 0.0}] * 3


@pytest.mark.parametrize(
    ("says", "by_p", "verdicts"),
    [
        ({3.0: (3.1, 4), 10.0: (11, 12)}, {0.2: draws(2, 1.5, 0.5)}, ["confirmed"] * 4),
        ({3.0: (3.1, 4), 20.0: (1, 22)}, {0.2: draws(2, 1.5, 0.5), 1.0: draws(2, 1, 1.9)}, ["direction only"] * 4),
        ({30.0: (1, 33)}, {0.2: draws(2, 2.5, 3)}, ["refuted"] * 4),
    ],
)
def test_verdicts(says, by_p, verdicts):
    assert [one.verdict for one in whisper_tables.judged(says, by_p)] == verdicts


def test_the_printed_bound_says_far_too_little_and_the_second_version_too_much():
    for epsilon in (3.0, 10.0, 40.0):
        first, second = whisper_tables.printed(epsilon)
        assert first < epsilon / 10
        assert epsilon < second
    assert whisper_tables.printed(10.0)[1] == pytest.approx(11.60, abs=0.01)
    assert whisper_tables.shares(draws(2.0, 1.5, 0.05)) == pytest.approx([1.0] * 3)

"""Rounded normals: every integer against mpmath on the same random bits, and their distribution."""

import decimal
from decimal import Decimal

import mpmath
import numpy as np
import pytest
import scipy.stats
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from mfdl.errors import InvalidInput
from mfdl.training import rounded_normals
from mfdl.training.keys import NoiseKey, normals
from mfdl.training.rounded_normals import RoundedNormals, rounded, upper_tail

KEY = NoiseKey(bytes(range(32)))
WORD = st.integers(0, 2**64 - 1) | st.integers(0, 64).map(lambda bits: 2**bits - 1)
MORE = st.integers(0, 2**512 - 1)
SCALE = st.floats(-10, 40).map(lambda exponent: 2.0**exponent)


def nearest(word, more, scale):
    """The nearest integer to scale z, in 200 digits: bisection of integers by the tail of their upper edges."""
    with mpmath.workdps(200):
        tail = mpmath.mpf(max(1, ((word >> 1) << 512) + more)) / mpmath.mpf(2) ** 576
        low, high = 0, int(40 * scale) + 1
        while low < high:
            middle = (low + high) // 2
            edge = (mpmath.mpf(middle) + mpmath.mpf(1) / 2) / mpmath.mpf(scale)
            low, high = (low, middle) if tail >= mpmath.ncdf(-edge) else (middle + 1, high)
    return -low if word & 1 else low


@examples(60)
@given(st.lists(st.tuples(WORD, MORE), min_size=1, max_size=4), SCALE)
def test_integers_are_the_nearest_to_real_normals(bits, scale):
    words = np.array([word for word, _ in bits], dtype=np.uint64)
    integers = rounded(words, scale, lambda place: bits[place][1])
    assert integers.tolist() == [nearest(word, more, scale) for word, more in bits]


@examples(40)
@given(edge=st.integers(0, 2**18), scale=st.floats(15, 30).map(lambda exponent: 2.0**exponent), beyond=st.booleans())
def test_bits_that_end_next_to_an_edge_are_decided_by_the_last_of_them(edge, scale, beyond):
    with mpmath.workdps(200):
        tail = mpmath.ncdf(-(mpmath.mpf(edge) + mpmath.mpf(1) / 2) / mpmath.mpf(scale)) * mpmath.mpf(2) ** 576
        bits = int(mpmath.floor(tail)) + (0 if beyond else 1)
    word, more = divmod(bits, 2**512)
    (integer,) = rounded(np.array([2 * word], dtype=np.uint64), scale, lambda _: more)
    assert integer == edge + beyond


@pytest.mark.parametrize("scale", [0.0, 0.3, 2.0**20])
def test_floats_decide_as_the_decimals_would(scale, monkeypatch):
    row = RoundedNormals(KEY).row(3, 200, scale)
    monkeypatch.setattr(rounded_normals, "_ERROR", 1.0)
    monkeypatch.setattr(rounded_normals, "_SURE", -1.0)
    again = RoundedNormals(KEY).row(3, 200, scale)
    assert row.tolist() == again.tolist()
    assert scale or not row.any()


@examples(60)
@given(
    x=st.integers(0, 30 * 2**20).map(lambda numerator: Decimal(numerator) / 2**20), digits=st.sampled_from([60, 240])
)
def test_tails_have_the_stated_error(x, digits):
    with decimal.localcontext(prec=digits):
        tail = upper_tail(x)
    with mpmath.workdps(digits + 30):
        assert abs(mpmath.mpf(str(tail)) - mpmath.ncdf(-mpmath.mpf(str(x)))) < mpmath.mpf(10) ** (6 - digits)


def test_ndtri_has_the_assumed_error():
    """At 300 tails of all sizes, an error 16 times below the assumption."""
    rng = np.random.default_rng(0)
    tails = np.concatenate([rng.uniform(0, 0.5, 150), 2.0 ** rng.uniform(-576, -1, 150)])
    for tail, z in zip(tails.tolist(), -rounded_normals.ndtri(tails), strict=True):
        with mpmath.workdps(40):
            edge = mpmath.mpf(z)
            exact = edge + (mpmath.ncdf(-edge) - mpmath.mpf(tail)) / mpmath.npdf(edge)  # a step of Newton's method
            assert abs(exact - edge) < mpmath.mpf(2) ** -50 * max(1.0, z)


@pytest.mark.parametrize("scale", [0.4, 3.0])
def test_integers_have_the_distribution_of_a_rounded_normal(scale):
    size = 100_000
    row = RoundedNormals(KEY).row(0, size, scale)
    reach = int(3.5 * scale) + 1
    counts = np.array([(row == k).sum() for k in range(-reach, reach + 1)])
    edges = (np.arange(-reach, reach + 2) - 0.5) / scale
    expected = size * np.diff(scipy.stats.norm.cdf(edges))
    counts, expected = np.append(counts, size - counts.sum()), np.append(expected, size - expected.sum())
    assert 1e-6 < scipy.stats.chisquare(counts, expected).pvalue < 1 - 1e-6


def test_rows_depend_on_key_step_and_coordinate_alone():
    row = RoundedNormals(KEY).row(1, 50, 1e6)
    assert row[:20].tolist() == RoundedNormals(KEY).row(1, 20, 1e6).tolist()
    others = [RoundedNormals(KEY).row(2, 50, 1e6), RoundedNormals(KEY.derive(1)).row(1, 50, 1e6)]
    assert len(np.unique(np.concatenate([row, *others]))) == 150
    same_key = normals(KEY, 1, [0], 50)[0]
    assert 5 < (np.sign(same_key) == np.sign(row)).sum() < 45  # other random bits than those of float normals


def test_pieces_do_not_change_a_row(monkeypatch):
    row = RoundedNormals(KEY).row(1, 100, 2.0**40)
    monkeypatch.setattr(rounded_normals, "PIECE", 7)
    assert row.tolist() == RoundedNormals(KEY).row(1, 100, 2.0**40).tolist()


def test_refusals():
    for scale in (-1.0, 2.0**41, float("nan")):
        with pytest.raises(InvalidInput, match=r"scale must lie in \[0, 2\^40\].*coarser grid"):
            RoundedNormals(KEY).row(0, 2, scale)
    refuses("dim must be at most", lambda: RoundedNormals(KEY).row(0, 2**32 + 1, 1.0))

"""Ranks modulo two primes against rational arithmetic, on floats of any size."""

import flint
import numpy as np
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from mfdl.entries import has_few_bits
from mfdl.privacy import exact_arithmetic
from mfdl.privacy.exact_arithmetic import PRIMES, range_of
from mfdl.testing import oracles


@st.composite
def matrices(draw):
    """Low rank as floats, entries of any size, and rows that differ in their last bits."""
    rows, columns, width = draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    B = rng.integers(-3, 4, (rows, width)) @ rng.integers(-3, 4, (width, columns)).astype(float)
    B = B * 2.0 ** rng.integers(-60, 61, (rows, 1)) * 2.0 ** rng.integers(-60, 61, (1, columns))
    if draw(st.booleans()):
        B[rng.integers(rows)] *= 1 + 2.0**-52
    if draw(st.booleans()):
        B = np.where(rng.random(B.shape) < 0.2, rng.normal(size=B.shape), B)
    mixed = B @ rng.integers(-2, 3, (columns, 2))
    return B, np.where(rng.random(mixed.shape) < 0.2, rng.normal(size=mixed.shape), mixed)


@examples(150)
@given(matrices())
def test_rank_and_range_are_those_over_the_rationals(case):
    B, A = case
    found, outside = range_of(B, A)
    assert found == oracles.rank(oracles.rational(B))
    assert outside.tolist() == oracles.exact_leaks(oracles.rational(A), oracles.rational(B))


def test_a_prime_that_divides_is_outvoted(monkeypatch):
    """Modulo 3 this matrix has rank 1: the other prime tells, and a doubtful column counts as a leak."""
    B = np.array([[1.0, 1.0], [1.0, 4.0]])
    monkeypatch.setattr(exact_arithmetic, "PRIMES", (3, PRIMES[0]))
    found, outside = range_of(B, np.eye(2))
    assert found == 2
    assert outside.all()
    monkeypatch.setattr(exact_arithmetic, "PRIMES", (3, 5))  # [3, 1] is in the range of [0, 1] modulo 3 only
    assert range_of(np.array([[0.0], [1.0]]), np.array([[3.0], [1.0]]))[1].all()


def test_primes_are_primes():
    assert all(flint.fmpz(p).is_prime() and 2**62 <= p < 2**63 for p in PRIMES)
    assert len(set(PRIMES)) == 2


def test_an_empty_matrix_has_no_rank():
    assert range_of(np.zeros((0, 3)), np.zeros((0, 2)))[0] == 0
    assert range_of(np.zeros((2, 0)), np.eye(2))[1].all()


@examples(100)
@given(st.floats(-1e30, 1e30), st.integers(-(2**24), 2**24), st.integers(-100, 100))
def test_few_bits_are_those_of_single_precision(x, whole, power):
    assert has_few_bits(np.array([whole * 2.0**power]))
    if abs(x) > 1e-30:
        assert has_few_bits(np.array([x])) == (float(np.float32(x)) == x)

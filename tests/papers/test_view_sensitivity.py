"""Algorithm 3 and what the proof of Theorem 7 does with it, against fractions."""

from __future__ import annotations

import numpy as np
from effort import examples
from hypothesis import given
from numpy.testing import assert_allclose
from refusals import refuses

from mfdl import gossip
from mfdl.privacy import exact_arithmetic
from mfdl.testing import gossip_messages, oracles, rational, received, strategies, without_noise
from mfdl_papers import greedy_rows, reduce_view

FULL = ("regular", "rank-deficient")


@given(strategies.integer_views(max_rows=7, max_noise=4, largest=1))
@examples(150)
def test_rows_kept_by_any_time_are_a_basis_of_what_was_seen_by_then(case):
    """Every prefix: as many rows as the rank over the rationals, and those rows span it."""
    _, B = case
    rows = greedy_rows(B)
    assert (np.diff(rows) > 0).all()
    for k in range(1, len(B) + 1):
        inside = rows[rows < k]
        assert len(inside) == oracles.rank(rational(B[:k]))
        assert not len(inside) or oracles.rank(rational(B[inside])) == len(inside)


@given(strategies.views(kinds=FULL, max_rows=5))
@examples(150)
def test_what_is_left_has_the_gram_of_the_view_and_standard_noise(view):
    A, B = view.dense_gradients_by_time(), view.dense_noise()
    reduced = reduce_view(A, B)
    L, Q, S = reduced.triangle, reduced.projection, reduced.signal
    assert_allclose(L @ Q, B[reduced.rows], atol=1e-9)
    assert_allclose(L @ S, A[reduced.rows], atol=1e-9)
    assert_allclose(Q @ Q.T, np.eye(len(L)), atol=1e-12)
    assert not np.triu(L, 1).any()
    assert (np.diag(L) > 0).all()
    onto_rows = oracles.to_float(oracles.exact_view_gram(rational(B), rational(B)))  # B^T (B B^T)^+ B = B^+ B
    assert_allclose(Q.T @ Q, onto_rows, atol=1e-9)
    gram = oracles.to_float(oracles.exact_view_gram(rational(A), rational(B)))
    assert_allclose(S.T @ S, gram, rtol=1e-7, atol=1e-7 * max(1.0, np.abs(gram).max()))


@given(strategies.connected_graphs(min_nodes=2, max_nodes=5))
@examples(40)
def test_what_one_node_hears_is_undone_in_the_order_of_time(graph):
    """Its messages depend on each other once its own noise is known; S of a step has nothing of later gradients."""
    W, n, T = gossip.metropolis_hastings(graph), len(graph), 3
    messages, _ = gossip_messages(W, T)
    seen = received(W, T, [0], self_messages=True)
    attacker_columns = {t * n for t in range(T)}
    rows = messages[seen.ravel()]
    A, B = without_noise(rows, attacker_columns), without_noise(rows, attacker_columns)
    reduced = reduce_view(A, B)
    assert len(reduced.rows) < len(B)
    time_of_row, time_of_column = np.nonzero(seen)[0][reduced.rows], np.arange(T * n) // n
    assert not reduced.signal[time_of_column[None, :] > time_of_row[:, None]].any()
    assert_allclose(reduced.signal, reduced.projection, atol=1e-9)  # C = I


@given(strategies.views(kinds=("leaking",), max_rows=5))
@examples(40)
def test_a_view_that_leaks_has_no_reduction(view):
    A, B = view.dense_gradients_by_time(), view.dense_noise()
    leaks = np.array(oracles.exact_leaks(rational(A), rational(B)))
    refuses(f"got column {int(leaks.argmax())} outside of it", reduce_view, A, B)
    if not leaks.all():
        reduce_view(A[:, ~leaks], B)


def test_rows_that_nearly_depend_are_refused():
    refuses("rounding decides here", reduce_view, np.eye(2), [[2**0.5, 1.0], [2**0.5, 1.0 + 1e-12]])
    # weights of thirds stand for thirds: the second row is the first one's third, though no float is
    assert greedy_rows([[0.1, 1.0], [0.1 / 3, 1 / 3]]).tolist() == [0]


def test_a_prime_that_divides_is_outvoted(monkeypatch):
    monkeypatch.setattr(exact_arithmetic, "PRIMES", (3, exact_arithmetic.PRIMES[0]))
    assert greedy_rows([[3, 0], [1, 0], [0, 1]]).tolist() == [0, 2]  # modulo 3 the first row is nothing
    monkeypatch.setattr(exact_arithmetic, "PRIMES", (exact_arithmetic.PRIMES[1], 3))
    assert greedy_rows([[3, 0], [1, 0], [0, 1]]).tolist() == [0, 2]


def test_no_noise_and_other_shapes():
    nothing = reduce_view(np.zeros((2, 3)), np.zeros((2, 4)))
    assert nothing.signal.shape == (0, 3)
    assert nothing.projection.shape == (0, 4)
    refuses("as many rows", reduce_view, np.eye(2), np.eye(3))
    refuses("at most 500000 entries", greedy_rows, np.zeros((1000, 501)))

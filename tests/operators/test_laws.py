"""The laws every operator obeys, for all but noise (tests/noise); recursions with random maps against dense ones."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import settings
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import given, refuses, st

from mfdl.operators import Kronecker, OutputRecursion, RecursionMaps, Selection, StateRecursion

SIZES = [(4, 3), (1, 3), (4, 1), (1, 1)]  # (T, n)


def stochastic(rng, n):
    W = rng.random((n, n)) * (rng.random((n, n)) < 0.7) + np.eye(n)
    return W / W.sum(axis=1, keepdims=True)


def kronecker(rng, T, n):
    L, R = rng.standard_normal((T + 1, T)), rng.standard_normal((n, n + 2))
    return Kronecker(L, R), np.kron(L, R)


def kronecker_sparse(rng, T, n):
    L, R = rng.standard_normal((T, T)), stochastic(rng, n)
    return Kronecker(sp.csr_array(np.tril(L)), sp.csr_array(R)), np.kron(np.tril(L), R)


def selection(rng, T, n):
    rows = rng.integers(0, T * n, size=T * n + 1)  # one row at least comes twice
    return Selection(rows, T * n), np.eye(T * n)[rows]


def selection_of_nothing(rng, T, n):
    return Selection([], T * n), np.zeros((0, T * n))


def recursion(rng, T, n):
    """Constant maps: y = P s + x, s' = K y + F s; block (t, s) = P (K P + F)^(t-s-1) K below the diagonal."""
    P, K, F = (0.4 * rng.standard_normal((n, n)) for _ in range(3))
    maps = [RecursionMaps(sp.csr_array(P), sp.csr_array(np.eye(n)), sp.csr_array(K), sp.csr_array(F))] * T
    dense = np.eye(T * n)
    for t in range(T):
        for s in range(t):
            block = P @ np.linalg.matrix_power(K @ P + F, t - s - 1) @ K
            dense[t * n : (t + 1) * n, s * n : (s + 1) * n] = block
    return OutputRecursion(maps, input_size=n, out_size=n, state_size=n), dense


def recursion_of_models(rng, T, n):
    """s' = F s + J x, models M s: block (t, s) = M F^(t-s-1) J below the diagonal."""
    M, F, J = rng.standard_normal((n + 1, n)), 0.5 * rng.standard_normal((n, n)), rng.standard_normal((n, n))
    maps = [RecursionMaps(None, None, None, sp.csr_array(F), sp.csr_array(J))] * T
    dense = np.zeros((T * (n + 1), T * n))
    for t in range(T):
        for s in range(t):
            dense[t * (n + 1) : (t + 1) * (n + 1), s * n : (s + 1) * n] = M @ np.linalg.matrix_power(F, t - s - 1) @ J
    sizes = {"input_size": n, "out_size": 0, "state_size": n}
    return StateRecursion(maps, **sizes, model_from_state=sp.csr_array(M)), dense


CASES = [kronecker, kronecker_sparse, selection, selection_of_nothing, recursion, recursion_of_models]


@pytest.mark.parametrize("make", CASES)
def test_operator_laws(make):
    close = {"rtol": 1e-12, "atol": 1e-12}  # entries are of order one, sums of at most a few dozen
    for T, n in SIZES:
        rng = np.random.default_rng([T, n])
        op, dense = make(rng, T, n)
        assert op.shape == dense.shape
        assert op.dtype == np.float64
        assert_allclose(op.to_dense(), dense, **close)
        assert_allclose(op.T @ np.eye(dense.shape[0]), dense.T, **close)
        x, other, y = (rng.standard_normal(op.shape[axis]) for axis in (1, 1, 0))
        assert_allclose(op @ x, dense @ x, **close)
        assert_allclose(y @ (op @ x), (op.T @ y) @ x, **close)  # adjoint law
        assert_allclose(op.H @ y, op.T @ y, **close)
        assert_allclose(op @ (2 * x - 3 * other), 2 * (op @ x) - 3 * (op @ other), **close)
        for columns in (0, 1, 5):  # many columns are the single ones, and the input is left alone
            for product, matrix in ((op, dense), (op.T, dense.T)):
                X = rng.standard_normal((matrix.shape[1], columns))
                before = X.copy()
                out = product @ X
                assert out.shape == (matrix.shape[0], columns)
                for c in range(columns):
                    assert_allclose(out[:, c], product @ X[:, c], rtol=1e-13, atol=1e-13)
                assert not np.shares_memory(out, X)
                assert_array_equal(X, before)


FIELDS = ("out_from_state", "out_from_input", "state_from_out", "state_from_state", "state_from_input")


@st.composite
def recursions(draw):
    """(sizes, one dict of dense maps per step, model map); a map may be absent, sizes differ."""
    T, inputs, outs, states, models = (draw(st.integers(1, 4)) for _ in range(5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = [(outs, states), (outs, inputs), (states, outs), (states, states), (states, inputs)]
    shapes = dict(zip(FIELDS, sizes, strict=True))
    absent = draw(st.lists(st.tuples(st.integers(0, T - 1), st.sampled_from(FIELDS)), max_size=4))
    steps = [
        {name: None if (t, name) in absent else rng.integers(-2, 3, shape) / 2 for name, shape in shapes.items()}
        for t in range(T)
    ]
    sizes = {"input_size": inputs, "out_size": outs, "state_size": states}
    return sizes, steps, rng.integers(-2, 3, (models, states)).astype(float)


def times(matrix, x):
    return 0.0 if matrix is None else matrix @ x


def unrolled(sizes, steps):
    """Dense (outputs <- inputs) and all states s_0..s_T <- inputs, by carrying the matrix of the state."""
    T, width = len(steps), sizes["input_size"]
    state = np.zeros((sizes["state_size"], T * width))
    outs, states = [], [state]
    for t, step in enumerate(steps):
        P, Q, K, F, J = (step[name] for name in FIELDS)
        picks = np.zeros((width, T * width))
        picks[:, t * width : (t + 1) * width] = np.eye(width)
        out = np.zeros((sizes["out_size"], T * width)) + times(P, state) + times(Q, picks)
        state = np.zeros_like(state) + times(K, out) + times(F, state) + times(J, picks)
        outs.append(out)
        states.append(state)
    return np.vstack(outs), states


def as_maps(steps):
    return [
        RecursionMaps(**{name: None if m is None else sp.csr_array(m) for name, m in step.items()}) for step in steps
    ]


@settings(deadline=None)
@given(case=recursions())
def test_outputs_match_the_unrolled_matrix(case):
    sizes, steps, _ = case
    expected, _ = unrolled(sizes, steps)
    op = OutputRecursion(as_maps(steps), **sizes)
    # halves of small integers through at most four steps: exact in float64
    assert_allclose(op.to_dense(), expected, rtol=0, atol=0)
    assert_allclose(op.T @ np.eye(op.shape[0]), expected.T, rtol=0, atol=0)


@settings(deadline=None)
@given(case=recursions(), final=st.booleans())
def test_models_match_the_unrolled_matrix(case, final):
    sizes, steps, model = case
    _, states = unrolled(sizes, steps)
    expected = model @ states[-1] if final else np.vstack([model @ s for s in states[:-1]])
    op = StateRecursion(as_maps(steps), **sizes, model_from_state=sp.csr_array(model), final=final)
    assert op.shape == expected.shape
    assert_allclose(op.to_dense(), expected, rtol=0, atol=0)
    assert_allclose(op.T @ np.eye(op.shape[0]), expected.T, rtol=0, atol=0)


def test_selection_keeps_rows_in_order_and_refuses_what_is_no_index():
    assert (Selection([2, 0, 2], 3) @ np.array([10.0, 11.0, 12.0])).tolist() == [12.0, 10.0, 12.0]
    refuses(r"indices must lie in \[0, 3\), got 3", Selection, [0, 3], 3)
    refuses(r"indices must lie in \[0, 3\), got -1", Selection, [-1], 3)
    refuses("indices must be integers, got bool; use ", Selection, [True, False, True], 3)  # as integers: rows 1, 0, 1
    refuses("indices must be integers, got float64", Selection, [0.7], 3)

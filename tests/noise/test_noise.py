"""The laws of every noise: products, cuts, questions and content against its definition; what is refused."""

import numpy as np
import pytest
import scipy.sparse as sp
from noises import OwnNoise, cases
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import each, given, refuses, st, unsupported

from mfdl.noise import CausalNoise, IndependentNoise, JointNoise, LocalNoise, SpatioTemporalNoise, StepNoise, ZeroNoise
from mfdl.testing import encoders

CLOSE = {"rtol": 1e-10, "atol": 1e-10}  # inverses of at most 16 steps, entries below 1.5^16 = 660
C, F, OWN, ALL = np.array([[1.0, 0.0], [-0.5, 2.0]]), np.array([[1.0, 2.0], [0.0, -1.0]]), np.eye(2), np.ones((2, 2))


@given(200, case=cases(), width=st.integers(0, 3), seed=st.integers(0, 99))
def test_products_and_what_is_read_off_them(case, width, seed):
    noise, dense = case
    T, rng = noise.num_steps, np.random.default_rng(seed)
    assert (noise.shape, noise.dtype) == (dense.shape, np.float64)
    assert (noise.slots_per_step * T, noise.columns_per_step * T) == dense.shape
    X, Y = rng.standard_normal((dense.shape[1], width)), rng.standard_normal((dense.shape[0], width))
    for product, given_, wanted in (
        (noise.matmat, X, dense @ X),
        (noise.rmatmat, Y, dense.T @ Y),
        (noise.absolute_rmatmat, Y, np.abs(dense).T @ Y),
    ):
        before = given_.copy()
        result = product(given_)
        assert_allclose(result, wanted, **CLOSE)
        result *= 0
        assert_array_equal(given_, before)  # neither changed nor shared
    for c in range(width):
        assert_allclose(noise @ X[:, c], dense @ X[:, c], **CLOSE)
        assert_allclose(noise.T @ Y[:, c], dense.T @ Y[:, c], **CLOSE)
    assert_allclose(noise.variances(), (dense**2).sum(axis=1).reshape(T, -1), **CLOSE)
    blocks = noise.to_dense().reshape(T, noise.slots_per_step, T, noise.columns_per_step)
    assert not any(blocks[t, :, t + 1 :].any() for t in range(T))  # no base noise of a later step, exactly
    used = (blocks != 0).any(axis=(0, 2))
    assert (noise.pattern().toarray() >= used).all()
    assert noise.holders().shape == (noise.columns_per_step, noise.num_nodes)
    if noise.causal is not None:
        assert_array_equal(noise.pattern().toarray(), used)  # the diagonals of encoders are positive
    sizes = [np.abs(part[part != 0]) for part in noise.factors()]
    if dense.any() and all(part.size for part in sizes):
        entries = np.abs(blocks[blocks != 0])
        assert np.prod([part.min() for part in sizes]) <= entries.min() * (1 + 1e-12)
        assert np.prod([part.max() for part in sizes]) >= entries.max() * (1 - 1e-12)


@given(120, case=cases(), data=st.data())
def test_a_cut_is_these_rows_and_all_columns_that_they_use(case, data):
    noise, dense = case
    T, width = noise.num_steps, noise.slots_per_step
    slots = data.draw(st.none() | st.lists(st.integers(0, width - 1), unique=True))
    columns, part = noise.cut(slots)
    rows = list(range(width)) if slots is None else slots
    wanted = dense.reshape(T, width, T, noise.columns_per_step)[:, rows]
    assert_allclose(part.to_dense(), wanted[..., columns].reshape(part.shape), **CLOSE)
    assert_allclose(part.T.matmat(np.eye(part.shape[0])), part.to_dense().T, **CLOSE)
    assert_allclose(part.variances(), (wanted**2).sum(axis=(2, 3)), **CLOSE)
    assert not np.delete(wanted, columns, axis=3).any()
    assert_array_equal(part.holders().toarray(), noise.holders().toarray()[columns])
    if noise.causal is not None and noise.causal.factor is not None:
        assert wanted[..., columns].any(axis=(0, 1, 2)).all()
    assert_allclose(noise.to_dense(), dense, **CLOSE)  # left as it was
    if rows:
        _, last = part.cut([len(rows) - 1])  # of a cut
        assert_allclose(last.variances(), (wanted[:, -1:] ** 2).sum(axis=(2, 3)), **CLOSE)


@given(80, case=cases(), data=st.data())
def test_scaled_noise_is_that_noise_times_a_number_at_each_slot(case, data):
    noise, dense = case
    numbers = st.sampled_from([1.0, 0.5, 3.0])
    slots = np.array(data.draw(st.lists(numbers, min_size=(n := noise.slots_per_step), max_size=n)))
    if isinstance(noise, OwnNoise):
        unsupported("cannot be given another scale", noise.scaled, slots)
        return
    scaled = noise.scaled(slots)
    assert_allclose(scaled.to_dense(), np.tile(slots, noise.num_steps)[:, None] * dense, **CLOSE)
    assert_array_equal(scaled.holders().toarray(), noise.holders().toarray())
    if noise.local:
        assert scaled.local
        assert_array_equal(scaled.node_scales, noise.node_scales * slots)
    if scaled.content() == noise.content():
        assert_array_equal(scaled.to_dense(), noise.to_dense())


def test_a_structure_cannot_have_products_of_its_own():
    for kind in (LocalNoise, JointNoise):
        refuses("must not change _matmat.*subclass", type, "Other", (kind,), {"_matmat": lambda self, X: X})


def causal(*parts):
    return CausalNoise(*parts, num_steps=2, num_nodes=2)


# kind: (by its own name, by CausalNoise, (fresh, local))
NAMED = {
    "ZeroNoise": (ZeroNoise(2, 2), causal(None, np.zeros((2, 0)), np.zeros((0, 2))), (True, False)),
    "IndependentNoise": (IndependentNoise(2, 2), causal(None, None, OWN), (True, True)),
    "LocalNoise": (LocalNoise(C, 2), causal(C), (False, True)),
    "StepNoise": (StepNoise(F, ALL, 2, 2), causal(None, sp.csr_array(F), sp.csr_array(ALL)), (True, False)),
    "SpatioTemporalNoise": (SpatioTemporalNoise(C, F, ALL, 2), causal(C, sp.csr_array(F), ALL), (False, False)),
}


@pytest.mark.parametrize("kind", NAMED)
def test_names_are_one_class_and_answer_for_themselves(kind):
    named, general, answers = NAMED[kind]
    assert named.content() == general.content()
    assert_array_equal(named.to_dense(), general.to_dense())
    for noise in (named, general):
        assert noise.kind == kind
        assert (noise.fresh, noise.local) == answers
        assert noise.is_zero == (kind == "ZeroNoise")
        assert noise.causal is noise
        assert noise.joint is None
        assert noise.shared


def test_other_noises_answer_too():
    joint, local = JointNoise(np.eye(4), 2, 2), OwnNoise(2, 2)
    assert (joint.joint, local.joint, joint.kind, local.kind) == (joint.encoder, None, "JointNoise", "OwnNoise")
    assert joint.holders().toarray().all()
    for noise in (joint, local):
        assert (noise.causal, noise.fresh, noise.local, noise.is_zero) == (None, False, False, False)


def test_parts_of_columns():
    """One encoder for all, one each, none: `column_encoder`, `column_inverse` and the matrix agree."""
    alike, without = LocalNoise(np.stack([C, C]), 2), IndependentNoise(2, 2)
    assert not alike.shared
    assert_allclose(alike.to_dense(), LocalNoise(C, 2).to_dense())
    assert_allclose(JointNoise(np.kron(C, np.eye(2)), 2, 2).to_dense(), alike.to_dense())
    assert_allclose(SpatioTemporalNoise(C, OWN, OWN, 2).to_dense(), alike.to_dense())
    for noise in (alike, LocalNoise(C, 2)):
        assert_array_equal(noise.column_encoder(1), C)
        assert_allclose(noise.column_inverse(1), np.linalg.inv(C))
    assert_array_equal(without.column_encoder(0), np.eye(2))
    assert_array_equal(without.column_inverse(0), np.eye(2))
    assert (without.encoder.array, without.inverse, without.factor) == (None, None, None)


def test_own_noise_may_have_any_holders_without_a_factor():
    both = causal(C, None, ALL)
    assert not both.local
    assert both.content() != LocalNoise(C, 2).content()
    assert_array_equal(both.to_dense(), LocalNoise(C, 2).to_dense())
    refuses(r"factor\[0, 0\] = 1 while node 0 does", causal, None, None, 1 - OWN)


def test_content_tells_encoder_factor_and_holders_apart():
    holders = np.eye(3, dtype=bool)
    noises = [
        *(named for named, _, _ in NAMED.values()),
        *(LocalNoise(2 * np.eye(2), 3), IndependentNoise(3, 2), StepNoise(2 * np.eye(3), holders, 2, 3)),
        *(SpatioTemporalNoise(scale * np.eye(2), np.eye(3), holders, 3) for scale in (1, 2)),
        SpatioTemporalNoise(np.eye(2), 2 * np.eye(3), holders, 3),
        SpatioTemporalNoise(np.eye(2), np.eye(3), np.ones((3, 3), dtype=bool), 3),
        SpatioTemporalNoise(np.stack([np.eye(2)] * 3), np.eye(3), holders, 3),
        *(JointNoise(scale * np.eye(6), 2, 3) for scale in (1, 2)),
        *(OwnNoise(2, n) for n in (2, 3)),
    ]
    assert len({(noise.kind, noise.shape, noise.content()) for noise in noises}) == len(noises)


def test_entries_given_twice_add_up():
    twice = sp.csr_array((np.array([1.0, 2.0, 1.0]), np.array([0, 0, 1]), np.array([0, 2, 3])), shape=(2, 2))
    assert twice.nnz == 3
    noise = SpatioTemporalNoise(np.eye(1), twice, np.eye(2, dtype=bool), 2)
    assert_array_equal(noise.to_dense(), np.diag([3.0, 1.0]))
    assert_array_equal(noise.variances(), [[9.0, 1.0]])


def test_encoders_are_own_read_only_copies():
    encoder = np.eye(2)
    noises = [LocalNoise(encoder, 1), SpatioTemporalNoise(encoder, OWN, OWN, 2), JointNoise(encoder, 2, 1)]
    encoder[1, 0] = 5
    for noise in noises:
        assert noise.encoder.array[1, 0] == 0
        for array in (noise.encoder.array, noise.inverse):
            with pytest.raises(ValueError, match="read-only"):
                array[0, 0] = 2


LATE = [[1.0, 0.1], [0.0, 1.0]]
REFUSED = [
    (lambda: LocalNoise(LATE, 2), "encoder must be causal"),
    (lambda: LocalNoise([[1.0, 0.0], [3.0, 0.0]], 2), "positive diagonal, got 0 at index .1, 1.[.]"),
    (lambda: LocalNoise([[-1.0, 0.0], [0.0, 1.0]], 2), "positive diagonal, got -1 at index .0, 0.[.]"),
    (lambda: LocalNoise(np.stack([OWN, np.diag([1.0, -2.0])]), 2), "got -2 at index .1, 1, 1.[.]"),
    (lambda: LocalNoise([1.0, 2.0], 2), r"shape \(T, T\) or \(n, T, T\), got \(2,\)"),
    (lambda: LocalNoise(1.0, 2), r"shape \(T, T\) or \(n, T, T\), got \(\)"),
    (lambda: LocalNoise([[1.0, 0.0]], 2), r"shape \(T, T\) or \(2, T, T\), got \(1, 2\)"),
    (lambda: LocalNoise(np.stack([OWN] * 3), 2), r"or \(2, T, T\), got \(3, 2, 2\)"),
    (lambda: LocalNoise([[1.0, 0.0], [np.nan, 1.0]], 2), "encoder must be finite"),
    (lambda: LocalNoise(np.stack([OWN, LATE]), 2), "encoder must be causal"),
    (lambda: SpatioTemporalNoise(LATE, OWN, OWN, 2), "encoder must be causal"),
    (lambda: SpatioTemporalNoise(np.stack([OWN, -OWN]), OWN, OWN, 2), "got -1 at index .1, 0, 0.[.]"),
    (lambda: SpatioTemporalNoise(np.stack([OWN] * 3), OWN, OWN, 2), r"or \(2, T, T\), got \(3, 2, 2\)"),
    (lambda: SpatioTemporalNoise(OWN, np.eye(3), np.eye(3), 2), r"factor must have shape \(2, columns\)"),
    (lambda: SpatioTemporalNoise(OWN, np.zeros((2, 0)), np.zeros((0, 2)), 2), "at least one column"),
    (lambda: SpatioTemporalNoise(OWN, OWN, np.ones((2, 3)), 2), r"holders must have shape \(2, 2\), got \(2, 3\)"),
    (lambda: SpatioTemporalNoise(OWN, [[1.0, np.nan], [0.0, 1.0]], ALL, 2), "factor must be finite"),
    (lambda: SpatioTemporalNoise(OWN, [[1.0, 0.5], [0.0, 1.0]], OWN, 2), r"factor\[0, 1\] = 0.5 while node 0 does"),
    (lambda: StepNoise(F, OWN, 2, 2), r"factor\[0, 1\] = 2 while node 0 does not hold column 1"),
    (lambda: StepNoise(F, ALL, 0, 2), "num_steps must be an integer >= 1, got 0"),
    (lambda: IndependentNoise(2, 0), "num_nodes must be an integer >= 1, got 0"),
    (lambda: ZeroNoise(2, 0.5), "num_nodes must be an integer"),
    (lambda: CausalNoise(OWN, num_steps=3, num_nodes=2), r"encoder must be over 3 steps, got shape \(2, 2\)"),
    (lambda: JointNoise(np.eye(3), 2, 2), r"shape \(4, 4\) for 2 steps x 2 nodes, got \(3, 3\)"),
    (lambda: JointNoise(np.eye(4) + np.eye(4, k=1), 2, 2), "encoder must be causal"),
    (lambda: JointNoise(np.diag([1.0, 1.0, 1.0, 0.0]), 2, 2), "got 0 at index .3, 3.[.]"),
    (lambda: JointNoise(np.full((4, 4), np.inf), 2, 2), "encoder must be finite"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_refusals(make, message):
    refuses(message, make)


def test_joint_noise_that_is_too_large_is_refused_before_it_is_made():
    unsupported(r"4096, got 4097 \* 1 = 4097", JointNoise, np.eye(1), 4097, 1)


@pytest.mark.parametrize("encoder", ["abc", b"abc", ["abc", "abcd"], object()])
@each(
    "build",
    lambda encoder: LocalNoise(encoder, 3),
    lambda encoder: CausalNoise(encoder, num_steps=3, num_nodes=3),
    lambda encoder: JointNoise(encoder, 3, 3),
)
def test_an_encoder_that_is_no_array_of_numbers_is_refused_by_what_it_is(build, encoder):
    refuses("encoder must be a numeric array .*got", build, encoder)


@given(40, T=st.integers(1, 3), n=st.integers(1, 3), data=st.data())
def test_covariances(T, n, data):
    """(C^T C)^-1 (x) F F^T, and not (C C^T)^-1; the inverse of sum_k C_k^T C_k (x) g_k g_k^T; (C^T C)^-1."""
    entries = data.draw(st.lists(st.integers(-2, 2), min_size=n * n, max_size=n * n))
    F = np.array(entries, dtype=float).reshape(n, n) + 5 * n * np.eye(n)  # diagonally dominant
    C, joint = np.stack([data.draw(encoders(size=T)) for _ in range(n)]), data.draw(encoders(size=T * n))
    everybody, G = np.ones((n, n), dtype=bool), np.linalg.inv(F)
    shared, per_mode = (
        SpatioTemporalNoise(C[0], F, everybody, n).to_dense(),
        SpatioTemporalNoise(C, F, everybody, n).to_dense(),
    )
    close = {"rtol": 1e-9, "atol": 1e-9}
    assert_allclose(shared @ shared.T, np.kron(np.linalg.inv(C[0].T @ C[0]), F @ F.T), **close)
    precision = sum(np.kron(C[k].T @ C[k], np.outer(G[k], G[k])) for k in range(n))
    assert_allclose(per_mode @ per_mode.T @ precision, np.eye(T * n), **close)
    N = JointNoise(joint, T, n).to_dense()
    assert_allclose(N @ N.T @ (joint.T @ joint), np.eye(T * n), rtol=1e-6, atol=1e-6)

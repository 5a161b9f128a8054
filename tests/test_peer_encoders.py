"""Encoders of JAX Privacy and opake: the C that their papers define, sensitivities beside theirs, bad states refused.

Numbers of opake 0.16.1 (Python 3.13) are recorded here; those of JAX Privacy are computed where it is installed.
"""

import dataclasses
import json
import os
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.linalg import toeplitz
from vocabulary import each, given, refuses, st, unsupported

import mfdl
from mfdl.factorization import from_jax_privacy, from_opake
from mfdl.factorization.encoders import Banded, Buffered, Dense, Identity, Inverse, Toeplitz

T = 24
BISR = {"type": "BisrStrategy", "bandwidth": 4, "normalized": True, "momentum": 0.0, "lr_schedule": None}
numbers = st.floats(-1.0, 1.0, width=32)


def sensitivity(encoder, participation):
    """As it is accounted: of one node whose noise and gradients nobody knows."""
    algorithm = mfdl.algorithms.mf_dsgd(mfdl.Dynamics(mfdl.gossip.from_array([[1.0]])), participation, encoder)
    return mfdl.privacy.sensitivity_by_victim(algorithm, mfdl.trust.LDP())[0].sensitivity_squared ** 0.5


def separated(separation, uses):
    return mfdl.MinSeparation(T, uses, separation)


def lower(series):
    return np.tril(toeplitz(np.concatenate([series, np.zeros(T - len(series))])))


@given(st.lists(numbers, min_size=1, max_size=T - 1), st.booleans())
def test_toeplitz_coefficients_and_their_normalized_columns(tail, normalized):
    series = np.array([1.0, *tail])
    encoder = from_jax_privacy(np.float32(series), num_steps=T, column_normalized=normalized)
    expected = lower(np.float32(series).astype(float))
    if normalized:
        expected /= np.linalg.norm(expected, axis=0)
    np.testing.assert_allclose(encoder.dense(), expected, rtol=1e-14, atol=0)


@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_column_normalized_bands(width, seed):
    params = np.random.default_rng(seed).uniform(0.1, 1.0, (T, width))
    params[np.arange(T)[:, None] + np.arange(width) >= T] = 0
    expected = np.zeros((T, T))
    for s, column in enumerate(params):
        expected[s : s + width, s] = column[: T - s]
    expected /= np.linalg.norm(expected, axis=0)
    encoder = from_jax_privacy(SimpleNamespace(params=params), num_steps=T)
    assert isinstance(encoder, Banded)
    np.testing.assert_allclose(encoder.dense(), expected, rtol=1e-14, atol=0)


def test_buffers_and_arrays():
    blt = SimpleNamespace(buf_decay=np.array([0.9, 0.2]), output_scale=np.array([0.3, -0.1]))
    encoder = from_jax_privacy(blt, num_steps=T)
    assert isinstance(encoder, Buffered)
    ages = np.arange(T - 1)
    np.testing.assert_allclose(encoder.dense()[:, 0], [1.0, *(0.3 * 0.9**ages - 0.1 * 0.2**ages)], rtol=1e-14)
    C = np.tril(np.ones((T, T)))
    dense = from_jax_privacy(C, num_steps=T)
    assert isinstance(dense, Dense)
    assert (dense.dense() == C).all()


UPPER = np.ones((3, 3))
SINGULAR = np.diag([1.0, 0.0, 1.0])


@each(
    "strategy, more, refusal",
    (UPPER, {}, "causal"), (SINGULAR, {}, "diagonal"), (np.full((3, 3), np.nan), {}, "must be finite"),
    (np.eye(4), {}, "num_steps must be that of the strategy, 4, got 3"), (np.eye(3)[:2], {}, "square"),
    (np.eye(3), {"column_normalized": True}, "Toeplitz coefficients"), ([1.0, np.inf], {}, "must be finite"),
    ([0.0, 1.0], {}, "begin with a number > 0"), ([1.0, 0.5, 0.25, 0.125], {}, "at most one for each of 3 steps"),
    ({"buf_decay": [np.inf], "output_scale": [1.0]}, {}, "must be finite"),
    ({"buf_decay": [1.5], "output_scale": [1.0]}, {}, r"decays must lie in \[-1, 1\]"),
    ({"buf_decay": [0.5], "output_scale": [1.0, 2.0]}, {}, "one for each scale"),
    ({"buf_decay": [0.5], "output_scale": [1.0]}, {"column_normalized": True}, "leave it out"),
    ({"params": np.ones((3, 2))}, {}, "no steps after the last"),
    ({"params": np.zeros((3, 1))}, {}, "no column of zeros"),
    ({"params": np.ones((4, 1))}, {}, "num_steps must be that of the strategy"),
    ({"coefficients": [1.0]}, {}, "must be a BufferedToeplitz"),
    (SimpleNamespace(init_multiply=len, multiply_next=len), {}, "of a StreamingMatrix give"),
)  # fmt: skip
def test_strategies_of_jax_privacy_that_are_refused(strategy, more, refusal):
    refuses(refusal, from_jax_privacy, strategy, num_steps=3, **more)


def test_normalized_columns_of_many_coefficients_are_refused_before_they_fill_the_memory():
    many = {"num_steps": 20_000, "column_normalized": True}
    unsupported("without column_normalized", from_jax_privacy, np.ones(20_000), **many)


@pytest.fixture
def peer():
    """`jax_privacy.matrix_factorization`, in float64."""
    pytest.importorskip("jax_privacy", reason="jax_privacy is of the extra bench")
    import jax

    jax.config.update("jax_enable_x64", True)
    from jax_privacy import matrix_factorization

    return matrix_factorization


@pytest.mark.peer
@pytest.mark.slow
def test_buffers_beside_jax_privacy_there_and_back(peer):
    blt = peer.buffered_toeplitz.BufferedToeplitz.from_rational_approx_to_sqrt_x(3)
    encoder = from_jax_privacy(blt, num_steps=T)
    np.testing.assert_allclose(encoder.dense(), blt.materialize(T), atol=1e-12)
    noising = blt.inverse_as_streaming_matrix().materialize(T)
    np.testing.assert_allclose(encoder.solve(np.eye(T)), noising, atol=1e-10)
    sensitivity_of_peer = float(peer.buffered_toeplitz.sensitivity_squared(blt, T)) ** 0.5
    assert sensitivity(encoder, separated(T, 1)) == pytest.approx(sensitivity_of_peer, rel=1e-9)
    back = peer.buffered_toeplitz.BufferedToeplitz.build(buf_decay=encoder.decays, output_scale=encoder.scales)
    np.testing.assert_allclose(back.materialize(T), encoder.dense(), atol=1e-12)


@pytest.mark.peer
@pytest.mark.slow
def test_coefficients_bands_and_arrays_beside_jax_privacy(peer):
    coefficients = peer.toeplitz.optimal_max_error_strategy_coefs(8)
    columns = peer.banded.ColumnNormalizedBanded.default(T, 6)
    matrix = np.asarray(columns.materialize())
    cases = [
        (coefficients, peer.toeplitz.minsep_sensitivity_squared(coefficients, 8, 3, T) ** 0.5, separated(8, 3)),
        (columns, peer.banded.minsep_sensitivity_squared(columns, 8, 3) ** 0.5, separated(8, 3)),
        (matrix, peer.sensitivity.fixed_epoch_sensitivity(matrix, 3), mfdl.Cyclic(3, 8)),
    ]
    for strategy, sensitivity_of_peer, participation in cases:
        encoder = from_jax_privacy(strategy, num_steps=T)
        assert sensitivity(encoder, participation) == pytest.approx(float(sensitivity_of_peer), rel=1e-6)
    np.testing.assert_allclose(from_jax_privacy(columns, num_steps=T).dense(), matrix, atol=1e-12)
    noising = peer.toeplitz.inverse_as_streaming_matrix(coefficients, column_normalize_for_n=T).materialize(T)
    encoder = from_jax_privacy(coefficients, num_steps=T, column_normalized=True)
    np.testing.assert_allclose(encoder.solve(np.eye(T)), noising, atol=1e-10)


# (state, separation, uses, sensitivity that opake 0.16.1 states, relation of ours to it)
BESIDE_OPAKE = [
    ({"type": "BsrStrategy", "bandwidth": 4, "alpha": 1.0, "beta": 0.0}, 8, 3, 2.1130176880471208, "equal"),
    ({"type": "BsrStrategy", "bandwidth": 6, "alpha": 0.99, "beta": 0.5}, 4, 2, 2.4903646736167957, "equal"),
    ({**BISR, "bandwidth": 3, "normalized": False}, 8, 3, 2.185683964066333, "equal"),
    (BISR, T, 1, 1.0, "equal"),
    (BISR, 8, 3, 2.1991992357713013, "below"),
    ({**BISR, "bandwidth": 5, "momentum": 0.6}, 8, 3, 2.8144178882303477, "below"),
    ({**BISR, "bandwidth": 3, "inv_coefficients": [2.0, 0.4, -0.3]}, 4, 2, 1.4996883971487212, "below"),
    ({"type": "LambdaCgdStrategy", "lambda_": 0.7, "normalized": True}, 8, 3, 1.799176431915954, "equal"),
    ({"type": "LambdaCgdStrategy", "lambda_": 0.7, "normalized": False}, 4, 2, 2.2052517622854224, "equal"),
    ({"type": "IdentityStrategy"}, T, 1, 1.0, "equal"),
    ({"type": "IdentityStrategy"}, 8, 3, 1.0, "above"),  # 1 for any participation; three uses of C = I move sqrt(3)
]


@pytest.mark.parametrize(("state", "separation", "uses", "sensitivity_of_peer", "relation"), BESIDE_OPAKE)
def test_sensitivities_beside_those_that_opake_states(state, separation, uses, sensitivity_of_peer, relation):
    encoder = from_opake(state, num_steps=T)
    ours, C = sensitivity(encoder, separated(separation, uses)), encoder.dense()
    if relation == "equal":
        assert ours == pytest.approx(sensitivity_of_peer, rel=1e-9)
    else:
        assert ours < 0.99 * sensitivity_of_peer if relation == "below" else ours > 1.01 * sensitivity_of_peer
    worst = max(np.linalg.norm(np.abs(C)[:, steps].sum(axis=1)) for steps in separated(separation, uses).patterns())
    attained = max(np.linalg.norm(C[:, steps].sum(axis=1)) for steps in separated(separation, uses).patterns())
    assert attained * (1 - 1e-9) <= ours <= worst * (1 + 1e-9)


@given(st.integers(1, 8), st.floats(0.1, 1.0), st.floats(0.0, 0.9))
def test_square_roots_of_a_workload_and_their_inverses(width, alpha, beta):
    square = np.convolve(alpha ** np.arange(T), beta ** np.arange(T))[:T]  # alpha, beta: decay and momentum
    bsr = from_opake({"type": "BsrStrategy", "bandwidth": T, "alpha": alpha, "beta": beta}, num_steps=T)
    np.testing.assert_allclose(bsr.dense() @ bsr.dense(), lower(square), rtol=1e-9, atol=1e-12)
    state = {**BISR, "bandwidth": width, "momentum": beta, "normalized": False}
    noising = from_opake(state, num_steps=T).solve(np.eye(T))
    plain = from_opake({"type": "BsrStrategy", "bandwidth": T, "alpha": 1.0, "beta": beta}, num_steps=T)
    root = np.linalg.inv(plain.dense())
    np.testing.assert_allclose(noising, np.tril(np.triu(root, -width + 1)), rtol=1e-9, atol=1e-12)


@given(st.lists(numbers, min_size=1, max_size=5))
def test_normalized_columns_have_norm_1_and_the_bands_of_the_inverse(tail):
    state = {**BISR, "bandwidth": len(tail) + 1, "inv_coefficients": [1.0, *tail]}
    encoder, plain = (from_opake({**state, "normalized": flag}, num_steps=T) for flag in (True, False))
    C = plain.dense()
    np.testing.assert_allclose(encoder.dense(), C / np.linalg.norm(C, axis=0), rtol=1e-6, atol=1e-9)
    assert isinstance(encoder, Inverse)
    assert encoder.memory == len(tail)


def test_objects_files_and_states_of_processes_are_read_alike(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class BisrStrategy:
        bandwidth: int = 4
        normalized: bool = True
        momentum: float = 0.0
        lr_schedule: object = None
        inv_coefficients: tuple[float, ...] | None = None

    np.savez(tmp_path / "state.npz", **{name: value for name, value in BISR.items() if value is not None})
    process = {"type": "MfGaussian", "noise_multiplier": 1.5, "strategy": BISR, "n_steps": T, "min_sep": 1}
    amplified = {"type": "BallsInBins", "inner": {**process, "n_steps": None}, "num_bins": 4, "n_steps": T}
    expected = from_opake(BISR, num_steps=T).dense()
    with np.load(tmp_path / "state.npz") as file:
        for each in (BisrStrategy(), file, process, json.loads(json.dumps(amplified))):
            assert (from_opake(each, num_steps=T).dense() == expected).all()


def test_searched_coefficients_come_as_an_array_and_the_identity_has_none():
    band = {"type": "BandMfStrategy", "bands": 2, "momentum": 1.0, "lr_schedule": None}
    coefficients = np.array([1.0, 0.5, *np.zeros(T - 2)])
    encoder = from_opake(band, num_steps=T, coefficients=coefficients)
    assert isinstance(encoder, Toeplitz)
    assert encoder.bandwidth == 2
    assert (from_opake({**band, "coefficients": coefficients}, num_steps=T).dense() == encoder.dense()).all()
    assert isinstance(from_opake({"type": "IdentityStrategy"}, num_steps=T), Identity)


@each(
    "state, more, refusal",
    ([1.0, 0.5], {}, 'class under "type"'),
    ({"type": "TreeStrategy"}, {}, "unknown opake strategy 'TreeStrategy'"),
    ({**BISR, "sensitivity": 0.5}, {}, "unknown field of BisrStrategy 'sensitivity'"),
    ({**BISR, "momentum": float("inf")}, {}, r"strategy.momentum must be finite"),
    ({**BISR, "inv_coefficients": [1.0, float("nan")]}, {}, "strategy.inv_coefficients must be finite"),
    ({**BISR, "bandwidth": 2, "inv_coefficients": [0.0, 1.0]}, {}, "begin with a number > 0"),
    ({**BISR, "bandwidth": 2, "inv_coefficients": [1.0, -0.5, 0.1]}, {}, "as many as bandwidth=2, got 3"),
    ({**BISR, "bandwidth": 3, "inv_coefficients": [1.0, -0.5]}, {}, "as many as bandwidth=3, got 2"),
    ({**BISR, "lr_schedule": [0.1]}, {}, "lr_schedule must be None"),
    ({"type": "LambdaCgdStrategy", "lambda_": float("inf")}, {}, "must be finite"),
    ({"type": "BltStrategy", "max_buffers": 3}, {}, "leaves them to a search"),
    ({"type": "BltStrategy"}, {"coefficients": [1.0, np.inf]}, "must be finite"),
    ({"type": "BltStrategy"}, {"coefficients": np.zeros(3)}, "begin with a number > 0"),
    (BISR, {"coefficients": [1.0]}, "unknown field of BisrStrategy 'coefficients'"),
    ({"type": "MfGaussian", "noise_multiplier": float("inf"), "strategy": BISR}, {}, "noise_multiplier must"),
    ({"type": "MfGaussian", "noise_multiplier": 1.0, "strategy": BISR, "n_steps": 5}, {}, "that of the state, 5"),
    ({"type": "MfGaussian", "strategy": BISR, "n_steps": np.ones(2)}, {}, "n_steps must be an integer"),
    ({"type": "MfGaussian", "strategy": np.ones(2), "n_steps": 3}, {}, 'class under "type"'),
    ({"type": "BallsInBins", "inner": {}}, {}, "unknown opake strategy 'None'"),
)
def test_states_of_opake_that_are_refused(state, more, refusal):
    refuses(refusal, from_opake, state, num_steps=3, **more)


def test_a_bandwidth_beyond_the_steps_is_that_of_the_steps():
    wide, all_steps = (from_opake({**BISR, "bandwidth": width}, num_steps=T) for width in (2**63, T))
    assert (wide.dense() == all_steps.dense()).all()


OPAKE = "MFDL_BENCH_OPAKE"
SCRIPT = """
import json, sys
import opake.dpftrl
from opake.serialization import state_dict
for line in sys.stdin:
    state, T, separation, uses = json.loads(line)
    kind = state.pop("type").removesuffix("Strategy")
    name = "".join("_" + c.lower() if c.isupper() else c for c in kind).strip("_")
    strategy = getattr(opake.dpftrl, name + "_strategy")(**state)
    saved = dict(state_dict(strategy))
    print(json.dumps([saved, strategy.sensitivity(n_steps=T, min_sep=separation, max_participations=uses)]))
"""


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.skipif(OPAKE not in os.environ, reason=f"{OPAKE} names no interpreter that has opake")
def test_recorded_numbers_are_those_of_opake():
    lines = "\n".join(json.dumps([state, T, *where]) for state, *where, _, _ in BESIDE_OPAKE)
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [os.environ[OPAKE], "-c", SCRIPT], input=lines, capture_output=True, text=True, check=True, env=alone
    )
    for line, (state, *_, recorded, _) in zip(done.stdout.splitlines(), BESIDE_OPAKE, strict=True):
        saved, computed = json.loads(line)
        assert computed == pytest.approx(recorded, rel=1e-12)
        assert (from_opake(saved, num_steps=T).dense() == from_opake(state, num_steps=T).dense()).all()

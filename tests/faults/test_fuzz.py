"""Malformed arguments, configurations, graphs and files: refused in words, with nothing half done.

`experiments/faults.py fuzz` tries ten thousand of these; here Hypothesis draws a few of each surface and shrinks them.
"""

import importlib
import math
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from effort import EFFORT
from hypothesis import HealthCheck, settings
from vocabulary import ZERO_OUT, dynamics_on, each, given, refuses, st

import mfdl
from mfdl import Cyclic, ErrorWeights, InvalidInput
from mfdl.audit import audit
from mfdl.factorization import optimal_covariance
from mfdl.participation import Explicit
from mfdl.privacy import sensitivity_by_victim

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def part_of_the_command(name):
    sys.path.insert(0, str(EXPERIMENTS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXPERIMENTS))


CASES = part_of_the_command("_fault_cases")


@st.composite
def outcomes(draw, surface):
    """What one drawn case of a surface comes to; packages that a first case loads may seed `random` for themselves."""
    drawn, state = draw(st.randoms(use_true_random=False, note_method_calls=False)), random.getstate()
    with tempfile.TemporaryDirectory() as folder:
        try:
            return CASES.run_case(surface, drawn, Path(folder))
        finally:
            random.setstate(state)


def few(surface):
    return max(2, round(70 * EFFORT) // CASES.RARE.get(surface, 1))


@pytest.mark.hypothesis  # which pytest cannot see from outside
@pytest.mark.parametrize("surface", list(CASES.SURFACES))
def test_clear_words_or_success(surface):
    @given(outcome=outcomes(surface))
    @settings(max_examples=few(surface), deadline=None, suppress_health_check=list(HealthCheck))
    def holds(outcome):
        assert outcome.good, f"{outcome.kind}: {outcome.detail}"

    holds()


def judged(act, tmp_path, seconds=60.0, before=()):
    CASES.SURFACES["planted"] = lambda random, folder: act
    try:
        for name in before:
            (tmp_path / name).write_text("{}")
        return CASES.run_case("planted", None, tmp_path, seconds).kind
    finally:
        del CASES.SURFACES["planted"]


def refuse(words):
    raise InvalidInput(words)


def broken():
    raise TypeError("a bug")


def for_ever():
    while True:
        try:
            sum(range(1000))
        except Exception:
            raise AssertionError from None


@each(
    "act, kind",
    (lambda: None, "accepted"), (lambda: refuse("n must be at least 1, got 0."), "refused"),
    (lambda: refuse("bad"), "no words"), (broken, "traceback"), (for_ever, "hang"),
    (lambda: sys.exit(0), "traceback"), (lambda: Path("a.json").write_text("{") and None, "partial file"),
    (lambda: Path(".a.json.x.tmp").write_text("{}") and None, "partial file"),
    (lambda: Path("a.npz").write_bytes(b"PK") and None, "partial file"),
    (lambda: Path("a.json").write_text("{}") and None, "accepted"),
    (lambda: Path("kept.json").unlink() or refuse("n must be at least 1, got 0."), "partial file"),
    (lambda: CASES.command(["factorize", "--epochs", "-1"]), "refused"),
    (lambda: CASES.command(["mechanisms"]), "accepted"),
)  # fmt: skip
def test_the_judge(act, kind, tmp_path):
    seconds = 0.2 if kind == "hang" else 60.0
    assert judged(act, tmp_path, seconds, before=["kept.json"]) == kind


def test_the_same_number_is_the_same_case(tmp_path):
    faults = part_of_the_command("faults")
    for k in range(3):
        first, second = (faults.fuzz_case(7, k)[:2] for _ in range(2))
        assert first == second


RING = dynamics_on("ring:n=3")
PLAIN = mfdl.algorithms.dp_dsgd(RING, Cyclic(epochs=1, period=2))


OVERFLOWING = np.array([[1.0, 0.0], [9e153, 1 / 9e153]])


def bad_npy(folder):
    (folder / "W.npy").write_bytes(b"\x93NUMPY\x01\x00\x10\x00{'descr': (\n        ")
    return mfdl.gossip.load(str(folder / "W.npy"), mfdl.graphs.load("ring:n=3"))


@each(
    "call, words",
    (lambda _: ErrorWeights("last:inf"), "whole number of steps"),
    (lambda _: ErrorWeights("last:nan"), "whole number of steps"),
    (lambda _: mfdl.trust.named(["ldp"]), "unknown trust model"),
    (lambda _: mfdl.trust.named(0.5), "unknown trust model"),
    (lambda _: Explicit(3, 2), "sequences of steps"),
    (lambda _: mfdl.gossip.from_array([[1.0], [0.5, 0.5]]), "weights must be"),
    (lambda _: mfdl.gossip.from_array(np.eye(2) * 1j), "real numbers"),
    (lambda _: sensitivity_by_victim(PLAIN, mfdl.trust.LDP(), lipschitz=1j), "lipschitz must be"),
    (lambda _: sensitivity_by_victim(PLAIN, 1j), "trust must be a trust model"),
    (lambda _: optimal_covariance(RING, max_inverse_diagonal=1e-307), "max_inverse_diagonal"),
    (lambda _: audit(PLAIN, trust=mfdl.trust.LDP(), noise_std=1e-9, **ZERO_OUT), "at most 1e\\+06 to be audited"),
    (lambda _: audit(PLAIN, trust=mfdl.trust.LDP(), noise_std=1.0, trials=10**9, **ZERO_OUT), "trials must be at most"),
    (bad_npy, "not a .npy file"),
    (lambda _: mfdl.algorithms.mf_dsgd(RING, Cyclic(1, 2), OVERFLOWING), "diagonal of at least 1e-60"),
)
def test_refused_in_words(call, words, tmp_path):
    refuses(words, call, tmp_path)


def test_a_half_life_next_to_zero_counts_the_last_step_alone():
    assert ErrorWeights("exponential:5e-324").weights_by_step(3).tolist() == [0, 0, 1]


def test_an_encoder_whose_inverse_overflows_has_no_claim():
    C = np.eye(8)
    C[np.arange(1, 8), np.arange(7)], C[-1, -1] = 1e55, 1e-55
    algorithm = mfdl.algorithms.mf_dsgd(RING, Cyclic(epochs=1, period=8), C)
    assert all(math.isinf(loss.sensitivity_squared) for loss in sensitivity_by_victim(algorithm, mfdl.trust.LDP()))


def test_extreme_noise_has_its_limits_in_a_reconstruction():
    reconstruction = mfdl.audit.reconstruct(PLAIN, mfdl.trust.LDP(), noise_std=1e-150, clip_norm=1e150)
    assert not reconstruction.hidden.any()
    reconstruction = mfdl.audit.reconstruct(PLAIN, mfdl.trust.LDP(), noise_std=1e150, clip_norm=1e-150)
    assert reconstruction.posterior_ratio.min() == 1

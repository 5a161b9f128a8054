"""Preconditioners: a change of variables before clipping, equal to preconditioned descent; who may make one."""

from __future__ import annotations

import dataclasses

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from numpy.testing import assert_allclose, assert_array_equal
from refusals import refuses

import mfdl
from mfdl import Cyclic, Dynamics, algorithms, gossip, trust
from mfdl.runs.comparing import run_comparison
from mfdl.runs.experiment import Experiment
from mfdl.training.tasks import Preconditioner
from mfdl.training.tasks import preconditioner as preconditioners

D = 4
TASK = mfdl.tasks.logistic("ring:n=3", dimension=D, train_records=60, test_records=20)
SEEDS = st.integers(0, 2**32 - 1)


def drawn(seed: int, full: bool) -> Preconditioner:
    """A regular M, diagonal or full, and a center."""
    draws = np.random.default_rng(seed)
    scales = draws.uniform(0.5, 2, D)
    if full:
        scales = np.diag(scales) + 0.1 * draws.normal(size=(D, D))
    return Preconditioner(scales, draws.normal(size=D))


@given(SEEDS, st.booleans())
def test_it_is_preconditioned_gradient_descent(seed, full):
    """In weights on the features as they were, a step without noise or clipping moves by -eta g M^T M."""
    P = drawn(seed, full)
    M = np.diag(P.scales) if np.ndim(P.scales) == 1 else P.scales
    algorithm = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("ring:n=3"), 0.5), Cyclic(2, 1))
    plain = mfdl.calibrate(algorithm, mfdl.Privacy(trust.LDP(), adjacency="zero-out", clip_norm=1e6), noise_std=0.0)
    centered = dataclasses.replace(
        TASK, features=TASK.features - np.float32(P.center), test_features=TASK.test_features - np.float32(P.center)
    )
    options = {"seeds": [0], "dtype": torch.float64, "device": "cpu", "progress": False}
    (ours,) = mfdl.replay(plain, TASK.preconditioned(P), **options).seeds
    trained = ours.models[:, : 2 * D].reshape(3, 2, D)
    theta, bias = np.zeros((3, 2, D)), np.zeros((3, 2))
    instance = centered.instance(0, 1, dtype=torch.float64)
    W = algorithm.dynamics.gossip.dense()
    for _ in range(2):
        x, y = instance.features[:, 0].numpy(), instance.targets[:, 0].numpy()
        scores = np.einsum("ucd,urd->urc", theta, x) + bias[:, None]
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        p[np.arange(3)[:, None], np.arange(x.shape[1])[None], y] -= 1
        p *= instance.mask[:, 0].numpy()[..., None]
        sizes = instance.public_batch_sizes.numpy()[:, None]
        gradient = np.einsum("urc,urd->ucd", p, x) / sizes[..., None]
        theta = np.tensordot(W, theta - 0.5 * gradient @ M.T @ M, 1)
        bias = W @ (bias - 0.5 * p.sum(1) / sizes)
    assert_allclose(P.weights(trained), theta, atol=1e-5)  # features are stored in float32


@given(SEEDS, st.booleans())
def test_arrays_and_tensors_are_mapped_alike(seed, full):
    P, x = drawn(seed, full), np.random.default_rng(seed).normal(size=(3, 2, D))
    M = np.diag(P.scales) if np.ndim(P.scales) == 1 else P.scales
    assert_allclose(P(x), (x - P.center) @ M.T, atol=1e-12)
    assert_array_equal(P(torch.tensor(x)).numpy(), P(x))
    assert P(torch.tensor(x, dtype=torch.float32)).dtype == torch.float32
    assert_allclose(P.weights(np.eye(D)), M)


@given(SEEDS, st.sampled_from([0.0, 0.25, 0.5]), st.booleans())
def test_public_features_are_made_alike_in_all_directions(seed, exponent, center):
    x = np.random.default_rng(seed).normal(size=(50, D)) * [1, 0.1, 3, 1] + 0.3
    P = Preconditioner.of_public_features(x, exponent, public="simulated", center=center)
    centered = x - (x.mean(0) if center else 0)
    S, mapped = centered.T @ centered / 50, P(x).T @ P(x) / 50
    values, vectors = np.linalg.eigh(S)
    wanted = (vectors * values * (values + preconditioners.RIDGE * values.mean()) ** (-2 * exponent)) @ vectors.T
    assert_allclose(mapped, wanted, atol=1e-9)
    diagonal = Preconditioner.of_public_features(x, exponent, public="simulated", center=center, diagonal=True)
    assert_allclose(diagonal.scales, (np.diag(S) + preconditioners.RIDGE * values.mean()) ** -exponent)


def test_no_sensitivity_changes_and_the_task_says_what_was_done():
    algorithm = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("ring:n=3"), 0.5), Cyclic(2, 2))
    calibrated = mfdl.calibrate(algorithm, mfdl.Privacy(trust.LDP(), adjacency="zero-out", clip_norm=1.0), mu=1.0)
    mapped = dataclasses.replace(TASK, lipschitz=1.0).preconditioned("power:0.25:2")
    assert (mapped.name, mapped.lipschitz) == ("logistic, preconditioned by a declared spectrum, exponent 0.25", None)
    assert mapped.content_hash != TASK.content_hash
    run = mfdl.replay(calibrated, mapped, seeds=[0], device="cpu", progress=False)
    assert run.mechanism.guarantee == calibrated.guarantee


def test_a_preconditioner_of_train_records_is_refused_or_stated():
    preconditioner = Preconditioner.of_public_features(TASK.features[:5], public="a mistake")
    other = Preconditioner.of_public_features(TASK.test_features, public="test records")
    refuses("5 of the 5 records behind this", TASK.preconditioned, preconditioner)
    assert TASK.preconditioned(other).from_records == ""
    preconditioned = TASK.preconditioned(preconditioner, from_records="five consenting participants")
    algorithm = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("ring:n=3"), 0.5), Cyclic(2, 2))
    calibrated = mfdl.calibrate(algorithm, mfdl.Privacy(trust.LDP(), adjacency="zero-out", clip_norm=1.0), mu=1.0)
    run = mfdl.replay(calibrated, preconditioned, seeds=[0], device="cpu", progress=False)
    assert run.public_constants == "preconditioner of train records (five consenting participants)"


def test_texts_and_files(tmp_path):
    scales, public = tmp_path / "scales.csv", tmp_path / "public.npy"
    scales.write_text("1,2,3,4\n")
    np.save(public, np.eye(D))
    parsed = preconditioners.parse(f"file:{scales}", D)
    assert (parsed.scales.tolist(), parsed.source) == ([1, 2, 3, 4], "scales of scales.csv")
    assert_allclose(preconditioners.parse("power:0.5:2", D).scales, [1, 2, 3, 4])
    assert "public.npy" in preconditioners.parse(f"public-features:0.5:{public}", D).source
    assert preconditioners.parse(parsed, D) is parsed


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Preconditioner([1.0, 0.0]), "singular values within a factor"),
        (lambda: Preconditioner([1.0, np.inf]), "scales must be finite"),
        (lambda: Preconditioner(np.ones((2, 3))), r"shape \(d,\) or \(d, d\)"),
        (lambda: Preconditioner([1.0], [1.0, 2.0]), r"center must have shape \(1,\)"),
        (lambda: Preconditioner([1.0], source=" "), "source must say"),
        (lambda: Preconditioner.of_spectrum([1.0, 0.0]), "eigenvalues must be > 0"),
        (lambda: Preconditioner.of_public_features(np.eye(2), public=""), "public must say"),
        (lambda: Preconditioner.of_public_features(np.zeros((2, 2)), public="zeros"), "must have variance"),
        (lambda: Preconditioner([1.0, 2.0])(np.ones((1, 3))), "vectors of 2 entries"),
        (lambda: Preconditioner([1.0])(np.ones((1, 1), dtype=int)), "floating-point type"),
        (lambda: TASK.preconditioned("powers:0.5"), "did you mean 'power'"),
        (lambda: TASK.preconditioned("power"), "is written power:EXPONENT"),
        (lambda: TASK.preconditioned(3), "must be a text such as 'power:0.5'"),
        (lambda: TASK.preconditioned(Preconditioner([1.0, 2.0])), "for 2 features, and there are 4"),
        (lambda: TASK.preconditioned("file:no-such-file"), "preconditioner file .* cannot be read"),
        (lambda: mfdl.tasks.least_squares(3).preconditioned("power:0.5"), "maps real feature vectors"),
    ],
)
def test_refusals(call, message):
    refuses(message, call)


def test_a_comparison_of_preconditioned_features(tmp_path):
    """The option reaches the task, stands in results, and its runs are others than those without."""
    options = {"graph": "ring:n=3", "task": "logistic:dimension=4,train_records=60,test_records=20", "epochs": 1}
    options |= {"period": 2, "seeds": 1, "mechanisms": ("none",)}
    plain = run_comparison(Experiment(**options), tmp_path / "plain")
    mapped = run_comparison(Experiment(**options, precondition="power:0.5"), tmp_path / "mapped")
    assert "precondition" not in plain["config"]
    assert mapped["config"]["precondition"] == "power:0.5"
    assert mapped["runs"][0]["final_test_loss"] != plain["runs"][0]["final_test_loss"]
    task = mfdl.tasks.load(options["task"], "ring:n=3").preconditioned("power:0.5")
    algorithm = algorithms.dsgd(Dynamics(gossip.metropolis_hastings("ring:n=3"), 0.5), Cyclic(1, 2))
    none = mfdl.calibrate(algorithm, mfdl.Privacy(trust.LDP(), adjacency="replace-one", clip_norm=1.0), noise_std=0.0)
    run = mfdl.replay(none, task, seeds=[0], device="cpu", progress=False)
    assert run.final_test_losses[0] == pytest.approx(mapped["runs"][0]["final_test_loss"], rel=1e-6)
    refuses("did you mean", lambda: run_comparison(Experiment(**options, precondition="powr:0.5"), tmp_path / "wrong"))


def test_records_are_private_however_they_were_mapped_and_what_is_declared_is_stated():
    preconditioner = Preconditioner.of_public_features(TASK.features[:5], public="a mistake")
    mapped = TASK.preconditioned("power:0.25")
    refuses("5 of the 5 records", mapped.preconditioned, preconditioner)
    by_hand = Preconditioner(1 / TASK.features.std(axis=0), source="standard deviations")
    preconditioned = TASK.preconditioned(by_hand, from_records="standard deviations of train records")
    assert preconditioned.from_records == "preconditioner of train records (standard deviations of train records)"

"""Mechanisms of secret bins: calibrated by epsilon, refused where the theorem does not reach, trained so."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

import mfdl
from mfdl import BallsInBins, Cyclic, Dynamics, NoiseKey, algorithms, archive, gossip, trust
from mfdl.errors import InvalidInput, UnsupportedMechanism
from mfdl.noise import JointNoise, SpaceTimeNoise
from mfdl.testing.tasks import linear_task
from mfdl.training.drawn_batches import BinBatches

torch.set_num_threads(1)
BINS = BallsInBins(epochs=3, bins=4)
ASKED = {"trust": trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0}


def on(participation=BINS):
    return Dynamics(gossip.metropolis_hastings("ring:n=3"), 0.5), participation


def encoded(bins=BINS):
    """Local noise with the encoder that was factorized for public bins."""
    return dataclasses.replace(algorithms.mafalda(*on(Cyclic(bins.epochs, bins.bins))), participation=bins)


def task_of(sizes=24, dim=2):
    return linear_task(3, np.random.default_rng(0).uniform(0.5, 1.5, (sizes, dim)))


def test_calibrated_noise_meets_its_target_with_less_than_public_bins_need():
    made = mfdl.calibrate(algorithms.dp_dsgd(*on()), **ASKED, epsilon=1.5, delta=1e-5)
    stated = made.guarantee
    assert stated.epsilon(1e-5) <= 1.5
    less = mfdl.account(algorithms.dp_dsgd(*on()), **ASKED, noise_std=made.noise_std * 0.999)
    assert less.epsilon(1e-5) > 1.5
    public = mfdl.calibrate(algorithms.dp_dsgd(*on(Cyclic(3, 4))), **ASKED, epsilon=1.5, delta=1e-5)
    assert made.noise_std < 0.8 * public.noise_std
    words = str(stated)
    for said in (
        "secret bins (epochs=3, bins=4)",
        "secret",
        "epsilon: 1.5",
        "gradients: adaptive or not",
        "with public bins",
    ):
        assert said in words
    told = json.loads(json.dumps(stated.to_dict()))
    assert (told["curve"]["bins"], told["adaptive"], told["bound"]) == (4, True, "upper")
    assert archive.copied(BINS, "participation") == BINS
    assert stated.mu is None


def test_noise_correlated_in_time_is_accounted_by_the_absolute_values_of_its_encoder():
    algorithm = encoded()
    stated = mfdl.account(algorithm, **ASKED, noise_std=2.0)
    C = np.abs(algorithm.noise.causal.encoder_of(0))
    M = sum(C[:, e * 4 : e * 4 + 4] for e in range(3))
    M = M.T @ M
    assert stated.sensitivity == pytest.approx(math.sqrt(M.diagonal().max()), rel=1e-9)
    assert stated.sensitivity >= math.sqrt(M.diagonal().max())
    off = M[~np.eye(4, dtype=bool)].max() / M.diagonal().max()
    assert stated.curve.correlations[0] == (4, pytest.approx(off))
    public = mfdl.account(dataclasses.replace(algorithm, participation=Cyclic(3, 4)), **ASKED, noise_std=2.0)
    assert stated.epsilon(1e-5) <= public.epsilon(1e-5) * (1 + 1e-6)


@pytest.mark.parametrize("known", [trust.LDP(), trust.SecLDP(), trust.PNDP([0]), trust.Central()])
def test_hidden_messages_count_as_seen(known):
    stated = mfdl.account(algorithms.dp_dsgd(*on()), **{**ASKED, "trust": known}, noise_std=2.0)
    seen = mfdl.account(algorithms.dp_dsgd(*on()), **ASKED, noise_std=2.0)
    assert stated.epsilon(1e-5) == seen.epsilon(1e-5)
    hides = known.hides_messages(algorithms.dp_dsgd(*on()))
    assert ("count as seen" in stated.why) == hides


def test_noise_over_nodes_counts_by_its_covariance():
    algorithm = algorithms.decor(*on(), sigma_local=1.0, sigma_pair=2.0)
    cyclic = algorithms.decor(*on(Cyclic(3, 4)), sigma_local=1.0, sigma_pair=2.0)
    for model in (trust.SecLDP(), trust.LDP()):
        stated = mfdl.account(algorithm, **{**ASKED, "trust": model}, noise_std=1.0)
        public = mfdl.account(cyclic, **{**ASKED, "trust": model}, noise_std=1.0)
        assert stated.sensitivity == pytest.approx(public.sensitivity, rel=1e-6)


def test_what_the_theorem_does_not_cover_is_refused_by_name():
    algorithm = algorithms.dp_dsgd(*on())
    with pytest.raises(UnsupportedMechanism, match="have no mu; give epsilon and delta"):
        mfdl.calibrate(algorithm, **ASKED, mu=1.0)
    for option in ({"unit": "user"}, {"lipschitz": 1.0}, {"release": "all"}, {"method": "fastest"}):
        with pytest.raises(UnsupportedMechanism, match=f"leave out {next(iter(option))}"):
            mfdl.calibrate(algorithm, **ASKED, epsilon=1.0, delta=1e-5, **option)
    with pytest.raises(UnsupportedMechanism, match="noise_multiplier is of public"):
        mfdl.account(algorithm, **ASKED, noise_multiplier=1.0)
    with pytest.raises(UnsupportedMechanism, match="no public patterns and no mu"):
        mfdl.victim_losses(algorithm, trust.LDP())
    on_messages = dataclasses.replace(algorithm, noise_on_messages=True)
    with pytest.raises(UnsupportedMechanism, match="adds it elsewhere"):
        mfdl.account(on_messages, **ASKED, noise_std=1.0)
    encoders, more = np.stack([np.eye(12)] * 3 + [np.tri(12)]), np.hstack([np.eye(3), np.ones((3, 1))])
    columns = dataclasses.replace(algorithm, noise=SpaceTimeNoise(encoders, more, more.T != 0, 3))
    with pytest.raises(UnsupportedMechanism, match="time and nodes together by columns"):
        mfdl.account(columns, **ASKED, noise_std=1.0)
    held = np.array([[True, True, False], [True, True, True], [True, True, True]])
    factor = np.array([[1.0, 0.0, 0.5], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
    partly = dataclasses.replace(algorithm, noise=SpaceTimeNoise(encoders[1:], factor, held, 3))
    with pytest.raises(UnsupportedMechanism, match="know a part"):
        mfdl.account(partly, **{**ASKED, "trust": trust.SecLDP((2,))}, noise_std=1.0)
    joint = dataclasses.replace(algorithm, noise=JointNoise(np.eye(36), 12, 3))
    assert mfdl.account(joint, **ASKED, noise_std=1.0).epsilon(1e-5) == math.inf


def test_without_noise_nothing_is_guaranteed():
    made = mfdl.without_noise(algorithms.dp_dsgd(*on()), **ASKED)
    assert made.guarantee.epsilon(1e-5) == math.inf
    assert mfdl.with_noise(algorithms.dsgd(*on()), **ASKED, noise_std=1.0).guarantee.epsilon(1e-5) == math.inf


def bins_of(key, sizes=6000, bins=5):
    return BinBatches(task_of(sizes).instance(0, 1), NoiseKey.from_seed(key), bins)


def test_bins_are_uniform_independent_and_of_their_key():
    sampler = bins_of(0)
    drawn = sampler.bins.ravel()
    counts = np.bincount(drawn, minlength=5)
    assert np.abs(counts - drawn.size / 5).max() < 5 * math.sqrt(drawn.size * 0.16)
    pairs = np.bincount(drawn[:-1] * 5 + drawn[1:], minlength=25)
    assert np.abs(pairs - (drawn.size - 1) / 25).max() < 5.5 * math.sqrt(drawn.size * 0.04)
    assert len({tuple(counts), tuple(np.bincount(bins_of(1).bins.ravel(), minlength=5))}) == 2  # sizes are not fixed
    assert (sampler.bins == bins_of(0).bins).all()
    for step in range(10):
        assert (sampler.drawn(step) == sampler.drawn(step + 5)).all()
    assert (sum(sampler.drawn(step).astype(int) for step in range(5)) == 1).all()


def test_a_run_feeds_each_record_its_bin_and_divides_by_a_constant(tmp_path):
    """Without noise injected sums are those of the bins over the public size; a stop and a resume change nothing."""
    made, task = mfdl.with_noise(algorithms.dp_dsgd(*on()), **{**ASKED, "clip_norm": 100.0}, noise_std=0.0), task_of(14)
    kept = []
    plain = BinBatches.of_step
    options = {"seeds": [5], "keep_messages": True, "dtype": torch.float64, "progress": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BinBatches, "of_step", lambda self, t: (kept.append(self.drawn(t)), plain(self, t))[1])
        run = mfdl.replay(made, task, **options)
    index = task.instance(5, 1).record_index[:, 0].numpy()
    rows = np.where(index[..., None] >= 0, task.features[index], 0.0)
    wanted = np.einsum("tnb,nbd->tnd", np.array(kept, dtype=float), rows) / (task.public_batch_sizes(1) / 4)[:, None]
    models, W = np.zeros((3, 2)), np.full((3, 3), 1 / 3)
    for message, expected in zip(run.seeds[0].messages, wanted, strict=True):
        np.testing.assert_allclose((models - message) / 0.5, expected, rtol=1e-6, atol=1e-9)
        models = W @ message
    mfdl.replay(made, task, checkpoint_folder=tmp_path, stop_after=5, **options)
    rest = mfdl.replay(made, task, checkpoint_folder=tmp_path, **options)
    np.testing.assert_array_equal(rest.seeds[0].models, run.seeds[0].models)
    with pytest.raises(InvalidInput, match="period must be left out"):
        mfdl.replay(made, task, seeds=[0], period=4)


def test_what_a_task_computed_from_its_records_is_declared_and_said():
    made, task = mfdl.with_noise(algorithms.dp_dsgd(*on()), **ASKED, noise_std=2.0), task_of()
    silent = dataclasses.replace(task, public_constants=None)
    with pytest.raises(UnsupportedMechanism, match="must declare what was computed from its records"):
        mfdl.replay(made, silent, seeds=[0])
    scaled = dataclasses.replace(task, public_constants="the largest feature")
    run = mfdl.replay(made, scaled, seeds=[0], progress=False)
    assert run.statement().endswith("\nnot covered, declared public: the largest feature")
    assert run.statement(1e-3).startswith(str(dataclasses.replace(made.guarantee, stated_delta=1e-3)))
    assert mfdl.replay(made, task, seeds=[0], progress=False).statement() == str(made.guarantee)
    with pytest.raises(InvalidInput, match="public_constants must say in words"):
        dataclasses.replace(task, public_constants=" ")


def test_an_empty_bin_sends_its_noise():
    made = mfdl.with_noise(algorithms.dp_dsgd(*on(BallsInBins(1, 200))), **ASKED, noise_std=3.0)
    run = mfdl.replay(made, task_of(3, dim=5), seeds=[0], keep_messages=True, progress=False, eval_every=200)
    sent = run.seeds[0].messages
    assert sent.shape == (200, 3, 5)
    assert (np.abs(sent).max(axis=2) > 0).all()


def test_other_schemes_are_not_amplified():
    """A guarantee of secret bins is not taken for an algorithm whose bins are public."""
    made = mfdl.with_noise(algorithms.dp_dsgd(*on()), **ASKED, noise_std=2.0)
    with pytest.raises((InvalidInput, UnsupportedMechanism)):
        dataclasses.replace(made, algorithm=algorithms.dp_dsgd(*on(Cyclic(3, 4))))

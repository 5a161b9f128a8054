"""Mechanisms of balls-in-bins: the multiplier is that of exact covariances, and what is not proven is refused."""

import dataclasses
import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from _privacy import applied
from exact import inverse
from vocabulary import ZERO_OUT, dynamics_on, given, refuses, st, unsupported

import mfdl
from mfdl import (
    NoiseKey,
    Privacy,
    account,
    algorithms,
    archive,
    calibrate,
    factorization,
    graphs,
    privacy,
    replay,
    trust,
)
from mfdl.errors import InvalidInput, UnsupportedMechanism
from mfdl.noise import JointNoise, LocalNoise, SpatioTemporalNoise
from mfdl.participation import BallsInBins, Cyclic, EveryStep, ParticipationByNode, PoissonSampling
from mfdl.privacy.curves import PoissonGaussian
from mfdl.testing import connected_graphs
from mfdl.testing.tasks import linear_task
from mfdl.training.drawn_batches import BinBatches

SAMPLING = PoissonSampling(rate=0.1, steps=4)


def on(graph, participation=SAMPLING, **options):
    return dynamics_on(graph, 0.1, **options), participation


def exact_worst(graph, colluders, local, pair):
    """max over honest i of [(local^2 I + pair^2 L)^-1]_ii on the graph without the colluders, as a Fraction."""
    honest = [v for v in range(len(graph)) if v not in colluders]
    labels = sorted(graph)
    edges = {frozenset((labels.index(a), labels.index(b))) for a, b in graph.edges}
    R = [[Fraction(0)] * len(honest) for _ in honest]
    for i, u in enumerate(honest):
        R[i][i] += Fraction(local) ** 2
        for j, v in enumerate(honest):
            if frozenset((u, v)) in edges and u != v:
                R[i][i] += Fraction(pair) ** 2
                R[i][j] -= Fraction(pair) ** 2
    return max(inverse(R)[i][i] for i in range(len(honest)))


@given(
    40, graph=connected_graphs(min_nodes=3, max_nodes=6), q=st.integers(0, 2),
    local=st.sampled_from([0.25, 1.0, 3.0]), pair=st.sampled_from([0.0, 0.5, 8.0]),
    clip=st.floats(0.1, 10), nu=st.floats(0.1, 100), adjacency=st.sampled_from(["zero-out", "replace-one"])
)  # fmt: skip
def test_the_multiplier_is_that_of_the_exact_covariance(graph, q, local, pair, clip, nu, adjacency):
    n = graph.number_of_nodes()
    algorithm = algorithms.decor(*on(graph), sigma_ldp=local, sigma_cor=pair)
    ordered = {label: i for i, label in enumerate(graphs.labels(graph))}
    plain = type(graph)()
    plain.add_nodes_from(range(n))
    plain.add_edges_from((ordered[a], ordered[b]) for a, b in graph.edges)
    worst = max(exact_worst(plain, set(c), local, pair) for c in itertools.combinations(range(n), min(q, n - 1)))
    guarantee = account(
        algorithm, Privacy(trust.Coalitions(min(q, n - 1)), adjacency=adjacency, clip_norm=clip), noise_std=nu
    )
    squared = Fraction(guarantee.noise_multiplier) ** 2 * Fraction(clip) ** 2 * worst
    assert squared <= Fraction(nu) ** 2  # never more noise than there is
    assert float(squared) >= nu**2 * (1 - 1e-9)
    assert guarantee.curve == PoissonGaussian(guarantee.noise_multiplier, 0.1, 4, adjacency)


def test_one_step_is_dominated_in_the_full_space_of_messages():
    R = np.array([[1.0, -0.6], [-0.6, 1.3]])
    algorithm = algorithms.spatial_covariance(dynamics_on("complete:n=2", 0.1), PoissonSampling(0.3, 1), R)
    guarantee = account(algorithm, Privacy(trust.Eavesdropper(), **ZERO_OUT), noise_std=1.0)
    grid = np.linspace(-9, 9, 901)
    at = np.stack(np.meshgrid(grid, grid, indexing="ij"), -1)

    def density(shift):
        away = at - np.array([shift, 0.0])
        return np.exp(-0.5 * np.einsum("...i,ij,...j", away, np.linalg.inv(R), away)) / (
            2 * math.pi * math.sqrt(np.linalg.det(R))
        )

    p, r = 0.7 * density(0.0) + 0.3 * density(1.0), density(0.0)
    area = (grid[1] - grid[0]) ** 2
    for epsilon in (0.0, 0.2, 1.0):
        true = max(float(np.clip(a - math.exp(epsilon) * b, 0, None).sum() * area) for a, b in ((p, r), (r, p)))
        assert true * (1 - 1e-4) <= guarantee.delta(epsilon) <= true * 1.01 + 1e-9


def test_calibrated_noise_meets_its_target_and_the_guarantee_says_everything():
    algorithm = algorithms.decor(*on("ring:n=5"), sigma_ldp=1.0, sigma_cor=2.0)
    calibrated = calibrate(algorithm, Privacy(trust.Coalitions(1), **ZERO_OUT), epsilon=1.5, delta=1e-4)
    guarantee = calibrated.guarantee
    assert guarantee.epsilon(1e-4) <= 1.5
    assert guarantee.stated_delta == 1e-4
    less = account(algorithm, Privacy(trust.Coalitions(1), **ZERO_OUT), noise_std=calibrated.noise_std * 0.999)
    assert less.epsilon(1e-4) > 1.5
    words = str(guarantee)
    for phrase in (
        "coalitions", "zero-out", "Poisson sampling (rate=0.1, 4 steps)", "secret",
        "gradients: adaptive or non-adaptive", "epsilon: "
    ):  # fmt: skip
        assert phrase in words
    content = json.loads(json.dumps(guarantee.to_dict()))
    curve = content["curve"]
    assert (curve["kind"], curve["rate"], curve["steps"]) == ("poisson", 0.1, 4)
    assert (content["mu"], content["unit"], content["adaptive"]) == (None, "record", True)
    assert str(calibrated).startswith("Mechanism decor on 5 nodes, 4 steps: epsilon = ")
    assert guarantee.mu is None
    assert 0 < guarantee.renyi_epsilon(2.0) <= guarantee.renyi_epsilon(2.5) <= guarantee.renyi_epsilon(3.0)
    assert guarantee.compose_with(guarantee).epsilon(1e-4) > guarantee.epsilon(1e-4)


def test_noise_that_cancels_or_is_known_hides_nothing():
    n = 4
    cancels = algorithms.spatial_covariance(*on("complete:n=4"), n * np.eye(n) - np.ones((n, n)))
    assert account(cancels, Privacy(trust.Eavesdropper(), **ZERO_OUT), noise_std=1.0).epsilon(1e-5) == math.inf
    shared = algorithms.spatial_covariance(*on("complete:n=4"), np.eye(n))
    assert account(shared, Privacy(trust.Eavesdropper(), **ZERO_OUT), noise_std=1.0).epsilon(1e-5) < math.inf
    assert account(shared, Privacy(trust.LDP(), **ZERO_OUT), noise_std=1.0).epsilon(1e-5) == math.inf
    refuses("infinite loss", lambda: calibrate(shared, Privacy(trust.LDP(), **ZERO_OUT), epsilon=1.0, delta=1e-5))


def test_noise_correlated_in_time_is_refused_even_where_it_happens_not_to_be():
    dynamics, sampling = on("ring:n=4")
    plain = algorithms.dp_dsgd(dynamics, sampling)
    encoded = dataclasses.replace(plain, noise=LocalNoise(np.eye(4), num_nodes=4))
    for algorithm in (encoded, algorithms.anti_pgd(dynamics, sampling)):
        unsupported("correlated over time", account, algorithm, Privacy(trust.LDP(), **ZERO_OUT), noise_std=1.0)


def test_noise_that_divisors_leave_alone_is_refused_though_it_enters_by_the_maps_of_gradients():
    plain = algorithms.dp_dsgd(*on("ring:n=4"))
    on_messages = dataclasses.replace(plain, noise_on_messages=True)
    assert on_messages.noise_enters_with_gradients
    calibrated = calibrate(plain, Privacy(trust.LDP(), **ZERO_OUT), noise_std=1.0)
    for ask in (
        lambda: account(on_messages, Privacy(trust.LDP(), **ZERO_OUT), noise_std=1.0),
        lambda: dataclasses.replace(calibrated, algorithm=on_messages),
    ):
        unsupported("adds it elsewhere", ask)


def test_public_schemes_and_secret_ones_have_an_accountant_each():
    public = algorithms.dp_dsgd(*on("ring:n=4", Cyclic(2, 2)))
    assert account(public, Privacy(trust.LDP(), **ZERO_OUT), noise_std=1.0).mu > 0
    secret, options = algorithms.dp_dsgd(*on("ring:n=4")), {"trust": trust.LDP(), **ZERO_OUT}
    for ask in (
        lambda: privacy.sensitivity_by_victim(secret, trust.LDP()), lambda: factorization.problem(*on("ring:n=4")),
        lambda: SAMPLING.patterns(), lambda: SAMPLING.num_patterns, lambda: SAMPLING.allows([0]),
        lambda: SAMPLING.classes()
    ):  # fmt: skip
        unsupported("has no public patterns", ask)
    assert account(secret, Privacy(**options), noise_std=1.0).mu is None
    unsupported("have no mu", lambda: calibrate(secret, Privacy(**options), mu=1.0))
    unsupported("leave out unit", lambda: calibrate(secret, Privacy(unit="user", **options), epsilon=1.0, delta=1e-5))
    refuses("must be public", lambda: ParticipationByNode([SAMPLING, EveryStep(4)]))


def test_a_guarantee_is_that_of_its_question():
    algorithm = algorithms.decor(*on("ring:n=4"), sigma_ldp=1.0, sigma_cor=1.0)
    calibrated = calibrate(algorithm, Privacy(trust.Eavesdropper(), **ZERO_OUT), noise_std=2.0)
    better = PoissonGaussian(calibrated.guarantee.noise_multiplier / 2, 0.01, 4, "zero-out")
    edited = dataclasses.replace(calibrated.guarantee, curve=better)
    assert not edited.fingerprint
    refuses("edited by hand", dataclasses.replace, calibrated, guarantee=edited)
    with pytest.raises(InvalidInput, match="at most noise_std"):
        dataclasses.replace(calibrated.guarantee, curve=PoissonGaussian(1e3, 0.1, 4, "zero-out"))
    other = algorithms.decor(*on("ring:n=4", PoissonSampling(0.2, 4)), sigma_ldp=1.0, sigma_cor=1.0)
    refuses("another algorithm", dataclasses.replace, calibrated, algorithm=other)
    refuses("another trust model", lambda: dataclasses.replace(calibrated, trust=trust.LDP()))
    assert other.content_hash != algorithm.content_hash


def test_pairs_of_decor_meet_an_example_level_target_and_no_more():
    dynamics, sampling = on("ring:n=6")
    target = {"epsilon": 1.5, "delta": 1e-4}
    for budget in ("gdp", "renyi"):
        pairs = mfdl.decor_search.decor_deviations(
            dynamics, sampling, Privacy(trust.Coalitions(1), unit="record", **ZERO_OUT), **target, budget=budget
        )
        local = [c.sigma_ldp for c in pairs]
        assert (local, pairs[-1].sigma_cor) == (sorted(local), 0)
        for pair in pairs:
            again = algorithms.decor(dynamics, sampling, sigma_ldp=pair.sigma_ldp, sigma_cor=pair.sigma_cor)
            guarantee = account(again, Privacy(trust.Coalitions(1), **ZERO_OUT), noise_std=1.0)
            assert guarantee.epsilon(1e-4) <= 1.5 * (1 + 1e-9)
            assert pair.mechanism.guarantee.epsilon(1e-4) <= 1.5
            if budget == "renyi":
                assert pair.mechanism.guarantee.curve.renyi_epsilon(1e-4) <= 1.5
            else:
                assert guarantee.epsilon(1e-4) >= 1.5 * (1 - 1e-3)
    for wrong in ({"unit": "user"}, {"budget": "corollary"}, {"epsilon": None, "delta": None, "mu": 1.0}):
        refuses(".", applied, mfdl.decor_search.decor_deviations, dynamics, sampling, {**ZERO_OUT, **target, **wrong})


def test_a_node_of_ones_own_does_not_take_a_sampled_mechanism():
    calibrated = calibrate(algorithms.dp_dsgd(*on("ring:n=4")), Privacy(trust.LDP(), **ZERO_OUT), noise_std=1.0)
    module = torch.nn.Linear(2, 1)
    with pytest.raises(UnsupportedMechanism, match="counts on batches that are drawn secretly, by Poisson"):
        mfdl.training.private_node.PrivateNode(
            torch.optim.SGD(module.parameters(), lr=0.1), module, calibrated, node=0, keys=NoiseKey.from_seed(0),
            loss=torch.nn.functional.mse_loss,
        )  # fmt: skip


torch.set_num_threads(1)
BINS = BallsInBins(epochs=3, bins=4)
ASKED_OF_BINS = {"trust": trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0}


def on_ring(participation=BINS):
    return dynamics_on("ring:n=3", 0.5), participation


def encoded(bins=BINS):
    """Local noise with the encoder that was factorized for public bins."""
    return dataclasses.replace(algorithms.mafalda(*on_ring(Cyclic(bins.epochs, bins.bins))), participation=bins)


def task_of(sizes=24, dim=2):
    return linear_task(3, np.random.default_rng(0).uniform(0.5, 1.5, (sizes, dim)))


def test_calibrated_noise_meets_its_target_with_less_than_public_bins_need():
    calibrated = calibrate(algorithms.dp_dsgd(*on_ring()), Privacy(**ASKED_OF_BINS), epsilon=1.5, delta=1e-5)
    guarantee = calibrated.guarantee
    assert guarantee.epsilon(1e-5) <= 1.5
    less = account(algorithms.dp_dsgd(*on_ring()), Privacy(**ASKED_OF_BINS), noise_std=calibrated.noise_std * 0.999)
    assert less.epsilon(1e-5) > 1.5
    public = calibrate(algorithms.dp_dsgd(*on_ring(Cyclic(3, 4))), Privacy(**ASKED_OF_BINS), epsilon=1.5, delta=1e-5)
    assert calibrated.noise_std < 0.8 * public.noise_std
    words = str(guarantee)
    for phrase in (
        "balls-in-bins (epochs=3, bins=4)", "secret", "epsilon: 1.5", "gradients: adaptive or non-adaptive",
        "with public bins"
    ):  # fmt: skip
        assert phrase in words
    content = json.loads(json.dumps(guarantee.to_dict()))
    assert (content["curve"]["bins"], content["adaptive"], content["bound"]) == (4, True, "upper")
    assert archive.copied(BINS, "participation") == BINS
    assert guarantee.mu is None


def test_noise_correlated_in_time_is_accounted_by_the_absolute_values_of_its_encoder():
    algorithm = encoded()
    guarantee = account(algorithm, Privacy(**ASKED_OF_BINS), noise_std=2.0)
    C = np.abs(algorithm.noise.causal.column_encoder(0))
    M = sum(C[:, e * 4 : e * 4 + 4] for e in range(3))
    M = M.T @ M
    assert guarantee.sensitivity == pytest.approx(math.sqrt(M.diagonal().max()), rel=1e-9)
    assert guarantee.sensitivity >= math.sqrt(M.diagonal().max())
    off = M[~np.eye(4, dtype=bool)].max() / M.diagonal().max()
    assert guarantee.curve.correlations[0] == (4, pytest.approx(off))
    public = account(
        dataclasses.replace(algorithm, participation=Cyclic(3, 4)), Privacy(**ASKED_OF_BINS), noise_std=2.0
    )
    assert guarantee.epsilon(1e-5) <= public.epsilon(1e-5) * (1 + 1e-6)


def test_noise_over_nodes_counts_by_its_covariance():
    algorithm = algorithms.decor(*on_ring(), sigma_ldp=1.0, sigma_cor=2.0)
    cyclic = algorithms.decor(*on_ring(Cyclic(3, 4)), sigma_ldp=1.0, sigma_cor=2.0)
    for model in (trust.Eavesdropper(), trust.LDP()):
        guarantee = account(algorithm, Privacy(**{**ASKED_OF_BINS, "trust": model}), noise_std=1.0)
        public = account(cyclic, Privacy(**{**ASKED_OF_BINS, "trust": model}), noise_std=1.0)
        assert guarantee.sensitivity == pytest.approx(public.sensitivity, rel=1e-6)


def test_what_the_theorem_does_not_cover_is_refused_by_name():
    algorithm = algorithms.dp_dsgd(*on_ring())
    unsupported("have no mu; give epsilon", lambda: calibrate(algorithm, Privacy(**ASKED_OF_BINS), mu=1.0))
    for option in ({"unit": "user"}, {"lipschitz": 1.0}, {"release": "all"}, {"method": "fastest"}):
        with pytest.raises(UnsupportedMechanism, match=f"leave out {next(iter(option))}"):
            calibrate(algorithm, Privacy(**ASKED_OF_BINS, **option), epsilon=1.0, delta=1e-5)
    unsupported("noise_multiplier", lambda: account(algorithm, Privacy(**ASKED_OF_BINS), noise_multiplier=1.0))
    unsupported("no public patterns and no mu", lambda: privacy.sensitivity_by_victim(algorithm, trust.LDP()))
    on_messages = dataclasses.replace(algorithm, noise_on_messages=True)
    unsupported("adds it elsewhere", lambda: account(on_messages, Privacy(**ASKED_OF_BINS), noise_std=1.0))
    encoders, more = np.stack([np.eye(12)] * 3 + [np.tri(12)]), np.hstack([np.eye(3), np.ones((3, 1))])
    columns = SpatioTemporalNoise(encoders, more, more.T != 0, 3)
    path = algorithms.dp_dsgd(dynamics_on("path:n=3", 0.5), BINS)
    hidden = {**ASKED_OF_BINS, "trust": trust.PNDP([2])}
    with pytest.raises(UnsupportedMechanism, match="time and nodes together by columns"):
        account(dataclasses.replace(path, noise=columns), Privacy(**hidden), noise_std=1.0)
    holders = np.array([[True, True, False], [True, True, True], [True, True, True]])
    factor = np.array([[1.0, 0.0, 0.5], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
    partly = SpatioTemporalNoise(encoders[1:], factor, holders, 3)
    with pytest.raises(UnsupportedMechanism, match="know a part"):
        account(dataclasses.replace(path, noise=partly), Privacy(**hidden), noise_std=1.0)
    joint = dataclasses.replace(algorithm, noise=JointNoise(np.eye(36), 12, 3))
    assert account(joint, Privacy(**ASKED_OF_BINS), noise_std=1.0).epsilon(1e-5) == math.inf


def test_noise_that_is_known_in_part_is_accounted_by_the_view_of_all_messages():
    algorithm = algorithms.dp_dsgd(*on_ring())
    encoders, more = np.stack([np.eye(12)] * 3 + [np.tri(12)]), np.hstack([np.eye(3), np.ones((3, 1))])
    columns = dataclasses.replace(algorithm, noise=SpatioTemporalNoise(encoders, more, more.T != 0, 3))
    local = account(algorithm, Privacy(**ASKED_OF_BINS), noise_std=2.0)
    shared = account(columns, Privacy(**ASKED_OF_BINS), noise_std=2.0)
    assert local.epsilon(1e-5) <= shared.epsilon(1e-5) <= local.epsilon(1e-5) * 1.001
    assert (shared.adaptive, shared.release) == (True, "not applicable")
    holders = np.array([[True, True, False], [True, True, True], [True, True, True]])
    factor = np.array([[1.0, 0.0, 0.5], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
    partly = dataclasses.replace(algorithm, noise=SpatioTemporalNoise(encoders[1:], factor, holders, 3))
    known = account(partly, Privacy(**{**ASKED_OF_BINS, "trust": trust.Colluding((2,))}), noise_std=1.0)
    assert known.epsilon(1e-5) == math.inf


@pytest.mark.parametrize("participation", [SAMPLING, BINS])
@pytest.mark.parametrize("build", [algorithms.dp_dsgd, algorithms.decor])
def test_without_noise_nothing_is_guaranteed(build, participation):
    dynamics = dynamics_on("ring:n=4", 0.1)
    guarantee = account(build(dynamics, participation), Privacy(trust.Eavesdropper(), **ZERO_OUT), noise_std=0.0)
    assert (guarantee.epsilon(1e-5), guarantee.delta(50.0)) == (math.inf, 1.0)
    assert "no finite guarantee" in guarantee.sentence()
    silent = calibrate(algorithms.dsgd(dynamics, participation), Privacy(**ASKED_OF_BINS), noise_std=1.0).guarantee
    assert (silent.epsilon(1e-5), json.loads(json.dumps(silent.to_dict()))["epsilon"]) == (math.inf, "inf")


@pytest.mark.parametrize("participation", [SAMPLING, BINS])
@pytest.mark.parametrize(
    "model",
    [
        *(trust.LDP(), trust.Eavesdropper(), trust.PNDP([0]), trust.AnyReceiver(), trust.Central()),
        *(trust.ReleasedOnly(), trust.TrustModel.from_masks(attackers=[0])),
    ],
)
def test_hidden_messages_count_as_seen(model, participation):
    """On a graph where no such attacker knows all models."""
    algorithm = algorithms.dp_dsgd(dynamics_on("ring:n=4", 0.5), participation)
    hidden, seen = (
        account(algorithm, Privacy(known, **ZERO_OUT), noise_std=2.0) for known in (model, model.all_messages())
    )
    assert hidden.curve == seen.curve
    assert ("assumed to be seen" in hidden.why) == model.hides_messages(algorithm)


def drawn_bins(key, sizes=6000, bins=5):
    return BinBatches(task_of(sizes).instance(0, 1), NoiseKey.from_seed(key), bins)


def test_bins_are_uniform_independent_and_of_their_key():
    sampler = drawn_bins(0)
    drawn = sampler.bins.ravel()
    counts = np.bincount(drawn, minlength=5)
    assert np.abs(counts - drawn.size / 5).max() < 5 * math.sqrt(drawn.size * 0.16)
    pairs = np.bincount(drawn[:-1] * 5 + drawn[1:], minlength=25)
    assert np.abs(pairs - (drawn.size - 1) / 25).max() < 5.5 * math.sqrt(drawn.size * 0.04)
    assert len({tuple(counts), tuple(np.bincount(drawn_bins(1).bins.ravel(), minlength=5))}) == 2  # sizes are not fixed
    assert (sampler.bins == drawn_bins(0).bins).all()
    for step in range(10):
        assert (sampler.drawn(step) == sampler.drawn(step + 5)).all()
    assert (sum(sampler.drawn(step).astype(int) for step in range(5)) == 1).all()


def test_a_run_feeds_each_record_its_bin_and_divides_by_a_constant(tmp_path):
    calibrated, task = (
        calibrate(algorithms.dp_dsgd(*on_ring()), Privacy(**{**ASKED_OF_BINS, "clip_norm": 100.0}), noise_std=0.0),
        task_of(14),
    )
    batches, plain = [], BinBatches.step_batch
    options = {"seeds": [5], "keep_messages": True, "dtype": torch.float64, "progress": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BinBatches, "step_batch", lambda self, t: (batches.append(self.drawn(t)), plain(self, t))[1])
        run = replay(calibrated, task, **options)
    index = task.instance(5, 1).record_index[:, 0].numpy()
    rows = np.where(index[..., None] >= 0, task.features[index], 0.0)
    wanted = np.einsum("tnb,nbd->tnd", np.array(batches, dtype=float), rows) / (task.public_batch_sizes(1) / 4)[:, None]
    models, W = np.zeros((3, 2)), np.full((3, 3), 1 / 3)
    for message, expected in zip(run.seeds[0].messages, wanted, strict=True):
        np.testing.assert_allclose((models - message) / 0.5, expected, rtol=1e-6, atol=1e-9)
        models = W @ message
    replay(calibrated, task, checkpoint_folder=tmp_path, stop_after=5, **options)
    rest = replay(calibrated, task, checkpoint_folder=tmp_path, **options)
    np.testing.assert_array_equal(rest.seeds[0].models, run.seeds[0].models)
    refuses("period must be left out", replay, calibrated, task, seeds=[0], period=4)


def test_what_a_task_computed_from_its_records_is_declared_and_said():
    calibrated, task = (calibrate(algorithms.dp_dsgd(*on_ring()), Privacy(**ASKED_OF_BINS), noise_std=2.0), task_of())
    silent = dataclasses.replace(task, public_constants=None)
    unsupported("must declare what was computed", replay, calibrated, silent, seeds=[0])
    scaled = dataclasses.replace(task, public_constants="the largest feature")
    run = replay(calibrated, scaled, seeds=[0], progress=False)
    assert run.statement().endswith("\nnot covered, declared public: the largest feature")
    assert run.statement(1e-3).startswith(str(dataclasses.replace(calibrated.guarantee, stated_delta=1e-3)))
    assert replay(calibrated, task, seeds=[0], progress=False).statement() == str(calibrated.guarantee)
    refuses("public_constants must say in words", dataclasses.replace, task, public_constants=" ")


def test_an_empty_bin_sends_its_noise():
    calibrated = calibrate(algorithms.dp_dsgd(*on_ring(BallsInBins(1, 200))), Privacy(**ASKED_OF_BINS), noise_std=3.0)
    run = replay(calibrated, task_of(3, dim=5), seeds=[0], keep_messages=True, progress=False, eval_every=200)
    sent = run.seeds[0].messages
    assert sent.shape == (200, 3, 5)
    assert (np.abs(sent).max(axis=2) > 0).all()


def test_bins_without_noise_guarantee_nothing():
    calibrated = calibrate(algorithms.dp_dsgd(*on_ring()), Privacy(**ASKED_OF_BINS), noise_std=0.0)
    assert calibrated.guarantee.epsilon(1e-5) == math.inf
    assert (
        calibrate(algorithms.dsgd(*on_ring()), Privacy(**ASKED_OF_BINS), noise_std=1.0).guarantee.epsilon(1e-5)
        == math.inf
    )


@pytest.mark.parametrize(
    "hiding", [trust.PNDP([0]), trust.AnyReceiver(), trust.Central(), trust.ReleasedOnly(),
               trust.TrustModel.from_masks(attackers=[0])],
)  # fmt: skip
def test_hidden_messages_count_as_seen_by_poisson_sampling(hiding):
    algorithm = algorithms.dp_dsgd(*on("ring:n=4"))
    hidden = account(algorithm, Privacy(hiding, **ZERO_OUT), noise_std=1.0)
    assert hidden.curve == account(algorithm, Privacy(hiding.all_messages(), **ZERO_OUT), noise_std=1.0).curve
    assert hidden.noise_multiplier <= 1.0


def test_other_schemes_are_not_amplified():
    """A guarantee of balls-in-bins is not taken for an algorithm whose bins are public."""
    calibrated = calibrate(algorithms.dp_dsgd(*on_ring()), Privacy(**ASKED_OF_BINS), noise_std=2.0)
    with pytest.raises((InvalidInput, UnsupportedMechanism)):
        dataclasses.replace(calibrated, algorithm=algorithms.dp_dsgd(*on_ring(Cyclic(3, 4))))

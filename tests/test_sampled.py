"""Mechanisms of secret batches: the multiplier is that of exact covariances, and what is not proven is refused."""

import dataclasses
import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from effort import examples
from exact import inverse
from hypothesis import given
from hypothesis import strategies as st

import mfdl
from mfdl import Dynamics, EveryStep, PoissonSampling, algorithms, gossip, trust
from mfdl.errors import InvalidInput, UnsupportedMechanism
from mfdl.noise import LocalNoise
from mfdl.participation import Cyclic, ParticipationByNode
from mfdl.privacy.curves import PoissonGaussian
from mfdl.testing import connected_graphs

SAMPLING = PoissonSampling(rate=0.1, steps=4)
ASKED = {"adjacency": "zero-out", "clip_norm": 1.0}


def on(graph, participation=SAMPLING, **options):
    return Dynamics(gossip.metropolis_hastings(graph), 0.1, **options), participation


def exact_worst(graph, colluders, local, pair):
    """max over honest i of [(local^2 I + pair^2 L)^-1]_ii on the graph without the colluders, as a Fraction."""
    kept = [v for v in range(len(graph)) if v not in colluders]
    labels = sorted(graph)
    edges = {frozenset((labels.index(a), labels.index(b))) for a, b in graph.edges}
    R = [[Fraction(0)] * len(kept) for _ in kept]
    for i, u in enumerate(kept):
        R[i][i] += Fraction(local) ** 2
        for j, v in enumerate(kept):
            if frozenset((u, v)) in edges and u != v:
                R[i][i] += Fraction(pair) ** 2
                R[i][j] -= Fraction(pair) ** 2
    return max(inverse(R)[i][i] for i in range(len(kept)))


@examples(40)
@given(
    graph=connected_graphs(min_nodes=3, max_nodes=6), q=st.integers(0, 2),
    local=st.sampled_from([0.25, 1.0, 3.0]), pair=st.sampled_from([0.0, 0.5, 8.0]),
    clip=st.floats(0.1, 10), nu=st.floats(0.1, 100), adjacency=st.sampled_from(["zero-out", "replace-one"]),
)  # fmt: skip
def test_the_multiplier_is_that_of_the_exact_covariance(graph, q, local, pair, clip, nu, adjacency):
    """DECOR's accountant in fractions, over all coalitions; the clipping norm counts once under every adjacency."""
    n = graph.number_of_nodes()
    algorithm = algorithms.decor(*on(graph), sigma_local=local, sigma_pair=pair)
    ordered = {label: i for i, label in enumerate(mfdl.graphs.labels(graph))}
    plain = type(graph)()
    plain.add_nodes_from(range(n))
    plain.add_edges_from((ordered[a], ordered[b]) for a, b in graph.edges)
    worst = max(exact_worst(plain, set(c), local, pair) for c in itertools.combinations(range(n), min(q, n - 1)))
    stated = mfdl.account(
        algorithm, trust=trust.Coalitions(min(q, n - 1)), adjacency=adjacency, clip_norm=clip, noise_std=nu
    )
    squared = Fraction(stated.noise_multiplier) ** 2 * Fraction(clip) ** 2 * worst
    assert squared <= Fraction(nu) ** 2  # never more noise than there is
    assert float(squared) >= nu**2 * (1 - 1e-9)
    assert stated.curve == PoissonGaussian(stated.noise_multiplier, 0.1, 4, adjacency)


def test_one_step_is_dominated_in_the_full_space_of_messages():
    """The hockey stick of two nodes' correlated sums, victim 0, on a grid of the plane, against the stated delta."""
    R = np.array([[1.0, -0.6], [-0.6, 1.3]])
    dynamics = Dynamics(gossip.metropolis_hastings("complete:n=2"), 0.1)
    algorithm = algorithms.spatial_covariance(dynamics, PoissonSampling(0.3, 1), R)
    stated = mfdl.account(algorithm, trust=trust.SecLDP(), **ASKED, noise_std=1.0)
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
        assert true * (1 - 1e-4) <= stated.delta(epsilon) <= true * 1.01 + 1e-9


def test_calibrated_noise_meets_its_target_and_the_guarantee_says_everything():
    algorithm = algorithms.decor(*on("ring:n=5"), sigma_local=1.0, sigma_pair=2.0)
    made = mfdl.calibrate(algorithm, trust=trust.Coalitions(1), **ASKED, epsilon=1.5, delta=1e-4)
    stated = made.guarantee
    assert stated.epsilon(1e-4) <= 1.5
    assert stated.stated_delta == 1e-4
    less = mfdl.account(algorithm, trust=trust.Coalitions(1), **ASKED, noise_std=made.noise_std * 0.999)
    assert less.epsilon(1e-4) > 1.5
    words = str(stated)
    for said in (
        "coalitions",
        "zero-out",
        "Poisson sampling (rate=0.1, 4 steps)",
        "secret",
        "gradients: adaptive or not",
        "epsilon: ",
    ):
        assert said in words
    told = json.loads(json.dumps(stated.to_dict()))
    curve = told["curve"]
    assert (curve["kind"], curve["rate"], curve["steps"]) == ("poisson", 0.1, 4)
    assert (told["mu"], told["unit"], told["adaptive"]) == (None, "record", True)
    assert str(made).startswith("Mechanism decor on 5 nodes, 4 steps: epsilon = ")
    assert stated.mu is None
    with pytest.raises(UnsupportedMechanism, match="is not Gaussian"):
        stated.renyi_epsilon(2.0)
    with pytest.raises(UnsupportedMechanism, match="do not compose"):
        stated.compose_with(stated)


@pytest.mark.parametrize("build", [algorithms.dp_dsgd, algorithms.decor])
def test_without_noise_nothing_is_guaranteed(build):
    stated = mfdl.account(build(*on("ring:n=4")), trust=trust.SecLDP(), **ASKED, noise_std=0.0)
    assert stated.epsilon(1e-5) == math.inf
    assert stated.delta(50.0) == 1.0
    assert "no finite guarantee" in stated.sentence()
    made = mfdl.with_noise(algorithms.dsgd(*on("ring:n=4")), trust=trust.LDP(), **ASKED, noise_std=1.0)
    assert made.guarantee.epsilon(1e-5) == math.inf
    assert json.loads(json.dumps(made.guarantee.to_dict()))["epsilon"] == "inf"


def test_noise_that_cancels_or_is_known_hides_nothing():
    """e_u outside the range of the covariance; a shared seed under LDP; and calibration says so."""
    n = 4
    L = n * np.eye(n) - np.ones((n, n))
    cancels = algorithms.spatial_covariance(*on("complete:n=4"), L)
    assert mfdl.account(cancels, trust=trust.SecLDP(), **ASKED, noise_std=1.0).epsilon(1e-5) == math.inf
    shared = algorithms.spatial_covariance(*on("complete:n=4"), np.eye(n))
    assert mfdl.account(shared, trust=trust.SecLDP(), **ASKED, noise_std=1.0).epsilon(1e-5) < math.inf
    assert mfdl.account(shared, trust=trust.LDP(), **ASKED, noise_std=1.0).epsilon(1e-5) == math.inf
    with pytest.raises(InvalidInput, match="infinite loss"):
        mfdl.calibrate(shared, trust=trust.LDP(), **ASKED, epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize(
    "hiding", [trust.PNDP([0]), trust.AnyReceiver(), trust.Central(), trust.ReleasedOnly(),
               trust.TrustModel.from_masks(attackers=[0])],
)  # fmt: skip
def test_hidden_messages_are_refused_and_the_way_out_works(hiding):
    algorithm = algorithms.dp_dsgd(*on("ring:n=4"))
    with pytest.raises(UnsupportedMechanism, match="hides messages"):
        mfdl.account(algorithm, trust=hiding, **ASKED, noise_std=1.0)
    assert mfdl.account(algorithm, trust=hiding.all_messages(), **ASKED, noise_std=1.0).noise_multiplier <= 1.0


def test_noise_correlated_in_time_is_refused_even_where_it_happens_not_to_be():
    dynamics, sampling = on("ring:n=4")
    plain = algorithms.dp_dsgd(dynamics, sampling)
    encoded = dataclasses.replace(plain, noise=LocalNoise(np.eye(4), num_nodes=4))
    for one in (encoded, algorithms.anti_pgd(dynamics, sampling)):
        with pytest.raises(UnsupportedMechanism, match="correlated over time"):
            mfdl.account(one, trust=trust.LDP(), **ASKED, noise_std=1.0)


def test_noise_that_divisors_leave_alone_is_refused_though_it_enters_by_the_maps_of_gradients():
    """Trained, gradients would be divided by the expected batch size, and noise by nothing."""
    plain = algorithms.dp_dsgd(*on("ring:n=4"))
    on_messages = dataclasses.replace(plain, noise_on_messages=True)
    assert on_messages.noise_enters_with_gradients
    made = mfdl.with_noise(plain, trust=trust.LDP(), **ASKED, noise_std=1.0)
    for ask in (
        lambda: mfdl.account(on_messages, trust=trust.LDP(), **ASKED, noise_std=1.0),
        lambda: dataclasses.replace(made, algorithm=on_messages),
    ):
        with pytest.raises(UnsupportedMechanism, match="adds it elsewhere"):
            ask()


def test_public_schemes_and_secret_ones_have_an_accountant_each():
    public = algorithms.dp_dsgd(*on("ring:n=4", Cyclic(2, 2)))
    assert mfdl.account(public, trust=trust.LDP(), **ASKED, noise_std=1.0).mu > 0
    secret = algorithms.dp_dsgd(*on("ring:n=4"))
    how = {"trust": trust.LDP(), **ASKED}
    for ask in (
        lambda: mfdl.victim_losses(secret, trust.LDP()),
        lambda: mfdl.factorization.problem(*on("ring:n=4")),
        lambda: SAMPLING.patterns(),
        lambda: SAMPLING.num_patterns,
        lambda: SAMPLING.allows([0]),
        lambda: SAMPLING.classes(),
    ):
        with pytest.raises(UnsupportedMechanism, match="has no public patterns"):
            ask()
    assert mfdl.account(secret, **how, noise_std=1.0).mu is None
    with pytest.raises(UnsupportedMechanism, match="have no mu; give epsilon and delta"):
        mfdl.calibrate(secret, **how, mu=1.0)
    with pytest.raises(UnsupportedMechanism, match="leave out unit, got 'user'"):
        mfdl.calibrate(secret, **how, epsilon=1.0, delta=1e-5, unit="user")
    with pytest.raises(InvalidInput, match="must be public"):
        ParticipationByNode([SAMPLING, EveryStep(4)])


def test_a_guarantee_is_that_of_its_question():
    """Edited, of another algorithm, trust model or noise: no mechanism takes it."""
    algorithm = algorithms.decor(*on("ring:n=4"), sigma_local=1.0, sigma_pair=1.0)
    made = mfdl.with_noise(algorithm, trust=trust.SecLDP(), **ASKED, noise_std=2.0)
    better = PoissonGaussian(made.guarantee.noise_multiplier / 2, 0.01, 4, "zero-out")
    edited = dataclasses.replace(made.guarantee, curve=better)
    assert not edited.fingerprint
    with pytest.raises(InvalidInput, match="edited by hand"):
        dataclasses.replace(made, guarantee=edited)
    with pytest.raises(InvalidInput, match="at most noise_std"):
        dataclasses.replace(made.guarantee, curve=PoissonGaussian(1e3, 0.1, 4, "zero-out"))
    other = algorithms.decor(*on("ring:n=4", PoissonSampling(0.2, 4)), sigma_local=1.0, sigma_pair=1.0)
    with pytest.raises(InvalidInput, match="another algorithm"):
        dataclasses.replace(made, algorithm=other)
    with pytest.raises(InvalidInput, match="another trust model"):
        dataclasses.replace(made, trust=trust.LDP())
    assert other.content_hash != algorithm.content_hash


def test_couples_of_decor_meet_an_example_level_target_and_no_more():
    dynamics, sampling = on("ring:n=6")
    target = {"epsilon": 1.5, "delta": 1e-4}
    for budget in ("gdp", "renyi"):
        couples = mfdl.decor_couples(
            dynamics, sampling, **ASKED, **target, unit="record", trust=trust.Coalitions(1), budget=budget
        )
        local = [c.sigma_local for c in couples]
        assert local == sorted(local)
        assert couples[-1].sigma_pair == 0
        for couple in couples:
            again = algorithms.decor(dynamics, sampling, sigma_local=couple.sigma_local, sigma_pair=couple.sigma_pair)
            stated = mfdl.account(again, trust=trust.Coalitions(1), **ASKED, noise_std=1.0)
            assert stated.epsilon(1e-4) <= 1.5 * (1 + 1e-9)
            assert couple.mechanism.guarantee.epsilon(1e-4) <= 1.5
            if budget == "renyi":
                assert couple.mechanism.guarantee.curve.renyi_epsilon(1e-4) <= 1.5
            else:
                assert stated.epsilon(1e-4) >= 1.5 * (1 - 1e-3)
    for wrong in ({"unit": "user"}, {"budget": "corollary"}, {"epsilon": None, "delta": None, "mu": 1.0}):
        with pytest.raises(InvalidInput):
            mfdl.decor_couples(dynamics, sampling, **ASKED, **{"unit": "record", **target, **wrong})


def test_a_node_of_ones_own_does_not_take_a_sampled_mechanism():
    made = mfdl.with_noise(algorithms.dp_dsgd(*on("ring:n=4")), trust=trust.LDP(), **ASKED, noise_std=1.0)
    module = torch.nn.Linear(2, 1)
    with pytest.raises(UnsupportedMechanism, match="counts on batches that are drawn secretly, by Poisson"):
        mfdl.training.private_node.PrivateNode(
            torch.optim.SGD(module.parameters(), lr=0.1), module, made, node=0, keys=mfdl.NoiseKey.from_seed(0),
            loss=torch.nn.functional.mse_loss,
        )  # fmt: skip

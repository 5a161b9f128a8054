"""A budget for each node: what each loses is held against the dense view, and noise is scaled where it is injected."""

import dataclasses
import math

import numpy as np
import pytest
from _privacy import applied
from vocabulary import ZERO_OUT, assume, dynamics_on, each, given, refuses, st, unsupported

import mfdl
from mfdl import Cyclic, Guarantee, InvalidInput, NoiseKey, algorithms, trust
from mfdl.algorithms import noise_error
from mfdl.noise import LocalNoise
from mfdl.objective import NoiseObjective
from mfdl.privacy import questions, sensitivity_by_victim
from mfdl.testing import ALL_SEEN_KINDS, PROTECTING_NAMES, linear_algorithms, trust_models
from mfdl.testing.tasks import linear_task
from mfdl.training.streams import noise_stream

RING = dynamics_on("ring:n=4", 0.5)
WISHED = {0: 0.25, 1: 1.0, 2: 0.5, 3: 1.0}
BUDGETS = st.sampled_from([0.125, 0.3, 0.5, 1.0, 2.0])


def ring(build=algorithms.dp_dsgd, epochs=2, period=3, **options):
    return build(RING, Cyclic(epochs, period), **options)


def calibrated(algorithm, mu=WISHED, model=None, **options):
    return applied(mfdl.calibrate, algorithm, {"trust": model or trust.LDP(), "mu": mu, **ZERO_OUT, **options})


def dense_squared(mechanism, model, victim):
    """The largest |C_u g|^2 over patterns and signs, by the pseudo-inverse of the injected covariance."""
    algorithm = mechanism.algorithm
    view = model.view(algorithm, victim)
    known = view.knowledge.known_noise.ravel()
    N = algorithm.noise.to_dense() * ~known
    X = np.linalg.pinv(N @ N.T, rcond=1e-11, hermitian=True)
    columns = np.arange(algorithm.num_steps) * algorithm.num_nodes + victim
    X, largest = X[np.ix_(columns, columns)], 0.0
    for steps in algorithm.participation.patterns():
        part = X[np.ix_(steps, steps)]
        for signs in np.ndindex(*(2,) * len(steps)):
            g = 1.0 - 2.0 * np.array(signs)
            largest = max(largest, float(g @ part @ g))
    return largest


@given(60, data=st.data())
def test_each_node_meets_its_budget_against_the_dense_view(data):
    """All messages seen: the loss of every node is that of equal budgets, times its own over the largest."""
    names = (*PROTECTING_NAMES, "kronecker", "per-mode")
    algorithm = data.draw(linear_algorithms(names, 2, 2, 3, min_nodes=2))
    model = data.draw(trust_models(algorithm, kinds=ALL_SEEN_KINDS))
    labels = algorithm.dynamics.gossip.labels
    mu = {label: data.draw(BUDGETS) for label in labels}
    try:
        mechanism, alike = calibrated(algorithm, mu, model), calibrated(algorithm, max(mu.values()), model)
    except InvalidInput as error:
        assume("infinite loss" not in str(error))
        raise
    each, largest = {u: curve.mu for u, curve in mechanism.guarantee.by_victim().items()}, max(mu.values())
    plain = {x.victim: x.adaptive_sensitivity.squared for x in sensitivity_by_victim(algorithm, model)}
    assert mechanism.guarantee.mu == max(each.values())
    for loss in sensitivity_by_victim(mechanism.algorithm, model):
        label = labels[loss.victim]
        assert each[str(label)] <= mu[label]
        squared = loss.adaptive_sensitivity.squared
        assert squared == pytest.approx(plain[loss.victim] * (mu[label] / largest) ** 2, rel=1e-6)
        if not isinstance(model, trust.FullCollusion | trust.Coalitions):  # whose members are views of their own
            assert squared >= dense_squared(mechanism, model, loss.victim) * (1 - 1e-6)
    worst = max(each[str(label)] / mu[label] for label in labels if str(label) in each)
    assert worst == pytest.approx(1.0, rel=1e-9)
    assert mechanism.noise_std <= alike.noise_std * (1 + 1e-6)


@given(40, data=st.data())
def test_hidden_messages_are_accounted_with_the_noise_that_each_node_adds(data):
    algorithm = data.draw(linear_algorithms(("dp-dsgd", "mf-shared", "mf-per-node", "decor"), 2, 2, 3, min_nodes=2))
    model = data.draw(trust_models(algorithm, kinds=("pndp", "any-receiver", "central")))
    mu = {label: data.draw(BUDGETS) for label in algorithm.dynamics.gossip.labels}
    try:
        mechanism = calibrated(algorithm, mu, model)
    except InvalidInput as error:
        assume("infinite loss" not in str(error))
        raise
    anew = mfdl.losses(mechanism.algorithm, mfdl.Privacy(model, **ZERO_OUT)).by_victim(mechanism.noise_std)
    assert dict(mechanism.guarantee.victims) == {guarantee.victim: guarantee.curve for guarantee in anew}
    reached = [guarantee.mu / mu[label] for guarantee in anew for label in mu if str(label) == guarantee.victim]
    assert max(reached) <= 1
    assert max(reached) == pytest.approx(1.0, rel=1e-9)


def test_equal_budgets_are_one_mu_bit_for_bit():
    algorithm = ring(algorithms.mafalda)
    each, alike = calibrated(algorithm, dict.fromkeys(range(4), 0.5)), calibrated(algorithm, 0.5)
    assert each.algorithm is algorithm
    assert (each.noise_std, each.content_hash) == (alike.noise_std, alike.content_hash)
    assert alike.guarantee.victims == ()


@pytest.mark.parametrize("build", [algorithms.dp_dsgd, algorithms.mafalda, algorithms.mafalda_l, algorithms.bsr])
def test_local_noise_costs_the_sum_of_losses_over_squared_budgets(build):
    """sum_u tr(H_u X_u^-1) (mu / mu_u)^2, the Gram of each node by itself."""
    algorithm = ring(build)
    mechanism = calibrated(algorithm)
    causal, total = algorithm.noise.causal, 0.0
    for u, H in enumerate(NoiseObjective(RING, 6).over_steps_of_nodes()):
        N = causal.column_inverse(u)
        total += np.trace(N.T @ H @ N) * (1.0 / WISHED[u]) ** 2
    assert noise_error(mechanism.algorithm).value == pytest.approx(total, rel=1e-9)
    assert mechanism.algorithm.noise.local


def test_what_a_node_injects_is_its_share_times_the_noise_of_equal_budgets():
    """Same keys: row u of the stream is max mu / mu_u times that of the algorithm before."""
    mechanism = calibrated(ring(algorithms.mafalda))
    streams = (
        noise_stream(algorithm.noise, 2.0, NoiseKey.from_seed(3), 5)
        for algorithm in (mechanism.algorithm, ring(algorithms.mafalda))
    )
    scaled, plain = (np.stack([stream.step(t) for t in range(6)]) for stream in streams)
    share = np.array([1.0 / WISHED[u] for u in range(4)])
    np.testing.assert_allclose(scaled, plain * share[:, None], rtol=1e-12)


@pytest.mark.parametrize("fresh", [True, False])
def test_shift_reduction_is_that_of_an_encoder_for_each_node(fresh):
    scales, C = np.array([1.0, 4.0, 2.0, 1.0]), np.eye(2) + (0 if fresh else -0.5 * np.eye(2, k=-1))
    plain = ring(period=1) if fresh else ring(algorithms.mf_dsgd, period=1, encoder=C)
    scaled = dataclasses.replace(plain, noise=plain.noise.scaled(scales))
    written = dataclasses.replace(plain, noise=LocalNoise(C / scales[:, None, None], 4))
    for model in (trust.PNDP([0]), trust.ReleasedOnly()):
        losses = (sensitivity_by_victim(algorithm, model, lipschitz=1.0) for algorithm in (scaled, written))
        for of_scaled, of_written in zip(*losses, strict=True):
            assert of_scaled.adaptive_by == of_written.adaptive_by
            for name in ("adaptive_sensitivity_squared", "sensitivity_squared"):
                assert getattr(of_scaled, name) == pytest.approx(getattr(of_written, name), rel=1e-6)


def curve(mu):
    return mfdl.privacy.Gaussian(mu, "zero-out")


def test_a_guarantee_says_what_each_node_has_in_words_files_and_compositions(tmp_path):
    mechanism = calibrated(ring())
    guarantee = mechanism.guarantee
    assert dict(guarantee.fields())["mu by node"] == "0.25 for node 0; 0.5 for node 2; 1 for nodes 1, 3"
    guarantee.save(tmp_path / "guarantee.json")
    read = Guarantee.load(tmp_path / "guarantee.json")
    assert (read, read.seal) == (guarantee, guarantee.seal)
    better = dataclasses.replace(guarantee, victims=(("0", curve(0.1)), *guarantee.victims[1:]))
    assert not better.seal
    twice = guarantee.compose_with(guarantee).by_victim()
    assert twice["0"].mu == pytest.approx(0.25 * math.sqrt(2))
    with_all = guarantee.compose_with(calibrated(ring(), 1.0).guarantee).by_victim()
    assert with_all["0"].mu == pytest.approx(math.hypot(0.25, 1.0))
    again = mechanism.load(mechanism.save(tmp_path / "mechanism.npz"))
    assert again.guarantee.victims == guarantee.victims
    small = curve(0.1)
    for wrong in ((("0", curve(2.0)),), (("0", small), ("0", small)), ((0, small),), "0.2", (("0", 0.1),)):
        refuses("victims", dataclasses.replace, guarantee, victims=wrong)


def test_a_run_adds_the_noise_of_the_budgets():
    """Gradients of 0: what a node sends after one step is its noise, whose spread is sensitivity / mu_u."""
    mechanism = calibrated(ring(epochs=1, period=1))
    task = linear_task(4, np.zeros((4, 4000)))
    run = mfdl.replay(mechanism, task, seeds=[0], keep_messages=True, progress=False)
    spread = run.seeds[0].messages[0].std(axis=1) / 0.5
    batch = task.public_batch_sizes(1)
    np.testing.assert_allclose(spread * batch, [1 / WISHED[u] for u in range(4)], rtol=0.05)


@each(
    "mu, message",
    ({0: 1.0, 1: 1.0}, "budget > 0 for every node, and has none for 2, 3 of 4"),
    ({**WISHED, "x": 1.0}, "names 'x', which is no node"),
    ({**WISHED, 2: 0.0}, "mu of node 2 must be a finite number > 0"),
    ({**WISHED, 2: "much"}, "mu of node 2 must be a finite number > 0"),
    ({**WISHED, 2: 1e-9}, "within a factor"),
)
def test_budgets_that_are_none_are_refused(mu, message):
    refuses(message, lambda: calibrated(ring(), mu))


def test_noise_that_no_node_scales_is_refused():
    unsupported("adds noise to messages", lambda: calibrated(ring(algorithms.zip_dl)))
    refuses("exactly one target", lambda: calibrated(ring(), epsilon=1.0, delta=1e-5))
    refuses("no noise to scale", lambda: calibrated(ring(algorithms.dsgd)))
    assert questions.scaled_to_budgets(ring(algorithms.dsgd), np.array([1.0, 2.0, 1.0, 1.0])).noise.is_zero

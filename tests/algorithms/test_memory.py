"""D-SGD with memory: each builder is its update equations, is accounted, calibrated, trained and audited."""

import dataclasses
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from vocabulary import ZERO_OUT, each, given, refuses, st, unsupported

import mfdl
from mfdl import Cyclic, Dynamics, EveryStep, algorithms, gossip, trust
from mfdl.algorithms import delayed_dsgd, exact_diffusion, gradient_tracking, local_steps, two_hop_dsgd
from mfdl.algorithms.registry import MECHANISMS, parse_parameters
from mfdl.audit import audit
from mfdl.noise import LocalNoise
from mfdl.participation import Single
from mfdl.privacy import sensitivity_by_victim
from mfdl.testing import gossip_matrices, gossip_sequences

NAMES = ("gradient-tracking", "exact-diffusion", "delayed-dsgd", "two-hop-dsgd", "local-steps")
STAR = gossip.metropolis_hastings("star:n=4")


def models_of(algorithm, i):
    """Models before each step and at the end, for injected sums i, (T, n), and start models 0."""
    T, n = i.shape
    during = algorithm.models_from_gradients() @ i.ravel()
    return np.vstack([during.reshape(T, n), algorithm.models_from_gradients(final=True) @ i.ravel()])


def messages_of(algorithm, i):
    return (algorithm.messages_from_gradients @ i.ravel()).reshape(len(algorithm.rounds), -1)


@st.composite
def runs(draw, *, varying=True, max_steps=5):
    T = draw(st.integers(1, max_steps))
    if varying and draw(st.booleans()):
        W = dataclasses.replace(draw(gossip_sequences(max_nodes=4)), repeat=True)
    else:
        W = draw(gossip_matrices(max_nodes=4))
    rng, n = np.random.default_rng(draw(st.integers(0, 2**32 - 1))), W.num_nodes
    return W, rng.uniform(0.1, 1.0, T), rng.normal(size=(T, n))


few = 30


@given(few, runs(), st.sampled_from([0.0, 0.5, 0.9]))
def test_gradient_tracking_is_its_equations(run, momentum):
    W, rates, i = run
    T, n = i.shape
    algorithm = gradient_tracking(Dynamics(W, rates, momentum=momentum), EveryStep(T))
    theta, v, mixed, sums, sent = np.zeros(n), np.zeros(n), np.zeros(n), [np.zeros(n)], []
    for t in range(T):
        before, v = v, momentum * v + i[t]
        y = mixed + v - before
        sent.append(np.concatenate([theta - rates[t] * y, y]))
        theta, mixed = W.at(t).weights @ (theta - rates[t] * y), W.at(t).weights @ y
        sums.append(theta)
    assert_allclose(models_of(algorithm, i), sums, atol=1e-12)
    assert_allclose(messages_of(algorithm, i), sent, atol=1e-12)
    if W.is_doubly_stochastic:  # the average of y is that of v: what makes it tracking
        assert_allclose(y.mean(), v.mean(), atol=1e-12)


@given(few, runs())
def test_exact_diffusion_is_its_equations(run):
    W, rates, i = run
    T, n = i.shape
    theta, psi, sums = np.zeros(n), np.zeros(n), [np.zeros(n)]
    for t in range(T):
        new = theta - rates[t] * i[t]
        theta, psi = (np.eye(n) + W.at(t).weights) / 2 @ (new + theta - psi), new
        sums.append(theta)
    assert_allclose(models_of(exact_diffusion(Dynamics(W, rates), EveryStep(T)), i), sums, atol=1e-12)


@given(few, runs(), st.integers(0, 3))
def test_delayed_messages_are_used_late(run, delay):
    W, rates, i = run
    T, n = i.shape
    theta, m, sums = np.zeros(n), {}, [np.zeros(n)]
    for t in range(T):
        m[t] = theta - rates[t] * i[t]
        w = W.at(t).weights.toarray()
        diagonal = np.diag(np.diag(w))
        theta = diagonal @ m[t] + (w - diagonal) @ m.get(t - delay, np.zeros(n))
        sums.append(theta)
    algorithm = delayed_dsgd(Dynamics(W, rates), EveryStep(T), delay=delay)
    assert_allclose(models_of(algorithm, i), sums, atol=1e-12)
    assert_allclose(messages_of(algorithm, i), [m[t] for t in range(T)], atol=1e-12)


@given(few, runs(varying=False), st.sampled_from([0.0, 0.25, 1.0]))
def test_forwarded_messages_are_used_once(run, share):
    W, rates, i = run
    T, n = i.shape
    theta, last, sums = np.zeros(n), np.zeros(n), [np.zeros(n)]
    w = W.at(0).weights.toarray()
    algorithm = two_hop_dsgd(Dynamics(W, rates), EveryStep(T), share=share)
    sent = messages_of(algorithm, i)
    for t in range(T):
        m = theta - rates[t] * i[t]
        assert_allclose(sent[t, :n], m, atol=1e-12)
        links = [(u, v) for u in range(n) for v in range(n) if u != v and w[u, v]]
        assert sorted(sent[t, n:]) == pytest.approx(sorted(last[x] for _, x in links), abs=1e-12)
        theta, last = (1 - share) * w @ m + share * w @ w @ last, m
        sums.append(theta)
    assert_allclose(models_of(algorithm, i), sums, atol=1e-12)


@given(few, runs(), st.integers(1, 3))
def test_local_steps_gossip_when_it_is_due(run, steps):
    W, rates, i = run
    T, n = i.shape
    theta, turn, sums = np.zeros(n), 0, [np.zeros(n)]
    algorithm = local_steps(Dynamics(W, rates), EveryStep(T), steps=steps)
    for t in range(T):
        theta = theta - rates[t] * i[t]
        due = (t + 1) % steps == 0 or t == T - 1
        assert algorithm.sent[t].all() == algorithm.sent[t].any() == due
        if due:
            theta, turn = W.at(turn).weights @ theta, turn + 1
        sums.append(theta)
    assert_allclose(models_of(algorithm, i), sums, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scheme", [EveryStep(6), Single(6), Cyclic(3, 2)], ids=["every", "single", "cyclic"])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_mu_of_independent_noise_is_root_k(name, scheme, adjacency):
    """LDP and the eavesdropper: at most sqrt(k) record shifts of C, or 2 C, over nu."""
    C, nu = 1.5, 2.0
    algorithm = algorithms.build(name, Dynamics(STAR, 0.5), scheme)
    k = max(len(pattern) for pattern in scheme.patterns())
    shift = C * (2 if adjacency == "replace-one" else 1)
    for model in (trust.LDP(), trust.Eavesdropper()):
        mechanism = mfdl.calibrate(algorithm, mfdl.Privacy(model, adjacency=adjacency, clip_norm=C), noise_std=nu)
        assert mechanism.guarantee.adaptive
        # rounding up included
        assert 0 < mechanism.guarantee.mu <= math.sqrt(k) * shift / nu * (1 + 1e-9)
    if name != "local-steps":  # whose messages between two gossip rounds are not sent
        local = mfdl.calibrate(algorithm, mfdl.Privacy(trust.LDP(), adjacency=adjacency, clip_norm=C), noise_std=nu)
        assert local.guarantee.mu == pytest.approx(math.sqrt(k) * shift / nu)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", [trust.Colluding((1,)), trust.PNDP((0,)), trust.PNDP((3,)), trust.FullCollusion()])
def test_every_attacker_gets_a_finite_adaptive_number(name, model):
    algorithm = algorithms.build(name, Dynamics(STAR, 0.5), EveryStep(4))
    for loss in sensitivity_by_victim(algorithm, model):
        assert loss.adaptive_sensitivity_squared <= 4 * (1 + 1e-9)
        assert loss.sensitivity_squared <= loss.adaptive_sensitivity_squared * (1 + 1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_noise_correlated_in_time_is_that_of_plain_gossip(name):
    """The injected sums decide, so an encoder has the LDP loss it has under D-SGD."""
    scheme = Cyclic(2, 2)
    encoder = np.tril(np.ones((4, 4))) ** 0.5 + np.eye(4)
    noise = LocalNoise(encoder, 4)
    tracked = MECHANISMS[name].build(Dynamics(STAR), scheme, noise=noise)
    plain = algorithms.mf_dsgd(Dynamics(STAR), scheme, encoder)
    (loss, *_), (reference, *_) = (sensitivity_by_victim(algorithm, trust.LDP()) for algorithm in (tracked, plain))
    if name == "local-steps":
        assert loss.adaptive_sensitivity_squared <= reference.sensitivity_squared * (1 + 1e-9)
    else:
        assert loss.adaptive_sensitivity_squared == pytest.approx(reference.sensitivity_squared)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_audit_comes_within_15_percent_from_below(name):
    algorithm = algorithms.build(name, Dynamics(STAR, 0.5), EveryStep(4))
    mechanism = mfdl.calibrate(algorithm, mfdl.Privacy(trust.LDP(), **ZERO_OUT), noise_std=1.0)
    audited = audit(mechanism, trust=trust.LDP(), trials=20_000, seed=0)
    assert not audited.violated
    assert 0.85 * mechanism.guarantee.mu <= audited.mu_audited <= mechanism.guarantee.mu


@pytest.mark.parametrize("name", NAMES)
def test_what_the_equations_do_not_cover_is_refused(name):
    for options in ({"weight_decay": 0.1}, {"gossip_rounds": 2}, {"momentum": 0.5}):
        if (name, "momentum" in options) == ("gradient-tracking", True):
            continue
        unsupported(name, algorithms.build, name, Dynamics(STAR, 0.5, **options), EveryStep(2))


@each(
    "name, text, message",
    ("delayed-dsgd", "delay=-1", "delay must be an integer >= 0, got -1"),
    ("two-hop-dsgd", "share=1.5", r"share must lie in \[0, 1\], got 1.5"),
    ("local-steps", "steps=0", "steps must be an integer >= 1, got 0"),
)
def test_settings_out_of_range_are_refused(name, text, message):
    refuses(message, lambda: algorithms.build(name, Dynamics(STAR), EveryStep(2), **parse_parameters(name, [text])))

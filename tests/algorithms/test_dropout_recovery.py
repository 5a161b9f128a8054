"""Recovery of the noise that offline nodes do not add: the plan, the noise left in the models, and the privacy loss."""

import dataclasses
import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import given, refuses, st

import mfdl
from mfdl import Cyclic, Dynamics, EveryStep, NoiseKey, Privacy, algorithms, calibrate, gossip, privacy
from mfdl.algorithms import with_dropout
from mfdl.algorithms.other_exchanges import RECOVERIES
from mfdl.noise import ScheduledNoise
from mfdl.testing import gossip_matrices, pinv_gram
from mfdl.training.shared_randomness import HolderKeys, base_columns

NAMES = st.sampled_from(["dp-dsgd", "mafalda", "decor", "corn", "kronecker"])
SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def cases(draw):
    """(gossip, participation, who is online, name, recovery, seed)."""
    W = draw(gossip_matrices(kinds=("symmetric",), min_nodes=2, max_nodes=4))
    participation, seed = Cyclic(epochs=draw(st.integers(1, 2)), period=draw(st.integers(1, 3))), draw(SEEDS)
    online = gossip.sampled_presence(W.num_nodes, participation.num_steps, draw(st.floats(0, 0.7)), seed)
    return W, participation, online, draw(NAMES), draw(st.sampled_from(RECOVERIES)), seed


def worst(algorithm, model):
    return max(loss.sensitivity_squared for loss in privacy.sensitivity_by_victim(algorithm, model))


def under_dropout(W, name, online, participation, **options):
    whole = algorithms.build(name, Dynamics(W, 0.5), participation)
    left = algorithms.dp_dsgd(Dynamics(gossip.node_dropout(W, online), 0.5), participation)
    return whole.noise, with_dropout(dataclasses.replace(left, name=name, noise=whole.noise), online, **options)


def planned(noise, online, recovery):
    """N entry by entry, from what each node adds of each correlated column of each step."""
    (T, n), m = online.shape, noise.columns_per_step
    E, F = np.stack([noise.column_inverse(k) for k in range(m)]), noise.mixing.toarray()
    holders = noise.holders().toarray()
    adds = np.zeros((T, n, T, m))  # of node i at step t, of the column k that is correlated, of step r
    for t, i, k in np.ndindex(T, n, m):
        offline = [u for u in range(n) if not online[t, u]]
        if not online[t, i]:
            later = [r for r in range(t, T) if online[r, i]]
            if recovery == "catch-up" and later:
                adds[later[0], i, t, k] += F[i, k]
        elif recovery == "drop":
            adds[t, i, t, k] += 0 if any(F[u, k] for u in offline) else F[i, k]
        else:
            adds[t, i, t, k] += F[i, k]
            if recovery == "substitute" and holders[k, i]:
                others = [v for v in range(n) if online[t, v] and holders[k, v]]
                adds[t, i, t, k] += sum(F[u, k] for u in offline) / len(others)
    return np.einsum("tirk,krs->tisk", adds, E).reshape(T * n, T * m)


@given(60, cases())
def test_each_repair_adds_what_it_says_by_those_who_hold_it(case):
    W, participation, online, name, recovery, seed = case
    noise, run = under_dropout(W, name, online, participation, recovery=recovery)
    N, rng = run.noise.to_dense(), np.random.default_rng(seed)
    wanted = planned(noise.causal, online, recovery)
    assert_allclose(N, wanted, atol=1e-12)
    assert_allclose(run.noise.variances().ravel(), (wanted**2).sum(1), atol=1e-10)
    X = rng.standard_normal((len(N), 2))
    assert_allclose(run.noise.rmatmat(X), wanted.T @ X, atol=1e-10)
    assert (run.noise.absolute_rmatmat(np.abs(X)) >= np.abs(wanted).T @ np.abs(X) - 1e-10).all()
    foreign = (run.noise.pattern().toarray() & ~noise.holders().toarray().T.astype(bool)).any()
    assert not foreign
    assert run.noise.scaled(np.full(W.num_nodes, 2.0)).to_dense() == pytest.approx(2 * N)


@given(30, cases())
def test_nodes_add_the_rows_of_the_plan_each_from_its_own_secrets(case):
    W, participation, online, name, recovery, _ = case
    (T, n), key = online.shape, NoiseKey.from_seed(1)
    _, run = under_dropout(W, name, online, participation, recovery=recovery)
    every = np.arange(run.noise.columns_per_step)
    Z = base_columns(run.noise, HolderKeys.simulated(key), every).block(np.arange(T), 3).reshape(-1, 3)
    wanted = 2.0 * (run.noise.to_dense() @ Z).reshape(T, n, 3)
    stream = mfdl.training.streams.noise_stream(run.noise, 2.0, key, 3)
    for t in reversed(range(T)):
        assert_allclose(stream.step(t), wanted[t], atol=1e-9)
        for u in range(n):
            keys = HolderKeys.simulated(key).node_keys(u)
            alone = mfdl.training.streams.noise_stream(run.noise, 2.0, keys, 3, slots=[u])
            assert_allclose(alone.step(t), wanted[t, [u]], atol=1e-9)


@given(30, cases())
def test_losses_are_those_of_the_messages_that_are_sent(case):
    W, participation, online, name, recovery, _ = case
    (T, n), period = online.shape, participation.period
    noise, run = under_dropout(W, name, online, participation, recovery=recovery)
    losses = privacy.sensitivity_by_victim(run, mfdl.trust.named("eavesdropper"))
    sent = online.ravel()
    injected = (run.messages_from_injected_noise @ np.eye(T * n))[sent]
    A = (run.messages_from_gradients @ np.eye(T * n))[sent]
    B = injected @ planned(noise.causal, online, recovery)
    for loss in losses:
        gram, leaks = pinv_gram(A[:, loss.victim :: n], B)
        assert not leaks.any()
        least = max(np.abs(gram[r::period, r::period]).sum() for r in range(period))  # at most two uses: signs decide
        assert loss.sensitivity_squared >= least * (1 - 1e-9)
        assert loss.sensitivity_squared == pytest.approx(least, rel=1e-5, abs=1e-9)


@pytest.mark.slow
@given(20, gossip_matrices(kinds=("symmetric",), min_nodes=3, max_nodes=4), st.integers(1, 2), SEEDS)
def test_leaving_out_loses_at_most_what_a_coalition_as_large_as_the_missing_takes(W, missing, seed):
    """Of noise fresh in each step: the offline set may change in each step, and its columns are dropped or known."""
    n, participation = W.num_nodes, Cyclic(epochs=1, period=2)
    rng = np.random.default_rng(seed)
    online = np.ones((2, n), dtype=bool)
    for up in online:
        up[rng.choice(n, min(missing, n - 1), replace=False)] = False
    for name in ("decor", "corn"):
        _, run = under_dropout(W, name, online, participation, recovery="drop")
        with_all = algorithms.build(name, Dynamics(W, 0.5), participation)
        assert worst(run, mfdl.trust.Eavesdropper()) <= worst(with_all, mfdl.trust.Coalitions(missing)) * (1 + 1e-9)


def test_colluders_and_offline_nodes_add_up():
    W, participation, online = gossip.metropolis_hastings("ring:n=5"), EveryStep(1), np.ones((1, 5), dtype=bool)
    online[0, 0] = False
    whole = algorithms.build("decor", Dynamics(W, 0.5), participation)
    _, run = under_dropout(W, "decor", online, participation, recovery="drop")
    lost, single, two = worst(run, mfdl.trust.Colluding([2])), *(worst(whole, mfdl.trust.Coalitions(q)) for q in (1, 2))
    assert single < 0.7 < lost <= two * (1 + 1e-9)


def test_the_worst_set_of_missing_nodes_is_the_worst_coalition():
    W, participation = gossip.metropolis_hastings("ring:n=4"), EveryStep(1)
    whole = algorithms.build("decor", Dynamics(W, 0.5), participation)
    lost = []
    for offline in itertools.combinations(range(4), 2):
        online = np.ones((1, 4), dtype=bool)
        online[0, offline] = False
        _, run = under_dropout(W, "decor", online, participation, recovery="drop")
        lost.append(worst(run, mfdl.trust.Eavesdropper()))
    bound = worst(whole, mfdl.trust.Coalitions(2))
    assert max(lost) == pytest.approx(bound, rel=1e-9)
    assert min(lost) < 0.9 * bound


def test_noise_that_cancels_without_dropout_cancels_after_recovery():
    """DECOR: in each step, the online nodes add pairwise noise that sums to zero, whether dropped or substituted."""
    W, participation = gossip.metropolis_hastings("ring:n=5"), Cyclic(epochs=1, period=4)
    online = gossip.churn(W, 4, {1: [(1, 3)], 4: [(2, 3)]})
    plans = {}
    for recovery in RECOVERIES:
        noise, run = under_dropout(W, "decor", online, participation, recovery=recovery)
        pairs = np.tile(np.asarray(noise.holders().sum(axis=1)).ravel() > 1, 4)
        plans[recovery] = run.noise.to_dense()[:, pairs].reshape(4, 5, -1)
    assert_array_equal(plans["drop"], plans["substitute"])
    assert_allclose(plans["drop"].sum(axis=1), 0, atol=1e-12)
    assert_allclose(plans["catch-up"].sum(axis=(0, 1)), 0, atol=1e-12)  # over all steps, as both came back
    assert np.abs(plans["catch-up"].sum(axis=1)).max() > 0.1


def test_a_repaired_run_is_saved_and_read_back(tmp_path):
    W, participation = gossip.metropolis_hastings("ring:n=4"), Cyclic(epochs=1, period=3)
    _, run = under_dropout(W, "decor", gossip.churn(W, 3, {1: [(1, 2)]}), participation, recovery="substitute")
    trust = {"trust": mfdl.trust.named("eavesdropper"), "adjacency": "zero-out", "clip_norm": 1.0}
    mechanism = calibrate(run, Privacy(**trust), mu=1.0)
    assert mechanism.algorithm.name == "decor with dropout, substitute"
    mechanism.save(tmp_path / "recovered.mfdl")
    read = type(mechanism).load(tmp_path / "recovered.mfdl", trust=trust["trust"])
    assert read.algorithm.content_hash == run.content_hash
    other = under_dropout(W, "decor", gossip.churn(W, 3, {1: [(1, 2)]}), participation, recovery="catch-up")[1]
    assert other.content_hash != run.content_hash


def test_what_does_not_fit_is_refused():
    W, participation = gossip.metropolis_hastings("ring:n=4"), Cyclic(epochs=1, period=3)
    online = gossip.churn(W, 3, {1: [(1, 2)]})
    two = {"num_steps": 2, "num_nodes": 2}
    for call, words in (
        (lambda: under_dropout(W, "decor", online, participation, recovery="dropp"), "recovery"),
        (lambda: under_dropout(W, "bisr", online, participation, recovery="catch-up"), "explicit encoders"),
        (lambda: ScheduledNoise(None, np.eye(4)[::-1], np.eye(2), **two), "must be causal"),
        (lambda: ScheduledNoise(None, np.kron(np.eye(2), np.ones((2, 2))), np.eye(2), **two), "noise that it holds"),
        (lambda: ScheduledNoise(None, np.eye(3), np.eye(2), **two), r"2 rows a slot and 4 columns, got \(3, 3\)"),
        (lambda: ScheduledNoise(None, np.eye(4), np.ones((2, 3)), **two), "name 2 nodes for each column, got 3"),
    ):
        refuses(words, call)

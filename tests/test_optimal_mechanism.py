"""`optimize`: budgets by pair, seeds, symmetries, what is gained, and what leaving nodes and float32 messages cost."""

import dataclasses
import inspect
import itertools

import networkx as nx
import numpy as np
import pytest
from test_trust import GAP, dynamics, privacy, settings_of_noise
from vocabulary import dynamics_on, given, refuses, st, unsupported

import mfdl
from mfdl import EveryStep, InvalidInput, TrustModel, UnsupportedMechanism
from mfdl.algorithms import trust_optimal
from mfdl.factorization import optimal_covariance, optimal_joint
from mfdl.gossip import metropolis_hastings
from mfdl.gossip.matrix import vertex_symmetries
from mfdl.testing.strategies import connected_graphs, linear_algorithms, trust_models
from mfdl.trust import LDP, PNDP, AnyReceiver, Eavesdropper, SecureSum


def optimized(run, scheme, trust=None, **options):
    options = {"mu": 1.0, "progress": False} | options
    return mfdl.optimize(run, scheme, privacy(AnyReceiver() if trust is None else trust), **options)


# ---- what is gained ------------------------------------------------------------------------------------------------
def test_the_gain_is_split_and_beside_it_stand_stronger_attackers():
    mechanism = optimized(dynamics("ring:n=5", 3), EveryStep(1))
    gain, hidden = mechanism.gain, mfdl.losses(mechanism.algorithm, privacy(LDP()), progress=False)
    assert gain.accounting == pytest.approx(0, abs=GAP)  # a neighbour hears the first message
    assert gain.better_noise > 0.05
    assert 1 - gain.optimal / gain.ldp == pytest.approx(1 - (1 - gain.accounting) * (1 - gain.better_noise))
    tapped = gain.mu["an attacker who taps every link (LDP)"]
    assert tapped == pytest.approx(hidden.guarantee(mechanism.noise_std).mu)
    assert all(0 < mu <= tapped * (1 + 1e-9) for mu in gain.mu.values())
    assert len(gain.mu) == 4
    assert f"{gain.better_noise:.1%} by better noise" in repr(mechanism)
    assert repr(mechanism).count("\n") == 6


def test_noise_that_attackers_know_is_no_gain_to_compare_with_and_slots_without_noise_have_batches():
    """An attacker who knows the noise of node 3: LDP's noise, placed on first messages, protects nothing."""

    def known(algorithm):
        return algorithm.noise.holders().toarray()[:, [0, 3]].any(axis=1)

    def heard(algorithm):
        rounds, sender = np.arange(len(algorithm.rounds))[:, None] % 3, algorithm.message_sender
        return np.isin(sender, [1, 5]) | (np.isin(sender, [2, 4]) & (rounds == 1)) | (rounds == 2)

    options = {"known_gradients": np.arange(6) == 0, "attackers": [0], "name": "mine"}
    seen = TrustModel.from_masks(seen=heard, known_noise=known, **options)
    gain = optimized(dynamics("ring:n=6", 2), EveryStep(1), seen).gain
    assert gain.rescaled == np.inf
    assert "does not protect here" in repr(gain)
    near = TrustModel.from_masks(seen=lambda algorithm: np.isin(algorithm.message_sender, [1, 5]), **options)
    algorithm = optimized(dynamics("ring:n=6"), EveryStep(2), near).algorithm
    assert algorithm.name == "mafalda"
    assert algorithm.noise.slots_per_step == 18
    assert set(algorithm.with_divisors([2.0] * 6).divisors) == {2.0}


def test_a_weaker_attacker_gains_by_accounting_too():
    rounds = np.zeros((3, 4), dtype=bool)
    rounds[1, 1] = True  # after one round of averaging
    tap = TrustModel.from_masks(seen=rounds, name="tap", release="none")
    gain = optimized(dynamics("ring:n=4"), EveryStep(1), tap).gain
    assert gain.accounting > 0.5
    assert gain.better_noise > -GAP


def test_a_coalition_of_receivers_is_the_worst_of_all_sets_of_that_size():
    algorithm = trust_optimal(dynamics("path:n=4"), EveryStep(1), AnyReceiver())
    pairs = itertools.combinations(range(4), 2)
    of_sets = [mfdl.account(algorithm, privacy(PNDP(nodes)), noise_std=1.0).mu for nodes in pairs]
    assert mfdl.account(algorithm, privacy(AnyReceiver(2)), noise_std=1.0).mu == pytest.approx(max(of_sets))
    refuses("size must be below num_nodes=4", lambda: mfdl.account(algorithm, privacy(AnyReceiver(4)), noise_std=1.0))


# ---- budgets by pair -----------------------------------------------------------------------------------------------
@given(20, graph=connected_graphs(2, 4), seed=st.integers(0, 99), rounds=st.integers(1, 3))
def test_every_pair_keeps_its_budget_and_one_of_them_needs_it(graph, seed, rounds):
    n = graph.number_of_nodes()
    budgets = np.random.default_rng(seed).uniform(0.3, 1.5, (n, n))
    run = dynamics(nx.convert_node_labels_to_integers(graph), rounds)
    mechanism = optimized(run, EveryStep(1), mu=budgets)
    ratios = []
    for attacker in range(n):
        losses = mfdl.losses(mechanism.algorithm, privacy(PNDP([f"#{attacker}"])), progress=False)
        ratios += [loss.mu / budgets[v, attacker] for v, loss in losses.curves(mechanism.noise_std).items()]
    assert max(ratios) <= 1
    assert max(ratios) == pytest.approx(1, rel=1e-6)
    assert mechanism.algorithm.factorization.gap <= GAP
    equal = [optimized(run, EveryStep(1), mu=mu) for mu in (budgets.min(), budgets.max())]
    most, least = (mechanism.aim.variance(other) for other in equal)
    assert least * (1 - 0.02) <= mechanism.aim.variance(mechanism) <= most * (1 + 0.02)  # the price counts too


def test_budgets_by_pair_are_an_array_or_a_mapping():
    run = dynamics("path:n=3")
    pairs = {(v, u): 0.5 if abs(u - v) == 2 else 1.0 for u, v in itertools.permutations(range(3), 2)}
    array = np.array([[pairs.get((v, u), np.nan) for u in range(3)] for v in range(3)])
    both = [optimized(run, EveryStep(1), mu=mu) for mu in (pairs, array)]
    assert both[0].content_hash == both[1].content_hash
    assert both[0].gain.mu
    refuses("shape", lambda: optimized(run, EveryStep(1), mu=np.ones(3)))
    refuses("has none for", lambda: optimized(run, EveryStep(1), mu={(0, 1): 1.0}))
    refuses(r"under trust\.AnyReceiver", lambda: optimized(run, EveryStep(1), LDP(), mu=np.ones((3, 3))))


# ---- seeds ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("scheme", [EveryStep(1), EveryStep(2), mfdl.Cyclic(epochs=1, period=2)], ids=str)
def test_a_seed_of_all_nodes_that_the_attacker_lacks_is_corn_and_joint(scheme):
    run, once = dynamics("path:n=4", rounds=1), scheme.num_steps == 1
    algorithm = trust_optimal(
        run, scheme, Eavesdropper(), published=False, release="none", price=1e-7, seeds=[range(4)]
    )
    best = optimal_covariance(run, tolerance=GAP) if once else optimal_joint(run, scheme, tolerance=GAP)
    assert algorithm.factorization.objective * 4 * scheme.num_steps == pytest.approx(best.objective, rel=3 * GAP)
    assert mfdl.account(algorithm, privacy(Eavesdropper(), release="none"), noise_std=1.0).mu == pytest.approx(1)


def test_seeds_of_groups_save_noise_and_train():
    run = dynamics("ring:n=5")
    seeds = [(v, (v + 2) % 5) for v in range(5)]
    mechanism, alone = optimized(run, EveryStep(1), seeds=seeds), optimized(run, EveryStep(1))
    assert mechanism.algorithm.factorization.objective < 0.8 * alone.algorithm.factorization.objective
    assert mechanism.guarantee.mu == pytest.approx(1)
    result = mfdl.replay(mechanism, mfdl.tasks.load("least-squares", 5), seeds=[0], progress=False)
    assert len(result.seeds) == 1
    refuses("at least two nodes below 5", lambda: optimized(run, EveryStep(1), seeds=[(0, 5)]))


# ---- symmetries ----------------------------------------------------------------------------------------------------
@given(20, n=st.integers(3, 9), steps=st.sets(st.integers(1, 4), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_every_place_of_a_circulant_graph_is_reached_by_a_symmetry(n, steps, seed):
    order = np.random.default_rng(seed).permutation(n)
    graph = nx.relabel_nodes(nx.circulant_graph(n, [1, *steps]), dict(enumerate(order.tolist())))
    weights = metropolis_hastings(graph).weights.toarray()
    symmetries = vertex_symmetries(weights)
    if symmetries is not None:  # some graphs have more symmetries than are tried
        np.testing.assert_array_equal(symmetries[:, 0], np.arange(n))
        for s in symmetries:
            np.testing.assert_allclose(weights[np.ix_(s, s)], weights, atol=1e-12)
    assert (symmetries is not None) or nx.density(graph) > 0.6
    assert vertex_symmetries(metropolis_hastings(nx.path_graph(n)).weights.toarray()) is None


@pytest.mark.parametrize(("graph", "scheme"), [("ring:n=6", EveryStep(3)), ("torus:n=9", EveryStep(1))], ids=str)
def test_one_attacker_and_one_covariance_stand_for_all_on_symmetric_graphs(graph, scheme, monkeypatch):
    run = dynamics(graph)
    by_symmetry = trust_optimal(run, scheme, AnyReceiver()).factorization
    monkeypatch.setattr(inspect.getmodule(trust_optimal), "_symmetric", lambda *_: False)
    general = trust_optimal(run, scheme, AnyReceiver()).factorization
    assert by_symmetry.covariances.shape == general.covariances.shape
    assert general.lower_bound <= by_symmetry.objective <= general.objective * (1 + GAP)
    assert by_symmetry.lower_bound <= general.objective <= by_symmetry.objective * (1 + GAP)


# ---- what is sent before a node leaves -----------------------------------------------------------------------------
@given(60, data=st.data())
def test_the_messages_of_the_first_rounds_lose_at_most_what_all_do(data):
    if data.draw(st.booleans()):
        algorithm = data.draw(linear_algorithms())
    else:
        algorithm = trust_optimal(*data.draw(settings_of_noise()), AnyReceiver())
    trust = data.draw(trust_models(algorithm, kinds=["masks", "pndp"] if algorithm.num_nodes > 1 else ["masks"]))
    last, masks = data.draw(st.integers(0, len(algorithm.rounds))), trust.knowledge(algorithm, 0)
    early = np.arange(len(algorithm.rounds))[:, None] < last

    def numbers(seen):
        known = {"known_gradients": masks.known_gradients, "known_noise": masks.known_noise}
        prefix = TrustModel.from_masks(seen=seen, attackers=trust.attackers(algorithm), release="none", **known)
        losses = mfdl.losses(algorithm, privacy(prefix), progress=False).sensitivities
        return np.array([loss.sensitivity_squared for loss in losses])

    assert (numbers(masks.seen & early) <= numbers(masks.seen) * (1 + 1e-9)).all()


def test_who_stays_loses_more_without_the_noise_of_a_node_that_left():
    """Node 3 of a ring of 6 leaves after its first message; the others go on by the weights of the path they form."""
    n, rounds, left = 6, 4, 3
    whole = metropolis_hastings(f"ring:n={n}")
    rest = np.eye(n)
    rest[np.ix_([4, 5, 0, 1, 2], [4, 5, 0, 1, 2])] = metropolis_hastings("path:n=5").weights.toarray()
    noise = trust_optimal(dynamics(f"ring:n={n}", rounds), EveryStep(1), AnyReceiver()).noise
    gossip = mfdl.gossip.sequence([whole, *[mfdl.gossip.from_array(rest)] * (rounds - 1)])
    algorithm = mfdl.algorithms.message_noise(mfdl.Dynamics(gossip, 0.3, gossip_rounds=rounds), EveryStep(1), noise)
    mu = {}
    for attacker in set(range(n)) - {left}:
        seen = PNDP([f"#{attacker}"]).knowledge(algorithm, left).seen.copy()
        seen[1:, left] = False
        trust = TrustModel.from_masks(
            seen=seen, known_gradients=np.arange(n) == attacker, attackers=[f"#{attacker}"], release="none",
            name="stays",
        )  # fmt: skip
        losses = mfdl.losses(algorithm, privacy(trust), progress=False)
        mu |= {(v, attacker): curve.mu for v, curve in losses.curves(1.0).items()}
    assert max(value for (v, _), value in mu.items() if v == left) == pytest.approx(0.79, abs=0.01)
    assert max(value for (v, _), value in mu.items() if v != left) == pytest.approx(1.09, abs=0.01)


# ---- float32 -------------------------------------------------------------------------------------------------------
def final_models(algorithm, noise, message_type):
    """Noise in the final models by the maps of the algorithm, with every message rounded to a type."""
    state = np.zeros((algorithm.model_from_state.shape[1], noise.shape[1]))

    def added(*parts):
        return sum(entries @ values for entries, values in parts if entries is not None)

    for exchange in algorithm.rounds:
        sent = added((exchange.message_from_state, state), (exchange.message_from_noise, noise))
        received = sent.astype(message_type).astype(np.float64)
        waiting = (exchange.state_from_state, state), (exchange.state_from_noise, noise)
        state = added((exchange.state_from_message, received), *waiting)
    return algorithm.model_from_state @ state


@pytest.mark.parametrize("price", [1e-1, 1e-3, 1e-6])
def test_rounded_messages_leave_an_error_in_proportion_to_the_noise_that_cancels(price):
    algorithm = trust_optimal(dynamics("ring:n=12", 6, 1.0), EveryStep(1), AnyReceiver(), price=price)
    noise = algorithm.noise.matmat(np.random.default_rng(0).normal(size=(algorithm.noise.shape[1], 200)))
    exact = final_models(algorithm, noise, np.float64)
    cancelled = np.sqrt(algorithm.factorization.covariances.trace(axis1=1, axis2=2).mean())
    for message_type in (np.float32, np.float16):
        error = final_models(algorithm, noise, message_type) - exact
        assert 0.05 < np.sqrt((error**2).mean()) / (cancelled * np.finfo(message_type).eps) < 0.5


# ---- other questions -----------------------------------------------------------------------------------------------
def test_in_one_step_of_one_round_white_noise_is_the_best():
    algorithm = trust_optimal(dynamics("star:n=5", 1), EveryStep(1), AnyReceiver(), published=False, release="none")
    np.testing.assert_allclose(algorithm.factorization.covariances, np.ones((5, 1, 1)), rtol=5 * GAP)


def test_secure_sums_are_covered_where_models_stay_unpublished():
    run = dynamics("path:n=4", 3)
    mechanism = optimized(run, EveryStep(1), SecureSum([0]), published=False)
    assert (mechanism.algorithm.name, mechanism.guarantee.mu) == ("trust-optimal", pytest.approx(1))
    assert mechanism.aim.variance(mechanism) <= mechanism.gain.rescaled * (1 + GAP)
    unsupported("published=False", lambda: optimized(run, EveryStep(1), SecureSum([0])))


def test_an_attacker_who_knows_the_noise_of_first_messages_is_met_by_that_of_later_ones():
    """It sees later rounds and the noise of node 1 in round 0: mafalda has no other noise, so its loss is infinite."""

    def known(algorithm):
        return np.arange(algorithm.noise.columns_per_step) == 1

    rounds = np.array([[False] * 4, [False, True, False, False], [True] * 4])
    trust = TrustModel.from_masks(seen=rounds, known_noise=known, release="none", name="first seed of node 1")
    mechanism = optimized(dynamics("ring:n=4"), EveryStep(1), trust)
    assert (mechanism.algorithm.name, mechanism.guarantee.mu) == ("trust-optimal", pytest.approx(1))


def test_momentum_takes_mafalda_and_secret_batches_are_refused():
    run = dynamics_on("ring:n=4", 0.3, gossip_rounds=2, momentum=0.5)
    mechanism = optimized(run, EveryStep(2))
    assert mechanism.algorithm.name == "mafalda"
    assert "less variance" not in repr(mechanism)
    with pytest.raises(UnsupportedMechanism, match="momentum"):
        _ = mechanism.gain
    for scheme in (mfdl.PoissonSampling(0.1, 3), mfdl.BallsInBins(epochs=1, bins=3)):
        unsupported("Cyclic", optimized, dynamics(), scheme, mu=None, epsilon=1.0, delta=1e-5)


def test_budgets_by_pair_have_no_records_of_several_owners():
    owned = dataclasses.replace(privacy(AnyReceiver()), owners=2)
    with pytest.raises(InvalidInput, match="leave owners out"):
        mfdl.optimize(dynamics(), EveryStep(1), owned, mu=np.full((5, 5), 0.5), progress=False)

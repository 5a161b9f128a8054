"""Secret batches where messages are hidden, against attackers; views given as matrices, which prove no adaptivity."""

import dataclasses
import json
import math

import numpy as np
import pytest
from vocabulary import ZERO_OUT, assume, dynamics_on, given, refuses, st, unsupported

import mfdl
from mfdl import BallsInBins, Cyclic, Dynamics, EveryStep, Guarantee, PoissonSampling, View, algorithms, gossip, trust
from mfdl.errors import InvalidInput
from mfdl.participation import CyclicPoisson, MinSeparationSampling, RandomAllocation
from mfdl.privacy.curves import LeastCurve
from mfdl.privacy.gaussian import ADJACENCIES
from mfdl.testing.oracles.adaptive import Reaction, adaptive_total_variation
from mfdl.testing.oracles.curve_oracles import attacked, means_delta, pattern_laws, sampled_delta
from mfdl.testing.tasks import linear_task

EPSILONS = [0.0, 0.7]
WAYS = {"kept": "zero-out", "lost": "zero-out", "replaced": "replace-one"}


def schemes(most):
    sizes = [(k, b) for k in range(1, most + 1) for b in range(1, most + 1) if 1 < k * b <= most]
    return st.tuples(st.sampled_from(sizes), st.floats(0.05, 0.95), st.integers(0, 5)).map(
        lambda drawn: (
            BallsInBins(*drawn[0]), BallsInBins(*drawn[0]), PoissonSampling(drawn[1], math.prod(drawn[0])),
            CyclicPoisson(*drawn[0], drawn[1]), RandomAllocation(*drawn[0]),
            MinSeparationSampling(math.prod(drawn[0]), drawn[0][1], drawn[1]),
        )[drawn[2]]
    )  # fmt: skip


@st.composite
def causal_views(draw, most, rows_a_step=2, **options):
    """(scheme, A, B, row_steps): rows in order of time, several or none a step, gradients of any sign."""
    scheme = draw(schemes(most))
    T, rng = scheme.num_steps, np.random.default_rng(draw(st.integers(0, 10**6)))
    counts = [draw(st.integers(0, rows_a_step)) for _ in range(T - 1)] + [draw(st.integers(1, rows_a_step))]
    steps = np.repeat(np.arange(T), counts)
    rows = len(steps)
    A = rng.uniform(-1, 1, (rows, T)) * (np.arange(T) <= steps[:, None]) * (rng.random((rows, T)) < 0.8)
    B = np.tril(rng.uniform(-1, 1, (rows, rows)), -1) * (steps[:, None] >= steps) + np.diag(rng.uniform(0.5, 1.5, rows))
    assume(A.any())
    return scheme, A, B, steps


def curve_of(view, scheme, adjacency, noise_std):
    privacy = mfdl.Privacy(participation=scheme, adjacency=adjacency, clip_norm=1.0)
    guarantee = mfdl.account(view, privacy, noise_std=noise_std)
    return guarantee.curve, guarantee.adaptive


@pytest.mark.parametrize("way", sorted(WAYS))
@given(60, case=causal_views(6), noise_std=st.floats(0.4, 3), seed=st.integers(0, 10**6))
def test_fixed_gradients_lose_no_more_than_is_accounted(way, case, noise_std, seed):
    """Mixtures of all patterns written out, in the plane of their means or by samples less four standard errors."""
    scheme, A, B, _ = case
    T, rng = scheme.num_steps, np.random.default_rng(seed)
    curve, adaptive = curve_of(View(A, B), scheme, WAYS[way], noise_std)
    assert adaptive == (T == 1)
    gradients = rng.choice([-1.0, 1.0], (2, T)) * (rng.random((2, T)) < 0.9)
    white = np.linalg.solve(B, A) / noise_std
    for law in pattern_laws(scheme):
        sets = np.array([[t in steps for t in range(T)] for _, steps in law], dtype=float)
        probabilities = np.array([probability for probability, _ in law])
        kept = probabilities > 0
        means = [(sets * g)[kept] @ white.T for g in gradients]
        pairs = {"kept": (0, None), "lost": (None, 0), "replaced": (0, 1)}[way]
        first, second = (np.zeros_like(means[0]) if i is None else means[i] for i in pairs)
        for epsilon in EPSILONS:
            true, error = sampled_delta(first, second, probabilities[kept] / probabilities.sum(), epsilon, 20_000, seed)
            assert curve.delta(epsilon) >= true - 4.5 * error - 1e-9


@pytest.mark.parametrize("way", ["kept", "lost"])
@given(
    40, bins=st.integers(1, 2).map(lambda epochs: BallsInBins(epochs, 2)), seed=st.integers(0, 10**6),
    noise_std=st.floats(0.4, 3), rows=st.integers(1, 5),
)  # fmt: skip
def test_two_bins_are_never_below_the_plane_of_their_means(way, bins, seed, noise_std, rows):
    """Rank-deficient views too, at the gradients that move the means the furthest."""
    T, rng = bins.num_steps, np.random.default_rng(seed)
    A, B = rng.integers(-2, 3, (rows, T)), rng.integers(-2, 3, (rows, rows + 1))
    assume(np.linalg.matrix_rank(np.hstack([B, A])) == np.linalg.matrix_rank(B))
    curve, _ = curve_of(View(A, B), bins, "zero-out", noise_std)
    X = A.T @ np.linalg.pinv(B @ B.T) @ A / noise_std**2
    for signs in np.array(np.meshgrid(*[[-1, 1]] * T)).reshape(T, -1).T[: 2 ** (T - 1)]:
        E = np.tile(np.eye(2), (bins.epochs, 1)) * signs[:, None]
        values, vectors = np.linalg.eigh(E.T @ X @ E)
        means = vectors * np.sqrt(np.maximum(values, 0))
        for epsilon in EPSILONS:
            assert curve.delta(epsilon) >= means_delta(means, epsilon, way, 401) * (1 - 1e-3) - 1e-7


@pytest.mark.parametrize("way", sorted(WAYS))
@given(40, case=causal_views(4), noise_std=st.floats(0.4, 3))
def test_attackers_that_choose_gradients_from_a_view_stay_below(way, case, noise_std):
    """Several rows a step, or none; the number is for adaptive gradients, as all models are known."""
    scheme, A, B, steps = case
    T, twice = scheme.num_steps, way == "replaced"
    cells = int(min(12, (2e5 / (9 if twice else 3) ** T) ** (1 / len(steps))))
    assume(cells > 1)
    view = View(A, B, models=(np.zeros((T, T)), np.zeros((T, len(B)))), row_steps=steps)
    curve, adaptive = curve_of(view, scheme, WAYS[way], noise_std)
    assert adaptive
    C = np.linalg.solve(B, A)
    for law in pattern_laws(scheme):
        true = attacked(C, law, noise_std, EPSILONS, way, cells, steps)
        assert all(curve.delta(e) >= delta * (1 - 1e-9) - 1e-12 for e, delta in zip(EPSILONS, true, strict=True))


@pytest.mark.parametrize("models", [None, (np.zeros((2, 2)), np.zeros((2, 2)))], ids=["non-adaptive", "adaptive"])
@pytest.mark.parametrize("bins", [BallsInBins(2, 1), BallsInBins(1, 2)])
def test_gradients_of_opposite_signs_undo_the_signs_of_a_view(models, bins):
    C = np.array([[1.0, 0.0], [-1.0, 1.0]])
    view = View(C, np.eye(2), models=models, row_steps=None if models is None else [0, 1])
    curve, _ = curve_of(view, bins, "zero-out", 1.0)
    for epsilon, true in zip(EPSILONS, attacked(C, pattern_laws(bins)[0], 1.0, EPSILONS, "kept", 12), strict=True):
        assert true <= curve.delta(epsilon) <= 1.05 * true


def test_one_row_a_step_has_the_number_of_its_encoder():
    """The triangular factor of X is the encoder, so a view that shows all has the number of the algorithm."""
    bins, rng = BallsInBins(2, 3), np.random.default_rng(0)
    C = np.tril(rng.uniform(-1, 1, (6, 6)), -1) + np.diag(rng.uniform(0.5, 1.5, 6))
    view = View(C, np.eye(6), models=(np.zeros((6, 6)), np.zeros((6, 6))), row_steps=range(6))
    dynamics = dynamics_on("ring:n=3", 0.1)
    algorithm = algorithms.mf_dsgd(dynamics, bins, C)
    of_view = mfdl.account(view, mfdl.Privacy(participation=bins, **ZERO_OUT), noise_std=2.0)
    of_nodes = mfdl.account(algorithm, mfdl.Privacy(trust.LDP(), **ZERO_OUT), noise_std=2.0)
    assert of_view.epsilon(1e-5) == pytest.approx(of_nodes.epsilon(1e-5), rel=1e-3)


PATH = Dynamics(gossip.from_array(np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3), 1.0)


def test_gradients_that_react_to_hidden_messages_lose_more_than_fixed_ones():
    """The counterexample: bins 0 and 1, path 0 - 1 - 2, attacker 2, victim 0, whose second gradient is never seen.

    The record shows with probability 1/2 and then as in public batches: total variation is half of theirs.
    """
    algorithm = algorithms.dp_dsgd(PATH, BallsInBins(1, 2))
    model = trust.TrustModel.from_masks(
        seen=np.array([False, True, True]), known_gradients=np.array([False, False, True]),
        attackers=[2], release="none",
    )  # fmt: skip
    losses = mfdl.losses(algorithm, mfdl.Privacy(model, **ZERO_OUT))
    fixed = losses.by_victim(1.0, adaptive=False)[0]
    run = {"attacker": 2, "victim": 0}
    still = adaptive_total_variation(PATH.gossip.weights.toarray(), reactions={}, **run).value / 2
    reacting = adaptive_total_variation(
        PATH.gossip.weights.toarray(), reactions={1: Reaction(2.0, offset=-1 / 3)}, **run
    ).value / 2  # fmt: skip
    assert still <= fixed.delta(0.0) <= still * 1.03
    assert fixed.delta(0.0) < 0.5 * reacting
    assert not fixed.adaptive
    assert fixed.release == "none"
    stated = losses.guarantee(1.0)
    assert stated.adaptive
    assert stated.delta(0.0) >= reacting
    assert "Every message is assumed to be seen" in stated.why


@pytest.mark.parametrize("scheme", [BallsInBins(2, 2), PoissonSampling(0.3, 4), RandomAllocation(2, 2)])
@pytest.mark.parametrize("model", [trust.PNDP([0]), trust.SecureSum(), trust.Central()], ids=lambda m: m.name)
def test_fixed_gradients_lose_at_most_what_all_messages_show_and_training_states_that(scheme, model):
    algorithm = algorithms.dp_dsgd(dynamics_on("ring:n=4", 0.1), scheme)
    losses = mfdl.losses(algorithm, mfdl.Privacy(model, **ZERO_OUT))
    seen = mfdl.account(algorithm, mfdl.Privacy(model.all_messages(), **ZERO_OUT), noise_std=1.0)
    stated = losses.guarantee(1.0)
    assert stated.curve == seen.curve
    assert (stated.release, stated.adaptive) == ("not applicable", True)
    for guarantee in losses.by_victim(1.0, adaptive=False):
        assert guarantee.epsilon(1e-3) <= seen.epsilon(1e-3) * (1 + 1e-5)
        assert not guarantee.adaptive
        assert Guarantee.from_dict(json.loads(json.dumps(guarantee.to_dict()))) == guarantee


@pytest.mark.parametrize("scheme", [BallsInBins(2, 3), PoissonSampling(0.3, 6), CyclicPoisson(2, 3, 0.5)])
def test_an_average_that_is_every_model_amplifies_for_adaptive_gradients(scheme):
    """On the complete graph the average of the messages is every model: noise of n nodes hides a record."""
    n = 4
    algorithm = algorithms.dp_dsgd(dynamics_on(f"complete:n={n}", 0.1), scheme)
    privacy = mfdl.Privacy(trust.Central(), **ZERO_OUT)
    mechanism = mfdl.calibrate(algorithm, privacy, epsilon=1.0, delta=1e-4)
    local = mfdl.calibrate(algorithm, mfdl.Privacy(trust.LDP(), **ZERO_OUT), epsilon=1.0, delta=1e-4)
    assert mechanism.noise_std == pytest.approx(local.noise_std / math.sqrt(n), rel=1e-3)
    assert mechanism.guarantee.adaptive
    assert mechanism.guarantee.release == "all"
    assert mechanism.guarantee.epsilon(1e-4) <= 1.0
    mfdl.replay(mechanism, linear_task(n, np.ones((24, 1))), seeds=[0], progress=False)
    with pytest.raises(InvalidInput, match="depends on public batch sizes"):
        mfdl.replay(mechanism, linear_task(n, np.ones((25, 1))), seeds=[0], progress=False)


def test_bounds_compose_and_meet_their_target():
    view = View(np.array([[1.0, 0.0], [0.4, 1.0]]), np.eye(2))
    privacy = mfdl.Privacy(participation=BallsInBins(1, 2), **ZERO_OUT)
    calibrated = mfdl.calibrate(view, privacy, epsilon=1.0, delta=1e-4)
    curve = calibrated.guarantee.curve
    assert isinstance(curve, LeastCurve)
    assert 0.99 < curve.epsilon(1e-4) <= 1.0
    assert curve.delta(1.0) <= 1e-4 * 1.001
    assert curve.composed_with(curve).epsilon(1e-4) > 1.0
    refuses("only adaptive guarantees compose", calibrated.guarantee.compose_with, calibrated.guarantee)
    assert "non-adaptive only" in str(calibrated.guarantee)
    refuses("at least one", LeastCurve, 1.0, ())


def test_a_gradient_without_noise_is_infinite_for_its_node_alone():
    A = np.zeros((4, 6))
    A[[0, 1, 2, 3], [0, 1, 3, 4]] = 1  # step-major: node 2 is never seen
    view = View(A, np.diag([1.0, 0.0, 1.0, 1.0]), num_nodes=3)
    guarantee = mfdl.account(view, mfdl.Privacy(participation=BallsInBins(1, 2), **ZERO_OUT), noise_std=1.0)
    assert guarantee.epsilon(1e-5) == math.inf
    epsilons = {u: curve.epsilon(1e-5) for u, curve in guarantee.by_victim().items()}
    assert epsilons["1"] == math.inf
    assert 0 < epsilons["0"] < math.inf
    assert epsilons["2"] == 0


def test_what_is_not_covered_is_refused_with_the_way_out():
    view, bins = View(np.eye(2), np.eye(2)), BallsInBins(1, 2)
    for option in ({"unit": "user"}, {"lipschitz": 1.0}, {"release": "all"}, {"method": "monte-carlo"}):
        question = mfdl.Privacy(participation=bins, **ZERO_OUT, **option)
        unsupported(f"leave out {next(iter(option))}", mfdl.account, view, question, noise_std=1.0)
    longer = mfdl.Privacy(participation=BallsInBins(2, 2), **ZERO_OUT)
    refuses("must have the 2 steps of the view", mfdl.account, view, longer, noise_std=1.0)
    owners = mfdl.Privacy(participation=bins, owners=2, **ZERO_OUT)
    unsupported("owners", lambda: mfdl.account(View(np.eye(4), np.eye(4), num_nodes=2), owners, noise_std=1.0))
    correlated = algorithms.anti_pgd(PATH, PoissonSampling(0.1, 4))
    hidden = mfdl.Privacy(trust.PNDP([2]), **ZERO_OUT)
    unsupported("correlated over time", mfdl.account, correlated, hidden, noise_std=1.0)


LINE = Dynamics(gossip.from_array(np.array([[0.75, 0.25, 0.0], [0.25, 0.5, 0.25], [0.0, 0.25, 0.75]])), 1.0)
MODELS = {"ldp": trust.LDP(), "eavesdropper": trust.Eavesdropper(), "pndp": trust.PNDP([0]), "central": trust.Central()}


def matrices(algorithm, model):
    of_algorithm = model.view(algorithm, 1, release="none" if model.hides_messages(algorithm) else None)
    options = {"num_nodes": algorithm.num_nodes, "known_gradients": of_algorithm.known_gradients}
    return View(of_algorithm.dense_gradients_by_time(), of_algorithm.dense_noise(), **options)


@given(
    model=st.sampled_from(sorted(MODELS)), adjacency=st.sampled_from(ADJACENCIES),
    noise_std=st.sampled_from([0.0, 0.5, 4.0]), scheme=st.sampled_from([EveryStep(2), Cyclic(1, 2)]),
)  # fmt: skip
def test_matrices_have_the_numbers_of_their_algorithm(model, adjacency, noise_std, scheme):
    algorithm, asker = algorithms.dp_dsgd(LINE, scheme), MODELS[model]
    view = matrices(algorithm, asker)
    options = {"adjacency": adjacency, "clip_norm": 0.5}
    of_view = mfdl.account(view, mfdl.Privacy(participation=scheme, **options), noise_std=noise_std)
    of_nodes = {loss.victim: loss for loss in mfdl.privacy.sensitivity_by_victim(algorithm, asker, release="none")}
    shift = of_view.record_shift
    for u, curve in of_view.by_victim().items():
        true = of_nodes[int(u)].mu(record_shift=shift, noise_std=noise_std, adaptive=False)
        assert curve.mu == pytest.approx(true, rel=1e-6)
    assert of_view.mu == max(curve.mu for curve in of_view.by_victim().values())
    assert not of_view.adaptive
    assert "non-adaptive gradients" in of_view.sentence()
    assert "View(A, B, models=(M_G, M_Z), row_steps=...)" in of_view.why


@given(mu=st.floats(1e-3, 10), epsilon=st.floats(0.05, 10), delta=st.sampled_from([1e-9, 1e-5]))
def test_calibrated_noise_meets_its_target(mu, epsilon, delta):
    view = matrices(algorithms.dp_dsgd(LINE, EveryStep(2)), MODELS["pndp"])
    privacy = mfdl.Privacy(participation=EveryStep(2), **ZERO_OUT)
    by_mu = mfdl.calibrate(view, privacy, mu=mu)
    assert mu * (1 - 1e-12) <= by_mu.guarantee.mu <= mu
    by_epsilon = mfdl.calibrate(view, privacy, epsilon=epsilon, delta=delta)
    assert epsilon * (1 - 1e-6) <= by_epsilon.guarantee.epsilon(delta) <= epsilon
    again = mfdl.account(view, privacy, noise_std=by_epsilon.noise_std)
    assert again == by_epsilon.guarantee
    assert Guarantee.from_dict(json.loads(json.dumps(again.to_dict()))) == again


def test_a_view_that_is_proven_adaptive_has_an_adaptive_guarantee():
    single = View([[1.0, 1.0]], [[1.0, 1.0]], num_nodes=2)  # of one step: no gradient follows what is seen
    guarantee = mfdl.account(single, mfdl.Privacy(participation=EveryStep(1), **ZERO_OUT), noise_std=1.0)
    assert guarantee.adaptive
    assert guarantee.mu == pytest.approx(math.sqrt(0.5))
    assert guarantee.compose_with(guarantee).mu == pytest.approx(1.0)


def test_a_combination_without_noise_is_infinite_and_cannot_be_calibrated():
    leaking = View(np.eye(2), [[1.0, 0.0], [0.0, 0.0]], num_nodes=2)
    privacy = mfdl.Privacy(participation=EveryStep(1), **ZERO_OUT)
    guarantee = mfdl.account(leaking, privacy, noise_std=3.0)
    assert {u: curve.mu for u, curve in guarantee.by_victim().items()}["1"] == math.inf
    assert guarantee.mu == math.inf
    refuses("infinite loss", mfdl.calibrate, leaking, privacy, mu=1.0)


def test_what_a_view_lacks_is_refused_with_the_way_out():
    view = matrices(algorithms.dp_dsgd(LINE, EveryStep(2)), MODELS["pndp"])
    calibrated = mfdl.calibrate(view, mfdl.Privacy(participation=EveryStep(2), **ZERO_OUT), mu=1.0)
    refuses("build the algorithm, e", lambda: mfdl.replay(calibrated, linear_task(3, np.ones((6, 1))), seeds=[0]))
    refuses("for another", lambda: mfdl.Mechanism(algorithms.dp_dsgd(LINE, EveryStep(2)), calibrated.guarantee))
    for options, message in (
        ({}, "a View needs Privacy\\(participation"),
        ({"participation": EveryStep(2), "trust": trust.LDP()}, "trust must be left out with a View"),
        ({"participation": EveryStep(3)}, "must have the 2 steps of the view"),
        ({"participation": EveryStep(2), "release": "all"}, "release must be left out with a View"),
        ({"participation": EveryStep(2), "lipschitz": 1.0}, "lipschitz must be left out with a View"),
    ):
        refuses(message, mfdl.account, view, mfdl.Privacy(**ZERO_OUT, **options), noise_std=1.0)
    refuses("only adaptive guarantees compose", calibrated.guarantee.compose_with, calibrated.guarantee)
    twice = mfdl.Privacy(trust.LDP(), participation=Cyclic(1, 2), **ZERO_OUT)
    algorithm = algorithms.dp_dsgd(LINE, EveryStep(2))
    refuses("participation is given beside a View or a name alone", mfdl.calibrate, algorithm, twice, mu=1.0)


@given(view=st.sampled_from([0, 1, 2]).map(lambda seed: drawn_view(seed)), noise_std=st.floats(0.5, 20.0))
def test_matrices_go_through_the_three_doors_and_answer_for_each_victim(view, noise_std):
    """Each victim has the number that an account of it alone has; the guarantee of all is the worst of them."""
    privacy = mfdl.Privacy(adjacency="replace-one", clip_norm=0.5, participation=EveryStep(2))
    losses = mfdl.losses(view, privacy)
    each = {guarantee.victim: guarantee.mu for guarantee in losses.by_victim(noise_std, adaptive=False)}
    alone = {
        str(victim): mfdl.losses(view, privacy, victims=[victim]).by_victim(noise_std, adaptive=False)[0].mu
        for victim in range(view.num_nodes)
    }
    assert each == pytest.approx(alone)
    guarantee = mfdl.account(view, privacy, noise_std=noise_std)
    assert guarantee.mu == pytest.approx(max(each.values()))
    assert {name: curve.mu for name, curve in guarantee.by_victim().items()} == pytest.approx(each)
    assert mfdl.calibrate(view, privacy, noise_std=noise_std).guarantee.seal == guarantee.seal


def drawn_view(seed):
    rng = np.random.default_rng(seed)
    return mfdl.View(rng.normal(size=(5, 6)), rng.normal(size=(5, 7)), num_nodes=3)


def test_a_name_goes_through_the_three_doors():
    dynamics, scheme = dynamics_on("path:n=3", 0.1), mfdl.Cyclic(2, 2)
    privacy = mfdl.Privacy(trust.LDP(), **ZERO_OUT)
    named = dataclasses.replace(privacy, participation=scheme)
    algorithm = mfdl.algorithms.build("bsr", dynamics, scheme)
    seal = mfdl.account(algorithm, privacy, noise_std=2.0).seal
    assert mfdl.account("bsr", named, noise_std=2.0, dynamics=dynamics).seal == seal
    assert mfdl.losses("bsr", named, dynamics=dynamics).guarantee(2.0).seal == seal
    assert mfdl.calibrate("bsr", named, noise_std=2.0, dynamics=dynamics).guarantee.seal == seal
    for wrong, message in (
        (lambda: mfdl.account("bsr", privacy, noise_std=2.0, dynamics=dynamics), "needs dynamics"),
        (lambda: mfdl.account("bsr", named, noise_std=2.0), "needs dynamics"),
        (lambda: mfdl.account(algorithm, privacy, noise_std=2.0, dynamics=dynamics), "this one has its own"),
        (lambda: mfdl.account("bsq", named, noise_std=2.0, dynamics=dynamics), "did you mean 'bsr'"),
        (lambda: mfdl.Privacy(trust.LDP(), mu=1.0, **ZERO_OUT), "give it to mfdl.calibrate"),
        (lambda: mfdl.calibrate(algorithm, privacy, noise_std=1.0, mu=1.0), "mu must be left out"),
        (lambda: mfdl.account(algorithm, privacy, noise_std=1.0, adjacency="zero-out"), "give it to mfdl.Privacy"),
    ):
        refuses(message, wrong)

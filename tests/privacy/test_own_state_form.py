"""States known up to the nodes' own gradients: against dense matrices and exact rationals, and refusals."""

import dataclasses
import math
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from vocabulary import assume, each, given, refuses, st

from mfdl import Cyclic, Dynamics, EveryStep, Privacy, TrustModel, algorithms, calibrate, gossip, trust
from mfdl.algorithms import building
from mfdl.noise import StepNoise
from mfdl.privacy import sensitivity_by_victim
from mfdl.privacy.forms import known_states as own_state_form
from mfdl.privacy.forms import node_recursions as recursions_form
from mfdl.privacy.forms import view_grams
from mfdl.privacy.forms.known_states import own_state_grams
from mfdl.privacy.forms.node_recursions import recursions
from mfdl.privacy.victim_sensitivity import is_adaptive
from mfdl.testing import clear_rank, exact_run, exact_view, exact_view_gram, node_columns, pinv_gram, to_float
from mfdl.testing.strategies import gossip_matrices

MH = gossip.metropolis_hastings
RING6 = Dynamics(MH("ring:n=6"))


def by_form(view, victims):
    states = recursions(view)
    assert states is not None
    grams = own_state_grams(view, states, victims)
    assert grams is not None
    return grams


@st.composite
def zip_views(draw, max_nodes=5, seen_too=True, known_too=True):
    """Zip-DL and what an attacker sees and knows: all messages that are sent, at least.

    Perhaps with weight decay, and with noise that does not cancel but is added to what is sent alone.
    """
    W = draw(gossip_matrices(min_nodes=2, max_nodes=max_nodes, kinds=("symmetric",)))
    assume((W.weights.diagonal() > 0).all())
    n, T = W.num_nodes, draw(st.integers(1, 4))
    rates = draw(st.lists(st.sampled_from([1.0, 0.5, 0.03]), min_size=T, max_size=T))
    algorithm = algorithms.zip_dl(
        Dynamics(W, rates), EveryStep(T), sigma=draw(st.sampled_from([1.0, 0.2])), self_messages=draw(st.booleans())
    )
    algorithm = algorithm.with_divisors(draw(st.lists(st.sampled_from([1.0, 7.0, 100.0]), min_size=n, max_size=n)))
    decay = draw(st.sampled_from([1.0, 0.5, -0.75]))
    decayed = [dataclasses.replace(r, message_from_state=decay * r.message_from_state) for r in algorithm.rounds]
    algorithm = dataclasses.replace(algorithm, rounds=tuple(decayed))
    if draw(st.booleans()) and not algorithm.transmitted.all():
        plain = StepNoise(sp.csr_array(np.diag(1.0 * algorithm.transmitted)), algorithm.noise.holders(), T, n)
        algorithm = dataclasses.replace(algorithm, noise=plain)
    inside = tuple(sorted(draw(st.sets(st.integers(0, n - 1), max_size=n - 1))))
    model = draw(st.sampled_from(["ldp", "colluding", "masks"]))
    if model == "ldp":
        return algorithm, trust.LDP()
    if model == "colluding":
        return algorithm, trust.named("colluding", colluders=inside)
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    known = (rng.random((T, algorithm.noise.columns_per_step)) < 0.2) & known_too
    seen = np.tile(algorithm.transmitted, (T, 1)) | ((rng.random((T, algorithm.messages_per_round)) < 0.2) & seen_too)
    return algorithm, TrustModel.from_masks(seen=seen, known_noise=known, release="none")


@given(50, case=zip_views(max_nodes=4))
def test_equals_the_dense_form_with_its_leaks(case):
    algorithm, model = case
    n, T = algorithm.num_nodes, algorithm.num_steps
    view = model.view(algorithm, 0, release="none")
    A, B = view.dense_gradients_by_time(), view.dense_noise()
    assume(clear_rank(B))
    states = recursions(view)
    grams = None if states is None else own_state_grams(view, states, range(n))
    if grams is None:  # noise known at some steps can leave a node's messages with less than its hidden one has
        assert model.name == "custom"
        return
    for u, gram in enumerate(grams):
        X, _ = pinv_gram(node_columns(A, u, n), B)
        size = np.abs(node_columns(A, u, n)).max()
        _, leaks = pinv_gram(node_columns(A, u, n) / size, B)
        assert gram.leaks.tolist() == leaks.tolist()
        if not leaks.any():
            scale = np.sqrt(np.outer(np.diag(X), np.diag(X)))
            assert (np.abs(gram.values - X) <= 1e-7 * scale + 1e-300).all()
            assert (gram.errors <= 1e-9 * np.sqrt(np.outer(np.diag(gram.values), np.diag(gram.values)))).all()
            assert 1 <= gram.inflation <= 1 + 1e-9
    assert gram.values.shape == (T, T)


@given(25, case=zip_views(max_nodes=3, seen_too=False, known_too=False))
def test_the_stated_errors_bound_the_true_ones(case):
    """Rationals of the very floats in the maps, whose noise cancels up to rounding only."""
    algorithm, model = case
    T, n = min(algorithm.num_steps, 3), algorithm.num_nodes
    algorithm = dataclasses.replace(
        algorithm, rounds=algorithm.rounds[:T], step_of_round=tuple(range(T)), participation=EveryStep(T),
        dynamics=dataclasses.replace(algorithm.dynamics, learning_rate=algorithm.dynamics.learning_rate[:T]),
        noise=StepNoise(algorithm.noise.factor, algorithm.noise.holders(), T, n),
    )  # fmt: skip
    if model.name == "custom":
        model = trust.Eavesdropper()
    view = model.view(algorithm, 0, release="none")
    A, B = exact_view(exact_run(algorithm), view.knowledge.seen, np.flatnonzero(view.knowledge.known_noise))
    for u, gram in zip(range(n), by_form(view, range(n)), strict=True):
        if gram.leaks.any():
            continue
        exact = to_float(exact_view_gram([row[u::n] for row in A], B))
        scale = np.abs(exact).max()
        excess = np.linalg.eigvalsh(exact - gram.inflation * (gram.values + np.diag(gram.errors.sum(axis=1))))[-1]
        assert excess <= 4 * np.finfo(float).eps * scale  # of the oracle's rounding to float and of eigvalsh


@given(50, case=zip_views(max_nodes=4), kind=st.sampled_from(["zip", "decor", "dp"]), data=st.data())
def test_states_are_what_is_known_and_own_gradients(case, kind, data):
    """The claim behind adaptivity, on dense matrices: any messages may be hidden; where it is made, it is true."""
    algorithm, model = case
    T, n = algorithm.num_steps, algorithm.num_nodes
    if kind == "zip":
        view = model.view(algorithm, 0, release="none")
    else:
        build = {"decor": lambda d, p: algorithms.decor(d, p, sigma_ldp=0.0), "dp": algorithms.dp_dsgd}[kind]
        algorithm = build(algorithm.dynamics, EveryStep(T))
        known = data.draw(st.lists(st.booleans(), min_size=(c := algorithm.noise.columns_per_step), max_size=c))
        seen = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
        model_of_masks = TrustModel.from_masks(seen=np.array(seen), known_noise=np.array(known))
        view = model_of_masks.view(algorithm, 0, release="none")
    if recursions(view) is None:
        assert kind != "zip" or model.name == "custom"
        return
    assert is_adaptive(view, EveryStep(T), unit="user")
    rows = np.hstack([view.dense_gradients_by_time(), view.dense_noise()])
    hidden = ~view.knowledge.known_noise.ravel()
    states = np.hstack([dense(algorithm.models_from_gradients()), dense(algorithm.models_from_noise()) * hidden])
    round_of_row = np.argwhere(view.knowledge.seen)[:, 0]
    for t in range(1, T):
        for j in range(n):
            others = np.ones(rows.shape[1], dtype=bool)
            others[j : T * n : n] = False
            earlier, wanted = rows[round_of_row < t][:, others], states[t * n + j, others]
            combination, *_ = np.linalg.lstsq(earlier.T, wanted, rcond=1e-11)
            assert_allclose(earlier.T @ combination, wanted, atol=1e-8 * max(1.0, np.abs(wanted).max(initial=0)))


def dense(operator):
    return operator.matmat(np.eye(operator.shape[1]))


def test_many_steps_of_twenty_nodes():
    """T x T Grams by one pass over the steps, nothing of steps x nodes; the sum is 6 times that of the squares."""
    T, n = 500, 20
    algorithm = algorithms.zip_dl(Dynamics(MH(f"ring:n={n}")), EveryStep(T))
    tracemalloc.start()
    question = Privacy(trust.PNDP([0]), adjacency="replace-one", clip_norm=0.5, release="none", unit="user")
    calibrated = calibrate(algorithm, question, mu=2.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert calibrated.guarantee.sensitivity**2 == pytest.approx(T * (T + 1) * (2 * T + 1), rel=2e-6)
    assert calibrated.guarantee.sensitivity**2 >= T * (T + 1) * (2 * T + 1)
    assert calibrated.noise_std == pytest.approx(calibrated.guarantee.sensitivity / 2, rel=1e-12)
    assert calibrated.guarantee.adaptive
    assert (calibrated.guarantee.release, calibrated.guarantee.unit) == ("none", "user")
    assert peak < 100 * 2**20  # the dense form would hold a 1000 x 30,000 array, 240 MB


def test_equal_victims_share_a_gram_and_others_do_not():
    """All nodes of a ring, whose numbers differ in the last bits only; and the errors cover what sharing changes."""
    T = 5
    for spec, distinct in (("ring:n=9", 1), ("star:n=9", 2), ("path:n=6", 2)):
        algorithm = algorithms.zip_dl(Dynamics(MH(spec)), EveryStep(T))
        view = trust.LDP().view(algorithm, 0, release="none")
        n = algorithm.num_nodes
        grams = by_form(view, range(n))
        assert len({id(gram) for gram in grams}) == distinct
        for u, gram in enumerate(grams):
            (alone,) = by_form(view, [u])
            assert (np.abs(gram.values - alone.values) <= gram.errors).all()


def test_victims_that_nearly_agree_are_covered_by_what_they_share():
    algorithm = algorithms.zip_dl(Dynamics(MH("path:n=2")), EveryStep(3)).with_divisors([1, 1 - 1e-12])
    view = trust.LDP().view(algorithm, 0, release="none")
    shared, same = by_form(view, [0, 1])
    (alone,) = by_form(view, [1])
    assert shared is same
    assert (shared.values < alone.values).all()
    assert (shared.values + shared.errors >= alone.values).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_neglected_noise_is_paid_for(sign, monkeypatch):
    """A hidden message holds 1e-6 of a second seen one's noise, which a coarse idea of rounding leaves out of Y."""
    monkeypatch.setattr(recursions_form, "ROUNDING", 1e-5)
    T, n = 3, 3
    algorithm = algorithms.zip_dl(Dynamics(MH("complete:n=3")), EveryStep(T))
    F = algorithm.noise.factor.toarray()
    for a in range(n):
        first, second = np.flatnonzero(algorithm.transmitted & (algorithm.message_sender == a))
        F[np.flatnonzero(~algorithm.transmitted)[a]] = -F[first] + sign * 1e-6 * F[second]
    algorithm = dataclasses.replace(algorithm, noise=StepNoise(sp.csr_array(F), algorithm.noise.holders(), T, n))
    view = trust.Eavesdropper().view(algorithm, 0, release="none")
    off = 0.0
    for u, gram in enumerate(by_form(view, range(n))):
        X, _ = pinv_gram(node_columns(view.dense_gradients_by_time(), u, n), view.dense_noise())
        assert np.linalg.eigvalsh(gram.inflation * (gram.values + gram.errors) - X)[0] >= -1e-10
        assert gram.inflation < 1 + 1e-3
        off = max(off, np.linalg.eigvalsh(X - gram.values - np.diag(gram.errors.sum(axis=1)))[-1])
    assert off > 1e-7  # without it the number would be too small


def test_gradients_of_very_unequal_scale_are_no_rounding(monkeypatch):
    monkeypatch.setattr(building, "MAX_DIVISOR_RATIO", np.inf)  # refused at the boundary otherwise
    algorithm = algorithms.zip_dl(Dynamics(MH("path:n=3")), EveryStep(2), self_messages=True)
    grams = by_form(trust.LDP().view(algorithm.with_divisors([1, 1e14, 1e14]), 0), range(3))
    assert all(gram.leaks.all() for gram in grams)
    hidden = algorithms.zip_dl(Dynamics(MH("path:n=3")), EveryStep(2))
    plain = by_form(trust.LDP().view(hidden, 0, release="none"), range(3))
    scaled = by_form(trust.LDP().view(hidden.with_divisors([1, 1e14, 1e14]), 0, release="none"), range(3))
    for a, b, m in zip(plain, scaled, (1, 1e14, 1e14), strict=True):
        assert not b.leaks.any()
        assert_allclose(b.values, a.values / m**2, rtol=1e-12)


def test_leaks_are_named():
    algorithm = algorithms.zip_dl(Dynamics(MH("path:n=3")), EveryStep(2), self_messages=True)
    end, middle, _ = view_grams(trust.LDP().view(algorithm, 0), range(3))
    for gram in (end, middle):
        assert (gram.form, gram.leaks.all()) == ("own-state form", True)
    words = "the gradient of step 0 shows without noise in"
    assert end.why == f"{words} -1 message of 0 in round 0 -0.5 message of 0 in round 0"  # by its weights
    assert middle.why == words + 3 * " -1 message of 1 in round 0"


def test_refusals():
    built = algorithms.zip_dl(Dynamics(MH("path:n=3")), EveryStep(3))
    n, S = 3, built.messages_per_round
    model = trust.Eavesdropper()

    def covered(algorithm=built, release="none", trusted=model):
        return recursions(trusted.view(algorithm, 0, release=release)) is not None

    def with_round(base=built, **maps):
        first, _, *rest = base.rounds
        return dataclasses.replace(base, rounds=(first, dataclasses.replace(first, **maps), *rest))

    assert covered()
    assert not covered(release="all")
    assert not covered(release="average")
    assert not covered(trusted=trust.PNDP([0]))
    assert not covered(trusted=trust.Central())
    assert not covered(dataclasses.replace(built, model_from_state=sp.csr_array(2.0 * sp.eye_array(n))))
    deaf = dataclasses.replace(built, rounds=tuple(dataclasses.replace(r, receivers=None) for r in built.rounds))
    refuses("enters models of other", dataclasses.replace, deaf, model_from_state=sp.csr_array(np.ones((n, n)) / n))
    for name, columns in (("state_from_state", n), ("state_from_gradient", n), ("state_from_noise", S)):
        assert not covered(with_round(**{name: sp.csr_array(np.eye(n, columns))}))
    silent = int(np.flatnonzero(~built.transmitted)[1])
    factor, holders = sp.lil_array((S, S + 1)), sp.vstack([built.noise.holders(), built.noise.holders()[[silent]]])
    factor[:, :S] = built.noise.factor
    for size in (0.0, 1e-11):  # noise of what is never sent that is in nothing that is
        factor[silent, S] = size
        more = StepNoise(sp.csr_array(factor), sp.csr_array(holders), 3, n)
        assert covered(dataclasses.replace(built, noise=more)) == (size == 0)
    weights = built.rounds[0].state_from_message.tolil()
    for size in (1e-5, 1e-7):  # the second is too small to tell
        weights[0, 0] = size
        assert covered(with_round(state_from_message=sp.csr_array(weights))) == (size == 1e-5)
    mixed = built.rounds[0].message_from_gradient.tolil()  # a hidden message that holds what is another node's
    mixed[silent, 0] = 0.5
    assert not covered(with_round(deaf, message_from_gradient=sp.csr_array(mixed)))
    for other in (
        algorithms.muffliato(built.dynamics, EveryStep(3), gossip_rounds=2),
        algorithms.anti_pgd(built.dynamics, EveryStep(3)),  # noise that is not fresh
        algorithms.dsgd(built.dynamics, EveryStep(3)),
    ):
        assert not covered(other)


@given(25, case=zip_views(max_nodes=4), attacker=st.integers(0, 1))
def test_hidden_messages_are_bounded_by_all_of_them(case, attacker):
    """Where the dense form would be slow; its own number is never above."""
    algorithm, _ = case
    assume(not algorithm.transmitted.all())
    view = trust.PNDP([attacker]).view(algorithm, release="none")
    assume(clear_rank(view.dense_noise()))
    victims = [u for u in range(algorithm.num_nodes) if u != attacker]
    exact = view_grams(view, victims)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_state_form, "MAX_WORK_BESIDE_A_BOUND", 0.0)
        bounds = view_grams(view, victims)
    assert all(gram.form == "dense form" and not gram.upper for gram in exact)
    for dense_gram, gram in zip(exact, bounds, strict=True):
        if gram.upper:
            slack = gram.inflation * gram.matrix - dense_gram.matrix
            assert np.linalg.eigvalsh(slack)[0] >= -1e-7 * max(1e-300, np.abs(gram.matrix).max())
        else:  # all messages leak, part of them need not
            assert gram.form == "dense form"


def test_no_bound_from_all_messages_with_released_models(monkeypatch):
    monkeypatch.setattr(own_state_form, "MAX_WORK_BESIDE_A_BOUND", 0.0)
    algorithm = algorithms.zip_dl(RING6, EveryStep(2))
    for release in ("all", "average"):
        assert {g.form for g in view_grams(trust.PNDP([0]).view(algorithm, release=release), [1, 2])} == {"dense form"}
    assert {g.form for g in view_grams(trust.PNDP([0]).view(algorithm, release="none"), [1, 2])} != {"dense form"}


@each("model", trust.PNDP([0]), trust.AnyReceiver(), trust.LDP(), trust.Eavesdropper(), trust.Colluding((0,)))
@pytest.mark.slow
def test_users_get_a_number_and_records_a_reason(model):
    common = {"trust": model, "adjacency": "zero-out", "clip_norm": 1.0}
    user = algorithms.zip_dl(RING6, EveryStep(3))
    calibrated = calibrate(user, Privacy(release="none", unit="user", **common), mu=1.0)
    assert calibrated.noise_std == pytest.approx(math.sqrt(84), rel=1e-6)
    assert calibrated.guarantee.mu <= 1
    hidden = isinstance(model, trust.PNDP | trust.AnyReceiver)
    assert calibrated.guarantee.bound == ("upper" if hidden else "exact")
    record = algorithms.zip_dl(RING6, Cyclic(1, 3))
    refuses("own earlier", lambda: calibrate(record, Privacy(release="none", **common), mu=1.0))
    for loss in sensitivity_by_victim(record, model, release="none"):
        assert not loss.adaptive
        assert loss.sensitivity_squared <= 18 * (1 + 1e-6) < loss.adaptive_sensitivity_squared == math.inf
    if hidden:
        refuses("no adaptive number covers released", lambda: calibrate(user, Privacy(unit="user", **common), mu=1.0))
        refuses(r"is unit='user' with EveryStep\(3\)", lambda: calibrate(record, Privacy(**common), mu=1.0))


def test_a_state_seen_without_noise_shows_the_gradients_before():
    """Noise on what is sent alone, and known at step 1: the model then shows what step 0 added; step 2 is hidden."""
    algorithm = algorithms.zip_dl(Dynamics(MH("path:n=2")), EveryStep(3))
    plain = StepNoise(sp.csr_array(np.diag(1.0 * algorithm.transmitted)), algorithm.noise.holders(), 3, 2)
    algorithm = dataclasses.replace(algorithm, noise=plain)
    known = np.outer([False, True, False], algorithm.message_sender == 0)
    view = TrustModel.from_masks(seen=algorithm.transmitted, known_noise=known).view(algorithm, 0, release="none")
    _, leaks = pinv_gram(node_columns(view.dense_gradients_by_time(), 0, 2), view.dense_noise())
    grams = view_grams(view, [0, 1])
    assert grams[0].form == "own-state form"
    assert grams[0].leaks.tolist() == leaks.tolist() == [True, True, False]
    assert grams[0].why == "the gradient of step 0 shows without noise in +1 message of 0 in round 1"
    assert not grams[1].leaks.any()

"""The modes of what is hidden against dense matrices and rational arithmetic; the choice among the forms."""

import dataclasses
import time
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from effort import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from threadpoolctl import threadpool_limits

from mfdl import Dynamics, EveryStep, algorithms, gossip, trust
from mfdl.noise import IndependentNoise
from mfdl.privacy.forms import FORMS
from mfdl.privacy.forms.hidden_modes import HiddenModes
from mfdl.privacy.forms.partly_seen import PartlySeen
from mfdl.privacy.forms.range_and_null_space import NullSpace, Range
from mfdl.released import ReleasedModel
from mfdl.testing import (
    exact_leaks,
    exact_run,
    exact_view,
    exact_view_gram,
    of_node,
    pinv_gram,
    to_float,
    without_noise,
)

MH = gossip.metropolis_hastings
RING = MH("ring:n=6")


@examples(60)
@given(
    n=st.integers(3, 7),
    T=st.integers(1, 6),
    divisors=st.booleans(),
    negative=st.booleans(),
    attackers=st.integers(1, 2),
    seed=st.integers(0, 999),
)
def test_modes_of_what_is_hidden_are_the_dense_definition(n, T, divisors, negative, attackers, seed):
    """Symmetric W with weights of both signs; with divisors W_ij = S_ij / m_i^2, which is symmetric enough."""
    rng = np.random.default_rng(seed)
    S = np.triu(rng.random((n, n)) * (rng.random((n, n)) < 0.5), 1) * (rng.choice([-1, 1], (n, n)) if negative else 1)
    S = S + S.T + np.diag(rng.random(n))
    S[0, 1] = S[1, 0] = 0.5  # somebody hears something
    S /= np.abs(S).sum(axis=1).max()
    m = rng.choice([1.0, 2.0, 5.0], n) if divisors else np.ones(n)
    W, scale = S / m[:, None] ** 2, np.tile(0.5 / m, (T, 1))
    known = np.arange(n) < attackers
    seen = known | (W[known] != 0).any(axis=0)
    assume((seen & ~known).any() and not seen.all())
    part = PartlySeen(
        weights=[sp.csr_array(W)] * T,
        constant=True,
        dense_otherwise=False,
        rows=[np.flatnonzero(seen & ~known)] * T,
        hidden_at=np.tile(~seen, (T, 1)),
        unknown=~known,
        scale=scale,
        noise=IndependentNoise(T, n),
        released=None,
        released_steps=np.zeros(len(scale)),
    )
    A = np.zeros((T, n, T, n))
    for s in range(T):
        for t in range(s, T):
            A[t, :, s] = np.linalg.matrix_power(W, t - s) * scale[0]
    A = A.reshape(T * n, T * n)
    B = without_noise(A, {t * n + v for t in range(T) for v in np.flatnonzero(known)})
    rows, victims = np.tile(seen & ~known, T), np.flatnonzero(~known).tolist()
    grams = HiddenModes(part).grams(victims)
    assume(None not in grams)  # a hidden node alone, whose model never fades: its mode is singular, as it should be
    for u, gram in zip(victims, grams, strict=True):
        oracle, _ = pinv_gram(of_node(A[rows], u, n), B[rows])
        assert_allclose(gram.matrix, oracle, atol=1e-9)
        assert (gram.errors > 0).all()
        assert (gram.errors < 1e-9).all()


def test_stated_errors_of_modes_bound_the_true_ones_over_the_rationals():
    """The first of 12 nodes on a path attacks; over the rationals."""
    n, T = 12, 5
    W = np.eye(n) - nx.laplacian_matrix(nx.path_graph(n)).toarray() / 4
    algorithm = algorithms.dp_dsgd(Dynamics(gossip.from_array(W), learning_rate=0.5), EveryStep(T))
    view = trust.PNDP([0]).view(algorithm, 1, release="none")
    A, B = exact_view(exact_run(algorithm), view.knowledge.seen, np.flatnonzero(view.knowledge.known_noise))
    form = HiddenModes.of(view)
    for u, gram in zip([1, 2, 7], form.grams([1, 2, 7]), strict=True):
        exact = to_float(exact_view_gram([row[u::n] for row in A], B))
        assert (np.abs(gram.matrix - exact) <= gram.errors).all()
        assert gram.errors.max() < 1e-10


def exact_released(run, model):
    """The run with what it releases in the place of the final models."""
    after, weights = [*run.models[1:], run.final], ReleasedModel(model).of_steps(len(run.models))
    released = sum(np.array(rows, dtype=object) * Fraction(float(a)) for rows, a in zip(after, weights, strict=True))
    return dataclasses.replace(run, final=released.tolist())


@examples(60)
@given(
    n=st.sampled_from([4, 5, 8]),
    T=st.integers(1, 5),
    edges=st.floats(0.2, 0.7),
    release=st.sampled_from(["none", "average", "all"]),
    model=st.sampled_from(["last", "average:1", "average:2", "exponential:1"]),
    correlated=st.booleans(),
    attackers=st.integers(1, 2),
    seed=st.integers(0, 999),
)
def test_released_models_and_noise_alike_at_all_ages_over_the_rationals(
    n, T, edges, release, model, correlated, attackers, seed
):
    """Weights of an eighth: components without an attacker, twins, isolated nodes, models that lack some directions."""
    assume(T > 1 or model != "average:2")
    assume(n != 5 or release != "average")  # 1 / 5 is no float
    rng = np.random.default_rng(seed)
    neighbours = np.triu(rng.random((n, n)) < edges, 1)
    neighbours[0, -1] = True
    neighbours = neighbours | neighbours.T
    W = np.eye(n) - (np.diag(neighbours.sum(axis=1)) - neighbours) / 8
    C = scipy.linalg.toeplitz(np.r_[2.0, rng.integers(-4, 9, T - 1) / 8], np.zeros(T)) if correlated else np.eye(T)
    dynamics, steps = Dynamics(gossip.from_array(W), learning_rate=0.5), EveryStep(T)
    algorithm = algorithms.mf_dsgd(dynamics, steps, C) if correlated else algorithms.dp_dsgd(dynamics, steps)
    algorithm = algorithm.releasing(model if release != "none" else "last")
    view = trust.PNDP(range(attackers)).view(algorithm, n - 1, release=release)
    form, victims = HiddenModes.of(view), list(range(attackers, n))
    assume(form is not None)
    grams = form.grams(victims)
    assume(None not in grams)
    run = exact_released(exact_run(algorithm), model if release != "none" else "last")
    known = np.flatnonzero(view.knowledge.known_noise)
    A, B = exact_view(run, view.knowledge.seen, known, release=release)
    for u, gram in zip(victims, grams, strict=True):
        A_u = [row[u::n] for row in A]
        exact = to_float(exact_view_gram(A_u, B))
        assert not any(exact_leaks(A_u, B))
        assert gram.inflation - 1 < 1e-9
        of_noise = (gram.inflation - 1) * np.trace(gram.matrix)
        assert (np.abs(gram.matrix - exact) <= gram.errors + of_noise).all()


def test_the_last_model_of_every_node_shows_what_hid_behind_messages():
    """One step on a path of three: the far end's message is hidden from 0; its model is 3/4 of it, 1/4 of 1's."""
    W = np.array([[3, 1, 0], [1, 2, 1], [0, 1, 3]]) / 4
    algorithm = algorithms.dp_dsgd(Dynamics(gossip.from_array(W)), EveryStep(1))
    gram_by_release = {
        r: HiddenModes.of(trust.PNDP([0]).view(algorithm, 2, release=r)).grams([2])[0] for r in ("none", "all")
    }
    assert gram_by_release["none"].matrix == pytest.approx(0.0, abs=1e-12)
    assert gram_by_release["all"].matrix == pytest.approx(1.0)


def test_modes_want_one_symmetric_gossip_matrix_and_one_step_size():
    steps = EveryStep(4)
    covered = algorithms.dp_dsgd(Dynamics(RING, learning_rate=0.5), steps)
    others = {
        "rates": algorithms.dp_dsgd(Dynamics(RING, learning_rate=[0.5, 0.4, 0.3, 0.2]), steps),
        "divisors": covered.with_divisors(np.arange(1.0, 7.0)),
        "weights": algorithms.dp_dsgd(Dynamics(gossip.uniform("path:n=6")), steps),
        "encoder": algorithms.mf_dsgd(Dynamics(RING), steps, np.tri(4) + np.diag([0, 0, 0, 1.0])),
        "gossip": algorithms.dp_dsgd(Dynamics(gossip.sequence([RING, MH("path:n=6"), RING, RING])), steps),
    }
    modes = {
        name: HiddenModes.of(trust.PNDP([1]).view(algorithm, 2, release="none")) for name, algorithm in others.items()
    }
    assert not any(modes.values()), modes
    for algorithm in (covered, algorithms.bsr(Dynamics(RING), steps), algorithms.bisr(Dynamics(RING), steps)):
        assert all(HiddenModes.of(trust.PNDP([1]).view(algorithm, 2, release=r)) is not None for r in ("none", "all"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "attacker"), [("path:n=60", 0), ("star:n=80", 1), ("erdos-renyi:n=90,p=0.3,seed=1", 0)]
)
@pytest.mark.parametrize("T", [32, 128])
@pytest.mark.parametrize("release", ["none", "all"])
@pytest.mark.parametrize("name", ["dp_dsgd", "bsr"])
def test_the_form_that_is_asked_first_is_not_much_slower_than_any_other(graph, attacker, T, release, name):
    """The costs that forms state are what decides, and they are about speed: measured here as ratios of CPU time."""
    algorithm = getattr(algorithms, name)(Dynamics(MH(graph)), EveryStep(T))
    victims = [u for u in range(algorithm.num_nodes) if u != attacker]
    view = trust.PNDP([attacker]).view(algorithm, victims[0], release=release)
    forms = [form for kind in (HiddenModes, NullSpace, Range) if (form := kind.of(view)) is not None]
    assert len(forms) >= 2
    first = min(forms, key=lambda form: form.cost(victims))

    def seconds(form):
        began = time.process_time()
        form.grams(victims)
        return time.process_time() - began

    with threadpool_limits(1):
        took = {form: min(seconds(form), seconds(form)) for form in forms}
    assert took[first] <= 3 * min(took.values()) + 0.05, {type(form).__name__: s for form, s in took.items()}


@pytest.mark.parametrize(
    ("graph", "T", "first"), [("path:n=60", 16, Range), ("erdos-renyi:n=60,p=0.3", 64, HiddenModes)]
)
@pytest.mark.parametrize("release", ["none", "all"])
@pytest.mark.parametrize("name", ["dp_dsgd", "bsr"])
def test_few_messages_are_whitened_and_many_taken_by_modes(graph, T, first, release, name):
    """By stated costs, at two sizes where they are far apart: one of 60 nodes is heard, and a third of them."""
    algorithm = getattr(algorithms, name)(Dynamics(MH(graph)), EveryStep(T))
    view = trust.PNDP([0]).view(algorithm, 1, release=release)
    victims = list(range(1, algorithm.num_nodes))
    forms = [form for kind in FORMS if (form := kind.of(view)) is not None]
    assert isinstance(min(forms, key=lambda form: form.cost(victims)), first)

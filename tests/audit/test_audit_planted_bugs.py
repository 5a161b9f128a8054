"""Every planted bug is caught: runs show more than is claimed. The same audits refute nothing where all is well."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.linalg import toeplitz

from mfdl.algorithms import registry
from mfdl.audit import Training, audit
from mfdl.dynamics import Dynamics
from mfdl.gossip import metropolis_hastings
from mfdl.noise_scale import with_noise
from mfdl.participation import Cyclic, EveryStep, OncePerEpoch, Single
from mfdl.privacy import gaussian
from mfdl.training.shared_randomness import HolderKeys, base_columns
from mfdl.trust import LDP, PNDP, Central, SecLDP

DYNAMICS = Dynamics(metropolis_hastings("path:n=4"), 0.5)
SCHEME = Cyclic(epochs=2, period=3)
SETTINGS = {"adjacency": "replace-one", "clip_norm": 1.0, "noise_std": 2.0}
TRIALS = 800


@functools.cache
def build(name, scheme=SCHEME):
    return registry.build(name, DYNAMICS, scheme)


def training(kind, algorithm, *arguments, **more):
    return kind(algorithm, *arguments, noise_std=SETTINGS["noise_std"], clip_norm=SETTINGS["clip_norm"], **more)


def audited(algorithm, trust, system=None, trials=TRIALS, **more):
    return audit(algorithm, trust=trust, system=system, trials=trials, **(SETTINGS | more))


def dense_noise(noise):
    return np.asarray(noise.matmat(np.eye(noise.shape[1])))


class Planted(Training):
    """Injects at step t what `bug(honest stream, t, first step)` makes of the honest noise."""

    def __init__(self, algorithm, bug, **more):
        super().__init__(algorithm, **more)
        self.bug = bug

    def stream(self, key, dim, first_step):
        honest = super().stream(key, dim, first_step)
        return SimpleNamespace(step=lambda t: self.bug(honest, t, first_step))


class Rewired(Training):
    """Injects another matrix times the same base noise."""

    def __init__(self, algorithm, injected, **more):
        super().__init__(algorithm, **more)
        self.injected = injected

    def stream(self, key, dim, first_step):
        noise = self.algorithm.noise
        Z = base_columns(noise, HolderKeys.simulated(key)).block(np.arange(noise.num_steps), dim).reshape(-1, dim)
        return SimpleNamespace(
            step=(self.noise_std * (self.injected @ Z)).reshape(noise.num_steps, -1, dim).__getitem__
        )


class UnclippedNode(Training):
    node = 2

    def clip(self, gradients):
        clipped = super().clip(gradients)
        clipped[self.node] = gradients[self.node]
        return clipped


def halved(honest, t, first_step):
    return 0.5 * honest.step(t)


def reused_every_epoch(honest, t, first_step):
    return honest.step(t % SCHEME.period)


def reused_after_resume(honest, t, first_step):
    return honest.step(t - first_step)


def shared_by_coordinates(honest, t, first_step):
    return np.repeat(honest.step(t)[:, ::2], 2, axis=1)


def at_one_node(node, change):
    """Changes the noise of one node over each pair of coordinates."""

    def bug(honest, t, first_step):
        rows = honest.step(t).copy()
        rows[node] = change(rows[node].reshape(-1, 2)).ravel()
        return rows

    return bug


def drawn_once(algorithm):
    """DECOR's noise with the columns of the edges always those of step 0; node columns come first."""
    noise, n, T = algorithm.noise, algorithm.num_nodes, algorithm.num_steps
    F, m = noise.factor.toarray(), noise.columns_per_step
    shared = np.asarray(noise.holders().sum(axis=1)).ravel() > 1
    N = np.zeros((T * n, T * m))
    for t in range(T):
        for c in range(m):
            N[t * n : (t + 1) * n, (0 if shared[c] else t) * m + c] = F[:, c]
    return N


def with_encoder(encoder):
    """C^-1 (x) I_n."""
    return np.kron(np.linalg.inv(encoder), np.eye(DYNAMICS.num_nodes))


def encoder_of(algorithm):
    assert algorithm.noise.local
    return algorithm.noise.encoder_of(0)


def off_by_one(algorithm):
    """Coefficient max(k - 1, 0) of the Toeplitz encoder where k belongs."""
    first = encoder_of(algorithm)[:, 0]
    column = np.concatenate([first[:1], first[:-1]])
    return with_encoder(np.tril(toeplitz(column)))


def symmetric(algorithm):
    return with_encoder(toeplitz(encoder_of(algorithm)[:, 0]))


def not_flipped(algorithm):
    """The Cholesky factor L of X = L L^T where C^T C = X is meant."""
    C = encoder_of(algorithm)
    return with_encoder(np.linalg.cholesky(C.T @ C))


def transposed_over_nodes(algorithm):
    """The shared part of the covariance's factor transposed, in every step."""
    F, n = algorithm.noise.factor.toarray(), algorithm.num_nodes
    shared = np.asarray(algorithm.noise.holders().sum(axis=1)).ravel() > 1
    assert shared.sum() == n
    F[:, shared] = F[:, shared].T
    return np.kron(np.eye(algorithm.num_steps), F)


def same_for_two_nodes(algorithm):
    """Node 1 injects the noise of node 0: only the difference of their messages shows it."""
    F = np.eye(algorithm.num_nodes)
    F[1] = F[0]
    return np.kron(np.eye(algorithm.num_steps), F)


ALONE, ALWAYS = Single(8), EveryStep(6)
PLANTED = {  # mechanism, participation, trust model, system; the loss is 1.3 times the claim or more
    "noise halved": ("dp-dsgd", SCHEME, LDP(), lambda a: training(Planted, a, halved)),
    "noise halved, hidden messages": ("muffliato", SCHEME, PNDP([0]), lambda a: training(Planted, a, halved)),
    "noise halved, central": ("cdp", SCHEME, Central(), lambda a: training(Planted, a, halved)),
    "one node unclipped": ("mafalda", SCHEME, LDP(), lambda a: training(UnclippedNode, a)),
    "noise reused between epochs": ("dp-dsgd", SCHEME, LDP(), lambda a: training(Planted, a, reused_every_epoch)),
    "noise reused after resume": (
        "dp-dsgd",
        SCHEME,
        LDP(),
        lambda a: training(Planted, a, reused_after_resume, resume_at=(3,)),
    ),
    "noise shared by coordinates": ("dp-dsgd", SCHEME, LDP(), lambda a: training(Planted, a, shared_by_coordinates)),
    "two nodes with one secret": ("dp-dsgd", SCHEME, LDP(), lambda a: training(Rewired, a, same_for_two_nodes(a))),
    "transposed covariance": ("corn", SCHEME, SecLDP(), lambda a: training(Rewired, a, transposed_over_nodes(a))),
    "off by one in C": ("bsr", SCHEME, LDP(), lambda a: training(Rewired, a, off_by_one(a))),
    "symmetric square root": ("bsr", ALWAYS, LDP(), lambda a: training(Rewired, a, symmetric(a))),
    "Cholesky not flipped": ("mafalda", ALONE, LDP(), lambda a: training(Rewired, a, not_flipped(a))),
    "pairwise noise drawn once": ("decor", SCHEME, SecLDP(), lambda a: training(Rewired, a, drawn_once(a))),
}


@functools.cache
def without_a_bug(algorithm, trust):
    return audited(algorithm, trust)


QUICK = ("noise halved", "two nodes with one secret", "off by one in C")


@pytest.mark.parametrize(
    "bug", [pytest.param(bug, marks=[] if bug in QUICK else [pytest.mark.slow]) for bug in PLANTED]
)
def test_a_planted_bug_refutes_the_claim_and_nothing_else_does(bug):
    name, scheme, trust, plant = PLANTED[bug]
    algorithm = build(name, scheme)
    found = audited(algorithm, trust, plant(algorithm), trials=2 * TRIALS if trust.name == "central" else TRIALS)
    assert found.violated, found.sentence()
    assert found.worst.mu_audited > found.worst.mu_claimed
    honest = without_a_bug(algorithm, trust)
    assert not honest.violated, honest.sentence()
    assert max(one.mu_audited / one.mu_possible for one in honest.canaries) > 0.7  # and would see it if it were


COORDINATE_BUGS = {
    "the same": lambda pairs: pairs[:, [0, 0]],
    "the opposite": lambda pairs: pairs[:, [0, 0]] * [1.0, -1.0],
    "the second alone is quiet": lambda pairs: pairs * [1.0, 0.5],
}


@pytest.mark.parametrize(
    ("bug", "node"), [("the same", 0), ("the same", 3), ("the opposite", 1), ("the second alone is quiet", 2)]
)
def test_noise_of_coordinates_is_looked_at_for_every_node(node, bug):
    algorithm = build("dp-dsgd", Cyclic(2, 2))
    found = audited(algorithm, LDP(), training(Planted, algorithm, at_one_node(node, COORDINATE_BUGS[bug])), trials=600)
    assert {one.victim for one in found.canaries if one.violated} == {node}, found.sentence()


def test_a_step_without_noise_is_found_in_any_of_many_patterns():
    """Patterns come in the order of their first step: the last 81 of 9^3 = 729 alone hold step 8."""
    pair = Dynamics(metropolis_hastings("path:n=2"), 0.5)
    algorithm = registry.build("dp-dsgd", pair, OncePerEpoch(epochs=3, period=9))
    silent = training(Planted, algorithm, lambda honest, t, _: honest.step(t) * (t != 8))
    assert audited(algorithm, LDP(), silent, trials=300).violated


def test_the_right_matrix_and_a_resumed_run_are_not_refuted():
    decor, mafalda = build("decor"), build("mafalda")
    assert not audited(decor, SecLDP(), training(Rewired, decor, dense_noise(decor.noise))).violated
    assert not audited(mafalda, LDP(), training(Training, mafalda, resume_at=(1, 3))).violated


def test_the_wrong_adjacency_is_caught():
    claimed = with_noise(build("dp-dsgd"), noise_std=2.0, trust=LDP(), adjacency="zero-out", clip_norm=1.0)
    assert not audit(claimed, trust=LDP(), trials=TRIALS).violated
    found = audit(claimed, trust=LDP(), adjacency="replace-one", trials=TRIALS)
    assert found.violated
    assert found.mu_claimed == pytest.approx(claimed.guarantee.mu)


def test_delta_instead_of_two_delta_is_caught(monkeypatch):
    algorithm = build("mafalda")
    right = audited(algorithm, LDP())
    monkeypatch.setattr(gaussian, "record_shift", lambda adjacency, clip_norm: clip_norm)
    wrong = audited(algorithm, LDP())
    assert wrong.mu_claimed == pytest.approx(right.mu_claimed / 2)
    assert wrong.violated
    assert not right.violated


def test_a_claim_of_somebody_else_is_audited():
    algorithm = build("dp-dsgd", EveryStep(4))
    assert audited(algorithm, LDP(), claimed_mu=1.5).violated  # it loses 2
    assert not audited(algorithm, LDP(), claimed_mu=2.01).violated


def test_a_number_for_fixed_gradients_is_refuted_by_adaptive_ones():
    """Zip-DL on a path loses more to gradients that react to hidden messages than to any fixed ones."""
    algorithm = registry.build("zip-dl", DYNAMICS, EveryStep(4))
    options = {"release": "none", "unit": "user", "victim": 1}
    honest = audited(algorithm, PNDP([3]), **options)
    fixed = max(one.mu_possible for one in honest.canaries if one.canary != "adaptive gradients")
    found = audited(algorithm, PNDP([3]), claimed_mu=fixed, trials=4000, **options)
    assert found.violated
    assert [one.canary for one in found.canaries if one.violated] == ["adaptive gradients"]
    assert not honest.violated

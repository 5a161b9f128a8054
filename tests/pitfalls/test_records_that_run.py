"""A record takes part in the steps that were accounted, and outputs that share noise are accounted as one release."""

import dataclasses
import inspect
import math

import numpy as np
import pytest
import torch
from vocabulary import ZERO_OUT, dynamics_on, given, refuses, st, unsupported

from mfdl import NoiseKey, Privacy, account, algorithms, noise_scale, trust
from mfdl.dynamics import Dynamics
from mfdl.noise_scale import calibrate
from mfdl.participation import Cyclic, EveryStep, OncePerEpoch, PoissonSampling
from mfdl.privacy.attacking_sets import sensitivity_by_victim
from mfdl.privacy.forms import view_grams
from mfdl.privacy.gram_sensitivity import sensitivities
from mfdl.testing import largest_signed_sum, node_columns, pinv_gram, view_cases
from mfdl.testing.tasks import linear_task
from mfdl.training.executor import Executor
from mfdl.training.replay import replay
from mfdl.training.shared_randomness import HolderKeys
from mfdl.training.streams import node_noise, noise_stream
from mfdl.training.tasks import Task
from mfdl.trust.view import AlgorithmView, View

torch.set_num_threads(1)
NODES, ETA, CLIP = 3, 0.3, 0.5
RING, LDP = dynamics_on("ring:n=3", 0.1), Privacy(trust.LDP(), **ZERO_OUT)


def dot_task(num_records: int) -> Task:
    return linear_task(NODES, np.random.default_rng(0).uniform(1, 2, (num_records, 2)))  # no gradient is zero


def made_for(participation, unit="record"):
    return calibrate(algorithms.dp_dsgd(RING, participation), dataclasses.replace(LDP, unit=unit), mu=1.0)


def instance_of(mechanism, task, seed):
    built = []
    with pytest.MonkeyPatch.context() as patch:
        plain = Task.instance
        patch.setattr(Task, "instance", lambda self, *a, **k: built.append(plain(self, *a, **k)) or built[-1])
        replay(mechanism, task, seeds=[seed], stop_after=0)
    return built[0]


def steps_of(instance, place, num_steps, mask=None):
    mask = instance.mask if mask is None else mask
    without = mask.clone()
    without[place] = False
    models = instance.initial_parameters
    with_it, without_it = (dataclasses.replace(instance, mask=m) for m in (mask, without))
    return tuple(
        t
        for t in range(num_steps)
        if not torch.equal(
            with_it.clipped_gradients(models, t, 1.0, "record"), without_it.clipped_gradients(models, t, 1.0, "record")
        )
    )


@given(10, epochs=st.integers(1, 3), period=st.integers(1, 3), extra=st.integers(0, 3), seed=st.integers(0, 99))
@pytest.mark.slow
def test_a_record_takes_part_in_the_steps_of_one_accounted_pattern(epochs, period, extra, seed):
    """Every record, every step of the run; and whichever record is left out, the others keep their steps."""
    participation = Cyclic(epochs, period)
    patterns = {tuple(p.tolist()) for p in participation.patterns()}
    instance = instance_of(made_for(participation), dot_task(NODES * period + extra), seed)
    places = [tuple(place) for place in torch.nonzero(instance.mask).tolist()]
    assert len(places) == NODES * period + extra
    missing = instance.mask.clone()
    missing[places[0]] = False
    for place in places:
        steps = steps_of(instance, place, participation.num_steps)
        assert steps in patterns
        if place != places[0]:
            assert steps_of(instance, place, participation.num_steps, missing) == steps


def test_every_step_feeds_every_record_at_every_step():
    instance = instance_of(made_for(EveryStep(4)), dot_task(7), 0)
    assert {steps_of(instance, tuple(p), 4) for p in torch.nonzero(instance.mask).tolist()} == {(0, 1, 2, 3)}


def test_reshuffled_epochs_are_another_scheme_with_a_larger_loss():
    """Last in one epoch and first in the next: two steps in a row, which share noise. The fixed order never has that.

    The executor, which feeds a fixed order, refuses a mechanism for any order.
    """
    fixed, shuffled = (algorithms.bsr(RING, p, bandwidth=2) for p in (Cyclic(2, 2), OncePerEpoch(2, 2)))
    C = np.eye(4) + 0.5 * np.eye(4, k=-1)
    np.testing.assert_array_equal(fixed.noise.encoder.dense(), C)
    worth = {p: np.sum(C[:, list(p)].sum(axis=1) ** 2) for p in [(0, 2), (1, 3), (0, 3), (1, 2)]}
    assert worth == {(0, 2): 2.5, (1, 3): 2.25, (0, 3): 2.25, (1, 2): 3.5}
    assert account(fixed, LDP, noise_std=1.0).mu ** 2 == pytest.approx(2.5)
    assert account(shuffled, LDP, noise_std=1.0).mu ** 2 == pytest.approx(3.5)
    calibrated = calibrate(shuffled, LDP, mu=1.0)
    unsupported("Reshuffled or sampled", lambda: replay(calibrated, dot_task(8), seeds=[0]))


@pytest.mark.parametrize("entrance", [account, calibrate, noise_scale.losses, sensitivity_by_victim])
def test_no_guarantee_takes_a_sampling_rate_or_infers_one_from_data(entrance):
    """A rate stands in a participation, which the sampler takes too: no accountant has another, or sees the records."""
    names = set(inspect.signature(entrance).parameters)
    assert not {name for name in names if any(word in name for word in ("sampl", "rate", "probab", "batch", "loader"))}
    assert not names & {"task", "data", "dataset", "features", "instance"}


@pytest.mark.parametrize("build", [algorithms.mafalda, algorithms.bsr, algorithms.anti_pgd, algorithms.zip_dl])
def test_a_rate_amplifies_nothing_that_is_not_proven(build):
    """Noise correlated over time or added to messages: neither the accountant of patterns nor that of draws answers."""
    sampling = PoissonSampling(0.1, 4)
    unsupported("is proven|fresh in every step", lambda: account(build(RING, sampling), LDP, noise_std=1.0))


def test_the_guarantee_does_not_follow_the_number_of_records():
    calibrated = made_for(Cyclic(2, 3))
    few, many = (instance_of(calibrated, dot_task(NODES * size), 0) for size in (3, 12))
    assert few.period == many.period == 3
    for instance in (few, many):
        place = tuple(torch.nonzero(instance.mask)[0].tolist())
        assert len(steps_of(instance, place, 6)) == calibrated.algorithm.participation.epochs
    # not a shorter epoch instead
    refuses("at least period=3 records", instance_of, calibrated, dot_task(NODES * 3 - 1), 0)


def messages(participation, per_node, monkeypatch, *, change, unit="record"):
    """What is sent, (T, n, 2), with the same noise every time; `change` edits features and mask in place."""
    algorithm = algorithms.dp_dsgd(dynamics_on("ring:n=3", ETA), participation)
    calibrated = calibrate(algorithm, Privacy(trust.LDP(), adjacency="zero-out", clip_norm=CLIP, unit=unit), mu=1.0)
    plain = Task.instance

    def changed(self, *args, **kwargs):
        instance = plain(self, *args, **kwargs)
        features, mask = instance.features.clone(), instance.mask.clone()
        change(features, mask)
        return dataclasses.replace(instance, features=features, mask=mask)

    task = linear_task(NODES, np.ones((NODES * per_node, 2)))
    with monkeypatch.context() as patch:
        patch.setattr(Task, "instance", changed)
        return replay(calibrated, task, seeds=[0], keep_messages=True, dtype=torch.float64).seeds[0].messages


def opposed(features, mask):
    features[1, 0] = 10.0
    features[1, 0, 0] = -10.0


@pytest.mark.parametrize("per_node", [2, 4, 9])
def test_leaving_out_a_record_moves_its_message_by_its_own_share_alone(per_node, monkeypatch):
    """eta C / m, m public. Divided by the records present, the mean would go from (m - 2) C / m to C: twice as far."""

    def without(features, mask):
        opposed(features, mask)
        mask[1, 0, 0] = False

    first, second = (messages(EveryStep(2), per_node, monkeypatch, change=change)[0] for change in (opposed, without))
    reach = ETA * CLIP / per_node
    np.testing.assert_allclose(np.linalg.norm(first - second, axis=1), [0, reach, 0], rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("unit", ["record", "user"])
def test_a_node_without_records_sends_its_noise_all_the_same(unit, monkeypatch):
    """Both batches of node 1 empty: a normal step with gradient zero. Silence, or no noise, would show who is there."""
    participation = Cyclic(2, 2) if unit == "record" else EveryStep(4)

    def empty(features, mask):
        mask[1] = False

    def zero(features, mask):
        features[1] = 0.0

    sent = messages(participation, 4, monkeypatch, change=empty, unit=unit)
    np.testing.assert_array_equal(sent, messages(participation, 4, monkeypatch, change=zero, unit=unit))
    algorithm = algorithms.dp_dsgd(dynamics_on("ring:n=3", ETA), participation)
    W = algorithm.dynamics.gossip.dense()
    injected = np.concatenate([sent[:1], sent[1:] - np.einsum("uv,tvd->tud", W, sent[:-1])])
    assert (np.abs(injected[:, 1]) > 1e-6).all()  # noise of std ETA CLIP / m or so; zero would be 1e-16


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e308])
def test_a_record_that_is_no_number_counts_as_not_there(bad, monkeypatch):
    """1e308: finite, with a gradient whose norm overflows in float64."""

    def broken(features, mask):
        features[1, 0, 0] = bad

    def absent(features, mask):
        mask[1, 0, 0] = False

    sent = messages(Cyclic(2, 2), 4, monkeypatch, change=broken)
    assert np.isfinite(sent).all()
    np.testing.assert_array_equal(sent, messages(Cyclic(2, 2), 4, monkeypatch, change=absent))


TOLERANCE = 3e-6  # relative; the semidefinite bounds of both sides stop within 1e-6 of the truth


def squared(view, victims, scheme):
    return np.array([s.squared for s in sensitivities(view_grams(view, victims), scheme, nodes=victims)])


@given(60, case=view_cases(kinds=("pndp", "central", "masks")), release=st.sampled_from(["average", "all"]))
def test_messages_and_models_together_show_no_less_than_either(case, release):
    algorithm, victims = case.algorithm, list(case.honest)
    knowledge = case.model.view(algorithm, victims[0], release=release).knowledge
    nothing = dataclasses.replace(knowledge, seen=np.zeros_like(knowledge.seen), combination=None)

    def loss(known, outputs):
        view = AlgorithmView(algorithm, known, release=outputs, attacker="anyone")
        return squared(view, victims, algorithm.participation)

    both = loss(knowledge, release)
    for marginal in (loss(knowledge, "none"), loss(nothing, release)):
        assert (both >= marginal * (1 - TOLERANCE) - TOLERANCE).all()


def test_two_noisy_outputs_may_show_everything():
    """g + z and 2 g + z: each has a finite loss, their difference has no noise."""
    first, second = (View(np.array([[a]]), np.array([[1.0]])) for a in (1.0, 2.0))
    together = View(np.array([[1.0], [2.0]]), np.array([[1.0], [1.0]]))
    losses = [squared(view, [0], EveryStep(1))[0] for view in (first, second, together)]
    assert losses == [pytest.approx(1.0), pytest.approx(4.0), math.inf]


@pytest.mark.parametrize("name", ["dp-dsgd", "anti-pgd"])
def test_released_models_are_accounted_together_with_the_messages(name):
    """The far end of a path of four, the average of the final models published: joint Gram by pseudo-inverse.

    The neighbour's messages take noise out of the average, so both show more than the sum of what each shows.
    """
    T, victim = 3, 3
    dynamics = dynamics_on("path:n=4", 0.5)
    algorithm = algorithms.build(name, dynamics, EveryStep(T))
    view = trust.PNDP([0]).view(algorithm, victim, release="average")
    A, B = view.dense_gradients_by_time(), view.dense_noise()
    assert len(A) == T + 1
    truth, largest = {}, {}
    for outputs, rows in {"messages": slice(0, T), "average": slice(T, None), "both": slice(None)}.items():
        X, leaks = pinv_gram(node_columns(A[rows], victim, 4), B[rows])
        assert not leaks.any()
        truth[outputs] = largest_signed_sum(X.tolist())
        largest[outputs] = float(np.abs(X).sum())
    assert truth["both"] > 1.2 * (truth["messages"] + truth["average"])
    loss = squared(view, [victim], algorithm.participation)[0]
    assert truth["both"] * (1 - 1e-9) <= loss <= largest["both"] * (1 + 1e-9)


def test_steps_of_one_record_are_accounted_together():
    """Anti-correlated noise: a step by itself is worth T - t, all steps of a record together 1^2 + ... + T^2."""
    C, algorithm = np.tri(4), algorithms.anti_pgd(RING, EveryStep(4))
    assert (np.trace(C.T @ C), np.sum(C.T @ C)) == (10, 30)  # the sum over steps, and all together
    assert account(algorithm, LDP, noise_std=1.0).mu ** 2 == pytest.approx(30)


DYN = dynamics_on("path:n=3", 0.1)
KEY = NoiseKey.from_seed(0)
T = 4
ALGORITHMS = {
    "dp-dsgd": algorithms.dp_dsgd(DYN, EveryStep(T)),
    "anti-pgd": algorithms.anti_pgd(DYN, Cyclic(2, 2)),
    "decor": algorithms.decor(DYN, EveryStep(T)),
    "two rounds": algorithms.dp_dsgd(Dynamics(DYN.gossip, 0.1, gossip_rounds=2), EveryStep(T)),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_neither_noise_nor_a_step_beyond_the_last(algorithm):
    executor, stream = Executor(algorithm, dtype=torch.float64), noise_stream(algorithm.noise, 1.0, KEY, 2)
    state, zero = (make(torch.zeros(3, 2, dtype=torch.float64)) for make in (executor.initial_state, torch.clone))
    executor.step(T - 1, state, zero, zero)
    assert stream.step(T - 1).shape == (3, 2)
    for t in (T, T + 1, -1, 10**6):
        refused = rf"step must lie in \[0, {T}\), got {t}"
        refuses(f"{refused}: the algorithm was accounted", executor.step, t, state, zero, zero)
        refuses(f"{refused}.*calibrate a longer one", stream.step, t)
        for node in range(3):
            refuses(refused, node_noise, algorithm.noise, node, HolderKeys.simulated(KEY), 1.0, t, 2)


def test_a_participation_of_more_steps_is_another_mechanism():
    calibrated = calibrate(ALGORITHMS["dp-dsgd"], LDP, noise_std=0.0)
    longer = algorithms.dp_dsgd(DYN, EveryStep(T + 1))
    refuses("calibrate or account anew", lambda: type(calibrated)(longer, calibrated.guarantee))


def test_a_schedule_of_step_sizes_ends_with_the_mechanism():
    rates = Dynamics(DYN.gossip, np.full(T, 0.1))
    words = f"one for each of {T + 1} steps, got a schedule of {T}"
    refuses(words, algorithms.dp_dsgd, rates, EveryStep(T + 1))


def test_a_rate_in_a_public_accountant_is_refused():
    dynamics = dynamics_on("ring:n=3", 0.1)
    algorithm = algorithms.dp_dsgd(dynamics, PoissonSampling(0.1, 10))
    unsupported("have no mu; give epsilon", lambda: calibrate(algorithm, Privacy(trust.LDP(), **ZERO_OUT), mu=1.0))

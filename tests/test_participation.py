"""Participation, of all nodes and by node: patterns of every scheme, classes, accounting, training, refusals."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
import torch
from _guarantees import guarantees, worst_sensitivity
from archives import edited
from vocabulary import dynamics_on, each, given, refuses, st, unsupported

from mfdl import Cyclic, EveryStep, MinSeparation, Privacy, account, algorithms, archive, calibrate, gossip, trust
from mfdl.dynamics import Dynamics
from mfdl.errors import UnsupportedMechanism
from mfdl.participation import Explicit, OncePerEpoch, Participation, ParticipationByNode, Single
from mfdl.privacy import sensitivity_by_victim
from mfdl.testing import (
    ALL_SCHEMES,
    brute_force_sensitivity,
    once_per_epoch_patterns,
    participations,
    separated_patterns,
)
from mfdl.testing.tasks import linear_task
from mfdl.training import tasks
from mfdl.training.replay import replay


def lists(participation: Participation) -> list[list[int]]:
    return [pattern.tolist() for pattern in participation.patterns()]


def tuples(participation: Participation) -> list[tuple[int, ...]]:
    return [tuple(pattern) for pattern in lists(participation)]


@given(part=participations(schemes=ALL_SCHEMES))
def test_patterns_are_sorted_distinct_steps_and_counted(part):
    patterns = lists(part)
    assert part.num_patterns == len(patterns) > 0
    for steps in patterns:
        assert steps
        assert steps == sorted(set(steps))
        assert 0 <= steps[0] <= steps[-1] < part.num_steps


@given(part=participations(schemes=ALL_SCHEMES))
def test_classes_are_the_patterns_or_are_refused(part):
    patterns = lists(part)
    flat = [step for steps in patterns for step in steps]
    if len(flat) != len(set(flat)):
        unsupported("factorization needs disjoint participation", part.classes)
    elif len(flat) < part.num_steps:
        unsupported("factorization needs every step in a pattern", part.classes)
    else:
        labels = part.classes()
        assert labels.shape == (part.num_steps,)
        for label, steps in enumerate(patterns):
            assert np.flatnonzero(labels == label).tolist() == steps


@given(part=participations(schemes=ALL_SCHEMES))
def test_dictionaries_are_plain_and_files_give_it_back(part):
    saved = part.to_dict()
    assert next(iter(saved)) == "scheme"
    assert json.loads(json.dumps(saved)) == saved
    assert archive.copied(part, "participation") == part
    assert part.describe()


@given(60, T=st.integers(1, 9), k=st.integers(1, 5), b=st.integers(1, 10))
def test_min_separation_lists_the_maximal_sets_once_each(T, k, b):
    scheme = MinSeparation(T, k, b)
    assert sorted(tuples(scheme)) == separated_patterns(T, k, b)
    assert scheme.num_patterns == len(tuples(scheme))


@given(20, k=st.integers(1, 3), b=st.integers(1, 4))
def test_once_per_epoch_lists_one_step_of_each_epoch(k, b):
    scheme = OncePerEpoch(k, b)
    assert tuples(scheme) == once_per_epoch_patterns(k, b)
    assert scheme.num_patterns == b**k == len(tuples(scheme))
    assert scheme.num_steps == k * b


@pytest.mark.parametrize("T", [1, 4])
def test_special_cases_coincide(T):
    assert lists(Explicit([(2, 0), (1,)], 3)) == [[0, 2], [1]]
    assert lists(Cyclic(1, T)) == lists(Single(T)) == [[t] for t in range(T)]
    assert lists(Cyclic(T, 1)) == lists(EveryStep(T)) == [list(range(T))]
    assert lists(Explicit([range(T)], T)) == lists(EveryStep(T))


def test_numpy_integers_become_plain_ones():
    two = np.int64(2)
    for part in (Cyclic(two, two), Single(two), Explicit([[np.int64(1)]], two), MinSeparation(two, two, two)):
        json.dumps(part.to_dict())  # a numpy integer is no JSON


def test_astronomically_many_patterns_are_counted_and_enumerated_lazily():
    for scheme in (OncePerEpoch(40, 16), MinSeparation(640, 30, 16)):
        assert scheme.num_patterns > 10**12
        first = [tuple(p) for p in itertools.islice(scheme.patterns(), 5)]
        assert len(set(first)) == 5
    assert OncePerEpoch(40, 16).num_patterns == 16**40
    assert MinSeparation(100, 3, 1).num_patterns == 161700  # any three of a hundred


@each(
    "make, message",
    (lambda: Cyclic(0, 3), "epochs must be an integer >= 1, got 0"),
    (lambda: Cyclic(2, -1), "period must be an integer >= 1, got -1"),
    (lambda: Cyclic(2.0, 3), "epochs must be an integer >= 1, got 2.0"),
    (lambda: Cyclic(True, 3), "epochs must be an integer >= 1, got True"),
    (lambda: Single(0), "steps must be an integer >= 1, got 0"),
    (lambda: EveryStep(0), "steps must be an integer >= 1, got 0"),
    (lambda: Explicit([], 3), "at least one pattern, got none"),
    (lambda: Explicit([[0], []], 3), r"patterns\[1\] must be distinct steps in \[0, 3\)"),
    (lambda: Explicit([[0, 3]], 3), r"patterns\[0\] must be distinct steps in \[0, 3\).*got \[0, 3\]"),
    (lambda: Explicit([[1, 1]], 3), r"patterns\[0\] must be distinct steps"),
    (lambda: Explicit([[-1]], 3), "step must be an integer >= 0, got -1"),
    (lambda: Explicit([[0]], 0), "steps must be an integer >= 1, got 0"),
    (lambda: Cyclic(4, 16, 63), "got steps=63, epochs=4, period=16; use steps=64 or leave it out"),
    (lambda: OncePerEpoch(0, 3), "epochs must be an integer >= 1, got 0"),
    (lambda: OncePerEpoch(2, 1.5), "period must be an integer >= 1"),
    (lambda: MinSeparation(0, 1, 1), "steps must be"),
    (lambda: MinSeparation(4, 0, 1), "max_participations must be"),
    (lambda: MinSeparation(4, 1, 0), "separation must be an integer >= 1, got 0"),
    (lambda: MinSeparation(4, True, 1), "max_participations must be"),
)
def test_bad_schemes_are_refused(make, message):
    refuses(message, make)


@each(
    "part, message",
    (Explicit([[0, 1], [1, 2]], 3), r"disjoint .* explicit participation \(2 patterns, 3 steps\) has step 1"),
    (Explicit([[0], [2]], 3), "no record takes part in step 1 under"),
    (OncePerEpoch(2, 3), r"patterns, but participation once per epoch in any order \(epochs=2, period=3\)"),
    (MinSeparation(9, 2, 4), r"but at most 2 participations, at least 4 steps apart \(9 steps\) has step 0 in two"),
    (MinSeparation(640, 30, 16), "disjoint participation patterns"),
)
def test_what_has_no_classes_is_refused_in_words(part, message):
    unsupported(message, part.classes)


@given(part=participations(schemes=ALL_SCHEMES))
def test_steps_are_allowed_together_if_and_only_if_a_pattern_holds_them(part):
    patterns = [set(pattern.tolist()) for pattern in part.patterns()]
    few = range(min(part.num_steps, 8) + 1)  # the last of which may be no step
    for steps in itertools.chain.from_iterable(itertools.combinations(few, size) for size in range(4)):
        assert part.allows(steps) == any(set(steps) <= pattern for pattern in patterns)


torch.set_num_threads(1)

STEPS = 6
KINDS = (
    Cyclic(2, 3), Cyclic(3, 2), Cyclic(6, 1), Cyclic(1, 6), Single(STEPS), EveryStep(STEPS),
    Explicit([[0, 1], [1, 4, 5]], STEPS), OncePerEpoch(2, 3), MinSeparation(STEPS, 2, 3),
)  # fmt: skip
RING = dynamics_on("ring:n=4", 0.1)
MIXED = ParticipationByNode([Cyclic(2, 3), Cyclic(3, 2), Cyclic(2, 3), Cyclic(1, 6)])
LDP = {"trust": trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0}

by_node = st.lists(st.sampled_from(KINDS), min_size=1, max_size=5).map(ParticipationByNode)


def encoder_of(seed: int, num_nodes: int = 4, steps: int = STEPS) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.tril(rng.normal(size=(num_nodes, steps, steps))) + 3 * np.eye(steps)


def patterns(scheme):
    return [pattern.tolist() for pattern in scheme.patterns()]


# ---- what it says ----------------------------------------------------------------------------------------
@given(scheme=by_node)
def test_each_node_has_the_participation_it_was_given(scheme):
    nodes = range(scheme.num_nodes)
    assert [scheme.at_node(u) for u in nodes] == list(scheme.participations)
    gathered = scheme.shared_by(list(nodes))
    assert sorted(u for _, members in gathered for u in members) == list(nodes)
    assert all(scheme.participations[u] == participation for participation, members in gathered for u in members)
    assert len(gathered) == len(set(scheme.participations)) == len(scheme.distinct())


@given(scheme=by_node)
def test_it_survives_json_and_tells_the_nodes_apart_in_words(scheme):
    saved = scheme.to_dict()
    assert next(iter(saved)) == "scheme"
    assert json.loads(json.dumps(saved)) == saved
    again = archive.copied(scheme, "participation")
    assert again == scheme
    assert again.describe() == scheme.describe()
    swapped = ParticipationByNode(reversed(scheme.participations))
    assert (swapped.describe() == scheme.describe()) == (swapped == scheme)


@given(scheme=by_node)
def test_what_is_asked_of_all_nodes_has_an_answer_only_where_they_agree(scheme):
    if len(set(scheme.participations)) == 1:
        assert patterns(scheme) == patterns(scheme.participations[0])
        assert scheme.num_patterns == scheme.participations[0].num_patterns
    else:
        unsupported(r"at_node\(u\)\.patterns", scheme.patterns)
        with pytest.raises(UnsupportedMechanism, match="no patterns of them all"):
            _ = scheme.num_patterns
    everything = [patterns(participation) == [list(range(STEPS))] for participation in scheme.participations]
    assert scheme.in_every_step == all(everything)


@given(scheme=by_node)
def test_one_partition_of_the_steps_is_one_that_every_node_has(scheme):
    parts = [sorted(patterns(participation)) for participation in scheme.participations]
    partitions = all(sorted(itertools.chain(*part)) == list(range(STEPS)) for part in parts)
    if partitions and all(part == parts[0] for part in parts):
        labels = scheme.classes()
        assert sorted(np.flatnonzero(labels == c).tolist() for c in set(labels.tolist())) == parts[0]
    else:
        unsupported("mafalda-classes|disjoint|every step", scheme.classes)


def test_a_participation_of_all_nodes_is_that_of_each():
    shared = Cyclic(2, 3)
    assert shared.at_node(7) is shared
    assert shared.distinct() == (shared,)
    assert shared.shared_by([3, 1]) == [(shared, [3, 1])]
    assert shared.num_nodes is None


@each(
    "given_ones, message",
    ([], "must hold one participation per node, got none"),
    ([Cyclic(2, 3), Cyclic(2, 4)], "got 8 at node 1 and 6 at node 0"),
    ([Cyclic(2, 3), "cyclic"], "got str at node 1"),
    ([MIXED], "got ParticipationByNode at node 0"),
)
def test_what_is_no_participation_per_node(given_ones, message):
    refuses(message, ParticipationByNode, given_ones)


def test_a_node_that_is_not_there():
    refuses("node must be below 4", MIXED.at_node, 4)
    refuses("node must be an integer >= 0", MIXED.at_node, -1)


@pytest.mark.parametrize("of_node", [[0, 5], "01", [-1], []])
def test_numbers_of_no_participation_are_refused(tmp_path, of_node):
    path = archive.write(tmp_path / "a", "run", {"participation": MIXED})
    edited(path, lambda header, _: header["content"]["participation"]["fields"].update(of_node=of_node))
    refuses(str(path), archive.read, path, "run")


# ---- accounting ------------------------------------------------------------------------------------------
@given(25, kinds=st.lists(st.sampled_from(KINDS), min_size=4, max_size=4), seed=st.integers(0, 10**6))
def test_each_victim_is_accounted_under_its_own_participation(kinds, seed):
    C = np.abs(encoder_of(seed))  # then the signs of brute force attain the maximum over vectors
    algorithm = algorithms.mf_dsgd(RING, ParticipationByNode(kinds), C)
    losses = sensitivity_by_victim(algorithm, trust.LDP())
    for u, loss in enumerate(losses):
        truth = brute_force_sensitivity(C[u], kinds[u]) ** 2
        assert truth * (1 - 1e-9) <= loss.sensitivity_squared <= truth * (1 + 2e-6)
        assert loss.adaptive_sensitivity_squared == loss.sensitivity_squared
    worst = account(algorithm, Privacy(**LDP), noise_std=1.0)
    assert worst.mu == pytest.approx(max(math.sqrt(loss.sensitivity_squared) for loss in losses), rel=1e-12)


@pytest.mark.parametrize(
    ("model", "lipschitz"),
    [(trust.PNDP([0]), None), (trust.PNDP([0]), 0.9), (trust.PNDP([0]), 1.0), (trust.Eavesdropper(), None)],
)
def test_a_victim_loses_what_it_loses_where_all_nodes_have_its_participation(model, lipschitz):
    mixed = algorithms.dp_dsgd(RING, MIXED)
    for loss in sensitivity_by_victim(mixed, model, lipschitz=lipschitz):
        alike = algorithms.dp_dsgd(RING, MIXED.at_node(loss.victim))
        (expected,) = sensitivity_by_victim(alike, model, victims=[loss.victim], lipschitz=lipschitz)
        assert loss.sensitivity_squared == pytest.approx(expected.sensitivity_squared, rel=1e-6)
        assert loss.adaptive_sensitivity_squared == pytest.approx(expected.adaptive_sensitivity_squared, rel=1e-5)
        assert loss.adaptive_by == expected.adaptive_by
        assert loss.bound == expected.bound


def test_the_guarantee_names_every_node_and_that_of_a_victim_its_own_participation():
    algorithm = algorithms.dp_dsgd(RING, MIXED)
    calibrated = calibrate(algorithm, Privacy(**LDP), mu=1.0)
    assert calibrated.guarantee.participation == MIXED.describe()
    assert "(epochs=2, period=3) at nodes 0, 2 and cyclic" in str(calibrated.guarantee)
    each = guarantees(algorithm, sensitivity_by_victim(algorithm, trust.LDP()), noise_std=calibrated.noise_std, **LDP)
    assert [g.participation for g in each] == [MIXED.at_node(u).describe() for u in range(4)]
    np.testing.assert_allclose([g.mu for g in each], np.sqrt([2 / 3, 1, 2 / 3, 1 / 3]), rtol=1e-6)
    assert calibrated.guarantee.mu <= 1.0


def test_refusals_without_a_node():
    algorithm, other = algorithms.dp_dsgd(RING, MIXED), ParticipationByNode([Cyclic(2, 3)] * 5)
    for ask in (
        lambda: algorithms.dp_dsgd(RING, other),
        lambda: algorithms.d_mf(RING, other),
        lambda: sensitivity_by_victim(algorithm, trust.LDP(), participation=other),
        lambda: account(algorithm, Privacy(participation=other, **LDP), noise_std=1.0),
    ):
        refuses("given for 5 nodes, but there are 4", ask)
    unsupported("no patterns of them all", lambda: worst_sensitivity(algorithms.dp_dsgd(RING, MIXED), trust.LDP()))
    for shared in (algorithms.mafalda, algorithms.d_mf):
        unsupported("use mafalda-l or mafalda-classes", shared, RING, MIXED)


# ---- training --------------------------------------------------------------------------------------------
def dot_task(num_records: int) -> tasks.Task:
    return linear_task(4, np.random.default_rng(0).uniform(1, 2, (num_records, 2)))  # no gradient is zero


PERIODS = [3, 2, 3, 6]


@pytest.mark.parametrize("unit", ["record", "user"])
def test_a_record_takes_part_in_the_steps_of_a_pattern_of_its_node(unit):
    task = dot_task(29)  # 7 or 8 records a node: batches of unequal size
    instance = task.instance(0, PERIODS)
    models = instance.initial_parameters
    whole = [instance.clipped_gradients(models, t, 1.0, unit) for t in range(STEPS)]
    seen = [set() for _ in PERIODS]
    for place in instance.mask.nonzero().tolist():
        mask = instance.mask.clone()
        mask[tuple(place)] = False
        rest = dataclasses.replace(instance, mask=mask)
        now = [rest.clipped_gradients(models, t, 1.0, unit) for t in range(STEPS)]
        moved = np.array([(a != b).any(1).numpy() for a, b in zip(now, whole, strict=True)])
        assert not np.delete(moved, place[0], axis=1).any()
        seen[place[0]].add(tuple(np.flatnonzero(moved[:, place[0]]).tolist()))
    for u, b in enumerate(PERIODS):
        assert seen[u] == {tuple(range(r, STEPS, b)) for r in range(b)}
    records = sorted(instance.record_index[instance.record_index >= 0].tolist())
    assert records == list(range(29))  # every record once


def test_the_public_batch_sizes_follow_each_nodes_own_period():
    task = dot_task(32)
    np.testing.assert_array_equal(task.public_batch_sizes(PERIODS), [3, 4, 3, 2])
    np.testing.assert_array_equal(task.instance(0, PERIODS).public_batch_sizes.numpy(), [3, 4, 3, 2])
    same, number = task.instance(0, [2] * 4), task.instance(0, 2)
    assert torch.equal(same.record_index, number.record_index)
    assert same.period == number.period == 2


@pytest.mark.parametrize(
    ("periods", "message"),
    [([2, 3], "one for each of 4 nodes, got 2"), ([3, 3, 3, 9], "at least period=9 records .* got 8 at node 3"),
     ([2, 0, 2, 2], "period must be an integer >= 1, got 0")],
)  # fmt: skip
def test_periods_that_do_not_fit(periods, message):
    refuses(message, lambda: dot_task(32).instance(0, periods))


def test_training_feeds_each_record_as_often_as_its_node_has_epochs(tmp_path):
    """Without noise and gossip a model ends at minus rate / m_u times k_u times the sum of the node's records."""
    alone = Dynamics(gossip.from_array(np.eye(4)), 0.5)
    calibrated = calibrate(algorithms.dp_dsgd(alone, MIXED), Privacy(**{**LDP, "clip_norm": 10.0}), noise_std=0.0)
    task = dot_task(32)
    (seed_run,) = replay(calibrated, task, seeds=[3], dtype=torch.float64, device="cpu").seeds
    owners, features = task.owners(3), task.features.astype(np.float64)
    sums = np.stack([features[owners == u].sum(axis=0) for u in range(4)])
    epochs, sizes = np.array([2, 3, 2, 1]), np.array([3, 4, 3, 2])
    np.testing.assert_allclose(seed_run.models, -0.5 * (epochs / sizes)[:, None] * sums, rtol=1e-9)
    assert seed_run.steps.tolist() == [STEPS]  # the longest epoch ends once
    options = {"seeds": [3], "dtype": torch.float64, "device": "cpu", "checkpoint_folder": tmp_path}
    replay(calibrated, task, stop_after=4, **options)
    (resumed,) = replay(calibrated, task, **options).seeds
    np.testing.assert_array_equal(resumed.models, seed_run.models)


def test_training_refuses_a_node_whose_participation_it_does_not_implement():
    scheme = ParticipationByNode([Cyclic(2, 3), Cyclic(2, 3), OncePerEpoch(2, 3), Cyclic(2, 3)])
    calibrated = calibrate(algorithms.dp_dsgd(RING, scheme), Privacy(**LDP), mu=1.0)
    unsupported("participation once per", lambda: replay(calibrated, dot_task(32), seeds=[0]))
    alike = ParticipationByNode([Cyclic(2, 3)] * 4)
    calibrated = calibrate(algorithms.dp_dsgd(RING, alike), Privacy(**LDP), mu=1.0)
    refuses("period must be 3", lambda: replay(calibrated, dot_task(32), seeds=[0], period=2))
    assert replay(calibrated, dot_task(32), seeds=[0], device="cpu").seeds[0].steps.tolist() == [3, 6]


def test_calibration_follows_the_worst_victim():
    schemes = (ParticipationByNode([Cyclic(1, 6)] * 3 + [last]) for last in (Cyclic(1, 6), Cyclic(6, 1)))
    few, many = (calibrate(algorithms.dp_dsgd(RING, scheme), Privacy(**LDP), mu=1.0).noise_std for scheme in schemes)
    assert many == pytest.approx(math.sqrt(6) * few)


def test_user_level_asks_for_every_step_at_every_node():
    algorithm = algorithms.dp_dsgd(RING, ParticipationByNode([EveryStep(STEPS)] * 3 + [Cyclic(2, 3)]))
    refuses("unit 'user' needs participation", lambda: calibrate(algorithm, Privacy(unit="user", **LDP), mu=1.0))
    alike = algorithms.dp_dsgd(RING, ParticipationByNode([EveryStep(STEPS)] * 3 + [Cyclic(6, 1)]))
    assert calibrate(alike, Privacy(unit="user", **LDP), mu=1.0).noise_std == pytest.approx(math.sqrt(6))

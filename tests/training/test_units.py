"""Units of privacy: what one record, and what all data of a user, can move in the step that noise is added to."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import settings
from numpy.testing import assert_allclose
from small_tasks import regression, slow_means, some_models
from torch import nn
from vocabulary import ZERO_OUT, dynamics_on, example, given, refuses, st, unsupported

from mfdl import Cyclic, EveryStep, Privacy, algorithms, calibrate, replay, trust
from mfdl.privacy.gaussian import record_shift
from mfdl.privacy.questions import UNITS
from mfdl.testing.tasks import linear_task, still_task
from mfdl.training import clipping
from mfdl.training.tasks import Task
from mfdl.training.tasks import instance as instances

NODES = 2


def gradients(data, mask, *, unit, clip_norm, dtype=torch.float32):
    """The row of node 1, which holds `data` (B, d), one record per slot; node 0 holds records of ones."""
    slots, dimension = np.shape(data)
    instance = linear_task(NODES, np.ones((NODES * slots, dimension))).instance(0, 1, dtype=dtype)
    features, present = instance.features.clone(), instance.mask.clone()
    features[1, 0], present[1, 0] = torch.tensor(data, dtype=dtype), torch.tensor(mask)
    holding = dataclasses.replace(instance, features=features, mask=present)
    return holding.clipped_gradients(instance.initial_parameters, 0, clip_norm, unit)


def exact_distance_squared(first: torch.Tensor, other: torch.Tensor) -> Fraction:
    pairs = zip(first.double().tolist(), other.double().tolist(), strict=True)
    return sum((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs)


ENTRIES = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 1e-45, -1e-38, 3e38, -3e38, 1e20, math.nan, math.inf, -math.inf]),
    st.floats(-10, 10, width=32),
)


@st.composite
def data_sets(draw, count):
    """`count` data sets of one size, 1 to 5 records of 1 to 3 entries, some of them absent."""
    slots, dimension = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    record = st.lists(ENTRIES, min_size=dimension, max_size=dimension)
    data = st.lists(record, min_size=slots, max_size=slots)
    mask = st.lists(st.booleans(), min_size=slots, max_size=slots)
    return [(draw(data), draw(mask)) for _ in range(count)]


@given(150, sets=data_sets(2), clip_norm=st.sampled_from([1e-3, 0.3, 1.0, 7.0]), dtype=st.sampled_from([32, 64]))
@example(sets=[([[1.0], [3e38]], [True, True]), ([[-1.0], [-3e38]], [True, True])], clip_norm=1.0, dtype=32)
def test_all_data_of_a_user_move_its_clipped_mean_by_at_most_the_shift(sets, clip_norm, dtype):
    """Exactly, in rational numbers: replace-one 2 C, zero-out C; and nothing but the user's own row moves."""
    (records, one_mask), (other, other_mask) = sets
    options = {"unit": "user", "clip_norm": clip_norm, "dtype": getattr(torch, f"float{dtype}")}
    first, second = gradients(records, one_mask, **options), gradients(other, other_mask, **options)
    absent = gradients(records, [False] * len(records), **options)
    assert torch.isfinite(first).all()
    assert torch.equal(first[0], second[0])
    assert not absent[1].any()
    for adjacency, neighbour in (("replace-one", second), ("zero-out", absent)):
        reach = Fraction(record_shift(adjacency, clip_norm))
        assert exact_distance_squared(first[1], neighbour[1]) <= reach**2


@given(
    150, sets=data_sets(2), slot=st.integers(0, 4), clip_norm=st.sampled_from([1e-3, 0.3, 1.0, 7.0]),
    dtype=st.sampled_from([32, 64]),
)  # fmt: skip
def test_a_record_moves_the_sum_of_clipped_gradients_by_at_most_the_shift(sets, slot, clip_norm, dtype):
    """Up to the rounding of a sum of B terms, which `clipped_sums` states; the guarantee does not cover that."""
    (records, mask), (other, _) = sets
    slot %= len(records)
    dtype = getattr(torch, f"float{dtype}")
    options = {"unit": "record", "clip_norm": clip_norm, "dtype": dtype}
    replaced = [other[i] if i == slot else record for i, record in enumerate(records)]
    without = [False if i == slot else here for i, here in enumerate(mask)]
    cases = (records, mask), (replaced, mask), (records, without)
    first, second, absent = (gradients(*case, **options) for case in cases)
    assert torch.isfinite(first).all()
    assert torch.equal(first[0], second[0])
    rounding = 1 + 2 * len(records) ** 2 * Fraction(torch.finfo(dtype).eps)
    for adjacency, neighbour in (("replace-one", second), ("zero-out", absent)):
        reach = Fraction(record_shift(adjacency, clip_norm)) * rounding
        assert exact_distance_squared(first[1], neighbour[1]) <= reach**2


@pytest.mark.parametrize("batch", [1, 5, 128])
def test_clipping_records_and_claiming_the_user_is_wrong_by_the_batch_size(batch):
    """The reference code of arXiv:2501.14644v2 clips per sample and adds the noise of one user to the sum.

    A user whose records all turn round moves that sum by 2 C times the batch size, 256 C at its batch of 128.
    """
    towards, away = [[30.0, 40.0]] * batch, [[-30.0, -40.0]] * batch
    moved = {}
    for unit in UNITS:
        options = {"mask": [True] * batch, "unit": unit, "clip_norm": 0.5, "dtype": torch.float64}
        moved[unit] = math.sqrt(exact_distance_squared(gradients(towards, **options)[1], gradients(away, **options)[1]))
    claimed = record_shift("replace-one", 0.5)
    assert_allclose(moved["record"], batch * claimed, rtol=1e-12)
    assert moved["user"] <= claimed
    assert_allclose(moved["user"], claimed, rtol=1e-12)  # attained, so the noise of a user is not wasted either


def test_a_bad_record_silences_its_user_and_no_one_else():
    fine, bad = [[1.0, 2.0], [2.0, 1.0]], [[1.0, 2.0], [math.nan, 1.0]]
    options = {"clip_norm": 10.0}
    assert gradients(bad, [True, True], unit="user", **options)[1].tolist() == [0.0, 0.0]  # a mean with a nan is a nan
    assert gradients(bad, [True, True], unit="record", **options)[1].tolist() == [1.0, 2.0]  # the record alone
    assert gradients(bad, [True, False], unit="user", **options)[1].tolist() == [1.0, 2.0]
    assert gradients(fine, [True, True], unit="user", **options)[1].tolist() == [1.5, 1.5]
    assert gradients(fine, [False, True], unit="user", **options)[1].tolist() == [2.0, 1.0]  # present records count


class Directions(nn.Module):
    """Looks at the direction of a record: the zeros of padding give 0 / 0."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(3, 4), nn.Linear(4, 1)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.out(torch.tanh(self.hidden(x / x.norm(dim=1, keepdim=True))))


def directions_task(num_records: int = 43) -> Task:
    return regression(num_records, build=Directions)


@pytest.mark.parametrize("clip_norm", [0.05, 1e6])
@pytest.mark.parametrize("budget", [1, 2000, 10**9])
def test_one_gradient_of_the_mean_loss_is_the_mean_of_the_records_gradients(monkeypatch, budget, clip_norm):
    """Ragged batches, absent records, a model that is nan on padding, and any cut into chunks."""
    monkeypatch.setattr(instances, "CHUNK_BYTES", budget)
    instance = directions_task().instance(2, 4, dtype=torch.float64)
    mask = instance.mask.clone()
    assert not mask.all()
    mask[0, 1, 0] = mask[3, 1] = False  # one record, and one whole batch
    instance = dataclasses.replace(instance, mask=mask)
    models = some_models(instance)
    for step in range(5):
        got = instance.clipped_gradients(models, step, clip_norm, "user")
        assert not got.requires_grad
        assert_allclose(got, slow_means(instance, models, step, clip_norm), rtol=1e-9, atol=1e-12)
    assert not instance.clipped_gradients(models, 1, clip_norm, "user")[3].any()


def with_others(make, at):
    """The function that makes instances, with other records at a place."""

    def instance(self, *args, **kwargs):
        made = make(self, *args, **kwargs)
        features = made.features.clone()
        features[at] = -1e6
        return dataclasses.replace(made, features=features)

    return instance


def test_a_user_moves_its_first_message_by_the_shift_and_no_other(monkeypatch):
    """Same noise key: the executor divides clipped means by nothing, and a user reaches 2 C eta but not more."""
    task = linear_task(4, np.ones((24, 2)))
    algorithm = algorithms.dp_dsgd(dynamics_on("ring:n=4", learning_rate=0.3), EveryStep(4))
    calibrated = calibrate(algorithm, Privacy(trust.LDP(), adjacency="replace-one", clip_norm=0.5, unit="user"), mu=1.0)
    arguments = {"seeds": [0], "keep_messages": True, "dtype": torch.float64, "period": 3}
    first = replay(calibrated, task, **arguments).seeds[0]
    monkeypatch.setattr(Task, "instance", with_others(Task.instance, 2))
    second = replay(calibrated, task, **arguments).seeds[0]
    assert first.key_id == second.key_id
    moved = np.linalg.norm(first.messages - second.messages, axis=2)[0]
    assert calibrated.guarantee.record_shift == 1.0
    assert_allclose(moved, [0, 0, 0.3, 0], rtol=1e-9)  # messages are models plus noise, rounded in float64


def test_a_record_moves_the_first_message_of_its_batch_by_its_share(monkeypatch):
    """Same noise key: a record of a batch of four moves the message by a quarter of its shift, others do not."""
    task = linear_task(4, np.ones((48, 2)))
    algorithm = algorithms.dp_dsgd(dynamics_on("ring:n=4", learning_rate=0.3), Cyclic(1, 3))
    calibrated = calibrate(algorithm, Privacy(trust.LDP(), adjacency="replace-one", clip_norm=0.5), mu=1.0)
    arguments = {"seeds": [0], "keep_messages": True, "dtype": torch.float64}
    first, keep = replay(calibrated, task, **arguments).seeds[0], Task.instance
    moved = []
    for batch, place in np.ndindex(3, 4):
        monkeypatch.setattr(Task, "instance", with_others(keep, (2, batch, place)))
        second = replay(calibrated, task, **arguments).seeds[0]
        by = np.linalg.norm(first.messages - second.messages, axis=2)[0]
        assert not by[[0, 1, 3]].any()
        moved.append(by[2])
    reach = 0.3 * calibrated.guarantee.record_shift / 4
    np.testing.assert_allclose(moved, [reach] * 4 + [0.0] * 8, rtol=1e-9)


def test_noise_of_a_user_level_run_is_that_of_its_guarantee():
    """Zero gradients: the messages of step 0 are noise of std nu eta; a record-level run divides by its batch sizes."""
    d, x = 30_000, 23.0  # as in test_replay: chi-square tail, false alarm 2e-10
    task = still_task(4, np.ones((24, 3)), d)
    algorithm = algorithms.dp_dsgd(dynamics_on("ring:n=4", learning_rate=0.5), EveryStep(3))
    for unit, divisor in (("user", 1), ("record", 6)):
        calibrated = calibrate(algorithm, Privacy(trust.LDP(), unit=unit, **ZERO_OUT), mu=0.7)
        sent = replay(calibrated, task, seeds=[0], keep_messages=True, dtype=torch.float64).seeds[0].messages[0]
        ratio = np.mean(sent**2) / (calibrated.noise_std * 0.5 / divisor) ** 2
        assert abs(ratio - 1) < 2 * math.sqrt(x / (4 * d)) + 2 * x / (4 * d)


def test_divisors_do_not_count_at_user_level():
    """Nodes with 2 and 1 records per batch: at record level under PNDP that must be accounted for, here it must not."""
    task = dataclasses.replace(directions_task(18), num_nodes=5)
    assert task.public_batch_sizes(3).tolist() == [2, 2, 2, 1, 1]
    dynamics = dynamics_on("ring:n=5", learning_rate=0.1)
    common = {"trust": trust.PNDP([0]), "adjacency": "zero-out", "clip_norm": 1.0, "unit": "user"}
    algorithm = algorithms.dp_dsgd(dynamics, EveryStep(6))
    plain, divided = (
        calibrate(each, Privacy(**common), mu=1.0)
        for each in (algorithm, algorithm.with_divisors(task.public_batch_sizes(3)))
    )
    assert replay(plain, task, seeds=[0], period=3).seeds[0].finished_steps == 6
    why = "divided by nothing, but the mechanism was calibrated with divisors 1 to 2"
    refuses(why, replay, divided, task, seeds=[0], period=3)


def test_record_level_refuses_another_period_than_its_own():
    dynamics = dynamics_on("ring:n=4", learning_rate=0.1)
    common = {"trust": trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0}
    task = directions_task()
    for participation, period in ((Cyclic(3, 2), 2), (EveryStep(6), 1)):
        calibrated = calibrate(algorithms.dp_dsgd(dynamics, participation), Privacy(**common), mu=1.0)
        assert replay(calibrated, task, seeds=[0], period=period).seeds[0].finished_steps == 6
        why = f"period must be {period}, the one of .* got 3; leave it out"
        refuses(why, replay, calibrated, task, seeds=[0], period=3)
    refuses("period must be an integer >= 1, got 0", replay, calibrated, task, seeds=[0], period=0)


def test_divisors_that_a_guarantee_does_not_cover_are_refused():
    """Five nodes with 4, 4, 4, 3, 3 records: under PNDP unequal divisors change the loss, under LDP they cancel."""
    task = regression(18, 5)
    dynamics = dynamics_on("ring:n=5", learning_rate=0.1)
    base = algorithms.dp_dsgd(dynamics, Cyclic(2, 3))
    common = {"adjacency": "zero-out", "clip_norm": 1.0}
    assert task.public_batch_sizes(3).tolist() == [2, 2, 2, 1, 1]
    assert task.instance(7, 3).public_batch_sizes.tolist() == [2, 2, 2, 1, 1]
    replay(calibrate(base, Privacy(trust.LDP(), **common), mu=1.0), task, seeds=[0])
    maps = {name: m for name, m in vars(base.rounds[0]).items() if m is not None}
    maps["message_from_noise"] = sp.csr_array(-0.1 * np.roll(np.eye(5), 1, axis=0))  # a node's noise in its neighbour's
    apart = algorithms.from_maps(maps, Cyclic(2, 3), dynamics, message_sender=range(5))
    for uncovered, model in ((base, trust.PNDP([0])), (apart, trust.Eavesdropper())):
        why = r"depends on public batch sizes.*with_divisors\(task.public_batch_sizes"
        refuses(why, replay, calibrate(uncovered, Privacy(model, **common), mu=1.0), task, seeds=[0])
    fitted = base.with_divisors(task.public_batch_sizes(3))
    replay(calibrate(fitted, Privacy(trust.PNDP([0]), **common), mu=1.0), task, seeds=[0])
    resting = calibrate(fitted, Privacy(trust.PNDP([0]), release="none", lipschitz=1.0, **common), mu=1.0)
    assert resting.lipschitz == 1.0  # the worst victim may not need it, others do
    assert "Lipschitz" in str(resting.guarantee)
    why = "assumes local maps with Lipschitz constant 1, and task 'small' claims None"
    refuses(why, replay, resting, task, seeds=[0])
    replay(resting, dataclasses.replace(task, lipschitz=1.0), seeds=[0])


@pytest.mark.parametrize(("part", "unit"), [(Cyclic(2, 3), "record"), (EveryStep(6), "user")])
def test_add_remove_is_refused_in_training(part, unit):
    """Without one record the split, the map and the batch sizes of the others would be other ones."""
    algorithm = algorithms.dp_dsgd(dynamics_on("ring:n=4", 0.1), part)
    calibrated = calibrate(algorithm, Privacy(trust.LDP(), adjacency="add-remove", clip_norm=1.0, unit=unit), mu=1.0)
    unsupported("number of records", lambda: replay(calibrated, regression(30), seeds=[0]))


@given(
    row=st.lists(st.floats(width=32), min_size=1, max_size=6), clip_norm=st.floats(1e-30, 1e30), present=st.booleans()
)
@settings(deadline=None)
def test_clipped_rows_are_within_the_norm_exactly(row, clip_norm, present):
    given_rows = torch.tensor([row, row], dtype=torch.float32)
    clipped = clipping.clipped_rows(given_rows, torch.tensor([present, True]), clip_norm)
    zero = torch.zeros(len(row))
    assert exact_distance_squared(clipped[1], zero) <= Fraction(clip_norm) ** 2
    assert torch.equal(clipped[0], clipped[1] if present else zero)
    if not torch.isfinite(given_rows).all():
        assert not clipped.any()

"""Defects that other libraries for private training have had, tried here.

Ranks or resumed runs that draw the same batches with one key; a sample of a sample that is priced once; an infinite
number in a loaded state that is priced as free; sums that are divided by the size of the batch that happened to be
drawn.
"""

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from small_tasks import module_at, regression, squared
from vocabulary import ZERO_OUT, dynamics_on, given, refuses, st

import mfdl
from mfdl import BallsInBins, Cyclic, PoissonSampling, Privacy
from mfdl.participation import CyclicPoisson, MinSeparationSampling, RandomAllocation
from mfdl.privacy import BallsInBinsGaussian, Gaussian, Guarantee, MonteCarlo, PoissonGaussian
from mfdl.privacy.curves import Composed, MonteCarloCurve, curve_from_dict, curve_to_dict
from mfdl.testing.tasks import linear_task
from mfdl.training.drawn_batches import scheme_batches
from mfdl.training.streams import node_stream

NODES, STEPS, DELTA = 4, 8, 1e-5
KEY = mfdl.NoiseKey.from_seed(0)
DYNAMICS = dynamics_on("ring:n=4", 0.1)
LDP = Privacy(mfdl.trust.LDP(), **ZERO_OUT)
SCHEMES = [
    PoissonSampling(0.3, STEPS), CyclicPoisson(4, 2, 0.5), BallsInBins(2, 4), RandomAllocation(2, 4),
    RandomAllocation(2, 4, per_epoch=False), MinSeparationSampling(STEPS, 2, 0.4),
]  # fmt: skip


def instance(nodes=None):
    task = linear_task(NODES, np.random.default_rng(0).uniform(0.5, 1.5, (40 * NODES, 2)))
    return task.instance(0, 1).node_part(nodes)


def drawn(scheme, nodes=None, steps=range(STEPS), key=KEY):
    """Which records join: bool (steps, nodes, records), by an object that is made anew, as a resumed run makes it."""
    batches = scheme_batches(scheme, instance(nodes), key)
    return np.stack([batches.drawn(step) for step in steps])


# ---- one key for several ranks, and for a run that goes on -----------------------------------------------------------
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.describe())
def test_ranks_with_one_key_draw_for_their_nodes_what_one_process_draws(scheme):
    whole, ranks = drawn(scheme), [np.array([0, 2]), np.array([1, 3])]
    for nodes in ranks:
        np.testing.assert_array_equal(drawn(scheme, nodes), whole[:, nodes])
    for node in range(NODES):
        for other in range(node):
            assert (whole[:, node] != whole[:, other]).any()  # no two nodes share their draws


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.describe())
def test_a_run_that_goes_on_draws_the_steps_that_are_left_and_not_the_first_ones(scheme):
    whole, half = drawn(scheme), STEPS // 2
    np.testing.assert_array_equal(drawn(scheme, steps=range(half, STEPS)), whole[half:])
    repeats = isinstance(scheme, BallsInBins)  # bins are drawn once for all epochs
    assert (whole[half:] == whole[:half]).all() == repeats
    assert (drawn(scheme, key=mfdl.NoiseKey.from_seed(1)) != whole).any()


def test_ranks_and_runs_that_go_on_with_one_key_repeat_no_noise():
    noise = mfdl.algorithms.bisr(DYNAMICS, Cyclic(2, 4)).noise
    keys = mfdl.training.shared_randomness.HolderKeys.simulated(KEY)
    streams = [node_stream(noise, node, keys, 1.0, 3) for node in range(NODES)]
    rows = np.concatenate([stream.step(step) for step in range(STEPS) for stream in streams])
    assert len(np.unique(rows, axis=0)) == NODES * STEPS
    again = mfdl.training.streams.noise_stream(noise, 1.0, KEY, 3)
    np.testing.assert_array_equal(again.step(5), rows[5 * NODES : 6 * NODES])  # begun at a later step


# ---- a sample of a sample --------------------------------------------------------------------------------------------
def guarantee(participation, noise_std=1.0):
    return mfdl.account(mfdl.algorithms.dp_dsgd(DYNAMICS, participation), LDP, noise_std=noise_std)


def test_poisson_draws_inside_public_classes_are_amplified_by_their_own_rate_alone():
    """Record r has the steps t = r mod 4, in public; its rate there is 0.2, not 0.2 / 4 over all steps."""
    nested = guarantee(CyclicPoisson(epochs=3, period=4, rate=0.2)).epsilon(DELTA)
    assert nested == pytest.approx(PoissonGaussian(1.0, 0.2, 3, "zero-out").epsilon(DELTA), rel=1e-6)
    assert nested > 1.5 * guarantee(PoissonSampling(0.2 / 4, 12)).epsilon(DELTA)


@pytest.mark.parametrize("inner", SCHEMES, ids=lambda scheme: scheme.describe())
def test_no_scheme_takes_another_scheme_to_draw_from(inner):
    refuses(".", mfdl.participation.ParticipationByNode, [inner] * NODES)
    refuses(".", PoissonSampling, inner, STEPS)


def test_a_sampled_run_is_an_event_that_is_sampled_once():
    assert not hasattr(guarantee(PoissonSampling(0.3, STEPS)).dp_event().event.event.event, "event")


def test_two_sampled_runs_are_not_one():
    sampled, longer = (guarantee(PoissonSampling(0.3, steps)) for steps in (STEPS, 2 * STEPS))
    both = sampled.compose_with(sampled)
    assert both.mu is None
    assert longer.epsilon(DELTA) * (1 - 1e-3) <= both.epsilon(DELTA) <= longer.epsilon(DELTA) * (1 + 1e-3)
    bins = guarantee(BallsInBins(2, 4), noise_std=2.0)
    assert bins.compose_with(bins).epsilon(DELTA) > bins.epsilon(DELTA)


# ---- infinite and undefined numbers in a loaded state ----------------------------------------------------------------
ACCOUNTED = [guarantee(scheme).curve for scheme in (Cyclic(2, 4), *SCHEMES)]
BINS = next(curve for curve in ACCOUNTED if isinstance(curve, BallsInBinsGaussian))
CURVES = [
    *ACCOUNTED,
    Composed((BINS, Gaussian(0.5, "zero-out"))),
    MonteCarloCurve(BINS, tuple(map(tuple, np.eye(BINS.bins))), MonteCarlo(samples=2**12)),
]


def numbers_in(data, path=()):
    if isinstance(data, dict | list):
        items = data.items() if isinstance(data, dict) else enumerate(data)
        return [number for key, value in items for number in numbers_in(value, (*path, key))]
    return [path] if isinstance(data, float) else []


def changed(data, path, value):
    place = altered = copy.deepcopy(data)
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return altered


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: type(curve).__name__)
@pytest.mark.parametrize("bad", [math.inf, "inf", -math.inf, math.nan, "nan"])
def test_no_number_of_a_stored_curve_may_be_infinite_but_mu_which_is_no_privacy(curve, bad):
    stored = curve_to_dict(curve)
    for path in numbers_in(stored):
        damaged = changed(stored, path, bad)
        try:
            loaded = curve_from_dict(damaged)
        except (mfdl.InvalidInput, TypeError):
            continue
        assert loaded.epsilon(DELTA) == math.inf, path


@pytest.mark.parametrize("field", ["noise_std", "sensitivity", "clip_norm", "tolerance"])
@pytest.mark.parametrize("bad", ["inf", math.inf, math.nan, -math.inf])
def test_no_number_of_a_stored_guarantee_may_be_infinite_but_a_sensitivity_which_is_no_privacy(field, bad):
    stored = guarantee(Cyclic(2, 4)).to_dict()
    refuses(".", Guarantee.from_dict, {**stored, field: bad})  # also an infinite sensitivity beside a finite mu


def test_a_guarantee_file_with_infinity_as_a_number_is_refused(tmp_path):
    guarantee(Cyclic(2, 4)).save(tmp_path / "g.json")
    text = (tmp_path / "g.json").read_text()
    for bad in ("Infinity", "NaN", "1e999"):
        (tmp_path / "bad.json").write_text(text.replace('"noise_std": 1.0', f'"noise_std": {bad}'))
        refuses(".", Guarantee.load, tmp_path / "bad.json")


# ---- sums over the batch that was drawn ------------------------------------------------------------------------------
@given(20, others=st.integers(0, 6), seed=st.integers(0, 99))
def test_a_record_moves_a_node_by_its_share_of_a_constant_however_many_others_are_drawn(others, seed):
    """Without noise, one step of SGD at rate 1: a record moves the model by at most clip / batch_size."""
    clip, size = 0.5, 4.0
    algorithm = mfdl.algorithms.dp_dsgd(DYNAMICS, Cyclic(1, 1))
    mechanism = mfdl.calibrate(algorithm, dataclasses.replace(LDP, clip_norm=clip), noise_std=0.0)
    task = regression(num_records=8 * NODES, num_nodes=NODES)
    data = task.instance(seed, 1)
    moved = []
    for count in (others + 1, others):
        module = module_at(task, data.initial_parameters[0])
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        options = {"node": 0, "keys": KEY, "loss": squared, "batch_size": size, "publish": False}
        node = mfdl.PrivateNode(optimizer, module, mechanism, **options)
        node.step(data.features[0, 0, :count], data.targets[0, 0, :count])
        moved.append(node.model.initial_row())
    shift = float((moved[0] - moved[1]).norm())
    assert shift <= clip / size * (1 + 1e-5)
    assert shift > 0


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.describe())
def test_public_divisors_are_the_expected_sizes_and_drawn_sizes_differ(scheme):
    sizes = drawn(scheme).sum(axis=2)
    assert len(np.unique(sizes)) > 1
    assert 40 * scheme.expected_rate == pytest.approx(sizes.mean(), rel=0.35)

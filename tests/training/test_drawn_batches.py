"""Drawn batches and batches of unequal size: the sampler that runs is the one accounted, and sizes stay secret."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from small_tasks import classes, some_models
from vocabulary import ZERO_OUT, dynamics_on, given, refuses, st, unsupported

from mfdl import BallsInBins, NoiseKey, PoissonSampling, Privacy, algorithms, calibrate, partition, replay, trust
from mfdl.participation import CyclicPoisson, MinSeparationSampling, RandomAllocation
from mfdl.testing.oracles.curve_oracles import pattern_laws
from mfdl.testing.tasks import linear_task
from mfdl.training.drawn_batches import BinBatches, PoissonBatches, scheme_batches
from mfdl.training.keys import words
from mfdl.training.tasks import instance as instances

NODES, RATE, STEPS = 3, 0.25, 12


def task_of(sizes=4 * NODES, dim=2, seed=0):
    return linear_task(NODES, np.random.default_rng(seed).uniform(0.5, 1.5, (sizes, dim)))


def sampled_mechanism(
    rate=RATE, steps=STEPS, noise_std=2.0, clip=1.0, build=algorithms.dp_dsgd, adjacency="zero-out", **options
):
    dynamics = dynamics_on("ring:n=3", 0.5)
    algorithm = build(dynamics, PoissonSampling(rate, steps), **options)
    return calibrate(algorithm, Privacy(trust.Eavesdropper(), adjacency=adjacency, clip_norm=clip), noise_std=noise_std)


def batches(key=0, rate=RATE, sizes=60):
    return PoissonBatches(task_of(sizes).instance(0, 1), NoiseKey.from_seed(key), rate)


@pytest.mark.parametrize("rate", [0.03, 0.5])
def test_records_join_at_the_rate_and_independently(rate):
    """Marginals, pairs of records within and across nodes, pairs of steps: within five standard deviations."""
    sampler, steps = batches(rate=rate), 2000
    drawn = np.stack([sampler.drawn(t).ravel() for t in range(steps)]).astype(float)  # (steps, records)
    marginal = math.sqrt(rate * (1 - rate) / steps)
    assert np.abs(drawn.mean(axis=0) - rate).max() < 5 * marginal
    assert abs(drawn.mean() - rate) < 5 * marginal / math.sqrt(drawn.shape[1])
    white = (drawn - rate) / math.sqrt(rate * (1 - rate))
    together = white.T @ white / steps
    np.fill_diagonal(together, 0)
    assert np.abs(together).max() < 5.5 / math.sqrt(steps) * max(1, 0.3 / math.sqrt(rate))
    later = white[:-1].T @ white[1:] / (steps - 1)
    assert np.abs(later).max() < 5.5 / math.sqrt(steps) * max(1, 0.3 / math.sqrt(rate))
    sizes = drawn.sum(axis=1)  # binomial: no size is fixed or favoured
    assert sizes.var() == pytest.approx(drawn.shape[1] * rate * (1 - rate), rel=0.15)


@given(
    30, rate=st.floats(1e-3, 0.999), key=st.integers(0, 5), step=st.integers(0, 2**40), node=st.integers(0, NODES - 1)
)
def test_a_record_joins_exactly_where_its_word_is_below_the_rate(rate, key, step, node):
    sampler = batches(key, rate)
    node_words = words(NoiseKey.from_seed(key).derive("batches"), step, node, 20)
    expected = [int(word) < int(math.ldexp(rate, 64)) for word in node_words]
    assert sampler.drawn(step)[node].tolist() == expected


def test_draws_are_of_their_key_step_and_node_and_not_the_noise():
    first = batches(0)
    assert (first.drawn(3) == batches(0).drawn(3)).all()
    assert (first.drawn(3) != batches(1).drawn(3)).any()
    assert (first.drawn(3) != first.drawn(4)).any()
    assert (first.drawn(3)[0] != first.drawn(3)[1]).any()
    key = NoiseKey.from_seed(0)
    assert (words(key, 3, 1, 8)[:4] == words(key, 3, 1, 4)).all()
    assert not np.isin(words(key.derive("batches"), 3, 1, 64), words(key, 3, 1, 64)).any()


@given(
    20, seed=st.integers(0, 9), step=st.integers(0, 30), rate=st.sampled_from([0.05, 0.3, 0.9]), clip=st.floats(0.3, 3)
)
def test_the_sum_of_a_batch_is_that_of_the_records_drawn(seed, step, rate, clip):
    instance = task_of(25).instance(seed, 1)
    sampler = PoissonBatches(instance, NoiseKey.from_seed(seed), rate)
    sums = sampler.step_batch(step).clipped_gradient_sums(instance.initial_parameters, step, clip)
    masked = dataclasses.replace(instance, mask=torch.tensor(sampler.drawn(step))[:, None])
    wanted = masked.clipped_gradient_sums(instance.initial_parameters, step, clip)
    torch.testing.assert_close(sums, wanted)
    index = sampler.step_batch(step).record_index
    assert sorted(index[index >= 0].tolist()) == sorted(instance.record_index[:, 0][sampler.drawn(step)].tolist())


def injected(run, mechanism, task):
    """What each node injected in each step, from the messages of a run: (steps, n, d)."""
    W, eta = np.full((NODES, NODES), 1 / NODES), 0.5  # Metropolis-Hastings on a triangle
    messages = run.seeds[0].messages
    models = np.zeros_like(messages[0])
    sums = []
    for message in messages:
        sums.append((models - message) / eta)
        models = W @ message
    divisors = mechanism.sampling.rate * task.public_batch_sizes(1)
    return np.array(sums) * divisors[:, None]


def run_of(mechanism, task, **options):
    return replay(mechanism, task, seeds=[5], keep_messages=True, dtype=torch.float64, progress=False, **options)


def drawn_in(call):
    """Which records a run draws, bool (steps, n, B)."""
    draws, plain = [], PoissonBatches.step_batch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PoissonBatches, "step_batch", lambda self, t: draws.append(self.drawn(t)) or plain(self, t))
        call()
    return np.array(draws)


@pytest.mark.parametrize("clip", [0.7, 10.0])
def test_a_record_moves_what_is_sent_by_at_most_the_clipping_norm_and_only_when_drawn(clip):
    """Zero-out, one key: the injected sums differ by the clipped gradient in the steps drawn, else by nothing."""
    mechanism, task = sampled_mechanism(clip=clip), task_of()
    with_it = injected(run_of(mechanism, task), mechanism, task)
    zeroed = task.features.copy()
    record = int(task.instance(5, 1).record_index[1, 0, 2])
    zeroed[record] = 0
    without = dataclasses.replace(task, features=zeroed)
    # one key for both: the task's hash, which the key depends on, is held
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(without.__dict__, "content_hash", task.content_hash)
        moved = with_it - injected(run_of(mechanism, without), mechanism, without)
    joined = drawn_in(lambda: run_of(mechanism, task))[:, 1, 2]
    norms = np.linalg.norm(moved, axis=2)
    size = min(clip, float(np.linalg.norm(task.features[record])))
    assert 0 < sum(joined) < STEPS
    np.testing.assert_allclose(norms[:, 1], size * joined, atol=1e-9)
    np.testing.assert_allclose(norms[:, [0, 2]], 0, atol=1e-9)
    assert norms.max() <= clip * (1 + 1e-9)


def test_an_empty_batch_sends_its_noise_like_any_other():
    mechanism, task = sampled_mechanism(rate=1e-6, noise_std=3.0, steps=200), task_of(dim=5)
    run = run_of(mechanism, task, eval_every=200)
    sums = injected(run, mechanism, task)
    assert sums.shape == (200, NODES, 5)
    assert sums.std() == pytest.approx(3.0, rel=0.05)
    assert abs(sums.mean()) < 5 * 3.0 / math.sqrt(sums.size)


def test_divisors_are_the_expected_sizes_whatever_is_drawn():
    mechanism, task = sampled_mechanism(noise_std=0.0, clip=100.0), task_of(sizes=14)
    run, drawn = run_of(mechanism, task), drawn_in(lambda: run_of(mechanism, task))
    index = task.instance(5, 1).record_index[:, 0].numpy()
    rows = np.where(index[..., None] >= 0, task.features[index], 0.0)
    wanted = np.einsum("tnb,nbd->tnd", drawn.astype(float), rows)
    np.testing.assert_allclose(injected(run, mechanism, task), wanted, rtol=1e-6, atol=1e-9)
    assert len(set(map(tuple, drawn.sum(axis=2).tolist()))) > 1  # sizes did differ


def test_a_run_that_stops_goes_on_with_the_same_batches(tmp_path):
    mechanism, task = sampled_mechanism(build=algorithms.decor, sigma_ldp=1.0, sigma_cor=2.0), task_of()
    whole = run_of(mechanism, task)
    run_of(mechanism, task, checkpoint_folder=tmp_path, stop_after=5)
    rest = run_of(mechanism, task, checkpoint_folder=tmp_path)
    np.testing.assert_array_equal(rest.seeds[0].models, whole.seeds[0].models)
    np.testing.assert_array_equal(rest.seeds[0].messages, whole.seeds[0].messages[5:])
    other = replay(mechanism, task, seeds=[5], key=NoiseKey.from_entropy(), dtype=torch.float64, progress=False)
    assert (other.seeds[0].models != whole.seeds[0].models).any()
    assert whole.seeds[0].steps.tolist() == [4, 8, 12]


def test_what_is_not_covered_is_refused_before_any_run():
    task = task_of()
    unsupported("add-remove", lambda: replay(sampled_mechanism(adjacency="add-remove"), task, seeds=[0]))
    refuses("period must be left out", lambda: replay(sampled_mechanism(), task, seeds=[0], period=2))
    refuses("must not come from a seed", lambda: replay(sampled_mechanism(), task, seeds=[0], publish=True))
    run = replay(sampled_mechanism(), task, seeds=[0], progress=False)
    assert "epsilon = " in str(run)
    assert run.to_pandas()["mu"].isna().all()
    assert run.plot()
    refuses("period 1", lambda: PoissonBatches(task.instance(0, 2), NoiseKey.from_seed(0), 0.5))


@pytest.fixture
def uneven(monkeypatch):
    """Six nodes, some with many times the records of others, sorted by size whatever that saves."""
    monkeypatch.setattr(instances, "WORTH_A_CALL", 0)
    monkeypatch.setattr(instances, "WORTH_SORTING", 1.0)
    task = classes(200, 6, partition=partition.Dirichlet(0.2, min_records=2))
    return lambda period: task.instance(0, period, dtype=torch.float64)


@pytest.mark.parametrize("period", [1, 2])
def test_sums_are_those_of_all_nodes_at_once(uneven, period, monkeypatch):
    instance = uneven(period)
    models, sizes = some_models(instance), [slots for _, slots in instance._alike]
    assert len(sizes) > 2
    assert max(sizes) == instance.mask.shape[2]
    mask = instance.mask.clone()
    mask[:, :, 0] = False  # a record that takes no part moves nobody: sizes are public
    without = dataclasses.replace(instance, mask=mask)
    assert [slots for _, slots in without._alike] == sizes

    def sums(pair):
        return [part.clipped_gradient_sums(models, step, 0.1) for part in pair for step in range(period)]

    apart = sums((instance, without))
    monkeypatch.setattr(instances, "WORTH_SORTING", -1.0)
    whole = [dataclasses.replace(part) for part in (instance, without)]
    together = sums(whole)
    assert len(whole[0]._alike) == 1
    for x, y in zip(apart, together, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-14)
    assert not torch.equal(apart[0], apart[period])


def test_batches_that_are_drawn_are_sorted_by_what_is_public(uneven):
    instance = uneven(1)
    for seed in range(3):
        drawn = BinBatches(instance, NoiseKey.from_seed(seed), 3).step_batch(0)
        alike, public = drawn._alike, dataclasses.replace(instance, mask=drawn.mask)._alike
        assert [nodes.tolist() for nodes, _ in alike] == [nodes.tolist() for nodes, _ in public]


SCHEMES = [
    PoissonSampling(0.3, 4), BallsInBins(2, 3), CyclicPoisson(3, 2, 0.4), RandomAllocation(2, 3),
    RandomAllocation(3, 2, per_epoch=False), MinSeparationSampling(5, 3, 0.4),
]  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.describe())
def test_records_draw_the_patterns_that_were_accounted(scheme):
    """Frequencies of whole patterns, by group, and of equal patterns of neighbouring records: five deviations."""
    sampler = scheme_batches(scheme, task_of(3000).instance(0, 1), NoiseKey.from_seed(1))
    joined = np.stack([sampler.drawn(t) for t in range(scheme.num_steps)], axis=-1)  # (nodes, records, steps)
    laws = pattern_laws(scheme)
    for group, law in enumerate(laws):
        patterns = joined[:, group :: len(laws)].reshape(-1, scheme.num_steps)
        codes = patterns @ (1 << np.arange(scheme.num_steps))
        wanted = {sum(1 << s for s in steps): probability for probability, steps in law}
        assert set(codes.tolist()) <= set(wanted)
        for code, probability in wanted.items():
            off = abs((codes == code).mean() - probability)
            assert off <= 5 * math.sqrt(probability * (1 - probability) / codes.size) + 1e-12
        alike, same = (codes[:-1] == codes[1:]).mean(), sum(p * p for p in wanted.values())
        assert abs(alike - same) <= 6 * math.sqrt(same / codes.size)
    assert joined.mean() == pytest.approx(scheme.expected_rate, rel=0.1)
    again, other = (scheme_batches(scheme, task_of(3000).instance(0, 1), NoiseKey.from_seed(k)) for k in (1, 2))
    for t in (scheme.num_steps - 1, 0):  # in any order
        assert (again.drawn(t) == joined[..., t]).all()
    assert any((other.drawn(t) != joined[..., t]).any() for t in range(scheme.num_steps))


@pytest.mark.parametrize("scheme", SCHEMES[2:], ids=lambda scheme: scheme.describe())
def test_a_run_trains_and_states_its_guarantee(scheme):
    algorithm = algorithms.dp_dsgd(dynamics_on("ring:n=3", 0.1), scheme)
    mechanism = calibrate(algorithm, Privacy(trust.LDP(), **ZERO_OUT), epsilon=2.0, delta=1e-5)
    run = replay(mechanism, task_of(30), seeds=[0], progress=False)
    assert "diverged" not in run.outcome
    assert scheme.describe() in run.statement()

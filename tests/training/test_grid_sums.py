"""Sums on a grid: rounding of real noise and nothing else, whatever is added; nodes that train and resume on it."""

import io
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from _privacy import applied
from small_tasks import module_at, node_of, regression
from vocabulary import ZERO_OUT, each, given, refuses, st, unsupported

import mfdl
from mfdl.training.clipping import clipped_rows
from mfdl.training.grid_sums import GridSums, RoundedNormals, on_grid
from mfdl.training.shared_randomness import HolderKeys

KEY = mfdl.NoiseKey(bytes(range(32)))
GOSSIP = mfdl.gossip.metropolis_hastings("ring:n=4")
T, STEP = 6, 2.0**-12


def mechanism(name="mafalda", bits=8, **more):
    algorithm = mfdl.algorithms.build(name, mfdl.Dynamics(GOSSIP, 0.3), mfdl.Cyclic(3, 2))
    algorithm = algorithm if bits is None else on_grid(algorithm, bits)
    given_ = {"trust": mfdl.trust.LDP(), "adjacency": "zero-out", "clip_norm": 0.7, "mu": 2.0, **more}
    return applied(mfdl.calibrate, algorithm, given_)


MADE = {name: mechanism(name) for name in ("mafalda", "dp-dsgd")}


def sums_of(name="mafalda", step=STEP, node=1):
    return GridSums(MADE[name], node, HolderKeys.simulated(KEY), step)


def contributions(seed, records, dim=5):
    if not records:
        return torch.zeros(0, dim)
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(records, dim, generator=rng) * 10 ** (4 * torch.rand(records, 1, generator=rng) - 3)
    return clipped_rows(rows, torch.ones(records, dtype=torch.bool), 0.7)


def whole(rows):
    return [[math.trunc(Fraction(g) / Fraction(STEP)) for g in row] for row in rows.tolist()]


@given(40, seed=st.integers(0, 10**6), records=st.integers(1, 4))
def test_truncated_contributions_are_no_longer_than_the_clipping_norm(seed, records):
    for row in whole(contributions(seed, records)):
        assert sum((k * Fraction(STEP)) ** 2 for k in row) <= Fraction(0.7) ** 2


@given(
    25,
    name=st.sampled_from(sorted(MADE)),
    seeds=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 3)), min_size=T, max_size=T),
)
def test_what_is_released_is_the_encoded_sums_plus_noise_that_does_not_depend_on_them(name, seeds):
    """y = 2^m C k + [nu z / q] in whole numbers of Python: a shift of what real noise would give, exactly."""
    grid, causal = sums_of(name), MADE[name].algorithm.noise.causal
    encoder = np.eye(T) if causal.fresh else causal.column_encoder(1)
    bits = 0 if causal.fresh else 8
    scale = math.nextafter(MADE[name].noise_std, math.inf) / STEP * 2.0**bits
    normals = RoundedNormals(HolderKeys.simulated(KEY).key_for({1}))
    sums, privatised, released = [], [], []
    for t, (seed, records) in enumerate(seeds):
        batch = contributions(seed, records)
        sums.append([sum(column) for column in zip(*whole(batch), strict=True)] if records else [0] * 5)
        privatised.append(grid.privatised(t, batch))
        noise = normals.row(t, 5, scale).tolist()
        weights = [int(Fraction(encoder[t, j]) * 2**bits) for j in range(t + 1)]
        encoded = [sum(w * k[i] for w, k in zip(weights, sums, strict=True)) for i in range(5)]
        released.append([a + b for a, b in zip(encoded, noise, strict=True)])
    if grid.released is not None:
        assert [y.tolist() for y in grid.released] == released
    exact = np.linalg.solve(encoder, STEP / 2**bits * np.array(released, dtype=float))
    np.testing.assert_allclose(privatised, exact, rtol=1e-9, atol=1e-12)


def test_sums_that_would_overflow_are_cut_off(monkeypatch):
    grid = sums_of("dp-dsgd")
    monkeypatch.setattr(grid, "_largest", 3)
    far = torch.full((2, 1), 0.5)
    noise = sums_of("dp-dsgd").privatised(0, torch.zeros((0, 1)))
    assert grid.privatised(0, far) - noise == 3 * STEP
    monkeypatch.setattr("mfdl.training.grid_sums.MOST_RECORDS", 1)
    refuses("at most 1 records, got 2; take smaller", grid.privatised, 1, far)
    refuses("step must be 0, the next one, got 1", sums_of().privatised, 1, torch.zeros((0, 3)))


def test_an_encoder_on_the_grid_is_near_the_one_that_it_rounds():
    algorithm = mechanism(bits=None).algorithm
    rounded = on_grid(algorithm, 8)
    C, near = algorithm.noise.causal.column_encoder(0), rounded.noise.causal.column_encoder(0)
    assert np.abs(C - near).max() <= 2.0**-9
    assert not (near * 2**8 % 1).any()
    assert MADE["mafalda"].noise_std == pytest.approx(mechanism(bits=None).noise_std, rel=0.02)


def node(name="mafalda", steps=0, grid=STEP, **options):
    task = regression(num_records=16, num_nodes=4)
    data = task.instance(0, 2)
    module = module_at(task, data.initial_parameters[0])
    arguments = {"mechanism": MADE[name], "node": 1, "keys": KEY, "batch_size": 2, "grid": grid} | options
    private_node = node_of(module, lr=0.3, **arguments)

    def step_to(last):
        for t in range(private_node.steps_taken, last):
            private_node.step(data.features[1, t % 2], data.targets[1, t % 2])

    step_to(steps)
    return private_node, step_to


@pytest.mark.parametrize("name", sorted(MADE))
def test_a_resumed_node_sends_what_the_undisturbed_one_sends(name):
    undisturbed, _ = node(name, T)
    first, _ = node(name, 3)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    again, step_to = node(name)
    again.module.load_state_dict(first.module.state_dict())
    again.load_state_dict(torch.load(file, weights_only=True))
    step_to(T)
    assert torch.equal(undisturbed.model.initial_row(), again.model.initial_row())


def test_a_state_of_another_grid_or_other_keys_is_refused():
    state = node(steps=3)[0].state_dict()
    refuses("grid is", lambda: node(grid=2 * STEP)[0].load_state_dict(state))
    refuses("grid is", lambda: node(grid=None)[0].load_state_dict(state))
    refuses("released must be of 3", lambda: node()[0].load_state_dict(state | {"released": state["released"][:2]}))
    with pytest.raises(mfdl.InvalidInput, match="lacks"):
        node()[0].load_state_dict({name: part for name, part in state.items() if name != "released"})
    changed = [state["released"][0] + 1, *state["released"][1:]]
    refuses("same keys, encoder and grid", lambda: node()[0].load_state_dict(state | {"released": changed}))


def test_a_node_says_what_it_assumes():
    bits, floats = node(grid=None)[0].assumptions
    assert "chacha20" in bits
    assert "low-order bits" in floats
    assert "ndtri" in node()[0].assumptions[-1]


@each(
    "grid, words",
    (0.001, r"grid must be a power of two.*take 2.0 \*\* -19"), (1.0, "at most the clipping norm 0.7"),
    (2.0**-45, "at least 2\\^-40 of it"), (2.0**-40, "take a coarser grid, or an encoder of fewer bits"),
    (-1.0, "grid must be"),
)  # fmt: skip
def test_steps_that_do_not_fit_are_refused(grid, words):
    refuses(words, node, grid=grid)


def test_noise_without_a_proof_is_refused():
    shared = mechanism("decor", None, trust=mfdl.trust.Eavesdropper())
    unsupported("needs noise that is each node's alone, got", node, mechanism=shared)
    unsupported("each node's alone", on_grid, shared.algorithm)
    refuses(r"multiples of 2\^-30, got others; calibrate", lambda: node(mechanism=mechanism(bits=None)))
    refuses("bits must be at most 30", on_grid, MADE["mafalda"].algorithm, 31)


def test_the_last_bits_of_a_message_on_the_grid_are_those_of_any_other():
    """The event of the pitfall of floats: multiples of 2^-53 among messages near zero, under g = 0 and g = 1."""
    algorithm = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(GOSSIP), mfdl.EveryStep(1))
    calibrated = mfdl.calibrate(algorithm, mfdl.Privacy(mfdl.trust.LDP(), **ZERO_OUT), noise_std=1.0)
    for g in (0.0, 1.0):
        grid = GridSums(calibrated, 1, HolderKeys.simulated(KEY), 2.0**-20)
        released = grid.privatised(0, torch.full((1, 4000), g))
        near = released[np.abs(released) < 0.25]
        assert len(near) > 400
        assert not (near * 2.0**20 % 1).any()
        assert {int(y * 2**20) % 4 for y in near} == {0, 1, 2, 3}


@pytest.mark.parametrize("name", sorted(MADE))
def test_the_noise_has_the_variance_that_was_accounted(name):
    size = 20_000
    grid, empty = sums_of(name), torch.zeros((0, size))
    noise = np.stack([grid.privatised(t, empty) for t in range(T)])
    expected = MADE[name].noise_std * np.sqrt(MADE[name].algorithm.noise.variances()[:, 1])
    np.testing.assert_allclose(noise.std(axis=1), expected, rtol=6 / math.sqrt(2 * size))
    assert name == "mafalda" or not (noise / STEP % 1).any()  # on the grid

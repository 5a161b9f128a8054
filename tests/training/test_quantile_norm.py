"""A clipping norm that follows a quantile: contributions within the clipping norm, whatever the data; the formula."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose
from small_tasks import classes, slow_gradients, squared

import mfdl
from mfdl import Cyclic, Dynamics, EveryStep, InvalidInput, UnsupportedMechanism, algorithms, gossip, replay, trust
from mfdl.training import clipping, seed_replay
from mfdl.training.clip_rules import Quantile
from mfdl.training.tasks import quantile_norm, record_clipping

RING, CLIP = gossip.metropolis_hastings("ring:n=4"), 0.7
PRIVACY = {"trust": trust.LDP(), "adjacency": "replace-one", "clip_norm": CLIP}


def mechanism(steps=4, **privacy):
    algorithm = algorithms.dp_dsgd(Dynamics(RING, 0.3), EveryStep(steps) if privacy else Cyclic(steps, 1))
    return mfdl.calibrate(algorithm, mfdl.Privacy(**PRIVACY | privacy), noise_std=0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(
    data=st.data(),
    rule=st.builds(Quantile, st.floats(1e-20, 1e20), st.floats(0.01, 0.99), st.floats(1e-6, 0.999999)),
    log_norm=st.floats(-60, 60) | st.floats(allow_nan=True, width=32),
)
@examples(300)
def test_what_a_record_adds_to_all_entries_together_is_within_the_clip_norm_exactly(dtype, data, rule, log_norm):
    """Whoever chooses the record, to move the norm or the model, and whatever norm the node has learned."""
    bits = torch.finfo(dtype).bits
    values = data.draw(hnp.arrays(f"f{bits // 8}", 5, elements=st.floats(width=bits)))
    gradients = [torch.from_numpy(values).reshape(1, 1, 5), torch.zeros(1, 1, dtype=dtype)]
    log_norms = torch.tensor([log_norm], dtype=dtype)
    for present in (True, False):
        mask = torch.tensor([[present]])
        learned, votes = quantile_norm.parts(gradients, [], log_norms, mask, rule)
        sums = clipping.clipped_sums(gradients, mask, learned)
        entries = [Fraction(v) for part in (*sums, votes.to(dtype)) for v in part.double().flatten().tolist()]
        assert sum((v**2 for v in entries), Fraction(0)) <= (present and Fraction(rule.norm)) ** 2
        if not np.isfinite(values).all():
            assert not any(entries)


@pytest.mark.parametrize("factored", [False, True])
@examples(10)
@given(
    quantile=st.sampled_from([0.3, 0.5, 0.8]),
    share=st.sampled_from([0.1, 0.6]),
    seed=st.integers(0, 3),
)
def test_a_run_is_the_recursion_written_out(quantile, share, seed, factored):
    """(theta, log c) <- W ((theta, log c) - eta (sums + e_t) / m), each record's gradient by autograd."""
    injected = np.random.default_rng(seed).standard_normal((4, 4, 13)) * 0.3
    task = classes(12)

    class Stream:
        def step(self, t):
            return injected[t]

    with pytest.MonkeyPatch.context() as patch:
        if factored:
            patch.setattr(record_clipping, "FACTORED_FROM", -(2**30))
            patch.setattr(record_clipping.Layer, "is_cheaper", True)
        patch.setattr(seed_replay, "noise_stream", lambda *_, slots: Stream())
        options = {"clipping": f"quantile:{quantile}:{share}", "dtype": torch.float64}
        run = replay(mechanism(), task, seeds=[seed], **options).seeds[0]
    instance = task.instance(seed, 1, dtype=torch.float64)
    state, W = torch.cat([torch.zeros(4, 1).double(), instance.initial_parameters], 1), torch.tensor(RING.dense())
    for t in range(4):
        sums = torch.zeros_like(state)
        for u in range(4):
            c = state[u, 0].exp()
            for g in slow_gradients(instance, state[:, 1:], t, u):
                vote = (1 - quantile if g.norm() <= c else -quantile) / max(quantile, 1 - quantile)
                sums[u, 0] += CLIP * share * vote
                sums[u, 1:] += CLIP * math.sqrt(1 - share**2) * g * min(1, c / g.norm()) / c
        state = W @ (state - 0.3 * (sums + torch.tensor(injected[t])) / instance.public_batch_sizes[:, None])
    assert_allclose(run.models, state, rtol=1e-5, atol=1e-5)


def test_the_norm_moves_to_where_a_share_of_the_norms_is_below():
    """Of gradients that stay, with norms 1 to 100."""
    norms, log_norm = torch.arange(1.0, 101.0), torch.zeros(1)
    gradients, present = [torch.zeros(1, 100), norms.reshape(1, 100, 1)], torch.ones(1, 100, dtype=torch.bool)
    for _ in range(400):
        _, votes = quantile_norm.parts(gradients, [], log_norm, present, Quantile(1.0, 0.7))
        log_norm = log_norm - votes / 100
    assert 68 <= log_norm.exp().item() <= 72


def test_the_module_of_a_run_computes_as_before_and_guarantees_are_the_same():
    calibrated, task = mechanism(), classes()
    run = replay(calibrated, task, seeds=[0], clipping="quantile")
    assert "clip rule: quantile:0.7:0.2, at a norm that each model learns" in run.statement()
    assert run.mechanism.guarantee == calibrated.guarantee
    module, features = run.module(1), torch.tensor(task.test_features, dtype=torch.float32)
    torch.testing.assert_close(module(features), module.module(features))
    assert run.seeds[0].models.shape[1] == replay(calibrated, task, seeds=[0]).seeds[0].models.shape[1] + 1


def test_what_no_quantile_can_be_of_is_refused():
    with pytest.raises(UnsupportedMechanism, match="at user level a node has one gradient"):
        replay(mechanism(unit="user"), classes(), seeds=[0], clipping="quantile")
    for text in ("quantile:0", "quantile:1", "quantile:0.5:1"):
        with pytest.raises(InvalidInput, match="strictly between 0 and 1"):
            replay(mechanism(), classes(), seeds=[0], clipping=text)
    module = torch.nn.Linear(2, 1)
    optimizer, key = torch.optim.SGD(module.parameters(), 1.0), mfdl.NoiseKey.from_seed(0)
    with pytest.raises(InvalidInput, match=r"set module\.log_norm = torch\.nn\.Parameter"):
        mfdl.PrivateNode(optimizer, module, mechanism(), node=0, keys=key, loss=squared, clipping="quantile")


@examples(40)
@given(
    record=hnp.arrays("f8", 4, elements=st.floats(-1e9, 1e9)),
    log_norms=st.lists(st.floats(-30, 30), min_size=2, max_size=2),
    share=st.sampled_from([0.1, 0.5, 0.9]),
    grid=st.sampled_from([None, 2.0**-20]),
    split=st.integers(0, 2),
    seed=st.integers(0, 9),
)
def test_a_record_moves_what_a_node_releases_by_the_clip_norm_at_most(record, log_norms, share, grid, split, seed):
    """Whoever chooses the record to move the norm, after any average of messages, in micro-batches or not."""
    rng, nodes = np.random.default_rng(seed), []
    others = torch.tensor(rng.normal(size=(2, 4)) * 10.0 ** rng.integers(-3, 4))
    for _ in range(2):
        module = torch.nn.Linear(3, 1).double()
        module.log_norm = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
        optimizer, key = torch.optim.SGD(module.parameters(), 1.0), mfdl.NoiseKey.from_seed(seed)
        options = {"clipping": f"quantile:0.7:{share}", "batch_size": 1, "grid": grid, "publish": False}
        nodes.append(mfdl.PrivateNode(optimizer, module, mechanism(2), node=1, keys=key, loss=squared, **options))
        nodes[-1].step(torch.zeros(0, 3), torch.zeros(0))
    for log_norm in log_norms[1:]:
        heard = {
            "weight": torch.tensor(rng.normal(size=(1, 3))),
            "bias": torch.zeros(1),
            "log_norm": torch.tensor(log_norm),
        }
        moved, batches = [], (others, torch.cat([others, torch.tensor(record)[None]]))
        for node, batch in zip(nodes, batches, strict=True):
            node.receive({name: value.double() for name, value in heard.items()})
            start = node.model.initial_row()
            node.accumulate(batch[:split, :3], batch[:split, 3])
            node.step(batch[split:, :3], batch[split:, 3])
            moved.append(start - node.model.initial_row())
        assert torch.linalg.vector_norm(moved[1] - moved[0]) <= CLIP * (1 + 1e-9)

"""Modules that users train: recurrent, pretrained, in half precision, adapted, in micro-batches."""

import contextlib
import copy
import functools
import itertools

import numpy as np
import pytest
import small_tasks
import torch
from small_tasks import clipped, factoring, module_at, regression, slow_means, slow_sums, some_models, squared
from torch import nn
from torch.nn import functional
from vocabulary import dynamics_on, each, given, refuses, st, unsupported

import mfdl
from mfdl import InvalidInput

TIMES, CLIP = 4, 0.4


class Sequences(nn.Module):
    """Series of three numbers through a layer, and a number from its outputs."""

    def __init__(self, layer, width, batch_first=True):
        super().__init__()
        self.layer, self.out, self.batch_first = layer, nn.Linear(width, 1), batch_first

    def forward(self, x):
        if isinstance(self.layer, nn.RNNCellBase):
            state = None
            for now in x.unbind(1):
                state = self.layer(now, state)
            return self.out(state[0] if isinstance(state, tuple) else state)
        if not isinstance(self.layer, nn.RNNBase):
            return self.out(self.layer(x).mean(1))
        outputs, last = self.layer(x if self.batch_first else x.transpose(0, 1))
        cells = (last[1] if isinstance(last, tuple) else last).sum((0, 2))
        return self.out(outputs if self.batch_first else outputs.transpose(0, 1))[:, -2] + cells[:, None]


def partly_frozen():
    module = Sequences(nn.GRU(3, 2, batch_first=True), 2)
    module.layer.weight_ih_l0.requires_grad_(False)
    nn.init.constant_(module.layer.weight_ih_l0, 0.2)
    return module


def attending(train):
    layer = nn.TransformerEncoderLayer(3, 1, 4, dropout=0.0, batch_first=True)
    return Sequences(layer, 3).train(train)


def recurrent(kind, width=2, out=None, **more):
    more = {"batch_first": True} | more
    return lambda: Sequences(kind(3, width, **more), out or width, more["batch_first"])


SEQUENCES = {
    "gru": recurrent(nn.GRU),
    "rnn": recurrent(nn.RNN),
    "relu": recurrent(nn.RNN, nonlinearity="relu", bias=False),
    "lstm": recurrent(nn.LSTM, bias=False),
    "projected": recurrent(nn.LSTM, 3, 2, proj_size=2),
    "deep": recurrent(nn.GRU, 2, 4, num_layers=2, bidirectional=True),
    "time first": recurrent(nn.LSTM, 2, 4, bidirectional=True, batch_first=False),
    "partly frozen": partly_frozen,
    **{kind.__name__: functools.partial(lambda kind: Sequences(kind(3, 2), 2), kind)
       for kind in (nn.GRUCell, nn.LSTMCell, nn.RNNCell)},
    "attention": functools.partial(attending, True),
    "attention in eval": functools.partial(attending, False),
}  # fmt: skip


def series(build, **changes):
    rng = np.random.default_rng(1)
    arrays = {name: rng.standard_normal((n, TIMES, 3)) for name, n in (("features", 11), ("test_features", 11))}
    return regression(11, 3, build=build, **(arrays | changes))


@pytest.mark.parametrize("name", SEQUENCES)
def test_fused_layers_have_the_gradients_of_one_record_at_a_time(name):
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 2e-5)):
        instance = series(SEQUENCES[name]).instance(0, 2, dtype=dtype)
        models = some_models(instance)
        for slow, fast in ((slow_sums, instance.clipped_gradient_sums), (slow_means, instance.clipped_gradient_means)):
            np.testing.assert_allclose(fast(models, 1, CLIP), slow(instance, models, 1, CLIP), 0, tolerance)
        x, y = instance.test_features, instance.test_targets
        with torch.no_grad():
            losses = [torch.stack([*map(squared, module_at(instance.task, row)(x), y)]).mean() for row in models]
        np.testing.assert_allclose(instance.evaluate(models).loss, losses, 20 * tolerance)


def mechanism(*, unit="record", noise_std=0.0, epochs=1):
    participation = mfdl.EveryStep(2) if unit == "user" else mfdl.Cyclic(epochs, 2)
    algorithm = mfdl.algorithms.dp_dsgd(dynamics_on("ring:n=3", 1.0), participation)
    privacy = mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=CLIP, unit=unit)
    return mfdl.calibrate(algorithm, privacy, noise_std=noise_std)


def node_of(module, **more):
    return small_tasks.node_of(module, **({"mechanism": mechanism()} | more))


def one_at_a_time(module, features, targets):
    trained = [p for p in module.parameters() if p.requires_grad]
    rows = []
    for x, y in zip(features, targets, strict=True):
        gradients = torch.autograd.grad(squared(module(x[None])[0], y), trained, materialize_grads=True)
        rows.append(torch.cat([gradient.double().reshape(-1) for gradient in gradients]))
    return torch.stack(rows)


def row_of(module):
    return torch.cat([p.detach().double().reshape(-1) for p in module.parameters() if p.requires_grad])


def require_step_of_oracle(module, features, targets, tolerance=1e-6, **more):
    """A step without noise moves the module by the sum of the clipped gradients."""
    gradients, before = one_at_a_time(module, features, targets), row_of(module)
    node = node_of(module, **more)
    node.step(features, targets)
    expected = sum(clipped(gradient, CLIP) for gradient in gradients)
    np.testing.assert_allclose(before - row_of(module), expected, 0, tolerance)
    return node


class Pretrained(nn.Module):
    """A frozen backbone with running statistics, kept in evaluation mode, and a head."""

    def __init__(self, keeps_eval=True):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh()).requires_grad_(False)
        self.head, self.keeps_eval = nn.Linear(4, 1), keeps_eval
        nn.init.orthogonal_(self.backbone[0].weight, generator=torch.Generator().manual_seed(0))
        nn.init.zeros_(self.backbone[0].bias)  # what is frozen is read off a module built anew
        norm = self.backbone[1].eval()
        norm.running_mean += torch.tensor([0.5, -1.0, 0.0, 2.0])
        norm.running_var *= 3.0

    def train(self, mode=True):
        super().train(mode)
        if self.keeps_eval:
            self.backbone.eval()
        return self

    def forward(self, x):
        return self.head(self.backbone(x))


def batch(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator), torch.randn(shape[0], generator=generator)


def test_a_pretrained_batch_norm_in_evaluation_mode_is_a_constant():
    instance = regression(11, 3, build=Pretrained).instance(0, 2, dtype=torch.float64)
    models = some_models(instance)
    np.testing.assert_allclose(
        instance.clipped_gradient_sums(models, 0, CLIP), slow_sums(instance, models, 0, CLIP), 0, 1e-9
    )
    module = Pretrained().train()
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    node = require_step_of_oracle(module, *batch(5, 3))
    node.module.train()
    node.step(*batch(5, 3))
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in module.named_buffers())


def test_a_pretrained_batch_norm_trains_under_autocast():
    require_step_of_oracle(module := Pretrained().train(), *batch(5, 3))
    with torch.autocast("cpu", torch.bfloat16):
        require_step_of_oracle(copy.deepcopy(module), *batch(5, 3), 0.02)


def test_a_batch_norm_that_leaves_evaluation_mode_is_refused_at_any_step():
    node = node_of(Pretrained(keeps_eval=False).eval())
    node.step(*batch(5, 3))
    node.module.train()
    unsupported(r"backbone\.1.*mixes the records.*GroupNorm", lambda: node.step(*batch(5, 3)))
    assert node.steps_taken == 1
    without = nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 1)).eval()
    unsupported("BatchNorm1d.*mixes", lambda: node_of(without).step(*batch(5, 3)))


class Mixed(nn.Module):
    def __init__(self, first=torch.float32, second=torch.float64, width=4):
        super().__init__()
        self.first, self.second = nn.Linear(3, width, dtype=first), nn.Linear(width, 1, dtype=second)

    def forward(self, x):
        return self.second(self.first(x.to(self.first.weight.dtype)).tanh().to(self.second.weight.dtype))


@pytest.mark.parametrize("width", [4, 40])  # the wide one has factored weights
@pytest.mark.parametrize("first", [torch.float64, torch.bfloat16])
def test_parameters_of_several_types(first, width):
    second = torch.float32
    tolerance = 1e-6 if first == torch.float64 else 0.02
    module = Mixed(first, second, width)
    require_step_of_oracle(module, *batch(5, 3), tolerance)
    assert [p.dtype for p in module.parameters()] == [first, first, second, second]
    task = regression(11, 3, build=lambda: Mixed(first, second, width))
    instance = task.instance(0, 2)
    assert instance.initial_parameters.dtype == torch.float32
    sums, slow = instance.clipped_gradient_sums(instance.initial_parameters, 0, CLIP), []
    for u in range(3):
        records = instance.mask[u, 0]
        torch_module = task.module_with(instance.initial_parameters[u], 0)
        gradients = one_at_a_time(torch_module, instance.features[u, 0][records], instance.targets[u, 0][records])
        slow.append(sum(clipped(gradient, CLIP) for gradient in gradients))
    np.testing.assert_allclose(sums, torch.stack(slow), 0, tolerance)


class InAutocast(nn.Module):
    def __init__(self, module, dtype):
        super().__init__()
        self.module, self.dtype = module, dtype

    def forward(self, x):
        with torch.autocast("cpu", self.dtype):
            return self.module(x)


def halved(dtype, where, hidden):
    """A module whose arithmetic is in half precision, and the context in which it is called."""
    module = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))
    if where == "module":
        return module.to(dtype)
    return InAutocast(module, dtype) if where == "forward" else module


@given(
    40,
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
    where=st.sampled_from(["module", "forward", "around"]),
    hidden=st.sampled_from([3, 20]),  # the wide one has factored weights
    num_records=st.integers(1, 9),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
    seed=st.integers(0, 2**20),
)
def test_half_precision_leaves_the_sensitivity_as_stated(dtype, where, hidden, num_records, scale, seed):
    """A record alone contributes norm <= clip_norm exactly; replaced, it moves the sum by twice that and rounding."""
    features = scale * np.random.default_rng(seed).standard_normal((num_records + 1, 3))
    task = regression(num_records + 1, 1, build=lambda: halved(dtype, where, hidden), features=features)
    instance, B = task.instance(0, 1), num_records + 1
    models = some_models(instance, seed)
    around = torch.autocast("cpu", dtype) if where == "around" else contextlib.nullcontext()

    def sum_of(present):
        mask = torch.zeros_like(instance.mask)
        mask[0, 0, present] = True
        with around:
            total = instance.with_records(mask=mask).clipped_gradient_sums(models, 0, CLIP)
        assert total.dtype == torch.float32
        return total.double()

    alone = torch.stack([sum_of([j]) for j in range(B)])
    rounding = 2 * B**2 * torch.finfo(torch.float32).eps
    assert (alone.norm(dim=-1) <= CLIP).all()
    before, after = sum_of([*range(B - 1)]), sum_of([*range(1, B)])  # record 0 replaced by the last one
    assert (before - after).norm() <= 2 * CLIP * (1 + rounding)
    np.testing.assert_allclose(before, alone[:-1].sum(0), 0, 2 * CLIP * rounding)
    module = task.module_with(models[0], 0)
    x, y = instance.features[0, 0], instance.targets[0, 0]
    x = x.to(next(module.parameters()).dtype)
    with around:
        oracle = torch.stack([clipped(g, CLIP) for g in one_at_a_time(module, x, y)])
    assert (alone[:, 0] - oracle).norm(dim=1).max() <= 30 * torch.finfo(dtype).eps * max(1.0, scale) * CLIP


@pytest.mark.parametrize("unit", ["record", "user"])
def test_noise_and_sums_of_a_node_in_half_precision_are_float64(unit):
    module, noise_std = halved(torch.bfloat16, "module", 3), 2.0
    node = node_of(module, mechanism=mechanism(unit=unit, noise_std=noise_std))
    x, y = batch(4, 3)
    seen, privatised = [], node._privatised
    node._privatised = lambda *arguments: seen.append(privatised(*arguments)) or seen[-1]
    node.step(x.bfloat16(), y)
    assert seen[0].dtype == torch.float64
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}


def test_replay_refuses_an_autocast_around_it():
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InvalidInput, match=r"autocast.*forward of the module"):
        mfdl.replay(mechanism(), series(recurrent(nn.GRU)), seeds=[0])


@pytest.mark.parametrize("where", ["module", "forward"])
def test_half_precision_trains_at_the_nodes_of_a_graph(where):
    task = regression(12, 3, build=lambda: halved(torch.bfloat16, where, 3))
    instance = task.instance(0, 1)
    means = instance.clipped_gradient_means(instance.initial_parameters, 0, CLIP)
    assert means.dtype == torch.float32
    for u, mean in enumerate(means):
        module, x = task.module_with(instance.initial_parameters[u], 0), instance.features[u, 0]
        wanted = clipped(one_at_a_time(module, x, instance.targets[u, 0]).mean(0), CLIP)
        np.testing.assert_allclose(mean, wanted, 0, 0.02)
    run = mfdl.replay(mechanism(epochs=2), task, seeds=[0], metrics=["train_loss"], progress=False)
    assert np.isfinite(run.seeds[0].models).all()


@given(
    40, parts=st.lists(st.integers(0, 3), min_size=1, max_size=4), unit=st.sampled_from(["record", "user"]),
    grid=st.sampled_from([None, 2.0**-12]), noise_std=st.sampled_from([0.0, 0.5]),
)  # fmt: skip
def test_micro_batches_make_one_step(parts, unit, grid, noise_std):
    (x, y), torch_module = batch(sum(parts), 3), nn.Linear(3, 1)
    calibrated = mechanism(unit=unit, noise_std=noise_std)
    whole, cut = (node_of(copy.deepcopy(torch_module), mechanism=calibrated, grid=grid) for _ in range(2))
    numbers = list(range(len(x)))
    whole.step(x, y, records=numbers)
    ends = np.cumsum([0, *parts])
    for k, (start, end) in enumerate(itertools.pairwise(ends)):
        take = cut.step if k == len(parts) - 1 else cut.accumulate
        assert cut.steps_taken == 0
        take(x[start:end], y[start:end], records=numbers[start:end])
    assert cut.steps_taken == 1
    np.testing.assert_allclose(row_of(cut.module), row_of(whole.module), 0, 1e-6)
    assert cut.state_dict()["records"] == whole.state_dict()["records"]
    for node in (whole, cut):  # nothing of the first step is left
        node.step(x[:0], y[:0])
    np.testing.assert_allclose(row_of(cut.module), row_of(whole.module), 0, 1e-6)


def test_a_record_stands_in_one_micro_batch_of_a_step():
    node, (x, y) = node_of(nn.Linear(3, 1)), batch(3, 3)
    before = row_of(node.module)
    node.accumulate(x, y, records=[4, 5, 6])
    for take in (node.accumulate, node.step):
        refuses(r"record 5 stands twice in the batch of step 0", take, x[:1], y[:1], records=[5])
    assert torch.equal(row_of(node.module), before)
    saved = node.state_dict()
    assert saved["records"] == {}
    node.load_state_dict(saved)  # what was added up is not in it
    node.step(x, y, records=[4, 5, 6])
    module = nn.Linear(3, 1)
    nn.utils.vector_to_parameters(before.float(), module.parameters())
    expected = sum(clipped(gradient, CLIP) for gradient in one_at_a_time(module, x, y))
    np.testing.assert_allclose(before - row_of(node.module), expected, 0, 1e-6)


class LowRank(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.inner = layer, nn.Linear(layer.in_features, 2, bias=False)
        self.outer = nn.Linear(2, layer.out_features, bias=False)

    def forward(self, x):
        return self.layer(x) + self.outer(self.inner(x))


class Adapted(nn.Module):
    """A frozen transformer of two blocks with adapters in its attention and its linear layers."""

    def __init__(self, width=16):
        super().__init__()
        self.embed = nn.Linear(3, width)
        self.attention = nn.ModuleList([nn.MultiheadAttention(width, 2, batch_first=True) for _ in range(2)])
        self.linear = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.out = nn.Linear(width, 1)
        self.requires_grad_(False)
        self.query = nn.ModuleList([LowRank(nn.Linear(width, width).requires_grad_(False)) for _ in range(2)])
        self.linear = nn.ModuleList([LowRank(layer) for layer in self.linear])

    def forward(self, x):
        x = self.embed(x)
        for query, attention, linear in zip(self.query, self.attention, self.linear, strict=True):
            x = x + attention(query(x), x, x, need_weights=False)[0]
            x = x + linear(functional.layer_norm(x, x.shape[-1:])).relu()
        return self.out(x.mean(1))


@pytest.mark.parametrize("factored", [False, True])
def test_only_the_adapters_of_a_frozen_transformer_train_at_the_nodes(factored, monkeypatch):
    if factored:
        factoring(monkeypatch)
    torch.manual_seed(0)
    first = Adapted()
    sizes = [sum(p.numel() for p in first.parameters() if p.requires_grad is trained) for trained in (True, False)]
    assert 200 < sizes[0] < sizes[1] < 5000
    calibrated, nodes = mechanism(noise_std=0.1), []
    for u in range(3):
        x, y = batch(4, TIMES, 3, seed=u)
        quiet_node = require_step_of_oracle(copy.deepcopy(first), x, y)
        assert bool(quiet_node._record_clipping.layers) == factored
        nodes.append(node_of(copy.deepcopy(first), mechanism=calibrated, node=u, lr=0.1))
        nodes[-1].step(x, y, records=range(4))
    frozen = {name: p for name, p in first.named_parameters() if not p.requires_grad}
    for node in nodes:
        for name, p in node.module.named_parameters():
            assert torch.equal(p, first.get_parameter(name)) == (name in frozen)


REFUSED = {
    "item": (lambda m, x: m(x) if m(x)[0, 0].item() > -99 else x, "through item: .*choose by torch.where"),
    "branch": (lambda m, x: m(x) if m(x)[0, 0] > -99 else x, "through __bool__: .*choose by torch.where"),
    "mask": (lambda m, x: m(x)[m(x) > -99][:, None], "through __getitem__: .*multiply by a mask"),
    "in place": (lambda m, x: torch.zeros(1).add_(m(x)[0]) * 0 + m(x), "through add_: .*make a new tensor"),
    "random": (lambda m, x: m(x) + 0 * torch.rand(1), "through rand: .*other functions of torch, or freeze"),
}


class Applied(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(3, 1), function

    def forward(self, x):
        return self.function(self.linear, x)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_module_is_told_the_operation_and_a_way_out(name):
    function, message = REFUSED[name]
    unsupported(f"per-record gradients of Applied {message}", regression, build=lambda: Applied(function))


@each(
    "build, message",
    (lambda: Sequences(nn.LSTM(3, 2), 2), r"in layer 'layer' \(LSTM\).*second axis; use batch_first=True"),
    (lambda: Sequences(OverRecords(), 3), r"in layer 'layer' \(OverRecords\).*compute each record by itself"),
)
def test_the_layer_that_mixes_records_is_named_even_where_the_first_one_is_left_alone(build, message):
    unsupported(rf"Sequences mixes the records of a batch {message}", series, build)


class OverRecords(nn.Module):
    def forward(self, x):
        return x.cumsum(0)

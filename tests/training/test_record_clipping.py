"""Which weights are factored, and that the sums are those of a loop over records however a module computes."""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest
import torch
from small_tasks import classes, factoring, node_of, regression, row_of, slow_means, slow_sums, some_models
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from vocabulary import dynamics_on, each, given, st, unsupported

from mfdl import Cyclic, Privacy, algorithms, calibrate, trust
from mfdl.training.clipping import Automatic
from mfdl.training.tasks import instance as instances
from mfdl.training.tasks import stacked_layers
from mfdl.training.tasks.record_clipping import RecordClipping


@pytest.fixture
def factored(monkeypatch):
    factoring(monkeypatch)


class Computes(nn.Module):
    def __init__(self, forward, **layers):
        super().__init__()
        self.forward_pass = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.forward_pass(self, x)


def linears(forward, **more):
    return lambda: Computes(forward, first=nn.Linear(3, 3), second=nn.Linear(3, 1), **more)


def tied():
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 1))
    module[2].weight = module[0].weight
    return module


def twice():
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), nn.Sequential(layer, nn.Tanh()), layer, nn.Linear(3, 1))


def partly_frozen():
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    module[0].bias.requires_grad_(False)
    torch.nn.init.ones_(module[0].bias)  # what is frozen is read off a module built anew
    torch.nn.init.ones_(module[2].weight.requires_grad_(False))
    return module


def hooked():
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    module[0].register_forward_pre_hook(lambda _, args: (2 * args[0],))
    module[2].register_forward_hook(lambda _module, _args, output: output.exp())
    return module


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def parametrized():
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    nn.utils.parametrize.register_parametrization(module[0], "weight", Doubled())
    return module


def through_another_call(module, x):
    return module.second(functional.linear(torch.tanh(module.first(x)), module.first.weight))


def tangent(function, x):
    return torch.func.jvp(lambda z: function(z).sin(), (x,), (x,))[1]


MODULES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace=True), nn.Linear(5, 1)), "0.weight 2.weight"),
    "weights alone": (
        lambda: nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 1, bias=False)),
        "0.weight 1.weight",
    ),
    "keywords": (
        linears(lambda m, x: m.second(functional.linear(input=x, weight=m.first.weight))),
        "first.weight second.weight",
    ),
    "norms": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.Linear(4, 1)),
        "0.weight 3.weight",
    ),
    "sequence": (
        linears(lambda m, x: m.second(torch.tanh(m.first(torch.stack([x, 2 * x, x.sin()], 1)))).mean(1)),
        "first.weight second.weight",
    ),
    "tied": (tied, "3.weight"),
    "one module at three places": (twice, "4.weight"),
    "called twice": (linears(lambda m, x: m.second(m.first(torch.tanh(m.first(x))))), "second.weight"),
    "functional use": (linears(through_another_call), "second.weight"),
    "penalty": (linears(lambda m, x: m.second(m.first(x).tanh()) + m.first.weight.square().sum()), "second.weight"),
    "outside any layer": (linears(lambda m, x: m.second(x @ m.first.weight.T)), "second.weight"),
    "its own input": (
        linears(lambda m, x: m.second(x) + functional.linear(m.first.weight, m.first.weight).sum()),
        "second.weight",
    ),
    "its bias": (
        linears(lambda m, x: m.second(functional.linear(x, m.first.weight, m.first.weight[0]))),
        "second.weight",
    ),
    "bias of two calls": (
        linears(lambda m, x: m.second(functional.linear(m.first(x), m.first.weight.detach(), m.first.bias))),
        "first.weight second.weight",
    ),
    "bias outside": (linears(lambda m, x: m.second(m.first(x)) + m.first.bias.sum()), "first.weight second.weight"),
    "inside vmap": (
        linears(lambda m, x: m.second(torch.vmap(m.first)(torch.stack([x, x.sin()]))).mean(0)),
        "second.weight",
    ),
    "its gradient is used": (linears(lambda m, x: m.second(torch.func.grad(lambda z: m.first(z).sin().sum())(x))), ""),
    "its tangent is used": (linears(lambda m, x: m.second(tangent(m.first, x))), ""),
    "not used": (linears(lambda m, x: m.second(x)), "second.weight"),
    "no gradient": (
        linears(lambda m, x: m.second(x) + m.first(x).sum(-1, keepdim=True).detach()),
        "first.weight second.weight",
    ),
    "branch of a constant": (
        linears(lambda m, x: m.second(m.first(x)) if m.training else m.second(x)),
        "first.weight second.weight",
    ),
    "frozen": (partly_frozen, "0.weight 4.weight"),
    "hooks": (hooked, "0.weight 2.weight"),
    "parametrized": (parametrized, "2.weight"),
    "checked by the module": (
        linears(lambda m, x: m.second(m.first.weight.detach().norm() * m.first(x))),
        "first.weight second.weight",
    ),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of torch, by the first tangent
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("clip_norm", [0.3, 1e6, Automatic(0.3)], ids=str)
def test_sums_are_those_of_a_loop_over_records(factored, name, clip_norm):
    build, expected = MODULES[name]
    task = regression(43, build=build)  # ragged: 11, 11, 11, 10 records
    instance = task.instance(2, 4, dtype=torch.float64)
    assert not instance.mask.all()
    assert sorted(instance._record_clipping.layers) == expected.split()
    models = some_models(instance)
    for step in range(2):
        got = instance.clipped_gradient_sums(models, step, clip_norm)
        assert got.dtype == torch.float64
        assert not got.requires_grad
        want = slow_sums(instance, models, step, clip_norm)
        np.testing.assert_allclose(got, want.detach(), rtol=1e-6, atol=1e-7)


ACTIVATIONS = st.sampled_from(stacked_layers.ENTRYWISE)


@st.composite
def chains(draw, outputs):
    """Linear layers with functions between them, as a list of layers that are built anew in each call."""
    widths = [3, *draw(st.lists(st.integers(1, 4), max_size=2)), outputs]
    biases = [draw(st.booleans()) for _ in widths]
    between = [draw(st.lists(ACTIVATIONS, max_size=2)) for _ in widths]
    between[0] = draw(st.sampled_from([between[0], [functools.partial(nn.ReLU, inplace=True)]]))
    before = [nn.Flatten] if draw(st.booleans()) else []

    def layers():
        torch.manual_seed(0)
        parts = [layer() for layer in before]
        for bias, activations, (i, o) in zip(biases, between, itertools.pairwise(widths), strict=False):
            parts += [nn.Linear(i, o, bias=bias), *(activation() for activation in activations)]
        return parts

    return layers


@given(
    100, data=st.data(), by_class=st.booleans(), records=st.integers(6, 14),
    clip_norm=st.sampled_from([0.05, 0.5, 1e6, Automatic(1.0), Automatic(0.5, 1e-6)]),
    way=st.sampled_from(["chain", "nested", "hooked", "any module"]),
)  # fmt: skip
def test_chains_of_any_layers_have_the_sums_and_means_of_a_loop(data, by_class, records, clip_norm, way):
    layers = data.draw(chains(3 if by_class else 1))

    def build():
        parts = layers()
        if way == "nested":
            return nn.Sequential(nn.Sequential(*parts[:1]), nn.Sequential(*parts[1:]))
        module = nn.Sequential(*parts)
        if way == "hooked":
            module[-1].register_forward_hook(lambda _module, _args, output: 2 * output)
        return Computes(lambda m, x: m.inner(x), inner=module) if way == "any module" else module

    task = (classes if by_class else regression)(records, 3, **{"build_module" if by_class else "build": build})
    instance = task.instance(0, 2, dtype=torch.float64)
    inplace = any(getattr(layer, "inplace", False) for layer in instance.model.module.modules())
    model = instance.model
    stacked = model.stacked_calls(model.parameters(instance.initial_parameters), instance.features[:, 0])
    assert (stacked is not None) == (way in ("chain", "nested") and not inplace)
    mask = instance.mask.clone()
    mask[1, 0, 0] = False
    instance = dataclasses.replace(instance, mask=mask)
    instance.features[1, 0, 0] = math.nan
    models = some_models(instance)
    close = {"rtol": 1e-9, "atol": 1e-12}
    for fast, slow in ((instance.clipped_gradient_sums, slow_sums), (instance.clipped_gradient_means, slow_means)):
        np.testing.assert_allclose(fast(models, 0, clip_norm), slow(instance, models, 0, clip_norm), **close)


def test_a_hook_or_autocast_that_comes_later_leaves_a_chain_to_vmap():
    instance = regression(8, 2, build=wide).instance(0, 1)
    model, features = instance.model, instance.features[:, 0]

    def is_stacked():
        return model.stacked_calls(model.parameters(instance.initial_parameters), features) is not None

    before = instance.clipped_gradient_sums(instance.initial_parameters, 0, 1e6)
    assert is_stacked()
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_stacked()
    hook = model.module[2].register_forward_hook(lambda _module, _args, output: 0 * output)
    assert not is_stacked()
    without = instance.clipped_gradient_sums(instance.initial_parameters, 0, 1e6)
    assert not without[:, : 60 * 63].any()
    hook.remove()
    assert torch.equal(instance.clipped_gradient_sums(instance.initial_parameters, 0, 1e6), before)


def image_net(convolution, after=nn.Flatten):
    return nn.Sequential(convolution(), nn.Tanh(), after(), nn.LazyLinear(3))


CONVOLUTIONS = {
    "plain": functools.partial(nn.Conv2d, 2, 4, 3),
    "stride and padding": functools.partial(nn.Conv2d, 2, 4, (3, 2), stride=(2, 1), padding=(1, 2), bias=False),
    "same": functools.partial(nn.Conv2d, 2, 4, (2, 3), padding="same", dilation=(1, 2)),
    "valid": functools.partial(nn.Conv2d, 2, 4, 2, padding="valid"),
    "groups": functools.partial(nn.Conv2d, 2, 6, 3, groups=2),
    "depthwise": functools.partial(nn.Conv2d, 2, 2, 3, groups=2, dilation=2),
    "circular": functools.partial(nn.Conv2d, 2, 3, 3, padding=1, padding_mode="circular"),
}


def _require_slow_sums(instance):
    models = some_models(instance)
    for clip_norm in (0.2, 1e6, Automatic(0.2)):
        got, want = instance.clipped_gradient_sums(models, 0, clip_norm), slow_sums(instance, models, 0, clip_norm)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_images(factored, name):
    rng = np.random.default_rng(0)
    images = {part: rng.standard_normal((rows, 2, 5, 6)) for part, rows in (("features", 12), ("test_features", 11))}

    def build():
        module = image_net(CONVOLUTIONS[name])
        module(torch.zeros(1, 2, 5, 6))
        return module

    instance = classes(12, 2, build_module=build, **images).instance(0, 2, dtype=torch.float64)
    assert sorted(instance._record_clipping.layers) == ["0.weight", "3.weight"]
    _require_slow_sums(instance)


@each("settings", {}, {"stride": 2, "padding": 3}, {"groups": 3, "dilation": 2}, {"padding": "same"})
def test_convolutions_of_series(factored, settings):
    def forward(module, x):
        series = torch.stack([(x * k).sin() for k in range(1, 15)], dim=2).unflatten(2, (7, 2))
        convolved = module.conv(series.movedim(3, 1).flatten(0, 1)).tanh()
        return module.out(convolved.unflatten(0, (-1, 2)).mean((1, 2, 3))[:, None])

    def build():
        return Computes(forward, conv=nn.Conv1d(3, 6, 3, **settings), out=nn.Linear(1, 1))

    instance = regression(12, 2, build=build).instance(0, 2, dtype=torch.float64)
    assert instance._record_clipping.layers["conv.weight"].groups == settings.get("groups", 1)
    _require_slow_sums(instance)


def wide(inputs=3, hidden=60, outputs=1):
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs)
    )


@pytest.mark.parametrize("budget", [1, 200_000, 10**9])
def test_chunks_periods_of_nodes_and_missing_records(factored, monkeypatch, budget):
    monkeypatch.setattr(instances, "CHUNK_BYTES", budget)
    instance = regression(43, build=wide).instance(0, [4, 2, 3, 1], dtype=torch.float64)
    models = some_models(instance, scale=0.05)
    instance.mask[1, 0, 2] = False
    for step in (0, 3):
        got = instance.clipped_gradient_sums(models, step, 0.5)
        steps = enumerate(step % period for period in instance.node_periods)
        slow = torch.stack([slow_sums(instance, models, own_step, 0.5)[u] for u, own_step in steps])
        np.testing.assert_allclose(got, slow, rtol=1e-6, atol=1e-7)


def test_large_weights_are_factored_and_small_models_keep_the_plain_way():
    def layers(build, **shapes):
        instance = regression(8, 2, build=build, **shapes).instance(0, 1)
        return {name: layer.positions for name, layer in instance._record_clipping.layers.items()}

    def apart(hidden):
        def build():
            first, second, third = nn.Linear(3, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1)
            return Computes(lambda m, x: m.third(m.second(m.first(x).tanh())), first=first, second=second, third=third)

        return build

    chain = functools.partial(wide, hidden=2)
    assert layers(chain) == dict.fromkeys(("0.weight", "2.weight", "4.weight"), 1)
    assert layers(apart(15)) == {}  # saves 250 entries
    assert layers(apart(16)) == {"first.weight": 1, "second.weight": 1}  # the last one gains nothing
    images = {"features": np.ones((8, 1, 12, 12)), "test_features": np.ones((11, 1, 12, 12))}

    def network():
        first, second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 64, 8)
        return nn.Sequential(first, nn.ReLU(), second, nn.Flatten(), nn.Linear(64 * 9, 40), nn.ReLU(), nn.Linear(40, 1))

    assert layers(network, **images) == {"2.weight": 9, "4.weight": 1}  # 100 positions of a 3 x 3 kernel cost more


class Largest(TorchDispatchMode):
    """The most entries that any tensor made inside has."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.entries = max(self.entries, tensor.numel())
        return out


def test_memory_does_not_grow_as_batch_times_parameters():
    nodes, width = 2, 150
    largest = {}
    for records in (20, 320):
        instance = regression(records, nodes, build=functools.partial(wide, hidden=width)).instance(0, 1)
        instance._record_clipping  # noqa: B018 - found before
        with Largest() as watch:
            instance.clipped_gradient_sums(instance.initial_parameters, 0, 1.0)
        largest[records] = watch.entries
        assert watch.entries <= max(nodes * instance.dimension, records * (width + 1))
    assert largest[320] < 1.1 * largest[20]
    records = (part[:, 0] for part in (instance.features, instance.targets, instance.mask))
    with Largest() as watch:
        RecordClipping(instance.model, {}).sums(instance.initial_parameters, *records, 1.0)
    assert watch.entries >= 320 * width**2  # what the bound above would find


def test_records_that_are_no_numbers_count_as_not_there(factored):
    instance = regression(24, build=wide).instance(0, 2)
    models = some_models(instance, scale=0.05)
    without = instance.mask.clone()
    without[1, 0, 1] = without[2, 0, 0] = False
    expected = dataclasses.replace(instance, mask=without).clipped_gradient_sums(models, 0, 0.5)
    instance.features[1, 0, 1, 0], instance.targets[2, 0, 0] = float("nan"), float("inf")
    assert torch.equal(instance.clipped_gradient_sums(models, 0, 0.5), expected)
    assert torch.isfinite(expected).all()


@each(
    "later",
    lambda module, x: module.second(x),
    lambda module, x: module.second(module.first(x)) + module.first.weight.square().sum(),
    lambda module, x: module.second(module.first(x)) + torch.cat([module.first.weight, x]).sum(),
)
def test_a_module_that_changes_its_ways_is_refused(factored, later):
    def forward(module, x):
        module.count = getattr(module, "count", 0) + 1
        return later(module, x) if module.count > 8 else module.second(module.first(x))

    instance = regression(build=linears(forward)).instance(0, 2)

    def many_steps():
        for step in range(9):
            instance.clipped_gradient_sums(instance.initial_parameters, step, 1.0)

    unsupported("Computes uses the weights first.weight, second.weight otherwise than before", many_steps)


def test_a_node_of_a_loop_of_ones_own_clips_as_the_executor_does(factored):
    task = regression(16, 4, build=wide)
    instance, module = task.instance(0, 2), task.build_module()
    algorithm = algorithms.mafalda(dynamics_on("ring:n=4", 1.0), Cyclic(1, 2))
    calibrated = calibrate(algorithm, Privacy(trust.LDP(), adjacency="zero-out", clip_norm=0.5), noise_std=0.0)
    start, node = row_of(module), node_of(module, calibrated, node=1)
    node.step(instance.features[1, 0], instance.targets[1, 0])
    assert node._record_clipping.layers
    expected = instance.clipped_gradient_sums(start.repeat(4, 1), 0, 0.5)[1]
    np.testing.assert_allclose(start - row_of(module), expected, rtol=1e-4, atol=1e-6)

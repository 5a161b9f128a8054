"""`PrivateNode`: n nodes in a loop of one's own train as the executor does; what no guarantee covers is refused."""

import functools
import io

import networkx as nx
import numpy as np
import pytest
import torch
from _privacy import applied
from small_tasks import mlp, module_at, node_of, regression, squared
from torch import nn
from vocabulary import ZERO_OUT, each, refuses, unsupported

import mfdl
from mfdl import InvalidInput, PrivateNode
from mfdl.training.clipping import parse_rule
from mfdl.training.executor import Executor
from mfdl.training.private_node import shaped_like
from mfdl.training.shared_randomness import HolderKeys
from mfdl.training.streams import noise_stream
from mfdl.training.tasks.record_clipping import with_log_norm

EPOCHS, PERIOD, NODES, RATE = 3, 2, 4, 0.3
GOSSIP = mfdl.gossip.metropolis_hastings(nx.cycle_graph(NODES))


def mechanism(name="mafalda", trust=None, unit="record", momentum=0.0, **more):
    participation = mfdl.EveryStep(EPOCHS * PERIOD) if unit == "user" else mfdl.Cyclic(EPOCHS, PERIOD)
    dynamics = mfdl.Dynamics(GOSSIP, RATE, momentum=momentum)
    algorithm = mfdl.algorithms.build(name, dynamics, participation)
    given = {"trust": trust or mfdl.trust.LDP(), "adjacency": "zero-out", "clip_norm": 0.5, "unit": unit, **more}
    return applied(mfdl.calibrate, algorithm, {"mu": 2.0, **given})


def nodes_of(mechanism, task, key, row, **options):
    given = {"lr": RATE, "batch_size": None, "keys": key} | options
    return [node_of(module_at(task, row), mechanism, node=u, **given) for u in range(NODES)]


@each(
    "name, unit, momentum, trust, clipping",
    ("mafalda", "record", 0.0, mfdl.trust.LDP(), "flat"),
    ("mafalda", "record", 0.0, mfdl.trust.LDP(), "automatic"),
    ("dp-dsgd", "user", 0.0, mfdl.trust.LDP(), "automatic:0.3"),
    ("decor", "user", 0.0, mfdl.trust.Eavesdropper(), "flat"),
    ("mafalda", "record", 0.9, mfdl.trust.LDP(), "flat"),
    ("dp-dsgd", "user", 0.0, mfdl.trust.LDP(), "layers:1:2"),
    ("decor", "record", 0.0, mfdl.trust.Eavesdropper(), "quantile:0.7"),
)
def test_nodes_that_step_and_average_train_as_the_executor_does(name, unit, momentum, trust, clipping):
    calibrated, task = mechanism(name, trust, unit, momentum), regression(num_records=16, num_nodes=NODES)
    task = with_log_norm(task) if clipping.startswith("quantile") else task
    period = 1 if unit == "user" else PERIOD
    data, key = task.instance(0, period, dtype=torch.float64), mfdl.NoiseKey.from_seed(5)
    sizes = task.public_batch_sizes(period, 0) if unit == "record" else np.ones(NODES)
    algorithm = calibrated.algorithm.with_divisors(sizes)
    executor = Executor(algorithm, dtype=torch.float64)
    stream = noise_stream(algorithm.noise, calibrated.noise_std, key, data.dimension)
    state = executor.initial_state(data.initial_parameters)
    sgd = functools.partial(torch.optim.SGD, momentum=momentum)
    options = {"optimizer": sgd, "batch_size": float(sizes[0]), "clipping": clipping}
    nodes = nodes_of(calibrated, task, key, data.initial_parameters[0], **options)
    rule = parse_rule(clipping, calibrated.clip_norm)
    for t in range(calibrated.algorithm.num_steps):
        gradients = data.clipped_gradients(executor.models(state), t, rule, unit)
        _, state = executor.step(t, state, gradients, torch.tensor(stream.step(t)))
        for u, node in enumerate(nodes):
            batch = data.mask[u, t % period]
            records = data.record_index[u, t % period][batch].tolist()
            node.step(data.features[u, t % period][batch], data.targets[u, t % period][batch], records=records)
        sent = {u: {k: v.clone() for k, v in node.module.state_dict().items()} for u, node in enumerate(nodes)}
        for u, node in enumerate(nodes):
            heard = {j: sent[j] for j in sent if GOSSIP.weights[[u], [j]].item() != 0}
            node.module.load_state_dict(mfdl.gossip.average(heard, GOSSIP, u))
    models = torch.stack([node.model.initial_row() for node in nodes])
    torch.testing.assert_close(models, executor.models(state), rtol=1e-9, atol=1e-12)


@pytest.fixture
def one_node():
    calibrated, task = mechanism(), regression(num_records=16, num_nodes=NODES)
    data = task.instance(0, PERIOD)
    return nodes_of(calibrated, task, mfdl.NoiseKey.from_seed(0), data.initial_parameters[0], batch_size=2)[1], data


def batch(data, t):
    return data.features[1, t % PERIOD], data.targets[1, t % PERIOD]


def test_a_step_of_the_optimizer_alone_is_refused_as_long_as_the_node_lives(one_node):
    node, data = one_node
    features, targets = batch(data, 0)
    before, optimizer = node.model.initial_row(), node.optimizer
    squared(node.module(features), targets).mean().backward()
    refuses("belongs to a PrivateNode", optimizer.step)
    assert torch.equal(node.model.initial_row(), before)
    refuses("features must be a tensor, got ndarray", lambda: node.step(features.numpy(), targets))
    optimizer.zero_grad()
    node.step(features, targets)
    assert all(p.grad is None for p in node.module.parameters())
    refuses("belongs to a PrivateNode", optimizer.step)


def test_a_record_takes_part_only_when_its_participation_allows_it(one_node):
    node, data = one_node
    node.step(*batch(data, 0), records=[7, 8])
    refuses(r"record 7 would take part in steps \[0", lambda: node.step(*batch(data, 1), records=[9, 7]))
    refuses("record 9 stands twice", lambda: node.step(*batch(data, 1), records=[9, 9]))
    assert node.steps_taken == 1  # nothing has happened, and 9 is free still
    node.step(*batch(data, 1), records=[9, 10])
    node.step(*batch(data, 2), records=[7, 8])


def test_a_resumed_node_goes_on_where_the_saved_one_stood_and_never_back(one_node):
    node, data = one_node
    again = node_of(copy := mlp(), node.mechanism, lr=RATE, node=1, batch_size=2)
    for t in range(3):
        node.step(*batch(data, t), records=[2 * (t % 2), 2 * (t % 2) + 1])
    early = node.state_dict()
    copy.load_state_dict(node.module.state_dict())
    again.load_state_dict(torch.load(_written(early), weights_only=True))
    for t in (3, 4):
        for one in (node, again):
            one.step(*batch(data, t))
    assert torch.equal(node.model.initial_row(), again.model.initial_row())
    refuses("cannot go to step 3", node.load_state_dict, early)
    refuses("another run: key_id", lambda: again.load_state_dict({**node.state_dict(), "key_id": "0" * 32}))
    with pytest.raises(InvalidInput, match=r"lacks \['optimizer'\]"):
        again.load_state_dict({name: value for name, value in early.items() if name != "optimizer"})
    again.load_state_dict(early | {"steps_taken": 5})
    refuses(r"record 0 would take part in steps \[0, 2, 5\]", lambda: again.step(*batch(data, 5), records=[0, 5]))


def _written(state):
    torch.save(state, buffer := io.BytesIO())
    buffer.seek(0)
    return buffer


def test_a_step_without_records_is_noise_alone_and_optimizers_of_all_kinds_do(one_node):
    plain, data = one_node
    calibrated, task = plain.mechanism, regression(num_records=16, num_nodes=NODES)
    start, key = data.initial_parameters[0], mfdl.NoiseKey.from_seed(0)
    plain.step(data.features[1, 0][:0], data.targets[1, 0][:0])
    row = noise_stream(calibrated.algorithm.noise, calibrated.noise_std, key, data.dimension, slots=[1]).step(0)[0]
    wanted = start - RATE * torch.tensor(row, dtype=torch.float32) / 2
    torch.testing.assert_close(plain.model.initial_row(), wanted)
    adam = nodes_of(calibrated, task, key, start, optimizer=torch.optim.Adam, lr=0.01, batch_size=2)[1]
    adam.step(*batch(data, 0))
    moved = (adam.model.initial_row() - start).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.01), rtol=1e-3, atol=1e-6)  # Adam's first step


def test_noise_much_larger_than_a_gradient_is_rounded_only_together_with_it():
    calibrated = mfdl.calibrate(mechanism().algorithm, mfdl.Privacy(mfdl.trust.LDP(), **ZERO_OUT), noise_std=1e6)
    module, key = nn.Linear(1000, 1, bias=False), mfdl.NoiseKey.from_seed(0)
    nn.init.zeros_(module.weight)
    gradient = 0.01 * torch.randn(1, 1000, generator=torch.Generator().manual_seed(0))  # of norm 0.3: not clipped
    node_of(module, calibrated, loss=lambda output, target: output.sum()).step(gradient, torch.zeros(1))
    noise = noise_stream(calibrated.algorithm.noise, calibrated.noise_std, key, 1000, slots=[0]).step(0)
    assert torch.equal(module.weight.detach(), -(gradient.double() + torch.tensor(noise)).float())


def refusals():
    hidden, password = mechanism("dp-dsgd", mfdl.trust.PNDP([0])), mfdl.NoiseKey(b"password".ljust(32))
    tracking, quieter = mechanism("gradient-tracking"), mechanism()
    object.__setattr__(quieter.algorithm, "noise", mfdl.noise.ZeroNoise(EPOCHS * PERIOD, NODES))
    return {
        "noise changed afterwards": ({"calibrated": quieter}, InvalidInput, "the guarantee is for another algorithm"),
        "messages hidden": ({"calibrated": hidden}, mfdl.UnsupportedMechanism, "linear algorithm 'dp-dsgd' alone"),
        "add-remove": ({"calibrated": mechanism(adjacency="add-remove")}, mfdl.UnsupportedMechanism, "is not public"),
        "an algorithm": ({"calibrated": tracking.algorithm}, InvalidInput, "mechanism must be a Mechanism"),
        "LBFGS": ({"optimizer": torch.optim.LBFGS}, mfdl.UnsupportedMechanism, "several times a step"),
        "half": ({"optimizer": lambda p: torch.optim.SGD(list(p)[:1], lr=1.0)}, InvalidInput, "exactly the trainable"),
        "no such node": ({"node": 9}, InvalidInput, "node"),
        "no keys": ({"keys": 3}, InvalidInput, "keys must be HolderKeys"),
        "a seed": ({"keys": mfdl.NoiseKey.from_seed(0)}, InvalidInput, "no cipher; use NoiseKey.from_entropy"),
        "a password": ({"keys": password}, InvalidInput, "8 distinct bytes.*publish="),
        "a password of a simulation": ({"keys": HolderKeys.simulated(password)}, InvalidInput, "8 distinct bytes"),
        "a key made of a password": ({"keys": password.derive("node")}, InvalidInput, "8 distinct bytes"),
        "publish is no flag": ({"publish": None}, InvalidInput, "publish must be"),
        "batch size 0": ({"batch_size": 0}, InvalidInput, "batch_size must be"),
        "user level": (
            {"calibrated": mechanism("dp-dsgd", unit="user"), "batch_size": 2},
            InvalidInput,
            "leave it out",
        ),
    }


@pytest.mark.parametrize("case", list(refusals()))
def test_what_no_guarantee_covers_is_refused_before_any_step(case):
    changes, error, words = refusals()[case]
    calibrated = changes.pop("calibrated", None) or mechanism()
    module = nn.Linear(3, 1)
    optimizer = changes.pop("optimizer", lambda p: torch.optim.SGD(p, lr=1.0))(module.parameters())
    given = {"node": 0, "keys": mfdl.NoiseKey.from_entropy(), "loss": squared} | changes
    refuses(words, PrivateNode, optimizer, module, calibrated, **given, error=error)


def test_a_seeded_key_that_was_agreed_on_is_refused():
    calibrated = mechanism("decor", mfdl.trust.Eavesdropper(), unit="user")
    agreed = {(0,): mfdl.NoiseKey.from_entropy(), (0, 3): mfdl.NoiseKey.from_entropy()}
    keys = HolderKeys.given(agreed | {(0, 1): mfdl.NoiseKey.from_seed(2)})
    module = nn.Linear(3, 1)
    refuses("must not come from a seed", node_of, module, calibrated, keys=keys, publish=True)
    node = node_of(module, calibrated, keys=keys)
    assert all(name in node.state_dict()["generator"] for name in ("chacha20", "philox"))


def test_layers_that_mix_records_are_refused_at_the_first_step_even_for_one_record():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, x):
            return self.linear(x - x.mean(0))

    for module in (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)), Centred()):
        private_node = node_of(module, mechanism())
        unsupported("mixes the records", private_node.step, torch.randn(1, 3), torch.randn(1))
        assert private_node.steps_taken == 0


def test_what_is_refused_at_the_first_step_has_changed_nothing():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(5, 1, max_norm=1e-3)

        def forward(self, x):
            return self.embedding(x[:, 0])

    module = Tokens()
    before, node = module.embedding.weight.detach().clone(), node_of(module, mechanism())
    unsupported("a parameter changes", node.step, torch.tensor([[3]]), torch.zeros(1))
    assert torch.equal(module.embedding.weight, before)


def test_a_node_needs_only_the_secrets_it_holds():
    calibrated = mechanism("decor", mfdl.trust.Eavesdropper(), unit="user")
    keys = HolderKeys.given({(0,): mfdl.NoiseKey.from_seed(1), (0, 1): mfdl.NoiseKey.from_seed(2)})
    refuses(r"the secret of \{0, 3\} is missing", node_of, nn.Linear(3, 1), calibrated, keys=keys)


def test_noise_takes_shape_type_and_order_of_the_parameters():
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)).double()
    module[0].bias.requires_grad_(False)
    row = np.arange(9.0)
    shaped = shaped_like(row, module)
    assert list(shaped) == ["0.weight", "1.weight", "1.bias"]
    assert all(shaped[name].dtype == torch.float64 for name in shaped)
    assert np.concatenate([tensor.numpy().ravel() for tensor in shaped.values()]).tolist() == row.tolist()
    refuses(r"shape \(9,\), got \(8,\)", shaped_like, row[:8], module)
    for dtype in (torch.complex64, torch.int64):  # no noise on imaginary parts, nor below the point
        refuses(r"real floating-point types, got torch.*'w'", shaped_like, row, {"w": torch.zeros(9, dtype=dtype)})


def test_averaging_refuses_a_missing_and_an_uncalled_message():
    W = mfdl.gossip.metropolis_hastings(nx.path_graph(3))
    refuses(r"nodes \[0, 1\] at step 0, got none of \[1\]", mfdl.gossip.average, {0: 1.0}, W, 0)
    refuses(r"also one of \[2\]", mfdl.gossip.average, {0: 1.0, 1: 1.0, 2: 1.0}, W, 0)
    refuses("the same tensors", mfdl.gossip.average, {0: {"w": 1.0}, 1: {"v": 1.0}}, W, 0)
    x = np.random.default_rng(0).standard_normal((3, 5))
    assert np.allclose(mfdl.gossip.average(dict(enumerate(x)), W, 1), W.weights.toarray()[1] @ x)


@each(
    "features, targets, records, why",
    (torch.zeros(()), torch.zeros(1), None, r"features must be a batch of records, shape \(B, ...\), got shape"),
    (torch.zeros(3), torch.zeros(()), None, r"targets must be a batch .*one record is features\[None\]"),
    (torch.zeros(1, 3), torch.zeros(1), 5, "records must be a list of a number for each record, got 5"),
)
def test_one_record_without_a_batch_axis_is_refused(features, targets, records, why):
    task, key = regression(num_records=16, num_nodes=NODES), mfdl.NoiseKey.from_seed(5)
    start = task.instance(0, PERIOD, dtype=torch.float64).initial_parameters[0]
    node = nodes_of(mechanism(), task, key, start)[0]
    refuses(why, node.step, features, targets, records=records)
    assert node.steps_taken == 0

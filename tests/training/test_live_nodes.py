"""Live nodes: copies are refused, what a node sends is its own, the budget counts on, and bugs of other libraries."""

import copy
import dataclasses
import io
import multiprocessing
import pickle
import threading

import networkx as nx
import numpy as np
import pytest
import torch
from small_tasks import node_of, squared
from torch import nn
from vocabulary import ZERO_OUT, dynamics_on, refuses, unsupported

import mfdl
from mfdl.training.private_node import Message
from mfdl.training.shared_randomness import HolderKeys

EPOCHS, PERIOD, NODES, RATE, CLIP = 3, 2, 4, 0.5, 0.5
GOSSIP = mfdl.gossip.metropolis_hastings(nx.cycle_graph(NODES))
GENERATOR = torch.Generator().manual_seed(0)
FEATURES, TARGETS = torch.randn(6, 3, generator=GENERATOR), torch.randn(6, generator=GENERATOR)


def calibrated(name="mafalda", **target):
    algorithm = mfdl.algorithms.build(name, mfdl.Dynamics(GOSSIP, RATE), mfdl.Cyclic(EPOCHS, PERIOD))
    conditions = mfdl.Privacy(mfdl.trust.LDP(), adjacency="replace-one", clip_norm=CLIP)
    return mfdl.calibrate(algorithm, conditions, **(target or {"mu": 1.0}))


MECHANISM = calibrated()


def live(key=None, *, mechanism=MECHANISM, module=None, optimizer=torch.optim.SGD, lr=RATE, **options):
    if module is None:
        torch.manual_seed(3)
        module = nn.Linear(3, 1)
    keys = HolderKeys.given({(1,): key or mfdl.NoiseKey.from_entropy()})
    arguments = {"node": 1, "keys": keys, "batch_size": 2, "publish": True} | options
    return node_of(module, mechanism, optimizer=optimizer, lr=lr, **arguments)


def batch(t):
    return FEATURES[2 * (t % 3) : 2 * (t % 3) + 2], TARGETS[2 * (t % 3) : 2 * (t % 3) + 2]


def parameters(node):
    return node.model.initial_row()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda f: f.__name__)
@pytest.mark.parametrize("part", [lambda node: node, lambda node: node.grid], ids=["node", "grid"])
def test_a_live_node_is_not_copied(part, duplicate):
    node = live(mechanism=calibrated("dp-dsgd"), grid=2.0**-18)
    node.step(*batch(0))
    refuses("must not be copied or pickled.*save", lambda: duplicate(part(node)))
    node.step(*batch(1))


def _refusal_in_a_fork(node, answer):
    try:
        node.step(*batch(1))
        answer.send("stepped")
    except mfdl.InvalidInput as error:
        answer.send(str(error))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_has_no_step_left():
    node, fork = live(), multiprocessing.get_context("fork")
    node.step(*batch(0))
    here, in_child = fork.Pipe()
    child = fork.Process(target=_refusal_in_a_fork, args=(node, in_child))
    child.start()
    assert here.poll(60)
    assert "is a copy" in here.recv()
    child.join()
    node.step(*batch(1))


def test_a_second_thread_waits_for_nothing_and_is_refused():
    refusals, node = [], live()

    class Waiting(nn.Linear):
        def forward(self, x):
            def step():
                try:
                    node.step(*batch(1))
                except mfdl.InvalidInput as error:
                    refusals.append(str(error))

            thread = threading.Thread(target=step)
            thread.start()
            thread.join()
            return super().forward(x)

    node = live(module=Waiting(3, 1))
    node.step(*batch(0))
    assert refusals
    assert all("another thread" in words for words in refusals)
    assert node.steps_taken == 1


def saved(node):
    torch.save((node.state_dict(), node.module.state_dict()), file := io.BytesIO())
    return file


def resumed(file, key, **options):
    file.seek(0)
    state, module = torch.load(file, weights_only=True)
    node = live(key, **options)
    node.module.load_state_dict(module)
    node.load_state_dict(state)
    return node


def test_one_saved_file_goes_on_once_in_a_process():
    key = mfdl.NoiseKey.from_entropy()
    node = live(key)
    node.step(*batch(0))
    first, second = (resumed(saved(node), key) for _ in range(2))
    first.step(*batch(1))
    before = parameters(second)
    for other in (second, node, live(key)):
        refuses("step [01] was taken in this process", other.step, *batch(2))
    assert torch.equal(parameters(second), before)
    first.step(*batch(2))


def test_a_folder_belongs_to_one_node_which_goes_on_where_it_stood(tmp_path):
    key = mfdl.NoiseKey.from_seed(0)
    options = {"publish": False, "optimizer": torch.optim.Adam, "lr": 0.1}
    undisturbed = live(key, **options)
    node = live(key, folder=tmp_path, **options)
    for t in range(3):
        for each in (undisturbed, node):
            each.step(*batch(t), records=[10 * t, 10 * t + 1])
    refuses(r"in use by another run.*process \d+", live, key, folder=tmp_path, **options)
    node.close()
    refuses("is no longer this node's", lambda: node.step(*batch(0)))
    again = live(key, folder=tmp_path, module=nn.Linear(3, 1), **options)
    assert again.steps_taken == 3
    assert again.message().keys() == undisturbed.message().keys()
    with pytest.raises(mfdl.InvalidInput, match=r"record 10 would take part in steps \[1, 4\]|record 0 .*\[0, 3\]"):
        again.step(*batch(3), records=[0, 11])  # a restart in mid-cycle counts on
    for each in (undisturbed, again):
        each.step(*batch(3), records=[10, 11])
    assert torch.equal(parameters(undisturbed), parameters(again))
    del again, each  # collected without close
    assert live(key, folder=tmp_path, **options).steps_taken == 4


def test_a_node_whose_file_was_written_by_another_stops_before_it_computes(tmp_path):
    node = live(folder=tmp_path)
    node.step(*batch(0))
    node._file.save({**node.state_dict(), "module": {}})
    node.step(*batch(1))  # its own file
    (tmp_path / "node.pt").touch()
    before = parameters(node)
    refuses("is no longer this node's, and process", lambda: node.step(*batch(2)))
    assert torch.equal(parameters(node), before)
    node.close()
    (tmp_path / "node.pt").write_bytes(b"no file of torch")
    refuses("is damaged", live, folder=tmp_path)


def test_a_failed_step_is_saved_as_taken(tmp_path):
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("out of memory")

    key = mfdl.NoiseKey.from_entropy()
    node = live(key, optimizer=Failing, folder=tmp_path)
    refuses(None, lambda: node.step(*batch(0)), error=RuntimeError)
    node.close()
    assert live(key, folder=tmp_path).steps_taken == 1


def test_a_message_is_what_steps_and_averages_left():
    node = live()
    refuses("after 0 steps is not what step or receive", node.message)
    node.step(*batch(0))
    message = node.message()
    assert isinstance(message, Message)
    for wrong in (None, node.module, {"a": torch.zeros(1)}, {name: part[..., :0] for name, part in message.items()}):
        refuses(r"^(names and|average)", node.receive, wrong)
    node.receive({name: tensor / 2 for name, tensor in message.items()})
    assert all(torch.equal(2 * node.message()[name], tensor) for name, tensor in message.items())
    bypass = torch.optim.SGD(node.module.parameters(), lr=1.0)
    squared(node.module(FEATURES), TARGETS).sum().backward()
    bypass.step()
    for send in (node.message, lambda: node.receive(message)):
        refuses("no guarantee covers it", send)


def test_a_saved_state_with_the_module_of_another_step_sends_nothing():
    key = mfdl.NoiseKey.from_entropy()
    node = live(key)
    node.step(*batch(0))
    again = live(key)
    again.load_state_dict(node.state_dict())
    refuses("not what step or receive left", again.message)


def test_plans_that_differ_are_refused_with_the_first_field_that_differs():
    def other(*, gossip=GOSSIP, participation=None, clip=CLIP, std=1.0, rate=RATE):
        scheme = participation or mfdl.Cyclic(EPOCHS, PERIOD)
        conditions = mfdl.Privacy(mfdl.trust.LDP(), adjacency="replace-one", clip_norm=clip)
        return mfdl.calibrate(mfdl.algorithms.dp_dsgd(mfdl.Dynamics(gossip, rate), scheme), conditions, noise_std=std)

    here = other()
    here.require_plan(other().plan, "node 2")
    lazy = mfdl.gossip.from_array(0.5 * (np.eye(NODES) + GOSSIP.weights.toarray()))
    complete = mfdl.gossip.metropolis_hastings(nx.complete_graph(NODES))
    cases = {
        "graph": {"gossip": complete}, "gossip": {"gossip": lazy},
        "participation": {"participation": mfdl.Cyclic(PERIOD, EPOCHS)}, "noise": {"std": 2.0},
        "clipping": {"clip": 1.0}, "mechanism": {"rate": 0.1},
    }  # fmt: skip
    for field, changes in cases.items():
        refuses(f"node 2 has another {field}:", here.require_plan, other(**changes).plan, "node 2")


def test_the_budget_counts_what_was_sent_and_goes_on_after_a_restart(tmp_path):
    node = live(key := mfdl.NoiseKey.from_entropy(), folder=tmp_path)
    assert node.guarantee_so_far() is None
    spent = [0.0]
    for t in range(node.num_steps):
        if t == 3:
            node.close()
            node = live(key, folder=tmp_path)
        assert node.remaining() == node.num_steps - t
        node.step(*batch(t))
        so_far = node.guarantee_so_far()
        assert (so_far.unit, so_far.adjacency, so_far.noise_std) == ("record", "replace-one", MECHANISM.noise_std)
        spent.append(so_far.mu)
    assert sorted(spent) == spent
    assert spent[1] < 0.9 * spent[-1] == pytest.approx(0.9 * MECHANISM.guarantee.mu)
    before = parameters(node)
    refuses("has taken its 6 steps", lambda: node.step(*batch(0)))
    assert torch.equal(parameters(node), before)
    assert node.remaining() == 0


def test_the_budget_covers_what_nodes_that_are_ahead_show():
    """A second step of node 1 shows the shared noise of the first step again, here a hundred times."""
    ahead = np.linalg.inv([[1.0, 0.0], [100.0, 1.0]])
    factor, holders = [[1.0, 0.1, 0.0], [-1.0, 0.0, 0.1]], np.array([[1, 1], [1, 0], [0, 1]], dtype=bool)
    noise = mfdl.noise.CausalNoise([ahead, np.eye(2), np.eye(2)], factor, holders, num_steps=2, num_nodes=2)
    pair = dynamics_on(nx.path_graph(2), RATE)
    algorithm = dataclasses.replace(mfdl.algorithms.dp_dsgd(pair, mfdl.participation.Single(2)), noise=noise)
    conditions = mfdl.Privacy(mfdl.trust.Eavesdropper(), **ZERO_OUT)
    mechanism = mfdl.calibrate(algorithm, conditions, noise_std=1.0)
    node = live(mechanism=mechanism, node=0, keys=mfdl.NoiseKey.from_seed(0), publish=False)
    node.step(*batch(0))
    seen = noise.to_dense()[[0, 1, 3]]  # rows of both nodes' first step, and of node 1's second one
    truth = np.sqrt(np.linalg.inv(seen @ seen.T)[0, 0])
    assert mechanism.guarantee_after(1).mu < 0.8 * truth
    assert node.guarantee_so_far().mu >= truth * (1 - 1e-9)
    shared = mfdl.calibrate(MECHANISM.algorithm, dataclasses.replace(conditions, owners=2), noise_std=1.0)
    owner = live(mechanism=shared)
    owner.step(*batch(0))
    assert owner.guarantee_so_far() is shared.guarantee


def test_a_step_that_overflows_and_is_skipped_counts():
    class Skipping(torch.optim.SGD):
        def step(self, closure=None):
            gradients = [p.grad.half() for group in self.param_groups for p in group["params"]]
            if all(torch.isfinite(gradient).all() for gradient in gradients):
                super().step(closure)

    node = live(mechanism=calibrated(noise_std=1e6), optimizer=Skipping)
    before = parameters(node)
    node.step(*batch(0))
    assert torch.equal(parameters(node), before)
    assert (node.steps_taken, node.state_dict()["steps_taken"]) == (1, 1)


def test_a_restored_tensor_of_another_shape_is_refused():
    key, optimizer = mfdl.NoiseKey.from_entropy(), torch.optim.Adam
    node = live(key, optimizer=optimizer)
    node.step(*batch(0))
    state = node.state_dict()
    live(key, optimizer=optimizer).load_state_dict(state)
    other = live(key, optimizer=optimizer, module=nn.Linear(1, 2))  # as many numbers
    refuses("another run: shapes", other.load_state_dict, state)


def test_records_without_a_finite_gradient_are_counted():
    node, without = (live(key, publish=False) for key in 2 * [mfdl.NoiseKey.from_seed(0)])
    features, targets = FEATURES[:3].clone(), TARGETS[:3].clone()
    features[1, 0], targets[2] = torch.nan, torch.inf
    node._checked = without._checked = False
    node.step(FEATURES[:0], TARGETS[:0])
    without.step(FEATURES[:0], TARGETS[:0])
    for each in (node, without):
        each.step(*batch(1))
    node.step(features, targets)
    without.step(features[:1], targets[:1])
    assert (node.dropped_records, without.dropped_records) == (2, 0)
    torch.testing.assert_close(parameters(node), parameters(without))


def test_all_noise_comes_from_the_key():
    def row(seed, key):
        node = live(key, publish=False)
        torch.manual_seed(seed)
        node.step(*batch(0))
        return parameters(node)

    keys = [mfdl.NoiseKey.from_seed(i) for i in range(2)]
    assert torch.equal(row(0, keys[0]), row(1, keys[0]))
    assert (row(0, keys[0]) != row(0, keys[1])).all()

    class Noisy(nn.Linear):
        def forward(self, x):
            return super().forward(x) + torch.randn(1)

    unsupported(".", lambda: live(module=Noisy(3, 1)).step(*batch(0)))


def test_each_record_is_clipped_before_sums_and_over_all_parameters():
    node = live(mechanism=calibrated(noise_std=0.0), batch_size=1.0, lr=1.0)
    features, targets = FEATURES[:4], torch.full((4,), 20.0)
    weight, bias = (p.detach().clone() for p in node.module.parameters())
    residuals = 2 * (features @ weight[0] + bias - targets)
    gradients = torch.cat([residuals[:, None] * features, residuals[:, None]], dim=1)

    def clipped(rows):
        return rows * (CLIP / rows.norm(dim=1, keepdim=True)).clamp(max=1)

    wanted = clipped(gradients).sum(0)
    after_averaging = clipped(gradients.sum(0)[None])[0]
    by_parameter = torch.cat([clipped(gradients[:, :3]), clipped(gradients[:, 3:])], dim=1).sum(0)
    before = parameters(node)
    node.step(features, targets)
    moved = before - parameters(node)
    torch.testing.assert_close(moved, wanted, rtol=1e-3, atol=1e-4)
    assert (after_averaging - wanted).norm() > 0.1
    assert (by_parameter - wanted).norm() > 0.1

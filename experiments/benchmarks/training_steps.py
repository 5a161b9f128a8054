"""Parts of a training step beside what is written by hand, and beside Opacus; CPU seconds of one thread, in turn.

Every answer is checked against the peer's first. A ratio above 1 says that mfdl takes longer.

- A step of all nodes, noise included, beside `vmap(grad)`, clip, and `W @ x`; of a linear model also beside its closed
  form with `bmm`. The noise of these loops is float64 normals of NumPy's Philox in one call. mfdl makes the same kind
  of noise from a key for each node.
- The executor alone, beside `W @ (x - lr (g + noise.float()))`.
- A step of one node with a secret key, beside the step of Opacus' optimizer on the same module (`pip install opacus`).
- One step of noise of 10,000 secret keys, beside NumPy's Philox in one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _measure import in_turn, leave_out, report
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, one_hot

import mfdl
from mfdl.training.executor import Executor
from mfdl.training.keys import ColumnNormals, NoiseKey
from mfdl.training.streams import noise_stream
from mfdl.training.tasks import Task
from mfdl.training.tasks.instance import TaskInstance

CLIP_NORM, RATE, STD, STEPS = 1.0, 0.1, 0.5, 40
SIZES = ((64, 3), (64, 64), (784, 64))  # features and records of one node
Sums = Callable[[torch.Tensor], torch.Tensor]


def images(nodes: int, records: int) -> Task:
    """Records of the shape of MNIST, and the network of mnist-mlp."""
    numbers = np.random.default_rng(0)
    features, targets = (
        numbers.random((nodes * records, 784), dtype=np.float32),
        numbers.integers(0, 10, nodes * records),
    )
    held_back = {"test_features": features[:100], "test_targets": targets[:100]}

    def build() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))

    given = {"features": features, "targets": targets, **held_back, "build_module": build, "loss": cross_entropy}
    return mfdl.tasks.from_module("images", nodes, kind="classification", **given)


def by_torch_func(instance: TaskInstance) -> Sums:
    """Sums of clipped gradients as they are written by hand: per-record gradients of torch.func."""
    module, (X, Y, mask) = instance.model.module, batch(instance)

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(functional_call(module, parameters, (x[None],)), y[None])

    gradients = vmap(vmap(grad(loss), in_dims=(None, 0, 0)))

    def sums(models: torch.Tensor) -> torch.Tensor:
        parts = gradients(instance.model.unflatten(models), X, Y).values()
        rows = torch.cat([part.flatten(2) for part in parts], 2)
        return (rows * (mask * (CLIP_NORM / rows.norm(dim=2)).clamp(max=1))[..., None]).sum(1)

    return sums


def closed_form(instance: TaskInstance) -> Sums:
    """The same for one linear layer with cross entropy: norms from inputs and residuals, one `bmm`."""
    X, Y, mask = batch(instance)
    outputs, inputs = instance.model.shapes["weight"]

    def sums(models: torch.Tensor) -> torch.Tensor:
        weights = models[:, : outputs * inputs].view(-1, outputs, inputs)
        residuals = torch.baddbmm(models[:, None, outputs * inputs :], X, weights.mT).softmax(-1) - one_hot(Y, outputs)
        norms = residuals.norm(dim=2) * (X.square().sum(2) + 1).sqrt()
        residuals *= (mask * (CLIP_NORM / norms).clamp(max=1))[..., None]
        return torch.cat([torch.bmm(residuals.mT, X).flatten(1), residuals.sum(1)], 1)

    return sums


def batch(instance: TaskInstance) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, targets and mask of step 0."""
    return instance.features[:, 0], instance.targets[:, 0], instance.mask[:, 0]


def dsgd(nodes: int, participation: mfdl.participation.Participation) -> mfdl.Mechanism:
    """DP-DSGD on a torus or a ring."""
    gossip = mfdl.gossip.metropolis_hastings(mfdl.graphs.load(f"{'torus' if nodes == 100 else 'ring'}:n={nodes}"))
    algorithm = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(gossip, learning_rate=RATE), participation)
    privacy = mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=CLIP_NORM)
    return mfdl.calibrate(algorithm, privacy, noise_std=STD)


def steps_of_nodes(name: str, task: Task, nodes: int, period: int) -> None:
    """Step 0 again and again, with the noise of step after step."""
    algorithm, instance = dsgd(nodes, mfdl.Cyclic(STEPS, period)).algorithm, task.instance(0, period)
    d, models, executor = instance.dimension, instance.initial_parameters, Executor(algorithm)
    stream = noise_stream(algorithm.noise, STD, NoiseKey.from_seed(0), d)
    W = torch.tensor(algorithm.dynamics.gossip.dense(), dtype=torch.float32)
    normals, state, steps = np.random.Generator(np.random.Philox(0)), executor.initial_state(models), [0]
    peers = {"vmap(grad)": by_torch_func(instance)}
    if type(instance.model.module) is torch.nn.Linear:
        peers["closed form"] = closed_form(instance)

    def own_sums() -> torch.Tensor:
        return instance.clipped_gradients(executor.models(state), 0, CLIP_NORM, "record")

    def own_noise() -> Any:
        steps[0] = (steps[0] + 1) % algorithm.num_steps
        return stream.step(steps[0])

    works = {"mfdl": lambda: executor.step(0, state, own_sums(), own_noise())}
    works |= {"mfdl, gradients": own_sums, "mfdl, noise": own_noise}
    for peer, sums in peers.items():
        assert torch.allclose(sums(models), own_sums(), rtol=1e-4, atol=1e-6), f"{peer} gives other sums"

        def by_hand(sums: Sums = sums) -> Any:
            return W @ (
                models - RATE * (sums(models) + STD * torch.from_numpy(normals.standard_normal((nodes, d))).float())
            )

        works |= {peer: by_hand, f"{peer}, gradients": lambda sums=sums: sums(models)}
    small = nodes * instance.features.shape[2] * d < 10**7
    times = in_turn(works) if small else in_turn(works, repeats=3, calls=1)
    ratios = {peer: times["mfdl"] / times[peer] for peer in peers}
    ratios |= {f"{peer}, gradients": times["mfdl, gradients"] / times[f"{peer}, gradients"] for peer in peers}
    sizes = {"nodes": nodes, "records": instance.features.shape[2], "dimension": d}
    report("step of nodes", what=name, **sizes, cpu_seconds=times, ratios=ratios)


def executor_alone(dim: int, nodes: int = 100) -> None:
    """Messages and gossip of one step."""
    algorithm = dsgd(nodes, mfdl.EveryStep(STEPS)).algorithm
    W = torch.tensor(algorithm.dynamics.gossip.dense(), dtype=torch.float32)
    x, g, executor = torch.randn(nodes, dim), torch.randn(nodes, dim), Executor(algorithm)
    noise = np.random.default_rng(0).standard_normal((nodes, dim))

    def by_hand() -> torch.Tensor:
        return W @ (x - RATE * (g + torch.from_numpy(noise).float()))

    assert torch.allclose(executor.step(0, x, g, noise)[1], by_hand(), atol=1e-5)
    times = in_turn({"mfdl": lambda: executor.step(0, x, g, noise), "by hand": by_hand})
    report("executor", nodes=nodes, dimension=dim, cpu_seconds=times, ratio=times["mfdl"] / times["by hand"])


def one_node(features: int, records: int) -> None:
    """A linear model of ten classes."""
    try:
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer
    except ImportError:
        leave_out("one node", "no Opacus; pip install opacus")
        return
    x, y = torch.randn(records, features), torch.randint(0, 10, (records,))
    own, other = torch.nn.Linear(features, 10), GradSampleModule(torch.nn.Linear(features, 10))
    given = {"node": 0, "keys": NoiseKey.from_entropy(), "loss": cross_entropy, "batch_size": records}
    mechanism = dsgd(4, mfdl.EveryStep(1000))
    node = mfdl.PrivateNode(torch.optim.SGD(own.parameters(), lr=RATE), own, mechanism, **given)
    options = {"noise_multiplier": STD, "max_grad_norm": CLIP_NORM, "expected_batch_size": records}
    optimizer = DPOptimizer(torch.optim.SGD(other.parameters(), lr=RATE), **options)

    def peer_step() -> None:
        optimizer.zero_grad()
        cross_entropy(other(x), y).backward()
        optimizer.step()

    times = in_turn({"mfdl": lambda: node.step(x, y), "Opacus": peer_step})
    ratio = times["mfdl"] / times["Opacus"]
    report("one node", features=features, records=records, cpu_seconds=times, ratio=ratio)


def secret_noise(nodes: int = 10_000, dim: int = 10, steps: int = 300) -> None:
    """Step after step, which the cipher makes ahead."""
    root = NoiseKey(bytes(range(32)))
    columns = ColumnNormals([root.derive(u) for u in range(nodes)], np.zeros(nodes, dtype=np.int64))
    alone = ColumnNormals([root.derive(1)], [0])
    assert all((columns.step(t, dim)[1] == alone.step(t, dim)[0]).all() for t in range(9, 12))
    normals, at = np.random.Generator(np.random.Philox(0)), iter(range(12, 10**9))
    works = {
        "mfdl": lambda: columns.step(next(at), dim),
        "one call of Philox": lambda: normals.standard_normal((nodes, dim)),
    }
    times = in_turn(works, repeats=3, calls=steps)
    ratio = times["mfdl"] / times["one call of Philox"]
    report("noise of secret keys", nodes=nodes, dimension=dim, cpu_seconds=times, ratio=ratio)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    steps_of_nodes("softmax", mfdl.tasks.digits(100), 100, 4)
    steps_of_nodes("network", mfdl.tasks.digits(100, model="mlp"), 100, 4)
    steps_of_nodes("images", images(8, 65), 8, 1)
    for dim in (650, 7850):
        executor_alone(dim)
    for features, records in SIZES:
        one_node(features, records)
    secret_noise()


if __name__ == "__main__":
    main()

"""All nodes at once against the plain loop over nodes, on the same graph, model and batches; node-steps per second.

And the noise of 10,000 nodes in one pass beside one call of the library's generator for each; CPU seconds per node.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from _measure import report, spread

import mfdl
from mfdl.training.keys import ColumnNormals, NoiseKey
from mfdl.training.tasks.instance import TaskInstance


def peer(instance: TaskInstance, W: torch.Tensor, steps: int, rate: float, clip: float, std: float) -> float:
    """Node-steps per second of one autograd call per record, one optimiser step per node."""
    models = instance.initial_parameters.clone()
    n = len(models)
    began = time.perf_counter()
    for t in range(steps):
        sums = torch.zeros_like(models)
        for u in range(n):
            batch = t % instance.period
            for record in torch.nonzero(instance.mask[u, batch]).ravel():
                row = models[u : u + 1].clone().requires_grad_(True)
                output = instance.model.outputs(row, instance.features[u, batch, record][None])[0, 0]
                (gradient,) = torch.autograd.grad(instance.task.loss(output, instance.targets[u, batch, record]), row)
                sums[u] += gradient[0] * min(1.0, clip / float(gradient.norm()))
        noise = std * torch.randn_like(models)
        models = W @ (models - rate * (sums + noise) / instance.public_batch_sizes[:, None].float())
    return n * steps / (time.perf_counter() - began)


def noise(nodes: int, dim: int) -> None:
    """One step of noise, together and row by row."""
    keys = [NoiseKey.from_seed(u) for u in range(nodes)]
    together = ColumnNormals(keys, np.zeros(nodes, dtype=np.int64))
    alone = [ColumnNormals([key], np.zeros(1, dtype=np.int64)).step(0, dim) for key in keys[:500]]
    assert (together.step(0, dim)[:500] == np.concatenate(alone)).all()
    philox, out = np.random.Philox(key=0), np.empty(dim)
    draw, state = np.random.Generator(philox).standard_normal, philox.state

    def peer_step() -> None:
        for _ in range(nodes):
            philox.state = state
            draw(out=out)

    def cpu(work: Callable[[], object]) -> float:
        began = time.process_time()
        for _ in range(5):
            work()
        return (time.process_time() - began) / 5 / nodes

    ours, other = cpu(lambda: together.step(1, dim)), cpu(peer_step)
    report("noise", nodes=nodes, dim=dim, mfdl=ours, call_for_each_node=other, ratio=other / ours)


def main() -> None:
    torch.set_num_threads(1)
    graph = mfdl.graphs.load("erdos-renyi:n=60,p=0.2,seed=0")
    gossip = mfdl.gossip.metropolis_hastings(graph)
    participation = mfdl.Cyclic(epochs=20, period=4)
    task = mfdl.tasks.digits(graph)
    algorithm = mfdl.algorithms.mafalda(mfdl.Dynamics(gossip, learning_rate=0.5), participation)
    mechanism = mfdl.calibrate(algorithm, mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=1.0), mu=2.0)
    ours = sorted(mfdl.replay(mechanism, task, seeds=[s]).node_steps_per_second for s in range(5))
    instance = task.instance(0, 4)
    W = torch.as_tensor(gossip.dense(), dtype=torch.float32)
    other = sorted(peer(instance, W, 4, 0.5, 1.0, mechanism.noise_std) for _ in range(3))
    report(
        "executor",
        nodes=60,
        mfdl=ours,
        loop_over_nodes=other,
        own_spread=spread(ours),
        loop_over_nodes_spread=spread(other),
        ratio=ours[2] / other[1],
    )


if __name__ == "__main__":
    main()

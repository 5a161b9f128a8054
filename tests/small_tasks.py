"""Small learning problems for tests, and the slow ways to their gradients: one record at a time through autograd."""

from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from mfdl import NoiseKey, PrivateNode
from mfdl.training import seed_replay, tasks
from mfdl.training.clipping import Automatic
from mfdl.training.executor import Executor
from mfdl.training.tasks import record_clipping

torch.set_num_threads(1)  # workers of the test run share the cores; spinning threads cost seconds


def mlp(inputs: int = 3, hidden: int = 4, outputs: int = 1) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))


def squared(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.squeeze() - target).square()


def regression(num_records=40, num_nodes=4, *, build=mlp, loss=squared, data_seed=0, name="small", **changes):
    """Records of 3 numbers with a number to predict; `changes` are of the arguments of `from_module`."""
    rng = np.random.default_rng(data_seed)
    given = {
        "kind": "regression", "build_module": build, "loss": loss, "features": rng.standard_normal((num_records, 3)),
        "targets": rng.standard_normal(num_records), "test_features": rng.standard_normal((11, 3)),
        "test_targets": rng.standard_normal(11),
    }  # fmt: skip
    return tasks.from_module(name, num_nodes, **(given | changes))


def classes(num_records=60, num_nodes=4, num_classes=3, **changes):
    """Records of 3 numbers with one of a few classes, in turn."""
    given = {"kind": "classification", "loss": nn.functional.cross_entropy}
    given |= {"targets": np.arange(num_records) % num_classes, "test_targets": np.arange(11) % num_classes}
    return regression(num_records, num_nodes, build=lambda: nn.Linear(3, num_classes), **(given | changes))


def some_models(instance, seed=1, scale=0.3):
    """Models near the first ones, another one at every node."""
    noise = torch.randn(instance.initial_parameters.shape, generator=torch.Generator().manual_seed(seed))
    return instance.initial_parameters + scale * noise.to(instance.initial_parameters)


def module_at(task, row: torch.Tensor) -> nn.Module:
    module = task.build_module().to(row.dtype)
    with torch.no_grad():
        nn.utils.vector_to_parameters(row.clone(), [p for p in module.parameters() if p.requires_grad])
    return module


def slow_gradients(instance, models, step, node):
    """Oracle: the gradient of every record that the node feeds at a step, from the task's own arrays."""
    task, row = instance.task, models[node]
    module = module_at(task, row)
    trainable = [p for p in module.parameters() if p.requires_grad]
    batch = node, step % instance.period
    for record in instance.record_index[batch][instance.mask[batch]].tolist():
        x, y = (torch.tensor(array[record]) for array in (task.features, task.targets))
        x, y = (value.to(row.dtype) if value.is_floating_point() else value for value in (x, y))
        gradients = torch.autograd.grad(task.loss(module(x[None])[0], y), trainable, materialize_grads=True)
        yield torch.cat([gradient.reshape(-1) for gradient in gradients])


def clipped(gradient: torch.Tensor, clip_norm: float | Automatic) -> torch.Tensor:
    """Scaled to the norm, or normalised; zero where it is not finite."""
    if not torch.isfinite(gradient).all():
        return torch.zeros_like(gradient)
    norm = gradient.double().norm().item()
    if isinstance(clip_norm, Automatic):
        return gradient * (clip_norm.norm / (norm + clip_norm.gamma))
    return gradient * min(1.0, clip_norm / max(norm, 1e-300))


def slow_sums(instance, models, step, clip_norm):
    """Oracle of `clipped_gradient_sums`."""
    sums = torch.zeros_like(models)
    for u in range(len(models)):
        for gradient in slow_gradients(instance, models, step, u):
            sums[u] += clipped(gradient, clip_norm)
    return sums


def row_of(module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(p for p in module.parameters() if p.requires_grad).detach().clone()


def node_of(module, mechanism, *, optimizer=torch.optim.SGD, lr=1.0, **options):
    """A node of a simulation, at which a gradient moves the module by its length."""
    trained = [p for p in module.parameters() if p.requires_grad]
    given = {"node": 0, "keys": NoiseKey.from_seed(0), "loss": squared, "batch_size": 1, "publish": False}
    return PrivateNode(optimizer(trained, lr=lr), module, mechanism, **(given | options))


def injecting(patch, noise):
    """Makes runs inject these numbers, (steps, nodes, d)."""
    patch.setattr(seed_replay, "noise_stream", lambda *_, slots: SimpleNamespace(step=noise.__getitem__))


def largest_gradients(patch):
    """A list of the largest norm of what noise is added to in each step of the runs that follow."""
    norms, executed = [], Executor.step

    def step(executor, t, state, gradients, noise, rule=None):
        norms.append(gradients.double().norm(dim=1).max())
        return executed(executor, t, state, gradients, noise, rule)

    patch.setattr(Executor, "step", step)
    return norms


def factoring(patch):
    """Makes small weights factored too, whatever they cost."""
    patch.setattr(record_clipping, "FACTORED_FROM", -(2**30))
    patch.setattr(record_clipping.Layer, "is_cheaper", True)


def slow_means(instance, models, step, clip_norm):
    """Oracle of `clipped_gradient_means`."""
    rows = torch.zeros_like(models)
    for u in range(len(models)):
        gradients = list(slow_gradients(instance, models, step, u))
        if gradients:
            rows[u] = clipped(torch.stack(gradients).mean(0), clip_norm)
    return rows

"""The same work on the CPU and on a CUDA device: training, clipped sums, factorization, one rank over NCCL.

Each row checks first that both devices give the same numbers, then has the seconds of both and their ratio. Without a
CUDA device it prints one row that says so. Training and clipping take random records of the shape of MNIST; the noise
of every run is made on the CPU, by counters, and is part of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _measure import leave_out, report, seconds

import mfdl
from mfdl.factorization import problem
from mfdl.training import distributed
from mfdl_solvers import Stopping, autodiff, dense_encoder

NODES, BATCH, CLASSES = 100, 32, 10
SIZES = ((256, ("dense", "autodiff")), (1024, ("dense",)), (2048, ("dense",)))  # steps to factorize, and by which
STEPS = {"linear": 20, "mlp": 20, "convolutional": 4}


def linear() -> torch.nn.Module:
    """Multinomial logistic regression, 7,850 parameters."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, CLASSES))


def mlp() -> torch.nn.Module:
    """One hidden layer, 79,510 parameters: ghost clipping."""
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(784, 100), torch.nn.ReLU(), torch.nn.Linear(100, CLASSES)
    )


def convolutional() -> torch.nn.Module:
    """Two convolutions with group normalisation, 36,250 parameters: per-record gradients of torch.func."""
    return torch.nn.Sequential(
        *(torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
        *(torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.GroupNorm(4, 32), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
        *(torch.nn.Flatten(), torch.nn.Linear(1568, CLASSES)),
    )


MODULES: dict[str, Callable[[], torch.nn.Module]] = {"linear": linear, "mlp": mlp, "convolutional": convolutional}


def task_of(name: str) -> mfdl.tasks.Task:
    """Random images and labels, BATCH x 4 records a node."""
    drawn = np.random.default_rng(0)
    x, y = drawn.normal(size=(NODES * BATCH * 4, 1, 28, 28)), drawn.integers(0, CLASSES, NODES * BATCH * 4)
    x = x.astype(np.float32)
    records = {"features": x, "targets": y, "test_features": x[:1000], "test_targets": y[:1000]}
    return mfdl.tasks.from_module(
        name,
        NODES,
        kind="classification",
        build_module=MODULES[name],
        loss=torch.nn.functional.cross_entropy,
        **records,
    )


def mechanism(steps: int) -> mfdl.Mechanism:
    """MAFALDA on a torus, epochs of four batches."""
    gossip = mfdl.gossip.metropolis_hastings(mfdl.graphs.load("torus:rows=10,cols=10"))
    algorithm = mfdl.algorithms.mafalda(mfdl.Dynamics(gossip, 0.1), mfdl.Cyclic(epochs=steps // 4, period=4))
    return mfdl.calibrate(algorithm, mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=1.0), mu=1.0)


def row(name: str, on: dict[str, Callable[[], Any]], **facts: Any) -> None:
    """Seconds on each device, and how many times faster CUDA is."""
    times = {device: seconds(work, repeats=3, warm_up=0) for device, work in on.items()}
    report("on_cuda", what=name, **facts, **times, ratio=times["cpu"]["median"] / times["cuda"]["median"])


def training() -> None:
    """Whole runs, and the clipped sums of one step alone."""
    for name, steps in STEPS.items():
        private, task = mechanism(steps), task_of(name)
        for dtype in (torch.float32, torch.float64)[: 1 if name == "convolutional" else 2]:

            def run(device: str, private: Any = private, task: Any = task, dtype: Any = dtype) -> mfdl.Run:
                return mfdl.replay(
                    private, task, seeds=[0], eval_every=1000, dtype=dtype, device=device, progress=False
                )

            pair = [run(device).seeds[0].models for device in ("cpu", "cuda")]
            np.testing.assert_allclose(*pair, atol=2e-3 if dtype == torch.float32 else 1e-8)
            on = {device: lambda device=device, run=run: run(device) for device in ("cpu", "cuda")}
            row("replay", on, module=name, dtype=str(dtype), nodes=NODES, steps=steps, batch=BATCH)
        instances = {device: task.instance(0, 4, dtype=torch.float32, device=device) for device in ("cpu", "cuda")}
        sums = {
            device: lambda it=it: it.clipped_gradient_sums(it.initial_parameters, 0, 1.0).sum().item()
            for device, it in instances.items()
        }
        row("clipped sums", sums, module=name, nodes=NODES, batch=BATCH)


def factorization() -> None:
    """The dense solver and the autodiff one on the problem of MAFALDA."""
    gossip = mfdl.gossip.metropolis_hastings(mfdl.graphs.load("florentine"))
    for steps, solvers in SIZES:
        posed = problem(mfdl.Dynamics(gossip, 1.0), mfdl.Cyclic(epochs=16, period=steps // 16))
        for solver in solvers:
            module = dense_encoder if solver == "dense" else autodiff
            stopping = Stopping(1e-4, 2000)

            def solve(device: str, module: Any = module, posed: Any = posed, stopping: Any = stopping) -> Any:
                where = None if module is dense_encoder and device == "cpu" else device
                return module.solve(posed, stopping=stopping, device=where)

            cpu, cuda = solve("cpu"), solve("cuda")
            assert abs(cpu.objective / cuda.objective - 1) < 3e-4, "the devices disagree"
            on = {device: lambda device=device, solve=solve: solve(device) for device in ("cpu", "cuda")}
            row("factorization", on, solver=solver, steps=steps, gap={"cpu": cpu.gap, "cuda": cuda.gap})


def ranks() -> None:
    """A group of one rank over NCCL beside the same run without a group."""
    private, task = mechanism(STEPS["linear"]), task_of("linear")

    def run() -> np.ndarray:
        return mfdl.replay(private, task, seeds=[0], eval_every=1000, progress=False).seeds[0].models

    alone, alone_seconds = run(), seconds(run, repeats=3)
    group = distributed.joined(0, 1, torch.distributed.HashStore())
    with distributed.leading(group):
        np.testing.assert_allclose(run(), alone, atol=1e-4)
        facts = {"ranks": 1, "device": str(group.device), "backend": torch.distributed.get_backend()}
        report("on_cuda", what="ranks", **facts, without_group=alone_seconds, group=seconds(run, repeats=3))
    torch.distributed.destroy_process_group()
    count = torch.cuda.device_count()
    if count < 2:
        leave_out("on_cuda", f"several ranks over NCCL need as many CUDA devices, and there is {count}")


def main() -> None:
    if not torch.cuda.is_available():
        leave_out("on_cuda", "no CUDA device")
        return
    report("on_cuda", what="device", gpu=torch.cuda.get_device_name())
    for part in (training, factorization, ranks):
        part()


if __name__ == "__main__":
    main()

"""Ghost clipping against per-record gradients of torch.func, on the same models and batches of mnist-mlp, one thread.

Needs MNIST in the data folder (`mfdl data fetch mnist`, or MFDL_DATA). Each way runs in a process of its own, for its
peak memory; rows give node-steps per second of the clipped sums alone and of a whole run with noise and gossip.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch
from _measure import leave_out, peak_megabytes, report, seconds

import mfdl
from mfdl.training.tasks.record_clipping import RecordClipping

NODES, BATCH, CLIP_NORM, STEPS = 16, 65, 1.0, 24
WAYS: dict[str, Callable[..., RecordClipping]] = {
    "ghost": RecordClipping.of,
    "torch.func": lambda model, _record, _target: RecordClipping(model, {}),
}


def measured(way: str) -> dict[str, Any]:
    """Speeds and memory of one way, and a sum by which the ways are held against each other."""
    torch.set_num_threads(1)
    RecordClipping.of = WAYS[way]  # type: ignore[method-assign]
    task = mfdl.tasks.load("mnist-mlp", NODES)
    period = max(1, len(task.targets) // (NODES * BATCH))
    instance = task.instance(0, period)
    models = instance.initial_parameters
    before = peak_megabytes()
    times = seconds(lambda: instance.clipped_gradient_sums(models, 0, CLIP_NORM), repeats=5 if way == "ghost" else 3)
    peak = peak_megabytes() - before
    gossip = mfdl.gossip.metropolis_hastings(mfdl.graphs.load(f"ring:n={NODES}"))
    epochs = -(-STEPS // period)
    algorithm = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(gossip, learning_rate=0.1), mfdl.Cyclic(epochs, period))
    mechanism = mfdl.calibrate(
        algorithm, mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=CLIP_NORM), noise_std=0.1
    )
    steps = STEPS if way == "ghost" else 3
    run = mfdl.replay(mechanism, task, seeds=[0], stop_after=steps, eval_every=10**6, progress=False, device="cpu")
    return {
        "batch": instance.features.shape[2],
        "dimension": instance.dimension,
        "sums": NODES / times["median"],
        "seconds": times,
        "run": run.node_steps_per_second,
        "peak_megabytes": peak,
        "norm": float(instance.clipped_gradient_sums(models, 0, CLIP_NORM).double().norm()),
    }


def main() -> None:
    pool = multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1)
    with pool:
        try:
            ghost, peer = (pool.apply(measured, [way]) for way in WAYS)
        except mfdl.InvalidInput as missing:  # no MNIST
            leave_out("ghost", str(missing))
            return
    if abs(ghost["norm"] / peer["norm"] - 1) > 1e-6:
        raise SystemExit(f"the sums differ: {ghost['norm']} and {peer['norm']}")
    facts = {"nodes": NODES, "batch": ghost["batch"], "dimension": ghost["dimension"]}
    for work in ("sums", "run"):
        row = {"node_steps_per_second": ghost[work], "peer": peer[work], "ratio": ghost[work] / peer[work]}
        timed = {"sums_seconds": ghost["seconds"], "peer_sums_seconds": peer["seconds"]} if work == "sums" else {}
        report("ghost", what=work, **facts, **row, **timed, peak_megabytes=ghost["peak_megabytes"])
    report("ghost", what="peak megabytes", **facts, mfdl=ghost["peak_megabytes"], peer=peer["peak_megabytes"])


if __name__ == "__main__":
    main()

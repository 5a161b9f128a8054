"""opake's answer to a question in JSON, with its CPU seconds: a process of its own, which imports nothing of mfdl.

It runs under the interpreter that `MFDL_BENCH_OPAKE` names, one that has opake. What is timed is opake's public API;
answers are printed as JSON, so that the other process can check and compare them.
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    return work(), time.process_time() - began


def median_seconds(work: Callable[[], Any], repeats: int) -> float:
    work()
    return statistics.median(timed(work)[1] for _ in range(repeats))


def strategy_of(name: str, options: dict[str, Any]) -> Any:
    import opake.dpftrl

    return getattr(opake.dpftrl, f"{name}_strategy")(**options)


def encoders(question: dict[str, Any]) -> list[dict[str, Any]]:
    """State, coefficients and stated sensitivity of each strategy, and seconds of search and sensitivity."""
    from opake.serialization import state_dict

    where, answers = question["participation"], []
    for name, options in question["strategies"]:
        strategy = strategy_of(name, options)
        coefficients, searched = timed(lambda strategy=strategy: strategy.coefficients(**where))
        sensitivity = strategy.sensitivity(**where)
        answers.append(
            {
                "state": dict(state_dict(strategy)),
                "coefficients": coefficients.tolist() if name in ("band_mf", "blt") else None,
                "searched": searched,
                "sensitivity": sensitivity,
                "seconds": median_seconds(lambda strategy=strategy: strategy.sensitivity(**where), question["repeats"]),
            }
        )
    return answers


def bins(question: dict[str, Any]) -> list[dict[str, Any]]:
    """epsilon of balls-in-bins, the larger of both directions."""
    import opake.accounting
    import opake.dpftrl.accounting as accounting

    answers = []
    for name, options, noise, resolution in question["cases"]:
        opake.accounting.set_discretization(mc_resolution=resolution)
        recipe = accounting.mf_gaussian(noise, strategy_of(name, options))
        process = accounting.balls_in_bins(recipe, num_bins=question["bins"], n_steps=question["steps"])
        epsilon, seconds = timed(lambda process=process: process.epsilon_at(question["delta"]))
        samples = opake.accounting.get_discretization().resolved_num_mc_samples
        answers.append({"epsilon": epsilon, "seconds": seconds, "samples": samples})
    return answers


def noise(question: dict[str, Any]) -> list[dict[str, Any]]:
    """Seconds of one step of noise, the mean over all; and the variance of each, to be checked."""
    import torch
    from opake.dpftrl import mf_gaussian_noise
    from opake.random import key
    from opake.types import clipped

    torch.set_num_threads(1)
    answers = []
    for name, options, dtype in question["cases"]:
        zeros = torch.zeros(question["dim"], dtype=getattr(torch, dtype))
        noised, state = mf_gaussian_noise(
            zeros,
            strategy_of(name, options),
            n_steps=question["steps"],
            noise_multiplier=1.0,
            key=key(0),
            compute_dtype=zeros.dtype,
        )
        times, squares = [], []
        for _ in range(question["steps"]):
            (row, state), seconds = timed(functools.partial(noised, clipped(zeros, max_norm=1.0), state))
            times.append(seconds)
            squares.append(float(row.pytree.double().pow(2).mean()))
        answers.append({"seconds": statistics.mean(times), "variances": squares})
    return answers


def gradients(question: dict[str, Any]) -> list[dict[str, Any]]:
    """Seconds of a sum of clipped gradients of one batch, and the norm of that sum."""
    import torch
    from opake.dpsgd.clipping import clipped_grad

    torch.set_num_threads(1)
    answers = []
    for widths, batch, part in question["cases"]:
        numbers = np.random.default_rng(0)
        weights = [
            torch.tensor(numbers.normal(0, i**-0.5, (o, i)), dtype=torch.float32) for i, o in itertools.pairwise(widths)
        ]
        x = torch.tensor(numbers.normal(size=(batch, widths[0])), dtype=torch.float32)
        y = torch.tensor(numbers.integers(0, widths[-1], batch))

        def loss(weights: Any, record: Any, target: Any) -> Any:
            for matrix in weights[:-1]:
                record = torch.relu(matrix @ record)
            return torch.nn.functional.cross_entropy(weights[-1] @ record, target)

        summed, state = clipped_grad(
            loss, clipping_norm=question["clip_norm"], batch_argnums=(1, 2), microbatch_size=part
        )
        total, _ = summed(weights, x, y, state=state)
        seconds = median_seconds(functools.partial(summed, weights, x, y, state=state), question["repeats"])
        norm = float(torch.cat([part.double().ravel() for part in total.pytree]).norm())
        answers.append({"seconds": seconds, "norm": norm})
    return answers


if __name__ == "__main__":
    answered = {"encoders": encoders, "bins": bins, "noise": noise, "gradients": gradients}[sys.argv[1]](
        json.loads(sys.argv[2])
    )
    versions = {name: importlib.metadata.version(name) for name in ("opake", "torch", "numpy")}
    versions["python"] = ".".join(map(str, sys.version_info[:3]))
    print(json.dumps({"answers": answered, "versions": versions}))

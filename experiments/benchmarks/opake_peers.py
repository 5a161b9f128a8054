"""Beside opake, one run after the other on one machine: encoders, sensitivities, balls-in-bins, noise, clipped sums.

opake answers in a process of its own (`_opake.py`), under the interpreter that MFDL_BENCH_OPAKE names; one thread each,
CPU seconds. Ratios are opake over mfdl: of seconds, of epsilon, and of the total squared error of prefix sums at unit
sensitivity, both encoders by the same arithmetic and by the sensitivity that mfdl accounts.

    python experiments/benchmarks/opake_peers.py [encoders] [bins] [noise] [gradients]
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import leave_out, report, seconds
from dense_peers import measured

import mfdl
from mfdl.factorization import from_opake
from mfdl.factorization.encoders import Encoder
from mfdl.factorization.long_runs import best_of_form
from mfdl.sensitivity.encoder_bounds import structured_bound
from mfdl.training.keys import NoiseKey
from mfdl.training.tasks.modules import PerRecordModel
from mfdl.training.tasks.record_clipping import RecordClipping

INTERPRETER = os.environ.get("MFDL_BENCH_OPAKE", "")
MISSING = "MFDL_BENCH_OPAKE names no interpreter that has opake; python tests/beside_peers.py FOLDER installs it"
DELTA, REPEATS = 1e-5, 7
ONE_NODE = mfdl.Dynamics(mfdl.gossip.from_array([[1.0]]), 1.0)
STEPS, USES, GAP = 512, 8, 64
CYCLIC = mfdl.Cyclic(USES, GAP)
BSR = ("bsr", {"bandwidth": 16, "alpha": 1.0, "beta": 0.0})
BISR = ("bisr", {"bandwidth": 16, "normalized": False})
LAMBDA = ("lambda_cgd", {"lambda_": 0.8, "normalized": False})
ENCODERS: list[tuple[tuple[str, dict[str, Any]], dict[str, Any] | None]] = [
    (("bsr", {"bandwidth": 64, "alpha": 1.0, "beta": 0.0}), None),
    (BISR, None),
    (("bisr", {"bandwidth": 16}), {"form": "inverse", "bandwidth": 16}),
    (("band_mf", {"bands": 64}), {"form": "toeplitz", "bandwidth": 64}),
    (("blt", {"max_buffers": 4}), {"form": "buffered", "buffers": 4}),
]
"""opake's strategy, and what mfdl searches in its place; None: the same closed form."""


def opake(question: str, **details: Any) -> dict[str, Any] | None:
    """Its answers and versions; None where it cannot be asked."""
    command = [INTERPRETER, str(Path(__file__).with_name("_opake.py")), question, json.dumps(details)]
    os.environ["RAYON_NUM_THREADS"] = "1"
    return measured(command, 1)


def squared_error(encoder: Encoder) -> tuple[float, float]:
    """Total squared error of prefix sums at unit sensitivity, and the largest of one step."""
    rows = ((np.tri(STEPS) @ encoder.solve(np.eye(STEPS))) ** 2).sum(axis=1)
    squared = structured_bound(encoder, CYCLIC).upper
    return float(rows.sum() * squared), float(rows.max() * squared)


def timed(work: Any) -> tuple[Any, float]:
    began = time.process_time()
    return work(), time.process_time() - began


def cpu_seconds(work: Any) -> float:
    return seconds(work, repeats=REPEATS, clock=time.process_time)["median"]


def encoders() -> None:
    where = {"n_steps": STEPS, "min_sep": GAP, "max_participations": USES}
    peer = opake("encoders", participation=where, strategies=[each for each, _ in ENCODERS], repeats=REPEATS)
    assert peer is not None
    for (strategy, form), theirs in zip(ENCODERS, peer["answers"], strict=True):
        read = from_opake(theirs["state"], num_steps=STEPS, coefficients=theirs["coefficients"])
        ours, searched = (
            (read, 0.0) if form is None else timed(functools.partial(best_of_form, ONE_NODE, CYCLIC, **form))
        )
        (total, largest), (their_total, their_largest) = squared_error(ours), squared_error(read)
        accounted, times = (
            structured_bound(read, CYCLIC),
            cpu_seconds(functools.partial(structured_bound, read, CYCLIC)),
        )
        report(
            "opake-encoders",
            strategy=strategy,
            form=form,
            steps=STEPS,
            uses=USES,
            gap=GAP,
            squared_error=total,
            ratio=their_total / total,
            largest_step_ratio=their_largest / largest,
            search_seconds={"mfdl": searched, "opake": theirs["searched"]},
            sensitivity=accounted.upper**0.5,
            exact=accounted.exact,
            sensitivity_ratio=theirs["sensitivity"] / accounted.upper**0.5,
            sensitivity_seconds={"mfdl": times, "opake": theirs["seconds"]},
            opake=peer["versions"],
        )


def bins() -> None:
    """Of 16 bins over 10 epochs, noise 1.2 times the sensitivity of a record whose bin is public."""
    epochs, count = 10, 16
    scheme = mfdl.BallsInBins(epochs, count)
    privacy = mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=1.0)
    for (name, options), resolutions in ((BSR, (1e-5, 1e-6)), (("identity", {}), (1e-5,))):
        encoder = from_opake({"type": f"{name.title()}Strategy", **options}, num_steps=scheme.num_steps)
        noise = 1.2 * structured_bound(encoder, scheme.public).upper ** 0.5
        account = functools.partial(mfdl.account, mfdl.algorithms.mf_dsgd(ONE_NODE, scheme, encoder), noise_std=noise)
        privacies = [dataclasses.replace(privacy, method=method) for method in ("exact", "monte-carlo")]
        ours = {
            each.method: timed(lambda each=each, account=account: account(each).epsilon(DELTA)) for each in privacies
        }
        for resolution in resolutions:
            cases = [[name, options, noise, resolution]]
            peer = opake("bins", bins=count, steps=scheme.num_steps, delta=DELTA, cases=cases)
            assert peer is not None
            (theirs,) = peer["answers"]
            report(
                "opake-bins",
                strategy=[name, options],
                mc_resolution=resolution,
                epsilon={"opake": theirs["epsilon"], **{method: epsilon for method, (epsilon, _) in ours.items()}},
                ratio=theirs["epsilon"] / ours["exact"][0],
                seconds={"opake": theirs["seconds"], **{method: taken for method, (_, taken) in ours.items()}},
                seconds_ratio=theirs["seconds"] / ours["exact"][1],
                opake=peer["versions"],
            )


def noise() -> None:
    """Seconds of one step, the mean over all; both have the variances of C^-1."""
    steps, dim = 20, 10**6
    for (name, options), dtype in itertools.product((BSR, BISR, LAMBDA), ("float64", "float32")):
        peer = opake("noise", dim=dim, steps=steps, cases=[[name, options, dtype]])
        assert peer is not None
        (theirs,) = peer["answers"]
        kind = "".join(part.title() for part in name.split("_"))
        encoder = from_opake({"type": f"{kind}Strategy", **options}, num_steps=steps)
        stream = mfdl.training.streams.noise_stream(
            mfdl.noise.CausalNoise(encoder, num_steps=steps, num_nodes=1), 1.0, NoiseKey.from_seed(0), dim
        )
        rows = [timed(functools.partial(stream.step, step)) for step in range(steps)]
        for variances in ([float((row**2).mean()) for row, _ in rows], theirs["variances"]):
            # at noise multiplier 1 and clipping norm 1 the base noise of both has variance 1
            assert np.allclose(variances, encoder.noise_variances, rtol=0.02), (name, variances)
        taken = statistics.mean(seconds for _, seconds in rows)
        report(
            "opake-noise",
            strategy=[name, options],
            coordinates=dim,
            dtype={"mfdl": "float64", "opake": dtype},
            seconds={"mfdl": taken, "opake": theirs["seconds"]},
            seconds_ratio=theirs["seconds"] / taken,
            opake=peer["versions"],
        )


def gradients() -> None:
    """Of one batch of a perceptron without biases, float32; in opake all records at once, or 16; one sum for all."""
    clip_norm = 1.0
    torch.set_num_threads(1)
    for widths, batch in (((784, 100, 10), 64), ((512, 512, 512, 10), 64), ((512, 512, 512, 10), 256)):
        numbers = np.random.default_rng(0)
        layers: list[torch.nn.Module] = []
        for i, o in itertools.pairwise(widths):
            layer = torch.nn.Linear(i, o, bias=False)
            layer.weight.data = torch.tensor(numbers.normal(0, i**-0.5, (o, i)), dtype=torch.float32)
            layers += [layer, torch.nn.ReLU()]
        x = torch.tensor(numbers.normal(size=(1, batch, widths[0])), dtype=torch.float32)
        y = torch.tensor(numbers.integers(0, widths[-1], (1, batch)))
        model = PerRecordModel(torch.nn.Sequential(*layers[:-1]), torch.nn.functional.cross_entropy)
        way, present = RecordClipping.from_model(model, x[0, 0], y[0, 0]), torch.ones(1, batch, dtype=torch.bool)
        rows = model.initial_row()[None]
        ours = float(way.sums(rows, x, y, present, clip_norm).double().norm())
        times = cpu_seconds(functools.partial(way.sums, rows, x, y, present, clip_norm))
        peer = opake(
            "gradients", clip_norm=clip_norm, repeats=REPEATS, cases=[[widths, batch, None], [widths, batch, 16]]
        )
        assert peer is not None
        for theirs in peer["answers"]:
            assert abs(theirs["norm"] / ours - 1) < 1e-4, (theirs["norm"], ours)
        at_once, in_parts = (theirs["seconds"] for theirs in peer["answers"])
        report(
            "opake-gradients",
            widths=widths,
            batch=batch,
            seconds={"mfdl": times, "opake": at_once, "opake, 16 records at once": in_parts},
            seconds_ratio=min(at_once, in_parts) / times,
            opake=peer["versions"],
        )


def main(chosen: list[str]) -> None:
    parts = {"encoders": encoders, "bins": bins, "noise": noise, "gradients": gradients}
    if not INTERPRETER:
        leave_out("opake", MISSING)
        return
    for name in chosen or parts:
        parts[name]()


if __name__ == "__main__":
    main(sys.argv[1:])

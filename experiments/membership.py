"""Membership inference on released models, beside what a guarantee allows: success of an attack over epsilon.

The game: each of 32 slots holds one of two records of the digits data, chosen by a fair coin; this choice is
replace-one adjacency. Four nodes on a ring train softmax regression on the slots. The coins of all slots are drawn
anew for each of DRAWS data sets; on each, four seeds train together (`mfdl.replay`). A seed fixes data split and first
model, which the attacker knows; noise is that of the run. The attacker reads the final models of all nodes and decides
for each slot, by the likelihood ratio of the losses of both records under normal distributions that it fits to shadow
runs, which are all runs of other draws (LiRA, arXiv:2112.03570). Advantage: true minus false positive rate where the
ratio exceeds 1; TPR: true positive rate at a false positive rate of 1 %. Intervals: bootstrap over draws, 95 %.
The bounds are `advantage` and `true_positive_rate` of the guarantee, for all attacks on all messages.

    python experiments/membership.py [--out results/membership] [--draws 32] [--epsilons 1,4,16,64,256]

Each draw of each mechanism is a file in OUT/scores, named by the hash of mechanism, data, number of seeds and version:
the same command resumes where it was stopped, and with other settings trains anew.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import mfdl
from mfdl import files
from mfdl.algorithms import registry
from mfdl.mechanism import Mechanism
from mfdl.pictures.style import write_figure
from mfdl.privacy import gaussian
from mfdl.privacy.curves import Gaussian, PrivacyCurve
from mfdl.privacy.questions import short_hash
from mfdl.progress import reporter
from mfdl.training import tasks

Array = NDArray[np.float64]

NODES, SLOTS, SEEDS = 4, 32, 4
EPOCHS, PERIOD, RATE = 20, 2, 4.0
DELTA, FALSE_POSITIVES = 1e-5, 0.01
EPSILONS = (1.0, 4.0, 16.0, 64.0, 256.0)
RESAMPLES = 400

PUBLIC, SECRET = mfdl.Cyclic(EPOCHS, PERIOD), mfdl.BallsInBins(EPOCHS, PERIOD)
NO_NOISE = "no noise"
MECHANISMS: dict[str, tuple[str, mfdl.participation.Participation, mfdl.trust.TrustModel]] = {
    "dp-dsgd": ("dp-dsgd", PUBLIC, mfdl.trust.LDP()),
    "dp-dsgd, bins": ("dp-dsgd", SECRET, mfdl.trust.LDP()),
    "mafalda": ("mafalda", PUBLIC, mfdl.trust.LDP()),
    "decor": ("decor", PUBLIC, mfdl.trust.Eavesdropper()),
    "corn": ("corn", PUBLIC, mfdl.trust.Eavesdropper()),
}


# ---- the game --------------------------------------------------------------------------------------------------------


@functools.cache
def records() -> tuple[Array, NDArray[np.int64]]:
    """Features in [0, 1] and classes of both records of each slot and of the test, rows in a fixed random order."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    return digits.data[order] / 16, digits.target[order]


def coins(draw: int) -> NDArray[np.int64]:
    """Which record each slot holds, 0 or 1, shape (SLOTS,)."""
    return np.random.default_rng([1, draw]).integers(0, 2, SLOTS)


def linear() -> torch.nn.Module:
    return torch.nn.Linear(64, 10)


def task(draw: int) -> tasks.Task:
    """The data of one draw."""
    features, targets = records()
    members = np.arange(SLOTS) + SLOTS * coins(draw)
    return tasks.from_module(
        "membership",
        NODES,
        kind="classification",
        build_module=linear,
        loss=torch.nn.functional.cross_entropy,
        features=features[members].astype(np.float32),
        targets=targets[members],
        test_features=features[2 * SLOTS :].astype(np.float32),
        test_targets=targets[2 * SLOTS :],
        public_constants="none",
    )


@functools.cache
def mechanism(label: str, epsilon: float) -> Mechanism:
    """Calibrated; without noise for NO_NOISE."""
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(f"ring:n={NODES}"), RATE)
    settings: dict[str, Any] = {"adjacency": "replace-one", "clip_norm": 1.0}
    name, participation, trust = MECHANISMS.get(label, MECHANISMS["dp-dsgd"])
    algorithm = registry.build(name, dynamics, participation)
    if label == NO_NOISE:
        return mfdl.calibrate(algorithm, mfdl.Privacy(trust, **settings), noise_std=0.0)
    return mfdl.calibrate(algorithm, mfdl.Privacy(trust, **settings), epsilon=epsilon, delta=DELTA)


def confidences(module: torch.nn.Module, model: Array) -> Array:
    """log(p / (1 - p)) of the true class of every record of the slots under one model, shape (2 SLOTS,)."""
    features, targets = records()
    torch.nn.utils.vector_to_parameters(torch.tensor(model, dtype=torch.float32), module.parameters())
    with torch.no_grad():
        logits = module(torch.tensor(features[: 2 * SLOTS], dtype=torch.float32)).double().numpy()
    rows = np.arange(2 * SLOTS)
    true = logits[rows, targets[: 2 * SLOTS]].copy()
    logits[rows, targets[: 2 * SLOTS]] = -np.inf
    return np.asarray(true - np.logaddexp.reduce(logits, axis=1))


def trained(name: str, epsilon: float, draw: int) -> Array:
    """The mean over nodes of `confidences` in the released models, of each seed, shape (SEEDS, 2 SLOTS)."""
    settings: dict[str, Any] = {"seeds": range(SEEDS), "eval_every": 10**6, "device": "cpu", "progress": False}
    run = mfdl.replay(mechanism(name, epsilon), task(draw), **settings)
    module = linear()
    return np.array([np.mean([confidences(module, row) for row in each.models], axis=0) for each in run.seeds])


def identity(name: str, epsilon: float, draw: int) -> str:
    """Hash of what decides the numbers of `trained`."""
    content = mechanism(name, epsilon).content_hash, task(draw).content_hash
    return short_hash(*content, str(SEEDS), mfdl.__version__)


def stored(out: Path, name: str, epsilon: float, draw: int) -> Array:
    """`trained`, from its file if there is one of the same `identity`."""
    folder = out / "scores" / f"{name.replace(', ', '-').replace(' ', '-')}-{epsilon:g}"
    place = folder / f"{draw:04d}-{identity(name, epsilon, draw)}.json"
    if not place.exists():
        files.atomic_write_json(place, [list(row) for row in trained(name, epsilon, draw)])
    return np.array(json.loads(place.read_text()))


# ---- the attack ------------------------------------------------------------------------------------------------------


def _of_others(values: Array) -> Array:
    """The sum over all other draws, of the shape of `values`."""
    return values.sum(0, keepdims=True) - values


def attacked(seen: Array, coins_of_draws: NDArray[np.int64]) -> Array:
    """Log likelihood ratio for the record that was in the slot, shape (draws, SEEDS, SLOTS): > 0 is a right guess.

    Args: seen: `trained` of all draws, (draws, SEEDS, 2 SLOTS); coins_of_draws: (draws, SLOTS).
    """
    present = np.concatenate([coins_of_draws == 0, coins_of_draws == 1], axis=1)[:, None, :]  # (draws, 1, 2 SLOTS)
    means, spread, count = {}, np.zeros((len(seen), 1, seen.shape[2])), 0.0
    for inside in (True, False):
        weights = np.broadcast_to(present == inside, seen.shape).astype(float)
        number, total, squares = (_of_others(weights * seen**power) for power in (0, 1, 2))
        if number.min() < 2:
            raise SystemExit("a record has fewer than two shadow runs with it, or without; give more --draws.")
        means[inside] = total / number
        spread += (squares - number * means[inside] ** 2).sum(1, keepdims=True)
        count = count + (number - 1).sum(1, keepdims=True)
    variance = np.maximum(spread / count, 1e-12)
    ratios = (means[True] - means[False]) * (seen - (means[True] + means[False]) / 2) / variance
    first, second = np.split(ratios, 2, axis=2)
    return np.asarray(np.where(coins_of_draws[:, None, :] == 0, first - second, second - first))


@dataclasses.dataclass(frozen=True)
class Success:
    """What an attack reaches: an estimate and its interval. Attributes: value, low, high."""

    value: float
    low: float
    high: float


def advantage(ratios: Array) -> float:
    """True minus false positives where the likelihood ratio exceeds 1; the two records of a slot are exchangeable."""
    return float((ratios > 0).mean() - (ratios < 0).mean())


def true_positive_rate(ratios: Array) -> float:
    """At the threshold with a false positive rate of FALSE_POSITIVES."""
    threshold = np.quantile(-ratios, 1 - FALSE_POSITIVES, method="higher")
    return float((ratios > threshold).mean())


MEASURES = {"advantage": advantage, "tpr": true_positive_rate}


def success(ratios: Array, measure: str) -> Success:
    """A measure with its 95 % interval over draws."""
    rng, draws = np.random.default_rng(0), len(ratios)
    again = [MEASURES[measure](ratios[rng.integers(0, draws, draws)]) for _ in range(RESAMPLES)]
    low, high = np.quantile(again, [0.025, 0.975])
    return Success(MEASURES[measure](ratios), float(low), float(high))


def bounds(curve: PrivacyCurve) -> dict[str, float]:
    """What no attack exceeds."""
    return {"advantage": curve.delta(0.0), "tpr": curve.true_positive_rate(FALSE_POSITIVES)}


# ---- the results -----------------------------------------------------------------------------------------------------


def cells(epsilons: Sequence[float]) -> list[tuple[str, float]]:
    """(mechanism, epsilon) of all points."""
    return [(NO_NOISE, np.inf), *((name, epsilon) for epsilon in epsilons for name in MECHANISMS)]


def rows(out: Path, draws: int, epsilons: Sequence[float]) -> list[dict[str, Any]]:
    """One row a point; trains what is missing."""
    coins_of_draws, points = np.array([coins(draw) for draw in range(draws)]), cells(epsilons)
    answer = []
    with reporter("auto").bar("membership inference", len(points) * draws) as advance:
        for name, epsilon in points:
            seen = []
            for draw in range(draws):
                seen.append(stored(out, name, epsilon, draw))
                advance()
            ratios = attacked(np.array(seen), coins_of_draws)
            reached = {measure: dataclasses.asdict(success(ratios, measure)) for measure in MEASURES}
            limits = bounds(mechanism(name, epsilon).guarantee.curve)
            answer.append({"mechanism": name, "epsilon": str(epsilon), "reached": reached, "bound": limits})
    return answer


def drawn(answer: Sequence[dict[str, Any]]) -> Figure:
    """Both measures over epsilon, with their bounds."""
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    titles = {"advantage": "advantage", "tpr": f"TPR at {FALSE_POSITIVES:.0%} FPR"}
    private = [row for row in answer if row["mechanism"] != NO_NOISE]
    epsilons = sorted({float(row["epsilon"]) for row in private})
    grid = np.geomspace(epsilons[0], epsilons[-1], 60)
    curves = (Gaussian(gaussian.mu_from_epsilon(float(e), DELTA), "replace-one", "upper") for e in grid)
    public = [bounds(curve) for curve in curves]
    for axes, measure in zip(figure.subplots(1, 2), MEASURES, strict=True):
        axes.plot(grid, [limits[measure] for limits in public], color="black", label="bound with public batches")
        for number, name in enumerate(MECHANISMS):
            of_name = [row for row in private if row["mechanism"] == name]
            x = [float(row["epsilon"]) * 1.08 ** (number - 2) for row in of_name]
            values = np.array([[row["reached"][measure][key] for key in ("value", "low", "high")] for row in of_name])
            errors = [values[:, 0] - values[:, 1], values[:, 2] - values[:, 0]]
            axes.errorbar(x, values[:, 0], errors, marker="o", markersize=4, linewidth=1, label=name)
        without = next(row for row in answer if row["mechanism"] == NO_NOISE)["reached"][measure]["value"]
        axes.axhline(without, color="gray", linestyle="--", linewidth=1, label="without noise")
        axes.set(xscale="log", xlabel=f"epsilon at delta = {DELTA:g}", title=titles[measure], ylim=(-0.05, 1.05))
        axes.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
    handles = axes.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=7, frameon=False, fontsize=8)
    return figure


def table(answer: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    lines = ["| mechanism | epsilon | advantage | at most | TPR at 1 % FPR | at most |", "| --- " * 6 + "|"]
    for row in answer:
        numbers = []
        for measure in MEASURES:
            reached = row["reached"][measure]
            numbers += [f"{reached['value']:.3f} ({reached['low']:.3f} to {reached['high']:.3f})"]
            numbers += [f"{row['bound'][measure]:.3f}"]
        lines.append(f"| {row['mechanism']} | {row['epsilon']} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/membership"))
    parser.add_argument("--draws", type=int, default=32)
    parser.add_argument("--epsilons", default=",".join(f"{e:g}" for e in EPSILONS))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    answer = rows(options.out, options.draws, [float(text) for text in options.epsilons.split(",")])
    files.atomic_write_json(options.out / "results.json", answer)
    files.atomic_write_text(options.out / "table.md", table(answer) + "\n")
    write_figure(options.out, "membership", drawn(answer))
    print(table(answer))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())

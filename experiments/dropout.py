"""Dropout of nodes in private training, and the cost of recovery: loss, noise and mu against the share missed.

    python experiments/dropout.py [--out results/dropout] [--seeds 5] [--untrained]

Each mechanism is built for the whole network, because dropout is not known beforehand, and accounted for the run in
which nodes are offline (the same random pattern for all mechanisms, public), without recovery and with every kind of
recovery that it supports. mu: at the noise that gives mu = 1 without dropout. Noise and loss: at the noise that gives
mu = 1 for the run itself, so that all are compared at one mu. Noise: mean square over nodes and steps of the noise in
the models, exact. Worst: the largest mu over all sets of a given number of nodes that are offline in every step, at the
noise that gives mu = 1 without dropout.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import mfdl
from mfdl.algorithms import LinearAlgorithm
from mfdl.files import atomic_write_json
from mfdl.progress import reporter

GRAPH, PARTICIPATION = "erdos-renyi:n=30,p=0.2,seed=0", mfdl.Cyclic(epochs=4, period=8)
TRUST = {"dp-dsgd": "ldp", "mafalda": "ldp"} | dict.fromkeys(("decor", "corn", "kronecker"), "eavesdropper")
RECOVERIES: dict[str, tuple[str | None, ...]] = {
    "dp-dsgd": (None,),
    "mafalda": (None, "catch-up"),
    "decor": (None, "drop", "catch-up"),  # an edge has two ends, so substitute is drop
    "corn": (None, "drop", "substitute", "catch-up"),
    "kronecker": (None, "drop", "substitute", "catch-up"),
}
MEASURED = {"mu": "mu", "noise": "noise in the models at mu = 1", "loss": "test loss at mu = 1"}
MISSING = (1, 2, 3)
RATES = (0.0, 0.01, 0.05, 0.1, 0.2)
BLOCK = 256  # columns of noise at a time


def noise_left(algorithm: LinearAlgorithm) -> float:
    """Mean square of the noise in the models after each step but the last, and after it, per unit nu."""
    total, rows = 0.0, 0
    for final in (False, True):
        operator = algorithm.models_from_noise(final=final)
        rows += operator.shape[0]
        for start in range(0, operator.shape[1], BLOCK):
            units = np.zeros((operator.shape[1], min(BLOCK, operator.shape[1] - start)))
            units[np.arange(start, start + units.shape[1]), np.arange(units.shape[1])] = 1
            total += float(np.square(operator @ units).sum())
    return total / rows


def under_dropout(name: str, present: np.ndarray, participation: mfdl.Cyclic, recovery: str | None) -> LinearAlgorithm:
    """The mechanism as it runs under a pattern, its noise that of the algorithm without dropout."""
    W = mfdl.gossip.metropolis_hastings(GRAPH)
    whole = mfdl.algorithms.build(name, mfdl.Dynamics(W, 0.5), participation)
    left = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(mfdl.gossip.node_dropout(W, present), 0.5), participation)
    noisy = dataclasses.replace(left, noise=whole.noise, name=name)
    return mfdl.algorithms.with_dropout(noisy, present, recovery=recovery)


def options_of(name: str) -> dict[str, object]:
    return {"trust": mfdl.trust.named(TRUST[name]), "adjacency": "zero-out", "clip_norm": 1.0}


@functools.cache
def without_dropout(name: str) -> float:
    """The noise that is mu = 1 without dropout."""
    W = mfdl.gossip.metropolis_hastings(GRAPH)
    whole = mfdl.algorithms.build(name, mfdl.Dynamics(W, 0.5), PARTICIPATION)
    return mfdl.calibrate(whole, mfdl.Privacy(**options_of(name)), mu=1.0).noise_std


def row(name: str, recovery: str | None, rate: float, seed: int, trains: bool) -> dict[str, object]:
    """One mechanism under one pattern."""
    T, n = PARTICIPATION.num_steps, mfdl.graphs.load(GRAPH).number_of_nodes()
    run = under_dropout(name, mfdl.gossip.sampled_presence(n, T, rate, seed), PARTICIPATION, recovery)
    mechanism = mfdl.calibrate(run, mfdl.Privacy(**options_of(name)), mu=1.0)
    measured = {"mu": mechanism.noise_std / without_dropout(name), "noise": noise_left(run) * mechanism.noise_std**2}
    if trains:
        trained = mfdl.replay(mechanism, mfdl.tasks.digits(n), seeds=[seed])
        measured["loss"] = trained.seeds[0].final("loss")
    return {"mechanism": name, "trust": TRUST[name], "recovery": recovery, "rate": rate, "seed": seed, **measured}


def worst_by_coalitions(name: str) -> dict[int, float]:
    """Of noise fresh in each step that is left out: q missing nodes take what a coalition of q knows."""
    step = mfdl.EveryStep(1)
    whole = mfdl.algorithms.build(name, mfdl.Dynamics(mfdl.gossip.metropolis_hastings(GRAPH), 0.5), step)

    def largest(trust: mfdl.TrustModel) -> float:
        return max(loss.sensitivity_squared for loss in mfdl.privacy.sensitivity_by_victim(whole, trust))

    alone = largest(mfdl.trust.named("eavesdropper"))
    return {q: float(np.sqrt(largest(mfdl.trust.Coalitions(q)) / alone)) for q in MISSING}


def worst_by_enumeration(name: str, recovery: str | None, missing: int) -> float:
    """The largest mu of one step over all sets of missing nodes, in units of that without dropout."""
    step, n = mfdl.EveryStep(1), mfdl.graphs.load(GRAPH).number_of_nodes()
    losses = []
    for offline in [(), *itertools.combinations(range(n), missing)]:
        present = np.ones((1, n), dtype=bool)
        present[0, list(offline)] = False
        run = under_dropout(name, present, step, recovery)
        losses.append(
            max(
                x.sensitivity_squared for x in mfdl.privacy.sensitivity_by_victim(run, mfdl.trust.named("eavesdropper"))
            )
        )
    return float(np.sqrt(max(losses) / losses[0]))


def picture(rows: list[dict], measured: list[str], path: Path) -> None:
    figure, axes = plt.subplots(1, len(measured), figsize=(3.8 * len(measured), 3.4), constrained_layout=True)
    lines = {None: "-", "drop": ":", "substitute": "--", "catch-up": "-."}
    for axis, key in zip(axes, measured, strict=True):
        for color, name in enumerate(TRUST):
            for recovery in RECOVERIES[name]:
                values = np.array([_values(rows, name, recovery, rate, key) for rate in RATES])
                style = {"color": f"C{color}", "linestyle": lines[recovery]}
                axis.errorbar(
                    RATES, values.mean(1), values.std(1), label=f"{name} {recovery or ''}", capsize=2, **style
                )
        axis.set(xlabel="share of node-steps missed", ylabel=MEASURED[key], yscale="log")
    axes[-1].legend(frameon=False, fontsize=6)
    figure.savefig(path, dpi=150)


def _values(rows: list[dict], name: str, recovery: str | None, rate: float, key: str) -> list[float]:
    """Of all seeds; without dropout there is nothing to recover."""
    wanted = (name, recovery if rate else None, rate)
    return [r[key] for r in rows if (r["mechanism"], r["recovery"], r["rate"]) == wanted]


def worst() -> None:
    """Prints the largest mu of any set of so many missing nodes."""
    for name in ("decor", "corn"):
        by_coalitions = worst_by_coalitions(name)
        print(f"| `{name}` | drop | " + " | ".join(f"{by_coalitions[q]:.3g}" for q in MISSING) + " |", flush=True)
    for name, recovery in (("decor", None), ("corn", None), ("corn", "substitute")):
        of = [worst_by_enumeration(name, recovery, q) for q in MISSING[:2]]
        print(f"| `{name}` | {recovery or 'none'} | " + " | ".join(f"{mu:.3g}" for mu in of) + " | |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/dropout"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--untrained", action="store_true", help="mu and noise alone")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    measured = [key for key in MEASURED if not (arguments.untrained and key == "loss")]
    groups = [(n, p, r) for n in TRUST for p in RECOVERIES[n] for r in RATES if r or p is None]
    rows: list[dict] = []
    with reporter("auto").bar("dropout", len(groups)) as advance:
        for name, recovery, rate in groups:
            rows += [row(name, recovery, rate, seed, not arguments.untrained) for seed in range(arguments.seeds)]
            each = [_values(rows, name, recovery, rate, key) for key in measured]
            cells = " | ".join(f"{np.mean(v):.3g} ± {np.std(v):.2g}" for v in each)
            print(f"| `{name}` | {recovery or 'none'} | {rate:.0%} | {cells} |", flush=True)
            advance()
    atomic_write_json(arguments.out / "dropout.json", rows)
    picture(rows, measured, arguments.out / "dropout.png")
    worst()


if __name__ == "__main__":
    main()

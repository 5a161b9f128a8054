"""What absent nodes do to private training: loss and noise left in the models against the share of node-steps missed.

    python experiments/dropout.py [--out results/dropout] [--seeds 5]

Each mechanism is built for the whole network, as nobody knows who will be away, and accounted for the run in which
nodes are away (the same drawn pattern for all, public). Noise is that of mu = 1 with everybody there, so mu moves by
the pattern alone. Error: mean square over nodes and steps of the noise in the models, exact.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import mfdl
from mfdl.algorithms import LinearAlgorithm
from mfdl.files import atomic_write_json
from mfdl.progress import shown

GRAPH, PARTICIPATION = "erdos-renyi:n=30,p=0.2,seed=0", mfdl.Cyclic(epochs=4, period=8)
TRUST = {"dp-dsgd": "ldp", "mafalda": "ldp"} | dict.fromkeys(("decor", "corn", "time-space"), "eavesdropper")
MEASURED = {"mu": "mu", "noise": "noise in the models", "loss": "test loss"}
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


def row(name: str, rate: float, seed: int) -> dict[str, object]:
    """One mechanism under one pattern."""
    W, T = mfdl.gossip.metropolis_hastings(GRAPH), PARTICIPATION.num_steps
    trust = {"trust": mfdl.trust.named(TRUST[name]), "adjacency": "zero-out", "clip_norm": 1.0}
    whole = mfdl.algorithms.build(name, mfdl.Dynamics(W, 0.5), PARTICIPATION)
    nu = mfdl.calibrate(whole, **trust, mu=1.0).noise_std
    there = mfdl.gossip.drawn_presence(W.num_nodes, T, rate, seed)
    on_what_is_left = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(mfdl.gossip.absences(W, there), 0.5), PARTICIPATION)
    run = mfdl.algorithms.with_absences(dataclasses.replace(on_what_is_left, noise=whole.noise, name=name), there)
    mechanism = mfdl.with_noise(run, **trust, noise_std=nu)
    trained = mfdl.replay(mechanism, mfdl.tasks.digits(W.num_nodes), seeds=[seed])
    measured = {"mu": mechanism.guarantee.mu, "noise": noise_left(run) * nu**2, "loss": trained.seeds[0].final("loss")}
    return {"mechanism": name, "trust": TRUST[name], "rate": rate, "seed": seed, **measured}


def picture(rows: list[dict], path: Path) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), constrained_layout=True)
    for axis, (key, label) in zip(axes, MEASURED.items(), strict=True):
        for name in TRUST:
            values = np.array([[r[key] for r in rows if (r["mechanism"], r["rate"]) == (name, rate)] for rate in RATES])
            axis.errorbar(RATES, values.mean(1), values.std(1), label=name, capsize=2)
        axis.set(xlabel="share of node-steps missed", ylabel=label)
    axes[1].set_yscale("log")
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/dropout"))
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    cases, rows = [(n, r, s) for n in TRUST for r in RATES for s in range(asked.seeds)], []
    with shown("auto").bar("dropout", len(cases)) as advance:
        for case in cases:
            rows.append(row(*case))
            advance()
    atomic_write_json(asked.out / "dropout.json", rows)
    picture(rows, asked.out / "dropout.png")
    for name in TRUST:
        for rate in RATES:
            these = [r for r in rows if (r["mechanism"], r["rate"]) == (name, rate)]
            means = {k: (np.mean([r[k] for r in these]), np.std([r[k] for r in these])) for k in MEASURED}
            print(f"| `{name}` | {rate:.0%} | " + " | ".join(f"{a:.3g} ± {b:.2g}" for a, b in means.values()) + " |")


if __name__ == "__main__":
    main()

"""DECOR, Figure 1 (a): least squares at user level on three graphs, LDP, CDP and DECOR at equal budgets.

16 nodes, T = 3500 full-gradient steps, C = 1, learning rate 1.668e-3, delta = 1e-5, d = 10, start at ones; an
eavesdropper for DECOR (adversary I). Drawn is what the paper's code plots, the mean over nodes of ||x - x*||^2 over the
last 199 steps (its text says training loss). DECOR has three couples (sigma_local, sigma_pair) per budget; the one with
the smallest mean loss is drawn, as the paper tunes it, and all three are in the JSON. Deviations, each with its reason:

- budgets 3, 10 and 40 of the ten, and three seeds instead of five: the whole grid takes hours;
- noise from the exact Gaussian conversion, not the Rényi bound of the paper: the published couples exceed their budgets
  (10.46 for 10 on the ring) or fall short of them by the conversion;
- pairwise noise is fresh in every step, as in the paper's code for this task (not in its code for a9a and MNIST);
- the data b_i are drawn once (data seed 0); seeds move the noise only.

    python experiments/decor_figure1a.py [--out results/decor_figure1a] [--seeds 3] [--jobs 2]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from _panels import Panel, draw, table, write
from _training import Case, always_below, best_of, losses

import mfdl
from mfdl import algorithms, trust
from mfdl.decor_search import decor_couples

GRAPHS = {"ring": "ring:n=16", "torus": "torus:n=16", "complete": "complete:n=16"}
EPSILONS = (3.0, 10.0, 40.0)
DELTA, CLIP_NORM, STEPS, RATE = 1e-5, 1.0, 3500, 1.668e-3
CHOSEN = {"adjacency": "replace-one", "clip_norm": CLIP_NORM, "unit": "user"}
COUPLES = ("small", "middle", "large")


def cases(steps: int) -> list[Case]:
    """All points: (graph, mechanism, epsilon)."""
    part = mfdl.EveryStep(steps)
    out = []
    for graph, spec in GRAPHS.items():
        loaded = mfdl.graphs.load(spec)
        dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(loaded), learning_rate=RATE)
        task = mfdl.tasks.load("least-squares", loaded)
        for epsilon in EPSILONS:
            target = {"epsilon": epsilon, "delta": DELTA}
            ldp = mfdl.calibrate(algorithms.dp_dsgd(dynamics, part), trust=trust.LDP(), **target, **CHOSEN)
            cdp = mfdl.calibrate(algorithms.cdp(dynamics, part), trust=trust.Central(), **target, **CHOSEN)
            out += [Case((graph, "LDP", epsilon), ldp, task), Case((graph, "CDP", epsilon), cdp, task)]
            for name, couple in zip(COUPLES, decor_couples(dynamics, part, **target, **CHOSEN), strict=True):
                out.append(Case((graph, f"DECOR, {name} sigma_local", epsilon), couple.mechanism, task))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/decor_figure1a"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    seeds = range(1, 1 + arguments.seeds)
    found = losses(cases(arguments.steps), seeds, arguments.jobs)
    panels, verdicts, chosen = [], {}, {}
    for graph in GRAPHS:
        best = {e: best_of(found, [(graph, f"DECOR, {name} sigma_local", e) for name in COUPLES]) for e in EPSILONS}
        chosen[graph] = {f"{e:g}": str(best[e][1]) for e in EPSILONS}
        lines = {
            "LDP": np.stack([found[graph, "LDP", e] for e in EPSILONS]),
            "CDP": np.stack([found[graph, "CDP", e] for e in EPSILONS]),
            "DECOR": np.stack([found[best[e]] for e in EPSILONS]),
        }
        panels.append(Panel(f"{graph}, 16 nodes", "epsilon", "mean ||x - x*||²", EPSILONS, lines, log_x=True))
        verdicts[graph] = {
            "DECOR below LDP at every budget and seed": all(map(always_below, lines["DECOR"], lines["LDP"])),
            "LDP / DECOR": [float(v) for v in lines["LDP"].mean(1) / lines["DECOR"].mean(1)],
            "DECOR / CDP": [float(v) for v in lines["DECOR"].mean(1) / lines["CDP"].mean(1)],
        }
        print(table(panels[-1]))
        print("  chosen couple:", chosen[graph])
        print("  LDP / DECOR:", ", ".join(f"{v:.2f}" for v in verdicts[graph]["LDP / DECOR"]))
        print("  DECOR / CDP:", ", ".join(f"{v:.2f}" for v in verdicts[graph]["DECOR / CDP"]))
    below = all(one["DECOR below LDP at every budget and seed"] for one in verdicts.values())
    factors = [v for one in verdicts.values() for v in one["LDP / DECOR"]]
    title = (
        f"DECOR ends {min(factors):.1f} to {max(factors):.1f} times below LDP, on every graph, budget and seed"
        if below
        else "DECOR is not below LDP on every graph, budget and seed"
    )
    caption = (
        f"Least squares, user level, T = {arguments.steps}, C = 1, rate {RATE:g}, delta = {DELTA:g}, replace-one; LDP: "
        "anyone who sees all messages; DECOR: an eavesdropper; CDP: a server's average only, so three trust models. "
        f"Best of three couples for DECOR. {arguments.seeds} seeds, mean and range. Budgets 3, 10, 40; exact "
        "Gaussian accounting; data drawn once."
    )
    write(
        arguments.out, "decor_figure1a", draw(panels, title, caption), {"verdicts": verdicts, "chosen": chosen}, panels
    )


if __name__ == "__main__":
    main()

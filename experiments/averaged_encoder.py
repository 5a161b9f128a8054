"""One encoder for random gossip: what `mafalda` loses if it is optimised for the mean over the draws.

    python experiments/averaged_encoder.py [--out results/averaged_encoder] [--seeds 10]

For each graph and each random gossip, the encoder that is optimal for E[H] is used in sampled runs. Lost: its error
above that of the encoder optimised for the run itself, which would need the communication pattern beforehand. Gained:
how much more the encoder optimised for the graph without randomness costs there. All have unit sensitivity, so mu is
the same where every message is seen.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import mfdl
from mfdl import factorization
from mfdl.files import atomic_write_json
from mfdl.gossip import randomized
from mfdl.gossip.randomized import RandomGossip
from mfdl.objective import NoiseObjective, Probes
from mfdl.progress import reporter

GRAPHS = ("ring:n=30", "erdos-renyi:n=30,p=0.2,seed=0", "torus:rows=5,cols=6")
PARTICIPATION = mfdl.Cyclic(epochs=4, period=8)
TOLERANCE = 1e-5


def ways(graph: str) -> list[RandomGossip]:
    W = mfdl.gossip.metropolis_hastings(graph)
    rates = (0.05, 0.2, 0.5)
    drawn = [of(W, rate) for of in (randomized.links, randomized.nodes) for rate in rates]
    return [*drawn, randomized.matchings(graph), randomized.pairs(graph), randomized.peers(W.num_nodes, 3)]


def row(graph: str, random: RandomGossip, seeds: int) -> dict[str, object]:
    """One graph and one way to draw, over runs of several seeds."""
    static = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph))
    T, classes, options = PARTICIPATION.num_steps, PARTICIPATION.classes(), {"tolerance": TOLERANCE}
    without = factorization.factorize(static, PARTICIPATION, **options).encoder
    # seeds of the draws that choose an encoder, where there is no closed form, are none of those that judge it
    probes = Probes(16, seed=10_000)
    averaged = factorization.factorize(static, PARTICIPATION, averaged_over=random, probes=probes, **options).encoder
    lost, gained = [], []
    for seed in range(seeds):
        drawn = random.draw(T, seed)
        H = NoiseObjective(mfdl.Dynamics(drawn.gossip), T).over_steps(drawn.present)
        posed = factorization.FactorizationProblem(H, classes)
        best = factorization.solve_problem(posed, **options).require_converged(TOLERANCE)
        losses = [factorization.evaluate(posed, C, lower_bound=best.lower_bound).objective for C in (averaged, without)]
        lost.append(losses[0] / best.objective - 1)
        gained.append(losses[1] / losses[0] - 1)
    return {"graph": graph, "drawn": random.name, "lost": lost, "gained": gained}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/averaged_encoder"))
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    cases, rows = [(graph, random) for graph in GRAPHS for random in ways(graph)], []
    with reporter("auto").bar("averaged encoders", len(cases)) as advance:
        for graph, random in cases:
            rows.append(row(graph, random, arguments.seeds))
            advance()
    atomic_write_json(arguments.out / "averaged_encoder.json", rows)
    for r in rows:
        cells = (f"{100 * np.mean(r[key]):.2f} ± {100 * np.std(r[key], ddof=1):.2f} %" for key in ("lost", "gained"))
        print(f"| `{r['graph']}` | {r['drawn']} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

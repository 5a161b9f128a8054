"""Random walks: what one node learns of another from a token, given the walk, over its draw, and as published.

    python experiments/random_walks.py [--out results/random_walks] [--seeds 20]

The hypercube of 32 nodes, T = 275 steps, noise multiplier 1, all data of a node in each of its visits, delta = 1e-5:
the setting of the public code of arXiv:2510.19934. The attacker is node 0; victims are one node at each distance.
Epsilon given the walk is for non-adaptive gradients and, in steps that do not expand (L = 1), for training.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import networkx as nx
import numpy as np

import mfdl
import mfdl_papers as papers
from mfdl.files import atomic_write_json
from mfdl.privacy.gaussian import epsilon_from_mu
from mfdl.progress import reporter

STEPS, DELTA, VICTIMS = 275, 1e-5, [1, 3, 7, 15, 31]
GRAPH = nx.convert_node_labels_to_integers(nx.hypercube_graph(5))


def given_the_walk(W: mfdl.gossip.GossipMatrix, seed: int) -> dict[str, list[float]]:
    """epsilon of each victim, and how often it had the token."""
    walk = mfdl.gossip.sampled_walk(W, STEPS, seed)
    algorithm = mfdl.algorithms.random_walk(mfdl.Dynamics(W), mfdl.EveryStep(STEPS), walk=walk, to_all=False)
    question = {"trust": mfdl.trust.PNDP([0]), "release": "none", "lipschitz": 1.0, "victims": VICTIMS}
    losses = mfdl.privacy.sensitivity_by_victim(algorithm, **question, progress=False)
    mus = {
        "non-adaptive": [loss.sensitivity_squared**0.5 for loss in losses],
        "adaptive": [loss.adaptive_sensitivity_squared**0.5 for loss in losses],
        "all seen": np.sqrt(np.bincount(walk[:-1], minlength=32)[VICTIMS]),
    }
    return {name: [epsilon_from_mu(float(mu), DELTA) if mu else 0.0 for mu in of] for name, of in mus.items()}


def over_the_draw(W: mfdl.gossip.GossipMatrix) -> dict[str, list[float]]:
    options = {"num_steps": STEPS, "noise_multiplier": 1.0, "delta": DELTA}
    bounds = {
        "as coded": papers.pn_f_dp(W, 0, **options, late=True),
        "with t": papers.pn_f_dp(W, 0, **options),
        "one visit": papers.pn_f_dp(W, 0, **options, visits=1),
        "walk known": papers.walk_known(W, 0, **options, victims=VICTIMS),
    }
    return {name: bound.value[VICTIMS].tolist() for name, bound in bounds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/random_walks"))
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    W, walks = mfdl.gossip.metropolis_hastings(GRAPH), []
    with reporter("auto").bar("walks", arguments.seeds) as advance:
        for seed in range(arguments.seeds):
            walks.append(given_the_walk(W, seed))
            advance()
    drawn = over_the_draw(W)
    atomic_write_json(arguments.out / "random_walks.json", {"walks": walks, "over the draw": drawn})
    for k in range(len(VICTIMS)):
        cells = [f"{drawn[name][k]:.2f}" for name in ("as coded", "with t", "one visit", "walk known")]
        columns = ("non-adaptive", "adaptive", "all seen")
        of_walks = {name: np.array([walk[name][k] for walk in walks]) for name in columns}
        cells += [f"{values.mean():.2f} ± {values.std():.2f}" for values in of_walks.values()]
        print(f"| {k + 1} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()

"""Noise left in the models by weights and polynomials of gossip, without training: the tables of docs/gossip.md.

    python experiments/gossip_weights.py [--out docs/tables]

In: graphs of 16 to 100 nodes. Out: `gossip_gaps.csv`, the spectral gap of each matrix, and `gossip_noise.csv`, the
variance of the models of a node around the average of all nodes, for K rounds a step: independent noise of variance 1
in every step, after many steps at a constant rate.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable
from pathlib import Path

import numpy as np

import mfdl
from mfdl.gossip import GossipMatrix

GRAPHS = {
    "ring of 16": "ring:n=16",
    "ring of 64": "ring:n=64",
    "torus 4 x 4": "torus:n=16",
    "torus 8 x 8": "torus:n=64",
    "torus 10 x 10": "torus:n=100",
    "Erdős-Rényi 16, p = 0.3": "erdos-renyi:n=16,p=0.3,seed=1",
    "Erdős-Rényi 50, p = 0.15": "erdos-renyi:n=50,p=0.15,seed=1",
    "Erdős-Rényi 100, p = 0.08": "erdos-renyi:n=100,p=0.08,seed=1",
}
ROUNDS = (1, 3, 5, 10)


def variance(W: GossipMatrix, rounds: int, polynomial: str = "powers") -> float:
    """Around the average, per node: sum of p^2 / (1 - p^2) over the eigenvalues p of a step but the 1."""
    dynamics = mfdl.Dynamics(W, gossip_rounds=rounds, polynomial=polynomial)
    squares = dynamics.step_eigenvalues(np.sort(W.spectrum)[:-1]) ** 2
    return float((squares / (1 - squares)).sum()) / W.num_nodes


def printed(value: float) -> str:
    """Two digits; zero where nothing but rounding is left."""
    return "0" if value < 1e-12 else f"{value:.2g}"


def rows() -> tuple[list[list[str]], list[list[str]]]:
    """(gaps, noise), each with its header."""
    gaps = [["graph", "Metropolis-Hastings", "fastest mixing", "any weights, at most"]]
    noise = [["graph", "rounds", "powers, M.-H.", "powers, fastest", "powers, least noise"]]
    noise[0] += [
        f"{polynomial}, {weights}" for polynomial in ("Chebyshev", "least noise") for weights in ("M.-H.", "fastest")
    ]
    for name, graph in GRAPHS.items():
        usual, fastest = mfdl.gossip.metropolis_hastings(graph), mfdl.gossip.fastest_mixing(graph)
        assert fastest.certificate is not None
        numbers = (usual.spectral_gap, fastest.spectral_gap, 1 - fastest.certificate.lower_bound)
        gaps.append([name, *(f"{value:.4f}" for value in numbers)])
        for K in ROUNDS:
            least = mfdl.gossip.least_noise(graph, rounds=K)
            of_powers = (variance(W, K) for W in (usual, fastest, least))
            others = (variance(W, K, name) for name in ("chebyshev", "least-noise") for W in (usual, fastest))
            noise.append([name, str(K), *map(printed, (*of_powers, *others))])
            print(", ".join(noise[-1]), flush=True)
    return gaps, noise


def main(arguments: Iterable[str] | None = None) -> None:
    """Computes and writes both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/tables"))
    out = parser.parse_args(None if arguments is None else list(arguments)).out
    for name, table in zip(("gossip_gaps", "gossip_noise"), rows(), strict=True):
        with (out / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(table)


if __name__ == "__main__":
    main()

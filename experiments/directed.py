"""Private training over directed edges: push-sum, averages that drift, and edges made undirected.

    python experiments/directed.py [--out results/directed] [--seeds 5]

A directed circle of 16 nodes with 16 random edges, digits split by Dirichlet(0.1), 8 epochs of 8 steps, learning
rate 0.2, noise of mu = 4 against an attacker who sees all messages. `drifting` is D-SGD with equal weights on the
received messages, which does not preserve the average; `unscaled` is D-SGD on push-sum's averages, without its 1 / w;
`both ways` has Metropolis-Hastings weights on the same edges without direction. PNDP: mu of one record against one
node, for non-adaptive gradients, as a share of mu with all messages seen; the median over pairs. Noise: root mean
square in the final models, exact.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import networkx as nx
import numpy as np
import scipy.sparse as sp

import mfdl
from mfdl.files import atomic_write_json
from mfdl.progress import reporter

NODES, PARTICIPATION, RATE = 16, mfdl.Cyclic(epochs=8, period=8), 0.2
METHODS = ("push-sum", "unscaled", "drifting", "both ways")


def links(seed: int) -> nx.DiGraph:
    rng = np.random.default_rng(seed)
    graph = nx.DiGraph([(u, (u + 1) % NODES) for u in range(NODES)])
    while graph.number_of_edges() < 2 * NODES:
        tail, head = rng.integers(NODES, size=2).tolist()
        if tail != head:
            graph.add_edge(tail, head)
    return graph


def built(method: str, graph: nx.DiGraph) -> mfdl.LinearAlgorithm:
    T = PARTICIPATION.num_steps
    if method == "push-sum":
        return mfdl.algorithms.push_sum(mfdl.Dynamics(mfdl.gossip.push_sum(graph, T), RATE), PARTICIPATION)
    if method == "unscaled":
        return mfdl.algorithms.dp_dsgd(mfdl.Dynamics(mfdl.gossip.push_sum(graph, T), RATE), PARTICIPATION)
    if method == "both ways":
        W = mfdl.gossip.metropolis_hastings(graph.to_undirected())
        return mfdl.algorithms.dp_dsgd(mfdl.Dynamics(W, RATE), PARTICIPATION)
    heard = nx.to_scipy_sparse_array(graph, nodelist=range(NODES)).T + sp.eye_array(NODES)
    W = mfdl.gossip.from_array(sp.diags_array(1 / heard.sum(axis=1)) @ heard)
    return mfdl.algorithms.dp_dsgd(mfdl.Dynamics(W, RATE), PARTICIPATION)


def row(method: str, seed: int) -> dict[str, object]:
    algorithm = built(method, links(seed))
    question = {"trust": mfdl.trust.named("eavesdropper"), "adjacency": "zero-out", "clip_norm": 1.0}
    mechanism = mfdl.calibrate(algorithm, mfdl.Privacy(**question), mu=4.0)
    task = mfdl.tasks.digits(NODES, partition=mfdl.partition.Dirichlet(0.1, min_records=8))
    trained = mfdl.replay(mechanism, task, seeds=[seed])
    of_pairs = [
        loss.sensitivity_squared / PARTICIPATION.epochs
        for v in range(NODES)
        for loss in mfdl.privacy.sensitivity_by_victim(algorithm, mfdl.trust.PNDP([v]), release="none", progress=False)
    ]
    models = algorithm.models_from_noise(final=True)
    noise = mechanism.noise_std * np.sqrt(np.square(models @ np.eye(models.shape[1])).sum() / NODES)
    final = {name: trained.seeds[0].final(name) for name in ("loss", "accuracy")}
    return {"method": method, "seed": seed, "noise": noise, "pndp": np.median(of_pairs) ** 0.5, **final}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/directed"))
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = []
    with reporter("auto").bar("directed", len(METHODS) * arguments.seeds) as advance:
        for method in METHODS:
            for seed in range(arguments.seeds):
                rows.append(row(method, seed))
                advance()
    atomic_write_json(arguments.out / "directed.json", rows)
    for method in METHODS:
        these = [r for r in rows if r["method"] == method]
        means = {k: np.array([r[k] for r in these]) for k in ("noise", "pndp", "loss", "accuracy")}
        print(f"| {method} | " + " | ".join(f"{v.mean():.3g} ± {v.std():.2g}" for v in means.values()) + " |")


if __name__ == "__main__":
    main()

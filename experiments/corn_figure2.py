"""CorN-DSGD, Figure 2 whole: the noise left after one averaging against the number of seeds, disjoint groups of nodes.

Problem (10): m seeds, each held by one of m disjoint groups of about n / m nodes (in random order), private noise at
every node. Two attackers: an eavesdropper (q = 0), for whom m = 1 is problem (9) and m = n is LDP; and any single node
(q = 1), for whom disjoint groups never help, since a member knows its group's seed. Edge seeds (one per edge) do help
against single nodes: drawn as a line for comparison.

    python experiments/corn_figure2.py [--out results/corn_figure2] [--draws 3]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from _panels import Panel, draw, table, write
from rich.progress import track

import mfdl
from mfdl.factorization import SpatialFactorization, optimal_covariance
from mfdl.privacy import gaussian
from mfdl.privacy.published import inverse_diagonal_limit

NODES, DENSITY, EPSILON, DELTA, CLIP_NORM, STEPS = 20, 0.5, 10, 1e-5, 0.1, 5000
SEED_COUNTS = (1, 2, 3, 4, 5, 7, 10, 15, 20)
TOLERANCE = 2e-3
OUTSIDER, MEMBER, EDGES = "disjoint groups, q = 0", "disjoint groups, q = 1", "edge seeds, q = 1"


def solved(dynamics: mfdl.Dynamics, groups: list[list[int]] | None, q: int) -> SpatialFactorization:
    """The covariance of one case; one seed for all with q = 0 is problem (9)."""
    if groups is not None and len(groups) == 1 and q == 0:
        return optimal_covariance(dynamics, tolerance=TOLERANCE)
    return optimal_covariance(dynamics, groups=groups, coalition_size=q, tolerance=TOLERANCE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/corn_figure2"))
    parser.add_argument("--draws", type=int, default=3)
    arguments = parser.parse_args()
    mu = gaussian.mu_from_epsilon(EPSILON, DELTA)
    limit = inverse_diagonal_limit(mu, clip_norm=CLIP_NORM, num_steps=STEPS)
    lines = {name: np.zeros((len(SEED_COUNTS), arguments.draws)) for name in (OUTSIDER, MEMBER, EDGES, "LDP")}
    gaps = {OUTSIDER: 0.0, MEMBER: 0.0, EDGES: 0.0}
    local = [0.0] * arguments.draws
    for seed in track(range(arguments.draws), description="draws"):
        graph = mfdl.graphs.load(f"erdos-renyi:n={NODES},p={DENSITY},seed={seed}")
        dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph))
        order = np.random.default_rng(seed).permutation(NODES)
        edges = solved(dynamics, None, 1)
        gaps[EDGES] = max(gaps[EDGES], edges.gap)
        for i, m in enumerate(SEED_COUNTS):
            groups = [sorted(part.tolist()) for part in np.array_split(order, m)]
            for name, q in ((OUTSIDER, 0), (MEMBER, 1)):
                one = solved(dynamics, groups, q)
                assert one.independent_loss is not None
                lines[name][i, seed] = one.loss / one.independent_loss
                gaps[name] = max(gaps[name], one.gap)
            assert edges.independent_loss is not None
            lines[EDGES][i, seed] = edges.loss / edges.independent_loss
            lines["LDP"][i, seed] = 1.0
            local[seed] = edges.independent_loss / limit
    panel = Panel(
        f"n = {NODES}, p = {DENSITY}, epsilon = {EPSILON}",
        "seeds m (disjoint groups)",
        "tr(W R Wᵀ), relative to LDP",
        SEED_COUNTS,
        lines,
        log_y=False,
    )
    print(table(panel))
    rising = (np.diff(lines[OUTSIDER].mean(axis=1)) >= -TOLERANCE * lines[OUTSIDER].mean(axis=1)[:-1]).all()
    no_gain = np.allclose(lines[MEMBER], lines["LDP"], rtol=2 * TOLERANCE)
    title = "Fewer seeds, less noise" if rising else "Noise does not only rise with the number of seeds"
    title += "; against single nodes disjoint groups gain nothing" if no_gain else ""
    caption = (
        f"User level, T = {STEPS}, C = {CLIP_NORM}, delta = {DELTA:g}, exact r; {arguments.draws} connected "
        "Erdős-Rényi draws, Metropolis-Hastings, groups of a random order; means and ranges. Certified "
        "gaps at most "
        + ", ".join(f"{gap:.1e} ({name})" for name, gap in gaps.items())
        + ". The published figure must "
        "be the q = 0 curve: for q >= 1 every covariance of disjoint groups costs at least what LDP costs."
    )
    facts = {"rises with m": bool(rising), "no gain at q = 1": bool(no_gain), "gaps": gaps, "tr(W R W^T) of LDP": local}
    write(arguments.out, "corn_figure2", draw([panel], title, caption), facts, [panel])


if __name__ == "__main__":
    main()

"""CorN-DSGD, Figure 2: the noise left after one averaging against the number of seeds (problem (10)).

m seeds, each held by one of m disjoint groups of about n / m nodes in random order, private noise at every node. Two
attackers: an eavesdropper (q = 0), for whom m = 1 is problem (9) and m = n is LDP, and any single node (q = 1), who
knows its group's seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mfdl.dynamics import Dynamics
from mfdl.factorization import SpatialFactorization, optimal_covariance
from mfdl.pictures.panels import Panel
from mfdl.progress import shown

from ..figures.figure import PublishedFigure, RunScale
from ..figures.of_panels import of_panels
from ..figures.reproduction import Reproduction
from ..figures.verdicts import REFUTED, Verdict, everywhere
from .settings import CLIP_NORM, DELTA, DENSITY, EPSILON, NODES, STEPS, draws_of, dynamics, exact_limit

SEED_COUNTS, QUICK_SEED_COUNTS = (1, 2, 3, 4, 5, 7, 10, 15, 20), (1, 2, 4, 10, 20)
TOLERANCE = 2e-3
OUTSIDER, MEMBER, EDGES = "disjoint groups, q = 0", "disjoint groups, q = 1", "edge seeds, q = 1"


def solved(on: Dynamics, groups: Sequence[Sequence[int]] | None, q: int) -> SpatialFactorization:
    """The covariance of one case; one seed for all with q = 0 is problem (9); groups None: a seed for each edge."""
    if groups is not None and len(groups) == 1 and q == 0:
        return optimal_covariance(on, tolerance=TOLERANCE)
    return optimal_covariance(on, groups=groups, coalition_size=q, tolerance=TOLERANCE)


def groups_of(m: int, draw_seed: int, n: int = NODES) -> list[list[int]]:
    """m disjoint groups of all nodes, of sizes that differ by one at most, in random order."""
    order = np.random.default_rng(draw_seed).permutation(n)
    return [sorted(part.tolist()) for part in np.array_split(order, m)]


def judged(lines: Mapping[str, np.ndarray], counts: Sequence[int]) -> list[Verdict]:
    """Rises with the seeds for an outsider, to LDP; with one curious node disjoint groups gain nothing."""
    q0, q1 = lines[OUTSIDER], lines[MEMBER]
    steps = {
        (counts[i + 1], s): q0[i + 1, s] >= q0[i, s] * (1 - TOLERANCE)
        for i in range(len(counts) - 1)
        for s in range(q0.shape[1])
    }
    said = f"{q0[0].mean():.3f} of LDP's noise with {counts[0]} seed, {q0[-1].mean():.3f} with {counts[-1]}"
    rises = Verdict("less noise is left the fewer seeds there are", everywhere(steps), said, value=float(q0[0].mean()))
    gains = {
        (m, s): bool(q1[i, s] < 1 - TOLERANCE) for i, m in enumerate(counts) if m < NODES for s in range(q1.shape[1])
    }
    words = f"{q1.min():.3f} to {q1.max():.3f} of LDP's noise; edge seeds reach {lines[EDGES].mean():.3f}"
    claim = "the same schemes gain against honest-but-curious nodes (q = 1)"
    insider = Verdict(claim, everywhere(gains), words, value=float(q1.min()))
    return [rises, insider]


def run(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Solves every case and judges it."""
    draws, counts = draws_of(scale, 1, 3), scale.pick(QUICK_SEED_COUNTS, SEED_COUNTS)
    lines = {name: np.zeros((len(counts), len(draws))) for name in (OUTSIDER, MEMBER, EDGES)}
    gaps = dict.fromkeys(lines, 0.0)
    with shown(scale.progress).bar("covariances", len(draws) * (1 + 2 * len(counts))) as report:
        for s in draws:
            on = dynamics(DENSITY, s)
            edges = solved(on, None, 1)
            report(1)
            cases = [(EDGES, i, edges) for i in range(len(counts))]
            for i, m in enumerate(counts):
                for name, q in ((OUTSIDER, 0), (MEMBER, 1)):
                    cases.append((name, i, solved(on, groups_of(m, s), q)))
                    report(1)
            for name, i, optimum in cases:
                assert optimum.independent_loss is not None
                lines[name][i, s] = optimum.loss / optimum.independent_loss
                gaps[name] = max(gaps[name], optimum.gap)
    verdicts = judged(lines, counts)
    shown_lines = {**lines, "LDP": np.ones((len(counts), len(draws)))}
    panel = Panel(
        f"n = {NODES}, p = {DENSITY}, epsilon = {EPSILON:g}",
        "number of seeds m",
        "tr(W R Wᵀ) over that of LDP",
        counts,
        shown_lines,
        log_x=True,
        log_y=False,
        dashed=(EDGES, "LDP"),
    )
    nothing = "; against one curious node disjoint groups gain nothing" * (verdicts[1].verdict == REFUTED)
    title = f"CorN-DSGD, Figure 2: {verdicts[0].said}{nothing}"
    caption = (
        f"User level, T = {STEPS}, C = {CLIP_NORM}, delta = {DELTA:g}, exact budget; {len(draws)} connected "
        "Erdős-Rényi draws, Metropolis-Hastings, groups of a random order; mean and range. Certified gaps at most "
        + ", ".join(f"{gap:.1e} ({name})" for name, gap in gaps.items())
        + ". The published curve must be that of q = 0: for q >= 1 all noise of disjoint groups costs what LDP costs."
    )
    of_run = {"delta": DELTA, "clip_norm": CLIP_NORM, "steps": STEPS, "draws": len(draws), "tolerance": TOLERANCE}
    return of_panels(
        figure,
        scale,
        verdicts,
        [panel],
        (title, caption),
        settings=of_run,
        numbers={
            "seeds": list(counts),
            "shares": {name: values.tolist() for name, values in lines.items()},
            "gaps": gaps,
            "limit": exact_limit(EPSILON),
        },
    )

"""CorN-DSGD, Figures 1 and 2: the noise left after one averaging, tr(W R W^T), on random graphs of 20 nodes.

Figure 1, against budget, density and size: three covariances at one price max_i [R^-1]_ii <= r. They are independent
noise (LDP), sigma_cor^2 I + sigma_cor^2 L at its best ratio (pairwise), and the best covariance of all (CorN),
certified.

Figure 2, against the number of seeds (problem (10)): m seeds, each held by one of m disjoint groups of about n / m
nodes in random order, private noise at every node. Two attackers: an eavesdropper (q = 0), for whom m = 1 is problem
(9) and m = n is LDP, and any single node (q = 1), who knows its group's seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mfdl import gossip, graphs
from mfdl.dynamics import Dynamics
from mfdl.errors import InvalidInput
from mfdl.factorization import optimal_covariance, optimal_pairwise
from mfdl.factorization.seeded_covariances import SpatialFactorization
from mfdl.pictures.line_charts import Panel
from mfdl.privacy import gaussian
from mfdl.progress import reporter

from ..figures.published_figures import PublishedFigure, Reproduction, RunScale
from ..figures.trained_panels import deviation, panel_reproduction
from ..figures.verdicts import CONFIRMED, Effect, Verdict, worst
from .covariance_bounds import corn_equation_9_renyi, corn_equation_9b, inverse_diagonal_limit

EPSILONS = (3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0)
NODES, DENSITY, EPSILON = 20, 0.5, 10.0
DELTA, CLIP_NORM, STEPS = 1e-5, 0.1, 5000
DENSITIES, QUICK_DENSITIES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0), (0.2, 0.4, 0.5, 0.6, 0.8, 1.0)
SIZES, QUICK_SIZES, ONE_DRAW_ABOVE = (10, 20, 50, 100, 200, 500, 1000), (10, 20, 50, 100), 100
NAMES = ("LDP", "pairwise", "CorN")
TOLERANCE = 1e-4
SPARSE = 0.4
"""Up to this p a graph counts as sparse."""
Draw = tuple[int, float, int]  # nodes, density, seed
Traces = Mapping[str, float]
SEED_COUNTS, QUICK_SEED_COUNTS = (1, 2, 3, 4, 5, 7, 10, 15, 20), (1, 2, 4, 10, 20)
SEED_TOLERANCE = 2e-3
OUTSIDER, MEMBER, EDGES = "disjoint groups, q = 0", "disjoint groups, q = 1", "edge seeds, q = 1"


def graph_name(p: float, seed: int, n: int = NODES) -> str:
    """A connected Erdős-Rényi draw, as options name it."""
    return f"erdos-renyi:n={n},p={p:g},seed={seed}"


def dynamics(p: float, seed: int, n: int = NODES) -> Dynamics:
    """Metropolis-Hastings averaging on a draw."""
    return Dynamics(gossip.metropolis_hastings(graphs.load(graph_name(p, seed, n))))


def exact_limit(epsilon: float) -> float:
    """r of [R^-1]_ii <= r by the exact Gaussian conversion."""
    return inverse_diagonal_limit(gaussian.mu_from_epsilon(epsilon, DELTA), clip_norm=CLIP_NORM, num_steps=STEPS)


def published_limits(epsilon: float) -> dict[str, float | None]:
    """r of the paper's code and of its equation (9b), None where that is no bound."""
    limits: dict[str, float | None] = {}
    for name, bound in (("renyi (code)", corn_equation_9_renyi), ("(9b)", corn_equation_9b)):
        try:
            mu = float(bound(epsilon, DELTA).value)
            limits[name] = inverse_diagonal_limit(mu, clip_norm=CLIP_NORM, num_steps=STEPS)
        except InvalidInput:
            limits[name] = None
    return limits


def draw_seeds(scale: RunScale, quick: int, full: int) -> range:
    """Seeds of the draws, and of what is trained on them."""
    return range(scale.pick(quick, full))


def traces(n: int, p: float, seed: int) -> dict[str, float]:
    """tr(W R W^T) at r = 1 of the three covariances on one draw, and CorN's certified "gap"."""
    on = dynamics(p, seed, n)
    best, pairwise = optimal_covariance(on, tolerance=TOLERANCE), optimal_pairwise(on)
    assert best.independent_objective is not None
    return {"LDP": best.independent_objective, "pairwise": pairwise.objective, "CorN": best.objective, "gap": best.gap}


def in_order(at: str, of_draw: Traces) -> list[Effect]:
    """Of CorN <= pairwise <= LDP on a draw, but for what the solvers leave."""
    CorN, pairwise, LDP = (of_draw[name] for name in ("CorN", "pairwise", "LDP"))
    return [
        Effect.exact(f"{at}: CorN, pairwise", math.log(pairwise / CorN) + 2 * TOLERANCE),
        Effect.exact(f"{at}: pairwise, LDP", math.log(LDP / pairwise) + 1e-9),
    ]


def judged_covariances(by_draw: Mapping[Draw, Traces], largest: int) -> list[Verdict]:
    """The order on every draw; where pairwise noise is furthest above CorN; sizes that were solved; the budget."""
    order = {draw: in_order("n = {}, p = {}, draw {}".format(*draw), of_draw) for draw, of_draw in by_draw.items()}
    confirmed = sum(worst(effect.word() for effect in effects) == CONFIRMED for effects in order.values())
    return [
        Verdict(
            "CorN <= pairwise <= LDP",
            [effect for effects in order.values() for effect in effects],
            f"on {confirmed} of {len(order)} draws",
            value=confirmed / len(order),
        ),
        _sparse(by_draw),
        _scales(by_draw, largest),
        _by_budget(by_draw),
    ]


def _sparse(by_draw: Mapping[Draw, Traces]) -> Verdict:
    """Pairwise - CorN at every p <= `SPARSE` beside every other p, paired by draw."""
    gaps = {
        p: np.array([t["pairwise"] - t["CorN"] for (n, q, _), t in by_draw.items() if (n, q) == (NODES, p)])
        for p in sorted({p for n, p, _ in by_draw if n == NODES})
    }
    at_budget = {p: values / exact_limit(EPSILON) for p, values in gaps.items()}
    words = "pairwise - CorN " + ", ".join(f"{values.mean():.3g} at p = {p:g}" for p, values in at_budget.items())
    effects = [
        Effect.sampled(f"p = {p:g} beside {q:g}", at_budget[p] - at_budget[q])
        for p in at_budget
        for q in at_budget
        if p <= SPARSE < q
    ]
    return Verdict(
        f"the gap between pairwise noise and CorN is largest for small p (p <= {SPARSE:g})",
        effects,
        words,
        value=float(at_budget[min(at_budget)].mean()),
        spread=deviation(at_budget[min(at_budget)]),
    )


def _scales(by_draw: Mapping[Draw, Traces], largest: int) -> Verdict:
    highest = max(of_draw["gap"] for of_draw in by_draw.values())
    effects = [
        Effect.exact("n = {}, p = {}, draw {}".format(*draw), math.log(10 * TOLERANCE / max(of_draw["gap"], 1e-300)))
        for draw, of_draw in by_draw.items()
    ]
    effects.append(Effect.exact("largest n solved over 100", math.log(largest / 100) + 1e-9))
    words = f"n = {largest} solved, certified gap at most {highest:.1e}"
    return Verdict("it scales to n = 100", effects, words, value=highest)


def _by_budget(by_draw: Mapping[Draw, Traces]) -> Verdict:
    """LDP / CorN at the largest budget over that at the smallest: both traces have the budget as the same factor."""
    ends = [exact_limit(epsilon) for epsilon in (EPSILONS[0], EPSILONS[-1])]
    gains = []
    for of_draw in by_draw.values():
        first, last = (math.log(of_draw["LDP"] / r) - math.log(of_draw["CorN"] / r) for r in ends)
        gains.append(last - first if abs(last - first) > 1e-12 else 0.0)
    effects = [
        Effect.exact("n = {}, p = {}, draw {}".format(*draw), gain) for draw, gain in zip(by_draw, gains, strict=True)
    ]
    words = f"LDP / CorN is the same at every epsilon (largest difference of logarithms {max(map(abs, gains)):.1g})"
    return Verdict("correlation helps more as epsilon grows (LDP / CorN grows)", effects, words, value=max(gains))


def run_covariances(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Solves every draw and judges it."""
    draws = draw_seeds(scale, 3, 10)
    densities, sizes = scale.pick(QUICK_DENSITIES, DENSITIES), scale.pick(QUICK_SIZES, SIZES)
    cases: list[Draw] = [(NODES, p, s) for p in densities for s in draws]
    cases += [(n, DENSITY, s) for n in sizes for s in (draws if n <= ONE_DRAW_ABOVE else draws[:1])]
    by_draw: dict[Draw, dict[str, float]] = {}
    with reporter(scale.progress).bar("covariances", len(cases)) as report:
        for case in cases:
            if case not in by_draw:
                by_draw[case] = traces(*case)
            report(1)
    limits = np.array([exact_limit(e) for e in EPSILONS])
    panels = [
        Panel(
            f"(a) n = {NODES}, p = {DENSITY}",
            "epsilon",
            "tr(W R Wᵀ)",
            EPSILONS,
            {
                name: at[None, :] / limits[:, None]
                for name, at in _at(by_draw, [(NODES, DENSITY, s) for s in draws]).items()
            },
            log_x=True,
        ),
        Panel(
            f"(b) n = {NODES}, epsilon = {EPSILON:g}",
            "edge probability p",
            "tr(W R Wᵀ)",
            densities,
            _lines(by_draw, [[(NODES, p, s) for s in draws] for p in densities]),
            log_y=False,
        ),
        Panel(
            f"(c) p = {DENSITY}, epsilon = {EPSILON:g}",
            "nodes n",
            "tr(W R Wᵀ)",
            sizes,
            _lines(by_draw, [[(n, DENSITY, s) for s in draws if (n, DENSITY, s) in by_draw] for n in sizes]),
            log_x=True,
            log_y=False,
        ),
    ]
    verdicts = judged_covariances(by_draw, max(sizes))
    title = f"CorN-DSGD, Figure 1: CorN <= pairwise <= LDP {verdicts[0].finding}"
    caption = (
        f"User level, T = {STEPS}, C = {CLIP_NORM}, delta = {DELTA:g}, replace-one, an eavesdropper; connected "
        f"Erdős-Rényi draws, Metropolis-Hastings; mean and range of {len(draws)} draws (one for n > {ONE_DRAW_ABOVE}). "
        "Exact budgets; the paper's (9b) puts all curves "
        f"{_published_ratio(3.0, '(9b)'):.2f} times higher at epsilon = 3 and "
        f"{_published_ratio(25.0, '(9b)'):.2f} at 25."
    )
    of_run = {"delta": DELTA, "clip_norm": CLIP_NORM, "steps": STEPS, "draws": len(draws), "tolerance": TOLERANCE}
    return panel_reproduction(
        figure,
        scale,
        verdicts,
        panels,
        (title, caption),
        settings=of_run,
        numbers={
            "traces at r = 1": [{"n": n, "p": p, "draw": s, **of_draw} for (n, p, s), of_draw in by_draw.items()],
            "limits": {f"{e:g}": {"exact": exact_limit(e), **published_limits(e)} for e in EPSILONS},
        },
    )


def _at(by_draw: Mapping[Draw, Traces], some: Sequence[Draw]) -> dict[str, np.ndarray]:
    return {name: np.array([by_draw[draw][name] for draw in some]) for name in NAMES}


def _lines(by_draw: Mapping[Draw, Traces], points: Sequence[Sequence[Draw]]) -> dict[str, np.ndarray]:
    """By name, shape (points, draws), nan where there are fewer, at the price of `EPSILON`."""
    width, limit = max(map(len, points)), exact_limit(EPSILON)
    return {
        name: np.array(
            [[by_draw[draw][name] / limit for draw in some] + [np.nan] * (width - len(some)) for some in points]
        )
        for name in NAMES
    }


def _published_ratio(epsilon: float, name: str) -> float:
    """Noise variance of a published limit over that of the exact one."""
    limit: Any = published_limits(epsilon)[name]
    return exact_limit(epsilon) / float(limit)


def solved(on: Dynamics, groups: Sequence[Sequence[int]] | None, q: int) -> SpatialFactorization:
    """The covariance of one case; one seed for all with q = 0 is problem (9); groups None: a seed for each edge."""
    if groups is not None and len(groups) == 1 and q == 0:
        return optimal_covariance(on, tolerance=SEED_TOLERANCE)
    return optimal_covariance(on, groups=groups, coalition_size=q, tolerance=SEED_TOLERANCE)


def random_groups(m: int, draw_seed: int, n: int = NODES) -> list[list[int]]:
    """m disjoint groups of all nodes, of sizes that differ by one at most, in random order."""
    order = np.random.default_rng(draw_seed).permutation(n)
    return [sorted(part.tolist()) for part in np.array_split(order, m)]


def judged_seed_groups(lines: Mapping[str, np.ndarray], counts: Sequence[int]) -> list[Verdict]:
    """Rises with the seeds for an outsider, to LDP; the paper names no q, so q = 1 is a finding and no verdict."""
    q0, q1 = lines[OUTSIDER], lines[MEMBER]
    effects = [
        Effect.exact(
            f"{counts[i + 1]} beside {counts[i]} seeds, draw {s}", q0[i + 1, s] / q0[i, s] - 1 + SEED_TOLERANCE
        )
        for i in range(len(counts) - 1)
        for s in range(q0.shape[1])
    ]
    shares = f"{q0[0].mean():.3f} of LDP's noise with {counts[0]} seed, {q0[-1].mean():.3f} with {counts[-1]} (q = 0); "
    shares += f"against one curious node (q = 1) {q1.min():.3f} to {q1.max():.3f}, "
    shares += f"a seed for each edge {lines[EDGES].mean():.3f}"
    return [Verdict("less noise is left the fewer seeds there are", effects, shares, value=float(q0[0].mean()))]


def run_seed_groups(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Solves every case and judges it."""
    draws, counts = draw_seeds(scale, 1, 3), scale.pick(QUICK_SEED_COUNTS, SEED_COUNTS)
    lines = {name: np.zeros((len(counts), len(draws))) for name in (OUTSIDER, MEMBER, EDGES)}
    gaps = dict.fromkeys(lines, 0.0)
    with reporter(scale.progress).bar("covariances", len(draws) * (1 + 2 * len(counts))) as report:
        for s in draws:
            on = dynamics(DENSITY, s)
            edges = solved(on, None, 1)
            report(1)
            cases = [(EDGES, i, edges) for i in range(len(counts))]
            for i, m in enumerate(counts):
                for name, q in ((OUTSIDER, 0), (MEMBER, 1)):
                    cases.append((name, i, solved(on, random_groups(m, s), q)))
                    report(1)
            for name, i, optimum in cases:
                assert optimum.independent_objective is not None
                lines[name][i, s] = optimum.objective / optimum.independent_objective
                gaps[name] = max(gaps[name], optimum.gap)
    verdicts = judged_seed_groups(lines, counts)
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
    title = f"CorN-DSGD, Figure 2: {verdicts[0].finding.partition(';')[0]}"
    caption = (
        f"User level, T = {STEPS}, C = {CLIP_NORM}, delta = {DELTA:g}, exact budget; {len(draws)} connected "
        "Erdős-Rényi draws, Metropolis-Hastings, groups of a random order; mean and range. Certified gaps at most "
        + ", ".join(f"{gap:.1e} ({name})" for name, gap in gaps.items())
        + ". The published curve must be that of q = 0: for q >= 1 all noise of disjoint groups costs what LDP costs."
    )
    of_run = {"delta": DELTA, "clip_norm": CLIP_NORM, "steps": STEPS, "draws": len(draws), "tolerance": SEED_TOLERANCE}
    return panel_reproduction(
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

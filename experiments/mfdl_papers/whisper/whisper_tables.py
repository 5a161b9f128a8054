"""Whisper D-SGD, the first version of CorN-DSGD: what it prints of privacy, how much of the gap to CDP it closes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mfdl.privacy import gaussian
from mfdl.progress import reporter

from ..corn.covariance_bounds import corn_theorem
from ..corn.covariance_figures import (
    CLIP_NORM,
    DELTA,
    EPSILONS,
    NAMES,
    NODES,
    STEPS,
    Traces,
    draws_of,
    in_order,
    traces,
)
from ..figures.published_figures import PublishedFigure, RunScale
from ..figures.reproduction import Reproduction, Table
from ..figures.trained_panels import spread
from ..figures.verdicts import Verdict, everywhere, measured
from . import whisper_theorem

DENSITIES = (0.2, 0.4, 0.5, 0.6, 0.8, 1.0)
HALF = 0.5
"""Share of the gap between LDP and CDP that counts as substantially narrowing it; the paper gives no number."""
CDP = 1 / NODES  # of the averages, at r = 1


def printed(epsilon: float) -> tuple[float, float]:
    """What (8) and the bound of the second version say of independent noise that has exactly this epsilon."""
    limit = gaussian.mu_from_epsilon(epsilon, DELTA) ** 2 / (4 * CLIP_NORM**2 * STEPS)
    noise = np.eye(NODES) / limit
    common: dict[str, Any] = {"delta": DELTA, "clip_norm": CLIP_NORM, "num_steps": STEPS}
    return float(whisper_theorem(noise, **common).value), float(corn_theorem(noise, **common).value)


def shares(some: Sequence[Traces]) -> np.ndarray:
    """(LDP - Whisper) / (LDP - CDP) of each draw: how much of the gap is closed."""
    return np.array([(of_draw["LDP"] - of_draw["CorN"]) / (of_draw["LDP"] - CDP) for of_draw in some])


def judged(says: Mapping[float, tuple[float, float]], by_p: Mapping[float, Sequence[Traces]]) -> list[Verdict]:
    """The printed bounds, the printed condition, the order of the noises, the gap."""
    ratios = {epsilon: first / epsilon for epsilon, (first, _) in says.items()}
    bound = Verdict(
        "(8) bounds epsilon",
        everywhere({e: ratio >= 1 for e, ratio in ratios.items()}),
        f"it says {min(ratios.values()):.3g} to {max(ratios.values()):.3g} of the exact epsilon",
        value=min(ratios.values()),
    )
    L = -math.log(DELTA)
    inside = {e: e < L for e in says}
    words = f"{sum(inside.values())} of {len(inside)} budgets; L = {L:.3g}"
    condition = Verdict("its experiments keep its condition epsilon < log(1/delta)", everywhere(inside), words)
    order = {(p, i): in_order(of_draw) for p, some in by_p.items() for i, of_draw in enumerate(some)}
    cancels = "it cancels more noise than pairwise correlation"
    cancelled = Verdict(cancels, everywhere(order), f"on {sum(order.values())} of {len(order)} draws")
    closed = {p: shares(some) for p, some in by_p.items()}
    reached = {p: measured(values, HALF)[0] == "confirmed" for p, values in closed.items()}
    closed_shares = ", ".join(f"{values.mean():.2f} at p = {p:g}" for p, values in closed.items())
    means = np.array([values.mean() for values in closed.values()])
    gap = "it substantially narrows the gap between LDP and CDP (closes half of it)"
    narrows = Verdict(gap, everywhere(reached), f"closes {closed_shares}", value=float(means.mean()))
    return [bound, condition, cancelled, narrows]


def run(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Both tables."""
    draws = draws_of(scale, 3, 10)
    by_p: dict[float, list[dict[str, float]]] = {}
    with reporter(scale.progress).bar("covariances", len(DENSITIES) * len(draws)) as report:
        for p in DENSITIES:
            by_p[p] = []
            for seed in draws:
                by_p[p].append(traces(NODES, p, seed))
                report(1)
    says = {epsilon: printed(epsilon) for epsilon in EPSILONS}
    privacy = [(f"{e:g}", f"{first:.4g}", f"{second:.4g}") for e, (first, second) in says.items()]
    noise = [
        (
            f"{p:g}",
            *(spread(np.array([of_draw[name] for of_draw in some])) for name in NAMES),
            f"{CDP:g}",
            spread(shares(some)),
        )
        for p, some in by_p.items()
    ]
    return Reproduction(
        figure,
        scale,
        judged(says, by_p),
        tables=[
            Table(f"epsilon of independent noise, delta = {DELTA:g}", ("exact", "(8)", "second version"), privacy),
            Table("tr(W R W^T) at r = 1", ("p", "LDP", "pairwise", "Whisper", "CDP", "gap closed"), noise),
        ],
        settings={"delta": DELTA, "clip_norm": CLIP_NORM, "steps": STEPS, "nodes": NODES, "draws": len(draws)},
        numbers={
            "epsilon": [{"exact": e, "(8)": first, "second version": second} for e, (first, second) in says.items()],
            "traces at r = 1": [
                {"p": p, "draw": i, **of_draw} for p, some in by_p.items() for i, of_draw in enumerate(some)
            ],
        },
    )

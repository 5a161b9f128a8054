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
from ..figures.published_figures import PublishedFigure, Reproduction, RunScale, Table
from ..figures.trained_panels import spread
from ..figures.verdicts import CONFIRMED, Effect, Verdict, worst
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
        [Effect.exact(f"epsilon {e:g}", math.log(ratio) + 1e-9) for e, ratio in ratios.items()],
        f"it says {min(ratios.values()):.3g} to {max(ratios.values()):.3g} of the exact epsilon",
        value=min(ratios.values()),
    )
    L = -math.log(DELTA)
    inside = [Effect.exact(f"epsilon {e:g}", L - e) for e in says]
    words = f"{sum(e < L for e in says)} of {len(says)} budgets; L = {L:.3g}"
    condition = Verdict("its experiments keep its condition epsilon < log(1/delta)", inside, words)
    return [bound, condition, _cancelled(by_p), _narrows(by_p)]


def _cancelled(by_p: Mapping[float, Sequence[Traces]]) -> Verdict:
    order = [in_order(f"p = {p:g}, draw {i}", of_draw) for p, some in by_p.items() for i, of_draw in enumerate(some)]
    confirmed = sum(worst(effect.word() for effect in effects) == CONFIRMED for effects in order)
    claim = "it cancels more noise than pairwise correlation"
    return Verdict(claim, [effect for effects in order for effect in effects], f"on {confirmed} of {len(order)} draws")


def _narrows(by_p: Mapping[float, Sequence[Traces]]) -> Verdict:
    closed = {p: shares(some) for p, some in by_p.items()}
    means = ", ".join(f"{values.mean():.2f} at p = {p:g}" for p, values in closed.items())
    return Verdict(
        "it substantially narrows the gap between LDP and CDP (closes half of it)",
        [Effect.sampled(f"p = {p:g}", values, HALF) for p, values in closed.items()],
        f"closes {means}",
        value=float(np.mean([values.mean() for values in closed.values()])),
    )


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

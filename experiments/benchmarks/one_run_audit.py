"""The audit of one run against the audit of many, on one node, one attacker and one claim: bounds, power and seconds.

    python experiments/benchmarks/one_run_audit.py [--out FOLDER]

The peer is `mfdl.audit.audit`. A row gives the median lower bound on mu where the claim mu = 1 is true, the share of
seeds that refute it where noise is halved, CPU seconds of one audit, and how often the audited system ran. The power
curves, FOLDER/audit_power.png, are the shares of seeds that refute the claim where the true mu is above it.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import report
from matplotlib.figure import Figure
from scipy.stats import binom

import mfdl
from mfdl.audit import AuditResult, Training, audit, audit_one_run
from mfdl.audit.one_run import OneRunResult
from mfdl.noise.stream import NoiseStream
from mfdl.pictures.line_charts import Panel, draw
from mfdl.pictures.style import write_figure
from mfdl.training.keys import NoiseKey

SEEDS, CURVE_SEEDS = 20, 100
CLIPPING = {"clip_norm": 1.0, "noise_std": 2.0}
TRIALS: dict[str, tuple[int, ...]] = {"one run": (200, 500, 1000, 2000), "many runs": (200, 1000, 4000)}
AUDITS: dict[str, Callable[..., AuditResult | OneRunResult]] = {"one run": audit_one_run, "many runs": audit}
COLOURS = {"one run": "#009e73", "many runs": "#0072b2"}
ABOVE, AT = (1.0, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2.0, 2.5), 1000  # true mu over the claimed one; trials


class Counted(Training):
    """Counts its runs, and adds noise of another scale than it claims."""

    def __init__(self, factor: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.factor, self.runs = factor, 0

    def stream(self, key: NoiseKey, dim: int, first_step: int) -> NoiseStream:
        """The noise, scaled."""
        self.runs += 1
        stream = super().stream(key, dim, first_step)
        stream.noise_std *= self.factor
        return stream


@functools.cache
def algorithm() -> mfdl.algorithms.LinearAlgorithm:
    ring = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("ring:n=4"), learning_rate=0.5)
    return mfdl.algorithms.mafalda(ring, mfdl.Cyclic(epochs=2, period=2))


def measured(name: str, trials: int, factor: float, seeds: int = SEEDS) -> dict[str, Any]:
    """Bounds, verdicts, CPU seconds and runs of one kind of audit on a system whose noise has this scale."""
    audited, mu, refuted, cpu = AUDITS[name], [], [], []
    system = Counted(factor, algorithm=algorithm(), **CLIPPING)
    for seed in range(seeds):
        began, system.runs = time.process_time(), 0
        settings: dict[str, Any] = {"trust": mfdl.trust.PNDP([1]), "victim": 0, "adjacency": "replace-one", **CLIPPING}
        result = audited(algorithm(), system=system, trials=trials, seed=seed, **settings)
        cpu.append(time.process_time() - began)
        mu.append([result.mu_audited, result.mu_guesses if isinstance(result, OneRunResult) else _free(result)])
        refuted.append([each > result.mu_claimed for each in mu[-1]])
    of_each = list(zip(*mu, strict=True)), list(zip(*refuted, strict=True))
    return {
        "mu": statistics.median(of_each[0][0]),
        "mu_any_noise": statistics.median(of_each[0][1]),
        "refuted": statistics.mean(of_each[1][0]),
        "refuted_any_noise": statistics.mean(of_each[1][1]),
        "seconds": statistics.median(cpu),
        "runs": system.runs,
    }


def _free(result: AuditResult) -> float:
    """The largest bound of many runs that assumes nothing of the noise."""
    return max(canary.mu_binomial or 0.0 for canary in result.canaries)


def power_curves() -> Panel:
    """The share of seeds that refute the claim, over the true mu."""
    curves: dict[str, list[list[float]]] = {}
    for name in AUDITS:
        for above in ABOVE:
            row = measured(name, AT, 1 / above, CURVE_SEEDS)
            curves.setdefault(name, []).append([row["refuted"]])
            curves.setdefault(f"{name}, any noise", []).append([row["refuted_any_noise"]])
            report("one_run_audit", curve=name, true_over_claimed=above, trials=AT, seeds=CURVE_SEEDS, **row)
    lines = {name: np.array(shares) for name, shares in curves.items()}
    dashed = [name for name in lines if name.endswith("any noise")]
    colours = {name: COLOURS[name.removesuffix(", any noise")] for name in lines}
    words = "true mu / claimed mu", "share of audits that refute the claim"
    return Panel("", *words, ABOVE, lines, log_y=False, dashed=dashed, colours=colours, y_range=(-0.02, 1.02))


def picture(curves: Panel) -> Figure:
    """The curves with their conditions."""
    caption = (
        f"MAFALDA on a ring of 4, claim mu = 1 of one node to its neighbour, level 0.95, {AT:,} canaries in one run, "
        f"{AT:,} trials of each kind in 25 runs; {CURVE_SEEDS} seeds; {date.today().isoformat()}."
    )
    return draw([curves], "How often an audit refutes a claim that is too small", caption)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"), help="folder of the picture")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name, sizes in TRIALS.items():
        for trials in sizes:
            honest, half = (measured(name, trials, factor) for factor in (1.0, 0.5))
            if honest["refuted"] * SEEDS > binom.isf(1e-3, SEEDS, 0.05):  # of true claims, at level 0.95
                raise SystemExit(f"a true claim was refuted in {honest['refuted']:.0%} of the audits of {name}")
            power = {name: half[name] for name in ("refuted", "refuted_any_noise")}
            report("one_run_audit", audit=name, trials=trials, seeds=SEEDS, **honest, half_the_noise=power)
    write_figure(arguments.out, "audit_power", picture(power_curves()))


if __name__ == "__main__":
    main()

"""The audit of one run against the audit of many, on one node, one attacker and one claim: bounds, power and seconds.

The peer is `mfdl.audit.audit`. A row gives the median lower bound on mu where the claim mu = 1 is true, the share of
seeds that refute it where noise is halved, CPU seconds of one audit, and how often the audited system ran.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from _measure import report

import mfdl
from mfdl.audit import AuditResult, OneRunResult, Training, audit, audit_one_run
from mfdl.noise import NoiseStream
from mfdl.training.keys import NoiseKey

SEEDS = 20
CLIPPING = {"clip_norm": 1.0, "noise_std": 2.0}
TRIALS: dict[str, tuple[int, ...]] = {"one run": (200, 500, 1000, 2000), "many runs": (200, 1000, 4000)}


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


def measured(audited: Callable[..., AuditResult | OneRunResult], trials: int, factor: float) -> dict[str, Any]:
    """Bounds, verdicts, CPU seconds and runs of one kind of audit on a system whose noise has this scale."""
    mu, refuted, cpu, system = [], [], [], Counted(factor, algorithm=algorithm(), **CLIPPING)
    for seed in range(SEEDS):
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


def main() -> None:
    torch.set_num_threads(1)
    for name, audited in {"one run": audit_one_run, "many runs": audit}.items():
        for trials in TRIALS[name]:
            honest, half = (measured(audited, trials, factor) for factor in (1.0, 0.5))
            if honest["refuted"] > 0.2:
                raise SystemExit(f"a true claim was refuted in {honest['refuted']:.0%} of the audits of {name}")
            power = {name: half[name] for name in ("refuted", "refuted_any_noise")}
            report("one_run_audit", audit=name, trials=trials, seeds=SEEDS, **honest, half_the_noise=power)


if __name__ == "__main__":
    main()

"""Tests of the draws of balls-in-bins: uniform, independent across records, fixed over epochs, fresh in each run.

The theorem of balls-in-bins assumes all of these properties, and the privacy bound of an audit can stay below its claim
without them.

That a record joins one step of each epoch, the same in all, is observed: such a finding is never a false alarm. The
others are tests of independent uniform bins, which share the false-alarm probability (Bonferroni). Uniformity: the two
tails of the binomial law of each bin, times the number of bins. Independence and freshness: the sum of squared counts
over bins (Pearson's statistic) of groups of draws. It is small where groups are shuffled to equal sizes, and large
where draws of a group are alike. Its tails are Chernoff bounds with the exact moment generating function of multinomial
counts, which hold for any number of draws.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special

from mfdl_solvers.ties import first_smallest

from ..check import FloatArray
from ..mechanism import Mechanism
from ..training.keys import NoiseKey
from ..training.replay import ReplayConfig, fed
from ..training.tasks import Task, from_module

SEEDS = 4
"""Of `replay`, with as many keys: their pairs are the runs whose draws are tested."""
NUM_RUNS = SEEDS**2
NUM_STATISTICAL_TESTS = 5
"""One of uniformity, three of independence, one of freshness."""
LEAST_RECORDS = 4
"""Records of a node in these runs, and so many more that an unused bin is seen."""
MOST_RECORDS = 2**16
"""Of all nodes in a run that draws the bins of trials."""
LARGEST_GROUP = 1024
"""Draws of a group whose moments are computed; of larger groups these many are tested."""
SMALLEST = 1e-100
"""The smallest bound on a tail that is reported."""
ROUNDING = 1 + 1e-8
"""Above what floating point loses of a tail, or of the moment of one group."""
LOWEST_EXPONENT, LARGEST_LOG = -8.0, 200.0
"""Of the moment generating function, and of its largest term, so that float64 holds all terms that matter."""
EXPONENTS = 32
"""Tried for each tail; the bound holds at every one of them."""

Counts: TypeAlias = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class DrawnRuns:
    """Runs of a canary that joins the same steps, (T,), in all; `trials`: their numbers among all runs."""

    joins: NDArray[np.bool_]
    trials: NDArray[np.int64]
    key: NoiseKey


class Joined(Protocol):
    """Which records join the first steps of one run, bool (steps, n, records)."""

    def __call__(self, records: int, *, key: NoiseKey, run: int, steps: int) -> NDArray[np.bool_]:
        """Args: records: of each node; key: may serve many runs."""


@dataclasses.dataclass(frozen=True)
class Replayed:
    """The draws of `replay`: those of the runs that it would train with a mechanism, by the very objects."""

    mechanism: Mechanism

    def joined(self, records: int, *, key: NoiseKey, run: int, steps: int) -> NDArray[np.bool_]:
        """See `Joined`: runs come in squares, of keys and of seeds, so that bins must follow both."""
        n, (of_key, seed) = self.mechanism.algorithm.num_nodes, divmod(run, SEEDS)
        options: dict[str, Any] = {"key": key.derive("run", of_key), "seeds": [seed], "stop_after": steps}
        config = ReplayConfig(self.mechanism, _equal_task(n, records), **options, device="cpu", progress=False)
        ((instance, batches),) = fed(config)
        index = instance.record_index[:, 0].numpy()
        joins = np.zeros((steps, n * records), dtype=bool)
        for t, batch in enumerate(batches):
            fed_records = batch.record_index.numpy()
            joins[t, fed_records[fed_records >= 0]] = True
        return np.asarray(joins[:, index])


@functools.lru_cache(maxsize=1)
def _equal_task(num_nodes: int, records: int) -> Task:
    return from_module(
        "draws",
        num_nodes,
        kind="regression",
        build_module=functools.partial(torch.nn.Linear, 1, 1),
        loss=_output_itself,
        features=np.zeros((num_nodes * records, 1)),
        targets=np.zeros(num_nodes * records),
        test_features=np.zeros((1, 1)),
        test_targets=np.zeros(1),
        public_constants="none",
    )


def _output_itself(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return output.sum() + 0 * target


@dataclasses.dataclass(frozen=True)
class Finding:
    """What the runs show of one property of the draws, both in words."""

    property: str
    observed: str
    violated: bool


@dataclasses.dataclass(frozen=True)
class TestedDraws:
    """What runs of `records` records show of the draws; `false_alarm`: how likely good draws are refuted, at most."""

    findings: tuple[Finding, ...]
    runs: int
    records: int
    false_alarm: float

    @property
    def violated(self) -> bool:
        return any(finding.violated for finding in self.findings)

    def sentence(self) -> str:
        runs = f"{self.runs} runs of {self.records} records (probability of a false alarm at most"
        where = f"{runs} {self.false_alarm:.3g})"
        if self.violated:
            seen = (f"not {each.property} ({each.observed})" for each in self.findings if each.violated)
            return f"The draws of bins are REFUTED: {'; '.join(seen)}; {where}."
        return f"The draws of bins are not refuted: {', '.join(each.property for each in self.findings)}; {where}."

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "violated": self.violated}


@dataclasses.dataclass(frozen=True)
class Sampler:
    """Where the draws of an audit come from: which records join which steps, over n nodes, T steps and b bins."""

    joined: Joined
    num_nodes: int
    num_steps: int
    bins: int

    def tested(self, *, seed: int, failure: float) -> TestedDraws:
        """What `NUM_RUNS` runs show, refuting good draws with probability at most `failure`.

        Cost: the T batches of a first run, and those of an epoch of the others.
        """
        n, b, share = self.num_nodes, self.bins, failure / NUM_STATISTICAL_TESTS
        records = max(LEAST_RECORDS, math.ceil(2 * b * math.log(2 * b / share) / (NUM_RUNS * n)))
        key = NoiseKey.from_seed(seed).derive("audit draws")
        whole = self.joined(records, key=key, run=0, steps=self.num_steps).reshape(-1, b, n, records)
        others = [self.joined(records, key=key, run=run, steps=b) for run in range(1, NUM_RUNS)]
        epochs = np.stack([whole[0], *others])
        findings = [_once(np.concatenate([epochs, whole[1:]])), _fixed(whole)]
        drawn = epochs.argmax(axis=1)  # exact: booleans; (runs, n, records)
        findings += [test(drawn, b, share) for test in (_uniform, _independent, _fresh)]
        return TestedDraws(tuple(findings), NUM_RUNS, n * records, failure if b > 1 else 0.0)

    def draw_trials(self, trials: int, key: NoiseKey) -> tuple[Counts, list[DrawnRuns]]:
        """The bin of each trial, (trials,), and the runs of a system that they take, one for each bin."""
        drawn = self.bins_of_trials(trials, key.derive("bins"))
        steps, bins = np.arange(self.num_steps) % self.bins, np.unique(drawn)
        return drawn, [DrawnRuns(steps == r, np.flatnonzero(drawn == r), key.derive("bin", int(r))) for r in bins]

    def bins_of_trials(self, trials: int, key: NoiseKey) -> Counts:
        """The bin of each trial, (trials,): those of as many records, over all nodes; -1 of one that joins no step."""
        parts = []
        for run, first in enumerate(range(0, trials, MOST_RECORDS)):
            count = min(MOST_RECORDS, trials - first)
            epoch = self.joined(-(-count // self.num_nodes), key=key, run=run, steps=self.bins)
            epoch = epoch.reshape(self.bins, -1)[:, :count]
            parts.append(np.where(epoch.any(axis=0), epoch.argmax(axis=0), -1))  # exact: booleans
        return np.concatenate(parts)


def _once(epochs: NDArray[np.bool_]) -> Finding:
    """epochs: (any, bins, nodes, records)."""
    times = epochs.sum(axis=1)
    others = int((times != 1).sum())
    observed = f"{others} of {times.size} times a record joined {times.min()} to {times.max()} steps of an epoch"
    return Finding("one step of each epoch", observed, others > 0)


def _fixed(epochs: NDArray[np.bool_]) -> Finding:
    """epochs: (epochs, bins, nodes, records) of one run."""
    moved = (epochs != epochs[0]).any(axis=(0, 1))
    observed = f"{int(moved.sum())} of {moved.size} records joined other steps in some epoch than in the first"
    return Finding("fixed over epochs", observed, bool(moved.any()))


def _uniform(drawn: Counts, bins: int, share: float) -> Finding:
    counts, total = np.bincount(drawn.ravel(), minlength=bins), drawn.size
    below = special.bdtr(counts, total, 1 / bins)
    above = np.where(counts > 0, special.bdtrc(counts - 1, total, 1 / bins), 1.0)
    either = np.minimum(1.0, 2 * bins * np.minimum(below, above)) * ROUNDING if bins > 1 else np.ones(1)
    r = first_smallest(either)
    observed = f"bin {r} holds {counts[r]} of {total} draws, where {total / bins:.4g} are expected"
    return Finding("uniform over bins", observed, bool(either[r] <= share))


def _independent(drawn: Counts, bins: int, share: float) -> Finding:
    runs, nodes, records = drawn.shape
    groups = {
        "in a run": drawn.reshape(runs, -1),
        "of a node in a run": drawn.reshape(-1, records),
        "of different nodes at one place": drawn.transpose(0, 2, 1).reshape(-1, nodes),
    }
    seen = [words for where, each in groups.items() if (words := _dependence(each, bins, share, f"records {where}"))]
    return Finding("independent across records", "; ".join(seen), bool(seen))


def _fresh(drawn: Counts, bins: int, share: float) -> Finding:
    seen = _dependence(drawn.reshape(len(drawn), -1).T, bins, share, "draws of a record in different runs")
    return Finding("fresh between runs", seen, bool(seen))


def _dependence(groups: Counts, bins: int, share: float, pair: str) -> str:
    """How draws within groups, (groups, draws), depend on each other, in words; empty where that is not shown."""
    taken = np.linspace(0, groups.shape[1] - 1, min(groups.shape[1], LARGEST_GROUP)).astype(int)
    counts = np.stack([(groups[:, taken] == r).sum(axis=1) for r in range(bins)], axis=1)
    low, high = tails(counts)
    if bins == 1 or 2 * min(low, high) > share:
        return ""
    pairs, same = math.comb(taken.size, 2) * len(groups), int((counts * (counts - 1)).sum()) // 2
    return f"{same} of {pairs} pairs of {pair} have one bin, where {pairs / bins:.4g} are expected"


def tails(counts: Counts) -> tuple[float, float]:
    """Upper bounds on the probabilities that independent uniform draws have no larger, and no smaller, sum of squares.

    With Q = sum over groups and bins of (c - size / b)^2, both are at most E e^(x Q) e^(-x q) for x <= 0 and x >= 0.
    """
    groups, bins = counts.shape
    size = int(counts[0].sum())
    q = float(((counts - size / bins) ** 2).sum())

    def log_tail(x: float) -> float:
        return groups * _log_moment(x, size, bins) - x * q

    if size < 2 or bins == 1:
        return 1.0, 1.0
    all_in_a_bin = size * (math.log(bins) - 1 + 1 / bins)  # about -log of its Poisson weight
    ends = LOWEST_EXPONENT, (LARGEST_LOG + all_in_a_bin) / (size * (1 - 1 / bins)) ** 2
    logs = [min(log_tail(float(x)) for x in end * np.geomspace(1e-6, 1.0, EXPONENTS)) for end in ends]
    low, high = (min(1.0, max(SMALLEST, math.exp(min(log, 0.0)) * ROUNDING**groups)) for log in logs)
    return low, high


def _log_moment(x: float, size: int, bins: int) -> float:
    """log E exp(x sum of (c - size / bins)^2), c multinomial, by a power of a series of Poisson weights."""
    c, mean = np.arange(size + 1), size / bins
    logs = c * math.log(mean) - mean - special.gammaln(c + 1) + x * (c - mean) ** 2
    top = float(logs.max())
    power, factor, left = np.ones(1), np.exp(logs - top), bins
    log_power = log_factor = 0.0
    while left:
        if left & 1:
            power, log_power = _scaled(np.convolve(power, factor)[: size + 1], log_power + log_factor)
        left >>= 1
        if left:
            factor, log_factor = _scaled(np.convolve(factor, factor)[: size + 1], 2 * log_factor)
    poisson = size * math.log(size) - size - float(special.gammaln(size + 1))
    coefficient = float(power[size])
    return math.log(coefficient) + log_power + bins * top - poisson if coefficient > 0 else math.inf


def _scaled(values: FloatArray, log: float) -> tuple[FloatArray, float]:
    top = float(values.max())
    return (values / top, log + math.log(top)) if top > 0 else (values, log)

"""What a store does not hold and a page shows: how a mechanism's noise is correlated, and who learns what of whom.

In: the record of a run. Out: numbers of the mechanism that its options make again. A mechanism whose noise is not the
one of the record is not shown: another version made it. Losses are kept in report.json and not computed twice.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import networkx as nx
import numpy as np

from .. import __version__, graphs
from ..check import FloatArray
from ..errors import InvalidInput
from ..mechanism import Mechanism
from ..noise.base import NoiseOperator
from ..reporting.comparison_config import ComparisonConfig
from ..reporting.output import json_number
from ..reporting.pairwise import pairwise
from ..reporting.shared import Shared
from .source import Record

SAME_NOISE = 1e-6  # relative: what solvers leave open
LARGEST_MAP = 2000  # steps up to which a matrix over time is formed


class NotShown(Exception):
    """Something is left out, with the reason."""


@dataclasses.dataclass(frozen=True, eq=False)
class Noise:
    """How injected noise is correlated.

    Attributes:
        over_time: C^-1, or the correlation of what one node injects over the steps; None: fresh in every step.
        is_inverse: whether over_time is C^-1; node: whose it is, where nodes differ.
        over_nodes: correlation of what the nodes inject in the last step; None: each node's is its own.
        std: of what each node injects in the last step.
    """

    over_time: FloatArray | None
    is_inverse: bool
    node: str | None
    over_nodes: FloatArray | None
    std: FloatArray


@dataclasses.dataclass(frozen=True, eq=False)
class Made:
    """A record's mechanism with its graph."""

    record: Record
    mechanism: Mechanism
    graph: nx.Graph

    @property
    def labels(self) -> list[str]:
        """Of the nodes, in their order."""
        return [str(label) for label in graphs.labels(self.graph)]

    @property
    def hops(self) -> FloatArray:
        """[u, v]: distance between two nodes."""
        ordered = list(graphs.labels(self.graph))
        index = {label: i for i, label in enumerate(ordered)}
        hops = np.full((len(ordered), len(ordered)), math.inf)
        for label, reached in nx.all_pairs_shortest_path_length(self.graph):
            hops[index[label], [index[other] for other in reached]] = list(reached.values())
        return hops

    @property
    def size(self) -> int:
        """Nodes times steps."""
        return self.mechanism.algorithm.num_nodes * self.mechanism.algorithm.num_steps


def made_again(record: Record, shared: Shared) -> Made:
    """The mechanism of a run; shared: what other runs of this call have made.

    Raises: NotShown: it needs what is not here, or this version makes another one.
    """
    options = dict(record["config"])
    fields = ComparisonConfig.fields()
    renamed = {"lr": "learning_rate", "set": "settings", "mechanism": "mechanisms"}
    given = {renamed.get(name, name): value for name, value in options.items()}
    given |= {"mechanisms": [record["mechanism"]], "seeds": 1, "first_seed": record["seed"], "error_weights": ()}
    given |= {"jobs": 1, "device": None}
    if given.get("epsilon") is not None:
        given["mu"] = None
    try:
        config = ComparisonConfig(
            **{name: value for name, value in given.items() if name in fields and value is not None}
        )
        mechanism = shared.accounted(config, record["mechanism"]).mechanism(config.target)
    except (InvalidInput, RuntimeError, TypeError) as error:
        raise NotShown(f"the mechanism could not be made again: {error}") from None
    if not math.isclose(mechanism.noise_std, record["noise_std"], rel_tol=SAME_NOISE):
        raise NotShown(
            f"this version makes it with noise std {mechanism.noise_std:.6g}, the run had {record['noise_std']:.6g}"
        )
    return Made(record, mechanism, shared.network(config)[0].networkx())


def noise_of(made: Made) -> Noise:
    """How its noise is correlated, over time and over nodes.

    Raises: NotShown: noise is added to messages, or the arrays would be too large.
    """
    noise, n = made.mechanism.algorithm.noise, made.mechanism.algorithm.num_nodes
    if noise.slots_per_step != n:
        raise NotShown("noise is added to messages, not once for each node and step")
    if noise.num_steps > LARGEST_MAP:
        raise NotShown(f"matrices over more than {LARGEST_MAP:,} steps are not drawn")
    last = _rows(noise, [noise.num_steps - 1] * n, list(range(n)))
    covariance = last.T @ last
    std = np.sqrt(np.diagonal(covariance))
    correlation = _correlation(covariance)
    apart = np.abs(correlation - np.eye(n)).max(initial=0.0) < 1e-12
    over_nodes, injected = None if apart else correlation, std * made.mechanism.noise_std
    if noise.fresh:
        return Noise(None, False, None, over_nodes, injected)
    busiest = int(np.argmax([made.graph.degree[label] for label in graphs.labels(made.graph)]))
    causal = noise.causal
    if causal is not None and causal.inverse is not None and (causal.shared or causal.factor is None):
        inverse = causal.inverse_of(busiest)
        shown = np.where(np.tri(noise.num_steps, dtype=bool), inverse, np.nan)
        return Noise(shown, True, None if causal.shared else made.labels[busiest], over_nodes, injected)
    rows = _rows(noise, list(range(noise.num_steps)), [busiest] * noise.num_steps)
    return Noise(_correlation(rows.T @ rows), False, made.labels[busiest], over_nodes, injected)


def _correlation(covariance: FloatArray) -> FloatArray:
    """0 where there is no noise, 1 on the diagonal."""
    std = np.sqrt(np.diagonal(covariance))
    scaled = covariance / np.where(std > 0, std, 1.0)
    made = scaled / np.where(std > 0, std, 1.0)[:, None]
    np.fill_diagonal(made, 1.0)
    return np.asarray(made)


def _rows(noise: NoiseOperator, steps: list[int], slots: list[int]) -> FloatArray:
    """Rows (step, slot) of N as columns, shape (base noise, rows)."""
    unit = np.zeros((noise.shape[0], len(steps)))
    unit[np.array(steps) * noise.slots_per_step + np.array(slots), np.arange(len(steps))] = 1.0
    return np.asarray(noise.rmatmat(unit))


@dataclasses.dataclass(frozen=True, eq=False)
class Pairwise:
    """mu[u, v], what one curious node v learns of victim u: in training, and for gradients fixed in advance."""

    adaptive: FloatArray
    fixed: FloatArray


class Kept:
    """Losses that were computed, by the content of what they are of: report.json."""

    def __init__(self, earlier: Any) -> None:
        held = earlier.get("pairwise") if isinstance(earlier, dict) and earlier.get("mfdl") == __version__ else None
        self.earlier: dict[str, Any] = held if isinstance(held, dict) else {}
        self.used: dict[str, Any] = {}

    def pairwise(self, made: Made) -> Pairwise:
        """Computed now, or kept from an earlier call."""
        key = " ".join([made.mechanism.content_hash, made.record["adjacency"], made.mechanism.guarantee.release])
        entry: Any = self.earlier.get(key)
        if not _is_entry(entry, made.mechanism.algorithm.num_nodes):
            entry = _computed(made)
        self.used[key] = entry
        both = [np.array([[math.nan if v is None else float(v) for v in row] for row in entry[k]]) for k in KINDS]
        return Pairwise(*both)


KINDS = ("mu_adaptive", "mu")


def _is_entry(entry: Any, n: int) -> bool:
    try:
        return all(np.array(entry[kind], dtype=object).shape == (n, n) for kind in KINDS)
    except (KeyError, TypeError, ValueError):
        return False


def _computed(made: Made) -> dict[str, Any]:
    record, mechanism = made.record, made.mechanism
    stated: dict[str, Any] = {name: record[name] for name in ("adjacency", "clip_norm", "unit")}
    release = mechanism.guarantee.release
    if mechanism.sampling is not None:
        raise NotShown("secret batches have no mu, and every message counts as seen: all nodes learn alike")
    try:
        losses = pairwise(
            mechanism.algorithm, **stated, release=release if release != "not applicable" else None, progress=False
        )
    except (InvalidInput, RuntimeError) as error:
        raise NotShown(f"losses against single nodes are refused: {error}") from None
    of = {
        kind: [[json_number(v) for v in row] for row in losses.matrix(mechanism.noise_std, adaptive=adaptive)]
        for kind, adaptive in zip(KINDS, (True, False), strict=True)
    }
    about = ("mechanism", "graph", "trust", "mu", "lr")
    return {**of, "of": {name: record[name] for name in about}, "labels": made.labels, "noise_std": mechanism.noise_std}

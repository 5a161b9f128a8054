"""Numbers of a page that no store holds: correlation of a mechanism's noise, and losses between pairs of nodes.

The mechanism is built again from the options of a record; one whose noise differs from the record's is refused. Losses
are stored in report.json and not computed twice.
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
from ..privacy.questions import Privacy
from ..progress import Silent
from ..runs.cells import Shared
from ..runs.experiment import Experiment
from ..runs.output import json_number
from ..runs.pairwise_losses import pairwise
from .run_groups import ComparableRuns, Record, RunGroup, TrustPanel

SAME_NOISE = 1e-6  # relative: what solvers leave open
LARGEST_MAP = 2000  # steps up to which a matrix over time is formed


class LeftOut(Exception):
    """A part that a page cannot show, with the reason."""


@dataclasses.dataclass(frozen=True, eq=False)
class NoiseCorrelation:
    """Correlation of injected noise.

    Attributes: over_time: C^-1, or the correlation of the noise of one node over the steps; None: independent steps.
        node: of over_time, where nodes differ. over_nodes: in the last step; None: nodes are independent.
        std: of the noise of each node in the last step.
    """

    over_time: FloatArray | None
    is_inverse: bool
    node: str | None
    over_nodes: FloatArray | None
    std: FloatArray


@dataclasses.dataclass(frozen=True, eq=False)
class PairLosses:
    """mu[u, v] of victim u against a single curious node v, for adaptive and non-adaptive gradients."""

    adaptive: FloatArray
    non_adaptive: FloatArray


@dataclasses.dataclass(frozen=True, eq=False)
class Rebuilt:
    record: Record
    mechanism: Mechanism
    graph: nx.Graph

    @property
    def nodes(self) -> list[Any]:
        return list(graphs.labels(self.graph))

    @property
    def labels(self) -> list[str]:
        return [str(label) for label in self.nodes]

    @property
    def hops(self) -> FloatArray:
        """[u, v]: distance between two nodes."""
        index = {label: i for i, label in enumerate(self.nodes)}
        hops = np.full((len(index), len(index)), math.inf)
        for label, reached in nx.all_pairs_shortest_path_length(self.graph):
            hops[index[label], [index[other] for other in reached]] = list(reached.values())
        return hops


def rebuilt(record: Record, shared: Shared) -> Rebuilt:
    """The mechanism of a run. Raises: LeftOut: it cannot be built, or this version builds another one."""
    renamed = {"lr": "learning_rate", "set": "settings", "mechanism": "mechanisms"}
    options = {renamed.get(name, name): value for name, value in record["config"].items()}
    options |= {"mechanisms": [record["mechanism"]], "seeds": 1, "first_seed": record["seed"], "error_weights": ()}
    options |= {"jobs": 1, "device": None}
    if options.get("epsilon") is not None:
        options["mu"] = None
    fields = Experiment.fields()
    try:
        config = Experiment(**{name: value for name, value in options.items() if name in fields and value is not None})
        mechanism = shared.accounted(config, record["mechanism"]).mechanism(config.target)
    except (InvalidInput, RuntimeError, TypeError) as error:
        raise LeftOut(f"the mechanism could not be rebuilt: {error}") from None
    if not math.isclose(mechanism.noise_std, record["noise_std"], rel_tol=SAME_NOISE):
        raise LeftOut(
            f"this version calibrates base noise std {mechanism.noise_std:.6g}, but the run used "
            f"{record['noise_std']:.6g}"
        )
    return Rebuilt(record, mechanism, shared.network(config)[0].networkx())


def noise_correlation(built: Rebuilt) -> NoiseCorrelation:
    """Correlation of its noise, over time and over nodes. Raises: LeftOut: noise on messages, or arrays too large."""
    noise, n = built.mechanism.algorithm.noise, built.mechanism.algorithm.num_nodes
    if noise.slots_per_step != n:
        raise LeftOut("noise is added to messages, not once for each node and step")
    if noise.num_steps > LARGEST_MAP:
        raise LeftOut(f"matrices over more than {LARGEST_MAP:,} steps are not drawn")
    last = _rows(noise, [noise.num_steps - 1] * n, list(range(n)))
    covariance = last.T @ last
    std = np.sqrt(np.diagonal(covariance))
    correlation = _correlation(covariance)
    independent = np.abs(correlation - np.eye(n)).max(initial=0.0) < 1e-12
    over_nodes, injected = None if independent else correlation, std * built.mechanism.noise_std
    if noise.fresh:
        return NoiseCorrelation(None, False, None, over_nodes, injected)
    busiest = int(np.argmax([built.graph.degree[label] for label in built.nodes]))  # exact: degrees
    causal = noise.causal
    if causal is not None and causal.inverse is not None and (causal.shared or causal.factor is None):
        inverse = np.where(np.tri(noise.num_steps, dtype=bool), causal.column_inverse(busiest), np.nan)
        return NoiseCorrelation(inverse, True, None if causal.shared else built.labels[busiest], over_nodes, injected)
    rows = _rows(noise, list(range(noise.num_steps)), [busiest] * noise.num_steps)
    return NoiseCorrelation(_correlation(rows.T @ rows), False, built.labels[busiest], over_nodes, injected)


def _correlation(covariance: FloatArray) -> FloatArray:
    """0 where there is no noise, 1 on the diagonal."""
    std = np.sqrt(np.diagonal(covariance))
    std = np.where(std > 0, std, 1.0)
    correlation = covariance / std / std[:, None]
    np.fill_diagonal(correlation, 1.0)
    return np.asarray(correlation)


def _rows(noise: NoiseOperator, steps: list[int], slots: list[int]) -> FloatArray:
    """Rows (step, slot) of N as columns, shape (base noise, rows)."""
    unit = np.zeros((noise.shape[0], len(steps)))
    unit[np.array(steps) * noise.slots_per_step + np.array(slots), np.arange(len(steps))] = 1.0
    return np.asarray(noise.rmatmat(unit))


KINDS = ("mu_adaptive", "mu")  # of losses, as report.json names them


class LossStore:
    """Computed losses by the content of their mechanism: report.json; used: the entries that this page shows."""

    def __init__(self, content: Any) -> None:
        same_version = isinstance(content, dict) and content.get("mfdl") == __version__
        entries = content.get("pairwise") if same_version else None
        self._earlier: dict[str, Any] = entries if isinstance(entries, dict) else {}
        self.used: dict[str, Any] = {}

    def pairwise(self, built: Rebuilt) -> PairLosses:
        key = " ".join([built.mechanism.content_hash, built.record["adjacency"], built.mechanism.guarantee.release])
        entry: Any = self._earlier.get(key)
        if not _is_entry(entry, len(built.nodes)):
            entry = _computed(built)
        self.used[key] = entry
        return PairLosses(
            *(np.array([[math.nan if v is None else float(v) for v in row] for row in entry[kind]]) for kind in KINDS)
        )


def _is_entry(entry: Any, n: int) -> bool:
    try:
        return all(np.array(entry[kind], dtype=object).shape == (n, n) for kind in KINDS)
    except (KeyError, TypeError, ValueError):
        return False


def _computed(built: Rebuilt) -> dict[str, Any]:
    record, mechanism = built.record, built.mechanism
    if mechanism.sampling is not None:
        raise LeftOut(
            "secret sampling has no mu, and the attacker is assumed to see every message: the privacy "
            "loss is the same to all nodes"
        )
    release = mechanism.guarantee.release
    protected = {name: record[name] for name in ("adjacency", "clip_norm", "unit")}
    protected["release"] = release if release != "not applicable" else None
    try:
        losses = pairwise(mechanism.algorithm, Privacy(**protected), progress=False)
    except (InvalidInput, RuntimeError) as error:
        raise LeftOut(f"losses against single nodes are refused: {error}") from None
    entry: dict[str, Any] = {
        kind: [[json_number(v) for v in row] for row in losses.matrix(mechanism.noise_std, adaptive=adaptive)]
        for kind, adaptive in zip(KINDS, (True, False), strict=True)
    }
    entry["of"] = {name: record[name] for name in ("mechanism", "graph", "trust", "mu", "lr")}
    return entry | {"labels": built.labels, "noise_std": mechanism.noise_std}


@dataclasses.dataclass(frozen=True, eq=False)
class MechanismDetails:
    """A trained mechanism with losses against single nodes and its noise, or the reasons why they are missing."""

    group: RunGroup
    built: Rebuilt | None = None
    losses: PairLosses | None = None
    noise: NoiseCorrelation | None = None
    why_no_losses: str = ""
    why_no_noise: str = ""


def details(
    runs: ComparableRuns, store: LossStore, largest: int, progress: Silent
) -> list[tuple[TrustPanel, list[MechanismDetails]]]:
    """Every mechanism of each panel once, at its middle budget; largest: see `ReportConfig`."""
    groups = [(panel, [_at_middle(panel, name) for name in panel.names]) for panel in runs.panels]
    shared, by_panel = Shared(), list[tuple[TrustPanel, list[MechanismDetails]]]()
    with progress.bar(f"privacy of {runs.name}", sum(len(of_panel) for _, of_panel in groups)) as advance:
        for panel, of_panel in groups:
            by_panel.append((panel, []))
            for group in of_panel:
                advance(0, group.label)
                by_panel[-1][1].append(_details(group, store, largest, shared))
                advance()
    return by_panel


def _at_middle(panel: TrustPanel, name: str) -> RunGroup:
    budgets = sorted({group.budget for group in panel.groups if group.label == name})
    return next(group for group in panel.best_at(budgets[len(budgets) // 2]) if group.label == name)


def _details(group: RunGroup, store: LossStore, largest: int, shared: Shared) -> MechanismDetails:
    try:
        built = rebuilt(group.records[0], shared)
    except LeftOut as reason:
        return MechanismDetails(group, why_no_losses=str(reason), why_no_noise=str(reason))
    result = MechanismDetails(group, built)
    try:
        n, T = built.mechanism.algorithm.num_nodes, built.mechanism.algorithm.num_steps
        size = n * T
        if size > largest:
            raise LeftOut(
                f"{n:,} nodes x {T:,} steps are more than {largest:,}; use `mfdl "
                f"report --largest {size}`, or `mfdl account --trust pndp` for one attacker"
            )
        result = dataclasses.replace(result, losses=store.pairwise(built))
    except LeftOut as reason:
        result = dataclasses.replace(result, why_no_losses=str(reason))
    try:
        return dataclasses.replace(result, noise=noise_correlation(built))
    except LeftOut as reason:
        return dataclasses.replace(result, why_no_noise=str(reason))

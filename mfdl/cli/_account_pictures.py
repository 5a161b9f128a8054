"""The files of `mfdl account --out`: which numbers go into which picture."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from .. import files, graphs
from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..participation import Cyclic, EveryStep, Single
from ..privacy import gaussian
from ..privacy.accounting import VictimLoss, victim_losses
from ..reporting import account as pictures
from ..reporting.pairwise import pairwise_matrix
from ..theory import bounds
from ..trust import LDP

NPZ = "pairwise.npz"
LAYOUT_SEED = 1

By = Mapping[tuple[int, ...], Sequence[VictimLoss]]


class Pictures:
    """One answer of `mfdl account` with what its pictures need besides.

    Args:
        losses: victims by attacking nodes; distances: attackers -> hops by node; mu: loss, adaptive -> mu.
        how: the arguments of `victim_losses` that were used.
    """

    def __init__(
        self,
        answer: dict[str, Any],
        algorithm: LinearAlgorithm,
        graph: nx.Graph,
        losses: By,
        distances: Callable[[Sequence[int]], dict[int, int]],
        mu: Callable[[VictimLoss, bool], float],
        how: dict[str, Any],
    ) -> None:
        self.answer, self.algorithm, self.graph, self.losses = answer, algorithm, graph, losses
        self.mu, self.how = mu, how
        self.labels = [str(label) for label in graphs.labels(graph)]
        self.hops = {nodes: distances(nodes) for nodes in losses}
        shift = gaussian.record_shift(answer["adjacency"], answer["clip_norm"])
        self.unit = (shift / answer["noise_std"]) ** 2 if answer["noise_std"] > 0 else math.inf
        self.many = len(losses) > 1 or "victims" not in answer

    def write(self, folder: Path) -> None:
        """All files into the folder; those of an earlier call that this one does not write are removed."""
        pictures.write_figure(folder, "account", self.by_distance())
        pictures.write_figure(folder, "graph", self.coloured_graph())
        if self.many:
            n = self.algorithm.num_nodes
            single = {nodes[0]: found for nodes, found in self.losses.items()}
            mu = pairwise_matrix(single, n, lambda one: self.mu(one, False))
            arrays: dict[str, Any] = {
                "mu": mu,
                "mu_adaptive": pairwise_matrix(single, n, lambda one: self.mu(one, True)),
                "sensitivity_squared": pairwise_matrix(single, n, lambda one: one.sensitivity_squared),
                "adaptive_sensitivity_squared": pairwise_matrix(
                    single, n, lambda one: one.adaptive_sensitivity_squared
                ),
            }
            buffer = io.BytesIO()
            np.savez_compressed(buffer, labels=np.array(self.labels), **arrays)
            files.atomic_write_bytes(folder / NPZ, buffer.getvalue())
            pictures.write_figure(folder, "pairwise", self.heat_map(mu))
        else:  # last, so that a full disk leaves the earlier answer whole
            for name in (NPZ, "pairwise.png", "pairwise.svg"):
                (folder / name).unlink(missing_ok=True)

    # ---- one picture each --------------------------------------------------------------------------------

    def by_distance(self) -> Any:
        """account: loss by distance, or by victim where attackers have no place in the graph."""
        placed = bool(next(iter(self.losses)))
        pairs = [(self.hops[nodes].get(one.victim, 0), one) for nodes, found in self.losses.items() for one in found]
        hops = np.array([hop for hop, _ in pairs], dtype=np.intp)

        def squared(adaptive: bool) -> FloatArray:
            return np.array([self.mu(one, adaptive) ** 2 for _, one in pairs])

        fixed = squared(False)
        by = sorted({one.adaptive_by for _, one in pairs})
        if self.answer["adaptive"]:
            curves = [pictures.Curve(pictures.FIXED, "ours", "also for training (adaptive)", hops, fixed)]
        else:
            curves = [
                pictures.Curve(pictures.FIXED, "ours, fixed", "gradients fixed in advance", hops, fixed),
                pictures.Curve(
                    pictures.ADAPTIVE, "ours, adaptive", f"training; by {', '.join(by)}", hops, squared(True)
                ),
            ]
        curves += self._published() if placed else []
        local = max(one.sensitivity_squared for one in victim_losses(self.algorithm, LDP(), method="certified"))
        shown: dict[str, Any] = {"caption": self._caption(), "local": local * self.unit}
        if not placed:
            title = f"What each node loses under trust model {self.answer['trust']}"
            return pictures.plot_by_victim(curves, title=title, **shown)
        return pictures.plot_by_distance(curves, title=self._finding(hops, fixed), **shown)

    def coloured_graph(self) -> Any:
        """graph: colours are mu for gradients fixed in advance; of all attackers the one that learns most in sum."""
        nodes = max(self.losses, key=lambda key: sum(self._finite_mu(one) for one in self.losses[key]))
        values = np.full(self.algorithm.num_nodes, math.nan)
        for one in self.losses[nodes]:
            values[one.victim] = self.mu(one, False)
        index = {label: i for i, label in enumerate(graphs.labels(self.graph))}
        layout = nx.spring_layout(self.graph, seed=LAYOUT_SEED)
        choice = ", who learns most in sum," if self.many else ""
        kind = "" if self.answer["adaptive"] else " Colours are for gradients fixed in advance."
        return pictures.plot_graph(
            [(index[a], index[b]) for a, b in self.graph.edges],
            {index[label]: spot for label, spot in layout.items()},
            values,
            nodes,
            self.labels,
            title=f"What {self._attacker(nodes)}{choice} learns of each node"
            if nodes
            else f"What each node loses under trust model {self.answer['trust']}",
            caption=f"{self._setting()}{kind}",
        )

    def heat_map(self, mu: FloatArray) -> Any:
        """pairwise: mu of every victim against every attacker."""
        kind = "" if self.answer["adaptive"] else " For gradients fixed in advance."
        title = f"Who learns what of whom: {self.answer['mechanism']} on {self.answer['graph']}"
        return pictures.plot_pairwise(mu, self.labels, title=title, caption=f"{self._setting()}{kind}")

    # ---- their parts -------------------------------------------------------------------------------------

    def _finite_mu(self, one: VictimLoss) -> float:
        mu = self.mu(one, False)
        return mu if math.isfinite(mu) else 0.0

    def _states_published(self) -> bool:
        """Whether published bounds are stated here: single attackers, a record in every step or in one."""
        return (
            self.answer["trust"] == "pndp"
            and self.answer["mechanism"] in ("dp-dsgd", "muffliato")
            and all(len(nodes) == 1 for nodes in self.losses)
            and self._known_scheme() is not None
        )

    def _known_scheme(self) -> EveryStep | Single | None:
        """The participation the bounds are stated for: every step, or one step of its own."""
        scheme = self.algorithm.participation
        if isinstance(scheme, Cyclic) and scheme.period == 1:
            return EveryStep(scheme.num_steps)
        if isinstance(scheme, Cyclic) and scheme.epochs == 1:
            return Single(scheme.num_steps)
        return scheme if isinstance(scheme, EveryStep | Single) else None

    def _published(self) -> list[pictures.Curve]:
        """The published bounds, where they are stated."""
        algorithm, scheme = self.algorithm, self._known_scheme()
        if not self._states_published():
            return []
        curves = []
        for kind, name, bound in (
            (pictures.SQUARED, "published, squared", bounds.muffliato_squared),
            (pictures.CODED, "published, as coded", bounds.muffliato_as_coded),
        ):
            hops, values, validity = [], [], ""
            for nodes, found in self.losses.items():
                one = bound(
                    algorithm.dynamics.gossip,
                    f"#{nodes[0]}",
                    num_steps=algorithm.num_steps,
                    gossip_rounds=algorithm.dynamics.gossip_rounds,
                    every_step=isinstance(scheme, EveryStep),
                )
                validity = one.validity
                hops += [self.hops[nodes][loss.victim] for loss in found if loss.victim not in nodes]
                values += [np.asarray(one.value)[loss.victim] for loss in found if loss.victim not in nodes]
            losses = np.array(values) * self.unit
            curves.append(pictures.Curve(kind, name, validity, np.array(hops, dtype=np.intp), losses))
        return curves

    def _attacker(self, nodes: tuple[int, ...] | None = None) -> str:
        if nodes is None and self.many:
            return "an attacker"
        inside = next(iter(self.losses)) if nodes is None else nodes
        return ", ".join(self.labels[v] for v in inside)

    def _finding(self, hops: np.ndarray[Any, Any], losses: FloatArray) -> str:
        """What the picture shows, claimed only where it holds."""
        groups = [one for one in pictures.by_distance(hops, losses) if one.distance > 0 and 0 < one.mean < math.inf]
        falling = len(groups) > 1 and all(a.mean > b.mean for a, b in itertools.pairwise(groups))
        if not falling:
            return f"What {self._attacker()} learns of a node, by distance"
        first, last = groups[0], groups[-1]
        fixed = "" if self.answer["adaptive"] else " (fixed gradients)"
        two_digits = float(f"{first.mean / last.mean:.2g}")
        if two_digits >= 1e6:
            ratio = f"over $10^{{{math.floor(math.log10(two_digits))}}}$-fold"
        else:
            ratio = f"{two_digits:,.0f}-fold" if two_digits >= 10 else f"{two_digits:g}-fold"
        return f"What {self._attacker()} learns{fixed} falls {ratio} from distance {first.distance} to {last.distance}"

    def _setting(self) -> str:
        answer = self.answer
        return (
            f"{answer['mechanism']} on {answer['graph']} ({answer['nodes']} nodes), gossip {answer['gossip']}, "
            f"{self.algorithm.participation.describe()}; trust {answer['trust']}, noise std {answer['noise_std']:.4g}, "
            f"{answer['unit']} level, {answer['adjacency']} with clipping norm {answer['clip_norm']:g}, "
            f"released models: {answer['release']}; "
            f"{'upper bounds' if self.how['method'] == 'certified' else 'exact values'}."
        )

    def _caption(self) -> str:
        words = self._setting()
        if next(iter(self.losses)):
            words += " Lines are means, bars reach from the smallest to the largest."
        if not self.answer["adaptive"]:
            words += " Fixed: gradients that do not react to messages; training needs the adaptive number."
        if self._states_published():
            words += " Published bounds are drawn as stated, with what is known of their validity."
        return words

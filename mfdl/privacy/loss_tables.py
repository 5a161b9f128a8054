"""Losses as rows, data frames and heat maps: what one attacker learns of each victim, and many attackers together."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import ArrayLike
from scipy.sparse.csgraph import dijkstra

from ..algorithms import LinearAlgorithm
from ..display import Shown, data_frame
from ..errors import require_known
from .guarantee_texts import DELTA

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

LOSS_COLUMNS = (
    "attacker", "victim", "distance", "mu", "epsilon", "delta", "noise_std", "adaptive", "bound", "trust"
)  # fmt: skip
LOSS_METRICS = ("mu", "epsilon")


class Cells(NamedTuple):
    """The cells of a heat map: victims down, attackers across; nan where there is no number."""

    values: ArrayLike
    victims: list[str]
    attackers: list[str]
    title: str


class LossTable(Shown):
    """Losses that have rows, of one attacker or of several."""

    @abc.abstractmethod
    def rows(self, noise_std: float = 1.0, *, delta: float = DELTA, adaptive: bool = True) -> list[dict[str, Any]]: ...
    @abc.abstractmethod
    def _cells(self, rows: list[dict[str, Any]], metric: str, *, adaptive: bool) -> Cells: ...
    def to_pandas(self, noise_std: float = 1.0, *, delta: float = DELTA, adaptive: bool = True) -> pandas.DataFrame:
        """`rows` as a data frame with the columns LOSS_COLUMNS. Raises: MissingExtra: pandas is not installed."""
        return data_frame(self.rows(noise_std, delta=delta, adaptive=adaptive), LOSS_COLUMNS)

    def heatmap(
        self,
        ax: Axes | None = None,
        *,
        noise_std: float = 1.0,
        metric: str = "mu",
        delta: float = DELTA,
        adaptive: bool = True,
    ) -> Axes:
        """Victims down, attackers across; grey where a node attacks itself; numbers in the cells up to 20 nodes.

        Args: ax: axes to draw in; default those of a new Figure, `.figure` of what is returned. metric: "mu" or
            "epsilon" at `delta`. noise_std, adaptive: as for `rows`. Where every cell is the bound with all messages
            seen, which attackers who miss some have for adaptive gradients, the title says so.
        """
        from ..pictures.drawings import heat_map  # matplotlib only where a picture is wanted

        require_known("metric", metric, LOSS_METRICS)
        cells = self._cells(self.rows(noise_std, delta=delta, adaptive=adaptive), metric, adaptive=adaptive)
        words = metric_in_words(metric, noise_std, delta, adaptive=adaptive)
        return heat_map(cells.values, cells.victims, cells.attackers, words, title=cells.title, ax=ax)


def distances(algorithm: LinearAlgorithm, nodes: Sequence[int]) -> dict[int, int]:
    """Hops from the nearest of these nodes, by node index, over links of any round; empty without nodes."""
    if not nodes:
        return {}
    gossip, rounds = algorithm.dynamics.gossip, algorithm.num_steps * algorithm.dynamics.gossip_rounds
    matrices = {id(W): W.weights for W in (gossip.at(step) for step in range(1 if gossip.is_constant else rounds))}
    links = sum(matrices.values())
    hops = dijkstra(links + links.T, unweighted=True, indices=list(nodes), min_only=True)
    return {u: int(hop) for u, hop in enumerate(hops) if hop < math.inf}


def worst_in_words(name: str, tied: int, *, kind: str = "victim") -> str:
    """A victim, or a pair of attacker and victim, with the largest loss, and how many share it.

    >>> worst_in_words("node 0", 8), worst_in_words("node 3", 1)
    ('node 0, one of 8 that lose most', 'node 3, the worst victim')
    """
    if tied == 1:
        return f"{name}, the worst {kind}"
    return f"{name}, one of {tied}{' pairs' * (kind == 'pair')} that lose most"


def metric_in_words(metric: str, noise_std: float, delta: float, *, adaptive: bool) -> str:
    at = "per unit noise" if noise_std == 1 else f"at noise {noise_std:.4g}"
    kind = "" if adaptive else ", non-adaptive gradients"
    return f"{'μ' if metric == 'mu' else f'ε at δ = {delta:g}'} {at}{kind}"

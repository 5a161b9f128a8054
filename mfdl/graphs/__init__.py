"""Named graphs and graph files, as plain undirected networkx graphs.

In: a spec such as `ring:n=16`, a file, or any networkx graph. Out: a simple `networkx.Graph` without edge weights,
whose nodes stand in label order: integer labels increasing, other labels in order of first appearance. That order is
the node index used everywhere else. A `SparseGraph` (`load_sparse`) is the same as arrays, for graphs that networkx
cannot hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loading import Source, adjacency, content_hash, labels, load, load_sparse, names
    from .loading import label_index as label_index
    from .loading import require_connected as require_connected
    from .loading import resolved_name as resolved_name
    from .simple_graphs import SparseGraph
    from .simple_graphs import is_networkx as is_networkx

__all__ = ["Source", "SparseGraph", "adjacency", "content_hash", "labels", "load", "load_sparse", "names"]


def __getattr__(name: str) -> Any:
    from ..extensions import public

    return public(__name__, name)


def __dir__() -> list[str]:
    return sorted(__all__)

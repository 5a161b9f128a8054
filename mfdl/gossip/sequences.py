"""`GossipSequence`, a gossip matrix for each step, and the communication graph of all rounds of a run."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from .. import check
from ..errors import InvalidInput
from ..matrices import content_hash
from ..spec import storable
from .matrix import Gossip, GossipMatrix, count, strongly_connected

if TYPE_CHECKING:
    import networkx as nx


@storable
@dataclass(frozen=True, eq=False, repr=False)
class GossipSequence(Gossip):
    """Time-varying gossip: `matrices[step]`, from the start again after the last one if `repeat`.

    Raises: InvalidInput: no matrix, something else than a GossipMatrix, or differing labels.
    """

    matrices: tuple[GossipMatrix, ...]
    repeat: bool = True
    name: str = "sequence"

    def __post_init__(self) -> None:
        matrices = round_tuple(self.matrices)
        if not matrices:
            raise InvalidInput("matrices must hold at least one gossip matrix, got none.")
        for position, matrix in enumerate(matrices):
            if not isinstance(matrix, GossipMatrix):
                raise InvalidInput(
                    f"matrices[{position}] must be a GossipMatrix, got {type(matrix).__name__}; wrap an "
                    f"array with gossip.from_array."
                )
            if matrix.labels != matrices[0].labels:
                raise InvalidInput(
                    f"matrices must share one list of node labels, but matrices[{position}] has "
                    f"{_brief(matrix.labels)} and matrices[0] has {_brief(matrices[0].labels)}."
                )
        object.__setattr__(self, "matrices", matrices)

    @property
    def labels(self) -> tuple[Hashable, ...]:  # type: ignore[override]
        return self.matrices[0].labels

    @property
    def is_identity(self) -> bool:
        return all(matrix.is_identity for matrix in self.matrices)

    @property
    def num_steps(self) -> int | None:
        """Number of steps, None if the sequence repeats for ever."""
        return None if self.repeat else len(self.matrices)

    def at(self, step: int) -> GossipMatrix:
        """Raises: InvalidInput: a negative step, or one past the end of a sequence that does not repeat."""
        step = check.integer_at_least(0, step=step)
        if step >= len(self.matrices) and not self.repeat:
            raise InvalidInput(
                f"step must be below {len(self.matrices)}, the length of this gossip sequence, got {step}; "
                f"give more matrices or use repeat=True."
            )
        return self.matrices[step % len(self.matrices)]

    @cached_property
    def is_constant(self) -> bool:
        return self.repeat and len({matrix.content_hash for matrix in self.matrices}) == 1

    @cached_property
    def is_symmetric(self) -> bool:
        return all(matrix.is_symmetric for matrix in self.matrices)

    @cached_property
    def is_doubly_stochastic(self) -> bool:
        return all(matrix.is_doubly_stochastic for matrix in self.matrices)

    @cached_property
    def is_connected(self) -> bool:
        return strongly_connected(sum(matrix.weights for matrix in self.matrices))

    @cached_property
    def content_hash(self) -> str:
        return content_hash(" ".join([str(self.repeat), *(matrix.content_hash for matrix in self.matrices)]))

    def describe(self) -> str:
        facts = [
            "all symmetric" if self.is_symmetric else "not all symmetric",
            "all doubly stochastic" if self.is_doubly_stochastic else "not all doubly stochastic",
            "connected together" if self.is_connected else "not connected even together",
        ]
        end = "repeated" if self.repeat else "not repeated"
        return (
            f"sequence of {len(self.matrices)} gossip {'matrix' if len(self.matrices) == 1 else 'matrices'}, "
            f"{end}, on {count(self.num_nodes, 'node')}: {', '.join(facts)}"
        )


def round_tuple(matrices: Iterable[GossipMatrix]) -> tuple[GossipMatrix, ...]:
    """The matrices as a tuple. Raises: InvalidInput: one matrix, or anything else that is no list of them."""
    if not isinstance(matrices, Iterable):
        raise InvalidInput(
            f"matrices must be a list of gossip matrices, one for each step, got {check.brief(matrices)}; give "
            "mfdl.gossip.sequence([W1, W2, ...]), or one W without a sequence: it is used at every step."
        )
    return tuple(matrices)


def _brief(labels: tuple[Hashable, ...]) -> str:
    return f"{len(labels)} labels from {labels[0]!r}"


def communication_graph(gossip: Gossip, num_rounds: int) -> nx.Graph:
    """An edge where some round gives weight; nodes are the labels, so `graphs.content_hash` is that of the graph.

    Its name, `graph.name`, is the one all rounds share, else "4 nodes, 4 edges".

    >>> from mfdl import gossip
    >>> communication_graph(gossip.metropolis_hastings("ring:n=4"), 2).name
    'ring:n=4'
    >>> communication_graph(gossip.from_array([[0.5, 0.5], [0.5, 0.5]]), 2).name
    '2 nodes, 1 edge'

    Args: num_rounds: of the run; looked at one by one where gossip is of a class of the user's own.
    Cost: O(weights of all rounds that differ).
    """
    rounds = _rounds(gossip, num_rounds)
    import networkx as nx

    union = nx.compose_all(W.graph() for W in rounds)
    named = {W.graph_name for W in rounds}
    graph = nx.relabel_nodes(union, dict(enumerate(gossip.labels)))
    size = f"{count(graph.number_of_nodes(), 'node')}, {count(graph.number_of_edges(), 'edge')}"
    graph.graph["name"] = (named.pop() if len(named) == 1 else "") or size
    return graph


def _rounds(gossip: Gossip, num_rounds: int) -> list[GossipMatrix]:
    if gossip.is_constant:
        return [gossip.at(0)]
    matrices = gossip.matrices if isinstance(gossip, GossipSequence) else map(gossip.at, range(num_rounds))
    return list({W.content_hash: W for W in matrices}.values())

"""Which secret makes which part of the base noise: one key per set of nodes that share noise.

In: a noise operator, whose columns name their holders (one node, both ends of an edge, a group), and keys by
holders. Out: the base normals of any step. Column c of a step, the j-th among the columns of its holder set S, is
`normals(key of S, step, [j], dim)`: both ends of an edge make identical normals, a node makes its own from the keys
it holds, and no other node can make any of them. How keys are agreed on is in `key_agreement`, what one node adds in
`streams`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from .. import check
from ..errors import InvalidInput
from ..noise import NoiseOperator
from .keys import ColumnNormals, NoiseKey, require_key

Holders = frozenset[int]


class HolderKeys:
    """The secrets of one run by who holds them: holder set -> NoiseKey.

    A secret serves one run: the same keys in a second run repeat its noise, and the difference of the two shows the
    gradients. Neither `repr` nor any message shows a secret; pickling carries them, as it does for `NoiseKey`.
    """

    __slots__ = ("_given", "_node", "_root")

    def __init__(self, root: NoiseKey | None, given: Mapping[Holders, NoiseKey], node: int | None = None) -> None:
        """Use `simulated` or `given`."""
        self._root, self._given, self._node = root, dict(given), node

    @classmethod
    def simulated(cls, root: NoiseKey) -> HolderKeys:
        """All keys of a simulation in one process: `root.derive("holders", *sorted nodes)`.

        >>> keys = HolderKeys.simulated(NoiseKey.from_seed(0))
        >>> keys.key_of({3, 1}) == NoiseKey.from_seed(0).derive("holders", 1, 3)
        True
        """
        require_key(root=root)
        return cls(root, {})

    @classmethod
    def given(cls, keys: Mapping[Iterable[int], NoiseKey]) -> HolderKeys:
        """Keys that were agreed on, e.g. `HolderKeys.given({(0,): own, (0, 1): shared})`.

        Raises:
            InvalidInput: a holder set is empty, named twice or not of node indices; a value is not a NoiseKey; two
                holder sets have one secret, so that noise counted as independent would be equal.
        """
        known: dict[Holders, NoiseKey] = {}
        owner: dict[NoiseKey, Holders] = {}
        for nodes, key in keys.items():
            holders = holder_set(nodes)
            if not isinstance(key, NoiseKey):
                raise InvalidInput(f"the secret of {_name(holders)} must be a NoiseKey, got {type(key).__name__}.")
            if holders in known:
                raise InvalidInput(f"keys names the holder set {_name(holders)} twice; one set has one secret.")
            if key in owner:
                raise InvalidInput(
                    f"{_name(owner[key])} and {_name(holders)} were given the same secret, and their noise would be "
                    "equal; draw one secret per holder set."
                )
            known[holders], owner[key] = key, holders
        return cls(None, known)

    def key_of(self, holders: Iterable[int]) -> NoiseKey:
        """The secret of a holder set.

        Raises: InvalidInput: naming the set, when its secret is not here.
        """
        wanted = frozenset(holders)
        if self._node is not None and self._node not in wanted:
            raise InvalidInput(
                f"node {self._node} needs the secret of {_name(wanted)}, which it does not hold; this noise cannot be "
                "made node by node."
            )
        if self._root is not None:
            return self._root.derive("holders", *sorted(wanted))
        if wanted not in self._given:
            raise InvalidInput(
                f"the secret of {_name(wanted)} is missing; agree on one with its holders (key_agreement) and pass it "
                "to HolderKeys.given."
            )
        return self._given[wanted]

    def of_node(self, node: int) -> HolderKeys:
        """What one node holds: the keys of the sets it belongs to.

        Of a simulation, the view still carries the root secret; only its use is restricted.
        """
        node = check.integer_at_least(0, node=node)
        if self._node not in (None, node):
            raise InvalidInput(f"these are the keys of node {self._node}, which cannot answer for node {node}.")
        return HolderKeys(self._root, {s: key for s, key in self._given.items() if node in s}, node)

    def __repr__(self) -> str:
        node = "" if self._node is None else f"node={self._node}, "
        if self._root is not None:
            return f"HolderKeys({node}simulated, key_id={self._root.key_id!r})"
        return f"HolderKeys({node}holders=[{', '.join(map(_name, self._given))}])"


def columns_by_holders(noise: NoiseOperator) -> dict[Holders, NDArray[np.int64]]:
    """Columns of one step of the base noise by who holds them, each list increasing.

    >>> from mfdl.noise import IndependentNoise
    >>> columns_by_holders(IndependentNoise(num_steps=5, num_nodes=2))
    {frozenset({0}): array([0]), frozenset({1}): array([1])}

    Guarantees: every column of a step is in exactly one list.
    Raises: InvalidInput: `noise.holders()` does not have one row per column and one column per node.
    Cost: O(holders of all columns).
    """
    table = sp.csr_array(noise.holders(), dtype=bool, copy=True)
    if table.shape != (noise.columns_per_step, noise.num_nodes):
        raise InvalidInput(
            f"holders() of {type(noise).__name__} must have shape {(noise.columns_per_step, noise.num_nodes)}, one row "
            f"per column of a step, got {table.shape}."
        )
    table.eliminate_zeros()
    table.sort_indices()
    of_nodes: dict[bytes, list[int]] = {}  # by bytes: a group of all nodes holds many columns
    for column, (start, stop) in enumerate(itertools.pairwise(table.indptr)):
        of_nodes.setdefault(table.indices[start:stop].tobytes(), []).append(column)
    return {
        frozenset(np.frombuffer(nodes, table.indices.dtype).tolist()): np.array(columns, dtype=np.int64)
        for nodes, columns in of_nodes.items()
    }


def base_columns(
    noise: NoiseOperator,
    keys: HolderKeys,
    columns: Iterable[int] | NDArray[np.int64] | None = None,
    *,
    shard: int = 0,
) -> ColumnNormals:
    """The base normals of a step, ready for any step: `base_columns(noise, keys).step(t, dim)` is Z_t.

    Args:
        columns: which columns of a step, in the order wanted; default all.
        shard: which part of the coordinates, see `ColumnNormals`.
    Raises: InvalidInput: the secret of a holder set of these columns is missing; or as `columns_by_holders`.
    Cost: one key derivation per holder set, once; then that of `normals_block`.
    """
    sets = columns_by_holders(noise)
    sizes = np.array([*map(len, sets.values())], dtype=np.int64)
    grouped = np.concatenate([*sets.values(), np.empty(0, dtype=np.int64)])
    number, place = np.empty_like(grouped), np.empty_like(grouped)  # of its holder set, and of the column within it
    number[grouped] = np.repeat(np.arange(sizes.size), sizes)
    place[grouped] = np.arange(grouped.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    wanted = np.arange(grouped.size) if columns is None else np.asarray([*columns], dtype=np.int64)
    holders, numbers = [*sets], number[wanted].tolist()
    derived = {i: keys.key_of(holders[i]) for i in dict.fromkeys(numbers)}
    return ColumnNormals([derived[i] for i in numbers], place[wanted], shard=shard)


def holder_set(nodes: Iterable[int]) -> Holders:
    """A checked holder set: distinct node indices >= 0, at least one."""
    try:
        listed = list(nodes)
    except TypeError:
        raise InvalidInput(f"a holder set must be several node indices, got {nodes!r}; write ({nodes!r},).") from None
    holders = frozenset(check.integer_at_least(0, holder=node) for node in listed)
    if not holders or len(holders) != len(listed):
        raise InvalidInput(f"a holder set must hold distinct node indices, at least one, got {listed}.")
    return holders


def _name(holders: Iterable[int]) -> str:
    nodes = sorted(holders)
    listed = ", ".join(map(str, nodes[:10])) + (f", ... {len(nodes)} nodes" if len(nodes) > 10 else "")
    return "{" + listed + "}"

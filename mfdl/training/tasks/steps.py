"""When a record takes part: the public map from records to steps, the same in all epochs.

In: the rows each node holds, a period and a seed. Out: the row at every (node, step class, slot).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ... import check
from ...errors import InvalidInput
from . import seeds
from .partition import Rows

Period = int | Sequence[int]
"""Steps per epoch: one number for all nodes, or one per node."""


def periods_of_nodes(period: Period, num_nodes: int) -> tuple[int, ...]:
    """b_u of each node.

    Raises: InvalidInput: no integers >= 1, or another number of them than nodes.
    """
    if not isinstance(period, Sequence) or isinstance(period, str):
        return (check.integer_at_least(1, period=period),) * num_nodes
    if len(period) != num_nodes:
        raise InvalidInput(f"period must be one number or one for each of {num_nodes} nodes, got {len(period)}.")
    return tuple(check.integer_at_least(1, period=b) for b in period)


def record_index(held: Sequence[Rows], *, seed: int, periods: Sequence[int]) -> Rows:
    """Rows of the records at (node, step class, slot), -1 where there is none; held are the rows of each node.

    Raises: InvalidInput: a node holds fewer records than its period has steps.
    """
    sizes, period_of = np.array([*map(len, held)]), np.asarray(periods)
    num_records, num_nodes = int(sizes.sum()), len(held)
    missing = period_of - sizes
    if missing.max() > 0:
        u = int(missing.argmax())
        raise InvalidInput(
            f"each node needs at least period={periods[u]} records for non-empty batches, got {sizes[u]} at node "
            f"{u} ({num_records} records over {num_nodes} nodes); use period <= {sizes[u]}, a smaller graph, more "
            "records, or a partition that gives each node more (min_records=... of Dirichlet)."
        )
    index = np.full((num_nodes, max(periods), int((-(-sizes // period_of)).max())), -1, dtype=np.int64)
    order = seeds.permutation(seed, seeds.BATCH_ORDER, num_records)  # one rank per record, so an order at each node
    rows, node = np.concatenate(held), np.repeat(np.arange(num_nodes), sizes)
    position = np.arange(num_records) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    b = period_of[node]
    index[node, position % b, position // b] = rows[np.lexsort((order[rows], node))]
    return index

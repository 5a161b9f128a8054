"""Muffliato, arXiv:2206.05091 [CEBM22]: the pairwise loss by distance in the graph, as proved in part and as coded.

`published_losses` shows the bounds beside the losses of `mfdl account`, in its picture.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from mfdl import check
from mfdl.algorithms import LinearAlgorithm
from mfdl.check import FloatArray
from mfdl.extensions import PublishedLosses
from mfdl.gossip import Gossip
from mfdl.spec import takes_fields_of

from ..facts import errata
from ..published import NON_ADAPTIVE, PublishedBound, constant, node_index


@dataclasses.dataclass(frozen=True, eq=False)
class _Pairs:
    """The arguments of `muffliato_squared`, which documents them."""

    gossip: Gossip
    attacker: Hashable
    _: dataclasses.KW_ONLY
    num_steps: int
    gossip_rounds: int = 1
    every_step: bool = True
    transposed: bool = False


@takes_fields_of(_Pairs)
def muffliato_squared(pairs: _Pairs) -> PublishedBound:
    """What attacker v learns of each node u, by the sum of (W^s)_wu^2 / ||(W^s)_w||^2 over neighbours w of v.

    With T gradient steps and K gossip rounds after each, the pair (gradient, message) that is s rounds apart
    occurs T - floor(s / K) times, s = 0 .. K T - 1:

        min(T, sum_s (T - floor(s / K)) sum_{w in N(v), w != v} (W^s)_wu^2 / ||(W^s)_w||^2)

    Source: [CEBM22] arXiv:2206.05091, pairwise loss of Muffliato, as in its public code, applied to every
        (gradient, message) pair; the minimum with the local value T is ours, and always allowed.
    Claims: sens^2 of u against v per unit record shift and noise std, for T participations of u (1 if not
        `every_step`, then every s counts once and the minimum is with 1).
    Errata: `muffliato-several-gossip-rounds`, `muffliato-several-participations`: a message that holds the noise of one
        injection only has exactly this loss, but losses of messages that share noise do not add.
    Validity: "bound" for K = 1, one participation and non-adaptive gradients; else "heuristic".
        Proof of that case: subtract from each message of a neighbour w what earlier seen messages contribute.
        What is left is u's gradient carried along paths through unseen nodes, weight 0 <= a' <= (W^s)_wu, plus
        w's fresh noise of that step, of variance 1 and independent of the rest. So sens^2 <= sum a'^2, and
        ||(W^s)_w|| <= 1.

    Args:
        gossip: constant gossip W; w is a neighbour of v where W_vw > 0.
        attacker: v, a label of `gossip`, or an index written "#0". num_steps: T; gossip_rounds: K.
        every_step: u takes part in all T steps, not in one only.
        transposed: read (W^s)[u, w] / ||(W^s)[:, w]|| instead, as some public code does; never certified.

    Raises: InvalidInput: attacker unknown, or a count below 1. UnsupportedMechanism: W changes over time.
    Cost: O(K T nnz(W) neighbours) time, O(n neighbours) memory, all victims at once.
    """
    source = "[CEBM22] arXiv:2206.05091, pairwise loss of Muffliato, squared weights, over all gradient-message pairs"
    return _bound(pairs, source, "muffliato-several-gossip-rounds", "muffliato-several-participations")


@takes_fields_of(_Pairs)
def muffliato_as_coded(pairs: _Pairs) -> PublishedBound:
    """The baseline of Figure 2 of [MF]: numerator not squared, the attacker counted among its neighbours.

        min(T, sum_s (T - floor(s / K)) sum_{w in N(v) and w = v} (W^s)_wu / ||(W^s)_w||^2)

    Source: public code of [MF] arXiv:2510.17480, which cites a corrected theorem 11 of [CEBM22]; in no document.
        That code reads the weights transposed and has K = 1: `transposed=True` is its exact index.
    Claims, Args, Raises, Cost: those of `muffliato_squared`.
    Errata: `muffliato-as-coded`, `muffliato-as-coded-several-rounds`: not squaring makes it at least
        `muffliato_squared`, so much that a comparison with it says little.
    Validity: that of `muffliato_squared`, as it is never below it.
    """
    source = "[MF] arXiv:2510.17480, public code of Figure 2, baseline after [CEBM22] arXiv:2206.05091"
    return _bound(pairs, source, "muffliato-as-coded", "muffliato-as-coded-several-rounds", as_coded=True)


def _bound(pairs: _Pairs, source: str, *facts: str, as_coded: bool = False) -> PublishedBound:
    value = _sums(pairs, as_coded)
    validity = f"bound {NON_ADAPTIVE}, one participation, one gossip round"
    if pairs.gossip_rounds > 1:
        validity = "heuristic for K > 1"
    elif pairs.transposed or pairs.every_step:
        validity = f"heuristic{': transposed index' if pairs.transposed else ' for several participations'}"
    erratum = errata(*facts, "muffliato-transposed-index")
    return PublishedBound(value, "sensitivity_squared", source, erratum, validity)


def _sums(pairs: _Pairs, as_coded: bool) -> FloatArray:
    T = check.integer_at_least(1, num_steps=pairs.num_steps)
    K = check.integer_at_least(1, gossip_rounds=pairs.gossip_rounds)
    matrix = constant(pairs.gossip)
    W = matrix.weights
    v = node_index(matrix.labels, pairs.attacker)
    seen = np.unique(np.append(W.indices[W.indptr[v] : W.indptr[v + 1]], v))
    if not as_coded:
        seen = seen[seen != v]
    step = W if pairs.transposed else W.T.tocsr()
    rows = np.zeros((W.shape[0], len(seen)))  # column per seen node w: row w of W^s, or its column if transposed
    rows[seen, np.arange(len(seen))] = 1.0
    total = np.zeros(W.shape[0])
    for s in range(K * T):
        count = T - s // K if pairs.every_step else 1
        norms = (rows**2).sum(axis=0)  # 0 only for a transposed column, whose numerator is 0 as well
        total += count * ((rows if as_coded else rows**2) / np.where(norms > 0, norms, 1.0)).sum(axis=1)
        rows = step @ rows
    value: FloatArray = np.minimum(total, T if pairs.every_step else 1)
    value[v] = math.inf
    return value


Bound = Callable[..., PublishedBound]
BOUNDS: dict[str, Bound] = {"published, squared": muffliato_squared, "published, as coded": muffliato_as_coded}


def published_losses(
    mechanism: str, trust: str, algorithm: LinearAlgorithm, attackers: Sequence[tuple[int, ...]]
) -> list[PublishedLosses]:
    """Privacy losses by both published bounds; none but for single attackers and a record in every step or in one."""
    scheme = algorithm.participation
    every_step = scheme.in_every_step
    once = not scheme.secret and all(each.patterns_of_record().uses == 1 for each in scheme.distinct())
    single = trust == "pndp" and all(len(nodes) == 1 for nodes in attackers)
    if not (single and mechanism in ("dp-dsgd", "muffliato") and (every_step or once)):
        return []
    published, dynamics = [], algorithm.dynamics
    options: dict[str, Any] = {"num_steps": algorithm.num_steps, "gossip_rounds": dynamics.gossip_rounds}
    for name, bound in BOUNDS.items():
        by_attacker = [bound(dynamics.gossip, f"#{v}", every_step=every_step, **options) for (v,) in attackers]
        squared = {nodes: np.asarray(of_one.value) for nodes, of_one in zip(attackers, by_attacker, strict=True)}
        published.append(PublishedLosses(name, by_attacker[0].validity, squared))
    return published

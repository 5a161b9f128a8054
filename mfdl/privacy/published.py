"""Published privacy bounds, each as printed or as coded by its authors, with what is known to be wrong with it.

In: gossip matrices, graphs, covariances, noise levels. Out: `PublishedBound`. These exist to be compared with:
for a guarantee use the library's own accounting. Papers, by arXiv id:

- [CEBM22] 2206.05091, Muffliato, pairwise loss by distance in the graph.
- [DECOR] 2405.01031, noise that cancels between neighbours.
- [CorN] 2501.14644v2 and [Whisper] 2501.14644v1, noise with a covariance R over nodes.
- [MF] 2510.17480, decentralized learning as a matrix factorization.

What every one of them leaves out: pairwise bounds, where messages are hidden from the attacker, hold for
gradients fixed in advance at most. On the path u - w - v with two steps, a gradient of w that reacts to what u
sent has total variation 0.271, where Muffliato's bound of 1/3 for mu^2 allows 0.227.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from .. import check, graphs, spatial
from ..check import FloatArray
from ..errors import InvalidInput, UnsupportedMechanism
from ..gossip import Gossip, GossipMatrix
from .gaussian import epsilon_from_mu, mu_from_epsilon

Quantity = Literal["sensitivity_squared", "mu", "renyi slope", "epsilon"]

COROLLARY_RANGE = 8 * (1 - 1 / math.sqrt(2))  # 2.343: times log(1/delta), the largest epsilon that is met


@dataclass(frozen=True, eq=False)
class PublishedBound:
    """One published number, or one per victim, and what to think of it.

    Attributes:
        value: the number; an array in node order where it is one per victim, inf for the attackers themselves.
        quantity: "sensitivity_squared" (mu^2 per unit record shift and noise), "mu", "renyi slope" (Rényi loss
            of order a is a * value, for all a > 1, so value = mu^2 / 2) or "epsilon" (at the delta given).
        source: paper and item.
        erratum: what is wrong or missing in it; empty if nothing is known.
        validity: "bound ...", "heuristic ..." or "refuted: ...", with the conditions.
        valid: True if proved under the conditions in `validity`, False if refuted, None if neither.
    """

    value: float | FloatArray
    quantity: Quantity
    source: str
    erratum: str
    validity: str
    valid: bool | None

    def __post_init__(self) -> None:
        if isinstance(self.value, np.ndarray):
            self.value.setflags(write=False)

    @property
    def mu(self) -> float | FloatArray:
        """The same number as a Gaussian DP parameter, per unit record shift and noise for a sensitivity.

        Raises: InvalidInput: the quantity is an epsilon, which fixes no mu without its delta.
        """
        if self.quantity == "mu":
            return self.value
        if self.quantity == "epsilon":
            raise InvalidInput("a bound on epsilon has no mu of its own; use gaussian.mu_from_epsilon with its delta.")
        squared = self.value if self.quantity == "sensitivity_squared" else 2 * self.value
        mu = np.nextafter(np.sqrt(squared), math.inf) * (np.asarray(squared) > 0)
        return mu if isinstance(self.value, np.ndarray) else float(mu)


# ---- Muffliato -------------------------------------------------------------------------------------------

_MUFFLIATO_HIDDEN = (
    "Adds up losses of single messages as if their noises were independent, though messages share them. "
)
_REFUTED_REPEATED = (
    "Wrong in general when a node takes part in several steps, also with one gossip round: 3 nodes, W_uw = W_vv = "
    "0.1, W_uu = W_wv = 0.9, attacker v, T = 3: 0.0362 claimed for u, exactly 0.0450. "
)
_REFUTED_ROUNDS = (
    "Wrong in general with several gossip rounds per gradient: path u - w - v, 2 rounds, one gradient: 1/3 claimed, "
    "exactly 1. "
)
_INDEX = (
    "With `transposed` the weights are read as (W^s)[u, w] and columns of W^s, as in public code; the weight of "
    "u's noise in w's message is (W^s)[w, u], the same only for symmetric W. "
)
_FIXED = "for gradients fixed in advance"


def muffliato_squared(
    gossip: Gossip,
    attacker: Hashable,
    *,
    num_steps: int,
    gossip_rounds: int = 1,
    every_step: bool = True,
    transposed: bool = False,
) -> PublishedBound:
    """What attacker v learns of each node u, by the sum of (W^s)_wu^2 / ||(W^s)_w||^2 over neighbours w of v.

    With T gradient steps and K gossip rounds after each, the pair (gradient, message) that is s rounds apart
    occurs T - floor(s / K) times, s = 0 .. K T - 1:

        min(T, sum_s (T - floor(s / K)) sum_{w in N(v), w != v} (W^s)_wu^2 / ||(W^s)_w||^2)

    Source: [CEBM22] arXiv:2206.05091, pairwise loss of Muffliato, as in its public code, applied to every
        (gradient, message) pair; the minimum with the local value T is ours, and always allowed.
    Claims: sens^2 of u against v per unit record shift and noise std, for T participations of u (1 if not
        `every_step`, then every s counts once and the minimum is with 1).
    Erratum: a message that holds the noise of one injection only has exactly this loss, but losses of messages
        that share noise do not add. Random graphs with K = 2, 3, 5: below the exact value in 99 of 246 cases.
        With K = 1 and a record used in several steps it is refuted as well (see `erratum` of the result).
    Validity: "bound" for K = 1, one participation and fixed gradients; else "heuristic".
        Proof of that case: subtract from each message of a neighbour w what earlier seen messages contribute.
        What is left is u's gradient carried along paths through unseen nodes, weight 0 <= a' <= (W^s)_wu, plus
        w's fresh noise of that step, of variance 1 and independent of the rest. So sens^2 <= sum a'^2, and
        ||(W^s)_w|| <= 1.

    Args:
        gossip: constant gossip W; w is a neighbour of v where W_vw > 0.
        attacker: v, a label of `gossip`, or an index written "#0".
        num_steps: T >= 1; gossip_rounds: K >= 1.
        every_step: u takes part in all T steps, not in one only.
        transposed: read (W^s)[u, w] / ||(W^s)[:, w]|| instead, as some public code does; never certified.

    Raises:
        InvalidInput: attacker unknown, or a count below 1. UnsupportedMechanism: W changes over time.
    Cost: O(K T nnz(W) neighbours) time, O(n neighbours) memory, all victims at once.
    """
    value = _muffliato(gossip, attacker, num_steps, gossip_rounds, every_step, transposed, as_coded=False)
    return _muffliato_bound(
        value,
        "[CEBM22] arXiv:2206.05091, pairwise loss of Muffliato, squared weights, over all gradient-message pairs",
        _MUFFLIATO_HIDDEN + _REFUTED_REPEATED + _REFUTED_ROUNDS + _INDEX,
        gossip_rounds,
        every_step,
        transposed,
    )


def muffliato_as_coded(
    gossip: Gossip,
    attacker: Hashable,
    *,
    num_steps: int,
    gossip_rounds: int = 1,
    every_step: bool = True,
    transposed: bool = False,
) -> PublishedBound:
    """The baseline of Figure 2 of [MF]: numerator not squared, the attacker counted among its neighbours.

        min(T, sum_s (T - floor(s / K)) sum_{w in N(v) and w = v} (W^s)_wu / ||(W^s)_w||^2)

    Source: public code of [MF] arXiv:2510.17480, where it stands for a corrected [CEBM22]; in no document.
        That code reads the weights transposed and has K = 1: `transposed=True` is its exact index.
    Claims: sens^2 as in `muffliato_squared`.
    Erratum: not squaring makes it at least `muffliato_squared`, so much that it is the local value T at almost
        every distance (Florentine families, T = 10: at all of them): a comparison with it says little. With K > 1
        still below the exact value in 15 of 246 random cases.
    Validity: "bound" for K = 1, one participation and fixed gradients, as it is above `muffliato_squared`; else
        "heuristic".

    Args, Raises, Cost: those of `muffliato_squared`.
    """
    value = _muffliato(gossip, attacker, num_steps, gossip_rounds, every_step, transposed, as_coded=True)
    return _muffliato_bound(
        value,
        "[MF] arXiv:2510.17480, public code of Figure 2, baseline after [CEBM22] arXiv:2206.05091",
        _MUFFLIATO_HIDDEN
        + "The weights are not squared and the attacker counts as its own neighbour: close to the local value at every "
        "distance. " + _INDEX,
        gossip_rounds,
        every_step,
        transposed,
    )


def _muffliato_bound(
    value: FloatArray, source: str, erratum: str, rounds: int, every_step: bool, transposed: bool
) -> PublishedBound:
    proved = rounds == 1 and not every_step and not transposed
    if proved:
        validity = f"bound {_FIXED}, one participation, one gossip round"
    elif rounds > 1:
        validity = "heuristic for K > 1"
    elif transposed:
        validity = "heuristic: transposed index"
    else:
        validity = "heuristic for several participations"
    return PublishedBound(value, "sensitivity_squared", source, erratum.strip(), validity, True if proved else None)


def _muffliato(
    gossip: Gossip,
    attacker: Hashable,
    num_steps: int,
    gossip_rounds: int,
    every_step: bool,
    transposed: bool,
    *,
    as_coded: bool,
) -> FloatArray:
    T = check.integer_at_least(1, num_steps=num_steps)
    K = check.integer_at_least(1, gossip_rounds=gossip_rounds)
    if not gossip.is_constant:
        raise UnsupportedMechanism(f"gossip {gossip.name!r} must be the same in every step; this bound has one W.")
    matrix: GossipMatrix = gossip.at(0)
    W = matrix.weights
    v = _node(matrix.labels, attacker)
    seen = np.unique(np.append(W.indices[W.indptr[v] : W.indptr[v + 1]], v))
    if not as_coded:
        seen = seen[seen != v]
    step = W if transposed else W.T.tocsr()
    rows = np.zeros((W.shape[0], len(seen)))  # column per seen node w: row w of W^s, or its column if transposed
    rows[seen, np.arange(len(seen))] = 1.0
    total = np.zeros(W.shape[0])
    for s in range(K * T):
        count = T - s // K if every_step else 1
        total += count * ((rows if as_coded else rows**2) / _positive((rows**2).sum(axis=0))).sum(axis=1)
        rows = step @ rows
    value: FloatArray = np.minimum(total, T if every_step else 1)
    value[v] = math.inf
    return value


def _positive(norms: FloatArray) -> FloatArray:
    """Squared norms; 1 in place of 0, which only a transposed column can reach and whose numerator is 0."""
    return np.where(norms > 0, norms, 1.0)


def _node(labels: tuple[Hashable, ...], label: Hashable) -> int:
    if label in labels:
        return labels.index(label)
    by_text = {str(known): index for index, known in enumerate(labels)}
    by_text.update({f"#{index}": index for index in range(len(labels)) if f"#{index}" not in by_text})
    if str(label) in by_text:
        return by_text[str(label)]
    raise InvalidInput(
        f"attacker {str(label)!r} is not a node; give one of its {len(labels)} labels, from {labels[0]!r}, or an "
        f"index, '#0' to '#{len(labels) - 1}'."
    )


# ---- DECOR -----------------------------------------------------------------------------------------------


class DecorNoise(NamedTuple):
    """Standard deviations of `decor_corollary`, and the epsilon they are certified for."""

    sigma_local: float
    sigma_pair: float
    bound: PublishedBound


def decor_theorem(
    graph: graphs.Source,
    *,
    sigma_local: float,
    sigma_pair: float,
    num_colluders: int = 0,
    clip_norm: float = 1.0,
    num_steps: int = 1,
) -> PublishedBound:
    """Upper bound on the Rényi slope of pairwise noise, from the algebraic connectivity a_q.

        2 C^2 T [1 / (m s_local^2) + (1 - 1/m) / (s_local^2 + a_q s_pair^2)],  m = n - q

    Source: [DECOR] arXiv:2405.01031, Theorem 1 (Theorem 6 for q colluders), times T by composition.
    Claims: the slope for any victim and any q colluders who know the seeds of their own edges; all messages seen.
    Erratum: none in the formula. Noise must be drawn afresh in every step: part of the public experiments reuse
        the pairwise noise, and then this number does not apply (accounted 10.46, true Rényi bound 37.99).
    Validity: "bound", also for adaptive gradients, under replace-one (a record moves a gradient by 2 C).

    Args:
        graph: anything `graphs.load` reads.
        sigma_local, sigma_pair: standard deviations, > 0 and >= 0, see `spatial.decor_covariance`.
        num_colluders: q, 0 <= q < n. clip_norm: C. num_steps: T.

    Raises: InvalidInput: an argument is out of range, or more than 20,000 coalitions.
    Cost: that of `spatial.algebraic_connectivity_after_deletion`.
    """
    G = graphs.load(graph)
    local, pair, scale = _decor_arguments(sigma_local, sigma_pair, clip_norm, num_steps)
    a = spatial.algebraic_connectivity_after_deletion(G, num_colluders)
    m = G.number_of_nodes() - num_colluders
    rest = 0.0 if m == 1 else (1 - 1 / m) / (local**2 + a * pair**2)
    return PublishedBound(
        scale * (1 / (m * local**2) + rest),
        "renyi slope",
        "[DECOR] arXiv:2405.01031, Theorem 1" + (" (6, with colluders)" if num_colluders else ""),
        _DECOR_FRESH,
        "bound under replace-one adjacency, all messages seen",
        True,
    )


_DECOR_FRESH = "Holds for noise drawn afresh in every step; public experiments reuse the pairwise noise in part."


def decor_accountant(
    graph: graphs.Source,
    *,
    sigma_local: float,
    sigma_pair: float,
    num_colluders: int = 0,
    clip_norm: float = 1.0,
    num_steps: int = 1,
) -> PublishedBound:
    """The Rényi slope of pairwise noise for the worst victim and the worst q colluders, exactly.

        2 C^2 T max over |I| = q and i not in I of [(s_local^2 I + s_pair^2 L_{G without I})^-1]_ii

    Source: [DECOR] arXiv:2405.01031, Algorithms 2 (q = 0, 1) and 3 (any q), times T by composition.
    Claims: the slope of the worst victim; `decor_theorem` is never below it.
    Erratum: line 3 of Algorithm 2 lacks the inverse, and the inputs are standard deviations where they are called
        variances; both mended here. Fresh noise in every step, as in `decor_theorem`.
    Validity: "bound", and exact, also for adaptive gradients; replace-one.

    Args, Raises: those of `decor_theorem`.
    Cost: O(n^3) for each of at most 20,000 coalitions.
    """
    local, pair, scale = _decor_arguments(sigma_local, sigma_pair, clip_norm, num_steps)
    worst = 0.0
    for batch, _ in spatial.laplacians_after_deletion(graph, num_colluders):
        worst = max(worst, float(_decor_diagonals(batch, local, pair).max()))
    return _decor_exact(scale * worst)


def decor_victims(
    graph: graphs.Source,
    colluders: Sequence[Hashable] = (),
    *,
    sigma_local: float,
    sigma_pair: float,
    clip_norm: float = 1.0,
    num_steps: int = 1,
) -> PublishedBound:
    """The same slope for every victim, against given colluders; inf for the colluders themselves.

    Source, Claims, Erratum, Validity: those of `decor_accountant`.

    Args:
        colluders: labels, or indices written "#0"; none for an eavesdropper. The rest as in `decor_theorem`.

    Raises: InvalidInput: an argument is out of range, an unknown node, or no honest node is left.
    Cost: O(n^3), whatever the number of colluders.
    """
    G = graphs.load(graph)
    local, pair, scale = _decor_arguments(sigma_local, sigma_pair, clip_norm, num_steps)
    gone = {graphs.index_of(G, label) for label in colluders}
    kept = np.array([i for i in range(G.number_of_nodes()) if i not in gone], dtype=np.int64)
    if not len(kept):
        raise InvalidInput(f"colluders must leave an honest node, got all {len(gone)} nodes.")
    A = graphs.adjacency(G)[kept][:, kept].toarray()
    value = np.full(G.number_of_nodes(), math.inf)
    value[kept] = scale * _decor_diagonals((np.diag(A.sum(axis=1)) - A)[None], local, pair)[0]
    return _decor_exact(value)


def _decor_exact(value: float | FloatArray) -> PublishedBound:
    return PublishedBound(
        value,
        "renyi slope",
        "[DECOR] arXiv:2405.01031, Algorithms 2 and 3",
        "Line 3 of Algorithm 2 lacks the inverse; the inputs called variances are standard deviations. " + _DECOR_FRESH,
        "bound (exact) under replace-one adjacency, all messages seen",
        True,
    )


def _decor_arguments(
    sigma_local: float, sigma_pair: float, clip_norm: float, num_steps: int
) -> tuple[float, float, float]:
    local = check.positive(sigma_local=sigma_local)
    pair = check.non_negative(sigma_pair=sigma_pair)
    scale = 2 * check.positive(clip_norm=clip_norm) ** 2 * check.integer_at_least(1, num_steps=num_steps)
    return local, pair, scale


def _decor_diagonals(laplacians: FloatArray, local: float, pair: float) -> FloatArray:
    """Diagonals of (local^2 I + pair^2 L)^-1, shape (b, m), for stacked Laplacians."""
    R = laplacians * pair**2 + local**2 * np.eye(laplacians.shape[1])
    diagonals: FloatArray = np.asarray(np.linalg.inv(R).diagonal(axis1=1, axis2=2), dtype=np.float64)
    return diagonals


def decor_corollary(
    graph: graphs.Source,
    *,
    epsilon: float,
    delta: float,
    num_colluders: int = 0,
    clip_norm: float = 1.0,
    num_steps: int,
) -> DecorNoise:
    """Noise levels for a target (epsilon, delta) against any q colluders, in closed form.

        s_local^2 = 32 C^2 T L / ((n - q) epsilon^2),  s_pair^2 = 32 C^2 T L / (a_q epsilon^2),  L = log(1 / delta)

    Source: [DECOR] arXiv:2405.01031, Corollary 3 (12 for q colluders).
    Claims: (epsilon, delta) for epsilon <= L, if no q nodes disconnect the graph.
    Erratum: loose. The noise gives epsilon^2 / (8 L) + epsilon / sqrt(2) by Theorem 1, 0.71 to 0.83 of the target,
        and meets it up to epsilon = 8 (1 - 1 / sqrt(2)) L = 2.343 L. Its proof composes by Lemma 10, not 11.
    Validity: "bound" up to 2.343 L; refused above.

    Args: as in `decor_theorem`; epsilon > 0, 0 < delta < 1.
    Returns: both standard deviations and the epsilon certified for them, at most the target.
    Raises:
        InvalidInput: epsilon above 2.343 L (the message gives the exact mu to aim at), q nodes disconnect the
            graph, or what `decor_theorem` refuses.
    """
    epsilon = check.positive(epsilon=epsilon)
    L = -math.log(check.open_unit(delta=delta))
    C = check.positive(clip_norm=clip_norm)
    T = check.integer_at_least(1, num_steps=num_steps)
    if epsilon > COROLLARY_RANGE * L:
        raise InvalidInput(
            f"epsilon must be at most 2.343 log(1/delta) = {COROLLARY_RANGE * L:.4g} for this corollary, got "
            f"{epsilon:g}; {_exact_route(epsilon, delta, 'decor_accountant(...).mu')}."
        )
    G = graphs.load(graph)
    a = spatial.algebraic_connectivity_after_deletion(G, num_colluders)
    if a == 0:
        raise InvalidInput(
            f"graph must stay connected without any {num_colluders} of its nodes for this corollary; take fewer "
            f"colluders or add edges, or choose noise with decor_accountant."
        )
    common = 32 * C**2 * T * L / epsilon**2
    certified = epsilon**2 / (8 * L) + epsilon / math.sqrt(2)
    inside = "inside" if epsilon <= L else "outside"
    bound = PublishedBound(
        min(epsilon, certified * (1 + 1e-15)),
        "epsilon",
        "[DECOR] arXiv:2405.01031, Corollary 3" + (" (12, with colluders)" if num_colluders else ""),
        "The printed range epsilon <= log(1/delta) is too small by 2.343, and the noise more than is needed; "
        "composition is by Lemma 10 where the text says 11.",
        f"bound under replace-one adjacency, all messages seen; {inside} the printed range",
        True,
    )
    return DecorNoise(math.sqrt(common / (G.number_of_nodes() - num_colluders)), math.sqrt(common / a), bound)


# ---- CorN and Whisper ------------------------------------------------------------------------------------

_CORN = "[CorN] arXiv:2501.14644v2"
_EAVESDROPPER = (
    "Protects against outsiders only: the published algorithm gives one seed to all agents, any of which can "
    "subtract all noise."
)


def corn_theorem(covariance: Any, *, delta: float, clip_norm: float = 1.0, num_steps: int = 1) -> PublishedBound:
    """epsilon of noise with covariance R over nodes, 2 C^2 T r + 2 C sqrt(2 T L r), r = max_i [R^-1]_ii.

    Source: [CorN] arXiv:2501.14644v2, Theorem 2; L = log(1 / delta).
    Claims: (epsilon, delta) for the worst agent against an eavesdropper who sees all messages.
    Erratum: protects against outsiders only, as the published algorithm gives one seed to all agents. Loose: with
        mu = 2 C sqrt(T r) the exact epsilon is `epsilon_from_mu(mu, delta)`.
    Validity: "bound", also for adaptive gradients, replace-one.

    Args:
        covariance: R, dense, shape (n, n), positive definite. delta: in (0, 1). clip_norm: C. num_steps: T.

    Raises: InvalidInput: an argument is out of range or R is not positive definite.
    Cost: O(n^3).
    """
    L = -math.log(check.open_unit(delta=delta))
    rho = _corn_slope(covariance, clip_norm, num_steps)
    return PublishedBound(
        rho + 2 * math.sqrt(rho * L),
        "epsilon",
        f"{_CORN}, Theorem 2",
        f"{_EAVESDROPPER} Loose by the conversion from Rényi loss.",
        "bound against an eavesdropper, replace-one adjacency",
        True,
    )


def corn_renyi(covariance: Any, *, clip_norm: float = 1.0, num_steps: int = 1) -> PublishedBound:
    """The Rényi slope behind `corn_theorem`, 2 C^2 T max_i [R^-1]_ii; nothing is lost in it.

    Source: [CorN] arXiv:2501.14644v2, Theorem 2 before its conversion to (epsilon, delta).
    Claims: Rényi loss of order a at most a times this. Validity: "bound", exact for the worst victim.
    Erratum: outsiders only, see `corn_theorem`.
    """
    slope = _corn_slope(covariance, clip_norm, num_steps)
    validity = "bound (exact) against an eavesdropper, replace-one adjacency"
    return PublishedBound(slope, "renyi slope", f"{_CORN}, Theorem 2, Rényi form", _EAVESDROPPER, validity, True)


def corn_equation_9b(epsilon: float, delta: float) -> PublishedBound:
    """The mu that the published constraint allows, epsilon / (2 sqrt(L)), L = log(1 / delta).

    Printed as a bound on max_i [R^-1]_ii of epsilon^2 / (16 C^2 T L); see `inverse_diagonal_limit`.

    >>> round(corn_equation_9b(3.0, 1e-5).value, 4)
    0.4421

    Source: [CorN] arXiv:2501.14644v2, (9b) and Proposition 1.
    Claims: (epsilon, delta) for every epsilon. [Whisper], v1 of the paper, asks for epsilon < L.
    Erratum: Proposition 1 has no condition on epsilon and needs one. At delta = 1e-5 its Rényi argument fails above
        26.98 (2.343 L; at 30 it certifies 30.98, though the exact epsilon is 27.93), and the claim itself above
        36.08: at 40 the exact epsilon is 41.76. Below, it costs up to 63% more noise than needed (epsilon = 3).
        The public code does not use it, but `corn_equation_9_renyi`.
    Validity: "bound" where the exact epsilon of this mu is at most the target, which is checked; refused elsewhere.

    Raises: InvalidInput: outside that range (the message gives the exact mu), or an argument is out of range.
    """
    epsilon = check.positive(epsilon=epsilon)
    mu = epsilon / (2 * math.sqrt(-math.log(check.open_unit(delta=delta))))
    exact = epsilon_from_mu(mu, delta)
    if exact > epsilon:
        raise InvalidInput(
            f"epsilon={epsilon:g} is outside the range of (9b) at delta={delta:g}: its noise gives the exact epsilon "
            f"{exact:.4f}; {_exact_route(epsilon, delta, 'corn_renyi(...).mu')}."
        )
    return PublishedBound(
        mu,
        "mu",
        f"{_CORN}, (9b) and Proposition 1",
        "Printed without a condition on epsilon: at delta = 1e-5 its argument fails above 26.98 and the claim above "
        "36.08; more noise than needed below.",
        "bound for this epsilon and delta (checked), against an eavesdropper",
        True,
    )


def corn_equation_9_renyi(epsilon: float, delta: float) -> PublishedBound:
    """The mu allowed by inverting the Rényi bound, sqrt(2) (sqrt(L + epsilon) - sqrt(L)), L = log(1 / delta).

    >>> round(corn_equation_9_renyi(3.0, 1e-5).value, 4)
    0.589

    Source: public code of [CorN] arXiv:2501.14644v2, in place of (9b).
    Claims: (epsilon, delta) for every epsilon. Validity: "bound".
    Erratum: not the (9b) of the paper, so curves made with one do not match the other. 22% more noise than the
        exact `mu_from_epsilon` at epsilon = 3, delta = 1e-5, and 7% at 40.

    Raises: InvalidInput: an argument is out of range.
    """
    epsilon = check.positive(epsilon=epsilon)
    L = -math.log(check.open_unit(delta=delta))
    mu = math.sqrt(2) * epsilon / (math.sqrt(L + epsilon) + math.sqrt(L))
    return PublishedBound(
        mu * (1 - 1e-15),
        "mu",
        f"{_CORN}, public code, Theorem 2 inverted",
        "The paper prints (9b) instead; curves made with one do not match the other.",
        "bound against an eavesdropper",
        True,
    )


def inverse_diagonal_limit(mu: float, *, clip_norm: float, num_steps: int) -> float:
    """r with mu = 2 C sqrt(T r): the right side of the constraint [R^-1]_ii <= r, for an exact or published mu.

    Raises: InvalidInput: an argument is out of range.
    """
    T = check.integer_at_least(1, num_steps=num_steps)
    return check.positive(mu=mu) ** 2 / (4 * check.positive(clip_norm=clip_norm) ** 2 * T)


def whisper_theorem(covariance: Any, *, delta: float, clip_norm: float = 1.0, num_steps: int = 1) -> PublishedBound:
    """epsilon as printed in the first version of [CorN]: 2 C^2 T r / n + r C sqrt(2 T L / n). Not a bound.

    Source: [Whisper] arXiv:2501.14644v1, Theorem 2, (8); r = max_i [R^-1]_ii.
    Claims: (epsilon, delta) against an eavesdropper.
    Erratum: a spurious 1/n, a missing factor 2 in the second term, and the maximum outside the root. For R = I,
        C = T = 1, n = 20, delta = 1e-5 it prints 1.17 where `corn_theorem` gives 11.60 and the exact value is 9.997.
        In (10) of the same version the inequality is reversed, so that no noise at all is feasible.
    Validity: "refuted: reports far too little"; kept for comparison only.

    Args, Raises, Cost: those of `corn_theorem`.
    """
    C = check.positive(clip_norm=clip_norm)
    T = check.integer_at_least(1, num_steps=num_steps)
    L = -math.log(check.open_unit(delta=delta))
    R = check.square_array(covariance=covariance)
    r, n = spatial.inverse_diagonal(R), len(R)
    return PublishedBound(
        2 * C**2 * T * r / n + r * C * math.sqrt(2 * T * L / n),
        "epsilon",
        "[Whisper] arXiv:2501.14644v1, Theorem 2 (8)",
        "A spurious 1/n, a missing factor 2, and the maximum outside the root; corrected in version 2 of the paper.",
        "refuted: 1.17 printed where the exact epsilon is 9.997 (R = I, n = 20, C = T = 1, delta = 1e-5)",
        False,
    )


def _corn_slope(covariance: Any, clip_norm: float, num_steps: int) -> float:
    C = check.positive(clip_norm=clip_norm)
    T = check.integer_at_least(1, num_steps=num_steps)
    return 2 * C**2 * T * spatial.inverse_diagonal(covariance)


def _exact_route(epsilon: float, delta: float, quantity: str) -> str:
    mu = mu_from_epsilon(epsilon, delta)
    return (
        f"the exact mu for this budget is mu_from_epsilon({epsilon:g}, {delta:g}) = {mu:.6g}: choose the noise so that "
        f"{quantity} stays below it"
    )


# ---- Matrix factorization --------------------------------------------------------------------------------


def sum_abs_gram(gram: Any) -> PublishedBound:
    """sqrt(sum |X_st|): the sensitivity bound of the paper with the square root it lacks.

    Source: [MF] arXiv:2510.17480, Theorem 7, (8), corrected.
    Claims: mu per unit record shift and noise std, for the steps of one record. X is the block of the view Gram
        A^T (B B^T)^+ A on those steps.
    Erratum: the printed form lacks the root, see `sum_abs_gram_as_printed`. Not tight: on the Florentine graph
        10.91 for sens^2 where the local value is 10 and the exact one 9.40. The printed claim for adaptively chosen
        gradients is false where messages are hidden from the attacker.
    Validity: "bound" for gradients fixed in advance; exact when X >= 0.

    Args:
        gram: X, symmetric, shape (k, k), or one per victim, shape (victims, k, k); no victim may leak.

    Raises: InvalidInput: not finite, not square, or not symmetric.
    """
    root = np.sqrt(_sum_abs(gram))
    return PublishedBound(
        float(root) if root.ndim == 0 else root,
        "mu",
        "[MF] arXiv:2510.17480, Theorem 7 (8), with the square root",
        "Printed without the root. Can exceed the local value. The claim for adaptive gradients is false where "
        "messages are hidden.",
        f"bound {_FIXED}; exact where X >= 0",
        True,
    )


def sum_abs_gram_as_printed(gram: Any) -> PublishedBound:
    """sum |X_st| taken for the sensitivity itself. Not a bound: the sum bounds its square.

    Source: [MF] arXiv:2510.17480, Theorem 7, (8), also (12) and (28) to (31).
    Claims: mu per unit record shift and noise std.
    Erratum: the square is missing. C = 1/2: printed 0.25, sensitivity 0.5. Below 1, where distant victims are, it
        reports too little, 0.007 for 0.083 at distance 4 of a random graph; above 1 too much. Public code has it right.
    Validity: "refuted: the square root is missing"; use `sum_abs_gram`.

    Args, Raises: those of `sum_abs_gram`.
    """
    total = _sum_abs(gram)
    return PublishedBound(
        float(total) if total.ndim == 0 else total,
        "mu",
        "[MF] arXiv:2510.17480, Theorem 7 (8) as printed",
        "The sum bounds the square of the sensitivity; below 1 it reports too little.",
        "refuted: the square root is missing",
        False,
    )


def _sum_abs(gram: Any) -> FloatArray:
    ndim = 3 if np.ndim(gram) == 3 else 2
    X = check.finite_array(ndim, gram=gram)
    if X.shape[-1] != X.shape[-2]:
        raise InvalidInput(f"gram must be square in its last two axes, got shape {X.shape}.")
    gap = np.abs(X - X.swapaxes(-1, -2)).max(initial=0.0)
    if gap > 1e-8 * np.abs(X).max(initial=0.0):
        raise InvalidInput(f"gram must be symmetric, got entries that differ from the transpose by {gap:.3g}.")
    total: FloatArray = np.asarray(np.abs(X).sum(axis=(-2, -1)))
    return total

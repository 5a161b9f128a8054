"""DECOR, arXiv:2405.01031: noise that cancels between neighbours: its theorem, accountant, closed form, and its error.

Beside them the bound of flows (arXiv:2006.07218). A change x of one value is hidden by a change of private noise,
spread evenly over the n nodes, and a flow t over the edges that carries the rest. The squared distance of two
Gaussians, for |x| = 1, is at most theta = 1 / (n s_local^2) + |t|^2 / s_pair^2 for every flow t from the victim to all
nodes evenly; the least |t|^2 is [L^+]_ii, L the Laplacian. (epsilon, delta) follows if theta <= `largest_theta`. The
exact theta is [(s_local^2 I + s_pair^2 L)^-1]_ii = sum_k v_ki^2 / (s_local^2 + s_pair^2 lambda_k), of which this bound
drops s_local^2 wherever lambda_k > 0, and DECOR's Theorem 1 puts the least lambda_k > 0 for every other.

The accountant of the example level is that of batches without replacement, by Wang et al.; for Poisson sampling
`mfdl.participation.PoissonSampling` has tighter bounds.

Errors are variances per coordinate that noise leaves in the models at learning rate 1; `convergence` says what training
makes of them. Convention: new = W @ old. Papers that stack models as columns write X W; their W is W^T here. It matters
only where W is not symmetric; there pairwise noise does not even cancel in the average unless W is doubly stochastic.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.special import gammaln, logsumexp

from mfdl import check, graphs, node_covariances
from mfdl.check import FloatArray
from mfdl.decor_search import corollary_noise
from mfdl.dynamics import Dynamics
from mfdl.errors import InvalidInput, require_known
from mfdl.gossip import Gossip, GossipMatrix
from mfdl.objective import NoiseObjective
from mfdl.spec import takes_fields_of

from ..facts import errata
from ..published import PublishedBound


class DecorNoise(NamedTuple):
    """Standard deviations of `decor_corollary`, and the epsilon they are certified for."""

    sigma_ldp: float
    sigma_cor: float
    bound: PublishedBound


@dataclasses.dataclass(frozen=True, eq=False)
class PairwiseNoise:
    """The arguments of `decor_theorem`, which documents them, and of `decor_accountant`."""

    graph: graphs.Source
    _: dataclasses.KW_ONLY
    sigma_ldp: float
    sigma_cor: float
    num_colluders: int = 0
    clip_norm: float = 1.0
    num_steps: int = 1

    def levels(self) -> tuple[float, float, float]:
        """s_local^2, s_pair^2, and 2 C^2 T, the slope of one unit of [R^-1]_ii."""
        variances = (check.positive(sigma_ldp=self.sigma_ldp) ** 2, check.non_negative(sigma_cor=self.sigma_cor) ** 2)
        T = check.integer_at_least(1, num_steps=self.num_steps)
        return *variances, 2 * check.positive(clip_norm=self.clip_norm) ** 2 * T

    def slopes(self, laplacians: FloatArray) -> FloatArray:
        """2 C^2 T [(s_local^2 I + s_pair^2 L)^-1]_ii, shape (b, m), for stacked Laplacians."""
        local, pair, scale = self.levels()
        R = laplacians * pair + local * np.eye(laplacians.shape[1])
        return np.asarray(scale * np.linalg.inv(R).diagonal(axis1=1, axis2=2), dtype=np.float64)


@takes_fields_of(PairwiseNoise)
def decor_theorem(noise: PairwiseNoise) -> PublishedBound:
    """Upper bound on the Rényi slope of pairwise noise, from the algebraic connectivity a_q.

        2 C^2 T [1 / (m s_local^2) + (1 - 1/m) / (s_local^2 + a_q s_pair^2)],  m = n - q

    Source: [DECOR] arXiv:2405.01031, Theorem 1 (Theorem 6 for q colluders), times T by composition.
    Claims: the slope for any victim and any q colluders who know the seeds of their own edges; all messages seen.
    Errata: none in the formula; `decor-code-noise-reuse`: it does not apply to noise that is not drawn afresh.
    Validity: "bound", also for adaptive gradients, under replace-one (a record moves a gradient by 2 C).

    Args: sigma_ldp, sigma_cor: standard deviations, > 0 and >= 0. num_colluders: q, 0 <= q < n. clip_norm: C.
        num_steps: T.
    Raises: InvalidInput: an argument is out of range, or more than 20,000 coalitions.
    Cost: that of `node_covariances.algebraic_connectivity_after_deletion`.
    """
    G, q = graphs.load(noise.graph), noise.num_colluders
    local, pair, scale = noise.levels()
    a = node_covariances.algebraic_connectivity_after_deletion(G, q)
    m = G.number_of_nodes() - q
    rest = 0.0 if m == 1 else (1 - 1 / m) / (local + a * pair)
    return PublishedBound(
        scale * (1 / (m * local) + rest),
        "renyi slope",
        "[DECOR] arXiv:2405.01031, Theorem 1" + (" (6, with colluders)" if q else ""),
        errata("decor-code-noise-reuse"),
        "bound under replace-one adjacency, all messages seen",
    )


@takes_fields_of(PairwiseNoise)
def decor_accountant(noise: PairwiseNoise) -> PublishedBound:
    """The Rényi slope of pairwise noise for the worst victim and the worst q colluders, exactly.

        2 C^2 T max over |I| = q and i not in I of [(s_local^2 I + s_pair^2 L_{G without I})^-1]_ii

    Source: [DECOR] arXiv:2405.01031, Algorithms 2 (q = 0, 1) and 3 (any q), times T by composition.
    Claims: the slope of the worst victim; `decor_theorem` is never below it.
    Errata: `decor-algorithm-2-line-3`, `decor-inputs-as-variances`, both mended here; `decor-code-noise-reuse`.
    Validity: "bound", and exact, also for adaptive gradients; replace-one.

    Args, Raises: those of `decor_theorem`.
    Cost: O(n^3) for each of at most 20,000 coalitions.
    """
    batches = node_covariances.laplacians_after_deletion(noise.graph, noise.num_colluders)
    return _decor_exact(max(float(noise.slopes(batch).max()) for batch, _ in batches))


def decor_victims(
    graph: graphs.Source,
    colluders: Sequence[Hashable] = (),
    *,
    sigma_ldp: float,
    sigma_cor: float,
    clip_norm: float = 1.0,
    num_steps: int = 1,
) -> PublishedBound:
    """The slope of `decor_accountant` for every victim, against given colluders; inf for the colluders themselves.

    Args: colluders: labels, or indices written "#0"; none for an eavesdropper. The rest as in `decor_theorem`.
    Raises: InvalidInput: an argument is out of range, an unknown node, or no honest node is left.
    Cost: O(n^3), whatever the number of colluders.
    """
    G = graphs.load(graph)
    noise = PairwiseNoise(G, sigma_ldp=sigma_ldp, sigma_cor=sigma_cor, clip_norm=clip_norm, num_steps=num_steps)
    gone = {graphs.label_index(G, label) for label in colluders}
    honest = np.array([i for i in range(G.number_of_nodes()) if i not in gone], dtype=np.int64)
    if not len(honest):
        raise InvalidInput(f"colluders must leave an honest node, got all {len(gone)} nodes.")
    A = graphs.adjacency(G)[honest][:, honest].toarray()
    value = np.full(G.number_of_nodes(), math.inf)
    value[honest] = noise.slopes((np.diag(A.sum(axis=1)) - A)[None])[0]
    return _decor_exact(value)


def _decor_exact(value: float | FloatArray) -> PublishedBound:
    return PublishedBound(
        value,
        "renyi slope",
        "[DECOR] arXiv:2405.01031, Algorithms 2 and 3",
        errata("decor-algorithm-2-line-3", "decor-inputs-as-variances", "decor-code-noise-reuse"),
        "bound (exact) under replace-one adjacency, all messages seen",
    )


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
    Errata: `decor-corollary-12`: by Theorem 1 the noise gives epsilon^2 / (8 L) + epsilon / sqrt(2), which meets the
        target up to epsilon = 8 (1 - 1 / sqrt(2)) L = 2.343 L.
    Validity: "bound" up to 2.343 L; refused above.

    Returns: both standard deviations and the epsilon certified for them, at most the target.
    Raises: InvalidInput: epsilon above 2.343 L (the message gives the exact mu to aim at), q nodes disconnect the
        graph, or what `decor_theorem` refuses.
    """
    local, pair = corollary_noise(
        graph, epsilon=epsilon, delta=delta, num_colluders=num_colluders, clip_norm=clip_norm, num_steps=num_steps
    )
    L = -math.log(delta)
    certified = epsilon**2 / (8 * L) + epsilon / math.sqrt(2)
    inside = "inside" if epsilon <= L else "outside"
    bound = PublishedBound(
        min(epsilon, certified * (1 + 1e-15)),
        "epsilon",
        "[DECOR] arXiv:2405.01031, Corollary 3" + (" (12, with colluders)" if num_colluders else ""),
        errata("decor-corollary-12"),
        f"bound under replace-one adjacency, all messages seen; {inside} the printed range",
    )
    return DecorNoise(local, pair, bound)


@takes_fields_of(PairwiseNoise)
def flow_theorem(noise: PairwiseNoise) -> PublishedBound:
    """Upper bound on the Rényi slope of pairwise noise, from the flow of least energy.

        2 C^2 T max_i (1 / (m s_local^2) + [L^+]_ii / s_pair^2),  m the nodes of the component of i without colluders

    Source: arXiv:2006.07218, theta of Theorem 1, times (2 C)^2 T / 2; its honest users are connected, here each
        component is by itself.
    Claims: the slope for any victim and any q colluders; infinite without pairwise noise, unless a node is alone.
    Validity: "bound", also for adaptive gradients, under replace-one.

    Args, Raises: those of `decor_theorem`.
    Cost: O(n^3) for each of at most 20,000 coalitions.
    """
    local, pair, scale = noise.levels()
    worst = 0.0
    for batch, _ in node_covariances.laplacians_after_deletion(noise.graph, noise.num_colluders):
        eigenvalues, vectors = np.linalg.eigh(batch)
        connected = eigenvalues > 1e-9 * max(1.0, float(eigenvalues.max()))
        inverse = np.divide(1.0, eigenvalues, out=np.zeros_like(eigenvalues), where=connected)
        flow = np.einsum("bik,bk->bi", vectors**2, inverse)
        even = np.einsum("bik,bk->bi", vectors**2, 1.0 - connected)
        carried = np.divide(flow, pair, out=np.where(flow > 0, math.inf, 0.0), where=np.full(flow.shape, pair > 0))
        worst = max(worst, float((even / local + carried).max()))
    source = "Sabater, Bellet, Ramon, arXiv:2006.07218, Theorem 1"
    return PublishedBound(scale * worst, "renyi slope", source, "", "bound under replace-one adjacency")


def largest_theta(epsilon: float, delta: float) -> float:
    """Theta_max: the largest theta for which the paper's proof gives (epsilon, delta).

        epsilon >= theta / 2 + sqrt(theta)  and  (epsilon - theta / 2)^2 >= 2 log(2 / (delta sqrt(2 pi))) theta

    Source: arXiv:2006.07218, (7) and (8).
    """
    e = check.positive(epsilon=epsilon)
    square = max(1.0, 2 * math.log(2 / (check.open_unit(delta=delta) * math.sqrt(2 * math.pi))))
    # epsilon - theta / 2 = sqrt(square theta), whose root sqrt(theta) is sqrt(square + 2 epsilon) - sqrt(square)
    return (2 * e / (math.sqrt(square + 2 * e) + math.sqrt(square))) ** 2


ORDERS = (*range(2, 65), *range(72, 257, 8))
SAMPLED_SOURCE = "[DECOR] arXiv:2405.01031, example level, by arXiv:1808.00087, Theorem 9"


def sampled_renyi(slope: float, *, order: int, rate: float, num_steps: int = 1) -> float:
    """Upper bound on the Rényi divergence of integer order a of T steps, each on a batch without replacement.

        T / (a - 1) log(1 + g^2 (a over 2) min(4 (e^2s - 1), 2 e^2s) + sum_j=3..a g^j (a over j) 2 e^((j - 1) j s))

    Args:
        slope: s >= 0; without sampling the divergence of every order j is at most j s, for one record replaced.
        order: a >= 2. rate: g in (0, 1], records of a batch over those it is drawn from. num_steps: T >= 1.

    Guarantee: adaptive composition; replace-one, batches of fixed size, sampled independently in each step.
    Source: arXiv:1808.00087, Theorem 9, with no pure-DP bound on the mechanism.
    """
    s, a = check.non_negative(slope=slope), check.integer_at_least(2, order=order)
    g = check.positive(rate=rate)
    if g > 1:
        raise InvalidInput(f"rate must be at most 1, got {rate}.")
    T = check.integer_at_least(1, num_steps=num_steps)
    j = np.arange(2, a + 1)
    logs = j * math.log(g) + gammaln(a + 1) - gammaln(j + 1) - gammaln(a - j + 1) + math.log(2) + (j - 1) * j * s
    if s < math.log(2) / 2:  # where 4 (e^2s - 1) is the smaller one
        logs[0] += (math.log(2 * math.expm1(2 * s)) if s else -math.inf) - 2 * s
    return T / (a - 1) * float(logsumexp(np.append(0.0, logs)))


def sampled_epsilon(slope: float, delta: float, *, rate: float, num_steps: int) -> PublishedBound:
    """epsilon at delta by `sampled_renyi`, the least over orders up to 256 of divergence + log(1 / delta) / (a - 1).

    Validity: "bound" for batches of fixed size without replacement under replace-one.
    """
    L = -math.log(check.open_unit(delta=delta))
    values = [sampled_renyi(slope, order=a, rate=rate, num_steps=num_steps) + L / (a - 1) for a in ORDERS]
    return PublishedBound(min(values), "epsilon", SAMPLED_SOURCE, "", "bound: replace-one, batches without replacement")


def one_step_error(gossip: GossipMatrix, covariance: Any) -> float:
    """tr(W R W^T): variance, summed over nodes, that one step's noise leaves in the models after averaging.

    Args: covariance: R over nodes, dense or sparse, shape (n, n), symmetric.
    Source: arXiv:2501.14644v2, Theorem 1 (times eta_t^2 and the number of coordinates), a criterion for one step only.
    """
    check.instance(GossipMatrix, gossip=gossip)
    W = gossip.weights
    return float((W * np.asarray(W @ _covariance(covariance, gossip.num_nodes))).sum())


def accumulated_error(gossip: Gossip, covariance: Any, num_steps: int) -> float:
    """sum over tau, s <= tau of tr(P R P^T), P = W_tau ... W_s: variance in the models of all T steps and nodes.

    Noise of covariance R over nodes is drawn afresh in each step; learning rate 1. For schedules and several gossip
    rounds take tr(H R) with `mfdl.objective.NoiseObjective.over_nodes`.
    """
    check.instance(Gossip, gossip=gossip)
    R = _covariance(covariance, gossip.num_nodes)
    return float(np.sum(NoiseObjective(Dynamics(gossip), num_steps).over_nodes() * R))


def average_error(gossip: GossipMatrix, covariance: Any) -> float:
    """a R a^T, a = 1^T W / n: variance that one step's noise leaves in the average of the models.

    0 for pairwise noise R = L where W is doubly stochastic. Not so on irregular graphs with the uniform weights
    1 / (degree + 1), which arXiv:2405.01031 and arXiv:2501.14644v2 call Metropolis-Hastings.
    """
    check.instance(GossipMatrix, gossip=gossip)
    a = np.asarray(gossip.weights.sum(axis=0)).ravel() / gossip.num_nodes
    return float(a @ _covariance(covariance, gossip.num_nodes) @ a)


def heterogeneity(gossip: GossipMatrix, *, of: str = "columns") -> float:
    """H_G(W): mean over the edges {i, k} of ||w_i - w_k||^2 / 2, w the columns or the rows of W; 0 without edges.

    Args: of: "columns", what a pair's noise goes through when new = W @ old, so that `pairwise_error` is
        2 H_G |E| sigma_cor^2; or "rows", the same for models multiplied from the other side.

    Guarantees: rows of uniform weights 1 / (degree + 1) have H_G <= 1 / (k_min + 1), k_min the least degree. The
        published H_G <= 2 / k_min holds for them, not in general: facts `decor-heterogeneity-columns` and
        `decor-heterogeneity-metropolis-hastings`.
    Source: arXiv:2405.01031, the definition before Lemma 8: its proof, for X W, yields the rows of its W, which are the
        columns of W here; the text says columns. The two agree for symmetric W.

    >>> from mfdl.gossip import metropolis_hastings
    >>> round(heterogeneity(metropolis_hastings("ring:n=16")), 4)
    0.1111
    """
    check.instance(GossipMatrix, gossip=gossip)
    require_known("part of the gossip matrix", of, ("columns", "rows"))
    N = node_covariances.incidence(gossip.links())
    edges = N.shape[1]
    differences = gossip.weights @ N if of == "columns" else N.T @ gossip.weights
    return float(differences.power(2).sum()) / (2 * edges) if edges else 0.0


def pairwise_error(gossip: GossipMatrix, sigma_cor: float) -> float:
    """sigma_cor^2 tr(W L W^T) = 2 H_G |E| sigma_cor^2: variance of pairwise noise after one averaging, all nodes.

    Source: arXiv:2405.01031, Lemma 8, per coordinate.
    """
    check.instance(GossipMatrix, gossip=gossip)
    pair = check.non_negative(sigma_cor=sigma_cor)
    return pair**2 * float((gossip.weights @ node_covariances.incidence(gossip.links())).power(2).sum())


def _covariance(covariance: Any, n: int) -> FloatArray:
    R = check.square_array(covariance=covariance.toarray() if sp.issparse(covariance) else covariance)
    if len(R) != n:
        raise InvalidInput(f"covariance must be {n} x {n}, one row per node of the gossip matrix, got shape {R.shape}.")
    gap = float(np.abs(R - R.T).max())
    if gap > node_covariances.SYMMETRY_TOLERANCE * float(np.abs(R).max()):
        raise InvalidInput(f"covariance must be symmetric, got entries that differ from the transpose by {gap:.3g}.")
    return R

"""Claims of DECOR about its loss: theorems, accountants, the corollary's noise, and what its code does with noise.

The truth is written out: local noise of standard deviation s_local and, for each edge, noise of s_pair that its ends
inject with opposite signs; over nodes R = s_local^2 I + s_pair^2 L, L the graph Laplacian. Losses are Rényi slopes at
C = 1 and replace-one, half of mu^2 = 4 [R^-1]_uu. An attacker sees all messages and knows the secrets that it holds;
one step of that view is, up to an invertible factor, gradients plus noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection

import networkx as nx
import numpy as np
from hypothesis import assume, reject
from hypothesis import strategies as st

from mfdl import gossip
from mfdl.check import FloatArray
from mfdl.decor_search import COROLLARY_RANGE
from mfdl.testing.oracles.curve_oracles import exact_log_delta
from mfdl.testing.oracles.dense_views import gossip_messages, pairwise_factor, pinv_gram, without_noise
from mfdl.testing.strategies.graphs import connected_graphs

from ..paper_claims import laplacian, losses, statements
from ..published import PublishedBound
from . import decor_accountant, decor_theorem, flow_theorem, largest_theta

Bound = Callable[..., PublishedBound]
QUARTERS = st.integers(1, 8).map(lambda k: k / 4)  # below and above 1, where squares change sides
TWENTIETHS = st.integers(1, 20).map(lambda k: k / 20)

published_claim = statements(
    graph=connected_graphs(2, 5),
    colluders=st.integers(0, 2),
    local=st.integers(1, 4),  # standard deviations
    pair=st.integers(1, 4),
    delta=st.integers(1, 10).map(lambda k: 10.0**-k),
    num_steps=st.integers(1, 4),
)


def _slopes(bound: Bound, graph: nx.Graph, colluders: int, local: int, pair: int) -> tuple[float, float]:
    assume(colluders < len(graph))
    printed = bound(graph, sigma_ldp=local, sigma_cor=pair, num_colluders=colluders)
    return float(printed.value), worst_slope(graph, local, pair, colluders)


@published_claim("decor-theorem-6")
def connectivity_bounds_the_slope(graph: nx.Graph, colluders: int, local: int, pair: int) -> tuple[float, float]:
    return _slopes(decor_theorem, graph, colluders, local, pair)


@published_claim("decor-sabater-theorem-1")
def flow_bounds_the_slope(graph: nx.Graph, colluders: int, local: int, pair: int) -> tuple[float, float]:
    return _slopes(flow_theorem, graph, colluders, local, pair)


@published_claim("decor-sabater-theta", epsilon_over_log=TWENTIETHS)
def largest_theta_gives_delta(epsilon_over_log: float, delta: float) -> tuple[float, float]:
    epsilon = -epsilon_over_log * math.log(delta)
    return math.log(delta), exact_log_delta(math.sqrt(largest_theta(epsilon, delta)), epsilon)


@published_claim("decor-composition", graph=connected_graphs(2, 4), num_steps=st.integers(1, 3))
def steps_add_up(graph: nx.Graph, num_steps: int, local: int, pair: int) -> tuple[float, float]:
    n = len(graph)
    one_step = decor_accountant(graph, sigma_ldp=local, sigma_cor=pair)
    messages, _ = gossip_messages(gossip.metropolis_hastings(graph), num_steps)
    noise = fresh(factor(graph, local, pair), num_steps)
    truth = 2 * losses(messages, messages @ noise, range(n), n).max()
    return num_steps * float(one_step.value), float(truth)


@published_claim("decor-algorithm-3")
def accountant_is_the_view(graph: nx.Graph, colluders: int, local: int, pair: int) -> tuple[float, float]:
    printed, worst = _slopes(decor_accountant, graph, colluders, local, pair)
    return 0.0, abs(printed - worst) / worst


@published_claim("decor-algorithm-2-line-3", graph=connected_graphs(2, 4), local=QUARTERS, pair=QUARTERS)
def loss_without_the_inverse(graph: nx.Graph, local: float, pair: float) -> tuple[float, float]:
    R = local**2 * np.eye(len(graph)) + pair**2 * laplacian(graph)
    return 2 * float(R.diagonal().max()), worst_slope(graph, local, pair)


@published_claim("decor-inputs-as-variances", graph=connected_graphs(2, 4), local=QUARTERS, pair=QUARTERS)
def inputs_as_variances(graph: nx.Graph, local: float, pair: float) -> tuple[float, float]:
    R = local * np.eye(len(graph)) + pair * laplacian(graph)
    return 2 * float(np.linalg.inv(R).diagonal().max()), worst_slope(graph, local, pair)


def _log_delta_of_corollary(graph: nx.Graph, colluders: int, epsilon: float, delta: float) -> tuple[float, float]:
    """log delta, and its exact value at epsilon for the printed noise; T cancels between noise and composition."""
    honest = len(graph) - colluders
    assume(honest >= 2)
    rests = [[i for i in range(len(graph)) if i not in gone] for gone in coalitions(graph, colluders)]
    connectivity = min(float(np.linalg.eigvalsh(laplacian(graph, rest))[1]) for rest in rests)
    assume(connectivity > 1e-9)  # the corollary needs a graph that q nodes cannot disconnect
    common = 32 * math.log(1 / delta) / epsilon**2
    local, pair = math.sqrt(common / honest), math.sqrt(common / connectivity)
    worst = worst_slope(graph, local, pair, colluders)
    return math.log(delta), float(exact_log_delta(math.sqrt(2 * worst), epsilon))


@published_claim("decor-corollary-12", epsilon_over_log=TWENTIETHS)
def corollary_meets_its_target(
    graph: nx.Graph, colluders: int, epsilon_over_log: float, delta: float
) -> tuple[float, float]:
    """Local and pairwise, T steps, any q colluders; compared in log delta."""
    return _log_delta_of_corollary(graph, colluders, epsilon_over_log * -math.log(delta), delta)


@published_claim("decor-corollary-12-range", share_of_range=TWENTIETHS)
def corollary_holds_beyond_its_range(
    graph: nx.Graph, colluders: int, share_of_range: float, delta: float
) -> tuple[float, float]:
    epsilon = share_of_range * COROLLARY_RANGE * -math.log(delta)
    return _log_delta_of_corollary(graph, colluders, epsilon, delta)


# the first ratio is refuted on two nodes, the simplest case
@published_claim("decor-corollary-12-any-epsilon", epsilon_over_log=st.sampled_from([10, 8, 6, 5, 4, 3]))
def corollary_has_a_range(graph: nx.Graph, epsilon_over_log: int, delta: float) -> tuple[float, float]:
    return _log_delta_of_corollary(graph, 0, epsilon_over_log * -math.log(delta), delta)


@published_claim(
    "decor-adversaries-by-strength", graph=connected_graphs(3, 5), insider=st.integers(0, 4), partner=st.integers(0, 4)
)
def adversaries_by_strength(
    graph: nx.Graph, insider: int, partner: int, local: int, pair: int
) -> tuple[FloatArray, FloatArray]:
    assume(insider != partner and max(insider, partner) < len(graph))

    def honest(attackers: list[int]) -> FloatArray:
        victims = [u for u in range(len(graph)) if u not in attackers]
        learnt = dict(zip(victims, slopes(graph, local, pair, attackers), strict=True))
        return np.array([learnt[u] for u in victims if u not in (insider, partner)])

    learns = [honest([]), honest([insider]), honest([insider, partner]), np.full(len(graph) - 2, 2 / local**2)]
    return np.concatenate(learns[1:]), np.concatenate(learns[:-1])


@published_claim("decor-code-noise-reuse", graph=connected_graphs(2, 4))
def noise_reuse_is_free(graph: nx.Graph, num_steps: int, local: int, pair: int) -> tuple[float, float]:
    n, T = len(graph), num_steps
    F = factor(graph, local, pair)
    noise = np.hstack([fresh(F[:, :n], T), np.tile(F[:, n:], (T, 1))])
    one_step = decor_accountant(graph, sigma_ldp=local, sigma_cor=pair)
    return T * float(one_step.value), 2 * float(losses(np.eye(T * n), noise, range(n), n).max())


def coded_search(graph: nx.Graph, local: float, target: float) -> float | None:
    """s_pair by bisection on 1, 2, ..., 1000: the first middle whose slope is above the target by less than 1e-4."""
    L = laplacian(graph)

    def slope(pair: float) -> float:
        return 2 * float(np.linalg.inv(local**2 * np.eye(len(L)) + pair**2 * L).diagonal().max())

    grid = np.linspace(1, 1000, 1000)
    while len(grid) > 1:
        middle = len(grid) // 2
        if slope(grid[-1]) > target:
            return None
        excess = slope(grid[middle]) - target
        if 0 < excess < 1e-4:
            return float(grid[middle])
        grid = grid[middle:] if excess > 0 else grid[:middle]
    return float(grid[0])


@published_claim(
    "decor-code-search",
    graph=connected_graphs(2, 4),
    place=st.integers(0, 49),
    epsilon=st.sampled_from([3, 5, 7, 10, 15, 20, 25, 30, 40]),
    num_steps=st.integers(1, 4).map(lambda k: 1000 * k),
)
def search_meets_its_target(graph: nx.Graph, place: int, epsilon: int, num_steps: int) -> tuple[float, float]:
    """s_local is the place-th of 50 values between the noise of CDP and that of LDP."""
    log = -math.log(1e-5)
    budget = (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2 / num_steps
    ldp = math.sqrt(2 / budget)
    local = float(np.linspace(ldp / math.sqrt(len(graph)), ldp, 50)[place])
    pair = coded_search(graph, local, budget)
    if pair is None:
        reject()
    spent = num_steps * worst_slope(graph, local, pair)
    return epsilon, spent + 2 * math.sqrt(spent * log)


def factor(graph: nx.Graph, local: float, pair: float) -> FloatArray:
    """Injected <- base noise of one step: (s_local I, s_pair N)."""
    return pairwise_factor(list(graph.edges), len(graph), local, pair)


def known_columns(graph: nx.Graph, attackers: Collection[int]) -> list[int]:
    """Noise columns that the attackers know: their own, and those of their edges."""
    ends = [(i,) for i in range(len(graph))] + list(graph.edges)
    return [column for column, holders in enumerate(ends) if set(holders) & set(attackers)]


def slopes(graph: nx.Graph, local: float, pair: float, attackers: Collection[int] = ()) -> FloatArray:
    """2 [(B B^T)^+]_uu for the honest nodes, B without the noise that the attackers know."""
    B = without_noise(factor(graph, local, pair), known_columns(graph, attackers))
    X, _ = pinv_gram(np.eye(len(graph)), B)
    return 2 * np.delete(X.diagonal(), list(attackers))


def fresh(one_step: FloatArray, num_steps: int) -> FloatArray:
    """Injected <- base noise over all steps, independent draws."""
    return np.asarray(np.kron(np.eye(num_steps), one_step), dtype=np.float64)


def worst_slope(graph: nx.Graph, local: float, pair: float, colluders: int = 0) -> float:
    """Largest slope over honest nodes and all sets of colluders."""
    return max(float(slopes(graph, local, pair, gone).max()) for gone in coalitions(graph, colluders))


def coalitions(graph: nx.Graph, size: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations(range(len(graph)), size))

"""[DECOR]: noise that cancels between neighbours, by its theorem, its accountant and its closed form.

The result is a `PublishedBound`; the covariance itself is in `mfdl.node_covariances`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from mfdl import check, graphs, node_covariances
from mfdl.check import FloatArray
from mfdl.decor_search import corollary_noise
from mfdl.errors import InvalidInput
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
        variances = (
            check.positive(sigma_ldp=self.sigma_ldp) ** 2,
            check.non_negative(sigma_cor=self.sigma_cor) ** 2,
        )
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

    Args:
        graph: anything `graphs.load` reads.
        sigma_ldp, sigma_cor: standard deviations, > 0 and >= 0, see `spatial.decor_covariance`.
        num_colluders: q, 0 <= q < n. clip_norm: C. num_steps: T.

    Raises: InvalidInput: an argument is out of range, or more than 20,000 coalitions.
    Cost: that of `spatial.algebraic_connectivity_after_deletion`.
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
    """The same slope for every victim, against given colluders; inf for the colluders themselves.

    Source, Claims, Errata, Validity: those of `decor_accountant`.

    Args:
        colluders: labels, or indices written "#0"; none for an eavesdropper. The rest as in `decor_theorem`.

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

    Args: as in `decor_theorem`; epsilon > 0, 0 < delta < 1.
    Returns: both standard deviations and the epsilon certified for them, at most the target.
    Raises:
        InvalidInput: epsilon above 2.343 L (the message gives the exact mu to aim at), q nodes disconnect the
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

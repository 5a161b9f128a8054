"""Statements of papers of the field, beside the library: facts, published bounds, claims and figures.

A folder holds what belongs to one paper: `facts.toml` (its statements, and whether they hold), `figures.toml` with the
code of its figures, its privacy bounds and rates as printed or as coded, and its statements as claims
(`..._claims.py`, or the package itself if it has nothing else). `facts`, `paper_claims` and `figures` read them all;
`paper_commands` are those of `mfdl`.
Nothing in `mfdl` imports this package: it is found by entry points (`mfdl.extensions`).

Bounds exist to be compared with; for a guarantee use the accounting of `mfdl`. Papers, by arXiv id:

- [CEBM22] 2206.05091, Muffliato, pairwise loss by distance in the graph.
- [DECOR] 2405.01031, noise that cancels between neighbours.
- 2006.07218 (Sabater et al.), the same noise by flows along edges, for comparison.
- [CorN] 2501.14644v2 and [Whisper] 2501.14644v1, noise with a covariance R over nodes.
- [PNF] 2510.19934, a token on a random walk.
- [MF] 2510.17480, decentralized learning as a matrix factorization.

Limits of all of these bounds: pairwise bounds, where messages are hidden from the attacker, hold at most for
non-adaptive gradients. On the path u - w - v with two steps, a gradient of w that reacts to the message of u has total
variation 0.271, where Muffliato's bound of 1/3 for mu^2 allows 0.227.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = {
    "corn.covariance_bounds": """
        corn_equation_9_renyi corn_equation_9b corn_renyi corn_theorem inverse_diagonal_limit
    """,
    "decor.convergence": """
        DecorBound DecorRate Objective decor_constant decor_descent decor_disagreement decor_rate
        decor_rate_non_convex decor_step_size decor_step_sizes decor_theorem_2 decor_theorem_2_non_convex
    """,
    "decor.decor_bounds": """
        DecorNoise accumulated_error average_error decor_accountant decor_corollary decor_theorem decor_victims
        flow_theorem heterogeneity largest_theta one_step_error pairwise_error sampled_epsilon sampled_renyi
    """,
    "decor.rate_comparison": "central_rate local_rate muffliato_rate",
    "facts": "Fact Paper all_facts bibliography cited errata fact",
    "mafalda.view_sensitivity": "ReducedView greedy_rows reduce_view sum_abs_gram sum_abs_gram_as_printed",
    "muffliato.published_losses": "muffliato_as_coded muffliato_squared",
    "published": "PublishedBound Quantity",
    "random_walk": "hitting_times pn_f_dp walk_known",
    "paper_claims": "published_claims",
    "whisper": "whisper_theorem",
}
_EXPORTS = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        from mfdl.extensions import submodule

        return submodule(__name__, name)
    globals()[name] = value = getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__

"""Statements of papers of the field, beside the library: facts, published bounds, claims and figures.

A package holds what belongs to one paper: its privacy bounds and rates as printed or as coded, `facts.toml` (its
statements, and whether they hold), claims that test them, `figures.toml` and the code of its figures. `facts`,
`paper_claims` and `figures` read them all. Nothing in `mfdl` imports this package: it is found by entry points
(`mfdl.extensions`). Bounds exist to be compared with; for a guarantee use the accounting of `mfdl`.

Papers, by arXiv id: [CEBM22] 2206.05091 (Muffliato), [DECOR] 2405.01031, [CorN] 2501.14644v2 and [Whisper] v1 of it,
[PNF] 2510.19934 (random walks), [MF] 2510.17480 (MAFALDA).

Limits of all of these bounds: pairwise bounds, where messages are hidden from the attacker, hold at most for
non-adaptive gradients. On the path u - w - v with two steps, a gradient of w that reacts to the message of u has total
variation 0.271, where Muffliato's bound of 1/3 for mu^2 allows 0.227.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = {
    "corn": """
        corn_equation_9_renyi corn_equation_9b corn_renyi corn_theorem inverse_diagonal_limit
    """,
    "decor.convergence": """
        DecorBound DecorRate Objective decor_constant decor_descent decor_disagreement decor_rate
        decor_rate_non_convex decor_step_size decor_step_sizes decor_theorem_2 decor_theorem_2_non_convex
    """,
    "decor": """
        DecorNoise accumulated_error average_error decor_accountant decor_corollary decor_theorem decor_victims
        flow_theorem heterogeneity largest_theta one_step_error pairwise_error sampled_epsilon sampled_renyi
    """,
    "decor.rate_comparison": "central_rate local_rate muffliato_rate",
    "facts": "Fact Paper all_facts bibliography cited errata fact",
    "mafalda": "ReducedView greedy_rows reduce_view sum_abs_gram sum_abs_gram_as_printed",
    "muffliato": "muffliato_as_coded muffliato_squared",
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

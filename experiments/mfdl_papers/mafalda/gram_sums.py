"""[MF]: the sum of magnitudes of a view Gram as a bound on its sensitivity, with and without the square root.

The result is a `PublishedBound`; exact sensitivities are in `privacy.sensitivity`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mfdl import check
from mfdl.errors import InvalidInput

from ..facts import errata
from ..published import FIXED, PublishedBound


def sum_abs_gram(gram: Any) -> PublishedBound:
    """sqrt(sum |X_st|): the sensitivity bound of the paper with the square root it lacks.

    Source: [MF] arXiv:2510.17480, Theorem 7, (8), corrected.
    Claims: mu per unit record shift and noise std, for the steps of one record. X is the block of the view Gram
        A^T (B B^T)^+ A on those steps.
    Errata: `mafalda-equation-8-square`, `mafalda-figure-2-tighter`, `mafalda-theorem-7-adaptive`.
    Validity: "bound" for gradients fixed in advance; exact when X >= 0.

    Args:
        gram: X, symmetric, shape (k, k), or one per victim, shape (victims, k, k); no victim may leak.

    Raises: InvalidInput: not finite, not square, or not symmetric.
    """
    return PublishedBound(
        np.sqrt(_sum_abs(gram)),
        "mu",
        "[MF] arXiv:2510.17480, Theorem 7 (8), with the square root",
        errata("mafalda-equation-8-square", "mafalda-figure-2-tighter", "mafalda-theorem-7-adaptive"),
        f"bound {FIXED}; exact where X >= 0",
    )


def sum_abs_gram_as_printed(gram: Any) -> PublishedBound:
    """sum |X_st| taken for the sensitivity itself. Not a bound: the sum bounds its square.

    Source: [MF] arXiv:2510.17480, Theorem 7, (8), also (12) and (28) to (31).
    Claims: mu per unit record shift and noise std.
    Errata: `mafalda-equation-8-square`.
    Validity: "refuted: the square root is missing"; use `sum_abs_gram`.

    Args, Raises: those of `sum_abs_gram`.
    """
    return PublishedBound(
        _sum_abs(gram),
        "mu",
        "[MF] arXiv:2510.17480, Theorem 7 (8) as printed",
        errata("mafalda-equation-8-square"),
        "refuted: the square root is missing",
    )


def _sum_abs(gram: Any) -> Any:
    """A float, or an array of one per victim."""
    ndim = 3 if np.ndim(gram) == 3 else 2
    X = check.finite_array(ndim, gram=gram)
    if X.shape[-1] != X.shape[-2]:
        raise InvalidInput(f"gram must be square in its last two axes, got shape {X.shape}.")
    gap = np.abs(X - X.swapaxes(-1, -2)).max(initial=0.0)
    if gap > 1e-8 * np.abs(X).max(initial=0.0):
        raise InvalidInput(f"gram must be symmetric, got entries that differ from the transpose by {gap:.3g}.")
    return np.abs(X).sum(axis=(-2, -1))

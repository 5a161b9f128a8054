"""Whisper D-SGD, arXiv:2501.14644v1, the first version of CorN-DSGD: its Theorem 2, which is no bound."""

from __future__ import annotations

import math
from typing import Any

from mfdl import check, node_covariances

from ..facts import errata
from ..published import PublishedBound


def whisper_theorem(covariance: Any, *, delta: float, clip_norm: float = 1.0, num_steps: int = 1) -> PublishedBound:
    """epsilon as printed in the first version of [CorN]: 2 C^2 T r / n + r C sqrt(2 T L / n). Not a bound.

    Source: [Whisper] arXiv:2501.14644v1, Theorem 2, (8); r = max_i [R^-1]_ii.
    Claims: (epsilon, delta) against an eavesdropper.
    Errata: `whisper-theorem-2`; its (10) is `whisper-10`.
    Validity: "refuted: reports far too little"; kept for comparison only.

    Args, Raises, Cost: those of `corn_theorem`.
    """
    C = check.positive(clip_norm=clip_norm)
    T = check.integer_at_least(1, num_steps=num_steps)
    L = -math.log(check.open_unit(delta=delta))
    R = check.square_array(covariance=covariance)
    r, n = node_covariances.inverse_diagonal(R), len(R)
    return PublishedBound(
        2 * C**2 * T * r / n + r * C * math.sqrt(2 * T * L / n),
        "epsilon",
        "[Whisper] arXiv:2501.14644v1, Theorem 2 (8)",
        errata("whisper-theorem-2"),
        "refuted: 1.17 printed where the exact epsilon is 9.997 (R = I, n = 20, C = T = 1, delta = 1e-5)",
    )

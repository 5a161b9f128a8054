"""How much noise is left in the models that count: `NoiseObjective`, `ErrorWeights`, and what their answers are.

In: `Dynamics`, a number of steps, `ErrorWeights`, perhaps with the `Curvature` of the loss. Out: methods of one object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .curvature import Curvature
    from .error_weights import ErrorWeights
    from .estimated_grams import Probes
    from .noise_objective import NoiseObjective

__all__ = ["Curvature", "ErrorWeights", "NoiseObjective", "Probes"]


def __getattr__(name: str) -> Any:
    from ..extensions import public

    return public(__name__, name)


def __dir__() -> list[str]:
    return sorted(__all__)

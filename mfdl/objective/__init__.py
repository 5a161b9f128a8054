"""How much noise is left in the models that count: `NoiseObjective`, `ErrorWeights`, and what their answers are.

In: `Dynamics`, a number of steps, `ErrorWeights`, perhaps with the `Curvature` of the loss. Out: methods of one object,

- `over_steps`, T x T, for noise correlated in time at each node (`over_steps_of_nodes`: one for each node);
- `over_nodes`, n x n, for noise fresh in each step but correlated across nodes;
- `by_modes` and `over_both`, for noise correlated over steps and nodes at once;
- `spectral_measure` and `mode_cost`: the same over steps without an array, of constant symmetric gossip;
- `averaged`, over gossip that is drawn anew in each round; `estimated` and `fresh_noise`, for graphs of any size by
  random probes, with error bars;
- `noise_error`, the value itself for a noise operator; `excess_loss`, what it adds to a loss with that curvature.
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

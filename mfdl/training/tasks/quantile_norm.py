"""A clipping norm that follows a quantile of the norms: its logarithm is one more parameter of each node's model.

In: a task; per-record gradients and the models at which they were taken. Out: the task with that parameter; the
clip rule of the gradients, and what records add to the parameter. A record's contribution is

    (C a min(1, c / ||g||) g / c, C b v),  v = (1{||g|| <= c} - q) / max(q, 1 - q),  a^2 + b^2 <= 1,

c of the node's own model: a function of record and model of norm at most C, as every gradient is. So any guarantee for
gradients chosen from models covers it, with the noise of the mechanism in all entries, shared or correlated or not, and
whoever sees which messages: nothing is released beside the models. At a `PrivateNode` the module holds the parameter,
and messages average it with the others. By descent on v, log c moves to where a share q of
the norms is below c; steps, averaging and noise are those of every parameter.

Source: Andrew et al., arXiv:1905.03871 (quantiles by noisy counts; there at a server, and with noise of its own).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import clipping
from ..clip_rules import SMALLEST_GAMMA, ClipRule, Quantile

LOG_NORM = "log_norm"
BELOW = 1 - 2.0**-20
"""What rounding to float32 may need of the share of each part."""


class WithLogNorm(torch.nn.Module):
    """A module with the logarithm of a clipping norm, first 0, which its output does not depend on."""

    def __init__(self, build_module: Callable[[], torch.nn.Module]) -> None:
        super().__init__()
        self.module = build_module()
        self.log_norm = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.module(x)
        return output


def with_log_norm(task: Any) -> Any:
    """The `Task`, whose module imports this one, with the parameter; itself if it has it."""
    builds = task.build_module
    if isinstance(builds, functools.partial) and builds.func is WithLogNorm:
        return task
    return dataclasses.replace(task, build_module=functools.partial(WithLogNorm, builds), lipschitz=None)


@dataclasses.dataclass(frozen=True, eq=False)
class AtLearned(ClipRule):
    """C a / max(||g||, c), c of the node's model.

    Attributes: learned: c of each node, (n, 1), float64.
    """

    learned: torch.Tensor

    def weights(self, norms: torch.Tensor, norm: float) -> torch.Tensor:
        return norm / torch.maximum(norms, self.learned)


def parts(
    plain: Sequence[torch.Tensor],
    factors: Sequence[clipping.Factors],
    log_norms: torch.Tensor,
    mask: torch.Tensor,
    rule: Quantile,
) -> tuple[AtLearned, torch.Tensor]:
    """The rule of the gradients, and sums (n,) of what records add to `LOG_NORM`, float64.

    Args: plain, factors, mask: as of `clipping.ghost_clipped_sums`; log_norms: log c of each node, (n,).

    Guarantees: a record's gradient by that rule and its entry together have norm at most `rule.norm`, rounded to the
        type of the gradients too; the entry of a masked record, and of one that is not finite, is zero.
    """
    learned = log_norms.double().exp().clamp(min=SMALLEST_GAMMA).unsqueeze(1)
    at_learned = AtLearned(rule.norm * math.sqrt(1 - rule.share**2) * BELOW, learned)
    norms = clipping.norm_bounds(plain, factors)
    votes = torch.where(norms <= learned, 1 - rule.quantile, -rule.quantile) / max(rule.quantile, 1 - rule.quantile)
    counted = mask & torch.isfinite(norms)
    return at_learned, torch.where(counted, votes * (rule.norm * rule.share * BELOW), 0.0).sum(1)

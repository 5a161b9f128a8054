"""Step rules: functions of privatised gradients whose results enter the algorithm in their place.

A rule costs no privacy where the guarantee covers the stream of privatised gradients, chosen adaptively: directions and
scales of the next gradients before clipping are post-processing of it (docs/step_rules.md has the proof).
`replay_config.require_injected_sums` refuses the rest: hidden messages, and noise that enters elsewhere than gradients.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping

import numpy as np
import scipy.sparse as sp
import torch

from .. import check
from ..algorithms import LinearAlgorithm
from ..errors import InvalidInput
from ..spec import Entry, Registry, kebab_case
from .distributed import Share

State = Mapping[str, torch.Tensor]  # state of a rule: tensors by name, one row a node, float64
STEP_RULES: Registry[Entry] = Registry("step rule", by_position=True)


class PublicFacts:
    """Public numbers of a run that rules read, and the averaging of vectors that nodes send beside their models.

    Attributes: divisors: m_u of this rank's nodes, shape (rows, 1).
    """

    def __init__(self, algorithm: LinearAlgorithm, noise_std: float, share: Share, device: torch.device) -> None:
        self._dynamics, self._share, self._device = algorithm.dynamics, share, device
        self.divisors = self._rows(algorithm.divisors)
        self._variances = noise_std**2 * algorithm.noise.variances()
        self._weights: tuple[object, sp.csr_array] | None = None

    def variances(self, t: int) -> torch.Tensor:
        """Variance of the injected noise of step t over m_u^2, shape (rows, 1)."""
        return self._rows(self._variances[t]) / self.divisors**2

    def averaged(self, t: int, x: torch.Tensor) -> torch.Tensor:
        """W_t x, the averaging of step t; called by every rank."""
        return self._product(self._gossip_weights(t), x)

    def averaged_variance(self, t: int, variance: torch.Tensor) -> torch.Tensor:
        """The variance of W_t x for entries of such a variance, as if independent over nodes."""
        return self._product(sp.csr_array(self._gossip_weights(t).power(2)), variance)

    def _gossip_weights(self, t: int) -> sp.csr_array:
        K = self._dynamics.gossip_rounds
        rounds = tuple(self._dynamics.gossip.at(t * K + j) for j in range(K))
        if self._weights is None or self._weights[0] != tuple(map(id, rounds)):
            self._weights = tuple(map(id, rounds)), self._dynamics.step_weights(t)
        return self._weights[1]

    def _product(self, W: sp.csr_array, x: torch.Tensor) -> torch.Tensor:
        whole = self._share.gathered("nodes", x)
        return self._share.own_rows("nodes", torch.tensor(W @ whole.cpu().numpy(), device=self._device))

    def _rows(self, numbers: np.ndarray) -> torch.Tensor:
        column = torch.as_tensor(np.array(numbers, dtype=np.float64)[:, None], device=self._device)
        return self._share.own_rows("nodes", column)


@dataclasses.dataclass(frozen=True)
class StepRule(abc.ABC):
    """A causal function of privatised gradients of one rank's nodes, which reads its arguments and nothing else."""

    def __str__(self) -> str:
        """Its name and numbers; runs of different texts share no noise and no checkpoint."""
        values = [f"{getattr(self, field.name)!r}" for field in dataclasses.fields(self)]
        return ":".join([kebab_case(type(self).__name__), *values])

    def first_state(self, zeros: torch.Tensor) -> State:
        """The state before the first step, from zeros (rows, d)."""
        return {}

    def scales(self, t: int, state: State) -> torch.Tensor | None:
        """Factors > 0 of each record's gradient of step t before clipping, shape (rows, d), public; None: ones."""
        return None

    @abc.abstractmethod
    def step(self, t: int, sums: torch.Tensor, state: State, facts: PublicFacts) -> tuple[torch.Tensor, State]:
        """(directions, the next state) of step t, from privatised sums of clipped gradients, (rows, d), float64.

        Directions are in units of sums, as the algorithm divides them by the divisors.
        """


@STEP_RULES.register()
@dataclasses.dataclass(frozen=True)
class Normalised(StepRule):
    """Every node's privatised gradient is scaled to length 1, so the learning rate is the length of a step."""

    def step(self, t: int, sums: torch.Tensor, state: State, facts: PublicFacts) -> tuple[torch.Tensor, State]:
        norms = torch.linalg.vector_norm(sums, dim=1, keepdim=True)
        return sums * torch.where(norms > 0, facts.divisors / norms, 0.0), state


@STEP_RULES.register(example="nesterov:0.9")
@dataclasses.dataclass(frozen=True)
class Nesterov(StepRule):
    """Nesterov momentum: the privatised gradient plus beta times the buffer that it has entered; 0 <= beta < 1."""

    beta: float

    def __post_init__(self) -> None:
        if not check.non_negative(beta=self.beta) < 1:
            raise InvalidInput(f"beta must lie in [0, 1), got {self.beta:g}: the buffer would never forget.")

    def first_state(self, zeros: torch.Tensor) -> State:
        return {"buffer": zeros}

    def step(self, t: int, sums: torch.Tensor, state: State, facts: PublicFacts) -> tuple[torch.Tensor, State]:
        buffer = self.beta * state["buffer"] + sums
        return sums + self.beta * buffer, {"buffer": buffer}


@dataclasses.dataclass(frozen=True)
class SecondMoments(StepRule):
    """Diagonal scales from second moments of privatised gradients, from which the known noise variance is subtracted.

    Nodes average their privatised mean gradients by the gossip of the step: one more vector of d numbers with each
    message. Node u keeps v_u <- decay v_u + (1 - decay) (a_u^2 - variance of the noise in a_u), a_u its average, and
    scales coordinate j by ((r_j + floor) / (1 + floor))^-exponent, r_j the positive part of v_uj over the largest.

    Attributes: exponent: > 0; decay: in [0, 1); floor: > 0, no scale is above ((1 + floor) / floor)^exponent.
    """

    exponent: float = 0.5
    decay: float = 0.9
    floor: float = 0.05

    def __post_init__(self) -> None:
        check.positive(exponent=self.exponent)
        check.positive(floor=self.floor)
        if not check.non_negative(decay=self.decay) < 1:
            raise InvalidInput(f"decay must lie in [0, 1), got {self.decay:g}: the first gradient would stay for ever.")

    def first_state(self, zeros: torch.Tensor) -> State:
        return {"moments": zeros}

    def factors(self, state: State) -> torch.Tensor:  # 1 where no moment is above zero
        moments = state["moments"].clamp(min=0.0)
        largest = moments.amax(1, keepdim=True)
        ratios = torch.where(largest > 0, moments / largest, 1.0)
        return ((ratios + self.floor) / (1 + self.floor)) ** -self.exponent

    def learned(
        self, t: int, gradients: torch.Tensor, variances: torch.Tensor, state: State, facts: PublicFacts
    ) -> State:
        """The state after the privatised mean gradients of step t, of noise with such variances."""
        squares = facts.averaged(t, gradients).square() - facts.averaged_variance(t, variances)
        return {"moments": self.decay * state["moments"] + (1 - self.decay) * squares}


@STEP_RULES.register(example="rms:0.5:0.9")
@dataclasses.dataclass(frozen=True)
class Rms(SecondMoments):
    """RMSProp after the noise: privatised gradients are scaled by their second moments, gradients are not."""

    def step(self, t: int, sums: torch.Tensor, state: State, facts: PublicFacts) -> tuple[torch.Tensor, State]:
        means = sums / facts.divisors
        state = self.learned(t, means, facts.variances(t).expand_as(means), state, facts)
        return sums * self.factors(state), state


@STEP_RULES.register(example="messages:0.25:0.9")
@dataclasses.dataclass(frozen=True)
class Messages(SecondMoments):
    """A preconditioner from messages already seen: scales M before clipping, and M once more on the privatised sums.

    For features x and first-layer weights this is training on M x (`Preconditioner`), with M chosen in each step.
    """

    exponent: float = 0.25

    def scales(self, t: int, state: State) -> torch.Tensor | None:
        return self.factors(state)

    def step(self, t: int, sums: torch.Tensor, state: State, facts: PublicFacts) -> tuple[torch.Tensor, State]:
        scales = self.factors(state)
        variances = facts.variances(t) / scales.square()
        return sums * scales, self.learned(t, sums / facts.divisors / scales, variances, state, facts)


def parse(spec: StepRule | str) -> StepRule:
    """The step rule that a text names; a `StepRule` as it is.

    Raises: InvalidInput: another text, or a number out of range.

    >>> str(parse("rms:0.5")), str(parse("nesterov:0.9"))
    ('rms:0.5:0.9:0.05', 'nesterov:0.9')
    """
    if isinstance(spec, StepRule):
        return spec
    rule: StepRule = STEP_RULES.make(check.text("'rms:0.5'", step_rule=spec))
    return rule

"""Released model: what of the trajectory is evaluated and published, a linear map of the models over time and nodes.

    released = sum_r a_r W^g theta_{r+1},   a_r >= 0, sum_r a_r = 1,

theta_{r+1} the models after step r, g further averaging rounds at the end. Where every message is seen that costs no
privacy: whoever sees the messages can compute it. Where some are hidden it is a release of its own, in the place of the
final models. Noise that differs from step to step cancels in the average.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp

from . import check
from .check import FloatArray
from .errors import InvalidInput
from .gossip import Gossip
from .spec import Entry, Registry, parse, storable

StepWeights: TypeAlias = Callable[[int], FloatArray]  # A weight for each of T steps, shape (T,)
MODELS: Registry[Entry] = Registry("released model", by_position=True)  # functions to the weights a_r, by name


@storable
@dataclasses.dataclass(frozen=True)
class ReleasedModel:
    """Which models a run releases.

    Attributes:
        model: "last"; "average:M", the mean of the last M models of each node; "exponential:M", the mean of all of
            them, weights halved every M steps back from the end. "average:M+G" says `rounds_of_gossip` too.
        rounds_of_gossip: G >= 0 averaging rounds after training, of what is released and nothing else.

    Raises: InvalidInput: an unknown name, numbers that are no such ones, rounds given twice.

    >>> ReleasedModel("average:2").weights_by_step(4)
    array([0. , 0. , 0.5, 0.5])
    >>> ReleasedModel("exponential:1", rounds_of_gossip=2).describe()
    'exponential:1+2'
    """

    model: str = "last"
    rounds_of_gossip: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.model, str):
            raise InvalidInput(f"model must be a text such as 'average:48', got {self.model!r}.")
        name, plus, rounds = (part.strip() for part in self.model.partition("+"))
        if plus:
            if self.rounds_of_gossip or not rounds.isdecimal():
                raise InvalidInput(
                    f"released model {self.model!r} must end in +G, G whole averaging rounds said once, as in "
                    "average:48+2."
                )
            object.__setattr__(self, "rounds_of_gossip", int(rounds))
        object.__setattr__(self, "model", name)
        check.integer_at_least(0, rounds_of_gossip=self.rounds_of_gossip)
        MODELS.make(name)

    @property
    def is_last(self) -> bool:
        return parse(self.model).name == "last" and not self.rounds_of_gossip

    def weights_by_step(self, num_steps: int) -> FloatArray:
        """a_r, shape (num_steps,), their sum 1. Raises: InvalidInput: an average over more models than there are."""
        weights: StepWeights = MODELS.make(self.model)
        return weights(check.integer_at_least(1, num_steps=num_steps))

    def further_gossip(self, gossip: Gossip, first: int) -> sp.csr_array | None:
        """The product of the rounds at the end, the first of them round `first` of the gossip; None: no rounds."""
        product: sp.csr_array | None = None
        for round_ in range(first, first + self.rounds_of_gossip):
            W = gossip.at(round_).weights
            product = W if product is None else sp.csr_array(W @ product)
        return product

    def describe(self) -> str:
        return self.model + (f"+{self.rounds_of_gossip}" if self.rounds_of_gossip else "")


@MODELS.register()
def last() -> StepWeights:
    """The last models."""
    return average(1)


@MODELS.register(example="average:48")
def average(models: int) -> StepWeights:
    """The mean of the last models of each node, so many of them."""
    models = check.integer_at_least(1, models=models)

    def weights_by_step(num_steps: int) -> FloatArray:
        if models > num_steps:
            raise InvalidInput(f"released model 'average:{models}' averages the last {models} of {num_steps} models.")
        return np.where(np.arange(num_steps) >= num_steps - models, 1 / models, 0.0)

    return weights_by_step


@MODELS.register(example="exponential:10")
def exponential(half_life: float) -> StepWeights:
    """The mean of all models, weights halved every so many steps back from the end."""
    half_life = check.positive(half_life=half_life)

    def weights_by_step(num_steps: int) -> FloatArray:
        with np.errstate(over="ignore"):
            weights = 0.5 ** (np.arange(num_steps)[::-1] / half_life)
        return np.asarray(weights / weights.sum())

    return weights_by_step

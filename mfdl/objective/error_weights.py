"""Which models the error counts: `ErrorWeights`, by steps, by nodes, on the way and by curvature.

The counted variance is sum_r w_r theta_r^T Q theta_r over the models theta_r after step r, Q the target over nodes; of
released models (sum_r a_r theta_r)^T Q (sum_r a_r theta_r), a the weights of a `ReleasedModel`. Noise matters twice: in
the model that is published (the step weights), and at the models where gradients are taken (`on_the_way`).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from .. import check
from ..check import FloatArray
from ..display import short_repr
from ..errors import InvalidInput, unknown_name
from ..released import ReleasedModel, StepWeights
from ..spec import Entry, Registry

if TYPE_CHECKING:
    from .curvature import Curvature

NODES, AVERAGE = "nodes", "average"
ON_THE_WAY, CURVED = "on-the-way=", "curvature="

STEP_WEIGHTS: Registry[Entry] = Registry("step_weights", by_position=True)
"""Functions to the weights w_r, or a_r of released models, by name."""


@dataclasses.dataclass(frozen=True, eq=False)
class ErrorWeights:
    """Weights of steps and the target over nodes.

    Attributes:
        step_weights: "all" (alike), "last" or "last:M" or "last:M:FLOOR" (1 on the last M steps, FLOOR before, default
            1 and 0), "exponential:H" (halved every H steps back from the end), or one weight >= 0 per step, shape (T,).
            "released:MODEL": the released models alone, MODEL as `ReleasedModel` reads it, as in "released:average:48".
        target: "nodes" (every node's model alike), "average" (their average, counted n times to be comparable), or one
            weight >= 0 per node, shape (n,), such as a 0/1 mask of the nodes whose models are used.
        on_the_way: >= 0, the weight of the mean variance of the models at which the T gradients are taken: 1 / T for
            each model but the last one, beside the step weights. With "released:MODEL" both are variances of one
            model, so that 1 counts a model on the way as much as the published one.
        curvature: of the loss, a `Curvature` or a text such as "power:1:100"; the counted variance is then an excess
            loss, sum_j w_j times the variance along direction j. Default None: every direction alike, no contraction.

    Raises: InvalidInput: unknown names, numbers that are negative, not finite or all zero.

    >>> ErrorWeights("last:2:0.1").weights_by_step(4)
    array([0.1, 0.1, 1. , 1. ])
    >>> ErrorWeights("exponential:1").weights_by_step(3)
    array([0.25, 0.5 , 1.  ])
    """

    __repr__ = short_repr

    step_weights: str | Sequence[float] | FloatArray = "all"
    target: str | Sequence[float] | FloatArray = NODES
    on_the_way: float = 0.0
    curvature: Curvature | str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "on_the_way", check.non_negative(on_the_way=self.on_the_way))
        if self.curvature is not None:
            from .curvature import Curvature

            if isinstance(self.curvature, str):
                object.__setattr__(self, "curvature", Curvature.parse(self.curvature))
            check.instance(Curvature, curvature=self.curvature)
        if isinstance(self.step_weights, str):
            STEP_WEIGHTS.make(self.step_weights)
        else:
            object.__setattr__(self, "step_weights", _non_negative("step_weights", self.step_weights))
        if isinstance(self.target, str):
            if self.target not in (NODES, AVERAGE):
                raise unknown_name("target", self.target, (NODES, AVERAGE))
        else:
            object.__setattr__(self, "target", _non_negative("target", self.target))

    @property
    def released(self) -> ReleasedModel | None:
        if not isinstance(self.step_weights, str):
            return None
        entry, arguments = STEP_WEIGHTS.read(self.step_weights)
        return ReleasedModel(**arguments) if entry.build is released_models else None

    @property
    def uniform_target(self) -> bool:
        return isinstance(self.target, str) and self.target == NODES

    @property
    def is_average(self) -> bool:
        return isinstance(self.target, str) and self.target == AVERAGE

    def weights_by_step(self, num_steps: int) -> FloatArray:
        """w_r for the model after step r, those on the way included, shape (num_steps,); a_r of released models.

        Raises: InvalidInput: weights for another number of steps, or more last steps than there are.
        """
        num_steps = check.integer_at_least(1, num_steps=num_steps)
        if not isinstance(self.step_weights, str):
            if len(self.step_weights) != num_steps:
                raise InvalidInput(
                    f"step_weights must hold one weight for each of {num_steps} steps, got {len(self.step_weights)}."
                )
            given = np.array(self.step_weights)
        else:
            weights: StepWeights = STEP_WEIGHTS.make(self.step_weights)
            given = weights(num_steps)
        on_the_way = self.on_the_way if self.released is None else 0.0
        return given + on_the_way * way_weights(num_steps) if on_the_way else given

    def kinds(self, num_steps: int) -> tuple[tuple[float, ErrorWeights], ...]:
        """Weights that count step by step or what is released, not both, with factors: the variance is their sum."""
        if self.released is None or not self.on_the_way or num_steps == 1:
            return ((1.0, self),)
        published, way = dataclasses.replace(self, on_the_way=0.0), self.for_gradients(num_steps)
        return ((1.0, published), (self.on_the_way, way))

    def for_gradients(self, num_steps: int) -> ErrorWeights:
        """The mean over the T >= 2 models at which gradients are taken, at the same target and curvature."""
        return dataclasses.replace(self, step_weights=way_weights(num_steps), on_the_way=0.0)

    def for_published(self, num_steps: int) -> ErrorWeights:
        """The step weights alone, their sum 1; what is released as it is."""
        alone = dataclasses.replace(self, on_the_way=0.0)
        if self.released is not None:
            return alone
        weights = alone.weights_by_step(num_steps)
        return dataclasses.replace(alone, step_weights=weights / weights.sum())

    @property
    def mass(self) -> float | None:
        """Sum of the weights of nodes, tr(Q) = 1 for the average; None: n."""
        return None if isinstance(self.target, str) else float(np.sum(self.target))

    def target_diagonal(self, num_nodes: int) -> FloatArray | None:
        """The diagonal of Q, shape (n,); None for the average, whose Q = 1 1^T / n is not diagonal."""
        if isinstance(self.target, str):
            return np.ones(num_nodes) if self.target == NODES else None
        if len(self.target) != num_nodes:
            raise InvalidInput(
                f"target must hold one weight for each of {num_nodes} nodes, got {len(self.target)}; a list of nodes "
                "is a mask, 1 for those that count."
            )
        return np.array(self.target)

    def node_factor(self, num_nodes: int) -> sp.csr_array:
        """F with F^T F = Q, csr (rows, n): what is counted of the models of one step."""
        of_nodes = self.target_diagonal(num_nodes)
        if of_nodes is None:
            return sp.csr_array(np.full((1, num_nodes), num_nodes**-0.5))
        counted = np.flatnonzero(of_nodes)
        shape = (counted.size, num_nodes)
        return sp.csr_array((np.sqrt(of_nodes[counted]), (np.arange(counted.size), counted)), shape=shape)

    def describe(self) -> str:
        """As `parse` reads it, short enough for a legend; arrays by a hash."""
        parts = [self.step_weights if isinstance(self.step_weights, str) else f"given:{_short_hash(self.step_weights)}"]
        if not isinstance(self.target, str):
            parts.append(f"nodes:{_short_hash(self.target)}")
        elif self.target != NODES:
            parts.append(self.target)
        if self.on_the_way:
            parts.append(f"{ON_THE_WAY}{self.on_the_way:g}")
        if self.curvature is not None and not isinstance(self.curvature, str):
            parts.append(f"{CURVED}{self.curvature.describe()}")
        return "/".join(parts)

    @classmethod
    def parse(cls, text: str) -> ErrorWeights:
        """From "STEPS[/TARGET][/on-the-way=WEIGHT][/curvature=SPECTRUM]", as the command line writes them.

        >>> ErrorWeights.parse("last:3/average").describe()
        'last:3/average'
        >>> both = ErrorWeights.parse("released:average:48/on-the-way=0.3/curvature=power:1:100")
        >>> both.on_the_way, both.curvature.text
        (0.3, 'power:1:100')
        """
        rest, curved, spectrum = check.text("'last:3/average'", text=text).partition(f"/{CURVED}")
        steps, *others = (part.strip() for part in rest.split("/"))
        way = [part.removeprefix(ON_THE_WAY) for part in others if part.startswith(ON_THE_WAY)]
        targets = [part for part in others if not part.startswith(ON_THE_WAY)]
        if len(way) > 1 or len(targets) > 1:
            raise InvalidInput(
                f"error weights are written STEPS[/TARGET][/{ON_THE_WAY}WEIGHT][/{CURVED}SPECTRUM], got {text!r}."
            )
        try:
            weight = float(way[0]) if way else 0.0
        except ValueError:
            raise InvalidInput(f"{ON_THE_WAY}WEIGHT takes a number >= 0, got {way[0]!r}.") from None
        return cls(steps, (targets or [""])[0] or NODES, weight, spectrum if curved else None)

    @classmethod
    def for_training(cls, num_steps: int, evaluated_steps: int, *, floor: float = 0.01) -> ErrorWeights:
        """Weights for a run whose models are used (deployed, evaluated, averaged) in its last steps only.

        The floor keeps the error Gram regular and the models on their way usable: gradients are taken at them.
        Args: evaluated_steps: how many of the last models are used; floor: weight of earlier ones.

        >>> ErrorWeights.for_training(320, 48).step_weights
        'last:48:0.01'
        """
        check.integer_at_least(1, num_steps=num_steps)
        check.integer_at_least(1, evaluated_steps=evaluated_steps)
        if evaluated_steps > num_steps:
            raise InvalidInput(f"evaluated_steps must be at most num_steps={num_steps}, got {evaluated_steps}.")
        return cls(f"last:{evaluated_steps}:{check.non_negative(floor=floor):g}")


@STEP_WEIGHTS.register(name="all")
def all_steps() -> StepWeights:
    """All steps alike."""
    return np.ones


@STEP_WEIGHTS.register(example="last:48:0.01")
def last(steps: float = 1, floor: float = 0.0) -> StepWeights:
    """1 on the last steps, the floor before."""
    if not np.isfinite(steps) or steps < 1 or steps != int(steps) or not (np.isfinite(floor) and floor >= 0):
        raise InvalidInput(
            f"step_weights last counts a whole number of steps >= 1, with a floor >= 0, got {steps:g} and {floor:g}."
        )

    def weights_by_step(num_steps: int) -> FloatArray:
        if steps > num_steps:
            raise InvalidInput(f"step_weights last:{steps:g} counts the last {steps:g} of {num_steps} steps.")
        return np.where(np.arange(num_steps) >= num_steps - int(steps), 1.0, floor)

    return weights_by_step


@STEP_WEIGHTS.register(example="exponential:10")
def exponential(half_life: float) -> StepWeights:
    """Halved every so many steps back from the end."""
    half_life = check.positive(half_life=half_life)

    def weights_by_step(num_steps: int) -> FloatArray:
        with np.errstate(over="ignore"):  # a half-life next to zero: earlier steps count nothing
            return np.asarray(0.5 ** (np.arange(num_steps)[::-1] / half_life))

    return weights_by_step


@STEP_WEIGHTS.register(name="released", example="released:average:48")
def released_models(model: str) -> StepWeights:
    """What is released, and nothing else."""
    return ReleasedModel(model).weights_by_step


def released_in_full(text: str, release_model: str) -> str:
    """The text of error weights in which "released" alone is this released model.

    >>> released_in_full("released/average", "average:48"), released_in_full("all", "last")
    ('released:average:48/average', 'all')
    """
    steps, slash, rest = text.partition("/")
    return f"released:{release_model}{slash}{rest}" if steps.strip() == "released" else text


def way_weights(num_steps: int) -> FloatArray:
    """1 / T for the models at which the gradients of steps 1, 2, ... are taken: all but the last, shape (T,)."""
    weights = np.full(num_steps, 1 / num_steps)
    weights[-1] = 0.0
    return weights


ALL_MODELS = ErrorWeights()
"""All steps and nodes alike: the default."""


def _non_negative(name: str, values: Any) -> FloatArray:
    array = check.finite_array(1, **{name: values})
    if array.size == 0 or (array < 0).any() or not array.any():
        raise InvalidInput(f"{name} must be numbers >= 0, not all zero, got {values!r}.")
    array.setflags(write=False)
    return array


def _short_hash(values: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(values, dtype=np.float64).tobytes()).hexdigest()[:8]

"""What hidden messages give away when gradients react to them: small scalar runs, integrated numerically.

Gradients react to the part of the model that the attacker does not see. Out: total variation and delta(epsilon) between
the two worlds, each with an error. Nothing is Gaussian here, so no formula of the library is used.

Dimension one, start 0. In step t node j sends m_j = theta_j + g_j + z_j, then theta = W m. The attacker sees the
messages of the nodes it gives weight to and knows its own; H are the other nodes. Of theta_j it knows all but the
hidden part h_j = sum over k in H of W[j, k] m_k, so what it learns from step t is h_j + g_j(h_j) + z_j for the nodes
it sees, while the messages of H are a Markov chain. The density of all it sees is a product of small matrices.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from ... import check
from ...check import FloatArray
from ...errors import InvalidInput
from ...spec import takes_fields_of

MAX_NODES, MAX_STEPS = 4, 3
TAIL = 7.5  # grids end this many standard deviations out: 1e-13 of the mass is beyond
FINENESS = {1: 1.0, 2: 1.0, 3: 1 / 4, 4: 1 / 12}  # of `resolution`, by the number of observations


class Integral(NamedTuple):
    """A value by quadrature, and how far it moved when all grids were made twice as fine."""

    value: float
    error: float


@dataclasses.dataclass(frozen=True)
class Reaction:
    """The gradient of a node at the hidden part h of its model: clip(slope h + offset, -clip, clip).

    What the attacker knows of the model is known to it in the gradient too: `offset` stands for it.

    >>> Reaction(2.0, offset=-0.5, clip=1.0)(np.array([0.0, 0.5, 3.0]))
    array([-0.5,  0.5,  1. ])
    """

    slope: float
    offset: float = 0.0
    clip: float = 1.0

    def __call__(self, hidden: FloatArray) -> FloatArray:
        reacted: FloatArray = np.clip(self.slope * hidden + self.offset, -self.clip, self.clip)
        return reacted


STILL = Reaction(0.0, clip=0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class ReactingRun:
    """A run whose gradients react to their models; once made, everything is in units of the noise's standard deviation.

    Attributes:
        weights: W, shape (n, n), n <= 4; new = W @ old.
        attacker, victim: two nodes.
        reactions: of any nodes but the attacker, in every step after the first; the others' gradients are 0.
        num_steps: T, 1 to 3.
        pattern: the steps in which the record adds record_shift to the victim's gradient.
        record_shift, noise_std: Delta and nu.
        resolution: grid points in one noise_std; a fraction of it where three or four messages can tell anything.

    Raises: InvalidInput: a size, node or step out of range; more than four telling messages.
    """

    weights: FloatArray
    _: dataclasses.KW_ONLY
    attacker: int
    victim: int
    reactions: Mapping[int, Reaction]
    num_steps: int = 2
    pattern: Collection[int] = (0,)
    record_shift: float = 1.0
    noise_std: float = 1.0
    resolution: int = 24

    def __post_init__(self) -> None:
        nu = check.positive(noise_std=self.noise_std)
        units = {
            "weights": check.square_array(weights=self.weights),
            "record_shift": check.non_negative(record_shift=self.record_shift) / nu,
            "reactions": {j: Reaction(r.slope, r.offset / nu, r.clip / nu) for j, r in self.reactions.items()},
            "pattern": frozenset(self.pattern),
            "noise_std": 1.0,
            "resolution": check.integer_at_least(2, resolution=self.resolution),
        }
        for name, value in units.items():
            object.__setattr__(self, name, value)
        n, last = len(self.weights), self.num_steps - 1
        if n > MAX_NODES:
            raise InvalidInput(f"weights must be of at most {MAX_NODES} nodes, got {n}: the grids grow with it.")
        if not 0 <= last < MAX_STEPS:
            raise InvalidInput(f"num_steps must be 1 to {MAX_STEPS}, got {self.num_steps}: the grids grow with it.")
        if self.attacker == self.victim or not {self.attacker, self.victim} <= set(range(n)):
            raise InvalidInput(
                f"attacker and victim must be two of the nodes 0 to {n - 1}, got {self.attacker} and {self.victim}."
            )
        if not set(self.reactions) <= set(range(n)) - {self.attacker}:
            raise InvalidInput(f"reactions must be of nodes other than the attacker, got {sorted(self.reactions)}.")
        if not set(self.pattern) <= set(range(self.num_steps)):
            raise InvalidInput(f"pattern must hold steps 0 to {last}, got {sorted(self.pattern)}.")
        if (axes := sum(map(len, self.telling()))) > max(FINENESS):
            raise InvalidInput(
                f"the attacker must see at most {max(FINENESS)} telling messages, got {axes}: take fewer steps."
            )

    @property
    def seen(self) -> list[int]:
        return [j for j in range(len(self.weights)) if j != self.attacker and self.weights[self.attacker, j] != 0]

    @property
    def hidden(self) -> list[int]:
        return [j for j in range(len(self.weights)) if j != self.attacker and self.weights[self.attacker, j] == 0]

    def telling(self) -> list[list[int]]:
        """For each step the seen nodes whose message depends on a hidden one or on the record."""
        later = set(self.pattern) - {0}  # else only one message ever knew the record
        moved = {j for j in self.seen if self.weights[j, self.hidden].any() and (later or self.victim in self.hidden)}
        of_record = {t: {self.victim} & set(self.seen) for t in self.pattern}
        return [sorted((moved if t else set()) | of_record.get(t, set())) for t in range(self.num_steps)]

    def density(self, shift: float, points: float) -> tuple[FloatArray, list[float]]:
        """(density on a grid of the telling messages, one axis each; steps of the axes), the grid as for record_shift.

        joint[o, s] is the density of the observations o so far times the mass of the hidden state s.
        """
        W, hidden, telling = self.weights, self.hidden, self.telling()
        reaction = [self.reactions.get(j, STILL) for j in range(len(W))]
        # m_j is a linear map of earlier noise plus something bounded; what does not clip is linear
        gain = np.array([1 + (r.slope if math.isinf(r.clip) else 0.0) for r in reaction])
        reach = np.array([abs(r.offset) if math.isinf(r.clip) else r.clip for r in reaction])
        linear = gain[:, None] * W[:, hidden]
        last = max(t for t in range(self.num_steps) if telling[t])
        axes_left = sum(map(len, telling))
        fineness = FINENESS[axes_left] * points
        state_fineness = {1: points if axes_left < 3 else points / 3, 2: points / 12}  # by dimension

        joint = np.ones((1, 1))
        state, basis = np.zeros((1, 0)), np.zeros((len(hidden), 0))  # hidden messages, along orthonormal columns
        covariance, bounded = np.zeros((len(hidden), len(hidden))), np.zeros(len(hidden))
        shape, steps = [], []
        for t in range(last + 1):
            parts = state @ (W[:, hidden] @ basis).T  # h of every node in every state
            mean = parts + np.stack([r(parts[:, j]) * (t > 0) for j, r in enumerate(reaction)], axis=1)
            slack = np.abs(linear) @ bounded + reach * (t > 0)
            if t in self.pattern:
                mean[:, self.victim] += shift
                slack[self.victim] += self.record_shift
            std = np.sqrt(np.einsum("jk,kl,jl->j", linear, covariance, linear) + 1)
            for j in telling[t]:
                axis, step = _axis(TAIL * std[j] + slack[j], fineness)
                shape.append(len(axis))
                steps.append(step)
                axes_left -= 1
                kernel = _normal(axis[:, None] - mean[None, :, j])
                if not axes_left:
                    return (joint @ kernel.T).reshape(shape), steps
                joint = (joint[:, None, :] * kernel).reshape(-1, joint.shape[1])
            # the next hidden state: only the combinations that a later telling message depends on
            readers = telling[last] if t + 1 == last else [*self.seen, *hidden]
            _, sizes, directions = np.linalg.svd(W[np.ix_(readers, hidden)])
            basis = directions[: int((sizes > 1e-12).sum())].T
            covariance = linear[hidden] @ covariance @ linear[hidden].T + np.eye(len(hidden))
            bounded = slack[hidden]
            axes, move = [], np.ones((len(mean), 1))
            for direction in basis.T:
                half = TAIL * math.sqrt(direction @ covariance @ direction) + np.abs(direction) @ bounded
                axis, step = _axis(float(half), state_fineness[basis.shape[1]])
                axes.append(axis)
                along = _normal(axis - (mean[:, hidden] @ direction)[:, None]) * step
                move = (move[:, :, None] * along[:, None, :]).reshape(len(mean), -1)
            state = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(move.shape[1], len(axes))
            joint = joint @ move
        raise AssertionError("the last telling message ends the loop")


@takes_fields_of(ReactingRun)
def adaptive_total_variation(run: ReactingRun) -> Integral:
    """Total variation between what the attacker sees with and without the record, gradients reacting.

    Args: the fields of `ReactingRun`. Returns: the value and an error; mu-GDP would allow 2 Phi(mu / 2) - 1.
    Cost: about 10 milliseconds for two steps, up to half a second for three.

    >>> path = np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3
    >>> still = adaptive_total_variation(path, attacker=2, victim=0, reactions={})
    >>> reacting = adaptive_total_variation(path, attacker=2, victim=0, reactions={1: Reaction(2.0, offset=-1 / 3)})
    >>> f"{still.value:.4f} {reacting.value:.4f}"
    '0.1256 0.2711'
    """
    return _hockey_stick(run, 0.0)


def adaptive_delta(weights: FloatArray, epsilon: float, **run: Any) -> Integral:
    """delta(epsilon) between what the attacker sees with and without the record, the larger of both directions.

    Arguments, errors and cost as in `adaptive_total_variation`, which is the case epsilon = 0.
    """
    return _hockey_stick(ReactingRun(weights, **run), epsilon)


def _hockey_stick(run: ReactingRun, epsilon: float) -> Integral:
    factor = math.exp(check.non_negative(epsilon=epsilon))
    if not any(run.telling()):
        return Integral(0.0, 0.0)
    values = []
    for points in (run.resolution / 2, run.resolution):
        without, steps = run.density(0.0, points)
        moved, _ = run.density(run.record_shift, points)
        values.append(max(_positive_part(x - factor * y, steps) for x, y in ((moved, without), (without, moved))))
    return Integral(values[1], abs(values[1] - values[0]))


def _positive_part(values: FloatArray, steps: list[float]) -> float:
    """Integral of max(f, 0) over a grid: plain sums, and f linear between points along the axis that f crosses 0 on.

    A plain sum is exact to rounding but for the kink at f = 0; the axis is the one on which the kink costs most.
    """
    cost = []
    for axis, step in enumerate(steps):
        left, right = np.delete(values, -1, axis), np.delete(values, 0, axis)
        cost.append(step * np.abs(right - left)[(left > 0) != (right > 0)].sum())
    f = np.moveaxis(values, int(np.argmax(cost)), -1)  # bound: any axis
    left, right = f[..., :-1], f[..., 1:]
    above = np.maximum(left, 0) + np.maximum(right, 0)
    crossing = (left > 0) != (right > 0)
    share = np.divide(above, np.abs(right - left), out=np.ones_like(above), where=crossing)  # of the cell where f > 0
    return float((above / 2 * share).sum() * math.prod(steps))


def _axis(half: float, points: float) -> tuple[FloatArray, float]:
    """A grid over [-half, half] of about the given points in one unit, and its step."""
    count = max(2, math.ceil(2 * half * points))
    return np.linspace(-half, half, count + 1), 2 * half / count


def _normal(x: FloatArray) -> FloatArray:
    density: FloatArray = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return density

"""Noise and excess loss that the linear recursion of a run predicts, without running it.

Near an optimum with loss curvature lambda along a direction, each node's step is

    theta <- W^K ((1 - eta lambda) theta - eta s x),    x = N z,  z independent of unit variance,

s the standard deviation of base noise on an averaged step, K gossip rounds. An injection of age i is in the models
as rho^i W^(K (i + 1)), rho = 1 - eta lambda, so the variance at any of the models is a polynomial in rho: its
coefficients hold encoder, released model and gossip, and serve every curvature and every learning rate. With Sigma =
N N^T, released weights a_r and P[i, l] = tr((W^(K (i + 1)))^T W^(K (l + 1))) / n it is

    eta^2 s^2 sum_{i, l} rho^(i + l) P[i, l] sum_{s, t} a_{s + i} Sigma[s, t] a_{t + l}

in the published models, per node and coordinate, and the same with Sigma summed over the steps in the models at which
gradients are taken. Checked against the recursion itself in tests/planning.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ..check import FloatArray
from ..dynamics import Dynamics
from ..gossip import Gossip
from ..objective import Curvature, ErrorWeights, NoiseObjective
from ..released import ReleasedModel

RATES: FloatArray = 2.0 ** np.arange(-12, 0.5, 0.5)
"""Learning rates in units of 1 / (largest curvature), the stable ones up to no overshooting."""


@dataclasses.dataclass(frozen=True, eq=False)
class NoiseGain:
    """Variance at a node, per coordinate and per (eta s)^2, as polynomials in the contraction 1 - eta lambda.

    Attributes:
        published: coefficients of the variance in the published models, shape (2 T - 1,), lowest power first.
        on_the_way: of the variance in the models at which gradients are taken, mean over the T steps.
        weights: a_r of the published model, shape (T,).
    """

    published: FloatArray
    on_the_way: FloatArray
    weights: FloatArray

    @classmethod
    def of(
        cls,
        released: ReleasedModel,
        noising: FloatArray | None,
        ages: FloatArray,
        published_ages: FloatArray | None = None,
    ) -> NoiseGain:
        """From N and gossip.

        Args: noising: N of each node, shape (T, T); None: independent noise. ages: `age_gram` of the gossip, (T, T);
            published_ages: of the published models, if further rounds follow the last step.
        Cost: T^3.
        """
        T = len(ages)
        weights = released.of_steps(T)
        steps = np.add.outer(np.arange(T), np.arange(T))
        by_age = np.where(steps < T, weights[np.minimum(steps, T - 1)], 0.0)  # [age, injection]
        covariance = np.eye(T) if noising is None else noising @ noising.T
        effects = by_age if noising is None else by_age @ noising
        published = (effects @ effects.T) * (ages if published_ages is None else published_ages)
        on_the_way = _summed_over_steps(covariance) * ages / T
        return cls(_by_power(published), _by_power(on_the_way), weights)

    def published_std(self, contraction: float = 1.0) -> float:
        """Standard deviation per eta s, per coordinate."""
        return max(float(_value(self.published, np.array(contraction))), 0.0) ** 0.5

    def on_the_way_std(self, contraction: float = 1.0) -> float:
        """Root mean square over the steps, per eta s and coordinate."""
        return max(float(_value(self.on_the_way, np.array(contraction))), 0.0) ** 0.5


@dataclasses.dataclass(frozen=True)
class PredictedLoss:
    """Predicted excess loss over the optimum at one learning rate.

    Attributes: bias: of what is not learned yet; published: of noise in the published model; on_the_way: of noise in
        the models at which gradients are taken.
    """

    learning_rate: float
    bias: float
    published: float
    on_the_way: float

    @property
    def total(self) -> float:
        """The sum of the three."""
        return self.bias + self.published + self.on_the_way


def predicted_loss(
    gain: NoiseGain, curvature: Curvature, rates: FloatArray, step_noise_std: float, start_distance: float
) -> list[PredictedLoss]:
    """For each learning rate: the sum over directions of w_j times squared bias and variance.

    Args: rates: eta, at most 2 / (largest eigenvalue); step_noise_std: s; start_distance: from the first models to the
        optimum along each direction, alike at all nodes.
    Cost: T x (rates) x (directions of the compressed curvature).
    """
    few = curvature.compressed(len(gain.weights))  # all three are polynomials in lambda of degree at most 2 T
    costs = np.asarray(few.weights)
    contraction = 1 - np.outer(rates, few.eigenvalues)
    left = contraction * _value(gain.weights, contraction)
    bias = start_distance**2 * left**2 @ costs
    scale = (rates * step_noise_std) ** 2
    published = scale * (_value(gain.published, contraction) @ costs)
    on_the_way = scale * (_value(gain.on_the_way, contraction) @ costs)
    numbers = np.stack([rates, bias, published, on_the_way])
    return [PredictedLoss(*map(float, column)) for column in numbers.T]


def age_gram(gossip: Gossip, rounds: int, num_steps: int, further: int = 0) -> FloatArray:
    """tr((V W^(K (i + 1)))^T V W^(K (l + 1))) / n for ages i and l, V the further rounds; shape (T, T).

    Of fewer steps it is the leading block. Cost: that of `NoiseObjective.over_steps`.
    """
    counted = ErrorWeights(f"released:last+{further}" if further else "last")
    H = NoiseObjective(Dynamics(gossip, 1.0, gossip_rounds=rounds), num_steps, counted).over_steps()
    return np.asarray(H[::-1, ::-1]) / gossip.num_nodes


def _summed_over_steps(covariance: FloatArray) -> FloatArray:
    """sum over r = 0..T-2 of covariance[r - i, r - l], by ages i and l: of models r + 1, where gradients are taken."""
    T = len(covariance)
    summed = covariance.copy()
    for t in range(1, T):  # along diagonals
        summed[t, 1:] += summed[t - 1, :-1]
    by_age = np.zeros((T, T))
    by_age[: T - 1, : T - 1] = summed[T - 2 :: -1, T - 2 :: -1] if T > 1 else 0.0
    return by_age


def _by_power(by_ages: FloatArray) -> FloatArray:
    """Sums over ages i + l = p."""
    T = len(by_ages)
    powers = np.add.outer(np.arange(T), np.arange(T))
    return np.asarray(np.bincount(powers.ravel(), by_ages.ravel(), 2 * T - 1), dtype=np.float64)


def _value(coefficients: FloatArray, x: FloatArray) -> FloatArray:
    """The polynomial at x, lowest power first."""
    value = np.zeros_like(x)
    for coefficient in coefficients[::-1]:
        value = value * x + coefficient
    return value

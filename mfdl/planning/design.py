"""A design of a run by a short name, such as "dp-dsgd,b=1,k=160,rounds=5,average:80", grids of designs, their noise.

Noise and excess loss are those that the linear recursion of a run predicts. Near an optimum with loss curvature lambda
along a direction, each node's step is

    theta <- W^K ((1 - eta lambda) theta - eta s x),    x = N z,  z independent of unit variance,

s the standard deviation of base noise on an averaged step, K gossip rounds (p(W) in the place of W^K for another
polynomial). An injection of age i is in the models as rho^i W^(K (i + 1)), rho = 1 - eta lambda, so the variance at any
of the models is a polynomial in rho: its coefficients hold encoder, released model and gossip, and serve every
curvature and every learning rate. With Sigma = N N^T, released weights a_r and
P[i, l] = tr((W^(K (i + 1)))^T W^(K (l + 1))) / n it is

    eta^2 s^2 sum_{i, l} rho^(i + l) P[i, l] sum_{s, t} a_{s + i} Sigma[s, t] a_{t + l}

in the published models, per node and coordinate, and the same with Sigma summed over the steps in the models at which
gradients are taken. Noise that nodes share is a sum of parts E (x) F, E over steps and F over nodes, each with Sigma =
E E^T and P[i, l] = tr((W^(K (i + 1)) F)^T W^(K (l + 1)) F) / n: one part if all columns have one encoder, else one for
each column. Checked against the recursion itself in tests/planning.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import check
from ..algorithms import registry
from ..check import FloatArray
from ..dynamics import Dynamics
from ..dynamics.polynomials import POLYNOMIALS, POWERS
from ..errors import InvalidInput, require_known
from ..noise import CausalNoise
from ..objective import Curvature, ErrorWeights, NoiseObjective
from ..objective.error_weights import released_in_full
from ..participation import BallsInBins, Cyclic, Participation
from ..released import ReleasedModel
from ..spec import parse

CYCLIC, BINS = "cyclic", "balls-in-bins"
PARTICIPATIONS = (CYCLIC, BINS)
BINS_MARK = "bins"
NUMBERS = {"b": "batches", "k": "epochs", "rounds": "gossip_rounds"}
"""The numbers of a name, and the fields that they give."""
FORM = "MECHANISM,b=B,k=K[,bins][,rounds=R][,POLYNOMIAL][,MODEL]"


@dataclasses.dataclass(frozen=True)
class Design:
    """How a run goes, but for its learning rate.

    Attributes:
        mechanism: a name of `mfdl mechanisms`; error weights "@released" count what is published.
        batches: b >= 1, steps an epoch; 1: full batches. epochs: k >= 1; the run has T = k b steps.
        gossip_rounds: averaging rounds after each step, >= 1.
        participation: "cyclic" (public batches) or "balls-in-bins" (secret ones, at least two of them).
        release_model: what is published, as `ReleasedModel` reads it; polynomial: of the rounds, as of `Dynamics`.

    Raises: InvalidInput: a value out of range, or an unknown name.

    >>> design = Design.parse("dp-dsgd,b=16,k=10,bins,rounds=5,average:80")
    >>> design.num_steps, design.participation, design.name
    (160, 'balls-in-bins', 'dp-dsgd,b=16,k=10,bins,rounds=5,average:80')
    """

    mechanism: str
    batches: int
    epochs: int
    gossip_rounds: int = 1
    participation: str = CYCLIC
    release_model: str = "last"
    polynomial: str = POWERS

    def __post_init__(self) -> None:
        for name in NUMBERS.values():
            object.__setattr__(self, name, check.integer_at_least(1, **{name: getattr(self, name)}))
        base, mark, weights = check.text("'mafalda'", mechanism=self.mechanism).partition(registry.WEIGHTS_MARK)
        if mark and not base.startswith(registry.FILE_PREFIX):
            weights = released_in_full(weights, self.release_model)
            object.__setattr__(self, "mechanism", f"{base}{mark}{weights}")
        registry.check_name(self.mechanism)
        require_known("participation", self.participation, PARTICIPATIONS)
        require_known("polynomial", self.polynomial, POLYNOMIALS)
        released = ReleasedModel(self.release_model)
        released.weights_by_step(self.num_steps)
        object.__setattr__(self, "release_model", released.describe())
        if not registry.serves(self.mechanism, self.participation):
            raise InvalidInput(f"{self.mechanism} is made for balls-in-bins; write {self.mechanism},b=B,k=K,bins.")
        if self.has_bins and self.batches == 1:
            raise InvalidInput("balls-in-bins needs at least two bins, got b=1; leave out bins: one batch holds all.")

    @property
    def num_steps(self) -> int:
        return self.epochs * self.batches

    @property
    def has_bins(self) -> bool:
        return self.participation == BINS

    @property
    def label(self) -> str:
        """Mechanism and kind of batches: one line of a picture."""
        return f"{self.mechanism},{BINS_MARK}" if self.has_bins else self.mechanism

    @property
    def name(self) -> str:
        """The text that `parse` reads; one round of gossip and the last model are left out."""
        parts = [self.mechanism, f"b={self.batches}", f"k={self.epochs}"]
        parts += [BINS_MARK] * self.has_bins
        parts += [f"rounds={self.gossip_rounds}"] * (self.gossip_rounds > 1)
        parts += [self.polynomial] * (self.polynomial != POWERS)
        parts += [self.release_model] * (self.release_model != "last")
        return ",".join(parts)

    def __str__(self) -> str:
        return self.name

    @classmethod
    def parse(cls, text: str) -> Design:
        """From its name, in any order behind the mechanism. Raises: InvalidInput: another text."""
        check.text(f"'{FORM}'", design=text)
        mechanism, *parts = (part.strip() for part in text.split(","))
        given: dict[str, Any] = {}
        value: int | str
        for part in parts:
            key, equals, number = (piece.strip() for piece in part.partition("="))
            if equals:
                require_known("number of a design", key, NUMBERS)
                if not number.isdecimal() or len(number) > 9:
                    raise InvalidInput(f"{key} of design {text!r} must be a whole number, got {number!r}.")
                field, value = NUMBERS[key], int(number)
            elif part in (BINS_MARK, *PARTICIPATIONS):
                field, value = "participation", CYCLIC if part == CYCLIC else BINS
            elif part in POLYNOMIALS:
                field, value = "polynomial", part
            else:
                field, value = "release_model", part
            if field in given:
                raise InvalidInput(f"design {text!r} gives {part!r} after another {field.replace('_', ' ')}.")
            given[field] = value
        if missing := [key for key in ("b", "k") if NUMBERS[key] not in given]:
            raise InvalidInput(f"design {text!r} needs {missing[0]}=NUMBER; its form is {FORM}.")
        return cls(mechanism, **given)

    def scheme(self) -> Participation:
        if self.has_bins:
            return BallsInBins(epochs=self.epochs, bins=self.batches)
        return Cyclic(epochs=self.epochs, period=self.batches)

    def options(self) -> dict[str, Any]:
        same = ("epochs", "participation", "gossip_rounds", "polynomial", "release_model")
        values = {name: getattr(self, name) for name in same}
        return {"mechanisms": (self.mechanism,), "period": self.batches, **values}


@dataclasses.dataclass(frozen=True)
class DesignGrid:
    """All combinations of values; release_models with "average:50%" for the mean of the last half of the models."""

    mechanisms: Sequence[str]
    batches: Sequence[int]
    epochs: Sequence[int]
    gossip_rounds: Sequence[int]
    participations: Sequence[str]
    release_models: Sequence[str]
    max_steps: int
    polynomials: Sequence[str] = (POWERS,)

    def __iter__(self) -> Iterator[Design]:
        """Designs of at most `max_steps` steps, each once.

        With both kinds of batches, encoders that are optimised for public batches are not combined with secret ones.
        Rounds of mechanisms that average completely, on a server, are not varied.
        """
        for name in self.participations:
            require_known("participation", name, PARTICIPATIONS)
        seen: set[Design] = set()
        every = (self.mechanisms, self.participations, self.batches, self.epochs, self.gossip_rounds, self.polynomials)
        for mechanism, participation, b, k, rounds, polynomial in itertools.product(*every):
            if getattr(registry.find_entry(_base(mechanism)), "models", ()) == ("central",):
                rounds, polynomial = 1, POWERS
            if self._combined(mechanism, participation, b) and b * k <= self.max_steps:
                for share in self.release_models:
                    model = released_for_share(share, b * k)
                    design = Design(mechanism, b, k, rounds, participation, model, polynomial)
                    if design not in seen:
                        seen.add(design)
                        yield design

    def _combined(self, mechanism: str, participation: str, batches: int) -> bool:
        base = _base(mechanism)
        entry, for_public = registry.find_entry(base), registry.serves(base, CYCLIC)
        if participation == CYCLIC:
            return for_public
        optimised = entry is not None and entry.weighted and for_public
        return batches > 1 and not (optimised and CYCLIC in self.participations)


def _base(mechanism: str) -> str:
    """The name without error weights, which may still lack the released model. Raises: InvalidInput: unknown name."""
    is_file = mechanism.startswith(registry.FILE_PREFIX)
    return registry.check_name(mechanism if is_file else mechanism.partition(registry.WEIGHTS_MARK)[0])


def released_for_share(model: str, num_steps: int) -> str:
    """A released model for a number of steps: "average:50%" is the mean of the last half of them.

    Raises: InvalidInput: a share outside (0, 100].

    >>> released_for_share("average:50%", 160), released_for_share("average:50%+3", 5), released_for_share("last", 5)
    ('average:80', 'average:3+3', 'last')
    """
    body, plus, rounds = model.partition("+")
    if not body.endswith("%"):
        return model
    name, arguments = parse(body).name, body.partition(":")[2]
    try:
        share = float(arguments.removesuffix("%"))
    except ValueError:
        share = 0.0
    if not 0 < share <= 100:
        raise InvalidInput(f"released model {model!r} must be NAME:P% with 0 < P <= 100, as average:50%.")
    return f"{name}:{max(1, int(num_steps * share / 100 + 0.5))}{plus}{rounds}"


BLOCK_COLUMNS = 32  # of noise at a time, each with n T numbers
RATES: FloatArray = 2.0 ** np.arange(-12, 1, 0.5)
"""Learning rates in units of 1 / (largest curvature), all of them stable; the largest overshoots."""


@dataclasses.dataclass(frozen=True, eq=False)
class NoiseGain:
    """Variance at a node, per coordinate and per (eta s)^2, as polynomials in the contraction 1 - eta lambda.

    Attributes: published: coefficients for the published models, shape (2 T - 1,), lowest power first; on_the_way: for
        the models at which gradients are taken, mean over the T steps; weights: a_r, shape (T,).
    """

    published: FloatArray
    on_the_way: FloatArray
    weights: FloatArray

    @classmethod
    def from_part(
        cls,
        released: ReleasedModel,
        noising: FloatArray | None,
        ages: FloatArray,
        published_ages: FloatArray | None = None,
    ) -> NoiseGain:
        """From one part of the noise and gossip.

        Args: noising: E, T rows; None: independent noise. ages: `age_gram` or one of `age_grams`, (T, T);
            published_ages: of the published models, if further rounds follow the last step.
        Cost: T^3.
        """
        T = len(ages)
        weights = released.weights_by_step(T)
        steps = np.add.outer(np.arange(T), np.arange(T))
        by_age = np.where(steps < T, weights[np.minimum(steps, T - 1)], 0.0)  # [age, injection]
        covariance = np.eye(T) if noising is None else noising @ noising.T
        effects = by_age if noising is None else by_age @ noising
        published = (effects @ effects.T) * (ages if published_ages is None else published_ages)
        on_the_way = _summed_over_steps(covariance) * ages / T
        return cls(_by_power(published), _by_power(on_the_way), weights)

    def __add__(self, other: NoiseGain) -> NoiseGain:
        return NoiseGain(self.published + other.published, self.on_the_way + other.on_the_way, self.weights)

    @classmethod
    def from_noise(cls, released: ReleasedModel, dynamics: Dynamics, noise: CausalNoise) -> NoiseGain:
        """Noise that nodes share, or that differs between them.

        Cost: for each part n T^2 by the modes of symmetric gossip, else its columns times that, and T^3.
        """
        F = noise.mixing.toarray()
        factors = [F] if noise.shared else np.split(F, F.shape[1], axis=1)
        noisings = (None if noise.fresh else noise.column_inverse(k) for k in range(len(factors)))
        T, further = noise.num_steps, released.rounds_of_gossip
        ages = (age_grams(dynamics, T, factors, rounds) for rounds in (0, further))
        return functools.reduce(operator.add, map(functools.partial(cls.from_part, released), noisings, *ages))

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
        return self.bias + self.published + self.on_the_way


def predicted_loss(
    gain: NoiseGain, curvature: Curvature, rates: FloatArray, step_noise_std: float, start_distance: float
) -> list[PredictedLoss]:
    """For each learning rate: the sum over directions of w_j times squared bias and variance.

    Args: rates: eta, at most 2 / (largest eigenvalue); step_noise_std: s; start_distance: from the first models to the
        optimum along each direction. Cost: T x (rates) x (directions of the compressed curvature).
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


def age_gram(dynamics: Dynamics, num_steps: int, further: int = 0) -> FloatArray:
    """tr((V W^(i + 1))^T V W^(l + 1)) / n for ages i and l, W of a whole step, V the further rounds; shape (T, T).

    Of fewer steps it is the leading block. Cost: that of `NoiseObjective.over_steps`.
    """
    counted = ErrorWeights(f"released:last+{further}" if further else "last")
    H = NoiseObjective(dynamics, num_steps, counted).over_steps()
    return np.asarray(H[::-1, ::-1]) / dynamics.num_nodes


def age_grams(
    dynamics: Dynamics, num_steps: int, factors: Sequence[FloatArray], further: int = 0
) -> Iterator[FloatArray]:
    """`age_gram` of noise spread over the nodes by each F, shape (n, columns): tr((V W^(i + 1) F)^T V W^(l + 1) F) / n.

    Cost: n^3 once and n T^2 for each F if the gossip is symmetric; else columns times n T^2.
    """
    gossip, n, ages = dynamics.gossip.at(0), dynamics.num_nodes, np.arange(1, num_steps + 1)
    if gossip.is_symmetric:
        values, vectors = np.linalg.eigh(gossip.dense())
        powers = values**further * dynamics.step_eigenvalues(values) ** ages[:, None]
        for F in factors:
            effects = powers * np.linalg.norm(vectors.T @ F, axis=1)
            yield effects @ effects.T / n
        return
    step = dynamics.step_weights(0)
    for F in factors:
        gram = np.zeros((num_steps, num_steps))
        for block in np.array_split(F, -(-F.shape[1] // BLOCK_COLUMNS), axis=1):
            for _ in range(further):
                block = gossip.weights @ block
            models = list(itertools.accumulate(ages, lambda models, _: step @ models, initial=block))[1:]
            effects = np.reshape(models, (num_steps, -1))
            gram += effects @ effects.T / n
        yield gram


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

"""How much noise, and what it guarantees: `account`, `calibrate`, `calibrate_named`, `with_noise`, `without_noise`.

In: an algorithm of any participation under a trust model, or a `View` given as matrices. Out: the `Guarantee` of a
noise, or the `Mechanism` of the least noise that meets a target, which is never exceeded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, cast, overload

from . import check
from .algorithms import LinearAlgorithm, registry
from .dynamics import Dynamics
from .errors import InvalidInput
from .mechanism import Calibrated, Mechanism
from .participation import Participation
from .privacy import questions
from .privacy.curves import MonteCarlo
from .privacy.exposures import question_of
from .privacy.guarantee import Guarantee
from .privacy.losses import PrivacyLosses
from .privacy.questions import Question, Target, require_noise
from .privacy.sampled_exposures import noise_of_bins
from .progress import Progress
from .spec import refusing
from .trust import TrustModel
from .trust.view import View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GIVEN_NOISE = "what a given noise guarantees is mfdl.account(algorithm, noise_std=...), its mechanism mfdl.with_noise"
_TARGET = "it is a target of mfdl.calibrate; what a guarantee says of epsilon and delta is guarantee.epsilon(delta)"
_EACH_VICTIM = "every node counts; of each victim: mfdl.PrivacyLosses.of(algorithm, question).by_victim(noise_std)"
ELSEWHERE = {
    **dict.fromkeys(("victim", "victims"), _EACH_VICTIM),
    **dict.fromkeys(("noise_std", "noise_multiplier"), _GIVEN_NOISE),
    "mu": f"{_TARGET}; under secret sampling there is no mu; take epsilon with delta",
    **dict.fromkeys(("epsilon", "delta"), _TARGET),
    "participation": "the noise of a mechanism is for the algorithm's own participation; mfdl.account has it",
    "by": "it chooses among bounds of Poisson sampling, in mfdl.calibrate",
}
"""Of arguments that only other functions take: which ones, and what to give them."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CalibratedView(Calibrated):
    """A bare view with the noise that meets a target: what `calibrate` gives for matrices, which train nothing.

    Attributes: view: as it was given; guarantee: what holds, with noise scale and clipping.
    """

    view: View
    guarantee: Guarantee

    def _sentence(self) -> str:
        axis = self.view.axis
        return f"of {axis.num_nodes} nodes and {axis.num_steps} steps: {self.guarantee._sentence()}"

    def _rows(self) -> list[tuple[str, str]]:
        return self.guarantee._rows()

    def _figure(self) -> Figure | None:
        return None


@refusing(ELSEWHERE)
def account(
    algorithm: LinearAlgorithm | View,
    *,
    trust: TrustModel | None = None,
    adjacency: str,
    clip_norm: float,
    noise_std: float | None = None,
    noise_multiplier: float | None = None,
    participation: Participation | None = None,
    release: str | None = None,
    method: str | MonteCarlo = "exact",
    lipschitz: float | None = None,
    unit: str = "record",
    owners: Any = 1,
    progress: Progress = "auto",
) -> Guarantee:
    """The guarantee of a given noise for the worst victim, for adaptive gradients.

    Args:
        algorithm: or a `View` given as matrices, with `participation` and without `trust`: the guarantee is then for
            non-adaptive gradients, and says so, unless `View(models=, row_steps=)` proves it for adaptive ones.
        trust: who sees and knows what. Under `PoissonSampling` every message must be seen (`trust.all_messages()` of
            one that hides some); under `BallsInBins` hidden messages are counted as seen.
        adjacency: "zero-out", "add-remove" or "replace-one".
        clip_norm: bound on the norm of one record's gradient, or of a node's mean gradient at user level, > 0.
        noise_std: nu on sums of clipped gradients, or on clipped mean gradients at user level, >= 0; or
        noise_multiplier: nu / (sensitivity * record_shift), of public batches; exactly one of the two.
        participation: default the algorithm's own; with one per node, each victim is held to its own.
        release: "none", "average" or "all" final models published, where messages are hidden; default the trust
            model's own, `trust.default_release`.
        method: "exact" or "certified" (fast upper bound); with `BallsInBins` also "monte-carlo" or a `MonteCarlo`: by
            samples, upper bounds but for a probability that the guarantee states.
        lipschitz: L of the local gradient maps, for shift reduction where the view alone is not adaptive; with
            unit "record" only.
        unit: "record", or "user" for all data of a node, which needs participation in every step.
        owners: which nodes may hold one and the same record: a number (any so many), groups such as [(0, 3)], or
            `Owners`. Default 1: no record is held twice. Attackers that hold the record are not counted.
        progress: as for `sensitivity_by_victim`.

    Returns: Guarantee; it is infinite without noise, and where the attacker knows what hides a node: `Guarantee.why`
        says which one. With secret sampling there is no mu; ask for epsilon(delta). Per victim: `Guarantee.by_victim`,
        `mfdl.PrivacyLosses.of(algorithm, question).by_victim(noise_std)`.
    Raises: InvalidInput: an argument out of range, or a unit that cannot be protected (`require_unit`).
        UnsupportedMechanism: where amplification by secret sampling is not proven (`privacy.sampled_exposures`).
    Source: arXiv:2510.17480, Theorem 7, with the square of equation (8) and the factor 2 of replace-one restored, and
        its claim for adaptive gradients replaced by the row-space test and shift reduction. Secret sampling:
        docs/sampling.md, docs/balls_in_bins_theorem.md.
    """
    about = (adjacency, clip_norm, participation, release, unit, method, lipschitz, owners)
    question = _question(algorithm, trust, *about)
    require_noise(noise_std, noise_multiplier)  # before any work
    losses = PrivacyLosses.of(algorithm, question, progress=progress)
    return losses.guarantee(losses.noise_std(noise_std=noise_std, noise_multiplier=noise_multiplier))


def _question(algorithm: LinearAlgorithm | View, trust: TrustModel | None, *fields: Any) -> Question:
    """About an algorithm under a trust model, or about matrices, which take none. Raises: InvalidInput: otherwise."""
    if isinstance(algorithm, View):
        return question_of(algorithm, trust, *fields)
    check.instance(TrustModel, trust=trust)
    return Question(cast("TrustModel", trust), *fields)


@overload
def calibrate(algorithm: LinearAlgorithm, *, trust: TrustModel, **options: Any) -> Mechanism: ...
@overload
def calibrate(algorithm: View, *, participation: Participation, **options: Any) -> CalibratedView: ...


@refusing(ELSEWHERE)  # type: ignore[misc]  # the overloads name what decides the type alone
def calibrate(
    algorithm: LinearAlgorithm | View,
    *,
    trust: TrustModel | None = None,
    adjacency: str,
    clip_norm: float,
    mu: float | Mapping[Hashable, float] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    participation: Participation | None = None,
    release: str | None = None,
    method: str | MonteCarlo = "exact",
    lipschitz: float | None = None,
    unit: str = "record",
    owners: Any = 1,
    by: str = "tightest",
    progress: Progress = "auto",
) -> Mechanism | CalibratedView:
    """The least noise that meets a target for adaptive gradients, never overshooting it.

    Of a `View`, given as matrices with `participation`, a `CalibratedView`: it trains nothing, and its guarantee is for
    non-adaptive gradients unless the view proves more.

    With secret sampling it is the least to a relative 1e-4, by Monte Carlo to 1e-3 or so: the noise is chosen by
    samples of its own and its guarantee drawn afresh.

    Args: mu > 0 (of public batches), or epsilon > 0 and delta in (0, 1); others as for `account`. mu may be a budget
        for each node, {label: mu_u}: node u then adds its noise max mu / mu_u times, the algorithm returned is that
        one, and `guarantee.victims` states each node's curve. Exact where every message is seen; where some are
        hidden the losses of the scaled noise are accounted, and the worst of the nodes decides (docs/howto_budgets.md).
        by: "tightest" of all bounds, or "renyi": the noise that Renyi accounting of Poisson sampling needs, whose
        guarantee is still the tightest.
    Raises: InvalidInput: no target or two, an algorithm whose loss is infinite under this trust model, or a unit
        that cannot be protected (`require_unit`); a node without a budget. UnsupportedMechanism: budgets per node for
        noise on messages, or of a class of one's own; a mu with secret sampling.
    Cost: with secret sampling seconds for each target, once in a process.
    """
    if participation is not None and not isinstance(algorithm, View):
        raise InvalidInput(
            "participation is given beside a View alone: the noise of a mechanism is for the algorithm's own; build "
            "the algorithm with it, or read the guarantee of a noise by mfdl.account(participation=)."
        )
    about = (adjacency, clip_norm, participation, release, unit, method, lipschitz, owners)
    question = _question(algorithm, trust, *about)
    if isinstance(mu, Mapping):
        check.instance(LinearAlgorithm, algorithm=algorithm)
        if epsilon is not None:
            raise InvalidInput("give exactly one target: mu, or epsilon with delta; budgets per node are given as mu.")
        assert isinstance(algorithm, LinearAlgorithm)
        algorithm = questions.scaled_to_budgets(algorithm, questions.budgets_by_node(algorithm, mu))
    else:
        Target(mu, epsilon, delta, by)  # refuses what is none before any work
    losses = PrivacyLosses.of(algorithm, question, progress=progress)
    guarantee = losses.calibrate(mu=mu, epsilon=epsilon, delta=delta, by=by)
    return (
        CalibratedView(algorithm, guarantee) if isinstance(algorithm, View) else Mechanism(algorithm, guarantee, trust)
    )


def calibrate_named(
    name: str,
    dynamics: Dynamics,
    participation: Participation,
    *,
    trust: TrustModel,
    adjacency: str,
    mu: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    **options: Any,
) -> Mechanism:
    """The named mechanism with its free parameters at their best for the target, calibrated to it.

    "mafalda-bins" and "kronecker-bins" get the encoder that is best for this epsilon and delta under balls-in-bins.

    >>> import mfdl
    >>> dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("path:n=3"), 0.1)
    >>> target = {"adjacency": "zero-out", "epsilon": 2.0, "delta": 1e-5}
    >>> bins = mfdl.BallsInBins(epochs=2, bins=3)
    >>> calibrate_named("dp-dsgd", dynamics, bins, trust=mfdl.trust.LDP(), clip_norm=1.0, **target).algorithm.name
    'dp-dsgd'

    Args: name: as `mfdl mechanisms` lists them, also "NAME@WEIGHTS"; options: further ones of `calibrate`.
    Raises: InvalidInput: an unknown name, or no target or two; UnsupportedMechanism: not for this participation.
    Source: docs/balls_in_bins_theorem.md.
    """
    Target(mu, epsilon, delta, "tightest")  # refuses what is none before any work
    noise_std = None
    if registry.is_of_balls_in_bins(name) and (bins := participation.num_bins) and epsilon is not None:
        assert delta is not None  # `Target` refuses epsilon alone
        noise_std = noise_of_bins(epsilon=epsilon, delta=delta, bins=bins, adjacency=adjacency)
    algorithm = registry.build_tuned(name, dynamics, participation, noise_std=noise_std)
    target = {"mu": mu, "epsilon": epsilon, "delta": delta}
    return calibrate(algorithm, trust=trust, adjacency=adjacency, **target, **options)


@refusing(ELSEWHERE)
def with_noise(
    algorithm: LinearAlgorithm,
    *,
    noise_std: float,
    trust: TrustModel,
    adjacency: str,
    clip_norm: float,
    release: str | None = None,
    method: str | MonteCarlo = "exact",
    unit: str = "record",
    owners: Any = 1,
    progress: Progress = "auto",
) -> Mechanism:
    """The algorithm with a given nu, on sums of clipped gradients (user level: clipped means), and what it guarantees.

    Args: as for `account`. Raises: InvalidInput: an argument out of range, or a unit that cannot be protected.
    """
    check.non_negative(noise_std=noise_std)  # before any work
    about = {"release": release, "unit": unit, "method": method, "owners": owners}
    question = Question(trust, adjacency, clip_norm, **about)
    losses = PrivacyLosses.of(algorithm, question, progress=progress)
    return Mechanism(algorithm, losses.guarantee(noise_std), trust)


@refusing(ELSEWHERE)
def without_noise(
    algorithm: LinearAlgorithm, *, trust: TrustModel, adjacency: str, clip_norm: float, unit: str = "record"
) -> Mechanism:
    """`with_noise` at nu = 0: nothing is guaranteed, and the guarantee says so; `unit` decides what is clipped."""
    return with_noise(algorithm, noise_std=0.0, trust=trust, adjacency=adjacency, clip_norm=clip_norm, unit=unit)

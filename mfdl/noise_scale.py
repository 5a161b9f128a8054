"""How much noise, and what it guarantees: `losses`, `account`, `calibrate`.

In: an algorithm, the name of one, or a `View` given as matrices, and a `Privacy`. Out: the `Losses` of each victim
before noise is scaled, the `Guarantee` of a noise, or the `Mechanism` of the least noise that meets a target.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from . import check
from .algorithms import LinearAlgorithm
from .dynamics import Dynamics
from .errors import InvalidInput
from .mechanism import Calibrated, Mechanism
from .privacy import questions
from .privacy.guarantee import Guarantee
from .privacy.losses import Losses
from .privacy.owners import Victim
from .privacy.questions import Privacy, Target, require_noise
from .progress import Progress
from .spec import refusing
from .trust import TrustModel
from .trust.view import AlgorithmView, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .algorithms.factorized import AnyEncoder

_CONDITION = "it is a condition of the guarantee; give it to mfdl.Privacy(trust, adjacency=..., clip_norm=...)"
_TARGET = "it is a target of mfdl.calibrate; what a guarantee says of epsilon and delta is guarantee.epsilon(delta)"
_EACH_VICTIM = "of some victims: mfdl.losses(algorithm, privacy, victims=[0]).by_victim(noise_std)"
ELSEWHERE = {
    **dict.fromkeys((field.name for field in dataclasses.fields(Privacy)), _CONDITION),
    **dict.fromkeys(("victim", "victims"), _EACH_VICTIM),
    "noise_multiplier": "what a given noise guarantees is mfdl.account(algorithm, privacy, noise_multiplier=...)",
    "noise_std": "losses are per unit of noise; mfdl.account(algorithm, privacy, noise_std=...) has the guarantee",
    "mu": f"{_TARGET}; under secret sampling there is no mu; take epsilon with delta",
    **dict.fromkeys(("epsilon", "delta"), _TARGET),
    "by": "it chooses among bounds of Poisson sampling, in mfdl.calibrate",
}
"""Of arguments that only other functions take: which ones, and what to give them."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CalibratedView(Calibrated):
    """A bare view with the noise that meets a target: what `calibrate` gives for matrices, which train nothing."""

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
def losses(
    algorithm: LinearAlgorithm | View | AnyEncoder,
    privacy: Privacy,
    *,
    dynamics: Dynamics | LinearAlgorithm | None = None,
    victims: Sequence[Victim] | None = None,
    progress: Progress = "auto",
) -> Losses:
    """The privacy loss of each victim before noise is scaled: sensitivities, from which every noise is read off.

    Args, raises: as for `account`; victims: nodes, or groups such as (0, 3) for a record that nodes 0 and 3 both hold;
        default all nodes that do not attack, and the groups of `privacy.owners`.
    """
    algorithm, privacy = _accountable(algorithm, privacy, dynamics)
    return Losses.from_algorithm(algorithm, privacy, victims=victims, progress=progress)


@refusing(ELSEWHERE)
def account(
    algorithm: LinearAlgorithm | View | AnyEncoder,
    privacy: Privacy,
    *,
    noise_std: float | None = None,
    noise_multiplier: float | None = None,
    dynamics: Dynamics | LinearAlgorithm | None = None,
    progress: Progress = "auto",
) -> Guarantee:
    """The guarantee of a given noise for the worst victim, for adaptive gradients.

    Args:
        algorithm: a LinearAlgorithm; the name of one, as `mfdl mechanisms` lists them, with `dynamics` and
            `privacy.participation`; an encoder C in any form that `algorithms.mf_dsgd` takes, with the same; the view
            of an algorithm (`TrustModel.view`) against an outsider, without a trust model; or a `View` given as
            matrices, with `privacy.participation` and without a trust model: the guarantee is then for non-adaptive
            gradients, and says so, unless `View(models=, row_steps=)` proves it for adaptive ones.
        noise_std: nu on sums of clipped gradients, or on clipped mean gradients at user level, >= 0; or
        noise_multiplier: nu / (sensitivity * record_shift), of public batches; exactly one of the two.
        dynamics: gossip and step sizes of an algorithm given by its name or encoder; with an encoder also an
            algorithm, whose noise becomes that of the encoder.
        progress: True, False, "auto" (see `mfdl.progress`), or a function: called after each attacking set.
    Returns: infinite without noise, and where the attacker knows what hides a node: `Guarantee.why` says which one.
        With secret sampling there is no mu; ask for epsilon(delta). Per victim: `Guarantee.by_victim`.
    Raises: InvalidInput: an argument out of range, or a unit that cannot be protected (`require_unit`).
        UnsupportedMechanism: where amplification by secret sampling is not proven (`privacy.sampled_exposures`).
    Source: arXiv:2510.17480, Theorem 7, with the square of equation (8) and the factor 2 of replace-one restored, and
        its claim for adaptive gradients replaced by the row-space test and shift reduction. Secret sampling:
        docs/sampling_theorem.md, docs/balls_in_bins_theorem.md.
    """
    require_noise(noise_std, noise_multiplier)  # before any work
    computed = losses(algorithm, privacy, dynamics=dynamics, progress=progress)
    return computed.guarantee(computed.noise_std(noise_std=noise_std, noise_multiplier=noise_multiplier))


@overload
def calibrate(algorithm: LinearAlgorithm | AnyEncoder, privacy: Privacy, **options: Any) -> Mechanism: ...
@overload
def calibrate(algorithm: View, privacy: Privacy, **options: Any) -> CalibratedView: ...


@refusing(ELSEWHERE)  # type: ignore[misc]  # the overloads name what decides the type alone
def calibrate(
    algorithm: LinearAlgorithm | View | AnyEncoder,
    privacy: Privacy,
    *,
    mu: float | Mapping[Hashable, float] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_std: float | None = None,
    dynamics: Dynamics | LinearAlgorithm | None = None,
    by: str = "tightest",
    progress: Progress = "auto",
) -> Mechanism | CalibratedView:
    """The least noise that meets a target for adaptive gradients, never overshooting it; or a noise that is given.

    Of a `View`, given as matrices, a `CalibratedView`; of the view of an algorithm (`TrustModel.view`), a mechanism.
    With secret sampling it is the least to a relative 1e-4, by Monte Carlo to 1e-3 or so: the noise is chosen by
    samples of its own and its guarantee drawn afresh.

    Cost: with secret sampling seconds for each target, once in a process.

    >>> import mfdl
    >>> dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("path:n=3"), 0.1)
    >>> bins = mfdl.BallsInBins(epochs=2, bins=3)
    >>> privacy = mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=1.0, participation=bins)
    >>> calibrate("dp-dsgd", privacy, dynamics=dynamics, epsilon=2.0, delta=1e-5).algorithm.name
    'dp-dsgd'

    Args:
        algorithm, privacy, dynamics, progress: as for `account`; a name stands for the mechanism with its free
            parameters at their best for the target.
        mu: > 0 (of public batches), or epsilon > 0 and delta in (0, 1), or noise_std >= 0: exactly one target. mu may
            be a budget for each node, {label: mu_u}: node u then adds its noise max mu / mu_u times, and
            `guarantee.victims` states each node's curve. Exact where every message is seen, else the worst of the nodes
            decides (docs/howto_budgets.md).
        noise_std: nu, as for `account`.
        by: "tightest" of all bounds, or "renyi": the noise that Renyi accounting of Poisson sampling needs, whose
            guarantee is still the tightest.
    Raises: InvalidInput: no target or two, an infinite loss, a unit that cannot be protected (`require_unit`), a node
        without a budget. UnsupportedMechanism: budgets per node for noise on messages, or of a class of one's own; a mu
        with secret sampling.
    """
    target: dict[str, Any] = {"mu": mu, "epsilon": epsilon, "delta": delta}
    if noise_std is not None:
        check.non_negative(noise_std=noise_std)
        given = target | ({} if by == "tightest" else {"by": by})
        if second := next((name for name, value in given.items() if value is not None), None):
            raise InvalidInput(f"give exactly one target: noise_std is a given noise, so {second} must be left out.")
    elif not isinstance(mu, Mapping):
        Target(**target, by=by)  # refuses what is none before any work
    elif epsilon is not None:
        raise InvalidInput("give exactly one target: mu, or epsilon with delta; budgets per node are given as mu.")
    check.instance(Privacy, privacy=privacy)
    if isinstance(algorithm, LinearAlgorithm) and privacy.participation not in (None, algorithm.participation):
        raise InvalidInput(
            "participation is given beside a View or a name alone: the noise of a mechanism is for the algorithm's "
            "own; build the algorithm with it, or read the guarantee of a noise by mfdl.account."
        )
    if isinstance(mu, Mapping) and isinstance(dynamics, Dynamics):
        questions.budgets_by_node(dynamics.gossip.labels, mu)  # before anything is built
    algorithm, privacy = _accountable(algorithm, privacy, dynamics, epsilon=epsilon, delta=delta)
    if isinstance(mu, Mapping):
        check.instance(LinearAlgorithm, algorithm=algorithm)
        assert isinstance(algorithm, LinearAlgorithm)
        algorithm = questions.scaled_to_budgets(algorithm, questions.budgets_by_node(algorithm.labels, mu))
    computed = Losses.from_algorithm(algorithm, privacy, progress=progress)
    guarantee = computed.calibrate(**target, by=by) if noise_std is None else computed.guarantee(noise_std)
    if isinstance(algorithm, View):
        return CalibratedView(algorithm, guarantee)
    return Mechanism(algorithm, guarantee, privacy.trust)


def _accountable(
    algorithm: Any, privacy: Privacy, dynamics: Dynamics | LinearAlgorithm | None, **target: float | None
) -> tuple[LinearAlgorithm | View, Privacy]:
    """The algorithm of a name, and the privacy without what the algorithm decides; others as they are."""
    check.instance(Privacy, privacy=privacy)
    if isinstance(algorithm, AlgorithmView):
        if privacy.trust is not None:
            raise InvalidInput("trust must be left out with a View: it says what is seen and known.")
        if privacy.release not in (None, algorithm.release):
            raise InvalidInput(
                f"release must be left out with a View, got {privacy.release!r}: this one shows {algorithm.release!r}; "
                "give release to TrustModel.view."
            )
        privacy, algorithm = dataclasses.replace(privacy, trust=_trust_of(algorithm)), algorithm.algorithm
    if isinstance(algorithm, LinearAlgorithm | View) and dynamics is None:
        return algorithm, privacy
    from .algorithms import registry
    from .algorithms.factorized import Solved, mf_dsgd
    from .noise.general import encoded_noise, is_encoder

    if not isinstance(algorithm, str | Solved) and not is_encoder(algorithm):
        if dynamics is not None:
            raise InvalidInput("dynamics are for an algorithm given by its name; this one has its own: leave them out.")
        return algorithm, privacy
    if isinstance(dynamics, LinearAlgorithm):
        if isinstance(algorithm, str):
            raise InvalidInput(f"the mechanism {algorithm!r} brings its own maps: dynamics must be mfdl.Dynamics(...).")
        noise = encoded_noise(algorithm, dynamics.num_steps, dynamics.num_nodes)
        return dataclasses.replace(dynamics, noise=noise, factorization=None), privacy
    scheme = privacy.participation
    if dynamics is None or scheme is None:
        named = isinstance(algorithm, str)
        given, call = (f"the name {algorithm!r}", "build(name, ") if named else ("an encoder", "mf_dsgd(")
        encoder = "" if named else ", encoder"
        raise InvalidInput(
            f"{given} needs dynamics=mfdl.Dynamics(...) and mfdl.Privacy(..., participation=...) to be "
            f"built; or give the algorithm, mfdl.algorithms.{call}dynamics, participation{encoder})."
        )
    check.instance(TrustModel, trust=privacy.trust)
    if not isinstance(algorithm, str):
        return mf_dsgd(dynamics, scheme, algorithm), dataclasses.replace(privacy, participation=None)
    assert privacy.record_shift  # refuses adjacency and clip_norm before anything is built
    noise_std = None
    if (bins := scheme.num_bins) and target.get("epsilon") is not None:
        from .privacy.sampled_exposures import noise_of_bins

        noise_std = noise_of_bins(**target, bins=bins, adjacency=privacy.adjacency)  # type: ignore[arg-type]
    built = registry.build_tuned(algorithm, dynamics, scheme, noise_std=noise_std)
    return built, dataclasses.replace(privacy, participation=None)


def _trust_of(view: AlgorithmView) -> TrustModel:
    """Raises: InvalidInput: gradients are known, of attackers or of victims: a view does not say which."""
    masks = view.knowledge
    if masks.known_gradients.any():
        raise InvalidInput(
            "this view knows gradients, and does not say whether of attackers or of victims; give the algorithm and "
            "the trust model in place of the view."
        )
    given: dict[str, Any] = {"seen": masks.seen, "known_noise": masks.known_noise, "combinations": masks.combination}
    return TrustModel.from_masks(**given, name="view", release=view.release)

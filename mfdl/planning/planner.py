"""`plan`: every design calibrated to one budget, its noise and cost, and with a curvature its predicted excess loss.

In: a graph, records a node, a budget and lists of values. Out: a `RunPlan`. Nothing is trained and no data are read.

If every message is seen, gossip rounds and released averages are post-processing, so one calibration serves all designs
of a mechanism whose noise does not depend on them. If messages are hidden, each design is accounted as it is built.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mfdl_solvers.ties import first_minimum, ranked

from .. import check, graphs
from .. import gossip as gossip_matrices
from ..algorithms import LinearAlgorithm, registry
from ..algorithms.gossip_sgd import receivers
from ..dynamics import Dynamics
from ..dynamics.polynomials import LEAST_NOISE, POWERS
from ..errors import InvalidInput, UnsupportedMechanism
from ..factorization import NotConverged
from ..gossip import GossipMatrix
from ..objective import Curvature
from ..participation import Cyclic
from ..privacy.guarantee import Guarantee
from ..privacy.guarantee_texts import DELTA
from ..privacy.losses import Losses
from ..privacy.questions import Privacy, Target
from ..privacy.sampled_exposures import noise_of_bins
from ..progress import Progress, reporter
from ..released import ReleasedModel
from ..trust import LDP
from ..trust.base import MODELS
from .design import BINS, CYCLIC, RATES, Design, DesignGrid, NoiseGain, age_gram, predicted_loss
from .run_plan import PlannedDesign, ReleaseLimit, RunPlan, colluding_nodes

MECHANISMS = ("dp-dsgd", "mafalda")
POOLED = dict.fromkeys(("coalitions", "colluding"), (*MECHANISMS, "decor"))
BY_TRUST = {**POOLED, "eavesdropper": (*MECHANISMS, "corn"), "central": ("cdp",)}
"""Mechanisms that a plan tries by the name of the trust model; elsewhere MECHANISMS."""
BATCHES, EPOCHS, GOSSIP_ROUNDS = (1, 4, 16), (10, 20, 40, 160), (1, 5, 20)
RELEASE_MODELS = ("last", "average:50%")
MAX_STEPS = 160
LEARNING_TIME = 1.0


def plan(
    graph: graphs.Source | GossipMatrix,
    records: int,
    privacy: Privacy,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    mu: float | None = None,
    gossip: str = "metropolis-hastings",
    designs: Sequence[Design | str] | None = None,
    mechanisms: Sequence[str] | None = None,
    batches: Sequence[int] = BATCHES,
    epochs: Sequence[int] = EPOCHS,
    gossip_rounds: Sequence[int] = GOSSIP_ROUNDS,
    participations: Sequence[str] | None = None,
    release_models: Sequence[str] = RELEASE_MODELS,
    max_steps: int = MAX_STEPS,
    polynomials: Sequence[str] | None = None,
    gradients_per_record: int | None = None,
    messages: int | None = None,
    curvature: Curvature | str | None = None,
    start_distance: float = 1.0,
    learning_time: float = LEARNING_TIME,
    progress: Progress = "auto",
) -> RunPlan:
    """Designs of a run at one privacy budget, sorted by predicted excess loss, without data and without training.

    >>> import mfdl
    >>> privacy = mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=1.0)
    >>> names = ["dp-dsgd,b=1,k=16,rounds=5", "dp-dsgd,b=4,k=4", "mafalda,b=4,k=4"]
    >>> budget = {"epsilon": 1.0, "delta": 1e-5, "curvature": "power:1:10"}
    >>> mfdl.plan("ring:n=4", 100, privacy, designs=names, **budget).best.design.name
    'dp-dsgd,b=1,k=16,rounds=5'

    Args:
        graph: a name, a graph, or a gossip matrix; records: N of each node.
        privacy: of every design: trust model (default LDP), adjacency "zero-out" or "replace-one", clipping, release.
        epsilon at delta, or mu: the budget of every design.
        gossip: name of the matrix built on `graph`, if that is not one itself.
        designs: designs or their names, instead of the grid of mechanisms, batches, epochs, gossip_rounds,
            participations ("cyclic", and "balls-in-bins" if epsilon is given) and release_models ("average:50%": the
            mean of the last half of the models). mechanisms: default by the trust model, `BY_TRUST`.
        max_steps: designs with more are left out, as are those above `gradients_per_record` (gradient evaluations) or
            `messages` (that a node sends, on average over the nodes).
        polynomials: of `Dynamics`, each at every number of rounds; default powers, and where every message is seen and
            the gossip is symmetric least-noise too for several rounds.
        curvature: of the loss, a `Curvature` or its text, such as "power:1:20". Public: declared, or of public or
            unlabelled features, never of private data.
        start_distance: of the first models from the optimum, along each direction of the curvature.
        learning_time: sum of the learning rates at which designs are compared if there is no curvature.

    Returns: each design with its guarantee, noise and cost; `RunPlan.left_out` names those whose factorization stopped.
    Raises: InvalidInput: a value out of range, or no design left. UnsupportedMechanism: shared noise that is not meant
        for the trust model, noise that does not enter with gradients or has any correlation over steps and nodes
        (`joint`); secret batches with a mu. NotConverged: every factorization stops before its tolerance.
    Cost: one calibration for each mechanism, (k, b) and participation, T^3 for each encoder and released model.
    """
    budget = Target(mu, epsilon, delta, "tightest")  # refuses what is none before any work
    records = check.integer_at_least(1, records=records)
    check.instance(Privacy, privacy=privacy)
    privacy.require_only(("trust", "adjacency", "clip_norm", "release"), "a plan")
    assert privacy.record_shift  # refuses adjacency and clip_norm
    privacy = privacy if privacy.trust is not None else dataclasses.replace(privacy, trust=LDP())
    check.positive(start_distance=start_distance)
    check.positive(learning_time=learning_time)
    matrix = graph if isinstance(graph, GossipMatrix) else gossip_matrices.load(gossip, graph)
    if curvature is not None:
        curvature = Curvature.parse(curvature) if isinstance(curvature, str) else curvature
        check.instance(Curvature, curvature=curvature)
    probe = registry.build("dp-dsgd", Dynamics(matrix, 1.0, gossip_rounds=2), Cyclic(epochs=1, period=2))
    hidden = privacy.trust.hides_messages(probe)
    if designs is None:
        kinds = participations or ((CYCLIC,) if epsilon is None else (CYCLIC, BINS))
        mechanisms = mechanisms or BY_TRUST.get(privacy.trust.name, MECHANISMS)

        def grid(rounds: Sequence[int], polynomials: Sequence[str]) -> DesignGrid:
            return DesignGrid(mechanisms, batches, epochs, rounds, kinds, release_models, max_steps, polynomials)

        every = list(grid(gossip_rounds, (POWERS,) if polynomials is None else polynomials))
        if polynomials is None and matrix.is_symmetric and matrix.is_connected and not hidden:
            every += grid([rounds for rounds in gossip_rounds if rounds > 1], (LEAST_NOISE,))
    else:
        every = [Design.parse(design) if isinstance(design, str) else design for design in designs]
    if any(design.mechanism == "none" for design in every):
        raise InvalidInput("a plan needs noise, and mechanism none has no privacy; take dp-dsgd, mafalda, ...")
    if epsilon is None and any(design.has_bins for design in every):
        raise InvalidInput("balls-in-bins has no mu; give epsilon with delta, or participations=['cyclic'].")
    chosen = [
        design
        for design in every
        if design.batches <= records
        and design.epochs <= (gradients_per_record or design.epochs)
        and _messages(design, matrix, design.gossip_rounds) <= (messages or np.inf)
    ]
    if not chosen:
        raise InvalidInput(
            f"no design is left of {len(every)}: at most {max_steps} steps, {records} records a node, "
            f"{gradients_per_record or 'any number of'} gradient evaluations a record and "
            f"{messages or 'any number of'} messages a node; raise one of these, or give fewer batches, epochs or "
            "gossip rounds."
        )
    target = {"mu": mu, "epsilon": epsilon, "delta": delta}
    longest = max(design.num_steps for design in chosen)
    designer = _Planner(matrix, records, privacy, hidden, target, curvature, start_distance, learning_time, longest)
    with reporter(progress, words=2).bar("planning", len(chosen)) as report:
        planned, left_out = [], []
        for design in chosen:
            report(0, design.name)
            try:
                planned.append(designer.planned(design))
            except NotConverged as error:
                left_out.append(design.name)
                if len(left_out) == len(chosen):
                    raise error
            report(1, design.name)
    planned.sort(key=lambda each: each.costs[1:])  # exact: integers, and integers times one degree
    best_first = tuple(ranked(planned, lambda each: each.loss))
    sizes = matrix.num_nodes, records
    limit = ReleaseLimit.at_budget(privacy, budget.largest_mu, *sizes, curvature, start_distance)
    return RunPlan(best_first, records, DELTA if delta is None else delta, tuple(left_out), limit)


def _messages(design: Design, gossip: GossipMatrix, rounds_per_step: int) -> float:
    """That a node sends, on average."""
    rounds = design.num_steps * rounds_per_step + ReleasedModel(design.release_model).rounds_of_gossip
    return rounds * receivers(gossip.weights).nnz / gossip.num_nodes


class _Planner:
    """Calibrations and noise gains, each computed once."""

    def __init__(
        self, gossip: GossipMatrix, records: int, privacy: Privacy, hides_messages: bool, target: dict[str, Any],
        curvature: Curvature | None, start_distance: float, learning_time: float, num_steps: int,
    ) -> None:  # fmt: skip
        self.gossip, self.records, self.privacy, self.target = gossip, records, privacy, target
        self._hides_messages = hides_messages
        self.curvature, self.start_distance, self.learning_time = curvature, start_distance, learning_time
        self._calibrated = functools.cache(self._calibrate)
        self._stopped: dict[Design, NotConverged] = {}
        self._gain = functools.cache(self._computed_gain)
        self._dynamics = functools.cache(
            lambda rounds, polynomial: Dynamics(gossip, 1.0, gossip_rounds=rounds, polynomial=polynomial)
        )
        self._age_gram = functools.cache(lambda dynamics, further: age_gram(dynamics, num_steps, further))

    def planned(self, design: Design) -> PlannedDesign:
        accounted = self._accounted_as(design)
        if accounted in self._stopped:
            raise self._stopped[accounted]
        try:
            _, guarantee = self._calibrated(accounted)
        except NotConverged as error:
            self._stopped[accounted] = error
            raise
        gain = self._gain(design)
        step_noise_std = guarantee.noise_std * design.batches / self.records
        excess, time = None, self.learning_time
        if self.curvature is not None:
            rates = RATES / self.curvature.largest
            every = predicted_loss(gain, self.curvature, rates, step_noise_std, self.start_distance)
            excess = first_minimum(every, lambda loss: loss.total)
            time = excess.learning_rate * design.num_steps
        scale = time / design.num_steps * step_noise_std
        published, on_the_way = scale * gain.published_std(), scale * gain.on_the_way_std()
        dynamics = self._run_by(design)
        cost = (design.epochs, _messages(design, dynamics.gossip.at(0), dynamics.gossip_rounds))
        planned = (design, guarantee, step_noise_std, time, published, on_the_way, *cost, excess)
        return PlannedDesign(*planned, self.privacy, self.target)

    def _accounted_as(self, design: Design) -> Design:
        """The design whose guarantee is also this one's: with one round and the last model where they cannot matter."""
        entry = registry.find_entry(design.mechanism)
        if self._hides_messages and not design.has_bins:
            return design
        same_noise = entry is not None and not entry.weighted
        rounds: dict[str, Any] = {"gossip_rounds": 1, "polynomial": POWERS} if same_noise else {}
        return dataclasses.replace(design, release_model="last", **rounds)

    def _calibrate(self, design: Design) -> tuple[LinearAlgorithm, Guarantee]:
        trust, adjacency = self.privacy.trust, self.privacy.adjacency
        _, weights = registry.split(design.mechanism)
        if weights is not None and weights.curvature is not None:
            raise UnsupportedMechanism(
                f"{design.mechanism!r} depends on the learning rate, which a plan chooses; leave the curvature of its "
                "weights out, and optimise for it in factorize or compare."
            )
        budget = {name: self.target[name] for name in ("epsilon", "delta")}
        has_bins = design.has_bins and budget["epsilon"] is not None
        noise_std = noise_of_bins(bins=design.batches, adjacency=adjacency, **budget) if has_bins else None
        dynamics = self._dynamics(design.gossip_rounds, design.polynomial)
        q = len(getattr(trust, "colluders", ())) or colluding_nodes(trust, self.gossip.num_nodes)
        size = q if trust.name in POOLED else 0
        scheme = design.scheme()
        algorithm = registry.build_tuned(design.mechanism, dynamics, scheme, coalition_size=size, noise_std=noise_std)
        meant = registry.meant_models(design.mechanism, algorithm)
        if trust.name in MODELS and meant and not {trust.name, LDP.name} & {*meant}:
            raise UnsupportedMechanism(
                f"{design.mechanism!r} does not protect as it is meant to under trust model {trust.name}; it is meant "
                f"for {', '.join(meant)}: choose one of these trust models, or leave the mechanism out."
            )
        if not algorithm.is_plain or algorithm.noise.causal is None:
            raise UnsupportedMechanism(
                f"the noise of {algorithm.name!r} is not predicted: plans cover plain gossip with noise on gradients, "
                "columns that have an encoder over steps and go to some nodes; compare trains any mechanism."
            )
        if design.release_model != "last":
            algorithm = algorithm.releasing(design.release_model)
        if not design.has_bins and not (algorithm.divisors_cancel and not trust.hides_messages(algorithm)):
            algorithm = algorithm.with_divisors(np.full(self.gossip.num_nodes, self.records / design.batches))
        guarantee = Losses.from_algorithm(algorithm, self.privacy, progress=False).calibrate(**self.target)
        return algorithm, guarantee

    def _computed_gain(self, design: Design) -> NoiseGain:
        algorithm, _ = self._calibrated(self._accounted_as(design))
        noise, dynamics, released = algorithm.noise.causal, self._run_by(design), ReleasedModel(design.release_model)
        assert noise is not None
        if not (noise.local and noise.shared and np.ptp(noise.node_scales) == 0):
            return NoiseGain.from_noise(released, dynamics, noise)
        noising = None if noise.fresh and noise.node_scales[0] == 1 else noise.column_inverse(0) * noise.node_scales[0]
        T, rounds = design.num_steps, (0, released.rounds_of_gossip)
        ages, published = (self._age_gram(dynamics, further)[:T, :T] for further in rounds)
        return NoiseGain.from_part(released, noising, ages, published)

    def _run_by(self, design: Design) -> Dynamics:
        """Gossip and rounds of the run; a mechanism may average in its own way, as cdp on a server."""
        algorithm, _ = self._calibrated(self._accounted_as(design))
        if algorithm.dynamics.gossip.content_hash != self.gossip.content_hash:
            return algorithm.dynamics
        return self._dynamics(design.gossip_rounds, design.polynomial)

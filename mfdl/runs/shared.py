"""What runs of one process share, each made once: graph, gossip matrix, task, and an algorithm with its losses.

A `Plan` is a config with what it needs of these: all that can be refused was refused.

The sensitivity of an algorithm does not know the budget, so one accounting serves all budgets, and neither it nor the
algorithm knows the seed of the training. A `Shared` is for one call: files that change later are read anew by the next.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, cast

from .. import check, graphs, trust
from ..algorithms import LinearAlgorithm, registry
from ..dynamics import Dynamics
from ..errors import InvalidInput, UnsupportedMechanism
from ..factorization.solutions import Solutions, keeping
from ..given import value_of
from ..mechanism import Mechanism
from ..metrics import require_measured
from ..participation import Cyclic
from ..privacy import gaussian
from ..privacy.losses import Losses
from ..privacy.questions import Privacy
from ..privacy.sampled_exposures import noise_of_bins
from .objects import is_own
from .options import OnGraph
from .output import objective_fields

if TYPE_CHECKING:
    from ..gossip import GossipMatrix
    from ..graphs import SparseGraph
    from ..privacy.guarantee import Guarantee
    from ..training.learned import Baseline
    from ..training.tasks import Task
    from ..trust import TrustModel
    from .experiment import Experiment


WITHOUT_NOISE = "none"
KEPT_LOSSES, KEPT_DATA = 8, 64  # an encoder per node takes 100 MB, a task of images as much
"""How many of each are kept."""


class Shared:
    """Made once and kept: see above.

    Args: solutions: where solved factorizations are looked up; default those of this call alone.
    """

    def __init__(self, solutions: Solutions | None = None) -> None:
        self._solutions = solutions or Solutions()
        self._network = functools.lru_cache(KEPT_DATA)(_network)
        self._graph_hash = functools.lru_cache(KEPT_DATA)(lambda place: graphs.content_hash(self.network(place)[0]))
        self._task = functools.lru_cache(KEPT_DATA)(self._load_task)
        self._fed = functools.lru_cache(KEPT_DATA)(_require_fed)
        self._file_hash = functools.lru_cache(KEPT_DATA)(
            lambda config: built(config, config.mechanisms[0], self.network(config)[1]).content_hash
        )
        self._accounted = functools.lru_cache(KEPT_LOSSES)(self._account)

    def network(self, config: OnGraph) -> tuple[SparseGraph, GossipMatrix]:
        """As `OnGraph.sparse_network`."""
        return self._network(_place(config))

    def graph_hash(self, config: OnGraph) -> str:
        """The content hash of the graph."""
        return self._graph_hash(_place(config))

    def task(self, config: Experiment) -> Task:
        """The task on the nodes of the graph."""
        return self._task(_place(config), config.task, config.partition, config.precondition)

    def _load_task(self, place: OnGraph, name: str, partition: str | None, precondition: str | None) -> Task:
        if not isinstance(task := value_of(name, "task"), str):
            if partition is not None:
                raise InvalidInput(f"partition {partition} is for tasks by name; the task given has its own.")
            task.require_nodes(self.network(place)[0].labels)
            return task if precondition is None else task.preconditioned(precondition)
        from ..training import tasks  # with torch

        chosen = {} if partition is None else {"partition": partition}
        task = tasks.load(name, self.network(place)[0], place.data_home, **chosen)
        return task if precondition is None else task.preconditioned(precondition)

    def require_fed(self, config: Experiment) -> None:
        """Refuses nodes with fewer records than batches."""
        task = self.task(config)
        for seed in config.seed_list[: None if task.batch_sizes_depend_on_seed else 1]:
            period = 1 if config.has_secret_batches else config.period  # a bin may be empty
            self._fed(task, seed if task.batch_sizes_depend_on_seed else 0, period)

    def accounted(self, config: Experiment, name: str) -> Accounted:
        """The algorithm of a name with its losses.

        Raises: UnsupportedMechanism: it is not meant for the trust model of the config.
        """
        settings = tuple(text for text in config.settings if text.startswith(f"{name}."))
        return self._accounted(shared_by(dataclasses.replace(config, mechanisms=(name,), settings=settings)))

    def file_hash(self, config: Experiment) -> str:
        """The content hash of the one mechanism of a config, which is that of a file."""
        return self._file_hash(shared_by(config))

    def _account(self, config: Experiment) -> Accounted:
        (name,) = config.mechanisms
        with keeping(self._solutions):
            algorithm = built(config, name, self.network(config)[1])
        model, release = trust_of(config, name, algorithm)
        if (
            config.unit == "record"
            and not config.has_secret_batches
            and not (algorithm.divisors_cancel and not model.hides_messages(algorithm))
        ):
            # divisors do not cancel in views that mix nodes; sizes that follow the seed are refused there
            algorithm = algorithm.with_divisors(self.task(config).public_batch_sizes(config.period))
        release = None if name == WITHOUT_NOISE or config.has_secret_batches else release
        privacy = Privacy(model, release=release, **config.protected)
        return Accounted(name, Losses.of(algorithm, privacy))


@dataclasses.dataclass(frozen=True, eq=False)
class Accounted:
    """An algorithm with its losses: all budgets are read off it."""

    name: str
    losses: Losses

    def mechanism(self, target: dict[str, Any]) -> Mechanism:
        """With the least noise that meets a target, or without noise."""
        losses = self.losses
        guarantee = losses.guarantee(0.0) if self.name == WITHOUT_NOISE else losses.calibrate(**target)
        return self._mechanism(guarantee)

    def _mechanism(self, guarantee: Guarantee) -> Mechanism:
        losses = self.losses
        return Mechanism(cast("LinearAlgorithm", losses.algorithm), guarantee, losses.privacy.trust)

    @functools.cached_property
    def objective(self) -> dict[str, float | str | None]:
        """`Mechanism.objective` as results state it, which no budget changes with public batches."""
        losses = self.losses
        return objective_fields(self._mechanism(losses.guarantee(0.0)))


class Plan:
    """A config with its graph, gossip matrix and task loaded: all that can be refused was refused.

    Args: shared: what other plans of this call have made already; checked: one of them refused nothing of this config.
    """

    def __init__(self, config: Experiment, shared: Shared | None = None, *, checked: bool = False) -> None:
        self.config, self.shared = config, shared or Shared()
        self.graph, self.gossip = self.shared.network(config)
        self.dynamics = config.dynamics(self.gossip)
        self.participation = config.scheme()
        self.task = self.shared.task(config)
        if not checked:
            self._check()
        self.mu: float | None = config.target_mu_or_default
        self.epsilon: float | None = config.epsilon
        if self.mu is not None:  # else batches are secret
            if self.epsilon is None:
                self.epsilon = gaussian.epsilon_from_mu(self.mu, config.delta)
            else:
                self.mu = gaussian.mu_from_epsilon(self.epsilon, config.delta)

    def _check(self) -> None:
        config = self.config
        check.device(device=config.device)
        require_measured(config.metrics, self.task.kind, self.task.name)
        self.shared.require_fed(config)
        probe = registry.build("dp-dsgd", Dynamics(self.gossip), Cyclic(epochs=1, period=1))
        for name in config.mechanisms:  # refuses nodes that are not there, or coalitions of everybody
            from_file = built(config, name, self.gossip) if name.startswith(registry.OUTSIDE) else None
            model, _ = trust_of(config, name, from_file)
            next(iter(model.members(probe)))
            if config.step_rule is not None and model.hides_messages(probe):
                raise UnsupportedMechanism(
                    f"step rule {config.step_rule} costs no privacy where all messages are seen, and trust model "
                    f"{model.name} hides some; choose --trust ldp or eavesdropper, or leave --step-rule out."
                )

    def mechanism(self, name: str) -> Mechanism:
        """The calibrated mechanism of a name."""
        return self.shared.accounted(self.config, name).mechanism(self.config.target)

    @functools.cached_property
    def untrained(self) -> Baseline | None:
        """The first models, tested: mean over the seeds."""
        from ..training import learned

        return learned.mean_baseline(learned.untrained(self.task, seed) for seed in self.config.seed_list)

    @functools.cached_property
    def chance(self) -> Baseline | None:
        """A guess that looks at no record, tested."""
        from ..training import learned

        return learned.chance(self.task)


def shared_by(config: Experiment) -> Experiment:
    """Equal for configs of one mechanism that share its algorithm and its losses."""
    target: dict[str, Any] = {"epsilon": 1.0} if config.has_secret_batches else {}
    if any(map(registry.is_of_balls_in_bins, config.mechanisms)):
        target = config.values("epsilon", "delta")
    same = {**config.deciding("run"), **config.deciding("nothing"), "data_home": config.data_home}
    return dataclasses.replace(config, error_weights=(), **same | target)


def _place(config: OnGraph) -> OnGraph:
    return OnGraph(config.graph, config.largest_component, config.gossip, config.data_home)


def _network(place: OnGraph) -> tuple[SparseGraph, GossipMatrix]:
    return place.sparse_network()


def _require_fed(task: Task, seed: int, period: int) -> None:
    task.instance(seed, period)


def built(config: Experiment, name: str, gossip: GossipMatrix) -> LinearAlgorithm:
    """The algorithm of a name, with its settings or at its best."""
    given, dynamics = config.parameters(name), config.dynamics(gossip)
    if given:
        algorithm = registry.build(name, dynamics, config.scheme(), **given)
    else:
        size = config.coalition_size or len(config.colluders or ())
        noise_std = None
        if registry.is_of_balls_in_bins(name):
            noise_std = noise_of_bins(bins=config.period, adjacency=config.adjacency, **config.target)
        algorithm = registry.build_tuned(name, dynamics, config.scheme(), coalition_size=size, noise_std=noise_std)
    return algorithm if config.release_model == "last" else algorithm.releasing(config.release_model)


def trust_of(config: Experiment, name: str, algorithm: LinearAlgorithm | None) -> tuple[TrustModel, str | None]:
    """The trust model and the released models that a mechanism is held to.

    Args: algorithm: where the name is that of a file, what is in it.
    Raises: UnsupportedMechanism: it is not meant for the trust model of the ranking.
    """
    entry = registry.find_entry(name)
    meant = () if entry is None else entry.models
    if entry is None and algorithm is not None:
        meant = registry.meant_models(name, algorithm)
    if not meant or config.trust in meant or is_own(config.trust):
        return config.trust_model(), config.release
    if not config.across_trust_models:
        raise UnsupportedMechanism(
            f"this ranking is under trust model {config.trust}, but {name!r} is meant for "
            f"{', '.join(meant)}: choose --trust, leave it out, or compare across trust models "
            "(--across-trust-models), where each mechanism is labelled with its own."
        )
    return trust.named(meant[0]), None if entry is None else entry.release

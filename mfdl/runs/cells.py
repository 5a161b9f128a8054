"""Cells, one training run each, named by the content of what decides its numbers, and what cells of a process share."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import itertools
import json
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from .. import __version__, check, graphs, trust
from ..algorithms import LinearAlgorithm, registry
from ..dynamics import Dynamics
from ..errors import InvalidInput, UnsupportedMechanism
from ..factorization.solutions import Solutions, keeping
from ..mechanism import Mechanism
from ..metrics import require_measured
from ..objective import Curvature
from ..participation import Cyclic
from ..privacy import gaussian
from ..privacy.losses import Losses
from ..privacy.questions import Privacy
from ..privacy.sampled_exposures import noise_of_bins
from ..spec import given_value
from .experiment import Experiment
from .option_files import is_own
from .options import OnGraph
from .output import objective_fields

if TYPE_CHECKING:
    from ..gossip import GossipMatrix
    from ..graphs import SparseGraph
    from ..privacy.guarantee import Guarantee
    from ..training.learned import Baseline
    from ..training.tasks import Task
    from ..trust import TrustModel

WITHOUT_NOISE = "none"
KEPT_LOSSES, KEPT_DATA = 8, 64  # an encoder per node takes 100 MB, a task of images as much


class Shared:
    """Graph, gossip matrix, task, and algorithms with losses of one call, made once; files are read anew by the next.

    Args: solutions: solved factorizations; default those of this call alone.
    """

    def __init__(self, solutions: Solutions | None = None) -> None:
        self._solutions = solutions or Solutions()
        self._network = functools.lru_cache(KEPT_DATA)(OnGraph.sparse_network)
        self._graph_hash = functools.lru_cache(KEPT_DATA)(lambda place: graphs.content_hash(self.network(place)[0]))
        self._task = functools.lru_cache(KEPT_DATA)(self._load_task)
        self._fed = functools.lru_cache(KEPT_DATA)(lambda task, *batches: task.instance(*batches))
        self._file_hash = functools.lru_cache(KEPT_DATA)(
            lambda config: built(config, config.mechanisms[0], self.network(config)[1]).content_hash
        )
        self._accounted = functools.lru_cache(KEPT_LOSSES)(self._account)

    def network(self, config: OnGraph) -> tuple[SparseGraph, GossipMatrix]:
        return self._network(_place(config))

    def graph_hash(self, config: OnGraph) -> str:
        return self._graph_hash(_place(config))

    def task(self, config: Experiment) -> Task:
        return self._task(_place(config), config.task, config.partition, config.precondition)

    def _load_task(self, place: OnGraph, name: str, partition: str | None, precondition: str | None) -> Task:
        if not isinstance(task := given_value(name, "task"), str):
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
        """The algorithm of a name with its losses. Raises: UnsupportedMechanism: not meant for the trust model."""
        settings = tuple(text for text in config.settings if text.startswith(f"{name}."))
        return self._accounted(shared_by(dataclasses.replace(config, mechanisms=(name,), settings=settings)))

    def file_hash(self, config: Experiment) -> str:
        return self._file_hash(shared_by(config))

    def _account(self, config: Experiment) -> Accounted:
        (name,) = config.mechanisms
        with keeping(self._solutions):
            algorithm = built(config, name, self.network(config)[1])
        model, release = mechanism_trust(config, name, algorithm)
        cancel = algorithm.divisors_cancel and not model.hides_messages(algorithm)
        if config.unit == "record" and not config.has_secret_batches and not cancel:
            # divisors do not cancel in views that mix nodes; sizes that follow the seed are refused there
            algorithm = algorithm.with_divisors(self.task(config).public_batch_sizes(config.period))
        release = None if name == WITHOUT_NOISE or config.has_secret_batches else release
        privacy = Privacy(model, release=release, **config.protected)
        return Accounted(name, Losses.from_algorithm(algorithm, privacy))


@dataclasses.dataclass(frozen=True, eq=False)
class Accounted:
    """An algorithm with its losses, from which all budgets are calibrated."""

    name: str
    losses: Losses

    def mechanism(self, target: dict[str, Any]) -> Mechanism:
        """The mechanism with the least noise that meets a target, or without noise."""
        losses = self.losses
        return self._mechanism(losses.guarantee(0.0) if self.name == WITHOUT_NOISE else losses.calibrate(**target))

    def _mechanism(self, guarantee: Guarantee) -> Mechanism:
        return Mechanism(cast("LinearAlgorithm", self.losses.algorithm), guarantee, self.losses.privacy.trust)

    @functools.cached_property
    def objective(self) -> dict[str, float | str | None]:
        """`Mechanism.objective` in results, the same for all budgets with public batches."""
        return objective_fields(self._mechanism(self.losses.guarantee(0.0)))


class Plan:
    """A config with its graph, gossip matrix and task loaded, after all refusals; checked: another plan did it."""

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
            model, _ = mechanism_trust(config, name, from_file)
            next(iter(model.members(probe)))
            if config.step_rule is not None and model.hides_messages(probe):
                raise UnsupportedMechanism(
                    f"step rule {config.step_rule} costs no privacy where all messages are seen, and trust model "
                    f"{model.name} hides some; choose --trust ldp or eavesdropper, or leave --step-rule out."
                )

    def mechanism(self, name: str) -> Mechanism:
        return self.shared.accounted(self.config, name).mechanism(self.config.target)

    @functools.cached_property
    def untrained(self) -> Baseline | None:
        """Test metrics of the first models, mean over the seeds."""
        from ..training import learned

        return learned.mean_baseline(learned.untrained(self.task, seed) for seed in self.config.seed_list)

    @functools.cached_property
    def chance(self) -> Baseline | None:
        """Test metrics of a guess that uses no record."""
        from ..training import learned

        return learned.chance(self.task)


def shared_by(config: Experiment) -> Experiment:
    """Key that is equal for configs of one mechanism with the same algorithm and losses."""
    target: dict[str, Any] = {"epsilon": 1.0} if config.has_secret_batches else {}
    if any(map(registry.is_of_balls_in_bins, config.mechanisms)):
        target = config.values("epsilon", "delta")
    same = {**config.deciding("run"), **config.deciding("nothing"), "data_home": config.data_home}
    return dataclasses.replace(config, error_weights=(), **same | target)


def _place(config: OnGraph) -> OnGraph:
    return OnGraph(config.graph, config.largest_component, config.gossip, config.data_home)


def built(config: Experiment, name: str, gossip: GossipMatrix) -> LinearAlgorithm:
    """The algorithm of a name, with its settings or tuned."""
    given, dynamics = config.parameters(name), config.dynamics(gossip)
    if given:
        algorithm = registry.build(name, dynamics, config.scheme(), **given)
    else:
        size = config.coalition_size or len(config.colluders or ())
        target, noise_std = config.target, None
        if "epsilon" in target:  # which mechanisms for balls-in-bins are made for
            noise_std = noise_of_bins(bins=config.period, adjacency=config.adjacency, **target)
        algorithm = registry.build_tuned(name, dynamics, config.scheme(), coalition_size=size, noise_std=noise_std)
    return algorithm if config.release_model == "last" else algorithm.releasing(config.release_model)


def mechanism_trust(config: Experiment, name: str, algorithm: LinearAlgorithm | None) -> tuple[TrustModel, str | None]:
    """The trust model and the released models of a mechanism; algorithm: the content of a file."""
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


OF_ATTACKERS = ("attackers", "colluders", "coalition_size", "release")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One mechanism, one budget, one rate, one seed, on one graph and task.

    Attributes: config: with one mechanism (error weights in its name) and one seed, in a canonical form by which cells
        are compared; shared: parts shared by cells of one call; None: made when needed.
    """

    config: Experiment
    shared: Shared | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.config.mechanisms) != 1 or self.config.seeds != 1:
            raise InvalidInput(
                f"a cell is one run: one mechanism and one seed, got {len(self.config.mechanisms)} mechanisms and "
                f"{self.config.seeds} seeds; seeds=1 with first_seed names one."
            )
        object.__setattr__(self, "config", _canonical(self.config))

    def __getstate__(self) -> dict[str, Any]:
        """The config alone, so that a worker computes the hash from its own graph and task."""
        return {"config": self.config, "shared": None}

    @property
    def mechanism(self) -> str:
        return self.config.mechanisms[0]

    @property
    def seed(self) -> int:
        return self.config.first_seed

    @property
    def num_steps(self) -> int:
        return self.config.epochs * self.config.period

    def with_shared(self, shared: Shared) -> Cell:
        if self.shared is None:
            object.__setattr__(self, "shared", shared)
        return self

    @functools.cached_property
    def options(self) -> dict[str, Any]:
        """Options of `compare` by name, without where it is computed; JSON-ready."""
        return self.config.deciding_options() | ({"mu": None} if self.mechanism == WITHOUT_NOISE else {})

    @functools.cached_property
    def hash(self) -> str:
        """16 hex digits: options, version, and the content of graph, gossip matrix, task and curvature."""
        shared = self.shared or Shared()
        _, gossip = shared.network(self.config)
        content: dict[str, Any] = {
            "options": self.options, "mfdl": __version__, "graph": shared.graph_hash(self.config),
            "gossip": gossip.content_hash, "task": shared.task(self.config).content_hash,
        }  # fmt: skip
        if self.mechanism.startswith(registry.OUTSIDE):
            content["file"] = shared.file_hash(self.config)
        else:
            weights = registry.split(self.mechanism)[1]
            if weights is not None and weights.curvature is not None:  # perhaps of a file
                content["curvature"] = typing.cast(Curvature, weights.curvature).pairs
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _canonical(config: Experiment) -> Experiment:
    changed: dict[str, Any] = {}
    for name, (kind, _, _) in config.fields().items():
        value = getattr(config, name)
        if float in (kind, *typing.get_args(kind)) and isinstance(value, int):
            changed[name] = float(value)
    if config.epsilon is None and config.mu is None:
        changed["mu"] = config.target_mu_or_default
    changed |= {"error_weights": (), "curvature": None, "settings": tuple(sorted(config.settings))}
    if config.mechanisms == (WITHOUT_NOISE,):
        default = {field.name: field.default for field in dataclasses.fields(Experiment)}
        changed |= {name: default[name] for name in ("mu", "epsilon", "trust", "across_trust_models", *OF_ATTACKERS)}
    same = all(getattr(config, name) == value for name, value in changed.items())
    same &= all(type(getattr(config, name)) is type(value) for name, value in changed.items())
    return config if same else dataclasses.replace(config, **changed)


@dataclasses.dataclass(frozen=True)
class Grid:
    """Configs that differ in some fields: `Grid(base, {"mu": (0.5, 1.0), "learning_rate": (0.1, 0.5)})` are four.

    Attributes: over: values by field, the last field fastest; point: from a combination to the changed fields, or None.
    """

    base: Experiment
    over: Mapping[str, Sequence[Any]]
    point: Callable[[dict[str, Any]], dict[str, Any] | None] = dict

    def configs(self) -> Iterator[Experiment]:
        for values in itertools.product(*self.over.values()):
            changed = self.point(dict(zip(self.over, values, strict=True)))
            if changed is not None:
                yield dataclasses.replace(self.base, **changed)

    def cells(self, seeds: Iterable[int], shared: Shared) -> list[Cell]:
        """Distinct cells for each config and seed, the seed fastest."""
        every = list(seeds)
        return list(dict.fromkeys(Cell(_at_seed(config, seed), shared) for config in self.configs() for seed in every))


def _at_seed(config: Experiment, seed: int) -> Experiment:
    copied = copy.copy(config)  # not checked again, as nothing else depends on the seed
    object.__setattr__(copied, "first_seed", seed)
    return copied


def alone(config: Experiment, name: str) -> dict[str, Any]:
    """Fields in which the config of a cell differs from one of several mechanisms and seeds."""
    settings = tuple(text for text in config.settings if text.startswith(f"{name}."))
    return {"mechanisms": (name,), "settings": settings, "error_weights": (), "seeds": 1}


def comparison_cells(config: Experiment, shared: Shared) -> list[Cell]:
    mechanisms = Grid(config, {"name": config.mechanisms}, lambda chosen: alone(config, chosen["name"]))
    return mechanisms.cells(config.seed_list, shared)

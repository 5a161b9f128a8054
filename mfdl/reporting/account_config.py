"""What `mfdl account` is asked: every value checked before any work."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from ..errors import InvalidInput
from . import options
from .options import Config, Option, require_one_of
from .progress import SILENT, Silent

if TYPE_CHECKING:
    from ..participation import Participation
    from .accounting import Account

BOUNDS = ("exact", "certified")


@dataclasses.dataclass(frozen=True)
class AccountConfig(Config):
    """One mechanism, one graph, one trust model; at most one of noise_std, noise_multiplier and mu.

    Raises: InvalidInput: a value out of range, an unknown name, or options that exclude each other.
    """

    command: ClassVar[str] = "account"

    mechanism: Annotated[str, Option("One of `mfdl mechanisms`, or file:FILE.npz.", metavar="NAME")] = "dp-dsgd"
    settings: options.Settings = ()
    graph: options.Graph = "florentine"
    largest_component: options.LargestComponent = False
    gossip: options.Gossip = "metropolis-hastings"
    trust: Annotated[str, Option("One of `mfdl trust list`.", metavar="NAME")] = "ldp"
    attackers: Annotated[
        str | None, Option("pndp: nodes that attack together, by label or as #INDEX.", metavar="A,B")
    ] = None
    colluders: options.Colluders = None
    coalition_size: options.CoalitionSize = None
    all_attackers: Annotated[bool, Option("pndp: every node attacks in turn, alone.")] = False
    victims: Annotated[str | None, Option("Whose loss; default: all that do not attack.", metavar="A,B")] = None
    epochs: options.Epochs = 20
    period: options.Period = 16
    participation: Annotated[
        str,
        Option(
            "cyclic, once-per-epoch, every-step (what --unit user needs), single, or min-separation (at most k "
            "uses, at least b steps apart).",
            metavar="NAME",
        ),
    ] = "cyclic"
    steps: Annotated[int | None, Option("T; default k b.")] = None
    noise_std: Annotated[float | None, Option("nu, the standard deviation of the base noise Z; default 1.")] = None
    noise_multiplier: Annotated[float | None, Option("nu in units of worst sensitivity times record shift.")] = None
    mu: Annotated[float | None, Option("Find the least nu for which mu is met.")] = None
    calibrate_under: Annotated[
        str | None, Option("Trust model in which --mu is met; default --trust.", metavar="TRUST")
    ] = None
    unit: Annotated[
        str,
        Option(
            "Whose data are protected: record, where each record's gradient is clipped, or user, all data of a "
            "node, where its mean gradient is clipped.",
            metavar="UNIT",
        ),
    ] = "record"
    clip_norm: Annotated[float, Option("Clipping norm of one record's gradient, or of a node's mean gradient.")] = 1.0
    adjacency: options.Adjacency = "replace-one"
    delta: options.Delta = 1e-6
    lipschitz: Annotated[
        float | None, Option("L of the maps x -> x - learning rate * gradient(x): smaller adaptive losses.")
    ] = None
    release: options.Release = None
    bound: Annotated[str, Option("exact (upper and lower bound meet), or certified (fast upper bound).")] = "exact"
    jobs: options.Jobs = None
    data_home: options.DataHome = None

    def __post_init__(self) -> None:
        from .. import check, trust
        from ..algorithms import registry
        from ..privacy import UNITS, gaussian

        self.hold_tuples()
        require_one_of("trust model", self.trust, trust.MODELS)
        registry.check_name(self.mechanism)
        self.parameters()
        require_one_of("release", self.release, options.RELEASES)
        require_one_of("bound", self.bound, BOUNDS)
        require_one_of("unit", self.unit, UNITS)
        gaussian.record_shift(self.adjacency, self.clip_norm)
        check.open_unit(delta=self.delta)
        if self.lipschitz is not None:
            check.non_negative(lipschitz=self.lipschitz)
        if self.jobs is not None:
            check.integer_at_least(1, jobs=self.jobs)
        names = ("noise_std", "noise_multiplier", "mu")
        given = [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidInput(f"give one of --noise-std, --noise-multiplier and --mu, got {' and '.join(given)}.")
        if self.calibrate_under is not None and self.mu is None:
            raise InvalidInput("--calibrate-under says where --mu is met; give --mu, or leave it out.")
        for name, rule in zip(names, (check.non_negative, check.non_negative, check.positive), strict=True):
            if getattr(self, name) is not None:
                rule(**{name: getattr(self, name)})
        self.scheme()
        if self.unit == "user" and self.lipschitz is not None:
            raise InvalidInput("--lipschitz belongs to per-record clipping, i.e. to --unit record; leave it out.")

    def parameters(self) -> dict[str, Any]:
        """The settings, as the builder takes them; covariances are made against the coalitions that attack."""
        from ..algorithms import registry

        given = registry.parse_parameters(self.mechanism, self.settings)
        if "coalition_size" in registry.parameters_of(self.mechanism) and self.coalition_size is not None:
            given.setdefault("coalition_size", self.coalition_size)
        return given

    def scheme(self) -> Participation:
        """Who takes part when."""
        from .question import participation_of

        return participation_of(self)

    @property
    def how(self) -> dict[str, Any]:
        """What `victim_losses` is told besides algorithm, trust model and victims."""
        return {"release": self.release, "method": self.bound, "lipschitz": self.lipschitz, "unit": self.unit}

    def run(self, out: str | os.PathLike[str] | None = None, *, progress: Silent = SILENT) -> Account:
        """What every victim loses; out: a folder for results.json and pictures.

        Raises: InvalidInput: nodes that are not there, or a folder that cannot be written, before any work.
        """
        from .accounting import run_account

        return run_account(self, out, progress)

"""What `mfdl account` is asked: every value checked before any work."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, ClassVar

from ..errors import InvalidInput
from . import options
from .options import OnGraph, Option, TakesPart, require_one_of


@dataclasses.dataclass(frozen=True)
class AccountConfig(TakesPart, OnGraph):
    """One mechanism, one graph, one trust model; at most one of noise_std, noise_multiplier, mu, epsilon and budgets.

    Raises: InvalidInput: a value out of range, an unknown name, or options that exclude each other.
    """

    command: ClassVar[str] = "account"

    mechanism: Annotated[str, Option("One of `mfdl mechanisms`, or file:FILE.", metavar="NAME")] = "dp-dsgd"
    settings: options.Settings = ()
    trust: Annotated[str, Option("One of `mfdl trust list`.", metavar="NAME")] = "ldp"
    attackers: options.Attackers = None
    colluders: options.Colluders = None
    coalition_size: options.CoalitionSize = None
    all_attackers: Annotated[bool, Option("pndp: every node attacks in turn, alone.")] = False
    victims: Annotated[str | None, Option("Whose loss; default: all that do not attack.", metavar="A,B")] = None
    noise_std: Annotated[
        float | None, Option("nu, the standard deviation of the base noise Z; default 1.", rule="non_negative")
    ] = None
    noise_multiplier: Annotated[
        float | None, Option("nu in units of worst sensitivity times record shift.", rule="non_negative")
    ] = None
    mu: Annotated[float | None, Option("Find the least nu for which mu is met.", rule="positive")] = None
    epsilon: Annotated[
        float | None, Option("Find the least nu for which this epsilon at --delta is met.", rule="positive")
    ] = None
    budgets: Annotated[
        Path | None,
        Option('Instead of --mu, a budget for each node: a JSON file {"LABEL": mu, ...}; each scales its noise by it.'),
    ] = None
    calibrate_under: Annotated[
        str | None, Option("Trust model in which the target is met; default --trust.", metavar="TRUST")
    ] = None
    delta: options.Delta = 1e-6
    lipschitz: Annotated[
        float | None,
        Option("L of the maps x -> x - learning rate * gradient(x): smaller adaptive losses.", rule="non_negative"),
    ] = None
    release: options.Release = None
    bound: Annotated[
        str,
        Option("exact (upper and lower bound meet), or certified (fast upper bound).", among=("exact", "certified")),
    ] = "exact"
    jobs: options.Jobs = None

    def __post_init__(self, typed: Collection[str]) -> None:
        super().__post_init__(typed)
        from .. import trust
        from ..algorithms import registry

        require_one_of("trust model", self.trust, trust.MODELS)
        registry.check_name(self.mechanism)
        self.parameters()
        names = ("noise_std", "noise_multiplier", "mu", "epsilon", "budgets")
        given = [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidInput(
                "give one of --noise-std, --noise-multiplier, --mu, --epsilon and --budgets, got "
                f"{' and '.join(given)}."
            )
        if self.calibrate_under is not None and self.target is None and self.budgets is None:
            raise InvalidInput(
                "--calibrate-under says where a target is met; give --mu, --epsilon or --budgets, or leave it out."
            )
        if self.budgets is not None and (self.all_attackers or self.has_bins):
            which, way_out = ("--all-attackers", "name them with --attackers")
            if self.has_bins:
                which, way_out = ("secret bins", "give --epsilon, or a public participation")
            raise InvalidInput(f"--budgets are a mu for each node and one attacking set, not for {which}; {way_out}.")
        if self.unit == "user" and self.lipschitz is not None:
            raise InvalidInput("--lipschitz belongs to per-record clipping, i.e. to --unit record; leave it out.")

    def parameters(self) -> dict[str, Any]:
        """The settings, as the builder takes them; covariances are made against the coalitions that attack."""
        from ..algorithms import registry

        given = registry.parse_parameters(self.mechanism, self.settings)
        if "coalition_size" in registry.parameters_of(self.mechanism) and self.coalition_size is not None:
            given.setdefault("coalition_size", self.coalition_size)
        return given

    @property
    def target(self) -> dict[str, Any] | None:
        """Keyword arguments of `calibrate`; None where the noise is given."""
        if self.epsilon is not None:
            return self.values("epsilon", "delta")
        return None if self.mu is None else self.values("mu")

    @property
    def how(self) -> dict[str, Any]:
        """What `victim_losses` is told besides algorithm, trust model and victims."""
        return {"release": self.release, "method": self.bound, "lipschitz": self.lipschitz, "unit": self.unit}

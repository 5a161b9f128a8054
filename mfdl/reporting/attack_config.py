"""What `mfdl attack` is asked: every value checked before any work."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, ClassVar

from ..errors import InvalidInput
from . import options
from .options import OnGraph, Option, Protects, require_one_of

TRUSTS = ("ldp", "pndp", "eavesdropper", "colluding", "central", "released")  # those with one view for all victims
GRADIENTS = {"constant": "constant", "per-step": "per step", "first-step": "first step"}  # as `audit.reconstruct` says
NO_NOISE = "none"
ALIASES = {"d-sgd": NO_NOISE}


@dataclasses.dataclass(frozen=True)
class AttackConfig(Protects, OnGraph):
    """One attacker on one graph: without noise, and under a mechanism with noise_std, or calibrated to mu.

    Raises: InvalidInput: a value out of range, an unknown name, or options that exclude each other.
    """

    command: ClassVar[str] = "attack"

    mechanism: Annotated[
        str, Option("Shown beside no noise: one of `mfdl mechanisms`; d-sgd: none of them.", metavar="NAME")
    ] = "dp-dsgd"
    settings: options.Settings = ()
    trust: Annotated[str, Option(f"One of {', '.join(TRUSTS)}: those with one attacker.", metavar="NAME")] = "pndp"
    attackers: options.Attackers = None
    colluders: options.Colluders = None
    steps: Annotated[int, Option("T, gradient steps.", least=1)] = 10
    gradients: Annotated[
        str,
        Option(
            "constant (each node's gradient is the same at every step), per-step (all are unknown), or first-step "
            "(values given once, then averaged by gossip).",
            metavar="KIND",
        ),
    ] = "constant"
    noise_std: Annotated[
        float | None, Option("nu of the mechanism; default: calibrated to --mu.", rule="non_negative")
    ] = None
    mu: Annotated[float | None, Option("Gaussian DP level of the mechanism; default 1.", rule="positive")] = None
    release: options.Release = None

    def __post_init__(self) -> None:
        super().__post_init__()
        options.require_steps(self.steps)
        from .. import trust
        from ..algorithms import registry

        require_one_of("trust model", self.trust, trust.MODELS)
        if self.trust not in TRUSTS:
            raise InvalidInput(
                f"--trust {self.trust} ranges over many attackers, and an attack has one; use one of "
                f"{', '.join(TRUSTS)}."
            )
        registry.check_name(self.name)
        self.parameters()
        require_one_of("kind of gradients", self.gradients, tuple(GRADIENTS))
        if self.noise_std is not None and self.mu is not None:
            raise InvalidInput("give --noise-std or --mu, not both.")
        if not self.noisy and (self.noise_std is not None or self.mu is not None):
            raise InvalidInput("--noise-std and --mu need a mechanism with noise, such as --mechanism dp-dsgd.")

    @property
    def name(self) -> str:
        """The mechanism as the registry calls it."""
        return ALIASES.get(self.mechanism, self.mechanism)

    @property
    def noisy(self) -> bool:
        """The mechanism has noise."""
        return self.name != NO_NOISE

    def parameters(self) -> dict[str, Any]:
        """The settings, as the builder takes them."""
        from ..algorithms import registry

        return registry.parse_parameters(self.name, self.settings)

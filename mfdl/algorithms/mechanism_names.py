"""Mechanisms by name: the registry in which every builder of this package stands, with where it comes from.

In: `@MECHANISMS.register(...)` above a builder. Out: entries, whose parameters are those of the builder that a text can
set; `registry` builds them.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..spec import Entry, Registry

if TYPE_CHECKING:
    from .linear_algorithm import LinearAlgorithm

ALL_SEEN = ("ldp", "eavesdropper", "colluding", "coalitions", "full-collusion")
LOCAL = (*ALL_SEEN, "pndp")  # noise that one node alone holds: good against all of them
SHARED = ("eavesdropper", "coalitions", "colluding")
ALONE = ("ldp", "full-collusion")  # where only noise that the victim alone holds is unknown


@dataclasses.dataclass(frozen=True)
class MechanismEntry(Entry):
    """One mechanism: its builder, and where it comes from.

    Attributes:
        paper: where it comes from; "-" if nowhere.
        erratum: what its paper or public code has wrong and this library does otherwise; "-" if nothing.
        trust: the trust models it is meant for, in words.
        models: names of the trust models under which it protects as it is meant to, its own first.
        release: the released models it can bear, where that is less than all of them.
        tuned: the builder with free parameters at their best; None: `build`.

    Defaults are those of noise that one node alone holds.
    """

    paper: str = "-"
    erratum: str = "-"
    trust: str = "ldp"
    models: tuple[str, ...] = LOCAL
    release: str | None = None
    tuned: Callable[..., LinearAlgorithm] | None = None

    @property
    def summary(self) -> str:
        """The first line of the builder's docstring, as the end of a sentence."""
        return self.help.rstrip(".")

    @property
    def form(self) -> str:
        """Text by which `--set` gives its first parameter."""
        first = next(iter(self.parameters.values()), None)
        return self.name if first is None else f"{first.name}=<{first.type_name}>"

    @property
    def best(self) -> Callable[..., LinearAlgorithm]:
        """`tuned`, or `build` where that is None."""
        return self.tuned or self.build

    def takes(self, parameter: str) -> bool:
        """Whether `best` has a parameter of that name."""
        return parameter in inspect.signature(self.best).parameters

    @property
    def weighted(self) -> bool:
        """Whether `best` takes ErrorWeights, which say what models count."""
        return self.takes("weights")


OF_SEARCHES = ("tolerance", "max_iterations", "solver", "allow_stopped", "counted_models")
"""How an encoder is searched for, which decides no mechanism: for Python alone."""

SUPPLIED = ("dynamics", "participation", *OF_SEARCHES)
BUILDERS = ("gossip_sgd", "factorized", "memory", "other_exchanges", "over_nodes", "noise_for_trust")
PLACES = tuple(f"mfdl.algorithms.{module}" for module in BUILDERS)
MECHANISMS: Registry[MechanismEntry] = Registry("mechanism", MechanismEntry, supplied=SUPPLIED, places=PLACES)
OF_BALLS_IN_BINS: Registry[MechanismEntry] = Registry("mechanism", MechanismEntry, supplied=SUPPLIED, places=PLACES)
"""Mechanisms for balls-in-bins alone, made for a target: their builders take the `noise_std` that meets it."""


def shares_noise(algorithm: LinearAlgorithm) -> bool:
    """Whether some part of its noise is held by several nodes; such noise counts as known where all but one collude."""
    noise = algorithm.noise
    return not (noise.local or noise.is_zero) and bool((noise.holders().astype(int).sum(axis=1) > 1).any())


def misplaced(algorithm: LinearAlgorithm, trust: str) -> str:
    """Warning about shared noise under a trust model in which it counts as known; empty elsewhere."""
    if trust not in ALONE or not shares_noise(algorithm):
        return ""
    return (
        f"Under {trust} noise shared between nodes is assumed to be known, so only noise that the "
        f"victim alone holds protects it: shared noise is meant for {', '.join(SHARED)}."
    )

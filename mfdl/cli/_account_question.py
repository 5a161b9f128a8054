"""What a call of `mfdl account` asks: nodes by label, trust models by name, participation, and how the noise is given.

In: the texts of the options. Out: objects of the library, or one refusal that says what to change.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..errors import InvalidInput, unknown_name
from . import options
from .names import require_trust

if TYPE_CHECKING:
    from ..algorithms import LinearAlgorithm
    from ..participation import Participation
    from ..privacy.accounting import VictimLoss
    from ..trust import TrustModel

PARTICIPATIONS = ("cyclic", "once-per-epoch", "every-step", "single", "min-separation")
RELEASES = ("none", "average", "all")
BOUNDS = ("exact", "certified")


def one_of(kind: str, name: str | None, known: Sequence[str]) -> None:
    if name is not None and name not in known:
        raise unknown_name(kind, name, known)


def listed(option: str, text: str) -> list[str]:
    labels = [part.strip() for part in text.split(",") if part.strip()]
    if not labels:
        raise InvalidInput(f"--{option} must name at least one node, got {text!r}.")
    return labels


def require_folder(out: Path) -> None:
    from ..reporting.output import require_writable

    if os.path.exists(out) and not os.path.isdir(out):  # not of Path, which raise on names no file can have
        raise InvalidInput(f"cannot write to {out}: it is a file; give a folder.")
    require_writable(out / "results.json")


def config_of(context: typer.Context) -> dict[str, Any]:
    """The options of this run, as --config reads them back."""
    found = {}
    for parameter in context.command.params:
        flag = next((o for o in parameter.opts if o.startswith("--")), "").lstrip("-")
        if parameter.name is None or not flag or flag in {*options.NOT_IN_FILES, "out"}:
            continue
        value = context.params.get(parameter.name)
        if value is not None and value not in ([], ()):
            found[flag] = str(value) if isinstance(value, Path) else value
    return found


def read_participation(context: typer.Context, name: str, epochs: int, period: int, steps: int | None) -> Participation:
    from ..participation import Cyclic, EveryStep, MinSeparation, OncePerEpoch, Single

    one_of("participation", name, PARTICIPATIONS)
    T = epochs * period if steps is None else steps
    options.require_steps(max(T, epochs * period))
    if name == "min-separation":
        return MinSeparation(steps=T, max_participations=epochs, separation=period)
    if name in ("every-step", "single"):
        given = [option for option in ("epochs", "period") if _given(context, option)]
        if steps is not None and given and epochs * period != steps:
            raise InvalidInput(
                f"--steps must be epochs * period, got --steps {steps} with {epochs} epochs of {period} steps; "
                f"{name} participation needs --steps alone."
            )
        return EveryStep(T) if name == "every-step" else Single(T)
    cyclic = Cyclic(epochs=epochs, period=period, steps=steps)  # refuses steps that do not fit
    return cyclic if name == "cyclic" else OncePerEpoch(epochs=epochs, period=period)


def require_unit(unit: str, scheme: Participation, lipschitz: float | None) -> None:
    """Refuses --unit user with options that cannot hold for all data of a node."""
    from .. import mechanism

    if unit == "user" and not mechanism.in_every_step(scheme):
        raise InvalidInput(
            f"--unit user needs --participation every-step, as a user's data take part in every step, got "
            f"{scheme.describe()}."
        )
    if unit == "user" and lipschitz is not None:
        raise InvalidInput("--lipschitz belongs to per-record clipping, i.e. to --unit record; leave it out.")


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


@dataclasses.dataclass(frozen=True)
class Named:
    """The nodes that the options name, and the trust models made of them.

    Attributes: any_receiver: without --attackers, pndp is any single node; default_coalition_size: where none is given.
    """

    graph: Any
    attackers_text: str | None
    colluders_text: str | None
    coalition_size: int | None
    all_attackers: bool
    any_receiver: bool = False
    default_coalition_size: int | None = None

    @functools.cached_property
    def labels(self) -> list[str]:
        from .. import graphs

        return [str(label) for label in graphs.labels(self.graph)]

    def indices(self, option: str, text: str) -> tuple[int, ...]:
        from .. import graphs

        return tuple(sorted({graphs.index_of(self.graph, label) for label in listed(option, text)}))

    def require_used(self, trusts: Sequence[str]) -> None:
        """Refuses options that no trust model of this call reads, and a missing one."""
        for trust in trusts:
            require_trust(trust)
        flags = {
            "--attackers": (self.attackers_text is not None, "pndp"),
            "--all-attackers": (self.all_attackers, "pndp"),
            "--colluders": (self.colluders_text is not None, "colluding"),
            "--coalition-size": (self.coalition_size is not None, "coalitions"),
        }
        for flag, (given, trust) in flags.items():
            if given and trust not in trusts:
                raise InvalidInput(f"{flag} belongs to trust model {trust}, not to {trusts[0]}; leave it out.")
        if self.all_attackers and self.attackers_text is not None:
            raise InvalidInput("give --attackers or --all-attackers, not both.")
        if self.all_attackers and trusts[0] != "pndp":
            raise InvalidInput(f"--all-attackers needs --trust pndp, got {trusts[0]}; name them with --attackers.")
        missing = {
            "pndp": (
                self.attackers_text is None and not self.all_attackers and not self.any_receiver,
                "--attackers A,B or --all-attackers",
            ),
            "colluding": (self.colluders_text is None, "--colluders A,B"),
            "coalitions": (self._size() is None, "--coalition-size Q"),
        }
        for trust in trusts:
            absent, option = missing.get(trust, (False, ""))
            if absent:
                raise InvalidInput(f"trust model {trust} needs {option}; labels start {', '.join(self.labels[:5])}.")

    def model(self, name: str, attacker: int | None = None) -> TrustModel:
        """The named trust model; attacker: the single attacker of pndp instead of the given ones."""
        from .. import trust as models

        if name == "pndp" and self.any_receiver and attacker is None and self.attackers_text is None:
            return models.named(name)
        if name == "pndp":
            nodes = (attacker,) if attacker is not None else self.indices("attackers", self.attackers_text or "")
            return models.named(name, attackers=[self._label(v) for v in nodes])
        if name == "colluding":
            colluders = self.indices("colluders", self.colluders_text or "")
            return models.named(name, colluders=[self._label(v) for v in colluders])
        return models.named(name, coalition_size=self._size() if name == "coalitions" else None)

    def _size(self) -> int | None:
        return self.default_coalition_size if self.coalition_size is None else self.coalition_size

    def _label(self, node: int) -> int | str:
        """The label, which guarantees print; the index where the label reads like one."""
        label = self.labels[node]
        return node if label.startswith("#") else label

    def distances(self, attackers: Sequence[int]) -> dict[int, int]:
        """Hops from the nearest attacker, by node index; empty without attackers."""
        import networkx as nx

        from .. import graphs

        if not attackers:
            return {}
        ordered = graphs.labels(self.graph)
        index = {label: i for i, label in enumerate(ordered)}
        hops = nx.multi_source_dijkstra_path_length(self.graph, {ordered[v] for v in attackers}, weight=_one_hop)
        return {index[label]: int(hop) for label, hop in hops.items()}


def _one_hop(*_: object) -> int:
    return 1


@dataclasses.dataclass(frozen=True)
class Noise:
    """How the noise was given: exactly one of three ways; under: where --mu is met, None where it is asked."""

    noise_std: float | None
    noise_multiplier: float | None
    mu: float | None
    under: str | None

    @classmethod
    def of(
        cls, noise_std: float | None, multiplier: float | None, mu: float | None, under: str | None, trust: str
    ) -> Noise:
        from .. import check

        given = {"--noise-std": noise_std, "--noise-multiplier": multiplier, "--mu": mu}
        typed = [flag for flag, value in given.items() if value is not None]
        if len(typed) > 1:
            raise InvalidInput(f"give one of --noise-std, --noise-multiplier and --mu, got {' and '.join(typed)}.")
        if under is not None and mu is None:
            raise InvalidInput("--calibrate-under says where --mu is met; give --mu, or leave it out.")
        if noise_std is not None:
            check.non_negative(noise_std=noise_std)
        if multiplier is not None:
            check.non_negative(noise_multiplier=multiplier)
        if mu is not None:
            check.positive(mu=mu)
        return cls(1.0 if not typed else noise_std, multiplier, mu, None if under == trust else under)

    def std(
        self,
        algorithm: LinearAlgorithm,
        named: Named,
        losses: Sequence[VictimLoss],
        worst_trust: TrustModel,
        adjacency: str,
        clip_norm: float,
        how: dict[str, Any],
    ) -> float:
        """nu, 0 for a mechanism without noise; --mu and --noise-multiplier read the adaptive losses.

        Args: worst_trust: the trust model under which the worst of them arises.
        """
        from .. import mechanism
        from ..operators import ZeroNoise
        from ..privacy import gaussian
        from ..privacy.accounting import worst_adaptive

        if self.noise_std is not None:
            return 0.0 if isinstance(algorithm.noise, ZeroNoise) else self.noise_std
        worst = worst_adaptive(losses)
        shift = gaussian.record_shift(adjacency, clip_norm)
        if self.noise_multiplier is not None:
            if math.isinf(worst.squared):
                raise InvalidInput(
                    "--noise-multiplier needs a finite sensitivity, got infinite loss; give --noise-std."
                )
            return gaussian.noise_std(self.noise_multiplier, worst.value, shift)
        trust = worst_trust if self.under is None else named.model(self.under)
        calibrated = mechanism.calibrate(
            algorithm,
            trust=trust,
            adjacency=adjacency,
            clip_norm=clip_norm,
            mu=self.mu,
            release=how["release"],
            method=how["method"],
            lipschitz=how["lipschitz"],
            unit=how["unit"],
        )
        return calibrated.noise_std

"""audit_matrix: claimed against audited mu, mechanism by trust model, at one level for all cells together.

In: algorithms and trust models by name. Out: a cell for each pair, with an audit, or with the reason why nothing is
claimed there; as plain rows and as files.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import check, files
from ..algorithms import LinearAlgorithm
from ..errors import InvalidInput, UnsupportedMechanism
from ..participation import BallsInBins
from ..privacy import gaussian
from ..privacy.accounting import worst_adaptive
from ..progress import Progress, shown
from ..shown import short_repr
from ..trust import TrustModel
from .auditing import AuditConfig, audited
from .bins_results import BinsAuditResult
from .observation import anything_is_seen
from .results import AuditResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

JSON_FILE, CSV_FILE, PICTURE = "audit.json", "audit.csv", "audit.png"
NOTHING_IS_SEEN = "nothing of the record is seen"
COLUMNS = ("mechanism", "trust", "mu_claimed", "mu_audited", "epsilon_claimed", "epsilon_audited", "violated", "why")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One mechanism under one trust model: its audit, or None and why there is none."""

    __repr__ = short_repr

    mechanism: str
    trust: str
    result: AuditResult | BinsAuditResult | None
    why: str = ""

    def row(self) -> dict[str, Any]:
        """Plain values under COLUMNS, of one victim's worst canary; empty where there is no audit, or no mu."""
        row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
        row |= {"mechanism": self.mechanism, "trust": self.trust, "why": self.why}
        if isinstance(self.result, BinsAuditResult):
            found = self.result.worst
            row |= {"epsilon_claimed": found.epsilon_claimed, "epsilon_audited": found.epsilon_audited}
            row["violated"] = self.result.violated
        elif self.result is not None:
            worst = self.result.worst
            row |= {name: getattr(worst, name) for name in ("mu_claimed", "mu_audited", "epsilon_audited")}
            row["epsilon_claimed"] = gaussian.epsilon_from_mu(worst.mu_claimed, self.result.delta)
            row["violated"] = self.result.violated
        return row


@dataclasses.dataclass(frozen=True)
class AuditMatrix:
    """All cells; `level` holds for all bounds of all cells together."""

    __repr__ = short_repr

    cells: tuple[Cell, ...]
    level: float

    @property
    def violations(self) -> list[Cell]:
        """Cells whose claim is refuted."""
        return [cell for cell in self.cells if cell.result is not None and cell.result.violated]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "level": self.level,
            "violations": len(self.violations),
            "cells": [
                {"mechanism": c.mechanism, "trust": c.trust, "why": c.why, "audit": c.result and c.result.to_dict()}
                for c in self.cells
            ],
        }

    def plot(self, ax: Axes | None = None) -> Any:
        """Claimed and audited mu and epsilon of each cell, in the caller's axes (returned) or a Figure of its own."""
        from .pictures import heat_map  # a picture is wanted only here; matplotlib is slow to import

        delta = next((cell.result.delta for cell in self.cells if cell.result is not None), 1e-6)  # all have the same
        return heat_map([cell.row() for cell in self.cells], self.level, ax, delta=delta)

    def write(self, folder: Path, extra: Mapping[str, Any] | None = None) -> None:
        """JSON, CSV and a picture, each whole or not at all.

        Args: extra: further entries of the JSON file, such as what it was run with.
        Raises: InvalidInput: the folder cannot be written.
        """
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(cell.row() for cell in self.cells)
        picture = io.BytesIO()
        self.plot().savefig(picture, format="png", dpi=150)
        files.atomic_write_bytes(folder / PICTURE, picture.getvalue())
        files.atomic_write_text(folder / CSV_FILE, text.getvalue())
        files.atomic_write_json(folder / JSON_FILE, {**self.to_dict(), **(extra or {})})


def audit_matrix(
    algorithms: Mapping[str, LinearAlgorithm],
    trusts: Mapping[str, TrustModel],
    *,
    mu: float | None = None,
    release: Mapping[str, str] | None = None,
    level: float = 0.95,
    progress: Progress = "auto",
    skip: Iterable[tuple[str, str]] = (),
    **how: Any,
) -> AuditMatrix:
    """Audits every algorithm under every trust model.

    Args:
        mu: the claim of every cell, from which its noise follows; or `noise_std` of every cell; exactly one of them.
        release: released models by mechanism, where not the default.
        level: familywise, of all cells together (Bonferroni).
        progress: True, False, "auto" (see `mfdl.progress`), or a function: called after each cell.
        skip: pairs (mechanism, trust) to leave out.
        how: `adjacency`, `clip_norm`, `noise_std`, `unit`, `trials`, `delta` and `seed` of `audit`.

    A pair under which nothing finite is claimed, or that the mechanism does not define, is a cell without an audit.
    Raises: InvalidInput: no cell is left, or an argument of `audit` is refused (too few trials, for one).
    """
    if missing := {"adjacency", "clip_norm"} - how.keys():
        raise InvalidInput(f"{min(missing)} has no default; give adjacency and clip_norm, as for audit.")
    noise_std = how.pop("noise_std", None)
    if (noise_std is None) == (mu is None):
        raise InvalidInput("give exactly one of noise_std and mu.")
    check.open_unit(level=level)
    shift = gaussian.record_shift(how["adjacency"], how["clip_norm"])
    left_out = set(skip)
    pairs = [(a, t) for a in algorithms for t in trusts if (a, t) not in left_out]
    if not pairs:
        raise InvalidInput("an audit matrix needs at least one mechanism and one trust model.")
    told = shown(progress, words=0)
    how |= {"level": 1 - (1 - level) / len(pairs), "progress": told.within()}
    cells = []
    with told.bar("audits", len(pairs)) as advance:
        for name, model in pairs:
            asked = AuditConfig(algorithms[name], trust=trusts[model], release=(release or {}).get(name), **how)
            if isinstance(asked.algorithm.participation, BallsInBins):
                if noise_std is None:
                    raise InvalidInput(f"mu={mu}: secret bins have no mu; give noise_std.")
                cells.append(Cell(name, model, audited(dataclasses.replace(asked, noise_std=noise_std))))
                advance()
                continue
            why = _nothing_to_refute(asked)
            if not why and mu is not None:
                finite = [loss for loss in asked.losses if loss.adaptive_sensitivity_squared < math.inf]
                noise_std = gaussian.noise_std(1 / check.positive(mu=mu), worst_adaptive(finite).value, shift)
            cells.append(Cell(name, model, None if why else audited(asked.with_noise(noise_std)), why))
            advance()
    return AuditMatrix(tuple(cells), level)


def _nothing_to_refute(asked: AuditConfig) -> str:
    """Why nothing finite is claimed, if so."""
    try:
        losses = asked.losses
        seen = anything_is_seen(asked.algorithm, asked.trust, release=asked.release)
    except UnsupportedMechanism as error:
        return str(error)
    if seen and any(0 < loss.adaptive_sensitivity_squared < math.inf for loss in losses):
        return ""
    leaks = [x.adaptive_why or x.fixed.why for x in losses if seen and math.isinf(x.adaptive_sensitivity_squared)]
    return f"infinite loss is claimed: {leaks[0]}" if leaks else NOTHING_IS_SEEN

"""audit_matrix: claimed against audited mu, mechanism by trust model, at one level for all cells together.

In: algorithms and trust models by name. Out: a cell for each pair, with an audit, or with the reason why nothing is
claimed there; as plain rows and as files.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from .. import check, files
from ..algorithms import LinearAlgorithm
from ..errors import InvalidInput, UnsupportedMechanism
from ..privacy import gaussian
from ..privacy.accounting import victim_losses
from ..trust import TrustModel
from .auditing import AuditResult, audit
from .observation import anything_is_seen

JSON_FILE, CSV_FILE, PICTURE = "audit.json", "audit.csv", "audit.png"
NOTHING_IS_SEEN = "nothing of the record is seen"
COLUMNS = ("mechanism", "trust", "mu_claimed", "mu_audited", "epsilon_claimed", "epsilon_audited", "violated", "why")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One mechanism under one trust model: its audit, or None and why there is none."""

    mechanism: str
    trust: str
    result: AuditResult | None
    why: str = ""

    def row(self) -> dict[str, Any]:
        """Plain values under COLUMNS, all of one victim: of the worst canary; empty where there is no audit."""
        found: dict[str, Any] = dict.fromkeys(COLUMNS, "")
        found |= {"mechanism": self.mechanism, "trust": self.trust, "why": self.why}
        if self.result is not None:
            one = self.result.worst
            found |= {
                "mu_claimed": one.mu_claimed,
                "mu_audited": one.mu_audited,
                "epsilon_claimed": gaussian.epsilon_from_mu(one.mu_claimed, self.result.delta),
                "epsilon_audited": one.epsilon_audited,
                "violated": self.result.violated,
            }
        return found


@dataclasses.dataclass(frozen=True)
class AuditMatrix:
    """All cells; `level` holds for all bounds of all cells together."""

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

    def write(self, folder: Path, extra: Mapping[str, Any] | None = None) -> None:
        """JSON, CSV and a picture, each whole or not at all.

        Args: extra: further entries of the JSON file, such as what it was run with.
        Raises: InvalidInput: the folder cannot be written.
        """
        from ._pictures import heat_map  # a picture is wanted only here; matplotlib is slow to import

        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(cell.row() for cell in self.cells)
        picture = io.BytesIO()
        heat_map(self).savefig(picture, format="png", dpi=150)
        files.atomic_write_bytes(folder / PICTURE, picture.getvalue())
        files.atomic_write_text(folder / CSV_FILE, text.getvalue())
        files.atomic_write_json(folder / JSON_FILE, {**self.to_dict(), **(extra or {})})


def audit_matrix(
    algorithms: Mapping[str, LinearAlgorithm],
    trusts: Mapping[str, TrustModel],
    *,
    adjacency: str,
    clip_norm: float,
    noise_std: float | None = None,
    mu: float | None = None,
    release: Mapping[str, str] | None = None,
    unit: str = "record",
    level: float = 0.95,
    progress: Callable[[], None] | None = None,
    skip: Iterable[tuple[str, str]] = (),
    **how: Any,
) -> AuditMatrix:
    """Audits every algorithm under every trust model.

    Args:
        noise_std: of every cell; or mu: the claim of every cell, from which its noise follows; exactly one of them.
        release: released models by mechanism, where not the default.
        level: familywise, of all cells together (Bonferroni).
        progress: called after each cell; skip: pairs (mechanism, trust) to leave out.
        how: `trials`, `delta` and `seed` of `audit`.

    A pair under which nothing finite is claimed, or that the mechanism does not define, is a cell without an audit.
    Raises: InvalidInput: no cell is left, or an argument of `audit` is refused (too few trials, for one).
    """
    if (noise_std is None) == (mu is None):
        raise InvalidInput("give exactly one of noise_std and mu.")
    check.open_unit(level=level)
    shift = gaussian.record_shift(adjacency, clip_norm)
    left_out = set(skip)
    pairs = [(a, t) for a in algorithms for t in trusts if (a, t) not in left_out]
    if not pairs:
        raise InvalidInput("an audit matrix needs at least one mechanism and one trust model.")
    each = 1 - (1 - level) / len(pairs)
    cells = []
    for name, model in pairs:
        shown = (release or {}).get(name)
        found, why = _sensitivity(algorithms[name], trusts[model], shown, unit)
        result = None
        if not why:
            std = check.positive(noise_std=noise_std) if mu is None else found * shift / check.positive(mu=mu)
            result = audit(
                algorithms[name],
                trust=trusts[model],
                adjacency=adjacency,
                clip_norm=clip_norm,
                noise_std=std,
                release=shown,
                unit=unit,
                level=each,
                **how,
            )
        cells.append(Cell(name, model, result, why))
        if progress is not None:
            progress()
    return AuditMatrix(tuple(cells), level)


def _sensitivity(algorithm: LinearAlgorithm, trust: TrustModel, release: str | None, unit: str) -> tuple[float, str]:
    """The largest finite adaptive sensitivity of any victim, or why there is none."""
    try:
        losses = victim_losses(algorithm, trust, release=release, unit=unit)
        seen = anything_is_seen(algorithm, trust, release=release)
    except UnsupportedMechanism as error:
        return math.nan, str(error)
    if not seen:
        return math.nan, NOTHING_IS_SEEN
    finite = [x for one in losses if 0 < (x := one.adaptive_sensitivity_squared) < math.inf]
    if finite:
        return math.sqrt(max(finite)), ""
    leaks = [one.adaptive_why or one.fixed.why for one in losses if math.isinf(one.adaptive_sensitivity_squared)]
    return math.nan, f"infinite loss is claimed: {leaks[0]}" if leaks else NOTHING_IS_SEEN

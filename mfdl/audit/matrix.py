"""audit_matrix: claimed against audited mu, mechanism by trust model, at one level for all cells together.

In: algorithms and trust models by name. Out: a cell for each pair, with an audit, or with the reason why nothing is
claimed there; as plain rows and as files. Secret bins have a second row if asked for, a planted bug: bins are public.
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
from ..privacy import gaussian
from ..privacy.accounting import worst_adaptive
from ..privacy.losses import PrivacyLosses
from ..privacy.question import Question
from ..progress import Progress, shown
from ..shown import short_repr
from ..trust import TrustModel
from .auditing import AuditConfig, audited
from .bins_results import BinsAuditResult
from .observation import anything_is_seen
from .results import AuditResult
from .secret_bins import BinsAudit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

JSON_FILE, CSV_FILE, PICTURE = "audit.json", "audit.csv", "audit.png"
ROUNDED = 1e-12  # relative: what rounding may take from noise that is asked for
NOTHING_IS_SEEN = "nothing of the record is seen"
PUBLIC_BINS = "bins are public"
COLUMNS = (
    "mechanism",
    "trust",
    "mu_claimed",
    "mu_audited",
    "epsilon_claimed",
    "epsilon_audited",
    "violated",
    "why",
    "planted",
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One mechanism under one trust model: its audit, or None and why there is none.

    Attributes: planted: a bug in words, for which the claim must fall; `mechanism` says it too. Empty: no bug.
    """

    __repr__ = short_repr

    mechanism: str
    trust: str
    result: AuditResult | BinsAuditResult | None
    why: str = ""
    planted: str = ""

    def row(self) -> dict[str, Any]:
        """Plain values under COLUMNS, of one victim's worst canary; empty where there is no audit, or no mu."""
        row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
        row |= {"mechanism": self.mechanism, "trust": self.trust, "why": self.why, "planted": self.planted}
        if isinstance(self.result, BinsAuditResult):
            canary = self.result.worst
            row |= {"epsilon_claimed": canary.epsilon_claimed, "epsilon_audited": canary.epsilon_audited}
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
        """Cells whose claim is refuted, but for planted bugs."""
        return [cell for cell in self.cells if not cell.planted and cell.result is not None and cell.result.violated]

    @property
    def unseen(self) -> list[Cell]:
        """Cells with a planted bug that the audit did not see."""
        return [cell for cell in self.cells if cell.planted and cell.result is not None and not cell.result.violated]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "level": self.level,
            "violations": len(self.violations),
            "cells": [
                {
                    **{name: getattr(c, name) for name in ("mechanism", "trust", "why", "planted")},
                    "audit": c.result and c.result.to_dict(),
                }
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
    epsilon: float | None = None,
    release: Mapping[str, str] | None = None,
    level: float = 0.95,
    progress: Progress = "auto",
    skip: Iterable[tuple[str, str]] = (),
    planted: bool = False,
    **how: Any,
) -> AuditMatrix:
    """Audits every algorithm under every trust model.

    Args:
        mu: the claim of every cell, from which its noise follows; or `epsilon`, claimed at `delta`; or `noise_std` of
            every cell; exactly one of them.
        release: released models by mechanism, where not the default.
        level: familywise, of all cells together (Bonferroni).
        progress: True, False, "auto" (see `mfdl.progress`), or a function: called after each cell.
        skip: pairs (mechanism, trust) to leave out.
        planted: beside each mechanism of secret bins a row "NAME (bins are public)": the attacker is told the bins,
            and the claim must fall. It counts as no violation.
        how: `adjacency`, `clip_norm`, `noise_std`, `unit`, `trials`, `delta` and `seed` of `audit`.

    A pair under which nothing finite is claimed, or that the mechanism does not define, is a cell without an audit.
    Raises: InvalidInput: no cell is left, or an argument of `audit` is refused (too few trials, for one).
    """
    if missing := {"adjacency", "clip_norm"} - how.keys():
        raise InvalidInput(f"{min(missing)} has no default; give adjacency and clip_norm, as for audit.")
    for name, each in check.mapping("algorithms by name", algorithms=algorithms).items():
        check.instance(LinearAlgorithm, **{f"algorithms[{name!r}]": each})
    for name, model in check.mapping("trust models by name", trusts=trusts).items():
        check.instance(TrustModel, **{f"trusts[{name!r}]": model})
    if release is not None:
        check.mapping("releases by the name of the algorithm", release=release)
    skip = check.listed("pairs (mechanism, trust)", skip=skip)
    noise = _Noise(how.pop("noise_std", None), mu, epsilon)
    check.open_unit(level=level)
    gaussian.record_shift(how["adjacency"], how["clip_norm"])
    left_out, rows = (
        {tuple(check.listed("a mechanism and a trust model", skip=pair)) for pair in skip},
        _rows(algorithms, planted=planted),
    )
    cells = [(row, t) for row in rows for t in trusts if (row.name, t) not in left_out]
    if not cells:
        raise InvalidInput("an audit matrix needs at least one mechanism and one trust model.")
    told = shown(progress, words=0)
    how |= {"level": 1 - (1 - level) / len(cells), "progress": told.within()}
    audits = []
    with told.bar("audits", len(cells)) as advance:
        for row, model in cells:
            more = {"bins_seen": True} if row.planted else {}
            asked = AuditConfig(
                algorithms[row.name], trust=trusts[model], release=(release or {}).get(row.name), **(how | more)
            )
            of_bins = asked.algorithm.participation.num_bins is not None
            result, why = _of_bins(asked, noise) if of_bins else _of_public(asked, noise)
            audits.append(Cell(row.title, model, result, why, row.planted))
            advance()
    return AuditMatrix(tuple(audits), level)


@dataclasses.dataclass(frozen=True)
class _Row:
    """A mechanism of the matrix, with a planted bug or none."""

    name: str
    planted: str = ""

    @property
    def title(self) -> str:
        return f"{self.name} ({self.planted})" if self.planted else self.name


def _rows(algorithms: Mapping[str, LinearAlgorithm], *, planted: bool) -> list[_Row]:
    secret = {name for name, each in algorithms.items() if each.participation.num_bins is not None}
    if planted and not secret:
        raise InvalidInput("planted=True: only secret bins can be told; leave it out, or take BallsInBins.")
    bugs = {name: ("", PUBLIC_BINS) if planted and name in secret else ("",) for name in algorithms}
    return [_Row(name, bug) for name in algorithms for bug in bugs[name]]


@dataclasses.dataclass(frozen=True)
class _Noise:
    """How the noise of a cell follows: given, or from the claim of mu or of epsilon. Exactly one."""

    noise_std: float | None
    mu: float | None
    epsilon: float | None

    def __post_init__(self) -> None:
        if [self.noise_std, self.mu, self.epsilon].count(None) != 2:
            raise InvalidInput("give exactly one of noise_std, mu and epsilon.")

    def of_public(self, asked: AuditConfig) -> float:
        """That at which the worst victim with a finite loss loses what is claimed."""
        if self.noise_std is not None:
            return self.noise_std
        mu = gaussian.mu_from_epsilon(self.epsilon, asked.delta) if self.epsilon is not None else self.mu
        finite = [loss for loss in asked.losses if loss.adaptive_sensitivity_squared < math.inf]
        shift = gaussian.record_shift(str(asked.adjacency), float(asked.clip_norm or 0))
        return gaussian.noise_std(1 / check.positive(mu=mu), worst_adaptive(finite).value, shift)

    def of_bins(self, asked: AuditConfig) -> float:
        """The same of secret bins. Raises: InvalidInput: a mu."""
        if self.noise_std is not None:
            return self.noise_std
        if self.epsilon is None:
            raise InvalidInput(f"mu={self.mu}: secret bins have no mu; give epsilon or noise_std.")
        question = Question(asked.trust, str(asked.adjacency), float(asked.clip_norm or 0))
        unit_curves = PrivacyLosses.of(asked.algorithm, question).curves(1.0)
        finite = [each for each in unit_curves.values() if each.noise_multiplier > 0]
        scales = [each.least_multiplier(self.epsilon, asked.delta) / each.noise_multiplier for each in finite]
        return max(scales, default=1.0) * (1 + ROUNDED)


def _of_bins(asked: AuditConfig, noise: _Noise) -> tuple[BinsAuditResult | None, str]:
    """The audit, or why there is none."""
    try:
        audit = BinsAudit.of(dataclasses.replace(asked, noise_std=noise.of_bins(asked)))
    except UnsupportedMechanism as error:
        return None, str(error)
    return (None, audit.why) if audit.why else (audit.result(), "")


def _of_public(asked: AuditConfig, noise: _Noise) -> tuple[AuditResult | BinsAuditResult | None, str]:
    """The audit, or why there is none."""
    if why := _nothing_to_refute(asked):
        return None, why
    return audited(asked.with_noise(noise.of_public(asked))), ""


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

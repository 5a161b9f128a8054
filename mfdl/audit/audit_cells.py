"""audit_matrix: claimed against audited privacy, mechanism by trust model, at one level for all cells together.

A mechanism can have a second row with a planted bug: bins are public, or noise is halved.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import check, files
from ..algorithms import LinearAlgorithm
from ..display import short_repr
from ..errors import InvalidInput, UnsupportedMechanism
from ..privacy import gaussian
from ..privacy.questions import Target
from ..progress import Progress, reporter
from ..trust import TrustModel
from .audited_claims import AuditResult, AuditSettings
from .auditing import AuditPlan
from .one_run import OneRunPlan, OneRunResult, OneRunSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

JSON_FILE, CSV_FILE, PICTURE = "audit.json", "audit.csv", "audit.png"
PUBLIC_BINS, HALF_NOISE = "bins are public", "half the noise"
PLANTED = {PUBLIC_BINS: "bins_seen", HALF_NOISE: "noise_halved"}
"""Planted bugs, and the settings that plant them."""
ROUNDED = 1e-12  # relative: what rounding may take from noise that meets an epsilon
NUMBERS = ("mu_claimed", "mu_audited", "epsilon_claimed", "epsilon_audited")
COLUMNS = ("mechanism", "trust", *NUMBERS, "violated", "why", "planted")
REFUTED = "#d55e00"


@dataclasses.dataclass(frozen=True)
class AuditCell:
    """One mechanism under one trust model: its audit, or None and why; a claim with a planted bug must fall."""

    __repr__ = short_repr

    mechanism: str
    trust: str
    result: AuditResult | OneRunResult | None
    why: str = ""
    planted: str = ""

    def row(self) -> dict[str, Any]:
        """Plain values under COLUMNS, of the worst canary; empty where there is no audit, or no mu."""
        row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
        row |= {"mechanism": self.mechanism, "trust": self.trust, "why": self.why, "planted": self.planted}
        if self.result is not None:
            worst = {name: getattr(self.result.worst, name) for name in NUMBERS}
            row |= {name: "" if number is None else number for name, number in worst.items()}
            row["violated"] = self.result.violated
        return row


@dataclasses.dataclass(frozen=True)
class AuditMatrix:
    """All cells; `level` holds for all bounds of all cells together."""

    __repr__ = short_repr

    cells: tuple[AuditCell, ...]
    level: float

    @property
    def violations(self) -> list[AuditCell]:
        """Cells whose claim is refuted, but for planted bugs."""
        return [cell for cell in self.cells if not cell.planted and cell.result is not None and cell.result.violated]

    @property
    def unseen(self) -> list[AuditCell]:
        """Cells with a planted bug that the audit did not see."""
        return [cell for cell in self.cells if cell.planted and cell.result is not None and not cell.result.violated]

    def to_dict(self) -> dict[str, Any]:
        fields = ("mechanism", "trust", "why", "planted")
        cells = [{f: getattr(c, f) for f in fields} | {"audit": c.result and c.result.to_dict()} for c in self.cells]
        return {"level": self.level, "violations": len(self.violations), "cells": cells}

    def plot(self, ax: Axes | None = None) -> Any:
        """Claimed and audited mu and epsilon of each cell, in the caller's axes (returned) or a Figure of its own."""
        delta = next((cell.result.delta for cell in self.cells if cell.result is not None), 1e-6)  # all have the same
        return heat_map([cell.row() for cell in self.cells], self.level, ax, delta=delta)

    def write(self, folder: Path, extra: Mapping[str, Any] | None = None) -> None:
        """JSON, with the `extra` entries, CSV and a picture, each whole or not at all.

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
    one_run: bool = False,
    **options: Any,
) -> AuditMatrix:
    """Audits every algorithm under every trust model.

    Args:
        mu: the claim of every cell, from which its noise follows; or `epsilon`, claimed at `delta`; or `noise_std` of
            every cell; exactly one of them.
        release: released models by mechanism, where not the default.
        level: familywise, of all cells together (Bonferroni).
        planted: beside each mechanism of balls-in-bins a row "NAME (bins are public)": the attacker knows the bins; of
            one run beside each mechanism a row "NAME (half the noise)". The claim must fall; it counts as no violation.
        one_run: `audit_one_run` in each cell, whose canaries are the trials; for public batches at record level.
        options: `adjacency`, `clip_norm`, `noise_std`, `unit`, `victim`, `trials`, `delta` and `seed` of `audit`, and
            `patterns` of one run.

    A pair without a finite claim, or that the mechanism does not define, is a cell without an audit.
    Raises: InvalidInput: no cell is left, or an argument of `audit` is refused (too few trials, for one).
    """
    if missing := {"adjacency", "clip_norm"} - options.keys():
        raise InvalidInput(f"{min(missing)} has no default; give adjacency and clip_norm, as for audit.")
    for name, each in check.mapping("algorithms by name", algorithms=algorithms).items():
        check.instance(LinearAlgorithm, **{f"algorithms[{name!r}]": each})
    for name, model in check.mapping("trust models by name", trusts=trusts).items():
        check.instance(TrustModel, **{f"trusts[{name!r}]": model})
    if release is not None:
        check.mapping("releases by the name of the algorithm", release=release)
    pairs = check.listed("pairs (mechanism, trust)", skip=skip)
    left_out = {tuple(check.listed("a mechanism and a trust model", skip=pair)) for pair in pairs}
    noise = _NoiseOfCells(options.pop("noise_std", None), mu, epsilon)
    check.open_unit(level=level)
    gaussian.record_shift(options["adjacency"], options["clip_norm"])
    rows = _rows(algorithms, noise, planted=planted, one_run=one_run)
    cells = [(*row, trust) for row in rows for trust in trusts if (row[0], trust) not in left_out]
    if not cells:
        raise InvalidInput("an audit matrix needs at least one mechanism and one trust model.")
    screen = reporter(progress, words=0)
    options |= {"level": 1 - (1 - level) / len(cells), "progress": screen.within()}
    settings_of, plan_of = _ONE_RUN if one_run else _MANY_RUNS
    audits = []
    with screen.bar("audits", len(cells)) as advance:
        for name, bug, trust in cells:
            about = options | {"trust": trusts[trust], "release": (release or {}).get(name)}
            if bug:
                about[PLANTED[bug]] = True
            result, why = _audited(settings_of(algorithms[name], **about), noise, plan_of)
            audits.append(AuditCell(f"{name} ({bug})" if bug else name, trust, result, why, bug))
            advance()
    return AuditMatrix(tuple(audits), level)


_PlanOf = Callable[[Any], AuditPlan | OneRunPlan]
_MANY_RUNS: tuple[type[AuditSettings], _PlanOf] = AuditSettings, AuditPlan.from_settings
_ONE_RUN: tuple[type[AuditSettings], _PlanOf] = OneRunSettings, OneRunPlan.from_settings


@dataclasses.dataclass(frozen=True)
class _NoiseOfCells:
    noise_std: float | None
    mu: float | None
    epsilon: float | None

    def __post_init__(self) -> None:
        if [self.noise_std, self.mu, self.epsilon].count(None) != 2:
            raise InvalidInput("give exactly one of noise_std, mu and epsilon.")

    def matching_std(self, settings: AuditSettings) -> float:
        if self.noise_std is not None:
            return self.noise_std
        target = Target(self.mu, self.epsilon, None if self.epsilon is None else settings.delta)
        losses = settings.losses
        finite = [loss for loss in losses.sensitivities if not math.isinf(loss.sensitivity())]
        if not settings.draws_bins:
            return max((loss.least_noise(losses.privacy, target) for loss in finite), default=1.0)
        # above `least_noise` by rounding; the keys of draws depend on the noise, so that other bits are other draws
        curves = dict.fromkeys(loss.curve(losses.privacy, 1.0) for loss in finite)
        assert self.epsilon is not None
        scales = (curve.least_multiplier(self.epsilon, settings.delta) / curve.noise_multiplier for curve in curves)
        return max(scales, default=1.0) * (1 + ROUNDED)


def _rows(
    algorithms: Mapping[str, LinearAlgorithm], noise: _NoiseOfCells, *, planted: bool, one_run: bool
) -> list[tuple[str, str]]:
    with_bins = {name for name, each in algorithms.items() if each.participation.num_bins is not None}
    if with_bins and noise.mu is not None:
        raise InvalidInput(f"mu={noise.mu}: balls-in-bins have no mu; give epsilon or noise_std.")
    bugs = dict.fromkeys(algorithms, HALF_NOISE) if one_run else dict.fromkeys(with_bins, PUBLIC_BINS)
    if planted and not bugs:
        raise InvalidInput("planted=True: batches are public; leave it out, or take BallsInBins or one_run=True.")
    return [(name, bug) for name in algorithms for bug in (("", bugs[name]) if planted and name in bugs else ("",))]


def _audited(
    settings: AuditSettings, noise: _NoiseOfCells, plan_of: _PlanOf
) -> tuple[AuditResult | OneRunResult | None, str]:
    try:
        plan = plan_of(settings.with_noise(noise.matching_std(settings)))
    except UnsupportedMechanism as error:
        return None, str(error)
    return (None, plan.why) if plan.why else (plan.result(), "")


def heat_map(cells: Sequence[Mapping[str, Any]], level: float, ax: Axes | None = None, *, delta: float = 1e-6) -> Any:
    """Mechanisms down, trust models across, for rows of `AuditCell`; a refuted claim is framed, no claim is hatched."""
    from matplotlib.figure import Figure  # slow to import, and needed for pictures alone
    from matplotlib.patches import Rectangle

    from ..pictures.style import INK, QUIET

    rows, columns = (list(dict.fromkeys(cell[name] for cell in cells)) for name in ("mechanism", "trust"))
    ratios = np.full((len(rows), len(columns)), np.nan)
    size = (3.4 + 1.5 * len(columns), 2.2 + 0.42 * len(rows))
    axes = Figure(figsize=size, layout="constrained").add_subplot() if ax is None else ax
    for cell in cells:
        if cell["epsilon_claimed"] != "":
            name = "epsilon" if cell["mu_claimed"] == "" else "mu"  # balls-in-bins have no mu
            ratio = cell[f"{name}_audited"] / max(cell[f"{name}_claimed"], 1e-300)  # epsilon may be 0 at a large delta
            ratios[rows.index(cell["mechanism"]), columns.index(cell["trust"])] = min(ratio, 1.5)
    image = axes.imshow(ratios, cmap="YlGnBu", vmin=0.0, vmax=1.5, aspect="auto")
    for cell in cells:
        i, j = rows.index(cell["mechanism"]), columns.index(cell["trust"])
        if cell["epsilon_claimed"] == "":
            axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, hatch="////", edgecolor="#e3e3e3", lw=0))
            axes.text(j, i, "no claim", ha="center", va="center", color=QUIET, fontsize=8)
            continue
        text = "" if cell["mu_claimed"] == "" else f"{cell['mu_claimed']:.3g} / {cell['mu_audited']:.3g}"
        middle: dict[str, Any] = {"ha": "center", "color": "white" if ratios[i, j] > 0.8 else INK}
        axes.text(j, i, text, va="bottom", fontsize=9, **middle)
        epsilons = f"ε {cell['epsilon_claimed']:.3g} / {cell['epsilon_audited']:.3g}"
        axes.text(j, i + 0.06, epsilons, va="top", fontsize=7, **middle)
        if cell["violated"]:
            axes.add_patch(Rectangle((j - 0.46, i - 0.44), 0.92, 0.88, fill=False, edgecolor=REFUTED, lw=2.5))
    axes.set_xticks(range(len(columns)), columns, rotation=20, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    title = f"mu, and epsilon at delta = {delta:g}: claimed / audited\n(lower bounds, all at level {level:g})"
    axes.set_title(title, fontsize=10, color=INK)
    axes.spines[:].set_visible(False)
    axes.figure.colorbar(image, ax=axes, label="audited / claimed", shrink=0.8)
    count = sum(bool(cell["violated"]) and not cell.get("planted") for cell in cells)
    verdict = f"{count} claim{'s are' if count > 1 else ' is'} refuted (framed)." if count else "No claim is refuted."
    label = axes.set_xlabel if ax is not None else axes.figure.supxlabel
    label(verdict, fontsize=9, color=REFUTED if count else QUIET)
    return axes.figure if ax is None else axes

"""`mfdl audit`: what runs show of a record, against what is claimed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..reporting.audit_config import AuditConfig, run_audit
from . import options
from .command import Answer, command

if TYPE_CHECKING:
    from ..audit import AuditMatrix


@command(AuditConfig, "Folder for audit.json, audit.csv and audit.png.")
def audit(config: AuditConfig, out: Path | None) -> Answer:
    """Run neighbouring inputs many times and compare what they show with the claimed mu, or epsilon of balls-in-bins.

    The exit code is 0 when no claim is refuted, and every planted bug is; 1 otherwise.
    """
    matrix, answer = run_audit(config, out)
    return answer, lambda: _show(matrix, out), int(bool(matrix.violations or matrix.unseen))


def _show(matrix: AuditMatrix, out: Path | None) -> None:
    from rich.markup import escape

    from ..audit.audit_cells import NUMBERS

    numbers = ("mu claimed", "mu >=", "epsilon claimed", "epsilon >=")  # as NUMBERS
    title = f"claimed and audited privacy, all at level {matrix.level:g}"
    table = options.table(("mechanism", "trust", *numbers, "verdict"), title=title, right=numbers)
    for cell in matrix.cells:
        row = cell.row()
        values = ["" if row[name] == "" else f"{row[name]:.4g}" for name in NUMBERS]
        verdict = f"no claim: {escape(cell.why)}"
        if cell.result is not None:
            verdict = "[red]REFUTED[/]" if cell.result.violated else "not refuted"
        table.add_row(cell.mechanism, cell.trust, *values, verdict)
    options.answers().print(table)
    results = [(cell, cell.result) for cell in matrix.cells if cell.result is not None]
    in_full = [r for cell, r in results if (r.violated and not cell.planted) or len(matrix.cells) == 1]
    options.say(r.sentence() for r in in_full)
    options.say(f"{cell.mechanism} under {cell.trust}: {note}." for cell, r in results for note in r.notes)
    drawn = [(cell, r.draws) for cell, r in results if r.draws is not None and r not in in_full]
    options.say(f"{cell.mechanism} under {cell.trust}: {draws.sentence()}" for cell, draws in drawn)
    options.say(f"{cell.mechanism} under {cell.trust} is a planted bug that was not seen." for cell in matrix.unseen)
    if refuted := sum(cell.planted != "" and result.violated for cell, result in results):
        options.say([f"{refuted} planted bug{'s are' if refuted > 1 else ' is'} refuted, as expected."])
    count = len(matrix.violations)
    verdict = f"{count} claim{'s are' if count > 1 else ' is'} refuted." if count else "No claim is refuted."
    options.say([verdict], out)

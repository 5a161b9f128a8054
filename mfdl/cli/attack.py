"""`mfdl attack`: whose gradients an attacker solves for, without noise and beside it under a mechanism."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..reporting.attack_config import GRADIENT_OF, AttackConfig, panels, run_attack
from . import options
from .command import Answer, command


@command(AttackConfig, "Folder for results.json and the picture.")
def attack(config: AttackConfig, out: Path | None) -> Answer:
    """Whose gradients an attacker solves for: once without noise, once under a mechanism.

    Exposed gradients are read off; an error is the standard deviation of the best unbiased estimate, in clipping norms.
    """
    answer = run_attack(config, out)
    return answer, lambda: _show(answer, out), 0


def _show(answer: dict[str, Any], out: Path | None) -> None:
    titled = panels(answer)
    title = (
        f"{answer['graph']}, trust {answer['trust']}, {answer['unit']} level, {answer['steps']} steps, "
        f"gradients {answer['gradients']}"
    )
    columns = ["node", "distance", *(column for name, _ in titled for column in (name, "error", "left"))]
    table = options.table(columns, title=title, right=("distance", "error", "left"))
    for rows in zip(*(panel["nodes"] for _, panel in titled), strict=True):
        if rows[0]["status"] == "attacker":
            continue
        distance = "" if rows[0]["distance"] is None else str(rows[0]["distance"])
        cells = ((row["status"], _error(row["error_std"]), _error(row["posterior_ratio"])) for row in rows)
        table.add_row(rows[0]["node"], distance, *(cell for three in cells for cell in three))
    explained = (
        f"error: std of the best unbiased estimate of a coordinate of a node's {GRADIENT_OF[answer['unit']]}, in "
        "clipping norms; left: the posterior std of a coordinate, as a share of the prior std."
    )
    guarantee = [answer["guarantee"]] if answer["guarantee"] else []
    notes = (f"Note: {note}" for note in answer["notes"])
    options.say([table, explained, *(_sentence(*panel) for panel in titled), *guarantee, *notes], out)


def _sentence(title: str, panel: dict[str, Any]) -> str:
    """What a panel says, in words."""
    status = [node["status"] for node in panel["nodes"] if node["status"] != "attacker"]
    names = f": {', '.join(panel['exposed'])}" if panel["exposed"] else ""
    rest = "; ".join(f"{status.count(kind)} {kind}" for kind in dict.fromkeys(status) if kind != "exposed")
    return f"{title}: {len(panel['exposed'])} of {len(status)} nodes are exposed{names}{f'; {rest}' if rest else ''}."


def _error(value: float | str) -> str:
    return "none" if value == "inf" else f"{float(value):.3g}"

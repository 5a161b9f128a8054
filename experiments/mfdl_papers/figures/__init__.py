"""Published figures by one command: the paper's claim, our value with spread, a verdict, deviations and cost.

In: the name of a figure (`names`) and a `RunScale` (quick or full, where, on which engine). Out: a `Reproduction`,
and its files NAME.json, NAME.png and NAME.svg (NAME-quick.* in quick mode). What is claimed stands in
`PAPER/figures.toml`, how a number becomes a verdict in `verdicts`; quick and full mode differ in seeds, points and
steps, never in that rule.
"""

from __future__ import annotations

from .published_figures import (
    FIGURES,
    PublishedFigure,
    Reproduction,
    RunScale,
    Table,
    named,
    names,
    reproduce,
    reproduce_all,
)
from .verdicts import VERDICTS, Verdict

__all__ = [
    "FIGURES",
    "VERDICTS",
    "PublishedFigure",
    "Reproduction",
    "RunScale",
    "Table",
    "Verdict",
    "named",
    "names",
    "reproduce",
    "reproduce_all",
]


def __dir__() -> list[str]:
    return sorted(__all__)

"""A sweep or a comparison as one page, report.html, and report.json with the losses that were computed for it.

The page has no script and loads nothing: series are shown and hidden by style alone.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar

from ..runs.options import Config, Option

PAGE, DATA = "report.html", "report.json"


@dataclasses.dataclass(frozen=True)
class ReportConfig(Config):
    command: ClassVar[str] = "report"

    largest: Annotated[int, Option(
        "Largest number of nodes times steps for which the privacy losses between all pairs of nodes "
        "are computed (at the default a minute per mechanism, once); 0: never.",
        least=0,
    )] = 5000  # fmt: skip

"""What `mfdl report` is asked."""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar

from ..reporting.options import Config, Option

PAGE, DATA = "report.html", "report.json"


@dataclasses.dataclass(frozen=True)
class ReportConfig(Config):
    """What goes into the page besides the runs."""

    command: ClassVar[str] = "report"

    largest: Annotated[
        int,
        Option(
            "Nodes times steps up to which losses against each single node are computed (a minute a mechanism at the "
            "default; kept for the next call); 0 leaves them out.",
            least=0,
        ),
    ] = 5000

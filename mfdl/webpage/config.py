"""What `mfdl report` is asked."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, ClassVar

from ..progress import Progress
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

    def run(self, folder: Path, out: Path | None = None, *, progress: Progress = "auto") -> Path:
        """Writes the page, and beside it the losses that were computed for it.

        Args: folder: of `mfdl sweep` or `mfdl compare`; out: the page, default report.html in it.
        Returns: the page.
        Raises: InvalidInput: a folder without finished runs, or a place that cannot be written.
        """
        from .page import write  # matplotlib and torch only here

        return write(self, folder, folder / PAGE if out is None else out, progress)

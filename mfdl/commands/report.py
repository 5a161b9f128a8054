"""`mfdl report`: a sweep or a comparison as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..webpage import ReportConfig
from . import terminal
from .terminal import Answer, command


@command(ReportConfig, "File of the page; default report.html in the folder.", metavar="FILE")
def report(
    config: ReportConfig,
    out: Path | None,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of `mfdl sweep` or `mfdl compare`.")],
) -> Answer:
    """Write report.html: figures, tables, guarantees and provenance of a folder of runs, in one page."""
    from ..webpage.page import write_page  # matplotlib and torch only here

    page = write_page(config, folder, out)
    return {"page": str(page)}, lambda: terminal.say([f"Page: {page}"]), 0

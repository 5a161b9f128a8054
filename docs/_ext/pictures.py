"""Pictures of the gallery: every matplotlib Figure that a block of an example makes and gives a name to.

The library returns Figures of their own and never touches pyplot, so there is nothing for the usual scraper to find.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst

SHOWN = "_figures_shown"


def _get_sg_image_scraper() -> Any:
    return scrape


def scrape(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """The Figures of a block as files, and the reStructuredText that shows them."""
    names = block_vars["example_globals"]
    shown = names.setdefault(SHOWN, [])
    written = []
    for value in list(names.values()):
        if isinstance(value, Figure) and not any(value is one for one in shown):
            shown.append(value)
            path = next(block_vars["image_path_iterator"])
            value.savefig(path, dpi=130, bbox_inches="tight", facecolor="white")
            written.append(path)
    return str(figure_rst(written, gallery_conf["src_dir"])) if written else ""

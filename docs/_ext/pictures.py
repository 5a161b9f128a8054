"""Pictures of the gallery: every matplotlib Figure that a block of an example makes and gives a name to.

The library returns Figures of their own and never touches pyplot, so there is nothing for the usual scraper to find.
The thumbnail of an example is its last figure drawn again at the size of a thumbnail, without titles and captions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst

SHOWN = "_figures_shown"
THUMBNAIL_INCHES = 4.0, 2.8
_thumbnails: dict[str, Figure] = {}


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
            _thumbnails[Path(block_vars["src_file"]).stem] = value
    return str(figure_rst(written, gallery_conf["src_dir"])) if written else ""


def draw_thumbnails(app: Any) -> None:
    """Those of the examples that this build has run, in place of shrunken pictures."""
    for name, figure in _thumbnails.items():
        figure.set_size_inches(THUMBNAIL_INCHES)  # the page has its picture already
        figure.set_layout_engine("constrained")
        for text in [*figure.texts, *(title for axes in figure.axes for title in (axes.title, axes._left_title))]:
            text.set_visible(False)
        figure.savefig(
            Path(app.srcdir, "gallery", "images", "thumb", f"sphx_glr_{name}_thumb.png"), dpi=100, facecolor="white"
        )


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", draw_thumbnails, priority=900)  # after the gallery has run its examples
    return {"parallel_read_safe": True}

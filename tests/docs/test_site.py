"""The built site: complete, without a request to anybody, readable at the width of a phone and in the dark.

What needs the site is skipped where `make docs` has not run since the last change; what needs a browser, where
playwright (the `browser` extra) or a chromium (CHROMIUM, or on the path) is missing.
"""

import html.parser
import inspect
import os
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest

import mfdl

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "_build" / "html"
DONE = ROOT / "docs" / "_build" / "done"
LOADS = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("link", "href")}
PAGES = ("index", "start", "concepts", "claims", "gallery/index", "api/mfdl.trust", "api/generated/mfdl.calibrate")


def is_current():
    sources = [*(ROOT / "mfdl").rglob("*.py"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/examples").glob("*.py")]
    return DONE.exists() and DONE.stat().st_mtime >= max(path.stat().st_mtime for path in sources)


pytestmark = pytest.mark.skipif(not is_current(), reason="the site is not built from these sources; `make docs` does")


class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.loads, self.links, self.anchors, self.pictures = [], [], set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.anchors.update(attributes[name] for name in ("id", "name") if attributes.get(name))
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        if tag == "img":
            self.pictures.append(attributes)
        if tag == "link" and attributes.get("rel") not in ("stylesheet", "preload", "modulepreload", "icon"):
            return
        self.loads += [value for name, value in attributes.items() if (tag, name) in LOADS and value]


@pytest.fixture(scope="module")
def site():
    return {path: Page(path) for path in sorted(SITE.rglob("*.html")) if "_static" not in path.parts}


def test_no_page_loads_anything_from_elsewhere(site):
    options = {url for page in site.values() for url in page.loads if urlparse(url).netloc}
    assert not options


def test_every_link_within_the_site_leads_somewhere(site):
    files = {str(path) for path in SITE.rglob("*")}
    anchors = {str(path): page.anchors for path, page in site.items()}
    broken = []
    for path, page in site.items():
        for link in dict.fromkeys(page.links):
            if urlparse(link).scheme or link.startswith("//"):
                continue
            file, anchor = (unquote(part) for part in urldefrag(link))
            target = os.path.normpath(path.parent / file) if file else str(path)
            if target not in files or (anchor and anchor not in anchors.get(target, {anchor})):
                broken.append((str(path.relative_to(SITE)), link))
    assert not broken


def test_every_picture_is_there(site):
    missing = [
        (str(path.relative_to(SITE)), picture.get("src"))
        for path, page in site.items()
        for picture in page.pictures
        if not (path.parent / unquote(picture["src"])).exists()
    ]
    assert not missing


def test_every_public_name_is_described():
    described = (SITE / "genindex.html").read_text(encoding="utf-8")
    public = [name for name in mfdl.__all__ if not name.startswith("_")]
    packages = {name for name in public if inspect.ismodule(getattr(mfdl, name))}
    assert [name for name in public if name not in packages and f"#mfdl.{name}" not in described] == []
    assert [name for name in packages - {"testing"} if not (SITE / "api" / f"mfdl.{name}.html").exists()] == []


def test_the_gallery_has_its_pictures(site):
    gallery = {path: page for path, page in site.items() if path.parent.name == "gallery" and "plot_" in path.name}
    assert len(gallery) >= 8
    assert all(any("sphx_glr" in picture["src"] for picture in page.pictures) for page in gallery.values())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_pages_fit_the_screen_and_ask_for_nothing(browser, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    requested, errors = [], []
    page = context.new_page()
    page.on("request", lambda request: requested.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    for name in PAGES:
        page.goto((SITE / f"{name}.html").as_uri())
        page.wait_for_load_state("load")
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{name} is {wide} pixels wider than a screen of {width}"
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert ([url for url in requested if not url.startswith(("file:", "data:"))], errors) == ([], [])
    context.close()

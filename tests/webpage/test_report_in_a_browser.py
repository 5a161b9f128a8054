"""The page of `mfdl report` in Chromium: whole without a request, readable on a phone and in the dark.

Skipped where playwright (the `browser` extra) or a chromium (CHROMIUM, or on the path) is missing.
"""

import pytest
from folders import made_up

from mfdl.webpage import ReportConfig
from mfdl.webpage.page import write_page

# of every text that is shown but those in cells: its contrast with the first opaque ground below it; WCAG 2
CONTRAST = """() => {
  const of = text => {
    const [r, g, b, a] = text.match(/[\\d.]+/g).map(Number);
    const line = v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    return [0.2126 * line(r) + 0.7152 * line(g) + 0.0722 * line(b), a === undefined ? 1 : a];
  };
  const ground = e => {
    const [value, alpha] = e ? of(getComputedStyle(e).backgroundColor) : [1, 1];
    return alpha === 1 ? value : ground(e.parentElement);
  };
  const every = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
    if (!text || element.matches('title, [style^="fill:#"]') || !element.checkVisibility()) continue;
    const style = getComputedStyle(element), drawn = element instanceof SVGElement ? style.fill : style.color;
    const [low, high] = [of(drawn)[0], ground(element)].sort((a, b) => a - b);
    every.push([text, drawn, (high + 0.05) / (low + 0.05)]);
  }
  return every;
}"""


# how many names stand beside lines; words that are outside of their drawing, and names over one another
WORDS = """() => {
    const bad = [];
    let count = 0;
    for (const svg of document.querySelectorAll('figure svg')) {
      const room = svg.getBoundingClientRect(), names = [];
      for (const text of svg.querySelectorAll('text')) {
        const box = text.getBoundingClientRect();
        if (box.width && (box.left < room.left - 1 || box.right > room.right + 1 || box.top < room.top - 1
            || box.bottom > room.bottom + 1)) bad.push(['outside', svg.ariaLabel, text.textContent]);
        if (box.width && text.matches('.name *, .level-name *')) names.push([box, text.textContent]);
      }
      count += names.length;
      for (const [a, name] of names) for (const [b, other] of names)
        if (name < other && a.top + 3 < b.bottom - 3 && b.top + 3 < a.bottom - 3) bad.push(['over', name, other]);
    }
    return [count, bad];
  }"""


@pytest.fixture
def opened(browser):
    """A function that opens a page, and at the end nothing was said or asked for by any."""
    contexts, requested, errors = [], [], []

    def open_page(path, width=1400, scheme="light", **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requested.append(request.url))
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_load_state("load")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert ([url for url in requested if not url.startswith(("file:", "data:"))], errors) == ([], [])


def unfold(page):
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_it_fits_the_screen_and_can_be_read(opened, folder, width, scheme):
    page = opened(folder / "report.html", width, scheme)
    for _ in range(2):
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{wide} pixels wider than a screen of {width}"
        contrasts = page.evaluate(CONTRAST)
        assert len(contrasts) > 100
        assert [text for text in contrasts if text[2] < 4.5] == []
        unfold(page)  # and once more with everything unfolded
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, dark.removeprefix("rgb(").removesuffix(")").split(","))) < 200) == (scheme == "dark")


EVIL = '"><script>document.title = "run"</script><img src="https://example.org/x" onerror="document.title = 1">'


@pytest.mark.parametrize("named", ["mechanisms", "evil"])
def test_words_of_drawings_stay_inside_and_apart_whatever_the_names(opened, folder, tmp_path, named):
    path = folder / "report.html"
    if named == "evil":
        changes = [{"label": f"{EVIL}{i}", "final_test_loss": 1.0 + 1e-3 * i} for i in range(9)]
        made_up(tmp_path, [{**change, **dict.fromkeys(("trust", "graph", "guarantee"), EVIL)} for change in changes])
        path = write_page(ReportConfig(), tmp_path, progress=False)
    page = opened(path, 390)
    unfold(page)
    page.evaluate("document.querySelectorAll('input').forEach(each => each.checked = true)")
    names, bad = page.evaluate(WORDS)
    assert names > 10
    assert bad == []
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert page.locator("script, img").count() == 0
    assert page.title().endswith("path:n=4" if named == "mechanisms" else EVIL)


def focused(page):
    return page.evaluate("""() => {
      const e = document.activeElement;
      const box = e.getBoundingClientRect();
      return [e.tagName, e.value ?? e.textContent.slice(0, 40), box.width > 0, getComputedStyle(e).outlineStyle];
    }""")


def test_every_control_is_reached_by_the_keyboard(opened, folder):
    page = opened(folder / "report.html")
    unfold(page)
    expected = page.evaluate("""() => {
      const every = document.querySelectorAll('a[href], input, summary, [tabindex="0"]');
      const all = [...every].filter(e => e.checkVisibility());
      const radios = new Set(all.filter(e => e.type === 'radio').map(e => e.name));
      return all.filter(e => e.type !== 'radio').length + radios.size;
    }""")
    reached = []
    for _ in range(expected):
        page.keyboard.press("Tab")
        reached.append(focused(page))
    assert all(tag in {"A", "INPUT", "SUMMARY", "DIV", "PRE"} for tag, *_ in reached)
    assert all(visible and outline != "none" for *_, visible, outline in reached)
    page.keyboard.press("Tab")
    assert focused(page)[0] in {"BODY", "A"}  # the end of the page, or its beginning


def test_series_metrics_and_folds_follow_the_keyboard(opened, folder):
    page = opened(folder / "report.html")
    section = page.locator("#p1-tradeoff")
    box = section.locator("input[type=checkbox]").nth(1)
    line = section.locator(f"figure .s{box.get_attribute('value')}.line").first
    assert box.is_checked()
    assert line.is_visible()
    box.focus()
    page.keyboard.press("Space")
    assert not line.is_visible()
    page.keyboard.press("Space")
    assert line.is_visible()
    assert section.locator("figure.m0").first.is_visible()
    assert not section.locator("figure.m1").first.is_visible()
    section.locator("input[type=radio]").first.focus()
    page.keyboard.press("ArrowRight")
    assert not section.locator("figure.m0").first.is_visible()
    assert section.locator("figure.m1").first.is_visible()
    fold = page.locator("#p1-time details").first
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    assert fold.locator("figure").first.is_visible()

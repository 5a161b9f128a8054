"""Docstrings on the pages of the reference: which names are links, and what napoleon must not tear apart."""

import sys
from pathlib import Path

import pytest
from vocabulary import each

import mfdl

pytest.importorskip("sphinx", reason="the `docs` extra")
sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "_ext"))

import api_pages
import docstrings


@pytest.fixture(scope="module", autouse=True)
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api")
    api_pages.write(folder)
    return folder


def link(label, name):
    value = mfdl
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return docstrings.target(label, name, value)


@each(
    "label, name, full",
    ("save", "mfdl.Mechanism.load", "mfdl.Mechanism.save"),
    ("load", "mfdl.graphs.load_sparse", "mfdl.graphs.load"),
    ("partition.parse", "mfdl.tasks.from_module", "mfdl.partition.parse"),
    ("Task", "mfdl.tasks.from_module", "mfdl.tasks.Task"),
    ("NoiseObjective.estimated", "mfdl.replay", "mfdl.objective.NoiseObjective.estimated"),
    ("factorization.save", "mfdl.replay", "mfdl.factorization.save"),
    ("calibrate", "mfdl.trust.LDP", "mfdl.calibrate"),
    ("load", "mfdl.Cyclic", None),  # of whom?
    ("sweep", "mfdl.pairwise", "mfdl.sweep"),
    ("trust", "mfdl.account", None),  # an argument
    ("nothing_such", "mfdl.replay", None),
)
def test_a_name_links_to_what_the_documented_object_means_by_it(label, name, full):
    assert link(label, name) == full


def process(kind, *lines):
    """As the pages have it, with napoleon between the two."""
    from sphinx.ext.napoleon import Config, GoogleDocstring

    text = list(lines)
    docstrings._process(None, kind, "mfdl.Mechanism", mfdl.Mechanism, None, text)
    text = GoogleDocstring(text, Config(napoleon_use_param=False), what=kind, name="mfdl.Mechanism").lines()
    docstrings._with_colons(None, kind, "mfdl.Mechanism", mfdl.Mechanism, None, text)
    return "\n".join(text).strip()


def test_the_first_line_of_a_property_is_no_type():
    line = "mu itself: the loss of the worst victim."
    assert process("property", line, "") == line
    assert process("property", "`Mechanism`: its own page.", "").endswith(": its own page.")


def test_arguments_that_share_a_sentence_stay_together():
    text = process("function", "Loads.", "", "Args:", "    first, second: numbers.", "")
    assert "**first, second** -- numbers." in text


def test_a_section_in_one_line_may_go_on_in_the_next():
    text = process("function", "Loads.", "", "Source: a paper, Theorem 5; the rest of", "another.", "Cost: none.", "")
    source = "**Source:** a paper, Theorem 5; the rest of another."
    assert [line for line in text.splitlines() if line][1:] == [source, "**Cost:** none."]


def test_addresses_stay_text():
    from docutils.core import publish_doctree

    paper = "https://arxiv.org/abs/2510.17480"
    text = process("function", f'A `.npy` file or `name`, "NAME@WEIGHTS", at tcp://host:8786, see {paper}.')
    assert [each["refuri"] for each in publish_doctree(text).findall() if each.tagname == "reference"] == [paper]


def test_pages_that_a_text_names_are_links():
    assert process("function", "As `docs/privacy.md` and docs/sampling.md#poisson, say.") == (
        "As :doc:`/privacy` and :doc:`/sampling`, say."
    )

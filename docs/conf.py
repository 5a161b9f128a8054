"""The documentation site: `make docs`. What it takes beyond Sphinx stands in `_ext/`, one idea a file."""

import os
import re
import sys
from pathlib import Path

import mfdl

os.environ["MFDL_PROGRESS"] = "0"  # pages and notebooks show what they print, not how long it took

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "mfdl"
author = "The mfdl developers"
copyright = f"2026, {author}"
version = release = mfdl.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "myst_nb",
    "sphinx_gallery.gen_gallery",
    "api_pages",
    "claims_table",
    "commands",
    "docstrings",
    "mechanism_table",
    "native_math",
    "pictures",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "_ext", "examples", "**/.ipynb_checkpoints", "gallery/*.ipynb", "gallery/*.py"]
nitpicky = True
smartquotes = False  # two dashes are an option, not a dash
nitpick_ignore_regex = [("py:.*", ".*")]  # types in signatures name modules; every other reference must resolve
suppress_warnings = [
    "config.cache",  # the scraper of pictures is a function
    "ref.python",  # a name that several classes have, in the description of one of them
]

# Pages
# generated pages have the first ending
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb", ".ipynb": "myst-nb"}
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
myst_dmath_double_inline = True
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_excludepatterns = ["*.rst"]
html_math_renderer = "mathml"

# Reference
autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_param = False  # arguments that share a sentence stay together
napoleon_attr_annotations = False
napoleon_custom_sections = ["Guarantees", "Cost", "Source", "Claims", "Errata", "Laws", "Memory", "Validity"]
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"

# Gallery
sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "download_all_examples": False,
    "show_memory": False,
    "capture_repr": (),  # what an example says, it prints
    "write_computation_times": False,  # a page that loads scripts from elsewhere
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "min_reported_time": 5,
    "image_scrapers": ("pictures",),
    "default_thumb_file": str(HERE / "images" / "workloads.png"),
}

# Looks
MEASURED = ("which_mechanism_measured", "optimal_noise_measured", "measured")
WIDE = ("claims", "comparison", "limits", "sources", "which_mechanism", *MEASURED)  # pages of wide tables
html_theme = "pydata_sphinx_theme"
html_title = f"mfdl {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "mfdl"},
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_nav_level": 1,
    "navigation_depth": 2,
    "show_toc_level": 2,
    "secondary_sidebar_items": {
        "**": ["page-toc", "sg_download_links"],
        **{page: [] for page in WIDE},
    },
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": [], "start": [], "concepts": []}

# Pages outside this folder, as links of the repository name them, and the pages that show them here
ELSEWHERE = {
    "../experiments/README.md": "experiments.md",
    "../CHANGELOG.md": "changelog.md",
    "../CONTRIBUTING.md": "contributing.md",
}


def _mend_links(app, docname, source):
    for outside, page in ELSEWHERE.items():
        source[0] = source[0].replace(f"]({outside}", f"]({page}")
    source[0] = _titled(source[0])


def _titled(text):
    """Links that show the name of a file show the title of its page."""
    return re.sub(r"\[(?:docs/)?(\w+\.md)\]\(\1\)", r"[](\1)", text)


def _mend_included_links(app, relative_path, parent, content):
    content[0] = re.sub(r"\]\((?:\.\./)?docs/", "](", content[0])
    content[0] = _titled(content[0].replace("](experiments/README.md", "](experiments.md"))


def setup(app):
    app.connect("source-read", _mend_links)
    app.connect("include-read", _mend_included_links)

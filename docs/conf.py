"""Settings of the documentation: ``sphinx-build -W --keep-going -b html docs docs/_build/html``."""

import os
import re
import sys
from typing import Any

import matplotlib
import torch
from docutils import nodes

sys.path.insert(0, os.path.dirname(__file__))  # the modules beside this one

from class_pages import arrange, shown_methods
from defaults_tables import DefaultsTable
from draw_benchmarks import draw as draw_benchmarks
from draw_cheat_sheet import draw as draw_cheat_sheet
from figure_tables import FigureTable
from guide_pages import PAGES
from paper_tables import ImmerAugerino, ImmerCells, ImmerScores

import skbayes_sym

matplotlib.use("agg")
torch.set_num_threads(1)  # the examples are small: more threads only wait for each other

project = "skbayes_sym"
author = "The skbayes_sym developers"
copyright = author
version = release = skbayes_sym.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.doctest",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",  # links to the source
    "sphinx-mathjax-offline",  # formulas without a network
    "numpydoc",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "gallery/**/*.ipynb", "gallery/**/*.py", "the_step.rst"]

# A name in single backticks becomes a link where the name is known, and code elsewhere.
default_role = "py:obj"
# Docstrings write the order of a group as |G|, which reStructuredText takes for a substitution.
rst_prolog = r"""
.. |G| replace:: \|G\|
"""

autosummary_generate = True
autosummary_context = {
    "guide_pages": PAGES,
    "shown_methods": shown_methods,
}
suppress_warnings = ["config.cache"]  # functions in that context can't be pickled
autodoc_typehints = "none"  # the docstrings give types with shapes and units
numpydoc_show_class_members = False  # the templates list the members
numpydoc_class_members_toctree = False
toc_object_entries_show_parents = "hide"

# Snippets in the pages run with `sphinx-build -b doctest`; docstrings are pytest's to check.
doctest_test_doctest_blocks = ""
# Snippets with other packages are skipped where these aren't installed.
doctest_global_setup = """
from importlib.util import find_spec

def missing(*names):
    return any(find_spec(name) is None for name in names)
"""

# Others' names are links where the pages are published; a build without a network leaves them code.
intersphinx_mapping = {}
if os.environ.get("READTHEDOCS"):
    intersphinx_mapping = {
        "sklearn": ("https://scikit-learn.org/stable", None),
        "numpy": ("https://numpy.org/doc/stable", None),
    }

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "backreferences_dir": "gallery/backreferences",  # "Examples that use it" on the pages of names
    "doc_module": ("skbayes_sym",),
    "within_subsection_order": "gallery_order.Story",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"(?:^|/)(?!plot_)\w+\.py$",  # long experiments, and what they import
    "abort_on_example_error": False,
    "only_warn_on_example_error": False,
    "remove_config_comments": True,
    "capture_repr": (),  # what is printed and drawn; no addresses of legends
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "download_all_examples": False,
    "plot_gallery": "True",
}

html_theme = "pydata_sphinx_theme"
html_title = f"skbayes_sym {release}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_js_files = ["copy.js"]
html_show_sourcelink = False
html_use_index = False  # the API's pages list every name
html_sidebars: dict[str, list[str]] = {
    "install": [],
    "contributing": [],
    "changelog": [],
    "citing": [],
}
html_theme_options = {
    "logo": {"text": "skbayes_sym"},
    "navbar_end": ["theme-switcher"],
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
}

# Leading batch axes in shapes, (*B, d), which reStructuredText takes for emphasis.
_STARRED_AXIS = re.compile(r"(?<=[(\s])\*(?=[A-Za-z]\w*[,)])")
# Long words of a table or a title, outside of tags and formulas.
_NAME = re.compile(r"(?<=>)[\w/.]{9,}(?=[<(])")
# Links into scikit-learn's own guide and its versions, in docstrings inherited from it.
_FOREIGN_LINK = re.compile(r":(?:ref|term):`([^`<]*[^`<\s])(?:\s*<[^>`]*>)?`")
_FOREIGN_VERSION = re.compile(r"\.\. versionadded:: \S+")


def mend_docstring(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Make plain-text docstrings valid reStructuredText, and drop references to other sites."""
    pieces = "\n".join(lines).split("``")
    pieces[::2] = [
        _FOREIGN_VERSION.sub("", _FOREIGN_LINK.sub(r"\1", _STARRED_AXIS.sub(r"\*", piece)))
        for piece in pieces[::2]
    ]
    lines[:] = "``".join(pieces).split("\n")


def without_code(app: Any, doctree: nodes.document) -> None:
    """Leave text, tables and pictures of a paper's example; its code is the file to download."""
    if app.env.docname.startswith("gallery/papers/"):
        for block in list(doctree.findall(nodes.literal_block)):
            if block.get("language") == "Python":
                block.parent.remove(block)


def mend_page(app: Any, page: str, template: str, context: dict[str, Any], _: Any) -> None:
    """Let long names break between their words, and source code link to what is described.

    ``viewcode`` takes all names of a file to be documented under one module; those of another lose
    the link back from their source.
    """
    body = context.get("body", "")
    if page.startswith("_modules/skbayes_sym/"):
        documented = app.env.domaindata["py"]["objects"]
        link = r'<a class="viewcode-back" href="[^"#]*#([^"]+)">\[docs\]</a>'
        body = re.sub(link, lambda m: m[0] if m[1] in documented else "", body)
    elif body:
        cell = r"(?s)<(h1|td|th)\b.*?</\1>"
        context["body"] = re.sub(cell, lambda m: _NAME.sub(_with_breaks, m[0]), body)
        return
    context["body"] = body


def _with_breaks(name: re.Match[str]) -> str:
    """A name with places where a line may end."""
    return re.sub(r"(?<=[/_.])(?=\w)|(?<=[a-z])(?=[A-Z])", "<wbr>", name[0])


def setup(app: Any) -> None:
    draw_benchmarks()
    draw_cheat_sheet()
    # Before numpydoc, which listens with the default priority of 500.
    app.connect("autodoc-process-docstring", mend_docstring, priority=400)
    app.connect("doctree-read", arrange)
    app.connect("doctree-read", without_code)
    app.connect("html-page-context", mend_page)
    app.add_directive("defaults", DefaultsTable)
    app.add_directive("figures", FigureTable)
    app.add_directive("immer-cells", ImmerCells)
    app.add_directive("immer-augerino", ImmerAugerino)
    app.add_directive("immer-scores", ImmerScores)

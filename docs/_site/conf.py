"""The settings of Sphinx. Sphinx reads the copy of the pages that `pages.write_copy` writes."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from pygments.lexers.data import JsonLexer  # noqa: E402 - needs the path that the line above adds
from sphinx.application import Sphinx  # noqa: E402

from docs._site import docstrings, pages  # noqa: E402

(version,) = re.findall(r'^__version__ = "(.+)"$', (PROJECT / "src/aswarm/__init__.py").read_text(), re.MULTILINE)
project = "aswarm"
copyright = "the authors of aswarm, MIT licence"  # noqa: A001 - Sphinx's name
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.linkcode", "sphinx_copybutton"]
myst_heading_anchors = 6
myst_heading_slug_func = "docs._site.pages.slug"
copybutton_exclude = ".linenos, .gp, .go"  # the prompt of a console and its output
suppress_warnings = ["misc.highlighting_failure"]  # JSON that a page cuts short with "..."

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False
add_module_names = False
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"aswarm {version}"
html_static_path = ["static"]
html_favicon = "static/icon.svg"
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_copy_source = False
myst_url_schemes = ["http", "https", "mailto", pages.CHECKOUT.removesuffix(":")]
html_use_index = False
smartquotes = False  # quotes in the texts belong to values
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f6f54", "color-brand-content": "#1f6f54"},
    "dark_css_variables": {"color-brand-primary": "#6fcfa8", "color-brand-content": "#6fcfa8"},
    "top_of_page_buttons": ["view", "edit"],
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"


def linkcode_resolve(_: str, info: dict[str, str]) -> str | None:
    """Return the address of the source of a name: its file in the checkout."""
    place = docstrings.place_of(info["module"], info["fullname"])
    return place and f"{pages.CHECKOUT}{place}"


def link_to_files(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Link a page to its Markdown copy, and to its source file for editing."""
    sources = {place: source for source, place in pages.site_pages().items()}
    if source := sources.get(f"{page}.md"):
        copy = f"{page.rpartition('/')[2]}.md"
        context["metatags"] = context.get("metatags", "") + f'<link rel="alternate" type="text/markdown" href="{copy}">'
        context["theme_source_view_link"] = copy
        context["theme_source_edit_link"] = pages.in_checkout(page, source.relative_to(PROJECT).as_posix())


def setup(app: Sphinx) -> None:
    """Connect the handlers for docstrings and pages, and add the language `jsonl`."""
    app.connect("html-page-context", link_to_files)
    app.connect("builder-inited", docstrings.prepare_analyzers)
    app.connect("autodoc-process-docstring", docstrings.as_rest, priority=400)  # before napoleon, which has 500
    app.connect("autodoc-process-docstring", docstrings.without_sections, priority=600)  # after it
    app.connect("autodoc-process-bases", docstrings.public_bases)
    app.connect("autodoc-process-signature", docstrings.signature)
    app.connect("doctree-resolved", docstrings.link_names)
    app.add_lexer("jsonl", JsonLexer)

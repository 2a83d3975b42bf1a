"""What Sphinx is told. The pages that it reads are the copy that `pages.write_copy` has written."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers.data import JsonLexer
from pygments.lexers.javascript import JavascriptLexer
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "docs"))

from _site import reference  # noqa: E402 - the path is that of the line above

# The first word of the heading of an entry, and what Sphinx calls it.
KINDS = {"class": "class", "protocol": "class", "exception": "exception", "function": "function", "type": "type"}

(version,) = re.findall(r'^__version__ = "(.+)"$', (PROJECT / "src/aswarm/__init__.py").read_text(), re.MULTILINE)
release = version
project = "aswarm"
copyright = "the authors of aswarm, MIT licence"  # noqa: A001 - Sphinx's name
language = "en"
extensions = ["myst_parser"]
myst_heading_anchors = 6
myst_heading_slug_func = "_site.reference.slug"
# Output that a page cuts short with "..." is no JSON.
suppress_warnings = ["misc.highlighting_failure"]
html_theme = "furo"
html_title = f"aswarm {version}"
html_static_path = ["static"]
html_favicon = "static/icon.svg"
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = True
html_use_index = False
smartquotes = False  # quotes stand around values
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f6f54", "color-brand-content": "#1f6f54"},
    "dark_css_variables": {"color-brand-primary": "#6fcfa8", "color-brand-content": "#6fcfa8"},
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"


def name_copy(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Tell programs where the Markdown copy of a page is."""
    if tree is not None:  # the page of the search has none
        copy = f'<link rel="alternate" type="text/markdown" href="{page.rpartition("/")[2]}.md">'
        context["metatags"] = context.get("metatags", "") + copy


def note_names(app: Sphinx, doctree: nodes.document) -> None:
    """Tell the search, and other projects (intersphinx), where the entry of each public name is."""
    page = reference.FOLDER.parent / f"{app.env.docname}.md"
    names = {anchor: name for name, (home, anchor) in reference.places().items() if home == page}
    for section in doctree.findall(nodes.section) if page.parent == reference.FOLDER else ():
        title = section[0].astext()
        if name := names.get(reference.slug(title)):
            app.env.domains.python_domain.note_object(
                name, KINDS.get(title.partition(" ")[0], "attribute"), section["ids"][0]
            )


def setup(app: Sphinx) -> None:
    """Languages that Pygments does not know by these names, and the copies."""
    app.connect("html-page-context", name_copy)
    app.connect("doctree-read", note_names)
    app.add_lexer("jsonl", JsonLexer)
    app.add_lexer("jsx", JavascriptLexer)
    app.add_lexer("mermaid", TextLexer)

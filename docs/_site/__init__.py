"""The documentation site: from the Markdown pages of the project to HTML, with `python -m docs._site`.

Sphinx makes the HTML, the reference and the search. This package adds the pages outside of `docs`, the code of the examples,
the sidebar, copies for coding assistants, and checks. It works on a copy: the pages stay plain Markdown.
"""

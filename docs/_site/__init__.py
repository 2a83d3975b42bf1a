"""The documentation site: from the Markdown pages of the project to HTML, with `python -m _site` in `docs`.

Decides which pages there are, what is generated from the code, and what makes a build fail. The pages stay plain Markdown,
which any forge shows; what only a site has (navigation, links to the reference, copies for coding assistants) is added
to a copy of them. It never changes a page, except for the blocks between `<!-- made: ... -->` and `<!-- end -->`.
"""

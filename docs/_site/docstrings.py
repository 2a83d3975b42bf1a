"""Handlers for Sphinx: the docstrings of the project are Markdown, and their inline code names other entries."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.nodes import make_refnode

from . import pages, reference

_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_LINK = re.compile(r"\[([^\]]+)\]\((https?:[^)\s]+)\)")
_UNPACKED = re.compile(r"\*\*\w+: (?:~?typing(?:_extensions)?\.)?Unpack\[[^\]]*\]")


def as_rest(_app: Sphinx, what: str, name: str, value: Any, _options: Any, lines: list[str]) -> None:
    """Turn the Markdown of a docstring into reStructuredText: inline code, links, and indented blocks of code."""
    text = "\n".join(lines)
    if what == "data":
        text = reference.definitions()[name.rpartition(".")[2]][2]
    if what == "property":
        text = inspect.getdoc(value) or ""
    if what in ("function", "method") and (keywords := _keywords_of(value)):
        # A TypedDict has no reference to its bases.
        near = [kind for kind in vars(sys.modules[keywords.__module__]).values() if hasattr(kind, "__total__")]
        bases = [kind for kind in near if kind.__annotations__.keys() <= keywords.__annotations__.keys()]
        text = "\n\n".join([text, *((inspect.getdoc(kind) or "").partition("\n\n")[2] for kind in bases)])
    text = _LINK.sub(r"`\1 <\2>`__", _CODE.sub(r"``\1``", text))
    text = re.sub(r"(?<=``)(?=s\b)", r"\\ ", text)  # a plural: `Item`s
    lines[:] = [line for part in re.split(r"\n\n(?=\S)", text) for line in (*_with_directive(part), "")]


def without_sections(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Restore the docstrings of aliases and properties: napoleon treats the words before a colon as a type."""
    if what in ("data", "property"):
        as_rest(app, what, name, value, options, lines)


def public_bases(_app: Sphinx, _name: str, value: type, _options: Any, bases: list[type]) -> None:
    """Show the public base classes of a class, without the private classes between them."""
    public = [base for base in value.__mro__[1:] if base in reference.public_classes()]
    bases[:] = [base for base in public if not any(base in other.__mro__[1:] for other in public)]


def _with_directive(part: str) -> Iterator[str]:
    """Yield the lines of a paragraph and of the indented block below it.

    An indented block after an empty line is code; directly below a line, it is a list.
    """
    words, empty, code = part.partition("\n\n    ")
    yield from words.split("\n")
    if empty:
        yield from ("", ".. code-block:: python", "", *f"    {code}".split("\n"))


# --- signatures -------------------------------------------------------------------------------------------------------


def prepare_analyzers(_app: Sphinx) -> None:
    """Let autodoc show members in the order of the source, and signatures without the overloads for type checkers."""
    for path in sorted((reference.SOURCE / "aswarm").rglob("*.py")):
        if "@overload" in path.read_text(encoding="utf-8"):
            module = ".".join(path.relative_to(reference.SOURCE).with_suffix("").parts).removesuffix(".__init__")
            analyzer = ModuleAnalyzer.for_module(module)  # Sphinx keeps it
            analyzer.analyze()
            analyzer.overloads.clear()
    for module, names in reference.modules().items():  # the modules export the names, but do not define them
        analyzer = ModuleAnalyzer.for_module(module)
        analyzer.analyze()
        for name, value in [(name, reference.value_of(module, name)) for name in names]:
            order = reference.members(value) if isinstance(value, type) else []
            analyzer.tagorder.update({f"{name}.{member}": number for number, member in enumerate(order)})


def signature(
    _app: Sphinx, what: str, _name: str, value: Any, _options: Any, shown: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Show the keywords of `**keywords: Unpack[...]`, and no signature for a class that users do not create."""
    if what in ("class", "exception"):
        shown, returns, value = (shown if _is_made_by_users(value) else ""), None, value.__init__
    if shown and (keywords := _keywords_of(value)):
        names = ", ".join(f"{key}=..." for key in keywords.__annotations__)
        shown = _UNPACKED.sub(names, shown)
    return shown, returns


def _keywords_of(value: Any) -> type | None:
    """Return the TypedDict of `**keywords: Unpack[...]`."""
    function = inspect.unwrap(getattr(value, "__func__", value))
    hints = getattr(function, "__annotations__", {}).values()
    found = [hint.removeprefix("Unpack[").rstrip("]") for hint in map(str, hints) if hint.startswith("Unpack[")]
    return function.__globals__[found[0]] if found else None


def _is_made_by_users(kind: type) -> bool:
    """Return whether users can create the class: no argument has a private class of the library as its type."""
    if getattr(kind, "_is_protocol", False) or issubclass(kind, dict):
        return False
    maker = kind.__init__
    names = re.findall(r"\b[A-Z_]\w+", " ".join(map(str, getattr(maker, "__annotations__", {}).values())))
    scope = vars(sys.modules[maker.__module__]) if isinstance(maker, FunctionType) else {}
    types = [scope[name] for name in names if isinstance(scope.get(name), type)]
    public = reference.public_classes()
    return all(
        each.__module__.partition(".")[0] != "aswarm" or each in public or issubclass(each, dict) for each in types
    )


def place_of(module: str, full_name: str) -> str | None:
    """Return the file and the line that define a name of a module, for example `src/aswarm/_swarm.py#L40`."""
    value: Any = sys.modules.get(module)
    for name in full_name.split("."):
        value = inspect.getattr_static(value, name, None)
    function = inspect.unwrap(getattr(value, "fget", None) or getattr(value, "__func__", None) or value)
    if isinstance(function, FunctionType) and function.__name__ == full_name.rpartition(".")[2]:
        file, line = function.__code__.co_filename, function.__code__.co_firstlineno
    elif full_name in reference.definitions():
        file, line = reference.definitions()[full_name][0].as_posix(), reference.definitions()[full_name][1]
    else:
        return None
    return f"src/aswarm/{file.rpartition('/aswarm/')[2]}#L{line}"


# --- links ------------------------------------------------------------------------------------------------------------


def link_names(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Link the first mention of each public name, as inline code of a page or of a docstring, to its entry."""
    objects = app.env.domains.python_domain.objects
    folder, _, name = page.rpartition("/")
    module = reference.module_of(reference.FOLDER / name) if folder == "reference" else "aswarm"
    seen: set[str] = set()
    for literal in [each for each in tree.findall(nodes.literal) if isinstance(each.parent, nodes.TextElement)]:
        name = literal.astext().partition("(")[0]
        full = _full_name(name, module, objects)
        if full is None or full in seen or isinstance(literal.parent, nodes.reference | nodes.title):
            continue
        seen.add(full)
        entry = objects[full]
        link = make_refnode(app.builder, page, entry.docname, entry.node_id, literal.deepcopy(), full)
        literal.replace_self(link)
    for link in tree.findall(nodes.reference):
        if (address := link.get("refuri", "")).startswith(pages.CHECKOUT):
            link["refuri"] = pages.in_checkout(page, address)


def _full_name(name: str, module: str, objects: Any) -> str | None:
    """Return the entry of a name: first in the module, then in `aswarm`, then a module, then the only entry elsewhere."""
    last = name.rpartition(".")[2]
    if not (("." in name or last[:1].isupper()) and re.fullmatch(r"[\w.]+", name)) or last.isupper():
        return None
    for full in (f"{module}.{name}", f"aswarm.{name}", name):
        if full in objects:
            return full
    elsewhere = [each for each in objects if each.endswith(f".{name}") and objects[each].objtype != "data"]
    return elsewhere[0] if len(elsewhere) == 1 else None

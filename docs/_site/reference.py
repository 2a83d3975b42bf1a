"""The reference: which page describes which public name, and the directives by which Sphinx's autodoc writes the entries.

A page of `docs/reference` describes one module. `<!-- names: Agent Result -->` is replaced by the entries of these
names, in this order, and `<!-- names -->` by the entries of all names of the module. `<!-- module -->` is replaced by
the docstring of the module. If another page describes a name, the entry is a line with a link to that page.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import textwrap
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "reference"
SOURCE = FOLDER.parents[1] / "src"
MARK = re.compile(r"^<!-- names(?:: (?P<names>[^>]*?))? -->$", re.MULTILINE)
CODE = re.compile(r"(?<=\n\n)(?: {4}.*\n|\n(?= {4}))+")  # indented blocks of a docstring
SINCE = "*Since version 0.1.0. An entry that came later names its version.*"
# Classes that only aswarm makes: their constructors are no promise, and may change in any version.
MADE_BY_ASWARM = (
    "Batch",
    "ClassicStream",
    "ConversationStream",
    "CurrentCall",
    "EventStream",
    "InnerCalls",
    "InnerRun",
    "RunInfo",
    "SyncClassicStream",
    "SyncEventStream",
    "ToolCall",
)
METHODS = (FunctionType, property, classmethod, staticmethod, functools.cached_property)


@cache
def modules() -> dict[str, tuple[str, ...]]:
    """Return the names of each public module. Modules are in the order of the index of the reference; others come last."""
    names = {}
    patterns = ("[a-z]*.py", "[a-z]*/__init__.py", "[a-z]*/[a-z]*/__init__.py")
    for path in sorted(path for pattern in patterns for path in (SOURCE / "aswarm").glob(pattern)):
        file = path.parent if path.stem == "__init__" else path.with_suffix("")
        names[".".join(file.relative_to(SOURCE).parts)] = _names_of(path)
    names["aswarm"] = _names_of(SOURCE / "aswarm/__init__.py")
    del names["aswarm.cli"]  # it has commands, but no names for programs
    listed = re.findall(r"\[`(aswarm[\w.]*)`\]\(", (FOLDER / "index.md").read_text(encoding="utf-8"))
    return {name: names[name] for name in [*listed, *names] if names[name]}


def _names_of(path: Path) -> tuple[str, ...]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return tuple(ast.literal_eval(node.value))
    return ()


def page_of(module: str) -> Path:
    """Return the page of a module: `reference/serve.md` for `aswarm.serve`."""
    return FOLDER / f"{module.removeprefix('aswarm.')}.md"


def module_of(page: Path) -> str:
    """Return the module of a page."""
    return "aswarm" if page.stem == "aswarm" else f"aswarm.{page.stem}"


def is_name(page: Path, fragment: str) -> bool:
    """Return whether a fragment of a link is a public name with an entry on the page: `AsyncSwarm.run` of `aswarm.md`."""
    names = modules().get(module_of(page), ()) if page.parent == FOLDER else ()
    return fragment.partition(".")[0] in names


def missing_names() -> list[str]:
    """Return the public names that no page or several pages describe, and listed names that do not exist."""
    wrong = []
    for module, names in modules().items():
        page = page_of(module)
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        listed = [name for match in MARK.finditer(text) for name in (match["names"] or " ".join(names)).split()]
        wrong += [f"{module}.{name}" for name in {*listed, *names} if listed.count(name) != 1 or name not in names]
    return sorted(wrong)


def expand(page: Path, text: str) -> str:
    """Return the page with the directives of autodoc instead of its comments."""
    module = module_of(page)
    if page.parent != FOLDER or module not in modules():
        return text
    text = re.sub(r"\A(# .*\n)", rf"\1\n{SINCE}\n", text)
    about = inspect.cleandoc(importlib.import_module(module).__doc__ or "") + "\n"
    about = CODE.sub(lambda match: f"```python\n{textwrap.dedent(match[0])}```\n", about)
    text = text.replace("<!-- module -->", f"{about}\n{_fenced([f'.. py:module:: {module}'])}")
    return MARK.sub(lambda match: _entries(module, (match["names"] or "").split() or modules()[module]), text)


def _entries(module: str, names: list[str] | tuple[str, ...]) -> str:
    lines = [f".. py:currentmodule:: {module}"]
    for name in names:
        value, home = value_of(module, name), home_of(module, name)
        if home != module:
            where = f"The same as :py:obj:`{home}.{name}`." if home else f"Of the package ``{_package(value)}``."
            lines += ["", f".. py:data:: {name}", "", f"   {where}"]
        elif isinstance(value, type):
            kind = "exception" if issubclass(value, BaseException) else "class"
            arguments = "()" if issubclass(value, dict) else ""  # autodoc fails for the signature of a TypedDict
            lines += ["", f".. auto{kind}:: {name}{arguments}", *_options(value)]
        else:
            kind = "function" if getattr(value, "__name__", "") == name else "data"
            lines += ["", f".. auto{kind}:: {name}"]
    return _fenced(lines)


def _options(value: type) -> list[str]:
    if issubclass(value, dict):  # the keys of a TypedDict, which have no docstrings
        return ["   :members:", "   :undoc-members:"]
    listed = [f"   :members: {', '.join(each)}" for each in [members(value)] if each]
    return [*listed, *(["   :show-inheritance:"] if public_classes().intersection(value.__mro__[1:]) else [])]


def _fenced(lines: list[str]) -> str:
    return "\n".join(["```{eval-rst}", *lines, "```"])


# --- the names --------------------------------------------------------------------------------------------------------


def value_of(module: str, name: str) -> Any:
    """Return the object of a public name."""
    return getattr(importlib.import_module(module), name)


def _package(value: Any) -> str:
    return str(getattr(value, "__module__", "")).partition(".")[0]


@cache
def home_of(module: str, name: str) -> str:
    """Return the module whose page describes a name: the first module that exports it. Empty for a name of another package."""
    value = value_of(module, name)
    if isinstance(value, type | FunctionType) and _package(value) != "aswarm":
        return ""
    exporting = (other for other, names in modules().items() if name in names)
    return next(other for other in exporting if value_of(other, name) is value)


@cache
def public_classes() -> frozenset[type]:
    """Return all public classes."""
    values = [value_of(module, name) for module, names in modules().items() for name in names]
    return frozenset(value for value in values if isinstance(value, type))


def own_bases(kind: type) -> list[type]:
    """Return the class and its private bases. A public base has its own entry."""
    return [
        base for base in kind.__mro__ if base is kind or (_package(base) == "aswarm" and base not in public_classes())
    ]


def members(kind: type) -> list[str]:
    """Return the public methods and properties of a class and of its private bases."""
    found = [name for base in own_bases(kind) for name, value in vars(base).items() if isinstance(value, METHODS)]
    return [name for name in dict.fromkeys(found) if not name.startswith(("_", "model_"))]


def entries() -> list[str]:
    """Return the full names that the site must describe: names of modules, and the members of their classes."""
    found = []
    for module, names in modules().items():
        for name in names:
            found.append(f"{module}.{name}")
            value = value_of(module, name)
            if isinstance(value, type) and home_of(module, name) == module:
                found += [f"{module}.{name}.{member}" for member in members(value)]
    return found


def undocumented(full_names: list[str]) -> list[str]:
    """Return the names without a docstring."""
    return [name for name in full_names if not _doc_of(name)]


def _doc_of(full_name: str) -> str:
    module = max((each for each in modules() if full_name.startswith(f"{each}.")), key=len)
    name, _, member = full_name.removeprefix(f"{module}.").partition(".")
    value, home = value_of(module, name), home_of(module, name)
    if home != module:
        return "the page of its home describes it"
    if member:
        return inspect.getdoc(getattr(value, member)) or ""
    if isinstance(value, type) or getattr(value, "__name__", "") == name:
        return value.__doc__ or ""
    return definitions()[name][2]


@cache
def definitions() -> dict[str, tuple[Path, int, str]]:
    """Return file, line and docstring of each class and each alias in the source. No two of them have the same name."""
    found = {}
    for path in sorted((SOURCE / "aswarm").rglob("*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for node, after in zip(body, [*body[1:], ast.Pass()], strict=True):
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            name = node.name if isinstance(node, ast.ClassDef) else target.id if isinstance(target, ast.Name) else ""
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            if name and (text or name not in found):
                found[name] = (path, node.lineno, inspect.cleandoc(str(text)))
    return found

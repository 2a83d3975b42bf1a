"""The reference: an entry for each public name, as Markdown.

A page of `docs/reference` says which names it describes, and in which order, with `<!-- names: Agent Result -->`; without a
list, they are all names of its module, whose docstring stands in the place of `<!-- module -->`. A name that another page describes gets a line
that leads there.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from .source import (
    MODULES,
    Definition,
    Function,
    definition,
    fields,
    initializer,
    is_property,
    magic,
    members,
    names_in,
    overloads,
    private_bases,
    public_names,
    signature,
    tree_of,
    types_of,
    written,
)

FOLDER = Path(__file__).resolve().parents[1] / "reference"
MARK = re.compile(r"^<!-- names(?:: (?P<names>[^>]*?))? -->$", re.MULTILINE)
SINCE = "*Since version 0.1.0. An entry that came later names its version.*"
USES = {
    "__aenter__": "`async with`",
    "__enter__": "`with`",
    "__await__": "`await`",
    "__aiter__": "`async for`",
    "__iter__": "`for`",
    "__call__": "a call",
}


class UndocumentedName(Exception):  # noqa: N818 - reads as what happened
    """A public name has no docstring, or no page."""


def page_of(module: str) -> Path:
    """The page of a module: `reference/serve.md` for `aswarm.serve`."""
    return FOLDER / f"{'aswarm' if module == 'aswarm' else module.removeprefix('aswarm.')}.md"


def module_of(page: Path) -> str:
    """The module of a page."""
    return "aswarm" if page.stem == "aswarm" else f"aswarm.{page.stem}"


@cache
def home_of(defined: Definition) -> str:
    """The module whose page describes a name: the first that exports it."""
    for module in MODULES:
        if any(definition(module, name) == defined for name in public_names(module)):
            return module
    raise LookupError(defined)


# --- where a name is described ----------------------------------------------------------------------------------------


@cache
def places() -> dict[str, tuple[Path, str]]:
    """Where each name is: `aswarm.Agent`, `aswarm.AsyncSwarm.run` → the page, and the anchor of the entry there."""
    found: dict[str, tuple[Path, str]] = {}
    for module in MODULES:
        for name in public_names(module):
            defined = definition(module, name)
            found[f"{module}.{name}"] = (page_of(module), slug(_heading(name, defined)))
            if isinstance(defined.node, ast.ClassDef) and home_of(defined) == module:
                for member, is_inherited in members(defined):
                    if not is_inherited:
                        heading = _member_heading(name, member)
                        found[f"{module}.{name}.{member.name}"] = (page_of(module), slug(heading))
    return found


def anchor(page: Path, fragment: str) -> str | None:
    """The anchor of a name on a page of the reference: `AsyncSwarm.run` on `aswarm.md`."""
    place = places().get(f"{module_of(page)}.{fragment}")
    return place[1] if place else None


def slug(heading: str) -> str:
    """The anchor of a heading, as forges make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def place_of(name: str, module: str) -> tuple[Path, str] | None:
    """Where the name in a docstring of `module` leads, or None: it may be short for one of its own module, or of aswarm."""
    name = name.removesuffix("()")
    elsewhere = [f"{other}.{name}" for other in MODULES if f"{other}.{name}" in places()]
    for full in (f"{module}.{name}", f"aswarm.{name}", name, *(elsewhere if len(elsewhere) == 1 else ())):
        if full in places():
            home = home_of(definition(*full.rpartition(".")[::2])) if full.rpartition(".")[0] in MODULES else None
            return places()[f"{home}.{full.rpartition('.')[2]}"] if home else places()[full]
    return None


def target_of(name: str) -> tuple[Path, str] | None:
    """Where a name in a page leads that is not about one module: a module, a class of `aswarm`, or a member of one."""
    if name in MODULES[1:]:
        return page_of(name), ""
    is_named = "." in name or (name.isidentifier() and name_is_class(name))
    return places().get(f"aswarm.{name.removesuffix('()')}") if is_named else None


# --- entries ----------------------------------------------------------------------------------------------------------


def expand(page: Path, text: str) -> str:
    """The page with the entries in the places of its marks. Raises UndocumentedName for a name without a docstring."""
    module = module_of(page)
    if module not in MODULES:
        return text
    text = re.sub(r"\A(# .*\n)", rf"\1\n{SINCE}\n", text)
    intro = _with_links(ast.get_docstring(tree_of(module)) or "", module, "")
    text = text.replace("<!-- module -->", intro)
    return MARK.sub(lambda match: _entries(module, (match["names"] or "").split()), text)


def missing_names() -> list[str]:
    """The public names that no page describes, and those that are described twice."""
    wrong = []
    for module in MODULES:
        page = page_of(module)
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        listed = [
            name for match in MARK.finditer(text) for name in (match["names"] or " ".join(public_names(module))).split()
        ]
        wrong += [
            f"{module}.{name}"
            for name in {*listed, *public_names(module)}
            if (listed.count(name), name in public_names(module)) != (1, True)
        ]
    return sorted(wrong)


def _entries(module: str, names: list[str]) -> str:
    return "\n\n".join(entry(module, name) for name in names or public_names(module))


def entry(module: str, name: str) -> str:
    """The entry of a name on the page of a module."""
    defined = definition(module, name)
    if defined.node is None:
        return f"### {_heading(name, defined)}\n\nOf the package `{defined.module.partition('.')[0]}`: `{defined.module}.{defined.name}`."
    home = home_of(defined)
    if home != module:
        page, place = places()[f"{home}.{defined.name}"]
        return f"### {_heading(name, defined)}\n\nThe same as [`{home}.{defined.name}`]({page.name}#{place})."
    if not defined.doc:
        raise UndocumentedName(f"{module}.{name} has no docstring ({defined.module})")
    node = defined.node
    if isinstance(node, ast.ClassDef) and (maker := initializer(defined)):
        node = maker if _is_for_users(maker, defined.module) else ast.Pass()
    parts = [f"### {_heading(name, defined)}", _code(name, defined), _with_links(defined.doc, module, name)]
    parts.append(_types(node, defined.module, name))
    if isinstance(defined.node, ast.ClassDef):
        parts += _class_details(module, name, defined)
    return "\n\n".join(part for part in parts if part)


def _heading(name: str, defined: Definition) -> str:
    return f"{_kind(defined)} `{name}`"


def _kind(defined: Definition) -> str:
    node = defined.node
    if isinstance(node, Function):
        return "function"
    if not isinstance(node, ast.ClassDef):
        return "type" if name_is_class(defined.name) else "value"
    if _is_exception(defined):
        return "exception"
    return "protocol" if "Protocol" in map(written, node.bases) else "class"


def name_is_class(name: str) -> bool:
    """Whether it is written as classes and types are."""
    return name[:1].isupper() and not name.isupper()


def _is_exception(defined: Definition) -> bool:
    bases = [written(base) for base in defined.node.bases] if isinstance(defined.node, ast.ClassDef) else []
    for base in bases:
        if base in ("Exception", "BaseException", "TimeoutError", "ValueError"):
            return True
        try:
            if _is_exception(definition(defined.module, base)):
                return True
        except LookupError:
            continue
    return False


def _code(name: str, defined: Definition) -> str:
    node = defined.node
    assert node is not None  # noqa: S101
    if isinstance(node, Function):
        signatures = overloads(defined) if node.args.kwarg else [node]  # the implementation takes any option
        return _fenced("\n\n".join(signature(each, name) for each in signatures))
    if not isinstance(node, ast.ClassDef):
        return _fenced(written(node))
    shown = public_bases(defined)
    head = f"class {node.name}({', '.join(shown)})" if shown else f"class {node.name}"
    declared = fields(node)
    maker = initializer(defined)
    if maker is not None and _is_for_users(maker, defined.module):
        lines = f"class {signature(maker, node.name, is_method=True)}"
        return _fenced(lines if not shown else f"{head}\n\n{signature(maker, node.name, is_method=True)}")
    return _fenced("\n".join([f"{head}:", *(f"    {each}" for each in declared)]) if declared else head)


def public_bases(defined: Definition) -> list[str]:
    """The bases of a class as they are written, with the public bases of a private one in its place."""
    assert isinstance(defined.node, ast.ClassDef)  # noqa: S101
    private = {base.name: base for base in private_bases(defined)}
    found: list[str] = []
    for base in map(written, defined.node.bases):
        name = base.partition("[")[0]
        inner = public_bases(private[name]) if name in private else [base]
        found += [each for each in inner if each == base or not each.startswith(("Generic[", "ABC"))]
    return [base for base in found if not base.startswith("_")]


def _is_variable(value: ast.expr) -> bool:
    """Whether it is a type variable."""
    return isinstance(value, ast.Call) and written(value.func) in ("TypeVar", "ParamSpec")


def _is_for_users(maker: Function, module: str) -> bool:
    """Whether a class is made by its users: its arguments have no private classes as types."""
    for name in names_in(types_of(maker)):
        with suppress(LookupError):
            found = definition(module, name)
            if name not in _exported() and isinstance(found.node, ast.ClassDef):
                return False
            if isinstance(found.node, ast.Assign) and _is_variable(found.node.value):
                return False
    return True


def _class_details(module: str, name: str, defined: Definition) -> list[str]:
    assert isinstance(defined.node, ast.ClassDef)  # noqa: S101
    uses = [words for method, words in USES.items() if method in magic(defined)]
    found = [f"It can be used with {_listed(uses)}."] if uses else []
    if _is_frozen(defined.node):
        found.append("Immutable.")
    inherited = []
    for member, is_inherited in members(defined):
        doc = ast.get_docstring(member) or ""
        if not doc:
            raise UndocumentedName(f"{module}.{name}.{member.name} has no docstring ({defined.module})")
        if is_inherited:
            inherited.append(
                f"- `{member.name}{'' if is_property(member) else '()'}`: {_with_links(doc.partition(chr(10) * 2)[0], module, name)}"
            )
            continue
        shown = (
            member.name
            if not is_property(member)
            else f"{member.name}: {written(member.returns)}"
            if member.returns
            else member.name
        )
        code = shown if is_property(member) else signature(member, member.name, is_method=True)
        types = _types(member, defined.module, name)
        found += [f"#### {_member_heading(name, member)}", _fenced(code), _with_links(doc, module, name), types]
    return [*found, "\n".join(inherited)]


def _types(node: ast.stmt | None, source: str, own: str) -> str:
    """What the names in a signature are: links to those with an entry, and the private aliases written out."""
    links, aliases = [], []
    for name in names_in(types_of(node)):
        try:
            found = definition(source, name)
        except LookupError:
            continue
        home = _home_or_none(found)
        if home and name != own:
            links.append(f"[`{name}`]({_relative(*places()[f'{home}.{found.name}'])})")
        alias = found.node.value if isinstance(found.node, ast.Assign | ast.AnnAssign) else None
        if alias and not home and not _is_variable(alias):
            aliases.append(f"`{name}` is `{written(alias)}`.")
    return " ".join([*aliases, *([f"See {_listed(links)}."] if links else [])])


def _home_or_none(found: Definition) -> str | None:
    if found.node is None:
        return None
    try:
        return home_of(found)
    except LookupError:
        return None


@cache
def _exported() -> frozenset[str]:
    return frozenset(name for module in MODULES for name in public_names(module))


def _member_heading(name: str, member: Function) -> str:
    return f"`{name}.{member.name}`" if is_property(member) else f"`{name}.{member.name}()`"


def _is_frozen(node: ast.ClassDef) -> bool:
    return any("frozen=True" in written(each) for each in node.decorator_list)


def _fenced(code: str) -> str:
    return f"```python\n{code}\n```"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# --- links ------------------------------------------------------------------------------------------------------------

_NAME = re.compile(
    r"(?<!\[)`(?P<name>[A-Za-z_][\w.]*)(?P<rest>\([^`]*\))?`|`[^`]*`|\b(?P<plain>[A-Z][a-z]+[A-Z]\w+)\b(?![`\]])"
)


def _with_links(doc: str, module: str, own: str) -> str:
    """The docstring as Markdown; the first mention of another public name leads to its entry."""
    seen = {own}
    parts = [
        _code_block(each) if each.startswith("    ") else link_names(_as_list(each), module, seen, _relative)
        for paragraph in re.split(r"\n\n(?! {4})", doc)
        for each in _apart(paragraph)
    ]
    return re.sub(r"(?m)^(- .*)\n\n(?=- )", r"\1\n", "\n\n".join(parts))  # lists of neighbours are one list


def _apart(paragraph: str) -> list[str]:
    """The paragraph, and the code below it."""
    words, _, code = paragraph.partition("\n\n    ")
    return [words, f"    {code}"] if code and not words.startswith("    ") else [paragraph]


def _code_block(text: str) -> str:
    """A block of code; of Python, where it can be read as such."""
    code = textwrap.dedent(text)
    try:
        compile(code, "", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
    except SyntaxError:
        return f"```text\n{code}\n```"
    return _fenced(code)


_DESCRIBED = re.compile(r"(?:^|(?<=[.);]\s))(?=`[^`]+`(?:(?:,| and)\s`[^`]+`)*:\s)")


def _as_list(paragraph: str) -> str:
    """The paragraph; as a list where it describes things by their names: "`a`: text. `b`: text."."""
    head, *described = _DESCRIBED.split(paragraph)
    if not described or (head and len(described) == 1):
        return paragraph
    described[-1], raises, errors = described[-1].partition(" Raises ")
    lines = (re.sub(r"\n(?! *- ) *", " ", part).strip().replace("\n", "\n  ") for part in described)
    listed = "\n".join(f"- {line}" for line in lines)
    return "\n\n".join(part for part in (head.strip(), listed, f"{raises}{errors}".strip()) if part)


def _relative(page: Path, place: str) -> str:
    return f"{page.name}#{place}"


def link_names(text: str, module: str, seen: set[str], address: Callable[[Path, str], str]) -> str:
    """Make links of the public names in a text, of each once. `address`: from a page and an anchor to the address."""

    def linked(match: re.Match[str]) -> str:
        name = match["name"] or match["plain"]
        if name is None:
            return match[0]  # other code, which may contain names
        is_named = name_is_class(name.rpartition(".")[2]) or "." in name
        place = place_of(name, module) if is_named and name not in seen else None
        if place is None or (match["plain"] and not place[1].startswith("exception-")):
            return match[0]
        seen.add(name)
        return f"[`{name}{match['rest'] or ''}`]({address(*place)})"

    return _NAME.sub(linked, text)

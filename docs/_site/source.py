"""The public names of the package, read from its source: signatures as they were written, docstrings as they are.

Nothing is imported: the types in a signature are those of the source, and no extra of the package has to be installed.
"""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

LINE = 88  # characters of a signature that fit beside the navigation
SOURCE = Path(__file__).resolve().parents[2] / "src"
# The order of the navigation. A name that several modules export is described where it stands first.
_FIRST = (
    "aswarm",
    "aswarm.middleware",
    "aswarm.guards",
    "aswarm.conversations",
    "aswarm.serve",
    "aswarm.durable",
    "aswarm.mcp",
    "aswarm.otel",
    "aswarm.batch",
    "aswarm.evals",
    "aswarm.testing",
    "aswarm.graph",
    "aswarm.repl",
    "aswarm.core",
    "aswarm.types",
    "aswarm.util",
    "aswarm.agents",
)
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def _modules() -> tuple[str, ...]:
    """The modules with public names; one that is not in the list above comes last, and needs a page too."""
    paths = [path for path in sorted((SOURCE / "aswarm").glob("[a-z]*")) if path.suffix == ".py" or path.is_dir()]
    files = {f"aswarm.{path.stem}": path / "__init__.py" if path.is_dir() else path for path in paths}
    public = {name for name, file in files.items() if "\n__all__ = " in file.read_text(encoding="utf-8")}
    return (*_FIRST, *sorted(public - set(_FIRST) - {"aswarm.cli"}))


MODULES = _modules()


@dataclass(frozen=True)
class Definition:
    """Where a name is defined. `node` is None for a name of another package, which is then `module`."""

    module: str
    name: str
    node: ast.stmt | None
    doc: str = ""


@cache
def tree_of(module: str) -> ast.Module:
    """The parsed source of a module of the package."""
    path = SOURCE / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def public_names(module: str) -> tuple[str, ...]:
    """`__all__` of the module."""
    for node in tree_of(module).body:
        if isinstance(node, ast.Assign) and written(node.targets[0]) == "__all__":
            return tuple(ast.literal_eval(node.value))
    raise LookupError(f"{module} has no __all__")


@cache
def definition(module: str, name: str) -> Definition:
    """Follow the imports from a module to the definition of a name."""
    if not module.startswith("aswarm"):
        return Definition(module, name, None)
    body = tree_of(module).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | Function) and node.name == name and not is_overload(node):
            return Definition(module, name, node, ast.get_docstring(node) or "")
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in _targets(node):
            return Definition(module, name, node, _literal(following))
        if isinstance(node, ast.ImportFrom) and name in (
            asked := {each.asname or each.name: each.name for each in node.names}
        ):
            return definition(_imported(module, node), asked[name])
    lazily = [node for node in ast.walk(tree_of(module)) if isinstance(node, ast.ImportFrom)]
    for node in lazily:
        if name in {each.name for each in node.names}:
            return definition(_imported(module, node), name)
    raise LookupError(f"{module} does not define {name}")


def written(node: ast.AST) -> str:
    """The code of a node, with the quotes of the project."""
    return re.sub(r"'([^'\"\\]*)'", r'"\1"', ast.unparse(node))


def is_overload(node: ast.stmt) -> bool:
    """Whether it is a signature for type checkers only."""
    return isinstance(node, Function) and any(written(each) == "overload" for each in node.decorator_list)


def overloads(defined: Definition) -> list[Function]:
    """The signatures of a function for type checkers; if it has none, that of the function itself."""
    found = [each for each in tree_of(defined.module).body if isinstance(each, Function) and each.name == defined.name]
    return [each for each in found if is_overload(each)] or found


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _literal(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return inspect.cleandoc(node.value.value)
    return ""


def _imported(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    is_package = (SOURCE / module.replace(".", "/")).is_dir()
    parts = module.split(".")
    base = parts[: len(parts) - node.level + is_package]
    return ".".join([*base, *([node.module] if node.module else [])])


# --- how a definition is written --------------------------------------------------------------------------------------


def signature(node: Function, name: str, *, is_method: bool = False) -> str:
    """`name(...) -> type`, one parameter a line where it would be too long; without `self`."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    shown = [_parameter(each, default) for each, default in zip(positional, defaults, strict=True)]
    if arguments.posonlyargs:
        shown.insert(len(arguments.posonlyargs), "/")
    if is_method and not any(written(each) == "staticmethod" for each in node.decorator_list):
        shown = shown[1:]
    if arguments.vararg:
        shown.append(f"*{_parameter(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        shown.append("*")
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    shown += [_parameter(each, default) for each, default in keywords]
    if arguments.kwarg:
        shown.append(f"**{_parameter(arguments.kwarg, None)}")
    returns = f" -> {written(node.returns)}" if node.returns and node.name != "__init__" else ""
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    line = f"{prefix}{name}({', '.join(shown)}){returns}"
    if len(line) <= LINE:
        return line
    return "\n".join([f"{prefix}{name}(", *(f"    {each}," for each in shown), f"){returns}"])


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    hint = f": {written(argument.annotation)}" if argument.annotation else ""
    value = "" if default is None else f" = {written(default)}" if hint else f"={written(default)}"
    return f"{argument.arg}{hint}{value}"


def fields(node: ast.ClassDef) -> list[str]:
    """The public attributes that a class body declares, as they stand there."""
    declared = [each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]
    return [_field(each) for each in declared if not each.target.id.startswith(("_", "model_config"))]  # type: ignore[union-attr]


def _field(node: ast.AnnAssign) -> str:
    hint = written(node.annotation)
    if hint.startswith("Annotated[") and isinstance(node.annotation, ast.Subscript):
        assert isinstance(node.annotation.slice, ast.Tuple)  # noqa: S101 - it has a type and what is said of it
        hint = written(node.annotation.slice.elts[0])
    value = "" if node.value is None else f" = {_default(node.value)}"
    return f"{written(node.target)}: {hint}{value.removesuffix(' = ')}"


def _default(value: ast.expr) -> str:
    """The default of a field; "..." for one that is made for each object, and nothing for a field that has none."""
    if not isinstance(value, ast.Call):
        return written(value)
    called = written(value.func)
    if called == "cast":
        return written(value.args[1])
    if called not in ("Field", "field"):
        return written(value)
    given = {each.arg: written(each.value) for each in value.keywords}
    return given.get("default", "..." if "default_factory" in given else "")


def members(definition_: Definition) -> list[tuple[Function, bool]]:
    """The public methods and properties of a class, and of its private bases; with whether each is inherited."""
    node = definition_.node
    assert isinstance(node, ast.ClassDef)  # noqa: S101 - the caller has looked
    own = [
        each
        for each in node.body
        if isinstance(each, Function)
        and not each.name.startswith("_")
        and not is_overload(each)
        and not _is_setter(each)
    ]
    found = [(each, False) for each in own]
    for base in private_bases(definition_):
        known = {each.name for each, _ in found}
        found += [(each, True) for each, _ in members(base) if each.name not in known]
    return found


def private_bases(definition_: Definition) -> list[Definition]:
    """The bases of a class that have no page of their own."""
    node = definition_.node
    assert isinstance(node, ast.ClassDef)  # noqa: S101
    names = [written(base).partition("[")[0] for base in node.bases]
    found = []
    for name in names:
        if name not in all_public():
            try:
                base = definition(definition_.module, name)
            except LookupError:
                continue  # a builtin
            if isinstance(base.node, ast.ClassDef):
                found.append(base)
    return found


@cache
def all_public() -> frozenset[str]:
    """Every public name of every module."""
    return frozenset(name for module in MODULES for name in public_names(module))


def magic(definition_: Definition) -> set[str]:
    """The magic methods that say how an object is used, those of its private bases too."""
    node = definition_.node
    assert isinstance(node, ast.ClassDef)  # noqa: S101
    own = {each.name for each in node.body if isinstance(each, Function)}
    return own.union(*(magic(base) for base in private_bases(definition_)))


def initializer(definition_: Definition) -> Function | None:
    """The `__init__` of a class, or of a private base."""
    node = definition_.node
    assert isinstance(node, ast.ClassDef)  # noqa: S101
    for each in node.body:
        if isinstance(each, Function) and each.name == "__init__" and not is_overload(each):
            return each
    return next((found for base in private_bases(definition_) if (found := initializer(base))), None)


def _is_setter(node: Function) -> bool:
    return any(written(each).endswith(".setter") for each in node.decorator_list)


def is_property(node: Function) -> bool:
    """Whether it is read without a call."""
    return any(written(each).split(".")[-1] in ("property", "cached_property") for each in node.decorator_list)


def _place(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def names_in(nodes: list[ast.AST]) -> list[str]:
    """The names in some annotations, in their order; those inside of strings too."""
    found: dict[str, None] = {}
    for node in nodes:
        for each in sorted(ast.walk(node), key=_place):
            if isinstance(each, ast.Name):
                found[each.id] = None
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                found.update(dict.fromkeys(re.findall(r"\b[A-Z]\w+", each.value)))
    return list(found)


def types_of(node: ast.stmt | None) -> list[ast.AST]:
    """The types that a function, or the fields of a class, are declared with."""
    if isinstance(node, Function):
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
        return [each for each in (*(each.annotation for each in every if each), node.returns) if each]
    if isinstance(node, ast.ClassDef):
        return [each.annotation for each in node.body if isinstance(each, ast.AnnAssign)]
    return [node.value] if isinstance(node, ast.AnnAssign) and node.value else []

"""The signatures of all public names, as the source writes them: for the page that lists them.

They are read from the source, not from the objects, so that each version of Python gives the same text.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from . import reference

Function = ast.FunctionDef | ast.AsyncFunctionDef
_FACTORY = "..."  # a default that a function makes
_LONGEST = 60  # the length of a default


def listing() -> str:
    """Return the list of the public names of each module, with their signatures and the members of their classes."""
    return "\n\n".join(f"## `{module}`\n\n{_listed(module, names)}" for module, names in reference.modules().items())


def _listed(module: str, names: tuple[str, ...]) -> str:
    lines: list[str] = []
    for name in sorted(names, key=str.lower):
        home = reference.home_of(module, name)
        if home != module:
            lines.append(f"- `{name}`: {f'see `{home}`' if home else 'of another package'}")
            continue
        lines += _entry(name, reference.value_of(module, name))
    return "\n".join(lines)


def _entry(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, type):
        yield f"- `class {name}({', '.join(_parameters_of(value))})`"
        yield from (f"  - `{_member(value, member)}`" for member in sorted(reference.members(value)))
    elif inspect.isfunction(value) and value.__name__ == name:
        yield f"- `{_signature(_function(value))}`"
    else:
        yield f"- `{name}`"


def _member(kind: type, name: str) -> str:
    node = next(found for base in kind.__mro__ if (found := _method(base, name)) is not None)
    decorators = [ast.unparse(each) for each in node.decorator_list]
    if any("property" in each for each in decorators):
        return f"{name}{_returns(node)}"
    static = next((each for each in decorators if each in ("classmethod", "staticmethod")), "")
    return f"{static} {_signature(node)}".strip()


def _signature(node: Function) -> str:
    prefix = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    return f"{prefix} {node.name}({', '.join(_parameters(node))}){_returns(node)}"


def _returns(node: Function) -> str:
    return f" -> {ast.unparse(node.returns)}" if node.returns else ""


def _parameters(node: Function) -> Iterator[str]:
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for place, (argument, default) in enumerate(zip(positional, defaults, strict=True)):
        if not (place == 0 and argument.arg in ("self", "cls")):
            yield _parameter(argument, default)
        if place + 1 == len(arguments.posonlyargs):
            yield "/"
    if arguments.vararg:
        yield f"*{_parameter(arguments.vararg, None)}"
    elif arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(argument, default)
    if arguments.kwarg:
        yield f"**{_parameter(arguments.kwarg, None)}"


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    hint = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    return f"{argument.arg}{hint}{_default(default, ' = ' if hint else '=')}"


def _default(default: ast.expr | None, sign: str) -> str:
    if default is None:
        return ""
    text = ast.unparse(default)
    return f"{sign}{_FACTORY if 'factory' in text or len(text) > _LONGEST else text}"


def _parameters_of(kind: type) -> list[str]:
    """Return the parameters of a class: of its `__init__`, or the fields of a dataclass or a model."""
    for base in kind.__mro__:
        if (made := _method(base, "__init__")) is not None:
            return list(_parameters(made))
        if "__dataclass_fields__" in vars(base) or hasattr(base, "model_fields"):
            return list(_fields(kind).values())
    return []


def _fields(kind: type) -> dict[str, str]:
    fields: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        for node in _body(base):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name, hint = node.target.id, ast.unparse(node.annotation)
                if not (name.startswith("_") or name == "model_config" or "ClassVar" in hint):
                    fields[name] = f"{name}: {hint}{_default(_value_of(node.value), ' = ')}"
    return fields


def _value_of(value: ast.expr | None) -> ast.expr | None:
    """Return the default in `field(default=...)`; None for a field without one."""
    if not (isinstance(value, ast.Call) and ast.unparse(value.func) in ("field", "Field", "dataclasses.field")):
        return value
    keywords = {each.arg: each.value for each in value.keywords}
    return keywords.get("default") or (ast.Constant(...) if "default_factory" in keywords else None)


def _method(kind: type, name: str) -> Function | None:
    """Return the last definition of a method in a class, which is its implementation if it has overloads."""
    found = [node for node in _body(kind) if isinstance(node, Function) and node.name == name]
    return found[-1] if found else None


def _body(kind: type) -> list[ast.stmt]:
    path, line = _places().get(kind.__qualname__, (None, 0))
    if path is None or not kind.__module__.startswith("aswarm"):
        return []
    classes = (node for node in _tree(path).body if isinstance(node, ast.ClassDef))
    return next((node.body for node in classes if node.lineno == line), [])


@cache
def _places() -> dict[str, tuple[Path, int]]:
    return {
        node.name: (path, node.lineno)
        for path in sorted((reference.SOURCE / "aswarm").rglob("*.py"))
        for node in _tree(path).body
        if isinstance(node, ast.ClassDef)
    }


def _function(value: Any) -> Function:
    code = inspect.unwrap(value).__code__
    found = [
        node
        for node in ast.walk(_tree(Path(code.co_filename)))
        if isinstance(node, Function) and node.name == code.co_name
    ]
    return next(
        node for node in found if code.co_firstlineno in (node.lineno, *(each.lineno for each in node.decorator_list))
    )


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))

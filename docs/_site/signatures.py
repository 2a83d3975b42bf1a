"""The signatures of all public names, as the source writes them: for the page that lists them.

They are read from the source, not from the objects, so that each version of Python gives the same text.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

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
        if name in reference.MADE_BY_ASWARM:
            yield f"- `class {name}`, made by aswarm"
        else:
            yield f"- `class {name}({', '.join(_parameters_of(value))})`"
        shown = {**_attributes(value), **{member: _member(value, member) for member in reference.members(value)}}
        yield from (f"  - `{shown[member]}`" for member in sorted(shown))
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
    return f" -> {_hint(node.returns)}" if node.returns else ""


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
    hint = f": {_hint(argument.annotation)}" if argument.annotation else ""
    return f"{argument.arg}{hint}{_default(default, ' = ' if hint else '=')}"


def _hint(annotation: ast.expr) -> str:
    """Return a type hint without the validators in `Annotated`."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        annotation = annotation.slice.elts[0] if isinstance(annotation.slice, ast.Tuple) else annotation.slice
    return ast.unparse(annotation)


def _default(default: ast.expr | None, sign: str) -> str:
    if default is None:
        return ""
    if isinstance(default, ast.Call) and ast.unparse(default.func) == "cast":
        default = default.args[1]
    text = ast.unparse(default)
    return f"{sign}{_FACTORY if 'factory' in text or len(text) > _LONGEST else text}"


def _parameters_of(kind: type) -> list[str]:
    """Return the parameters of a class: of its `__init__`, or the fields of a dataclass or a model."""
    for base in kind.__mro__:
        if (made := _method(base, "__init__")) is not None:
            return list(_parameters(made))
        if _has_fields(base):
            fields = [each for each in _fields(kind).values() if each.is_parameter]
            by_name = [each.text for each in fields if each.is_by_name]
            return [each.text for each in fields if not each.is_by_name] + ["*"] * bool(by_name) + by_name
    return []


class _Field(NamedTuple):
    text: str
    is_by_name: bool
    is_parameter: bool


def _fields(kind: type) -> dict[str, _Field]:
    return {name: field for base in reversed(kind.__mro__) for name, field in _own_fields(base).items()}


def _own_fields(kind: type) -> dict[str, _Field]:
    fields: dict[str, _Field] = {}
    by_name = issubclass(kind, dict) or hasattr(kind, "model_fields") or _has_only_keywords(kind)
    for node in _all_of(kind):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        name, hint = node.target.id, ast.unparse(node.annotation)
        by_name = by_name or hint.endswith("KW_ONLY")
        if not (name.startswith("_") or name == "model_config" or "ClassVar" in hint):
            text = f"{name}: {_hint(node.annotation)}{_default(_value_of(node.value), ' = ')}"
            is_parameter = not _option(node.value, "init", of=False)
            fields[name] = _Field(text, by_name or _option(node.value, "kw_only"), is_parameter)
    return fields


def _option(value: ast.expr | None, name: str, *, of: bool = True) -> bool:
    """Return whether a field has this option, as in `field(kw_only=True)`."""
    keywords = value.keywords if _is_field(value) else []
    return any(each.arg == name and ast.unparse(each.value) == str(of) for each in keywords)


def _is_field(value: ast.expr | None) -> TypeGuard[ast.Call]:
    return isinstance(value, ast.Call) and ast.unparse(value.func) in ("field", "Field", "dataclasses.field")


def _has_only_keywords(kind: type) -> bool:
    node = _class(kind)
    return node is not None and any("kw_only=True" in ast.unparse(each) for each in node.decorator_list)


def _attributes(kind: type) -> dict[str, str]:
    """Return the public attributes that are no parameters: those that `__init__` sets, and fields that only aswarm sets."""
    shown: dict[str, str] = {}
    for base in reversed(reference.own_bases(kind)):
        has_parameters = _has_fields(base) and kind.__name__ not in reference.MADE_BY_ASWARM
        fields = _own_fields(base).items()
        shown |= {name: each.text for name, each in fields if not (has_parameters and each.is_parameter)}
        if (made := _method(base, "__init__")) is not None:
            shown |= dict(_set_by(made))
    return {name: text.partition(" = ")[0] for name, text in shown.items()}


def _has_fields(kind: type) -> bool:
    return "__dataclass_fields__" in vars(kind) or hasattr(kind, "model_fields") or issubclass(kind, dict)


def _set_by(made: Function) -> Iterator[tuple[str, str]]:
    """Yield the attributes that a constructor sets, with the hints of their parameters."""
    arguments = [*made.args.posonlyargs, *made.args.args, *made.args.kwonlyargs]
    hints = {each.arg: each.annotation for each in arguments}
    for node in ast.walk(made):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        hint = node.annotation if isinstance(node, ast.AnnAssign) else None
        if hint is None and isinstance(node.value, ast.Name):
            hint = hints.get(node.value.id)
        if not (isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"):
            continue
        if not target.attr.startswith("_"):
            yield target.attr, f"{target.attr}: {_hint(hint)}" if hint else target.attr


def _value_of(value: ast.expr | None) -> ast.expr | None:
    """Return the default in `field(default=...)`; None for a field without one."""
    if not _is_field(value):
        return value
    keywords = {each.arg: each.value for each in value.keywords}
    return keywords.get("default") or (ast.Constant(...) if "default_factory" in keywords else None)


def _method(kind: type, name: str) -> Function | None:
    """Return the last definition of a method in a class, which is its implementation if it has overloads."""
    found = [node for node in _body(kind) if isinstance(node, Function) and node.name == name and not _is_setter(node)]
    return found[-1] if found else None


def _is_setter(node: Function) -> bool:
    return any(ast.unparse(each).endswith(".setter") for each in node.decorator_list)


def _body(kind: type) -> list[ast.stmt]:
    node = _class(kind)
    return node.body if node else []


def _all_of(kind: type) -> list[ast.stmt]:
    """Return the body of a class; of a TypedDict, which has no bases at run time, also the bodies of its bases."""
    node = _class(kind)
    return _with_bases(node) if node and issubclass(kind, dict) else _body(kind)


def _with_bases(node: ast.ClassDef) -> list[ast.stmt]:
    places = [_places()[each.id] for each in node.bases if isinstance(each, ast.Name) and each.id in _places()]
    bases = [base for place in places if (base := _class_at(*place))]
    return [*(each for base in bases for each in _with_bases(base)), *node.body]


def _class(kind: type) -> ast.ClassDef | None:
    path, line = _places().get(kind.__qualname__, (None, 0))
    return None if path is None or not kind.__module__.startswith("aswarm") else _class_at(path, line)


def _class_at(path: Path, line: int) -> ast.ClassDef | None:
    classes = (node for node in _tree(path).body if isinstance(node, ast.ClassDef))
    return next((node for node in classes if node.lineno == line), None)


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

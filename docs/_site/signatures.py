"""The signatures of all public names, as the source writes them: for the page that lists them.

They are read from the source, not from the objects, so that each version of Python gives the same text.
"""

from __future__ import annotations

import ast
import copy
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
            yield from (f"- `class {name}({', '.join(parameters)})`" for parameters in _constructors(value))
        if bases := dict.fromkeys(_bases(value.__name__)):
            yield f"  - subclass of {', '.join(f'`{base}`' for base in bases)}"
        methods = [*reference.members(value), *(["__call__"] if _has_own_call(value) else [])]
        shown = {**_attributes(value), **{method: _member(value, method) for method in methods}}
        yield from (f"  - `{line}`" for member in sorted(shown) for line in shown[member])
    elif inspect.isfunction(value) and value.__name__ == name:
        body = _tree(Path(inspect.unwrap(value).__code__.co_filename)).body
        yield from (f"- `{_signature(node)}`" for node in _visible(_functions(body, name)))
    else:
        path, line, _ = reference.definitions()[name]
        node = next(node for node in _tree(path).body if node.lineno == line)
        yield f"- `{_expanded(node).replace(': TypeAlias', '')}`"


def _bases(name: str) -> Iterator[str]:
    """Yield the bases of a class. Instead of a private base, yield its bases, without what is only for this base."""
    for base in (base for node in _classes(name) for base in node.bases):
        name = ast.unparse(base).partition("[")[0]
        if not _classes(name) or name in _public():
            yield _expanded(base)
        else:
            yield from (each for each in _bases(name) if not each.startswith(("ABC", "Generic[")))


def _has_own_call(kind: type) -> bool:
    return any("__call__" in vars(base) for base in reference.own_bases(kind))


def _member(kind: type, name: str) -> list[str]:
    nodes = next(found for base in kind.__mro__ if (found := _functions(_body(base), name)))
    return [_method(node) for node in _visible(nodes)]


def _method(node: Function) -> str:
    decorators = _decorators(node)
    if any("property" in each for each in decorators):
        return f"{node.name}{_returns(node)}"
    static = next((each for each in decorators if each in ("classmethod", "staticmethod")), "")
    return f"{static} {_signature(node)}".strip()


def _signature(node: Function) -> str:
    returns, prefix = _returns(node), "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    if returns.startswith(" -> AsyncGenerator"):  # its caller does not await the call
        prefix = "def"
    if "asynccontextmanager" in _decorators(node):
        returns = returns.replace("AsyncGenerator", "AbstractAsyncContextManager")
    return f"{prefix} {node.name}({', '.join(_parameters(node))}){returns}"


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
    options = list(_options(arguments.kwarg)) if arguments.kwarg else []
    if arguments.vararg:
        yield f"*{_parameter(arguments.vararg, None)}"
    elif arguments.kwonlyargs or options:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(argument, default)
    yield from options
    if arguments.kwarg and not options:
        yield f"**{_parameter(arguments.kwarg, None)}"


def _options(keywords: ast.arg) -> Iterator[str]:
    """Yield the keys of a private TypedDict in `**keywords: Unpack[...]`. A public one has its own entry."""
    hint = keywords.annotation
    if isinstance(hint, ast.Subscript) and ast.unparse(hint.value) == "Unpack":
        public: list[str] = []
        for field in _keys(ast.unparse(hint.slice), public):
            kind, default = field.annotation, " = ..."
            if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "Required":
                kind, default = kind.slice, ""
            yield f"{ast.unparse(field.target)}: {_hint(kind)}{default}"
        yield from (f"**{keywords.arg}: Unpack[{name}]" for name in public)


def _keys(name: str, public: list[str]) -> Iterator[ast.AnnAssign]:
    """Yield the keys of a private TypedDict. Add the names of its public bases to `public`."""
    if name in _public():
        public.append(name)
        return
    for node in _classes(name):
        for base in node.bases:
            yield from _keys(ast.unparse(base), public)
        yield from (each for each in node.body if isinstance(each, ast.AnnAssign))


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    hint = f": {_hint(argument.annotation)}" if argument.annotation else ""
    return f"{argument.arg}{hint}{_default(default, ' = ' if hint else '=')}"


def _hint(annotation: ast.expr) -> str:
    """Return a type hint without the validators in `Annotated`."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        annotation = annotation.slice.elts[0] if isinstance(annotation.slice, ast.Tuple) else annotation.slice
    return _expanded(annotation)


def _default(default: ast.expr | None, sign: str) -> str:
    if default is None:
        return ""
    if isinstance(default, ast.Call) and ast.unparse(default.func) == "cast":
        default = default.args[1]
    text = _expanded(default)
    return f"{sign}{_FACTORY if 'factory' in text or len(text) > _LONGEST else text}"


class _Expansion(ast.NodeTransformer):
    """Replaces the private aliases and constants in a hint or a default by their values: users cannot import them."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        values = [] if node.id in _public() else _defined().get(node.id, [])
        if len(values) == 1 and isinstance(values[0], ast.BinOp | ast.Subscript | ast.Constant):
            node = self.visit(copy.deepcopy(values[0]))
        return node


def _expanded(node: ast.AST) -> str:
    return ast.unparse(_Expansion().visit(copy.deepcopy(node)))


def _constructors(kind: type) -> list[list[str]]:
    """Return the parameters of a class: of each overload of its `__init__`, or the fields of a dataclass or a model."""
    for base in kind.__mro__:
        if found := _functions(_body(base), "__init__"):
            return [list(_parameters(node)) for node in _visible(found)]
        if _has_fields(base):
            fields = [each for each in _fields(kind).values() if each.is_parameter]
            by_name = [each.text for each in fields if each.is_by_name]
            return [[each.text for each in fields if not each.is_by_name] + ["*"] * bool(by_name) + by_name]
    return [["*args: object"] if issubclass(kind, BaseException) else []]


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
            default = ast.Constant(...) if getattr(kind, "__total__", True) is False else _value_of(node.value)
            text = f"{name}: {_hint(node.annotation)}{_default(default, ' = ')}"
            is_parameter = not _has_option(node.value, "init", of=False)
            fields[name] = _Field(text, by_name or _has_option(node.value, "kw_only"), is_parameter)
    return fields


def _has_option(value: ast.expr | None, name: str, *, of: bool = True) -> bool:
    """Return whether a field has this option, as in `field(kw_only=True)`."""
    keywords = value.keywords if _is_field(value) else []
    return any(each.arg == name and ast.unparse(each.value) == str(of) for each in keywords)


def _is_field(value: ast.expr | None) -> TypeGuard[ast.Call]:
    return isinstance(value, ast.Call) and ast.unparse(value.func) in ("field", "Field", "dataclasses.field")


def _has_only_keywords(kind: type) -> bool:
    return any(
        "kw_only=True" in ast.unparse(each) for node in _classes(kind.__qualname__) for each in node.decorator_list
    )


def _attributes(kind: type) -> dict[str, list[str]]:
    """Return the public attributes that are no parameters: attributes from `__init__`, and fields that only aswarm sets."""
    shown: dict[str, str] = {}
    for base in reversed(reference.own_bases(kind)):
        has_parameters = _has_fields(base) and kind.__name__ not in reference.MADE_BY_ASWARM
        fields = _own_fields(base).items()
        shown |= {name: each.text for name, each in fields if not (has_parameters and each.is_parameter)}
        if found := _functions(_body(base), "__init__"):
            shown |= dict(_set_by(found[-1]))
    return {name: [text.partition(" = ")[0]] for name, text in shown.items()}


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


def _functions(body: list[ast.stmt], name: str) -> list[Function]:
    """Return the definitions of a function or method: its overloads and, as the last, its implementation."""
    found = [node for node in body if isinstance(node, Function) and node.name == name]
    return [node for node in found if not any(each.endswith(".setter") for each in _decorators(node))]


def _visible(nodes: list[Function]) -> list[Function]:
    """Return the overloads, if there are any, as type checkers do."""
    return [node for node in nodes if "overload" in _decorators(node)] or nodes[-1:]


def _decorators(node: Function) -> list[str]:
    return [ast.unparse(each) for each in node.decorator_list]


def _body(kind: type) -> list[ast.stmt]:
    """Return the body of a class, with what is only for type checkers."""
    nodes = _classes(kind.__qualname__) if kind.__module__.startswith("aswarm") else []
    return [
        each for node in nodes for part in node.body for each in (part.body if isinstance(part, ast.If) else [part])
    ]


def _all_of(kind: type) -> list[ast.stmt]:
    """Return the body of a class; of a TypedDict, which has no bases at run time, also the bodies of its bases."""
    nodes = _classes(kind.__qualname__) if issubclass(kind, dict) else []
    return [each for node in nodes for each in _with_bases(node)] or _body(kind)


def _with_bases(node: ast.ClassDef) -> list[ast.stmt]:
    bases = [base for each in node.bases for base in _classes(ast.unparse(each))]
    return [*(each for base in bases for each in _with_bases(base)), *node.body]


def _classes(name: str) -> list[ast.ClassDef]:
    """Return the class with this name: no two classes of aswarm have the same name."""
    return [each for each in _defined().get(name.partition("[")[0], []) if isinstance(each, ast.ClassDef)]


@cache
def _defined() -> dict[str, list[ast.ClassDef | ast.expr]]:
    """Return the classes, and the values of aliases and constants, that the source defines for a name."""
    found: dict[str, list[ast.ClassDef | ast.expr]] = {}
    for node in (node for path in sorted((reference.SOURCE / "aswarm").rglob("*.py")) for node in _top(_tree(path))):
        if isinstance(node, ast.ClassDef):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            found.setdefault(ast.unparse(target), []).append(node.value)
    return found


@cache
def _public() -> frozenset[str]:
    return frozenset(name for names in reference.modules().values() for name in names)


def _top(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements of a module, and those for type checkers."""
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from node.body
        else:
            yield node


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))

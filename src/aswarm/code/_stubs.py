"""The functions of a snippet as Python, for model, type check and sandbox; and their results as Python values. No I/O.

Monty reports a call of a host function when it is made. So the sandbox has an `async def` for each tool, and Python's own
rules decide when its call starts.

The code gets the value that the function returned, as JSON data. If a guard or another middleware has replaced the content of the
call, the code gets this content.
"""

from __future__ import annotations

import ast
import inspect
import json
import keyword
import re
from collections.abc import AsyncIterable, Awaitable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args, get_origin

from pydantic import TypeAdapter
from pydantic_core import from_json, to_jsonable_python

from aswarm._values.errors import ConfigurationError
from aswarm._values.hints import modern
from aswarm._values.json import finite, is_array, is_object, whole_characters
from aswarm._values.text import whole_escapes
from aswarm.extensions import Tool

# How a text becomes a value: it is a text; it is data, because the return hint excludes texts; the return hint allows both, so it
# is a text; or there is no hint, and it is data if it is an object or an array.
Reading: TypeAlias = Literal["text", "data", "both", "any"]
_CUT = "\n[cut off: {} of {} characters]"


def value_of(value: Any, text: str, reading: Reading) -> Any:
    """Return the value of a call for the code. `value`: the returned value as JSON data; `text`: its result for the model."""
    if not isinstance(value, str):
        return text if reading == "text" else value
    return value if reading in ("text", "both") else _data_of(text, reading)


def _data_of(text: str, reading: Reading) -> Any:
    if reading == "any" and text[:1] not in ("{", "["):
        return text
    try:
        return from_json(whole_escapes(text))  # the sandbox has no halves of surrogate pairs
    except ValueError:
        return _python_value(text) if reading == "data" else text


def _python_value(text: str) -> Any:
    # A tuple, a set, None and the booleans have their Python form in a tool message.
    try:
        return ast.literal_eval(whole_escapes(text))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def arguments_text(arguments: dict[str, Any]) -> str:
    """Return the arguments of a call as JSON text. Raises ValueError for values without a JSON form."""
    return whole_characters(
        json.dumps(to_jsonable_python(arguments), ensure_ascii=False)
    )  # pydantic refuses deep nesting


def result_text(printed: str, value: Any, limit: int) -> str:
    """Return the result of the code for the model: the printed text, then the value of the last expression."""
    parts = [part for part in (printed.rstrip("\n"), "" if value is None else _text(value)) if part]
    return cut("\n".join(parts) or "(the code printed nothing, and its last line has no value)", limit)


def cut(text: str, limit: int) -> str:
    """Return the text with at most `limit` characters, and a note if it was longer."""
    return text if len(text) <= limit else text[:limit] + _CUT.format(limit, len(text))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(finite(to_jsonable_python(value, fallback=repr)), ensure_ascii=False)
    except (ValueError, RecursionError):
        return f"(a value of the type {type(value).__name__}, which cannot be shown)"


# The function of the sandbox that makes a call of the host, and the default of a parameter that is not passed.
CALL = "_call"
_UNSET = "_unset"
_IMPORTS = "import asyncio\nfrom typing import Any, Literal\n"
# In a stub, only a name with an alias is visible outside. The checker does not know PermissionError, and the sandbox does.
_HEADER = """\
import asyncio as asyncio
from typing import Any as Any, Literal as Literal, NotRequired, TypedDict

class PermissionError(OSError): ...
"""
_PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


@dataclass(frozen=True, slots=True)
class Stubs:
    """The functions as Python.

    `text`: their signatures and docstrings, for the model. `checked`: the same for the type check, which also takes None for a
    default. `prelude`: their definitions
    for the sandbox.
    `names`: the names of the tools by their names in Python. `readings`: see `value_of`, by the names of the tools.
    """

    text: str
    checked: str
    prelude: str
    names: Mapping[str, str]
    readings: Mapping[str, Reading]


def stubs_of(tools: Iterable[Tool[..., Any]]) -> Stubs:
    """Return the stubs of the tools. Raises ConfigurationError if two tools have the same name in Python."""
    types = _Types()
    names: dict[str, str] = {}
    readings: dict[str, Reading] = {}
    shown, checked, definitions = list[str](), list[str](), list[str]()
    for tool in tools:
        function = tool.schema["function"]
        name = _identifier(function["name"])
        if name in names or name in types.taken:
            raise ConfigurationError(
                f"code_tool: the name {name!r} is used twice in Python, by {names.get(name, 'a type')!r} and "
                f"{function['name']!r}; rename one with @tool(name=...)"
            )
        names[name] = function["name"]
        returned, readings[function["name"]] = _returned(tool, types, name)
        parameters, description = _parameters(tool, types, name), function.get("description") or ""
        shown.append(_signature(name, parameters, returned, description))
        checked.append(_signature(name, parameters, returned, description, is_checked=True))
        definitions.append(_definition(name, parameters))
    classes = [*types.definitions.values()]
    text, to_check = ("\n\n".join([*classes, *each]) + "\n" for each in (shown, checked))
    aliases = [f"{name} = dict" for name in types.definitions]
    prelude = "\n".join([_IMPORTS, f"{_UNSET} = ('unset',)", *aliases, *definitions]) + "\n"
    return Stubs(text, f"{_HEADER}\n{to_check}", prelude, names, readings)


# --- functions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Parameter:
    """A parameter. `key`: its name in the arguments of the tool; None if the parameter has all arguments as a dict.

    `null_is_default`: whether None means the default, although the type may refuse it.
    """

    name: str
    key: str | None
    hint: str
    is_required: bool
    null_is_default: bool = False


def _parameters(tool: Tool[..., Any], types: _Types, function: str) -> list[_Parameter]:
    schema: Mapping[str, Any] = tool.schema["function"]["parameters"]
    properties: Mapping[str, Any] = schema.get("properties") or {}
    if not all(map(_is_name, properties)):
        return [_Parameter("arguments", None, "dict[str, Any]", is_required=True)]
    required = set[str](schema.get("required") or ())
    defs: Mapping[str, Any] = schema.get("$defs") or {}
    is_validated = tool.parameters is None
    parameters = [
        _Parameter(
            key, key, types.hint(each, defs, f"{function}_{key}"), key in required, is_validated and key not in required
        )
        for key, each in properties.items()
    ]
    return sorted(parameters, key=lambda parameter: not parameter.is_required)


def _signature(
    name: str, parameters: list[_Parameter], returned: str, description: str, *, is_checked: bool = False
) -> str:
    hints = [f"{each.hint} | None" if is_checked and each.null_is_default else each.hint for each in parameters]
    defaults = ["" if each.is_required else " = ..." for each in parameters]
    listed = ", ".join(
        f"{each.name}: {hint}{default}" for each, hint, default in zip(parameters, hints, defaults, strict=True)
    )
    text = description.replace("\\", "\\\\").replace('"""', "'''").strip()
    body = f'    """{text}"""' if text else "    ..."
    return f"async def {name}({listed}) -> {returned}:\n{body}"


def _definition(name: str, parameters: list[_Parameter]) -> str:
    listed = ", ".join(each.name if each.is_required else f"{each.name}={_UNSET}" for each in parameters)
    if parameters and parameters[0].key is None:
        return f"async def {name}(arguments):\n    return await {CALL}({name!r}, arguments)"
    lines = [f"async def {name}({listed}):"]
    # A name that no parameter of a tool can have, because Python has no such name in a schema of a function.
    required = ", ".join(f"{each.key!r}: {each.name}" for each in parameters if each.is_required)
    lines.append(f"    _arguments = {{{required}}}")
    for each in parameters:
        if not each.is_required:
            lines += [f"    if {each.name} is not {_UNSET}:", f"        _arguments[{each.key!r}] = {each.name}"]
    lines.append(f"    return await {CALL}({name!r}, _arguments)")
    return "\n".join(lines)


def _returned(tool: Tool[..., Any], types: _Types, name: str) -> tuple[str, Reading]:
    """Return the return hint for the code, and how the content of a call becomes such a value."""
    hint: Any = tool.returns
    origin = get_origin(hint)
    if isinstance(origin, type) and issubclass(origin, Awaitable | AsyncIterable) and get_args(hint):
        hint = get_args(hint)[-1 if issubclass(origin, Coroutine) else 0]
    if hint is str:
        return "str", "text"
    if hint is inspect.Parameter.empty or tool.is_external or tool.effects.may_hand_off:
        return "Any", "any"
    try:
        schema = _as_returned(TypeAdapter[Any](modern(hint)).json_schema(mode="serialization"))
    except Exception:  # noqa: BLE001 - pydantic raises many errors for a hint that it cannot describe
        return "Any", "any"
    defs: Mapping[str, Any] = schema.get("$defs") or {}
    shown = types.hint(schema, defs, f"{name}_result")
    if shown in ("str", "Any"):
        return shown, "text" if shown == "str" else "any"
    return shown, "both" if _admits_text(schema, defs) else "data"


def _as_returned(schema: Any) -> Any:
    """Return the schema of a result: a field with a default is always there."""
    if is_array(schema):
        return [*map(_as_returned, schema)]
    if not is_object(schema):
        return schema
    changed = {key: _as_returned(each) for key, each in schema.items()}
    if is_object(properties := changed.get("properties")):
        always = [key for key, each in properties.items() if is_object(each) and "default" in each]
        changed["required"] = [*dict.fromkeys([*(changed.get("required") or ()), *always])]
    return changed


def _admits_text(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> bool:
    if "$ref" in schema:
        schema = defs.get(str(schema["$ref"]).rpartition("/")[2]) or {}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        return any(isinstance(each, str) for each in values)
    return schema.get("type") == "string" or any(
        _admits_text(each, defs) for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ())) if is_object(each)
    )


# --- types ------------------------------------------------------------------------------------------------------------


class _Types:
    """Python's hints for JSON schemas. `definitions`: the classes that the hints need, by name."""

    def __init__(self) -> None:
        self.definitions: dict[str, str] = {}
        self.taken = {"Any", "Literal", "NotRequired", "TypedDict", "asyncio", CALL, _UNSET}
        self._names: dict[str, str] = {}  # by the content of the schema
        self._open: list[str] = []  # the references without a class that are being described

    def hint(self, schema: Any, defs: Mapping[str, Any], name: str) -> str:
        """Return the hint of a schema. `name`: names its class, if it has one without a title."""
        if not is_object(schema):
            return "Any"
        if "$ref" in schema:
            return self._referred(str(schema["$ref"]), defs)
        if "const" in schema or "enum" in schema:
            return _literal([schema["const"]] if "const" in schema else schema["enum"])
        for key in ("anyOf", "oneOf"):
            if is_array(schema.get(key)):
                hints = dict.fromkeys(self.hint(each, defs, name) for each in schema[key])
                return "Any" if "Any" in hints or not hints else " | ".join(hints)
        if is_array(kinds := schema.get("type")):
            return " | ".join(dict.fromkeys(self.hint({**schema, "type": kind}, defs, name) for kind in kinds))
        return self._of_type(schema, defs, name)

    def _of_type(self, schema: Mapping[str, Any], defs: Mapping[str, Any], name: str) -> str:
        match schema.get("type"):
            case str(kind) if kind in _PLAIN:
                return _PLAIN[kind]
            case "array":
                return f"list[{self.hint(schema.get('items'), defs, f'{name}_item')}]"
            case "object" if schema.get("properties"):
                return self._class(schema, defs, name)
            case "object":
                return f"dict[str, {self.hint(schema.get('additionalProperties'), defs, f'{name}_value')}]"
            case _:
                return "Any"

    def _referred(self, reference: str, defs: Mapping[str, Any]) -> str:
        key = reference.rpartition("/")[2]
        schema = defs.get(key)
        if not is_object(schema):
            return "Any"
        if schema.get("properties"):
            return self._named(schema, defs, key)
        if key in self._open:  # a list of lists of itself has no name in Python
            return "Any"
        self._open.append(key)
        hint = self.hint(schema, defs, key)
        self._open.pop()
        return hint

    def _class(self, schema: Mapping[str, Any], defs: Mapping[str, Any], name: str) -> str:
        return self._named(schema, defs, str(schema.get("title") or name))

    def _named(self, schema: Mapping[str, Any], defs: Mapping[str, Any], wanted: str) -> str:
        """Return the name of the class of an object, and define the class if no other function has the same one."""
        properties: Mapping[str, Any] = schema["properties"]
        if not all(map(_is_name, properties)):
            return "dict[str, Any]"
        content = json.dumps([wanted, schema, _parts(schema, defs)], sort_keys=True)
        if (known := self._names.get(content)) is not None:
            return known
        own = self._names[content] = self._free(wanted)  # before its fields, which may contain it
        required = set[str](schema.get("required") or ())
        hints = {key: self.hint(each, defs, f"{wanted}_{key}") for key, each in properties.items()}
        lines = [f"    {key}: {hint if key in required else f'NotRequired[{hint}]'}" for key, hint in hints.items()]
        self.definitions[own] = "\n".join([f"class {own}(TypedDict):", *lines])
        return own

    def _free(self, wanted: str) -> str:
        words = re.split(r"[^A-Za-z0-9]+", wanted)
        base = "".join(word[:1].upper() + word[1:] for word in words if word) or "Data"
        base = base if base[0].isalpha() else f"Data{base}"
        name, number = base, 1
        while name in self.taken:
            number += 1
            name = f"{base}{number}"
        self.taken.add(name)
        return name


def _parts(schema: Any, defs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definitions that a schema refers to, directly or through others."""
    found: dict[str, Any] = {}
    texts = [json.dumps(schema)]
    for text in texts:  # the list grows during the loop
        for key in re.findall(r'"\$ref": "[^"]*/([^"/]+)"', text):
            if key in defs and key not in found:
                found[key] = defs[key]
                texts.append(json.dumps(defs[key]))
    return found


def _literal(values: Any) -> str:
    kinds = (str, int, bool, type(None))
    if not is_array(values) or not values or not all(isinstance(each, kinds) for each in values):
        return "Any"
    return f"Literal[{', '.join(map(repr, values))}]"


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text) and not text.startswith("_")


def _identifier(name: str) -> str:
    made = re.sub(r"\W", "_", name)
    return made if made.isidentifier() and not keyword.iskeyword(made) and made[0] != "_" else f"tool_{made}"

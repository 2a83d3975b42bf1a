"""Types of the context variables: a view of the context for one call, and the changes that the call made to it.

A view is a separate value, made from the JSON of its fields. So a view is the same in the first run and after a load from a
store. A write to the view, or to a container in it, changes nothing else. `changes` compares the JSON before and after a call.
At the end: whether nothing in a value of a type can be changed, as type checkers see it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import pathlib
import types
import typing
import uuid
import warnings
from collections import abc
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Required, Union, cast, get_args, get_origin

import typing_extensions
from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from .context_forms import ViewForm, as_json, merged, same, shapes_of
from .errors import ConfigurationError
from .hints import modern, readable_hints

_UNIONS = (Union, types.UnionType)
_KINDS = "a TypedDict, a dataclass, a pydantic model, a dict or a Mapping"


def context_type(hint: Any) -> ContextType | None:
    """Return the type of the context for a hint; None for a dict, a Mapping, or a hint that is no class.

    Raises ConfigurationError for a type without a JSON form, and for a class that a dict cannot stand for.
    """
    hint = _plain(hint)
    if get_origin(hint) in _UNIONS:
        if not any(_has_fields(option) for option in get_args(hint)):
            return None
        raise ConfigurationError(f"the context variables cannot have the type {hint}; use one type, not a union")
    return _context_type(hint)


@functools.lru_cache(maxsize=256)
def _context_type(hint: Any) -> ContextType | None:
    kind: Any = get_origin(hint) or hint
    if not isinstance(kind, type) or kind is Any:
        return None
    if _fields_of(kind) is not None:
        return ContextType(hint)
    if not _is_of_dict(kind):
        raise ConfigurationError(f"the context variables cannot have the type {kind.__name__}; use {_KINDS}")
    return None


class ContextType:
    """A TypedDict, a dataclass or a pydantic model as the type of the context variables.

    `name`: the name of the type. `is_read_only`: whether nothing in a view can be changed.

    Raises ConfigurationError for a field without a JSON form, or with an alias.
    """

    __slots__ = ("_adapter", "_fields", "_has_functions", "_is_typed_dict", "_shapes", "is_read_only", "name")

    def __init__(self, hint: Any) -> None:
        kind: Any = get_origin(hint) or hint
        self.name: str = kind.__name__
        self._is_typed_dict = typing_extensions.is_typeddict(kind)
        self._fields = frozenset(_fields_of(kind) or ())
        self._adapter = _adapter_of(hint, kind, self._fields)
        self.is_read_only = is_read_only(hint)
        # Nothing is written back to a read-only type.
        self._shapes, self._has_functions = shapes_of({} if self.is_read_only else self._adapter.core_schema)

    def read(self, context: Mapping[Any, Any]) -> Any:
        """Return a view of the context. Raises ConfigurationError if the context does not fit."""
        declared = {key: context[key] for key in self._fields if key in context}
        try:
            value = self._adapter.validate_json(as_json(declared))
        except ValidationError as error:
            raise self._misfit(_faults(error)) from None  # the cause would show the values
        except PydanticSerializationError:
            faults = [f"{key}: the value has no JSON form" for key, item in declared.items() if not _has_json(item)]
            raise self._misfit("; ".join(faults)) from None
        except Exception as error:  # of a validator of the user
            raise self._misfit(f"a validator raised {type(error).__name__}") from error
        if self._is_typed_dict and self.is_read_only:
            return types.MappingProxyType(cast("dict[str, Any]", value))
        return value

    def view(self, context: Mapping[Any, Any]) -> ContextView:
        """Return a view that can find its changes. Raises ConfigurationError if the context does not fit."""
        value = self.read(context)
        if self.is_read_only:
            return ContextView(self, value, {}, None)
        declared = {key: context[key] for key in self._fields if key in context}
        before = self._form(value, declared)
        if self._has_functions:
            self._check_form(before)
        return ContextView(self, value, declared, before)

    def _form(self, value: Any, source: Any, earlier: ViewForm | None = None) -> ViewForm:
        data = self._adapter.dump_python(value, mode="json", by_alias=True, warnings=False)
        return ViewForm(self._shapes, value, data, source, earlier)

    def _check_form(self, form: ViewForm) -> None:
        """Raise ConfigurationError if a serializer writes a form that the type cannot read."""
        try:
            self._adapter.validate_json(as_json(form.data))
        except ValidationError as error:
            raise ConfigurationError(
                f"{self.name} has a serializer whose JSON form the type cannot read, so no change can be stored: {_faults(error)}"
            ) from None

    def changes(
        self, context: Mapping[Any, Any], source: Mapping[str, Any], before: ViewForm, value: Any
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the changed fields of a view as JSON data, and the removed keys.

        `context`: the context variables, which other calls may have changed since the start. `source`: the fields that the view
        was read from. `before`: the form of the view at the start. Raises TypeError if a change does not fit the type.
        """
        declared = {key: context[key] for key in self._fields if key in context}
        try:
            undeclared = self._undeclared(value)
            after = before if undeclared else self._form(value, source, before)
            if undeclared := undeclared or after.undeclared:
                raise self._misfit_of_change(f"{undeclared}: the type has no such field")
            keys = [key for key in after.data if key not in before.data or not same(before.data[key], after.data[key])]
            removed = [key for key in before.data if key not in after.data]
            if not (keys or removed):
                return {}, []
            changed = merged(declared, before, after, after.data)
            checked = self._form(self._adapter.validate_json(as_json(changed)), changed)
            changed = merged(declared, before, after, checked.data)
        except ValidationError as error:
            raise self._misfit_of_change(_faults(error)) from None
        except (PydanticSerializationError, AttributeError) as error:
            raise self._misfit_of_change(str(error)) from None
        return {key: changed[key] for key in keys}, removed

    def _undeclared(self, value: Any) -> str:
        """Return an attribute or key that was set, but that the type does not declare; empty if there is none."""
        attributes: Any = value if self._is_typed_dict else getattr(value, "__pydantic_extra__", None) or {}
        return next((str(key) for key in attributes if key not in self._fields), "")

    def _misfit(self, faults: str) -> ConfigurationError:
        return ConfigurationError(f"the context variables do not fit {self.name}: {faults}")

    def _misfit_of_change(self, faults: str) -> TypeError:
        return TypeError(f"the function changed context variables to values that do not fit {self.name}: {faults}")


@dataclasses.dataclass(frozen=True, slots=True)
class ContextView:
    """The view of one call. `value`: the argument of the function. `source`: the context variables that it was read from.

    `before`: its JSON form at the start; None for a view that cannot change.
    """

    kind: ContextType
    value: Any
    source: Mapping[str, Any]
    before: ViewForm | None

    def merge_into(self, context: dict[Any, Any]) -> None:
        """Apply the changes of the call. If a change does not fit the type, raise TypeError and apply no change."""
        if self.before is None:
            return
        changed, removed = self.kind.changes(context, self.source, self.before, self.value)
        for key in removed:
            context.pop(key, None)
        context.update(changed)


def _plain(hint: Any) -> Any:
    """Return the hint without `Annotated` and without None: a run always has context variables."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in _UNIONS:
        options = [option for option in get_args(hint) if option is not types.NoneType]
        return _plain(options[0]) if len(options) == 1 else hint
    return hint


def _has_fields(hint: Any) -> bool:
    kind: Any = get_origin(hint := _plain(hint)) or hint
    return isinstance(kind, type) and _fields_of(kind) is not None


def _fields_of(kind: Any) -> list[str] | None:
    """Return the names of the fields that a view has; None for a class that is not a TypedDict, a dataclass or a model."""
    if typing_extensions.is_typeddict(kind):
        return [*kind.__required_keys__, *kind.__optional_keys__]
    if issubclass(kind, BaseModel):
        return list(kind.model_fields)
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind) if field.init]
    return None


def _is_of_dict(kind: Any) -> bool:
    """Return whether a dict may be passed where this class is the hint."""
    if issubclass(kind, Mapping) or getattr(kind, "_is_protocol", False):
        return True
    try:
        return issubclass(dict, kind)
    except TypeError:
        return True


def _adapter_of(hint: Any, kind: Any, fields: frozenset[str]) -> TypeAdapter[Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pydantic cannot enforce `ReadOnly`; type checkers do
            adapter: TypeAdapter[Any] = TypeAdapter(modern(hint))
            schema = adapter.json_schema(by_alias=True)
            written = adapter.json_schema(by_alias=True, mode="serialization")
    except Exception as error:
        is_unfinished = isinstance(error, PydanticUserError) and error.code == "class-not-fully-defined"
        fault = "a field in it names a class that cannot be found; define both at the top level of their module"
        raise _without_json(kind) or ConfigurationError(
            f"the context variables cannot have the type {kind.__name__}: {fault if is_unfinished else error}"
        ) from error
    if b'"writeOnly":true' in to_json([schema, written]):
        raise ConfigurationError(
            f"{kind.__name__} has a secret, whose JSON form is asterisks; pass secrets in resources={{...}}"
        )
    if renamed := fields - _properties(schema) or fields - _properties(written):
        raise ConfigurationError(
            f"{kind.__name__}.{min(renamed)} has an alias or is excluded; the context variables have the names of the fields"
        )
    return adapter


def _properties(schema: Any) -> set[str]:
    if "$ref" in schema:
        schema = schema["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    return set(schema.get("properties", ()))


def _without_json(kind: Any) -> ConfigurationError | None:
    """Return the error for the first field whose type has no JSON form, such as a client; None if there is none."""
    try:
        hints = readable_hints(kind)
    except Exception:  # noqa: BLE001 - a name in a hint has no value
        return None
    for name, hint in hints.items():
        try:
            TypeAdapter(modern(_plain_item(hint))).json_schema(mode="serialization")
        except Exception:  # noqa: BLE001 - the reason is in the cause
            shown = getattr(_plain(hint), "__name__", str(hint))
            return ConfigurationError(
                f"{kind.__name__}.{name} has the type {shown}, which has no JSON form; pass clients and connections in "
                f"resources={{...}}, with the parameter {name}: Resource[{shown}]"
            )
    return None


def _plain_item(hint: Any) -> Any:
    while get_origin(hint) in (typing.Required, typing.NotRequired, typing_extensions.ReadOnly, typing.ClassVar):
        hint = get_args(hint)[0]
    return hint


def _faults(error: ValidationError) -> str:
    # The texts do not contain the values: the model reads some of these texts, and must not see the context.
    details = error.errors(include_url=False, include_input=False, include_context=False)
    faults = [f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}".removeprefix(": ") for detail in details]
    return "; ".join(" ".join(fault.split()) for fault in faults)


def _has_json(value: Any) -> bool:
    try:
        as_json(value)
    except PydanticSerializationError:
        return False
    return True


_SCALARS = (
    *(str, int, float, complex, bool, bytes, types.NoneType, decimal.Decimal, fractions.Fraction, uuid.UUID),
    *(dt.date, dt.time, dt.timedelta, dt.tzinfo, pathlib.PurePath, enum.Enum),
)
# Abstract containers have no method that writes.
_CONTAINERS = (tuple, frozenset, abc.Sequence, abc.Mapping, abc.Set, abc.Collection, abc.Iterable)
_QUALIFIERS = (Required, typing_extensions.NotRequired, typing_extensions.ReadOnly, typing.Final, typing.ClassVar)


def is_read_only(hint: Any, outer_types: frozenset[Any] = frozenset()) -> bool:
    """Return whether nothing in a value of this type can be changed.

    True for scalars. Also true for `tuple`, `frozenset`, abstract containers, frozen dataclasses, frozen models, and TypedDicts
    with only `ReadOnly` items, if everything inside is read-only. False for `Any`, which may be a list. `outer_types`: the types
    around this one.
    """
    hint = _inside(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal or hint is None:
        return True
    if origin in (*_UNIONS, *_CONTAINERS):
        return _are_read_only((argument for argument in arguments if argument is not ...), outer_types)
    kind: Any = origin or hint
    if not isinstance(kind, type) or kind in outer_types:
        return kind in outer_types  # a type inside itself is decided by its other fields
    return issubclass(kind, _SCALARS) or _is_read_only_class(kind, outer_types | {kind})


def _inside(hint: Any) -> Any:
    """Return the hint inside `Annotated`, qualifiers, aliases and new types."""
    while True:
        if get_origin(hint) in (Annotated, *_QUALIFIERS):
            hint = get_args(hint)[0]
        elif type(hint).__name__ == "TypeAliasType":  # of `typing`, or of typing_extensions
            hint = hint.__value__
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        else:
            return hint


def _are_read_only(hints: Iterable[Any], outer_types: frozenset[Any]) -> bool:
    return all(is_read_only(hint, outer_types) for hint in hints)


def _is_read_only_class(kind: Any, outer_types: frozenset[Any]) -> bool:
    parameters: Any = getattr(kind, "__dataclass_params__", None)
    if typing_extensions.is_typeddict(kind):
        hints = readable_hints(kind)
        return all(map(_is_read_only_item, hints.values())) and _are_read_only(hints.values(), outer_types)
    if issubclass(kind, BaseModel):
        fields = kind.model_fields.values()
        is_frozen = bool(kind.model_config.get("frozen")) or all(field.frozen for field in fields)
        return is_frozen and _are_read_only((field.annotation for field in fields), outer_types)
    if parameters is not None:
        hints = readable_hints(kind)
        return bool(parameters.frozen) and _are_read_only(map(hints.get, kind.__dataclass_fields__), outer_types)
    return False


def _is_read_only_item(hint: Any) -> bool:
    while (origin := get_origin(hint)) in (Required, typing_extensions.NotRequired, Annotated):
        hint = get_args(hint)[0]
    return origin is typing_extensions.ReadOnly

"""The JSON form of a typed view, in the keys that reading uses, and the merge of its changes at every depth.

A type may declare only a part of the data in the context variables. So a change is merged into the data from which the view was
read: what the function did not change stays as it is, also keys that the type does not know. `FieldKeys` come from pydantic's
core schema, because only this schema has the keys of nested models, dataclasses and TypedDicts in one form.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from pydantic import RootModel
from pydantic_core import from_json, to_json, to_jsonable_python

from .errors import ConfigurationError
from .json import is_array, is_object

_NOTHING: Any = object()
_NEAR = 20  # if a function changes a list in place, a changed copy of an item is searched this number of places from it
_SETS = (set, frozenset)


# --- the keys of a type -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FieldKeys:
    """The keys of one field in JSON. `reads`: from the first choice of a reader to the last. `written`: the key in a dump."""

    reads: tuple[str, ...]
    written: str


@dataclass(frozen=True, slots=True)
class Shape:
    """The fields of a nested class. `is_custom`: whether a serializer of the class makes its JSON form."""

    fields: Mapping[str, FieldKeys]
    is_custom: bool


Shapes: TypeAlias = Mapping[type, Shape]


def shapes_of(schema: object) -> tuple[Shapes, bool]:
    """Return the shapes of the models and dataclasses in a core schema, and whether a function makes a part of the JSON form.

    Raises ConfigurationError for a nested field that cannot be written back.
    """
    shapes: dict[type, Shape] = {}
    has_functions = False
    for node in _schemas_in(schema):
        is_custom = str(_get(node.get("serialization"), "type")).startswith("function-")
        has_functions = has_functions or is_custom
        kind, cls = node["type"], node.get("cls")
        if kind == "typed-dict":
            _check_items(node)
        elif kind in ("model", "dataclass") and isinstance(cls, type) and not node.get("root_model"):
            shapes[cls] = Shape(dict(_fields_of(node, cls)), is_custom)
    return shapes, has_functions


def _schemas_in(schema: object) -> Iterator[Mapping[str, Any]]:
    nodes: list[object] = [schema]
    for node in nodes:  # the list grows during the loop
        if is_object(node):
            nodes.extend(node.values())
            if isinstance(node.get("type"), str):
                yield node
        elif is_array(node):
            nodes.extend(node)


def _fields_of(schema: Mapping[str, Any], cls: type) -> Iterator[tuple[str, FieldKeys]]:
    inner = schema
    while "fields" not in inner or inner is schema:
        inner = inner["schema"]  # inside the validators of the class
    fields = inner["fields"]
    named = fields.items() if is_object(fields) else ((entry["name"], entry) for entry in fields)
    config: Mapping[str, Any] = schema.get("config") or {}
    for name, field in named:
        if field.get("init") is not False and not field.get("init_only"):
            yield name, FieldKeys(_reads(name, field, config, cls), field.get("serialization_alias") or name)


def _reads(name: str, field: Mapping[str, Any], config: Mapping[str, Any], cls: type) -> tuple[str, ...]:
    alias = field.get("validation_alias")
    if alias is None or config.get("validate_by_alias") is False:
        return (name,)
    paths: list[Any] = [[alias]] if isinstance(alias, str) else alias
    paths = paths if all(map(is_array, paths)) else [paths]
    if any(len(path) > 1 for path in paths):
        raise ConfigurationError(
            f"{cls.__name__}.{name} is read from a path inside of another value, so a change cannot be written back; use "
            "an alias that is one key"
        )
    by_name = config.get("validate_by_name") or config.get("populate_by_name")
    return tuple(dict.fromkeys([path[0] for path in paths] + ([name] if by_name else [])))


def _check_items(schema: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for an item of a TypedDict that is read and written under different keys."""
    for name, field in schema["fields"].items():
        alias = field.get("validation_alias") or name
        if field.get("serialization_exclude") or alias != (field.get("serialization_alias") or name):
            raise ConfigurationError(
                f"{schema.get('cls_name') or getattr(schema.get('cls'), '__name__', 'TypedDict')}.{name} is not written under the key "
                "from which it is read, so a change would be lost; give it one alias, and do not exclude it"
            )


def _get(value: object, key: str) -> Any:
    return value.get(key) if is_object(value) else None


# --- the form of a view -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Known:
    """An object of a view when the call started. `source`: the data from which it was read. `form`: its JSON form."""

    value: object  # kept alive, so that no other object gets its id()
    source: Any
    form: dict[str, Any]
    names: frozenset[str]


class ViewForm:
    """The JSON form of the value of one view.

    `data`: the form. `known`: the objects in the value with their form, by id(). `earlier`: the same for the start of the call.
    """

    def __init__(self, shapes: Shapes, value: Any, data: Any, source: Any, earlier: ViewForm | None = None) -> None:
        self._shapes = shapes
        self._earlier = earlier
        self._known: dict[int, _Known] = {}
        # By the id() of a dict or list in `data`.
        self._kinds: dict[int, type] = {}
        self._origins: dict[int, _Known] = {}
        self.undeclared = ""
        self.data: dict[str, Any] = self._form(value, data, source)

    def origin(self, node: object) -> _Known | None:
        """Return the object of the start of the call that has this form now."""
        return self._origins.get(id(node))

    def origins(self) -> set[int]:
        """Return the id() of the form of each object of the start of the call that is still in the value."""
        return {id(origin.form) for origin in self._origins.values()}

    def kind(self, node: object) -> type | None:
        """Return the class of the value with this form."""
        return self._kinds.get(id(node))

    def _form(self, value: Any, data: Any, source: Any) -> Any:
        while isinstance(value, RootModel):
            value = value.root  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - of any type
        if is_array(data):
            return self._array(value, data, source)
        return self._object(value, data, source) if is_object(data) else data

    def _array(self, value: Any, data: Sequence[Any], source: Any) -> list[Any]:
        items: list[Any] = list(value) if hasattr(value, "__len__") and len(value) == len(data) else [None] * len(data)
        source = _readable(source)
        has_order = is_array(source) and len(source) == len(data) and type(value) not in _SETS
        sources = source if has_order else [None] * len(data)
        form = list(map(self._form, items, data, sources))
        self._kinds[id(form)] = type(value)
        return form

    def _object(self, value: Any, data: Mapping[str, Any], source: Any) -> dict[str, Any]:
        known = self._earlier._known.get(id(value)) if self._earlier is not None else None
        readable = _readable(source) if known is None else known.source
        source = readable if is_object(readable) else {}
        shape = next((self._shapes[base] for base in type(value).__mro__ if base in self._shapes), None)
        if shape is not None:
            form = self._fields(value, data, source, shape)
            self._note_undeclared(getattr(value, "__dict__", ()), shape.fields, known, type(value))
        elif is_object(value):
            form = self._items(value, data, source)
            if self._earlier is not None and len(value) != len(data):
                self.undeclared = self.undeclared or next(str(key) for key in value if str(key) not in data)
        else:
            form = dict(data)
        self._kinds[id(form)] = type(value)
        if known is not None:
            self._origins[id(form)] = known
        names = frozenset(getattr(value, "__dict__", ()))
        self._known[id(value)] = _Known(value, readable, form, names)
        return form

    def _fields(self, value: Any, data: Mapping[str, Any], source: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
        if shape.is_custom:
            read_keys = {key for keys in shape.fields.values() for key in keys.reads}
            if len(source.keys() & data.keys()) > len(source.keys() & read_keys):
                return dict(data)  # the source has the form that the serializer of the class makes
        form: dict[str, Any] = {}
        for name, keys in shape.fields.items():
            item = getattr(value, name)
            key = next((candidate for candidate in keys.reads if candidate in source), keys.reads[0])
            written = data[keys.written] if keys.written in data else to_jsonable_python(item)
            form[key] = self._form(item, written, source.get(key))
        extra: Mapping[str, Any] = getattr(value, "__pydantic_extra__", None) or {}
        form |= {key: self._form(extra[key], data[key], source.get(key)) for key in extra if key in data}
        return form

    def _items(self, value: Mapping[Any, Any], data: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
        if len(value) == len(data):  # a dump has the order of the dict
            pairs = zip(value.values(), data.items(), strict=True)
            return {key: self._form(item, written, source.get(key)) for item, (key, written) in pairs}
        return {key: self._form(value.get(key), data[key], source.get(key)) for key in data}

    def _note_undeclared(
        self, names: Iterable[str], declared: Mapping[str, Any], known: _Known | None, kind: Any
    ) -> None:
        """Note a name that the function has set, but that the type does not declare, because it would be lost."""
        if known is None or self.undeclared:
            return
        undeclared = (name for name in names if name not in declared and name not in known.names)
        self.undeclared = next((name for name in undeclared if not hasattr(kind, name)), "")


# --- the merge --------------------------------------------------------------------------------------------------------


def merged(source: Mapping[str, Any], before: ViewForm, after: ViewForm, checked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source with the changes between two forms. `checked`: the second form, after its validators ran.

    `source`: the data now. Another call may have changed them since the first form, so they keep what this call did not change.
    """
    return cast("dict[str, Any]", _Merge(before, after).value(source, before.data, after.data, checked))


class _Merge:
    def __init__(self, before: ViewForm, after: ViewForm) -> None:
        self._before = before
        self._after = after
        self._moved = after.origins()

    def value(self, source: Any, before: Any, after: Any, checked: Any) -> Any:
        origin = self._after.origin(after)
        if origin is None and id(before) in self._moved:  # the old object is somewhere else now, so this is another one
            source, before = _NOTHING, _NOTHING
        elif origin is not None and origin.form is not before:  # it comes from somewhere else
            source, before = origin.source, origin.form
        if before is not _NOTHING and source is not _NOTHING and same(before, after):
            return source
        if is_object(after):
            return self._object(_readable(source), before, after, checked)
        return self._array(_readable(source), before, after, checked) if is_array(after) else checked

    def _object(self, source: Any, before: Any, after: Mapping[str, Any], checked: Any) -> dict[str, Any]:
        same_kind = self._before.kind(before) is self._after.kind(after)
        if not (is_object(source) and is_object(before) and same_kind):
            source, before = {}, {}
        checked = checked if is_object(checked) else after
        result = {key: item for key, item in source.items() if key in after or key not in before}
        for key, item in after.items():
            if key not in before or not same(before[key], item):
                old = source.get(key, _NOTHING), before.get(key, _NOTHING)
                result[key] = self.value(*old, item, checked.get(key, item))
        return result

    def _array(self, source: Any, before: Any, after: Sequence[Any], checked: Any) -> list[Any]:
        if not (is_array(checked) and len(checked) == len(after)):
            return cast("list[Any]", checked)
        kind = self._after.kind(after)
        if kind in _SETS and is_array(source):
            return _set_of(source, checked)
        if not (is_array(source) and is_array(before) and len(source) == len(before)):
            source, before = [], []
        result: list[Any] = []
        for place, old in enumerate(self._old_places(before, after)):
            pair = (_NOTHING, _NOTHING) if old is None else (source[old], before[old])
            result.append(self.value(*pair, after[place], checked[place]))
        return result

    def _old_places(self, before: Sequence[Any], after: Sequence[Any]) -> list[int | None]:
        """Return the place before the call of each item: of the same object, else of an equal item, else of a similar item."""
        places = _OldPlaces(before, after)
        positions = {id(item): place for place, item in enumerate(before)}
        for place, item in enumerate(after):
            origin = self._after.origin(item)
            if origin is not None and (old := positions.get(id(origin.form))) is not None:
                places.take(place, old)
        # Without any of its old objects, the list is a new one, of copies in any order.
        has_old = any(old is not None for old in places.places)
        reach = min(abs(len(after) - len(before)), _NEAR) if has_old else len(before)
        places.take_equal()
        places.take_similar(reach)
        for place in range(len(after)) if len(after) == len(before) else ():
            places.take(place, place)
        return places.places


class _OldPlaces:
    """Finds the place before the call of each item of a list. `places`: the old places that were found; None for a new item."""

    def __init__(self, before: Sequence[Any], after: Sequence[Any]) -> None:
        self.places: list[int | None] = [None] * len(after)
        self._before = before
        self._after = after
        # The old places that no item has taken, by the JSON of the item. Equal items have no difference that the type knows.
        self._free: defaultdict[bytes, dict[int, None]] = defaultdict(dict)
        self._texts = list(map(as_json, before))
        for place, text in enumerate(self._texts):
            self._free[text][place] = None

    def take(self, place: int, old: int) -> None:
        """Let the item at this place have this old place, if it is free."""
        if self.places[place] is None and old in self._free[self._texts[old]]:
            self.places[place] = old
            del self._free[self._texts[old]][old]

    def take_equal(self) -> None:
        for place, item in enumerate(self._after):
            if self._free.get(text := as_json(item)):
                self.take(place, self._nearest(text, place))

    def take_similar(self, reach: int) -> None:
        """Take the free place, at most `reach` away, whose item has the most of those members that only equal items have."""
        owners: dict[tuple[str, bytes], bytes | None] = {}
        for item, text in zip(self._before, self._texts, strict=True):
            for member in _members_of(item):
                owners[member] = text if owners.get(member, text) == text else None
        wanted: list[tuple[int, int, int, bytes]] = []
        for place, item in enumerate(self._after):
            if self.places[place] is None:
                counts = Counter(owners.get(member) for member in _members_of(item))
                wanted += (
                    (-count, abs(self._nearest(text, place) - place), place, text)
                    for text, count in counts.items()
                    if text is not None and self._free[text]
                )
        for _, _, place, text in sorted(wanted):
            if self._free[text] and abs((old := self._nearest(text, place)) - place) <= reach:
                self.take(place, old)

    def _nearest(self, text: bytes, place: int) -> int:
        """Return the same place, or else the first one, of the free places of equal items."""
        free = self._free[text]
        return place if place in free else next(iter(free))


def _members_of(item: Any) -> set[tuple[str, bytes]]:
    return {(key, as_json(value)) for key, value in item.items()} if is_object(item) else set()


def _set_of(source: Sequence[Any], checked: Sequence[Any]) -> list[Any]:
    """Return the items of a set in the order of the source, then the new items: a set has no order of its own."""
    new, kept = list(checked), list[Any]()
    for old_item in source:
        position = next((place for place, item in enumerate(new) if _covers(old_item, item)), None)
        if position is not None:
            kept.append(old_item)
            del new[position]
    return kept + new


def _covers(source: Any, item: Any) -> bool:
    if is_object(source) and is_object(item):
        return all(key not in source or same(source[key], value) for key, value in item.items())
    return same(source, item)


def _readable(source: Any) -> Any:
    """Return the source as JSON data if it is an object of another class, such as a model or a tuple."""
    if source is _NOTHING or type(source) in (list, str, int, float, bool):
        return source
    if type(source) is dict and set(map(type, source)) <= {str}:  # pyright: ignore[reportUnknownArgumentType]
        return source  # pyright: ignore[reportUnknownVariableType]
    return from_json(as_json(source))


def same(left: Any, right: Any) -> bool:
    """Return whether two values have the same JSON text: 1 == True == 1.0 in Python."""
    return left is right or as_json(left) == as_json(right)


def as_json(value: Any) -> bytes:
    """Return the value as JSON. NaN and the infinities are written as Python names them."""
    return to_json(value, inf_nan_mode="constants")

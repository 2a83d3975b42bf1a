"""Changes of a typed view at every depth: only the changes of a function are written back."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    computed_field,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)
from typing_extensions import TypedDict

from aswarm import Agent, AsyncSwarm, ConfigurationError, tool
from aswarm._values.context_forms import _OldPlaces
from aswarm._values.context_types import ContextType, context_type
from aswarm.middleware import Handlers, Started, ToolCall, ToolOutcome
from aswarm.testing import ScriptedModel, call

# --- drawn changes, in three kinds of types ---


class ItemModel(BaseModel):
    name: str = ""
    number: int = 0


class BoxModel(BaseModel):
    label: str = ""
    items: list[ItemModel] = []
    by_key: dict[str, ItemModel] = {}
    inner: ItemModel | None = None


class Model(BaseModel):
    box: BoxModel
    boxes: list[BoxModel] = []


@dataclass
class ItemClass:
    name: str = ""
    number: int = 0


@dataclass
class BoxClass:
    label: str = ""
    items: list[ItemClass] = field(default_factory=list)
    by_key: dict[str, ItemClass] = field(default_factory=dict)
    inner: ItemClass | None = None


@dataclass
class Class:
    box: BoxClass
    boxes: list[BoxClass] = field(default_factory=list)


class ItemDict(TypedDict, total=False):
    name: str
    number: int


class BoxDict(TypedDict, total=False):
    label: str
    items: list[ItemDict]
    by_key: dict[str, ItemDict]
    inner: ItemDict | None


class Dicts(TypedDict):
    box: BoxDict
    boxes: NotRequired[list[BoxDict]]


KINDS = (Model, Class, Dicts)
_hidden = st.dictionaries(
    st.sampled_from(("_a", "_b")), st.one_of(st.integers(0, 9), st.lists(st.just({"deep": 1}), max_size=1)), max_size=2
)


def _with_hidden(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda known, hidden: {**known, **hidden}, st.fixed_dictionaries(members), _hidden)


_items = _with_hidden(name=st.sampled_from("xyz"), number=st.integers(0, 2))
_boxes = _with_hidden(
    label=st.sampled_from("lm"),
    items=st.lists(_items, max_size=4),
    by_key=st.dictionaries(st.sampled_from("pq"), _items, max_size=2),
    inner=st.none() | _items,
)
_contexts = st.fixed_dictionaries({"box": _boxes, "boxes": st.lists(_boxes, max_size=2), "other": _hidden})
_writes = st.sampled_from(
    ("nothing", "leaf", "item leaf", "append", "remove", "reorder", "move", "value", "delete key", "add key", "inner")
)


def get(value: Any, name: str) -> Any:
    return value[name] if isinstance(value, dict) else getattr(value, name)


def put(value: Any, name: str, item: Any) -> None:
    if isinstance(value, dict):
        value[name] = item
    else:
        setattr(value, name, item)


def write(value: Any, what: str, place: int, new_item: Callable[[], Any]) -> None:
    """Make one change, in the same way in a view and in the plain data."""
    boxes = [get(value, "box"), *get(value, "boxes")]
    box = boxes[place % len(boxes)]
    items, by_key, inner = get(box, "items"), get(box, "by_key"), get(box, "inner")
    if what == "leaf":
        put(box, "label", "changed")
    elif what == "item leaf" and items:
        put(items[place % len(items)], "number", 99)
    elif what == "append":
        items.append(new_item())
    elif what == "remove" and items:
        del items[place % len(items)]
    elif what == "reorder":
        put(box, "items", items[::-1])
        if items:
            put(items[0], "number", 77)
    elif what == "move" and items:
        by_key["moved"] = items.pop()
    elif what == "value" and by_key:
        put(by_key[min(by_key)], "name", "changed")
    elif what == "delete key" and by_key:
        del by_key[min(by_key)]
    elif what == "add key":
        by_key["new"] = new_item()
    elif what == "inner":
        put(box, "inner", None) if inner is not None and place % 2 else put(inner or new_item(), "name", "in")


NEW: dict[Any, Callable[[], Any]] = {
    Model: lambda: ItemModel(name="new", number=5),
    Class: lambda: ItemClass(name="new", number=5),
    Dicts: lambda: {"name": "new", "number": 5},
}


def type_of(hint: Any) -> ContextType:
    found = context_type(hint)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", KINDS)
@given(_contexts, _writes, _writes, st.integers(0, 3))
def test_a_change_of_a_view_is_that_change_of_the_data(
    kind: Any, context: dict[str, Any], first: str, second: str, place: int
) -> None:
    """The context is the same as after the same change of the plain data; hidden keys survive at every depth."""
    expected = copy.deepcopy(context)
    view = type_of(kind).view(context)
    for what in (first, second):
        write(view.value, what, place, NEW[kind])
        write(expected, what, place, NEW[Dicts])
    view.merge_into(context)
    assert context == expected


# --- single cases ---


def changed(hint: Any, context: dict[str, Any], change: Callable[[Any], object]) -> dict[str, Any]:
    context = copy.deepcopy(context)
    view = type_of(hint).view(context)
    view.merge_into(context)
    assert repr(context) == repr(copy.deepcopy(context))
    change(view.value)
    view.merge_into(context)
    return context


class Line(BaseModel):
    name: str
    number: int = 1


class Cart(BaseModel):
    lines: list[Line] = []
    note: str = ""


class Shop(BaseModel):
    cart: Cart = Cart()


LINES = [{"name": "ink", "price": 3}, {"name": "pen", "price": 4, "tags": [{"a": 1}]}, {"name": "nib", "price": 5}]
SHOP: dict[str, Any] = {"cart": {"lines": LINES, "coupon": "X"}}


def lines(context: dict[str, Any]) -> list[Any]:
    return list(context["cart"]["lines"])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda cart: cart.lines.append(Line(name="new")), [*LINES, {"name": "new", "number": 1}]),
        (lambda cart: cart.lines.pop(0), LINES[1:]),
        (lambda cart: cart.lines.insert(0, Line(name="new")), [{"name": "new", "number": 1}, *LINES]),
        (lambda cart: cart.lines.reverse(), LINES[::-1]),
        (lambda cart: setattr(cart.lines[1], "number", 2), [LINES[0], {**LINES[1], "number": 2}, LINES[2]]),
        # copies of the items
        (
            lambda cart: setattr(cart, "lines", [each.model_copy(update={"number": 7}) for each in cart.lines]),
            [{**each, "number": 7} for each in LINES],
        ),
        (
            lambda cart: setattr(cart, "lines", [each.model_copy(update={"number": 7}) for each in cart.lines[1:]]),
            [{**each, "number": 7} for each in LINES[1:]],
        ),
        (lambda cart: setattr(cart, "lines", [each.model_copy() for each in cart.lines[::-1]]), LINES[::-1]),
        (
            lambda cart: setattr(cart, "lines", [each.model_copy(update={"number": 7}) for each in cart.lines[::-1]]),
            [{**each, "number": 7} for each in LINES[::-1]],
        ),
        (
            lambda cart: setattr(
                cart, "lines", [Line(name="new"), *(each.model_copy(update={"number": 7}) for each in cart.lines[::2])]
            ),
            [{"name": "new", "number": 1}, *({**each, "number": 7} for each in LINES[::2])],
        ),
        # the list is a queue: a new item is no copy of the item that has left
        (
            lambda cart: (cart.lines.pop(0), cart.lines.append(Line(name="new"))),
            [*LINES[1:], {"name": "new", "number": 1}],
        ),
        (lambda cart: setattr(cart, "lines", [Line(name="only")]), [{"name": "only", "number": 1}]),
        (lambda cart: setattr(cart, "lines", []), []),
    ],
)
def test_items_of_a_list_keep_their_unknown_keys(change: Callable[[Any], object], expected: list[Any]) -> None:
    """Items that were moved, changed or copied are found again; a new item has no key of another item."""
    context = changed(Shop, SHOP, lambda shop: change(shop.cart))
    assert lines(context) == expected
    assert context["cart"]["coupon"] == "X"


class Node(BaseModel):
    name: str
    inner: Node | None = None


class Tree(BaseModel):
    node: Node


def test_an_object_around_the_old_object_has_none_of_its_keys() -> None:
    """The old object has moved into the new one, with its unknown keys."""
    context = {"node": {"name": "old", "id": 1, "inner": {"name": "leaf", "id": 2}}}

    def change(tree: Tree) -> None:
        tree.node = Node(name="new", inner=tree.node)

    assert changed(Tree, context, change) == {"node": {"name": "new", "inner": context["node"]}}


class Named(BaseModel):
    kind: Literal["named"] = "named"
    name: str


class Counted(BaseModel):
    kind: Literal["counted"] = "counted"
    count: int


class Root(RootModel[list[Line]]):
    pass


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


class Mixed(BaseModel):
    value: Annotated[Named | Counted, Field(discriminator="kind")] = Named(name="")
    root: Root = Root([])
    pair: tuple[Line, int] | None = None
    tags: set[str] = set()
    points: set[Point] = set()
    numbered: dict[int, Line] = {}
    grid: list[list[Line]] = []
    days: list[dt.date] = []
    point: Point = Point(1)


@pytest.mark.parametrize(
    ("context", "change", "expected"),
    [
        (
            {"value": {"kind": "named", "name": "a", "hidden": 1}},
            lambda mixed: setattr(mixed.value, "name", "b"),
            {"value": {"kind": "named", "name": "b", "hidden": 1}},
        ),
        (
            {"value": {"kind": "named", "name": "a", "hidden": 1}},
            lambda mixed: setattr(mixed, "value", Counted(count=2)),
            {"value": {"kind": "counted", "count": 2}},
        ),
        ({"root": LINES}, lambda mixed: mixed.root.root.pop(), {"root": LINES[:2]}),
        (
            {"pair": [LINES[0], 1]},
            lambda mixed: setattr(mixed, "pair", (mixed.pair[0], 2)),
            {"pair": [LINES[0], 2]},
        ),
        ({"tags": ["b", "a"]}, lambda mixed: mixed.tags.add("c"), {"tags": ["b", "a", "c"]}),
        ({"tags": ["c", "b", "a"]}, lambda mixed: mixed.tags.remove("b"), {"tags": ["c", "a"]}),
        (
            {"points": [{"x": 2, "hidden": 1}, {"x": 1, "hidden": 2}]},
            lambda mixed: mixed.points.discard(Point(2)),
            {"points": [{"x": 1, "hidden": 2}]},
        ),
        (
            {"numbered": {"1": LINES[0], "2": LINES[1]}},
            lambda mixed: setattr(mixed.numbered[1], "name", "new"),
            {"numbered": {"1": {**LINES[0], "name": "new"}, "2": LINES[1]}},
        ),
        ({"grid": [[LINES[0]], [LINES[1]]]}, lambda mixed: mixed.grid.reverse(), {"grid": [[LINES[1]], [LINES[0]]]}),
        (
            {"days": ["2026-11-24T00:00:00"]},
            lambda mixed: mixed.days.append(dt.date(2026, 11, 25)),
            {"days": ["2026-11-24T00:00:00", "2026-11-25"]},
        ),
        (
            {"point": {"x": 1, "y": 2, "hidden": 3}},
            lambda mixed: setattr(mixed, "point", dataclasses.replace(mixed.point, x=9)),
            {"point": {"x": 9, "y": 2, "hidden": 3}},
        ),
        (
            {"grid": [], "value": Named(name="a")},
            lambda mixed: setattr(mixed.value, "name", "b"),
            {"grid": [], "value": {"kind": "named", "name": "b"}},
        ),
    ],
)
def test_one_change_of_each_kind_of_field(
    context: dict[str, Any], change: Callable[[Any], object], expected: dict[str, Any]
) -> None:
    """Unions, root models, tuples, sets, dicts with numbers as keys, nested lists, frozen values and models in the context."""
    assert changed(Mixed, context, change) == expected


# --- aliases, excluded and computed fields ---


class Tagged(BaseModel):
    model_config = ConfigDict(populate_by_name=True, extra="allow")
    name: str = Field(alias="theName")
    read: int = Field(default=0, validation_alias=AliasChoices("Read", "READ"), serialization_alias="other")
    secret: str = Field(default="", exclude=True)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.read


class TaggedShop(BaseModel):
    tagged: Tagged
    others: list[Tagged] = []


@pytest.mark.parametrize(
    ("before", "name", "expected"),
    [
        ({"theName": "a"}, "name", {"theName": "new"}),
        ({"name": "a"}, "name", {"name": "new"}),
        ({"name": "a", "READ": 1}, "read", {"name": "a", "READ": 2}),
        ({"name": "a"}, "read", {"name": "a", "Read": 2}),
        ({"name": "a", "secret": "s"}, "name", {"name": "new", "secret": "s"}),
        ({"name": "a", "secret": "s"}, "secret", {"name": "a", "secret": "new"}),
        ({"name": "a", "more": [1]}, "more", {"name": "a", "more": "new"}),
    ],
)
def test_a_nested_field_is_written_to_the_key_from_which_it_was_read(
    before: dict[str, Any], name: str, expected: dict[str, Any]
) -> None:
    """A computed field is never written."""
    value: Any = 2 if name == "read" else "new"
    for context in ({"tagged": before}, {"tagged": {"theName": "x"}, "others": [{"theName": "y"}, before]}):
        after = changed(
            TaggedShop,
            context,
            lambda shop: setattr(shop.others[1] if shop.others else shop.tagged, name, value),
        )
        assert (after["others"][1] if "others" in after else after["tagged"]) == expected


class FromPath(BaseModel):
    name: str = Field(validation_alias=AliasPath("names", 0))


class FromPathShop(BaseModel):
    inner: FromPath


class ManyPaths(BaseModel):
    name: str = Field(validation_alias=AliasChoices("name", AliasPath("names", 0)))


class ManyPathsShop(BaseModel):
    inner: ManyPaths


class ExcludedItem(TypedDict):
    name: Annotated[str, Field(exclude=True)]


class RenamedItem(TypedDict):
    name: Annotated[str, Field(validation_alias="Name")]


class ExcludedShop(TypedDict):
    inner: list[ExcludedItem]


class RenamedShop(TypedDict):
    inner: list[RenamedItem]


@pytest.mark.parametrize(
    ("hint", "fault"),
    [
        (FromPathShop, "FromPath.name is read from a path inside of another value"),
        (ManyPathsShop, "ManyPaths.name is read from a path inside of another value"),
        (ExcludedShop, "ExcludedItem.name is not written under the key from which it is read"),
        (RenamedShop, "RenamedItem.name is not written under the key from which it is read"),
    ],
)
def test_a_nested_field_that_cannot_be_written_back_is_refused(hint: Any, fault: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        context_type(hint)
    assert fault in str(caught.value)


# --- serializers ---


class Wrapped(BaseModel):
    number: int = 0

    @model_serializer(mode="wrap")
    def _write(self, handler: Any) -> dict[str, Any]:
        return {**handler(self), "double": 2 * self.number}


class Money(BaseModel):
    cents: int
    currency: str

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if isinstance(value, dict) and "amount" in value:
            return {"cents": round(float(value["amount"]) * 100), "currency": value["currency"]}
        return value

    @model_serializer
    def _write(self) -> dict[str, Any]:
        return {"amount": f"{self.cents / 100:.2f}", "currency": self.currency}


class Priced(BaseModel):
    wrapped: Wrapped = Wrapped()
    money: Money = Money(cents=0, currency="EUR")


@pytest.mark.parametrize(
    ("context", "change", "expected"),
    [
        (
            {"wrapped": {"number": 1, "hidden": 2}},
            lambda priced: setattr(priced.wrapped, "number", 3),
            {"wrapped": {"number": 3, "hidden": 2}},
        ),
        (
            {"money": {"amount": "1.00", "currency": "EUR", "hidden": 2}},
            lambda priced: setattr(priced.money, "cents", 250),
            {"money": {"amount": "2.50", "currency": "EUR", "hidden": 2}},
        ),
        (
            {"money": {"cents": 100, "currency": "EUR", "hidden": 2}},
            lambda priced: setattr(priced.money, "cents", 250),
            {"money": {"cents": 250, "currency": "EUR", "hidden": 2}},
        ),
    ],
)
def test_a_class_with_its_own_serializer(
    context: dict[str, Any], change: Callable[[Any], object], expected: dict[str, Any]
) -> None:
    """The data stays in the form in which it was."""
    assert changed(Priced, context, change) == expected


class Euros(BaseModel):
    price: int = 0

    @field_serializer("price")
    def _write(self, price: int) -> str:
        return f"{price} EUR"


class EurosShop(BaseModel):
    inner: Euros


async def test_a_serializer_whose_form_cannot_be_read_is_refused_before_any_request(anyio_backend: object) -> None:
    """Otherwise each change would fail."""

    async def pay(context_variables: EurosShop) -> str:
        return str(context_variables.inner.price)

    model = ScriptedModel([call("pay"), "Done."])
    with pytest.raises(ConfigurationError, match="EurosShop has a serializer whose JSON form the type cannot read"):
        await AsyncSwarm(model.client()).run(Agent(functions=[pay]), "Go", {"inner": {"price": 3}})
    assert not model.requests


# --- mistakes inside ---


@dataclass
class Inside:
    name: str = ""

    def __post_init__(self) -> None:
        self.cached = self.name.upper()


@dataclass
class Outside:
    inside: Inside
    derived: int = field(init=False)

    def __post_init__(self) -> None:
        self.derived = 1


class InsideItems(TypedDict):
    items: list[ItemDict]


def test_an_undeclared_name_inside_is_an_error() -> None:
    """It would be lost. An attribute that the class itself sets is no change."""
    context: dict[str, Any] = {"inside": {"name": "a", "hidden": 1}}
    assert changed(Outside, context, lambda view: setattr(view.inside, "name", "b")) == {
        "inside": {"name": "b", "hidden": 1}
    }
    with pytest.raises(TypeError, match="do not fit Outside: typo: the type has no such field"):
        changed(Outside, context, lambda view: setattr(view.inside, "typo", 1))
    with pytest.raises(TypeError, match="do not fit InsideItems: typo: the type has no such field"):
        changed(InsideItems, {"items": [{}]}, lambda view: view["items"][0].update(typo=1))


class Closed(BaseModel, extra="forbid"):
    name: str


class ClosedShop(BaseModel):
    closed: Closed


def test_a_closed_type_does_not_fit_unknown_keys() -> None:
    with pytest.raises(ConfigurationError, match="hidden: Extra inputs are not permitted"):
        type_of(ClosedShop).view({"closed": {"name": "a", "hidden": 1}})


class Trimmed(BaseModel):
    names: list[str] = []
    line: Line = Line(name="")

    @field_validator("names")
    @classmethod
    def _distinct(cls, names: list[str]) -> list[str]:
        return list(dict.fromkeys(names))


def test_validators_decide_the_written_values() -> None:
    def change(view: Any) -> None:
        view.names.append("a")
        view.line.number = "7"

    assert changed(Trimmed, {"names": ["a", "b"], "line": {"name": "x", "hidden": 1}}, change) == {
        "names": ["a", "b"],
        "line": {"name": "x", "number": 7, "hidden": 1},
    }


# --- in runs ---


class PricedLine(BaseModel):
    price: int


class PricedCart(BaseModel):
    lines: list[PricedLine]


class PricedShop(BaseModel):
    cart: PricedCart


async def test_concurrent_writers_of_different_leaves_keep_both_changes(anyio_backend: object) -> None:
    """The views start from the same data, and the last one that ends does not write the old data back."""
    started, ended = anyio.Event(), anyio.Event()

    @tool(concurrent=True)
    async def count(context_variables: Shop) -> str:
        context_variables.cart.lines[0].number = 7
        started.set()
        await ended.wait()
        context_variables.cart.lines[2].name = "quill"
        return "counted"

    @tool(concurrent=True)
    async def price(context_variables: PricedShop) -> str:
        await started.wait()
        context_variables.cart.lines[0].price += 1
        return "priced"

    @tool(concurrent=True)
    async def note(context_variables: Shop) -> str:
        context_variables.cart.note = "noted"
        return "noted"

    def watched(handlers: Handlers) -> Handlers:
        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            outcome = await handlers.call_tool(call, context, started)
            if call.name == "price":
                ended.set()
            return outcome

        return dataclasses.replace(handlers, call_tool=call_tool)

    model = ScriptedModel([[call("count"), call("price"), call("note")], "Done."])
    swarm = AsyncSwarm(model.client(), middleware=[watched])
    with anyio.fail_after(60):
        response = await swarm.run(Agent(functions=[count, price, note]), "Go", SHOP)
    first = {**LINES[0], "price": 4, "number": 7}
    cart = {"lines": [first, LINES[1], {**LINES[2], "name": "quill"}], "coupon": "X", "note": "noted"}
    assert response.context_variables == {"cart": cart}


class Anything(BaseModel):
    value: Any = None


def test_an_object_in_a_field_without_a_type_is_written_as_json() -> None:
    context = changed(Anything, {"value": {"a": 1}}, lambda view: setattr(view, "value", {"line": Line(name="ink")}))
    assert context == {"value": {"line": {"name": "ink", "number": 1}}}


def test_two_copies_of_one_item() -> None:
    """The nearest copy has its old place, and the other copy is a new item."""
    places = _OldPlaces([{"id": 1, "n": 1}], [{"id": 1, "n": 2}, {"id": 1, "n": 3}])
    places.take_similar(1)
    assert places.places == [0, None]

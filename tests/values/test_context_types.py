"""Types of the context variables: views, their changes, read-only types, and types that are refused."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Protocol, TypeVar

import httpx
import pytest
import typing_extensions
from pydantic import BaseModel, Field, SecretStr, computed_field, model_validator
from typing_extensions import ReadOnly, TypedDict

from aswarm import ConfigurationError, Response
from aswarm._values.context_types import ContextType, context_type, is_read_only


@dataclass
class Shop:
    customer: str
    points: int = 0
    cart: list[str] = field(default_factory=list)
    day: dt.date | None = None


@dataclass(slots=True)
class SlottedShop:
    customer: str
    points: int = 0


class ShopModel(BaseModel):
    customer: str
    points: int = 0
    cart: list[str] = []


class ShopItems(TypedDict):
    customer: str
    points: NotRequired[int]


def type_of(hint: Any) -> ContextType:
    found = context_type(hint)
    assert found is not None
    return found


# --- views ---


@pytest.mark.parametrize("kind", [Shop, SlottedShop, ShopModel, ShopItems])
def test_a_view_has_the_fields_of_its_type(kind: Any) -> None:
    """Other keys of the context are not in it, whatever they are."""
    value = type_of(kind).read({"customer": "Ada", "points": 7, "lock": object()})
    assert value == kind(
        **{**({} if kind in (ShopItems, SlottedShop) else {"cart": []}), "customer": "Ada", "points": 7}
    )


def test_a_view_shares_nothing_with_the_context() -> None:
    """Neither a container nor a model."""
    context: dict[str, Any] = {"customer": "Ada", "cart": ["ink"]}
    type_of(Shop).read(context).cart.append("pen")
    assert context == {"customer": "Ada", "cart": ["ink"]}
    nested = {"shop": ShopModel(customer="Ada")}
    type_of(Holder).read(nested).shop.points = 9
    assert nested["shop"].points == 0


@dataclass
class Holder:
    shop: ShopModel


def test_a_view_is_the_same_after_a_store() -> None:
    """Values of Python and their JSON form give the same view."""
    kind, day = type_of(Shop), dt.date(2026, 11, 24)
    assert kind.read({"customer": "Ada", "day": day}) == kind.read({"customer": "Ada", "day": "2026-11-24"})


class StrictShop(BaseModel, strict=True):
    day: dt.date
    tags: tuple[str, ...] = ()


def test_a_strict_model_is_read_as_json() -> None:
    """A strict model accepts the JSON form of a date and of a tuple, which a store returns."""
    value = type_of(StrictShop).read({"day": "2026-11-24", "tags": ["a"]})
    assert value == StrictShop(day=dt.date(2026, 11, 24), tags=("a",))


@pytest.mark.parametrize(
    ("context", "fault"),
    [
        ({}, "customer: Field required"),
        ({"customer": 4711}, "customer: Input should be a valid string"),
        ({"customer": object()}, "customer: the value has no JSON form"),
        ({"customer": "Ada", "cart": ["a", 4711]}, "cart.1: Input should be a valid string"),
    ],
)
def test_a_context_that_does_not_fit(context: dict[str, Any], fault: str) -> None:
    """The error names the type, the field and the fault, and no value: the model may read it."""
    with pytest.raises(ConfigurationError) as caught:
        type_of(Shop).read(context)
    assert str(caught.value) == f"the context variables do not fit Shop: {fault}"
    assert caught.value.__cause__ is None


class Raising(BaseModel):
    name: str

    @model_validator(mode="after")
    def _raise(self) -> Raising:
        raise KeyError(self.name)


def test_an_exception_of_a_validator_is_a_mistake_of_the_program() -> None:
    with pytest.raises(ConfigurationError) as caught:
        type_of(Raising).read({"name": "Ada"})
    assert str(caught.value) == "the context variables do not fit Raising: a validator raised KeyError"


# --- changes ---


@pytest.mark.parametrize("kind", [Shop, SlottedShop, ShopModel, ShopItems])
def test_only_changed_fields_are_merged(kind: Any) -> None:
    """A default is no change, and neither is a value that the type has converted."""
    context: dict[str, Any] = {"customer": "Ada", "points": "7", "other": 1}
    view = type_of(kind).view(context)
    if kind is ShopItems:
        view.value["customer"] = "Eve"
    else:
        view.value.customer = "Eve"
    view.merge_into(context)
    assert context == {"customer": "Eve", "points": "7", "other": 1}


@dataclass
class Anything:
    value: Any


def wrong_type(view: Any) -> None:
    view.points = "secret"


def wrong_item(view: Any) -> None:
    view.cart.append(4711)


def no_json(view: Any) -> None:
    view.cart.append(object())


def undeclared(view: Any) -> None:
    view.point = 1


def deleted(view: Any) -> None:
    del view.customer


@pytest.mark.parametrize("write", [wrong_type, wrong_item, no_json, undeclared, deleted])
def test_a_change_that_does_not_fit_merges_nothing(write: Any) -> None:
    """A TypeError without the value, and the other changes of the call are not merged either."""
    context: dict[str, Any] = {"customer": "Ada"}
    view = type_of(Shop).view(context)
    view.value.points = 9
    write(view.value)
    with pytest.raises(TypeError, match="to values that do not fit Shop: ") as caught:
        view.merge_into(context)
    assert "secret" not in str(caught.value) and "4711" not in str(caught.value)
    assert context == {"customer": "Ada"}


def test_an_undeclared_item_is_an_error() -> None:
    context: dict[str, Any] = {"customer": "Ada"}
    view = type_of(ShopItems).view(context)
    view.value["name"] = "Eve"
    with pytest.raises(TypeError, match="ShopItems: name: the type has no such field"):
        view.merge_into(context)


class Counting(BaseModel):
    points: int = 0
    seen: int = 0

    @functools.cached_property
    def twice(self) -> int:
        return 2 * self.points

    @computed_field  # type: ignore[prop-decorator]
    @property
    def next(self) -> int:
        return self.points + 1

    @model_validator(mode="after")
    def _count(self) -> Counting:
        self.seen += 1
        return self


def test_validators_and_computed_fields_change_nothing() -> None:
    """A validator runs whenever a view is made. Only the fields that the call changed are merged."""
    context: dict[str, Any] = {"points": 7}
    view = type_of(Counting).view(context)
    assert (view.value.twice, view.value.next) == (14, 8)
    assert type_of(Derived).read(context).level == 1
    view.merge_into(context)
    assert context == {"points": 7}
    view.value.points = 8
    view.merge_into(context)
    assert context == {"points": 8}


@dataclass
class Derived:
    points: int
    level: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.level = self.points // 7


# --- read-only types ---


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Frozen:
    name: str
    colour: Colour = Colour.RED
    tags: tuple[str, ...] = ()
    inner: Frozen | None = None


@dataclass(frozen=True)
class FrozenWithList:
    tags: list[str]


class FrozenModel(BaseModel, frozen=True):
    name: str
    frozen: Frozen | None = None


class FrozenFields(BaseModel):
    name: str = Field(frozen=True)


class ReadOnlyItems(TypedDict):
    name: ReadOnly[str]
    day: NotRequired[ReadOnly[dt.date]]
    others: ReadOnly[Mapping[str, Sequence[int]]]


class HalfReadOnly(TypedDict):
    name: ReadOnly[str]
    day: str


UserId = NewType("UserId", int)
Names = typing_extensions.TypeAliasType("Names", tuple[str, ...])


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (str, True),
        (Annotated[int, "x"], True),
        (Literal["a"], True),
        (UserId, True),
        (Names, True),
        (frozenset[str], True),
        (str | None, True),
        (Frozen, True),
        (FrozenModel, True),
        (FrozenFields, True),
        (ReadOnlyItems, True),
        (tuple[Frozen, ...], True),
        (Any, False),
        (object, False),
        (list[str], False),
        (tuple[list[str], ...], False),
        (Mapping[str, Any], False),
        (Shop, False),
        (ShopModel, False),
        (ShopItems, False),
        (HalfReadOnly, False),
        (FrozenWithList, False),
        (TypeVar("S"), False),
    ],
    ids=str,
)
def test_which_types_are_read_only(hint: Any, expected: bool) -> None:
    """Nothing in a value may be changed, at any depth."""
    assert is_read_only(hint) is expected


def test_a_view_of_read_only_items_cannot_be_written() -> None:
    view = type_of(ReadOnlyItems).view({"name": "Ada", "others": {}})
    with pytest.raises(TypeError):
        view.value["name"] = "Eve"
    view.merge_into({})


def grow(shop: Any) -> None:
    shop.cart.append("ink")
    shop.day = dt.date(2026, 11, 24)


@pytest.mark.parametrize(
    ("hint", "context", "change", "expected"),
    [
        (Shop, {"customer": "Ada"}, grow, {"customer": "Ada", "cart": ["ink"], "day": "2026-11-24"}),
        (ShopItems, {"customer": "Ada", "points": 7}, lambda items: items.pop("points"), {"customer": "Ada"}),
        # a field that is not an argument is no context variable
        (Derived, {"points": 70}, lambda derived: setattr(derived, "points", 90), {"points": 90}),
        (FrozenWithList, {"tags": ["a"]}, lambda frozen: frozen.tags.append("b"), {"tags": ["a", "b"]}),
    ],
)
def test_a_change_is_merged_as_json(hint: Any, context: dict[str, Any], change: Any, expected: dict[str, Any]) -> None:
    """Values inside of containers, deleted items, and lists of frozen types."""
    view = type_of(hint).view(context)
    change(view.value)
    view.merge_into(context)
    assert context == expected


def test_a_field_without_a_json_form_is_named() -> None:
    with pytest.raises(ConfigurationError, match="points: the value has no JSON form") as caught:
        type_of(Shop).view({"customer": "Ada", "points": object()})
    assert "customer" not in str(caught.value)


def test_a_type_may_contain_itself() -> None:
    assert type_of(Node).view({"inner": {"inner": None}}).value.inner == Node()


def test_true_is_not_one() -> None:
    """Values that are equal in Python may be different JSON."""
    context: dict[str, Any] = {"value": 1}
    view = type_of(Anything).view(context)
    view.value.value = True
    view.merge_into(context)
    assert context["value"] is True


# --- which hints are types ---


class Plain:
    pass


class WithoutSubclasses(type):
    def __subclasscheck__(cls, kind: type) -> bool:
        raise TypeError


class Unchecked(metaclass=WithoutSubclasses):
    pass


class Pair(NamedTuple):
    a: int


class SomeProtocol(Protocol):
    a: int


@pytest.mark.parametrize(
    "hint",
    [
        dict,
        dict[str, Any],
        Mapping,
        Mapping[str, Any] | None,
        Any,
        object,
        SomeProtocol,
        dict[str, Any] | str,
        "Shop",
        Unchecked,
    ],
)
def test_other_hints_get_the_dict(hint: Any) -> None:
    """As in Swarm."""
    assert context_type(hint) is None


@pytest.mark.parametrize("hint", [Shop | None, Annotated[Shop, "x"], Annotated[Shop | None, "x"]])
def test_none_and_annotations_do_not_matter(hint: Any) -> None:
    """A parameter may have the default None, for direct calls."""
    assert type_of(hint).name == "Shop"


@dataclass
class WithClient:
    name: str
    http: httpx.AsyncClient


class WithSecret(BaseModel):
    key: SecretStr


class WithAlias(BaseModel):
    name: str = Field(alias="Name")


class WithExcluded(BaseModel):
    name: str = Field(exclude=True)


class WithClientInModel(BaseModel, arbitrary_types_allowed=True):
    http: httpx.AsyncClient


class ClientItems(TypedDict):
    http: NotRequired[httpx.AsyncClient]


class WithComputedClient(BaseModel, arbitrary_types_allowed=True):
    name: str = ""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def http(self) -> httpx.AsyncClient:
        raise NotImplementedError


class Node(BaseModel):
    inner: Node | None = None


class UndefinedItems(TypedDict):
    price: Money  # type: ignore[name-defined] # noqa: F821


@dataclass
class UndefinedField:
    price: Money  # type: ignore[name-defined] # noqa: F821


@pytest.mark.parametrize(
    ("hint", "fault"),
    [
        (UndefinedItems, "cannot have the type UndefinedItems: "),
        (UndefinedField, "cannot have the type UndefinedField: "),
        (Plain, "cannot have the type Plain; use a TypedDict, a dataclass, a pydantic model, a dict or a Mapping"),
        (Pair, "cannot have the type Pair; use"),
        (str, "cannot have the type str; use"),
        (Shop | ShopModel, "use one type, not a union"),
        (WithClient, ("WithClient.http has the type AsyncClient, which has no JSON form; pass clients and connections in "
         "resources={...}, with the parameter http: Resource[AsyncClient]")),
        (WithClientInModel, "WithClientInModel.http has the type AsyncClient, which has no JSON form"),
        (ClientItems, "ClientItems.http has the type"),
        (WithComputedClient, "cannot have the type WithComputedClient: "),
        (WithSecret, "WithSecret has a secret, whose JSON form is asterisks; pass secrets in resources={...}"),
        (WithAlias, "WithAlias.name has an alias or is excluded"),
        (WithExcluded, "WithExcluded.name has an alias or is excluded"),
    ],
)  # fmt: skip
def test_a_type_that_cannot_be_stored_is_refused(hint: Any, fault: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        context_type(hint)
    assert fault in str(caught.value)


# --- outside of a run ---


def test_the_context_of_a_response_can_be_read_with_a_type() -> None:
    response = Response(context_variables={"customer": "Ada", "day": "2026-11-24", "lock": object()})
    shop = response.context_as(Shop)
    assert dataclasses.asdict(shop) == {"customer": "Ada", "points": 0, "cart": [], "day": dt.date(2026, 11, 24)}
    with pytest.raises(ConfigurationError, match="context_as takes a TypedDict, a dataclass or a pydantic model"):
        response.context_as(dict)

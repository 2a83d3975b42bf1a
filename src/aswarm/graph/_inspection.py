"""The plain Python function behind a tool, partial, method or callable object, and the values of the names in its code.

If these values include agents, these agents are possible handoffs, because the code does not show which of them the function
returns. The search runs no code of the user, not even a property or `__getattr__`. A value that cannot be found is `MISSING`.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from aswarm._tools.hints import signature_of
from aswarm._values.agent import Agent, is_agent
from aswarm.extensions import Tool

MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class InspectedFunction:
    """A `types.FunctionType`, and the known values of its parameters: from partials, defaults, and `self`."""

    function: Any  # a `types.FunctionType`, which type checkers would bind like a method
    bound: dict[str, Any]

    @property
    def code(self) -> types.CodeType:
        code: types.CodeType = self.function.__code__
        return code

    def value(self, name: str) -> Any:
        """Return the current value of a name in the function. MISSING for a local variable, and for a name without a value."""
        if name in self.bound:
            return self.bound[name]
        if name in self.code.co_varnames or name in self.code.co_cellvars:
            return MISSING
        if name in self.code.co_freevars:
            cells = self.function.__closure__ or ()
            with suppress(ValueError):  # no value yet, for example if two functions refer to each other
                return cells[self.code.co_freevars.index(name)].cell_contents
            return MISSING
        return self.function.__globals__.get(name, self.function.__builtins__.get(name, MISSING))


def inspect_function(function: Any) -> InspectedFunction | None:
    """Return the function behind partials, tools, methods, wrappers and callable objects. None for classes and builtins."""
    args: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    unwrapped: set[int] = set()
    # The `__wrapped__` of a wrapper may be the wrapper itself.
    while id(function) not in unwrapped and (layer := _layer(function)) is not None:
        unwrapped.add(id(function))
        function, more, more_named = layer
        args, named = (*more, *args), {**more_named, **named}
    if not isinstance(function, types.FunctionType):
        return None
    signature = signature_of(function, follow_wrapped=False)
    try:
        arguments = signature.bind_partial(*args, **named)
    except TypeError:  # these arguments do not fit, so a call would fail too
        return InspectedFunction(function, {})
    arguments.apply_defaults()
    return InspectedFunction(function, arguments.arguments)


def _layer(function: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """Return the callable inside of a callable, and the arguments that the outer callable adds; or None."""
    inside: Any = None
    args: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    match function:
        case functools.partial():
            partial = typing.cast("Any", function)
            inside, args, named = partial.func, partial.args, partial.keywords
        case types.MethodType():
            inside, args = function.__func__, (function.__self__,)
        case Tool():
            inside = typing.cast("Any", function).function
        case PropertyValue():
            inside = function.method
        case staticmethod():
            inside = typing.cast("Any", function).__func__
        case types.FunctionType():
            inside = getattr(function, "__wrapped__", None)
        case type():
            pass
        case _:
            call = inspect.getattr_static(typing.cast("Any", type(function)), "__call__", None)
            inside, args = (call, (function,)) if isinstance(call, types.FunctionType) else (None, ())
    return None if inside is None else (inside, args, named)


@dataclass(frozen=True, slots=True)
class PropertyValue:
    """The unknown value of a property, which only a call would show. `method`: the getter, bound to the object."""

    method: types.MethodType


def member(holder: Any, name: str) -> Any:
    """Return an attribute without running a descriptor or `__getattr__`. A method is bound to `holder`."""
    attribute = inspect.getattr_static(holder, name, MISSING)
    if isinstance(attribute, types.MemberDescriptorType):  # a slot: reading it runs no code of the user
        if isinstance(holder, type):  # the class itself has no value for it
            return MISSING
        with suppress(AttributeError):
            return attribute.__get__(holder)
        return MISSING
    if isinstance(attribute, classmethod):
        owner = holder if isinstance(holder, type) else type(holder)
        return types.MethodType(typing.cast("Any", attribute).__func__, owner)
    if isinstance(holder, types.ModuleType | type):
        return attribute
    return _bound_member(holder, attribute)


def _bound_member(holder: Any, attribute: Any) -> Any:
    if isinstance(attribute, types.FunctionType):
        return types.MethodType(attribute, holder)
    if isinstance(attribute, property | functools.cached_property):
        getter: Any = attribute.fget if isinstance(attribute, property) else typing.cast("Any", attribute).func
        return PropertyValue(types.MethodType(getter, holder))
    return attribute


def contents(value: Any, depth: int = 3) -> Iterable[Any]:
    """Yield the value, and the items in a dict, list or tuple. Of each container, yield at most a thousand items."""
    yield value
    if depth:
        for item in _items(value):
            yield from contents(item, depth - 1)


def _items(value: Any) -> list[Any]:
    for kind, read in _READ:
        if isinstance(value, kind):
            return [item for item, _ in zip(read(value), range(1000), strict=False)]
    return []


# Methods of the built-in types themselves, because an overriding method of a subclass would run code of the user. A set cannot
# contain agents, because an agent is not hashable.
_READ: tuple[tuple[type, Callable[[Any], Iterable[Any]]], ...] = (
    (dict, dict[Any, Any].values),
    (list, list[Any].__iter__),
    (tuple, tuple[Any, ...].__iter__),
)


# --- the agents that a function refers to, by the names in its code and in the code of the functions that it calls ---

# Search in a function, in the functions that it calls, and in the functions that these call.
_DEPTH = 3


def referenced_agents(function: InspectedFunction) -> list[Agent]:
    """Return the agents in the order of the code. An agent may be in the list twice."""
    search = _Search()
    search.follow(function, _DEPTH)
    return search.agents


class _Search:
    def __init__(self) -> None:
        self.agents: list[Agent] = []
        self._followed: set[tuple[int, ...]] = set()

    def follow(self, inspected: InspectedFunction, depth: int) -> None:
        """Collect the agents to which the function refers, directly or through functions that it calls."""
        owner = id(next(iter(inspected.bound.values()), None))  # the method of another object may reach other agents
        key = (id(inspected.function), owner)
        if not depth or key in self._followed:
            return
        self._followed.add(key)
        for value in _referenced(inspected):
            for item in contents(value):
                if is_agent(item):
                    self.agents.append(item)
                elif (helper := inspect_function(item)) is not None:
                    self.follow(helper, depth - 1)


# Values whose attributes are not followed: an agent is a result, and the attributes of the others are never agents.
_WITHOUT_MEMBERS = (
    Agent, str, bytes, int, float, complex, types.NoneType, types.FunctionType, types.BuiltinFunctionType,
)  # fmt: skip


def _referenced(inspected: InspectedFunction) -> Iterator[Any]:
    codes = list(_codes(inspected.code))
    # In the order of the code, without duplicates.
    attributes = list(dict.fromkeys(name for code in codes for name in code.co_names))
    names = dict.fromkeys(name for code in codes for name in _variables(code))
    bound = inspected.bound
    for value in [*bound.values(), *(inspected.value(name) for name in names if name not in bound)]:
        yield value
        # `shop.agents`, `self.sales`: bytecode does not show to which object an attribute belongs, so try all names.
        if value is not MISSING and not isinstance(value, _WITHOUT_MEMBERS):
            yield from (found for name in attributes if (found := member(value, name)) is not MISSING)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function, and of the functions that are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _variables(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals, and of variables of the enclosing functions."""
    yield from (step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    yield from code.co_freevars

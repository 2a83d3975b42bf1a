"""Random snippets, and their execution by Python itself with the written rule for the order of calls.

The rule: a call starts when the code is blocked on it; the calls of one round get their results together, in call order;
a failed gather continues the code around it before the other coroutines of the gather.
"""

from __future__ import annotations

import textwrap
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "double": lambda n: n * 2,
    "pair": lambda a, b=3: [a, b],
    "name": lambda n: f"<{n}>",
    "odd": lambda n: n % 2 == 1,
}


def answer(name: str, *args: Any, **kwargs: Any) -> Any:
    """The result of a call. `check` fails for an odd number."""
    if name == "check":
        if args[0] % 2:
            raise RuntimeError(f"odd {args[0]}")
        return args[0] // 2
    return FUNCTIONS[name](*args, **kwargs)


@dataclass(eq=False)
class Task:
    """A coroutine, and the task that waits for it in a gather."""

    coroutine: Coroutine[Any, Any, Any]
    gather: Gather | None = None
    position: int = 0


@dataclass(eq=False)
class Gather:
    """A gather that waits for its tasks."""

    owner: Task
    results: list[Any]
    left: int
    has_failed: bool = False


@dataclass(eq=False)
class Call(Awaitable[Any]):
    """A call that the code awaits."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)


class Gathering(Awaitable[Any]):
    """`asyncio.gather`."""

    def __init__(self, coroutines: tuple[Any, ...]) -> None:
        self.coroutines = coroutines

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)


class AsyncIO:
    """The name `asyncio` in the code."""

    @staticmethod
    def gather(*coroutines: Any) -> Gathering:
        return Gathering(coroutines)


@dataclass
class Reference:
    """An execution of a snippet by Python. `calls`: in the order of their starts."""

    calls: list[str] = field(default_factory=list[str])
    _ready: deque[tuple[Task, Any, BaseException | None]] = field(default_factory=deque)
    _blocked: list[tuple[Task, Call]] = field(default_factory=list)
    _main: Task | None = None
    _result: Any = None

    def run(self, code: str) -> Any:
        """Execute the code, and return the value of `result`."""
        space: dict[str, Any] = {"asyncio": AsyncIO, **{name: self._function(name) for name in [*FUNCTIONS, "check"]}}
        body = textwrap.indent(f"{code}\nreturn result", "    ")
        exec(f"async def main():\n{body}", space)
        self._main = Task(space["main"]())
        self._ready.append((self._main, None, None))
        while self._main is not None:
            while self._ready and self._main is not None:
                self._step(*self._ready.popleft())
            if self._main is not None:
                blocked, self._blocked = self._blocked, []
                self.calls += [call.name + repr(call.args) for _, call in blocked]
                for task, call in blocked:
                    self._deliver(task, call)
        return self._result

    def _function(self, name: str) -> Callable[..., Any]:
        async def function(*args: Any, **kwargs: Any) -> Any:
            return await Call(name, args, kwargs)

        return function

    def _deliver(self, task: Task, call: Call) -> None:
        try:
            self._ready.append((task, answer(call.name, *call.args, **call.kwargs), None))
        except RuntimeError as error:
            self._ready.append((task, None, error))

    def _step(self, task: Task, value: Any, error: BaseException | None) -> None:
        try:
            waits_for = task.coroutine.send(value) if error is None else task.coroutine.throw(error)
        except StopIteration as done:
            self._finish(task, done.value, None)
        except Exception as failure:
            self._finish(task, None, failure)
        else:
            if isinstance(waits_for, Call):
                self._blocked.append((task, waits_for))
            else:
                count = len(waits_for.coroutines)
                gather = Gather(task, [None] * count, count)
                self._ready.extend(
                    (Task(each, gather, position), None, None) for position, each in enumerate(waits_for.coroutines)
                )
                if not count:
                    self._ready.append((task, [], None))

    def _finish(self, task: Task, value: Any, error: BaseException | None) -> None:
        gather = task.gather
        if gather is None:
            self._main = None
            if error is not None:
                raise error
            self._result = value
        elif error is not None:
            if not gather.has_failed:
                gather.has_failed = True
                self._ready.appendleft((gather.owner, None, error))
        else:
            gather.results[task.position] = value
            gather.left -= 1
            if not gather.left and not gather.has_failed:
                self._ready.append((gather.owner, gather.results, None))


_numbers = st.integers(0, 9).map(str)
_names = st.sampled_from(["a", "b", "c"])
_simple = st.one_of(_numbers, _names)
_call = st.one_of(
    st.builds("double({})".format, _simple),
    st.builds("check({})".format, _simple),
    st.builds("pair({}, b={})".format, _simple, _simple).map(lambda call: f"first({call})"),
    st.builds("helper({})".format, _simple),
)
_value = st.one_of(
    _simple,
    st.builds("({} + {})".format, _simple, _simple),
    st.builds("({} * {} % 7)".format, _simple, _simple),
    st.builds("await {}".format, _call),
    st.builds("sum(await asyncio.gather({}))".format, st.lists(_call, min_size=1, max_size=3).map(", ".join)),
    st.builds("sum(await asyncio.gather(*[{} for n in range({})]))".format, st.sampled_from(["double(n)", "check(n * 2)", "helper(n)"]), st.integers(1, 4)),
    st.builds("len(await name({}))".format, _simple),
    st.builds("(1 if await odd({}) else 2)".format, _simple),
)  # fmt: skip
_assign = st.builds("{} = {}".format, _names, _value)
_note = st.builds("result.append({})".format, _value)


def _block(statements: list[str]) -> str:
    return textwrap.indent("\n".join(statements), "    ")


def _compound(statement: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    body = st.lists(statement, min_size=1, max_size=3).map(_block)
    return st.one_of(
        st.builds("for i in range({}):\n{}".format, st.integers(0, 3), body),
        st.builds("if {} > {}:\n{}\nelse:\n{}".format, _simple, _simple, body, body),
        st.builds("try:\n{}\nexcept RuntimeError as error:\n    result.append(str(error))".format, body),
    )


_statements = st.recursive(st.one_of(_assign, _note), _compound, max_leaves=8)
_HEAD = """\
async def first(pairs):
    return (await pairs)[0]

async def helper(n):
    one = await double(n)
    return await check(one) + n

a, b, c = 1, 2, 3
result = []"""
snippets = st.lists(_statements, min_size=1, max_size=6).map(lambda lines: "\n".join([_HEAD, *lines]))

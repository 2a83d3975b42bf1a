"""`check_middleware`: a middleware that breaks a rule is refused with the name of the rule, and others pass."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from aswarm import ConfigurationError
from aswarm.middleware import (
    CompletionHandler,
    CompletionRequest,
    Handlers,
    Middleware,
    Started,
    ToolCall,
    ToolHandler,
    ToolOutcome,
    retry,
)
from aswarm.testing import check_middleware
from tests.support.middleware.bad_middlewares import BAD, ENDS, ONLY_ON_ASYNCIO, RULES
from tests.support.middleware.middlewares import Chunks, around_calls, around_completions
from tests.support.sampling import listed

PATIENCE = 0.7  # seconds after which a case that hangs is given up


def check(middleware: Middleware, *, only_asyncio: bool = False, patience: float = 20.0) -> str:
    """The text of the refusal; empty for a middleware that passes."""
    try:
        check_middleware(middleware, backends=["asyncio"] if only_asyncio else ["asyncio", "trio"], patience=patience)
    except AssertionError as error:
        return str(error)
    return ""


@pytest.fixture
def shows_nothing(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fails a test that prints, logs or warns."""
    with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.DEBUG):
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
    assert caplog.records == []
    assert tuple(capfd.readouterr()) == ("", "")


@pytest.mark.usefixtures("shows_nothing")
@pytest.mark.parametrize(
    "name",
    listed(
        BAD,
        [
            "not_closed",
            "swallows_in_complete",
            "timeout_across_a_yield",
            "scope_across_a_yield",
            "swallows_in_call",
            "started_never",
            "leaks_a_task",
        ],
    ),
)
def test_a_bad_middleware_is_refused_with_its_rule(name: str) -> None:
    """The text has the rule that is broken and no other, and the first place; nothing is printed, logged or warned of."""
    middleware, rule = BAD[name]
    patience = PATIENCE if rule == ENDS else 20.0
    text = check(middleware, only_asyncio=name in ONLY_ON_ASYNCIO, patience=patience)
    assert [each for each in RULES if each in text] == [rule]
    assert text.startswith("the middleware breaks rules that keep runs safe to leave:\n- ")
    assert len(text.splitlines()) == 2
    assert "(seen: " in text


def test_each_rule_that_is_broken_has_a_line() -> None:
    """Two middlewares that break one rule each are one middleware that breaks two."""
    (first, one), (second, other) = BAD["not_closed"], BAD["started_twice"]
    text = check(lambda handlers: first(second(handlers)))
    assert [each for each in RULES if each in text] == sorted([one, other], key=RULES.index)
    assert len(text.splitlines()) == 3


def test_both_backends_are_checked() -> None:
    """What is wrong on trio only is found, and where it was seen."""

    async def wrong_on_trio(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
        await asyncio.sleep(0)
        async with aclosing(inner(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    wrong = around_completions(wrong_on_trio)
    text = check(wrong)
    assert "a run must not fail because of the middleware" in text
    assert "(seen: read to its end, on trio)" in text
    assert "asyncio" not in text.partition("(seen")[2]
    assert check(wrong, only_asyncio=True) == ""


@pytest.mark.parametrize("backends", [["asynico"], "trio", ["trio", "curio"]], ids=str)
def test_a_backend_that_there_is_not_is_refused(backends: Any) -> None:
    """A name with a mistake in it must not be a check of nothing."""
    with pytest.raises(ConfigurationError, match="backends must be a list of 'asyncio' and 'trio'"):
        check_middleware(lambda handlers: handlers, backends=backends)


@pytest.mark.parametrize("wrong", [None, lambda handlers: None, 7], ids=["None", "returns None", "a number"])
def test_what_is_no_middleware_is_refused(wrong: Any) -> None:
    """The text has the error of the run, which explains the form of a middleware."""
    with pytest.raises(
        AssertionError, match=r"a run must not fail because of the middleware, with ConfigurationError: .*Handlers"
    ):
        check_middleware(wrong)


def test_a_case_that_hangs_is_given_up() -> None:
    """`patience` bounds it: the check goes no further on that backend, and its thread keeps no process alive."""
    before = time.monotonic()
    assert ENDS in check(BAD["holds_on"][0], patience=PATIENCE)
    assert time.monotonic() - before < 40 * PATIENCE
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "aswarm check_middleware")


def plain(handlers: Handlers) -> Handlers:
    return handlers


# --- good ones --------------------------------------------------------------------------------------------------------


async def buffering(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
    async with aclosing(inner(request)) as chunks:
        held = [chunk async for chunk in chunks]
    for chunk in held:
        yield chunk


async def with_timeouts(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
    """Bounds each step, and has left the scope before it yields."""
    async with aclosing(inner(request)) as chunks:
        while True:
            with anyio.fail_after(60):
                chunk = await anext(chunks, None)
            if chunk is None:
                return
            yield chunk


async def with_asyncio_timeouts(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
    async with aclosing(inner(request)) as chunks:
        while True:
            async with asyncio.timeout(60):
                chunk = await anext(chunks, None)
            if chunk is None:
                return
            yield chunk


async def slow_to_close(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
    try:
        async with aclosing(inner(request)) as chunks:
            async for chunk in chunks:
                yield chunk
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.003)


async def guard(inner: ToolHandler, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
    return ToolOutcome("Not allowed.")


async def replacing(inner: ToolHandler, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
    await started()
    await anyio.lowlevel.checkpoint()
    return ToolOutcome("Done elsewhere.")


async def bounded_calls(inner: ToolHandler, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
    with anyio.fail_after(60):
        return await inner(call, context, started)


async def asyncio_bounded(inner: ToolHandler, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        return await group.create_task(inner(call, context, started))  # type: ignore[arg-type]


GOOD: dict[str, Middleware] = {
    "buffering": around_completions(buffering),
    "timeouts": around_completions(with_timeouts),
    "slow to close": around_completions(slow_to_close),
    "guard": around_calls(guard),
    "replacing": around_calls(replacing),
    "retry": retry(2),
    "a stack": lambda handlers: retry(2)(around_completions(buffering)(around_calls(bounded_calls)(handlers))),
}
GOOD_ON_ASYNCIO: dict[str, Middleware] = {
    "asyncio.timeout": around_completions(with_asyncio_timeouts),
    "asyncio around calls": around_calls(asyncio_bounded),
}


@pytest.mark.usefixtures("shows_nothing")
@pytest.mark.parametrize("name", listed(GOOD, ["a stack", "timeouts"]))
def test_a_good_middleware_passes(name: str) -> None:
    """Nothing is raised, and nothing is printed."""
    check_middleware(GOOD[name])


@pytest.mark.parametrize("name", list(GOOD_ON_ASYNCIO))
def test_a_good_middleware_for_asyncio_passes(name: str) -> None:
    """A middleware may use asyncio inside a step and around a call; the check then gets the backend."""
    check_middleware(GOOD_ON_ASYNCIO[name], backends=["asyncio"])


async def test_it_can_be_called_inside_an_event_loop() -> None:
    """It blocks, and finds the same as outside; the loop around it is left as it is."""
    middleware, rule = BAD["group_across_a_yield"]
    assert rule in check(middleware)
    check_middleware(plain)
    with anyio.fail_after(60):
        await anyio.sleep(0)


# --- where it is called -----------------------------------------------------------------------------------------------


def test_its_records_are_hidden(caplog: pytest.LogCaptureFixture) -> None:
    """What the middleware logs during the check is no warning of the program."""

    def log(handlers: Handlers) -> Handlers:
        logging.getLogger("aswarm").warning("during the check")
        return handlers

    assert check(log) == ""
    assert caplog.text == ""

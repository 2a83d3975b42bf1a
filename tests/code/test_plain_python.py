"""Random code: the same result as in Python, and the calls in the order of the written rule."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given

from tests.support.code.coded import result_of
from tests.support.code.plain_python import Reference, answer, snippets

pytestmark = pytest.mark.slow


def functions(calls: list[str]) -> list[Any]:
    """Return the functions of the snippets, which note their calls."""

    def note(name: str, *args: Any) -> Any:
        calls.append(f"{name}({', '.join(map(str, args))})")
        return answer(name, *args)

    async def double(n: int) -> int:
        return int(note("double", n))

    async def pair(a: int, b: int = 3) -> list[int]:
        calls.append(f"pair({a})")
        return [a, b]

    async def name(n: int) -> str:
        return str(note("name", n))

    async def odd(n: int) -> bool:
        return bool(note("odd", n))

    async def check(n: int) -> int:
        return int(note("check", n))

    return [double, pair, name, odd, check]


@given(snippets)
def test_random_code_gives_the_result_of_python_and_calls_by_the_rule(code: str) -> None:
    """Over pure functions. The text of a failed call is the error of the code in both."""
    reference, calls = Reference(), list[str]()
    try:
        expected = reference.run(code)
    except RuntimeError as error:
        expected = error
    text = asyncio.run(result_of(f"{code}\nresult", *functions(calls), type_check=False))
    if isinstance(expected, RuntimeError):
        assert f"RuntimeError: Error: RuntimeError: {expected}" in text
    else:
        assert json.loads(text.replace("Error: RuntimeError: ", "")) == expected, code
    assert calls == [each.replace(",)", ")") for each in reference.calls], code

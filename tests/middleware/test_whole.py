"""Whole completions that a recording or a cache keeps."""

from __future__ import annotations

from typing import Any

import pytest

from aswarm.middleware._recording import whole_message

Json = dict[str, Any]


@pytest.mark.parametrize("index", [{}, {"index": None}, {"index": 0}])
def test_a_chunk_with_one_choice_that_has_a_message_is_a_whole_completion(index: Json) -> None:
    """The position of the choice may be left out, as some servers do."""
    message = {"role": "assistant", "content": "Hi"}
    assert whole_message({"error": None, "choices": [{"message": message, "error": None, **index}]}) is message


HI: Json = {"message": {"content": "Hi"}}


@pytest.mark.parametrize(
    "chunk",
    [
        "text",
        None,
        {},
        {"choices": None},
        {"choices": []},
        {"choices": "x"},
        {"choices": [None]},
        {"choices": [HI, HI]},
        {"choices": [HI], "error": {"message": "no"}},
        {"choices": [{**HI, "error": {"message": "no"}}]},
        {"choices": [{**HI, "index": 1}]},
        {"choices": [{"delta": {"content": "Hi"}}]},
        {"choices": [{"message": None}]},
        {"choices": [{"message": {}}]},
        {"choices": [{"message": "Hi"}]},
    ],
)
def test_any_other_chunk_is_not_a_whole_completion(chunk: object) -> None:
    """A piece, an error, several choices, or a value of another shape is not one, and is not an error here."""
    assert whole_message(chunk) is None

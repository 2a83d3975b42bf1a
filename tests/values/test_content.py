"""Content of messages as text: images and files are named."""

from __future__ import annotations

from typing import Any

import pytest

from aswarm import File, Image
from aswarm._content import described


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Hello", "Hello"),
        ([], ""),
        ([{"type": "text", "text": "Look:"}, Image(b"").part, File(b"", "a.pdf").part], "Look: [image] [file a.pdf]"),
        (
            [{"type": "file", "file": {"file_id": "f"}}, {"type": "input_audio"}, {"type": "text"}, {}, "odd", 7],
            "[file] [input_audio]  [None] odd 7",
        ),
    ],
)
def test_a_content_as_text(content: Any, text: str) -> None:
    """Parts of any shape have a text: events and logs show it."""
    assert described(content) == text


def test_the_form_of_parts() -> None:
    """Bytes become a data URL, a URL stays."""
    assert Image("https://example.com/a.png").part == {
        "type": "image_url",
        "image_url": {"url": "https://example.com/a.png"},
    }
    assert Image(b"\x00", "image/jpeg", "high").part["image_url"] == {
        "url": "data:image/jpeg;base64,AA==",
        "detail": "high",
    }
    assert File("data:text/plain;base64,AA==", "a.txt").part["file"]["file_data"] == "data:text/plain;base64,AA=="

"""Images and files as parts of a message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aswarm import ConfigurationError, File, Image


def test_the_form_of_parts() -> None:
    """Bytes become a data URL, a URL stays."""
    assert Image("https://example.com/a.png").part == {
        "type": "image_url",
        "image_url": {"url": "https://example.com/a.png"},
    }
    assert Image(b"\x00", media_type="image/jpeg", detail="high").part["image_url"] == {
        "url": "data:image/jpeg;base64,AA==",
        "detail": "high",
    }
    assert File("data:text/plain;base64,AA==", name="a.txt").part["file"]["file_data"] == "data:text/plain;base64,AA=="


@pytest.mark.parametrize(
    "data", ["chart.png", "C:\\chart.png", "/tmp/a:b.png", "", "iVBORw0KGgo=", Path("chart.png"), None]
)
def test_the_path_of_a_file_is_not_its_data(data: Any) -> None:
    """A provider would take it for a URL; the text shows how to read the file."""
    with pytest.raises(
        ConfigurationError, match=r"Image takes bytes, or a URL .* read .* Image\(Path\(\.\.\.\)\.read_bytes"
    ):
        Image(data)
    with pytest.raises(
        ConfigurationError, match=r"File takes bytes, .* File\(name='a\.pdf', data=Path\(\.\.\.\)\.read_bytes"
    ):
        File(data, name="a.pdf")


@pytest.mark.parametrize(
    "url", ["HTTPS://example.com/a.png", "http://a/b", "data:,", "gs://bucket/a.png", "file:///a.png"]
)
def test_a_url_of_any_scheme_is_passed_on(url: str) -> None:
    """Servers decide which of them they read."""
    assert Image(url).part["image_url"]["url"] == File(url, name="a").part["file"]["file_data"] == url


def test_the_bytes_are_not_shown() -> None:
    """They may be megabytes, and logs show values."""
    assert repr(Image(b"x" * 999)) == "Image(media_type='image/png', detail=None)"
    assert repr(File(b"x" * 999, name="a.pdf")) == "File(name='a.pdf', media_type='application/pdf')"

"""Images and files as parts of a message, in results of functions and in messages of users.

The parts have the form of Chat Completions. The module never reads a file and never opens a URL.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from .errors import ConfigurationError
from .json import is_object, shown

Part = dict[str, Any]
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # at least two letters: a single letter is a drive on Windows
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Image:
    """An image for a model with image input.

    A function may return an image, or a list of texts, images and files. In a message of the user, use its `part`:
    `{"role": "user", "content": [{"type": "text", "text": "What is this?"}, Image(data).part]}`.

    Args:
        data: The bytes, or a URL ("https:..." or "data:...").
        media_type: The media type of the bytes.
        detail: The resolution, as in the API; None for the default of the provider.

    Raises:
        ConfigurationError: For other data, such as the path of a file.
    """

    data: bytes | str = field(repr=False)
    _: KW_ONLY
    media_type: str = "image/png"
    detail: Literal["auto", "low", "high"] | None = None

    def __post_init__(self) -> None:
        _check(self.data, 'Image takes bytes, or a URL that starts with "https:", "http:" or "data:"', "Image(")

    @property
    def part(self) -> Part:
        """The image as a content part of a message."""
        image = {"url": _url(self.data, self.media_type), **({"detail": self.detail} if self.detail else {})}
        return {"type": "image_url", "image_url": image}


@dataclass(frozen=True, slots=True)
class File:
    """A file for the model, such as a PDF. Use it like an `Image`.

    Args:
        data: The bytes, or a "data:..." URL. Some servers, such as the Responses API, also accept an "https:..." URL.
        name: The name of the file for the model.
        media_type: The media type of the bytes.

    Raises:
        ConfigurationError: For other data, such as the path of a file.
    """

    data: bytes | str = field(repr=False)
    _: KW_ONLY
    name: str
    media_type: str = "application/pdf"

    def __post_init__(self) -> None:
        _check(self.data, 'File takes bytes, or a URL that starts with "data:"', f"File(name={self.name!r}, data=")

    @property
    def part(self) -> Part:
        """The file as a content part of a message."""
        return {"type": "file", "file": {"filename": self.name, "file_data": _url(self.data, self.media_type)}}


def _check(data: object, expected: str, call: str) -> None:
    # Accept every URL scheme, because some servers have their own, such as "gs:".
    if isinstance(data, bytes | bytearray | memoryview) or (isinstance(data, str) and _SCHEME.match(data)):
        return
    raise ConfigurationError(f"{expected}, not {shown(data, _SHOWN)}; read a file first: {call}Path(...).read_bytes())")


def _url(data: bytes | str, media_type: str) -> str:
    return data if isinstance(data, str) else f"data:{media_type};base64,{b64encode(data).decode()}"


def text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def with_note(content: str | list[Part], note: str) -> str | list[Part]:
    return content + note if isinstance(content, str) else [*content, text_part(note)]


def described(content: str | Sequence[Any]) -> str:
    """Return the content of a message as text. Names such as "[file a.pdf]" replace images and files."""
    return content if isinstance(content, str) else " ".join(map(_described_part, content))


def _described_part(part: Any) -> str:
    if not is_object(part):
        return str(part)
    kind = str(part.get("type"))
    if kind == "text":
        return str(part.get("text") or "")
    name = part["file"].get("filename") if kind == "file" and is_object(part.get("file")) else None
    return f"[{kind.removesuffix('_url')} {name}]" if name else f"[{kind.removesuffix('_url')}]"

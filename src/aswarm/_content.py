"""Images and files, as parts of a message: what a function may return besides text, and what a user may send.

Decides their form, which is that of Chat Completions. Never reads a file and never opens a URL.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ._errors import ConfigurationError
from ._json import is_object, shown

Part = dict[str, Any]
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # one letter alone is a drive of Windows
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Image:
    """An image for a model that sees.

    `data`: its bytes, or a URL ("https:..." or "data:..."). `media_type`: that of the bytes. `detail`: how closely the
    model looks, as in the API; None leaves that to the provider.

    A function returns one, or a list of texts, images and files. `part` is its form in the content of a message:
    `{"role": "user", "content": [{"type": "text", "text": "What is this?"}, Image(data).part]}`.

    Raises ConfigurationError for data of another kind, such as the path of a file.
    """

    data: bytes | str = field(repr=False)
    media_type: str = "image/png"
    detail: Literal["auto", "low", "high"] | None = None

    def __post_init__(self) -> None:
        """Check the data."""
        _check(self.data, 'Image takes bytes, or a URL that begins with "https:", "http:" or "data:"', "Image(")

    @property
    def part(self) -> Part:
        """The content part."""
        image = {"url": _url(self.data, self.media_type), **({"detail": self.detail} if self.detail else {})}
        return {"type": "image_url", "image_url": image}


@dataclass(frozen=True, slots=True)
class File:
    """A file for a model that reads it, such as a PDF. It is used as an `Image` is.

    `data`: its bytes, or a URL: "data:...", or "https:..." for servers that take one, as the Responses API does. `name`:
    the name that the model sees. `media_type`: that of the bytes.

    Raises ConfigurationError for data of another kind, such as the path of a file.
    """

    data: bytes | str = field(repr=False)
    name: str
    media_type: str = "application/pdf"

    def __post_init__(self) -> None:
        """Check the data."""
        _check(self.data, 'File takes bytes, or a URL that begins with "data:"', f"File(name={self.name!r}, data=")

    @property
    def part(self) -> Part:
        """The content part."""
        return {"type": "file", "file": {"filename": self.name, "file_data": _url(self.data, self.media_type)}}


def _check(data: object, taken: str, call: str) -> None:
    # Some servers read schemes of their own, such as "gs:" or "file:".
    if isinstance(data, bytes | bytearray | memoryview) or (isinstance(data, str) and _SCHEME.match(data)):
        return
    given = shown(data, _SHOWN)
    raise ConfigurationError(f"{taken}, not {given}; read a file first: {call}Path(...).read_bytes())")


def _url(data: bytes | str, media_type: str) -> str:
    return data if isinstance(data, str) else f"data:{media_type};base64,{b64encode(data).decode()}"


def text_part(text: str) -> Part:
    """A text as a content part."""
    return {"type": "text", "text": text}


def described(content: str | Sequence[Any]) -> str:
    """The content of a message as text: images and files are named."""
    return content if isinstance(content, str) else " ".join(map(_described_part, content))


def _described_part(part: Any) -> str:
    if not is_object(part):
        return str(part)
    kind = str(part.get("type"))
    if kind == "text":
        return str(part.get("text") or "")
    name = part["file"].get("filename") if kind == "file" and is_object(part.get("file")) else None
    return f"[{kind.removesuffix('_url')} {name}]" if name else f"[{kind.removesuffix('_url')}]"

"""The result of a call, as the model gets it: texts, images and files."""

from __future__ import annotations

import base64
import json
from pathlib import PurePosixPath
from typing import TypeAlias
from urllib.parse import urlsplit

from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from aswarm._values.content import File, Image
from aswarm._values.errors import ToolError

Shown: TypeAlias = str | Image | File


def value_of(result: CallToolResult, tool: str) -> str | list[Shown]:
    """Return the result as the return value of the function. Raises ToolError if the server reports a failed call."""
    shown: list[Shown] = [_shown(block) for block in result.content]
    if not shown and result.structured_content is not None:
        shown = [json.dumps(result.structured_content, ensure_ascii=False)]
    if result.is_error:
        raise ToolError(_texts(shown) or f"{tool} failed, and the server does not say why.")
    return shown if any(not isinstance(each, str) for each in shown) else _texts(shown)


def _texts(shown: list[Shown]) -> str:
    return "\n".join(each for each in shown if isinstance(each, str))


def _shown(block: ContentBlock) -> Shown:
    try:
        match block:
            case TextContent():
                return block.text
            case ImageContent():
                return Image(base64.b64decode(block.data), media_type=block.mime_type)
            case AudioContent():
                name = f"audio.{block.mime_type.rpartition('/')[2]}"
                return File(base64.b64decode(block.data), name=name, media_type=block.mime_type)
            case ResourceLink():
                return f"{block.title or block.name}: {block.uri}"
            case _:
                return _resource(block.resource)
    except ValueError:  # not an error of the call: the model still gets the other blocks
        return f"[{block.type}: its data is not valid base64]"


def _resource(resource: TextResourceContents | BlobResourceContents) -> Shown:
    if isinstance(resource, TextResourceContents):
        return resource.text
    data, media_type = base64.b64decode(resource.blob), resource.mime_type or "application/octet-stream"
    if media_type.startswith("image/"):
        return Image(data, media_type=media_type)
    return File(data, name=PurePosixPath(urlsplit(resource.uri).path).name or "resource", media_type=media_type)

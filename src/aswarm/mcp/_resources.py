"""Resources of servers as two functions of an agent: a list and a read, within an allow list.

Security: The model reads only resources whose URI the program allows: no `..`, encoded or not, leads out of an allowed prefix.

Security: A resource is cut at a limit, and data that is no text, image or PDF is not sent to the model.
"""

from __future__ import annotations

import base64
import re
import unicodedata
from collections.abc import AsyncGenerator, Collection, Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote

from mcp.types import BlobResourceContents, Resource, ResourceTemplate, TextResourceContents

from aswarm._values.errors import ConfigurationError, ToolError
from aswarm._values.text import one_line
from aswarm.extensions import Tool, tool

from ._functions import Shown, patterns_in, resource_block
from ._server import MCPServer

Contents: TypeAlias = TextResourceContents | BlobResourceContents
_LISTED = 200  # lines of a list
_LINE = 300  # characters of a description
_DATA = 5_000_000  # bytes of an image or a PDF
_SHOWN_KINDS = ("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf")
_TEXTS = re.compile(r"text/|application/(json|xml|yaml|javascript)|[^;]*\+(json|xml|yaml)")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:.*")
_LONGEST = 2_000  # characters of a URI
_DECODINGS = 5  # a URI that is encoded more often is refused
# After an allowed prefix: `.` or `..` as a segment (also with a suffix that a file system ignores), a backslash, an empty segment or
# a drive, which make a path absolute, and a part of a template.
_UNSAFE = re.compile(r"(?<![\w.-])\.{1,2}(?![\w.-])|\\|^/|//|(?:^|/)[^/]?:|[{}]")


def resource_functions(
    allow: Mapping[MCPServer, Collection[str]], *, prefix: str = "", characters: int = 100_000
) -> list[Tool[..., Any]]:
    """Return the functions `list_resources` and `read_resource`, with which the model reads resources of open servers.

        docs = MCPServer("https://example.com/mcp")
        agent = Agent(functions=[*docs.functions, *resource_functions({docs: ["docs://handbook/"]})])

    Args:
        allow: For each server, the resources that the model may read: URIs, and prefixes of URIs that end with "/" or ":". Below
            a prefix, a URI with `.` or `..`, an empty segment, a backslash or a drive is refused, in any encoding.
        prefix: A prefix for the names of the two functions.
        characters: The limit for the text of a resource; the model reads its size. Images and PDFs have at most 5 MB.

    Raises:
        ConfigurationError: If an item of `allow` is not a URI, or two servers have the same URI or prefix.
    """
    if not isinstance(allow, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may pass anything
        raise ConfigurationError(
            f"allow must be a dict with the URIs of each server, not {type(allow).__name__}; write "
            'resource_functions({server: ["docs://handbook/"]})'
        )
    allowed = _Allowed(allow)

    async def list_resources(start: str = "") -> str:
        lines = [line async for line in allowed.lines(start)]
        more = len(lines) - _LISTED
        rest = [f"({more} more; pass a longer start)"] if more > 0 else []
        return "\n".join([*lines[:_LISTED], *rest]) or "There are no resources."

    async def read_resource(uri: str) -> list[Shown] | str:
        read = await allowed.server_of(uri).read_resource(uri)
        shown = [_bounded(each, characters) for each in read.contents]
        return shown if any(not isinstance(part, str) for part in shown) else "\n".join(map(str, shown))

    listing = (
        f"List the resources that read_resource can read, with URIs that begin with `start`. Allowed: {allowed.names}"
    )
    return [
        tool(name=f"{prefix}list_resources", description=listing, repeatable=True)(list_resources),
        tool(name=f"{prefix}read_resource", description="Read a resource by its URI.", repeatable=True)(read_resource),
    ]


class _Allowed:
    """The servers, by the URIs and the prefixes that are allowed for them."""

    def __init__(self, allow: Mapping[MCPServer, Collection[str]]) -> None:
        self._allow = {server: patterns_in(entries) for server, entries in allow.items()}
        of_entries = [(entry, server) for server, entries in self._allow.items() for entry in entries]
        for entry, _ in of_entries:
            if not _SCHEME.fullmatch(entry):
                raise ConfigurationError(
                    f'allow has {entry!r}, which is not a URI or a prefix such as "docs://handbook/"'
                )
        for entry, server in of_entries:
            others = [other.name for taken, other in of_entries if other is not server and _covers(taken, entry)]
            if others:
                raise ConfigurationError(f"allow gives {entry!r} to two servers, {server.name} and {others[0]}")

    def server_of(self, uri: str) -> MCPServer:
        """Return the server that may read the URI. Raises ToolError if none may."""
        for server, entries in self._allow.items():
            if any(_covers(entry, uri) for entry in entries):
                return server
        raise ToolError(
            f"not read: {one_line(uri, _LINE)} is not allowed, or has `..` or a {{parameter}}; allowed: {self.names}"
        )

    @property
    def names(self) -> str:
        """The allow list for the model."""
        return ", ".join(entry for entries in self._allow.values() for entry in entries)

    async def lines(self, start: str) -> AsyncGenerator[str]:
        """Yield a line for each resource that may be read, and for each template that may lead to one."""
        for server, entries in self._allow.items():
            try:
                listed = await server.resources()
            except ToolError as error:  # the other servers still answer
                yield f"({error})"
                continue
            for item in listed:
                uri = item.uri if isinstance(item, Resource) else item.uri_template
                if uri.startswith(start) and any(_may_lead(entry, item) for entry in entries):
                    more = f"{item.title or item.name} ({item.mime_type or 'no type'}) {item.description or ''}"
                    yield f"{one_line(uri, _LONGEST)} {one_line(more, _LINE)}"


def _covers(entry: str, uri: str) -> bool:
    """Return whether an item of the allow list allows the URI."""
    if uri == entry:
        return True
    return entry[-1] in "/:" and uri.startswith(entry) and len(uri) <= _LONGEST and _is_below(uri[len(entry) :])


def _is_below(rest: str) -> bool:
    """Return whether the rest of a URI stays below its prefix, however often a server decodes it."""
    for _ in range(_DECODINGS):
        text = unicodedata.normalize("NFKC", rest)
        if not text.isprintable() or _UNSAFE.search(text):
            return False
        try:
            decoded = unquote(rest, errors="strict")
        except UnicodeDecodeError:
            return False
        if decoded == rest:
            return True
        rest = decoded
    return False


def _may_lead(entry: str, item: Resource | ResourceTemplate) -> bool:
    if isinstance(item, Resource):
        return _covers(entry, item.uri)
    fixed = item.uri_template.partition("{")[0]
    return fixed.startswith(entry) or entry.startswith(fixed)


def _bounded(contents: Contents, characters: int) -> Shown:
    """Return the contents for the model: a text, an image or a PDF within the limits, otherwise a text with their size."""
    text = contents.text if isinstance(contents, TextResourceContents) else _shown_data(contents)
    if not isinstance(text, str) or len(text) <= characters:
        return text
    return f"{text[:characters]}\n[cut: the first {characters:,} of {len(text):,} characters]"


def _shown_data(contents: BlobResourceContents) -> Shown:
    kind = (contents.mime_type or "").partition(";")[0].strip().lower()
    try:
        data = base64.b64decode(contents.blob)
        if _TEXTS.match(kind):
            return data.decode()
    except ValueError:
        return f"[{kind or 'data'}: it cannot be decoded]"
    if len(data) > _DATA or kind not in _SHOWN_KINDS:
        return f"[{kind or 'data'}, {len(data):,} bytes: not shown]"
    return resource_block(contents.model_copy(update={"mime_type": kind}))

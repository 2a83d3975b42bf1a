"""Resources of servers as two functions: what the model may read, how much of it, and from which server."""

from __future__ import annotations

import base64
import ntpath
import posixpath
import unicodedata
from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mcp import MCPError
from mcp.server import Server
from mcp.types import (
    METHOD_NOT_FOUND,
    BlobResourceContents,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)

from aswarm import Agent, AsyncSwarm, ConfigurationError, ToolError
from aswarm.mcp import MCPServer, resource_functions
from aswarm.mcp._resources import _covers
from aswarm.middleware import clip_results, spill_results
from aswarm.testing import ScriptedCall, ScriptedModel, call
from tests.support.mcp.mcp_servers import over_http, stdio

PNG = base64.b64encode(b"a picture").decode()
BASE = "docs://handbook/"


def blob(media_type: str | None, data: bytes = b"data") -> BlobResourceContents:
    """Return data of this type."""
    return BlobResourceContents(uri=f"{BASE}x", mime_type=media_type, blob=base64.b64encode(data).decode())


class Library:
    """A server of resources, which notes what was read."""

    def __init__(self, *contents: TextResourceContents | BlobResourceContents, prefix: str = BASE) -> None:
        self.contents = list(contents) or [TextResourceContents(uri="x", text="a page")]
        self.read: list[str] = []
        self.listed = [Resource(uri=f"{prefix}{name}", name=name) for name in ("b", "a")]
        self.templates = [ResourceTemplate(uri_template=f"{prefix}{{page}}", name="pages", description="All\npages.")]

    def server(self) -> Server[Any]:
        async def resources(*_: object) -> ListResourcesResult:
            return ListResourcesResult(resources=self.listed)

        async def templates(*_: object) -> ListResourceTemplatesResult:
            if not self.templates:
                raise MCPError(METHOD_NOT_FOUND, "Method not found")
            return ListResourceTemplatesResult(resource_templates=self.templates)

        async def read(_: object, params: ReadResourceRequestParams) -> ReadResourceResult:
            self.read.append(str(params.uri))
            return ReadResourceResult(contents=self.contents)

        return Server(
            "library", on_list_resources=resources, on_list_resource_templates=templates, on_read_resource=read
        )


async def told(functions: Collection[Any], *calls: ScriptedCall, **options: Any) -> list[Any]:
    """Return what the model reads after these calls."""
    async with AsyncSwarm(ScriptedModel([list(calls), "Done."]).client(), **options) as swarm:
        response = await swarm.run(Agent(functions=[*functions]), "Go")
    return [message["content"] for message in response.messages if message["role"] == "tool"]


# --- the allow list ---

ASCII = [
    ".",
    "..",
    "...",
    "/",
    "//",
    "\\",
    "%2e",
    "%2E",
    "%252e",
    "%2f",
    "%5c",
    "%255c",
    "%00",
    "%20",
    "%c0%ae",
    "a",
    "b.md",
    "C:",
    ";",
    "?",
    "#",
    "{x}",
    "~",
    "%",
    "&",
    ":",
]
WIDE = ["\uff0e", "\u2025", "\uff0f", "%ef%bc%8e", "\uff1b", "\uff1a", "\u200b", "\xe9", "\ud800", " ", "\n", "\x7f"]
PIECES = st.sampled_from([*ASCII, *WIDE])


def readings(rest: str) -> set[str]:
    """Return what servers may make of the rest of a URI: decoded any number of times, and with other forms of its characters."""
    found, new = set[str](), {rest}
    while new:
        found |= new
        new = {unquote(each) for each in found} | {unicodedata.normalize("NFKC", each) for each in found}
        new |= {each.split(mark)[0] for each in found for mark in ("?", "#", ";", "\0")}
        new |= {"".join(letter for letter in each if letter.isprintable()) for each in found} - {""}
        new -= found
    return found


@given(st.lists(PIECES, max_size=8).map("".join))
@example("%252e%252e%252fetc")
@example("..;/etc")
@example("%2fetc/passwd")
def test_no_uri_leads_out_of_its_prefix(rest: str) -> None:
    """Whatever a server decodes, an allowed URI is a path below the prefix, on each system."""
    if not _covers(BASE, BASE + rest):
        return
    for reading in readings(rest):
        for system, root in ((posixpath, "/srv/handbook"), (ntpath, "D:\\srv\\handbook")):
            path = system.normpath(system.join(root, reading))
            assert path == root or path.startswith(root + system.sep), (reading, path)


@pytest.mark.parametrize(
    ("allow", "uri", "is_read"),
    [
        (BASE, f"{BASE}a/b c.md", True),
        (BASE, f"{BASE}v1..2/.hidden/%C3%A9?page=2#top", True),
        (BASE, BASE, True),
        (BASE, "docs://handbook", False),
        (BASE, "DOCS://handbook/a", False),
        (BASE, "docs://handbook-secret/a", False),
        (BASE, f"{BASE}../secret", False),
        (BASE, f"{BASE}{{page}}", False),
        (BASE, BASE + "a" * 2_000, False),
        (BASE, BASE + "%25" * 6 + "252525252541", False),
        (BASE, f"{BASE}%c0%ae%c0%ae/", False),
        ("docs://handbook", "docs://handbook", True),
        ("docs://handbook", "docs://handbook/a", False),
        ("docs://handbook", "docs://handbook-secret", False),
        ("docs://a/../b", "docs://a/../b", True),  # the program has named it
        ("urn:note:", "urn:note:7", True),
        ([], f"{BASE}a", False),
    ],
)
async def test_the_model_reads_only_what_is_allowed(allow: Any, uri: str, is_read: bool) -> None:
    """A prefix ends with a slash or a colon; any other item allows one URI. A refused URI never reaches the server."""
    library = Library()
    async with MCPServer(library.server()) as docs:
        (content,) = await told(resource_functions({docs: allow}), call("read_resource", uri=uri))
    assert library.read == ([uri] if is_read else [])
    assert content == "a page" if is_read else "is not allowed" in content


async def test_the_list_has_only_what_may_be_read() -> None:
    """Also templates that may lead to it. A server that has stopped, or has no templates, hides nothing of the others."""
    library, other = Library(), Library(prefix="notes://")
    other.templates = []
    library.listed += [Resource(uri=f"{BASE}../x", name="x"), Resource(uri="docs://secret/x", name="x")]
    library.templates += [ResourceTemplate(uri_template="docs://{part}/{page}", name="all")]
    library.templates += [ResourceTemplate(uri_template="docs://secret/{page}", name="no")]
    async with MCPServer(library.server()) as docs, MCPServer(other.server()) as notes:
        listing, read = resource_functions({docs: [BASE], notes: ["notes://"]}, prefix="docs_")
        assert (listing.name, read.name) == ("docs_list_resources", "docs_read_resource")
        assert "Allowed: docs://handbook/, notes://" in str(listing.description)
        everything, some, nothing = await told(
            [listing], call(listing.name), call(listing.name, start=f"{BASE}a"), call(listing.name, start="x:")
        )
    assert [line.split()[0] for line in everything.splitlines()] == [
        f"{BASE}a", f"{BASE}b", f"{BASE}{{page}}", "docs://{part}/{page}", "notes://a", "notes://b",
    ]  # fmt: skip
    assert f"{BASE}{{page}} pages (no type) All pages." in everything
    assert (some, nothing) == (f"{BASE}a a (no type)", "There are no resources.")


async def test_a_long_list_is_cut() -> None:
    """The model reads how many more there are, and how to get them."""
    library = Library()
    library.listed = [Resource(uri=f"{BASE}{number:04}", name="n") for number in range(500)]
    async with MCPServer(library.server()) as docs:
        (text,) = await told(resource_functions({docs: BASE}), call("list_resources"))
    assert len(text.splitlines()) == 201
    assert text.endswith("(301 more; pass a longer start)")


@pytest.mark.parametrize(
    ("allow", "text"),
    [
        ([["handbook/"], []], "allow has 'handbook/', which is not a URI"),
        ([[""], []], "allow has '', which is not a URI"),
        ([[BASE], ["docs://handbook/notes/"]], "allow gives 'docs://handbook/notes/' to two servers, b and a"),
        ([[BASE], [BASE]], "allow gives 'docs://handbook/' to two servers, a and b"),
    ],
)
def test_an_allow_list_that_means_nothing_is_refused(allow: Any, text: str) -> None:
    """Each URI belongs to one server, and each item is a URI."""
    servers = [MCPServer(Server("a")), MCPServer(Server("b"))]
    with pytest.raises(ConfigurationError, match=text):
        resource_functions(dict(zip(servers, allow, strict=True)))


# --- the contents ---


@pytest.mark.parametrize(
    ("contents", "shown"),
    [
        (TextResourceContents(uri="x", text="a" * 100), "a" * 100),
        (TextResourceContents(uri="x", text="a" * 101), "a" * 100 + "\n[cut: the first 100 of 101 characters]"),
        (blob("application/json; charset=utf-8", b'{"a": 1}'), '{"a": 1}'),
        (blob("image/svg+xml", b"<svg/>"), "<svg/>"),
        (blob("text/plain", b"\xff"), "[text/plain: it cannot be decoded]"),
        (BlobResourceContents(uri="x", blob="abc", mime_type="image/png"), "[image/png: it cannot be decoded]"),
        (blob("application/zip"), "[application/zip, 4 bytes: not shown]"),
        (blob(None), "[data, 4 bytes: not shown]"),
        (blob("image/png", bytes(5_000_001)), "[image/png, 5,000,001 bytes: not shown]"),
        (blob("IMAGE/PNG", b"png"), ["image_url"]),
        (blob("application/pdf"), ["file"]),
    ],
)
async def test_the_model_gets_texts_images_and_pdfs_within_the_limits(contents: Any, shown: Any) -> None:
    """Text in any form is text; other data is only named, with its size."""
    async with MCPServer(Library(contents).server()) as docs:
        (content,) = await told(resource_functions({docs: BASE}, characters=100), call("read_resource", uri=f"{BASE}x"))
    assert (content if isinstance(content, str) else [part["type"] for part in content]) == shown


async def test_a_resource_of_several_parts_is_one_result_that_middleware_clips() -> None:
    """It is a result like all others."""
    parts = [TextResourceContents(uri="x", text="a" * 500), TextResourceContents(uri="y", text="b" * 500)]
    async with MCPServer(Library(*parts).server()) as docs:
        functions, asked = resource_functions({docs: BASE}), call("read_resource", uri=f"{BASE}x")
        (whole,), (clipped,) = (
            await told(functions, asked),
            await told(functions, asked, middleware=[clip_results(200)]),
        )
    assert whole == "a" * 500 + "\n" + "b" * 500
    assert len(clipped) < 300


async def test_a_long_resource_is_spilled_whole_and_its_rest_is_read() -> None:
    """The cut of `characters=` comes first, and the handle leads to all of the rest."""
    pages = TextResourceContents(uri="x", text="".join(f"page {number}\n" for number in range(2_000)))

    def read_on(request: Any) -> Any:
        handle = request.body["messages"][-1]["content"].split()[1].rstrip(":")
        return call("read_result", handle=handle, start=len(pages.text) - 500, length=500)

    script = [call("read_resource", uri=f"{BASE}x"), read_on, "Done."]
    async with MCPServer(Library(pages).server()) as docs:
        agent = Agent(functions=resource_functions({docs: BASE}))
        async with AsyncSwarm(ScriptedModel(script).client(), middleware=[spill_results(1_000)]) as swarm:
            response = await swarm.run(agent, "Go")
    spilled, rest = [m["content"] for m in response.messages if m["role"] == "tool"]
    assert len(spilled) < 2_000
    assert "page 1999" in rest


# --- lost connections ---


async def test_a_server_over_http_that_was_restarted_is_read_again() -> None:
    """Without a session, the request is sent again; a server that is gone is an error that the model reads."""
    library = Library()
    with over_http(library.server) as (url, port):
        docs = MCPServer(url)
        await docs.__aenter__()
        assert len(await docs.resources()) == 3
    try:
        with over_http(library.server, port):
            assert (await docs.read_resource(f"{BASE}a")).contents == library.contents
        listing, gone = await told(
            resource_functions({docs: BASE}), call("list_resources"), call("read_resource", uri=f"{BASE}a")
        )
    finally:
        await docs.__aexit__(None, None, None)
    assert listing.startswith("(the MCP server http://127.0.0.1:")
    assert "cannot be reached" in gone or "the MCP server http" in gone


async def test_a_server_that_does_not_answer_in_time() -> None:
    """The model reads it, and the session stays."""
    library = Library()
    server = library.server()

    async def hang(*_: object) -> ReadResourceResult:
        await anyio.sleep_forever()
        raise AssertionError

    server.add_request_handler("resources/read", ReadResourceRequestParams, hang)
    async with MCPServer(server, timeout=0.2) as docs:
        (text,) = await told(resource_functions({docs: BASE}), call("read_resource", uri=f"{BASE}a"))
        assert text == "Error: the MCP server library did not answer within 0.2 s"
        assert len(await docs.resources()) == 3


@pytest.mark.processes
async def test_a_server_without_resources_or_an_answer(tmp_path: Path) -> None:
    """A server that does not know the method has no resources. An unknown resource is an error with its reason."""
    journal = tmp_path / "journal"
    journal.touch()
    async with MCPServer(stdio(journal)) as plain:
        assert await plain.resources() == []
        with pytest.raises(ToolError, match=r"the MCP server .*: Method not found"):
            await plain.read_resource("a:b")

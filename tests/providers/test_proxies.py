"""The parts of a request that a proxy, and the target of a redirect, can read: never the key or a header of the user."""

from __future__ import annotations

import base64
import json
import ssl
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from anyio.from_thread import start_blocking_portal

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError, Swarm
from aswarm._providers.redirects import Outgoing, redirected
from aswarm.cli import main
from aswarm.sources import HTTPSource
from aswarm.testing import ScriptedAnswer
from tests.support.providers.loopback import LoopbackServer, Reply, serve, spoken, whole
from tests.support.providers.proxies import KEY_AND_CERTIFICATE, Proxy, proxy

# The SDK passes this object to aiohttp for the credentials of a proxy.
pytestmark = pytest.mark.filterwarnings(
    "ignore:(BasicAuth|The 'proxy_auth' parameter) is deprecated:DeprecationWarning"
)

KEY = "sk-SECRET"
HEADERS = {"x-environment": "sk-ENVIRONMENT", "api-key": "sk-OWN"}
PASSWORD = "p@ss"
CREDENTIALS = "user:p%40ss@"


@asynccontextmanager
async def own_client(client: openai.AsyncOpenAI) -> AsyncIterator[AsyncSwarm]:
    async with client:
        yield AsyncSwarm(client)


@asynccontextmanager
async def own_source() -> AsyncIterator[AsyncSwarm]:
    async with HTTPSource(headers={"api-key": "sk-OWN"}, max_retries=0) as source:
        yield AsyncSwarm(source)


def openai_client(**options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(default_headers={"api-key": "sk-OWN"}, max_retries=0, **options)


# Each way from a swarm to a server.
SWARMS: dict[str, Callable[[], Any]] = {
    "direct": lambda: AsyncSwarm(transport="direct"),
    "httpx": lambda: AsyncSwarm(transport="httpx"),
    "aiohttp": lambda: AsyncSwarm(transport="aiohttp"),
    "auto": AsyncSwarm,
    "source": own_source,
    "openai": lambda: own_client(openai_client()),
    "openai on aiohttp": lambda: own_client(openai_client(http_client=openai.DefaultAioHttpClient())),
}
on_each_way = pytest.mark.parametrize(
    ("way", "anyio_backend"),
    [(way, "asyncio") for way in SWARMS] + [(way, "trio") for way in SWARMS if "aiohttp" not in way],
)
on_each_transport = pytest.mark.parametrize(
    ("way", "anyio_backend"), [(way, "asyncio") for way in ("direct", "httpx", "aiohttp")]
)
with_and_without_tls = pytest.mark.parametrize("tls", [True, False], ids=["https", "http"])


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A key, a secret header, and no proxy of this machine."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    certificate = tmp_path / "certificate.pem"
    certificate.write_text(KEY_AND_CERTIFICATE, encoding="ascii")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "x-environment: sk-ENVIRONMENT")


@asynccontextmanager
async def between(tls: bool, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Proxy, LoopbackServer]]:
    """A proxy, and the server at the base URL."""
    context = None
    if tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(str(Path(ssl.get_default_verify_paths().cafile or "")))
    async with proxy() as seen, serve(lambda body: spoken(ScriptedAnswer("hello"), body), context) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        yield seen, server


async def answers(way: str) -> list[str]:
    """The texts of a whole and of a streamed answer."""
    texts: list[str] = []
    async with SWARMS[way]() as swarm:
        swarm.client.max_retries = 0
        for deltas in (False, True):
            async with swarm.stream(Agent(), "hi", deltas=deltas) as run:
                async for _ in run:
                    pass
            texts.append(run.response.text)
    return texts


def values(head: str, name: str) -> list[str]:
    """The values of a header."""
    lines = (line.partition(":") for line in head.split("\r\n")[1:])
    return [value.strip() for each, _, value in lines if each.lower() == name]


@on_each_way
@with_and_without_tls
@pytest.mark.parametrize("credentials", ["", CREDENTIALS], ids=["open", "user"])
@pytest.mark.parametrize("name", ["HTTPS_PROXY", "ALL_PROXY"])
async def test_a_proxy_gets_its_own_credentials_alone(
    way: str, tls: bool, credentials: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside TLS, the proxy reads no header of the request. Without TLS, the key passes through it once, for the server."""
    async with between(tls, monkeypatch) as (seen, server):
        name = name if tls else name.replace("HTTPS", "HTTP")
        monkeypatch.setenv(name, f"http://{credentials}{seen.address}")
        assert await answers(way) == ["hello", "hello"]
    expected = [f"Basic {base64.b64encode(b'user:p@ss').decode()}"] if credentials else []
    first = f"CONNECT 127.0.0.1:{server.port}" if tls else f"POST {server.base_url}/chat/completions"
    assert set(seen.requests) == {f"{first} HTTP/1.1"}
    for head in seen.heads:
        assert values(head, "proxy-authorization") == expected
        assert head.count("sk-") == 0 if tls else head.count(KEY) == 1
    for head in server.heads:
        assert values(head, "authorization") == [f"Bearer {KEY}"]
        assert values(head, "x-environment") == ["sk-ENVIRONMENT"]
        assert not (tls and values(head, "proxy-authorization"))


@on_each_way
@with_and_without_tls
async def test_an_error_of_a_proxy_shows_no_secret(
    way: str, tls: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the text, the traceback nor the log has the password of the proxy or the key."""
    async with between(tls, monkeypatch) as (seen, _):
        seen.refuses = True
        monkeypatch.setenv("https_proxy" if tls else "http_proxy", f"http://{CREDENTIALS}{seen.address}")
        with pytest.raises(CompletionError, match="407") as caught:
            await answers(way)
    shown = "".join(traceback.format_exception(caught.value)) + caplog.text
    for secret in ("sk-", PASSWORD, "p%40ss"):
        assert secret not in shown


@on_each_transport
async def test_a_host_without_a_proxy_is_asked_directly(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_PROXY holds for "direct" as for the clients of openai."""
    async with between(True, monkeypatch) as (seen, server):
        monkeypatch.setenv("https_proxy", f"http://{CREDENTIALS}{seen.address}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert await answers(way) == ["hello", "hello"]
    assert seen.heads == []
    assert not any(values(head, "proxy-authorization") for head in server.heads)


@on_each_transport
async def test_an_unknown_certificate(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client refuses a certificate of an unknown issuer, and the error names the certificate."""
    async with between(True, monkeypatch):
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(CompletionError, match="TLS failed; check http against https, and the cert") as caught:
            await answers(way)
    assert "CERTIFICATE_VERIFY_FAILED" in str(caught.value)


@on_each_transport
async def test_certificates_of_the_environment(way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The certificates of SSL_CERT_DIR, or of certifi for a Python without certificates."""
    async with between(True, monkeypatch):
        monkeypatch.delenv("SSL_CERT_FILE")
        monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
        with pytest.raises(CompletionError, match="TLS failed"):
            await answers(way)
        monkeypatch.delenv("SSL_CERT_DIR")
        nothing = ssl.get_default_verify_paths()._replace(capath=None)
        monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: nothing)
        monkeypatch.setattr(ssl.SSLContext, "cert_store_stats", lambda _: {"x509_ca": 0})
        with pytest.raises(CompletionError, match="TLS failed"):
            await answers(way)


def test_a_batch_on_direct_shows_a_proxy_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`aswarm batch --transport direct` over TLS."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("agents_behind_a_proxy.py").write_text("from aswarm import Agent\nagent = Agent()\n", encoding="utf-8")
    Path("in.jsonl").write_text(json.dumps({"input": "hi"}) + "\n", encoding="utf-8")
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(between(True, monkeypatch)) as (seen, server),
    ):
        monkeypatch.setenv("https_proxy", f"http://{seen.address}")
        arguments = ["batch", "agents_behind_a_proxy:agent", "in.jsonl", "-o", "out.jsonl", "--transport", "direct"]
        monkeypatch.setattr(sys, "argv", ["aswarm", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 0
    assert [head.split()[0] for head in seen.heads] == ["CONNECT"]
    assert "sk-" not in seen.heads[0]
    assert "proxy-authorization" not in seen.heads[0].lower()
    assert values(server.heads[0], "authorization") == [f"Bearer {KEY}"]


@pytest.mark.parametrize(
    "status",
    ["301 Moved Permanently", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"],
)
async def test_a_redirect_to_another_origin_takes_no_header_of_the_user_along(
    status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only the key: an `api-key`, a header of the environment, and a header of one request are secrets too."""
    async with serve(lambda _: whole(ScriptedAnswer("hello"))) as target, serve(lambda _: moved) as server:
        moved = Reply([], status=status, headers={"location": f"{target.base_url}/chat/completions"})
        async with HTTPSource(server.base_url, headers=HEADERS, max_retries=0) as source:
            agent = Agent(model_settings={"extra_headers": {"x-token": "sk-TOKEN"}})
            await AsyncSwarm(source).run(agent, "hi")
    assert "sk-TOKEN" in server.heads[0]
    assert target.heads[0].split()[0] == ("POST" if status[:3] in ("307", "308") else "GET")
    assert "sk-" not in target.heads[0]


async def test_a_redirect_of_the_same_origin_keeps_the_request() -> None:
    """With its key and its headers, also if the location is only a path."""

    def reply(body: dict[str, Any]) -> Reply:
        if len(server.requests) == 1:
            return Reply([], status="308 Permanent Redirect", headers={"location": "/v2/chat/completions"})
        return spoken(ScriptedAnswer("hello"), body)

    async with serve(reply) as server, HTTPSource(server.base_url, headers=HEADERS) as source:
        assert (await AsyncSwarm(source).run(Agent(), "hi")).text == "hello"
    assert server.heads[1].startswith("POST /v2/chat/completions ")
    assert server.requests[0] == server.requests[1]
    assert values(server.heads[1], "authorization") == [f"Bearer {KEY}"]
    assert values(server.heads[1], "api-key") == ["sk-OWN"]


@pytest.mark.parametrize("location", ["", "ftp://127.0.0.1/v1", "http://[", "http://127.0.0.1:70000/"])
async def test_a_redirect_that_leads_nowhere_is_an_error(location: str) -> None:
    """The error has the status of the redirect, and the connection is closed."""
    moved = Reply([], status="302 Found", headers={"location": location})
    async with serve(lambda _: moved) as server, HTTPSource(server.base_url, max_retries=0) as source:
        with pytest.raises(CompletionError, match="Error code: 302") as caught:
            await AsyncSwarm(source).run(Agent(), "hi")
    assert (caught.value.status_code, caught.value.retryable, len(server.requests)) == (302, False, 1)


async def test_redirects_without_an_end_are_an_error() -> None:
    """After ten redirects, the error has the status of the last one."""
    moved = Reply([], status="307 Temporary Redirect", headers={"location": "again"})
    async with serve(lambda _: moved) as server, HTTPSource(server.base_url, max_retries=0) as source:
        with pytest.raises(CompletionError, match="Error code: 307"):
            await AsyncSwarm(source).run(Agent(), "hi")
    assert len(server.requests) == 11


UNUSABLE = [
    "ftp://u:sk-P@h:9",
    "http://u:sk-P/x@h:9",
    "http://u:12#sk-P@h:9",
    "http://u:sk-P@h:x",
    "http://u:sk-P@[h",
    "//u:sk-P@h",
]


@pytest.mark.parametrize("proxy_url", UNUSABLE)
@pytest.mark.parametrize("way", [way for way in SWARMS if not way.startswith("openai")])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_unusable_proxy_is_a_wrong_setting(way: str, proxy_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variables, and does not show the password. The HTTP libraries show it."""
    monkeypatch.setenv("http_proxy", proxy_url)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with pytest.raises(ConfigurationError, match="HTTP_PROXY, HTTPS_PROXY or ALL_PROXY") as caught:
        await answers(way)
    assert "sk-P" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("proxy_url", UNUSABLE)
def test_a_blocking_swarm_checks_its_proxy_too(proxy_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its first request."""
    monkeypatch.setenv("all_proxy", proxy_url)
    with pytest.raises(ConfigurationError, match="HTTP_PROXY, HTTPS_PROXY or ALL_PROXY"):
        Swarm().run(Agent(), "hi")
    monkeypatch.setenv("no_proxy", "h, *")  # then no proxy is used
    with Swarm() as swarm:
        assert swarm.client.api_key == KEY


@pytest.mark.parametrize("swarm", ["httpx", "auto", "direct", "blocking"])
async def test_a_socks_proxy_needs_a_package(swarm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is a wrong setting, without the password."""
    monkeypatch.setenv("all_proxy", "socks5://user:sk-P@127.0.0.1:9")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setitem(sys.modules, "socksio", None)
    with pytest.raises(ConfigurationError, match="SOCKS proxy of the environment cannot be used") as caught:
        _ = Swarm().client if swarm == "blocking" else await answers(swarm)
    assert "sk-P" not in str(caught.value)


@on_each_way
async def test_a_user_without_a_password_is_sent_as_the_standard_says(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a colon (RFC 7617); `%3A` and `%25` of the URL are decoded."""
    async with between(True, monkeypatch) as (seen, _):
        for credentials in ("us%25er@", "user:p%3A%25@"):
            monkeypatch.setenv("https_proxy", f"http://{credentials}{seen.address}")
            assert await answers(way) == ["hello", "hello"]
    sent = {base64.b64decode(values(head, "proxy-authorization")[0].split()[1]) for head in seen.heads}
    assert sent == {b"us%er:", b"user:p:%"}


@on_each_way
async def test_a_redirect_to_https_reads_the_certificates_of_the_environment(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base URL has no TLS, so a source has loaded no certificates before."""
    async with between(True, monkeypatch) as (_, target):
        moved = Reply([], status="308 Permanent Redirect", headers={"location": f"{target.base_url}/chat/completions"})
        async with serve(lambda _: moved) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
            assert await answers(way) == ["hello", "hello"]
    assert not any(KEY in head for head in target.heads)


@pytest.mark.parametrize(
    ("old", "new", "keeps"),
    [
        ("http://h/v1", "https://h/v1", True),
        ("http://h:80/v1", "https://H:443/v2", True),
        ("http://h/v1", "https://h:8443/v1", False),
        ("http://h:8000/v1", "https://h/v1", False),
        ("https://h/v1", "http://h/v1", False),
        ("http://h/v1", "https://api.h/v1", False),
    ],
)
def test_the_same_host_over_tls_gets_the_headers(old: str, new: str, keeps: bool) -> None:
    """As with openai: a server may redirect http to https, at the standard ports."""
    following = redirected(Outgoing("POST", old, b"{}", {"api-key": KEY}, None), 308, new)
    assert following is not None
    assert (following.url, following.headers) == (new, {"api-key": KEY} if keeps else {})


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("name", ["ALL_PROXY", "https_proxy"])
async def test_aiohttp_takes_no_socks_proxy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """aiohttp would send plain HTTP to it: "auto" is httpx then, and "aiohttp" is refused."""
    made: list[object] = []
    monkeypatch.setattr(openai, "DefaultAioHttpClient", made.append)
    monkeypatch.setenv(name, "socks5://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "*")  # httpx imports no package for SOCKS then
    async with AsyncSwarm() as swarm:
        assert isinstance(swarm.client, openai.AsyncOpenAI)
    with pytest.raises(
        ConfigurationError, match="cannot use the SOCKS proxy of the environment; leave it out, or unset"
    ):
        await answers("aiohttp")
    assert made == []

"""What the client that a swarm makes reads from the environment, on each transport: proxies and certificates."""

from __future__ import annotations

import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import openai
import pytest
from loopback import LoopbackServer, serve, whole
from transports import Transport

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError
from aswarm.testing import ScriptedAnswer

pytestmark = [
    pytest.mark.asyncio,
    # What the SDK passes to aiohttp for the credentials of a proxy.
    pytest.mark.filterwarnings("ignore:(BasicAuth|The 'proxy_auth' parameter) is deprecated:DeprecationWarning"),
]
each_transport = pytest.mark.parametrize("transport", ["httpx", "aiohttp", "direct"])

# For 127.0.0.1, signed by itself, valid until 2120.
KEY_AND_CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgwbVn/ykTnMSaJv4C
FWsXh6ojbVqyUzMHTdkbaKwOEW+hRANCAARIMyGj6E/GRkY5jUiphaZxXkbATZ84
QH6dXv3NKBz2OINVLZq9b1eAGNkRmW4HJrP2A7qyUrJCDH0wZfx9QYOr
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBpTCCAUqgAwIBAgIBATAKBggqhkjOPQQDAjAUMRIwEAYDVQQDDAkxMjcuMC4w
LjEwIBcNMjAwMTAxMDAwMDAwWhgPMjEyMDAxMDEwMDAwMDBaMBQxEjAQBgNVBAMM
CTEyNy4wLjAuMTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABEgzIaPoT8ZGRjmN
SKmFpnFeRsBNnzhAfp1e/c0oHPY4g1Utmr1vV4AY2RGZbgcms/YDurJSskIMfTBl
/H1Bg6ujgYowgYcwDwYDVR0TAQH/BAUwAwEB/zAOBgNVHQ8BAf8EBAMCAoQwEwYD
VR0lBAwwCgYIKwYBBQUHAwEwHQYDVR0OBBYEFPFYUAOFZMoSAK6lRFuvV3CZf+pn
MB8GA1UdIwQYMBaAFPFYUAOFZMoSAK6lRFuvV3CZf+pnMA8GA1UdEQQIMAaHBH8A
AAEwCgYIKoZIzj0EAwIDSQAwRgIhAL/W+WRMEdizx4TNZvSQeg50GrYCGaEylrZ5
plmKkIxZAiEA5B/V54sx3htP+xYq0Er5H63gtfjOnQYpoBYmCs78Ncc=
-----END CERTIFICATE-----
"""


class Proxy:
    """Passes connections on, and keeps the first line and the credentials of each request that reaches it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.requests: list[str] = []
        self.credentials: list[str] = []

    async def handle(self, stream: anyio.abc.SocketStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += await stream.receive()
        first, *headers = head.decode("latin-1").split("\r\n")
        self.requests.append(first)
        self.credentials += [line.split(" ")[-1] for line in headers if line.lower().startswith("proxy-authorization:")]
        method, target, _ = first.split(" ")
        host, port = target.removeprefix("http://").split("/")[0].rsplit(":", 1)
        async with stream, await anyio.connect_tcp(host, int(port)) as server, anyio.create_task_group() as group:
            if method == "CONNECT":
                await stream.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                await server.send(head)
            group.start_soon(copy, stream, server)
            await copy(server, stream)
            group.cancel_scope.cancel()


async def copy(source: anyio.abc.SocketStream, target: anyio.abc.SocketStream) -> None:
    try:
        async for data in source:
            await target.send(data)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass


@asynccontextmanager
async def proxy() -> AsyncIterator[Proxy]:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    made = Proxy(f"127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, made.handle)
        yield made
        group.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key, and no proxy of this machine."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "k")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    path = tmp_path / "certificate.pem"
    path.write_text(KEY_AND_CERTIFICATE, encoding="ascii")
    return path


@asynccontextmanager
async def served(monkeypatch: pytest.MonkeyPatch, certificate: Path | None = None) -> AsyncIterator[LoopbackServer]:
    """A server that answers "hello", over TLS if there is a certificate."""
    context = None
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
    async with serve(lambda _: whole(ScriptedAnswer("hello")), context) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        yield server


async def answer(transport: Transport) -> str:
    async with AsyncSwarm(transport=transport) as swarm:
        return (await swarm.run(Agent(), "hi")).text


@each_transport
@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY", "http_proxy"])
async def test_a_proxy(transport: Transport, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy gets the whole address, and the credentials of its URL."""
    async with proxy() as between, served(monkeypatch) as server:
        monkeypatch.setenv(name, f"http://user:p%40ss@{between.address}")
        assert await answer(transport) == "hello"
    assert between.requests == [f"POST {server.base_url}/chat/completions HTTP/1.1"]
    assert base64.b64decode(between.credentials[0]) == b"user:p@ss"


@each_transport
async def test_a_proxy_for_tls(transport: Transport, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy gets CONNECT and sees nothing of the request. The certificate of the server is checked."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with proxy() as between, served(monkeypatch, certificate) as server:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:p%40ss@{between.address}")
        assert await answer(transport) == "hello"
    assert between.requests == [f"CONNECT 127.0.0.1:{server.port} HTTP/1.1"]
    assert base64.b64decode(between.credentials[0]) == b"user:p@ss"


@each_transport
async def test_no_proxy(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host in NO_PROXY is asked without the proxy."""
    async with proxy() as between, served(monkeypatch):
        monkeypatch.setenv("ALL_PROXY", f"http://{between.address}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert await answer(transport) == "hello"
    assert between.requests == []


@each_transport
async def test_a_certificate_of_the_environment(
    transport: Transport, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SSL_CERT_FILE is trusted."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with served(monkeypatch, certificate):
        assert await answer(transport) == "hello"


@each_transport
async def test_an_unknown_certificate(transport: Transport, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate that nobody trusts is refused, and the error names the certificate."""
    async with served(monkeypatch, certificate), AsyncSwarm(transport=transport) as swarm:
        swarm.client.max_retries = 0
        with pytest.raises(CompletionError, match="TLS failed; check http against https, and the cert") as caught:
            await swarm.run(Agent(), "hi")
    assert "CERTIFICATE_VERIFY_FAILED" in str(caught.value)


@pytest.mark.parametrize("name", ["ALL_PROXY", "https_proxy"])
async def test_a_socks_proxy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
        await answer("aiohttp")
    assert made == []

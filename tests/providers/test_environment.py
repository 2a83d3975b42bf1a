"""What the client that a swarm makes reads from the environment, on each transport: proxies and certificates."""

from __future__ import annotations

import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError
from aswarm.testing import ScriptedAnswer
from tests.support.providers.loopback import LoopbackServer, serve, whole
from tests.support.providers.proxies import KEY_AND_CERTIFICATE, proxy
from tests.support.providers.transports import Transport

pytestmark = [
    pytest.mark.asyncio,
    # What the SDK passes to aiohttp for the credentials of a proxy.
    pytest.mark.filterwarnings("ignore:(BasicAuth|The 'proxy_auth' parameter) is deprecated:DeprecationWarning"),
]
each_transport = pytest.mark.parametrize("transport", ["httpx", "aiohttp", "direct"])


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

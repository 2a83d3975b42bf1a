"""A proxy on loopback that keeps the bytes that it could read, and a certificate for a server behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc

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
    """A proxy that passes connections on, and keeps the head of each request that reaches it.

    `refuses`: answer each request with 407, as without the right credentials. `heads`: all that the proxy could read of a request
    over TLS, and method, address and headers of a request without TLS.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.refuses = False
        self.heads: list[str] = []
        self.requests: list[str] = []

    async def handle(self, stream: anyio.abc.SocketStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += await stream.receive()
        self.heads.append(head.decode("latin-1"))
        first = self.heads[-1].partition("\r\n")[0]
        self.requests.append(first)
        if self.refuses:
            async with stream:
                await stream.send(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
            return
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

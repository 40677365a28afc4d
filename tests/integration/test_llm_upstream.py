"""How the proxy reads the responses of providers: in every encoding of HTTP, broken anywhere, and over TLS."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import zlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from headgate.llm.dialects.paths import CHAT, MODELS
from headgate.llm_proxy.provider_answer import BrokenAnswer, ProviderAnswer
from headgate.llm_proxy.providers import ProviderSettings
from headgate.llm_proxy.upstream import Lost, NotReached, Upstream

pytestmark = pytest.mark.integration

BODY = bytes(range(256)) * 40


class Peer:
    """A server that answers each request with the same given bytes, so many at a time."""

    def __init__(self, response: bytes, *, step: int = 1 << 20, ends: bool = False) -> None:
        self.response = response
        self.step = step
        self.ends = ends
        """Whether the connection is closed after the response."""

        self.requests: list[bytes] = []
        self.connections = 0
        self.port = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
                self.requests.append(head + await reader.readexactly(int(length or 0)))
                for start in range(0, len(self.response), self.step):
                    writer.write(self.response[start : start + self.step])
                    await writer.drain()
                    await asyncio.sleep(0)
                if self.ends:
                    return
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    def settings(self, **fields: Any) -> ProviderSettings:
        defaults: dict[str, Any] = {
            "name": "p", "base_url": f"http://127.0.0.1:{self.port}/v1", "api_key": "secret", "auth": "",
            "dialects": ("chat", "models"), "models": ("*",), "timeout_s": 10.0, "connect_timeout_s": 10.0,
            "asks_usage": True, "headers": (),
        }  # fmt: skip
        return ProviderSettings(**{**defaults, **fields})


def run(peer: Peer, work: Callable[[Upstream], Awaitable[Any]], tls: ssl.SSLContext | None = None) -> Any:
    """Run some calls against a peer."""

    async def main() -> Any:
        server = await asyncio.start_server(peer.connected, "127.0.0.1", 0, ssl=tls)
        peer.port = server.sockets[0].getsockname()[1]
        upstream = Upstream()
        try:
            return await asyncio.wait_for(work(upstream), 60)
        finally:
            await upstream.close()
            server.close()
            await asyncio.sleep(0.01)

    return uvloop.run(main())


async def send(upstream: Upstream, peer: Peer, **settings: Any) -> ProviderAnswer:
    return await upstream.send(peer.settings(**settings), CHAT, "", [("x-mine", "1")], b"{}")


def head(*fields: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *fields, "", ""]).encode()


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x;a=b\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\ntrailer: x\r\n\r\n"


PARTS = gzip.compress(BODY[:100]) + gzip.compress(BODY[100:]) + b"\0\0"
ENCODINGS = {
    "a length": head(f"Content-Length: {len(BODY)}") + BODY,
    "chunks": head("Transfer-Encoding: chunked") + chunked(BODY, 1000),
    "small chunks": head("transfer-encoding: Chunked") + chunked(BODY, 7),
    "interim responses first": head(status="100 Continue") + head("a: b", status="103 Early Hints")
    + head(f"content-length: {len(BODY)}") + BODY,
    "gzip": head(f"content-length: {len(gzip.compress(BODY))}", "content-encoding: gzip") + gzip.compress(BODY),
    "gzip in several parts, and junk": head(f"content-length: {len(PARTS)}", "content-encoding: gzip") + PARTS,
    "deflate": head("content-encoding: deflate", "transfer-encoding: chunked") + chunked(zlib.compress(BODY), 50),
}  # fmt: skip


@pytest.mark.parametrize("step", [1 << 20, 100, 1])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_response_is_read_in_every_encoding_and_its_connection_is_reused(encoding: str, step: int) -> None:
    peer = Peer(ENCODINGS[encoding], step=step)

    async def work(upstream: Upstream) -> None:
        for _ in range(2):
            with await send(upstream, peer) as response:
                assert response.status == 200 and await response.read_body(1 << 20) == BODY
                assert await response.read() == b""

    run(peer, work)
    assert (len(peer.requests), peer.connections) == (2, 1)


def test_a_request_has_its_own_fields_once_and_those_of_the_client() -> None:
    peer = Peer(head("content-length: 0"))

    async def work(upstream: Upstream) -> None:
        settings = peer.settings(headers=(("x-org", "o"),))
        headers = [("X-Mine", "1"), ("x-org", "other"), ("authorization", "Bearer own"), ("host", "x"), ("accept", "a")]
        with await upstream.send(settings, CHAT, "a=b%20c&d=\udcc3\udca4 e#f", headers, b"{}"):
            pass
        with await upstream.send(settings, MODELS, "", headers, None):
            pass

    run(peer, work)
    lines = peer.requests[0].split(b"\r\n")
    assert lines[0] == b"POST /v1/chat/completions?a=b%20c&d=%C3%A4%20e HTTP/1.1"
    assert sorted(lines[1:-2]) == sorted([
        b"host: 127.0.0.1:%d" % peer.port, b"x-org: o", b"authorization: Bearer secret", b"accept-encoding: identity",
        b"content-type: application/json", b"x-mine: 1", b"accept: a", b"content-length: 2",
    ])  # fmt: skip
    assert lines[-1] == b"{}"
    assert peer.requests[1].startswith(b"GET /v1/models HTTP/1.1\r\n") and b"content-length" not in peer.requests[1]


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    peer = Peer(head("content-type: Text/Event-Stream; charset=utf-8") + BODY, ends=True)

    async def work(upstream: Upstream) -> None:
        for _ in range(2):
            with await send(upstream, peer) as response:
                assert response.content_type == "text/event-stream"
                assert await response.read_body(1 << 20) == BODY

    run(peer, work)
    assert peer.connections == 2


@pytest.mark.parametrize(
    "response", [head("connection: close", "content-length: 2") + b"ok", head("content-length: 2") + b"ok" + b"more",
             head("content-length: 2") + b"ok" + head("content-length: 0")],
)  # fmt: skip
def test_a_connection_with_excess_bytes_or_a_close_is_not_reused(response: bytes) -> None:
    peer = Peer(response)

    async def work(upstream: Upstream) -> None:
        for _ in range(2):
            with await send(upstream, peer) as response:
                assert await response.read_body(10) == b"ok"

    run(peer, work)
    assert peer.connections == 2


@pytest.mark.parametrize(
    "response",
    [
        b"", b"no HTTP at all\r\n\r\n", head("content-length: x"), head("content-length: 1", "content-length: 2"),
        head("content-length: 3", "transfer-encoding: chunked"), head("transfer-encoding: gzip"),
        head("content-encoding: br", "content-length: 1") + b"x", head("a: " + "b" * 70_000),
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", head()[:-3],
    ],
    ids=lambda response: response[:40],
)  # fmt: skip
def test_a_call_with_an_invalid_response_head_is_lost(response: bytes) -> None:
    peer = Peer(response, ends=True)

    async def work(upstream: Upstream) -> None:
        with pytest.raises(Lost) as caught:
            await send(upstream, peer)
        assert not caught.value.is_timeout

    run(peer, work)
    assert len(peer.requests) == 1


@pytest.mark.parametrize(
    "response",
    [
        head("content-length: 9") + b"ok", head("transfer-encoding: chunked") + b"2\r\nok\r\n",
        head("transfer-encoding: chunked") + b"2\r\nok\r\nzz\r\n",
        head("content-length: 40", "content-encoding: gzip") + b"\x1f\x8bno gzip",
        head("content-length: 20", "content-encoding: gzip") + gzip.compress(b"ok", mtime=0)[:20],
        head("content-encoding: gzip") + gzip.compress(b"ok", mtime=0)[:-3],
    ],
)  # fmt: skip
def test_a_truncated_body_gives_the_received_bytes_and_then_an_error(response: bytes) -> None:
    peer = Peer(response, ends=True)

    async def read(response: ProviderAnswer, received: bytearray) -> None:
        while part := await response.read():
            received += part

    async def work(upstream: Upstream) -> bytes:
        received = bytearray()
        with await send(upstream, peer) as response, pytest.raises(BrokenAnswer):
            await read(response, received)
        return bytes(received)

    assert run(peer, work) in (b"ok", b"")


@pytest.mark.parametrize("step", [1 << 20, 999])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_small_body_that_expands_a_thousandfold_is_read_in_bounded_pieces(encoding: str, step: int) -> None:
    content = bytes(1 << 26)
    compressed = gzip.compress(content, mtime=0) if encoding == "gzip" else zlib.compress(content)
    peer = Peer(head(f"content-length: {len(compressed)}", f"content-encoding: {encoding}") + compressed, step=step)

    async def work(upstream: Upstream) -> int:
        received = 0
        for _ in range(2):
            with await send(upstream, peer) as response:
                while part := await response.read():
                    assert len(part) <= 1 << 17 and not part.strip(b"\0")
                    received += len(part)
                assert response.is_at_end
        return received

    assert run(peer, work) == 2 * len(content)
    assert peer.connections == 1


@pytest.mark.parametrize("parts", [[], [b""], [b"o", b"k"]])
def test_a_compressed_body_may_be_empty_or_of_several_parts(parts: list[bytes]) -> None:
    compressed = b"".join(map(gzip.compress, parts)) + b"junk" * len(parts)
    peer = Peer(head(f"content-length: {len(compressed)}", "content-encoding: gzip") + compressed, step=3)

    async def work(upstream: Upstream) -> bytes:
        with await send(upstream, peer) as response:
            return await response.read_body(10)

    assert run(peer, work) == b"".join(parts)


def test_a_silent_provider_times_out_but_not_while_its_response_waits_for_the_client() -> None:
    long = b"x" * (1 << 22)
    peer = Peer(head(f"content-length: {len(long)}") + long)
    silent = Peer(head("content-length: 5") + b"ok")

    async def slow(upstream: Upstream) -> None:
        with await send(upstream, peer, timeout_s=0.3) as response:
            received = len(await response.read())
            await asyncio.sleep(1.0)
            while part := await response.read():
                assert len(part) < 1 << 20  # reading ahead is bounded
                received += len(part)
            assert received == len(long)

    async def quiet(upstream: Upstream) -> None:
        with await send(upstream, silent, timeout_s=0.2) as response:
            assert await response.read() == b"ok"
            with pytest.raises(TimeoutError, match=r"no bytes arrived for 0\.2 s"):
                await response.read()

    run(peer, slow)
    run(silent, quiet)
    mute = Peer(b"")

    async def nothing(upstream: Upstream) -> None:
        with pytest.raises(Lost, match=r"no bytes arrived for 0\.2 s") as caught:
            await send(upstream, mute, timeout_s=0.2)
        assert caught.value.is_timeout

    run(mute, nothing)


def test_an_unreachable_provider_is_not_reached() -> None:
    peer = Peer(b"")

    async def work(upstream: Upstream) -> None:
        for url in ("http://127.0.0.1:9/v1", "http://no.such.host.invalid/v1", f"https://127.0.0.1:{peer.port}/v1"):
            with pytest.raises(NotReached):
                await send(upstream, peer, base_url=url, connect_timeout_s=5.0)

    run(peer, work)
    assert peer.requests == []


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Make a self-signed certificate of 127.0.0.1, and a context that serves with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file, secret = folder / "cert.pem", folder / "key.pem"
    file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, secret)
    return file, context


def test_over_tls_only_a_provider_with_a_valid_certificate_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, context = certificate(tmp_path)
    peer = Peer(ENCODINGS["chunks"])

    async def work(upstream: Upstream) -> None:
        for _ in range(2):
            with await send(upstream, peer, base_url=f"https://127.0.0.1:{peer.port}/v1") as response:
                assert await response.read_body(1 << 20) == BODY

    with pytest.raises(NotReached):
        run(peer, work, context)
    assert peer.requests == []
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    run(peer, work, context)
    assert len(peer.requests) == 2

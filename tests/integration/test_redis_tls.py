"""Redis over TLS, single, behind Sentinels and in a Cluster: files, and errors of certificates."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import certificates
import pytest
from certificates import Authority, Pair
from cryptography import x509
from redis_askers import COLOURS, Asker
from redis_servers import Certificates, Server, cluster, sentinels, single, wait_until
from sockets import open_sockets
from tcp_proxy import HOST, TcpProxy, hold_port

from headgate import ConfigError, RedisStore, StoreUnavailable
from headgate.stores.redis.clients import open_async_connection, open_async_pool, open_client, open_connection
from headgate.stores.redis.url import RedisTarget, read_url

Start = Callable[..., Server]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def start(tmp_path: Path, authority: Authority) -> Iterator[Start]:
    """Starts a server with a certificate of the authority and with lines of redis.conf."""
    started: list[Server] = []

    def start_one(pair: Pair, *options: str) -> Server:
        files = Certificates(authority.file, pair.certificate, pair.key)
        server = Server(tmp_path / str(len(started)), *options, certificates=files)
        started.append(server)
        server.launch()
        wait_until(lambda: "" if "Ready to accept connections" in server.log else "ready", within_s=30)
        return server

    yield start_one
    for server in started:
        server.end()


def error_of(server: Server, colour: str, **options: object) -> str:
    """Why a server cannot be reached; empty where it answers."""
    given = "&".join(f"{name}={value}" for name, value in options.items())
    with Asker(colour, "5/week", RedisStore(f"rediss://{HOST}:{server.port}?timeout=10s&{given}")) as asker:
        try:
            asker.hit("key")
        except StoreUnavailable as error:
            return str(error).partition("cannot be reached: ")[2]
    return ""


def contexts_of(target: RedisTarget, colour: str) -> list[ssl.SSLContext]:
    """The TLS contexts of two new connections to a target."""

    async def connect() -> list[ssl.SSLContext]:
        if target.kind == "cluster":
            both = [open_async_connection(target, target.addresses[0]) for _ in range(2)]
        else:
            pool = open_async_pool(target)
            both = [pool.make_connection() for _ in range(2)]
        for each in both:
            await each.connect()
        found = [each._writer.get_extra_info("ssl_object").context for each in both]
        for each in both:
            await each.disconnect()
        if target.kind == "sentinel":
            for sentinel in pool.sentinel_manager.sentinels:
                await sentinel.aclose()
        return found

    if colour == "async":
        return asyncio.run(connect())
    if target.kind == "cluster":
        both = [open_connection(target, target.addresses[0]) for _ in range(2)]
    else:
        pool: Any = open_client(target).connection_pool
        both = [pool.make_connection() for _ in range(2)]
    for each in both:
        each.connect()
    found = [each._sock.context for each in both]
    for each in both:
        each.disconnect()
    return found


@pytest.mark.parametrize("colour", COLOURS)
def test_sentinels_and_their_servers_are_used_over_tls(colour: str) -> None:
    with sentinels(tls=True, replicas=1) as watched:
        options = f"?ssl_ca_certs={watched.servers[0].ca_file}&timeout=10s"
        with Asker(colour, "2/week", RedisStore(watched.url + options)) as asker:
            assert [asker.hit("key").allowed for _ in range(3)] == [True, True, False]
        one, other = contexts_of(read_url(watched.url + options), colour)
        assert one is other


@pytest.mark.parametrize("colour", COLOURS)
def test_servers_of_a_cluster_are_used_over_tls(colour: str) -> None:
    with cluster(tls=True, replicas_each=0) as nodes:
        url = f"{nodes.url}?ssl_ca_certs={nodes.servers[0].ca_file}&timeout=10s"
        with Asker(colour, "2/week", RedisStore(url)) as asker:
            for key in ("a", "b", "c"):
                assert [asker.hit(key).allowed for _ in range(3)] == [True, True, False]
        one, other = contexts_of(read_url(url), colour)
        assert one is other


@pytest.mark.parametrize("colour", COLOURS)
def test_connections_share_a_context_until_its_files_change(colour: str, tmp_path: Path) -> None:
    """Reading the files blocks the process for 20 ms: many connecting threads would miss their deadlines."""
    with single(tls=True) as server:
        assert server.ca_file is not None
        known, right = tmp_path / "known.pem", server.ca_file.read_bytes()
        known.write_bytes(right)
        target = read_url(f"{server.url}?ssl_ca_certs={known}")
        one, other = contexts_of(target, colour)
        assert one is other
        known.write_bytes(Authority(tmp_path, "other").file.read_bytes())
        with pytest.raises(Exception, match="certificate verify failed"):
            contexts_of(target, colour)
        known.write_bytes(right)
        assert contexts_of(target, colour)[0] is not one


@pytest.mark.parametrize("colour", COLOURS)
def test_the_fault_of_a_certificate_is_reported(
    colour: str, authority: Authority, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"ssl_ca_certs": authority.file}
    server = start(authority.sign("server"))
    assert error_of(server, colour, **known) == ""
    assert error_of(server, colour, ssl_ca_data=quote(authority.file.read_text(), safe="")) == ""
    stranger = Authority(tmp_path, "stranger")
    assert "certificate is not accepted: self-signed" in error_of(server, colour, ssl_ca_certs=stranger.file)
    assert error_of(server, colour, ssl_ca_certs="/nowhere.pem") == "ssl_ca_certs: No such file or directory"
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    assert error_of(server, colour, ssl_ca_certs=nothing) == "ssl_ca_certs: it cannot be read as PEM"
    own = {"ssl_certfile": "/nowhere.pem", "ssl_keyfile": "/nowhere.key"}
    assert error_of(server, colour, **known, **own) == "ssl_certfile or ssl_keyfile: No such file or directory"
    assert "not accepted: certificate has expired" in error_of(
        start(authority.sign("old", days=(-9, -1))), colour, **known
    )
    monkeypatch.setattr(certificates, "LOOPBACK", x509.SubjectAlternativeName([x509.DNSName("redis.example")]))
    elsewhere = start(authority.sign("elsewhere"))
    assert "not accepted: IP address mismatch" in error_of(elsewhere, colour, **known)
    assert error_of(elsewhere, colour, **known, ssl_check_hostname="no") == ""


@pytest.mark.parametrize("colour", COLOURS)
def test_a_client_shows_its_certificate(colour: str, authority: Authority, start: Start) -> None:
    server = start(authority.sign("server"), "tls-auth-clients yes", 'tls-protocols "TLSv1.2"')
    own = authority.sign("client", password=b"sesame")
    given = {"ssl_ca_certs": authority.file, "ssl_certfile": own.certificate, "ssl_keyfile": own.key}
    assert error_of(server, colour, **given, ssl_password="sesame") == ""
    assert "handshake failure" in error_of(server, colour, ssl_ca_certs=authority.file)
    old = authority.sign("old", days=(-9, -1))
    assert "certificate expired" in error_of(
        server, colour, ssl_ca_certs=authority.file, ssl_certfile=old.certificate, ssl_keyfile=old.key
    )


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("ssl_ciphers=NOSUCH", "ssl_ciphers names no cipher"),
        ("ssl_ca_data=nothing", "ssl_ca_data is the text of certificates as PEM"),
        ("ssl_ca_certs=a%0Ab", 'option 1 after "?" has a control character'),
    ],
)
def test_options_that_can_never_work_are_reported_where_the_url_is_read(option: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        RedisStore(f"rediss://h?{option}")


@pytest.mark.parametrize("colour", COLOURS)
def test_a_hanging_server_delays_nothing_once_another_one_has_replaced_it(
    colour: str, authority: Authority, start: Start
) -> None:
    """Over TLS, closing a connection waits for its server to agree, for up to 30 s."""
    first, second = start(authority.sign("first")), start(authority.sign("second"))
    with TcpProxy(first.port) as proxy:
        url = f"rediss://localhost:{proxy.port}?ssl_ca_certs={authority.file}&timeout=200ms&on_error=closed"
        with Asker(colour, "1000/week", url) as asker:
            assert asker.hit("key").degraded == ""
            first.stop()
            proxy.target_port = second.port
            wait_until(lambda: asker.hit("key").degraded and "without the store", within_s=15)
        first.go_on()


def test_a_server_that_sends_nothing_after_its_certificate_leaves_no_socket_open(authority: Authority) -> None:
    """A server behind a TLS proxy behaves so where only the proxy answers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("proxy"))
    with hold_port() as listener, ThreadPoolExecutor(1) as server:
        listener.listen()
        accepted = server.submit(lambda: context.wrap_socket(listener.accept()[0], server_side=True))
        target = read_url(f"rediss://localhost:{listener.getsockname()[1]}?ssl_ca_certs={authority.file}")

        async def connect() -> set[str]:
            before, connection = open_sockets(), open_async_connection(target, target.addresses[0])
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await connection.connect()
            await connection.disconnect(nowait=True)
            await asyncio.sleep(0.1)
            return open_sockets() - before

        left = asyncio.run(connect())
        with accepted.result(10) as peer:
            assert left == {str(Path(f"/proc/self/fd/{peer.fileno()}").readlink())}

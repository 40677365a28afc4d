"""The servers that other tests start, and the proxy before them, do what their names say."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis_servers import Cluster, Sentinels, Server, nodes_seen_by, single
from tcp_proxy import TcpProxy

pytestmark = pytest.mark.integration

KEY = "{user1000}.count"
SLOT = 3443


def client(port: int, timeout_s: float = 5) -> redis.Redis:
    return redis.Redis(port=port, socket_timeout=timeout_s, retry=Retry(NoBackoff(), 0), protocol=2)


def eventually(true: Callable[[], bool], within_s: float = 10) -> bool:
    deadline = time.monotonic() + within_s
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return true()


def exists(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_single_server_answers_and_has_ended_after_the_block() -> None:
    with single() as server:
        assert server.cli("PING")
        assert redis.Redis.from_url(server.url).ping()
        pid, directory = server.pid, server.directory
    assert not exists(pid)
    assert refused(server.port)
    assert not directory.exists()


def test_a_restart_keeps_the_port_and_not_the_data() -> None:
    with single() as server:
        server.cli("SET", "key", "1")
        port, pid = server.port, server.pid
        server.restart()
        assert (server.port, server.cli("GET", "key")) == (port, None)
        assert server.pid != pid and not exists(pid)


def test_options_win_and_may_keep_the_data() -> None:
    with single("appendonly yes", "appendfsync always", "maxmemory 50mb") as server:
        server.cli("SET", "key", "1")
        server.restart()
        assert server.cli("GET", "key") == "1"
        assert server.cli("CONFIG", "GET", "maxmemory") == ["maxmemory", str(50 << 20)]


def test_a_killed_server_refuses_and_a_stopped_one_is_silent() -> None:
    with single() as server:
        server.stop()
        with pytest.raises(redis.TimeoutError):
            server.cli("PING", timeout_s=0.1)
        server.go_on()
        assert server.cli("PING")
        server.kill()
        assert refused(server.port)
        server.restart()
        assert server.cli("PING")


def test_a_server_outlives_the_thread_that_started_it() -> None:
    with single() as server:
        thread = threading.Thread(target=server.restart)
        thread.start()
        thread.join()
        time.sleep(0.1)
        assert server.cli("PING")


def test_no_server_outlives_a_killed_process() -> None:
    program = (
        "from redis_servers import single\nwith single() as s:\n    print(s.pid, s.directory, flush=True)\n    input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        pid, directory = process.stdout.readline().split()
        assert exists(int(pid))
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    assert eventually(lambda: not exists(int(pid)))
    # The directory of a killed run stays: nobody was there to remove it.
    for file in Path(directory).iterdir():
        file.unlink()
    Path(directory).rmdir()
    Path(directory).parent.rmdir()


def test_a_program_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_REDIS_SERVER", "no-such-server")
    with pytest.raises(FileNotFoundError, match="no-such-server is not here"), single():
        pass


def test_a_wrong_config_is_reported() -> None:
    with pytest.raises(ChildProcessError, match="no-such-option"), single("no-such-option yes"):
        pass


def test_a_password_is_in_the_url_and_is_required() -> None:
    with single(password="a b/@") as server:
        with redis.Redis.from_url(server.url) as known:
            assert known.ping()
        with client(server.port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()


def test_a_socket_in_the_file_system_answers() -> None:
    with single(unixsocket=True, password="p") as server, redis.Redis.from_url(server.unix_url) as known:
        assert known.ping()


def test_tls_is_verified_with_the_authority_of_the_server() -> None:
    with single(tls=True) as server:
        assert server.url.startswith("rediss://") and server.cli("PING")
        context = ssl.create_default_context(cafile=server.ca_file)
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python does from 3.13
        with (
            socket.create_connection(("127.0.0.1", server.port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            secure.sendall(b"PING\r\n")
            assert secure.recv(100) == b"+PONG\r\n"
        with redis.Redis.from_url(server.url) as stranger, pytest.raises(redis.ConnectionError, match="CERTIFICATE"):
            stranger.ping()


def test_sentinels_name_another_primary_when_it_is_killed_and_take_it_back_as_a_replica(watched: Sentinels) -> None:
    first = watched.primary
    assert watched.url.count("127.0.0.1:") == len(watched.sentinel_ports) == 3
    first.cli("SET", "key", "1")
    watched.wait_ok()
    first.kill()
    second = watched.wait_failover(first, within_s=20)
    assert second is not first
    assert second.cli("GET", "key") == "1"
    first.restart()
    watched.wait_ok()
    assert watched.primary is second
    assert first.cli("ROLE")[0] == "slave"


def test_sentinels_name_another_primary_when_it_is_stopped(watched: Sentinels) -> None:
    first = watched.primary
    first.stop()
    second = watched.wait_failover(first, within_s=20)
    first.go_on()
    watched.wait_ok()
    assert watched.primary is second


def test_a_slot_moves_with_its_keys_and_is_seen_half_migrated(nodes: Cluster) -> None:
    source = nodes.owner_of(SLOT)
    target = next(server for server in nodes.primaries() if server is not source)
    other = "{user1000}.other"
    source.cli("SET", KEY, "7")
    seen: list[str] = []

    def check_redirection() -> None:
        with pytest.raises(redis.ResponseError, match=rf"^{SLOT} 127.0.0.1:{target.port}") as raised:
            source.cli("GET", KEY)
        seen.append(type(raised.value).__name__)
        with redis.RedisCluster("127.0.0.1", source.port) as everybody:
            assert everybody.incr(KEY) == 8
            assert everybody.set(other, "new")

    nodes.migrate_slot(SLOT, target, pause=check_redirection)
    assert seen == ["AskError"]
    assert nodes.owner_of(SLOT) is target
    assert (target.cli("GET", KEY), target.cli("GET", other)) == ("8", "new")
    nodes.wait_ok()
    assert all(SLOT in _slots_of(target, eye) for eye in nodes.servers)


def _slots_of(owner: Server, eye: Server) -> set[int]:
    ranges = next(node.slots for node in nodes_seen_by(eye) if node.port == owner.port)
    return {slot for first, last in ranges for slot in range(first, last + 1)}


def test_a_replica_takes_over_when_a_primary_of_the_cluster_is_killed(nodes: Cluster) -> None:
    first = nodes.owner_of(SLOT)
    (replica,) = nodes.replicas_of(first)
    first.kill()
    nodes.wait_ok(within_s=20)
    assert nodes.owner_of(SLOT) is replica
    first.restart()
    nodes.wait_ok(within_s=20)
    assert nodes.replicas_of(replica) == [first]
    assert len(nodes.primaries()) == 3


def test_a_slow_link_costs_its_delay_in_each_direction(proxy: TcpProxy) -> None:
    with client(proxy.port) as slow:
        assert slow.ping()
        proxy.delay(0.1)
        start = time.monotonic()
        assert slow.ping()
        assert time.monotonic() - start >= 0.2
        proxy.delay(0)
        assert slow.ping()


def test_a_slow_link_is_not_a_narrow_one(proxy: TcpProxy) -> None:
    proxy.delay(0.1)
    with client(proxy.port) as slow:
        assert slow.ping()
        start = time.monotonic()
        with slow.pipeline(transaction=False) as pipeline:
            for _ in range(1000):
                pipeline.echo("x" * 1000)
            assert len(pipeline.execute()) == 1000
        assert time.monotonic() - start < 2


def test_connections_are_counted(proxy: TcpProxy) -> None:
    with client(proxy.port) as one, client(proxy.port) as two:
        assert one.ping() and two.ping()
        assert (proxy.connections, proxy.accepted) == (2, 2)
    assert eventually(lambda: proxy.connections == 0)
    assert proxy.accepted == 2


def test_a_cut_link_resets_and_refuses_until_it_is_mended(proxy: TcpProxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port)) as plain:
        plain.sendall(b"PING\r\n")
        assert plain.recv(100) == b"+PONG\r\n"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            plain.recv(100)
    assert refused(proxy.port)
    assert proxy.connections == 0
    proxy.mend()
    with client(proxy.port) as again:
        assert again.ping()


def test_a_silent_link_accepts_and_sends_nothing_until_it_is_mended(proxy: TcpProxy, server: Server) -> None:
    with client(proxy.port, timeout_s=0.2) as patient, client(proxy.port, timeout_s=0.2) as fresh:
        assert patient.ping()
        before = server.cli("INFO", "stats")["total_connections_received"]
        proxy.silence()
        for each in (patient, fresh):
            with pytest.raises(redis.TimeoutError):
                each.set("silent", "1")
        assert server.cli("INFO", "stats")["total_connections_received"] == before + 1, "that of who asks this"
        proxy.mend()
        # Both have closed their connections, and their requests never arrive.
        assert patient.get("silent") is None and fresh.ping()


def test_a_silent_link_delivers_late_to_clients_that_have_waited(proxy: TcpProxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=0.2) as plain:
        proxy.silence()
        plain.sendall(b"PING\r\n")
        with pytest.raises(TimeoutError):
            plain.recv(100)
        proxy.mend()
        plain.settimeout(10)
        assert plain.recv(100) == b"+PONG\r\n"


def test_lost_replies_are_of_requests_that_were_executed(proxy: TcpProxy, server: Server) -> None:
    server.cli("DEL", "count")
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=0.2) as plain, client(proxy.port, 0.2) as known:
        assert known.ping()
        proxy.swallow_replies()
        plain.sendall(b"INCR count\r\n")
        with pytest.raises(TimeoutError):
            plain.recv(100)
        with pytest.raises(redis.TimeoutError):
            known.incr("count")
        assert server.cli("GET", "count") == "2"
        proxy.mend()
        with pytest.raises(ConnectionResetError):
            plain.recv(100)
        assert known.incr("count") == 3


def test_a_client_is_reset_when_the_server_refuses() -> None:
    with single() as server, TcpProxy(server.port) as proxy:
        server.kill()
        with (
            pytest.raises(ConnectionResetError),
            socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as plain,
        ):
            plain.recv(100)
        server.restart()
        with client(proxy.port) as again:
            assert again.ping()

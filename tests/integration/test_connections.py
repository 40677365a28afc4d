"""What a client can do to a connection of the service: real sockets, and bytes that no client library sends."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pytest
from fronts import FRONTS
from running import RunningService, headgate_command, running_service

from headgate.service.http.bounds import Bounds
from headgate.service.http.connections import Connections
from headgate.service.http.messages import TEXT, Reply, ServiceRequest, ServiceResponse
from until import until

pytestmark = pytest.mark.integration

POLICY = """\
version: 1
client_ip: {header: X-Forwarded-For, trusted_proxies: [127.0.0.0/8]}
rules:
  - {name: all, by: [ip], limits: 100000000/hour bucket}
"""
CHECK = b"GET /check/default HTTP/1.1\r\nHost: x\r\n\r\n"
MIB = 1 << 20
LONG_CHUNKS = {"python": "at most 65536 bytes", "door": "at most 4096 bytes of extensions, and 8192 of trailers"}
"""llhttp does not report extensions, so that Python bounds them with all that is no body; the door counts them."""


@pytest.fixture(scope="module")
def service(front: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(policy_in(tmp_path_factory.mktemp("connections"))) as running:
        yield running


def policy_in(folder: Path) -> Path:
    file = folder / "policy.yaml"
    file.write_text(POLICY)
    return file


def connected(service: RunningService | SmallService) -> socket.socket:
    host, port = service.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def detail(self) -> str:
        return str(json.loads(self.body)["detail"])


def receive_all(connection: socket.socket) -> bytes:
    """The received bytes until the connection ends."""
    received = bytearray()
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return bytes(received)


def parse_answers(data: bytes) -> list[Answer]:
    """The answers, one after another."""
    answers = []
    while data:
        head, separator, data = data.partition(b"\r\n\r\n")
        assert separator, head
        line, *fields = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
        length = int(headers.get("content-length", "0"))
        answers.append(Answer(int(line.split()[1]), headers, data[:length]))
        data = data[length:]
    return answers


def exchange(service: RunningService | SmallService, sent: bytes, *, ends: bool = True) -> list[Answer]:
    """All answers to what is sent, until the connection ends; where it would not, the client `ends` sending."""
    with connected(service) as connection:

        def send() -> None:
            try:
                connection.sendall(sent)
                if ends:
                    connection.shutdown(socket.SHUT_WR)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the service has heard enough

        sender = threading.Thread(target=send)
        sender.start()
        try:
            return parse_answers(receive_all(connection))
        finally:
            sender.join()


def rss_mib(service: RunningService) -> int:
    text = Path(f"/proc/{service.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert found
    return int(found[1]) // 1024


# What is too large.


@pytest.mark.parametrize(
    ("sent", "status", "detail"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * (64 << 10) + b"\r\n\r\n", 431, "at most 65536 bytes"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * (64 << 20), 431, "at most 65536 bytes"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 300 + b"\r\n", 431, "in 256 fields"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * (4 << 20), 431, "in 256 fields"),
        (b"GET / HTTP/1.1\r\n" + b"a" * (64 << 20), 431, "at most 65536 bytes"),
        (b"GET /" + b"a" * (16 << 10) + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414, "at most 16384 bytes"),
        (b"GET /" + b"a" * (64 << 20), 414, "at most 16384 bytes"),
        (b"\r\n" * (1 << 20), 431, "at most 65536 bytes"),
        (b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 1048577\r\n\r\n", 413, "at most 1048576 bytes"),
        (
            b"POST /v1/check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            + (b"10000\r\n" + b"a" * 65536 + b"\r\n") * 64,
            413,
            "at most 1048576 bytes",
        ),
        (
            b"POST /v1/check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"e" * (8 << 20),
            431,
            LONG_CHUNKS,
        ),
        (
            b"POST /v1/check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: " + b"a" * (8 << 20),
            431,
            LONG_CHUNKS,
        ),
    ],
    ids=[
        "a field", "a field without end", "many fields", "fields without end", "a name without end", "a target",
        "a target without end", "empty lines", "a declared body", "a body in chunks", "a chunk's extension",
        "a trailer",
    ],
)  # fmt: skip
def test_what_is_too_large_is_refused_and_not_held(
    service: RunningService, front: str, sent: bytes, status: int, detail: str | dict[str, str]
) -> None:
    before = rss_mib(service)
    [answer] = exchange(service, sent)
    assert (answer.status, answer.headers["connection"]) == (status, "close")
    assert answer.headers["content-type"] == "application/problem+json"
    assert (detail[front] if isinstance(detail, dict) else detail) in answer.detail
    assert rss_mib(service) - before < 8
    assert service.client.get("/healthz").status_code == 200


def test_a_head_of_64_kib_passes(service: RunningService) -> None:
    field = b"A: " + b"a" * 8000 + b"\r\n"
    [answer] = exchange(service, CHECK[:-2] + field * 8 + b"\r\n")
    assert answer.status == 200


@pytest.mark.usefixtures("front")
def test_many_who_send_much_take_no_more_memory_than_is_allowed(tmp_path: Path) -> None:
    with running_service(policy_in(tmp_path)) as service, ExitStack() as stack:
        service.client.get("/healthz")
        before = rss_mib(service)
        head = b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 1048576\r\n\r\n"
        for _ in range(300):  # of a MiB each
            connection = stack.enter_context(connected(service))
            connection.settimeout(0.2)
            with suppress(TimeoutError, ConnectionResetError, BrokenPipeError):
                connection.sendall(head + b"a" * (MIB - 1))
        assert service.client.get("/healthz").status_code == 200
        assert rss_mib(service) - before < 64 + 64


# What takes too long.


def test_heads_that_do_not_come_are_closed(service: RunningService) -> None:
    with ExitStack() as stack:
        half = [stack.enter_context(connected(service)) for _ in range(500)]
        silent = stack.enter_context(connected(service))
        for connection in half:
            connection.sendall(b"GET /check/default HTTP/1.1\r\nHost: ")
        for _ in range(5):  # and a little more now and then does not help
            time.sleep(1)
            for connection in half:
                connection.sendall(b"x")
        for connection in half:
            [answer] = parse_answers(receive_all(connection))
            assert answer.status == 408
            assert answer.detail == "the head of a request has to come within 10 s"
        assert receive_all(silent) == b""


class SmallService:
    """A small service behind real connections, in a thread of this process."""

    def __init__(self, bounds: Bounds, answer: Callable[[ServiceRequest], Reply]) -> None:
        self.answer = answer
        self.requests: list[ServiceRequest] = []
        self._bounds = bounds
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def wants_body(self, method: str, path: str) -> bool:
        return method == "POST"

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self.connections = Connections(self, self._bounds)
        looking = asyncio.create_task(self.connections.maintain(lambda: None))
        server = await self._loop.create_server(self.connections, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._over.wait()
        looking.cancel()
        server.close()
        self.connections.abort()

    def __enter__(self) -> SmallService:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()


@contextmanager
def small_service(
    bounds: Bounds = Bounds(),  # noqa: B008 - it is a frozen value
    answer: Callable[[ServiceRequest], Reply] | None = None,
) -> Iterator[SmallService]:
    def echo(request: ServiceRequest) -> ServiceResponse:
        small.requests.append(request)
        return ServiceResponse(200, TEXT, request.path.encode() + b"|" + request.body)

    with SmallService(bounds, answer or echo) as small:
        yield small


def test_a_body_that_does_not_come_is_refused() -> None:
    with small_service(Bounds(body_s=1)) as small:
        [answer] = exchange(small, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabc", ends=False)
        assert answer.status == 408
        assert answer.detail == "a body has to come within 1 s, or steadily"


def test_a_body_that_comes_steadily_may_take_longer() -> None:
    with small_service(Bounds(body_s=1)) as small, connected(small) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 163840\r\nConnection: close\r\n\r\n")
        for _ in range(10):
            connection.sendall(b"a" * 16384)
            time.sleep(0.3)
        [answer] = parse_answers(receive_all(connection))
        assert answer.status == 200 and len(answer.body) == 163842


def test_an_idle_connection_is_closed_without_a_word() -> None:
    with small_service(Bounds(idle_s=1)) as small, connected(small) as connection:
        connection.sendall(CHECK)
        [answer] = parse_answers(receive_all(connection))
        assert (answer.status, "connection" in answer.headers) == (200, False)


def test_a_request_that_arrives_while_the_service_stands_still_is_answered(front: str, tmp_path: Path) -> None:
    with running_service(policy_in(tmp_path), "--keep-alive", "2") as running, connected(running) as connection:
        connection.sendall(CHECK)
        assert b" 200 " in connection.recv(65536)
        running.process.send_signal(signal.SIGSTOP)
        connection.sendall(CHECK)
        time.sleep(4)  # as where a container or a virtual machine is paused
        running.process.send_signal(signal.SIGCONT)
        [answer] = parse_answers(receive_all(connection))  # until it has been idle for its time
        assert answer.status == 200


def test_a_client_that_does_not_read_its_answers_is_cut_off_and_not_answered_without_end() -> None:
    answered = 0

    def answer(request: ServiceRequest) -> ServiceResponse:
        nonlocal answered
        answered += 1
        return ServiceResponse(200, TEXT, b"a" * 100_000)

    with small_service(Bounds(take_s=1), answer) as small, connected(small) as connection:
        connection.settimeout(0.5)
        try:
            while True:
                connection.sendall(CHECK * 1000)
        except OSError:
            pass
        assert answered < 500  # what the system's buffers take, and no more
        until(lambda: not small.connections.open)


def test_what_clients_do_not_read_is_held_and_bounded() -> None:
    def answer(request: ServiceRequest) -> ServiceResponse:
        return ServiceResponse(200, TEXT, b"a" * (32 * MIB))  # more than the system's buffers take

    with small_service(Bounds(held_bytes=MIB, take_s=300), answer) as small, ExitStack() as stack:
        for _ in range(5):
            silent = stack.enter_context(connected(small))
            silent.sendall(CHECK)
            assert silent.recv(1)
            until(lambda: len(small.connections.open) == 1)  # all but the newest gave way
        reads = stack.enter_context(connected(small))
        reads.sendall(CHECK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert len(receive_all(reads)) > 32 * MIB
        stack.close()
        until(lambda: small.connections.held == 0)


def test_a_client_has_its_time_to_read_though_the_service_ends() -> None:
    def answer(request: ServiceRequest) -> ServiceResponse:
        return ServiceResponse(200, TEXT, b"a" * (32 * MIB))

    with small_service(Bounds(take_s=300), answer) as small, connected(small) as connection:
        small.connections.closing = True
        connection.sendall(CHECK)
        time.sleep(4)  # longer than what it may still send is waited for
        assert small.connections.held > 16 * MIB
        small.connections.close_idle()
        assert len(receive_all(connection)) > 32 * MIB
        until(lambda: not small.connections.open)
        assert small.connections.held == 0


def test_an_idle_client_that_has_left_a_little_unread_gets_that_and_the_end() -> None:
    def answer(request: ServiceRequest) -> ServiceResponse:
        return ServiceResponse(200, TEXT, b"a" * 16384)  # too little for the event loop to say that it waits

    with small_service(Bounds(idle_s=1), answer) as small, connected(small) as connection:
        sent = 0
        while not any(one.has_unsent for one in small.connections.open):
            connection.sendall(CHECK)
            sent += 1
            until(lambda: sum(one.served for one in small.connections.open) == sent)  # noqa: B023
        small.connections.close_idle()
        time.sleep(2.5)
        connection.settimeout(5)
        assert [one.status for one in parse_answers(receive_all(connection))] == [200] * sent


def test_a_response_of_which_a_part_is_left_is_held_whole() -> None:
    def answer(request: ServiceRequest) -> ServiceResponse:
        return ServiceResponse(200, TEXT, b"a" * (6 * MIB))  # the system's buffers take most of it

    with small_service(Bounds(held_bytes=20 * MIB, take_s=300), answer) as small, ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(connected(small)).sendall(CHECK)
        until(lambda: len(small.connections.open) == 3)


# Too many.


def test_the_connection_that_has_waited_longest_for_its_client_gives_way() -> None:
    with small_service(Bounds(connections=3)) as small, ExitStack() as stack:
        first, second, third = (stack.enter_context(connected(small)) for _ in range(3))
        for connection in (first, second, third, first):
            connection.sendall(CHECK)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 OK")
        newest = stack.enter_context(connected(small))
        assert second.recv(4096) == b""
        for connection in (newest, first, third):
            connection.sendall(CHECK)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 OK")


def test_a_connection_too_many_is_refused_with_a_reason_where_all_others_are_being_answered() -> None:
    async def never(request: ServiceRequest) -> ServiceResponse:
        await asyncio.sleep(3600)
        raise AssertionError

    with small_service(Bounds(connections=2), never) as small, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(connected(small)).sendall(CHECK)
        time.sleep(0.3)
        [answer] = parse_answers(receive_all(stack.enter_context(connected(small))))
        assert answer.status == 503
        assert answer.detail == "too many connections are being answered; ask again"


@pytest.mark.usefixtures("front")
def test_half_sent_requests_keep_no_client_out(tmp_path: Path) -> None:
    with running_service(policy_in(tmp_path), "--connections", "50") as service, ExitStack() as stack:
        for number in range(300):
            stack.enter_context(connected(service)).sendall(b"GET / HTTP/1.1\r\nHost: ")
            if number % 10 == 0:
                [answer] = exchange(service, CHECK)
                assert answer.status == 200


@pytest.mark.usefixtures("front")
def test_a_service_that_has_used_up_its_descriptors_goes_on_when_it_has_some(tmp_path: Path) -> None:
    with running_service(policy_in(tmp_path)) as service, ExitStack() as stack:
        soft, hard = resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (24, hard))
        for _ in range(60):
            stack.enter_context(connected(service))
        time.sleep(0.5)
        stack.close()
        resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
        [answer] = exchange(service, CHECK)
        assert answer.status == 200
        assert not any("Traceback" in line for line in service.lines)


def test_a_service_has_as_many_connections_as_it_may_have_descriptors(front: str, tmp_path: Path) -> None:
    wanted, connections = {"python": (8256, 36), "door": (12360, 9)}[front]  # one of the door may take three
    policy = str(policy_in(tmp_path))
    command = headgate_command("serve", policy, "--port", "0", *FRONTS[front], "--workers", "2")
    limited = ["sh", "-c", 'ulimit -n "$0"; exec "$@"']
    few = subprocess.run([*limited, "40", *command], capture_output=True, text=True, timeout=30, check=False)
    assert few.returncode == 1
    assert few.stderr == f"headgate: ulimit -n: 40 descriptors are too few to serve; let it have {wanted}\n"
    process = subprocess.Popen([*limited, "100", *command[:-2]], stderr=subprocess.PIPE, text=True)
    service = RunningService(process)
    try:
        assert service.lines[0].startswith(f"headgate: at most {connections} connections of each process")
        with ExitStack() as stack:
            for _ in range(200):
                stack.enter_context(connected(service))
            [answer] = exchange(service, CHECK)
            assert answer.status == 200
    finally:
        service.stop()


# One behind another.


def test_requests_one_behind_another_are_answered_in_their_order() -> None:
    async def slow_first(request: ServiceRequest) -> ServiceResponse:
        await asyncio.sleep(0.2 if request.path == "/0" else 0)
        return ServiceResponse(200, TEXT, request.path.encode())

    def answer(request: ServiceRequest) -> Reply:
        if int(request.path[1:]) % 3 == 0:
            return slow_first(request)
        return ServiceResponse(200, TEXT, request.path.encode())

    with small_service(answer=answer) as small:
        requests = b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(2000))
        answers = exchange(small, requests)
        assert [answer.body for answer in answers] == [b"/%d" % number for number in range(2000)]


def test_many_requests_at_once_do_not_make_others_wait() -> None:
    def work(request: ServiceRequest) -> ServiceResponse:
        time.sleep(0.001)
        return ServiceResponse(200, TEXT, b"")

    with small_service(answer=work) as small, connected(small) as greedy:
        greedy.sendall(CHECK * 5000)
        start = time.monotonic()
        assert exchange(small, CHECK)[0].status == 200
        assert time.monotonic() - start < 2.5


def test_a_bad_request_is_refused_after_the_requests_before_it_are_answered(service: RunningService) -> None:
    answers = exchange(service, CHECK * 3 + b"GARBAGE\r\n\r\n" + CHECK)
    assert [answer.status for answer in answers] == [200, 200, 200, 400]
    assert answers[3].detail == "this is no request of HTTP/1.1 that can be read"


@pytest.mark.parametrize("method", ["MADEUP", "GETX", "get", "CONNECT", "SETUP", "X" * 2000])
def test_the_400_to_an_unknown_method_names_it(service: RunningService, method: str) -> None:
    request = f"{method} /check/default HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    detail = f"the method {method[:40]} is not answered here; methods are in upper case, such as GET"
    assert [(answer.status, answer.detail) for answer in exchange(service, request)] == [(400, detail)]


def test_nothing_is_answered_behind_the_last_request(service: RunningService) -> None:
    last = CHECK[:-2] + b"Connection: close\r\n\r\n"
    assert [answer.status for answer in exchange(service, CHECK + last + CHECK)] == [200, 200]


@pytest.mark.parametrize("head", [b"Host: y", b"Transfer-Encoding: chunked, identity", b"A: b\r\n" * 300])
def test_what_is_refused_behind_the_last_request_is_neither_answered_nor_logged(
    service: RunningService, head: bytes
) -> None:
    last = CHECK[:-2] + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\nab"
    behind = CHECK[:-2] + head + b"\r\n\r\n"
    logged = len(service.lines)
    assert [answer.status for answer in exchange(service, last + behind)] == [200]
    service.client.get("/healthz")  # what the first made the service log is written by now
    assert service.lines[logged:] == []


# What two servers could read differently.


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5",
        b"Content-Length: 5\r\nContent-Length: 6",
        b"Content-Length: 5, 5",
        b"Content-Length: +5",
        b"Content-Length: 0x5",
        b"Content-Length : 5",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding : chunked",
        b"A: b\r\n folded",
        b"A: b\x00c",
        b"A: b\rc: d",
        b"Host: y",
        b"A b: c",
    ],
)
def test_a_head_that_two_could_read_differently_is_refused(service: RunningService, head: bytes) -> None:
    behind = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    body = b"0\r\n\r\n"
    for path in (b"/check/default", b"/v1/check"):
        answers = exchange(service, b"POST " + path + b" HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n" + body + behind)
        assert [answer.status for answer in answers] == [400], answers
        assert answers[0].headers["connection"] == "close"


def test_http_1_0_is_answered_and_its_connection_ends_unless_keep_alive_is_requested(service: RunningService) -> None:
    check = b"GET /check/default HTTP/1.0\r\n\r\n"
    [answer] = exchange(service, check + check, ends=False)
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    kept_alive = b"GET /check/default HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    answers = exchange(service, kept_alive + check, ends=False)
    assert [answer.headers["connection"] for answer in answers] == ["keep-alive", "close"]
    [refused] = exchange(service, b"POST /v1/check HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    assert refused.status == 400


@pytest.mark.parametrize(
    "line",
    [b"GET /healthz", b"GET /healthz HTTP/0.9", b"GET /healthz HTTP/2.0", b"PRI * HTTP/2.0", b"OPTIONS * HTTP/1.1",
     b"CONNECT h:443 HTTP/1.1", b"GET h/healthz HTTP/1.1", b"BREW /healthz HTTP/1.1"],
)  # fmt: skip
def test_a_request_line_that_is_not_for_this_service_is_refused(service: RunningService, line: bytes) -> None:
    [answer] = exchange(service, line + b"\r\nHost: x\r\n\r\n")
    assert answer.status == 400


@pytest.mark.parametrize(
    ("target", "status"),
    [(b"http://x/healthz", 200), (b"http://x/healthz?a#b", 200), (b"http://x", 200), (b"/healthz?a", 200),
     (b"/healthz#a", 400), (b"//healthz", 404), (b"/%68ealthz", 200), (b"/healthz/", 404), (b"/\xff\xfe", 404),
     (b"/check/default/%C3%A9?x", 200), (b"/check//x", 404), (b"/check", 404)],
)  # fmt: skip
def test_a_target_is_read_as_the_protocol_says(service: RunningService, target: bytes, status: int) -> None:
    [answer] = exchange(service, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.status == status


def test_a_head_has_no_body_in_its_answer(service: RunningService) -> None:
    with connected(service) as connection:
        connection.sendall(b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\nHEAD /nope HTTP/1.1\r\nHost: x\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        received = receive_all(connection)
    assert received.count(b"HTTP/1.1") == 2 and received.endswith(b"\r\n\r\n") and b"ok" not in received
    assert b"content-length: 3\r\n" in received


@pytest.mark.parametrize("size", [0, 10, 5 * MIB])
def test_the_body_of_a_question_is_thrown_away_and_the_connection_stays(service: RunningService, size: int) -> None:
    for method in (b"GET", b"POST"):
        declared = method + b" /check/default HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + b"a" * size
        chunks = b"%x\r\n" % size + b"a" * size + b"\r\n" if size else b""
        chunked = method + b" /check/default HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        for request in (declared, chunked + chunks + b"0\r\nX-Forwarded-For: 203.0.113.7\r\n\r\n"):
            answers = exchange(service, request + CHECK)
            assert [answer.status for answer in answers] == [200, 200]


def test_a_trailer_is_no_header() -> None:
    with small_service() as small:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        exchange(small, head + b"3;ext=1\r\nabc\r\n0\r\nX-Forwarded-For: 203.0.113.7\r\n\r\n")
        [request] = small.requests
        assert request.headers == [(b"host", b"x"), (b"transfer-encoding", b"chunked")]
        assert request.body == b"abc"


def test_a_client_that_waits_for_100_continue_receives_it(service: RunningService) -> None:
    body = b'{"request": {}}'
    head = b"POST /v1/check HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
    with connected(service) as connection:
        for _ in range(2):
            connection.sendall(head)
            assert connection.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(body)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 OK")
    [large] = exchange(service, head.replace(b"Length: ", b"Length: 10000000"), ends=False)
    assert large.status == 413
    # The body of this request may still arrive: the next bytes may be the body or a request.
    unread = head.replace(b"/v1/check", b"/check/default")
    assert [(answer.status, answer.headers["connection"]) for answer in exchange(service, unread + CHECK)] == [
        (200, "close")
    ]


def test_an_upgrade_is_judged_and_not_taken_up(service: RunningService) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 60\r\n\r\n"
    answers = exchange(service, b"GET /check/default HTTP/1.1\r\nHost: x\r\n" + upgrade + CHECK * 2)
    assert [(answer.status, answer.headers["connection"]) for answer in answers] == [(200, "close")]


@pytest.mark.parametrize(
    "sent",
    [
        b'Content-Length: 15\r\n\r\n{"request": {}}',
        b'Transfer-Encoding: chunked\r\n\r\nf\r\n{"request": {}}\r\n0\r\n\r\n',
    ],
    ids=["length", "chunks"],
)
@pytest.mark.parametrize("path", [b"/v1/check", b"/v1/reserve"])
def test_the_body_of_a_client_that_offers_an_upgrade_is_read(service: RunningService, path: bytes, sent: bytes) -> None:
    """As Java's own client offers HTTP/2."""
    head = b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    answers = exchange(service, head + b"HTTP2-Settings: AAMAAABk\r\n" + sent + CHECK)
    assert [(answer.status, answer.headers["connection"]) for answer in answers] == [(200, "close")]


def test_an_answer_is_read_though_its_request_was_too_large(service: RunningService) -> None:
    for _ in range(20):
        [answer] = exchange(service, b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * (4 << 20))
        assert answer.status == 431


# The end.


@pytest.mark.usefixtures("front")
@pytest.mark.parametrize("workers", [(), ("--workers", "2", "--store", "ZONE")])
def test_no_request_is_lost_at_the_end(tmp_path: Path, workers: tuple[str, ...]) -> None:
    zone = f"shared://{tmp_path / 'zone'}?size=4MiB"
    options = [zone if word == "ZONE" else word for word in workers]
    with running_service(policy_in(tmp_path), *options) as service:
        lost: list[str] = []
        stop = threading.Event()

        def keep_sending(_: int) -> int:
            """Send checks on a connection, and on a new one after each announced end, until none is accepted."""
            answered = 0
            while not stop.is_set():
                try:
                    connection = connected(service)
                except OSError:
                    return answered
                with connection:
                    while True:
                        connection.sendall(CHECK)
                        try:
                            answer = connection.recv(4096)
                        except OSError as error:
                            answer = str(error).encode()
                        if not answer.startswith(b"HTTP/1.1 200 OK"):
                            lost.append(repr(answer))
                            return answered
                        answered += 1
                        if b"connection: close" in answer:
                            break
            return answered

        with ThreadPoolExecutor(8) as pool:
            counts = [pool.submit(keep_sending, number) for number in range(8)]
            time.sleep(0.7)
            service.process.send_signal(signal.SIGTERM)
            assert service.process.wait(10) == 0
            stop.set()
            assert sum(count.result() for count in counts) > 50
        assert lost == []


@pytest.mark.parametrize("place", ["<b>`", '?search="two words"', '?<>`"', "?search=%22two%20words%22"])
def test_targets_are_read_as_they_are_typed(place: str, front: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "version: 1\nidentities: {search: {query: search}}\n"
        "rules: [{name: one, match: {path: '/shop/**'}, by: [search], missing: anonymous, limits: 1/hour fixed}]\n"
    )
    target = f"shop/{place.replace(' ', '%20')}"
    with running_service(file) as service:
        sent = [f"GET /check/default/{path} HTTP/1.1\r\nHost: x\r\n\r\n" for path in (target, quoted(target))]
        assert [answer.status for answer in exchange(service, "".join(sent).encode())] == [200, 429]
        other = sent[0].replace("/shop", "/else").encode()
        assert [answer.status for answer in exchange(service, other)] == [200]


def quoted(target: str) -> str:
    """A target as clients send it that encode what is to be encoded."""
    return quote(target, safe="/?=%")

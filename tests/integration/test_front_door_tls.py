"""TLS of the front door: real clients, certificates that are renewed, and clients that are refused."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from certificates import Authority, Pair
from cryptography import x509
from running import RunningService, run_headgate, running_service
from test_front_door import POLICY, figures

from until import until

pytestmark = pytest.mark.integration

CHECK = b"GET /check/default HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.9\r\n\r\n"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    return file


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server(authority: Authority) -> Pair:
    return authority.sign("server")


def port_of(service: RunningService) -> int:
    port = urlsplit(service.url).port
    assert port is not None
    return port


@contextmanager
def connected(service: RunningService, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(("127.0.0.1", port_of(service)), 20) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        yield connection


def shown(service: RunningService, context: ssl.SSLContext) -> int:
    """The serial number of the certificate that a new connection is shown."""
    with connected(service, context) as connection:
        der = connection.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


def is_refused(service: RunningService, context: ssl.SSLContext) -> bool:
    try:
        with connected(service, context) as connection:  # in TLS 1.3 the client learns it with the first response
            connection.sendall(CHECK)
            return connection.recv(100) == b""
    except (ssl.SSLError, ConnectionError):
        return True


def test_everything_is_answered_over_tls(policy: Path, authority: Authority, server: Pair) -> None:
    with running_service(policy, *server.options, trusts=authority.known()) as service:
        assert service.url.startswith("https://127.0.0.1:")
        assert service.check("/login", "POST").status_code == 200
        assert service.check("/login", "POST").status_code == 429
        reserved = service.client.post("/v1/reserve", json={"request": {"path": "/a", "client_ip": "203.0.113.1"}})
        assert reserved.status_code == 200
        assert service.client.post("/v1/commit", json={"id": reserved.json()["id"]}).status_code == 200
        assert f"curl -s {service.url}/v1/check" in service.client.get("/").text
        connection = http.client.HTTPSConnection("localhost", port_of(service), context=authority.known(), timeout=20)
        for _ in range(3):
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"
        connection.close()
        assert figures(service)["headgate_responses_total", "200", "check"] == 1


def test_curl_speaks_http2_and_each_version_of_tls(policy: Path, authority: Authority, server: Pair) -> None:
    with running_service(policy, *server.options, trusts=authority.known()) as service:
        for options, version in (((), "2"), (("--http1.1",), "1.1"), (("--tls-max", "1.2"), "2")):
            command = ["curl", "-sS", "--cacert", str(authority.file), *options, "-w", " %{http_version}\\n"]
            urls = [f"{service.url}/healthz", f"{service.url}/check/default/a", f"{service.url}/readyz"]
            output = subprocess.run([*command, *urls], capture_output=True, text=True, timeout=60, check=True).stdout
            assert output.split() == ["ok", version, version, "ready", version], output


def test_only_clients_with_a_certificate_get_in(policy: Path, authority: Authority, server: Pair) -> None:
    stranger = Authority(authority.folder, "stranger").sign("unknown")
    known = authority.known(authority.sign("client"))
    options = (*server.options, "--tls-client-ca", str(authority.file))
    with running_service(policy, *options, trusts=known) as service:
        assert "a front door of 1 thread, for clients with a certificate;" in service.lines[0]
        assert service.check().status_code == 200
        assert is_refused(service, authority.known())
        assert is_refused(service, authority.known(stranger))
        until(lambda: figures(service)["headgate_connections_closed_total", "no handshake"] == 2)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_is_resumed_unless_the_certificate_of_its_client_would_not_be_checked_again(
    policy: Path, authority: Authority, server: Pair, version: ssl.TLSVersion
) -> None:
    """One that is resumed is not asked for a certificate: it went on after that had expired."""
    known = authority.known(authority.sign("client"))
    known.maximum_version = version
    for options, is_resumed in (((), True), (("--tls-client-ca", str(authority.file)), False)):
        with running_service(policy, *server.options, *options, trusts=known) as service:
            with connected(service, known) as connection:
                connection.sendall(CHECK)
                assert connection.recv(100)
                session = connection.session
            with (
                socket.create_connection(("127.0.0.1", port_of(service)), 20) as plain,
                known.wrap_socket(plain, server_hostname="localhost", session=session) as connection,
            ):
                connection.sendall(CHECK)
                assert connection.recv(100)
                assert connection.session_reused == is_resumed


def test_a_client_without_tls_gets_a_reason_and_is_closed(policy: Path, authority: Authority, server: Pair) -> None:
    with running_service(policy, *server.options, trusts=authority.known()) as service:
        for sent in (CHECK, b"\0" * 100):
            with socket.create_connection(("127.0.0.1", port_of(service)), 20) as plain:
                plain.sendall(sent)
                answer = plain.makefile("rb").read()
            assert answer[:1] == b"\x15", "no alert of TLS"
        until(lambda: figures(service)["headgate_connections_closed_total", "no handshake"] == 2)
        assert len(service.lines) == 1, "a client is logged"


def test_hundreds_of_unfinished_handshakes_hold_up_no_client(policy: Path, authority: Authority, server: Pair) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = authority.known().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()
    with running_service(policy, *server.options, trusts=authority.known()) as service, ExitStack() as open_ones:
        for number in range(400):
            slow = socket.create_connection(("127.0.0.1", port_of(service)), 20)
            open_ones.enter_context(slow)
            slow.sendall(hello[: len(hello) * (number % 4) // 3])
        began = time.monotonic()
        with httpx.Client(base_url=service.url, verify=authority.known(), timeout=20) as fresh:
            for _ in range(50):
                assert fresh.get("/check/default").status_code == 200
        for _ in range(10):
            shown(service, authority.known())
        assert time.monotonic() - began < 60, "others waited for the time of a handshake, each"
        until(lambda: figures(service)[("headgate_connections",)] <= 2)
        assert figures(service)["headgate_connections_closed_total", "too slow"] == 400


class Load:
    """Clients that send checks all the time, each on a connection of its own, until the end of the block."""

    def __init__(self, service: RunningService, context: ssl.SSLContext) -> None:
        self.answers = 0
        self.failures: list[object] = []
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(service, context)) for _ in range(4)]

    def _ask(self, service: RunningService, context: ssl.SSLContext) -> None:
        try:
            with connected(service, context) as connection, connection.makefile("rb") as answers:
                while not self._done.is_set():
                    connection.sendall(CHECK)
                    status = answers.readline()
                    while answers.readline().strip():
                        pass
                    if not status.startswith(b"HTTP/1.1 200"):
                        self.failures.append(status)
                        return
                    self.answers += 1
        except OSError as error:
            self.failures.append(error)

    def goes_on(self) -> None:
        so_far = self.answers
        until(lambda: self.failures or self.answers > so_far + 50)
        assert not self.failures, self.failures

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(20)


def test_a_renewed_certificate_is_shown_without_a_lost_connection(
    policy: Path,
    authority: Authority,
    server: Pair,
) -> None:
    known = authority.known()
    renewed = authority.sign("renewed")
    with running_service(policy, *server.options, trusts=known) as service, Load(service, known) as load:
        load.goes_on()
        server.take(renewed)
        service.process.send_signal(signal.SIGHUP)
        service.wait_for("the changed certificate is in force; it is valid until 20")
        assert shown(service, known) == renewed.serial_number
        load.goes_on()

        key = server.key.read_text()
        server.key.write_bytes(authority.sign("other").key.read_bytes())
        service.process.send_signal(signal.SIGHUP)
        message = service.wait_for("the changed certificate is refused, the old one stays: (.*)")[1]
        assert message.startswith(f"--tls-key: {server.key} does not belong to the certificate"), message
        server.key.write_text(key[: len(key) // 2])
        service.process.send_signal(signal.SIGHUP)
        service.wait_for(f"the old one stays: --tls-key: {server.key} is broken PEM")
        assert shown(service, known) == renewed.serial_number
        load.goes_on()

        server.take(renewed)
        service.process.send_signal(signal.SIGHUP)
        service.wait_for("again those in force")
        server.take(latest := authority.sign("latest"))
        policy.write_text(policy.read_text().replace("1/hour", "2/hour"))  # the certificate is read with the policy
        service.wait_for("the changed certificate is in force", after=len(service.lines) - 1)
        until(lambda: shown(service, known) == latest.serial_number)
        load.goes_on()
        everything = "".join(service.lines)
        assert not any(line in everything for line in key.splitlines()[1:-1]), "a key is in the log"


def test_several_workers_show_one_certificate_and_keep_the_last_good_one(
    policy: Path,
    authority: Authority,
    server: Pair,
) -> None:
    known = authority.known()
    renewed = authority.sign("renewed")
    with running_service(policy, *server.options, "--workers", "2", trusts=known) as service:
        assert {shown(service, known) for _ in range(10)} == {server.serial_number}
        server.take(renewed)
        service.process.send_signal(signal.SIGHUP)
        until(lambda: sum("the changed certificate is in force" in line for line in service.lines) == 2)
        assert {shown(service, known) for _ in range(20)} == {renewed.serial_number}
        server.certificate.write_text("nothing")
        first = int(subprocess.check_output(["pgrep", "-P", str(service.process.pid)], text=True).split()[0])
        os.kill(first, signal.SIGKILL)
        service.wait_for(f"the old one stays: --tls-certificate: {server.certificate} holds no certificate")
        until(lambda: figures(service)[("headgate_workers",)] == 2)
        assert {shown(service, known) for _ in range(20)} == {renewed.serial_number}
        assert service.check().status_code == 200


def test_a_drain_finishes_what_has_begun(policy: Path, authority: Authority, server: Pair) -> None:
    known = authority.known()
    with running_service(policy, *server.options, "--drain", "1", trusts=known) as service:
        with connected(service, known) as half_sent, connected(service, known) as idle:
            half_sent.sendall(CHECK[:20])
            service.check()
            service.process.send_signal(signal.SIGTERM)
            service.wait_for("draining for 1 s")
            assert service.check().headers["connection"] == "close"
            half_sent.sendall(CHECK[20:])
            assert b"connection: close" in half_sent.recv(4096).lower()
            assert idle.recv(100) == b""
        assert service.process.wait(20) == 0


def test_a_certificate_that_has_expired_is_reported(policy: Path, authority: Authority) -> None:
    for days, words in (((-3, -2), "has expired on 20"), ((2, 3), "is not valid before 20")):
        pair = authority.sign("untimely", days=days)
        with running_service(policy, *pair.options, trusts=authority.known()) as service:
            service.wait_for(f"--tls-certificate: the certificate in {pair.certificate} {words}")
            with pytest.raises(httpx.ConnectError):
                service.check()


def test_files_that_cannot_be_used_are_reported_before_anything_starts(policy: Path, authority: Authority) -> None:
    good, other = authority.sign("good"), authority.sign("other")
    locked = authority.sign("locked", password=b"secret")
    empty = authority.folder / "empty.pem"
    empty.touch()
    absent = authority.folder / "absent.pem"
    certificate, key, client_ca = "--tls-certificate", "--tls-key", "--tls-client-ca"
    cases: list[tuple[tuple[object, ...], str]] = [
        (
            (certificate, absent, key, good.key),
            f"{certificate}: cannot read {absent}: No such file or directory; it must",
        ),
        (
            (certificate, authority.folder, key, good.key),
            f"{certificate}: cannot read {authority.folder}: Is a directory",
        ),
        ((certificate, empty, key, good.key), f"{certificate}: {empty} holds no certificate: one in PEM begins with"),
        ((certificate, good.key, key, good.key), f"{certificate}: {good.key} holds no certificate"),
        ((certificate, good.certificate, key, empty), f"{key}: {empty} holds no private key: one in PEM begins with"),
        ((certificate, good.certificate, key, other.key), f"{key}: {other.key} does not belong to the certificate"),
        ((certificate, locked.certificate, key, locked.key), f"{key}: {locked.key} is encrypted: a key without"),
        ((*good.options, client_ca, empty), f"{client_ca}: {empty} holds no certificate"),
        ((certificate, good.certificate), f"{certificate} needs {key}"),
        ((key, good.key), f"{key} needs {certificate}"),
        ((client_ca, authority.file), f"{client_ca} needs {certificate}"),
        (
            (*good.options, "--threads", "0"),
            "TLS needs the front door, and there is none: --threads 0 answers with Python",
        ),
    ]
    for arguments, words in cases:
        for workers in ("1", "2"):
            command = ["serve", str(policy), "--port", "0", "--workers", workers, *map(str, arguments)]
            ended = run_headgate(*command)
            assert ended.returncode in (1, 2), ended.stderr
            assert words in ended.stderr, ended.stderr
            assert "Traceback" not in ended.stderr
            assert "PRIVATE KEY" not in ended.stderr.replace("-----BEGIN PRIVATE KEY-----", "")


def test_without_the_native_core_there_is_no_tls(policy: Path, server: Pair) -> None:
    ended = run_headgate("serve", str(policy), "--port", "0", *server.options, HEADGATE_CORE="python")
    assert ended.returncode == 1
    assert "TLS needs the front door, and there is none: the front door needs the native core" in ended.stderr

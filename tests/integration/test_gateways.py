"""The configurations that docs/service.md shows work: real gateways ask before they let a request through."""

from __future__ import annotations

import http.server
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from documents import ROOT, blocks
from running import RunningService, running_service
from tcp_proxy import TcpProxy

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("front")]

POLICY = """
version: 1
client_ip: {header: X-Forwarded-For, trusted_proxies: [127.0.0.0/8]}
identities:
  key: {header: X-API-Key}
rules:
  - {name: login, match: {method: POST, path: /api/login}, by: [ip], limits: 3/minute log}
  - {name: key, match: {path: /export}, by: [key], limits: 2/minute log}
  - {name: never, match: {path: /heavy}, by: [ip], limits: 0/minute log}
"""
GATEWAYS = ("nginx", "caddy", "haproxy", "envoy")


class Upstream(http.server.BaseHTTPRequestHandler):
    """What the gateway stands in front of."""

    def answer(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    do_GET = do_POST = answer  # noqa: N815 - names of the standard library

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def upstream() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    with running_service(policy) as running:
        yield running


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def shown(language: str, service: RunningService, upstream: int) -> str:
    """The configuration as the page shows it, for the ports of this test."""
    [block] = [block for block in blocks(ROOT / "docs" / "service.md") if block.language == language]
    port = service.url.rpartition(":")[2]
    text = block.text
    for written, used in (("8080", port), ("9000", str(upstream))):
        text = text.replace(f"127.0.0.1:{written}", f"127.0.0.1:{used}")
        text = text.replace(f"port_value: {written}", f"port_value: {used}")
    return text


@contextmanager
def running(command: list[str], port: int, home: Path) -> Iterator[str]:
    """A gateway, until the end of the block; its address."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(home)}
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment, cwd=home
    )
    try:
        deadline = time.monotonic() + 20
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            said = process.stderr.read() if process.poll() is not None and process.stderr else ""
            assert not said and time.monotonic() < deadline, said
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.fixture
def nginx(tmp_path: Path, service: RunningService, upstream: int) -> Iterator[str]:
    with running_nginx(tmp_path, shown("nginx", service, upstream)) as url:
        yield url


@contextmanager
def running_nginx(tmp_path: Path, configuration: str) -> Iterator[str]:
    """An nginx of one worker with this configuration of one server, which listens on a free port; its address."""
    binary = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin")
    assert binary, "nginx is not here: run scripts/system-packages test"
    port = free_port()
    scratch = "".join(
        f"{kind}_temp_path {tmp_path / kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; pid {tmp_path}/nginx.pid; error_log stderr crit; events {{}}\n"
        f"http {{ access_log off; {scratch}\n"
        + configuration.replace("\nserver {", f"\nserver {{ listen 127.0.0.1:{port};", 1)
        + "}\n"
    )
    with running(
        [binary, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"), "-e", "stderr"], port, tmp_path
    ) as url:
        yield url


@pytest.fixture
def caddy(tmp_path: Path, service: RunningService, upstream: int) -> Iterator[str]:
    binary = shutil.which("caddy")
    assert binary, "caddy is not here: run scripts/system-packages test"
    port = free_port()
    site = shown("caddy", service, upstream).replace("example.com {", f"http://127.0.0.1:{port} {{", 1)
    (tmp_path / "Caddyfile").write_text(f"{{\n admin off\n}}\n{site}")
    with running(
        [binary, "run", "--config", str(tmp_path / "Caddyfile"), "--adapter", "caddyfile"], port, tmp_path
    ) as url:
        yield url


@pytest.fixture
def haproxy(tmp_path: Path, service: RunningService, upstream: int) -> Iterator[str]:
    binary = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    assert binary, "haproxy is not here: run scripts/system-packages test"
    port = free_port()
    (tmp_path / "headgate.lua").write_text(shown("lua", service, upstream))
    configuration = shown("haproxy", service, upstream).replace("bind :80\n", f"bind 127.0.0.1:{port}\n")
    (tmp_path / "haproxy.cfg").write_text(configuration)
    with running([binary, "-db", "-f", str(tmp_path / "haproxy.cfg")], port, tmp_path) as url:
        yield url


@pytest.fixture
def envoy(tmp_path: Path, service: RunningService, upstream: int) -> Iterator[str]:
    [*_, binary] = [None, *Path(sys.prefix).glob("envoy-*/envoy/_bin/envoy")]
    assert binary, "envoy is not here: run scripts/envoy"
    port = free_port()
    configuration = shown("envoy", service, upstream)
    configuration = configuration.replace(
        "address: 0.0.0.0, port_value: 80}", f"address: 127.0.0.1, port_value: {port}}}"
    )
    (tmp_path / "envoy.yaml").write_text(configuration)
    options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "critical"]
    with running([str(binary), "-c", str(tmp_path / "envoy.yaml"), *options], port, tmp_path) as url:
        yield url


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_the_shown_configuration_lets_through_the_limit_and_refuses_the_rest(
    request: pytest.FixtureRequest, gateway: str, service: RunningService
) -> None:
    url = request.getfixturevalue(gateway)
    with httpx.Client(base_url=url, timeout=10) as client:
        answers = [client.post("/api/login?user=ann", content=b"a body") for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
        assert answers[0].text == "hello"
        refusal = answers[3]
        assert 1 <= int(refusal.headers["Retry-After"]) <= 60
        assert refusal.headers["Content-Type"] == "application/problem+json"
        assert refusal.json()["violated-policies"] == ["login"]
        assert client.get("/api/login").status_code == 200  # another method, which no rule is for
        # What a client claims about itself is overwritten by the gateway.
        claims = {"X-Forwarded-For": "198.51.100.1", "X-Forwarded-Method": "GET", "X-Forwarded-Uri": "/"}
        assert client.post("/api/login", headers=claims).status_code == 429
    metrics = service.client.get("/metrics").text
    assert 'headgate_decisions_total{result="refused",rule="login"} 3.0' in metrics


@pytest.mark.parametrize("gateway", ["haproxy", "envoy"])
def test_what_the_policy_counts_by_reaches_it_and_what_can_never_pass_has_no_retry_after(
    request: pytest.FixtureRequest, gateway: str
) -> None:
    url = request.getfixturevalue(gateway)
    with httpx.Client(base_url=url, timeout=10) as client:
        for key in ("ann", "bob"):
            answers = [client.get("/export", headers={"X-API-Key": key}) for _ in range(3)]
            assert [answer.status_code for answer in answers] == [200, 200, 429]
            assert [answer.headers["RateLimit"][:11] for answer in answers] == [
                '"key";r=1;t',
                '"key";r=0;t',
                '"key";r=0;t',
            ]
        refused = client.get("/heavy")
        assert (refused.status_code, "Retry-After" in refused.headers) == (429, False)
        assert refused.json()["violated-policies"] == ["never"]
        assert "RateLimit" not in client.get("/").headers


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_a_service_that_is_gone_is_what_the_page_says(
    request: pytest.FixtureRequest, gateway: str, service: RunningService
) -> None:
    url = request.getfixturevalue(gateway)
    service.stop()
    status = {"nginx": 500, "caddy": 502, "haproxy": 503, "envoy": 503}[gateway]
    assert httpx.post(f"{url}/api/login", timeout=10).status_code == status


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_a_service_that_hangs_holds_up_no_request_for_long(
    request: pytest.FixtureRequest, gateway: str, service: RunningService
) -> None:
    url = request.getfixturevalue(gateway)
    assert httpx.get(url, timeout=10).status_code == 200
    service.process.send_signal(signal.SIGSTOP)
    try:
        status = {"nginx": 500, "caddy": 504, "haproxy": 503, "envoy": 503}[gateway]
        assert httpx.get(url, timeout=20).status_code == status
    finally:
        service.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_no_spelling_of_a_forwarding_header_makes_a_client_another(
    request: pytest.FixtureRequest, gateway: str, service: RunningService
) -> None:
    url = request.getfixturevalue(gateway)
    with httpx.Client(base_url=url, timeout=10) as client:
        for name in ("X_Forwarded_For", "X_Forwarded-For", "x-forwarded_for"):
            answers = [client.post("/api/login", headers={name: f"198.51.100.{end}"}) for end in range(4)]
            assert 429 in [answer.status_code for answer in answers], name
        for name in ("X_Forwarded_Host", "X_Forwarded_Uri", "X_Forwarded_Method"):
            answer = client.post("/api/login", headers={name: "/health"})
            assert answer.status_code in (400, 429), name


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_no_number_of_fields_ends_a_gateway_or_passes_uncounted(request: pytest.FixtureRequest, gateway: str) -> None:
    url = request.getfixturevalue(gateway)
    with httpx.Client(base_url=url, timeout=10) as client:
        assert [client.post("/api/login").status_code for _ in range(4)] == [200] * 3 + [429]
        for number in (50, *range(80, 110)):
            for name in ("x-{}", "x-same"):
                fields = [(name.format(field), "y") for field in range(number)]
                assert client.post("/api/login", headers=fields).status_code in (400, 429, 431), number
        assert client.get("/").status_code == 200


def test_nginx_keeps_its_connection_to_the_service_whether_it_passes_or_refuses(
    tmp_path: Path, service: RunningService, upstream: int
) -> None:
    address = service.url.removeprefix("http://")
    with TcpProxy(int(address.rpartition(":")[2])) as proxy:
        configuration = shown("nginx", service, upstream).replace(address, f"127.0.0.1:{proxy.port}")
        with running_nginx(tmp_path, configuration) as url, httpx.Client(base_url=url, timeout=10) as client:
            answers = [client.post("/api/login") for _ in range(60)]
            assert [answer.status_code for answer in answers] == [200] * 3 + [429] * 57
            assert answers[-1].json()["violated-policies"] == ["login"]
        assert proxy.accepted == 1


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_a_refusal_by_many_limits_reaches_the_client(
    request: pytest.FixtureRequest, gateway: str, service: RunningService, tmp_path: Path
) -> None:
    rules = [
        f"  - {{name: a-rule-of-a-rather-long-name-{number}, by: [ip], limits: 3/minute; 1000/hour; 20000/day}}"
        for number in range(30)
    ]
    (tmp_path / "policy.yaml").write_text("\n".join([POLICY.rstrip(), *rules, ""]))
    service.wait_for("the changed policy is in force")
    url = request.getfixturevalue(gateway)
    with httpx.Client(base_url=url, timeout=10) as client:
        answers = [client.get("/") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert len(answers[-1].json()["violated-policies"]) == 30


def test_nginx_that_passes_what_cannot_be_asked_passes_nothing_that_the_service_refuses_to_judge(
    tmp_path: Path, service: RunningService, upstream: int
) -> None:
    configuration = shown("nginx", service, upstream)
    text = (ROOT / "docs" / "service.md").read_text()
    for sentence in ("error_page 502 504 = @pass;", "location @pass { internal; return 204; }"):
        assert sentence in text.replace("\n", " ")
    configuration = configuration.replace("internal;", "internal; error_page 502 504 = @pass;", 1)
    configuration = configuration.replace("\nserver {", "\nserver { location @pass { internal; return 204; }")
    with running_nginx(tmp_path, configuration) as url, httpx.Client(base_url=url, timeout=10) as client:
        assert [client.post("/api/login").status_code for _ in range(4)] == [200] * 3 + [429]
        many = [(f"x-{number}", "y") for number in range(300)]
        assert client.post("/api/login", headers=many).status_code == 500
        service.stop()
        assert client.post("/api/login").status_code == 200

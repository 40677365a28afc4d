"""The configurations that docs/service.md shows work: real gateways ask before they let a request through."""

from __future__ import annotations

import http.server
import re
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from documents import ROOT
from gateways import nginx_with, running_caddy, running_envoy, running_haproxy, running_nginx, shown
from raw_requests import connected
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
  - {name: once, match: {path: /once}, by: [key], limits: 1000/minute, repeated: refuse}
  - {name: never, match: {path: /heavy}, by: [ip], limits: 0/minute log}
  - {name: host, match: {host: api.example.com}, by: [ip], limits: 0/minute log}
"""
STARTED = {"nginx": running_nginx, "caddy": running_caddy, "haproxy": running_haproxy, "envoy": running_envoy}
GATEWAYS = tuple(STARTED)


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


def client_of(port: int) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10)


@pytest.fixture
def url(gateway: str, tmp_path: Path, service: RunningService, upstream: int) -> Iterator[str]:
    """The address of the gateway of a test."""
    with STARTED[gateway](tmp_path, service.url.removeprefix("http://"), f"127.0.0.1:{upstream}") as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_the_shown_configuration_lets_through_the_limit_and_refuses_the_rest(
    url: str, gateway: str, service: RunningService
) -> None:
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
def test_what_the_policy_counts_by_reaches_it_and_what_can_never_pass_has_no_retry_after(url: str) -> None:
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
def test_a_gateway_acts_as_the_page_says_where_the_service_is_down(
    url: str, gateway: str, service: RunningService
) -> None:
    service.stop()
    status = {"nginx": 500, "caddy": 502, "haproxy": 503, "envoy": 503}[gateway]
    assert httpx.post(f"{url}/api/login", timeout=10).status_code == status


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_a_service_that_hangs_holds_up_no_request_for_long(url: str, gateway: str, service: RunningService) -> None:
    assert httpx.get(url, timeout=10).status_code == 200
    service.process.send_signal(signal.SIGSTOP)
    try:
        status = {"nginx": 500, "caddy": 504, "haproxy": 503, "envoy": 503}[gateway]
        assert httpx.get(url, timeout=20).status_code == status
    finally:
        service.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_no_spelling_of_a_forwarding_header_makes_a_client_another(url: str, service: RunningService) -> None:
    with httpx.Client(base_url=url, timeout=10) as client:
        for name in ("X_Forwarded_For", "X_Forwarded-For", "x-forwarded_for"):
            answers = [client.post("/api/login", headers={name: f"198.51.100.{end}"}) for end in range(4)]
            assert 429 in [answer.status_code for answer in answers], name
        for name in ("X_Forwarded_Host", "X_Forwarded_Uri", "X_Forwarded_Method"):
            answer = client.post("/api/login", headers={name: "/health"})
            assert answer.status_code in (400, 429), name


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_a_header_that_is_sent_twice_reaches_the_service_as_two(url: str) -> None:
    with httpx.Client(base_url=url, timeout=10) as client:
        twice = [("X-API-Key", "ann"), ("X-API-Key", "bob")]
        assert client.get("/once", headers=twice).status_code == 429
        assert client.get("/once", headers=twice[:1]).status_code == 200


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_no_number_of_fields_ends_a_gateway_or_passes_uncounted(url: str) -> None:
    with httpx.Client(base_url=url, timeout=10) as client:
        assert [client.post("/api/login").status_code for _ in range(4)] == [200] * 3 + [429]
        for number in (50, *range(80, 110)):
            for name in ("x-{}", "x-same"):
                fields = [(name.format(field), "y") for field in range(number)]
                assert client.post("/api/login", headers=fields).status_code in (400, 429, 431), number
        assert client.get("/").status_code == 200


@pytest.mark.parametrize("gateway", GATEWAYS)
@pytest.mark.parametrize("fields", ["", "X-Forwarded-Host: a\n"])
def test_a_host_that_only_the_target_names_is_judged(url: str, fields: str) -> None:
    for line in (
        "GET http://api.example.com:80/ HTTP/1.0",
        "GET http://api.example.com HTTP/1.1",
        "CONNECT api.example.com:443 HTTP/1.1",
    ):
        with connected(url, f"{line}\n{fields}\n") as client:
            status = client.recv(12).split()[1]
        assert status in (b"429", b"400", b"404", b"405", b"426"), line  # or the gateway itself refuses it


def test_nginx_keeps_its_connection_to_the_service_whether_it_passes_or_refuses(
    tmp_path: Path, service: RunningService, upstream: int
) -> None:
    with TcpProxy(int(service.url.rpartition(":")[2])) as proxy:
        configuration = shown("nginx", f"127.0.0.1:{proxy.port}", f"127.0.0.1:{upstream}")
        with nginx_with(tmp_path, configuration) as port, client_of(port) as client:
            answers = [client.post("/api/login") for _ in range(60)]
            assert [answer.status_code for answer in answers] == [200] * 3 + [429] * 57
            assert answers[-1].json()["violated-policies"] == ["login"]
        assert proxy.accepted == 1


def test_what_nginx_itself_forbids_stays_forbidden(tmp_path: Path, service: RunningService, upstream: int) -> None:
    configuration = shown("nginx", service.url.removeprefix("http://"), f"127.0.0.1:{upstream}")
    inside = "\nserver {\n    location = /private { deny all; }\n    deny 127.0.0.2;"
    with nginx_with(tmp_path, configuration.replace("\nserver {", inside, 1)) as port:
        for source, path, status in [("127.0.0.1", "/", 200), ("127.0.0.1", "/private", 403), ("127.0.0.2", "/", 403)]:
            transport = httpx.HTTPTransport(local_address=source)
            with httpx.Client(transport=transport, base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
                answer = client.get(path)
                assert (answer.status_code, "problem" in answer.headers.get("Content-Type", "")) == (status, False)


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_a_refusal_by_many_limits_reaches_the_client(url: str, service: RunningService, tmp_path: Path) -> None:
    rules = [
        f"  - {{name: a-rule-of-a-rather-long-name-{number}, by: [ip], limits: 3/minute; 1000/hour; 20000/day}}"
        for number in range(30)
    ]
    (tmp_path / "policy.yaml").write_text("\n".join([POLICY.rstrip(), *rules, ""]))
    service.wait_for("the changed policy is in force")
    with httpx.Client(base_url=url, timeout=10) as client:
        answers = [client.get("/") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert len(answers[-1].json()["violated-policies"]) == 30


def test_nginx_that_passes_what_cannot_be_checked_passes_nothing_that_the_service_refuses_to_judge(
    tmp_path: Path, service: RunningService, upstream: int
) -> None:
    configuration = shown("nginx", service.url.removeprefix("http://"), f"127.0.0.1:{upstream}")
    text = (ROOT / "docs" / "service.md").read_text()
    for sentence in ("error_page 502 504 = @pass;", "location @pass { internal; return 204; }"):
        assert sentence in text.replace("\n", " ")
    configuration = configuration.replace("internal;", "internal; error_page 502 504 = @pass;", 1)
    configuration = configuration.replace("\nserver {", "\nserver { location @pass { internal; return 204; }")
    with nginx_with(tmp_path, configuration) as port, client_of(port) as client:
        assert [client.post("/api/login").status_code for _ in range(4)] == [200] * 3 + [429]
        many = [(f"x-{number}", "y") for number in range(300)]
        assert client.post("/api/login", headers=many).status_code == 500
        service.stop()
        assert client.post("/api/login").status_code == 200


def test_nginx_asks_about_bodies_that_only_a_location_allows_and_keeps_no_answer_in_a_cache(
    tmp_path: Path, service: RunningService, upstream: int
) -> None:
    configuration = shown("nginx", service.url.removeprefix("http://"), f"127.0.0.1:{upstream}")
    configuration = configuration.replace(
        "location / {", "location / { proxy_cache off; client_max_body_size 9m; client_body_buffer_size 9m;", 1
    )
    configuration = configuration.replace("\nserver {", "\nserver { proxy_cache all; proxy_cache_valid 200 403 1m;", 1)
    kept = f"proxy_cache_path {tmp_path}/cache keys_zone=all:1m;\n"
    with nginx_with(tmp_path, kept + configuration) as port, client_of(port) as client:
        answers = [client.post("/api/login", content=b"x" * 2_000_000)]
        answers += [client.post("/api/login") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200] * 3 + [429] * 2


@pytest.mark.parametrize(
    "served",
    [
        ("index index.html;", 2, 1),
        ("try_files $uri /index.html;", 2, 2),
        ("try_files $uri $uri/index.html =404;", 1, 1),
        ("try_files $uri $uri/index.html @page;", 1, 1),
    ],
    ids=lambda served: served[0],
)
def test_nginx_asks_once_about_files_that_are_served_as_the_page_says(
    tmp_path: Path, service: RunningService, upstream: int, served: tuple[str, int, int]
) -> None:
    how, of_a_folder, of_nothing = served
    text = (ROOT / "docs" / "service.md").read_text()
    page = re.search(r"`(location @page \{.*?\})`", text)
    assert page is not None
    (tmp_path / "policy.yaml").write_text(POLICY.rstrip() + "\n  - {name: all, by: [ip], limits: 100/day fixed}\n")
    service.wait_for("the changed policy is in force")
    with tempfile.TemporaryDirectory() as folder:  # whose parents the user of nginx's workers may enter
        Path(folder).chmod(0o755)
        (Path(folder) / "index.html").write_text("the page")
        configuration = shown("nginx", service.url.removeprefix("http://"), f"127.0.0.1:{upstream}")
        configuration = configuration.replace(
            "    location / {", f"    root {folder};\n    {page[1]}\n    location / {{ {how}", 1
        )
        configuration = re.sub(
            r"\n +proxy_pass http://127[^\n]*;(\n    \}\n\n    location @refused)", r"\1", configuration
        )
        with nginx_with(tmp_path, configuration) as port, client_of(port) as client:
            assert client.get("/").text == "the page"
            client.get("/nothing")
            charged = 100 - int(client.get("/index.html").headers["RateLimit"].split("r=")[1].split(";")[0])
    assert charged == of_a_folder + of_nothing + 1

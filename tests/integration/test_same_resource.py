"""No server and no gateway lets an application see another resource than the one that the policy has matched.

The application's own framework reports which resource a request reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
import yaml
from gateways import running_caddy, running_envoy, running_haproxy, running_nginx
from raw_requests import is_listening, request
from running import running_service
from seen_apps import POLICY
from served import running

pytestmark = pytest.mark.integration
HERE = Path(__file__).parent

SERVERS = {
    "uvicorn, httptools": [
        "-m",
        "uvicorn",
        "seen_apps:asgi",
        "--http",
        "httptools",
        "--port",
        "PORT",
        "--log-level",
        "error",
    ],
    "uvicorn, h11": ["-m", "uvicorn", "seen_apps:asgi", "--http", "h11", "--port", "PORT", "--log-level", "error"],
    "uvicorn, wsgi": [
        "-m",
        "uvicorn",
        "seen_apps:wsgi",
        "--interface",
        "wsgi",
        "--port",
        "PORT",
        "--log-level",
        "error",
    ],
    "granian, asgi": [
        "-m",
        "granian",
        "--interface",
        "asgi",
        "seen_apps:asgi",
        "--port",
        "PORT",
        "--log-level",
        "error",
    ],
    "granian, wsgi": ["-m", "granian", "--interface", "wsgi", "seen_apps:wsgi", "--port", "PORT"],
    "gunicorn": ["-m", "gunicorn", "seen_apps:wsgi", "-b", "127.0.0.1:PORT", "--log-level", "error"],
    "gunicorn, threads": [
        "-m",
        "gunicorn",
        "seen_apps:wsgi",
        "--threads",
        "2",
        "-b",
        "127.0.0.1:PORT",
        "--log-level",
        "error",
    ],
}

BYTES = [bytes([number]) for number in range(256)]
ESCAPES = [b"%%%02X" % number for number in range(256) if number < 0x30 or number > 0x7A or 0x3A <= number <= 0x40]
SIGNS = [*BYTES, *ESCAPES, b"%2523", b"%253F", b"%252F", b"%zz", b"%", b"\xc3\xa9", b"%C0%AF", b"%u002f", b"\r\n "]
TARGETS = [
    *(b"/api/login" + sign for sign in SIGNS),
    *(b"/api/login" + sign + b"a" for sign in SIGNS),
    *(b"/api" + sign + b"/login" for sign in (b"/", b"/.", b"/x/..", b"//x/../", b"/%2e", b"/x/%2e%2e", b";a", b"%2F")),
    *(b"/api" + sign + b"login" for sign in (b"\\", b"%5C", b"%2F", b"%2f", b"%252F", b"//", b"///", b"/\t", b"/%00")),
    b"/api/%6Cogin", b"/api/%256Cogin", b"/api/LOGIN", b"/API/login", b"/api/login.", b"/api/login..",
    b"/api/login/.", b"/api/login/..", b"/../api/login", b"/..;/api/login", b"/x/..%2fapi/login",
    b"/x/..%5capi/login", b"/#/../api/login", b"/health#/../api/login", b"/health/../api/login",
    b"/health/..%2fapi/login", b"/health;/../api/login", b"/health?/../api/login", b"/health%00/../api/login",
    b"/health%2f..%2fapi/login", b"/health//../api/login", b"//health/api/login", b"///api/login", b"api/login", b"*",
    b"", b"http://a/api/login", b"http://a/api/login#b", b"http://a:1/health/../api/login", b"HTTP://a/api/login",
    b"//a/api/login", b"http:///api/login", b"http:/api/login", b"x://a/api/login", b"/http://a/api/login",
    b"?/api/login", b"#/api/login", b"/api/login?a#b", b"/api/login#a?b", b"/caf\xc3\xa9/x", b"/caf%C3%A9/x",
    b"/caf%c3%a9/x", b"/caf%25C3%25A9/x", b"/caf\xe9/x", b"/caf%E9/x", b"/cafe%CC%81/x", b"/caf\xc3\xa9/x#a",
    b"/caf\xc3%A9/x", b"/files/a", b"/files/a%2Fb", b"/files/%2e%2e", b"/files/a#b", b"/files/a;b/", b"/health",
    b"/health/", b"/health#a", b"/health?a", b"//health", b"/health;a", b"/health%20", b"/%68ealth", b"/health.",
    b"/health%00a", b"/x/../health", b"/health\\a", b"/health%5Ca", b"/health%23a", b"/health%3Fa",
    b"/health/../files/a", b"http://a/health", b"//a/health", b"http://health", b"http://a", b"http://a?b",
]  # fmt: skip

ALL = [b"X-All: 1", b"X-Original-URI: /health", b"X-Forwarded-Uri: /health"]
"""What has all refused, and what a client may say of itself to be exempt."""

ALIKE = [b"/health/"]
"""A trailing slash makes no other path for a policy, whatever it does for an application."""


def assert_the_same_is_seen(port: int) -> None:
    """No resource that the policy refuses answers, and none but an exempt one where it refuses all."""
    wrong = []
    reached = set()
    for target in dict.fromkeys(TARGETS):
        for all_refused in (False, True):
            status, seen = request(port, target, ALL if all_refused else ())
            reached.add(status)
            allowed = ("health",) if all_refused else ("health", "other")
            if status == 200 and seen not in allowed and target not in ALIKE:
                wrong.append((target, seen, "all refused" if all_refused else ""))
    assert not wrong
    assert {200, 429} <= reached
    assert request(port, b"/health", ALL) == (200, "health")
    assert request(port, b"/other") == (200, "other")
    assert request(port, b"/api/login")[0] == 429


@pytest.mark.parametrize("server", SERVERS)
def test_a_server_shows_its_application_no_other_resource_than_was_matched(server: str) -> None:
    with running(SERVERS[server], is_listening, folder=HERE) as port:
        assert_the_same_is_seen(port)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    policy = tmp_path_factory.mktemp("policy") / "policy.yaml"
    policy.write_text(yaml.safe_dump(POLICY, allow_unicode=True), encoding="utf-8")
    with running_service(policy) as running:
        yield running.url.removeprefix("http://")


BEHIND = ["uvicorn, httptools", "uvicorn, h11", "granian, asgi", "granian, wsgi", "gunicorn"]


def envoy(home: Path, service: str, upstream: str) -> AbstractContextManager[int]:
    return running_envoy(home, service, upstream, "x-all", "x-original-uri", "x-forwarded-uri")


@pytest.mark.parametrize("gateway", [running_nginx, running_caddy, running_haproxy, envoy])
@pytest.mark.parametrize("server", BEHIND)
def test_a_gateway_as_shown_passes_on_no_other_resource_than_it_checked(
    server: str, gateway: Callable[[Path, str, str], AbstractContextManager[int]], service: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        port = stack.enter_context(running(SERVERS[server], is_listening, folder=HERE, environment={"BARE": "1"}))
        assert_the_same_is_seen(stack.enter_context(gateway(tmp_path, service, f"127.0.0.1:{port}")))

"""A credential that is sent twice, or in another spelling, passes no more often than its limit says.

The application accepts a credential in every way that some framework reads it, so an attack that passes with any
framework passes here. docs/identity.md describes what servers and gateways change in such requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml
from credential_apps import ATTACKS, LIMIT, PATHS, POLICY
from documents import ROOT
from gateways import running_caddy, running_envoy, running_haproxy, running_nginx
from raw_requests import is_listening, request
from running import running_service
from served import running

pytestmark = pytest.mark.integration
HERE = Path(__file__).parent

SERVERS = {
    "uvicorn, httptools": "uvicorn credential_apps:asgi --http httptools --port PORT --log-level error",
    "uvicorn, h11": "uvicorn credential_apps:asgi --http h11 --port PORT --log-level error",
    "granian, asgi": "granian --interface asgi credential_apps:asgi --port PORT",
    "granian, wsgi": "granian --interface wsgi credential_apps:wsgi --port PORT",
    "gunicorn": "gunicorn credential_apps:wsgi -b 127.0.0.1:PORT --log-level critical",
}


ECHO_SERVERS = {
    "uvicorn, httptools": "uvicorn echo_apps:asgi --http httptools --port PORT --log-level error",
    "uvicorn, h11": "uvicorn echo_apps:asgi --http h11 --port PORT --log-level error",
    "uvicorn, WSGI": "uvicorn echo_apps:wsgi --interface wsgi --port PORT --log-level error",
    "granian, ASGI": "granian --interface asgi echo_apps:asgi --port PORT",
    "granian, WSGI": "granian --interface wsgi echo_apps:wsgi --port PORT",
    "gunicorn": "gunicorn echo_apps:wsgi -b 127.0.0.1:PORT --log-level critical",
}


def envoy(home: Path, service: str, upstream: str) -> AbstractContextManager[int]:
    return running_envoy(home, service, upstream, "authorization", "cookie")


GATEWAYS: dict[str, Callable[[Path, str, str], AbstractContextManager[int]]] = {
    "nginx": running_nginx, "Caddy": running_caddy, "HAProxy": running_haproxy, "Envoy": envoy
}  # fmt: skip


def count_valid(port: int, name: str) -> int:
    """Return how many of ten requests with a valid credential pass."""
    _, attack = ATTACKS[name]
    valid = 0
    for number in range(1, 11):
        lines, query = attack(number)
        target = PATHS[name].encode() + (b"?" + query if query else b"")
        valid += request(port, target, lines) == (200, "valid")
    return valid


def assert_no_attack_gets_through(port: int) -> None:
    valid_by_attack = {name: count_valid(port, name) for name in ATTACKS}
    assert {name: count for name, count in valid_by_attack.items() if count > LIMIT} == {}
    assert sum(count > 0 for count in valid_by_attack.values()) > len(valid_by_attack) // 2, (
        "else the test shows nothing"
    )


@pytest.mark.parametrize("server", SERVERS)
def test_no_attack_gets_through_to_a_plain_application(server: str) -> None:
    with running(["-m", *SERVERS[server].split()], is_listening, folder=HERE) as port:
        assert_no_attack_gets_through(port)


@contextmanager
def server_of(name: str, tmp_path: Path) -> Iterator[int]:
    """Run a server of the table before the application that echoes what it receives."""
    with ExitStack() as stack:
        gateway = GATEWAYS.get(name)
        words = ECHO_SERVERS["uvicorn, h11" if gateway else name]  # the server that changes least
        port = stack.enter_context(running(["-m", *words.split()], is_listening, folder=HERE))
        if gateway is None:
            yield port
            return
        policy = tmp_path / "policy.yaml"
        policy.write_text("{version: 1, rules: [{name: all, by: [], limits: 1000/minute}]}")
        service = stack.enter_context(running_service(policy)).url.removeprefix("http://")
        yield stack.enter_context(gateway(tmp_path, service, f"127.0.0.1:{port}"))


def lines_received(port: int, *sent: bytes, query: bytes = b"") -> tuple[list[tuple[str, str]], str]:
    """Return the header lines and the query that an application receives of these."""
    status, body = request(port, b"/?" + query, sent)
    assert status == 200
    lines, received_query = json.loads(body)
    return [(name, value) for name, value in lines], received_query


def table_row(port: int) -> list[str]:
    """Return the row of the table for a server."""
    twice, _ = lines_received(port, b"X-API-Key: a", b"X-API-Key: b")
    alone, _ = lines_received(port, b"X_API_Key: a")
    cookies, _ = lines_received(port, b"Cookie: a", b"Cookie: b")
    is_refused = request(port, b"/?a#b")[0] == 400
    received_query = "" if is_refused else lines_received(port, query=b"a#b")[1]
    return [
        "two lines" if len(twice) == 2 else f"`{twice[0][1]}`",
        {"x_api_key": "another header", "x-api-key": "the same header"}[alone[0][0]] if alone else "dropped",
        "two lines" if len(cookies) == 2 else f"`{cookies[0][1]}`",
        "refused" if is_refused else "kept" if "#" in received_query else "cut off",
    ]


def test_the_table_of_the_docs_says_what_servers_and_gateways_change(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "identity.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    documented = {row[0]: row[1:] for row in rows if len(row) == 5 and row[0] in {*ECHO_SERVERS, *GATEWAYS}}
    assert documented.keys() == {*ECHO_SERVERS, *GATEWAYS}
    for name, words in documented.items():
        with server_of(name, tmp_path) as port:
            assert (name, table_row(port)) == (name, words)


@pytest.mark.parametrize("gateway", GATEWAYS)
@pytest.mark.parametrize("server", ["uvicorn, httptools", "granian, wsgi", "gunicorn"])
def test_no_attack_gets_through_a_gateway_as_the_docs_configure_it(server: str, gateway: str, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(yaml.safe_dump(POLICY), encoding="utf-8")
    with ExitStack() as stack:
        service = stack.enter_context(running_service(policy))
        words = ["-m", *SERVERS[server].split()]
        port = stack.enter_context(running(words, is_listening, folder=HERE, environment={"BARE": "1"}))
        address = service.url.removeprefix("http://")
        assert_no_attack_gets_through(stack.enter_context(GATEWAYS[gateway](tmp_path, address, f"127.0.0.1:{port}")))

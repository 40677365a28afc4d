"""A credential that is sent twice, or in another spelling, passes no more often than its limit says.

The application takes a credential in any way that some framework reads it, so whatever would get through
anywhere gets through here. What servers and gateways make of such requests is in docs/identity.md.
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
from raw_requests import answers, ask
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


TOLD = {
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


def passed(port: int, name: str) -> int:
    """How many of ten requests with a valid credential get through."""
    _, attack = ATTACKS[name]
    valid = 0
    for number in range(1, 11):
        lines, query = attack(number)
        target = PATHS[name].encode() + (b"?" + query if query else b"")
        valid += ask(port, target, lines) == (200, "valid")
    return valid


def assert_no_attack_gets_through(port: int) -> None:
    through = {name: passed(port, name) for name in ATTACKS}
    assert {name: count for name, count in through.items() if count > LIMIT} == {}
    assert sum(count > 0 for count in through.values()) > len(through) // 2, "or nothing is shown"


@pytest.mark.parametrize("server", SERVERS)
def test_before_a_plain_application(server: str) -> None:
    with running(["-m", *SERVERS[server].split()], answers, folder=HERE) as port:
        assert_no_attack_gets_through(port)


@contextmanager
def server_of(name: str, tmp_path: Path) -> Iterator[int]:
    """A server of the table before the application that tells what it was given."""
    with ExitStack() as stack:
        gateway = GATEWAYS.get(name)
        words = TOLD["uvicorn, h11" if gateway else name]  # the one that changes least
        port = stack.enter_context(running(["-m", *words.split()], answers, folder=HERE))
        if gateway is None:
            yield port
            return
        policy = tmp_path / "policy.yaml"
        policy.write_text("{version: 1, rules: [{name: all, by: [], limits: 1000/minute}]}")
        service = stack.enter_context(running_service(policy)).url.removeprefix("http://")
        yield stack.enter_context(gateway(tmp_path, service, f"127.0.0.1:{port}"))


def lines_given(port: int, *sent: bytes, query: bytes = b"") -> tuple[list[tuple[str, str]], str]:
    """The lines and the query that an application is given of these."""
    status, body = ask(port, b"/?" + query, sent)
    assert status == 200
    lines, asked = json.loads(body)
    return [(name, value) for name, value in lines], asked


def in_words(port: int) -> list[str]:
    """What a server makes of it, as the table says it."""
    twice, _ = lines_given(port, b"X-API-Key: a", b"X-API-Key: b")
    alone, _ = lines_given(port, b"X_API_Key: a")
    cookies, _ = lines_given(port, b"Cookie: a", b"Cookie: b")
    is_refused = ask(port, b"/?a#b")[0] == 400
    asked = "" if is_refused else lines_given(port, query=b"a#b")[1]
    return [
        "two lines" if len(twice) == 2 else f"`{twice[0][1]}`",
        {"x_api_key": "another header", "x-api-key": "the same header"}[alone[0][0]] if alone else "dropped",
        "two lines" if len(cookies) == 2 else f"`{cookies[0][1]}`",
        "refused" if is_refused else "kept" if "#" in asked else "cut off",
    ]


def test_the_table_of_the_docs_tells_what_servers_and_gateways_make_of_it(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "identity.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    told = {row[0]: row[1:] for row in rows if len(row) == 5 and row[0] in {*TOLD, *GATEWAYS}}
    assert told.keys() == {*TOLD, *GATEWAYS}
    for name, words in told.items():
        with server_of(name, tmp_path) as port:
            assert (name, in_words(port)) == (name, words)


@pytest.mark.parametrize("gateway", GATEWAYS)
@pytest.mark.parametrize("server", ["uvicorn, httptools", "granian, wsgi", "gunicorn"])
def test_behind_a_gateway_as_shown(server: str, gateway: str, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(yaml.safe_dump(POLICY), encoding="utf-8")
    with ExitStack() as stack:
        service = stack.enter_context(running_service(policy))
        words = ["-m", *SERVERS[server].split()]
        port = stack.enter_context(running(words, answers, folder=HERE, environment={"BARE": "1"}))
        address = service.url.removeprefix("http://")
        assert_no_attack_gets_through(stack.enter_context(GATEWAYS[gateway](tmp_path, address, f"127.0.0.1:{port}")))

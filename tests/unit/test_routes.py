"""The table of routes: what is answered where, and that the page and the docs list the same."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from headgate.drive import answered
from headgate.policy.gate import AsyncGate
from headgate.service.app import Service
from headgate.service.http.messages import TEXT, ServiceRequest, ServiceResponse
from headgate.service.routes import ANY, GET, POST, Route, RouteTable

DOCS = Path(__file__).parents[2] / "docs" / "service.md"
POLICY = {"version": 1, "rules": [{"name": "all", "by": [], "limits": "5/minute"}]}
CHECK = b'{"request": {"path": "/"}}'


def ask(service: Service, method: str, path: str, body: bytes = b"") -> ServiceResponse:
    async def main() -> ServiceResponse:
        return await answered(service.answer(ServiceRequest(method, path, [], "127.0.0.1", body)))

    return asyncio.run(main())


@pytest.fixture
def service() -> Service:
    return Service(AsyncGate(POLICY))


def test_a_new_endpoint_is_one_row() -> None:
    def told(request: ServiceRequest, rest: str) -> ServiceResponse:
        return ServiceResponse(200, TEXT, f"{request.method} {rest}".encode())

    table = RouteTable([
        Route(GET, "/a", told, "reads"), Route(POST, "/a", told, "writes", reads_body=True),
        Route(ANY, "/a/{key}", told, "is any"), Route(GET, "/b/{key}", told, "reads below"),
    ])  # fmt: skip

    def asked(method: str, path: str) -> tuple[int, bytes]:
        response = table.reply(ServiceRequest(method, path, [], "", b""))
        assert isinstance(response, ServiceResponse)
        return response.status, dict(response.headers).get(b"allow", response.body)

    assert [asked(method, "/a") for method in ("GET", "HEAD", "POST", "PUT")] == [
        (200, b"GET "), (200, b"HEAD "), (200, b"POST "), (405, b"GET, HEAD, POST"),
    ]  # fmt: skip
    assert [asked("PUT", "/a/x/y"), asked("GET", "/b/x"), asked("POST", "/b/x")] == [
        (200, b"PUT x/y"), (200, b"GET x"), (405, b"GET, HEAD"),
    ]  # fmt: skip
    assert asked("GET", "/c")[0] == 404
    assert [table.wants_body("POST", "/a"), table.wants_body("GET", "/a"), table.wants_body("POST", "/a/x")] == [
        True, False, False,
    ]  # fmt: skip


def test_what_is_not_there_is_named_and_the_way_to_what_is(service: Service) -> None:
    response = ask(service, "GET", "/v2/check")
    assert (response.status, json.loads(response.body)["detail"]) == (404, "no such path: /v2/check; see GET /")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("GET", "/v1/check", b"POST"), ("POST", "/metrics", b"GET, HEAD"), ("PUT", "/", b"GET, HEAD"),
     ("DELETE", "/v1/check/schema", b"GET, HEAD")],
)  # fmt: skip
def test_another_method_is_told_which_are_allowed(service: Service, method: str, path: str, allow: bytes) -> None:
    response = ask(service, method, path)
    assert (response.status, dict(response.headers)[b"allow"]) == (405, allow)


@pytest.mark.parametrize("path", ["/v1/check", "/v1/%63heck"])
def test_a_body_is_read_exactly_where_it_is_judged(service: Service, path: str) -> None:
    assert service.wants_body("POST", path)
    assert ask(service, "POST", path, CHECK).status == 200
    for method, other in (("GET", path), ("POST", "/check/default"), ("POST", "/nowhere")):
        assert not service.wants_body(method, other)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_what_follows_a_prefix_is_the_routes_own(service: Service, method: str) -> None:
    assert ask(service, method, "/check/default/a/b").status == 200
    assert ask(service, method, "/check/%64efault").status == 404  # a ruleset is named as it is
    assert ask(service, method, "/check").status == 404


def test_the_schema_of_a_body_is_published(service: Service) -> None:
    response = ask(service, "GET", "/v1/check/schema")
    assert (response.status, response.content_type) == (200, b"application/json")
    assert json.loads(response.body)["title"] == "Body of POST /v1/check"


def test_the_page_and_the_docs_list_all_routes(service: Service) -> None:
    page = ask(service, "GET", "/").body.decode()
    table = DOCS.read_text().partition("| path | |\n| --- | --- |\n")[2].partition("\n\n")[0]
    listed = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line).strip("| ").split(" | ") for line in table.splitlines()]
    assert listed == [[f"`{route.name}`", route.summary] for route in service.routes.routes]
    for route in service.routes.routes:
        assert route.path in page and route.summary in page

"""The table of routes: the handler of each path, and that the page and the docs list the same routes."""

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


def respond_to(service: Service, method: str, path: str, body: bytes = b"") -> ServiceResponse:
    async def main() -> ServiceResponse:
        return await answered(service.answer(ServiceRequest(method, path, [], "127.0.0.1", body)))

    return asyncio.run(main())


@pytest.fixture
def service() -> Service:
    return Service(AsyncGate(POLICY))


def test_a_new_endpoint_is_one_row() -> None:
    def handle(request: ServiceRequest, rest: str) -> ServiceResponse:
        return ServiceResponse(200, TEXT, f"{request.method} {rest}".encode())

    table = RouteTable([
        Route(GET, "/a", handle, "reads"), Route(POST, "/a", handle, "writes", reads_body=True),
        Route(ANY, "/a/{key}", handle, "is any"), Route(GET, "/b/{key}", handle, "reads below"),
    ])  # fmt: skip

    def reply_to(method: str, path: str) -> tuple[int, bytes]:
        response = table.reply(ServiceRequest(method, path, [], "", b""))
        assert isinstance(response, ServiceResponse)
        return response.status, dict(response.headers).get(b"allow", response.body)

    assert [reply_to(method, "/a") for method in ("GET", "HEAD", "POST", "PUT")] == [
        (200, b"GET "), (200, b"HEAD "), (200, b"POST "), (405, b"GET, HEAD, POST"),
    ]  # fmt: skip
    assert [reply_to("PUT", "/a/x/y"), reply_to("GET", "/b/x"), reply_to("POST", "/b/x")] == [
        (200, b"PUT x/y"), (200, b"GET x"), (405, b"GET, HEAD"),
    ]  # fmt: skip
    assert reply_to("GET", "/c")[0] == 404
    assert [table.wants_body("POST", "/a"), table.wants_body("GET", "/a"), table.wants_body("POST", "/a/x")] == [
        True, False, False,
    ]  # fmt: skip


def test_the_404_of_an_unknown_path_names_it_and_the_list_of_paths(service: Service) -> None:
    response = respond_to(service, "GET", "/v2/check")
    assert (response.status, json.loads(response.body)["detail"]) == (404, "no such path: /v2/check; see GET /")


def test_the_404_of_an_encoded_path_shows_it_as_it_was_sent(service: Service) -> None:
    response = respond_to(service, "GET", "/check%2Fdefault")  # the path /check/default exists
    assert (response.status, json.loads(response.body)["detail"]) == (404, "no such path: /check%2Fdefault; see GET /")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("GET", "/v1/check", b"POST"), ("POST", "/metrics", b"GET, HEAD"), ("PUT", "/", b"GET, HEAD"),
     ("DELETE", "/v1/check/schema", b"GET, HEAD")],
)  # fmt: skip
def test_the_405_of_another_method_names_the_allowed_methods(
    service: Service, method: str, path: str, allow: bytes
) -> None:
    response = respond_to(service, method, path)
    assert (response.status, dict(response.headers)[b"allow"]) == (405, allow)


@pytest.mark.parametrize("path", ["/v1/check", "/v1/%63heck"])
def test_a_body_is_read_only_on_paths_that_decide_by_it(service: Service, path: str) -> None:
    assert service.wants_body("POST", path)
    assert respond_to(service, "POST", path, CHECK).status == 200
    for method, other_path in (("GET", path), ("POST", "/check/default"), ("POST", "/nowhere")):
        assert not service.wants_body(method, other_path)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_the_route_of_a_prefix_receives_the_rest_of_the_path(service: Service, method: str) -> None:
    assert respond_to(service, method, "/check/default/a/b").status == 200
    assert respond_to(service, method, "/check/%64efault").status == 404  # the name of a ruleset is not decoded
    assert respond_to(service, method, "/check").status == 404


def test_the_schema_of_a_body_is_published(service: Service) -> None:
    response = respond_to(service, "GET", "/v1/check/schema")
    assert (response.status, response.content_type) == (200, b"application/json")
    assert json.loads(response.body)["title"] == "Body of POST /v1/check"


def test_the_page_and_the_docs_list_all_routes(service: Service) -> None:
    page = respond_to(service, "GET", "/").body.decode()
    table = DOCS.read_text().partition("| path | |\n| --- | --- |\n")[2].partition("\n\n")[0]
    listed = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line).strip("| ").split(" | ") for line in table.splitlines()]
    assert listed == [[f"`{route.name}`", route.summary] for route in service.routes.routes]
    for route in service.routes.routes:
        assert route.path in page and route.summary in page

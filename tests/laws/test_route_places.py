"""What limits of Starlette make of routes, and the responses that tell what remains, are alike in both cores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

from headgate import core
from headgate.integrations.starlette.places import PythonPlaces
from headgate.integrations.starlette.responses import python_copied

pytestmark = pytest.mark.skipif(core.native is None, reason="the law compares the native core")

ENDPOINTS = [object() for _ in range(3)]
ROUTES = [SimpleNamespace(endpoint=endpoint) for endpoint in ENDPOINTS]
CONTEXTS = [SimpleNamespace(), SimpleNamespace()]
ROOTS = st.sampled_from(["", "/shop", "/shop/v1", "/\u00fc", "/\ud800", None])
KINDS = [Response, PlainTextResponse, JSONResponse, RedirectResponse]
NAMES = st.sampled_from([b"content-type", b"content-length", b"ratelimit", b"ratelimit-policy", b"x-own"])
FIELDS = st.lists(st.tuples(NAMES, st.binary(max_size=4)), max_size=4)


def fresh_copy(text: str | None) -> str | None:
    """The same text in another object, as servers make one for each request."""
    return None if text is None else "".join(list(text))


@st.composite
def ways(draw: st.DrawFn) -> dict[str, Any]:
    """How a request reached its route. `router` is the number of its router, as each core has its own routers."""
    route = draw(st.sampled_from([None, *ROUTES]))
    fields = {
        "router": draw(st.sampled_from([None, 0, 1])),
        "route": route,
        "endpoint": draw(st.sampled_from(ENDPOINTS)) if route is None else route.endpoint,
        "fastapi": draw(st.sampled_from([None, {}, *({"effective_route_context": own} for own in CONTEXTS)])),
        "app_root_path": draw(ROOTS),
        "root_path": draw(ROOTS),
        "method": draw(st.sampled_from(["GET", "POST", None])),
    }
    lacks = draw(st.sets(st.sampled_from(["fastapi", "app_root_path", "root_path", "method"])))
    return {name: value for name, value in fields.items() if name not in lacks}


class Side:
    """Places of one core, and the queries at which they had to find a route."""

    def __init__(self, kind: Any, *, by_method: bool) -> None:
        self.routers = [SimpleNamespace(), SimpleNamespace()]
        self.found: list[int] = []
        self.query_count = 0
        self.places = [kind(self.find, by_method=by_method) for _ in range(2)]

    def find(self, scope: Any) -> tuple[str, bool]:
        self.found.append(self.query_count)
        return f"found for {self.query_count}", scope["route"] is not None

    def of(self, limit: int, way: dict[str, Any]) -> str:
        router = way["router"]
        texts: dict[str, Any] = {
            name: fresh_copy(way[name]) for name in ("app_root_path", "root_path", "method") if name in way
        }
        scope: dict[str, Any] = {**way, **texts, "router": None if router is None else self.routers[router]}
        assert self.places[limit].decide(scope) is None, "there is no decision"
        found_place: str = self.places[limit].of(scope)
        self.query_count += 1
        return found_place


@given(st.booleans(), st.lists(st.tuples(st.integers(0, 1), ways()), min_size=1, max_size=40))
def test_both_cores_find_a_route_once_for_each_way_to_it(by_method: bool, requests: list[tuple[int, Any]]) -> None:
    assert core.native is not None
    python, native = Side(PythonPlaces, by_method=by_method), Side(core.native.RoutePlaces, by_method=by_method)
    for limit, way in requests:
        assert python.of(limit, way) == native.of(limit, way)
    assert python.found == native.found


@given(st.sampled_from(KINDS), FIELDS, FIELDS, st.booleans())
def test_a_copied_response_is_the_same_in_both_cores(kind: Any, own: Any, fields: Any, has_view: bool) -> None:
    assert core.native is not None
    response = kind("text")
    response.raw_headers.extend(own)
    if has_view:
        assert response.headers is response.headers
    before = {**response.__dict__, "raw_headers": list(response.raw_headers)}
    python, native = python_copied(response, fields), core.native.copied_response(response, fields)
    assert type(python) is type(native) is kind
    assert python.__dict__ == native.__dict__
    written = {name for name, _ in before["raw_headers"]}
    assert native.raw_headers == [*before["raw_headers"], *(field for field in fields if field[0] not in written)]
    assert list(native.headers.raw) == native.raw_headers
    assert response.__dict__ == before, "the response itself is unchanged"

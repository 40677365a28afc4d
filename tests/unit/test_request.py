"""A request gives the one value of a name that the application will read, or reports that it cannot be known."""

from __future__ import annotations

from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, unquote

import pytest
from django.http.cookie import parse_cookie as django_cookies  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.datastructures import QueryParams
from starlette.requests import cookie_parser
from werkzeug.http import parse_cookie as werkzeug_cookies

from headgate import ArgumentError
from headgate.http.asgi import AsgiRequest
from headgate.http.wsgi import WsgiRequest
from headgate.policy.request import REPEATED, Repeated, Request


def plain(lines: list[tuple[str, str]], path: str = "/") -> Request:
    return Request(path=path, headers=lines)


def asgi(lines: list[tuple[str, str]], path: str = "/") -> Request:
    sent, _, query = path.partition("?")
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in lines]
    return AsgiRequest(
        {"type": "http", "method": "GET", "path": sent, "raw_path": sent.encode(), "headers": headers,
         "query_string": query.encode("latin-1")}
    )  # fmt: skip


KINDS = pytest.mark.parametrize("make", [plain, asgi])


@KINDS
@pytest.mark.parametrize(
    ("lines", "value"),
    [
        ([], ""),
        ([("X-API-Key", " a ")], "a"),
        ([("X-API-Key", "a"), ("X-API-Key", "a ")], "a"),
        ([("X-API-Key", ""), ("X-API-Key", "a")], "a"),
        ([("X-API-Key", "a"), ("X-API-Key", "b")], REPEATED),
        ([("X-API-Key", "a"), ("x-api-KEY", "b")], REPEATED),
        ([("X-API-Key", "a"), ("X_API_Key", "b")], REPEATED),
        ([("X_API-Key", "a"), ("X-API_Key", "b")], REPEATED),
        ([("X_API_Key", "a")], "a"),
        ([("X-API-Key", "a, b")], "a, b"),
        # Bytes of UTF-8 and of Latin-1, as servers pass them, and text, as programs that describe a request pass it.
        ([("X-API-Key", " J\xc3\xbcrgen ")], "J\xfcrgen"),
        ([("X-API-Key", "J\xfcrgen")], "J\xfcrgen"),
        ([("X-API-Key", "J\xc3\xbcrgen"), ("X-API-Key", "J\xfcrgen")], "J\xfcrgen"),
        ([("X-API-Key", "Jol\xc3\xa0"), ("X-API-Key", "Jol\xc3\x85")], REPEATED),
        ([("X-API-Key", "Jol\xc3\xa0")], "Jol\xe0"),
        ([("X-API-Key", "a\xc2\xa0")], "a"),
        ([("X-API-Key", "a\xa0")], "a"),
        ([("X-API-Key", "\xc3\xa9\xff")], "\xc3\xa9\xff"),
    ],
)
def test_a_header_has_one_value_or_is_repeated(make: Any, lines: list[tuple[str, str]], value: str) -> None:
    found = make(lines).header("x-api-key")
    assert found == value and (found is REPEATED) == (value is REPEATED)


@KINDS
@pytest.mark.parametrize("name", ["x-user-id", "X-User-Id", "X-USER-ID"])
def test_a_header_is_found_by_its_name_in_any_case(make: Any, name: str) -> None:
    request = make([("X-User-Id", "ann"), ("1", "one")])
    assert (request.header(name), request.header("1"), request.header("2")) == ("ann", "one", "")


@KINDS
def test_the_lines_of_a_header_are_joined_in_order_and_marked_as_repeated(make: Any) -> None:
    headers = make([("X-Forwarded-For", "192.0.2.1"), ("A", "1"), ("X-Forwarded-For", "203.0.113.9, 10.0.0.1")]).headers
    assert headers["x-forwarded-for"] == "192.0.2.1, 203.0.113.9, 10.0.0.1"
    assert type(headers["x-forwarded-for"]) is Repeated and type(headers["a"]) is str
    assert sorted(headers) == ["a", "x-forwarded-for"] and len(headers) == 2


@KINDS
def test_the_lines_of_a_header_in_another_spelling_are_left_out_where_its_own_spelling_exists(make: Any) -> None:
    proxy_lines = [("X-Forwarded-For", "192.0.2.1"), ("x-forwarded-for", "203.0.113.9")]
    client_line = ("X_Forwarded-For", "1.1.1.1")
    for place in range(3):
        headers = make([*proxy_lines[:place], client_line, *proxy_lines[place:]]).headers
        assert headers["x-forwarded-for"] == "192.0.2.1, 203.0.113.9"
        assert type(headers["x-forwarded-for"]) is Repeated and len(headers["x-forwarded-for"].values) == 3
    assert make([client_line, client_line]).headers["x-forwarded-for"] == "1.1.1.1, 1.1.1.1"


COOKIES = [
    ([], ""),
    (["session=VALID"], "VALID"),
    (["a=1;session=VALID;b=2"], "VALID"),
    (["a=1;  session =  VALID ; b=2"], "VALID"),
    (["session=VALID; session=VALID"], "VALID"),
    (["session=; session=VALID"], "VALID"),
    (["sessions=r1; session=VALID; xsession=r2; x-session=r3"], "VALID"),
    (["a=xsession=r1; session=VALID"], "VALID"),
    (['session="VALID"'], "VALID"),
    (['session="\\126ALID"'], "VALID"),
    (['session="\\126\\101\\114\\111\\104"'], "VALID"),
    (['session="\\VALID"'], "VALID"),
    (["session=%56ALID"], "VALID"),
    (["session=VALID=="], "VALID=="),
    (["%73ession=VALID"], "VALID"),
    (["a" * 9000 + "=1; session=VALID"], "VALID"),
    (["session=r1; session=VALID"], REPEATED),
    (["session=VALID; session=r1"], REPEATED),
    (["session=VALID", "session=r1"], REPEATED),
    (["session=VALID", "a=b"], "VALID"),
    (['session="VALID"; session=r1'], REPEATED),
    (["session=r1; a=b session=VALID"], REPEATED),
    (["session=r1; a=b\tsession=VALID"], REPEATED),
    (["session=r1, session=VALID"], REPEATED),
    (["session=VALID r1"], REPEATED),
    (['session="VALID" r1'], REPEATED),
    (['x="; session=r1; y="; session=VALID'], REPEATED),
    (['session="VALID'], REPEATED),
    (['session="VALID\\"'], REPEATED),
    (['session="VA;LID"'], REPEATED),
    (["session=VA\\114ID"], "VA\\114ID"),
    (["session=r1; SESSION=VALID"], REPEATED),
    (["session=r1; %73ession=VALID"], REPEATED),
    (["a=1; " * 4000 + "session=VALID"], REPEATED),
    (["a=1; " * 600], REPEATED),
    (["a" * 20000], REPEATED),
]


@KINDS
@pytest.mark.parametrize(("lines", "value"), COOKIES, ids=[str(lines)[:40] for lines, _ in COOKIES])
def test_a_cookie_is_what_any_application_may_read_or_repeated(make: Any, lines: list[str], value: str) -> None:
    found = make([("Cookie", line) for line in lines]).cookie("session")
    assert found == value and (found is REPEATED) == (value is REPEATED)


PARAMETERS = [
    ("/", ""),
    ("/?a=1", ""),
    ("/?token=VALID", "VALID"),
    ("/?token=VALID&token=VALID", "VALID"),
    ("/?token=&token=VALID", "VALID"),
    ("/?a=b?token=r1&token=VALID", "VALID"),
    ("/?%74oken=VALID", "VALID"),
    ("/?token=%56ALID", "VALID"),
    ("/?token=VALID#", REPEATED),
    ("/?tokens=r1&token=VALID", "VALID"),
    ("/?" + "a=1&" * 900 + "token=VALID", "VALID"),
    ("/?filter=a;b&token=VALID", "VALID"),
    ("/?token=r1&token=VALID", REPEATED),
    ("/?token=VALID&token=r1", REPEATED),
    ("/?token=VALID&%74oken=r1", REPEATED),
    ("/?token=VALID&+token=r1", REPEATED),
    ("/?token=VALID&Token=r1", REPEATED),
    ("/?token=VALID&token%00x=r1", REPEATED),
    ("/?token=VALID;token=r1", REPEATED),
    ("/?token=VALID;r1", REPEATED),
    ("/?token=VALID#r1", REPEATED),
    ("/?token=r1#&token=VALID", REPEATED),
    ("/?" + "a=1&" * 1200 + "token=VALID", REPEATED),
    ("/?" + "a=1;" * 1200 + "token=VALID", REPEATED),
]


@KINDS
@pytest.mark.parametrize(("path", "value"), PARAMETERS, ids=[path[:40] for path, _ in PARAMETERS])
def test_a_parameter_is_what_any_application_may_read_or_repeated(make: Any, path: str, value: str) -> None:
    found = make([], path).query("token")
    assert found == value and (found is REPEATED) == (value is REPEATED)


def test_characters_that_php_reads_as_an_underscore_count_as_one() -> None:
    assert Request(path="/?user.token=VALID&user_token=r1").query("user_token") is REPEATED
    assert Request(headers={"cookie": "my.id=VALID; my_id=r1"}).cookie("my_id") is REPEATED


def test_an_integration_may_return_the_value_that_its_framework_reads() -> None:
    class FrameworkRequest(Request):
        def header(self, name: str) -> str:
            return "the first"

    request = FrameworkRequest(headers=[("A", "the first"), ("A", "the last")])
    assert request.header("a") == "the first"


def test_a_request_object_whose_fields_change_gives_the_new_values() -> None:
    request = Request(path="/?t=1", headers={"cookie": "s=1"})
    assert (request.query("t"), request.cookie("s")) == ("1", "1")
    request.path, request.headers = "/?t=2", {"cookie": "s=2"}
    assert (request.query("t"), request.cookie("s")) == ("2", "2")


def test_a_server_that_joins_lines_gives_one_value() -> None:
    request = WsgiRequest({"REQUEST_METHOD": "GET", "PATH_INFO": "/", "HTTP_X_API_KEY": "VALID,r1"})
    assert request.header("x-api-key") == "VALID,r1"


@pytest.mark.parametrize(
    "given_values",
    [
        {"headers": [()]}, {"headers": [("a",)]}, {"headers": [("a", "b", "c")]}, {"headers": ["abc"]}, {"headers": 5},
        {"headers": [5]}, {"headers": [(b"a", "b")]}, {"headers": [("a", b"b")]}, {"headers": {"a": 5}},
        {"headers": {5: "a"}}, {"headers": [("a", "b"), ("a", 5)]}, {"headers": "ab"}, {"method": None}, {"path": b"/"},
        {"client_ip": 5}, {"host": 5}, {"endpoint": None},
    ],
)  # fmt: skip
def test_a_request_with_a_field_that_is_not_text_is_a_bad_argument(given_values: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        Request(**given_values)


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(method=_ANYTHING, path=_ANYTHING, headers=_ANYTHING, client_ip=_ANYTHING, host=_ANYTHING)
def test_any_argument_gives_a_request_or_an_argument_error(**given_values: Any) -> None:
    try:
        request = Request(given_values.pop("method"), given_values.pop("path"), **given_values)
    except ArgumentError:
        return
    for text in (request.header("a"), request.cookie("a"), request.query("a"), repr(request)):
        assert isinstance(text, str)


@given(st.text(alphabet='s=; ,"\\\t12%73', max_size=60), st.sampled_from(["s", "ss"]))
def test_any_cookies_are_read(sent: str, name: str) -> None:
    assert isinstance(Request(headers={"cookie": sent}).cookie(name), str)


def read_by_applications(sent: str) -> set[str]:
    """The values of the cookie `s` according to the parsers of real frameworks."""
    found = [cookie_parser(sent).get("s"), django_cookies(sent).get("s"), *werkzeug_cookies(sent).getlist("s")]
    with suppress(CookieError):
        morsel = SimpleCookie(sent).get("s")
        found.append(None if morsel is None else morsel.value)
    return {unquote(value.strip(), errors="replace").strip() for value in found if value} - {""}


@settings(max_examples=400)
@given(
    st.lists(st.sampled_from(["s", "=", ";", " ", ",", '"', "\\", "1", "\t", "x", "\\163", "%73", "2"]), max_size=14)
)
def test_no_application_reads_another_cookie_than_the_one_that_counts(parts: list[str]) -> None:
    sent = "".join(parts)
    read = read_by_applications(sent)
    found = Request(headers={"cookie": sent}).cookie("s")
    assert found is REPEATED or {unquote(found).strip()} >= read, (found, read)


@settings(max_examples=400)
@given(st.lists(st.sampled_from(["t", "=", "&", ";", "+", "%20", "%74", "1", "2", "#", "%26", "?"]), max_size=14))
def test_no_application_reads_another_parameter_than_the_one_that_counts(parts: list[str]) -> None:
    query = "".join(parts)
    read = {
        value.strip()
        for text in (query, query.partition("#")[0], query.replace(";", "&"), query.partition("#")[0].replace(";", "&"))
        for value in (*parse_qs(text).get("t", []), *QueryParams(text).getlist("t"))
    } - {""}
    found = Request(path=f"/?{query}").query("t")
    assert found is REPEATED or {found} >= read, (found, read)


@pytest.mark.parametrize("path", ["/api/login", "/"])
def test_a_path_in_place_of_the_method_is_an_error_and_not_a_request_for_the_root(path: str) -> None:
    with pytest.raises(ArgumentError, match=rf"a request is Request\(method, path\), and '{path}' is a path"):
        Request(path, client_ip="203.0.113.9")
    assert (Request("", path).method, Request("post", path).method) == ("", "POST")

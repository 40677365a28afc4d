"""Keys taken from requests: where each comes from, what is secret, and what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

import pytest

from headgate import ConfigError, Limiter
from headgate.http.keys import all_of, api_key, cookie, first_of, header, query
from headgate.keys import encode_key
from headgate.policy.request import REPEATED, Request

SECRET = "k-7f3a-very-secret"


def request(path: str = "/", **headers: str) -> Request:
    return Request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})


def test_a_header_is_a_key_that_tells_where_it_comes_from() -> None:
    of = header("X-User-Id")
    assert of(request(x_user_id="7")) == of(request(X_USER_ID=" 7 ")) == ("header:x-user-id", "7")
    assert header("X-Tenant")(request(x_tenant="7")) != of(request(x_user_id="7"))


def test_user_7_is_not_cookie_7_and_not_parameter_7() -> None:
    asked = request("/?user=7", user="7", Cookie="user=7")
    keys = [of(asked) for of in (header("user"), cookie("user", secret=False), query("user"), api_key("user"))]
    texts = {encode_key(key) for key in keys if key is not None}
    assert len(texts) == 4


@pytest.mark.parametrize(
    ("of", "asked"),
    [
        (api_key(), request(x_api_key=SECRET)),
        (api_key("Authorization"), request(authorization=f"Bearer {SECRET}")),
        (header("X-User-Id", secret=True), request(x_user_id=SECRET)),
        (cookie("session"), request(cookie=f"a=b; session={SECRET}")),
        (query("token", secret=True), request(f"/?token={SECRET}")),
        (first_of(api_key(), cookie("session")), request(cookie=f"session={SECRET}")),
        (all_of(api_key(), cookie("session")), request(x_api_key=SECRET, cookie=f"session={SECRET}")),
    ],
    ids=["api_key", "bearer", "header", "cookie", "query", "first_of", "all_of"],
)
def test_a_secret_is_in_no_key(of: Callable[[Request], Any], asked: Request) -> None:
    key = of(asked)
    assert key and SECRET not in repr(key) and SECRET not in encode_key(key)
    assert key == of(asked), "the same secret is the same key"
    assert Limiter("1/minute").hit(key).allowed


def test_an_api_key_is_the_same_with_and_without_bearer_before_it() -> None:
    of = api_key("Authorization")
    alone = of(request(authorization=SECRET))
    assert alone is not None
    for sent in (f"Bearer {SECRET}", f"bearer {SECRET}", f" BEARER  {SECRET} "):
        assert of(request(authorization=sent)) == alone
    assert of(request(authorization=f"Basic {SECRET}")) != alone
    assert of(request(authorization="Bearer another")) != alone
    assert of(request(x_api_key=SECRET)) is None


@pytest.mark.parametrize(
    "of",
    [header("X-Id"), header("X-Id", secret=True), api_key("X-Id"), cookie("id"), query("id"), query("id", secret=True)],
)
def test_what_is_missing_or_empty_is_no_key(of: Callable[[Request], Any]) -> None:
    assert of(request()) is None
    assert of(request("/?id=", x_id="  ", cookie="id=")) is None


def test_bearer_without_a_token_is_no_api_key() -> None:
    of = api_key("Authorization")
    assert of(request(authorization="Bearer")) is None
    assert of(request(authorization="Bearer  ")) is None


@pytest.mark.parametrize(
    ("of", "asked"),
    [
        (header("X-User"), [("X-User", "VALID"), ("X-User", "{}")]),
        (api_key("X-API-Key"), [("X-API-Key", "VALID"), ("X-API-Key", "{}")]),
        (api_key("X-API-Key"), [("X-API-Key", "VALID, {}")]),
        (api_key("Authorization"), [("Authorization", "Bearer VALID"), ("Authorization", "Bearer {}")]),
        (cookie("session"), [("Cookie", "session={}; session=VALID")]),
        (cookie("session", secret=False), [("Cookie", "session=VALID; session={}")]),
        (first_of(cookie("session"), header("X-User")), [("Cookie", "session=VALID; session={}"), ("X-User", "{}")]),
    ],
)  # fmt: skip
def test_what_is_sent_twice_is_one_key_whatever_it_is(
    of: Callable[[Request], Any], asked: list[tuple[str, str]]
) -> None:
    keys = {of(Request(headers=[(name, value.format(number)) for name, value in asked])) for number in range(3)}
    assert len(keys) == 1 and any(part is REPEATED for part in keys.pop())


def test_values_of_any_length_and_any_characters_are_keys() -> None:
    for value in ("x" * 5000, "a|b", "{tag}", "a%7Cb", "é", "a b"):
        for key in (header("X-Id")(request(x_id=value)), cookie("id", secret=False)(request(cookie=f"id={value}"))):
            assert key is not None and len(encode_key(key)) < 512
    assert header("X-Id")(request(x_id="x" * 5000)) != header("X-Id")(request(x_id="x" * 5001))


def test_parts_cannot_run_into_each_other() -> None:
    of = all_of(header("A"), header("B"))
    keys = [
        of(request(a=one, b=other)) for one, other in (("x", "yz"), ("xy", "z"), ("x|header:b", "yz"), ("x|", "yz"))
    ]
    assert len({encode_key(key) for key in keys}) == 4


def test_the_first_key_that_a_request_has() -> None:
    of = first_of(api_key("X-API-Key"), header("X-User-Id"))
    assert of(request(x_user_id="7")) == ("header:x-user-id", "7")
    assert of(request(x_user_id="7", x_api_key="k"))[0] == "api_key"
    assert of(request(x_api_key=" ", x_user_id="7")) == ("header:x-user-id", "7")
    assert of(request()) is None


def test_zero_is_a_key_and_a_tuple_that_lacks_a_part_is_none() -> None:
    def user(asked: Any) -> tuple[str, str | None]:
        return ("user", asked.headers.get("x-user"))

    asked = request(x_api_key=SECRET)
    for lacking in (user, lambda asked: ("user", ""), lambda asked: (), lambda asked: "", lambda asked: False):
        assert first_of(lacking, lambda asked: 0, api_key())(asked) == 0
        assert first_of(lacking, api_key())(asked) == api_key()(asked)
        assert all_of(lacking, lambda asked: "eu")(asked) is None
    assert first_of(user, api_key())(request(x_user="7", x_api_key=SECRET)) == ("user", "7")
    assert all_of(lambda asked: 0, lambda asked: "eu")(asked) == (0, "eu")


def test_all_keys_together_or_none() -> None:
    of = all_of(header("X-Tenant"), header("X-User-Id"))
    assert of(request(x_tenant="t", x_user_id="7")) == ("header:x-tenant", "t", "header:x-user-id", "7")
    assert of(request(x_tenant="t")) is None
    assert of(request()) is None
    mixed = all_of(lambda asked: "plain", lambda asked: 7, header("X-Tenant"))
    assert mixed(request(x_tenant="t")) == ("plain", 7, "header:x-tenant", "t")


async def _account(asked: Request) -> str | None:
    await asyncio.sleep(0)
    return {"k1": "ann"}.get(asked.headers.get("x-api-key", ""))


async def _nobody(asked: Request) -> str | None:
    await asyncio.sleep(0)
    return None


def test_coroutine_functions_are_awaited_and_make_one() -> None:
    first, both = first_of(_account, header("X-User-Id")), all_of(_account, header("X-User-Id"))
    assert iscoroutinefunction(first) and iscoroutinefunction(both)
    assert asyncio.run(first(request(x_api_key="k1", x_user_id="7"))) == "ann"
    assert asyncio.run(first(request(x_user_id="7"))) == ("header:x-user-id", "7")
    assert asyncio.run(first(request())) is None
    assert asyncio.run(both(request(x_api_key="k1", x_user_id="7"))) == ("ann", "header:x-user-id", "7")
    assert asyncio.run(both(request(x_user_id="7"))) is None
    nested = first_of(all_of(_nobody, header("X-Tenant")), all_of(_account, header("X-User-Id")))
    assert asyncio.run(nested(request(x_api_key="k1", x_user_id="7"))) == ("ann", "header:x-user-id", "7")
    assert not iscoroutinefunction(first_of(header("X-User-Id"), api_key()))


@pytest.mark.parametrize("made", [first_of, all_of])
def test_functions_of_no_functions_are_told_at_once(made: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError, match="needs at least one function"):
        made()


@pytest.mark.parametrize("of", [header, api_key, cookie, query])
@pytest.mark.parametrize("name", ["", "  ", None, 7])
def test_a_name_that_is_none_is_told_at_once(of: Callable[[Any], Any], name: Any) -> None:
    with pytest.raises(ConfigError, match="has a name"):
        of(name)

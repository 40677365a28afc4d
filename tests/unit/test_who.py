"""Keys taken from requests: their sources, secrets, and missing values."""

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


def test_the_key_of_a_header_names_its_source() -> None:
    key_of = header("X-User-Id")
    assert key_of(request(x_user_id="7")) == key_of(request(X_USER_ID=" 7 ")) == ("header:x-user-id", "7")
    assert header("X-Tenant")(request(x_tenant="7")) != key_of(request(x_user_id="7"))


def test_user_7_is_not_cookie_7_and_not_parameter_7() -> None:
    received = request("/?user=7", user="7", Cookie="user=7")
    keys = [
        key_of(received) for key_of in (header("user"), cookie("user", secret=False), query("user"), api_key("user"))
    ]
    texts = {encode_key(key) for key in keys if key is not None}
    assert len(texts) == 4


@pytest.mark.parametrize(
    ("key_of", "received"),
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
def test_a_secret_is_in_no_key(key_of: Callable[[Request], Any], received: Request) -> None:
    key = key_of(received)
    assert key and SECRET not in repr(key) and SECRET not in encode_key(key)
    assert key == key_of(received), "the same secret is the same key"
    assert Limiter("1/minute").hit(key).allowed


def test_an_api_key_is_the_same_with_and_without_bearer_before_it() -> None:
    key_of = api_key("Authorization")
    alone = key_of(request(authorization=SECRET))
    assert alone is not None
    for sent in (f"Bearer {SECRET}", f"bearer {SECRET}", f" BEARER  {SECRET} "):
        assert key_of(request(authorization=sent)) == alone
    assert key_of(request(authorization=f"Basic {SECRET}")) != alone
    assert key_of(request(authorization="Bearer another")) != alone
    assert key_of(request(x_api_key=SECRET)) is None


@pytest.mark.parametrize(
    "key_of",
    [header("X-Id"), header("X-Id", secret=True), api_key("X-Id"), cookie("id"), query("id"), query("id", secret=True)],
)
def test_a_missing_or_empty_value_is_no_key(key_of: Callable[[Request], Any]) -> None:
    assert key_of(request()) is None
    assert key_of(request("/?id=", x_id="  ", cookie="id=")) is None


def test_bearer_without_a_token_is_no_api_key() -> None:
    key_of = api_key("Authorization")
    assert key_of(request(authorization="Bearer")) is None
    assert key_of(request(authorization="Bearer  ")) is None


@pytest.mark.parametrize(
    ("key_of", "received"),
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
def test_a_value_that_is_sent_twice_gives_one_key_whatever_it_is(
    key_of: Callable[[Request], Any], received: list[tuple[str, str]]
) -> None:
    keys = {key_of(Request(headers=[(name, value.format(number)) for name, value in received])) for number in range(3)}
    assert len(keys) == 1 and any(part is REPEATED for part in keys.pop())


def test_values_of_any_length_and_any_characters_are_keys() -> None:
    for value in ("x" * 5000, "a|b", "{tag}", "a%7Cb", "é", "a b"):
        for key in (header("X-Id")(request(x_id=value)), cookie("id", secret=False)(request(cookie=f"id={value}"))):
            assert key is not None and len(encode_key(key)) < 512
    assert header("X-Id")(request(x_id="x" * 5000)) != header("X-Id")(request(x_id="x" * 5001))


def test_parts_cannot_run_into_each_other() -> None:
    key_of = all_of(header("A"), header("B"))
    keys = [
        key_of(request(a=one, b=other)) for one, other in (("x", "yz"), ("xy", "z"), ("x|header:b", "yz"), ("x|", "yz"))
    ]
    assert len({encode_key(key) for key in keys}) == 4


def test_the_first_key_that_a_request_has() -> None:
    key_of = first_of(api_key("X-API-Key"), header("X-User-Id"))
    assert key_of(request(x_user_id="7")) == ("header:x-user-id", "7")
    assert key_of(request(x_user_id="7", x_api_key="k"))[0] == "api_key"
    assert key_of(request(x_api_key=" ", x_user_id="7")) == ("header:x-user-id", "7")
    assert key_of(request()) is None


def test_zero_is_a_key_and_a_tuple_that_lacks_a_part_is_none() -> None:
    def user(received: Any) -> tuple[str, str | None]:
        return ("user", received.headers.get("x-user"))

    received = request(x_api_key=SECRET)
    for lacking in (
        user,
        lambda received: ("user", ""),
        lambda received: (),
        lambda received: "",
        lambda received: False,
    ):
        assert first_of(lacking, lambda received: 0, api_key())(received) == 0
        assert first_of(lacking, api_key())(received) == api_key()(received)
        assert all_of(lacking, lambda received: "eu")(received) is None
    assert first_of(user, api_key())(request(x_user="7", x_api_key=SECRET)) == ("user", "7")
    assert all_of(lambda received: 0, lambda received: "eu")(received) == (0, "eu")


def test_all_keys_together_or_none() -> None:
    key_of = all_of(header("X-Tenant"), header("X-User-Id"))
    assert key_of(request(x_tenant="t", x_user_id="7")) == ("header:x-tenant", "t", "header:x-user-id", "7")
    assert key_of(request(x_tenant="t")) is None
    assert key_of(request()) is None
    mixed = all_of(lambda received: "plain", lambda received: 7, header("X-Tenant"))
    assert mixed(request(x_tenant="t")) == ("plain", 7, "header:x-tenant", "t")


async def _account(received: Request) -> str | None:
    await asyncio.sleep(0)
    return {"k1": "ann"}.get(received.headers.get("x-api-key", ""))


async def _nobody(received: Request) -> str | None:
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


@pytest.mark.parametrize("combine", [first_of, all_of])
def test_combining_no_functions_raises_an_error(combine: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError, match="needs at least one function"):
        combine()


@pytest.mark.parametrize("key_of", [header, api_key, cookie, query])
@pytest.mark.parametrize("name", ["", "  ", None, 7])
def test_an_invalid_name_raises_an_error(key_of: Callable[[Any], Any], name: Any) -> None:
    with pytest.raises(ConfigError, match="has a name"):
        key_of(name)

"""Claims of tokens: what was verified is believed, and nothing else."""

from __future__ import annotations

import asyncio
import base64
import importlib
import inspect
import json
import logging
import sys
import threading
from collections.abc import Mapping
from typing import Any

import httpx
import jwt
import pytest

from headgate import ConfigError, MissingExtraError
from headgate.http.asgi import RateLimitMiddleware
from headgate.integrations import jwt as tokens
from headgate.integrations.jwt import claim
from headgate.policy.request import REPEATED, Request
from headgate.testing import ManualClock

SECRET = "a secret of thirty-two bytes, or more"
LATE = 4_102_444_800
"""The year 2100, in seconds; what PyJWT takes the time of is the host's clock."""


def token(claims: Mapping[str, Any], *, key: Any = SECRET, algorithm: str = "HS256", **header: Any) -> str:
    return jwt.encode(dict(claims), key, algorithm=algorithm, headers=header or None)


def asking(sent: str, name: str = "Authorization") -> Request:
    return Request(headers={name: sent})


def bearing(claims: Mapping[str, Any], **how: Any) -> Request:
    return asking(f"Bearer {token(claims, **how)}")


def by(name: str = "sub", **options: Any) -> Any:
    return claim(name, **{"key": SECRET, "algorithms": ["HS256"], **options})


def unsigned(claims: Mapping[str, Any], **header: Any) -> str:
    parts = [json.dumps(part).encode() for part in ({"typ": "JWT", **header}, claims)]
    return ".".join([*(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts), ""])


def test_a_claim_of_a_verified_token_is_a_key_that_tells_where_it_comes_from() -> None:
    assert by()(bearing({"sub": "ann"})) == ("claim:sub", "ann")
    assert by("tenant")(bearing({"sub": "ann", "tenant": 7, "exp": LATE})) == ("claim:tenant", "7")


@pytest.mark.parametrize("sent", ["Bearer {}", "bearer  {} ", "BEARER {}", "Bearer\t{}", "{}"])
def test_a_token_stands_after_bearer_or_alone(sent: str) -> None:
    assert by()(asking(sent.format(token({"sub": "ann"})))) == ("claim:sub", "ann")


def test_a_token_may_be_in_another_header() -> None:
    of = by(header="X-Access-Token")
    assert of(asking(token({"sub": "ann"}), "x-access-token")) == ("claim:sub", "ann")
    assert of(bearing({"sub": "ann"})) is None


@pytest.mark.parametrize("sent", ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer a.b.c", "Bearer a.b", "Digest x y z"])
def test_what_is_no_token_is_a_missing_identity(sent: str) -> None:
    assert by()(asking(sent)) is None


def test_of_two_tokens_that_differ_none_is_believed_and_all_who_send_two_are_one_key() -> None:
    ann, bob = (f"Bearer {token({'sub': name})}" for name in ("ann", "bob"))

    def sent(*values: str) -> Request:
        return Request(headers=[("Authorization", value) for value in values])

    assert by()(sent(ann, ann)) == by()(sent(ann)) == ("claim:sub", "ann")
    told = by()(sent(ann, bob))
    assert told == by()(sent(bob, ann)) == by()(sent("x", "y")) and told[1] is REPEATED
    assert asyncio.run(by(in_thread=True)(sent(ann, bob)))[1] is REPEATED


@pytest.mark.parametrize(
    "sent",
    [
        token({"sub": "ann"}, key="another secret of thirty-two bytes or so"),
        token({"sub": "ann", "exp": 1_000_000_000}),
        token({"sub": "ann", "nbf": LATE}),
        token({"sub": "ann", "iat": LATE}),
        token({"sub": "ann", "aud": "another-api"}),
        token({"sub": "ann"}, key=SECRET * 2, algorithm="HS384"),
        token({"sub": "ann"})[:-4] + "AAAA",
        unsigned({"sub": "ann"}, alg="none"),
        unsigned({"sub": "ann"}, alg="None"),
        unsigned({"sub": "ann"}),
        token({"sub": "ann"}) + "x" * 20_000,
    ],
    ids=["another secret", "expired", "not yet", "from the future", "for others", "another algorithm", "forged",
         "unsigned", "unsigned, spelt otherwise", "no algorithm", "too long"],
)  # fmt: skip
def test_a_token_that_cannot_be_believed_is_a_missing_identity(sent: str) -> None:
    assert by()(asking(f"Bearer {sent}")) is None


def test_a_token_is_believed_only_for_this_audience_and_from_this_issuer() -> None:
    of = by(audience="my-api", issuer=["https://one.example", "https://two.example"])
    mine = {"sub": "ann", "aud": ["my-api", "x"], "iss": "https://two.example"}
    assert of(bearing(mine)) == ("claim:sub", "ann")
    assert of(bearing(mine | {"aud": "x"})) is None
    assert of(bearing(mine | {"iss": "https://three.example"})) is None
    assert of(bearing({"sub": "ann"})) is None


def test_leeway_is_for_clocks_that_differ() -> None:
    expired = {"sub": "ann", "exp": 1_000_000_000}
    assert by(leeway=4e9)(bearing(expired)) == ("claim:sub", "ann")


@pytest.mark.parametrize("value", [None, "", True, 1.5, ["a"], {"a": "b"}])
def test_a_claim_that_is_no_name_is_a_missing_identity(value: Any) -> None:
    assert by("tier")(bearing({"tier": value})) is None


HUGE = "1" + "0" * 400
ODD_VALUES = [
    HUGE, f"-{HUGE}", "1e400", "-1e400", "NaN", "Infinity", "1.5e308", "true", "null", "[]", "{}", '"x"', f'"{HUGE}"',
    "1" * 5000, "9" * 4300, '"\\ud800"', "[[[1]]]", "-0", "0.5", '"\\u0663"', "[" * 5000 + "]" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("leeway", [0, 0.5])
@pytest.mark.parametrize("name", ["sub", "tier", "exp", "nbf", "iat", "aud", "iss", "jti"])
def test_whatever_a_signed_claim_is_the_answer_is_a_key_or_none(name: str, leeway: float) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def statuses() -> set[int]:
        limits = {"default": "1000/minute", "pro": "1000/minute"}
        options: dict[str, Any] = {"key": by(leeway=leeway), "tier": by("tier", leeway=leeway)}
        before = RateLimitMiddleware(app, limits=limits, **options)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(before), base_url="http://shop") as client:
            found = set()
            for value in ODD_VALUES:
                claims = ['"sub": "ann"'] * (name != "sub") + [f'"{name}": {value}']
                signed = jwt.PyJWS().encode(f"{{{', '.join(claims)}}}".encode(), SECRET, "HS256")
                for _ in range(2):  # what was verified is remembered
                    found.add((await client.get("/", headers={"Authorization": f"Bearer {signed}"})).status_code)
            return found

    assert asyncio.run(statuses()) == {200}


@pytest.mark.parametrize("leeway", [0, 0.5])
def test_a_token_that_expires_after_all_clocks_is_believed(leeway: float) -> None:
    for expiry in (10**400, 2**63, LATE + 0.5, str(LATE)):
        assert by(leeway=leeway)(bearing({"sub": "ann", "exp": expiry})) == ("claim:sub", "ann")
    assert by("tenant", leeway=leeway)(bearing({"tenant": 10**400}))[1].startswith("digest-")


def test_long_and_odd_values_are_keys_of_bounded_length() -> None:
    long, longer = (by("tier")(bearing({"tier": "x" * length})) for length in (300, 301))
    assert long != longer
    for found in (long, longer, by("tier")(bearing({"tier": "\ud800"}))):
        assert found[1].startswith("digest-") and len(found[1]) == 39
    assert by("tier")(bearing({"tier": "é" * 256})) == ("claim:tier", "é" * 256)


def test_what_was_verified_is_remembered_until_the_token_expires_and_not_for_long() -> None:
    clock, asked = ManualClock(), []

    def key_of(header: Mapping[str, Any]) -> str:
        asked.append(header["alg"])
        return SECRET

    of = by(key=key_of, clock=clock)
    seconds = clock.now_us() // 1_000_000
    soon, late = bearing({"sub": "ann", "exp": seconds + 100}), bearing({"sub": "bob", "exp": seconds + 10_000})
    for request in (soon, late, soon, late):
        assert of(request) is not None
    assert len(asked) == 2
    clock.advance(99_999_999)
    assert (of(soon), of(late), len(asked)) == (("claim:sub", "ann"), ("claim:sub", "bob"), 2)
    clock.advance(1)
    of(soon)
    assert len(asked) == 3, "it is verified again, by whoever knows the time"
    clock.advance(199_999_999)
    of(late)
    assert len(asked) == 3
    clock.advance(1)
    of(late)
    assert len(asked) == 4, "a key that was withdrawn is not believed for longer than five minutes"


def test_what_is_remembered_is_bounded_and_forgeries_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_MOST_CACHED", 3)
    of = by()
    verified = inspect.getclosurevars(of).nonlocals["verifier"]
    for number in range(10):
        of(bearing({"sub": f"u{number}"}))
        assert len(verified._cache) <= 3
        assert of(bearing({"sub": f"u{number}"}, key="x" * 32)) is None
    assert len(verified._cache) == 1


def test_a_key_is_chosen_by_the_header_of_the_token() -> None:
    keys = {"old": SECRET, "new": SECRET[::-1]}
    of = by(key=lambda header: keys.get(header.get("kid")))
    assert of(bearing({"sub": "ann"}, key=SECRET[::-1], kid="new")) == ("claim:sub", "ann")
    assert of(bearing({"sub": "ann"}, key=SECRET[::-1], kid="old")) is None
    assert of(bearing({"sub": "ann"}, kid="none of ours")) is None


def test_no_token_and_no_secret_stands_in_a_log_or_an_error(caplog: pytest.LogCaptureFixture) -> None:
    def failing(header: Mapping[str, Any]) -> str:
        raise RuntimeError(f"no key for {header}: {sent}")

    sent = token({"sub": "ann"}, kid="kid-of-the-client")
    with caplog.at_level(logging.DEBUG, "headgate"):
        assert by(key=failing)(asking(sent)) is None
        assert by(key=SECRET[::-1])(asking(sent)) is None
    assert "RuntimeError" in caplog.text and "InvalidSignatureError" in caplog.text
    for secret in (sent, *sent.split("."), "kid-of-the-client", SECRET):
        assert secret not in caplog.text
    with pytest.raises(ConfigError) as told:
        by(key="-----BEGIN PUBLIC KEY-----\nMFkw\n-----END PUBLIC KEY-----")
    assert "MFkw" not in str(told.value) and told.value.__cause__ is None


class Finder:
    """Finds keys as jwt.PyJWKClient does, which asks a server for them."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def get_signing_key_from_jwt(self, token: str) -> jwt.PyJWK:
        self.threads.append(threading.get_ident())
        secret = base64.urlsafe_b64encode(SECRET.encode()).decode()
        return jwt.PyJWK({"kty": "oct", "k": secret, "alg": "HS256"})


def test_keys_that_are_fetched_never_block_the_event_loop() -> None:
    finder = Finder()
    of = by(key=finder)
    assert inspect.iscoroutinefunction(of)
    assert asyncio.run(of(bearing({"sub": "ann"}))) == ("claim:sub", "ann")
    assert asyncio.run(of(bearing({"sub": "ann"}))) == ("claim:sub", "ann")
    assert asyncio.run(of(asking(""))) is None
    assert len(finder.threads) == 1 and finder.threads[0] != threading.get_ident()
    sync = by(key=finder, in_thread=False)
    assert sync(bearing({"sub": "bob"})) == ("claim:sub", "bob")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithms": []}, "algorithms are a list"),
        ({"algorithms": "HS256"}, "algorithms are a list"),
        ({"algorithms": ["none"]}, "algorithms are signing algorithms"),
        ({"algorithms": ["HS256", "NONE"]}, "algorithms are signing algorithms"),
        ({"algorithms": ["HS1"]}, "no algorithm is named 'HS1'"),
        ({"key": ""}, "key is text"),
        ({"key": 7}, "key is text"),
        ({"key": "-----BEGIN PUBLIC KEY-----\nMFkw\n-----END PUBLIC KEY-----"}, "the key cannot be used for HS256"),
        ({"header": " "}, "has a name"),
        ({"leeway": -1}, "leeway is a number of seconds"),
    ],
)
def test_what_cannot_be_used_is_told_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        by(**options)
    with pytest.raises(ConfigError, match="has a name"):
        by("")


def test_public_keys_verify_and_are_never_taken_for_secrets() -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    private = rsa.generate_private_key(65537, 2048)
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    of = by(key=public, algorithms=["RS256"])
    assert of(bearing({"sub": "ann"}, key=private, algorithm="RS256")) == ("claim:sub", "ann")
    by_header = by(key=lambda header: public, algorithms=["RS256"])
    assert by_header(bearing({"sub": "ann"}, key=private, algorithm="RS256")) == ("claim:sub", "ann")
    other = rsa.generate_private_key(65537, 2048)
    assert of(bearing({"sub": "ann"}, key=other, algorithm="RS256")) is None
    # The old attack: the public key, which anybody has, as the secret of HS256.
    head, body = unsigned({"sub": "ann"}, alg="HS256").split(".")[:2]
    hmac = jwt.get_algorithm_by_name("HS256")
    signature = base64.urlsafe_b64encode(hmac.sign(f"{head}.{body}".encode(), public)).rstrip(b"=").decode()
    for function in (of, by_header):
        assert function(asking(f"Bearer {head}.{body}.{signature}")) is None
    with pytest.raises(ConfigError, match="not both"):
        by(key=public, algorithms=["RS256", "HS256"])
    with pytest.raises(ConfigError, match="the key cannot be used for RS256"):
        by(key="no key", algorithms=["RS256"])


def test_claims_are_keys_and_tiers_before_an_application() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    limited = RateLimitMiddleware(
        app,
        limits={"default": "1/minute", "pro": "2/minute", "staff": None},
        tier=by("tier"),
        key=by("sub"),
        clock=ManualClock(),
    )

    def statuses(sent: str, times: int) -> list[int]:
        async def ask() -> list[int]:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(limited), base_url="http://a") as client:
                return [(await client.get("/", headers={"Authorization": sent})).status_code for _ in range(times)]

        return asyncio.run(ask())

    assert statuses(f"Bearer {token({'sub': 'ann', 'tier': 'pro'})}", 3) == [200, 200, 429]
    assert statuses(f"Bearer {token({'sub': 'bob'})}", 2) == [200, 429]
    assert statuses(f"Bearer {token({'sub': 'eve', 'tier': 'staff'})}", 5) == [200] * 5
    forged = token({"sub": "eve", "tier": "staff"}, key="x" * 32)
    assert statuses(f"Bearer {forged}", 2) == [200, 429], "a forged tier is no tier, and no free pass"


def test_a_missing_library_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)
    monkeypatch.delitem(sys.modules, "headgate.integrations.jwt")
    with pytest.raises(MissingExtraError, match=r"pip install 'headgate\[jwt\]'"):
        importlib.import_module("headgate.integrations.jwt")


def test_an_algorithm_without_its_library_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise NotImplementedError(name)

    monkeypatch.setattr(jwt, "get_algorithm_by_name", missing)
    with pytest.raises(MissingExtraError, match=r"verifying RS256 .* pip install 'headgate\[jwt\]'"):
        by(algorithms=["RS256"], key="x")

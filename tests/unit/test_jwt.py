"""Claims of tokens: only verified tokens are accepted."""

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
"""The year 2100, in seconds; PyJWT uses the host's clock."""


def token(claims: Mapping[str, Any], *, key: Any = SECRET, algorithm: str = "HS256", **header: Any) -> str:
    return jwt.encode(dict(claims), key, algorithm=algorithm, headers=header or None)


def request_with(sent: str, name: str = "Authorization") -> Request:
    return Request(headers={name: sent})


def bearing(claims: Mapping[str, Any], **options: Any) -> Request:
    return request_with(f"Bearer {token(claims, **options)}")


def claim_of(name: str = "sub", **options: Any) -> Any:
    return claim(name, **{"key": SECRET, "algorithms": ["HS256"], **options})


def unsigned(claims: Mapping[str, Any], **header: Any) -> str:
    parts = [json.dumps(part).encode() for part in ({"typ": "JWT", **header}, claims)]
    return ".".join([*(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts), ""])


def test_a_claim_of_a_verified_token_is_a_key_that_names_its_source() -> None:
    assert claim_of()(bearing({"sub": "ann"})) == ("claim:sub", "ann")
    assert claim_of("tenant")(bearing({"sub": "ann", "tenant": 7, "exp": LATE})) == ("claim:tenant", "7")


@pytest.mark.parametrize("sent", ["Bearer {}", "bearer  {} ", "BEARER {}", "Bearer\t{}", "{}"])
def test_a_token_is_sent_after_bearer_or_alone(sent: str) -> None:
    assert claim_of()(request_with(sent.format(token({"sub": "ann"})))) == ("claim:sub", "ann")


def test_a_token_may_be_in_another_header() -> None:
    key_of = claim_of(header="X-Access-Token")
    assert key_of(request_with(token({"sub": "ann"}), "x-access-token")) == ("claim:sub", "ann")
    assert key_of(bearing({"sub": "ann"})) is None


@pytest.mark.parametrize("sent", ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer a.b.c", "Bearer a.b", "Digest x y z"])
def test_a_header_without_a_token_is_a_missing_identity(sent: str) -> None:
    assert claim_of()(request_with(sent)) is None


def test_of_two_different_tokens_none_is_accepted_and_all_such_requests_have_one_key() -> None:
    ann, bob = (f"Bearer {token({'sub': name})}" for name in ("ann", "bob"))

    def sent(*values: str) -> Request:
        return Request(headers=[("Authorization", value) for value in values])

    assert claim_of()(sent(ann, ann)) == claim_of()(sent(ann)) == ("claim:sub", "ann")
    several = claim_of()(sent(ann, bob))
    assert several == claim_of()(sent(bob, ann)) == claim_of()(sent("x", "y")) and several[1] is REPEATED
    assert asyncio.run(claim_of(in_thread=True)(sent(ann, bob)))[1] is REPEATED


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
def test_an_invalid_token_is_a_missing_identity(sent: str) -> None:
    assert claim_of()(request_with(f"Bearer {sent}")) is None


def test_a_token_is_valid_only_for_this_audience_and_from_this_issuer() -> None:
    key_of = claim_of(audience="my-api", issuer=["https://one.example", "https://two.example"])
    valid = {"sub": "ann", "aud": ["my-api", "x"], "iss": "https://two.example"}
    assert key_of(bearing(valid)) == ("claim:sub", "ann")
    assert key_of(bearing(valid | {"aud": "x"})) is None
    assert key_of(bearing(valid | {"iss": "https://three.example"})) is None
    assert key_of(bearing({"sub": "ann"})) is None


def test_leeway_is_for_clocks_that_differ() -> None:
    expired = {"sub": "ann", "exp": 1_000_000_000}
    assert claim_of(leeway=4e9)(bearing(expired)) == ("claim:sub", "ann")


@pytest.mark.parametrize("value", [None, "", True, 1.5, ["a"], {"a": "b"}])
def test_a_claim_that_is_not_a_name_is_a_missing_identity(value: Any) -> None:
    assert claim_of("tier")(bearing({"tier": value})) is None


HUGE = "1" + "0" * 400
UNUSUAL_VALUES = [
    HUGE, f"-{HUGE}", "1e400", "-1e400", "NaN", "Infinity", "1.5e308", "true", "null", "[]", "{}", '"x"', f'"{HUGE}"',
    "1" * 5000, "9" * 4300, '"\\ud800"', "[[[1]]]", "-0", "0.5", '"\\u0663"', "[" * 5000 + "]" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("leeway", [0, 0.5])
@pytest.mark.parametrize("name", ["sub", "tier", "exp", "nbf", "iat", "aud", "iss", "jti"])
def test_any_signed_claim_gives_a_key_or_none(name: str, leeway: float) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def statuses() -> set[int]:
        limits = {"default": "1000/minute", "pro": "1000/minute"}
        options: dict[str, Any] = {"key": claim_of(leeway=leeway), "tier": claim_of("tier", leeway=leeway)}
        limited = RateLimitMiddleware(app, limits=limits, **options)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(limited), base_url="http://shop") as client:
            found = set()
            for value in UNUSUAL_VALUES:
                claims = ['"sub": "ann"'] * (name != "sub") + [f'"{name}": {value}']
                signed = jwt.PyJWS().encode(f"{{{', '.join(claims)}}}".encode(), SECRET, "HS256")
                for _ in range(2):  # verified claims are cached
                    found.add((await client.get("/", headers={"Authorization": f"Bearer {signed}"})).status_code)
            return found

    assert asyncio.run(statuses()) == {200}


@pytest.mark.parametrize("leeway", [0, 0.5])
def test_a_token_that_expires_beyond_all_clocks_is_valid(leeway: float) -> None:
    for expiry in (10**400, 2**63, LATE + 0.5, str(LATE)):
        assert claim_of(leeway=leeway)(bearing({"sub": "ann", "exp": expiry})) == ("claim:sub", "ann")
    assert claim_of("tenant", leeway=leeway)(bearing({"tenant": 10**400}))[1].startswith("digest-")


def test_long_and_unusual_values_are_keys_of_bounded_length() -> None:
    long, longer = (claim_of("tier")(bearing({"tier": "x" * length})) for length in (300, 301))
    assert long != longer
    for found in (long, longer, claim_of("tier")(bearing({"tier": "\ud800"}))):
        assert found[1].startswith("digest-") and len(found[1]) == 39
    assert claim_of("tier")(bearing({"tier": "é" * 256})) == ("claim:tier", "é" * 256)


def test_verified_claims_are_cached_until_the_token_expires_and_for_five_minutes_at_most() -> None:
    clock, key_lookups = ManualClock(), []

    def find_key(header: Mapping[str, Any]) -> str:
        key_lookups.append(header["alg"])
        return SECRET

    key_of = claim_of(key=find_key, clock=clock)
    seconds = clock.now_us() // 1_000_000
    expires_soon, expires_late = (
        bearing({"sub": "ann", "exp": seconds + 100}),
        bearing({"sub": "bob", "exp": seconds + 10_000}),
    )
    for request in (expires_soon, expires_late, expires_soon, expires_late):
        assert key_of(request) is not None
    assert len(key_lookups) == 2
    clock.advance(99_999_999)
    assert (key_of(expires_soon), key_of(expires_late), len(key_lookups)) == (
        ("claim:sub", "ann"),
        ("claim:sub", "bob"),
        2,
    )
    clock.advance(1)
    key_of(expires_soon)
    assert len(key_lookups) == 3, "it is verified again, as the cached claim has expired"
    clock.advance(199_999_999)
    key_of(expires_late)
    assert len(key_lookups) == 3
    clock.advance(1)
    key_of(expires_late)
    assert len(key_lookups) == 4, "a key that was withdrawn is not accepted for longer than five minutes"


def test_the_cache_is_bounded_and_forgeries_are_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_MOST_CACHED", 3)
    key_of = claim_of()
    verifier = inspect.getclosurevars(key_of).nonlocals["verifier"]
    for number in range(10):
        key_of(bearing({"sub": f"u{number}"}))
        assert len(verifier._cache) <= 3
        assert key_of(bearing({"sub": f"u{number}"}, key="x" * 32)) is None
    assert len(verifier._cache) == 1


def test_a_key_is_chosen_by_the_header_of_the_token() -> None:
    keys = {"old": SECRET, "new": SECRET[::-1]}
    key_of = claim_of(key=lambda header: keys.get(header.get("kid")))
    assert key_of(bearing({"sub": "ann"}, key=SECRET[::-1], kid="new")) == ("claim:sub", "ann")
    assert key_of(bearing({"sub": "ann"}, key=SECRET[::-1], kid="old")) is None
    assert key_of(bearing({"sub": "ann"}, kid="none of ours")) is None


def test_no_token_and_no_secret_is_in_a_log_or_an_error(caplog: pytest.LogCaptureFixture) -> None:
    def failing(header: Mapping[str, Any]) -> str:
        raise RuntimeError(f"no key for {header}: {sent}")

    sent = token({"sub": "ann"}, kid="kid-of-the-client")
    with caplog.at_level(logging.DEBUG, "headgate"):
        assert claim_of(key=failing)(request_with(sent)) is None
        assert claim_of(key=SECRET[::-1])(request_with(sent)) is None
    assert "RuntimeError" in caplog.text and "InvalidSignatureError" in caplog.text
    for secret in (sent, *sent.split("."), "kid-of-the-client", SECRET):
        assert secret not in caplog.text
    with pytest.raises(ConfigError) as raised:
        claim_of(key="-----BEGIN PUBLIC KEY-----\nMFkw\n-----END PUBLIC KEY-----")
    assert "MFkw" not in str(raised.value) and raised.value.__cause__ is None


class Finder:
    """Finds keys as jwt.PyJWKClient does, which fetches them from a server."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def get_signing_key_from_jwt(self, token: str) -> jwt.PyJWK:
        self.threads.append(threading.get_ident())
        secret = base64.urlsafe_b64encode(SECRET.encode()).decode()
        return jwt.PyJWK({"kty": "oct", "k": secret, "alg": "HS256"})


def test_keys_that_are_fetched_never_block_the_event_loop() -> None:
    finder = Finder()
    key_of = claim_of(key=finder)
    assert inspect.iscoroutinefunction(key_of)
    assert asyncio.run(key_of(bearing({"sub": "ann"}))) == ("claim:sub", "ann")
    assert asyncio.run(key_of(bearing({"sub": "ann"}))) == ("claim:sub", "ann")
    assert asyncio.run(key_of(request_with(""))) is None
    assert len(finder.threads) == 1 and finder.threads[0] != threading.get_ident()
    sync = claim_of(key=finder, in_thread=False)
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
def test_invalid_options_raise_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        claim_of(**options)
    with pytest.raises(ConfigError, match="has a name"):
        claim_of("")


def test_public_keys_verify_and_are_never_used_as_secrets() -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    private = rsa.generate_private_key(65537, 2048)
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    key_of = claim_of(key=public, algorithms=["RS256"])
    assert key_of(bearing({"sub": "ann"}, key=private, algorithm="RS256")) == ("claim:sub", "ann")
    by_header = claim_of(key=lambda header: public, algorithms=["RS256"])
    assert by_header(bearing({"sub": "ann"}, key=private, algorithm="RS256")) == ("claim:sub", "ann")
    other = rsa.generate_private_key(65537, 2048)
    assert key_of(bearing({"sub": "ann"}, key=other, algorithm="RS256")) is None
    # The known attack: the public key, which anyone can have, as the secret of HS256.
    head, body = unsigned({"sub": "ann"}, alg="HS256").split(".")[:2]
    hmac = jwt.get_algorithm_by_name("HS256")
    signature = base64.urlsafe_b64encode(hmac.sign(f"{head}.{body}".encode(), public)).rstrip(b"=").decode()
    for function in (key_of, by_header):
        assert function(request_with(f"Bearer {head}.{body}.{signature}")) is None
    with pytest.raises(ConfigError, match="not both"):
        claim_of(key=public, algorithms=["RS256", "HS256"])
    with pytest.raises(ConfigError, match="the key cannot be used for RS256"):
        claim_of(key="no key", algorithms=["RS256"])


def test_claims_are_keys_and_tiers_before_an_application() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    limited = RateLimitMiddleware(
        app,
        limits={"default": "1/minute", "pro": "2/minute", "staff": None},
        tier=claim_of("tier"),
        key=claim_of("sub"),
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
        claim_of(algorithms=["RS256"], key="x")

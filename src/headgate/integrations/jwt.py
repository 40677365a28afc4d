"""Identify clients by a signed token: claims of a JWT that was verified, and never one of a JWT that was not.

    key=claim("sub", key=PUBLIC_KEY, algorithms=["RS256"], audience="my-api")
    tier=claim("tier", key=PUBLIC_KEY, algorithms=["RS256"], audience="my-api")

Source: RFC 7519; RFC 8725 for what an algorithm and a key may be. Tokens appear in no log, error or key.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Protocol

from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND, Clock
from headgate.errors import ConfigError, MissingExtraError
from headgate.http.server.functions import portable_here, request_of
from headgate.policy.request import REPEATED, header_name

try:
    import jwt
    from jwt.algorithms import requires_cryptography
except ModuleNotFoundError as error:
    raise MissingExtraError("verifying tokens", extra="jwt") from error

log = logging.getLogger("headgate")
_LONGEST_TOKEN = 16384
_LONGEST_VALUE = 256
_MOST_REMEMBERED = 16384
_REMEMBERED_US = 300 * US_PER_SECOND

_NEVER_S = 2**52
"""A token may say that it expires later than any number of a clock."""

Found = tuple[str, str] | None
"""Where it comes from, and its value: `("claim:sub", "ann")`; None where a request has no token to believe,
`REPEATED` as the value where it has several."""

KeyOfHeader = Callable[[Mapping[str, Any]], Any]
"""Gives the key for a token by its header, of which nothing is verified yet: by its `kid`, say. None where none is."""


class SigningKeys(Protocol):
    """What finds the key of a token, as `jwt.PyJWKClient` does."""

    def get_signing_key_from_jwt(self, token: str, /) -> Any: ...


def claim(
    name: str,
    *,
    key: str | bytes | KeyOfHeader | SigningKeys,
    algorithms: Sequence[str],
    audience: str | Sequence[str] | None = None,
    issuer: str | Sequence[str] | None = None,
    header: str = "Authorization",
    leeway: float = 0,
    in_thread: bool | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Callable[[Any], Any]:
    """A key or a tier: the claim `name` of the token in `header`, with or without `Bearer` before it.

    `key` is a secret or a public key as text, a function that gives one for a token's header, or an object that
    finds one as `jwt.PyJWKClient` does. Only `algorithms` are believed; "none" is not one. A token with an audience
    needs `audience`. Expiry may be `leeway` seconds ago. A verified token is remembered until it expires,
    for five minutes at the most, by `clock`.

    With `in_thread` it is a coroutine function, which verifies in a thread and so never blocks the event loop:
    the default for objects that find keys as PyJWKClient does, which may fetch them. Raises ConfigError for invalid
    options, MissingExtraError where an algorithm needs a library that is not installed.
    """
    verified = _Verified(name, key, algorithms, audience, issuer, leeway, clock)
    lower = header_name(_checked(header))

    def of(request: Any) -> Found:
        sent = request_of(request).header(lower)
        if sent is REPEATED:
            return verified.repeated
        token = _token(sent)
        return verified.claim(token) if token else None

    async def of_async(request: Any) -> Found:
        sent = request_of(request).header(lower)
        if sent is REPEATED:
            return verified.repeated
        token = _token(sent)
        if not token:
            return None
        known = verified.remembered(token)
        return (await asyncio.to_thread(verified.claim, token)) if known is None else known[0]

    fetches = hasattr(key, "get_signing_key_from_jwt")
    return portable_here(of_async if (fetches if in_thread is None else in_thread) else of)


class _Verified:
    """The claim of tokens; what was verified is remembered by the token's digest."""

    def __init__(
        self,
        name: str,
        key: Any,
        algorithms: Sequence[str],
        audience: str | Sequence[str] | None,
        issuer: str | Sequence[str] | None,
        leeway: float,
        clock: Clock,
    ) -> None:
        self._name = _checked(name)
        self._place = f"claim:{name}"
        self.repeated: Found = (self._place, REPEATED)
        """What is found where several tokens were sent, and the application may believe any of them."""
        self._algorithms = _algorithms(algorithms)
        self._key_of = _key_of(key, self._algorithms)
        self._audience = audience
        self._issuer = issuer
        self._leeway = _seconds(leeway)
        self._clock = clock
        self._found: dict[bytes, tuple[Found, float]] = {}

    def claim(self, token: str) -> Found:
        """The claim of a token, None where it is not to be believed."""
        known = self.remembered(token)
        if known is not None:
            return known[0]
        now_us = self._clock.now_us()
        try:
            key = self._key_of(token)
            if key is None:
                return None
            claims = jwt.decode(
                token,
                key,
                algorithms=self._algorithms,
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._leeway,
            )
        except jwt.PyJWTError as error:
            log.debug("a token is not believed: %s", type(error).__name__)
            return None
        except Exception as error:  # a missing identity, not an outage; its text may have what the client sent
            log.warning("a token could not be verified: %s", type(error).__name__)
            return None
        found = self._from(claims)
        if len(self._found) >= _MOST_REMEMBERED:
            self._found.clear()
        self._found[_digest(token)] = (found, min(now_us + _REMEMBERED_US, self._until_us(claims)))
        return found

    def remembered(self, token: str) -> tuple[Found, float] | None:
        """What was found in a token, and until when that holds; None where nothing is known any more."""
        known = self._found.get(_digest(token))
        return known if known is not None and self._clock.now_us() < known[1] else None

    def _from(self, claims: Mapping[str, Any]) -> Found:
        value = claims.get(self._name)
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or not value:
            return None
        if len(value) > _LONGEST_VALUE or not _is_text(value):
            value = f"digest-{_digest(value).hex()}"
        return (self._place, value)

    def _until_us(self, claims: Mapping[str, Any]) -> float:
        expiry = claims.get("exp")
        return math.inf if expiry is None else (min(int(expiry), _NEVER_S) + self._leeway) * US_PER_SECOND


def _token(sent: str) -> str:
    """The token that a header has: after `Bearer`, or alone; "" for another scheme, or too long a one."""
    first, rest = [*sent.split(None, 1), "", ""][:2]  # at any white space, as applications do
    token = rest.strip() if first.lower() == "bearer" else "" if rest else first
    return token if len(token) <= _LONGEST_TOKEN else ""


def _algorithms(names: Sequence[str]) -> list[str]:
    """Names that can be verified here, all of one kind: no public key is taken for a secret (RFC 8725, 3.1)."""
    if isinstance(names, str) or not names:
        raise ConfigError('algorithms are a list of those that are believed, such as ["RS256"]')
    for name in names:
        if not isinstance(name, str) or name.lower() == "none":
            raise ConfigError(f"algorithms are those that sign: {name!r:.40} is not one")
        try:
            jwt.get_algorithm_by_name(name)
        except NotImplementedError as error:
            if name in requires_cryptography:
                raise MissingExtraError(f"verifying {name}", extra="jwt") from error
            raise ConfigError(f"no algorithm is named {name!r:.40}") from error
    if len({name.startswith("HS") for name in names}) > 1:
        raise ConfigError("algorithms are those of secrets (HS256 ...) or those of public keys, not both")
    return list(names)


def _key_of(key: Any, algorithms: Sequence[str]) -> Callable[[str], Any]:
    """What gives the key of a token; a key as text is read now, once."""
    find = getattr(key, "get_signing_key_from_jwt", None)
    if find is not None:
        by_token: Callable[[str], Any] = find
        return by_token
    if callable(key):
        return lambda token: key(jwt.get_unverified_header(token))
    if not isinstance(key, str | bytes) or not key:
        raise ConfigError("key is text, a function of a token's header, or what has get_signing_key_from_jwt")
    try:
        read, *_ = [jwt.get_algorithm_by_name(name).prepare_key(key) for name in algorithms]
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        # Its text may have the key.
        raise ConfigError(f"the key is none for {', '.join(algorithms)}: {type(error).__name__}") from None
    return lambda token: read


def _seconds(leeway: float) -> float:
    if isinstance(leeway, bool) or not isinstance(leeway, int | float) or not 0 <= leeway < math.inf:
        raise ConfigError(f"leeway is a number of seconds, 0 or more, not {leeway!r:.40}")
    return leeway


def _checked(name: str) -> str:
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"a claim or a header has a name, not {name!r:.40}")
    return name


def _digest(text: str) -> bytes:
    """128 bits, the same in every process; the text cannot be read back from it."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, person=b"headgate").digest()


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True

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
_MOST_CACHED = 16384
_LONGEST_CACHED_US = 300 * US_PER_SECOND

_LATEST_EXPIRY_S = 2**52
"""The latest expiry in seconds: a token may name one that is later than any clock can show."""

FoundClaim = tuple[str, str] | None
"""The source and the value of a claim: `("claim:sub", "ann")`; None where a request has no valid token, `REPEATED` as
the value where it has several."""

KeyOfHeader = Callable[[Mapping[str, Any]], Any]
"""Returns the key for a token by its header, which is not verified yet: by its `kid`, say. None where there is none."""


class SigningKeys(Protocol):
    """Finds the key of a token, as `jwt.PyJWKClient` does."""

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

    `key` is a secret or a public key as text, a function that returns one for a token's header, or an object that
    finds one as `jwt.PyJWKClient` does. Only `algorithms` are accepted; "none" is not one. A token with an audience
    needs `audience`. Expiry may be `leeway` seconds ago. A verified token is cached until it expires,
    for five minutes at the most, by `clock`.

    With `in_thread` it is a coroutine function, which verifies in a thread and so never blocks the event loop:
    the default for objects that find keys as PyJWKClient does, which may fetch them. Raises ConfigError for invalid
    options, MissingExtraError where an algorithm needs a library that is not installed.
    """
    verifier = _TokenVerifier(name, key, algorithms, audience, issuer, leeway, clock)
    lower = header_name(_checked(header))

    def claim_of(request: Any) -> FoundClaim:
        sent = request_of(request).header(lower)
        if sent is REPEATED:
            return verifier.repeated
        token = _token_in(sent)
        return verifier.claim(token) if token else None

    async def claim_of_async(request: Any) -> FoundClaim:
        sent = request_of(request).header(lower)
        if sent is REPEATED:
            return verifier.repeated
        token = _token_in(sent)
        if not token:
            return None
        entry = verifier.cached(token)
        return (await asyncio.to_thread(verifier.claim, token)) if entry is None else entry[0]

    fetches = hasattr(key, "get_signing_key_from_jwt")
    return portable_here(claim_of_async if (fetches if in_thread is None else in_thread) else claim_of)


class _TokenVerifier:
    """Verifies the claim of tokens; results are cached by the token's digest."""

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
        self.repeated: FoundClaim = (self._place, REPEATED)
        """The result where several tokens were sent, and the application may use any of them."""
        self._algorithms = _algorithms(algorithms)
        self._key_of = _key_of(key, self._algorithms)
        self._audience = audience
        self._issuer = issuer
        self._leeway = _seconds(leeway)
        self._clock = clock
        self._cache: dict[bytes, tuple[FoundClaim, float]] = {}

    def claim(self, token: str) -> FoundClaim:
        """Return the claim of a token, None where the token is not valid."""
        entry = self.cached(token)
        if entry is not None:
            return entry[0]
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
            log.debug("a token is rejected: %s", type(error).__name__)
            return None
        except Exception as error:  # a missing identity, not an outage; its text may contain the client's input
            log.warning("a token could not be verified: %s", type(error).__name__)
            return None
        found = self._claim_of(claims)
        if len(self._cache) >= _MOST_CACHED:
            self._cache.clear()
        self._cache[_digest(token)] = (found, min(now_us + _LONGEST_CACHED_US, self._until_us(claims)))
        return found

    def cached(self, token: str) -> tuple[FoundClaim, float] | None:
        """Return the cached claim of a token, and when that expires; None where there is none any more."""
        entry = self._cache.get(_digest(token))
        return entry if entry is not None and self._clock.now_us() < entry[1] else None

    def _claim_of(self, claims: Mapping[str, Any]) -> FoundClaim:
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
        return math.inf if expiry is None else (min(int(expiry), _LATEST_EXPIRY_S) + self._leeway) * US_PER_SECOND


def _token_in(sent: str) -> str:
    """Return the token in a header: after `Bearer`, or alone; "" for another scheme, or a token that is too long."""
    first, rest = [*sent.split(None, 1), "", ""][:2]  # at any white space, as applications do
    token = rest.strip() if first.lower() == "bearer" else "" if rest else first
    return token if len(token) <= _LONGEST_TOKEN else ""


def _algorithms(names: Sequence[str]) -> list[str]:
    """Return the algorithms, if all are available and of one kind: no public key acts as a secret (RFC 8725, 3.1)."""
    if isinstance(names, str) or not names:
        raise ConfigError('algorithms are a list of accepted names, such as ["RS256"]')
    for name in names:
        if not isinstance(name, str) or name.lower() == "none":
            raise ConfigError(f"algorithms are signing algorithms: {name!r:.40} is not one")
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
    """Return the function that gives the key of a token; a key as text is read now, once."""
    find = getattr(key, "get_signing_key_from_jwt", None)
    if find is not None:
        by_token: Callable[[str], Any] = find
        return by_token
    if callable(key):
        return lambda token: key(jwt.get_unverified_header(token))
    if not isinstance(key, str | bytes) or not key:
        raise ConfigError("key is text, a function of a token's header, or an object with get_signing_key_from_jwt")
    try:
        read, *_ = [jwt.get_algorithm_by_name(name).prepare_key(key) for name in algorithms]
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        # The error's text may contain the key.
        raise ConfigError(f"the key cannot be used for {', '.join(algorithms)}: {type(error).__name__}") from None
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
    """Return 128 bits, the same in every process, from which the text cannot be recovered."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, person=b"headgate").digest()


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True

"""The options of middlewares, routes and views: how requests are decided and answered."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar, cast

from headgate.clock import Clock
from headgate.costs import Cost
from headgate.decision import Decision, OnStoreError
from headgate.decorator import is_being_decorated
from headgate.errors import ArgumentError, ConfigError, without_credentials
from headgate.http.refusal import PROBLEM_JSON
from headgate.keys import Key, whole_number
from headgate.limiter import AnyLimits, check_no_texts
from headgate.limits import Limit
from headgate.policy.headers import Headers
from headgate.stores.protocol import Store

T = TypeVar("T")

Of = Callable[..., T] | Callable[..., Awaitable[T]]
"""A function of the framework's own request, or without parameters; in front of an asyncio application it may be a
coroutine function. A function that is `headgate.http.server.functions.portable` gets Headgate's request, and so does
every function where no framework is known: in `headgate.http.asgi` and `headgate.http.wsgi`."""


class Response(NamedTuple):
    """The application's response, as far as it matters to a limit."""

    status: int
    headers: Mapping[str, str]
    """By name in lower case; `counts` may look them up in any case."""

    body_bytes: int
    """How many bytes of a body were sent."""


def in_any_case(response: Response) -> Response:
    """Return a response whose headers can be looked up in any case."""
    headers = response.headers
    if isinstance(headers, Headers):
        return response
    return response._replace(headers=Headers({name.lower(): value for name, value in headers.items()}))


class Refusal(NamedTuple):
    """A response in place of the application's."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


_WITHOUT_CONTENT = frozenset((204, 304))
"""Statuses of responses that have no content, whatever their fields say (RFC 9110, 6.4.1)."""


def sendable(refusal: Refusal) -> Refusal:
    """Return a refusal without its content where its status excludes that: a client would take it for a response."""
    if refusal.status not in _WITHOUT_CONTENT:
        return refusal
    return Refusal(refusal.status, without_content(refusal), b"")


def length_of(refusal: Refusal) -> list[tuple[str, str]]:
    """Return the Content-Length field that a refusal lacks, if it lacks one; a 204 has none (RFC 9110, 8.6)."""
    if refusal.status in _WITHOUT_CONTENT or any(name.lower() == "content-length" for name, _ in refusal.headers):
        return []
    return [("Content-Length", str(len(refusal.body)))]


def without_content(refusal: Refusal) -> list[tuple[str, str]]:
    """Return the header fields of a refusal except those of its body."""
    return [field for field in refusal.headers if not field[0].lower().startswith("content-")]


def detail_of(refusal: Refusal) -> str | None:
    """Return the sentence of a refusal's problem body; None where the body is another one, whatever its type says."""
    if ("content-type", PROBLEM_JSON) not in ((name.lower(), value) for name, value in refusal.headers):
        return None
    try:
        problem = json.loads(refusal.body)
    except ValueError:  # a function changed the body and kept the headers
        return None
    detail = problem.get("detail") if isinstance(problem, dict) else None
    return detail if isinstance(detail, str) else None


class Answering(TypedDict, total=False):
    """How a request is answered; defaults are in brackets."""

    headers: str | Sequence[str]
    """Dialects of the rate limit fields, see `headgate.http.fields.dialects` ["draft-11"]; "none" for no fields."""

    refusal: Callable[[Any, Decision, Refusal], Refusal | None]
    """Returns the response to a refused request; its last argument is the usual one, which None leaves as it is."""

    on_decision: Callable[[Any, Decision], object]
    """Called with every decision, before the response."""

    on_store_error: OnStoreError
    """What happens to a request where the store does not answer: this process decides by limits of its own ("local"),
    the request passes ("open"), or is answered 503 ("closed"). A rule's own choice comes first, then this one, then the
    policy's, then `?on_error=` of the store's URL ["local"; "open" for limits on a store without a guard]."""

    clock: Clock
    """Replaces the store's clock."""

    lease: float
    """Seconds after which a request in flight is freed if its process died; while the process lives, it is held until
    its response has ended, however long that takes [60]. For limits such as `20 concurrent`."""

    cost: Cost | Of[Cost]
    """The cost of a request: a number, or one for each unit that the limits count, `{"requests": 1, "tokens": 900}`
    [1]."""

    exempt: Of[bool]
    """Whether a request is not limited [only CORS preflights, where `limits` is given]."""


class Counting(Answering, total=False):
    """Which key is counted, and what counts, for limits without a policy."""

    key: Of[Key | None]
    """The key that is counted [the client's address]; `headgate.http.keys` has the usual functions."""

    missing: Literal["address", "anonymous", "refuse"]
    """What happens to a request without a key: it is counted by address, or with all others that have none,
    or refused ["address"]."""

    repeated: Literal["count", "refuse"]
    """What happens to a request whose header, cookie or parameter was sent several times with different values,
    where it cannot be known which one the application reads: it counts with all others of this kind,
    or is refused ["count"]."""

    tier: Of[Key | None]
    """Which of the limits apply, where `limits` is a mapping; a tier that it does not name is "default"."""

    counts: Callable[[Any, Response], bool | Cost]
    """How much of a request counts once it is answered: False for nothing, True for all, or a cost [all]. Units that a
    mapping does not name count as they were charged.

    The request is charged before it is let in, so no race exceeds the limit; units that do not count are given back.
    Units beyond the charge are taken as far as any remain.
    """

    shadow: bool
    """Count and call `on_decision`, but refuse nothing [False]."""

    name: str
    """The limiter's name, shown in headers; with it, counts are kept when the numbers change [none]:
    middlewares of one name and store are one limiter, limits of routes of one name and `scope`."""

    wait: float
    """Seconds for which a request may wait in line before it is refused [0]."""

    trusted_proxies: Sequence[str]
    """Networks of proxies that are trusted to report a client's address [none]; "unix" for a Unix socket."""

    trusted_hops: int
    """Or the number of proxies in front of this server, each of which adds an address [0]."""

    address_header: str
    """The one header in which they report it ["X-Forwarded-For"]."""

    ipv6_prefix: int
    """How many bits of an IPv6 address distinguish clients, 32 to 128 [64]."""

    ipv6_wide: tuple[int, int]
    """(bits, times): a second limit, `times` the first, on the wider IPv6 network of so many bits as a whole [none]."""


class Options(Counting, total=False):
    """The options of a middleware."""

    limits: AnyLimits | Mapping[str, AnyLimits | None] | Of[AnyLimits | None]
    """Limits for every request, those of each tier, or a function that gives those of a request; None: not limited.
    They replace a policy."""

    store: str | Store
    """The store of the states, or its URL [that of the policy; "memory://"]."""

    ruleset: str
    """The policy's ruleset that applies [all rules]."""


class RouteOptions(Counting, total=False):
    """The options of the limit of a route."""

    scope: str | Callable[..., str]
    """Which limits count together [each route by itself, at each place where a limit is written]: limits of one scope
    on one store, with one name or the same text, are one counter, wherever they are written."""

    store: str | Store
    """The store of the states, or its URL [one in memory that belongs to the application]."""


def check_names(options: Iterable[str], known: Iterable[str]) -> None:
    """Raise TypeError for names that no option has, and suggest the nearest ones."""
    known = sorted(known)
    if unknown := sorted(set(options).difference(known)):
        near = [close for name in unknown for close in get_close_matches(name, known, n=1)]
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise TypeError(f"no option is named {', '.join(unknown)}{hint}")


def check_fallback(fallback: T) -> T:
    """Return the fallback for refusals, or None; raises ConfigError if it is not callable, such as text."""
    if fallback is not None and not callable(fallback):
        raise ConfigError(f"fallback is a function or an application that answers, not {fallback!r:.40}")
    return fallback


def check_limits(limits: object) -> None:
    """Raise ConfigError for a value that cannot be limits of any kind, and say what can."""
    right = (
        'text such as "10/second" or "10/second; 1000/hour", limit values, '
        "a mapping of tiers, or a function of the request"
    )
    if limits is None or (isinstance(limits, str) and not limits.strip()):
        raise ConfigError(f'no limit is given, such as rate_limit("10/second"): limits are {right}, not {limits!r:.60}')
    if is_being_decorated(limits):
        raise ConfigError(f'rate_limit is written with its limit, as @rate_limit("10/second"): limits are {right}')
    if isinstance(limits, str | Limit | Mapping) or (callable(limits) and not isinstance(limits, type)):
        return
    if isinstance(limits, Sequence) and not isinstance(limits, bytes | bytearray) and limits:
        if all(isinstance(limit, Limit) for limit in limits):
            return
        check_no_texts(limits)
    raise ConfigError(f"limits are {right}, not {limits!r:.60}")


def one_of(options: Mapping[str, Any], name: str, *choices: str) -> str:
    """Return an option that is one of these words, by default the first; raises ConfigError."""
    choice = options.get(name, choices[0])
    if choice not in choices:
        raise ConfigError(f"{name} is one of {', '.join(choices)}, not {without_credentials(repr(choice)):.40}")
    return cast(str, choice)


def function_of(options: Mapping[str, Any], name: str) -> Any:
    """Return an option that is a function, None by default; raises ConfigError."""
    function = options.get(name)
    if function is not None and not callable(function):
        raise ConfigError(f"{name} is a function of the request, not {function!r:.40}")
    return function


def cost_of(options: Mapping[str, Any], check: Callable[[Any], object]) -> Any:
    """Return the cost of a request, 1 by default, or the function that gives it; raises ConfigError.

    `check` raises ArgumentError for a value that is not a cost.
    """
    cost = options.get("cost", 1)
    if callable(cost):
        return cost
    try:
        check(cost)
    except ArgumentError as error:
        raise ConfigError(str(error)) from error
    return whole_number(cost) if whole_number(cost) is not None else cost

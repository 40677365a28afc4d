"""What stands before an application: whom to ask for a request, and what to answer. No framework, no I/O.

`asgi` and `wsgi` are its two skins.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, cast

from headgate.clock import SYSTEM_CLOCK, Clock
from headgate.decision import Decision
from headgate.errors import ConfigError, StoreError
from headgate.http.dialects import fields_of
from headgate.http.refusal import PROBLEM_JSON, REDUCED_CAPACITY, answer_of, problem_json
from headgate.keys import Key
from headgate.limiter import AsyncLimiter, Limiter
from headgate.limits import Limit
from headgate.policy.address import UNIX, AddressRules, parse_network
from headgate.policy.gate import AsyncGate, Gate
from headgate.policy.request import Request
from headgate.policy.rules import ALL_RULES, Policy
from headgate.stores.contract import Store

_log = logging.getLogger("headgate")
_DEGRADED = "X-RateLimit-Degraded"
_MOST_LIMITERS = 1024
_MOST_ADDRESSES = 65536

AnyPolicy = Policy | Mapping[str, Any] | str | Path
AnyLimits = str | Limit | Sequence[Limit]
Asked = Decision | Awaitable[Decision] | None
"""A decision, or an awaitable of one; None where a request is not limited."""


class Refusal(NamedTuple):
    """An answer instead of the application's."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class Answer(NamedTuple):
    """What becomes of a request: it is refused, or passes with these fields on its response after a while."""

    refusal: Refusal | None
    fields: list[tuple[str, str]]
    delay_us: int


class Options(TypedDict, total=False):
    """How requests are judged and answered; what is left out is as told in the brackets."""

    limits: AnyLimits | Callable[[Request], AnyLimits | None]
    """Limits for every request, or what gives those of a request (None: not limited). Instead of a policy."""

    key: Callable[[Request], Key | None]
    """Who is counted, with `limits` [the client's address]. Whoever has no key is counted by address."""

    cost: int | Callable[[Request], int]
    """Units of a request [1]."""

    exempt: Callable[[Request], bool]
    """Whether a request is not limited [none is, but for the preflights of CORS where `limits` is given]."""

    store: str | Store
    """Where states are, a URL or a store [that of the policy; "memory://"]."""

    name: str
    """The limiter's name: those of one name and store are one limiter [none]."""

    ruleset: str
    """The rules of the policy that are asked [all]."""

    headers: str | Sequence[str]
    """Dialects that tell what remains, see `headgate.http.dialects` ["draft-11"]; "none" for none."""

    refusal: Callable[[Request, Decision, Refusal], Refusal | None]
    """What replaces an answer of refusal; it is given the usual one, and None leaves that as it is."""

    wait: float
    """Seconds for which a request may stand in line before it is refused, with `limits` [0]."""

    trusted_proxies: Sequence[str]
    """Networks whose word about a client's address counts, with `limits` [none]; "unix" for a Unix socket."""

    trusted_hops: int
    """Or how many proxies stand before this server, each of which adds an address [0]."""

    address_header: str
    """The one header that they write it to ["X-Forwarded-For"]."""

    on_store_error: Literal["open", "closed"]
    """What becomes of a request where a store without a guard fails: it passes, or is answered 503 ["open"]."""

    clock: Clock
    """Stands in for the store's clock."""


class Front:
    """Judges the requests of one application. `asynchronous` tells which colour its skin is."""

    def __init__(self, policy: AnyPolicy | Gate | AsyncGate | None, options: Options, *, asynchronous: bool) -> None:
        unknown = set(options) - set(Options.__annotations__)
        if unknown:
            raise TypeError(f"no option is named {', '.join(sorted(unknown))}")
        limits = options.get("limits")
        if (policy is None) == (limits is None):
            raise ConfigError("give a policy (a file, its values, or a gate), or limits; one of the two")
        self._options = options
        self._asynchronous = asynchronous
        self.clock = options.get("clock", SYSTEM_CLOCK)
        self.fields = fields_of(options.get("headers", "draft-11"), self.clock)
        self._exempt = options.get("exempt")
        self._cost = options.get("cost", 1)
        self._refusal = options.get("refusal")
        self._closed = options.get("on_store_error", "open") == "closed"
        self._wait = options.get("wait", 0)
        self._owned: list[Any] = []
        self.ask: Callable[[Request], Asked]
        if limits is not None:
            self._address = _address_rules(options)
            self._limits = limits
            self._limiters: dict[Any, Any] = {}
            self._one = None if callable(self._limits) else self._limiter(self._limits)
            self._ask_one: Any = self._one and (self._one.ask if asynchronous else self._one.hit)
            self._key = options.get("key")
            client = self._address.client
            self._address_key = lru_cache(_MOST_ADDRESSES)(lambda peer, header: ("ip", client(peer, header) or UNIX))
            self.ask = self._ask_limits
        elif policy is not None:
            alone = [name for name in _WITH_LIMITS if name in options]
            if alone:
                raise ConfigError(f"{alone[0]} goes with limits; a policy says it itself")
            self._gate = self._open(policy)
            self._ruleset = options.get("ruleset", ALL_RULES)
            self.ask = self._ask_gate

    def answer(self, request: Request, decision: Decision) -> Answer:
        """What becomes of a request that was judged."""
        if decision.allowed:
            fields = self.fields(decision)
            if decision.degraded:
                fields = [*fields, (_DEGRADED, decision.degraded)]
            return Answer(None, fields, 0 if self._wait else decision.delay_us)  # who stood in line has waited
        status, headers, problem = answer_of(decision, self.fields)
        body = problem_json(problem or {})
        refusal = Refusal(status, [*headers, ("Content-Type", PROBLEM_JSON)], body)
        own = self._refusal(request, decision, refusal) if self._refusal is not None else None
        return Answer(refusal if own is None else own, [], 0)

    def without_store(self, error: StoreError) -> Answer:
        """What becomes of a request that nobody judged."""
        _log.warning("a request was not judged: %s", error)
        if not self._closed:
            return Answer(None, [(_DEGRADED, "open")], 0)
        body = {
            "type": REDUCED_CAPACITY,
            "title": "Request cannot be satisfied due to temporary server capacity constraints",
            "status": 503,
            "detail": "the rate limiter's store does not answer",
        }
        return Answer(Refusal(503, [("Content-Type", PROBLEM_JSON), (_DEGRADED, "closed")], problem_json(body)), [], 0)

    def close(self) -> list[Any]:
        """What is to be closed: gates and limiters that were opened here."""
        owned, self._owned = self._owned, []
        return owned

    def _open(self, policy: AnyPolicy | Gate | AsyncGate) -> Any:
        kind, other = (AsyncGate, Gate) if self._asynchronous else (Gate, AsyncGate)
        if isinstance(policy, other):
            raise ConfigError(f"this application needs a {kind.__name__}, not a {other.__name__}")
        if isinstance(policy, kind):
            for name in ("store", "clock"):
                if name in self._options:
                    raise ConfigError(f"{name} goes with a policy; a gate has its own")
            return policy
        gate: Any = kind(cast(AnyPolicy, policy), store=self._options.get("store"), clock=self._options.get("clock"))
        self._owned.append(gate)
        return gate

    def _ask_gate(self, request: Request) -> Asked:
        if self._exempt is not None and self._exempt(request):
            return None
        cost = self._cost(request) if callable(self._cost) else self._cost
        asked: Asked
        if self._asynchronous:
            asked = self._gate.ask(request, cost, ruleset=self._ruleset)
        else:
            asked = self._gate.hit(request, cost, ruleset=self._ruleset)
        return asked

    def _ask_limits(self, request: Request) -> Asked:
        if request.method == "OPTIONS" and _is_preflight(request):
            return None
        if self._exempt is not None and self._exempt(request):
            return None
        ask, limiter = self._ask_one, self._one
        if limiter is None:
            limits = self._limits(request) if callable(self._limits) else self._limits
            if limits is None:
                return None
            limiter = self._limiter(limits)
            ask = limiter.ask if self._asynchronous else limiter.hit
        key = (self._key(request) if self._key is not None else None) or self._by_address(request)
        cost = self._cost(request) if callable(self._cost) else self._cost
        asked: Asked = limiter.acquire(key, cost, timeout=self._wait) if self._wait else ask(key, cost)
        return asked

    def _by_address(self, request: Request) -> Key:
        header = self._address.header
        return self._address_key(request.client_ip, request.headers.get(header, "") if header else "")

    def _limiter(self, limits: AnyLimits) -> Any:
        """The limiter of these limits, made at their first use."""
        known = limits if isinstance(limits, str) else repr(limits)
        limiter = self._limiters.get(known)
        if limiter is None:
            if len(self._limiters) >= _MOST_LIMITERS:
                raise ConfigError(f"limits that a function gives are of {_MOST_LIMITERS} kinds at the most")
            kind = AsyncLimiter if self._asynchronous else Limiter
            store = self._owned[0].store if self._owned else self._options.get("store", "memory://")
            limiter = kind(limits, store=store, name=self._options.get("name", ""), clock=self._options.get("clock"))
            if not self._owned and isinstance(store, str):
                self._owned.append(limiter)
            self._limiters[known] = limiter
        return limiter


_WITH_LIMITS = ("key", "name", "wait", "trusted_proxies", "trusted_hops", "address_header")


def _is_preflight(request: Request) -> bool:
    """A browser's question before a request of another origin, which it never sends by itself (Fetch, 3.2.2)."""
    return "origin" in request.headers and "access-control-request-method" in request.headers


def _address_rules(options: Options) -> AddressRules:
    proxies, hops = tuple(options.get("trusted_proxies", ())), options.get("trusted_hops", 0)
    if not proxies and not hops:
        if "address_header" in options:
            raise ConfigError("address_header needs trusted_proxies or trusted_hops: who else may write it?")
        return AddressRules()
    return AddressRules(
        header=options.get("address_header", "X-Forwarded-For").lower(),
        trusted=tuple(parse_network(proxy) for proxy in proxies if proxy != UNIX),
        trust_unix=UNIX in proxies,
        hops=hops,
    )

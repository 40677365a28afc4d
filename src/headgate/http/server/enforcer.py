"""One policy, or one set of limits, in front of an application: asks for a request, and says what to answer.

No framework, no I/O of its own. A skin never asks an enforcer directly: a request's life before one or several of them
is an `exchange`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple, Protocol

from headgate.clock import SYSTEM_CLOCK
from headgate.decision import Decision
from headgate.drive import drive, drive_async
from headgate.errors import ConfigError, StoreError
from headgate.http.fields.dialects import fields_of
from headgate.http.fields.ratelimit import Passing, passes_without_words, passing_writer
from headgate.http.refusal import PROBLEM_JSON, REDUCED_CAPACITY, answer_of, problem_json
from headgate.http.server.functions import given_own
from headgate.http.server.gate_reloads import follow_reloads
from headgate.http.server.gate_requests import GateRequests
from headgate.http.server.options import (
    Options,
    Refusal,
    Response,
    RouteOptions,
    check_limits,
    check_names,
    function_of,
)
from headgate.http.server.request_limits import Asked, Charge, RequestLimits
from headgate.http.server.web_gates import Natively
from headgate.keys import Key
from headgate.policy.gate import AnyPolicy, AsyncGate, Gate
from headgate.policy.request import Request
from headgate.stores.guard.fallback import check_on_store_error
from headgate.stores.protocol import Store

log = logging.getLogger("headgate")
_DEGRADED = "X-RateLimit-Degraded"
_PLAIN_HEADERS = "draft-11"


class Verdict(NamedTuple):
    """What becomes of a request: it is refused, or passes with these fields on its response after a while."""

    refusal: Refusal | None
    fields: list[tuple[str, str]]
    delay_us: int
    decision: Decision | None = None
    """None where the request is not limited, or the store did not answer."""


NOT_LIMITED = Verdict(None, [], 0)


class Place(Protocol):
    """Where a request was judged: the enforcer, what the place is known by, and what it counted the request under.

    `by` is the same whenever the place is asked again, and another at any other place.
    """

    @property
    def enforcer(self) -> Enforcer: ...
    @property
    def by(self) -> object: ...
    @property
    def counted_as(self) -> str: ...


class PlaceOf(NamedTuple):
    """`Place`, as a value."""

    enforcer: Enforcer
    by: object
    counted_as: str


class Enforcer:
    """Judges the requests of one application, or of routes if it is `routed`: then each endpoint counts by itself.

    What those charge may be taken back, and what others do if it `keeps_charges`. `asynchronous` tells which colour its
    skin is, `kind` what is made of requests that are not decided natively, `websockets` whether handshakes are judged,
    `owner_name` what users know the skin by.
    """

    def __init__(
        self,
        policy: AnyPolicy | Gate | AsyncGate | None,
        options: Options | RouteOptions,
        *,
        asynchronous: bool,
        routed: bool = False,
        keeps_charges: bool = False,
        kind: type[Request] = Request,
        websockets: bool = False,
        owner_name: str = "",
    ) -> None:
        check_names(options, {*Options.__annotations__, *(RouteOptions.__annotations__ if routed else ())})
        given = given_own(options)
        if (policy is None) == (given.get("limits") is None):
            raise ConfigError("give a policy (a file, its values, or a gate), or limits; one of the two")
        if policy is None:
            check_limits(given["limits"])
        headers = given.get("headers", _PLAIN_HEADERS)
        self.asynchronous = asynchronous
        self.keeps_charges = kept = routed or keeps_charges
        self.clock = given.get("clock", SYSTEM_CLOCK)
        self.fields = fields_of(headers, self.clock)
        self._refusal = function_of(given, "refusal")
        self._observe = function_of(given, "on_decision")
        self._closed = check_on_store_error(given.get("on_store_error")) == "closed"
        self._wait = given.get("wait", 0)
        self._limits: RequestLimits | None = None
        source: RequestLimits | GateRequests
        if policy is None:
            source = self._limits = RequestLimits(given, asynchronous=asynchronous, routed=routed, keeps_charges=kept)
        else:
            source = GateRequests(policy, given, asynchronous=asynchronous)
        self._owned = source.owned
        """Closed with the application, but for a memory, which ends with it: the application may start again."""

        self._warm_up = source.warm_up
        self.ask: Callable[[Request], Asked] = source.ask
        """Decide for a request."""

        self.passing = self._passing(headers)
        """The fields of a decision that passes at once, as the skin has them; None where `verdict` is to be asked."""

        self._kind = kind
        self._tells = _tells(headers) if self._observe is None else None
        self._websockets = websockets
        self.counts = "counts" in given
        """Whether the request is needed when it ends, to say what counts."""
        self.holds = source.holds
        """Whether requests are held until their responses have ended."""

        self.waits = source.waits
        """Whether requests may wait in line before they are refused."""

        self.settles = self.counts or self.holds
        """Whether what counts is known only when the application has answered, or is freed then."""

        self.web_gate: Any = None
        """The native gate that reads scopes and environs; None where Python decides."""

        self.natively: Natively | None = None
        """Its method for scopes or for environs: decides before a request is made."""

        self._read_natively(source)

        if isinstance(source, GateRequests):
            follow_reloads(self, source, owner_name)

    def follow(self, source: GateRequests) -> None:
        """Ask what is to be asked under a policy that was just reloaded."""
        self.ask, self.holds, self.waits = source.ask, source.holds, source.waits
        self.settles = self.counts or self.holds
        self._read_natively(source)

    def _read_natively(self, source: RequestLimits | GateRequests) -> None:
        gate = self.web_gate = source.web_gate(self._kind, tells=self._tells, websockets=self._websockets)
        self.natively = gate and (gate.decide if self.asynchronous else gate.decide_environ)

    def _passing(self, headers: Any) -> Passing:
        if self._observe is not None:
            return _more_to_say
        if headers == "none":
            return passes_without_words
        if headers != _PLAIN_HEADERS:
            return _more_to_say
        definitions = None if self._limits is None else self._limits.definitions
        return passing_writer(definitions, encoded=self.asynchronous)

    def verdict(self, request: Request, decision: Decision) -> Verdict:
        """What becomes of a request on which there is a decision."""
        if self._observe is not None:
            self._observe(request, decision)
        if decision.allowed:
            # A request that waited for its turn has waited.
            return Verdict(None, self.response_fields(decision), 0 if self._wait else decision.delay_us, decision)
        status, headers, body = answer_of(decision, self.fields)
        refusal = Refusal(status, [*headers, ("Content-Type", PROBLEM_JSON)], body or b"")
        own = self._refusal(request, decision, refusal) if self._refusal is not None else None
        return Verdict(refusal if own is None else own, [], 0, decision)

    def response_fields(self, decision: Decision) -> list[tuple[str, str]]:
        """The header fields of a request that passes."""
        fields = self.fields(decision)
        return [*fields, (_DEGRADED, decision.degraded)] if decision.degraded else fields

    def verdict_without_store(self, error: StoreError) -> Verdict:
        """What becomes of a request on which the store gave no decision."""
        log.warning("no decision on a request: %s", error)
        if not self._closed:
            return Verdict(None, [(_DEGRADED, "open")], 0)
        body = {
            "type": REDUCED_CAPACITY,
            "title": "Request cannot be satisfied due to temporary server capacity constraints",
            "status": 503,
            "detail": "the rate limiter's store does not answer",
        }
        return Verdict(Refusal(503, [("Content-Type", PROBLEM_JSON), (_DEGRADED, "closed")], problem_json(body)), [], 0)

    @property
    def shares_store(self) -> bool:
        """Whether its limits are on a store that others may use, too; a policy says itself what counts together."""
        return self._limits is not None and self._limits.shares_store

    @property
    def store(self) -> Store | None:
        """Where the states of its limits are; None for a policy."""
        return None if self._limits is None else self._limits.store

    def apart(self, counted_as: str, by: object, judged: Iterable[Place]) -> str:
        """What to count a request under that was `judged` at other places: with a number, if one of them uses the
        same counter. So each place has its own, in the order in which they are asked.
        """
        own = self._limits
        if own is None:
            return counted_as
        taken = {
            other.counted_as
            for other in judged
            if other.by != by and other.enforcer._limits is not None and own.may_share(other.enforcer._limits)
        }
        number, place = 1, counted_as
        while place in taken:
            number += 1
            place = f"{counted_as} ({number})"
        return place

    def charge_of(self, key: Key, asked_us: int) -> Charge | None:
        """What a request of a route was charged that was decided natively."""
        return None if self._limits is None else self._limits.charge_of(key, asked_us)

    def settling(
        self, charge: Charge, request: Request | None, decision: Decision, response: Response
    ) -> Generator[Any, Any, None] | None:
        """Let count what `counts` says of the response, and free what was held; see `finish`."""
        if self._limits is None:
            return None if charge.held is None else charge.held.free()
        return self._limits.settling(charge, request, decision, response)

    def taking_back(self, charge: Charge, decision: Decision) -> Generator[Any, Any, None] | None:
        """Give back what was charged; see `finish`."""
        if self._limits is None:
            return None if charge.held is None else charge.held.free(0)
        return self._limits.taking_back(charge, decision)

    def close(self) -> None:
        """Close the store, if it was opened here and is no memory; what asks again opens it again."""
        if self._owned is not None and not self._owned.in_process:
            self._owned.close()

    async def warm_up_async(self) -> None:
        """Have the store connect before the first request; where it fails, that is told in the log."""
        await self._warm_up()

    async def aclose(self) -> None:
        """`close` on an event loop."""
        if self._owned is not None and not self._owned.in_process:
            await self._owned.aclose()


def _tells(headers: Any) -> bool | None:
    """Whether the native core tells what remains; None where the fields are of other dialects."""
    return {_PLAIN_HEADERS: True, "none": False}.get(headers) if isinstance(headers, str) else None


def _more_to_say(decision: Decision) -> None:
    return None


def finish(steps: Generator[Any, Any, None]) -> None:
    """Drive what settles or takes back a charge in this thread; where the store fails, the charge stands."""
    try:
        drive(steps)
    except StoreError as error:
        log.warning("a request was not settled: %s", error)


async def finish_async(steps: Generator[Any, Any, None]) -> None:
    """`finish` on an event loop."""
    try:
        await drive_async(steps)
    except StoreError as error:
        log.warning("a request was not settled: %s", error)

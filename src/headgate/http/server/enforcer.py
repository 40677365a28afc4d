"""One policy, or one set of limits, in front of an application: decides on requests, and makes the responses.

There is no framework and no I/O here. Adapters use an enforcer through an `exchange`: the course of a request through
one or several enforcers.
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
from headgate.http.fields.ratelimit import PassingFieldsWriter, passing_without_fields, passing_writer
from headgate.http.refusal import PROBLEM_JSON, REDUCED_CAPACITY, answer_of, problem_json
from headgate.http.server.functions import adapt_functions
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
    sendable,
)
from headgate.http.server.request_limits import Charge, RequestLimits, RequestOutcome
from headgate.http.server.web_gates import NativeDecider
from headgate.keys import Key
from headgate.policy.gate import AnyPolicy, AsyncGate, Gate
from headgate.policy.request import Request
from headgate.stores.guard.fallback import check_on_store_error
from headgate.stores.protocol import Store

log = logging.getLogger("headgate")
_DEGRADED = "X-RateLimit-Degraded"
_PLAIN_HEADERS = "draft-11"


class Verdict(NamedTuple):
    """The result for a request: it is refused, or it passes after `delay_us` with these fields on its response."""

    refusal: Refusal | None
    fields: list[tuple[str, str]]
    delay_us: int
    decision: Decision | None = None
    """None where the request is not limited, or the store did not answer."""


NOT_LIMITED = Verdict(None, [], 0)


class Place(Protocol):
    """A place that judged a request: its enforcer, its identity, and the name that it counted the request under.

    `place_id` is the same object whenever this place judges, and a different one at any other place.
    """

    @property
    def enforcer(self) -> Enforcer: ...
    @property
    def place_id(self) -> object: ...
    @property
    def counted_as(self) -> str: ...


class PlaceOf(NamedTuple):
    """A `Place` as a value."""

    enforcer: Enforcer
    place_id: object
    counted_as: str


class Enforcer:
    """Judges the requests of one application, or of routes if it is `routed`: then each endpoint counts by itself.

    The charges of a routed one can be taken back, and those of any other if it `keeps_charges`. `asynchronous` is
    whether its adapter runs in asyncio, `kind` the class of requests that are not decided natively, `websockets`
    whether handshakes are judged, and `owner_name` the adapter's name in messages.
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
        adapted = adapt_functions(options)
        if (policy is None) == (adapted.get("limits") is None):
            raise ConfigError("give a policy (a file, its values, or a gate), or limits; one of the two")
        if policy is None:
            check_limits(adapted["limits"])
        headers = adapted.get("headers", _PLAIN_HEADERS)
        self.asynchronous = asynchronous
        self.keeps_charges = keeps_charges = routed or keeps_charges
        self.clock = adapted.get("clock", SYSTEM_CLOCK)
        self.fields = fields_of(headers, self.clock)
        self._refusal = function_of(adapted, "refusal")
        self._observe = function_of(adapted, "on_decision")
        self._closed = check_on_store_error(adapted.get("on_store_error")) == "closed"
        self._wait = adapted.get("wait", 0)
        self._limits: RequestLimits | None = None
        source: RequestLimits | GateRequests
        if policy is None:
            source = self._limits = RequestLimits(
                adapted, asynchronous=asynchronous, routed=routed, keeps_charges=keeps_charges
            )
        else:
            source = GateRequests(policy, adapted, asynchronous=asynchronous)
        self._owned = source.owned
        """The store to close with the application, unless it is in memory: the application may start again."""

        self._warm_up = source.warm_up
        self.decide: Callable[[Request], RequestOutcome] = source.decide
        """Decides on a request."""

        self.passing_fields = self._passing_fields(headers)
        """Gives the fields of a decision that passes at once, as the adapter writes them; None where `verdict` does."""

        self._kind = kind
        self._writes_fields = _writes_fields(headers) if self._observe is None else None
        self._websockets = websockets
        self.counts = "counts" in adapted
        """Whether the request is needed when it ends, to determine what counts."""
        self.holds = source.holds
        """Whether requests are held until their responses have ended."""

        self.waits = source.waits
        """Whether requests may wait in line before they are refused."""

        self.settles = self.counts or self.holds
        """Whether the response determines what counts, or ends a hold."""

        self.web_gate: Any = None
        """The native gate that reads scopes and environs; None where Python decides."""

        self.decide_natively: NativeDecider | None = None
        """The gate's method for scopes or environs, which decides before a request object is made."""

        self._read_natively(source)

        if isinstance(source, GateRequests):
            follow_reloads(self, source, owner_name)

    def follow(self, source: GateRequests) -> None:
        """Decide by a policy that was just reloaded."""
        self.decide, self.holds, self.waits = source.decide, source.holds, source.waits
        self.settles = self.counts or self.holds
        self._read_natively(source)

    def _read_natively(self, source: RequestLimits | GateRequests) -> None:
        gate = self.web_gate = source.web_gate(
            self._kind, writes_fields=self._writes_fields, websockets=self._websockets
        )
        self.decide_natively = gate and (gate.decide if self.asynchronous else gate.decide_environ)

    def _passing_fields(self, headers: Any) -> PassingFieldsWriter:
        if self._observe is not None:
            return _needs_verdict
        if headers == "none":
            return passing_without_fields
        if headers != _PLAIN_HEADERS:
            return _needs_verdict
        definitions = None if self._limits is None else self._limits.definitions
        return passing_writer(definitions, encoded=self.asynchronous)

    def verdict(self, request: Request, decision: Decision) -> Verdict:
        """Return the verdict on a request by its decision."""
        if self._observe is not None:
            self._observe(request, decision)
        if decision.allowed:
            # A request that waits for its turn has already waited here.
            return Verdict(None, self.response_fields(decision), 0 if self._wait else decision.delay_us, decision)
        status, headers, body = answer_of(decision, self.fields)
        refusal = Refusal(status, [*headers, ("Content-Type", PROBLEM_JSON)], body or b"")
        own = self._refusal(request, decision, refusal) if self._refusal is not None else None
        return Verdict(refusal if own is None else sendable(own), [], 0, decision)

    def response_fields(self, decision: Decision) -> list[tuple[str, str]]:
        """Return the header fields for the response to a request that passes."""
        fields = self.fields(decision)
        return [*fields, (_DEGRADED, decision.degraded)] if decision.degraded else fields

    def verdict_without_store(self, error: StoreError) -> Verdict:
        """Return the verdict on a request for which the store gave no decision."""
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
        """Whether its limits are on a store that others may use, too; a policy defines itself what counts together."""
        return self._limits is not None and self._limits.shares_store

    @property
    def store(self) -> Store | None:
        """The store of its limits; None for a policy."""
        return None if self._limits is None else self._limits.store

    def counter_name(self, counted_as: str, place_id: object, places: Iterable[Place]) -> str:
        """Return the name to count a request under here: with a number, if one of the `places` that have judged it uses
        the same counter. So each place has its own counter, in the order in which they judge.
        """
        own = self._limits
        if own is None:
            return counted_as
        taken = {
            other.counted_as
            for other in places
            if other.place_id != place_id
            and other.enforcer._limits is not None
            and own.may_share(other.enforcer._limits)
        }
        number, name = 1, counted_as
        while name in taken:
            number += 1
            name = f"{counted_as} ({number})"
        return name

    def charge_of(self, key: Key, requested_us: int) -> Charge | None:
        """Return the charge of a route's request that was decided natively."""
        return None if self._limits is None else self._limits.charge_of(key, requested_us)

    def settle_steps(
        self, charge: Charge, request: Request | None, decision: Decision, response: Response
    ) -> Generator[Any, Any, None] | None:
        """Return the steps that settle a charge by what `counts` returns, and free the hold; see `finish`."""
        if self._limits is None:
            return None if charge.held is None else charge.held.free()
        return self._limits.settle_steps(charge, request, decision, response)

    def take_back_steps(self, charge: Charge, decision: Decision) -> Generator[Any, Any, None] | None:
        """Return the steps that give back a charge; see `finish`."""
        if self._limits is None:
            return None if charge.held is None else charge.held.free(0)
        return self._limits.take_back_steps(charge, decision)

    def close(self) -> None:
        """Close the store, if it was opened here and is not in memory; another decision opens it again."""
        if self._owned is not None and not self._owned.in_process:
            self._owned.close()

    async def warm_up_async(self) -> None:
        """Have the store connect before the first request; a failure is logged."""
        await self._warm_up()

    async def aclose(self) -> None:
        """`close` on an event loop."""
        if self._owned is not None and not self._owned.in_process:
            await self._owned.aclose()


def _writes_fields(headers: Any) -> bool | None:
    """Whether the native core writes the RateLimit fields, or no fields; None where Python writes other dialects."""
    return {_PLAIN_HEADERS: True, "none": False}.get(headers) if isinstance(headers, str) else None


def _needs_verdict(decision: Decision) -> None:
    return None


def finish(steps: Generator[Any, Any, None]) -> None:
    """Do the steps that settle or take back a charge, in this thread; if the store fails, the charge stands."""
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

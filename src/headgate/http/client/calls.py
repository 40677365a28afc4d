"""Calls to a server that has limits: wait for a turn, send, obey the limits in the response, perhaps retry.

The steps of a call are a generator without I/O; `run` and `run_async` drive it, with the client library behind a
`LibraryAdapter`. `integrations` has the adapters.

Only safe requests are retried (RFC 9110, 9.2.2; RFC 6585, 4): those that were refused or never sent, with any
method, and those that may have been lost, if they are idempotent. There are three attempts and a budget for each key
(Beyer et al., Site Reliability Engineering, chapter 21), after a pause with full jitter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from headgate.clock import US_PER_SECOND
from headgate.costs import Cost
from headgate.decision import Decision
from headgate.drive import drive, drive_async
from headgate.errors import HeadgateError, Held, RateLimited, StoreError, StoreUnavailable, Throttled
from headgate.holding import LEASE_S
from headgate.http.client.destinations import Destination, Destinations
from headgate.http.client.errors import ErrorConverter
from headgate.http.client.held_call import HeldCall
from headgate.http.client.limit_fields import AnnouncedLimits, read_limit_fields
from headgate.http.client.options import ClientLimits, Options, read_options
from headgate.keys import Key
from headgate.limiter import AsyncLimiter, Limiter
from headgate.operation import Operation, Receipt
from headgate.waiting.steps import FOREVER_US, Sleep

R = TypeVar("R")
log = logging.getLogger("headgate")

IDEMPOTENT = frozenset(("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"))
"""Methods of which a repeated request has no further effect (RFC 9110, 9.2.2)."""

BACKOFF_US = US_PER_SECOND // 10
LONGEST_BACKOFF_US = 10 * US_PER_SECOND

FailureKind = Literal["unsent", "lost", "final"]
"""How a request failed: the server never got it; the server may have got it; or a retry cannot help."""

_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class Turn(NamedTuple):
    """A step: wait in line; the result is a Decision, or the HeldCall where limits count calls in flight.

    Raises StoreError.
    """

    key: Key
    cost: Cost
    timeout: float | None
    """Seconds; None for no end."""

    holds: bool = False
    """Whether the cost is held while the call is in flight."""


class GiveBack(NamedTuple):
    """A step: give back what a turn has charged `ago_us` microseconds ago, for a call that is not sent after all.

    Raises StoreError.
    """

    turn: Turn
    decision: Decision
    ago_us: int


class SendRequest(NamedTuple):
    """A step: send the request; the result is a ServerResponse or a Failure."""


class ReadToEnd(NamedTuple):
    """A step: read a response to its end, which frees its connection; the result is a ServerResponse or a Failure."""

    response: Any


class Free(NamedTuple):
    """A step: free the hold of an attempt; `actual` is None for its whole cost, 0 where nothing was sent."""

    held: HeldCall
    actual: int | None = None


class FreeWhenClosed(NamedTuple):
    """A step: free the hold of an attempt once its response is closed, or read to its end."""

    response: Any
    held: HeldCall


class ServerResponse(NamedTuple):
    """The response of a server; `response` is the library's own object."""

    status: int
    headers: Mapping[str, str]
    response: Any


class Failure(NamedTuple):
    """A request without a response."""

    error: Exception
    kind: FailureKind


Step = Turn | GiveBack | Sleep | SendRequest | ReadToEnd | Free | FreeWhenClosed
CallSteps = Generator[Step, Any, Any]


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """The parts of a request that a call needs."""

    request: Any
    """The library's own object."""

    key: Key
    cost: Cost
    idempotent: bool
    can_resend: Callable[[], bool]
    """Whether its body can still be sent, or sent again."""


class _Assessment(NamedTuple):
    """The meaning of an outcome."""

    accepted: bool
    """Whether the server processed the request, with any result."""

    repeatable: bool
    """Whether a retry is safe and may help, if the body can be sent again."""

    refused: bool = False
    """Whether a limit of the server refused the request: it was not processed."""

    wait_us: int | None = None
    """How long the server asks not to be called."""


class Sender:
    """Sends the requests of one client: it has the client's limiter, its destinations and its retries."""

    def __init__(
        self,
        limits: ClientLimits,
        options: Options,
        *,
        asynchronous: bool,
        convert_error: ErrorConverter = lambda error, request: error,
    ) -> None:
        self._convert_error = convert_error
        self._settings = read_options(limits, options, asynchronous=asynchronous)
        self._destinations = Destinations(
            retry_budget=self._settings.retry_budget, adaptive_k=self._settings.adaptive_k
        )
        self._clock = self._settings.clock

    @property
    def limiter(self) -> Any:
        """A Limiter, or an AsyncLimiter for a client in asyncio; None without limits."""
        return self._settings.limiter

    @property
    def owned(self) -> Any:
        """The limiter, if it was made here."""
        return self._settings.limiter if self._settings.owned else None

    def call(
        self,
        request: Any,
        *,
        method: str,
        origin: tuple[str, str | None, int | None],
        headers: Mapping[str, Any],
        can_resend: Callable[[], bool],
    ) -> OutgoingRequest:
        """Return the call of the library's `request`; `origin` is scheme, host and port of its URL.

        The look-up in `headers` ignores case.
        """
        scheme, host, port = origin
        settings = self._settings
        key = (scheme, host or "-", port or _PORTS.get(scheme, 0)) if settings.key is None else settings.key(request)
        cost = settings.cost(request) if callable(settings.cost) else settings.cost
        return OutgoingRequest(
            request, key, cost, method.upper() in IDEMPOTENT or "Idempotency-Key" in headers, can_resend
        )

    def steps(self, call: OutgoingRequest) -> CallSteps:
        """Yield the steps of a call; the generator's result is the library's response.

        Raises RateLimited, Held or Throttled if nothing was sent, else the library's last error. A call that
        has a response, but no time or budget for another attempt, returns that response.
        """
        settings, clock = self._settings, self._clock
        not_before_us = clock.now_us()
        deadline_us = not_before_us + settings.timeout_us
        destination = self._destinations.of(call.key, not_before_us)
        destination.add_call()
        last: ServerResponse | Failure | None = None
        heeded_server = False
        retries_made = 0
        while True:
            turn = yield from self._wait_for_turn(call, destination, not_before_us, deadline_us)
            if isinstance(turn, HeadgateError):
                return _end(last or Failure(self._convert_error(turn, call.request), "final"))
            outcome: ServerResponse | Failure = yield SendRequest()
            now_us = clock.now_us()
            assessment = self._assess(call, outcome, now_us)
            self._record(destination, outcome, assessment, now_us)
            if heeded_server and assessment.accepted:
                destination.give_retry_back()  # the server named the moment, and accepted: no overload
            if retries_made == settings.retries or not assessment.repeatable or not call.can_resend():
                return (yield from _end_holding(outcome, turn))
            not_before_us = now_us + self._backoff_us(retries_made)
            if max(not_before_us, destination.held_until_us) > deadline_us or not destination.take_retry(now_us):
                return (yield from _end_holding(outcome, turn))
            if isinstance(outcome, ServerResponse):
                outcome = yield ReadToEnd(outcome.response)
            last = outcome
            if turn is not None:
                yield Free(turn)
            if clock.now_us() > deadline_us:  # reading the response took too long
                destination.give_retry_back()
                return _end(outcome)
            heeded_server = assessment.refused and assessment.wait_us is not None
            retries_made += 1

    def _wait_for_turn(
        self, call: OutgoingRequest, destination: Destination, not_before_us: int, deadline_us: int
    ) -> Generator[Any, Any, HeadgateError | HeldCall | None]:
        """Wait until an attempt may begin; the result is the reason why it may not, or its hold, if any."""
        chance = destination.rejects(self._clock.now_us(), self._settings.random)
        if chance:
            return Throttled(chance)
        hold_error = yield from self._wait_until_free(destination, not_before_us, deadline_us)
        if hold_error is not None or self._settings.limiter is None:
            return hold_error
        remaining_us = max(0, deadline_us - self._clock.now_us())
        timeout = None if self._settings.timeout_us == FOREVER_US else remaining_us / US_PER_SECOND
        held: HeldCall | None = None
        charged: Decision | None = None
        turn = Turn(call.key, call.cost, timeout, self._settings.holds)
        try:
            outcome: Decision | HeldCall = yield turn
        except StoreError as error:
            if self._settings.closed:
                return error
            log.warning("a call was not counted: %s", error)
        else:
            if isinstance(outcome, HeldCall):
                held = outcome
            elif not outcome.allowed:
                if self._settings.closed and outcome.degraded == "closed":
                    return StoreUnavailable("the store of the limits does not answer, or has no room")
                return RateLimited(outcome)
            else:
                charged = outcome
        # The line may have been long.
        turn_us = self._clock.now_us()
        hold_error = yield from self._wait_until_free(destination, not_before_us, deadline_us)
        if hold_error is not None and held is not None:
            yield Free(held, 0)
        if hold_error is not None and charged is not None:
            try:
                yield GiveBack(turn, charged, max(0, self._clock.now_us() - turn_us) + charged.delay_us)
            except StoreError as error:
                log.warning("a call that was not sent stays counted: %s", error)
        return held if hold_error is None else hold_error

    def _wait_until_free(
        self, destination: Destination, not_before_us: int, deadline_us: int
    ) -> Generator[Sleep, None, Held | None]:
        """Wait while the destination is on hold; the waiting calls continue one by one, at random moments."""
        while True:
            now_us = self._clock.now_us()
            held_us = destination.held_until_us - now_us
            wait_us = max(held_us, not_before_us - now_us)
            if wait_us <= 0:
                return None
            if now_us + wait_us > deadline_us:
                return Held(wait_us / US_PER_SECOND)
            if held_us > 0:
                wait_us += min(int(destination.spread_us * self._settings.random()), deadline_us - now_us - wait_us)
            yield Sleep(self._clock.let_pass(wait_us))

    def _assess(self, call: OutgoingRequest, outcome: ServerResponse | Failure, now_us: int) -> _Assessment:
        if isinstance(outcome, Failure):
            harmless = outcome.kind == "lost" and call.idempotent
            return _Assessment(accepted=False, repeatable=outcome.kind == "unsent" or harmless)
        status = outcome.status
        announced = read_limit_fields(outcome.headers, now_us=now_us)
        requested_wait_us = None if announced is None else announced.refused_for_us
        if status == 429 or (status == 403 and _is_rate_limit(announced)):
            return _Assessment(accepted=False, repeatable=True, refused=True, wait_us=requested_wait_us)
        if status == 503:
            return _Assessment(
                accepted=False, repeatable=requested_wait_us is not None and call.idempotent, wait_us=requested_wait_us
            )
        unwell = status in (502, 504)
        exhausted_us = None if announced is None else announced.exhausted_for_us
        return _Assessment(accepted=not unwell, repeatable=unwell and call.idempotent, wait_us=exhausted_us)

    def _record(
        self, destination: Destination, outcome: ServerResponse | Failure, assessment: _Assessment, now_us: int
    ) -> None:
        if assessment.wait_us is not None:
            destination.hold(now_us, assessment.wait_us)
        if isinstance(outcome, ServerResponse) or outcome.kind != "final":
            destination.count(now_us, accepted=assessment.accepted)

    def _backoff_us(self, retries_made: int) -> int:
        """Return a pause with full jitter: at random up to a maximum that doubles with every retry."""
        return int(self._settings.random() * min(LONGEST_BACKOFF_US, BACKOFF_US << retries_made))


def _is_rate_limit(announced: AnnouncedLimits | None) -> bool:
    """Whether a 403 has the meaning of a 429, as GitHub's does."""
    return announced is not None and (announced.retry_after_us is not None or announced.exhausted)


def _end(outcome: ServerResponse | Failure) -> Any:
    if isinstance(outcome, Failure):
        raise outcome.error
    return outcome.response


def _end_holding(outcome: ServerResponse | Failure, held: HeldCall | None) -> Generator[Step, None, Any]:
    """`_end` of an attempt that may have a hold, which a response keeps until it is closed."""
    if held is not None:
        yield FreeWhenClosed(outcome.response, held) if isinstance(outcome, ServerResponse) else Free(held)
    return _end(outcome)


class LibraryAdapter(Protocol):
    """One request of a client library. `send` and `buffer` are coroutine functions where the library is in asyncio."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The exceptions that the library raises where there is no response."""
        ...

    def send(self) -> Any:
        """Send the request; return the library's response."""
        ...

    def buffer(self, response: Any) -> Any:
        """Read a response to its end; return one that can be read again."""
        ...

    def free_when_closed(self, response: Any, held: HeldCall) -> Any:
        """Free the hold once a response is closed, or read to its end; at once if it is so already."""
        ...

    def read_response(self, response: Any) -> ServerResponse:
        """Return a response as the steps see it."""
        ...

    def failure_kind(self, error: Exception) -> FailureKind:
        """Return how the request failed, by one of `errors`."""
        ...


def run(steps: CallSteps, adapter: LibraryAdapter, limiter: Limiter | None) -> Any:
    """Do the steps of a call in this thread; return its response."""
    held: list[HeldCall] = []
    try:
        return drive(steps, _step_executor(adapter, limiter, drive, Event().wait, _held_turn, held))
    except BaseException:
        for each in held:
            each.free()
        raise


def run_async(steps: CallSteps, adapter: LibraryAdapter, limiter: AsyncLimiter | None) -> Coroutine[Any, Any, Any]:
    """`run` on an event loop, which is never blocked."""
    held: list[HeldCall] = []
    return _run_async(steps, _step_executor(adapter, limiter, drive_async, asyncio.sleep, _held_turn_async, held), held)


async def _run_async(steps: CallSteps, do: Callable[[Step], Any], held: list[HeldCall]) -> Any:
    try:
        return await drive_async(steps, do)
    except BaseException:
        for each in held:
            await each.free()
        raise


def _step_executor(
    adapter: LibraryAdapter,
    limiter: Any,
    drive_steps: Callable[[Any], Any],
    sleep: Callable[[float], Any],
    held_turn: Callable[[Any, Turn, list[HeldCall]], Any],
    held: list[HeldCall],
) -> Callable[[Step], Any]:
    """Return the function that does a step; in asyncio it returns an awaitable. `held` has the holds of the call."""

    def do(step: Step) -> Any:
        match step:
            case Turn(key, cost, timeout, holds):
                return held_turn(limiter, step, held) if holds else limiter.acquire(key, cost, timeout=timeout)
            case GiveBack(turn, decision, ago_us):
                costs = limiter.counted.read(turn.cost)
                operation = Operation((turn.key,) * len(costs), costs)
                return limiter.bound.give_back(Receipt.of(operation, decision), ago_us)
            case Sleep(seconds):
                return sleep(seconds)
            case SendRequest():
                return drive_steps(_outcome_steps(adapter, adapter.send))
            case ReadToEnd(response):
                return drive_steps(_outcome_steps(adapter, partial(adapter.buffer, response)))
            case Free(held_call, actual):
                held.clear()
                return held_call.free(actual)
            case FreeWhenClosed(response, held_call):
                held.clear()
                return adapter.free_when_closed(response, held_call)

    return do


def _held_turn(limiter: Limiter, turn: Turn, held: list[HeldCall]) -> Decision | HeldCall:
    reservation = limiter.acquire(turn.key, turn.cost, timeout=turn.timeout, lease=LEASE_S)
    if not reservation:
        return reservation.decision
    held.append(HeldCall(reservation, asynchronous=False))
    return held[0]


async def _held_turn_async(limiter: AsyncLimiter, turn: Turn, held: list[HeldCall]) -> Decision | HeldCall:
    reservation = await limiter.acquire(turn.key, turn.cost, timeout=turn.timeout, lease=LEASE_S)
    if not reservation:
        return reservation.decision
    held.append(HeldCall(reservation, asynchronous=True))
    return held[0]


def _outcome_steps(adapter: LibraryAdapter, call: Callable[[], Any]) -> Generator[Any, Any, ServerResponse | Failure]:
    """Call the library; return the outcome as the steps see it."""
    try:
        return adapter.read_response((yield call()))
    except adapter.errors as error:
        return Failure(error, adapter.failure_kind(error))

"""Calls to a server that has limits: wait for a turn, send, heed what is answered, perhaps try again.

The steps of a call are a generator without I/O; `run` and `run_async` drive it, with what a library can do as a
`Wire`. `integrations` has the skins.

Tried again is what is safe (RFC 9110, 9.2.2; RFC 6585, 4): what was refused or never sent, whatever its
method, and what may have been lost, if it is idempotent. How often: three tries and a budget for each key
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
from headgate.http.client.errors import Own
from headgate.http.client.limit_fields import Told, told
from headgate.http.client.options import ClientLimits, Options, read_options
from headgate.http.client.places import HeldCall
from headgate.keys import Key
from headgate.limiter import AsyncLimiter, Limiter
from headgate.waiting.steps import FOREVER_US, Sleep

R = TypeVar("R")
log = logging.getLogger("headgate")

IDEMPOTENT = frozenset(("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"))
"""Methods of which a second request changes nothing more (RFC 9110, 9.2.2)."""

BACKOFF_US = US_PER_SECOND // 10
LONGEST_BACKOFF_US = 10 * US_PER_SECOND

Fate = Literal["unsent", "lost", "final"]
"""Of a request that failed: the server never saw it; perhaps it did; or trying again cannot help."""

_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class Turn(NamedTuple):
    """A step: stand in line; the answer is a Decision, or what is held of limits of what is in flight.

    Raises StoreError.
    """

    key: Key
    cost: Cost
    timeout: float | None
    """Seconds; None for no end."""

    holds: bool = False
    """Whether what is taken is held while the call is in flight."""


class SendRequest(NamedTuple):
    """A step: send the request; the answer is a ServerResponse or a Failure."""


class ReadToEnd(NamedTuple):
    """A step: read a response to its end, which frees its connection; the answer is a ServerResponse or a Failure."""

    response: Any


class Free(NamedTuple):
    """A step: free what an attempt holds; None for what it cost, 0 for nothing, as it was not sent."""

    held: HeldCall
    actual: int | None = None


class FreeWhenClosed(NamedTuple):
    """A step: free what an attempt holds once its response is closed, or read to its end."""

    response: Any
    held: HeldCall


class ServerResponse(NamedTuple):
    """What a server answered; `response` is the library's own."""

    status: int
    headers: Mapping[str, str]
    response: Any


class Failure(NamedTuple):
    """A request without an answer."""

    error: Exception
    fate: Fate


Step = Turn | Sleep | SendRequest | ReadToEnd | Free | FreeWhenClosed
CallSteps = Generator[Step, Any, Any]


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """What is to be known of a request."""

    request: Any
    """The library's own."""

    key: Key
    cost: Cost
    idempotent: bool
    again: Callable[[], bool]
    """Whether its body can be sent (again) as it is now."""


class _Reading(NamedTuple):
    """What an outcome means."""

    accepted: bool
    """The server did the work, whatever came of it."""

    repeatable: bool
    """Whether trying again is safe and may help, if the body can be sent again."""

    refused: bool = False
    """A limit of the server's: the request was not processed."""

    wait_us: int | None = None
    """For how long the server asks to be left alone."""


class Sender:
    """Sends the requests of one client: its limiter, what it remembers of its destinations, and how it goes on."""

    def __init__(
        self, limits: ClientLimits, options: Options, *, asynchronous: bool, own: Own = lambda error, request: error
    ) -> None:
        self._own = own
        self._settings = read_options(limits, options, asynchronous=asynchronous)
        self._destinations = Destinations(
            retry_budget=self._settings.retry_budget, adaptive_k=self._settings.adaptive_k
        )
        self._clock = self._settings.clock

    @property
    def limiter(self) -> Any:
        """A Limiter or an AsyncLimiter, as the client's colour is; None without limits."""
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
        again: Callable[[], bool],
    ) -> OutgoingRequest:
        """A call of the library's `request`; `origin` is scheme, host and port of its URL, `headers` knows no case."""
        scheme, host, port = origin
        settings = self._settings
        key = (scheme, host or "-", port or _PORTS.get(scheme, 0)) if settings.key is None else settings.key(request)
        cost = settings.cost(request) if callable(settings.cost) else settings.cost
        return OutgoingRequest(request, key, cost, method.upper() in IDEMPOTENT or "Idempotency-Key" in headers, again)

    def steps(self, call: OutgoingRequest) -> CallSteps:
        """The steps of a call; the generator's result is the library's response.

        Raises RateLimited, Held or Throttled if nothing was sent, else what the library raised last. A call that
        has a response, but no time or budget for another attempt, gives that response.
        """
        settings, clock = self._settings, self._clock
        not_before_us = clock.now_us()
        deadline_us = not_before_us + settings.timeout_us
        destination = self._destinations.of(call.key, not_before_us)
        destination.add_call()
        last: ServerResponse | Failure | None = None
        obeyed = False
        tries = 0
        while True:
            turn = yield from self._wait_for_turn(call, destination, not_before_us, deadline_us)
            if isinstance(turn, HeadgateError):
                return _end(last or Failure(self._own(turn, call.request), "final"))
            outcome: ServerResponse | Failure = yield SendRequest()
            now_us = clock.now_us()
            reading = self._read(call, outcome, now_us)
            self._remember(destination, outcome, reading, now_us)
            if obeyed and reading.accepted:
                destination.give_retry_back()  # the server named the moment, and let it in: no storm
            if tries == settings.retries or not reading.repeatable or not call.again():
                return (yield from _end_holding(outcome, turn))
            not_before_us = now_us + self._backoff_us(tries)
            if max(not_before_us, destination.held_until_us) > deadline_us or not destination.take_retry(now_us):
                return (yield from _end_holding(outcome, turn))
            if isinstance(outcome, ServerResponse):
                outcome = yield ReadToEnd(outcome.response)
            last = outcome
            if turn is not None:
                yield Free(turn)
            if clock.now_us() > deadline_us:  # the response took so long to read
                destination.give_retry_back()
                return _end(outcome)
            obeyed = reading.refused and reading.wait_us is not None
            tries += 1

    def _wait_for_turn(
        self, call: OutgoingRequest, destination: Destination, not_before_us: int, deadline_us: int
    ) -> Generator[Any, Any, HeadgateError | HeldCall | None]:
        """Wait until a try may begin; the result is why it may not, or what it holds."""
        chance = destination.rejects(self._clock.now_us(), self._settings.random)
        if chance:
            return Throttled(chance)
        late = yield from self._wait_until_free(destination, not_before_us, deadline_us)
        if late is not None or self._settings.limiter is None:
            return late
        left_us = max(0, deadline_us - self._clock.now_us())
        timeout = None if self._settings.timeout_us == FOREVER_US else left_us / US_PER_SECOND
        held: HeldCall | None = None
        try:
            came: Decision | HeldCall = yield Turn(call.key, call.cost, timeout, self._settings.holds)
        except StoreError as error:
            if self._settings.closed:
                return error
            log.warning("a call was not counted: %s", error)
        else:
            if isinstance(came, HeldCall):
                held = came
            elif not came.allowed:
                if self._settings.closed and came.degraded == "closed":
                    return StoreUnavailable("the store of the limits does not answer, or has no room")
                return RateLimited(came)
        # The line may have been long.
        late = yield from self._wait_until_free(destination, not_before_us, deadline_us)
        if late is not None and held is not None:
            yield Free(held, 0)
        return held if late is None else late

    def _wait_until_free(
        self, destination: Destination, not_before_us: int, deadline_us: int
    ) -> Generator[Sleep, None, Held | None]:
        """Wait while the destination is held; the waiting calls go on one by one, at random moments."""
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

    def _read(self, call: OutgoingRequest, outcome: ServerResponse | Failure, now_us: int) -> _Reading:
        if isinstance(outcome, Failure):
            harmless = outcome.fate == "lost" and call.idempotent
            return _Reading(accepted=False, repeatable=outcome.fate == "unsent" or harmless)
        status = outcome.status
        says = told(outcome.headers, now_us=now_us)
        asked_us = None if says is None else says.refused_for_us
        if status == 429 or (status == 403 and _is_limit(says)):
            return _Reading(accepted=False, repeatable=True, refused=True, wait_us=asked_us)
        if status == 503:
            return _Reading(accepted=False, repeatable=asked_us is not None and call.idempotent, wait_us=asked_us)
        unwell = status in (502, 504)
        left_us = None if says is None else says.exhausted_for_us
        return _Reading(accepted=not unwell, repeatable=unwell and call.idempotent, wait_us=left_us)

    def _remember(
        self, destination: Destination, outcome: ServerResponse | Failure, reading: _Reading, now_us: int
    ) -> None:
        if reading.wait_us is not None:
            destination.hold(now_us, reading.wait_us)
        if isinstance(outcome, ServerResponse) or outcome.fate != "final":
            destination.count(now_us, accepted=reading.accepted)

    def _backoff_us(self, tries: int) -> int:
        """Full jitter: any pause up to one that doubles with every try."""
        return int(self._settings.random() * min(LONGEST_BACKOFF_US, BACKOFF_US << tries))


def _is_limit(says: Told | None) -> bool:
    """Whether a 403 means what others say by 429, as GitHub's does."""
    return says is not None and (says.retry_after_us is not None or says.exhausted)


def _end(outcome: ServerResponse | Failure) -> Any:
    if isinstance(outcome, Failure):
        raise outcome.error
    return outcome.response


def _end_holding(outcome: ServerResponse | Failure, held: HeldCall | None) -> Generator[Step, None, Any]:
    """`_end` of an attempt that may hold places, which a response keeps until it is closed."""
    if held is not None:
        yield FreeWhenClosed(outcome.response, held) if isinstance(outcome, ServerResponse) else Free(held)
    return _end(outcome)


class Wire(Protocol):
    """What a library does with one request. Its methods `send` and `keep` are coroutines where it is asynchronous."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What the library raises where there is no answer."""
        ...

    def send(self) -> Any:
        """Send the request; the library's response."""
        ...

    def keep(self, response: Any) -> Any:
        """Read a response to its end; one that can be read once more."""
        ...

    def free_when_closed(self, response: Any, held: HeldCall) -> Any:
        """Have what is held freed once a response is closed, or read to its end; at once if it is so already."""
        ...

    def answer(self, response: Any) -> ServerResponse:
        """A response as the steps see it."""
        ...

    def fate(self, error: Exception) -> Fate:
        """What one of `errors` means."""
        ...


def run(steps: CallSteps, wire: Wire, limiter: Limiter | None) -> Any:
    """The response that the steps of a call come to, waited for in this thread."""
    held: list[HeldCall] = []
    try:
        return drive(steps, _doing(wire, limiter, drive, Event().wait, _held_turn, held))
    except BaseException:
        for each in held:
            each.free()
        raise


def run_async(steps: CallSteps, wire: Wire, limiter: AsyncLimiter | None) -> Coroutine[Any, Any, Any]:
    """`run` on an event loop, which is never blocked."""
    held: list[HeldCall] = []
    return _freeing(steps, _doing(wire, limiter, drive_async, asyncio.sleep, _held_turn_async, held), held)


async def _freeing(steps: CallSteps, do: Callable[[Step], Any], held: list[HeldCall]) -> Any:
    try:
        return await drive_async(steps, do)
    except BaseException:
        for each in held:
            await each.free()
        raise


def _doing(
    wire: Wire,
    limiter: Any,
    driven: Callable[[Any], Any],
    sleep: Callable[[float], Any],
    held_turn: Callable[[Any, Turn, list[HeldCall]], Any],
    held: list[HeldCall],
) -> Callable[[Step], Any]:
    """How a step is done; in asyncio it gives an awaitable. `held` is what the call holds while it is going on."""

    def do(step: Step) -> Any:
        match step:
            case Turn(key, cost, timeout, holds):
                return held_turn(limiter, step, held) if holds else limiter.acquire(key, cost, timeout=timeout)
            case Sleep(seconds):
                return sleep(seconds)
            case SendRequest():
                return driven(_outcome(wire, wire.send))
            case ReadToEnd(response):
                return driven(_outcome(wire, partial(wire.keep, response)))
            case Free(own, actual):
                held.clear()
                return own.free(actual)
            case FreeWhenClosed(response, own):
                held.clear()
                return wire.free_when_closed(response, own)

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


def _outcome(wire: Wire, call: Callable[[], Any]) -> Generator[Any, Any, ServerResponse | Failure]:
    """What comes of what a library does, as the steps see it."""
    try:
        return wire.answer((yield call()))
    except wire.errors as error:
        return Failure(error, wire.fate(error))

"""What stands before an application: which limits to ask for a request, and what to answer. No framework, no I/O.

`asgi` and `wsgi` are its two skins, and what stands before single routes has others; `judge` and
`judge_async` drive it where the time of a Python call does not matter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable
from inspect import iscoroutinefunction
from threading import Event
from typing import Any, NamedTuple, Protocol, cast

from headgate.clock import SYSTEM_CLOCK
from headgate.decision import Decision
from headgate.drive import answered, drive, drive_async
from headgate.errors import ConfigError, StoreError
from headgate.http.fields.dialects import fields_of
from headgate.http.fields.ratelimit import Passing, passes_without_words, passing_writer
from headgate.http.refusal import PROBLEM_JSON, REDUCED_CAPACITY, answer_of, problem_json
from headgate.http.server.functions import given_own
from headgate.http.server.options import (
    AnyPolicy,
    Options,
    Refusal,
    Response,
    RouteOptions,
    check_limits,
    cost_of,
    function_of,
)
from headgate.http.server.request_limits import Asked, AskWithin, RequestLimits
from headgate.policy.compiled import ALL_RULES
from headgate.policy.gate import AsyncGate, Gate
from headgate.policy.request import Request
from headgate.stores.guard.fallback import check_choice
from headgate.stores.protocol import Store, warm_up_async

_log = logging.getLogger("headgate")
_DEGRADED = "X-RateLimit-Degraded"
_PLAIN_HEADERS = "draft-11"


class Answer(NamedTuple):
    """What becomes of a request: it is refused, or passes with these fields on its response after a while."""

    refusal: Refusal | None
    fields: list[tuple[str, str]]
    delay_us: int
    decision: Decision | None = None
    """None where the request is not limited, or was not judged."""


class JudgedAt(Protocol):
    """What has judged a request at one place, and what it counted it under.

    `by` is the same whenever the place is asked again, and another at any other place.
    """

    @property
    def front(self) -> Front: ...
    @property
    def by(self) -> object: ...
    @property
    def counted_as(self) -> str: ...


class Judged(NamedTuple):
    """`JudgedAt`, as a value."""

    front: Front
    by: object
    counted_as: str


PASSES = Answer(None, [], 0)


class Front:
    """Judges the requests of one application, or of routes if it is `routed`: then each endpoint counts by itself.

    `asynchronous` tells which colour its skin is.
    """

    def __init__(
        self,
        policy: AnyPolicy | Gate | AsyncGate | None,
        options: Options | RouteOptions,
        *,
        asynchronous: bool,
        routed: bool = False,
    ) -> None:
        unknown = set(options) - set(Options.__annotations__) - set(RouteOptions.__annotations__ if routed else ())
        if unknown:
            raise TypeError(f"no option is named {', '.join(sorted(unknown))}")
        told = given_own(options)
        if (policy is None) == (told.get("limits") is None):
            raise ConfigError("give a policy (a file, its values, or a gate), or limits; one of the two")
        if policy is None:
            check_limits(told["limits"])
        self._asynchronous = asynchronous
        self.clock = told.get("clock", SYSTEM_CLOCK)
        self.fields = fields_of(told.get("headers", _PLAIN_HEADERS), self.clock)
        self._exempt = function_of(told, "exempt")
        self._cost = cost_of(told)
        self._refusal = function_of(told, "refusal")
        self._observe = function_of(told, "on_decision")
        self._closed = check_choice(told.get("on_store_error")) == "closed"
        self._wait = told.get("wait", 0)
        self.ask: Callable[[Request], Asked]
        self._owned: Store | None = None
        self._limits: RequestLimits | None = None
        if policy is None:
            self._limits = RequestLimits(told, asynchronous=asynchronous, routed=routed)
            self._owned = self._limits.owned
            self.ask = self._limits.ask
        else:
            self._gate = self._open(policy, told)
            self._ruleset = told.get("ruleset", ALL_RULES)
            later = iscoroutinefunction(self._exempt) or iscoroutinefunction(self._cost)
            if later and not asynchronous:
                raise ConfigError("a coroutine function goes before an asyncio application only")
            self.ask = self._ask_gate_later if later else self._ask_gate
        self.passing = self._passing(told.get("headers", _PLAIN_HEADERS))
        """The fields of a decision that passes at once, as the skin has them; None where `answer` is to be asked."""

        self.ask_peer = None if self._limits is None else self._limits.ask_peer
        """Decides for who sent a request that is no OPTIONS, where nothing else of it matters; see `RequestLimits`."""

        self.ask_scope = None
        """Decides natively for the scope of an HTTP request, where it can; see `headgate._native.PeerLimits.ask`."""
        self.ask_within: AskWithin | None = None
        """`ask_scope` for requests of routes, and with the decision."""
        self.ask_environ = None
        """`ask_scope` for the environ of a WSGI request."""
        if self._limits is not None and self._tells_plainly(told):
            if not asynchronous:
                self.ask_environ = self._limits.ask_environ()
            elif routed:
                self.ask_within = self._limits.ask_within()
            else:
                self.ask_scope = self._limits.ask_scope()

        self.settles = "counts" in told
        """Whether `settle` is to be called when the application has answered."""

    def _tells_plainly(self, told: dict[str, Any]) -> bool:
        return self._observe is None and told.get("headers", _PLAIN_HEADERS) == _PLAIN_HEADERS

    def _passing(self, headers: Any) -> Passing:
        if self._observe is not None:
            return _more_to_say
        if headers == "none":
            return passes_without_words
        if headers != _PLAIN_HEADERS:
            return _more_to_say
        definitions = None if self._limits is None else self._limits.definitions
        return passing_writer(definitions, encoded=self._asynchronous)

    def answer(self, request: Request, decision: Decision) -> Answer:
        """What becomes of a request that was judged."""
        if self._observe is not None:
            self._observe(request, decision)
        if decision.allowed:
            fields = self.fields(decision)
            if decision.degraded:
                fields = [*fields, (_DEGRADED, decision.degraded)]
            # Who stood in line has waited.
            return Answer(None, fields, 0 if self._wait else decision.delay_us, decision)
        status, headers, body = answer_of(decision, self.fields)
        refusal = Refusal(status, [*headers, ("Content-Type", PROBLEM_JSON)], body or b"")
        own = self._refusal(request, decision, refusal) if self._refusal is not None else None
        return Answer(refusal if own is None else own, [], 0, decision)

    def without_store(self, error: StoreError) -> Answer:
        """What becomes of a request that could not be judged."""
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

    @property
    def shares_store(self) -> bool:
        """Whether its limits are on a store that others may use, too; a policy says itself what counts together."""
        return self._limits is not None and self._limits.shares_store

    @property
    def store(self) -> Store | None:
        """Where the states of its limits are; None for a policy."""
        return None if self._limits is None else self._limits.store

    def apart(self, counted_as: str, by: object, judged: Iterable[JudgedAt]) -> str:
        """What to count a request under where limits of other places have `judged` it: with a number, if one of them
        uses the same counter. So each place has its own, in the order in which they are asked.
        """
        own = self._limits
        if own is None:
            return counted_as
        taken = {
            other.counted_as
            for other in judged
            if other.by != by and other.front._limits is not None and own.may_share(other.front._limits)
        }
        number, place = 1, counted_as
        while place in taken:
            number += 1
            place = f"{counted_as} ({number})"
        return place

    def note_charge(self, request: Request, asked_us: int) -> None:
        """Note what a request was charged that was decided by `ask_within`, for `take_back`."""
        if self._limits is not None:
            self._limits.note_charge(request, asked_us)

    def settle(self, request: Request, answer: Answer, response: Response) -> None:
        """Let count of a request that passed what `counts` says of its response; where the store fails, all counts."""
        _finish(self._settling(request, answer, response))

    async def settle_async(self, request: Request, answer: Answer, response: Response) -> None:
        """`settle` on an event loop."""
        await _finish_async(self._settling(request, answer, response))

    def take_back(self, request: Request, answer: Answer) -> None:
        """Undo the charge of a request that passed here and was refused elsewhere; where the store fails, it counts.

        Only what judges routes keeps its charges for this; elsewhere nothing is undone.
        """
        _finish(self._taking_back(request, answer))

    async def take_back_async(self, request: Request, answer: Answer) -> None:
        """`take_back` on an event loop."""
        await _finish_async(self._taking_back(request, answer))

    async def warm_up_async(self) -> None:
        """Have the store connect before the first request; where it fails, that is told in the log."""
        await (self._gate.warm_up() if self._limits is None else warm_up_async(self._limits.store))

    def close(self) -> None:
        """Close the store, if it was opened here."""
        owned, self._owned = self._owned, None
        if owned is not None:
            owned.close()

    async def aclose(self) -> None:
        """`close` on an event loop."""
        owned, self._owned = self._owned, None
        if owned is not None:
            await owned.aclose()

    def _settling(self, request: Request, answer: Answer, response: Response) -> Generator[Any, Any, None]:
        if self._limits is None or answer.decision is None or answer.refusal is not None:
            return
        yield from self._limits.settling(request, answer.decision, response)

    def _taking_back(self, request: Request, answer: Answer) -> Generator[Any, Any, None]:
        if self._limits is not None and answer.decision is not None and answer.refusal is None:
            yield from self._limits.taking_back(request, answer.decision)

    def _open(self, policy: AnyPolicy | Gate | AsyncGate, told: dict[str, Any]) -> Any:
        alone = [name for name in _WITH_LIMITS if name in told]
        if alone:
            raise ConfigError(f"{alone[0]} goes with limits; a policy says it itself")
        kind, other = (AsyncGate, Gate) if self._asynchronous else (Gate, AsyncGate)
        if isinstance(policy, other):
            raise ConfigError(f"this application needs a {kind.__name__}, not a {other.__name__}")
        if isinstance(policy, kind):
            for name in ("store", "clock", "on_store_error"):
                if name in told:
                    raise ConfigError(f"{name} goes with a policy; a gate has its own")
            return policy
        store = told.get("store")
        own: dict[str, Any] = {name: told[name] for name in ("clock", "on_store_error") if name in told}
        gate: Any = kind(cast(AnyPolicy, policy), store=store, **own)
        if store is None or isinstance(store, str):
            self._owned = gate.store
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

    async def _ask_gate_later(self, request: Request) -> Decision | None:
        """`_ask_gate` where functions are to be awaited."""
        if self._exempt is not None and await answered(self._exempt(request)):
            return None
        cost = await answered(self._cost(request)) if callable(self._cost) else self._cost
        decision: Decision = await answered(self._gate.ask(request, cost, ruleset=self._ruleset))
        return decision


def _more_to_say(decision: Decision) -> None:
    return None


_WITH_LIMITS = (
    "key",
    "missing",
    "repeated",
    "tier",
    "counts",
    "shadow",
    "name",
    "wait",
    "trusted_proxies",
    "trusted_hops",
    "address_header",
    "ipv6_prefix",
    "ipv6_wide",
)


def _finish(steps: Generator[Any, Any, None]) -> None:
    """Settle a charge in this thread; where the store fails, it stays."""
    try:
        drive(steps)
    except StoreError as error:
        _log.warning("a request was not settled: %s", error)


async def _finish_async(steps: Generator[Any, Any, None]) -> None:
    """`_finish` on an event loop."""
    try:
        await drive_async(steps)
    except StoreError as error:
        _log.warning("a request was not settled: %s", error)


def judge(front: Front, request: Request) -> Answer:
    """Ask for a request in this thread, and wait as long as a queue delays it."""
    try:
        decision = cast(Decision | None, front.ask(request))
    except StoreError as error:
        return front.without_store(error)
    if decision is None:
        return PASSES
    answer = front.answer(request, decision)
    if answer.delay_us:
        Event().wait(front.clock.let_pass(answer.delay_us))
    return answer


async def judge_async(front: Front, request: Request) -> Answer:
    """`judge` on an event loop, which is never blocked."""
    try:
        decision = await answered(front.ask(request))
    except StoreError as error:
        return front.without_store(error)
    return PASSES if decision is None else await answer_async(front, request, decision)


async def answer_async(front: Front, request: Request, decision: Decision) -> Answer:
    """What becomes of a request that was judged, once it has waited as long as a queue delays it."""
    answer = front.answer(request, decision)
    if answer.delay_us:
        await asyncio.sleep(front.clock.let_pass(answer.delay_us))
    return answer

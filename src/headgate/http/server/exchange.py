"""One request's life before one or several limits: judge, tell, settle, take back.

An exchange begins when the first limit is asked. A limit that refuses takes back what those before it charged. What
passed is told on the response, all limits in one, and the exchange ends when the application has answered or failed,
once: then the charges are settled. Every skin drives this, in its own colour; there is no I/O and no framework here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Iterator
from threading import Event
from typing import Any, NamedTuple, cast

from headgate.decision import Decision
from headgate.drive import answered_in_any_case
from headgate.errors import StoreError
from headgate.http.server.enforcer import NOT_LIMITED, Enforcer, Verdict, finish, finish_async
from headgate.http.server.options import Refusal, Response, without_content
from headgate.http.server.request_limits import Charge
from headgate.http.server.web_gates import NOWHERE
from headgate.policy.request import Request


class Judgement:
    """What one enforcer said of the request, and what that charged."""

    # Plain attributes with defaults: a judgement is made without entering a frame.
    enforcer: Enforcer

    request: Request | None = None
    """As `counts` is given it; None where it is not."""

    by: object = None
    counted_as: str = ""
    """See `Enforcer.apart`."""

    decision: Decision | None = None
    """None where the request is not limited, or the store did not answer."""

    refusal: Refusal | None = None
    """What is answered instead of letting the request pass."""

    told: list[Any] | None = None
    """The fields of a request that passes at once: bytes of an asynchronous enforcer, else text."""

    charge: Charge | tuple[Any, int] | None = None
    """What the request was charged, where no `request` has it; or under which key and when, if that was natively."""

    has_passed: bool = False
    """Whether the request passed here, and no other limit refused it since."""

    _verdict: Verdict | None = None

    @property
    def verdict(self) -> Verdict:
        """What becomes of the request."""
        if self._verdict is None:
            decision = self.decision
            if decision is None:
                return NOT_LIMITED
            told = None if self.enforcer.asynchronous else self.told
            fields = self.enforcer.response_fields(decision) if told is None else told
            self._verdict = Verdict(None, fields, 0, decision)
        return self._verdict

    def read(self, environ: Any) -> Any:
        """What the native gate decides of an environ; None where it leaves the request to Python."""
        enforcer, gate, endpoint = self.enforcer, self.enforcer.web_gate, ""
        if gate.distinguishes_endpoints:  # which takes longer to find out than to decide
            endpoint = self.counted_as or getattr(self.request, "endpoint", "")
        asked_us = enforcer.clock.now_us() if enforcer.keeps_charges else 0
        decided = gate.decide_view(environ, endpoint or NOWHERE)
        if decided is None:
            return None
        came, self.told, key = decided
        if enforcer.keeps_charges:
            self.charge = (key, asked_us)
        if self.told is not None:
            self.decision = came
        return came

    def conclude(self, request: Request, came: Decision | StoreError | None) -> int:
        """Note what the enforcer decided; gives for how many microseconds the request waits now."""
        if isinstance(came, StoreError):
            verdict = self.enforcer.verdict_without_store(came)
        elif came is None:
            return 0
        else:
            self.decision = came
            verdict = self.enforcer.verdict(request, came)
        self._verdict = verdict
        self.refusal = verdict.refusal
        return verdict.delay_us

    def take_charge(self) -> Charge | None:
        """What the request was charged here, given once."""
        charge, self.charge = self.charge, None
        if charge is None and self.request is not None:
            own: Charge | None = getattr(self.request, "charge", None)
            self.request.charge = None
            return own
        if charge is None or isinstance(charge, Charge):
            return charge
        key, asked_us = charge
        return self.enforcer.charge_of(key, asked_us)

    @property
    def wait_us(self) -> float:
        """After how many microseconds a refused request would pass."""
        decision = self.decision
        return float("inf") if decision is None or decision.retry_after_us is None else decision.retry_after_us

    @property
    def left(self) -> float:
        """The units that remain of its limits."""
        decision = self.decision
        return float("inf") if decision is None or decision.remaining is None else decision.remaining


class Step(NamedTuple):
    """What is to be done with the charge of one judgement, in the colour in which it was judged."""

    judgement: Judgement
    response: Response | None
    """What the charge is settled by; None to take it back."""

    def actions(self) -> Generator[Any, Any, None] | None:
        """The calls of the store, each perhaps to be awaited."""
        judgement, response = self
        charge, decision = judgement.take_charge(), judgement.decision
        if charge is None or decision is None or judgement.refusal is not None:
            return None
        if response is None:
            return judgement.enforcer.taking_back(charge, decision)
        if judgement.request is None and charge.held is None:
            return None
        return judgement.enforcer.settling(charge, judgement.request, decision, response)


class Exchange:
    """A request before the limits that it comes to, in the order in which they are asked: the outermost first."""

    # Plain attributes with defaults: an exchange is made without entering a frame.
    watched = False
    """Whether a skin sees the response, and ends the exchange: those further in need not."""

    settles = False
    """Whether the response says what counts, so that `end` has to be called."""

    holds = False
    """Whether a limit may hold the request until its response has ended, which is when its last part is sent."""

    _judged: tuple[Judgement, ...] = ()
    _refused: Judgement | None = None
    _is_ended = False

    @property
    def is_refused(self) -> bool:
        """Whether a limit refused the request."""
        return self._refused is not None

    def has_passed(self, enforcer: Enforcer) -> bool:
        """Whether an enforcer let the request pass already."""
        return any(it.enforcer is enforcer and it.has_passed for it in self._judged)

    def has_judged(self, by: object) -> bool:
        """Whether the limit `by` was asked already."""
        return any(judgement.by is by for judgement in self._judged)

    def passed(self, by: object) -> Judgement | None:
        """What the limit `by` said when it let the request pass; None where it has not."""
        return next((judgement for judgement in self._judged if judgement.by is by and judgement.has_passed), None)

    # Judge

    def judge(
        self,
        enforcer: Enforcer,
        request: Request,
        by: object = None,
        counted_as: str = "",
        decided: Any = None,
        environ: Any = None,
    ) -> Judgement:
        """Ask an enforcer in this thread, and wait as long as a queue delays the request.

        It counts under `counted_as`, with a number where another place counts so already; see `Enforcer.apart`, also
        for `by`. `decided` is what was given natively, or the StoreError that it raised; where nothing was, the
        `environ` of the request may be read natively.
        """
        judgement = Judgement()
        judgement.enforcer, judgement.request, judgement.by, judgement.counted_as = enforcer, request, by, counted_as
        if counted_as or self._judged:
            self._place(judgement, request)
        came: Any = decided
        if came is None:
            try:
                if environ is None or enforcer.web_gate is None or (came := judgement.read(environ)) is None:
                    came = enforcer.ask(request)
            except StoreError as error:
                came = error
        if judgement.told is None and type(came) is Decision and came.allowed and not enforcer.asynchronous:
            judgement.decision = came
            judgement.told = enforcer.passing(came)
        if judgement.told is None:
            delay_us = judgement.conclude(request, came)
            if judgement.refusal is not None:
                if self._refuse(judgement):
                    self.take_back()
                return judgement
            if delay_us:
                Event().wait(enforcer.clock.let_pass(delay_us))
        self._pass(judgement)
        return judgement

    async def judge_async(
        self, enforcer: Enforcer, request: Request, by: object = None, counted_as: str = "", environ: Any = None
    ) -> Judgement:
        """`judge` on an event loop, which is never blocked."""
        judgement = Judgement()
        judgement.enforcer, judgement.request, judgement.by, judgement.counted_as = enforcer, request, by, counted_as
        if counted_as or self._judged:
            self._place(judgement, request)
        came: Any
        try:
            if environ is None or enforcer.web_gate is None or (came := judgement.read(environ)) is None:
                came = enforcer.ask(request)
            if came is not None and type(came) is not Decision:
                came = await came
        except StoreError as error:
            came = error
        if judgement.told is None:
            delay_us = judgement.conclude(request, came)
            if judgement.refusal is not None:
                if self._refuse(judgement):
                    await self.take_back_async()
                return judgement
            if delay_us:
                await self.wait(judgement, delay_us)
        self._pass(judgement)
        return judgement

    async def wait(self, judgement: Judgement, delay_us: int) -> None:
        """Wait for the turn of a request in a queue; what holds it lets go of it where it is cancelled meanwhile."""
        try:
            await asyncio.sleep(judgement.enforcer.clock.let_pass(delay_us))
        except asyncio.CancelledError:
            if judgement.enforcer.holds:
                await answered_in_any_case(self.do_async(Step(judgement, None)))
            raise

    def _place(self, judgement: Judgement, request: Request) -> None:
        """Say what a request is counted under at a place."""
        if self._judged:
            judgement.counted_as = judgement.enforcer.apart(judgement.counted_as, judgement.by, self._judged)
        if judgement.counted_as:
            request.counted_as = judgement.counted_as

    def _pass(self, judgement: Judgement) -> None:
        """Note that the request passed at a place."""
        judgement.has_passed = True
        self._judged += (judgement,)
        if judgement.enforcer.settles and judgement.decision is not None:
            self.settles = True
            self.holds = self.holds or judgement.enforcer.holds

    def _refuse(self, judgement: Judgement) -> bool:
        """Note a refusal; whether limits before it are to take back what they charged.

        Of several refusals the one with the longest wait is told.
        """
        if self._refused is None or judgement.wait_us > self._refused.wait_us:
            self._refused = judgement
        begun = bool(self._judged)
        self._judged += (judgement,)
        return begun

    # Tell

    def fields(self) -> list[tuple[str, str]]:
        """The header fields to add to the response: those of a refusal but for its body, or those of all limits.

        Under each name those of the limit that has least left.
        """
        if self._refused is not None:
            return without_content(cast(Refusal, self._refused.refusal))
        return self.fields_of_passed()

    def fields_of_passed(self) -> list[tuple[str, str]]:
        """The header fields of the limits that let the request pass."""
        passed = [judgement for judgement in self._judged if judgement.has_passed]
        if len(passed) == 1:
            return passed[0].verdict.fields
        fields: dict[str, tuple[str, str]] = {}
        for judgement in sorted(passed, key=_left):
            for name, value in judgement.verdict.fields:
                fields.setdefault(name.lower(), (name, value))
        return list(fields.values())

    # Settle, and take back

    def taking_back(self) -> Iterator[Step]:
        """Give back all charges: the request does not reach the application."""
        self.settles = False
        for judgement in reversed(self._judged):
            if judgement.has_passed:
                judgement.has_passed = False
                yield Step(judgement, None)

    def ending(self, response: Response) -> Iterator[Step]:
        """The request has ended, however it ended: settle what it was charged.

        This is the one point at which an exchange ends. Whatever saw the response calls it; called again it does
        nothing.
        """
        if self._is_ended:
            return
        self._is_ended = True
        for judgement in self._judged:
            if judgement.has_passed:  # whatever a policy that was reloaded since says
                yield Step(judgement, response)

    def end(self, response: Response) -> None:
        """Do what `ending` says in this thread."""
        for step in self.ending(response):
            self.do(step)

    async def end_async(self, response: Response) -> None:
        """Do what `ending` says on an event loop; also where the client is gone and the task is cancelled."""
        if self.settles:
            await answered_in_any_case(self._do_all_async(self.ending(response)))

    def take_back(self) -> None:
        """Do what `taking_back` says in this thread."""
        for step in self.taking_back():
            self.do(step)

    async def take_back_async(self) -> None:
        """Do what `taking_back` says on an event loop."""
        await answered_in_any_case(self._do_all_async(self.taking_back()))

    async def _do_all_async(self, steps: Iterable[Step]) -> None:
        for step in steps:
            await self.do_async(step)

    def do(self, step: Step) -> None:
        """Do a step in this thread."""
        if (actions := step.actions()) is not None:
            finish(actions)

    async def do_async(self, step: Step) -> None:
        """Do a step on an event loop."""
        if (actions := step.actions()) is not None:
            await finish_async(actions)


def _left(judgement: Judgement) -> float:
    return judgement.left

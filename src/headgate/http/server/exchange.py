"""The course of a request through one or several limits: judge, report, settle, take back.

An exchange begins when the first limit judges the request. A limit that refuses takes back what those before it
charged. The response to a request that passes has the fields of all limits, merged. The exchange ends once, when the
application has answered or failed: then the charges are settled. Every adapter drives this, in threads or in asyncio;
there is no I/O and no framework here.
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
    """The decision of one enforcer on the request, and its charge."""

    # Plain attributes with defaults: a judgement is created without entering a frame.
    enforcer: Enforcer

    request: Request | None = None
    """The argument of `counts`; None where there is no such function."""

    place_id: object = None
    counted_as: str = ""
    """See `Enforcer.counter_name`, also for `place_id`."""

    decision: Decision | None = None
    """None where the request is not limited, or the store did not answer."""

    refusal: Refusal | None = None
    """The response that is sent instead of letting the request pass."""

    fields: list[Any] | None = None
    """The fields of a request that passes at once: bytes for an asynchronous enforcer, else text."""

    charge: Charge | tuple[Any, int] | None = None
    """The charge, where `request` does not have it; (key, time in microseconds) if it was charged natively."""

    has_passed: bool = False
    """Whether the request passed here, and no other limit has refused it since."""

    _verdict: Verdict | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict on the request."""
        if self._verdict is None:
            decision = self.decision
            if decision is None:
                return NOT_LIMITED
            text_fields = None if self.enforcer.asynchronous else self.fields
            fields = self.enforcer.response_fields(decision) if text_fields is None else text_fields
            self._verdict = Verdict(None, fields, 0, decision)
        return self._verdict

    def read(self, environ: Any) -> Any:
        """Return the native gate's decision on an environ; None where it leaves the request to Python."""
        enforcer, gate, endpoint = self.enforcer, self.enforcer.web_gate, ""
        if gate.distinguishes_endpoints:  # finding the endpoint takes longer than deciding
            endpoint = self.counted_as or getattr(self.request, "endpoint", "")
        requested_us = enforcer.clock.now_us() if enforcer.keeps_charges else 0
        decided = gate.decide_view(environ, endpoint or NOWHERE)
        if decided is None:
            return None
        outcome, self.fields, key = decided
        if enforcer.keeps_charges:
            self.charge = (key, requested_us)
        if self.fields is not None:
            self.decision = outcome
        return outcome

    def conclude(self, request: Request, outcome: Decision | StoreError | None) -> int:
        """Record the enforcer's decision; return for how many microseconds the request has to wait now."""
        if isinstance(outcome, StoreError):
            verdict = self.enforcer.verdict_without_store(outcome)
        elif outcome is None:
            return 0
        else:
            self.decision = outcome
            verdict = self.enforcer.verdict(request, outcome)
        self._verdict = verdict
        self.refusal = verdict.refusal
        return verdict.delay_us

    def take_charge(self) -> Charge | None:
        """Return the charge of the request here, and forget it: a second call returns None."""
        charge, self.charge = self.charge, None
        if charge is None and self.request is not None:
            own: Charge | None = getattr(self.request, "charge", None)
            self.request.charge = None
            return own
        if charge is None or isinstance(charge, Charge):
            return charge
        key, requested_us = charge
        return self.enforcer.charge_of(key, requested_us)

    @property
    def wait_us(self) -> float:
        """After how many microseconds a refused request would pass."""
        decision = self.decision
        return float("inf") if decision is None or decision.retry_after_us is None else decision.retry_after_us

    @property
    def remaining(self) -> float:
        """The units that its limits have left."""
        decision = self.decision
        return float("inf") if decision is None or decision.remaining is None else decision.remaining


class Step(NamedTuple):
    """The settlement or the taking back of one judgement's charge, done in threads or asyncio as the judgement was."""

    judgement: Judgement
    response: Response | None
    """The response that the charge is settled by; None to take the charge back."""

    def actions(self) -> Generator[Any, Any, None] | None:
        """Return the calls of the store, each of which may have to be awaited; None where there are none."""
        judgement, response = self
        charge, decision = judgement.take_charge(), judgement.decision
        if charge is None or decision is None or judgement.refusal is not None:
            return None
        if response is None:
            return judgement.enforcer.take_back_steps(charge, decision)
        if judgement.request is None and charge.held is None:
            return None
        return judgement.enforcer.settle_steps(charge, judgement.request, decision, response)


class Exchange:
    """A request and the limits that judge it, in the order in which they do: the outermost first."""

    # Plain attributes with defaults: an exchange is created without entering a frame.
    watched = False
    """Whether an adapter sees the response, and ends the exchange: those further in need not."""

    settles = False
    """Whether the response determines what counts, so that `end` has to be called."""

    holds = False
    """Whether a limit may hold the request until its response has ended, which is when its last part is sent."""

    _judgements: tuple[Judgement, ...] = ()
    _refused: Judgement | None = None
    _is_ended = False

    @property
    def is_refused(self) -> bool:
        """Whether a limit refused the request."""
        return self._refused is not None

    def has_passed(self, enforcer: Enforcer) -> bool:
        """Whether an enforcer has let the request pass already."""
        return any(it.enforcer is enforcer and it.has_passed for it in self._judgements)

    def has_judged(self, place_id: object) -> bool:
        """Whether the limit at `place_id` has judged the request already."""
        return any(judgement.place_id is place_id for judgement in self._judgements)

    def passed(self, place_id: object) -> Judgement | None:
        """Return the judgement of the limit at `place_id` that let the request pass; None where there is none."""
        return next(
            (judgement for judgement in self._judgements if judgement.place_id is place_id and judgement.has_passed),
            None,
        )

    # Judge

    def judge(
        self,
        enforcer: Enforcer,
        request: Request,
        place_id: object = None,
        counted_as: str = "",
        decided: Any = None,
        environ: Any = None,
    ) -> Judgement:
        """Have an enforcer judge the request in this thread, and wait as long as a queue delays the request.

        The request counts under `counted_as`, with a number where another place uses that name already; see
        `Enforcer.counter_name`, also for `place_id`. `decided` is the native decision, or the StoreError that it
        raised; without one, the native gate may read the request's `environ`.
        """
        judgement = Judgement()
        judgement.enforcer, judgement.request = enforcer, request
        judgement.place_id, judgement.counted_as = place_id, counted_as
        if counted_as or self._judgements:
            self._assign_counter(judgement, request)
        outcome: Any = decided
        if outcome is None:
            try:
                if environ is None or enforcer.web_gate is None or (outcome := judgement.read(environ)) is None:
                    outcome = enforcer.decide(request)
            except StoreError as error:
                outcome = error
        if judgement.fields is None and type(outcome) is Decision and outcome.allowed and not enforcer.asynchronous:
            judgement.decision = outcome
            judgement.fields = enforcer.passing_fields(outcome)
        if judgement.fields is None:
            delay_us = judgement.conclude(request, outcome)
            if judgement.refusal is not None:
                if self._refuse(judgement):
                    self.take_back()
                return judgement
            if delay_us:
                Event().wait(enforcer.clock.let_pass(delay_us))
        self._pass(judgement)
        return judgement

    async def judge_async(
        self, enforcer: Enforcer, request: Request, place_id: object = None, counted_as: str = "", environ: Any = None
    ) -> Judgement:
        """`judge` on an event loop, which is never blocked."""
        judgement = Judgement()
        judgement.enforcer, judgement.request = enforcer, request
        judgement.place_id, judgement.counted_as = place_id, counted_as
        if counted_as or self._judgements:
            self._assign_counter(judgement, request)
        outcome: Any
        try:
            if environ is None or enforcer.web_gate is None or (outcome := judgement.read(environ)) is None:
                outcome = enforcer.decide(request)
            if outcome is not None and type(outcome) is not Decision:
                outcome = await outcome
        except StoreError as error:
            outcome = error
        if judgement.fields is None:
            delay_us = judgement.conclude(request, outcome)
            if judgement.refusal is not None:
                if self._refuse(judgement):
                    await self.take_back_async()
                return judgement
            if delay_us:
                await self.wait(judgement, delay_us)
        self._pass(judgement)
        return judgement

    async def wait(self, judgement: Judgement, delay_us: int) -> None:
        """Wait for the turn of a request in a queue; if it is cancelled meanwhile, what it holds is freed."""
        try:
            await asyncio.sleep(judgement.enforcer.clock.let_pass(delay_us))
        except asyncio.CancelledError:
            if judgement.enforcer.holds:
                await answered_in_any_case(self.do_async(Step(judgement, None)))
            raise

    def _assign_counter(self, judgement: Judgement, request: Request) -> None:
        """Set the name that a request is counted under at a place."""
        if self._judgements:
            judgement.counted_as = judgement.enforcer.counter_name(
                judgement.counted_as, judgement.place_id, self._judgements
            )
        if judgement.counted_as:
            request.counted_as = judgement.counted_as

    def _pass(self, judgement: Judgement) -> None:
        """Record that the request passed at a place."""
        judgement.has_passed = True
        self._judgements += (judgement,)
        if judgement.enforcer.settles and judgement.decision is not None:
            self.settles = True
            self.holds = self.holds or judgement.enforcer.holds

    def _refuse(self, judgement: Judgement) -> bool:
        """Record a refusal; return whether limits before it have to take back what they charged.

        Of several refusals the response reports the one with the longest wait.
        """
        if self._refused is None or judgement.wait_us > self._refused.wait_us:
            self._refused = judgement
        has_earlier = bool(self._judgements)
        self._judgements += (judgement,)
        return has_earlier

    # Report

    def fields(self) -> list[tuple[str, str]]:
        """Return the header fields to add to the response: a refusal's except those of its body, or all limits'.

        Of several fields of one name, that of the limit with the fewest units left is chosen.
        """
        if self._refused is not None:
            return without_content(cast(Refusal, self._refused.refusal))
        return self.fields_of_passed()

    def fields_of_passed(self) -> list[tuple[str, str]]:
        """Return the header fields of the limits that let the request pass."""
        passed = [judgement for judgement in self._judgements if judgement.has_passed]
        if len(passed) == 1:
            return passed[0].verdict.fields
        fields: dict[str, tuple[str, str]] = {}
        for judgement in sorted(passed, key=_remaining):
            for name, value in judgement.verdict.fields:
                fields.setdefault(name.lower(), (name, value))
        return list(fields.values())

    # Settle, and take back

    def take_back_steps(self) -> Iterator[Step]:
        """Yield the steps that take back all charges: the request does not reach the application."""
        self.settles = False
        for judgement in reversed(self._judgements):
            if judgement.has_passed:
                judgement.has_passed = False
                yield Step(judgement, None)

    def end_steps(self, response: Response) -> Iterator[Step]:
        """Yield the steps that settle the charges of a request that has ended, in whatever way.

        An exchange ends only here. The code that saw the response calls this; another call does nothing.
        """
        if self._is_ended:
            return
        self._is_ended = True
        for judgement in self._judgements:
            if judgement.has_passed:  # even if the policy was reloaded since
                yield Step(judgement, response)

    def end(self, response: Response) -> None:
        """End the exchange: do the `end_steps` in this thread."""
        for step in self.end_steps(response):
            self.do(step)

    async def end_async(self, response: Response) -> None:
        """Do the `end_steps` on an event loop, also if the client is gone and the task is cancelled."""
        if self.settles:
            await answered_in_any_case(self._do_all_async(self.end_steps(response)))

    def take_back(self) -> None:
        """Do the `take_back_steps` in this thread."""
        for step in self.take_back_steps():
            self.do(step)

    async def take_back_async(self) -> None:
        """Do the `take_back_steps` on an event loop."""
        await answered_in_any_case(self._do_all_async(self.take_back_steps()))

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


def _remaining(judgement: Judgement) -> float:
    return judgement.remaining

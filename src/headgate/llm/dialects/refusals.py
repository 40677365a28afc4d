"""The answer to a refused call, in a form for which the client's package raises the error of a provider's refusal.

A wait of up to a minute is sent in `retry-after`, and packages retry by themselves. A refusal that no short wait cures
(a budget, a limit of a day, a call larger than its limit) has `x-should-retry: false`, and its message and the headers
of the limit say when that resets. See docs/decisions/0051-refusals-of-language-models.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from headgate.amounts import REQUESTS, grouped_text, is_money, number_text
from headgate.clock import SYSTEM_CLOCK, Clock
from headgate.decision import Decision, LimitReading
from headgate.llm.dialects.answers import NO_RETRY, SHORT_WAIT_US, Answer, duration_text, error_answer, retry_headers
from headgate.llm.dialects.fields import limit_headers, moment_text
from headgate.llm.dialects.paths import Family
from headgate.llm.dialects.problems import Problem, problem_answer

_PLACE_WAIT_US = 1_000_000
"""The wait for a place in flight, which is free when a call ends: that time cannot be predicted."""

_SHORT_PERIODS = {"second": "sec", "minute": "min"}
_INITIALS = {"second": "S", "minute": "M", "hour": "H", "day": "D"}
_LETTERS = {"requests": "R", "tokens": "T", "input_tokens": "IT", "output_tokens": "OT"}


def requested_units(input_tokens: int, output_tokens: int, cost: int | None) -> dict[str, int]:
    """The amounts that a call requested, by unit: tokens each way, and billionths of a dollar if the cost is known."""
    units = {
        REQUESTS: 1,
        "tokens": input_tokens + output_tokens,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "uncached_input_tokens": input_tokens,
    }
    return units if cost is None else {**units, "usd": cost}


def refusal(
    family: Family,
    decision: Decision,
    *,
    model: str,
    caller: str = "",
    requested: Mapping[str, int] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Answer:
    """The answer to a refused call. `caller` is a name that may be shown, such as that of the caller's key.

    `requested` are the amounts that the call requested, by unit, of money in billionths (see `requested_units`).
    """
    if decision.degraded == "closed":
        message = "The limits cannot be checked at the moment, and calls are refused until they can."
        return problem_answer(family, Problem.STORE, message, wait_us=decision.retry_after_us)
    refusing = [reading for reading in decision.refusals if not reading.shadow]
    reading = decision.binding
    if reading is None or not refusing:
        message = f"The call lacks what the rule {decision.rule or 'that it meets'} counts it by."
        return error_answer(family, 429, _kind(family, REQUESTS), "rate_limit_exceeded", message, [NO_RETRY])
    wait_us = _wait_us(refusing)
    spent = [each for each in refusing if is_money(each.unit)]
    reading = spent[0] if spent else reading
    headers = [NO_RETRY] if spent else retry_headers(wait_us)
    refusal_message = _RefusalMessage(
        reading, model, caller, requested or {}, wait_us, _retry_at_us(refusing, clock.now_us())
    )
    message = refusal_message.of_anthropic() if family == "anthropic" else refusal_message.of_openai()
    code = "insufficient_quota" if spent else "rate_limit_exceeded"
    headers += limit_headers(family, decision, clock=clock)
    return error_answer(family, 429, _kind(family, reading.unit), code, message, headers)


def _kind(family: Family, unit: str) -> str:
    """The type of the error: Anthropic has one for all, OpenAI one for each kind of limit."""
    if family == "anthropic":
        return "rate_limit_error"
    if is_money(unit):
        return "insufficient_quota"
    return "requests" if unit == REQUESTS else "tokens"


def _wait_us(refusing: list[LimitReading]) -> int | None:
    """How long until all these limits may let the call pass; None for never."""
    longest = 0
    for reading in refusing:
        wait_us = reading.retry_after_us
        if wait_us is None:
            return None
        if not reading.definition.limit.is_rate:
            wait_us = min(wait_us, _PLACE_WAIT_US)
        longest = max(longest, wait_us)
    return longest


def _retry_at_us(refusing: list[LimitReading], now_us: int) -> int:
    """The time at which all these limits may let the call pass, as far as it can be predicted.

    A budget of a day is free at midnight, and not later by the time between the decision and this answer.
    """
    limits = [(reading.definition.limit, reading.retry_after_us) for reading in refusing]
    return max([limit.border_us(now_us + wait_us) for limit, wait_us in limits if limit.is_rate and wait_us], default=0)


class _RefusalMessage:
    """The message of a refusal by one limit."""

    def __init__(
        self,
        reading: LimitReading,
        model: str,
        caller: str,
        requested: Mapping[str, int],
        wait_us: int | None,
        retry_at_us: int,
    ) -> None:
        self._reading = reading
        self._limit = reading.definition.limit
        self._model = model
        self._caller = caller or reading.rule or reading.name
        self._requested = requested.get(reading.unit)
        self._wait_us = wait_us
        self._retry_at_us = retry_at_us

    def of_openai(self) -> str:
        """OpenAI's message, verbatim where it has such a limit, for programs that parse its messages."""
        if is_money(self._reading.unit):
            return f"You exceeded your current quota: {self._spent()} {self._retry()} {self._limit_name()}"
        start = "Request too large" if self._wait_us is None else "Rate limit reached"
        numbers = [f"Limit {self._number(self._reading.limit)}"]
        if self._wait_us is not None:
            numbers.append(f"Used {self._number(self._used)}")
        if self._requested is not None:
            numbers.append(f"Requested {self._number(self._requested)}")
        where = f"{start} for {self._model} in {self._caller} on {self._unit_and_period()}: {', '.join(numbers)}."
        return f"{where} {self._retry()} {self._limit_name()}"

    def of_anthropic(self) -> str:
        """A message like Anthropic's, which has no form that programs parse."""
        if is_money(self._reading.unit):
            start = f"This request would exceed the budget of {self._caller}:"
            return f"{start} {self._spent()} {self._retry()} {self._limit_name()}"
        unit = self._reading.unit.replace("_", " ")
        rate = "at one time" if not self._limit.is_rate else f"per {self._period()}"
        amount = f"{grouped_text(self._reading.limit, self._reading.unit)} {unit} {rate}"
        used = f"{grouped_text(self._used, self._reading.unit)} are used"
        if self._requested is not None:
            used += f", {grouped_text(self._requested, self._reading.unit)} were requested"
        start = f"This request would exceed the rate limit of {amount} of {self._caller} for {self._model}: {used}."
        return f"{start} {self._retry()} {self._limit_name()}"

    @property
    def _used(self) -> int:
        return max(0, self._reading.limit - self._reading.remaining)

    def _spent(self) -> str:
        unit = self._reading.unit
        parts = [f"limit {self._number(self._reading.limit)} {unit} per {self._period()}"]
        parts.append(f"used {self._number(self._used)}")
        if self._requested is not None:
            parts.append(f"requested {self._number(self._requested)}")
        return f"{', '.join(parts)}."

    def _retry(self) -> str:
        """When the call may pass."""
        if self._wait_us is None:
            return "The input or output tokens must be reduced in order to run successfully."
        text = f"Please try again in {duration_text(self._wait_us)}"
        if not self._limit.is_rate:
            return f"{text}, or when a call has ended."
        if self._wait_us > SHORT_WAIT_US:
            text += f" (at {moment_text(self._retry_at_us)})"
        return f"{text}."

    def _limit_name(self) -> str:
        return f"The limit is {self._reading.name}."

    def _number(self, amount: int) -> str:
        return number_text(amount, self._reading.unit)

    def _unit_and_period(self) -> str:
        """`tokens per min (TPM)`, `requests per day (RPD)`, `requests at one time`."""
        unit = self._reading.unit
        if not self._limit.is_rate:
            return f"{unit.replace('_', ' ')} at one time"
        letter, period = _LETTERS.get(unit), self._period()
        initial = _INITIALS.get(period)
        short = f" ({letter}P{initial})" if letter is not None and initial is not None else ""
        return f"{unit.replace('_', ' ')} per {_SHORT_PERIODS.get(period, period)}{short}"

    def _period(self) -> str:
        """`minute`, `5 minutes`."""
        name = self._limit.period_name
        count = name.rstrip("abcdefghijklmnopqrstuvwxyz")
        return f"{count} {name[len(count) :]}" if count else name

"""Judges the calls of a trace by a policy: the gate holds and settles them on the trace's clock.

A call is held when it arrives, and settled with its usage when its answer has ended: after the duration in the trace,
or that of its output at a given speed. Without either it is settled at once, and concurrency limits are left out.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from headgate.clock import utc_moment
from headgate.errors import ConfigError
from headgate.llm.call import Call
from headgate.llm.entry import Books
from headgate.llm.gate import LlmGate
from headgate.llm.learned import Learned, NothingLearned
from headgate.llm.price import price_of
from headgate.llm.prices import PriceBook
from headgate.llm.usage import Usage
from headgate.money import read_money
from headgate.policy.compiled import Policy
from headgate.replay.call_trace import TraceCall
from headgate.replay.rates_only import rates_of
from headgate.replay.series import MINUTE_US, Series
from headgate.stores.memory import MOST_KEYS, MemoryStore
from headgate.testing import ManualClock


class CallSums(NamedTuple):
    """Numbers of calls and tokens, and their cost in billionths of a dollar, unknown for `unpriced` calls."""

    calls: int = 0
    input: int = 0
    output: int = 0
    cost: int = 0
    unpriced: int = 0

    def plus(self, usage: Usage, cost: int | None) -> CallSums:
        return CallSums(
            self.calls + 1,
            self.input + usage.input,
            self.output + usage.output,
            self.cost + (cost or 0),
            self.unpriced + (cost is None),
        )


@dataclass(slots=True)
class LimitResult:
    """The calls that one limit refused: those for which it states the longest wait of all limits that refuse."""

    name: str
    limit: str
    refused: CallSums = field(default_factory=CallSums)
    first_us: int | None = None
    last_us: int | None = None
    minutes: Counter[int] = field(default_factory=Counter)
    users: Counter[str] = field(default_factory=Counter)

    def worst_minute(self) -> tuple[int, int]:
        """(its start in microseconds, the number of calls refused in it)."""
        minute, count = max(self.minutes.items(), key=lambda item: (item[1], -item[0]))
        return minute * MINUTE_US, count


@dataclass(slots=True)
class CallOutcome:
    """The result of a trace. Each series counts (admitted, refused)."""

    settled_by: str
    """When calls were settled, as a text for people."""

    left_out: tuple[str, ...]
    admitted: CallSums = field(default_factory=CallSums)
    refused: CallSums = field(default_factory=CallSums)
    limits: dict[str, LimitResult] = field(default_factory=dict)
    warned: Counter[str] = field(default_factory=Counter)
    """Calls that reached a soft limit, by its name."""

    used_more: int = 0
    """Admitted calls that used more tokens than they held."""

    used_less: int = 0
    calls: Series = field(default_factory=Series)
    tokens: Series = field(default_factory=Series)
    costs: Series = field(default_factory=Series)
    first_us: int | None = None
    last_us: int | None = None


def judge_calls(
    policy: Policy,
    trace: Sequence[TraceCall],
    *,
    output_speed: int | None = None,
    learned: Learned | None = None,
    books: Books | None = None,
) -> CallOutcome:
    """Judge calls in order of time. `output_speed` is in tokens a second, for calls without a duration.

    `learned` estimates from the calls so far how much the next ones hold; `books` record what each held and used.

    Rules that would let calls wait refuse them at once. Raises ConfigError for a policy without the section `llm`,
    UnknownPriceError for a model without a price under a limit of money.
    """
    if policy.llm is None:
        raise ConfigError("the policy is not of calls of language models: it needs the section llm, such as llm: {}")
    has_durations = output_speed is not None or any(call.duration_us is not None for call in trace)
    judged, left_out = (policy, ()) if has_durations else rates_of(policy)
    settled_by = "when their answers had ended" if has_durations else "at once, since the trace has no durations"
    rules = tuple(replace(rule, wait_us=0) for rule in judged.rules)
    judged = replace(judged, rules=rules, llm=replace(policy.llm, webhook=""))
    return _Judge(judged, CallOutcome(settled_by, left_out), output_speed, learned, books).judge(trace)


class _Judge:
    def __init__(
        self,
        policy: Policy,
        outcome: CallOutcome,
        output_speed: int | None,
        learned: Learned | None,
        books: Books | None,
    ) -> None:
        assert policy.llm is not None
        self._outcome = outcome
        self._speed = output_speed
        self._clock = ManualClock()
        # Enough keys for any trace: a replay must not evict a state, even where a real store might.
        store = MemoryStore(max_keys=MOST_KEYS, on_full="refuse")
        self._gate = LlmGate(policy, store=store, clock=self._clock, learned=learned or NothingLearned(), books=books)
        self._prices = PriceBook(policy.llm.prices)
        setting = policy.llm.unknown_price
        rate = 0 if setting in ("refuse", "free") else read_money(setting, "usd", round_up=True)
        self._default_price = None if setting == "refuse" else price_of(rate, rate, version="stated")
        self._ends: list[tuple[int, int, Call, Usage]] = []

    def judge(self, trace: Sequence[TraceCall]) -> CallOutcome:
        with self._gate:
            for index, call in enumerate(trace):
                self._settle_until(call.at_us)
                self._clock.set(call.at_us)
                self._reserve(index, call)
            self._settle_until(None)
        outcome = self._outcome
        if trace:
            outcome.first_us, outcome.last_us = trace[0].at_us, trace[-1].at_us
        return outcome

    def _reserve(self, index: int, call: TraceCall) -> None:
        caller, outcome = call.caller, self._outcome
        fields: dict[str, Any] = {} if call.most is None else {"max_tokens": call.most}
        reserved = self._gate.reserve(
            call.model, key=caller.key, user=caller.user, team=caller.team, organisation=caller.organisation,
            input_tokens=call.input, **fields,
        )  # fmt: skip
        usage = Usage(call.input, call.output)
        cost = self._cost(call, usage)
        self._add_to_series(call.at_us, usage, cost, refused=not reserved)
        if not reserved:
            outcome.refused = outcome.refused.plus(usage, cost)
            self._note_refusal(call, reserved, usage, cost)
            return
        outcome.admitted = outcome.admitted.plus(usage, cost)
        outcome.warned.update(warning.limit for warning in reserved.warnings)
        more = call.input + call.output - reserved.held.input - reserved.held.output
        outcome.used_more += more > 0
        outcome.used_less += more < 0
        duration_us = call.duration_us
        if duration_us is None and self._speed is not None:
            duration_us = call.output * 1_000_000 // self._speed
        if duration_us is None:
            reserved.settle_usage(usage)
        else:
            heapq.heappush(self._ends, (call.at_us + duration_us, index, reserved, usage))

    def _settle_until(self, at_us: int | None) -> None:
        """Settle the calls whose answers have ended by a time; all of them for None."""
        while self._ends and (at_us is None or self._ends[0][0] <= at_us):
            end_us, _, call, usage = heapq.heappop(self._ends)
            self._clock.set(end_us)
            call.settle_usage(usage)

    def _note_refusal(self, call: TraceCall, refused_call: Call, usage: Usage, cost: int | None) -> None:
        binding = refused_call.decision.binding
        name = binding.name if binding is not None else ""
        limit = self._outcome.limits.get(name)
        if limit is None:
            text = str(binding.definition.limit) if binding is not None else ""
            limit = self._outcome.limits[name] = LimitResult(name, text)
        limit.refused = limit.refused.plus(usage, cost)
        limit.first_us = call.at_us if limit.first_us is None else limit.first_us
        limit.last_us = call.at_us
        limit.minutes[call.at_us // MINUTE_US] += 1
        limit.users[call.caller.user or call.caller.key or call.caller.team] += 1

    def _cost(self, call: TraceCall, usage: Usage) -> int | None:
        price = self._prices.price(call.model, utc_moment(call.at_us)) or self._default_price
        return None if price is None else price.cost(usage)

    def _add_to_series(self, at_us: int, usage: Usage, cost: int | None, *, refused: bool) -> None:
        series = (self._outcome.calls, self._outcome.tokens, self._outcome.costs)
        for counts, amount in zip(series, (1, usage.input + usage.output, cost or 0), strict=True):
            if amount:
                counts.add(at_us, 0 if refused else amount, amount if refused else 0)

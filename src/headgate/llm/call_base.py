"""What calls of both colours are made of: what was held, and how each way to settle counts.

docs/language-models.md has the table of what settles how.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from headgate.decision import Decision
from headgate.holding import Extension, Settlement
from headgate.llm.call_costs import CallCosts
from headgate.llm.call_size import CallSize
from headgate.llm.entry import Books, Caller, Entry, SettleMode
from headgate.llm.gate_parts import GateParts
from headgate.llm.price import Price
from headgate.llm.soft_limits import SoftLimit, reached
from headgate.llm.stream_reading import StreamReading
from headgate.llm.streams import StreamUsage
from headgate.llm.terms import terms_got, terms_text, terms_told
from headgate.llm.tokens import count_text
from headgate.llm.usage import Usage, field_of, read_usage
from headgate.policy.rule_costs import GroupAmounts

log = logging.getLogger("headgate")

_NOT_SENT = ("ConnectError", "ConnectTimeout", "PoolTimeout", "ConnectionRefusedError", "gaierror",
             "ClientConnectorError", "UnsupportedProtocol")  # fmt: skip
"""Names of errors after which nothing was sent: of httpx, aiohttp and of Python."""

_REFUSED_FROM = 400
_DEEPEST = 8


class Held(NamedTuple):
    """What a call holds: tokens, and billionths of a dollar, None where no price is known."""

    input: int
    output: int
    cost: int | None


class CallBase:
    """A call that was asked for; true where it is held. Settling it a second time changes nothing."""

    __slots__ = ("_costs", "_parts", "_reservation", "_size", "_told", "admitted_us", "caller", "held", "model",
                 "settled", "warnings", "was_cut")  # fmt: skip

    def __init__(
        self, parts: GateParts, caller: Caller, model: str, size: CallSize, costs: CallCosts, reservation: Any
    ) -> None:
        self._parts = parts
        self._reservation = reservation
        self._costs = costs
        self._size = size
        self._told: dict[str, str] = {}
        self.caller = caller
        self.model = model
        self.admitted_us = parts.clock.now_us()
        self.settled = False
        self.was_cut = False
        """Whether its stream was ended since nothing more could be held."""

        self.held = Held(size.input, *costs.most())
        self.warnings: tuple[SoftLimit, ...] = ()
        """The soft limits that it has reached."""

        allowed = bool(reservation)
        if allowed and costs.plan.warns:
            self.warnings = reached(reservation.decision, costs.plan.warns, caller, model)
            for listener in parts.warned if self.warnings else ():
                listener(self.warnings)
        if parts.books is not None:
            self._note_hold(parts.books, allowed)

    def __bool__(self) -> bool:
        return bool(self._reservation)

    @property
    def id(self) -> str:
        """The id of the hold, the same in the books: any gate on the store settles it (`gate.gate.commit`)."""
        whole: str = self._reservation.id
        return whole

    @property
    def decision(self) -> Decision:
        """What was decided about the hold."""
        decision: Decision = self._reservation.decision
        return decision

    @property
    def repeated(self) -> bool:
        """Whether a call of this id was held before: nothing was charged now."""
        repeated: bool = self._reservation.repeated
        return repeated

    @property
    def most_output(self) -> int:
        """The most tokens of output that the call lets the model make."""
        return self._size.most

    @property
    def in_flight(self) -> bool:
        """Whether it has a place in flight, so that its lease is to be extended while it runs."""
        return self._costs.plan.in_flight

    @property
    def lease_us(self) -> int:
        """So long after its admission, and after each extension, its lease ends."""
        whole: int = self._reservation.lease_us
        return whole

    def reading(self) -> StreamReading:
        """What reads the events of its stream; give its `usage` to `settle_stream`."""
        has_slices = "slices" in self._costs.plan.modes
        return StreamReading(self.model, self.held.output if has_slices else None, self._parts.settings.slice)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, allowed={bool(self)}, held={self.held}, settled={self.settled})"

    def _note_hold(self, books: Books, allowed: bool) -> None:
        binding = None if allowed else self.decision.binding
        books.add(
            Entry(
                "held" if allowed else "refused",
                self.id,
                self.admitted_us,
                self.caller,
                self.model,
                self.held.input,
                self.held.output,
                self.held.cost,
                lease_us=self._parts.settings.lease_us if allowed else 0,
                price=self._costs.price.version if self._costs.price is not None else "",
                limit=binding.name if binding is not None else "",
            )
        )

    def _note_extension(self, extension: Extension) -> None:
        """Write into the books how long it is held now, and how much."""
        if self._parts.books is not None and extension.outcome == "extended":
            self._parts.books.add(
                Entry(
                    "extended",
                    self.id,
                    self._parts.clock.now_us(),
                    self.caller,
                    self.model,
                    self.held.input,
                    self.held.output,
                    self.held.cost,
                    lease_us=self.lease_us,
                    admitted_us=self.admitted_us,
                )
            )

    def _settlement(self, mode: SettleMode, usage: Usage | None) -> tuple[GroupAmounts | None, Entry | None]:
        """What counts of each group, and what goes into the books. Notes what is learned."""
        costs, price, cost = self._costs, self._true_price(), 0
        amounts: GroupAmounts | None = None
        if mode == "failed" or mode == "cancelled":
            amounts = costs.request_alone() if mode == "failed" else costs.nothing()
        elif usage is None:
            mode, cost = "unknown", self.held.cost or 0
        else:
            self._learn(usage, is_whole=mode == "exact")
            if mode == "at least":  # of each what is more counts, so that the books agree with the limits
                usage = usage._replace(
                    input=max(usage.input, self.held.input), output=max(usage.output, self.held.output)
                )
            cost = 0 if price is None else price.cost(usage)
            amounts = costs.exact(usage, cost) if mode == "exact" else costs.at_least(usage, cost)
            cost = cost if mode == "exact" else max(cost, self.held.cost or 0)
        if self._parts.books is None:
            return amounts, None
        return amounts, Entry(
            "settled",
            self.id,
            self._parts.clock.now_us(),
            self.caller,
            self.model,
            self.held.input,
            self.held.output,
            self.held.cost,
            mode=mode,
            usage=usage,
            cost=None if price is None else cost,
            price=price.version if price is not None else "",
            admitted_us=self.admitted_us,
            estimate=self._costs.estimate,
        )

    def _done(self, settlement: Settlement, entry: Entry | None) -> None:
        """Write what was settled into the books, unless another one has settled it before."""
        if entry is not None and self._parts.books is not None and settlement.outcome != "already settled":
            self._parts.books.add(entry)

    def _held_more(self, reading: StreamReading, tokens: int, more: GroupAmounts, extension: Extension) -> bool:
        """Note what came of holding a further slice; whether the stream may go on."""
        if extension.outcome == "extended":
            self._costs.add(more)
            price, (sent, made, _) = self._costs.price, self.held
            self.held = Held(sent, made + tokens, price.most(sent, made + tokens) if price is not None else None)
            self._note_extension(extension)
        elif self._costs.plan.at_end == "cut":
            self.was_cut = reading.refused_more()
            return not self.was_cut
        reading.held_more(tokens)
        return True

    def _true_price(self) -> Price | None:
        """The price at the moment of admission, of what the call got by its answer.

        Where the call asked for something and its answer does not say whether it got that: the dearest that can have
        applied. Where the price of what it got is not known, that which was held, and the price's version says so.
        """
        held, terms = self._costs.price, terms_got(self._size.terms, self._told)
        if terms is None:
            return held
        price = self._parts.price(self.model, self.admitted_us, terms)
        if price is None and held is not None and terms:
            return held._replace(version=f"{held.version}; not known of {terms_text(terms)}")
        return price or held

    def _learn(self, usage: Usage, *, is_whole: bool) -> None:
        size, estimate = self._size, self._costs.estimate
        cut = not is_whole or self.was_cut or usage.output >= size.most
        shown = 0 if size.hides or size.is_exact or not is_whole else size.counted
        self._parts.learned.settled(
            self.caller.key or self.caller.user,
            self.model,
            size.most,
            -1 if estimate is None or not is_whole else estimate,
            usage.output,
            cut,
            shown,
            usage.input if shown else 0,
        )

    def _read_answer(self, answer: Any) -> Usage | None:
        """The usage of a whole answer; what it tells of itself besides is noted."""
        usage = read_usage(answer)
        self._told = {**terms_told(field_of(answer, "usage")), **terms_told(answer)}
        if usage is not None and field_of(answer, "object") == "response":
            self._parts.remember(field_of(answer, "id"), usage)
        choices = field_of(answer, "choices")
        ends = [field_of(choice, "finish_reason") for choice in (choices if isinstance(choices, list) else ())]
        ends += [field_of(answer, "stop_reason"), field_of(answer, "status")]
        self.was_cut = self.was_cut or any(end in ("length", "max_tokens", "incomplete") for end in ends)
        return usage

    def _read_stream(self, usage: StreamUsage) -> tuple[SettleMode, Usage | None]:
        """How a stream is settled that has ended, or is read no further."""
        self.was_cut = self.was_cut or usage.was_cut
        self._told = usage.terms
        if usage.is_final and usage.usage is not None:
            self._parts.remember(usage.response_id, usage.usage)
            return "exact", usage.usage
        made = count_text(usage.text, self.model).tokens
        told = usage.usage or Usage(self._size.input, 0)
        return "at least", told._replace(output=max(told.output, made))


def mode_of(error: BaseException) -> SettleMode:
    """How a call is settled whose block raised: failed, cancelled where nothing was sent, otherwise unknown."""
    cause: BaseException | None = error
    for _ in range(_DEEPEST):
        if cause is None:
            break
        status = getattr(cause, "status_code", None) or getattr(getattr(cause, "response", None), "status_code", None)
        if isinstance(status, int) and status >= _REFUSED_FROM:
            return "failed"
        if type(cause).__name__ in _NOT_SENT:
            return "cancelled"
        cause = cause.__cause__ or cause.__context__
    return "unknown"

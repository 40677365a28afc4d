"""The part of calls that threads and asyncio share: holding and settling; see the table in docs/language-models.md."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from headgate.decision import Decision
from headgate.errors import ArgumentError
from headgate.holding import Extension
from headgate.llm.call_costs import SettledAmounts, passes_uncounted, used_units
from headgate.llm.call_failures import mode_of
from headgate.llm.call_size import CallSize
from headgate.llm.entry import Books, Caller, Entry, SettleMode
from headgate.llm.gate_parts import GateParts
from headgate.llm.known_calls import KnownCall
from headgate.llm.price import Price
from headgate.llm.shown_answer import shown_text
from headgate.llm.soft_limits import SoftLimit, reached
from headgate.llm.stream_reading import StreamReading
from headgate.llm.streams import StreamUsage
from headgate.llm.terms import reported_terms
from headgate.llm.tokens import count_text
from headgate.llm.true_price import EMPTY_PRICE_REPORT, PriceReport, true_cost, true_price
from headgate.llm.usage import Usage, additional_usage, credible, field_of, read_usage, reports_input
from headgate.llm.web_searches import with_searches
from headgate.policy.rule_costs import GroupAmounts

log = logging.getLogger("headgate")

CallDemand = tuple[KnownCall, CallSize, Price | None, tuple[int, ...], tuple[int, ...], int]
"""What a call demands: (what is known of it, its size, the dearest price that can apply, the output tokens to hold by
each hold mode of its plan, the amounts of all units by each mode, the time in microseconds)."""


class Held(NamedTuple):
    """What a call holds: tokens, and its cost in billionths of a dollar, None if no price is known."""

    input: int
    output: int
    cost: int | None


class CallBase:
    """A requested call; true if it is held. Settling it a second time changes nothing."""

    __slots__ = ("_is_held", "_keyed", "_known", "_outputs", "_parts", "_price", "_price_report", "_reservation",
                 "_size", "_streamed", "_units", "admitted_us", "settled", "warnings", "was_cut")  # fmt: skip

    def __init__(self, parts: GateParts, demand: CallDemand, reservation: Any, keyed: Any = None) -> None:
        """`keyed` made the reservation and settles it natively; it is None where the reservation settles itself."""
        self._known, self._size, self._price, self._outputs, self._units, self.admitted_us = demand
        self._parts = parts
        self._reservation = reservation
        self._keyed = keyed
        self._is_held = held = bool(reservation)
        self._price_report = EMPTY_PRICE_REPORT
        self._streamed: StreamReading | None = None
        self.settled = False
        self.was_cut = False
        """Whether its stream was ended because nothing more could be held, or the answer reached its longest length."""

        self.warnings: tuple[SoftLimit, ...] = ()
        """The soft limits that the call has reached."""

        known = self._known
        if held and known.plan.warns:
            self.warnings = reached(reservation.decision, known.plan.warns, known.caller, known.model)
            parts.warn(self.warnings)
        if parts.books is not None:
            self._note_hold(parts.books)

    def __bool__(self) -> bool:
        return self._is_held

    @property
    def caller(self) -> Caller:
        """The caller: key, user, team, organisation and tier."""
        return self._known.caller

    @property
    def model(self) -> str:
        """The model, as the request names it."""
        return self._known.model

    @property
    def held(self) -> Held:
        """What the call holds, by those of its rules that hold the most."""
        sent, output, price = self._size.input, self._output, self._price
        return Held(sent, output, None if price is None else price.most(sent, output, self._size.searches))

    @property
    def _output(self) -> int:
        """The most output that any of its rules holds."""
        return max(self._outputs, default=0)

    @property
    def _estimate(self) -> int | None:
        """The output held by rules with the mode `expected`; None if there are none."""
        expected = self._known.plan.expected
        return None if expected is None else self._outputs[expected]

    @property
    def id(self) -> str:
        """The id of the hold, the same in the books: any gate on the store settles it (`gate.gate.commit`)."""
        hold_id: str = self._reservation.id
        return hold_id

    @property
    def decision(self) -> Decision:
        """The decision about the hold."""
        decision: Decision = self._reservation.decision
        return decision

    @property
    def requested(self) -> dict[str, int]:
        """The amounts that a refused call requested, by unit, as the refusing rule holds them; money in billionths."""
        return self._known.plan.requested(self._units, self.decision)

    @property
    def repeated(self) -> bool:
        """Whether a call of this id was held before, so that nothing was charged now."""
        repeated: bool = self._reservation.repeated
        return repeated

    @property
    def most_output(self) -> int:
        """The most tokens of output that the call lets the model generate."""
        return self._size.most

    @property
    def in_flight(self) -> bool:
        """Whether it counts as a call in flight."""
        return self._known.plan.in_flight

    @property
    def lease_us(self) -> int:
        """How long its lease lasts after its admission, and after each extension."""
        lease_us: int = self._reservation.lease_us
        return lease_us

    def reading(self) -> StreamReading:
        """Make a reader of the events of its stream; pass the reader's `usage` to `settle_stream`."""
        modes = self._known.plan.modes
        held = self._outputs[modes.index("slices")] if "slices" in modes else None
        return StreamReading(self.model, held, self._parts.settings.slice)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, allowed={bool(self)}, held={self.held}, settled={self.settled})"

    def _note_hold(self, books: Books) -> None:
        binding = None if self._is_held else self.decision.binding
        books.add(
            Entry(
                "held" if self._is_held else "refused",
                self.id,
                self.admitted_us,
                self.caller,
                self.model,
                *self.held,
                lease_us=self._parts.settings.lease_us if self._is_held else 0,
                price=self._price.version if self._price is not None else "",
                limit=binding.name if binding is not None else "",
            )
        )

    def _note_extension(self, extension: Extension) -> None:
        """Write into the books for how long the call is held now, and how much it holds."""
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

    def _settlement(self, mode: SettleMode, usage: Usage | None) -> tuple[SettledAmounts, Entry | None]:
        """The amounts that count, and the entry for the books. Also passes the usage on to be learned from."""
        plan, cost = self._known.plan, 0
        basis = (self._known, self._size, self._price_report, self.admitted_us)
        price = true_price(*basis, self._price)
        amounts: SettledAmounts = None
        if usage is not None and mode == "exact":
            self._learn(usage, True)
            cost = true_cost(*basis, price, usage)
            amounts = used_units(usage, cost)
        elif mode == "failed" or mode == "cancelled":
            amounts = plan.request_alone() if mode == "failed" else plan.nothing()
        elif usage is None:
            mode, cost = "unknown", self.held.cost or 0
        else:
            self._learn(usage, False)
            held = self.held  # the larger of each number counts, so that the books agree with the limits
            usage = usage._replace(input=max(usage.input, held.input), output=max(usage.output, held.output))
            cost = true_cost(*basis, price, usage)
            pairs = zip(plan.used(used_units(usage, cost)), plan.held(self._units), strict=True)
            amounts = GroupAmounts([max(used, least) for used, least in pairs])
            cost = max(cost, held.cost or 0)
        if self._parts.books is None:
            return amounts, None
        return amounts, Entry(
            "settled",
            self.id,
            self._parts.clock.now_us(),
            self.caller,
            self.model,
            *self.held,
            mode=mode,
            usage=usage,
            cost=None if price is None else cost,
            price=price.version if price is not None else "",
            admitted_us=self.admitted_us,
            estimate=self._estimate,
        )

    def _at_exit(self, error: BaseException | None) -> tuple[SettleMode, Usage | None]:
        """How the end of its block settles the call: by what was read of its stream, if any, which may close later."""
        reading = self._streamed
        if reading is not None and reading.has_begun and not self.settled:
            return self._read_stream(reading.usage)
        return "unknown" if error is None else mode_of(error), None

    def _uncountable(self, error: ArgumentError) -> tuple[SettledAmounts, Entry | None]:
        """The settlement of a usage that exceeds what limits can count, as no real call's does: what is held counts."""
        log.error("the usage of a call of %r cannot be counted, so it stays as held: %s", self.model, error)
        return self._settlement("unknown", None)

    def _done(self, outcome: str, entry: Entry) -> None:
        """Write the settlement into the books, unless another process had settled the call before."""
        if self._parts.books is not None and outcome != "already settled":
            self._parts.books.add(entry)

    def _slice(self) -> tuple[tuple[int, ...], Any]:
        """The amounts of a further slice: (by `CALL_UNITS`, by group)."""
        plan = self._known.plan
        added = plan.slice_units(self._parts.settings.slice, self._size.input, self._price)
        return added, plan.more(added)

    def _held_more(self, reading: StreamReading, added: tuple[int, ...], extension: Extension) -> bool:
        """Note the outcome of holding a further slice; return whether the stream may continue."""
        plan = self._known.plan
        if extension.outcome == "extended":
            self._outputs, self._units = plan.with_more(self._outputs, self._units, added)
            self._note_extension(extension)
        elif plan.at_end == "cut" and not passes_uncounted(self.decision, extension, self._parts.on_store_error):
            self.was_cut = reading.refused_more()
            return not self.was_cut
        reading.held_more(self._parts.settings.slice)
        return True

    def _learn(self, usage: Usage, is_whole: bool) -> None:
        known, output = self._known, usage[1]
        _, counted, is_exact, hides, most, _, _, _ = self._size
        expected = known.plan.expected
        estimate = -1 if expected is None or not is_whole else self._outputs[expected]
        shown = counted if is_whole and not (is_exact or hides) else 0
        cut = output >= most or self.was_cut or not is_whole
        self._parts.learned.settled(
            known.caller_id, known.model, most, estimate, output, cut, shown, usage[0] if shown else 0
        )

    def _read_answer(self, answer: Any) -> tuple[SettleMode, Usage | None]:
        """How a whole answer is settled, and its usage; notes what else it reports of its price."""
        reported = credible(read_usage(answer), self._size.input)
        shown = count_text(shown_text(answer), self.model).tokens if reported is None else 0
        reported = Usage(0, shown) if shown else reported
        usage = None if reported is None else with_searches(reported, answer, self._size.searches)
        usage_field = field_of(answer, "usage")
        terms = {**reported_terms(usage_field), **reported_terms(answer)}
        self._price_report = PriceReport(terms, field_of(answer, "model"), additional_usage(usage_field))
        is_whole = usage is not None and not shown and reports_input(usage, self._size.input)
        if usage is not None and is_whole and field_of(answer, "object") == "response":
            self._parts.remember(field_of(answer, "id"), usage)
        choices = field_of(answer, "choices")
        ends = [field_of(choice, "finish_reason") for choice in (choices if isinstance(choices, list) else ())]
        ends += [field_of(answer, "stop_reason"), field_of(answer, "status")]
        self.was_cut = self.was_cut or any(end in ("length", "max_tokens", "incomplete") for end in ends)
        return "exact" if usage is None or is_whole else "at least", usage

    def _read_stream(self, stream: StreamUsage, counted: int | None = None) -> tuple[SettleMode, Usage | None]:
        """How a stream is settled that has ended, or is read no further; `counted` is the token count of its text."""
        self.was_cut, sent = self.was_cut or stream.was_cut, self._size.input
        self._price_report = PriceReport(stream.terms, stream.models, stream.additional)
        if stream.is_final and (usage := credible(stream.usage, sent)) is not None and reports_input(usage, sent):
            self._parts.remember(stream.response_id, usage)
            held = 0 if stream.reports_searches else self._size.searches
            return "exact", usage._replace(web_searches=max(held, usage.web_searches))
        counted = count_text(stream.text, self.model).tokens if counted is None else counted
        usage = stream.usage or Usage(sent, 0)
        return "at least", usage._replace(output=max(usage.output, counted))

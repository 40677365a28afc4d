"""What calls of both colours are made of: what was held, and how each way to settle counts.

docs/language-models.md has the table of what settles how.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from headgate.decision import Decision
from headgate.errors import ArgumentError
from headgate.holding import Extension
from headgate.llm.call_costs import Counted, passes_uncounted, used_units
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
from headgate.llm.terms import terms_told
from headgate.llm.tokens import count_text
from headgate.llm.true_price import NOTHING_TOLD, ToldOfPrice, true_cost, true_price
from headgate.llm.usage import Usage, credible, field_of, made_beside, read_usage, tells_input
from headgate.llm.web_searches import with_searches
from headgate.policy.rule_costs import GroupAmounts

log = logging.getLogger("headgate")

Asked = tuple[KnownCall, CallSize, Price | None, tuple[int, ...], tuple[int, ...], int]
"""What was asked for a call: (what is known of it, its size, the dearest price that can apply, the output that is held
by each way to hold, what that is of each unit, the moment)."""


class Held(NamedTuple):
    """What a call holds: tokens, and billionths of a dollar, None where no price is known."""

    input: int
    output: int
    cost: int | None


class CallBase:
    """A call that was asked for; true where it is held. Settling it a second time changes nothing."""

    __slots__ = ("_is_held", "_keyed", "_known", "_made", "_parts", "_price", "_reservation", "_size",
                 "_streamed", "_told", "_units", "admitted_us", "settled", "warnings", "was_cut")  # fmt: skip

    def __init__(self, parts: GateParts, asked: Asked, reservation: Any, keyed: Any = None) -> None:
        """`keyed` is what made the reservation and settles it natively, None where it settles itself."""
        self._known, self._size, self._price, self._made, self._units, self.admitted_us = asked
        self._parts = parts
        self._reservation = reservation
        self._keyed = keyed
        self._is_held = held = bool(reservation)
        self._told = NOTHING_TOLD
        self._streamed: StreamReading | None = None
        self.settled = False
        self.was_cut = False
        """Whether its stream was ended since nothing more could be held."""

        self.warnings: tuple[SoftLimit, ...] = ()
        """The soft limits that it has reached."""

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
        """Who calls."""
        return self._known.caller

    @property
    def model(self) -> str:
        """The model, as it was named."""
        return self._known.model

    @property
    def held(self) -> Held:
        """What it holds, by that of its rules which hold the most."""
        sent, made, price = self._size.input, self._output, self._price
        return Held(sent, made, None if price is None else price.most(sent, made, self._size.searches))

    @property
    def _output(self) -> int:
        """The most output that any of its rules holds."""
        return max(self._made, default=0)

    @property
    def _estimate(self) -> int | None:
        """The output that rules hold which hold what is expected; None where there are none."""
        expected = self._known.plan.expected
        return None if expected is None else self._made[expected]

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
    def requested(self) -> dict[str, int]:
        """What it asked for where it was refused, by unit, as the rule holds that refuses it; money in billionths."""
        return self._known.plan.requested(self._units, self.decision)

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
        return self._known.plan.in_flight

    @property
    def lease_us(self) -> int:
        """So long after its admission, and after each extension, its lease ends."""
        whole: int = self._reservation.lease_us
        return whole

    def reading(self) -> StreamReading:
        """What reads the events of its stream; give its `usage` to `settle_stream`."""
        modes = self._known.plan.modes
        held = self._made[modes.index("slices")] if "slices" in modes else None
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

    def _settlement(self, mode: SettleMode, usage: Usage | None) -> tuple[Counted, Entry | None]:
        """What counts of it, and what goes into the books. Notes what is learned."""
        plan, cost = self._known.plan, 0
        told = (self._known, self._size, self._told, self.admitted_us)
        price = true_price(*told, self._price)
        amounts: Counted = None
        if usage is not None and mode == "exact":
            self._learn(usage, True)
            cost = true_cost(*told, price, usage)
            amounts = used_units(usage, cost)
        elif mode == "failed" or mode == "cancelled":
            amounts = plan.request_alone() if mode == "failed" else plan.nothing()
        elif usage is None:
            mode, cost = "unknown", self.held.cost or 0
        else:
            self._learn(usage, False)
            held = self.held  # of each what is more counts, so that the books agree with the limits
            usage = usage._replace(input=max(usage.input, held.input), output=max(usage.output, held.output))
            cost = true_cost(*told, price, usage)
            each = zip(plan.used(used_units(usage, cost)), plan.held(self._units), strict=True)
            amounts = GroupAmounts([max(own, least) for own, least in each])
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
        """How the end of its block settles it: by what was read of its stream, if any, which may be closed later."""
        reading = self._streamed
        if reading is not None and reading.has_begun and not self.settled:
            return self._read_stream(reading.usage)
        return "unknown" if error is None else mode_of(error), None

    def _uncountable(self, error: ArgumentError) -> tuple[Counted, Entry | None]:
        """What counts of it where its usage is more than its limits can count, which no call's is: what is held."""
        log.error("the usage of a call of %r cannot be counted, so it stays as held: %s", self.model, error)
        return self._settlement("unknown", None)

    def _done(self, outcome: str, entry: Entry) -> None:
        """Write what was settled into the books, unless another one has settled it before."""
        if self._parts.books is not None and outcome != "already settled":
            self._parts.books.add(entry)

    def _slice(self) -> tuple[tuple[int, ...], Any]:
        """What a further slice takes: (of each of `CALL_UNITS`, of each group)."""
        plan = self._known.plan
        added = plan.slice_units(self._parts.settings.slice, self._size.input, self._price)
        return added, plan.more(added)

    def _held_more(self, reading: StreamReading, added: tuple[int, ...], extension: Extension) -> bool:
        """Note what came of holding a further slice; whether the stream may go on."""
        plan = self._known.plan
        if extension.outcome == "extended":
            self._made, self._units = plan.with_more(self._made, self._units, added)
            self._note_extension(extension)
        elif plan.at_end == "cut" and not passes_uncounted(self.decision, extension, self._parts.on_store_error):
            self.was_cut = reading.refused_more()
            return not self.was_cut
        reading.held_more(self._parts.settings.slice)
        return True

    def _learn(self, usage: Usage, is_whole: bool) -> None:
        known, made = self._known, usage[1]
        _, counted, is_exact, hides, most, _, _, _ = self._size
        expected = known.plan.expected
        estimate = -1 if expected is None or not is_whole else self._made[expected]
        shown = counted if is_whole and not (is_exact or hides) else 0
        cut = made >= most or self.was_cut or not is_whole
        self._parts.learned.settled(known.who, known.model, most, estimate, made, cut, shown, usage[0] if shown else 0)

    def _read_answer(self, answer: Any) -> tuple[SettleMode, Usage | None]:
        """How a whole answer is settled, with its usage; what it tells of itself besides is noted."""
        told = credible(read_usage(answer), self._size.input)
        shown = count_text(shown_text(answer), self.model).tokens if told is None else 0
        told = Usage(0, shown) if shown else told
        usage = None if told is None else with_searches(told, answer, self._size.searches)
        of_usage = field_of(answer, "usage")
        terms = {**terms_told(of_usage), **terms_told(answer)}
        self._told = ToldOfPrice(terms, field_of(answer, "model"), made_beside(of_usage))
        is_whole = usage is not None and not shown and tells_input(usage, self._size.input)
        if usage is not None and is_whole and field_of(answer, "object") == "response":
            self._parts.remember(field_of(answer, "id"), usage)
        choices = field_of(answer, "choices")
        ends = [field_of(choice, "finish_reason") for choice in (choices if isinstance(choices, list) else ())]
        ends += [field_of(answer, "stop_reason"), field_of(answer, "status")]
        self.was_cut = self.was_cut or any(end in ("length", "max_tokens", "incomplete") for end in ends)
        return "exact" if usage is None or is_whole else "at least", usage

    def _read_stream(self, usage: StreamUsage, made: int | None = None) -> tuple[SettleMode, Usage | None]:
        """How a stream is settled that has ended, or is read no further; `made` are the tokens of its text."""
        self.was_cut, sent = self.was_cut or usage.was_cut, self._size.input
        self._told = ToldOfPrice(usage.terms, usage.models, usage.beside)
        if usage.is_final and (told := credible(usage.usage, sent)) is not None and tells_input(told, sent):
            self._parts.remember(usage.response_id, told)
            held = 0 if usage.tells_searches else self._size.searches
            return "exact", told._replace(web_searches=max(held, told.web_searches))
        made = count_text(usage.text, self.model).tokens if made is None else made
        told = usage.usage or Usage(sent, 0)
        return "at least", told._replace(output=max(told.output, made))

"""What a gate of language models lends to its calls: prices, what is learned, books, responses it remembers."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable

from headgate.clock import Clock
from headgate.decision import OnStoreError
from headgate.forks import ProcessLock
from headgate.llm.entry import Books
from headgate.llm.learned import Learned
from headgate.llm.price import Price, price_of
from headgate.llm.price_spans import PriceSpans
from headgate.llm.prices import PriceBook
from headgate.llm.soft_limits import SoftLimit
from headgate.llm.told_once import ToldOnce
from headgate.llm.usage import Usage
from headgate.llm.webhook import Webhook
from headgate.money import read_money
from headgate.policy.llm_settings import LlmSettings

log = logging.getLogger("headgate")

_MOST_RESPONSES = 10_000
_LONGEST_ID = 256


class GateParts:
    """The parts of one gate that its calls use."""

    def __init__(
        self,
        settings: LlmSettings,
        clock: Clock,
        prices: PriceBook,
        learned: Learned,
        books: Books | None,
        told: ToldOnce,
        on_store_error: OnStoreError,
    ) -> None:
        self.clock = clock
        self.on_store_error = on_store_error
        """The store's choice, for limits that have none of their own."""

        self._told = told
        self.learned = learned
        self.books = books
        self.warned: list[Callable[[tuple[SoftLimit, ...]], object]] = []
        self._webhook: Webhook | None = None
        self.use(settings, prices)
        self._responses: OrderedDict[str, int] = OrderedDict()
        self._lock = ProcessLock()

    def use(self, settings: LlmSettings, prices: PriceBook) -> None:
        """Go on with these settings and prices."""
        self.settings = settings
        self._tell(settings.webhook)
        unknown: Price | None = None
        if settings.unknown_price != "refuse":
            rate = 0 if settings.unknown_price == "free" else read_money(settings.unknown_price, "usd", round_up=True)
            unknown = price_of(rate, rate, version="free" if settings.unknown_price == "free" else "stated")
        self.prices = PriceSpans(prices, settings.lease_us, unknown)

    def _tell(self, url: str) -> None:
        """Have soft limits told to a URL, "" for none."""
        if self._webhook is not None:
            if self._webhook.url == url:
                return
            self.warned.remove(self._webhook)
        self._webhook = Webhook(url, self.clock, self._told) if url else None
        if self._webhook is not None:
            self.warned.append(self._webhook)

    def warn(self, reached: tuple[SoftLimit, ...]) -> None:
        """Tell all listeners of soft limits; the call is held already, so what they raise goes into the log alone."""
        for listener in self.warned if reached else ():
            try:
                listener(reached)
            except Exception:
                log.exception("a listener could not be told of soft limits")

    def remember(self, response_id: object, usage: Usage) -> None:
        """Remember the tokens of a response that later calls may refer to."""
        if isinstance(response_id, str) and 0 < len(response_id) <= _LONGEST_ID:
            with self._lock.current:
                self._responses[response_id] = usage.input + usage.output
                if len(self._responses) > _MOST_RESPONSES:
                    self._responses.popitem(last=False)

    def remembered(self, response_id: str) -> int | None:
        """The tokens of an earlier response, None where it is not known."""
        return self._responses.get(response_id)

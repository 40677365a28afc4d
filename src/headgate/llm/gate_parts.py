"""The parts of a gate of language models that its calls use: prices, learned usage, books, and stored responses."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable

from headgate.clock import Clock
from headgate.decision import OnStoreError
from headgate.forks import ProcessLock
from headgate.llm.entry import Books
from headgate.llm.learned import Learned
from headgate.llm.notification_claims import NotificationClaims
from headgate.llm.price import Price, price_of
from headgate.llm.price_spans import PriceSpans
from headgate.llm.prices import PriceBook
from headgate.llm.soft_limits import SoftLimit
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
        claims: NotificationClaims,
        on_store_error: OnStoreError,
    ) -> None:
        self.clock = clock
        self.on_store_error = on_store_error
        """The store's choice, for limits that have none of their own."""

        self._claims = claims
        self.learned = learned
        self.books = books
        self.listeners: list[Callable[[tuple[SoftLimit, ...]], object]] = []
        self._webhook: Webhook | None = None
        self.use(settings, prices)
        self._responses: OrderedDict[str, int] = OrderedDict()
        self._lock = ProcessLock()

    def use(self, settings: LlmSettings, prices: PriceBook) -> None:
        """Put settings and prices in force."""
        self.settings = settings
        self._set_webhook(settings.webhook)
        unknown: Price | None = None
        if settings.unknown_price != "refuse":
            rate = 0 if settings.unknown_price == "free" else read_money(settings.unknown_price, "usd", round_up=True)
            unknown = price_of(rate, rate, version="free" if settings.unknown_price == "free" else "stated")
        self.prices = PriceSpans(prices, settings.lease_us, unknown)

    def _set_webhook(self, url: str) -> None:
        """Report soft limits to a URL, "" for none."""
        if self._webhook is not None:
            if self._webhook.url == url:
                return
            self.listeners.remove(self._webhook)
        self._webhook = Webhook(url, self.clock, self._claims) if url else None
        if self._webhook is not None:
            self.listeners.append(self._webhook)

    def warn(self, reached: tuple[SoftLimit, ...]) -> None:
        """Call all listeners with soft limits. The call is held already, so errors of listeners are only logged."""
        for listener in self.listeners if reached else ():
            try:
                listener(reached)
            except Exception:
                log.exception("a listener of soft limits failed")

    def remember(self, response_id: object, usage: Usage) -> None:
        """Store the tokens of a response that later calls may refer to."""
        if isinstance(response_id, str) and 0 < len(response_id) <= _LONGEST_ID:
            with self._lock.current:
                self._responses[response_id] = usage.input + usage.output
                if len(self._responses) > _MOST_RESPONSES:
                    self._responses.popitem(last=False)

    def remembered(self, response_id: str) -> int | None:
        """The tokens of an earlier response; None if it is not known."""
        return self._responses.get(response_id)

"""The providers that can take a call now, in order: one that refused is paused for the time that it stated."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, cast

from headgate.clock import SYSTEM_CLOCK, Clock
from headgate.http.client.limit_fields import Headers, read_limit_fields
from headgate.llm.call import AsyncCall
from headgate.llm.dialects.paths import Dialect
from headgate.llm_proxy.providers import ProviderSettings

log = logging.getLogger("headgate")

REFUSALS = frozenset((429, 500, 502, 503, 504, 529))
"""Statuses of refusals after which the next provider is tried: it may answer."""

_BUSY = (429, 503, 529)
_DEFAULT_PAUSE_US = 1_000_000
"""The pause of a provider that refused, or cannot be reached, and stated no time."""


class ChargedTokens(NamedTuple):
    """The tokens that a provider counts for a call before it answers."""

    input: int
    output: int


_TOO_MANY = 429
_INTEGER = re.compile(r"[0-9]{1,18}")
_QUOTAS: Mapping[str, Callable[[ChargedTokens], int]] = {
    "x-ratelimit-limit-tokens": lambda charged: charged.input + charged.output,
    "anthropic-ratelimit-tokens-limit": lambda charged: charged.input + charged.output,
    "anthropic-ratelimit-input-tokens-limit": lambda charged: charged.input,
    "anthropic-ratelimit-output-tokens-limit": lambda charged: charged.output,
}
"""Headers that state how many tokens a minute may have, and which tokens of a call count there."""

_TOKENS = ("tokens", "input-tokens")
_MOST_MODELS = 1000


class _ModelState:
    """A provider's limits for a model, as its answers report them: most providers have separate limits for each."""

    __slots__ = ("paused_until_us", "tokens_remaining", "tokens_until_us")

    def __init__(self) -> None:
        self.paused_until_us = 0
        self.tokens_remaining: int | None = None
        self.tokens_until_us = 0

    def note(self, status: int, headers: Headers, now_us: int, charged: ChargedTokens | None) -> None:
        reported = read_limit_fields(headers, now_us=now_us)
        wait_us = None
        if status == _TOO_MANY and charged is not None and _exceeds_quota(charged, headers):
            pass  # no reason to pause: one client's oversized call would keep all others from the provider
        elif status in _BUSY:
            wait_us = reported.refused_for_us if reported is not None else None
            wait_us = _DEFAULT_PAUSE_US if wait_us is None else wait_us
        elif reported is not None:
            wait_us = reported.exhausted_for_us
        if wait_us:
            self.paused_until_us = max(self.paused_until_us, now_us + wait_us)
        remaining = [
            (limit.remaining, limit.reset_after_us)
            for limit in (reported.limits if reported is not None else ())
            if limit.name in _TOKENS and limit.remaining is not None and limit.reset_after_us
        ]
        self.tokens_remaining = None
        if remaining:
            self.tokens_remaining, reset_us = min(remaining)
            self.tokens_until_us = now_us + (reset_us or 0)

    def has_room(self, tokens: int, now_us: int) -> bool:
        """Whether `tokens` remain, as far as the last answer reports: also where it reports nothing, or is outdated."""
        return self.tokens_remaining is None or tokens <= self.tokens_remaining or now_us >= self.tokens_until_us


class ProviderState:
    """A provider, and its state as its answers report it."""

    def __init__(self, settings: ProviderSettings, clock: Clock) -> None:
        self.settings = settings
        self.unreachable_until_us = 0
        self._clock = clock
        self._models: OrderedDict[str, _ModelState] = OrderedDict()

    def for_model(self, model: str) -> _ModelState:
        """Its limits for a model."""
        state = self._models.get(model)
        if state is None:
            if len(self._models) >= _MOST_MODELS:
                self._forget_one()
            state = self._models[model] = _ModelState()
        return state

    def _forget_one(self) -> None:
        """Forget the oldest model that is not paused, or the oldest: names that clients invent end no pause."""
        now_us = self._clock.now_us()
        names = (name for name, state in self._models.items() if state.paused_until_us <= now_us)
        del self._models[next(names, None) or next(iter(self._models))]


class ProviderPool:
    """The providers in the order of their file."""

    def __init__(self, settings: Iterable[ProviderSettings], clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._states = [ProviderState(provider, clock) for provider in settings]

    def reload(self, settings: Iterable[ProviderSettings]) -> None:
        """Replace the settings; the state of a provider with the same name and base URL stays."""
        previous = {(state.settings.name, state.settings.base_url): state for state in self._states}
        states = []
        for provider in settings:
            state = previous.get((provider.name, provider.base_url)) or ProviderState(provider, self._clock)
            state.settings = provider
            states.append(state)
        self._states = states

    def serving(self, dialect: Dialect, model: str) -> list[ProviderState]:
        """The providers that serve a dialect and a model, whether they can take a call now or not."""
        return [state for state in self._states if state.settings.serves(dialect, model)]

    def ready(
        self, serving: list[ProviderState], model: str, call: AsyncCall | None = None
    ) -> tuple[list[ProviderState], int]:
        """Those of them to try, in order; where there is none, the microseconds until there is one.

        One with too few tokens remaining for the call, or that could not be reached just now, is last.
        """
        now_us = self._clock.now_us()
        if len(serving) == 1 and now_us >= serving[0].for_model(model).paused_until_us:
            return serving, 0
        ready = [state for state in serving if now_us >= state.for_model(model).paused_until_us]
        if not ready:
            return [], min((state.for_model(model).paused_until_us - now_us for state in serving), default=0)
        tokens = 0 if call is None else call.held.input + call.held.output
        ready.sort(
            key=lambda entry: (now_us < entry.unreachable_until_us, not entry.for_model(model).has_room(tokens, now_us))
        )
        return ready, 0

    def note(
        self, state: ProviderState, model: str, status: int, headers: Headers, charged: ChargedTokens | None = None
    ) -> None:
        """Read what an answer to a call reports of its provider's limits."""
        model_state, now_us = state.for_model(model), self._clock.now_us()
        state.unreachable_until_us = 0
        previous_us = model_state.paused_until_us
        model_state.note(status, headers, now_us, charged)
        if model_state.paused_until_us > max(previous_us, now_us):
            seconds = (model_state.paused_until_us - now_us) / 1e6
            log.info("the provider %s is paused for %.1f s, for its limits", state.settings.name, seconds)

    def note_unreachable(self, state: ProviderState) -> None:
        """Note that a provider cannot be reached: for a moment it is tried last."""
        now_us = self._clock.now_us()
        if now_us >= state.unreachable_until_us:
            log.warning("the provider %s cannot be reached", state.settings.name)
        state.unreachable_until_us = now_us + _DEFAULT_PAUSE_US


def _exceeds_quota(charged: ChargedTokens, headers: Headers) -> bool:
    """Whether a call has more tokens than its provider allows in any minute."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    for name, value in cast(Iterable[tuple[str, str]], pairs):
        counted = _QUOTAS.get(name.lower())
        if counted is not None and _INTEGER.fullmatch(value.strip()) and counted(charged) > int(value):
            return True
    return False

"""The providers that can take a call now, in order: one that refused is paused for as long as it asked."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, cast

from headgate.clock import SYSTEM_CLOCK, Clock
from headgate.http.client.limit_fields import Headers, told
from headgate.llm.call import AsyncCall
from headgate.llm.dialects.paths import Dialect
from headgate.llm_proxy.providers import ProviderSettings

log = logging.getLogger("headgate")

REFUSALS = frozenset((429, 500, 502, 503, 504, 529))
"""What a provider answers that another one may not."""

_BUSY = (429, 503, 529)
_UNTOLD_US = 1_000_000
"""How long a provider is paused that refused and did not say for how long."""


class Taken(NamedTuple):
    """Tokens that a provider takes a call for, before it answers."""

    input: int
    output: int


_TOO_MANY = 429
_WHOLE = re.compile(r"[0-9]{1,18}")
_QUOTAS: Mapping[str, Callable[[Taken], int]] = {
    "x-ratelimit-limit-tokens": lambda taken: taken.input + taken.output,
    "anthropic-ratelimit-tokens-limit": lambda taken: taken.input + taken.output,
    "anthropic-ratelimit-input-tokens-limit": lambda taken: taken.input,
    "anthropic-ratelimit-output-tokens-limit": lambda taken: taken.output,
}
"""What tells how many tokens pass in a minute, and which of a call's count there."""

_TOKENS = ("tokens", "input-tokens")
_MOST_MODELS = 1000


class _ModelState:
    """What a provider's answers tell of its limits for a model: most have limits of their own for each."""

    __slots__ = ("left_alone_until_us", "tokens_left", "tokens_until_us")

    def __init__(self) -> None:
        self.left_alone_until_us = 0
        self.tokens_left: int | None = None
        self.tokens_until_us = 0

    def note(self, status: int, headers: Headers, now_us: int, taken: Taken | None) -> None:
        said = told(headers, now_us=now_us)
        wait_us = None
        if status == _TOO_MANY and taken is not None and _never_passes(taken, headers):
            pass  # which says nothing of other calls: one client could keep them all from a provider
        elif status in _BUSY:
            wait_us = said.refused_for_us if said is not None else None
            wait_us = _UNTOLD_US if wait_us is None else wait_us
        elif said is not None:
            wait_us = said.exhausted_for_us
        if wait_us:
            self.left_alone_until_us = max(self.left_alone_until_us, now_us + wait_us)
        left = [
            (limit.remaining, limit.reset_after_us)
            for limit in (said.limits if said is not None else ())
            if limit.name in _TOKENS and limit.remaining is not None and limit.reset_after_us
        ]
        self.tokens_left = None
        if left:
            self.tokens_left, reset_us = min(left)
            self.tokens_until_us = now_us + (reset_us or 0)

    def has_room(self, tokens: int, now_us: int) -> bool:
        """Whether it said that so many tokens are left, or said nothing that still holds."""
        return self.tokens_left is None or tokens <= self.tokens_left or now_us >= self.tokens_until_us


class ProviderState:
    """A provider, and what is known of it."""

    def __init__(self, settings: ProviderSettings) -> None:
        self.settings = settings
        self.unreachable_until_us = 0
        self._models: OrderedDict[str, _ModelState] = OrderedDict()

    def of(self, model: str) -> _ModelState:
        """What is known of a model's limits."""
        state = self._models.get(model)
        if state is None:
            state = self._models[model] = _ModelState()
            if len(self._models) > _MOST_MODELS:
                self._models.popitem(last=False)
        return state


class ProviderPool:
    """The providers in the order of their file."""

    def __init__(self, settings: Iterable[ProviderSettings], clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._states = [ProviderState(each) for each in settings]

    def reload(self, settings: Iterable[ProviderSettings]) -> None:
        """Take other settings; what is known of a provider of the same name and place stays."""
        known = {(state.settings.name, state.settings.base_url): state for state in self._states}
        states = []
        for each in settings:
            state = known.get((each.name, each.base_url)) or ProviderState(each)
            state.settings = each
            states.append(state)
        self._states = states

    def serving(self, dialect: Dialect, model: str) -> list[ProviderState]:
        """Those that a call is for, whether they take it now or not."""
        return [state for state in self._states if state.settings.serves(dialect, model)]

    def ready(
        self, serving: list[ProviderState], model: str, call: AsyncCall | None = None
    ) -> tuple[list[ProviderState], int]:
        """Those of them to be tried, in order; where there is none, in how many microseconds there is one.

        One that has too few tokens left for a call, or could not be reached just now, comes after the others.
        """
        now_us = self._clock.now_us()
        if len(serving) == 1 and now_us >= serving[0].of(model).left_alone_until_us:
            return serving, 0
        able = [state for state in serving if now_us >= state.of(model).left_alone_until_us]
        if not able:
            return [], min((state.of(model).left_alone_until_us - now_us for state in serving), default=0)
        tokens = 0 if call is None else call.held.input + call.held.output
        able.sort(key=lambda each: (now_us < each.unreachable_until_us, not each.of(model).has_room(tokens, now_us)))
        return able, 0

    def note(self, state: ProviderState, model: str, status: int, headers: Headers, taken: Taken | None = None) -> None:
        """Read what an answer to a call says of its provider's limits."""
        known, now_us = state.of(model), self._clock.now_us()
        state.unreachable_until_us = 0
        was_us = known.left_alone_until_us
        known.note(status, headers, now_us, taken)
        if known.left_alone_until_us > max(was_us, now_us):
            seconds = (known.left_alone_until_us - now_us) / 1e6
            log.info("the provider %s is paused for %.1f s, for its limits", state.settings.name, seconds)

    def note_unreachable(self, state: ProviderState) -> None:
        """Note that a provider cannot be reached: for a moment it comes last."""
        now_us = self._clock.now_us()
        if now_us >= state.unreachable_until_us:
            log.warning("the provider %s cannot be reached", state.settings.name)
        state.unreachable_until_us = now_us + _UNTOLD_US


def _never_passes(taken: Taken, headers: Headers) -> bool:
    """Whether a call takes more tokens than its provider ever lets pass in a minute."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    for name, value in cast(Iterable[tuple[str, str]], pairs):
        counted = _QUOTAS.get(name.lower())
        if counted is not None and _WHOLE.fullmatch(value.strip()) and counted(taken) > int(value):
            return True
    return False

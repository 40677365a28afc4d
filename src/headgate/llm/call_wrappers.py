"""The wrappers that gates put around clients and functions, so that the code that calls these needs no change."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headgate.llm.held_requests import CallerSource
from headgate.llm.limited import BodyOf, FieldSource, LimitedCalls
from headgate.llm.wrapping import wrapped

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., object])


class CallWrappers:
    """`wrap` and `limited` of a gate."""

    _is_async = False

    def wrap(
        self,
        client: C,
        *,
        key: CallerSource = "",
        user: CallerSource = "",
        team: CallerSource = "",
        organisation: CallerSource = "",
        tier: CallerSource = "",
    ) -> C:
        """Return a client like this one, whose calls are held before they are sent and settled by their usage.

        `client` is one of the packages `openai` or `anthropic`, or of httpx or httpx2; an AsyncLlmGate wraps those for
        asyncio. The caller is passed as to `reserve`, by texts or by functions that are called for each call. A refusal
        looks like the provider's: the package raises its own error. Raises ConfigError for any other client.
        """
        caller = {"key": key, "user": user, "team": team, "organisation": organisation, "tier": tier}
        return wrapped(client, self, caller, is_async=self._is_async)

    def limited(
        self,
        model: FieldSource = None,
        *,
        key: FieldSource = "",
        user: FieldSource = "",
        team: FieldSource = "",
        organisation: FieldSource = "",
        tier: FieldSource = "",
        body: BodyOf | None = None,
    ) -> Callable[[F], F]:
        """Return a decorator for functions that call a model and return its answer, or its stream.

        Each parameter is a text, or a function that returns it, called with the arguments of the decorated function.
        `body` is a function that returns the body sent to the provider; without it the arguments by their names
        are the body (`model`, `messages`, `max_tokens`, ...). The decorated function raises RateLimited if its call is
        refused. Raises ConfigError for a function of the other colour.
        """
        caller = {"key": key, "user": user, "team": team, "organisation": organisation, "tier": tier}
        return LimitedCalls(self, model, caller, body, is_async=self._is_async).around

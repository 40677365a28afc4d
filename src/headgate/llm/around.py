"""What gates put around clients and functions, so that the code that calls them needs no change."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headgate.llm.held_requests import Who
from headgate.llm.limited import BodyOf, LimitedCalls, Told
from headgate.llm.wrapping import wrapped

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., object])


class Around:
    """`wrap` and `limited` of a gate."""

    _is_async = False

    def wrap(
        self, client: C, *, key: Who = "", user: Who = "", team: Who = "", organisation: Who = "", tier: Who = ""
    ) -> C:
        """A client like this one, whose calls are held before they are sent and settled by what they used.

        `client` is one of the packages `openai` or `anthropic`, or of httpx or httpx2; an AsyncLlmGate wraps those for
        asyncio. Who calls is told as to `reserve`, by texts, or by functions that are asked for each call. A refusal
        comes as the provider's would: the package raises its own error. Raises ConfigError for what is no such client.
        """
        who = {"key": key, "user": user, "team": team, "organisation": organisation, "tier": tier}
        return wrapped(client, self, who, is_async=self._is_async)

    def limited(
        self,
        model: Told = None,
        *,
        key: Told = "",
        user: Told = "",
        team: Told = "",
        organisation: Told = "",
        tier: Told = "",
        body: BodyOf | None = None,
    ) -> Callable[[F], F]:
        """A decorator for functions that call a model and give its answer, or its stream.

        Each is a text, or a function that is called with the arguments of the call and tells it; `body` gives what is
        sent to the provider, which are else the arguments by their names (`model`, `messages`, `max_tokens`, ...). The
        function raises RateLimited where its call is refused. Raises ConfigError for a function of the other colour.
        """
        who = {"key": key, "user": user, "team": team, "organisation": organisation, "tier": tier}
        return LimitedCalls(self, model, who, body, is_async=self._is_async).around

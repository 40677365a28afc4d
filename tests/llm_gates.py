"""A gate for tests of the queue: a real limiter behind the calls that workers make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headgate import AsyncLimiter
from headgate.llm import read_usage
from headgate.reservation import AsyncReservation


class LimiterCall:
    """A hold of tokens as a worker settles it."""

    def __init__(self, held: AsyncReservation) -> None:
        self._held = held
        self.decision = held.decision
        self.settled = False

    def __bool__(self) -> bool:
        return bool(self._held)

    async def settle(self, answer: Any) -> None:
        usage = read_usage(answer)
        await self._settle(None if usage is None else {"tokens": usage.input + usage.output})

    async def settle_failed(self) -> None:
        await self._settle({"tokens": 0})

    async def settle_unknown(self) -> None:
        await self._settle(None)

    async def cancel(self) -> None:
        await self._settle(0)

    async def _settle(self, actual: Any) -> None:
        if not self.settled:
            self.settled = True
            await self._held.commit(actual)

    async def __aenter__(self) -> LimiterCall:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.settle_unknown()


class LimiterGate:
    """Holds the `max_tokens` of a body, for each key that `key_of` makes of a caller."""

    def __init__(self, limiter: AsyncLimiter, key_of: Callable[[Mapping[str, Any]], str] = lambda call: "all") -> None:
        self.limiter = limiter
        self._key_of = key_of
        self.reserve_count = 0

    async def reserve(self, *, body: Mapping[str, Any], id: str, **call: Any) -> LimiterCall:
        self.reserve_count += 1
        return LimiterCall(await self.limiter.reserve(self._key_of(call), {"tokens": body["max_tokens"]}, id=id))


def answer_of(tokens: int, **more: Any) -> dict[str, Any]:
    """The response of a provider that used so many tokens, one of them of input, or none where it used none."""
    read = min(tokens, 1)  # a usage without input is not believed of a call that sent some
    return {"choices": [], "usage": {"prompt_tokens": read, "completion_tokens": tokens - read}, **more}

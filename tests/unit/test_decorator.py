"""The decorator: raise, wait or fall back, on every kind of function."""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import pickle
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from headgate import ArgumentError, AsyncLimiter, ConfigError, Limiter, MemoryStore, RateLimited
from headgate.testing import ManualClock
from subjects import make_limiter, make_store


def make_async(core: str, text: str) -> AsyncLimiter:
    return AsyncLimiter(text, store=MemoryStore(core=core), clock=ManualClock())  # type: ignore[arg-type]


def test_a_refused_call_raises_with_the_decision_and_does_not_run(core: str) -> None:
    calls = []
    limiter = make_limiter(core, "2/second bucket", ManualClock())

    @limiter.limit("key")
    def work(value: int) -> int:
        """Work."""
        calls.append(value)
        return value * 2

    assert [work(1), work(value=2)] == [2, 4]
    with pytest.raises(RateLimited, match=r"retry after 0.500 s") as caught:
        work(3)
    assert caught.value.decision.retry_after == 0.5
    assert calls == [1, 2]
    assert (work.__name__, work.__doc__) == ("work", "Work.")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_cost_that_can_never_pass_says_so(core: str) -> None:
    @make_limiter(core, "2/second", ManualClock()).limit("key", cost=3)
    def work() -> None: ...

    with pytest.raises(RateLimited, match="can never pass"):
        work()


def test_key_and_cost_are_made_from_the_arguments(core: str) -> None:
    limiter = make_limiter(core, "3/hour", ManualClock())

    class Service:
        @limiter.limit(key=lambda self, user, size: ("user", user), cost=lambda self, user, size: size)
        def store(self, user: str, size: int) -> str:
            return user

    assert Service().store("ann", size=3) == "ann"
    assert Service().store("bob", 2) == "bob"
    with pytest.raises(RateLimited):
        Service().store("ann", 1)
    assert limiter.peek(("user", "bob"), 0).remaining == 1


def test_without_a_key_all_calls_of_one_function_count_together(core: str) -> None:
    limiter = make_limiter(core, "1/hour", ManualClock())

    @limiter.limit()
    def one() -> None: ...

    @limiter.limit()
    def other() -> None: ...

    one()
    other()
    with pytest.raises(RateLimited):
        one()


def test_wait_waits_in_line(core: str) -> None:
    clock = ManualClock()

    @make_limiter(core, "2/second bucket", clock).limit("key", on_refusal="wait", timeout=1)
    def work() -> int:
        return clock.now_us()

    start_us = clock.now_us()
    assert [work() - start_us for _ in range(4)] == [0, 0, 500_000, 1_000_000]


def test_wait_raises_when_the_turn_is_too_late(core: str) -> None:
    @make_limiter(core, "1/hour", ManualClock()).limit("key", on_refusal="wait", timeout=1)
    def work() -> None: ...

    work()
    with pytest.raises(RateLimited):
        work()


def test_a_fallback_answers_instead(core: str) -> None:
    def cached(value: int) -> str:
        return f"cached {value}"

    @make_limiter(core, "1/hour", ManualClock()).limit("key", on_refusal=cached)
    def fresh(value: int) -> str:
        return f"fresh {value}"

    assert [fresh(1), fresh(2)] == ["fresh 1", "cached 2"]


def test_an_admitted_call_waits_out_the_delay_of_a_queue(core: str) -> None:
    clock = ManualClock()

    @make_limiter(core, "2/second queue 5", clock).limit("key")
    def work() -> int:
        return clock.now_us()

    start_us = clock.now_us()
    assert [work() - start_us for _ in range(3)] == [0, 500_000, 1_000_000]


@pytest.mark.parametrize("colour", ["sync limiter", "async limiter"])
def test_coroutine_functions_are_limited_too(core: str, colour: str) -> None:
    text = "2/second bucket"
    limiter = make_limiter(core, text, ManualClock()) if colour == "sync limiter" else make_async(core, text)

    async def instead(value: int) -> int:
        return -value

    @limiter.limit("raise")
    async def raises(value: int) -> int:
        return value

    @limiter.limit("fall back", on_refusal=instead)
    async def falls_back(value: int) -> int:
        return value

    @limiter.limit("fall back plainly", on_refusal=lambda value: -value)
    async def falls_back_plainly(value: int) -> int:
        return value

    @limiter.limit("wait", on_refusal="wait")
    async def waits(value: int) -> int:
        return value

    async def main() -> None:
        assert inspect.iscoroutinefunction(raises)
        assert [await raises(1), await raises(2)] == [1, 2]
        with pytest.raises(RateLimited):
            await raises(3)
        assert [await falls_back(value) for value in (1, 2, 3)] == [1, 2, -3]
        assert [await falls_back_plainly(value) for value in (1, 2, 3)] == [1, 2, -3]
        assert [await waits(value) for value in (1, 2, 3, 4)] == [1, 2, 3, 4]

    asyncio.run(main())


def test_generators_are_limited_when_they_are_called(core: str) -> None:
    limiter = make_limiter(core, "1/hour", ManualClock())

    @limiter.limit("plain")
    def numbers() -> Iterator[int]:
        yield from (1, 2)

    @limiter.limit("async")
    async def later_numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    async def main() -> None:
        assert [number async for number in later_numbers()] == [1, 2]
        with pytest.raises(RateLimited):
            assert [number async for number in later_numbers()]

    assert list(numbers()) == [1, 2]
    with pytest.raises(RateLimited):
        numbers()
    asyncio.run(main())


def test_an_async_generator_that_is_left_early_is_closed(core: str) -> None:
    ended = []

    @make_limiter(core, "9/hour", ManualClock()).limit("key")
    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            ended.append("numbers")

    async def main() -> None:
        values = numbers()
        assert await anext(values) == 1
        await values.aclose()  # type: ignore[attr-defined]
        assert ended == ["numbers"]

    asyncio.run(main())


def test_methods_of_every_kind_partial_functions_and_objects_are_limited(core: str) -> None:
    limiter = make_limiter(core, "1/hour", ManualClock())

    class Service:
        @staticmethod
        @limiter.limit("static")
        def static() -> int:
            return 1

        @classmethod
        @limiter.limit(lambda cls: cls.__name__)
        def of_class(cls) -> str:
            return cls.__name__

    class Adder:
        async def __call__(self, value: int) -> int:
            return value + 1

    upper = limiter.limit()(str.upper)
    partial = limiter.limit()(functools.partial(pow, 2))
    adder = limiter.limit()(Adder())
    calls = (Service.static, Service.of_class, lambda: partial(3), lambda: asyncio.run(adder(1)), lambda: upper("a"))
    assert [call() for call in calls] == [1, "Service", 8, 2, "A"]
    for call in calls:
        with pytest.raises(RateLimited):
            call()


def test_decorators_in_the_wrong_order_are_refused_where_they_are_written(core: str) -> None:
    async def later(cls: type) -> None: ...

    limiters: list[Any] = [make_limiter(core, "1/hour", ManualClock()), make_async(core, "1/hour")]
    functions: list[Any] = [len, later]
    for limiter, function in itertools.product(limiters, functions):
        for kind in (staticmethod, classmethod):
            with pytest.raises(ConfigError, match=f"put limit below @{kind.__name__}, next to the function"):
                limiter.limit("key")(kind(function))
        with pytest.raises(ConfigError, match="goes around a function or a method, not a class"):
            limiter.limit("key")(ManualClock)


def test_limit_without_its_parentheses_raises_where_it_is_written(core: str) -> None:
    limiter = make_limiter(core, "1/hour", ManualClock())
    with pytest.raises(ConfigError, match=re.escape("@limiter.limit()")):

        @limiter.limit  # type: ignore[arg-type]
        def charge(amount: int) -> None:
            raise AssertionError("nobody asks")

    def key(amount: int) -> str:
        return str(amount)

    @limiter.limit(key)
    def other(amount: int) -> int:
        return amount

    assert other(5) == 5


def test_limit_of_a_function_that_returns_no_key_raises_at_its_call(core: str) -> None:
    limiter = make_limiter(core, "1/hour", ManualClock())
    function: Any = lambda *amounts, **named: None  # noqa: E731
    charge: Any = limiter.limit(function)  # which is what @limiter.limit gives
    for call in (charge, lambda: charge("secret"), lambda: charge(1, 2), lambda: charge(a=1)):
        with pytest.raises(ConfigError, match=r"@limiter\.limit\(\), with parentheses") as caught:
            call()
        assert "secret" not in str(caught.value)


def test_a_shadow_limiter_counts_and_reports_and_refuses_no_call(core: str) -> None:
    limiter = Limiter("2/hour", store=make_store(core), clock=ManualClock(), shadow=True)
    decisions = [limiter.hit("key") for _ in range(4)]
    assert [decision.allowed for decision in decisions] == [True] * 4
    assert [len(decision.refusals) for decision in decisions] == [0, 0, 1, 1]


def test_invalid_options_are_refused_where_they_are_written(core: str) -> None:
    limiter = make_limiter(core, "1/hour", ManualClock())
    with pytest.raises(ConfigError, match='on_refusal is "raise", "wait" or a function'):
        limiter.limit("key", on_refusal="explode")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match='a timeout is for on_refusal="wait"'):
        limiter.limit("key", timeout=1)
    with pytest.raises(ArgumentError, match="a key is empty"):
        limiter.limit("")
    with pytest.raises(ArgumentError, match="a cost is at least 0"):
        limiter.limit("key", cost=-1)

    async def later(*args: object) -> Any: ...

    for options in ({"key": later}, {"cost": later}):
        with pytest.raises(ConfigError, match="is no coroutine function: nothing awaits what it gives"):
            make_async(core, "1/hour").limit(**options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="is not async: use Limiter"):

        @make_async(core, "1/hour").limit("key")
        def work() -> None: ...

    async def values() -> AsyncIterator[int]:
        yield 1

    @functools.wraps(values)
    def wrapped() -> Any:
        return values()

    with pytest.raises(ConfigError, match="values gives an async generator: put limit next to that"):
        make_async(core, "1/hour").limit("key")(wrapped)


def test_a_key_made_from_the_arguments_that_is_none_is_an_error_not_a_free_pass(core: str) -> None:
    @make_limiter(core, "1/hour", ManualClock()).limit(key=lambda user: user)
    def work(user: str | None) -> None: ...

    for _ in range(3):
        with pytest.raises(ArgumentError, match="a key is text or a tuple of parts, not None"):
            work(None)


def test_a_sync_limiter_on_a_store_that_blocks_refuses_coroutines(core: str) -> None:
    class Blocking(MemoryStore):
        blocking = True

    with pytest.raises(ConfigError, match="use AsyncLimiter"):

        @Limiter("1/hour", store=Blocking()).limit("key")
        async def work() -> None: ...

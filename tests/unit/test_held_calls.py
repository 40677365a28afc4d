"""Functions whose calls hold places in flight: freed however they end."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from headgate import AsyncLimiter, ConfigError, Limiter, RateLimited
from subjects import make_store


def free(limiter: Limiter | AsyncLimiter, key: str = "key") -> list[int]:
    bound = limiter.bound
    return [reading.remaining for reading in bound.peek(key, 0).limits]


@pytest.fixture
def limiter(core: str) -> Limiter:
    return Limiter("2 concurrent; 9/hour", store=make_store(core))


def test_a_function_holds_a_place_until_it_returns_or_raises(limiter: Limiter) -> None:
    @limiter.limit(key="key")
    def work(error: type[Exception] | None = None) -> list[int]:
        if error is not None:
            raise error
        return free(limiter)

    assert work() == [1, 8]
    with pytest.raises(KeyError):
        work(KeyError)
    assert free(limiter) == [2, 7]  # what a call is charged beside its place stays


def test_a_call_without_a_free_place_is_refused_or_another_function_is_called(limiter: Limiter) -> None:
    def deepest(call: Callable[[int], object], depth: int) -> object:
        return call(depth - 1) if depth else free(limiter)

    @limiter.limit(key="key")
    def strict(depth: int) -> object:
        return deepest(strict, depth)

    @limiter.limit(key="key", on_refusal=lambda _: "busy")
    def polite(depth: int) -> object:
        return deepest(polite, depth)

    assert strict(1) == [0, 7]
    with pytest.raises(RateLimited):
        strict(2)
    assert polite(2) == "busy"
    assert free(limiter)[0] == 2


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as those of clients' packages are: it begins with `def`, and gives the coroutine of another one."""

    @functools.wraps(function)
    def given(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return given


def test_a_function_of_def_that_gives_a_coroutine_holds_a_place_by_an_async_limiter(core: str) -> None:
    limiter = AsyncLimiter("2 concurrent; 9/hour", store=make_store(core))

    async def work() -> list[int]:
        await asyncio.sleep(0)
        return free(limiter)

    async def main() -> None:
        limited = limiter.limit("key")(decorated(work))
        results = await asyncio.gather(*(limited() for _ in range(4)), return_exceptions=True)
        assert [type(each) for each in results] == [list, list, RateLimited, RateLimited]
        assert free(limiter) == [2, 7]
        assert await AsyncLimiter("1/hour", store=make_store(core)).limit()(decorated(work))() == [2, 7]

    asyncio.run(main())


def test_a_coroutine_that_would_run_without_its_place_is_refused(limiter: Limiter) -> None:
    async def work() -> None:
        raise AssertionError("it is never begun")

    with pytest.raises(ConfigError, match=r"work gives a coroutine, which runs later: use AsyncLimiter"):
        limiter.limit("key")(decorated(work))()
    assert free(limiter)[0] == 2


def test_a_context_manager_holds_its_place_for_its_block_if_limit_is_next_to_the_function(limiter: Limiter) -> None:
    def job() -> Iterator[int]:
        yield free(limiter)[0]

    with contextmanager(limiter.limit("key")(job))() as places:
        assert (places, free(limiter)[0]) == (1, 1)
    for make in (contextmanager, asynccontextmanager):
        with pytest.raises(ConfigError, match=r"job gives a context manager, .* put limit below @contextmanager"):
            limiter.limit("key")(make(job))()  # type: ignore[arg-type]
    assert free(limiter)[0] == 2


def test_a_generator_holds_its_place_from_its_first_value_to_its_end(limiter: Limiter) -> None:
    @limiter.limit(key="key")
    def values() -> Iterator[int]:
        yield 1
        yield 2

    untouched = values()
    assert free(limiter) == [2, 9]
    one, two, three = values(), values(), values()
    assert (next(one), next(two), free(limiter)[0]) == (1, 1, 0)
    with pytest.raises(RateLimited):
        next(three)
    assert list(one) == [2] and free(limiter)[0] == 1
    two.close()  # type: ignore[attr-defined]
    del untouched
    assert free(limiter)[0] == 2


class _Two:
    """An object whose calls give generators."""

    def __call__(self) -> Iterator[int]:
        yield 1
        yield 2


@pytest.mark.parametrize("around", [decorated, Limiter("100/hour").limit("key")])
def test_a_generator_behind_another_decorator_holds_its_place_until_it_ends(
    limiter: Limiter, around: Callable[..., Any]
) -> None:
    @limiter.limit(key="key")
    @around
    def echo() -> Generator[int, int, str]:
        return f"got {(yield 1)}"

    one, two = echo(), echo()
    assert (next(one), next(two), free(limiter)[0]) == (1, 1, 0)
    with pytest.raises(RateLimited):
        echo()
    with pytest.raises(StopIteration, match="got 5"):
        one.send(5)
    assert free(limiter)[0] == 1
    two.close()
    assert free(limiter)[0] == 2


def test_a_generator_behind_another_decorator_frees_its_place_if_no_value_is_requested(limiter: Limiter) -> None:
    values = limiter.limit("key")(decorated(_Two().__call__))()
    assert free(limiter)[0] == 1
    values.close()
    assert free(limiter)[0] == 2
    dropped = limiter.limit("key")(decorated(_Two().__call__))()
    assert free(limiter)[0] == 1
    del dropped
    assert free(limiter)[0] == 2


def test_an_object_whose_calls_are_generators_holds_a_place_for_each(limiter: Limiter) -> None:
    values = limiter.limit("key")(_Two())()
    assert free(limiter)[0] == 2
    assert (next(values), free(limiter)[0]) == (1, 1)
    assert (list(values), free(limiter)[0]) == ([2], 2)


def test_an_async_generator_that_would_run_without_its_place_is_refused(limiter: Limiter) -> None:
    async def values() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(ConfigError, match=r"values gives an async generator, which runs later: put limit next to"):
        limiter.limit("key")(decorated(values))()
    assert free(limiter)[0] == 2


def test_the_fallback_of_a_refused_generator_gives_its_values(core: str) -> None:
    limiter = Limiter("0 concurrent", store=make_store(core))

    @limiter.limit(key="key", on_refusal=lambda: iter([7]))
    def values() -> Iterator[int]:
        yield 1

    assert list(values()) == [7]


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_a_coroutine_holds_its_place_until_it_ends_or_is_cancelled(
    core: str, kind: type[Limiter | AsyncLimiter]
) -> None:
    limiter = kind("2 concurrent", store=make_store(core))

    async def main() -> None:
        started = asyncio.Event()

        @limiter.limit(key="key")
        async def work() -> None:
            started.set()
            await asyncio.Event().wait()

        @limiter.limit(key="key", on_refusal=lambda: "busy")
        async def quick() -> object:
            return free(limiter)[0]

        task = asyncio.create_task(work())
        await started.wait()
        assert free(limiter)[0] == 1 and await quick() == 0
        again = asyncio.create_task(work())
        await asyncio.sleep(0)
        assert free(limiter)[0] == 0 and await quick() == "busy"
        for each in (task, again):
            each.cancel()
            with pytest.raises(asyncio.CancelledError):
                await each
        assert free(limiter)[0] == 2

    asyncio.run(main())


def test_an_async_generator_holds_its_place_until_it_is_closed(core: str) -> None:
    limiter = AsyncLimiter("1 concurrent", store=make_store(core))

    @limiter.limit(key="key")
    async def values() -> AsyncIterator[int]:
        yield 1
        yield 2

    async def main() -> None:
        opened = values()
        assert await anext(opened) == 1 and free(limiter)[0] == 0
        with pytest.raises(RateLimited):
            await anext(values())
        await opened.aclose()  # type: ignore[attr-defined]
        assert free(limiter)[0] == 1
        assert [value async for value in values()] == [1, 2] and free(limiter)[0] == 1

    asyncio.run(main())


def test_the_block_of_an_event_loop_settles_what_it_held(core: str) -> None:
    limiter = AsyncLimiter("9/hour bucket; 3 concurrent", store=make_store(core))

    async def main() -> None:
        async with await limiter.reserve("key", 2) as held:
            assert free(limiter) == [7, 1]
            assert (await held.commit(1)).actual == 1
        async with await limiter.reserve("key", 2, id="x") as held:
            assert held.id == limiter.id_of("key", "x") and (await held.extend(more=1)).outcome == "extended"
        assert free(limiter) == [5, 3]
        with pytest.raises(KeyError):
            async with await limiter.reserve("key", 2):
                raise KeyError
        assert free(limiter) == [5, 3]
        with pytest.raises(RateLimited):
            async with await limiter.reserve("key", 4):
                raise AssertionError
        held = await limiter.reserve("key", 2)
        assert (await limiter.extend(held.id)).outcome == "extended"
        assert (await held.cancel()).outcome == "settled"
        assert (await limiter.commit(held.id, 1)).actual == (await limiter.cancel(held.id)).actual == 0

    asyncio.run(main())


def test_a_hit_with_an_id_charges_once_on_an_event_loop(core: str) -> None:
    limiter = AsyncLimiter("9/hour bucket", store=make_store(core))

    async def main() -> None:
        assert [(await limiter.hit("key", 2, id="x")).remaining for _ in range(3)] == [7, 7, 7]

    asyncio.run(main())

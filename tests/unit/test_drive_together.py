"""Generators that are driven together: steps of one turn are performed together, and each ends on its own."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from headgate.drive import all_in_portions, drive_async, drive_together

Work = Generator[int, Any, str]


def adding(*numbers: int) -> Work:
    """Yields each number, and returns the answers as text."""
    answers = []
    for number in numbers:
        try:
            answers.append((yield number))
        except ValueError as error:
            answers.append(str(error))
    return " ".join(map(str, answers))


class Doing:
    """Doubles numbers, but raises an error for 13."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    async def __call__(self, steps: Sequence[int]) -> list[Any]:
        self.batches.append(list(steps))
        return [ValueError("13 is refused") if step == 13 else 2 * step for step in steps]


def test_steps_that_are_due_together_are_performed_together() -> None:
    do = Doing()
    assert asyncio.run(drive_together([adding(1, 2, 3), adding(), adding(4)], do)) == ["2 4 6", "", "8"]
    assert do.batches == [[1, 4], [2], [3]]


def test_an_error_is_raised_where_its_step_was_yielded_and_nowhere_else() -> None:
    assert asyncio.run(drive_together([adding(1), adding(13, 2)], Doing())) == ["2", "13 is refused 4"]


def test_an_error_that_ends_a_generator_is_its_result_and_the_others_continue() -> None:
    def failing() -> Work:
        yield 1
        raise KeyError("gone")

    first, second = asyncio.run(drive_together([failing(), adding(1, 2)], Doing()))
    assert isinstance(first, KeyError) and second == "2 4"


def test_many_requests_are_made_in_portions_and_the_first_error_ends_the_rest() -> None:
    do = Doing()
    numbers = list(range(100, 1_700))
    assert asyncio.run(drive_async(all_in_portions(numbers, do))) == [2 * number for number in numbers]
    assert [number for batch in do.batches for number in batch] == numbers and max(map(len, do.batches)) <= 500
    do = Doing()
    with pytest.raises(ValueError, match="13 is refused"):
        asyncio.run(drive_async(all_in_portions([1, 13, *numbers], do)))
    assert len(do.batches) == 1


def test_nothing_is_performed_where_there_are_no_steps() -> None:
    do = Doing()
    assert asyncio.run(drive_together([], do)) == [] and not do.batches


def test_every_generator_is_closed_when_the_caller_is_cancelled() -> None:
    ended = []

    def holding(name: str) -> Work:
        try:
            yield 1
        finally:
            ended.append(name)
        return name

    async def never(steps: Sequence[int]) -> list[Any]:
        await asyncio.sleep(60)
        return []

    async def run() -> None:
        asking = asyncio.ensure_future(drive_together([holding("one"), holding("two")], never))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(run())
    assert ended == ["one", "two"]

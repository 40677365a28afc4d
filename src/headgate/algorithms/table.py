"""What is special to each algorithm, in one table: all that stores, texts of limits and plans need to know of one.

What follows from a limit's own numbers is a method of its class in `headgate.limits`; an entry here connects that class
with its transition, its words and its form in a store. A new algorithm is a new entry, see CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from headgate.algorithms import (
    calendar_window,
    concurrent,
    fixed_window,
    leaky_bucket,
    leaky_queue,
    sliding_conversion,
    sliding_log,
    sliding_window,
    stepwise,
    token_bucket,
)
from headgate.limits import (
    CalendarWindow,
    Concurrent,
    FixedWindow,
    LeakyBucket,
    LeakyQueue,
    Limit,
    SlidingLog,
    SlidingWindow,
    StepwiseBucket,
    TokenBucket,
)
from headgate.units import CompiledLimit

State = tuple[Any, ...]


class Transition(Protocol):
    """The functions that each algorithm's module has."""

    def roll(self, limit: CompiledLimit, state: Any, now: int) -> Any: ...
    def admit(self, limit: CompiledLimit, state: Any, now: int, cost: int) -> int | None: ...
    def charge(self, limit: CompiledLimit, state: Any, now: int, cost: int) -> Any: ...
    def measure(self, limit: CompiledLimit, state: Any, now: int) -> tuple[int, int, int]: ...
    def convert(self, limit: CompiledLimit, state: Any, now_us: int, former: CompiledLimit) -> Any: ...
    def give_back(self, limit: CompiledLimit, state: Any, now: int, cost: int, earliest: int) -> Any: ...
    def mark(self, limit: CompiledLimit, state: Any, now: int) -> tuple[int, int]: ...
    def settle(
        self, limit: CompiledLimit, state: Any, now: int, marked: tuple[int, int], change: int, refunded: int
    ) -> tuple[Any, int]: ...
    def fits(self, limit: CompiledLimit, state: Any) -> bool: ...


Delay = Callable[[CompiledLimit, Any, int], int]
"""How long a request that is admitted onto a state waits before it may proceed."""

Conversion = Callable[[CompiledLimit, Any, int, CompiledLimit], State | None]
"""The state of a limit that takes over from one of another algorithm; None where nothing of it counts any more."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a limit is written: a word after its rate, and a number after that, as in "10/second burst 100".

    The count before the rate sets the arguments `sets`, the one after the word sets `number`: `meaning` and `example`
    are for the error where it is missing. Shapes with the same word differ in a last word, `ending`.
    """

    word: str
    sets: tuple[str, ...]
    number: str = ""
    meaning: str = ""
    example: int = 0
    ending: str = ""


@dataclass(frozen=True, slots=True)
class RedisForm:
    """The form of a state in Redis, in a field named by `field` and the limit's place in its family.

    `code` identifies the algorithm in the scripts for any number of limits, `pack` is the format of its numbers
    (`struct`), "" for a log. With `refills` the numbers of the limit, which follow, have a rate of refill. A `brief`
    state can be replaced by the units that are left, for a shorter reply.
    """

    code: int
    field: str
    pack: str = ""
    refills: bool = False
    brief: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Algorithm:
    """What is special to an algorithm."""

    limit: type[Limit]
    shapes: tuple[Shape, ...]
    transition: Transition | None = None
    """Its pure functions; None for an algorithm that no store decides yet."""

    latest: Callable[[CompiledLimit, State], int] | None = None
    """The latest moment that a state contains, as itself or as the start of a window."""

    delay: Delay | None = None
    """How long admitted requests wait in the queue; None where there is no queue."""

    takes_over: Mapping[str, Conversion] = field(default_factory=dict)
    """By the name of another algorithm of its family: the conversion of its state to one of this."""

    is_log: bool = False
    """Whether a state is a log of requests, which grows with them."""

    in_flight: bool = False
    """Whether a state consists of leases: then it is stored with the holds, and only holds charge it."""

    redis: RedisForm | None = None

    @property
    def name(self) -> str:
        """The name that the vectors and the native core use."""
        return self.limit.algorithm

    @property
    def queues(self) -> bool:
        """Whether admitted requests may have to wait for their place."""
        return self.delay is not None


def _window(limit: CompiledLimit, state: State) -> int:
    return int(state[0]) * limit.period


def _start(limit: CompiledLimit, state: State) -> int:
    return int(state[0])


def _last_entry(limit: CompiledLimit, state: State) -> int:
    return int(state[-1][0])


def _updated(limit: CompiledLimit, state: State) -> int:
    return int(state[1])


ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(
            FixedWindow,
            (Shape("fixed", ("limit",)),),
            fixed_window,
            latest=_window,
            redis=RedisForm(0, "f", "<ddI"),
        ),
        Algorithm(
            SlidingLog,
            (Shape("log", ("limit",)),),
            sliding_log,
            latest=_last_entry,
            takes_over={SlidingWindow.algorithm: sliding_conversion.log_of_counter},
            is_log=True,
            redis=RedisForm(1, "w"),
        ),
        Algorithm(
            SlidingWindow,
            (Shape("counter", ("limit",)),),
            sliding_window,
            latest=_window,
            takes_over={SlidingLog.algorithm: sliding_conversion.counter_of_log},
            redis=RedisForm(2, "w", "<dddI"),
        ),
        Algorithm(
            TokenBucket,
            (
                Shape("bucket", ("capacity", "refill")),
                Shape("burst", ("refill",), "capacity", "the capacity", 100),
            ),
            token_bucket,
            latest=_updated,
            redis=RedisForm(3, "t", "<ddI", refills=True, brief=True),
        ),
        Algorithm(
            LeakyBucket,
            (Shape("leaky", ("refill",), "capacity", "the capacity", 200),),
            leaky_bucket,
            latest=_updated,
            redis=RedisForm(3, "l", "<ddI", refills=True, brief=True),  # the transition of a token bucket
        ),
        Algorithm(
            LeakyQueue,
            (Shape("queue", ("refill",), "queue", "how many may wait", 200),),
            leaky_queue,
            latest=_updated,
            delay=leaky_queue.delay,
            redis=RedisForm(5, "q", "<ddI", refills=True),
        ),
        Algorithm(
            StepwiseBucket,
            (
                Shape("bucket", ("capacity", "refill"), ending="stepwise"),
                Shape("burst", ("refill",), "capacity", "the capacity", 100, ending="stepwise"),
            ),
            stepwise,
            latest=_updated,
            redis=RedisForm(4, "s", "<ddI", refills=True),
        ),
        Algorithm(
            CalendarWindow,
            (),  # "in" and a time zone follow the period itself
            calendar_window,
            latest=_start,
            redis=RedisForm(6, "c", "<dddI"),
        ),
        Algorithm(
            Concurrent,
            (Shape("concurrent", ("limit",)),),
            concurrent,
            in_flight=True,
            redis=RedisForm(7, "p", "<dI"),
        ),
    )
}
"""All algorithms by name, in the order in which messages list them."""


def is_in_flight(algorithm: str) -> bool:
    """Whether a limit of this algorithm counts leases."""
    return ALGORITHMS[algorithm].in_flight


REDIS_FORMS = {name: algorithm.redis for name, algorithm in ALGORITHMS.items() if algorithm.redis is not None}
"""The form of each algorithm's states in Redis."""

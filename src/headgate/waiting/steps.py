"""The steps of a caller that waits: a generator yields them, `run` and `run_async` perform them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from headgate.clock import US_PER_SECOND
from headgate.decision import Decision
from headgate.errors import ArgumentError, kind_of
from headgate.holding import Hold, Reserved
from headgate.keys import Key
from headgate.operation import Operation
from headgate.stores.lines import LinePlace, StoreLine, Ticket

FOREVER_US = 1 << 51
"""No timeout: about 71 years."""

Costs = tuple[int, ...]
"""The cost of a request in each group of the limits."""

Answer: TypeAlias = Decision | Reserved
"""The store's answer to a caller that waits: a decision, or a reservation."""


class Reserve(NamedTuple):
    """A step: decide an operation, and hold what it charges, under a whole id that is known beforehand.

    `is_named` is whether the caller chose the hold's name, which it may have used before.
    """

    operation: Operation
    hold: Hold
    whole_id: str
    is_named: bool


class IsHeld(NamedTuple):
    """A step: return whether a hold of this whole id exists."""

    whole_id: str


class Extend(NamedTuple):
    """A step: let the lease of a hold end `lease_us` microseconds from now."""

    whole_id: str
    lease_us: int


class AttemptIfNoLine(NamedTuple):
    """A step: make an attempt by `call`. Where callers wait in line, the answer is None, and nothing was charged."""

    attempt: Operation | Reserve
    call: Callable[[Operation, Hold | None], Any]


class Join(NamedTuple):
    """A step: join a line of the store at its end by `do`. The caller leaves it by `leave`, however its wait ends."""

    do: Callable[[], Any]
    leave: Callable[[], Any]


class Leave(NamedTuple):
    """A step: leave the line of the store, if one was joined; an error of the store is ignored."""


class LineCall(NamedTuple):
    """A step: make another call to a line of the store."""

    do: Callable[[], Any]


class Read(NamedTuple):
    """A step: read the store's states; the answer is that of `BoundLimits.read`."""

    keys: tuple[Key, ...]


class Sleep(NamedTuple):
    """A step: sleep for `seconds` of real time."""

    seconds: float


class Stand(NamedTuple):
    """A step: wait in line until the ticket is called, or until `seconds` have passed."""

    ticket: Ticket
    seconds: float


WaitSteps: TypeAlias = Generator[Any, Any, Any]
"""A generator that yields the steps defined here, and operations; its result is an `Answer`."""


class Holding(NamedTuple):
    """How an admitted request is held. `is_named` is whether the caller chose its name, and may have used it before."""

    hold: Hold
    whole_id: str
    is_named: bool


class Request(NamedTuple):
    """What a caller waits for: the costs of a key in each group, to be charged, or to be held as `holding` states."""

    name: str
    keys: tuple[Key, ...]
    costs: Costs
    holding: Holding | None = None

    def attempt(self, max_delay_us: int) -> Operation | Reserve:
        """The step that tries to charge or hold it now."""
        operation = Operation(self.keys, self.costs, max_delay_us=max_delay_us)
        if self.holding is None:
            return operation
        return Reserve(operation, *self.holding)

    def answer(self, decision: Decision) -> Answer:
        """A refusal in the form that the caller expects: the decision, or a `Reserved` with it."""
        return decision if self.holding is None else Reserved(decision, self.holding.whole_id, False)


def decision_in(answer: Answer) -> Decision:
    """The decision of an answer."""
    return answer.decision if isinstance(answer, Reserved) else answer


def is_held(request: Request) -> Generator[IsHeld, Any, bool]:
    """Whether a hold of the name that the caller chose exists already: then there is nothing to wait for."""
    if request.holding is None or not request.holding.is_named:
        return False
    held: bool = yield IsHeld(request.holding.whole_id)
    return held


def attempt_if_no_line(
    line: StoreLine, place: LinePlace, request: Request, timeout_us: int
) -> Generator[Any, Any, Answer | None]:
    """Try the request at once and return the answer; None, and nothing is charged, where callers are in line."""
    decide, is_waited_for = line.decide_if_no_line, line.is_waited_for
    attempt: Any = request.attempt(timeout_us)
    if decide is not None:
        attempt = AttemptIfNoLine(attempt, partial(decide, place))
    elif is_waited_for is not None and (yield LineCall(partial(is_waited_for, place))):
        return None
    answer: Answer | None = yield attempt
    return answer


def timeout_us(timeout: float | None) -> int:
    """Convert a timeout in seconds to microseconds, None to `FOREVER_US`; raises ArgumentError for anything else."""
    if timeout is None:
        return FOREVER_US
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise ArgumentError(f"a timeout is a number of seconds or None, not {kind_of(timeout)}")
    if not timeout >= 0:  # refuses NaN, too
        raise ArgumentError(f"a timeout is at least 0 seconds, not {timeout}")
    return FOREVER_US if timeout * US_PER_SECOND >= FOREVER_US else int(timeout * US_PER_SECOND)

"""What a caller that waits does: steps, which a generator yields and `run` and `run_async` do."""

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
"""What is waited for: a cost for each group of the limits."""

Answer: TypeAlias = Decision | Reserved
"""What a store says to a caller that waits: a decision, or what was reserved."""


class Reserve(NamedTuple):
    """A step: decide an operation, and hold what it charges, under a whole id that is known ahead.

    `is_named`: whether the caller gave the name, and may have given it before.
    """

    operation: Operation
    hold: Hold
    whole_id: str
    is_named: bool


class IsHeld(NamedTuple):
    """A step: ask whether there is a hold of this whole id; the answer is a boolean."""

    whole_id: str


class Extend(NamedTuple):
    """A step: let the lease of a hold end so many microseconds from now."""

    whole_id: str
    lease_us: int


class AskFirst(NamedTuple):
    """A step: ask for something unless callers wait in line; the answer is None then, and nothing was taken."""

    asking: Operation | Reserve
    ask: Callable[[Operation, Hold | None], Any]


class Join(NamedTuple):
    """A step: stand last in a line of the store. However the caller ends, it leaves that line."""

    do: Callable[[], Any]
    leave: Callable[[], Any]


class Leave(NamedTuple):
    """A step: leave the line of the store that was joined, if one was, and as far as the store answers."""


class LineStep(NamedTuple):
    """A step: ask something of a line of the store."""

    do: Callable[[], Any]


class Read(NamedTuple):
    """A step: read the store's states; the answer is what `BoundLimits.read` gives."""

    keys: tuple[Key, ...]


class Sleep(NamedTuple):
    """A step: sleep for so many real seconds."""

    seconds: float


class Stand(NamedTuple):
    """A step: stand in line until called, or until so many seconds have passed."""

    ticket: Ticket
    seconds: float


WaitSteps: TypeAlias = Generator[Any, Any, Any]
"""Steps as they are here, and operations; the result is an `Answer`."""


class Holding(NamedTuple):
    """How what is waited for is held. `is_named`: whether the caller gave the name, and may have given it before."""

    hold: Hold
    whole_id: str
    is_named: bool


class Request(NamedTuple):
    """What a caller waits for: the costs of a key in each group, taken, or held."""

    name: str
    keys: tuple[Key, ...]
    costs: Costs
    holding: Holding | None = None

    def asking(self, max_delay_us: int) -> Operation | Reserve:
        """The step that asks for it now."""
        operation = Operation(self.keys, self.costs, max_delay_us=max_delay_us)
        if self.holding is None:
            return operation
        return Reserve(operation, *self.holding)

    def answer(self, decision: Decision) -> Answer:
        """A refusal, as the caller expects it."""
        return decision if self.holding is None else Reserved(decision, self.holding.whole_id, False)


def decision_in(answer: Answer) -> Decision:
    """The decision of an answer."""
    return answer.decision if isinstance(answer, Reserved) else answer


def is_held(asked: Request) -> Generator[IsHeld, Any, bool]:
    """Whether a hold of the name that the caller gave is there already: then there is nothing to wait for."""
    if asked.holding is None or not asked.holding.is_named:
        return False
    held: bool = yield IsHeld(asked.holding.whole_id)
    return held


def ask_first(line: StoreLine, place: LinePlace, asked: Request, timeout_us: int) -> Generator[Any, Any, Answer | None]:
    """What comes of asking at once; None, and nothing is taken, where callers are in line."""
    ask, is_waited_for = line.ask, line.is_waited_for
    step: Any = asked.asking(timeout_us)
    if ask is not None:
        step = AskFirst(step, partial(ask, place))
    elif is_waited_for is not None and (yield LineStep(partial(is_waited_for, place))):
        return None
    answer: Answer | None = yield step
    return answer


def timeout_us(timeout: float | None) -> int:
    """A timeout in seconds as microseconds, None as forever; raises ArgumentError for what is neither."""
    if timeout is None:
        return FOREVER_US
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise ArgumentError(f"a timeout is a number of seconds or None, not {kind_of(timeout)}")
    if not timeout >= 0:  # not a number is refused here too
        raise ArgumentError(f"a timeout is at least 0 seconds, not {timeout}")
    return FOREVER_US if timeout * US_PER_SECOND >= FOREVER_US else int(timeout * US_PER_SECOND)

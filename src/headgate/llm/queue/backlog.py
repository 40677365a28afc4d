"""What a queue asks of the place where its jobs are: one contract for the memory of a process and for Redis.

Every call is whole or not at all. What is told is how long, not when: a place has a clock of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from headgate.errors import ConfigError
from headgate.llm.entry import Caller
from headgate.llm.queue.job import Job, JobState, Order, Position
from headgate.llm.queue.news import News

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a queue takes: jobs that wait or run, bytes of their bodies, both also for each user.

    A body and an answer may have so many bytes; a result is kept for so many seconds, in memory as long as all results
    together have at most `answers_bytes`.
    """

    jobs: int = 10_000
    bytes: int = 256 * MIB
    user_jobs: int = 1_000
    user_bytes: int = 64 * MIB
    body_bytes: int = 4 * MIB
    answer_bytes: int = 16 * MIB
    answers_bytes: int = 256 * MIB
    results_s: float = 3600.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1 << 50:
                raise ConfigError(f"bounds.{name} is a number above 0, not {str(value)[:40]!r}")

    @property
    def results_us(self) -> int:
        return round(self.results_s * 1_000_000)


@dataclass(frozen=True, slots=True)
class Fairness:
    """What the order of jobs is made of, beside the tokens that users have had; see docs/llm-queue.md.

    A step of priority puts a job ahead by `priority_tokens`, each second of waiting by `ageing_tokens`.
    """

    priority_tokens: int = 10_000
    ageing_tokens: int = 10

    def __post_init__(self) -> None:
        for name, least, most in (("priority_tokens", 0, 1_000_000_000), ("ageing_tokens", 1, 1_000)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ConfigError(f"{name} is a whole number from {least} to {most}, not {str(value)[:40]!r}")

    def score(self, counter: int, since_us: int, priority: int) -> int:
        """Where a lane stands in thousandths of a token, the least first.

        What all lanes gain while time goes on cancels out, so the score of a lane changes only with its user's counter
        and when it is served.
        """
        return counter * 1000 + self.ageing_tokens * (since_us // 1000) - priority * self.priority_tokens * 1000


class Claim(NamedTuple):
    """A lane that was refused by a limit again at its promised moment: lanes behind it leave that limit alone."""

    scope: str
    score: int
    after_us: int


class Taken(NamedTuple):
    """A job that a worker has; `state` is "done" where only its hold is left to be settled, with `answer`.

    `hold` numbers its holds, of which one is open at a time. `former` is that which `renew` put out of use, 0 for none:
    it is to be ended before anything else, as the worker that did so may have died. `deliveries` is how many workers
    had it at the end of their lives, and this one. `since_us`, `score`, `refusals` and `promised_us` are those of its
    lane, by the clock of the place.
    """

    id: str
    caller: Caller
    model: str
    path: str
    body: bytes
    state: JobState
    hold: int
    attempts: int
    deliveries: int
    since_us: int
    score: int
    refusals: int
    promised_us: int
    claims: tuple[Claim, ...] = ()
    answer: bytes = b""
    former: int = 0


Gone = Literal["cancelled", "lost"]
"""Why a worker has a job no more: it was cancelled, or another worker has it."""

Finished = Literal["ended", "was ended", "lost"]
"""What came of ending a job: it has ended now, it had ended before, or it is another worker's."""


class Nothing(NamedTuple):
    """No job can be taken now; something may change after a while (None: only when something is said)."""

    after_us: int | None


class Backlog(Protocol):
    """Where jobs are."""

    news: News
    bounds: Bounds
    lease_us: int | None
    """A worker that says nothing for so long has lost its jobs; None where they cannot be lost without the queue."""

    async def submit(self, order: Order) -> Job:
        """Queue a job, or tell how the one with this id stands.

        Raises QueueFull, and ConflictingId where the id is that of another body or caller.
        """
        ...

    async def take(self, worker: str) -> Taken | Nothing:
        """The next job in the order of fairness, of those whose moment has come; jobs of dead workers first."""
        ...

    async def park(
        self, worker: str, taken: Taken, after_us: int, scope: str = "", *, refused: bool, burnt: bool, failed: bool
    ) -> bool:
        """Put a job back where it was; its lane is left alone for a while.

        `refused` by a limit of this scope: if something was given back to that since the job was taken, the lane may
        ask again at once; `burnt`: its hold was settled, so the next has a new number; `failed`: the provider could
        not answer. False where it is no more the worker's.
        """
        ...

    async def renew(self, worker: str, taken: Taken) -> Taken | None:
        """Give a job that this worker has a new number for its next hold; None where it is no more the worker's.

        The former number is kept with the job until the next one is.
        """
        ...

    async def finish(
        self, worker: str, taken: Taken, state: JobState, *, answer: bytes = b"", error: str = "", limit: str = "",
        scopes: tuple[str, ...] = (), tokens: int | None = None, settled: bool = True,
    ) -> Finished:  # fmt: skip
        """End a job that is this worker's. What waits for limits of these scopes may ask again.

        `tokens` are those that it took. One that is not `settled` stays the worker's until `release`.
        """
        ...

    async def release(self, worker: str, taken: Taken) -> None:
        """The hold of a job that is done was settled."""
        ...

    async def wake(self, scopes: tuple[str, ...]) -> None:
        """Something was given back to limits of these scopes: of each the first that waits for it may ask again."""
        ...

    async def keep(self, worker: str, ids: tuple[str, ...]) -> dict[str, Gone]:
        """Say that a worker lives and has these jobs; gives those that it has no more, and why."""
        ...

    async def cancel(self, id: str) -> Job:
        """End a job that has not ended; raises UnknownJob."""
        ...

    async def get(self, id: str) -> Job:
        """A job as it stands; raises UnknownJob."""
        ...

    async def position(self, id: str) -> Position:
        """Where a job stands; raises UnknownJob."""
        ...

    async def close(self) -> None:
        """End what runs in the background; jobs that are kept elsewhere stay."""
        ...

"""Where the jobs of a queue are stored: one contract for the memory of a process and for Redis.

Every call is atomic. Times are passed and returned as durations, not as points in time: a backlog has its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from headgate.errors import ConfigError
from headgate.llm.entry import Caller
from headgate.llm.queue.job import Job, JobRequest, JobState, Position
from headgate.llm.queue.news import News

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a queue accepts: jobs that wait or run and bytes of their bodies, in total and for each user.

    `body_bytes` and `answer_bytes` bound one body and one answer. Results are stored for `results_s` seconds; a queue
    in memory drops the oldest earlier if all answers together exceed `answers_bytes`.
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
    """What decides the order of jobs besides the tokens that users have had; see docs/llm-queue.md.

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
        """Return the score of a lane in thousandths of a token; the lowest is served first.

        What all lanes gain as time passes cancels out, so a lane's score changes only with its user's counter and when
        it is served.
        """
        return counter * 1000 + self.ageing_tokens * (since_us // 1000) - priority * self.priority_tokens * 1000


class Claim(NamedTuple):
    """A limit that a lane claims, as it was refused again at its promised time: lanes behind it do not use it."""

    scope: str
    score: int
    after_us: int


class Taken(NamedTuple):
    """A job that a worker has; `state` is "done" where only its hold remains to be settled, by `answer`.

    `hold` is the number of its current hold; one is open at a time. The first one is the time at which the job was
    submitted, so that no hold of an earlier job with the same id, which a gate may remember, counts for this one.
    `former` is the number of the hold that `renew` replaced, 0 for none: it must be ended before anything else, as the
    worker that renewed may have died. `deliveries` counts the workers that died while they had the job, and this one.
    `since_us`, `score`, `refusals` and `promised_us` are those of its lane, by the clock of the backlog.
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


StopReason = Literal["cancelled", "lost"]
"""Why a worker no longer has a job: it was cancelled, or another worker has it."""

Finished = Literal["ended", "was ended", "lost"]
"""The result of ending a job: it has ended now, it had ended before, or another worker has it."""


class Nothing(NamedTuple):
    """No job can be taken now; take again after `after_us`, or earlier at news (None: only at news)."""

    after_us: int | None


class Backlog(Protocol):
    """Where the jobs of a queue are stored."""

    news: News
    bounds: Bounds
    lease_us: int | None
    """A worker that is silent for this long loses its jobs; None where jobs and workers end together."""

    async def submit(self, request: JobRequest) -> Job:
        """Queue a job, or return the existing job with this id.

        Raises QueueFull, and ConflictingId where the id belongs to another body or caller.
        """
        ...

    async def take(self, worker: str) -> Taken | Nothing:
        """Take the next job in the order of fairness whose lane is not parked; jobs of dead workers come first."""
        ...

    async def park(
        self, worker: str, taken: Taken, after_us: int, scope: str = "", *, refused: bool, settled: bool, failed: bool
    ) -> bool:
        """Put a job back where it was, and park its lane for `after_us`.

        Return False where another worker has the job, or it was cancelled: then this worker must still `finish` it.
        `refused`: a limit of this scope refused it; if capacity of that scope was given back since the job was taken,
        the lane may try again at once. `settled`: its hold was settled, so the next has a new number. `failed`:
        the provider could not answer.
        """
        ...

    async def renew(self, worker: str, taken: Taken) -> Taken | None:
        """Give a job of this worker a new number for its next hold; return None where another worker has the job.

        The former number is stored with the job until it is renewed again.
        """
        ...

    async def finish(
        self, worker: str, taken: Taken, state: JobState, *, answer: bytes = b"", error: str = "", limit: str = "",
        scopes: tuple[str, ...] = (), tokens: int | None = None, settled: bool = True,
    ) -> Finished:  # fmt: skip
        """End a job of this worker, and wake the lanes that wait for limits of these scopes.

        `tokens` are those that it used. A job that is not `settled` remains the worker's until `release`.
        """
        ...

    async def release(self, worker: str, taken: Taken) -> None:
        """Report that the hold of a job that is done was settled."""
        ...

    async def wake(self, scopes: tuple[str, ...]) -> None:
        """Report that capacity in these scopes was given back: the first lane waiting for each may try again."""
        ...

    async def keep(self, worker: str, ids: tuple[str, ...]) -> dict[str, StopReason]:
        """Report that a worker is alive and has these jobs; return those that it no longer has, and why."""
        ...

    async def cancel(self, id: str) -> Job:
        """End a job that has not ended, and return it; raises UnknownJob."""
        ...

    async def get(self, id: str) -> Job:
        """Return a job in its current state; raises UnknownJob."""
        ...

    async def position(self, id: str) -> Position:
        """Return the position of a job; raises UnknownJob."""
        ...

    async def close(self) -> None:
        """End background tasks and connections; jobs that are stored outside this process stay."""
        ...

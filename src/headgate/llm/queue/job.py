"""A job of the queue: the request to a model, its caller, and its outcome."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

from headgate.errors import ArgumentError, HeadgateError, kind_of
from headgate.llm.deciding_fields import check_field_case
from headgate.llm.dialects.paths import CHAT, DIALECTS
from headgate.llm.entry import Caller

JobState = Literal["waiting", "running", "done", "failed", "refused", "expired", "cancelled"]
ENDED = frozenset({"done", "failed", "refused", "expired", "cancelled"})
MOST_PRIORITY = 9
CHAT_PATH = CHAT.path
LONGEST_DEADLINE_S = 31 * 24 * 3600

_ID = re.compile(r"[A-Za-z0-9._:-]{1,120}", re.ASCII)
_PATHS = tuple(path for path, dialect in DIALECTS.items() if dialect.is_charged)
"""The paths that a job may have; any other would bypass what is counted."""

_FAIR_FIRST = ("user", "key", "team", "organisation")


class QueueFull(HeadgateError):
    """The queue accepts no more jobs now, of this caller or of any; nothing was queued. `bound` names the bound."""

    code = "queue-full"

    def __init__(self, bound: str, most: int) -> None:
        super().__init__(f"the queue is full: {bound.replace('_', ' ')} may be at most {most:,}; submit again later")
        self.bound = bound
        self.most = most

    def __reduce__(self) -> tuple[type[QueueFull], tuple[str, int]]:
        return (type(self), (self.bound, self.most))


class UnknownJob(ArgumentError):
    """No job has this id: there never was one, or its result has expired."""

    code = "unknown-job"

    def __init__(self, id: str) -> None:
        super().__init__(f"no job has the id {id[:120]!r}: results are forgotten after a while")
        self.id = id

    def __reduce__(self) -> tuple[type[UnknownJob], tuple[str]]:
        return (type(self), (self.id,))


@dataclass(frozen=True, slots=True)
class Job:
    """A job in its current state. Times are microseconds since the epoch, 0 for events that have not happened.

    `tokens` is what its user is charged in the order of the queue: an estimate until the job has ended, then the actual
    usage as far as it is known. `answer` is the provider's answer, if the job is done. `error` describes why there is
    no answer, `limit` names the limit that can never admit the job.
    """

    id: str
    caller: Caller
    model: str
    state: JobState
    priority: int
    tokens: int
    submitted_us: int
    started_us: int = 0
    ended_us: int = 0
    deadline_us: int = 0
    attempts: int = 0
    """How many requests the provider could not answer."""

    answer: Any = None
    error: str = ""
    limit: str = ""
    repeated: bool = field(default=False, compare=False)
    """Set by `submit` if a job with this id existed already; this is its current state."""

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self.state in ENDED


class JobRequest(NamedTuple):
    """A job to be queued. `body` is JSON; `account` is charged its tokens; it waits in `lane`.

    It expires after `deadline_us`, 0 for never.
    """

    id: str
    caller: Caller
    model: str
    path: str
    body: bytes
    priority: int
    tokens: int
    deadline_us: int
    account: str
    lane: str
    digest: str

    @property
    def size(self) -> int:
        """The bytes that the job counts within the bounds of a queue."""
        return len(self.body)


class Position(NamedTuple):
    """The position of a job: how many jobs are before it, how many wait in all, and in how many seconds it may start.

    All three are estimates: limits, and later submissions and cancellations, change them. `starts_in` is None where no
    job was started lately, and for jobs that no longer wait (`ahead` is 0 then).
    """

    state: JobState
    ahead: int
    waiting: int
    starts_in: float | None


def job_request(
    body: Mapping[str, Any],
    caller: Caller,
    *,
    id: str | None,
    path: str,
    priority: int,
    tokens: int,
    deadline_us: int,
) -> JobRequest:
    """Validate a body and its options; raises ArgumentError for what could not be sent to any provider."""
    if not isinstance(body, Mapping):
        raise ArgumentError(f"a body is a mapping of the fields that a provider takes, not {kind_of(body)}")
    check_field_case(name for name in body if isinstance(name, str))
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise ArgumentError(f"body.model is the name of a model, not {str(model)[:60]!r}")
    if body.get("stream"):
        raise ArgumentError("body.stream: the queue does not stream answers; leave stream out, or make it false")
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= MOST_PRIORITY:
        raise ArgumentError(f"priority is a whole number from 0 to {MOST_PRIORITY}, not {str(priority)[:40]!r}")
    if id is not None and (not isinstance(id, str) or not _ID.fullmatch(id)):
        raise ArgumentError(f"an id is up to 120 letters, digits, . _ : or -, not {str(id)[:130]!r}")
    if path not in _PATHS:
        raise ArgumentError(f"a path is one of {', '.join(_PATHS)}, not {str(path)[:60]!r}")
    for name, value in zip(Caller._fields, caller, strict=True):
        if not isinstance(value, str) or len(value) > 200:
            raise ArgumentError(f"{name} is a text of up to 200 characters, not {str(value)[:60]!r}")
    try:
        encoded = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"the body cannot be written as JSON: {error}") from None
    return JobRequest(
        id or f"job-{os.urandom(12).hex()}", caller, model, path, encoded, priority, max(1, tokens), deadline_us,
        account_of(caller), _hashed([*caller, model, priority]), _hashed([*caller, path], encoded),
    )  # fmt: skip


def account_of(caller: Caller) -> str:
    """Return the account that is charged: the user's, else that of the key, team or organisation, if one is known."""
    return next((f"{name}:{getattr(caller, name)}" for name in _FAIR_FIRST if getattr(caller, name)), "")


def _hashed(parts: list[Any], more: bytes = b"") -> str:
    return blake2b(json.dumps(parts).encode() + more, digest_size=12).hexdigest()

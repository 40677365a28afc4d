"""The JSON form of a job over HTTP, and the ids that callers choose."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any

from headgate.clock import utc_moment
from headgate.errors import ArgumentError
from headgate.llm.entry import Caller
from headgate.llm.queue.job import Job, account_of


def job_fields(job: Job) -> dict[str, Any]:
    """Return the JSON fields of a job."""
    fields: dict[str, Any] = {
        "id": job.id,
        "state": job.state,
        "model": job.model,
        "priority": job.priority,
        "tokens": job.tokens,
        "attempts": job.attempts,
        "submitted": _time_text(job.submitted_us),
        "started": _time_text(job.started_us),
        "ended": _time_text(job.ended_us),
        "deadline": _time_text(job.deadline_us),
    }
    if job.state == "done":
        fields["answer"] = job.answer
    if job.error:
        fields["error"] = job.error
    if job.limit:
        fields["limit"] = job.limit
    return fields


def own_id(id: Any, caller: Caller) -> str:
    """Make a caller's id unique among those of all callers: it gets a prefix of the caller's account.

    Raises ArgumentError for an id with other characters.
    """
    if not isinstance(id, str) or not re.fullmatch(r"[A-Za-z0-9._:-]{1,100}", id):
        raise ArgumentError(f"an id is up to 100 letters, digits, . _ : or -, not {str(id)[:110]!r}")
    mark = f"{blake2b(account_of(caller).encode(), digest_size=6).hexdigest()}."
    return id if id.startswith(mark) else mark + id


def _time_text(at_us: int) -> str | None:
    if not at_us:
        return None
    return f"{utc_moment(at_us):%Y-%m-%dT%H:%M:%S}.{at_us % 1_000_000:06}Z"

"""What limits let a request through: told on its response, settled by it, given back if another limit refuses.

For frameworks that hand their responses over as objects with `headers`: Flask and Django. Each limit judges a
request by itself; what is here makes them one answer, all or nothing. No framework is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from headgate.http.server.enforcer import Answer, Front, Judged
from headgate.http.server.options import Refusal
from headgate.policy.request import Request

_TOLD = "_headgate_told"
"""What a response was told: a view may answer with the same one again."""


class Entry(NamedTuple):
    """A request that a limit judged, and whether that was on an event loop."""

    front: Front
    request: Request
    answer: Answer
    asynchronous: bool = False


class Passed:
    """The limits that let one request pass, or the refusal of the one that did not."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._judged: list[Judged] = []
        self._refusal: list[tuple[str, str]] | None = None
        self._wait_us = 0.0
        self._is_settled = False

    @property
    def is_refused(self) -> bool:
        """Whether a limit refused the request."""
        return self._refusal is not None

    def place(self, front: Front, by: object, request: Request, counted_as: str) -> None:
        """Say what a limit that is asked next counts the request under; see `Front.apart`."""
        if self._judged:
            counted_as = front.apart(counted_as, by, self._judged)
        self._judged.append(Judged(front, by, counted_as))
        request.counted_as = counted_as

    def add(self, entry: Entry) -> None:
        """Note a limit that let the request pass."""
        self._entries.append(entry)

    def refuse(self, refusal: Refusal, wait_us: float = 0) -> list[Entry]:
        """Note that a limit refused; gives those whose charges are to be given back.

        Where several are asked nevertheless, the one with the longest wait is told.
        """
        if self._refusal is None or wait_us > self._wait_us:
            self._refusal, self._wait_us = without_content(refusal), wait_us
        entries, self._entries = self._entries, []
        return entries

    def fields(self) -> list[tuple[str, str]]:
        """What the response has to tell. Of several limits the one that has least comes first, and counts."""
        if self._refusal is not None:
            return self._refusal
        return merged(entry.answer for entry in self._entries)

    def tell(self, response: Any) -> None:
        """Tell it on a response; a field that the application wrote itself stays as it is."""
        headers = response.headers
        for name, value in getattr(response, _TOLD, ()):
            if headers.get(name) == value:
                del headers[name]
        told = []
        for name, value in self.fields():
            if name not in headers:
                headers[name] = value
                told.append((name, value))
        setattr(response, _TOLD, told)

    def to_settle(self) -> list[Entry]:
        """Those that settle by the response; given once."""
        if self._is_settled:
            return []
        self._is_settled = True
        return [entry for entry in self._entries if entry.front.settles]


class Counted:
    """The parts of a stream; told how many bytes they were when the server is done with them."""

    def __init__(self, parts: Iterable[Any], done: Callable[[int], None]) -> None:
        self._parts = parts
        self._done: Callable[[int], None] | None = done
        self._bytes = 0

    def __iter__(self) -> Iterator[Any]:
        for part in self._parts:
            self._bytes += len(part.encode() if isinstance(part, str) else part)
            yield part

    def close(self) -> None:
        done, self._done = self._done, None
        try:
            close = getattr(self._parts, "close", None)
            if close is not None:
                close()
        finally:
            if done is not None:
                done(self._bytes)


def without_content(refusal: Refusal) -> list[tuple[str, str]]:
    """What a refusal says beside its body."""
    return [field for field in refusal.headers if not field[0].lower().startswith("content-")]


def merged(answers: Iterable[Answer]) -> list[tuple[str, str]]:
    """The fields of several limits as those of one response: under each name, of the limit that has least left."""
    fields: dict[str, tuple[str, str]] = {}
    for answer in sorted(answers, key=_left):
        for name, value in answer.fields:
            fields.setdefault(name.lower(), (name, value))
    return list(fields.values())


def _left(answer: Answer) -> float:
    decision = answer.decision
    return float("inf") if decision is None or decision.remaining is None else decision.remaining

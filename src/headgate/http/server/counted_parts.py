"""Counts the bytes of a body on its way to the client, for limits that count by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any


class CountedParts:
    """The parts of a body; `done` is called once with their number of bytes, when the server has finished with them."""

    def __init__(self, parts: Iterable[Any], done: Callable[[int], None]) -> None:
        self._parts = parts
        self._done: Callable[[int], None] | None = done
        self._bytes = 0

    def __iter__(self) -> Iterator[Any]:
        try:
            for part in self._parts:
                self._bytes += len(part.encode() if isinstance(part, str) else part)
                yield part
        finally:  # some servers never close a body, and some close it late
            self.finish()

    def close(self) -> None:
        """Close the original parts, too; the server calls this."""
        try:
            close = getattr(self._parts, "close", None)
            if close is not None:
                close()
        finally:
            self.finish()

    def finish(self) -> None:
        """Call `done`, unless it was called already."""
        done, self._done = self._done, None
        if done is not None:
            done(self._bytes)

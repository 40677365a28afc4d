"""Streams that are read on after their client has gone, for the usage at their end: so many, and for so long."""

from __future__ import annotations


class ReadingOn:
    """The bound of all streams of a process that are read on."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self.seconds = seconds
        self.streams = 0

    def begin(self) -> bool:
        """Whether one more may be read on; each that may ends with `end`."""
        if self.streams >= self._most or not self.seconds:
            return False
        self.streams += 1
        return True

    def end(self) -> None:
        """One has ended."""
        self.streams -= 1

"""The bound on streams that are read on after their client has gone, for the usage at their end."""

from __future__ import annotations


class ReadingOn:
    """Counts the streams of a process that are read on: at most `most`, each for at most `seconds`."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self.seconds = seconds
        self.streams = 0

    def begin(self) -> bool:
        """Return whether one more stream may be read on; if so, it is counted until `end`."""
        if self.streams >= self._most or not self.seconds:
            return False
        self.streams += 1
        return True

    def end(self) -> None:
        """Note that one has ended."""
        self.streams -= 1

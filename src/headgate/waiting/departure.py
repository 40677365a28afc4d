"""A client that goes away tells what waits for it to wait no longer."""

from __future__ import annotations

from collections.abc import Callable

from headgate.waiting.bell import Bell


class ClientLeft(BaseException):
    """Ends the wait of a thread whose client is gone, as an interrupt does: it takes nothing and leaves its line."""


class Departure:
    """Whether a client is gone; safe under threads. It wakes the one caller that waits for it."""

    __slots__ = ("_call", "gone")

    def __init__(self) -> None:
        self.gone = False
        self._call: Callable[[], object] | None = None

    def leave(self) -> None:
        """The client is gone."""
        self.gone = True
        call = self._call
        if call is not None:
            call()

    def begin(self, call: Callable[[], object]) -> None:
        """A wait begins: have this called when the client goes, at once if it is gone."""
        self._call = call
        if self.gone:
            call()

    def end(self) -> None:
        """The wait has ended."""
        self._call = None

    def wait(self, bell: Bell, seconds: float | None) -> None:
        """Wait in this thread until a bell is set, at most so long. Raises ClientLeft once the client is gone."""
        self.begin(bell.set)
        try:
            bell.wait(seconds)
        finally:
            self.end()
        if self.gone:
            raise ClientLeft

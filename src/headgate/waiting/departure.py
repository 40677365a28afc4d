"""A wait on behalf of a client ends when the client disconnects."""

from __future__ import annotations

from collections.abc import Callable

from headgate.waiting.wake_signal import WakeSignal


class ClientLeft(BaseException):
    """Ends the wait of a thread whose client is gone, as an interrupt does: it charges nothing and leaves its line."""


class Departure:
    """Whether a client is gone. Wakes the one caller that waits on behalf of that client. Safe under threads."""

    __slots__ = ("_call", "gone")

    def __init__(self) -> None:
        self.gone = False
        self._call: Callable[[], object] | None = None

    def leave(self) -> None:
        """Note that the client is gone, and wake the caller."""
        self.gone = True
        call = self._call
        if call is not None:
            call()

    def begin(self, call: Callable[[], object]) -> None:
        """Begin a wait: `call` is called when the client goes, at once if it is gone."""
        self._call = call
        if self.gone:
            call()

    def end(self) -> None:
        """End the wait."""
        self._call = None

    def wait(self, signal: WakeSignal, seconds: float | None) -> None:
        """Wait in this thread until `signal` is set, at most `seconds`. Raises ClientLeft once the client is gone."""
        self.begin(signal.set)
        try:
            signal.wait(seconds)
        finally:
            self.end()
        if self.gone:
            raise ClientLeft

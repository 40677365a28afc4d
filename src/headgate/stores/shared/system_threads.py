"""Threads of the system, also where gevent has replaced threads by greenlets.

A greenlet that waits in native code blocks all others of its process, and so its whole server. This module imports
nothing for that: where gevent has replaced threads, it is imported already.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

_GEVENT = "gevent.monkey"


class Joinable(Protocol):
    """A running thread."""

    def join(self, timeout: float) -> object:
        """Wait for its end, for at most `timeout` seconds."""
        ...


def start_thread(run: Callable[[], object], name: str) -> Joinable:
    """Run a function in a thread of the system, which does not keep Python from ending."""
    gevent: Any = sys.modules.get(_GEVENT)
    if gevent is not None and gevent.is_module_patched("threading"):
        return _SystemThread(run, gevent.get_original)
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


class _SystemThread:
    """A thread where those of Python's module are greenlets. `original` returns what gevent has replaced."""

    def __init__(self, run: Callable[[], object], original: Callable[[str, str], Any]) -> None:
        self._run = run
        self._ended = original("_thread", "allocate_lock")()
        self._ended.acquire()
        original("_thread", "start_new_thread")(self._main, ())

    def _main(self) -> None:
        try:
            self._run()
        finally:
            self._ended.release()

    def join(self, timeout: float) -> None:
        """See `Joinable.join`."""
        if self._ended.acquire(True, timeout):
            self._ended.release()

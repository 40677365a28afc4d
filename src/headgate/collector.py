"""What the garbage collector ends is settled by a thread of its own, and not in the midst of what it interrupts.

The collector runs wherever Python makes an object, also in a thread that holds a lock. A stream or a generator that it
ends there, and that settles what it held, would need that very lock, and wait for itself for ever.
"""

from __future__ import annotations

import _thread
import atexit
import gc
import logging
import os
import queue
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from typing import Any

log = logging.getLogger("headgate")

_collecting = 0
"""The thread that collects garbage, by its number; 0 where none does."""

_late: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
"""What is to be called: its `put` may itself be interrupted by the collector."""

_without_thread = False
"""Whether the last thread could not be started."""


def in_collector() -> bool:
    """Whether this is called by the garbage collector of a program that goes on."""
    return _collecting != 0 and _collecting == get_ident() and not sys.is_finalizing()


def call_outside(call: Callable[[], object]) -> None:
    """Call it now; or, where this is called by the garbage collector, in a thread (`call_later`)."""
    if in_collector():
        call_later(call)
    else:
        call()


def call_later(call: Callable[[], object]) -> None:
    """Call it in a thread, as soon as possible; at the latest when the program ends."""
    global _without_thread  # noqa: PLW0603
    _late.put(call)
    if _late.qsize() <= 1 or _without_thread:  # else the thread that calls those before it is still to come to it
        _without_thread = True
        with suppress(RuntimeError):  # the system has no room for a thread: the next one, or the end, calls this too
            _thread.start_new_thread(_call_all, (_late,))
            _without_thread = False


def _call_all(late: queue.SimpleQueue[Callable[[], object]]) -> None:
    while True:
        try:
            call = late.get_nowait()
        except queue.Empty:
            return
        try:
            call()
        except Exception:
            log.exception("what the garbage collector found could not be ended")


def _note(phase: str, _: dict[str, Any]) -> None:
    global _collecting  # noqa: PLW0603
    _collecting = get_ident() if phase == "start" else 0


def _after_fork() -> None:
    global _collecting, _late
    _collecting, _late = 0, queue.SimpleQueue()  # what the parent found is ended by the parent


gc.callbacks.append(_note)
atexit.register(lambda: _call_all(_late))
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

"""A separate thread settles the holds of objects that the garbage collector ends, not the thread that it interrupts.

The collector runs wherever Python makes an object, also in a thread that holds a lock. A stream or a generator that it
ends there, and that settles its hold, would need that same lock, and deadlock.
"""

from __future__ import annotations

import _thread
import atexit
import gc
import logging
import queue
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from headgate.forks import in_child

log = logging.getLogger("headgate")

_phases: OrderedDict[str, Any] = OrderedDict(start=None, stop=None)
"""The phases of collections, the latest one last, each with its info: a new object in each collection."""

_gevent: Any = sys.modules.get("gevent.monkey")
# Where gevent has replaced `local`, that of a greenlet cannot be used: it raises in a greenlet that ends.
_thread_phases = threading.local() if _gevent is None else _gevent.get_original("_thread", "_local")()
"""The infos of the phases of collections in this thread."""

_pending: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
"""The pending calls: the collector may interrupt even `put` of this queue."""

_start_failed = False
"""Whether the last attempt to start a thread failed."""


def in_collector() -> bool:
    """Whether the garbage collector calls this, in a program that is not ending."""
    if sys.is_finalizing() or _last_phase() == "stop":
        return False
    return getattr(_thread_phases, "start", None) is _phases["start"]


def _last_phase() -> str:
    while True:
        try:
            return next(reversed(_phases))
        except RuntimeError:  # a collection began or ended between two steps of this: try again
            continue


def call_outside(call: Callable[[], object]) -> None:
    """Call it now; where the garbage collector calls this, in a thread (`call_later`)."""
    if in_collector():
        call_later(call)
    else:
        call()


def call_later(call: Callable[[], object]) -> None:
    """Call it in a thread, as soon as possible; at the latest when the program ends."""
    global _start_failed  # noqa: PLW0603
    _pending.put(call)
    if _pending.qsize() <= 1 or _start_failed:  # else the thread of the calls before it will make this one, too
        _start_failed = True
        with suppress(RuntimeError):  # no thread can be started: the next one, or the program's end, makes this call
            _thread.start_new_thread(_call_all, (_pending,))
            _start_failed = False


def _call_all(pending: queue.SimpleQueue[Callable[[], object]]) -> None:
    while True:
        try:
            call = pending.get_nowait()
        except queue.Empty:
            return
        try:
            call()
        except Exception:
            log.exception("what the garbage collector found could not be ended")


def _after_fork() -> None:
    global _pending  # noqa: PLW0603
    _phases.move_to_end("stop")
    _pending = queue.SimpleQueue()  # the parent makes its pending calls itself


# None of these is Python code: in such code, the handler of a signal that came during the collection would run, and
# its error, such as KeyboardInterrupt, would be printed and forgotten. Each is called with the phase and the info.
_move_to_end: Callable[[str, Any], object] = _phases.move_to_end  # the info is not empty, so it means: to the end
gc.callbacks += [_phases.__setitem__, _thread_phases.__setattr__, _move_to_end]
atexit.register(lambda: _call_all(_pending))
in_child(_after_fork)

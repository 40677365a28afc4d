"""What the garbage collector ends is settled by a thread of its own, and not in the midst of what it interrupts.

The collector runs wherever Python makes an object, also in a thread that holds a lock. A stream or a generator that it
ends there, and that settles what it held, would need that very lock, and wait for itself for ever.
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
"""The phases of a collection, the last one last, with what the collector told of it: an object of its own each time."""

_gevent: Any = sys.modules.get("gevent.monkey")
# Where gevent has replaced it, one of a greenlet is no place: it raises in a greenlet that ends.
_here = threading.local() if _gevent is None else _gevent.get_original("_thread", "_local")()
"""The same for collections by this thread."""

_late: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
"""What is to be called: its `put` may itself be interrupted by the collector."""

_without_thread = False
"""Whether the last thread could not be started."""


def in_collector() -> bool:
    """Whether this is called by the garbage collector of a program that goes on."""
    if sys.is_finalizing() or _last_phase() == "stop":
        return False
    return getattr(_here, "start", None) is _phases["start"]


def _last_phase() -> str:
    while True:
        try:
            return next(reversed(_phases))
        except RuntimeError:  # a collection began or ended between two steps of this: look again
            continue


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


def _after_fork() -> None:
    global _late  # noqa: PLW0603
    _phases.move_to_end("stop")
    _late = queue.SimpleQueue()  # what the parent found is ended by the parent


# None of these is Python code: there the handler of a signal would run that came while garbage was collected, and what
# it raises, such as KeyboardInterrupt, would be printed and forgotten. Each is called with the phase and what is told.
_keep_last: Callable[[str, Any], object] = _phases.move_to_end  # what is told is not empty: True, to the end
gc.callbacks += [_phases.__setitem__, _here.__setattr__, _keep_last]
atexit.register(lambda: _call_all(_late))
in_child(_after_fork)

"""Signals while the command starts: the package imports this first, as the other imports take most of that time.

A signal without a handler ends a process, or is lost where the process is the first of a container. `headgate serve`
and `headgate llm serve` therefore block SIGHUP until they can read their files again (`supervisor/reloading.py`), and
SIGTERM and ctrl-c end every command without a traceback. A program that imports the package is not affected.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

_COMMAND = "headgate"

INTERRUPTED = 130
"""The exit status of a command that ctrl-c ended, as in shells."""


def is_the_command() -> bool:
    """Whether this process is `headgate` or `python -m headgate`, not a program that imports the package."""
    if not sys.argv:
        return False
    # While Python searches the module of `-m`, "-m" is in place of the module's path.
    by_module = sys.argv[0] == "-m" and ("-m", _COMMAND) in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    return by_module or sys.argv[0].replace("\\", "/").rpartition("/")[2].partition(".")[0] == _COMMAND


def _serves() -> bool:
    return sys.argv[1:2] == ["serve"] or sys.argv[1:3] == ["llm", "serve"]


def _end_at_once(number: int, _: FrameType | None) -> None:
    # An exception could be raised in a callback of the import system, where it would be printed and forgotten.
    os._exit(INTERRUPTED if number == signal.SIGINT else 0)


def _end(_: int, __: FrameType | None) -> None:
    sys.exit(0)


def imports_are_done() -> None:
    """From now on ctrl-c raises KeyboardInterrupt again, as there may be something to clean up."""
    if signal.getsignal(signal.SIGINT) is _end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def end_tidily() -> None:
    """From now on SIGTERM raises SystemExit, so that open files are closed, until the process sets its own handler."""
    if signal.getsignal(signal.SIGTERM) is _end_at_once:
        signal.signal(signal.SIGTERM, _end)


if is_the_command():
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)
    if _serves():
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _end_at_once)

"""SIGHUP, which tells a process to read its files again: none is lost while a process starts."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable


def keep_reloads() -> None:
    """Let a SIGHUP wait from now on, for a process that cannot read its files again yet."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])


def reload_on_signal(reload: Callable[[], object]) -> None:
    """Call `reload` on the running event loop at each SIGHUP from now on, and for one that waits."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])

"""SIGHUP, which makes a process read its files again: none is lost while a process starts."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable


def defer_reloads() -> None:
    """Block SIGHUP from now on, in a process that cannot read its files again yet; the signal stays pending."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])


def reload_on_signal(reload: Callable[[], object]) -> None:
    """Call `reload` on the running event loop at each SIGHUP from now on, and for a pending one."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])

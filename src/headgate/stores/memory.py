"""The memory store: one process, all its threads, no server. The default.

`MemoryStore` keeps at most `max_keys` states. A state is dropped when it has become equivalent to
none; when the table is full of live ones, `on_full` says what happens to a new key:

- "forget": of up to 32 keys examined, the one that resets soonest is evicted. A key that is blocked
  never is; where all are blocked, the new key is refused.
- "refuse": the new key is refused until there is room. The decision says `degraded="closed"`.
- "pass": the new key passes and is not counted. The decision says `degraded="open"`.

All three are counted, see `stats`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

from headgate import core
from headgate.clock import Clock, SystemClock
from headgate.decision import NamedLimit
from headgate.errors import ConfigError, brief_number
from headgate.forks import InOneProcess
from headgate.keys import whole_number
from headgate.stores.protocol import BoundLimits, Failure, Store, StoreStats
from headgate.stores.python_holding import HoldingTable
from headgate.stores.python_holding_limits import PythonHoldingLimits

DEFAULT_MAX_KEYS = 1_000_000
DEFAULT_MAX_HOLDS = 1_000_000
MOST_KEYS = 1 << 32
ON_FULL = ("forget", "refuse", "pass")
_LOG_ENTRIES_PER_KEY = 16


class MemoryStore(InOneProcess, Store):
    """States in this process's memory, exact under threads, bounded by `max_keys`.

    `max_log_entries` bounds the entries of all sliding logs together, 16 for each of
    `max_keys` by default. `core` forces the "native" or the "python" table.
    """

    failure: Failure = "never"
    in_process = True

    def __init__(
        self,
        *,
        max_keys: int = DEFAULT_MAX_KEYS,
        on_full: Literal["forget", "refuse", "pass"] = "forget",
        max_log_entries: int | None = None,
        max_holds: int = DEFAULT_MAX_HOLDS,
        core: Literal["native", "python"] | None = None,
    ) -> None:
        self.max_keys = _bound("max_keys", max_keys)
        self.max_holds = _bound("max_holds", max_holds)
        self.on_full = on_full
        self.core = _core(core)
        if on_full not in ON_FULL:
            raise ConfigError(f"on_full is one of {', '.join(ON_FULL)}, not {on_full!r}")
        entries = max_keys * _LOG_ENTRIES_PER_KEY if max_log_entries is None else max_log_entries
        self.max_log_entries = _bound("max_log_entries", entries, maximum=MOST_KEYS * _LOG_ENTRIES_PER_KEY)
        self._table = self._new_table()

    @property
    def native_table(self) -> Any:
        """The native table with all its states; None on the Python core.

        None for a subclass, too, that overrides `bind`.
        """
        return self._table if self.core == "native" and type(self).bind is MemoryStore.bind else None

    def bind(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> BoundLimits:
        """Bind limits to this store."""
        definitions = tuple(limits)
        if self.core == "native":
            other_clock = None if clock is None or isinstance(clock, SystemClock) else clock
            bound: BoundLimits = _native().BoundLimits(self._table, definitions, other_clock)
            return bound
        return PythonHoldingLimits(self._table, definitions, clock)

    def stats(self) -> StoreStats:
        """The counters of the store."""
        return StoreStats(max_keys=self.max_keys, max_holds=self.max_holds, **self._table.stats())

    def clear(self) -> None:
        """Forget everything."""
        self._table.clear()

    def close(self) -> None:
        """Forget everything: the states do not outlive the store."""
        self.clear()

    def _new_table(self) -> Any:
        bounds: dict[str, Any] = {
            "max_keys": self.max_keys,
            "max_log_entries": self.max_log_entries,
            "on_full": self.on_full,
        }
        if self.core == "native":
            return _native().Table(max_holds=self.max_holds, seed=os.urandom(16), **bounds)
        return HoldingTable(max_holds=self.max_holds, **bounds)

    def __repr__(self) -> str:
        return f"MemoryStore(max_keys={self.max_keys}, on_full={self.on_full!r}, core={self.core!r})"


def _native() -> Any:
    if core.native is None:
        raise ConfigError(f"the native core is required, but is not in use: {core.why_not_native}")
    return core.native


def _core(choice: str | None) -> str:
    if choice is None:
        return core.CORE
    if choice not in core.CHOICES:
        raise ConfigError(f'core is "native" or "python", not {choice!r}')
    if choice == "native":
        _native()
    return choice


def _bound(name: str, value: object, *, maximum: int = MOST_KEYS) -> int:
    number = whole_number(value)
    if number is None:
        raise ConfigError(f"{name} is a whole number, not {value!r}")
    if not 1 <= number <= maximum:
        raise ConfigError(f"{name} is in [1, {maximum}], not {brief_number(number)}")
    return number

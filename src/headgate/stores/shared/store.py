"""The shared store: all processes of a host have one set of states, in a file that each of them maps.

There is no server and no socket: a decision takes a lock of its part of the table, for less than a
microsecond, and works on the memory itself. A process may be killed at any instruction: its
charge is then complete or was never made, and no other process waits for it. See docs/shared-memory.md.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from headgate import core
from headgate.algorithms.table import ALGORITHMS
from headgate.clock import US_PER_SECOND, Clock, SystemClock
from headgate.decision import NamedLimit
from headgate.errors import ConfigError, StoreUnavailable, brief_number
from headgate.forks import InOneProcess
from headgate.keys import Key, whole_number
from headgate.stores.guard.breaker import Breaker
from headgate.stores.memory import ON_FULL
from headgate.stores.protocol import BoundLimits, Failure, Store, StoreStats
from headgate.stores.shared.line import ZoneLine
from headgate.stores.shared.turns import ZoneTurns

log = logging.getLogger("headgate")

PAGE = 4096
LEAST_SIZE = 128 << 10
MOST_SIZE = 1 << 40
MOST_LOG_PERCENT = 90
_ROOM_ATTEMPTS = 8
"""How often `check_room` tries to get room for a policy: another process may take it before it is used."""


class ZoneClock:
    """The clock of a zone: the host's wall time at its creation, continued by the monotonic clock; it never steps."""

    __slots__ = ("_zone",)

    def __init__(self, zone: Any) -> None:
        self._zone = zone

    def now_us(self) -> int:
        """The current moment in microseconds since the Unix epoch."""
        moment_us: int = self._zone.now_us()
        return moment_us

    def let_pass(self, duration_us: int) -> float:
        """The real seconds that the caller must sleep."""
        return duration_us / US_PER_SECOND


class SharedStore(InOneProcess, Store):
    """States in a file that all processes of this host map: exact for all of them together.

    `path` is the file; the first process creates it, of `size` bytes (by default 64 MiB, unless it exists
    already), `log_percent` of them for the entries of sliding logs (25). At most `max_holds` holds are
    remembered at a time (one for 16 KiB of its size); 0 leaves all room to states, and then nothing can be held.
    `on_full` states what happens to a new key in a full part of the table, and to a hold too many, as for the memory
    store. `mode` are the file's permissions: by default its owner alone.

    Raises ConfigError for a file that is no zone of this version, or a damaged one, or one of another size or
    layout than requested, and where the native core is missing; StoreUnavailable where there is no space
    or no permission. Its limiters raise StoreTimeout where a process that was stopped holds a part of the table for
    more than 250 ms; from then on at once, until that part is free again.
    """

    failure: Failure = "in parts"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        size: int | None = None,
        on_full: Literal["forget", "refuse", "pass"] = "forget",
        log_percent: int | None = None,
        max_holds: int | None = None,
        mode: int = 0o600,
    ) -> None:
        if on_full not in ON_FULL:
            raise ConfigError(f"on_full is one of {', '.join(ON_FULL)}, not {on_full!r}")
        if not isinstance(mode, int) or isinstance(mode, bool) or mode & 0o600 != 0o600 or mode & ~0o666:
            raise ConfigError(f"mode is 600 with what others may do, such as 660, not {_octal(mode)}")
        shape = {"size": _size(size), "log_percent": _percent(log_percent), "max_holds": _holds(max_holds)}
        self._open(path, on_full, **shape, mode=mode, make=True)

    @classmethod
    def existing(cls, path: str | os.PathLike[str], *, mode: int | None = None) -> SharedStore:
        """The store of an existing zone; raises ConfigError where there is none.

        `mode` are the permissions that a file of another user may have; a file of this user may have any.
        """
        store = cls.__new__(cls)
        store._open(path, "forget", mode=mode)
        return store

    def _open(self, path: str | os.PathLike[str], on_full: str, **options: Any) -> None:
        native = _native()
        from headgate.stores.shared import zone_file  # its imports do not exist on every system

        self.path = Path(path).absolute()
        self.on_full = on_full
        self._zone, self._identity = zone_file.open_zone(native, self.path, zone_file.ZoneOptions(**options), on_full)
        self._is_same_file = zone_file.is_same_file
        self.clock: Clock = ZoneClock(self._zone)
        self._breaker = Breaker(repr(self), failures=1)
        self._turns = ZoneTurns(self._zone.lines, repr(self))

    @property
    def native_table(self) -> Any:
        """The native zone."""
        return self._zone

    @property
    def breaker(self) -> Breaker:
        """Logs that a part of the zone does not answer."""
        return self._breaker

    def bind(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> BoundLimits:
        """Bind limits. Raises ConfigError for more at once than a zone can charge."""
        definitions = tuple(limits)
        if self._zone.info()["max_holds"] == 0:
            for definition in definitions:
                if not definition.limit.is_rate:
                    raise ConfigError(
                        f'"{definition.limit}" counts what is in flight, and this zone has no room for what is held: '
                        "make one with max_holds= above 0, under another path"
                    )
        self._warn_of_long_logs(definitions)
        other_clock = None if clock is None or isinstance(clock, SystemClock | ZoneClock) else clock
        bound: BoundLimits = _native().BoundLimits(self._zone, definitions, other_clock)
        if other_clock is None and self._has_lines(definitions):
            bound.keep_line(ZoneLine(self._zone, self._turns, definitions))  # type: ignore[attr-defined]
        return bound

    def _has_lines(self, definitions: tuple[NamedLimit, ...]) -> bool:
        """Whether callers of all processes wait for these limits in one line: a ticket has room for a few costs."""
        groups = max((definition.group + 1 for definition in definitions), default=0)
        lines = self._zone.lines
        return bool(lines.most_callers) and 0 < groups <= int(lines.most_groups)

    def _warn_of_long_logs(self, definitions: Sequence[NamedLimit]) -> None:
        """Warn of limits whose logs may not fit. A log has an entry for each request: few of a high cost fit."""
        room = self._zone.info()["max_log_entries_per_key"]
        for definition in definitions:
            limit = definition.limit
            if ALGORITHMS[limit.algorithm].is_log and min(limit.quota, limit.period_us) > room:
                log.warning(
                    "%s: the log of %s may have more entries than the %d of one key that this zone has room for, and "
                    "then refuses early; a larger size or log_percent holds more, and a limit with the word counter "
                    "needs no log",
                    self.path, limit, room,
                )  # fmt: skip

    def check_room(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> None:
        """Raise ConfigError for more limits of one policy than the list of a zone of this size has room for."""
        missing = wanted = {(limit.scope, str(limit.limit)): limit for limit in limits}
        max_limits = self.info()["max_limits"]
        for _ in range(_ROOM_ATTEMPTS if len(wanted) <= max_limits else 0):
            try:
                for limit in missing.values():
                    self.bind((replace(limit, group=0),), clock=clock)
            except StoreUnavailable as error:
                raise ConfigError(f"the store cannot keep the {len(limits)} limits of this policy: {error}") from error
            # A limit without states gives its room to another: of this policy, or of another process just now.
            known = set(self.known_limits())
            missing = {name: limit for name, limit in wanted.items() if name not in known}
            if not missing:
                return
        raise ConfigError(
            f"the store cannot keep the {len(limits)} limits of this policy: a zone of this size knows up to "
            f"{max_limits}, fewer where their names are long; a larger one knows more"
        )

    def stats(self) -> StoreStats:
        """The counters of the zone, for all processes together."""
        info = self._zone.info()
        return StoreStats(max_keys=info["max_keys"], max_holds=info["max_holds"], **self._zone.stats())

    def info(self) -> dict[str, int]:
        """The zone's shape: `size`, `max_keys`, `log_blocks` and more; `mended` counts parts found half written."""
        info: dict[str, int] = self._zone.info()
        return info

    def known_limits(self) -> list[tuple[str, str]]:
        """(scope, text) of each limit that any process has used."""
        known: list[tuple[str, str]] = self._zone.known()
        return known

    def look(self, key: Key) -> list[dict[str, int]]:
        """The states of a key: the numbers of each `limit` (its place among `known_limits`) that has one.

        They are `remaining`, `reset_after_us`, `next_after_us`, and `refused`: whether the last decision was a refusal.
        """
        found: list[dict[str, int]] = self._zone.look(key)
        return found

    def forget(self, key: Key) -> bool:
        """Forget the usage of a key under all limits; return whether there was any."""
        found: bool = self._zone.forget(key)
        return found

    def clear(self) -> None:
        """Forget everything, for all processes."""
        self._zone.clear()

    def ping(self) -> None:
        """Raise StoreUnavailable if the file is not at its path any more: processes that start now count separately."""
        if not self._is_same_file(self.path, self._identity):
            raise StoreUnavailable(
                f"{self.path}: the zone was deleted or replaced while in use; restart to share again"
            )

    def probe(self) -> None:
        """Raise StoreError if a part of the zone that did not answer still does not."""
        self._zone.probe()

    def close(self) -> None:
        """Do nothing: the mapping ends with its last user, the states stay in the file."""

    def __repr__(self) -> str:
        return f"SharedStore({str(self.path)!r}, on_full={self.on_full!r})"


def can_share() -> bool:
    """Whether this process can open shared stores: with the native core, on Linux."""
    return hasattr(core.native, "Zone")


def _native() -> Any:
    if core.native is None:
        remedy = (
            "take HEADGATE_CORE out of the environment"
            if core.why_not_native == core.SWITCHED_OFF
            else "install a wheel, or install from source with a Rust toolchain at hand"
        )
        raise ConfigError(
            f"the shared store needs the native core, which is not here ({core.why_not_native}): {remedy}; "
            "or run one `headgate serve` and let all ask it"
        )
    if not hasattr(core.native, "Zone"):
        raise ConfigError(
            "the shared store needs a 64-bit Linux; elsewhere, run one `headgate serve` and let all ask it"
        )
    return core.native


def _size(size: object) -> int | None:
    if size is None:
        return None
    number = whole_number(size)
    if number is None:
        raise ConfigError(f"size is a whole number of bytes, not {size!r}")
    if not LEAST_SIZE <= number <= MOST_SIZE:
        raise ConfigError(f"size is 128 KiB to 1 TiB, not {brief_number(number)} bytes")
    return -(-number // PAGE) * PAGE


def _percent(percent: object) -> int | None:
    if percent is None:
        return None
    if isinstance(percent, bool) or not isinstance(percent, int) or not 0 <= percent <= MOST_LOG_PERCENT:
        raise ConfigError(f"log_percent is 0 to {MOST_LOG_PERCENT}, not {percent!r}")
    return percent


def _holds(holds: object) -> int | None:
    if holds is None:
        return None
    number = whole_number(holds)
    if number is None:
        raise ConfigError(f"max_holds is a whole number of holds, not {holds!r}")
    if not 0 <= number <= MOST_SIZE:
        raise ConfigError(f"max_holds is 0 or more, as many as a zone has room for, not {brief_number(number)}")
    return number


def _octal(mode: object) -> str:
    return f"{mode:o}" if isinstance(mode, int) and not isinstance(mode, bool) else repr(mode)

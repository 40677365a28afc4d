"""The native core: the twin of `headgate.algorithms` and `headgate.stores.python_table`, in Rust.

Everything here gives the answers of its Python twin, to the last microsecond. Times are microseconds
since the Unix epoch. Safe under threads; a call that raises has charged nothing.
"""

from collections.abc import Iterable, Sequence
from typing import Any, final

from headgate.clock import Clock
from headgate.decision import LimitReading, NamedLimit
from headgate.keys import Key

__all__ = ["BoundLimits", "Decision", "Decisions", "Table", "now_us", "read_common_lines"]

def now_us() -> int:
    """The system clock: wall time at its first use, carried on by the monotonic clock; never steps."""

def read_common_lines(
    block: str, naive_is_utc: bool, no_headers: dict[str, str]
) -> list[tuple[int, str, str, str, str, dict[str, str]] | str]:
    """The lines of a block of a common log: an entry where the line has no surprises, else the line itself.

    An entry is (time_us, client, method, path, "", no_headers). See `headgate.replay.common_log`.
    """

@final
class Table:
    """A bounded table of states, shared by every `BoundLimits` made on it.

    `max_keys` bounds the states, `max_log_entries` what all sliding logs together remember (in blocks
    of seven). `on_full` is "forget", "refuse" or "pass". `seed` is 16 secret bytes: keys are kept as
    keyed hashes of them only. Raises ValueError for another `on_full`.
    """

    def __new__(cls, *, max_keys: int, max_log_entries: int, on_full: str, seed: bytes) -> Table: ...
    def clear(self) -> None:
        """Forget everything."""

    def stats(self) -> dict[str, int]:
        """`keys`, `bytes`, `expired`, `forgotten`, `refused_full`, `passed_full`."""

@final
class BoundLimits:
    """Limits bound to a table and a clock (None: the system clock); see `headgate.stores.contract.BoundLimits`.

    Raises ConfigError for a limit that is no rate, ValueError for more than 2**20 limits on one table.
    """

    def __new__(cls, table: Table, definitions: tuple[NamedLimit, ...], clock: Clock | None = None) -> BoundLimits: ...
    def hit(self, key: Key, cost: int = 1) -> Decision:
        """Decide and charge. Raises ArgumentError for what is no key or cost."""

    def peek(self, key: Key, cost: int = 1) -> Decision:
        """Decide and change nothing."""

    def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> Decisions:
        """Decide and charge one request after another at one instant; all keys and costs are read first."""

    def decide(
        self,
        keys: tuple[Key, ...],
        costs: tuple[int, ...],
        *,
        commit: bool = True,
        now_us: int | None = None,
        max_delay_us: int | None = None,
    ) -> Decision:
        """Decide with a key and a cost for each group of the limits."""

    def reset(self, keys: tuple[Key, ...]) -> bool:
        """Forget what was used; whether anything was."""

    def read(self, keys: tuple[Key, ...], now_us: int | None = None) -> list[tuple[Any, ...] | None]:
        """Each limit's stored state as the Python transition writes it."""

@final
class Decision:
    """The answer for one request; see `headgate.decision.Decision`."""

    def __new__(
        cls,
        definitions: tuple[NamedLimit, ...],
        readings: Sequence[tuple[bool, int, int, int | None, int, int]],
        *,
        allowed: bool,
        binding: int | None,
        degraded: str = "",
    ) -> Decision: ...
    def __bool__(self) -> bool: ...
    def __reduce__(self) -> tuple[Any, ...]: ...
    @property
    def allowed(self) -> bool: ...
    @property
    def degraded(self) -> str: ...
    @property
    def limits(self) -> tuple[LimitReading, ...]: ...
    @property
    def refusals(self) -> tuple[LimitReading, ...]: ...
    @property
    def binding(self) -> LimitReading | None: ...
    @property
    def limit(self) -> int | None: ...
    @property
    def rule(self) -> str: ...
    @property
    def remaining(self) -> int | None: ...
    @property
    def reset_after_us(self) -> int | None: ...
    @property
    def retry_after_us(self) -> int | None: ...
    @property
    def delay_us(self) -> int: ...
    @property
    def reset_after(self) -> float | None: ...
    @property
    def retry_after(self) -> float | None: ...
    @property
    def delay(self) -> float: ...

@final
class Decisions:
    """The answers for many requests at once, in the order of the keys."""

    @property
    def allowed(self) -> list[bool]: ...
    @property
    def allowed_count(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Decision: ...

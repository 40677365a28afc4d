"""A store that always fails, as an unreachable server without a guard does."""

from __future__ import annotations

from typing import Any

from headgate import MemoryStore, StoreUnavailable

NO_REDIS = "redis://127.0.0.1:1/0"
"""A Redis URL where no process listens."""


class BrokenStore(MemoryStore):
    """Fails at every call, and counts how often it is closed."""

    closed = 0
    failure = "as a whole"
    in_process = False

    def bind(self, limits: Any, *, clock: Any = None) -> Any:
        return _Broken()

    def close(self) -> None:
        self.closed += 1


class _Broken:
    def hit(self, *arguments: Any, **options: Any) -> Any:
        raise StoreUnavailable("no server is there")

    peek = hit_many = decide = give_back = reset = read = hit

"""A store that fails, as a server does that nobody guards."""

from __future__ import annotations

from typing import Any

from headgate import MemoryStore, StoreUnavailable


class BrokenStore(MemoryStore):
    """Answers nothing, and counts how often it is closed."""

    closed = 0

    def bind(self, limits: Any, *, clock: Any = None) -> Any:
        return _Broken()

    def close(self) -> None:
        self.closed += 1


class _Broken:
    def hit(self, key: Any, cost: int = 1, **more: Any) -> Any:
        raise StoreUnavailable("nobody is there")

    peek = hit_many = decide = hit

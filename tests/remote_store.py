"""A store that comes and goes, as one behind a network does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate import MemoryStore, StoreTimeout


class RemoteStore(MemoryStore):
    """Answers while it is `up`, and keeps what its limits are asked, by name, with what they are told."""

    blocking = True

    def __init__(self) -> None:
        super().__init__()
        self.up = True
        self.asked: list[tuple[Any, ...]] = []

    def ping(self) -> None:
        if not self.up:
            raise StoreTimeout("no answer in time")

    def bind(self, limits: Any, *, clock: Any = None) -> Any:
        store, bound = self, super().bind(limits, clock=clock)

        class Limits:
            def __getattr__(self, name: str) -> Callable[..., Any]:
                def ask(*arguments: Any, **options: Any) -> Any:
                    store.ping()
                    store.asked.append((name, *arguments))
                    return getattr(bound, name)(*arguments, **options)

                return getattr(bound, name) if name == "id_of" else ask

        return Limits()

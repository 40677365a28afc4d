"""A store with outages, as one behind a network has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate import MemoryStore, StoreTimeout


class RemoteStore(MemoryStore):
    """Answers while it is `up`, and records the calls of its limits: (name, *arguments)."""

    blocking = True

    def __init__(self) -> None:
        super().__init__()
        self.up = True
        self.calls: list[tuple[Any, ...]] = []

    def ping(self) -> None:
        if not self.up:
            raise StoreTimeout("no answer in time")

    def bind(self, limits: Any, *, clock: Any = None) -> Any:
        store, bound = self, super().bind(limits, clock=clock)

        class Limits:
            def __getattr__(self, name: str) -> Callable[..., Any]:
                if not hasattr(bound, name):
                    raise AttributeError(name)

                def call(*arguments: Any, **options: Any) -> Any:
                    store.ping()
                    store.calls.append((name, *arguments))
                    return getattr(bound, name)(*arguments, **options)

                return getattr(bound, name) if name == "id_of" else call

        return Limits()

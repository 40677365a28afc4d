"""The limit of requests in flight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headgate.limits.limit import Limit, set_fields, whole


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Concurrent(Limit):
    """At most `limit` units in flight at one time."""

    limit: int
    algorithm: ClassVar[str] = "concurrent"
    is_rate: ClassVar[bool] = False

    def __init__(self, *, limit: int) -> None:
        set_fields(self, limit=whole(self, "limit", limit, least=0))

    @property
    def quota(self) -> int:
        return self.limit

    @property
    def period_name(self) -> str:
        return "concurrent"

    @property
    def window_us(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"Concurrent(limit={self.limit})"

    def __str__(self) -> str:
        return f"{self.limit} concurrent"

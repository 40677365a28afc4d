"""The limit of requests in flight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from headgate.amounts import REQUESTS, Amount
from headgate.limits.limit import Limit, count_text, read_count, read_unit, repr_of, set_fields
from headgate.units import CompiledLimit


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Concurrent(Limit):
    """At most `limit` units in flight at one time."""

    limit: int
    of: str
    compiled: CompiledLimit = field(compare=False)  # pyright: ignore[reportIncompatibleMethodOverride]
    algorithm: ClassVar[str] = "concurrent"
    is_rate: ClassVar[bool] = False

    def __init__(self, *, limit: Amount, of: str = REQUESTS) -> None:
        of = read_unit(self, of)
        count = read_count(self, "limit", limit, least=0, of=of)
        set_fields(self, limit=count, of=of, compiled=CompiledLimit(self.algorithm, 1, count, 1))

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
        return repr_of(self, None, limit=self.limit)

    def __str__(self) -> str:
        return f"{count_text(self.limit, self.of)} concurrent"

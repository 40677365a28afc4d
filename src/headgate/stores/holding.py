"""What limits that are bound to a store offer for holds. A store that does not hold says so at the call."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from headgate.errors import ConfigError
from headgate.holding import Amounts, Extension, Hold, Reserved, Settlement
from headgate.keys import Key
from headgate.operation import Operation


class HoldingLimits(Protocol):
    """Limits whose charges can be held: charged now, and settled later with the truth. See docs/holding.md."""

    def reserve(self, operation: Operation, hold: Hold, /) -> Reserved:
        """Decide and charge like `decide`, and remember what was charged; one round trip, one step of the store.

        `operation.commit` must be true. A refusal remembers nothing. An id that is remembered is answered with its
        first answer, and charges nothing; raises ConflictingId where the costs, the limits (by their scopes), the
        further keys or the kind (a hit or a hold) are other ones. What a shadow limit did not admit is not held there.
        A store that has no room for one more hold drops one that is settled where `on_full` is "forget"; if none is,
        and for "refuse", the decision is a refusal with `degraded="closed"`; for "pass" it passes, uncounted and
        unremembered, with `degraded="open"`.

        Raises ArgumentError for what is no key, cost, name, lease or time to remember, and for a hit (`hold.at_once`)
        on limits in flight; nothing is charged then.
        """
        raise _holds_nothing(self)

    def commit(self, whole_id: str, actuals: Amounts = None, /, *, now_us: int | None = None) -> Settlement:
        """Settle a hold with what it really cost: an amount for each group, or one for all; None is as much as is held.

        Unused units are given back and missing ones charged, even past the limit, by the rules of docs/holding.md;
        places in flight are freed. Later settlings, and those of ids that are unknown, change nothing. A cancel is a
        commit of 0. It is settled through any limits of the same store: `after` tells of those that the hold has too
        (by their scopes), in the order of these. `now_us` as in `Operation`.

        Raises ArgumentError for what is no id or amount, and where a debt would be too large for exact arithmetic:
        more than 2**52 units, scaled units of a bucket, or units times period of a sliding window counter. Nothing
        changes then. Raises ValueError for more or fewer amounts than groups.
        """
        raise _holds_nothing(self)

    def extend(self, whole_id: str, lease_us: int, more: Sequence[int], /, *, now_us: int | None = None) -> Extension:
        """Let a lease end `lease_us` from now, never sooner than it did, and hold `more` units of each group on top.

        The units are decided like a hit, all or nothing; where they are refused, the lease stays as it was, too.
        Raises as `commit` does.
        """
        raise _holds_nothing(self)

    def id_of(self, key: Key, name: str | bytes, /) -> str:
        """The whole id of the hold of this name within a key, which need not exist; the store is not asked.

        Of an operation with several keys, `key` is the first.
        """
        raise _holds_nothing(self)


class AsyncHoldingLimits(Protocol):
    """`HoldingLimits` for asyncio: the same methods, awaited, but for `id_of`."""

    def reserve(self, operation: Operation, hold: Hold, /) -> Awaitable[Reserved]:
        raise _holds_nothing(self)

    def commit(self, whole_id: str, actuals: Amounts = None, /, *, now_us: int | None = None) -> Awaitable[Settlement]:
        raise _holds_nothing(self)

    def extend(
        self, whole_id: str, lease_us: int, more: Sequence[int], /, *, now_us: int | None = None
    ) -> Awaitable[Extension]:
        raise _holds_nothing(self)

    def id_of(self, key: Key, name: str | bytes, /) -> str:
        raise _holds_nothing(self)


def _holds_nothing(bound: object) -> ConfigError:
    return ConfigError(f"{type(bound).__name__} does not hold what is settled later: use a store that does")

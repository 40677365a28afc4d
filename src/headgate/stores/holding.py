"""The interface of bound limits for holds. A store without holds raises an error that says so."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from headgate.errors import ConfigError
from headgate.holding import Amounts, Extension, Hold, Reserved, Settlement
from headgate.keys import Key
from headgate.operation import Operation


class HoldingLimits(Protocol):
    """Limits whose charges can be held: charged now, and settled later with the real cost. See docs/holding.md."""

    def reserve(self, operation: Operation, hold: Hold, /) -> Reserved:
        """Decide and charge like `decide`, and remember the charge, in one atomic step and one round trip.

        `operation.commit` must be true. A refusal is not remembered. A repeated id gets its first answer again and
        charges nothing; raises ConflictingId where the costs, the limits (by their scopes), the further keys or the
        kind (a hit or a hold) differ. What a shadow limit did not admit is not held there.
        A store that has no room for one more hold drops a settled one where `on_full` is "forget"; if none is settled,
        and for "refuse", the decision is a refusal with `degraded="closed"`; for "pass" it passes, uncounted and
        unremembered, with `degraded="open"`.

        Raises ArgumentError for an invalid key, cost, name, lease or time to remember, and for a hit (`hold.at_once`)
        on limits in flight; nothing is charged then.
        """
        raise _holds_nothing(self)

    def commit(self, whole_id: str, actuals: Amounts = None, /, *, now_us: int | None = None) -> Settlement:
        """Settle a hold with its real cost: an amount for each group, or one for all; None is as much as is held.

        Unused units are given back and missing ones charged, even past the limit, by the rules of docs/holding.md;
        places in flight are freed. Repeated settlements, and those of unknown ids, change nothing. A cancel is a
        commit of 0. Any limits of the same store settle it: `after` has those of them that are limits of the hold, too
        (by their scopes), in their order. `now_us` is as in `Operation`.

        Raises ArgumentError for an invalid id or amount, and where a debt would be too large for exact arithmetic:
        more than 2**52 units, scaled units of a bucket, or units times period of a sliding window counter. Nothing
        changes then. Raises ValueError for more or fewer amounts than groups.
        """
        raise _holds_nothing(self)

    def extend(self, whole_id: str, lease_us: int, more: Sequence[int], /, *, now_us: int | None = None) -> Extension:
        """Let a lease end `lease_us` from now, never sooner than before, and hold `more` units of each group, too.

        The units are decided like a hit, all or none; where they are refused, the lease is not extended either.
        Raises as `commit` does.
        """
        raise _holds_nothing(self)

    def id_of(self, key: Key, name: str | bytes, /) -> str:
        """The whole id of the hold of this name within a key, which need not exist; makes no call to the store.

        Of an operation with several keys, `key` is the first.
        """
        raise _holds_nothing(self)


class AsyncHoldingLimits(Protocol):
    """`HoldingLimits` for asyncio: the same methods, awaited, except `id_of`."""

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

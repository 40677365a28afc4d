"""The interface of all stores, and its guarantees: a new store is written against this file alone.

A store keeps one state for each limit on each key and runs checks on them. `BoundLimits.decide` is atomic over all
checks of an operation: it admits all and charges all, or charges none. Everything else is built on that one call: a
middleware is one `decide` with several groups, a reservation is a `decide` whose charge is corrected when the real
cost is known, a lease is a `decide` for many units at once.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from headgate.clock import SYSTEM_CLOCK, Clock
from headgate.decision import Decision, NamedLimit
from headgate.errors import ArgumentError, ConfigError, StoreError
from headgate.keys import Key, check_ago, check_cost, encode_key
from headgate.operation import Operation, Receipt
from headgate.stores.guard.breaker import Breaker
from headgate.stores.holding import AsyncHoldingLimits, HoldingLimits

log = logging.getLogger("headgate")

Failure = Literal["never", "as a whole", "in parts"]
"""How a store fails: never; as a whole; or one part of it may fail while all others answer."""

_COLD = "the store does not answer at the start: %s"


class StoreStats(NamedTuple):
    """The counters of a store.

    `expired` are states dropped because they had become the same as none. `evicted`, `refused_full` and `passed_full`
    count new keys that met a full store: what was evicted for them, how many were refused, how many passed uncounted.

    `holds` are the remembered holds: natively, a hold of several limits counts once for each shard of the store
    that its keys fall in.

    Of settlements that could not reach a guarded store, `kept` are still to be sent, `sent_later` were sent, and `lost`
    were given up.
    """

    keys: int
    bytes: int
    max_keys: int
    expired: int
    evicted: int
    refused_full: int
    passed_full: int
    holds: int = 0
    max_holds: int = 0
    kept: int = 0
    sent_later: int = 0
    lost: int = 0


class Decisions(Protocol):
    """The answers for many requests at once, a sequence in the order of the keys."""

    @property
    def allowed(self) -> list[bool]:
        """Which requests may pass."""
        ...

    @property
    def allowed_count(self) -> int:
        """How many requests may pass."""
        ...

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Decision: ...
    def __iter__(self) -> Iterator[Decision]: ...


class StatesAt(list[tuple[Any, ...] | None]):
    """Stored states, as they were at the moment `now_us` of the store's clock (None: of the caller's)."""

    def __init__(self, states: Iterable[tuple[Any, ...] | None], now_us: int | None = None) -> None:
        super().__init__(states)
        self.now_us = now_us


class BoundLimits(HoldingLimits, Protocol):
    """Limits bound to a store and a clock.

    The limits are checked with one key and one cost for each of their groups; `hit`, `peek` and
    `hit_many` use the same key and cost for all. All raise ArgumentError for an invalid key or cost,
    before anything is charged. A caller may pass `hit` and `peek` a mapping from the unit that the limits
    count: `headgate.costs.single_cost` reads it; an implementation without that refuses it as an invalid cost.
    """

    def hit(self, key: Key, cost: int = 1, *, id: str | bytes | None = None) -> Decision:
        """Decide and charge; with an id, a name within the key, only once, however often the call is repeated."""
        ...

    def peek(self, key: Key, cost: int = 1) -> Decision:
        """Decide and change nothing; the numbers are those after this cost would be charged."""
        ...

    def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> Decisions:
        """Decide and charge one request after another, all at the same instant.

        A StoreError ends the call: requests that were decided before it stay charged.
        """
        ...

    def decide(self, operation: Operation, /) -> Decision:
        """Decide an operation, which has a key and a cost for each group."""
        ...

    def give_back(self, receipt: Receipt, ago_us: int, /) -> None:
        """Give back what a decision charged up to `ago_us` microseconds ago, as far as it still counts.

        The inverse of that charge, never more. `ago_us` is measured from before the call that decided. After a
        StoreError some limits may be unchanged.
        """
        ...

    def reset(self, keys: tuple[Key, ...], /) -> bool:
        """Forget the usage and all holds of these keys; return whether there was any usage.

        Limit by limit: after a StoreError some may be unchanged.
        """
        ...

    def read(self, keys: tuple[Key, ...], now_us: int | None = None, /) -> list[tuple[Any, ...] | None]:
        """Return each limit's stored state as its transition writes it, None where there is none."""
        ...


class AsyncBoundLimits(AsyncHoldingLimits, Protocol):
    """`BoundLimits` for asyncio: the same methods with the same guarantees, awaited."""

    def hit(self, key: Key, cost: int = 1, *, id: str | bytes | None = None) -> Awaitable[Decision]: ...
    def peek(self, key: Key, cost: int = 1) -> Awaitable[Decision]: ...
    def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> Awaitable[Decisions]: ...
    def decide(self, operation: Operation, /) -> Awaitable[Decision]: ...
    def decide_many(self, operations: Sequence[Operation], /) -> Awaitable[list[Decision | Exception]]:
        """`decide` for each operation on its own, in order, in one call; errors take the places of decisions."""
        ...

    def give_back(self, receipt: Receipt, ago_us: int, /) -> Awaitable[None]: ...
    def reset(self, keys: tuple[Key, ...], /) -> Awaitable[bool]: ...
    def read(self, keys: tuple[Key, ...], now_us: int | None = None, /) -> Awaitable[list[tuple[Any, ...] | None]]: ...


class Store(ABC):
    """Keeps the states of limits. A new kind of store inherits from this class alone.

    It overrides the attributes and methods here that differ for it; a store that never waits and has no parts overrides
    `bind`, `stats` and `clear` alone. Methods of one colour are never called in the other: without `blocking` all may
    be called anywhere.
    """

    blocking: bool = False
    """Whether a call may wait for I/O: then an event loop calls the methods of asyncio."""

    clock: Clock = SYSTEM_CLOCK
    """The store's own clock."""

    failure: Failure = "as a whole"
    """How it fails, which selects its guard, see `headgate.stores.guard.choice`."""

    in_process: bool = False
    """Whether its states are in the memory of this process, where no other process sees them."""

    is_cluster: bool = False
    """Whether keys of different identities lie on different servers."""

    decides_batches: bool = False
    """Whether it decides checks of the front door in batches, see `headgate.stores.batches`."""

    shown: str = "another place"
    """Where its states are, as text for people, without a password."""

    @property
    def native_table(self) -> Any:
        """The native table with all its states; None where there is none."""
        return None

    @property
    def breaker(self) -> Breaker | None:
        """Of a store that fails in parts: logs that one fails, and probes in the background until all answer."""
        return None

    @property
    def unguarded(self) -> Store:
        """The store itself, without the guard that may stand before it."""
        return self

    @abstractmethod
    def bind(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> BoundLimits:
        """Bind limits to this store. `clock` replaces the store's own clock."""

    def bind_async(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> BoundLimits | AsyncBoundLimits:
        """`bind` for an event loop: limits that do not block it.

        Raises ConfigError for a store whose I/O only threads can wait for.
        """
        if self.blocking:
            raise ConfigError(f"{self!r} waits for I/O in threads alone: use Limiter or Gate")
        return self.bind(limits, clock=clock)

    def check_room(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> None:  # noqa: B027  # most have nothing to do here
        """Raise ConfigError for more limits of one policy than it has room for; most stores take any number."""

    @abstractmethod
    def stats(self) -> StoreStats:
        """The counters of the store."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything, part by part: after a StoreError some may be left."""

    def ping(self) -> None:  # noqa: B027  # most have nothing to do here
        """Return if the store answers; raise StoreError if it does not."""

    async def ping_async(self) -> None:
        """`ping` for an event loop."""
        self.ping()

    def probe(self) -> None:
        """Raise StoreError if the store would not decide: during an outage, this detects its end."""
        self.ping()

    async def probe_async(self) -> None:
        """`probe` for an event loop."""
        await self.ping_async()

    def warm_up(self) -> None:  # noqa: B027  # most have nothing to do here
        """Prepare for the first request: connect, load scripts. May raise StoreError."""

    async def warm_up_async(self) -> None:
        """`warm_up` for an event loop."""
        if not self.blocking:
            self.warm_up()

    def close(self) -> None:  # noqa: B027  # most have nothing to do here
        """Release connections and mappings; the states stay where they can."""

    async def aclose(self) -> None:
        """`close` for an event loop."""
        self.close()


def warm_up(store: Store) -> None:
    """Warm a store up; an error is logged, and the choice for outages decides."""
    try:
        store.warm_up()
    except StoreError as error:
        log.warning(_COLD, str(error))


async def warm_up_async(store: Store) -> None:
    """`warm_up` on an event loop."""
    try:
        await store.warm_up_async()
    except StoreError as error:
        log.warning(_COLD, str(error))


def read_receipt(limits: Sequence[NamedLimit], receipt: Receipt, ago_us: object) -> tuple[list[str], list[int], int]:
    """(texts of the keys, units of each limit, time since) of a charge that is to be given back.

    Raises ArgumentError for invalid values, ValueError for a wrong number of them.
    """
    keys, costs, _, charged = receipt
    groups = max((limit.group + 1 for limit in limits), default=0)
    if len(keys) != groups or len(costs) != groups:
        raise ValueError(f"these limits take {groups} keys and costs")
    texts, units, ago_us = [encode_key(key) for key in keys], [check_cost(cost) for cost in costs], check_ago(ago_us)
    if charged is None:
        charged = (True,) * len(limits)
    if len(charged) != len(limits):
        raise ValueError(f"these are {len(limits)} limits, not {len(charged)}")
    return texts, [units[limit.group] if used else 0 for limit, used in zip(limits, charged, strict=True)], ago_us


def checked_pairs(keys: Iterable[Key], costs: int | Iterable[int] | None) -> tuple[list[Key], list[int]]:
    """Keys and a cost for each of them; raises ArgumentError for invalid ones, before anything is decided."""
    all_keys = list(keys)
    all_costs = paired_costs(len(all_keys), costs)
    for key in all_keys:
        encode_key(key)
    return all_keys, all_costs


def paired_costs(keys: int, costs: object) -> list[int]:
    """A cost for each of `keys` keys, from one for all or one for each."""
    if costs is None:
        return [1] * keys
    if not isinstance(costs, Iterable):
        return [check_cost(costs)] * keys
    all_costs = [check_cost(cost) for cost in costs]
    if len(all_costs) != keys:
        raise ArgumentError(f"{keys} keys need as many costs, not {len(all_costs)}")
    return all_costs

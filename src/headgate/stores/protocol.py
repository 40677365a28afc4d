"""What every store offers, and what callers may rely on: a new store is written against this file alone.

A store keeps one state for each limit on each key and runs checks on them. `BoundLimits.decide` is atomic over all
checks of an operation: it admits all and charges all, or charges none. Everything that comes later is built on that
one call: a middleware is one `decide` with several groups, a reservation is a `decide` whose charge is corrected when
the truth is known, a lease is a `decide` for many units at once.
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
"""Of a store: it always answers; it answers or does not; or one part of it may fail while all others answer."""

_COLD = "the store does not answer at the start: %s"


class StoreStats(NamedTuple):
    """What a store counts about itself.

    `expired` are states dropped because they had become the same as none. `evicted`, `refused_full` and `passed_full`
    count new keys that met a full store: what was evicted for them, how many were refused, how many passed uncounted.

    `holds` are the remembered holds: natively, a hold of several limits counts once for each shard of the store
    that its keys fall in.

    Of settlements that could not reach a guarded store, `kept` are to be sent to it, `sent_later` were sent, and `lost`
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
    `hit_many` use the same key and cost for all. All raise ArgumentError for what is no key or cost,
    before anything is charged. A caller may give `hit` and `peek` a mapping from the unit that the limits
    count: those that do not have `headgate.costs.single_cost` read it refuse it as no cost.
    """

    def hit(self, key: Key, cost: int = 1, *, id: str | bytes | None = None) -> Decision:
        """Decide and charge; with an id, a name within the key, once however often that is repeated."""
        ...

    def peek(self, key: Key, cost: int = 1) -> Decision:
        """Decide and change nothing; the numbers are those that this cost would leave."""
        ...

    def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> Decisions:
        """Decide and charge one request after another, all at the same instant.

        A StoreError ends it: requests that were decided before it stay charged.
        """
        ...

    def decide(self, operation: Operation, /) -> Decision:
        """Decide an operation, which has a key and a cost for each group."""
        ...

    def give_back(self, receipt: Receipt, ago_us: int, /) -> None:
        """Give back what a decision charged up to `ago_us` microseconds ago, as far as it still counts.

        The inverse of that charge, never more. `ago_us` is measured from before the decision was asked for. A
        StoreError may leave some as they were.
        """
        ...

    def reset(self, keys: tuple[Key, ...], /) -> bool:
        """Forget what was used, and all holds of these keys; whether anything was used.

        Limit by limit: a StoreError may leave some as they were.
        """
        ...

    def read(self, keys: tuple[Key, ...], now_us: int | None = None, /) -> list[tuple[Any, ...] | None]:
        """Each limit's stored state as its transition writes it, None where there is none."""
        ...


class AsyncBoundLimits(AsyncHoldingLimits, Protocol):
    """`BoundLimits` for asyncio: the same methods, awaited. What it promises is the same."""

    def hit(self, key: Key, cost: int = 1, *, id: str | bytes | None = None) -> Awaitable[Decision]: ...
    def peek(self, key: Key, cost: int = 1) -> Awaitable[Decision]: ...
    def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> Awaitable[Decisions]: ...
    def decide(self, operation: Operation, /) -> Awaitable[Decision]: ...
    def decide_many(self, operations: Sequence[Operation], /) -> Awaitable[list[Decision | Exception]]:
        """`decide` for each of them, by itself and in their order, errors in their places; asked for together."""
        ...

    def give_back(self, receipt: Receipt, ago_us: int, /) -> Awaitable[None]: ...
    def reset(self, keys: tuple[Key, ...], /) -> Awaitable[bool]: ...
    def read(self, keys: tuple[Key, ...], now_us: int | None = None, /) -> Awaitable[list[tuple[Any, ...] | None]]: ...


class Store(ABC):
    """A place where states live. A new kind of store inherits from this class alone.

    It says what it can do by overriding what is told here; a store that never waits and is one piece overrides `bind`,
    `stats` and `clear` alone. What has a colour is never called in the other one: without `blocking` all may be called
    anywhere.
    """

    blocking: bool = False
    """Whether a call may wait for I/O: then the methods of asyncio are called on an event loop."""

    clock: Clock = SYSTEM_CLOCK
    """The store's own clock."""

    failure: Failure = "as a whole"
    """How it fails, which says what is to stand before it, see `headgate.stores.guard.choice`."""

    in_process: bool = False
    """Whether its states are in the memory of this process, where no other one sees them."""

    is_cluster: bool = False
    """Whether keys of different identities lie on different servers."""

    decides_batches: bool = False
    """Whether it decides what the front door asks of a store that is waited for, see `headgate.stores.batches`."""

    shown: str = "another place"
    """Where its states are, for people; no password is in it."""

    @property
    def native_table(self) -> Any:
        """The table of the native core that has all its states; None where there is none."""
        return None

    @property
    def breaker(self) -> Breaker | None:
        """Of a store that fails in parts: tells the log that one fails, and asks in the background until all answer."""
        return None

    @property
    def unguarded(self) -> Store:
        """The store itself, without the guard that may stand before it."""
        return self

    @abstractmethod
    def bind(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> BoundLimits:
        """The limits, ready to be asked. `clock` replaces the store's own clock."""

    def bind_async(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> BoundLimits | AsyncBoundLimits:
        """`bind` for an event loop: limits that do not block it.

        Raises ConfigError for a store that can only be waited for in a thread.
        """
        if self.blocking:
            raise ConfigError(f"{self!r} waits for I/O in threads alone: use Limiter or Gate")
        return self.bind(limits, clock=clock)

    def check_room(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> None:  # noqa: B027  # most have nothing to do here
        """Raise ConfigError for more limits of one policy than it can know; most know any number."""

    @abstractmethod
    def stats(self) -> StoreStats:
        """What the store counts about itself."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything. Part by part: a StoreError may leave some."""

    def ping(self) -> None:  # noqa: B027  # most have nothing to do here
        """Return if the store answers; raise StoreError if it does not."""

    async def ping_async(self) -> None:
        """`ping` for an event loop."""
        self.ping()

    def probe(self) -> None:
        """Raise StoreError if the store would not decide: during an outage, this tells when it is over."""
        self.ping()

    async def probe_async(self) -> None:
        """`probe` for an event loop."""
        await self.ping_async()

    def warm_up(self) -> None:  # noqa: B027  # most have nothing to do here
        """Do ahead of the first request what that would wait for: connect, load scripts. May raise StoreError."""

    async def warm_up_async(self) -> None:
        """`warm_up` for an event loop."""
        if not self.blocking:
            self.warm_up()

    def close(self) -> None:  # noqa: B027  # most have nothing to do here
        """Let go of connections and mappings; the states stay where they can."""

    async def aclose(self) -> None:
        """`close` for an event loop."""
        self.close()


def warm_up(store: Store) -> None:
    """Warm a store up; one that fails is told in the log, and what was chosen for outages decides."""
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

    Raises ArgumentError for what is none of these, ValueError where there are more or fewer than asked for.
    """
    keys, costs, _, charged = receipt
    groups = max((limit.group + 1 for limit in limits), default=0)
    if len(keys) != groups or len(costs) != groups:
        raise ValueError(f"these limits take {groups} keys and costs")
    texts, each, ago_us = [encode_key(key) for key in keys], [check_cost(cost) for cost in costs], check_ago(ago_us)
    if charged is None:
        charged = (True,) * len(limits)
    if len(charged) != len(limits):
        raise ValueError(f"these are {len(limits)} limits, not {len(charged)}")
    return texts, [each[limit.group] if own else 0 for limit, own in zip(limits, charged, strict=True)], ago_us


def checked_pairs(keys: Iterable[Key], costs: int | Iterable[int] | None) -> tuple[list[Key], list[int]]:
    """Keys and a cost for each of them; raises ArgumentError for what is none, before anything is asked."""
    every = list(keys)
    each = paired_costs(len(every), costs)
    for key in every:
        encode_key(key)
    return every, each


def paired_costs(texts: int, costs: object) -> list[int]:
    """A cost for each of so many keys, from one for all or one for each."""
    if costs is None:
        return [1] * texts
    if not isinstance(costs, Iterable):
        return [check_cost(costs)] * texts
    each = [check_cost(cost) for cost in costs]
    if len(each) != texts:
        raise ArgumentError(f"{texts} keys need as many costs, not {len(each)}")
    return each

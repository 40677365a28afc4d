"""The native core: the twin of `headgate.algorithms` and `headgate.stores.python_table`, in Rust.

Everything here gives the answers of its Python twin, to the last microsecond. Times are microseconds
since the Unix epoch. Safe under threads; a call that raises has charged nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Any, ClassVar, Self, final

from typing_extensions import disjoint_base

from headgate.clock import Clock
from headgate.costs import Cost
from headgate.decision import LimitReading, NamedLimit
from headgate.holding import Amounts, Extension, Hold, Reserved, SettleOutcome, Standing
from headgate.http.server.routes import RoutePlace
from headgate.keys import Key
from headgate.operation import Receipt
from headgate.replay.entries import Entry

__all__ = [
    "Answers",
    "AsgiCallable",
    "BoundLimits",
    "CheckBatch",
    "CheckQueue",
    "CheckTally",
    "Checks",
    "Decision",
    "Decisions",
    "Door",
    "FieldAdder",
    "FieldStarter",
    "GateCalls",
    "KeyedLimits",
    "LateChecks",
    "LateReply",
    "LogBlock",
    "LogMerge",
    "MiddlewareCallable",
    "NativeGate",
    "Operation",
    "PolicyParts",
    "RateLimitFields",
    "RedisCalls",
    "ReplayJudge",
    "Reservation",
    "RoutePassed",
    "RoutePlaces",
    "Settlement",
    "Table",
    "Tls",
    "WebGate",
    "WsgiCallable",
    "Zone",
    "ZoneLines",
    "copied_response",
    "now_us",
    "send_with_fields",
]

def now_us() -> int:
    """The system clock: wall time at its first use, carried on by the monotonic clock; never steps."""

@final
class Table:
    """A bounded table of states, shared by every `BoundLimits` made on it.

    `max_keys` bounds the states, `max_log_entries` the entries of all sliding logs together (in blocks of seven),
    `max_holds` the parts of holds. `on_full` is "forget", "refuse" or "pass". `seed` is 16 secret bytes: keys are kept
    as keyed hashes of them only. Raises ValueError for another `on_full`.
    """

    def __new__(cls, *, max_keys: int, max_log_entries: int, max_holds: int, on_full: str, seed: bytes) -> Table: ...
    def clear(self) -> None:
        """Forget everything."""

    def stats(self) -> dict[str, int]:
        """`keys`, `holds`, `bytes`, `expired`, `evicted`, `refused_full`, `passed_full`."""

@final
class Zone:
    """A table in a file that all processes of a host map; Linux alone. See `headgate.stores.shared.store`.

    Made of a file's descriptor, which may be closed then; a `flock` on it lasts as long as the zone.
    Raises ConfigError for a file that is no zone of this version. A process that holds
    that lock exclusively gives `alone`, the number of its PID namespace, which is kept; all locks are then made anew.
    All methods that read states raise StoreTimeout where a part of the table is held for more than 250 ms,
    after the first time without waiting until that part is free again, and StoreUnavailable where one is damaged.
    """

    def __new__(cls, descriptor: int, *, on_full: str, alone: int | None) -> Zone: ...
    @staticmethod
    def format(descriptor: int, *, size: int, log_percent: int, max_holds: int, seed: bytes, boot: bytes) -> None:
        """Make a file of `size` zeroes a zone; no other process may have it yet. `seed` and `boot` have 16 bytes."""

    @staticmethod
    def file_system(descriptor: int) -> int:
        """The kernel's number for the kind of file system that a file lies on, as in statfs(2)."""

    @property
    def boot(self) -> bytes:
        """The run of the system that it was created in, as passed to `format`."""

    @property
    def namespace(self) -> int:
        """The PID namespace of the processes that use it, as the last one that was alone gave it."""

    def now_us(self) -> int:
        """The zone's clock: the same for all processes."""

    def probe(self) -> None:
        """Try once all parts that this process could not lock when it last tried; raises the error of one that it still
        cannot lock."""

    def check(self) -> str | None:
        """Check everything that it holds; the inconsistency that was found, None if there is none."""

    def clear(self) -> None:
        """Forget everything."""

    def stats(self) -> dict[str, int]:
        """As `Table.stats`."""

    def info(self) -> dict[str, int]:
        """`size`, `log_percent`, `shards`, `max_keys`, `max_log_entries_per_key`, `log_blocks`, `log_blocks_held`,
        `max_holds`, `max_limits`, `max_waiters`, `created_us`, `mended`."""

    def known(self) -> list[tuple[str, str]]:
        """(scope, text) of each limit that is known."""

    def look(self, key: Key, now_us: int | None = None) -> list[dict[str, int]]:
        """The states of a key: `limit` (its place in `known`), `remaining`, `reset_after_us`, `next_after_us`,
        `refused`."""

    def forget(self, key: Key, now_us: int | None = None) -> bool:
        """Forget all that a key used under all limits; whether it had used anything."""

    @property
    def lines(self) -> ZoneLines:
        """The waiting lines of its keys."""

    def place_of(self, key: Key) -> int:
        """The place of a key, as the ids of its holds have it."""

@final
class ZoneLines:
    """The waiting lines of a zone; Linux alone. See `headgate.stores.shared.line`.

    A line has a name of 18 bytes: 16 that identify it, the place of its key, and 1 where it waits for places in flight,
    else 0. `seat` is that of a process whose callers wait, `number` identifies the caller in that process, below 2^48;
    `ticket` is (ticket, order) as `join` gave it, (0, 0) for a caller that did not get it. All raise StoreTimeout
    where another process was stopped in the lines.
    """

    most_groups: ClassVar[int]
    @property
    def most_callers(self) -> int:
        """Callers that may wait at one time; 0 in a zone of an earlier version."""

    @property
    def most_processes(self) -> int:
        """Processes whose callers may wait at one time."""

    def listen(
        self,
        started: Callable[[tuple[int, int] | None], object],
        on_called: Callable[[list[int] | None], bool],
        interval_us: int,
    ) -> None:
        """Receive the calls to callers of this process, in a thread of its own, until `on_called` returns False.

        `started` gets the seat, None where there is none for another process: then this returns. `on_called` gets the
        numbers of callers whenever some are called, and at least every `interval_us`; None where the tickets of this
        process were taken away, as it was inactive for 10 seconds.
        """

    def wake(self, seat: tuple[int, int]) -> None:
        """Wake the thread that listens there."""

    def is_waited_for(self, name: bytes) -> bool:
        """Whether callers are in a line."""

    def join(
        self, seat: tuple[int, int], number: int, name: bytes, costs: tuple[int, ...], known: tuple[int, int]
    ) -> tuple[int, int, int, bool, list[tuple[int, ...]]] | None:
        """Stand last in a line: (ticket, order, generation, is first, costs before it); None where there is no room.

        `known` is the last order that the caller knows, of which generation: the costs are those of later tickets.
        """

    def is_first(self, seat: tuple[int, int], number: int, name: bytes, ticket: tuple[int, int]) -> bool | None:
        """Whether a ticket is the first of its line; None for one that is in no line any more."""

    def leave(
        self,
        seat: tuple[int, int],
        number: int,
        name: bytes,
        ticket: tuple[int, int],
        *,
        as_planned: bool,
        planned: bool,
    ) -> int | None:
        """Step out of a line. The first one behind is called; the number of one that is of the same process.

        The line gets a new generation unless the ticket left `as_planned`, or is the last and was not `planned` here.
        """

    def waiting(self, name: bytes) -> int:
        """How many callers are in a line."""

@final
class BoundLimits:
    """Limits bound to a table and a clock (None: the table's own); see `headgate.stores.protocol.BoundLimits`.

    Raises ConfigError for a limit that is no rate and for more at once than a zone can charge, StoreUnavailable
    where a table holds states of as many limits as it can know. On a zone all raise StoreTimeout where a part of it
    is held for too long, and StoreKeyError for a damaged state: nothing is charged then, except for the earlier
    requests of `hit_many`.
    """

    def __new__(
        cls, table: Table | Zone, definitions: tuple[NamedLimit, ...], clock: Clock | None = None
    ) -> BoundLimits: ...
    def hit(self, key: Key, cost: Cost = 1, *, id: str | bytes | None = None) -> Decision:
        """Decide and charge; with an id once. Raises ArgumentError for a bad key or cost."""

    def peek(self, key: Key, cost: Cost = 1) -> Decision:
        """Decide and change nothing."""

    def hold(
        self,
        key: Key,
        cost: int = 1,
        lease: float | None = None,
        id: str | bytes | None = None,
        lease_us: int | None = None,
        remember: float | None = None,
    ) -> Reservation:
        """See `headgate.limiter.Limiter.reserve`; the same key and cost for all groups."""

    def reserve(self, operation: Operation, hold: Hold) -> Reserved:
        """Decide, charge, and remember the charge."""

    def commit(self, id: str, actual: Amounts = None, *, now_us: int | None = None) -> Settlement:
        """Settle a hold, by its whole id, with its actual cost."""

    def extend(
        self, whole_id: str, lease_us: int, more: int | Sequence[int], /, *, now_us: int | None = None
    ) -> Extension:
        """Let a lease end `lease_us` from now, and hold more."""

    def id_of(self, key: Key, name: str | bytes, /) -> str:
        """The whole id of the hold of a name within a key."""

    def call_when_freed(self, waiting: dict[int, Any], freed: Callable[[int], object]) -> None:
        """Call `freed` with the place in an id when its hold is settled here, and `waiting` is not empty."""

    def keep_line(self, line: Any) -> None:
        """Set `line`."""

    @property
    def line(self) -> Any:
        """The `headgate.stores.lines.StoreLine` that the store keeps for all its processes; None where it has none."""

    def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> Decisions:
        """Decide and charge one request after another at one instant; all keys and costs are read first."""

    def decide(self, operation: Operation) -> Decision:
        """Decide with a key and a cost for each group of the limits."""

    def give_back(self, receipt: Receipt, ago_us: int) -> None:
        """Give back the charge of a decision up to `ago_us` ago, as far as it still counts, at once for all limits."""

    def reset(self, keys: tuple[Key, ...]) -> bool:
        """Forget all that was used; whether anything was."""

    def read(self, keys: tuple[Key, ...], now_us: int | None = None) -> list[tuple[Any, ...] | None]:
        """Each limit's stored state as the Python transition writes it."""

@final
class GateCalls:
    """The `hit` and `peek` of a gate: they stay while the policy in force is replaced.

    `native` decides; requests that it leaves to Python, or all where it is None, are decided by the `decide` of a
    `headgate.policy.resolver.Resolver`.
    """

    def __new__(cls, native: NativeGate | None, resolver: Any) -> GateCalls: ...
    def take(self, native: NativeGate | None, resolver: Any) -> None:
        """Decide by another policy from here on."""

    def hit(self, request: Any, cost: Any = 1, *, ruleset: Any = "default") -> Any:
        """Decide for a request and charge it: a Decision, or the awaitable of a store that waits for I/O."""

    def peek(self, request: Any, cost: Any = 1, *, ruleset: Any = "default") -> Any:
        """`hit` that changes nothing."""

@final
class NativeGate:
    """A policy on a store, which resolves and decides without Python's code; see `headgate.policy.gate`.

    It decides a `headgate.policy.request.Request` or a `headgate.policy.descriptor.Descriptor` of just these classes,
    with integer costs and texts that are UTF-8; for all else it gives None, and the Python gate decides: nothing is
    charged then. `ruleset` is the name of one.
    """

    @staticmethod
    def of(resolver: Any) -> NativeGate | None:
        """The native gate of a `headgate.policy.resolver.Resolver`; None for a policy that only Python can apply."""

    def decide_at(self, request: Any, now_us: Any, cost: Any, ruleset: Any) -> tuple[Any, Any] | None:
        """(the decision as of a moment, the result of `resolve`)."""

    def resolve(self, request: Any, cost: Any, ruleset: Any) -> Any:
        """The result of `Resolver.resolve` for the same arguments."""

@final
class LogBlock:
    """Entries of a log: a sequence of `headgate.replay.entries.Entry`, those that were read natively in little room.

    Nothing here holds the interpreter's lock for long: another thread judges meanwhile.
    """

    def __new__(cls, entries: list[Entry] | None = None, /) -> LogBlock: ...
    @staticmethod
    def read(text: str, naive_is_utc: bool, read_other: Callable[[int, str], Entry | None]) -> LogBlock:
        """The lines of a common log; see `headgate.replay.common_log.read_block`.

        `naive_is_utc` is whether times without a zone are in UTC.
        """

    def append(self, other: LogBlock) -> None:
        """Add the entries of another block, which has none then."""

    def sort(self) -> None:
        """Put them in the order of their times; those of one moment keep theirs."""

    def take_first(self, count: int) -> LogBlock:
        """Take the first so many out."""

    def retain_within(self, from_us: int, to_us: int) -> int:
        """Remove the entries that are not from the one moment to before the other; how many were removed."""

    @property
    def ends_us(self) -> tuple[int, int] | None:
        """The moments of the first and of the last; None where there are none."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Entry: ...

@final
class LogMerge:
    """Blocks of several logs, each in order, merged into one; of entries of one moment those of the first log first."""

    def __new__(cls, logs: int) -> LogMerge: ...
    @property
    def wants(self) -> int | None:
        """The first log whose next block is to be given; None where entries of all are at hand, or none follow."""

    def give(self, log: int, block: LogBlock | None, /) -> None:
        """The next block of a log, which has no entries then; None behind its last."""

    def merged(self) -> LogBlock:
        """All entries that are known to be next, until the block of a log ends."""

@final
class ReplayJudge:
    """A policy that judges entries of logs, and the sums of its judgements; see `headgate.replay.judging`.

    `steps_us` are the lengths of steps that a series may have, `most_steps` how many it has at the most.
    """

    def __new__(cls, gate: NativeGate, steps_us: list[int], most_steps: int) -> ReplayJudge: ...
    def judge(
        self,
        block: LogBlock,
        start: int,
        refusals: list[tuple[int, tuple[tuple[int, tuple[str, ...] | None], ...]] | None] | None = None,
        /,
    ) -> int:
        """Judge entries from `start` on until one that only Python can judge; gives its index, or that after the last.

        For each judged entry `refusals` gets None where it passes, else its moment and the places of the rules that
        refuse it, each with its key. Lines are judged without the interpreter's lock.
        """

    def note(self, time_us: int, rules: Sequence[int], refusing: Sequence[bool], allowed: bool, cost: int) -> None:
        """`headgate.replay.sums.Sums.note`, of a request that Python has judged."""

    def sums(self) -> tuple[Any, ...]:
        """`headgate.replay.sums.AllSums`."""

    def requests_by_key(self, by: Sequence[tuple[str, ...]], kinds: Sequence[int]) -> dict[Any, int]:
        """`headgate.replay.sums.Sums.requests_by_key`."""

@final
class CheckTally:
    """Counts the decisions of native checks, over all policies that were in force."""

    def __new__(cls) -> CheckTally: ...
    def figures(self) -> tuple[dict[tuple[str, str], int], dict[str, int], list[int], float]:
        """The counts of a `headgate.observe.prometheus.DecisionCounts`; the dictionaries have no zeroes."""

@final
class Checks:
    """Answers checks as the Python service does, in the same bytes; see `headgate.service.checks.native_checks`.

    The answer is None where only Python can answer, and nothing is charged then; else (status, content type, body,
    header fields).
    """

    @staticmethod
    def of(policy: Any, rules: Any, money: Any, table: Table | Zone, clock: Any, tally: CheckTally) -> Checks | None:
        """The checks of a `headgate.policy.compiled.Policy`; None for a policy that only Python can apply."""

    def forwarded(
        self,
        ruleset: str,
        path: str,
        bare: bool,
        method: str,
        headers: list[tuple[bytes, bytes]],
        peer: str,
    ) -> tuple[int, bytes, bytes, list[tuple[bytes, bytes]]] | None:
        """What `/check/{ruleset}` answers; `bare` for `/check-403`."""

    def described(self, body: bytes) -> tuple[int, bytes, bytes, list[tuple[bytes, bytes]]] | None:
        """What `POST /v1/check` answers."""

@final
class CheckQueue:
    """Checks of the front door on a store that is waited for, until Python takes them. Linux alone.

    `event` is the descriptor of an eventfd, which is written to when something waits and no batch is under way.
    """

    def __new__(cls, event: int) -> CheckQueue: ...
    def take(self, most: int) -> CheckBatch | None:
        """Take about so many checks, those of one body together, when `event` was written to.

        None where nothing waits, and while a batch is under way. Checks that no client waits for any more are dropped.
        """

    def take_more(self, most: int) -> CheckBatch | None:
        """`take` after a batch: None, too, where few checks wait and a thread of the door is about to write to `event`.

        That thread first sends the responses to the batch, so that clients that send again at once are in the next one.
        """

@final
class CheckBatch:
    """Checks that were taken together, by their places; see `headgate.stores.redis.check_batches`.

    The outcomes are delivered by `finish`, and when the batch is dropped.
    """

    def __len__(self) -> int: ...
    def unusual(self) -> list[int]:
        """The places of checks that only Python can query: long keys, and limits without `RedisCalls`."""

    def remembered(self, refusals: dict[Any, Any]) -> list[int]:
        """The places of checks whose refusal is remembered, by the names of `headgate.stores.guard.refusals`."""

    def limits(self, place: int) -> Any:
        """The limits of a check."""

    def operation(self, place: int) -> Operation:
        """The operation of a check."""

    def pack_usual(self, now_us: int | None, /) -> tuple[bytes, int] | None:
        """The commands for all checks, and how many; None where some are `unusual`."""

    def pack(self, packed: dict[int, bytes], now_us: int | None, /) -> tuple[bytes, int]:
        """The commands for all checks without an outcome, and how many; `packed` has those of Python."""

    def read_bytes(self, data: bytes) -> tuple[int, list[int]]:
        """Record the outcomes that the replies to these commands mean; the received bytes begin with them.

        Gives how many bytes they are, and the places of refusals that are to be remembered. Nothing is recorded, and
        the number is 0 where they are incomplete, and negative where one is unusual: `read` is for that.
        """

    def read(self, replies: list[Any]) -> tuple[list[tuple[int, Any]], list[int]]:
        """Record the outcomes that the replies to these commands mean.

        Gives the checks left to Python, each with its reply, and the places of refusals that are to be remembered.
        Raises ValueError for fewer or more replies.
        """

    def charged(self, of_state: dict[Any, Any]) -> list[int]:
        """The places of charged checks whose states some of the refusals in `of_state` depend on."""

    def decision(self, place: int) -> Decision:
        """The decision of a check."""

    def decided(self, place: int, decision: Decision) -> None:
        """Record a decision."""

    def failed(self, place: int, status: int, body: bytes) -> None:
        """Record a failure: a status, and the problem body that reports it."""

    def open(self) -> list[int]:
        """The places of checks without an outcome."""

    def finish(self) -> None:
        """Deliver all outcomes to the clients that wait."""

@final
class LateChecks:
    """`Checks` on a store that is waited for: their queries are in a `CheckQueue` until Python has them decided."""

    @staticmethod
    def of(
        policy: Any, rules: Any, money: Any, resolver: Any, queue: CheckQueue, tally: CheckTally
    ) -> LateChecks | None:
        """The checks of a `headgate.policy.compiled.Policy`; None for a policy that only Python can apply.

        `resolver` is the gate's `headgate.policy.resolver.Resolver` of that policy, which binds the limits.
        """

    def forwarded(
        self,
        ruleset: str,
        path: str,
        bare: bool,
        method: str,
        headers: list[tuple[bytes, bytes]],
        peer: str,
    ) -> LateReply | None:
        """What `/check/{ruleset}` answers; `bare` for `/check-403`."""

    def described(self, body: bytes) -> LateReply | None:
        """What `POST /v1/check` answers."""

@final
class LateReply:
    """The answer of `LateChecks`; once it is dropped, nothing waits for it any more."""

    def parts(self) -> tuple[int, bytes, bytes, list[tuple[bytes, bytes]]] | None:
        """The answer as `Checks` give it; None while it is not decided."""

@final
class RedisCalls:
    """Packs the calls of scripts that decide limits, and reads the replies; see `headgate.stores.redis.commands`.

    `head` begins the names of all Redis keys; a member is (its compiled limit, numbers, field, kind, whether it
    is a shadow, its group, how the names of its keys end); `order` is that in which scripts are given them. A script is
    (its name, "one", "few" or "several"), for limits `together` in one hash, or `apart`.
    """

    def __new__(
        cls,
        head: bytes,
        members: Sequence[tuple[Any, bytes, bytes, int, bool, int, bytes]],
        order: Sequence[int],
        together: tuple[str, str],
        apart: tuple[str, str],
    ) -> RedisCalls: ...
    def pack(self, keys: Sequence[str], costs: Sequence[int], now_us: int | None) -> bytes | None:
        """The command for the text and the cost of each group; None for a key that is too long to be a name."""

    def read(self, definitions: tuple[NamedLimit, ...], reply: bytes, costs: Sequence[int]) -> Decision | None:
        """The decision in a reply; None for an unusual reply, which Python reads."""

@final
class KeyedLimits:
    """Limits on a key for each of their groups, held and settled by amounts of which each group has one.

    `held` and `settled` are places of such amounts: of each group, which of them it holds, and which of them counts in
    the end. `id_suffix` follows the ids of reservations, `lease_us` is how long each lease is. Raises ArgumentError
    for a bad key or lease, ValueError for other than one place a group.
    """

    def __new__(
        cls,
        bound: BoundLimits,
        keys: tuple[Key, ...],
        id_suffix: str,
        held: Sequence[int],
        settled: Sequence[int],
        lease_us: int,
    ) -> KeyedLimits: ...
    def hold(self, amounts: tuple[int, ...], /) -> Reservation:
        """Hold of each group its own of these amounts, under an id that is made for it.

        Raises ArgumentError for a bad amount, IndexError for fewer amounts than places.
        """

    def settle(self, reservation: Reservation, amounts: tuple[int, ...], /) -> SettleOutcome:
        """Settle a reservation of `hold` with these amounts, and give the outcome without the states of the limits.

        Raises as `BoundLimits.commit` and `hold` do, TypeError for the reservation of another store.
        """

@final
class Reservation:
    """A reservation; see `headgate.reservation.Reservation`."""

    def __new__(cls, bound: Any, reserved: Reserved, lease_us: int) -> Reservation: ...
    def __bool__(self) -> bool: ...
    @property
    def id(self) -> str: ...
    @property
    def decision(self) -> Any: ...
    @property
    def repeated(self) -> bool: ...
    @property
    def lease_us(self) -> int: ...
    @property
    def settled(self) -> bool: ...
    def commit(self, actual: int | None = None) -> Settlement:
        """Settle it with its actual cost."""

    def cancel(self) -> Settlement:
        """Settle it as if it had never been."""

    def extend(self, lease: float | None = None, more: int | None = None, *, lease_us: int | None = None) -> Extension:
        """Let its lease end later, and hold more."""

    def __enter__(self) -> Reservation: ...
    def __exit__(self, kind: Any, _error: Any, _traceback: Any, /) -> None: ...

@final
class Settlement:
    """The answer to `commit`; see `headgate.holding.Settlement`."""

    def __new__(
        cls, outcome: str, actuals: Sequence[int] | None, after: Iterable[Standing], degraded: str = ""
    ) -> Settlement: ...
    def __reduce__(self) -> tuple[Any, ...]: ...
    @property
    def degraded(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def actuals(self) -> tuple[int, ...] | None: ...
    @property
    def actual(self) -> int | None: ...
    @property
    def after(self) -> tuple[Standing, ...]: ...

@final
class Operation:
    """An operation that limits decide; see `headgate.operation.Operation`."""

    def __new__(
        cls,
        keys: tuple[Key, ...],
        costs: tuple[int, ...],
        *,
        commit: bool = True,
        now_us: int | None = None,
        max_delay_us: int | None = None,
    ) -> Operation: ...
    def with_keys(self, keys: Sequence[Key]) -> Operation:
        """The same for other keys, a tuple or a list."""

    def with_key(self, key: Key) -> Operation:
        """The same with one key for all groups."""

    @property
    def keys(self) -> tuple[Key, ...]: ...
    @property
    def costs(self) -> tuple[int, ...]: ...
    @property
    def commit(self) -> bool: ...
    @property
    def now_us(self) -> int | None: ...
    @property
    def max_delay_us(self) -> int | None: ...

@final
class Decision:
    """The answer for one request; see `headgate.decision.Decision`."""

    def __new__(
        cls,
        definitions: tuple[NamedLimit, ...],
        readings: Sequence[tuple[bool, int, int, int | None, int, int]],
        *,
        allowed: bool,
        binding: int | None,
        degraded: str = "",
    ) -> Decision: ...
    def __bool__(self) -> bool: ...
    def __reduce__(self) -> tuple[Any, ...]: ...
    @property
    def allowed(self) -> bool: ...
    @property
    def definitions(self) -> tuple[NamedLimit, ...]: ...
    @property
    def degraded(self) -> str: ...
    @property
    def readings(self) -> tuple[tuple[bool, int, int, int | None, int, int], ...]: ...
    @property
    def limits(self) -> tuple[LimitReading, ...]: ...
    @property
    def refusals(self) -> tuple[LimitReading, ...]: ...
    @property
    def binding(self) -> LimitReading | None: ...
    @property
    def limit(self) -> int | None: ...
    @property
    def rule(self) -> str: ...
    @property
    def remaining(self) -> int | None: ...
    @property
    def reset_after_us(self) -> int | None: ...
    @property
    def retry_after_us(self) -> int | None: ...
    @property
    def delay_us(self) -> int: ...
    @property
    def reset_after(self) -> float | None: ...
    @property
    def retry_after(self) -> float | None: ...
    @property
    def delay(self) -> float: ...

@final
class Decisions:
    """The answers for many requests at once, in the order of the keys."""

    @property
    def allowed(self) -> list[bool]: ...
    @property
    def allowed_count(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Decision: ...
    def __iter__(self) -> Iterator[Decision]: ...

@final
class Answers:
    """Writes the reports of decisions on the same limits to clients: `headgate.http.refusal`, `/v1/check`.

    Of each limit it takes (form, name, rule, text, base unit), a form as `RateLimitFields` has it. `policy` is the
    value of RateLimit-Policy, None where there is nothing to report.
    """

    def __new__(
        cls,
        limits: Sequence[tuple[tuple[str, int, int, bool, bool, bool], str, str, str, str]],
        policy: str | None,
    ) -> Answers: ...
    def problem(self, decision: Decision) -> bytes:
        """The problem body of a refusal."""

    def decision_json(self, decision: Decision) -> str:
        """The decision as JSON, as `/v1/check` answers it."""

@disjoint_base
class MiddlewareCallable:
    """The attributes of `AsgiCallable` and `WsgiCallable`."""

    app: Any
    _direct: Any

class AsgiCallable(MiddlewareCallable):
    """`headgate.http.server.callables.PythonAsgiCallable`"""
    def __new__(cls, *_arguments: Any, **_keywords: Any) -> Self: ...
    def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        """An awaitable, perhaps that of the application."""

class WsgiCallable(MiddlewareCallable):
    """`headgate.http.server.callables.PythonWsgiCallable`"""
    def __new__(cls, *_arguments: Any, **_keywords: Any) -> Self: ...
    def __call__(self, environ: Any, start_response: Any) -> Any:
        """The parts of a response."""

@final
class RateLimitFields:
    """Writes RateLimit-Policy and RateLimit of decisions on the same limits; see `headgate.http.fields.ratelimit`.

    A form is (start, window_us, quota, in_flight, on_the_clock, shadow) of each limit; `policy` is the whole
    first field, None where there is nothing to report. Names and values are all text or all bytes.
    """

    def __new__(
        cls,
        forms: Sequence[tuple[str, int, int, bool, bool, bool]],
        policy: tuple[Any, Any] | None,
        name: str | bytes,
    ) -> RateLimitFields: ...
    def write(self, decision: Decision) -> list[tuple[Any, Any]]:
        """The fields of a decision."""

    def write_passing(self, decision: Decision) -> list[tuple[Any, Any]] | None:
        """The fields of a decision that passes at once and was decided by its store; None for any other."""

def send_with_fields(send: Callable[[Any], Any], fields: list[tuple[bytes, bytes]]) -> Callable[[Any], Any]:
    """`headgate.http.server.asgi_messages.python_send_with_fields`"""

def copied_response(response: Any, fields: list[tuple[bytes, bytes]]) -> Any:
    """`headgate.integrations.starlette.responses.python_copied`"""

@final
class FieldAdder:
    """Adds the fields that report what remains to the responses of one endpoint.

    A response without another reference gets them itself; any other is copied as by `python_copied`. `add_in_python`
    handles responses of classes for which `sends_its_fields` is false, and requests that inner limits have judged.
    """

    def __new__(
        cls,
        sends_its_fields: Callable[[Any], bool],
        add_in_python: Callable[[RoutePassed, Any, Any], Any],
    ) -> FieldAdder: ...
    def add_fields(self, passed: RoutePassed, response: Any, connection: Any, /) -> Any:
        """The response that the endpoint returns in place of this one."""

@final
class RoutePlaces:
    """`headgate.integrations.starlette.places.PythonPlaces`"""

    def __new__(cls, find: Callable[[Any], tuple[Any, bool]], *, by_method: bool) -> RoutePlaces: ...
    def of(self, scope: Any, /) -> Any:
        """The value for the route of a request."""

    def decide(self, scope: Any, /) -> RoutePassed | tuple[Any, tuple[tuple[str, ...] | None, int]] | None:
        """`headgate.integrations.starlette.places.Places.decide`"""

@final
class RoutePassed:
    """Stands for the exchange of a request that the first limit of its route let pass, until more is to be done."""

    @property
    def place(self) -> RoutePlace:
        """The place of that limit."""

    @property
    def decision(self) -> Decision:
        """Its decision."""

    @property
    def fields(self) -> list[tuple[bytes, bytes]]:
        """The fields that report what remains."""

    @property
    def charge(self) -> tuple[tuple[str, ...] | None, int]:
        """(the key that was charged, the moment of the charge)"""

    @property
    def exchange(self) -> Any:
        """The exchange that has taken its place, None if none has."""

    def become_exchange(self, exchange: Any, /) -> Any:
        """Let this exchange take its place; gives the one that has taken it."""

@final
class FieldStarter:
    """A `start_response` that adds fields to the head of a response: `headgate.http.wsgi.python_start_with_fields`."""

    def __new__(cls, start: Callable[..., Any], fields: list[tuple[str, str]]) -> FieldStarter: ...
    def __call__(self, status: Any, headers: Any, *error: Any) -> Any:
        """The result of `start`."""

@final
class WebGate:
    """A native gate in front of an application; see `headgate.http.server.web_gates`.

    It reads a request of ASGI or WSGI where its server put it, decides it, charges it and writes the fields that report
    what remains. It answers None where it leaves the request to Python, before anything is charged: for another kind of
    scope or environ, text that is not UTF-8, and values that a framework reads in a way of its own.
    """

    @staticmethod
    def of(
        gate: NativeGate,
        *,
        ruleset: str,
        cost: int,
        writer_of: Callable[[tuple[NamedLimit, ...]], Any] | bool | None,
        encoded: bool,
        of_framework: bool,
        websockets: bool,
        plain: bool,
        endpoint: str,
    ) -> WebGate | None:
        """The gate in front of an application; None where not all that the policy reads can be read here.

        `writer_of` gives the writer of the fields of decisions on limits, bytes if `encoded`; False to write none, None
        where Python does. `of_framework` is whether a framework's parsers decide the values of repeated headers, of
        cookies and of parameters. With `plain` every client has a key, if only that of a socket, and requests to which
        no rule applies are left to Python. `endpoint` is that of all requests, "" where each may have its own.
        """

    @property
    def distinguishes_endpoints(self) -> bool:
        """Whether the endpoint of a request makes a difference."""

    def decide(self, scope: Any, send: Callable[[Any], Any]) -> Any:
        """For a request that passes at once a `send` that adds the fields; else the decision.

        The decision may be an awaitable, where a store waits for I/O. Raises StoreError.
        """

    def decide_environ(self, environ: Any, start_response: Callable[..., Any]) -> Any:
        """`decide` for a request of WSGI."""

    def decide_route(
        self, scope: Any, endpoint: str
    ) -> tuple[Any, list[tuple[Any, Any]] | None, tuple[str, ...]] | None:
        """(the decision, the fields if the request passes at once, the key) of a request to this endpoint."""

    def decide_view(
        self, environ: Any, endpoint: str
    ) -> tuple[Any, list[tuple[Any, Any]] | None, tuple[str, ...]] | None:
        """`decide_route` for a request of WSGI."""

@final
class PolicyParts:
    """The native gate's parts, for the laws and vectors that hold them against `headgate.policy`.

    Text has no lone surrogates. A function that gives None for its whole answer leaves it to Python, whose tables of
    Unicode differ between versions. A value of a cookie or a parameter is None where it is repeated. A network is
    (bytes of an address, first address, mask); rules are the fields of
    `headgate.policy.client_address.AddressRules` in order.
    """

    @staticmethod
    def forms_of(path: str) -> list[list[str]]:
        """`headgate.policy.path_forms.forms_of`"""

    @staticmethod
    def match_path(templates: Sequence[tuple[int, str]], path: str) -> tuple[list[tuple[int, str]], list[int]]:
        """The matches in a `headgate.policy.path_tree.PathTree`, in order: (owner, template) each, and surely."""

    @staticmethod
    def client(rules: tuple[str, Sequence[tuple[int, int, int]], bool, int, int, int], peer: str, header: str) -> str:
        """`headgate.policy.client_address.AddressRules.client`"""

    @staticmethod
    def address(
        rules: tuple[str, Sequence[tuple[int, int, int]], bool, int, int, int], peer: str, header: str
    ) -> bytes | None:
        """`headgate.policy.client_address.AddressRules.address`"""

    @staticmethod
    def parse_address(text: str) -> bytes | None:
        """`headgate.policy.client_address.parse_address`"""

    @staticmethod
    def address_text(address: IPv4Address | IPv6Address) -> str:
        """`headgate.policy.client_address.address_text`"""

    @staticmethod
    def is_in(address: IPv4Address | IPv6Address, networks: Sequence[tuple[int, int, int]]) -> bool:
        """`headgate.policy.client_address.is_in`"""

    @staticmethod
    def forwarded_for(value: str) -> list[str]:
        """`headgate.policy.client_address.forwarded_for`"""

    @staticmethod
    def host_of(host: str) -> str | None:
        """`headgate.policy.key_parts.host_of`"""

    @staticmethod
    def hosts_of(host: str) -> list[str] | None:
        """`headgate.policy.key_parts.hosts_of`"""

    @staticmethod
    def one_spelling(credentials: str) -> str | None:
        """`headgate.policy.key_parts.one_spelling`"""

    @staticmethod
    def plain_token(value: str) -> str:
        """`headgate.policy.key_parts.plain_token`"""

    @staticmethod
    def bounded(value: str) -> str:
        """`headgate.policy.key_parts.bounded`"""

    @staticmethod
    def digest(value: str) -> str:
        """`headgate.policy.key_parts.digest`"""

    @staticmethod
    def cookie_values(lines: Sequence[str], name: str) -> list[str | None] | None:
        """`headgate.policy.sent_values.cookie_values`, for the lines of a header."""

    @staticmethod
    def query_values(query: str, name: str) -> list[str | None] | None:
        """`headgate.policy.sent_values.query_values`"""

    @staticmethod
    def one_of_values(values: Sequence[str | None]) -> str | None:
        """`headgate.policy.request.one_of_values`: "" for none, None for repeated."""

    @staticmethod
    def one_of_lines(lines: Sequence[str]) -> str | None:
        """`headgate.policy.request.Request.header` for the lines of a header."""

    @staticmethod
    def is_like(pattern: str, text: str) -> bool:
        """`headgate.policy.entries.is_like`"""

    @staticmethod
    def entries_text(pairs: Sequence[tuple[str, str]]) -> str:
        """`headgate.policy.entries.entries_text`"""

    @staticmethod
    def encode_key(parts: Sequence[str]) -> str | None:
        """`headgate.keys.encode_key`; None for parts that are no key."""

    @staticmethod
    def hash_key(parts: Sequence[str], seed: bytes) -> tuple[int, int] | None:
        """The hash of a key of parts under a seed of 16 bytes: (the half for the shard, the half for the slot)."""

    @staticmethod
    def hash_of_limiter(key: Key, seed: bytes) -> tuple[int, int]:
        """`hash_key` of any key, as a limiter reads it; raises ArgumentError for a bad one."""

@final
class Tls:
    """The certificate of a door and the clients that it admits, from texts in PEM: TLS 1.2 and 1.3.

    `certificate` is that of the server and those that lead to its authority, `key` is its key without a passphrase,
    `client_ca` are the authorities whose certificates clients must have, None lets in clients without one. Raises
    ValueError of two texts for an unusable argument: its name, and its fault.
    """

    def __new__(cls, certificate: bytes, key: bytes, client_ca: bytes | None = None) -> Tls: ...
    @property
    def validity(self) -> tuple[str, str] | None:
        """From when to when the certificate is valid, in UTC as `YYYYMMDDhhmmssZ`; None where it cannot be read."""

@final
class Door:
    """The front door of the service: HTTP/1.1 and HTTP/2 on threads of its own. Of Linux alone, on 64 bits.

    `checks` decide; None leaves every check to Python. `listeners` are the descriptors of listening sockets, which the
    door clones. Requests that it does not answer itself go to the HTTP server that listens on `python_socket`, a path,
    with the address of the client in the field `headgate-door-peer`: `forwarded` requests at a time, and as many of
    those that wait for no others. `bounds` is a `headgate.service.http.bounds.Bounds`; `streams` are those of one
    connection of HTTP/2. Each thread runs on its own of `cpus`, and anywhere where there is none. With `tls`
    connections begin with TLS. Raises OSError for sockets and threads that cannot be had.
    """

    def __new__(
        cls,
        listeners: Sequence[int],
        python_socket: str,
        checks: Checks | LateChecks | None,
        *,
        threads: int,
        cpus: Sequence[int],
        forwarded: int,
        streams: int,
        bounds: Any,
        tls: Tls | None = None,
    ) -> Door: ...
    def swap_tls(self, tls: Tls, /) -> None:
        """Have new connections begin with another certificate; those that are open go on. Of a door with TLS alone."""

    def swap(self, checks: Checks | LateChecks | None, /) -> None:
        """Put other checks in the place of those in force. Every request is decided by one of the two."""

    def announce_end(self) -> None:
        """Have every response be the last one of its connection from now on, so that clients go elsewhere."""

    def end(self, within_s: float) -> None:
        """Close the port, finish open requests within a time, and cut off the rest; does not wait for any of it.

        Called again, it gives the door so much time from then on.
        """

    def has_ended(self) -> bool:
        """Whether the port and all connections are closed."""

    def figures(self) -> tuple[list[tuple[str, int, int]], int, int, int, int, int, int, int]:
        """The figures of the door: ((route, status, responses), ...), and seven numbers.

        These are: checks that were left to Python, connections that were accepted, are open, gave way to others, whose
        client took too long, on which no further request came, and whose client sent something else than TLS or was not
        let in.
        """

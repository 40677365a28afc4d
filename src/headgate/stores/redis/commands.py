"""The calls that decide limits on a Redis or Valkey, and the meaning of the replies; without I/O, for both colours.

A decision is one call of one script. Where a Cluster keeps the keys of a decision on several servers, it is one call
for each: they are charged in turn, and a refusal gives back earlier charges, so that no limit ever admits too much; a
request in between may be refused too early.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from struct import pack
from typing import Any, NamedTuple

from headgate import core
from headgate.algorithms.table import is_in_flight
from headgate.algorithms.transition import measure_us
from headgate.clock import Clock
from headgate.decision import Decision, NamedLimit, Reading, binding_of
from headgate.errors import StoreError, StoreKeyError
from headgate.keys import Key, check_cost, check_now, encode_key
from headgate.limits import never_ends
from headgate.operation import Operation
from headgate.stores.protocol import StatesAt
from headgate.stores.redis.borders import Borders, ServerClock
from headgate.stores.redis.codec import (
    UNITS,
    KeyName,
    field_name,
    is_log,
    read_charged,
    read_refused,
    read_state,
)
from headgate.stores.redis.hold_names import record_prefix
from headgate.stores.redis.replies import read_time, unexpected_reply
from headgate.stores.redis.script_replies import bytes_of, lease_end_of, numbers_of, readings_of, states_at
from headgate.stores.redis.scripts import (
    BRIEF,
    HIT,
    PEEK,
    TIMED_HIT,
    Script,
    few_limits,
    forget,
    give_back,
    kind_of,
    mark_of,
    one_limit,
    several_limits,
)

_ALGORITHM = 7
_UNKNOWN_MOMENT = -1.0

SERVER_TIME = -1.0
"""The moment that stands for the server's own time."""

NO_DELAY = -1.0
"""The longest delay where none is set."""

MOST_LOCALS = 130
MOST_IN_A_HASH, MOST_APART = 5, 3
"""Up to so many limits have a script for exactly these limits; more are decided in a loop."""

Command = tuple[Any, ...]
"""The name and the arguments of a command."""

Slot = Callable[[bytes], int]
"""Returns the hash slot of a Redis key in a Cluster."""


class ScriptCall(NamedTuple):
    """One call of a script."""

    script: Script
    keys: list[bytes]
    arguments: list[bytes]

    @property
    def by_sha(self) -> Command:
        """The command that runs a script that is loaded on the server."""
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.arguments)

    @property
    def by_text(self) -> Command:
        """The command that runs the script whether it is loaded or not."""
        return ("EVAL", self.script.text, len(self.keys), *self.keys, *self.arguments)


ScriptSteps = Generator[ScriptCall, Any, Any]
"""A generator that yields calls, one after another, and is sent the reply to each."""


@dataclass(frozen=True, slots=True)
class Member:
    """A limit as the scripts see it."""

    definition: NamedLimit
    one: Script
    field: str
    numbers: bytes
    kind: int
    shadow: bool
    borders: Borders | None


class Commands:
    """The calls for limits that are decided together."""

    def __init__(self, definitions: Sequence[NamedLimit], prefix: str, slot_of: Slot | None) -> None:
        self.definitions = tuple(definitions)
        self.prefix = prefix
        self.groups = max((definition.group + 1 for definition in self.definitions), default=0)
        self.key_names = [(KeyName(prefix, definition), definition.group) for definition in self.definitions]
        self._is_one = len(self.definitions) == 1
        """Whether there is one limit, the usual case: its key and cost are those of its group."""

        self.slot_of = slot_of
        in_flight = [definition.limit for definition in self.definitions if is_in_flight(definition.limit.algorithm)]
        self._in_flight = in_flight[0] if in_flight else None
        self.count_in_flight = bool(in_flight)
        self.needs_several = slot_of is not None
        """Whether an operation may take several calls."""

        self.members = [
            Member(
                definition,
                one_limit(definition.limit.algorithm, field_name(definition)),
                field_name(definition),
                mark_of(definition.limit.compiled),
                kind_of(definition.limit.algorithm, shadow=definition.shadow),
                definition.shadow,
                None if (calendar := definition.limit.compiled.calendar) is None else Borders(calendar),
            )
            for definition in self.definitions
        ]
        self.server_clock = ServerClock()
        self.have_borders = any(member.borders is not None for member in self.members)
        self._scripts: dict[tuple[tuple[int, ...], bool], Script] = {}
        # The same algorithms share a script, in whichever order they are written.
        self._order = sorted(range(len(self.members)), key=lambda number: self.members[number].kind & _ALGORITHM)
        self._in_order = self._order == sorted(self._order)
        self._compiled = [self.definitions[number].limit.compiled for number in self._order]
        self._brief = BRIEF * len(self._order)
        self.are_few = len(self.members) <= MOST_IN_A_HASH and self._locals(self._order) <= MOST_LOCALS
        """Whether they have their own scripts, if they are of one key."""

    @property
    def native_calls(self) -> Any:
        """The native `RedisCalls` of these limits; None on the Python core, and for calendars, places or a Cluster."""
        if core.native is None or not self.members or self.have_borders or self._in_flight or self.needs_several:
            return None
        return core.native.RedisCalls(
            f"{self.prefix}:{{".encode(),
            [
                (
                    member.definition.limit.compiled,
                    member.numbers,
                    member.field.encode(),
                    member.kind,
                    member.shadow,
                    member.definition.group,
                    name.tail,
                )
                for member, (name, _) in zip(self.members, self.key_names, strict=True)
            ],
            self._order,
            self._native_script(together=True),
            self._native_script(together=False),
        )

    def _native_script(self, *, together: bool) -> tuple[str, str]:
        """The SHA of the script that decides limits of one key or of several, and the form of its arguments."""
        if len(self.members) == 1:
            return self.members[0].one.sha, "one"
        if self._have_script(self._order, together=together):
            return self._script_of_few(tuple(self._order), together=together).sha, "few"
        return several_limits().sha, "several"

    def usual_script(self) -> Script | None:
        """The script of a usual request, whose identities differ; None where there is no limit."""
        keys = tuple(map(str, range(self.groups)))
        operation = Operation(keys, (1,) * self.groups, commit=self._in_flight is None)
        call = next(self.decide(operation), None)
        return None if call is None else call.script

    def names(self, keys: Sequence[Key]) -> list[bytes]:
        """The Redis key of each limit. Raises ArgumentError for an invalid key."""
        if len(keys) != self.groups:
            raise ValueError(f"these limits take {self.groups} keys, not {len(keys)}")
        encoded_keys = list(map(encode_key, keys))
        if self._is_one:
            return [self.key_names[0][0].of(encoded_keys[-1])]
        return [name.of(encoded_keys[group]) for name, group in self.key_names]

    def costs(self, costs: Sequence[int]) -> list[int]:
        """The cost of each limit. Raises ArgumentError for an invalid cost."""
        if len(costs) != self.groups:
            raise ValueError(f"these limits take {self.groups} costs, not {len(costs)}")
        checked = list(map(check_cost, costs))
        return checked[-1:] if self._is_one else [checked[definition.group] for definition in self.definitions]

    def moment_us(self, now_us: float) -> int:
        """The moment for a script; where it is given none, the server's moment as far as it is known."""
        return int(now_us) if now_us >= 0 else self.server_clock.now_us()

    def check_hit(self) -> None:
        """Raise ArgumentError where a hit would take a place that nothing frees."""
        if self._in_flight is not None:
            raise never_ends(self._in_flight)

    def decide(self, operation: Operation, clock: Clock | None = None) -> ScriptSteps:
        """Decide an operation, by `clock` instead of the server's; the generator returns the decision."""
        names, costs = self.names(operation.keys), self.costs(operation.costs)
        mode, max_delay_us = HIT if operation.commit else PEEK, operation.max_delay_us
        if mode == HIT and self._in_flight is not None:
            self.check_hit()
        now_us = operation.now_us
        if now_us is None and clock is not None:
            now_us = clock.now_us()
        if not names:
            return Decision((), (), allowed=True, binding=None)
        if now_us is not None:
            check_now(now_us)
        shards = [self._order] if self.slot_of is None else self._shards(names)
        if len(shards) == 1:
            reply = yield self._call(shards[0], names, costs, mode, now_us, max_delay_us)
            if self.have_borders:
                repeat = partial(self._call, shards[0], names, costs, mode, now_us, max_delay_us)
                reply = yield from self.server_clock.retried(reply, repeat)
            ordered = self._readings(reply, costs)
            readings = (
                ordered if self._in_order else [reading for _, reading in sorted(zip(shards[0], ordered, strict=True))]
            )
        else:
            readings = yield from self._decide_sharded(shards, names, costs, mode, now_us, max_delay_us)
        return self.decision_of(readings, costs)

    def give_back(self, names: list[bytes], costs: list[int], ago_us: int, now_us: int | None) -> ScriptSteps:
        """Give back what is left of a charge that was made up to `ago_us` ago."""
        header = (_UNKNOWN_MOMENT, ago_us, SERVER_TIME if now_us is None else now_us)
        for shard in self._shards(names) if names else ():
            charged = [number for number in shard if costs[number]]
            if charged:
                yield from self._give_back(charged, names, costs, header)

    def read(
        self, keys: tuple[Key, ...], now_us: Callable[[int], int]
    ) -> Generator[list[tuple[bytes | None, Command]], list[Any], StatesAt]:
        """Read states by commands that are sent together. `now_us` maps the server's moment to that of the states."""
        names = self.names(keys)
        read_commands = [
            read_command(definition, name) for definition, name in zip(self.definitions, names, strict=True)
        ]
        *values, moment = yield [*zip(names, read_commands, strict=True), (names[0] if names else None, ("TIME",))]
        return states_at(self.definitions, [value or None for value in values], now_us(read_time(moment)))

    def forget(
        self, names: list[bytes], now_us: int | None
    ) -> Generator[ScriptCall, Any, tuple[bool, dict[bytes, None]]]:
        """Forget states; the generator returns whether any was still in effect, and the letters of the ids of holds
        whose places under other names are to be freed."""
        live, record_ids = False, dict[bytes, None]()
        for shard in self._shards(names) if names else ():
            kinds = [self.definitions[number].limit.algorithm for number in shard]
            fields = [self.members[number].field.encode() for number in shard]
            heads = [record_prefix(self.prefix, names[number]) for number in shard]
            reply = yield ScriptCall(forget(), [names[number] for number in shard], [*fields, *heads])
            if not isinstance(reply, list) or len(reply) != len(shard) + 2 or type(reply[-2]) is not int:
                raise unexpected_reply(reply, "what was forgotten")
            record_ids |= dict.fromkeys(reply[-1])
            moment_us = reply[-2] if now_us is None else now_us
            for kind, value in zip(kinds, reply[:-2], strict=True):
                if value is not None:
                    if not isinstance(value, bytes):
                        raise unexpected_reply(value, "a state")
                    if is_in_flight(kind):
                        live |= lease_end_of(value) > moment_us
                        continue
                    try:
                        former, state = read_state(kind, value)
                    except StoreKeyError:
                        live = True  # there was some value
                    else:
                        live |= measure_us(former, state, moment_us)[1] > 0
        return live, record_ids

    def _decide_sharded(
        self,
        shards: list[list[int]],
        names: list[bytes],
        costs: list[int],
        mode: int,
        now_us: int | None,
        max_delay_us: int | None,
    ) -> Generator[ScriptCall, Any, list[Reading]]:
        """Charge shard by shard; after a refusal, give back the charges and only peek at the rest."""
        readings: dict[int, Reading] = {}
        charged: list[tuple[list[int], int]] = []
        refused = False
        for shard in shards:
            shard_mode = PEEK if refused or mode != HIT else TIMED_HIT
            try:
                reply = yield from self._execute_shard(shard, names, costs, shard_mode, now_us, max_delay_us)
            except StoreError:
                yield from self._undo(charged, names, costs)
                raise
            moment_us = 0
            if shard_mode == TIMED_HIT:
                reply = bytes_of(reply)
                [moment_us], reply = numbers_of(reply[-8:], 1), reply[:-8]
            readings |= dict(zip(shard, readings_of(reply, len(shard)), strict=True))
            if not all(readings[number].allowed or self.definitions[number].shadow for number in shard):
                refused = True
            elif shard_mode == TIMED_HIT:
                charged_numbers = [number for number in shard if readings[number].allowed]
                if charged_numbers:  # there may be none among shadow limits alone
                    charged.append((charged_numbers, moment_us))
        if refused:
            yield from self._undo(charged, names, costs)
            return (yield from self._uncharged_readings(shards, names, readings, mode, now_us))
        return [readings[number] for number in range(len(names))]

    def readings_after_refusal(
        self, names: list[bytes], costs: list[int], readings: dict[int, Reading], now_us: int | None
    ) -> Generator[ScriptCall, Any, list[Reading]]:
        """The readings of all limits after a hold was refused; `readings` has those of the shards that were called."""
        shards = self._shards(names)
        for shard in shards:
            if not all(number in readings for number in shard):
                reply = yield from self._execute_shard(shard, names, costs, PEEK, now_us, None)
                readings |= dict(zip(shard, readings_of(reply, len(shard)), strict=True))
        return (yield from self._uncharged_readings(shards, names, readings, HIT, now_us))

    def _uncharged_readings(
        self, shards: list[list[int]], names: list[bytes], readings: dict[int, Reading], mode: int, now_us: int | None
    ) -> Generator[ScriptCall, Any, list[Reading]]:
        """The readings of all limits where nothing is charged; whether each admits is taken from `readings`."""
        for shard in shards:
            # With a commit, a state of a changed limit is adopted, as by a refusal in one call.
            reply = yield from self._execute_shard(shard, names, [0] * len(names), mode, now_us, None)
            for number, reading in zip(shard, readings_of(reply, len(shard)), strict=True):
                readings[number] = reading._replace(
                    allowed=readings[number].allowed, retry_after_us=readings[number].retry_after_us
                )
        return [readings[number] for number in range(len(names))]

    def _execute_shard(
        self,
        shard: list[int],
        names: list[bytes],
        costs: list[int],
        mode: int,
        now_us: int | None,
        max_delay_us: int | None,
    ) -> ScriptSteps:
        """Call the script of one shard among several; the generator returns the reply."""
        call = partial(self._call, shard, names, costs, mode, now_us, max_delay_us, together=True)
        reply = yield call()
        return (yield from self.server_clock.retried(reply, call)) if self.have_borders else reply

    def _undo(self, charged: list[tuple[list[int], int]], names: list[bytes], costs: list[int]) -> ScriptSteps:
        """Undo the charges of this decision, whose moments are known."""
        for shard, moment_us in charged:
            yield from self._give_back(shard, names, costs, (moment_us, 0, SERVER_TIME))

    def _give_back(
        self, shard: list[int], names: list[bytes], costs: list[int], header: tuple[float, float, float]
    ) -> ScriptSteps:
        reply = yield self._give_back_call(shard, names, costs, header)
        if reply != 1:
            raise unexpected_reply(reply, "that it was given back")

    def _give_back_call(
        self, shard: list[int], names: list[bytes], costs: list[int], header: tuple[float, float, float]
    ) -> ScriptCall:
        """The call that gives back; `header` is (moment of the charge, or its greatest age, now)."""
        arguments = [pack("<3d", *header), bytes([self.members[number].kind for number in shard])]
        for number in shard:
            member = self.members[number]
            arguments += [member.numbers, member.field.encode(), b"%d" % costs[number]]
        return ScriptCall(give_back(), [names[number] for number in shard], arguments)

    def _call(
        self,
        shard: list[int],
        names: list[bytes],
        costs: list[int],
        mode: int,
        now_us: int | None,
        max_delay_us: int | None,
        *,
        together: bool = False,
    ) -> ScriptCall:
        usual = mode == HIT and now_us is None and max_delay_us is None
        header = (mode, NO_DELAY if max_delay_us is None else max_delay_us, SERVER_TIME if now_us is None else now_us)
        if len(shard) == 1 and not together:
            member = self.members[shard[0]]
            cost = costs[shard[0]]
            options = [] if usual and cost == 1 else [pack("<4d", *header, cost)]
            numbers = self._numbers([member], now_us) if self.have_borders else [member.numbers]
            return ScriptCall(member.one, [names[shard[0]]], [*numbers, *options])
        shard_costs = [costs[number] for number in shard]
        members = [self.members[number] for number in shard]
        keys = [names[number] for number in shard]
        numbers = self._numbers(members, now_us) if self.have_borders else [member.numbers for member in members]
        usual = usual and shard_costs.count(1) == len(shard_costs)
        together = len(set(keys)) == 1
        if self._have_script(shard, together=together):
            if not usual or any(member.shadow for member in members):
                shadows = [pack("<dB", cost, member.shadow) for cost, member in zip(shard_costs, members, strict=True)]
                numbers.append(pack("<3d", *header) + b"".join(shadows))
            return ScriptCall(
                self._script_of_few(tuple(shard), together=together), keys[:1] if together else keys, numbers
            )
        kinds = bytes([member.kind for member in members])
        if not usual:
            kinds += pack(f"<{3 + len(shard_costs)}d", *header, *shard_costs)
        arguments = [
            argument
            for member, limit_numbers in zip(members, numbers, strict=True)
            for argument in (limit_numbers, member.field.encode())
        ]
        return ScriptCall(several_limits(), keys, [kinds, *arguments])

    def _have_script(self, shard: Sequence[int], *, together: bool) -> bool:
        """Whether there is a script for exactly these limits, of one key or of several."""
        return len(shard) <= (MOST_IN_A_HASH if together else MOST_APART) and self._locals(shard) <= MOST_LOCALS

    def _numbers(self, members: Sequence[Member], now_us: int | None) -> list[bytes]:
        """The numbers of limits, followed by the borders where a limit is a calendar window."""
        moment_us = self.moment_us(SERVER_TIME if now_us is None else now_us)
        return [
            member.numbers if member.borders is None else member.numbers + member.borders.around(moment_us)
            for member in members
        ]

    def _locals(self, shard: Sequence[int]) -> int:
        """How many local variables a script for these limits has; Lua allows 200."""
        return sum(self._locals_of(number) for number in shard)

    def _locals_of(self, number: int) -> int:
        if is_log(self.definitions[number]) or self.members[number].borders:
            return 40
        return 28 if is_in_flight(self.definitions[number].limit.algorithm) else 20

    def _script_of_few(self, shard: tuple[int, ...], *, together: bool) -> Script:
        """The script of these limits, which is cached."""
        script = self._scripts.get((shard, together))
        if script is None:
            limits = [self.members[number] for number in shard]
            script = few_limits(
                tuple((limit.definition.limit.algorithm, limit.field) for limit in limits), together=together
            )
            self._scripts[shard, together] = script
        return script

    def _shards(self, names: list[bytes]) -> list[list[int]]:
        """The limits that can be decided in one call each: all together, or in a Cluster those of each slot."""
        if self.slot_of is None or len(names) == 1:
            return [self._order]
        by_slot: dict[int, list[int]] = {}
        for number in self._order:
            by_slot.setdefault(self.slot_of(names[number]), []).append(number)
        return list(by_slot.values())

    def _readings(self, reply: Any, costs: list[int]) -> list[Reading]:
        """Parse the reply of one call for all limits; for buckets it usually has the states that were written."""
        if type(reply) is not bytes:
            reply = bytes_of(reply)
        if len(reply) == self._brief:
            readings: list[Reading] = []
            for limit in self._compiled:
                readings.append(read_charged(limit, reply, BRIEF * len(readings)))  # a comprehension would cost a frame
            return readings
        if len(reply) == UNITS:
            return [read_refused(self._compiled[0], reply, costs[0])]
        return readings_of(reply, len(self._order))

    def decision_of(self, readings: list[Reading], costs: list[int]) -> Decision:
        if len(readings) == 1:
            allowed = readings[0].allowed or self.definitions[0].shadow
            binding = None if self.definitions[0].shadow else 0
        else:
            pairs = zip(self.definitions, readings, strict=True)
            allowed = all(reading.allowed or definition.shadow for definition, reading in pairs)
            binding = binding_of(self.definitions, readings, costs, allowed=allowed)
        return Decision(self.definitions, readings, allowed=allowed, binding=binding)


def read_command(definition: NamedLimit, name: bytes) -> Command:
    """The command that reads a limit's state: one field, or all fields for a sliding window, which may need several."""
    return ("HGETALL", name) if is_log(definition) else ("HGET", name, field_name(definition))

"""What is asked of a Redis or Valkey, and what its answers mean; without any I/O, for both colours.

A decision is one call of one script. Where a Cluster keeps the keys of a decision on several servers it
is several: each is charged in turn, and a refusal gives back what was charged before it, so that never
more passes than every limit admits; a request in between may be refused too early.
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
from headgate.stores.redis.borders import Borders, ServersClock
from headgate.stores.redis.codec import (
    UNITS,
    KeyName,
    field_name,
    is_log,
    read_charged,
    read_refused,
    read_state,
)
from headgate.stores.redis.hold_names import head_of_records
from headgate.stores.redis.replies import no_answer, read_time
from headgate.stores.redis.script_replies import last_end_of, numbers_of, readings_of, states_at, text_of
from headgate.stores.redis.scripts import (
    BRIEF,
    HIT,
    PEEK,
    TELL,
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
_NOT_KNOWN = -1.0

SERVERS_TIME = -1.0
"""The moment that stands for the server's own time."""

NO_DELAY = -1.0
"""The longest delay where none is set."""

MOST_LOCALS = 130
MOST_IN_A_HASH, MOST_APART = 5, 3
"""Limits that have a script of their own for what they are; more are decided in a loop."""

Command = tuple[Any, ...]
"""The words of a command."""

Slot = Callable[[bytes], int]
"""The hash slot of a Redis key, where a Cluster has many; else nothing bears on it."""


class ScriptCall(NamedTuple):
    """One call of a script."""

    script: Script
    keys: list[bytes]
    arguments: list[bytes]

    @property
    def by_sha(self) -> Command:
        """The command that runs a script which the server has."""
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.arguments)

    @property
    def by_text(self) -> Command:
        """The command that runs the script whether the server has it or not."""
        return ("EVAL", self.script.text, len(self.keys), *self.keys, *self.arguments)


ScriptSteps = Generator[ScriptCall, Any, Any]
"""Calls to make one after another; each is answered by the reply."""


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
    """What is asked for limits that are decided together."""

    def __init__(self, definitions: Sequence[NamedLimit], prefix: str, slot_of: Slot | None) -> None:
        self.definitions = tuple(definitions)
        self.prefix = prefix
        self.groups = max((definition.group + 1 for definition in self.definitions), default=0)
        self.key_names = [(KeyName(prefix, definition), definition.group) for definition in self.definitions]
        self._is_one = len(self.definitions) == 1
        """Whether there is one limit, as mostly: then its key and cost are those of its group."""

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
        self.servers_clock = ServersClock()
        self.have_borders = any(member.borders is not None for member in self.members)
        self._scripts: dict[tuple[tuple[int, ...], bool], Script] = {}
        # Whatever order they are written in, the same algorithms are one script.
        self._order = sorted(range(len(self.members)), key=lambda number: self.members[number].kind & _ALGORITHM)
        self._in_order = self._order == sorted(self._order)
        self._compiled = [self.definitions[number].limit.compiled for number in self._order]
        self._brief = BRIEF * len(self._order)
        self.are_few = len(self.members) <= MOST_IN_A_HASH and self._locals(self._order) <= MOST_LOCALS
        """Whether they have scripts of their own, if they are of one key."""

    @property
    def native_calls(self) -> Any:
        """The native `RedisCalls` of these limits; None on the Python core, for calendars, places and a Cluster."""
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
        """The name of the script that decides limits of one key or of several, and what it takes."""
        if len(self.members) == 1:
            return self.members[0].one.sha, "one"
        if self._have_own_script(self._order, together=together):
            return self._few(tuple(self._order), together=together).sha, "few"
        return several_limits().sha, "several"

    def usual_script(self) -> Script | None:
        """The script of a usual request, whose identities differ; None where there is no limit."""
        keys = tuple(map(str, range(self.groups)))
        operation = Operation(keys, (1,) * self.groups, commit=self._in_flight is None)
        call = next(self.decide(operation), None)
        return None if call is None else call.script

    def names(self, keys: Sequence[Key]) -> list[bytes]:
        """The Redis key of each limit. Raises ArgumentError for what is no key."""
        if len(keys) != self.groups:
            raise ValueError(f"these limits take {self.groups} keys, not {len(keys)}")
        texts = list(map(encode_key, keys))
        if self._is_one:
            return [self.key_names[0][0].of(texts[-1])]
        return [name.of(texts[group]) for name, group in self.key_names]

    def costs(self, costs: Sequence[int]) -> list[int]:
        """The cost of each limit. Raises ArgumentError for what is no cost."""
        if len(costs) != self.groups:
            raise ValueError(f"these limits take {self.groups} costs, not {len(costs)}")
        checked = list(map(check_cost, costs))
        return checked[-1:] if self._is_one else [checked[definition.group] for definition in self.definitions]

    def moment_us(self, now_us: float) -> int:
        """The moment that a script is given; where it is given none, that of the server as far as it is known."""
        return int(now_us) if now_us >= 0 else self.servers_clock.now_us()

    def check_hit(self) -> None:
        """Raise ArgumentError where a hit would take a place that nothing frees."""
        if self._in_flight is not None:
            raise never_ends(self._in_flight)

    def decide(self, operation: Operation, clock: Clock | None = None) -> ScriptSteps:
        """Decide an operation, by `clock` in place of the server's; the generator's result is the decision."""
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
        places = [self._order] if self.slot_of is None else self._places(names)
        if len(places) == 1:
            reply = yield self._call(places[0], names, costs, mode, now_us, max_delay_us)
            if self.have_borders:
                again = partial(self._call, places[0], names, costs, mode, now_us, max_delay_us)
                reply = yield from self.servers_clock.inside(reply, again)
            found = self._readings(reply, costs)
            readings = (
                found if self._in_order else [reading for _, reading in sorted(zip(places[0], found, strict=True))]
            )
        else:
            readings = yield from self._decide_apart(places, names, costs, mode, now_us, max_delay_us)
        return self.decision_of(readings, costs)

    def give_back(self, names: list[bytes], costs: list[int], ago_us: int, now_us: int | None) -> ScriptSteps:
        """Give back what is left of a charge that was made up to `ago_us` ago."""
        head = (_NOT_KNOWN, ago_us, SERVERS_TIME if now_us is None else now_us)
        for place in self._places(names) if names else ():
            charged = [number for number in place if costs[number]]
            if charged:
                yield from self._give_back(charged, names, costs, head)

    def read(
        self, keys: tuple[Key, ...], now_us: Callable[[int], int]
    ) -> Generator[list[tuple[bytes | None, Command]], list[Any], StatesAt]:
        """Read states; what it yields is to be asked at once. `now_us` makes the moment of them of the server's."""
        names = self.names(keys)
        wanted = [look(definition, name) for definition, name in zip(self.definitions, names, strict=True)]
        *found, moment = yield [*zip(names, wanted, strict=True), (names[0] if names else None, ("TIME",))]
        return states_at(self.definitions, [value or None for value in found], now_us(read_time(moment)))

    def forget(
        self, names: list[bytes], now_us: int | None
    ) -> Generator[ScriptCall, Any, tuple[bool, dict[bytes, None]]]:
        """Forget; the generator's result is whether there was more than nothing, and the letters of the ids of holds
        whose places under other names are to be freed."""
        live, apart = False, dict[bytes, None]()
        for place in self._places(names) if names else ():
            kinds = [self.definitions[number].limit.algorithm for number in place]
            fields = [self.members[number].field.encode() for number in place]
            heads = [head_of_records(self.prefix, names[number]) for number in place]
            reply = yield ScriptCall(forget(), [names[number] for number in place], [*fields, *heads])
            if not isinstance(reply, list) or len(reply) != len(place) + 2 or type(reply[-2]) is not int:
                raise no_answer(reply, "what was forgotten")
            apart |= dict.fromkeys(reply[-1])
            moment_us = reply[-2] if now_us is None else now_us
            for kind, value in zip(kinds, reply[:-2], strict=True):
                if value is not None:
                    if not isinstance(value, bytes):
                        raise no_answer(value, "a state")
                    if is_in_flight(kind):
                        live |= last_end_of(value) > moment_us
                        continue
                    try:
                        former, state = read_state(kind, value)
                    except StoreKeyError:
                        live = True  # there was something
                    else:
                        live |= measure_us(former, state, moment_us)[1] > 0
        return live, apart

    def _decide_apart(
        self,
        places: list[list[int]],
        names: list[bytes],
        costs: list[int],
        mode: int,
        now_us: int | None,
        max_delay_us: int | None,
    ) -> Generator[ScriptCall, Any, list[Reading]]:
        """Charge place by place; at a refusal give back what was charged, and only look at the rest."""
        found: dict[int, Reading] = {}
        charged: list[tuple[list[int], int]] = []
        refused = False
        for place in places:
            own = PEEK if refused or mode != HIT else TELL
            try:
                reply = yield from self._ask(place, names, costs, own, now_us, max_delay_us)
            except StoreError:
                yield from self._take_back(charged, names, costs)
                raise
            moment_us = 0
            if own == TELL:
                reply = text_of(reply)
                [moment_us], reply = numbers_of(reply[-8:], 1), reply[:-8]
            found |= dict(zip(place, readings_of(reply, len(place)), strict=True))
            if not all(found[number].allowed or self.definitions[number].shadow for number in place):
                refused = True
            elif own == TELL:
                taken = [number for number in place if found[number].allowed]
                if taken:  # of shadow limits alone it may be none
                    charged.append((taken, moment_us))
        if refused:
            yield from self._take_back(charged, names, costs)
            return (yield from self._untouched(places, names, found, mode, now_us))
        return [found[number] for number in range(len(names))]

    def refusal(
        self, names: list[bytes], costs: list[int], found: dict[int, Reading], now_us: int | None
    ) -> Generator[ScriptCall, Any, list[Reading]]:
        """What all limits have after a hold was refused: `found` of those asked, while the others are looked at."""
        places = self._places(names)
        for place in places:
            if not all(number in found for number in place):
                reply = yield from self._ask(place, names, costs, PEEK, now_us, None)
                found |= dict(zip(place, readings_of(reply, len(place)), strict=True))
        return (yield from self._untouched(places, names, found, HIT, now_us))

    def _untouched(
        self, places: list[list[int]], names: list[bytes], found: dict[int, Reading], mode: int, now_us: int | None
    ) -> Generator[ScriptCall, Any, list[Reading]]:
        """What all limits have where nothing is charged, and whether each admits, as it was `found`."""
        for place in places:
            # With a commit, a state that other numbers left is adopted, as by a refusal in one call.
            reply = yield from self._ask(place, names, [0] * len(names), mode, now_us, None)
            for number, reading in zip(place, readings_of(reply, len(place)), strict=True):
                found[number] = reading._replace(
                    allowed=found[number].allowed, retry_after_us=found[number].retry_after_us
                )
        return [found[number] for number in range(len(names))]

    def _ask(
        self,
        place: list[int],
        names: list[bytes],
        costs: list[int],
        mode: int,
        now_us: int | None,
        max_delay_us: int | None,
    ) -> ScriptSteps:
        """The reply of one place of several."""
        call = partial(self._call, place, names, costs, mode, now_us, max_delay_us, together=True)
        reply = yield call()
        return (yield from self.servers_clock.inside(reply, call)) if self.have_borders else reply

    def _take_back(self, charged: list[tuple[list[int], int]], names: list[bytes], costs: list[int]) -> ScriptSteps:
        """Undo what was charged in this decision, at moments that are known."""
        for place, moment_us in charged:
            yield from self._give_back(place, names, costs, (moment_us, 0, SERVERS_TIME))

    def _give_back(
        self, place: list[int], names: list[bytes], costs: list[int], head: tuple[float, float, float]
    ) -> ScriptSteps:
        reply = yield self._back(place, names, costs, head)
        if reply != 1:
            raise no_answer(reply, "that it was given back")

    def _back(
        self, place: list[int], names: list[bytes], costs: list[int], head: tuple[float, float, float]
    ) -> ScriptCall:
        """The call that gives back; `head` is (when it was charged, or how long ago at the most, now)."""
        arguments = [pack("<3d", *head), bytes([self.members[number].kind for number in place])]
        for number in place:
            member = self.members[number]
            arguments += [member.numbers, member.field.encode(), b"%d" % costs[number]]
        return ScriptCall(give_back(), [names[number] for number in place], arguments)

    def _call(
        self,
        place: list[int],
        names: list[bytes],
        costs: list[int],
        mode: int,
        now_us: int | None,
        max_delay_us: int | None,
        *,
        together: bool = False,
    ) -> ScriptCall:
        usual = mode == HIT and now_us is None and max_delay_us is None
        head = (mode, NO_DELAY if max_delay_us is None else max_delay_us, SERVERS_TIME if now_us is None else now_us)
        if len(place) == 1 and not together:
            member = self.members[place[0]]
            cost = costs[place[0]]
            options = [] if usual and cost == 1 else [pack("<4d", *head, cost)]
            numbers = self._numbers([member], now_us) if self.have_borders else [member.numbers]
            return ScriptCall(member.one, [names[place[0]]], [*numbers, *options])
        own = [costs[number] for number in place]
        members = [self.members[number] for number in place]
        keys = [names[number] for number in place]
        numbers = self._numbers(members, now_us) if self.have_borders else [member.numbers for member in members]
        usual = usual and own.count(1) == len(own)
        together = len(set(keys)) == 1
        if self._have_own_script(place, together=together):
            if not usual or any(member.shadow for member in members):
                shadows = [pack("<dB", cost, member.shadow) for cost, member in zip(own, members, strict=True)]
                numbers.append(pack("<3d", *head) + b"".join(shadows))
            return ScriptCall(self._few(tuple(place), together=together), keys[:1] if together else keys, numbers)
        kinds = bytes([member.kind for member in members])
        if not usual:
            kinds += pack(f"<{3 + len(own)}d", *head, *own)
        arguments = [
            argument
            for member, own_numbers in zip(members, numbers, strict=True)
            for argument in (own_numbers, member.field.encode())
        ]
        return ScriptCall(several_limits(), keys, [kinds, *arguments])

    def _have_own_script(self, place: Sequence[int], *, together: bool) -> bool:
        """Whether there is a script for just these limits, of one key or of several."""
        return len(place) <= (MOST_IN_A_HASH if together else MOST_APART) and self._locals(place) <= MOST_LOCALS

    def _numbers(self, members: Sequence[Member], now_us: int | None) -> list[bytes]:
        """The numbers of limits with borders among them, which follow those of a calendar window."""
        moment_us = self.moment_us(SERVERS_TIME if now_us is None else now_us)
        return [
            member.numbers if member.borders is None else member.numbers + member.borders.around(moment_us)
            for member in members
        ]

    def _locals(self, place: Sequence[int]) -> int:
        """How many local variables a script for these limits has, of the 200 that Lua allows."""
        return sum(self._locals_of(number) for number in place)

    def _locals_of(self, number: int) -> int:
        if is_log(self.definitions[number]) or self.members[number].borders:
            return 40
        return 28 if is_in_flight(self.definitions[number].limit.algorithm) else 20

    def _few(self, place: tuple[int, ...], *, together: bool) -> Script:
        """The script of these limits, found once."""
        script = self._scripts.get((place, together))
        if script is None:
            limits = [self.members[number] for number in place]
            script = few_limits(
                tuple((limit.definition.limit.algorithm, limit.field) for limit in limits), together=together
            )
            self._scripts[place, together] = script
        return script

    def _places(self, names: list[bytes]) -> list[list[int]]:
        """Which limits can be decided in one call: all, or in a Cluster those of one slot."""
        if self.slot_of is None or len(names) == 1:
            return [self._order]
        by_slot: dict[int, list[int]] = {}
        for number in self._order:
            by_slot.setdefault(self.slot_of(names[number]), []).append(number)
        return list(by_slot.values())

    def _readings(self, reply: Any, costs: list[int]) -> list[Reading]:
        """What one call for all limits replied: of buckets mostly the states that it wrote."""
        if type(reply) is not bytes:
            reply = text_of(reply)
        if len(reply) == self._brief:
            readings: list[Reading] = []
            for limit in self._compiled:
                readings.append(read_charged(limit, reply, BRIEF * len(readings)))  # a frame less
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


def look(definition: NamedLimit, name: bytes) -> Command:
    """The command that reads a limit's state: what a sliding window needs, which may be in several fields, or one."""
    return ("HGETALL", name) if is_log(definition) else ("HGET", name, field_name(definition))

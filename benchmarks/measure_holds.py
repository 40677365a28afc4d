"""The costs of holds on a Redis: the numbers of `headgate capacity` for limits in flight; see `measure_capacity`."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import hiredis

from headgate.decision import name_limits
from headgate.holding import Hold
from headgate.limit_text import parse_limits
from headgate.operation import Operation
from headgate.stores.redis.commands import ScriptCall
from headgate.stores.redis.hold_commands import HoldCommands

if TYPE_CHECKING:
    from benchmarks.measure_capacity import Measuring

PLACES, RATE = "1_000 concurrent", "1_000/day fixed"
HOLDS = 100_000
AT_ONCE = 500
_AS_HELD = -1.0
_SERVERS_TIME = -1.0


class Held(NamedTuple):
    """The costs of a hold of one key: bytes while it is open, bytes once it is settled, seconds of both steps."""

    open_bytes: float
    settled_bytes: float
    seconds: float


class HoldCosts(NamedTuple):
    """The numbers of `planning.redis_costs`."""

    concurrent: str
    hold_bytes: int
    held_bytes: int
    held_factor: int


def hold_costs(measuring: Measuring, rate_seconds: float) -> HoldCosts:
    """Measure the costs; `rate_seconds` is the time of one more fixed window in a hit."""
    one, three = _held(measuring, PLACES), _held(measuring, "; ".join([PLACES] * 3))
    rate, rates = _held(measuring, RATE), _held(measuring, "; ".join([RATE] * 3))
    both = _held(measuring, f"{PLACES}; {RATE}")
    record = _record_bytes(measuring)
    costs = (round(one.open_bytes - record), round(one.open_bytes - one.settled_bytes))
    return HoldCosts(
        f"{costs[0]}, {costs[1]}, {_rate(one):_}, {_rate(three):_}",
        record,
        round(max(three.settled_bytes - one.settled_bytes, rates.settled_bytes - rate.settled_bytes) / 2),
        max(1, round((both.seconds - one.seconds) / rate_seconds)),
    )


def _rate(held: Held) -> int:
    return int(1 / held.seconds) // 100 * 100


def _held(measuring: Measuring, text: str) -> Held:
    measuring.fresh()
    commands, reserve_calls = _reserve_calls(measuring, text)
    calls = commands.calls
    before, before_s = measuring.used_memory(), measuring.used_cpu_s()
    _send(measuring, reserve_calls)
    opened = measuring.used_memory()
    settle = [
        calls.settle_few(call.keys[0], _AS_HELD, _SERVERS_TIME)
        if calls.are_few
        else calls.settle(call.keys[0], [_AS_HELD], _SERVERS_TIME)
        for call in reserve_calls
    ]
    _send(measuring, settle)
    used_s = measuring.used_cpu_s() - before_s
    return Held((opened - before) / HOLDS, (measuring.used_memory() - before) / HOLDS, used_s / HOLDS)


def _record_bytes(measuring: Measuring) -> int:
    """Bytes of one more hold of each key, of a window that has a state already."""
    measuring.fresh()
    _send(measuring, _reserve_calls(measuring, RATE)[1])
    before = measuring.used_memory()
    _send(measuring, _reserve_calls(measuring, RATE)[1])
    return round((measuring.used_memory() - before) / HOLDS)


def _reserve_calls(measuring: Measuring, text: str) -> tuple[HoldCommands, list[ScriptCall]]:
    """The commands, and a call for a hold of each key."""
    from benchmarks.measure_capacity import keys_of  # which imports this module

    limits = name_limits(parse_limits(text), scope="shop/1/places", name="places")
    commands = HoldCommands(measuring.store.commands(limits))
    keys = keys_of(HOLDS, limits)
    return commands, [next(commands.reserve(Operation((key,), (1,)), Hold(), None)) for key in keys]


def _send(measuring: Measuring, calls: Sequence[ScriptCall]) -> None:
    from benchmarks.measure_capacity import encoded

    for text in {call.script.text for call in calls}:
        measuring.client.script_load(text)
    encoded_calls, replies = [encoded(call) for call in calls], hiredis.Reader()
    with socket.create_connection(("127.0.0.1", measuring.port), timeout=20) as connection:
        for at in range(0, len(encoded_calls), AT_ONCE):
            batch = encoded_calls[at : at + AT_ONCE]
            connection.sendall(b"".join(batch))
            due = len(batch)
            while due:
                replies.feed(connection.recv(1 << 20))
                while (reply := replies.gets()) is not False:
                    if isinstance(reply, Exception):
                        raise reply
                    due -= 1

"""Holds that the reset of a key made unknown: their places in flight under other keys are freed."""

from __future__ import annotations

from headgate.holding import ID_PREFIX, read_id
from headgate.stores.redis.commands import SERVER_TIME, ScriptSteps
from headgate.stores.redis.hold_calls import HoldCalls
from headgate.stores.redis.hold_replies import read_settled


def drop_hold(calls: HoldCalls, letters: bytes, now_us: int | None) -> ScriptSteps:
    """Free all places of a hold, in each of its slots, and forget it; `letters` are those of its id.

    The slot of the id comes first, since only its record names the others.
    """
    text = ID_PREFIX + letters.decode("ascii", "replace")
    moment_us = SERVER_TIME if now_us is None else now_us
    _, home = read_id(text)
    reply = yield calls.drop(calls.record(text, home), moment_us)
    for other in read_settled(reply).other_slots:
        yield calls.drop(calls.record(text, other), moment_us)

"""Refusals that a process remembers, so that a client that hammers costs the store one call a second.

A refusal is told again only while no number in it can be another one: the limits that refused have nothing left,
so no process can charge them; no limit has regained a unit yet; and this process has charged none of them, given
nothing back and reset nothing meanwhile. Times are told as they are by then. What others do to limits that would
have admitted, and what others give back, is seen a second later at the most.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from headgate.decision import Decision, NamedLimit, Reading
from headgate.forks import register_for_forks
from headgate.keys import Key, encode_key
from headgate.operation import Operation

REMEMBERED_US = 1_000_000
MOST_REMEMBERED = 10_000

_State = tuple[str, str]
"""Where limits that are charged together have their states: what their scopes begin with, and the key."""

_Name = tuple[int, tuple[str, ...], tuple[int, ...]]


class _Refusal(NamedTuple):
    decision: Decision
    since_us: int
    until_us: int
    states: tuple[_State, ...]


class Refusals:
    """What all limits of a store remember. Safe under threads."""

    def __init__(self) -> None:
        self.known: dict[_Name, _Refusal] = {}
        self.of_state: dict[_State, set[_Name]] = {}
        self.undone = 0
        """How often something was given back or reset."""

        self.limits = 0
        self._held: dict[str, Callable[[], tuple[_State, ...]]] = {}
        """Where holds that are not settled yet were charged, by their whole ids: those made last in this process."""

        self._lock = threading.Lock()
        register_for_forks(self)

    def after_fork(self) -> None:
        """Forget all in a child process: a thread of the parent may have been about to change it."""
        self._lock = threading.Lock()
        self._held.clear()
        self.clear()

    def held(self, whole_id: str, states: Callable[[], tuple[_State, ...]]) -> None:
        """A hold was made; the states are asked for when it is settled, since an id tells no key."""
        with self._lock:
            if len(self._held) >= MOST_REMEMBERED:
                del self._held[next(iter(self._held))]
            self._held[whole_id] = states

    def settled(self, whole_id: str) -> None:
        """Forget what a settlement may have ended; all refusals where it is not known what it was charged to."""
        with self._lock:
            states = self._held.pop(whole_id, None)
        if not self.known:
            self.undone += 1
        elif states is None:
            self.clear()
        else:
            self.drop(states(), undone=True)

    def add(self, name: _Name, refusal: _Refusal, undone: int) -> None:
        """Remember, unless something was given back since `undone` was read: the refusal may be older."""
        with self._lock:
            if self.undone != undone:
                return
            if len(self.known) >= MOST_REMEMBERED:
                self.known.clear()
                self.of_state.clear()
            self.known[name] = refusal
            for state in refusal.states:
                self.of_state.setdefault(state, set()).add(name)

    def drop(self, states: Sequence[_State], *, undone: bool = False) -> None:
        """Forget what tells of these states, which have changed."""
        with self._lock:
            self.undone += undone
            for state in states:
                for name in tuple(self.of_state.get(state, ())):
                    self._remove(name)

    def end(self, name: _Name) -> None:
        """Forget one."""
        with self._lock:
            self._remove(name)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self.undone += 1
            self.known.clear()
            self.of_state.clear()

    def _remove(self, name: _Name) -> None:
        refusal = self.known.pop(name, None)
        for state in () if refusal is None else refusal.states:
            names = self.of_state.get(state)
            if names is not None:
                names.discard(name)
                if not names:
                    del self.of_state[state]


class RefusalMemory:
    """The refusals of some limits that are decided together, kept with those of all others of their store."""

    def __init__(self, refusals: Refusals, limits: Sequence[NamedLimit], now_us: Callable[[], int]) -> None:
        refusals.limits += 1
        self.number = refusals.limits
        self._refusals = refusals
        self._now_us = now_us
        self.is_used = not any(limit.shadow for limit in limits)
        self.places = tuple(sorted({(limit.scope.rpartition("/")[0], limit.group) for limit in limits}))
        """Where the limits have their states, each with the group whose key it is."""

    def recall(self, operation: Operation) -> Decision | None:
        """The refusal that this request is sure to get, with its times as they are now."""
        name = self._name(operation)
        known = self._refusals.known.get(name)
        if known is None:
            return None
        now_us = self._now_us()
        if not known.since_us <= now_us < known.until_us:
            self._refusals.end(name)
            return None
        return _later(known.decision, now_us - known.since_us)

    def remember(self, operation: Operation, decision: Decision, undone: int) -> None:
        """Take note of a refusal, if no other charge can change it; `undone` was read before the store was asked."""
        until_us = REMEMBERED_US
        for reading in decision.limits:
            if not reading.allowed:
                if reading.remaining:
                    return
                if reading.retry_after_us is not None:
                    until_us = min(until_us, reading.retry_after_us)
            if reading.next_after_us:
                until_us = min(until_us, reading.next_after_us)
        now_us = self._now_us()
        refusal = _Refusal(decision, now_us, now_us + until_us, self._states(operation.keys))
        self._refusals.add(self._name(operation), refusal, undone)

    def charged(self, keys: tuple[Key, ...]) -> None:
        """Forget what a charge has changed."""
        if self._refusals.known:
            self._refusals.drop(self._states(keys))

    def given_back(self, keys: tuple[Key, ...]) -> None:
        """Forget what may have ended: something was given back, or reset."""
        self._refusals.drop(self._states(keys), undone=True)

    def held(self, whole_id: str, keys: tuple[Key, ...]) -> None:
        """A hold was made: forget what its charge has changed, and keep in mind what its settlement will."""
        self.charged(keys)
        self._refusals.held(whole_id, partial(self._states, keys))

    def settled(self, whole_id: str) -> None:
        """Forget what a settlement may have ended."""
        self._refusals.settled(whole_id)

    def extended(self) -> None:
        """A hold took more: forget all, since its id tells no key."""
        if self._refusals.known:
            self._refusals.clear()

    def _name(self, operation: Operation) -> _Name:
        return self.number, tuple(encode_key(key) for key in operation.keys), operation.costs

    def _states(self, keys: tuple[Key, ...]) -> tuple[_State, ...]:
        return tuple((place, encode_key(keys[group])) for place, group in self.places)


def _later(decision: Decision, passed_us: int) -> Decision:
    """A refusal as it is told some time later, before any number of it changes."""
    readings = [
        Reading(
            reading.allowed,
            reading.remaining,
            max(0, reading.reset_after_us - passed_us),
            None if reading.retry_after_us is None else max(0, reading.retry_after_us - passed_us),
            max(0, reading.next_after_us - passed_us),
            0,
        )
        for reading in decision.limits
    ]
    definitions = tuple(reading.definition for reading in decision.limits)
    binding = next((number for number, reading in enumerate(decision.limits) if reading == decision.binding), None)
    return Decision(definitions, readings, allowed=False, binding=binding, degraded=decision.degraded)

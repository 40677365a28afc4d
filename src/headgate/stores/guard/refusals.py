"""Refusals that a process remembers, so that a client that retries all the time costs the store one call a second.

A refusal is repeated only while none of its numbers can have changed: the limits that refused have nothing left,
so no process can charge them; no limit has regained a unit yet; and this process has charged none of them, given
nothing back and reset nothing meanwhile. Its times are adjusted to the moment of the repetition. What other processes
charge to limits that would have admitted, and what they give back, is seen a second later at most.
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
from headgate.units import LARGEST

REMEMBERED_US = 1_000_000
MOST_REMEMBERED = 10_000

_State = tuple[str, str]
"""The states of limits that are charged together: the beginning of their scopes, and the key."""

_Name = tuple[int, tuple[str, ...], tuple[int, ...]]


class _Refusal(NamedTuple):
    decision: Decision
    since_us: int
    until_us: int
    states: tuple[_State, ...]


class Refusals:
    """The remembered refusals of all limits of a store. Safe under threads."""

    def __init__(self) -> None:
        self.known: dict[_Name, _Refusal] = {}
        self.of_state: dict[_State, set[_Name]] = {}
        self.undone = 0
        """How many times something was given back or reset."""

        self.limits = 0
        self._held: dict[str, Callable[[], tuple[_State, ...]]] = {}
        """The states that holds were charged to, by whole id: the latest unsettled holds of this process."""

        self._lock = threading.Lock()
        register_for_forks(self)

    def after_fork(self) -> None:
        """Forget all in a child process: at the fork a thread of the parent may have been changing it."""
        self._lock = threading.Lock()
        self._held.clear()
        self.clear()

    def held(self, whole_id: str, states: Callable[[], tuple[_State, ...]]) -> None:
        """Record a new hold; `states` is called when it is settled, since its id does not contain the key."""
        with self._lock:
            if len(self._held) >= MOST_REMEMBERED:
                del self._held[next(iter(self._held))]
            self._held[whole_id] = states

    def settled(self, whole_id: str) -> None:
        """Forget the refusals that a settlement may have ended: all, where the states of the hold are unknown."""
        with self._lock:
            states = self._held.pop(whole_id, None)
        if not self.known:
            self.undone += 1
        elif states is None:
            self.clear()
        else:
            self.drop(states(), undone=True)

    def add(self, name: _Name, refusal: _Refusal, undone: int) -> None:
        """Remember a refusal, unless something was given back since `undone` was read: the refusal may be older."""
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
        """Forget the refusals by these states, which have changed."""
        with self._lock:
            self.undone += undone
            for state in states:
                for name in tuple(self.of_state.get(state, ())):
                    self._remove(name)

    def end(self, name: _Name) -> None:
        """Forget one refusal."""
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
    """The refusals of limits that are decided together, kept with those of all other limits of their store."""

    def __init__(self, refusals: Refusals, limits: Sequence[NamedLimit], now_us: Callable[[], int]) -> None:
        refusals.limits += 1
        self.number = refusals.limits
        self._refusals = refusals
        self._now_us = now_us
        self.is_used = not any(limit.shadow for limit in limits)
        self.places = tuple(sorted({(limit.scope.rpartition("/")[0], limit.group) for limit in limits}))
        """The places of the limits' states, each with the group whose key it has."""

    def recall(self, operation: Operation) -> Decision | None:
        """The refusal that this request is certain to get, with its times as of now; None where there is none."""
        name = self._name(operation)
        refusal = self._refusals.known.get(name)
        if refusal is None:
            return None
        now_us = self._now_us()
        if not refusal.since_us <= now_us < refusal.until_us:
            self._refusals.end(name)
            return None
        return _later(refusal.decision, now_us - refusal.since_us)

    def remember(self, operation: Operation, decision: Decision, undone: int) -> None:
        """Remember a refusal, if no other charge can change it; `undone` was read before the call to the store."""
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
        refusal = _Refusal(decision, now_us, now_us + until_us, self._state_names(operation.keys))
        self._refusals.add(self._name(operation), refusal, undone)

    def charged(self, keys: tuple[Key, ...]) -> None:
        """Forget the refusals that a charge has changed."""
        if self._refusals.known:
            self._refusals.drop(self._state_names(keys))

    def given_back(self, keys: tuple[Key, ...]) -> None:
        """Forget the refusals that may have ended because something was given back or reset."""
        self._refusals.drop(self._state_names(keys), undone=True)

    def held(self, whole_id: str, keys: tuple[Key, ...]) -> None:
        """Forget the refusals that the charge of a new hold has changed; record which its settlement will change."""
        self.charged(keys)
        self._refusals.held(whole_id, partial(self._state_names, keys))

    def settled(self, whole_id: str) -> None:
        """Forget the refusals that a settlement may have ended."""
        self._refusals.settled(whole_id)

    def extended(self) -> None:
        """Forget all refusals, as a hold was charged more: its id does not contain the key."""
        if self._refusals.known:
            self._refusals.clear()

    def _name(self, operation: Operation) -> _Name:
        return self.number, tuple(encode_key(key) for key in operation.keys), operation.costs

    def _state_names(self, keys: tuple[Key, ...]) -> tuple[_State, ...]:
        return tuple((place, encode_key(keys[group])) for place, group in self.places)


def _later(decision: Decision, passed_us: int) -> Decision:
    """A refusal as it reads some time later, before any of its numbers changes."""
    readings = [
        Reading(
            reading.allowed,
            reading.remaining,
            _left_us(reading.reset_after_us, passed_us),
            None if reading.retry_after_us is None else _left_us(reading.retry_after_us, passed_us),
            _left_us(reading.next_after_us, passed_us),
            0,
        )
        for reading in decision.limits
    ]
    definitions = tuple(reading.definition for reading in decision.limits)
    binding = next((number for number, reading in enumerate(decision.limits) if reading == decision.binding), None)
    return Decision(definitions, readings, allowed=False, binding=binding, degraded=decision.degraded)


def _left_us(wait_us: int, passed_us: int) -> int:
    """What is left of a wait; the longest one, 142 years, stands for all that are longer, and stays."""
    return wait_us if wait_us == LARGEST else max(0, wait_us - passed_us)

"""What was learned by all processes that use a store: each adds what it saw, and reads what all have seen.

A thread does so every few seconds, never a request. What is sent has a number, so that what was sent twice because an
answer was lost counts once. Counts that are too many are halved where they are kept, in one step with adding to them.
"""

from __future__ import annotations

import logging
import os
import threading
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple, Protocol
from weakref import ref

from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND
from headgate.errors import HeadgateError
from headgate.forks import register_for_forks
from headgate.llm.learned.here import COVERAGE, INPUT, LONGEST_KEY, MOST_UNREAD, LearnedHere, Name, hash_of
from headgate.llm.learned.samples import MOST, Samples, halved

log = logging.getLogger("headgate")

EVERY_S = 5.0
_SOONEST_S = 1.0
"""What nothing is known of is asked for at once, but not more often than that."""

_MOST_WANTED, _MOST_AT_ONCE = 200, 500
"""Series that are read, and those that are read or added to, at a time."""

DOUBT_S = 1_800
"""What could not be told for so long is given up. A place remembers for longer which numbers it has seen."""

Addition = tuple[str, dict[int, int]]
"""The name of a series, in hexadecimal digits, and what is added to its counts."""


class Place(Protocol):
    """Where the samples of all processes are."""

    def merge(self, process: str, number: int, additions: list[Addition]) -> list[dict[int, int]]:
        """Add, if this process has not added what has this number; the counts of each series then.

        Raises StoreError; then all, some or none of it was added.
        """
        ...


class SharedSamples(Samples):
    """Samples of all processes: what a place told, and what was seen here since."""

    __slots__ = ("told", "told_weight")

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[int, int] = {}
        """What the place has, with what is on its way there."""

        self.told_weight = 0

    def fade(self) -> None:
        """The place halves its counts; only where it does not answer that is done here."""
        if self.weight > 2 * MOST + self.told_weight:
            self.replace(halved(self.counts))
            self.told = halved(self.told)
            self.told_weight = sum(self.told.values())

    def untold(self) -> dict[int, int]:
        """What was seen here, and is not told."""
        told = self.told
        return {bucket: more for bucket, count in self.counts.items() if (more := count - told.get(bucket, 0)) > 0}

    def adopt(self, counts: dict[int, int]) -> None:
        """Be what a place told after all that was on its way."""
        together = dict(counts)
        for bucket, more in self.untold().items():
            together[bucket] = together.get(bucket, 0) + more
        self.told, self.told_weight = counts, sum(counts.values())
        self.replace(together)

    def mark_told(self) -> None:
        """What was seen here is on its way."""
        self.told, self.told_weight = dict(self.counts), self.weight


class _Sent(NamedTuple):
    """What is on its way to a place."""

    number: int
    since_us: int
    names: list[Name]
    additions: list[Addition]


class SharedLearned(LearnedHere):
    """What was learned by all processes that use a place. `namespace` keeps policies apart that share one."""

    kind = SharedSamples

    def __init__(self, place: Place, *, namespace: str = "", every_s: float = EVERY_S) -> None:
        super().__init__()
        self._place = place
        self._namespace = namespace
        self._every_s = every_s
        self._read_from = 1  # the first call starts the sharing
        self._is_closed = False
        self._complained = False
        self._wanted: dict[Name, None] = {}
        """What was asked for since the last time."""

        self._process, self._number = os.urandom(8).hex(), 0
        self._sent: _Sent | None = None
        self._sharing = threading.Lock()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._is_running = False
        register_for_forks(self)

    def output(self, key: str, model: str, most: int) -> int | None:
        wanted = self._wanted
        if len(wanted) < _MOST_WANTED:
            size = (most.bit_length() + 1) >> 1
            if key:
                wanted[key if len(key) <= LONGEST_KEY else hash_of(key), model, size] = None
            wanted["", model, size] = None
        found = super().output(key, model, most)
        if found is None:
            self._wake.set()
            if not self._is_running:
                self.start()
        return found

    def input_permille(self, model: str) -> int:
        if len(self._wanted) < _MOST_WANTED:
            self._wanted["", model, INPUT] = None
        return super().input_permille(model)

    def _read_many(self) -> None:
        super()._read_many()
        if not self._is_running:
            self.start()

    def start(self) -> None:
        with self._lock.current:
            if self._is_running or self._is_closed:
                return
            self._is_running, self._read_from = True, MOST_UNREAD
            self._sharing = threading.Lock()  # gevent may have replaced it: a greenlet that asks lets others run
        wake = self._wake
        arguments = (ref(self, lambda _: wake.set()), wake, self._closing, self._every_s)
        try:
            threading.Thread(target=_share_on, args=arguments, name="headgate-learned", daemon=True).start()
        except RuntimeError:  # no more threads, or the interpreter ends: the next call tries again
            self._is_running = False

    def close(self) -> None:
        self._is_closed = True
        self._closing.set()
        self._wake.set()
        if self.share():
            self.share()  # the first may have been what was on its way already

    def share(self) -> bool:
        """Tell the place what is not told, and read what all processes saw; whether it answered."""
        with self._sharing:
            with self._lock.current:
                self._sent = self._sent or self._gather()
            sent = self._sent
            if sent is None:
                return True
            try:
                counts = self._place.merge(self._process, sent.number, sent.additions)
            except Exception as error:  # whatever it is, calls go on
                self._failed(error, sent)
                return False
            with self._lock.current:
                self._sent = None
                for name, found in zip(sent.names, counts, strict=True):
                    self._adopt(name, found)
            self._complained = False
            return True

    def _failed(self, error: Exception, sent: _Sent) -> None:
        if SYSTEM_CLOCK.now_us() - sent.since_us > DOUBT_S * US_PER_SECOND:
            self._sent = None
        if not self._complained:
            self._complained = True
            log.warning(
                "what calls of models used is learned in this process alone: %s",
                error, exc_info=not isinstance(error, HeadgateError),
            )  # fmt: skip

    def _gather(self) -> _Sent | None:
        """What is to be told and read now; the lock is held."""
        self._read()
        wanted, self._wanted = self._wanted, {}
        changed = (name for name, samples in self._all_series() if samples.weight != samples.told_weight)
        names = list(dict.fromkeys([*wanted, *islice(changed, _MOST_AT_ONCE - _MOST_WANTED)]))
        if not names:
            return None
        additions: list[Addition] = []
        for name in names:
            samples = self._series(name)
            additions.append((self._hashed(name), {} if samples is None else samples.untold()))
            if samples is not None:
                samples.mark_told()
        self._number += 1
        return _Sent(self._number, SYSTEM_CLOCK.now_us(), names, additions)

    def _adopt(self, name: Name, counts: dict[int, int]) -> None:
        samples = self._series(name)
        if samples is None and counts:
            samples = self._new_series(name)
        if samples is not None:
            samples.adopt(counts)

    def _all_series(self) -> list[tuple[Name, SharedSamples]]:
        """All series, those of models first, then of keys beginning with the least recently used."""
        found: list[tuple[Name, Samples]] = []
        for model, of_model in self._of_models.items():
            found += [(("", model, INPUT), of_model.input), (("", model, COVERAGE), of_model.coverage)]
            found += [(("", model, size), samples) for size, samples in of_model.by_size.items()]
        found += self._of_keys.items()
        return [(name, samples) for name, samples in found if isinstance(samples, SharedSamples)]

    def _series(self, name: Name) -> SharedSamples | None:
        key, model, size = name
        found: Samples | None = None
        if key:
            found = self._of_keys.get(name)
        elif (of_model := self._of_models.get(model)) is not None:
            found = of_model.get(size)
        assert found is None or isinstance(found, SharedSamples)
        return found

    def _new_series(self, name: Name) -> SharedSamples | None:
        key, model, size = name
        if key:
            self._new_of_key(name)
        else:
            of_model = self._of_models.get(model) or self._new_of_model(model)
            if size >= 0:
                of_model.new(size)
        return self._series(name)

    def _hashed(self, name: Name) -> str:
        key, model, size = name
        text = "\0".join((self._namespace, model, str(size), key))
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def after_fork(self) -> None:
        """In a child: what its parent saw is the parent's to tell."""
        self._process, self._sent = os.urandom(8).hex(), None
        self._lock.after_fork()
        self._sharing = threading.Lock()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._is_running, self._read_from = False, 1
        self._read()
        for _, samples in self._all_series():
            samples.mark_told()


def _share_on(learned_ref: ref[SharedLearned], wake: threading.Event, closing: threading.Event, every_s: float) -> None:
    """Share until it is closed, or nothing refers to it any more."""
    while not closing.is_set():
        wake.wait(every_s)
        wake.clear()
        learned = learned_ref()
        if learned is None or closing.is_set():
            return
        answered = learned.share()
        del learned  # while asleep, nothing keeps it
        closing.wait(min(_SOONEST_S, every_s) if answered else every_s)

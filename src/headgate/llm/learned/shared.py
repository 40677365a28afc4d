"""Estimates that are shared by all processes that use a store: each adds its samples, and reads those of all.

A thread does so every few seconds, never a request. Each batch has a number, so that one that was sent twice because a
reply was lost counts once. Counts that are too large are halved where they are stored, in one step with adding to them.
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
from headgate.llm.learned.local import COVERAGE, INPUT, LONGEST_KEY, MOST_UNLEARNED, LocalLearned, SeriesName, hash_of
from headgate.llm.learned.samples import MOST, Samples, halved

log = logging.getLogger("headgate")

SHARE_INTERVAL_S = 5.0
_SHORTEST_INTERVAL_S = 1.0
"""The shortest interval: series of which nothing is known are requested at once, but not more often than that."""

_MOST_REQUESTED, _MOST_AT_ONCE = 200, 500
"""The most series that are read, and that are read or added to, at a time."""

GIVE_UP_AFTER_S = 1_800
"""A batch that could not be sent for so long is dropped. A sample store remembers batch numbers for longer."""

Addition = tuple[str, dict[int, int]]
"""The name of a series, in hexadecimal digits, and the counts to add to it."""


class SampleStore(Protocol):
    """Stores the samples of all processes."""

    def merge(self, process: str, number: int, additions: list[Addition]) -> list[dict[int, int]]:
        """Add counts, unless this process has added this number before, and return the counts of each series then.

        Raises StoreError; then all, some or none of them were added.
        """
        ...


class SharedSamples(Samples):
    """The samples of all processes: the counts of the sample store, and those added here since."""

    __slots__ = ("sent_counts", "sent_weight")

    def __init__(self) -> None:
        super().__init__()
        self.sent_counts: dict[int, int] = {}
        """The counts that the sample store has, with those in transit to it."""

        self.sent_weight = 0

    def fade(self) -> None:
        """The sample store halves its counts; they are halved here only where it does not answer."""
        if self.weight > 2 * MOST + self.sent_weight:
            self.replace(halved(self.counts))
            self.sent_counts = halved(self.sent_counts)
            self.sent_weight = sum(self.sent_counts.values())

    def unsent(self) -> dict[int, int]:
        """The counts that were added here, and not sent."""
        sent_counts = self.sent_counts
        return {
            bucket: more for bucket, count in self.counts.items() if (more := count - sent_counts.get(bucket, 0)) > 0
        }

    def adopt(self, counts: dict[int, int]) -> None:
        """Take over the counts of the sample store, which include those that were in transit."""
        together = dict(counts)
        for bucket, more in self.unsent().items():
            together[bucket] = together.get(bucket, 0) + more
        self.sent_counts, self.sent_weight = counts, sum(counts.values())
        self.replace(together)

    def mark_sent(self) -> None:
        """Note that all counts are in transit."""
        self.sent_counts, self.sent_weight = dict(self.counts), self.weight


class _Batch(NamedTuple):
    """A batch in transit to a sample store."""

    number: int
    since_us: int
    names: list[SeriesName]
    additions: list[Addition]


class SharedLearned(LocalLearned):
    """Estimates by all processes that use a sample store. `namespace` keeps policies apart that share one."""

    kind = SharedSamples

    def __init__(self, sample_store: SampleStore, *, namespace: str = "", interval_s: float = SHARE_INTERVAL_S) -> None:
        super().__init__()
        self._sample_store = sample_store
        self._namespace = namespace
        self._interval_s = interval_s
        self._learn_at = 1  # the first call starts the sharing
        self._is_closed = False
        self._has_warned = False
        self._requested: dict[SeriesName, None] = {}
        """The series that were requested since the last exchange."""

        self._process, self._number = os.urandom(8).hex(), 0
        self._in_transit: _Batch | None = None
        self._sharing = threading.Lock()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._is_running = False
        register_for_forks(self)

    def output(self, key: str, model: str, most: int) -> int | None:
        requested = self._requested
        if len(requested) < _MOST_REQUESTED:
            size = (most.bit_length() + 1) >> 1
            if key:
                requested[key if len(key) <= LONGEST_KEY else hash_of(key), model, size] = None
            requested["", model, size] = None
        estimate = super().output(key, model, most)
        if estimate is None:
            self._wake.set()
            if not self._is_running:
                self.start()
        return estimate

    def input_permille(self, model: str) -> int:
        if len(self._requested) < _MOST_REQUESTED:
            self._requested["", model, INPUT] = None
        return super().input_permille(model)

    def _learn_many(self) -> None:
        super()._learn_many()
        if not self._is_running:
            self.start()

    def start(self) -> None:
        with self._lock.current:
            if self._is_running or self._is_closed:
                return
            self._is_running, self._learn_at = True, MOST_UNLEARNED
            self._sharing = threading.Lock()  # gevent may have replaced it: a waiting greenlet lets others run
        wake = self._wake
        arguments = (ref(self, lambda _: wake.set()), wake, self._closing, self._interval_s)
        try:
            threading.Thread(target=_share_until_closed, args=arguments, name="headgate-learned", daemon=True).start()
        except RuntimeError:  # no more threads, or the interpreter ends: the next call tries again
            self._is_running = False

    def close(self) -> None:
        self._is_closed = True
        self._closing.set()
        self._wake.set()
        if self.share():
            self.share()  # the first call may have sent only the batch in transit

    def share(self) -> bool:
        """Send the sample store what is not sent, and read the counts of all processes; return whether it answered."""
        with self._sharing:
            with self._lock.current:
                self._in_transit = self._in_transit or self._gather()
            batch = self._in_transit
            if batch is None:
                return True
            try:
                counts = self._sample_store.merge(self._process, batch.number, batch.additions)
            except Exception as error:  # whatever it is, calls continue
                self._failed(error, batch)
                return False
            with self._lock.current:
                self._in_transit = None
                for name, series_counts in zip(batch.names, counts, strict=True):
                    self._adopt(name, series_counts)
            self._has_warned = False
            return True

    def _failed(self, error: Exception, batch: _Batch) -> None:
        if SYSTEM_CLOCK.now_us() - batch.since_us > GIVE_UP_AFTER_S * US_PER_SECOND:
            self._in_transit = None
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "the usage of model calls is learned in this process alone: %s",
                error, exc_info=not isinstance(error, HeadgateError),
            )  # fmt: skip

    def _gather(self) -> _Batch | None:
        """The batch to send and read now; the lock is held."""
        self._learn()
        requested, self._requested = self._requested, {}
        changed = (name for name, samples in self._all_series() if samples.weight != samples.sent_weight)
        names = list(dict.fromkeys([*requested, *islice(changed, _MOST_AT_ONCE - _MOST_REQUESTED)]))
        if not names:
            return None
        additions: list[Addition] = []
        for name in names:
            samples = self._series(name)
            additions.append((self._hash_of_series(name), {} if samples is None else samples.unsent()))
            if samples is not None:
                samples.mark_sent()
        self._number += 1
        return _Batch(self._number, SYSTEM_CLOCK.now_us(), names, additions)

    def _adopt(self, name: SeriesName, counts: dict[int, int]) -> None:
        samples = self._series(name)
        if samples is None and counts:
            samples = self._new_series(name)
        if samples is not None:
            samples.adopt(counts)

    def _all_series(self) -> list[tuple[SeriesName, SharedSamples]]:
        """All series, those of models first, then of keys beginning with the least recently used."""
        series: list[tuple[SeriesName, Samples]] = []
        for model, of_model in self._of_models.items():
            series += [(("", model, INPUT), of_model.input), (("", model, COVERAGE), of_model.coverage)]
            series += [(("", model, size), samples) for size, samples in of_model.by_size.items()]
        series += self._of_keys.items()
        return [(name, samples) for name, samples in series if isinstance(samples, SharedSamples)]

    def _series(self, name: SeriesName) -> SharedSamples | None:
        key, model, size = name
        samples: Samples | None = None
        if key:
            samples = self._of_keys.get(name)
        elif (of_model := self._of_models.get(model)) is not None:
            samples = of_model.get(size)
        assert samples is None or isinstance(samples, SharedSamples)
        return samples

    def _new_series(self, name: SeriesName) -> SharedSamples | None:
        key, model, size = name
        if key:
            self._new_of_key(name)
        else:
            of_model = self._of_models.get(model) or self._new_of_model(model)
            if size >= 0:
                of_model.new(size)
        return self._series(name)

    def _hash_of_series(self, name: SeriesName) -> str:
        key, model, size = name
        text = "\0".join((self._namespace, model, str(size), key))
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def after_fork(self) -> None:
        """In a child: the samples of its parent are sent by the parent."""
        self._process, self._in_transit = os.urandom(8).hex(), None
        self._lock.after_fork()
        self._sharing = threading.Lock()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._is_running, self._learn_at = False, 1
        self._learn()
        for _, samples in self._all_series():
            samples.mark_sent()


def _share_until_closed(
    learned_ref: ref[SharedLearned], wake: threading.Event, closing: threading.Event, interval_s: float
) -> None:
    """Share until the estimates are closed, or nothing refers to them any more."""
    while not closing.is_set():
        wake.wait(interval_s)
        wake.clear()
        learned = learned_ref()
        if learned is None or closing.is_set():
            return
        has_answered = learned.share()
        del learned  # so that it can be collected while this thread sleeps
        closing.wait(min(_SHORTEST_INTERVAL_S, interval_s) if has_answered else interval_s)

"""Events as metrics for Prometheus. Labels are names from the policy, never data from a client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND, Clock, ahead_us
from headgate.decision import ON_STORE_ERROR, Decision, NamedLimit
from headgate.errors import MissingExtraError
from headgate.observe.events import (
    DecisionEvent,
    Event,
    PolicyApplied,
    PolicyChecked,
    PolicyRefused,
    RequestsWaiting,
    SettlementsKept,
)
from headgate.observe.worker_files import Sharing, registries
from headgate.stores.protocol import StoreStats

try:
    from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingExtraError("a page of metrics for Prometheus", extra="service", why=error) from error

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NO_RULE = "none"
"""The `rule` of decisions to which no rule applied."""

_MOST_OUTCOMES = 4096
BUCKETS_S = (1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2)


def leave_out_creation_times() -> None:
    """Omit the `_created` metric of every counter, in the whole process: no chart needs it."""
    disable_created_metrics()  # type: ignore[no-untyped-call]


class DecisionCounts(NamedTuple):
    """Counts of decisions that were made without Python, by their results."""

    decisions: Mapping[tuple[str, str], int]
    """Decisions by rule and result."""

    degraded: Mapping[str, int]
    """Decisions that the store could not make, by what made them instead."""

    buckets: Sequence[int]
    """Decisions by duration: for each of `BUCKETS_S` those up to it and above the one before, then those above all."""

    seconds: float
    """The total duration."""


class Metrics:
    """The metrics of one service; with `sharing` one worker's part of them. The metrics of all workers are exposed."""

    def __init__(
        self, stats: Callable[[], StoreStats], sharing: Sharing | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.registry, registry = registries(sharing)
        self.registered_in = registry
        """The registry in which metrics are registered; None where they are in files."""

        self.lag_s = 0.0
        """The longest delay until counts of another worker are in the files."""

        self._decisions = Counter(
            "headgate_decisions",
            "Decisions of each rule: allowed, refused, blocked (another rule refused), or a shadow rule's own",
            ["rule", "result"],
            registry=registry,
        )
        self._degraded = Counter(
            "headgate_degraded_decisions",
            "Decisions that the store could not make, by what made them instead",
            ["decided_by"],
            registry=registry,
        )
        self._seconds = Histogram(
            "headgate_decision_seconds", "Time taken by a decision", buckets=BUCKETS_S, registry=registry
        )
        self._reloads = Counter(
            "headgate_policy_reloads", "Policies applied or refused while running", ["result"], registry=registry
        )
        self._in_force = Gauge(
            "headgate_policy_in_force",
            "1 while what the policy file says is in force, 0 while an older policy is",
            registry=registry,
            multiprocess_mode="min",
        )
        self._late = Counter(
            "headgate_late_settlements",
            "Settlements of holds that could not reach the store at once: sent when it was back, or lost",
            ["result"],
            registry=registry,
        )
        self._stored = Gauge(
            "headgate_kept_settlements",
            "Settlements of holds that are to be sent when the store answers again",
            registry=registry,
            multiprocess_mode="sum",
        )
        self._waiting = Gauge(
            "headgate_waiting_requests",
            "Requests that wait in line, as rules let them, instead of being refused",
            registry=registry,
            multiprocess_mode="sum",
        )
        self._waiting.set(0)
        self._stored.set(0)
        for counter, names in (
            (self._degraded, ON_STORE_ERROR),
            (self._reloads, ("applied", "refused")),
            (self._late, ("sent", "lost")),
        ):
            for name in names:  # a rate ignores the first value of a new counter
                counter.labels(name)
        self.before_exposition: list[Callable[[], object]] = []
        """Called before an exposition, to update metrics of counts that are made elsewhere."""

        self._counters: dict[tuple[int, ...], tuple[tuple[NamedLimit, ...], Sequence[Callable[[], None]]]] = {}
        """By whether the decision was allowed, and the ids of its limits and the refusing ones; limits stay alive."""

        self.registry.register(_StoreCollector(stats, clock))

    def handle(self, event: Event) -> None:
        """Count an event."""
        if not isinstance(event, DecisionEvent):
            self._handle_other(event)
            return
        decision = event.decision
        self._seconds.observe(event.seconds)
        if decision.degraded:
            self._degraded.labels(decision.degraded).inc()
        # The counters depend on the limits and on which of them refuse; most decisions repeat the same ones.
        name = (decision.allowed, id(decision.definitions), *[id(reading.definition) for reading in decision.refusals])
        counters = self._counters.get(name)
        if counters is None:
            if len(self._counters) >= _MOST_OUTCOMES:
                self._counters.clear()
            counters = self._counters[name] = (decision.definitions, self._counts_of(decision))
        for count in counters[1]:
            count()

    def _counts_of(self, decision: Decision) -> Sequence[Callable[[], None]]:
        """The functions that count a decision with these results."""
        counts = []
        results: dict[tuple[str, str], None] = {}  # in the order of the rules
        for reading in decision.limits:
            refusing = not reading.allowed
            name = (reading.rule, _result(decision.allowed, refusing, shadow=reading.shadow))
            results[name] = None
        # A rule with several limits refuses if one of them does.
        for rule, result in results:
            if result in ("blocked", "shadow_allowed") and (rule, _REFUSALS[result]) in results:
                continue
            counts.append(self._decisions.labels(rule, result).inc)
        return counts or [self._decisions.labels(NO_RULE, "allowed" if decision.allowed else "refused").inc]

    def _handle_other(self, event: Event) -> None:
        if isinstance(event, PolicyChecked):
            self._in_force.set(int(event.in_force))
        elif isinstance(event, PolicyApplied):
            self._reloads.labels("applied").inc()
        elif isinstance(event, PolicyRefused):
            self._reloads.labels("refused").inc()
        elif isinstance(event, SettlementsKept):
            self._stored.set(event.kept)
            self._late.labels("sent").inc(event.sent)
            self._late.labels("lost").inc(event.lost)
        elif isinstance(event, RequestsWaiting):
            self._waiting.set(event.waiting)

    def add(self, counts: DecisionCounts) -> None:
        """Add decisions that were made and counted without Python."""
        for (rule, result), count in counts.decisions.items():
            self._decisions.labels(rule, result).inc(count)
        for decided_by, count in counts.degraded.items():
            self._degraded.labels(decided_by).inc(count)
        # The library's histogram accepts only single observations; these are its counters.
        for bucket, count in zip(self._seconds._buckets, counts.buckets, strict=True):
            if count:
                bucket.inc(count)
        self._seconds._sum.inc(counts.seconds)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        for bring_up_to_date in self.before_exposition:
            bring_up_to_date()
        return generate_latest(self.registry)


_REFUSALS = {"blocked": "refused", "shadow_allowed": "shadow_refused"}


def _result(allowed: bool, refusing: bool, *, shadow: bool) -> str:
    if shadow:
        return "shadow_refused" if refusing else "shadow_allowed"
    if refusing:
        return "refused"
    return "allowed" if allowed else "blocked"


class _StoreCollector(Collector):
    """The store's own counts, read with the metrics."""

    def __init__(self, stats: Callable[[], StoreStats], clock: Clock) -> None:
        self._stats = stats
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        if not stats.max_keys:  # a separate server has the states, and its own metrics
            return
        yield GaugeMetricFamily("headgate_store_keys", "States held now", stats.keys)
        yield GaugeMetricFamily("headgate_store_max_keys", "The most states the store may hold", stats.max_keys)
        yield GaugeMetricFamily("headgate_store_bytes", "Memory of the store's table", stats.bytes)
        yield CounterMetricFamily(
            "headgate_store_expired_keys", "States dropped because they had become the same as none", stats.expired
        )
        full = CounterMetricFamily(
            "headgate_store_full", "New keys that met a full store, by what happened", labels=["choice"]
        )
        full.add_metric(["evicted"], stats.evicted)
        full.add_metric(["refused"], stats.refused_full)
        full.add_metric(["passed"], stats.passed_full)
        yield full
        yield GaugeMetricFamily(
            "headgate_clock_offset_seconds",
            "How far the store's clock is ahead of the host's wall time, below 0 if it is behind it",
            ahead_us(self._clock) / US_PER_SECOND,
        )

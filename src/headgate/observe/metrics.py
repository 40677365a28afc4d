"""Decisions as Prometheus figures. Labels are names from the policy, never what a client sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headgate.decision import Decision
from headgate.errors import MissingExtraError
from headgate.stores.contract import StoreStats

try:
    from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingExtraError("metrics for Prometheus", extra="service") from error

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NO_RULE = "none"
"""The `rule` of decisions that no rule was for."""

_BUCKETS = (1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2)


def leave_out_creation_times() -> None:
    """For the whole process: no `_created` beside every counter, which nobody draws."""
    disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The figures of one service."""

    def __init__(self, stats: Callable[[], StoreStats]) -> None:
        self.registry = CollectorRegistry()
        self._decisions = Counter(
            "headgate_decisions",
            "Decisions of each rule: allowed, refused, held_back (another rule refused), or a shadow rule's own",
            ["rule", "result"],
            registry=self.registry,
        )
        self._degraded = Counter(
            "headgate_degraded_decisions",
            "Decisions that the store could not make, by who made them instead",
            ["decided_by"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "headgate_decision_seconds", "Time taken by a decision", buckets=_BUCKETS, registry=self.registry
        )
        self._reloads = Counter(
            "headgate_policy_reloads", "Policies taken up or refused while running", ["result"], registry=self.registry
        )
        self._results: dict[tuple[str, str], Callable[[], None]] = {}
        self.registry.register(_StoreCollector(stats))

    def decided(self, decision: Decision, seconds: float) -> None:
        """Count a decision and the time it took."""
        self._seconds.observe(seconds)
        if decision.degraded:
            self._degraded.labels(decision.degraded).inc()
        counted: dict[tuple[str, str], None] = {}  # in the order of the rules
        for reading in decision.limits:
            refusing = not reading.allowed
            name = (reading.rule, _result(decision.allowed, refusing, shadow=reading.shadow))
            counted[name] = None
        # A rule with several limits refuses if one of them does.
        for rule, result in counted:
            if result in ("held_back", "shadow_allowed") and (rule, _REFUSALS[result]) in counted:
                continue
            self._count(rule, result)
        if not counted:
            self._count(NO_RULE, "allowed" if decision.allowed else "refused")

    def reloaded(self, *, taken_up: bool) -> None:
        """Count a changed policy."""
        self._reloads.labels("taken_up" if taken_up else "refused").inc()

    def exposition(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self.registry)

    def _count(self, rule: str, result: str) -> None:
        count = self._results.get((rule, result))
        if count is None:
            count = self._results[rule, result] = self._decisions.labels(rule, result).inc
        count()


_REFUSALS = {"held_back": "refused", "shadow_allowed": "shadow_refused"}


def _result(allowed: bool, refusing: bool, *, shadow: bool) -> str:
    if shadow:
        return "shadow_refused" if refusing else "shadow_allowed"
    if refusing:
        return "refused"
    return "allowed" if allowed else "held_back"


class _StoreCollector(Collector):
    """What the store counts about itself, read when somebody asks."""

    def __init__(self, stats: Callable[[], StoreStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        yield GaugeMetricFamily("headgate_store_keys", "States held now", stats.keys)
        yield GaugeMetricFamily("headgate_store_max_keys", "The most states the store may hold", stats.max_keys)
        yield GaugeMetricFamily("headgate_store_bytes", "Memory of the store's table", stats.bytes)
        yield CounterMetricFamily(
            "headgate_store_expired_keys", "States dropped because they had become the same as none", stats.expired
        )
        full = CounterMetricFamily(
            "headgate_store_full", "New keys that met a full store, by what happened", labels=["choice"]
        )
        full.add_metric(["forgot"], stats.forgotten)
        full.add_metric(["refused"], stats.refused_full)
        full.add_metric(["passed"], stats.passed_full)
        yield full

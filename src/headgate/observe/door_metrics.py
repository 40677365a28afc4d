"""The counts of the front door as metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge

from headgate.observe.prometheus import DecisionCounts

Name = TypeVar("Name", str, tuple[str, str])


class DoorCounts(NamedTuple):
    """The counts of a front door since it opened."""

    responses: list[tuple[str, int, int]]
    """(route, status, responses)."""

    left_to_python: int
    accepted: int
    open: int
    gave_way: int
    expired: int
    idle: int
    no_handshake: int


class TallyReader:
    """Reads the counts of native checks from a `CheckTally`, each decision once."""

    def __init__(self, tally: Any) -> None:
        self._tally = tally
        self._read = DecisionCounts({}, {}, [], 0.0)

    def read(self) -> DecisionCounts:
        """The counts since the last call."""
        before, now = self._read, DecisionCounts(*self._tally.figures())
        self._read = now
        buckets = zip(now.buckets, before.buckets or [0] * len(now.buckets), strict=True)
        return DecisionCounts(
            _grown(before.decisions, now.decisions),
            _grown(before.degraded, now.degraded),
            [count - previous for count, previous in buckets],
            now.seconds - before.seconds,
        )


class DoorMetrics:
    """The metrics of one door; `registry` is None where they are in files that several workers share."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self._responses = Counter(
            "headgate_responses",
            "Responses to clients, by what was asked (none: it could not be read) and status",
            ["route", "status"],
            registry=registry,
        )
        self._left_to_python = Counter(
            "headgate_checks_left_to_python", "Checks that the front door left to Python", registry=registry
        )
        self._accepted = Counter("headgate_connections_accepted", "Connections of clients", registry=registry)
        self._open = Gauge(
            "headgate_connections", "Connections of clients that are open", registry=registry, multiprocess_mode="sum"
        )
        self._closed = Counter(
            "headgate_connections_closed",
            "Connections that were closed on clients: these took too long, were idle, gave way, or did not begin TLS",
            ["reason"],
            registry=registry,
        )
        for reason in ("too slow", "idle", "gave way", "no handshake"):
            self._closed.labels(reason)
        self._reported = DoorCounts([], 0, 0, 0, 0, 0, 0, 0)

    def update(self, counts: DoorCounts) -> None:
        """Set the metrics to the counts of the door; no metric decreases."""
        reported = self._reported
        before = {(route, status): count for route, status, count in reported.responses}
        for route, status, count in counts.responses:
            if count > (previous := before.get((route, status), 0)):
                self._responses.labels(route, str(status)).inc(count - previous)
        self._left_to_python.inc(counts.left_to_python - reported.left_to_python)
        self._accepted.inc(counts.accepted - reported.accepted)
        self._open.set(counts.open)
        self._closed.labels("too slow").inc(counts.expired - reported.expired)
        self._closed.labels("idle").inc(counts.idle - reported.idle)
        self._closed.labels("gave way").inc(counts.gave_way - reported.gave_way)
        self._closed.labels("no handshake").inc(counts.no_handshake - reported.no_handshake)
        self._reported = counts


def _grown(before: Mapping[Name, int], now: Mapping[Name, int]) -> dict[Name, int]:
    """The growth of each count; counts that have not grown are left out."""
    grown = {name: count - before.get(name, 0) for name, count in now.items()}
    return {name: count for name, count in grown.items() if count}

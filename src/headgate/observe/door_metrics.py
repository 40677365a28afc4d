"""What the front door counts, as figures for Prometheus."""

from __future__ import annotations

from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge


class DoorCounts(NamedTuple):
    """What a front door has counted since it opened."""

    responses: list[tuple[str, int, int]]
    """(route, status, responses)."""

    left_to_python: int
    accepted: int
    open: int
    gave_way: int
    expired: int


class DoorMetrics:
    """The figures of one door; `registry` is None where they are kept in files for several workers."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self._responses = Counter(
            "headgate_responses",
            "Responses to clients, by what was asked (none: it could not be read) and status",
            ["route", "status"],
            registry=registry,
        )
        self._left = Counter(
            "headgate_checks_left_to_python", "Checks that the front door left to Python", registry=registry
        )
        self._accepted = Counter("headgate_connections_accepted", "Connections of clients", registry=registry)
        self._open = Gauge(
            "headgate_connections", "Connections of clients that are open", registry=registry, multiprocess_mode="sum"
        )
        self._closed = Counter(
            "headgate_connections_closed",
            "Connections that were closed on their clients, which took too long or had to give way to others",
            ["reason"],
            registry=registry,
        )
        for reason in ("too slow", "gave way"):
            self._closed.labels(reason)
        self._shown = DoorCounts([], 0, 0, 0, 0, 0)

    def update(self, counts: DoorCounts) -> None:
        """Show what a door has counted by now; never less than before."""
        shown = self._shown
        before = {(route, status): count for route, status, count in shown.responses}
        for route, status, count in counts.responses:
            if count > (known := before.get((route, status), 0)):
                self._responses.labels(route, str(status)).inc(count - known)
        self._left.inc(counts.left_to_python - shown.left_to_python)
        self._accepted.inc(counts.accepted - shown.accepted)
        self._open.set(counts.open)
        self._closed.labels("too slow").inc(counts.expired - shown.expired)
        self._closed.labels("gave way").inc(counts.gave_way - shown.gave_way)
        self._shown = counts

"""A policy of ten rules of which three match, judged by a gate."""

from __future__ import annotations

from typing import Any

from benchmarks.measuring import Section, Target, in_turns, timed_loop
from headgate.policy.gate import Gate
from headgate.policy.request import Request

CALLS = 20_000
POLICY: dict[str, Any] = {
    "version": 1,
    "identities": {"user": {"header": "X-User-Id"}},
    "rules": [
        *(
            {"name": f"other{number}", "match": {"path": f"/other{number}/**"}, "by": ["ip"], "limits": "100/minute"}
            for number in range(7)
        ),
        {"name": "ip", "by": ["ip"], "limits": "1000000000/hour"},
        {"name": "user", "by": ["user"], "limits": "1000000000/hour bucket", "match": {"method": "GET"}},
        {"name": "api", "by": ["ip", "user"], "limits": "1000000000/day fixed", "match": {"path": "/api/**"}},
    ],
}
HEADERS = {"X-User-Id": "42", "User-Agent": "benchmark"}


def run(quick: bool) -> Section:
    """Measure a gate with requests at hand, and with requests that are made for it."""
    gate = Gate(POLICY)
    requests = [
        Request("GET", f"/api/items/{number}?page=1", headers=HEADERS, client_ip=f"203.0.113.{number % 200}")
        for number in range(500)
    ]
    assert len(gate.hit(requests[0]).limits) == 3

    def judge() -> None:
        hit = gate.hit
        for _ in range(CALLS // len(requests)):
            for request in requests:
                hit(request)

    def make_and_judge() -> None:
        hit = gate.hit
        for _ in range(CALLS):
            hit(Request("GET", "/api/items/7", headers=HEADERS, client_ip="203.0.113.9"))

    measured = in_turns(
        {
            "the request is at hand": timed_loop(judge, CALLS),
            "the request is made first": timed_loop(make_and_judge, CALLS),
        },
        rounds=3 if quick else 9,
    )
    rate = measured["the request is at hand"].per_second
    return Section(
        "A policy",
        "`gate.hit(request)` with ten rules of which three match, each counted by another identity; 500 different "
        "paths and 200 client addresses.",
        ("", "a request", "requests a second"),
        [(name, str(one), f"{one.per_second:,.0f}") for name, one in measured.items()],
        (Target("at least 500,000 requests a second", f"{rate:,.0f}", rate >= 5e5),),
    )

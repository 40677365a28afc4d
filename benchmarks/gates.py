"""A gate with a policy of which three rules match: requests for paths that were seen before, and for new ones."""

from __future__ import annotations

from itertools import count
from typing import Any

from benchmarks.measuring import Section, Target, in_turns, timed_loop
from headgate.policy.gate import Gate
from headgate.policy.request import Request

CALLS = 20_000
HEADERS = {"X-User-Id": "42", "User-Agent": "benchmark"}


def policy_of(rules: int) -> dict[str, Any]:
    """A policy of so many rules."""
    return {
        "version": 1,
        "identities": {"user": {"header": "X-User-Id"}},
        "rules": [
            *(
                {"name": f"other{number}", "match": {"path": f"/other{number}/**"}, "by": ["ip"], "limits": "9/minute"}
                for number in range(rules - 3)
            ),
            {"name": "ip", "by": ["ip"], "limits": "1000000000/hour"},
            {"name": "user", "by": ["user"], "limits": "1000000000/hour bucket", "match": {"method": "GET"}},
            {"name": "api", "by": ["ip", "user"], "limits": "1000000000/day fixed", "match": {"path": "/api/**"}},
        ],
    }


class UnseenPaths:
    """Requests for paths that the gate has not seen, made before they are decided."""

    def __init__(self, rules: int) -> None:
        self._hit = Gate(policy_of(rules)).hit
        self._numbers = count()
        self._requests: list[Request] = []

    def __call__(self) -> float:
        """Decide the requests of one round; return the nanoseconds of one."""
        self._requests = [
            Request("GET", f"/api/items/{next(self._numbers)}?page=1", headers=HEADERS, client_ip=f"203.0.113.{number}")
            for number in range(200)
            for _ in range(CALLS // 200)
        ]
        return timed_loop(self._decide, CALLS)()

    def _decide(self) -> None:
        hit = self._hit
        for request in self._requests:
            hit(request)


def run(quick: bool) -> Section:
    """Measure a gate with requests that exist already, and with requests that are made for each decision."""
    gate = Gate(policy_of(10))
    requests = [
        Request("GET", f"/api/items/{number}?page=1", headers=HEADERS, client_ip=f"203.0.113.{number % 200}")
        for number in range(500)
    ]
    assert len(gate.hit(requests[0]).limits) == 3

    def decide() -> None:
        hit = gate.hit
        for _ in range(CALLS // len(requests)):
            for request in requests:
                hit(request)

    def make_and_decide() -> None:
        hit = gate.hit
        for _ in range(CALLS):
            hit(Request("GET", "/api/items/7", headers=HEADERS, client_ip="203.0.113.9"))

    measured = in_turns(
        {
            "the request is at hand": timed_loop(decide, CALLS),
            "the request is made first": timed_loop(make_and_decide, CALLS),
            "paths never seen": UnseenPaths(10),
            "paths never seen, 200 rules": UnseenPaths(200),
        },
        rounds=3 if quick else 9,
    )
    at_hand, unseen = measured["the request is at hand"], measured["paths never seen"]
    ratio = unseen.median_ns / at_hand.median_ns
    large = measured["paths never seen, 200 rules"].median_ns / unseen.median_ns
    return Section(
        "A policy",
        "`gate.hit(request)` with ten rules of which three match, each counted by another identity; 500 different "
        "paths and 200 client addresses. A path never seen has an id that no request had before.",
        ("", "a request", "requests a second"),
        [(name, str(one), f"{one.per_second:,.0f}") for name, one in measured.items()],
        (
            Target("at least 1,500,000 requests a second", f"{at_hand.per_second:,.0f}", at_hand.per_second >= 1.5e6),
            Target("paths never seen cost at most 1.3 times as much", f"{ratio:.2f} times", ratio <= 1.3),
            Target("200 rules cost at most 1.5 times as much as ten", f"{large:.2f} times", large <= 1.5),
        ),
    )

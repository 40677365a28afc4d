"""A policy of ten rules, of which two are for every request of these applications."""

from __future__ import annotations

from typing import Any


def ten_rules(a_minute: int) -> dict[str, Any]:
    """The rules; `everyone` applies to each request, `users` to each with an id."""
    limits = f"{a_minute}/minute"
    rules: list[dict[str, Any]] = [
        {"name": f"area{number}", "match": {"path": f"/area/{number}/**"}, "by": ["ip"], "limits": limits}
        for number in range(8)
    ]
    rules.append({"name": "everyone", "by": ["ip"], "limits": limits})
    rules.append({"name": "users", "by": ["user"], "limits": limits})
    return {"version": 1, "identities": {"user": {"header": "X-User-Id"}}, "rules": rules}

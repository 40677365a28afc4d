"""Follows the reloads of a gate: its users are notified of a new policy, and can reject one that they cannot use."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol
from weakref import ref

from headgate.errors import ConfigError
from headgate.http.server.gate_requests import GateRequests
from headgate.policy.compiled import Policy


class Follower(Protocol):
    """A user of a gate."""

    def follow(self, source: GateRequests) -> None:
        """Decide by a policy that was just reloaded."""
        ...


def follow_reloads(follower: Follower, source: GateRequests, owner_name: str) -> None:
    """Notify a follower of reloads of its source's gate, which may outlive it; `owner_name` is its name in errors."""
    gate = source.gate

    def check(policy: Policy) -> None:
        if reference() is not None:
            try:
                source.check(policy)
            except ConfigError as error:
                raise ConfigError(f"{owner_name or 'an application'} cannot use this policy: {error}") from error

    def follow() -> None:
        if (own := reference()) is not None:
            own.follow(source)

    def forget(_: object) -> None:
        with suppress(ValueError):
            gate.before_reload.remove(check)
            gate.reloaded.remove(follow)

    reference = ref(follower, forget)
    gate.before_reload.append(check)
    gate.reloaded.append(follow)
    if source.is_behind:  # the gate was reloaded while the follower was made
        check(gate.policy)
        follow()

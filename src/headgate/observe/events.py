"""Events of a running service, for subscribers: metrics today, lists of offenders and webhooks later.

An event is a frozen record; a subscriber is an object whose one method is called with each event. Without a
subscriber no event is created, so that a decision costs nothing more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from headgate.decision import Decision
from headgate.policy.compiled import Policy
from headgate.policy.descriptor import Descriptor
from headgate.policy.request import Request

log = logging.getLogger("headgate")


class DecisionEvent(NamedTuple):
    """A request was decided. Its headers and the keys of its rules may contain secrets of a client."""

    decision: Decision
    seconds: float
    """How long the decision took."""

    request: Request | Descriptor
    ruleset: str


class PolicyApplied(NamedTuple):
    """A changed policy is in force."""

    policy: Policy


class PolicyRefused(NamedTuple):
    """A changed policy cannot be read or used: the previous one stays in force."""

    error: Exception


class PolicyChecked(NamedTuple):
    """The policy file was checked; `in_force` is whether its policy is in force."""

    in_force: bool


class StoreDegraded(NamedTuple):
    """The store does not answer: until it does, the rules' `on_store_error` decides."""

    reason: str


class StoreRecovered(NamedTuple):
    """The store answers again."""


class SettlementsKept(NamedTuple):
    """Settlements that could not reach the store: the number stored now, and the numbers just sent, or lost."""

    kept: int
    sent: int
    lost: int


class RequestsWaiting(NamedTuple):
    """The number of requests that wait in line now, under rules of the policy that let them wait."""

    waiting: int


Event = (
    DecisionEvent
    | PolicyApplied
    | PolicyRefused
    | PolicyChecked
    | StoreDegraded
    | StoreRecovered
    | SettlementsKept
    | RequestsWaiting
)


class Subscriber(Protocol):
    """An object that is called with each event."""

    def handle(self, event: Event) -> None:
        """Handle an event; unknown kinds are to be ignored.

        It must not block: a request waits for it. It is called on the event loop, but with `StoreDegraded`,
        `StoreRecovered` and `SettlementsKept` it may be on another thread.
        """
        ...


class Events:
    """Passes each event to all subscribers. Where `subscribers` is empty, no event needs to be created."""

    def __init__(self) -> None:
        self.subscribers: tuple[Subscriber, ...] = ()
        self.each_decision = False
        """Whether a subscriber needs a `DecisionEvent` for every decision, including those of the front door."""

        self.subscribed: list[Callable[[], object]] = []
        """Called after each subscription."""

    def subscribe(self, subscriber: Subscriber, *, each_decision: bool = True) -> None:
        """Call a subscriber with every event from now on.

        The front door creates no events for its native decisions: where a subscriber needs `each_decision`, Python
        decides all checks. Other subscribers are called only with the decisions that Python makes anyway.
        """
        self.subscribers += (subscriber,)
        self.each_decision |= each_decision
        for listener in list(self.subscribed):
            listener()

    def publish(self, event: Event) -> None:
        """Pass an event to all subscribers; an error of one is logged, and has no other effect."""
        for subscriber in self.subscribers:
            try:
                subscriber.handle(event)
            except Exception:
                log.exception("a subscriber failed: %s", type(subscriber).__name__)

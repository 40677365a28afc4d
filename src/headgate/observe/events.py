"""Events of a running service, for subscribers: metrics today, lists of offenders and webhooks later.

An event is a frozen record; a subscriber is an object with one method that is called with each. Where there is no
subscriber no event is made, so that the path of a decision costs nothing more.
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
    """A request was decided. Its headers, and what the rules count it by, may be secrets of a client."""

    decision: Decision
    seconds: float
    """How long the decision took."""

    request: Request | Descriptor
    ruleset: str


class PolicyApplied(NamedTuple):
    """A changed policy is in force."""

    policy: Policy


class PolicyRefused(NamedTuple):
    """A changed policy cannot be used, or not be read: the one before stays in force."""

    error: Exception


class PolicyChecked(NamedTuple):
    """The policy file was looked at: whether what it says is in force."""

    in_force: bool


class StoreDegraded(NamedTuple):
    """The store does not answer: what the rules say about that decides, until it is back."""

    reason: str


class StoreRecovered(NamedTuple):
    """The store answers again."""


class SettlementsKept(NamedTuple):
    """Settlements that could not reach the store: how many are kept now, and how many were just sent, or lost."""

    kept: int
    sent: int
    lost: int


class RequestsWaiting(NamedTuple):
    """How many requests wait in line now, as rules of the policy let them."""

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
    """What is called with each event."""

    def handle(self, event: Event) -> None:
        """Take note of an event; kinds that it does not know are ignored.

        It must not block: a request waits for it. It is called on the event loop, but with `StoreDegraded`,
        `StoreRecovered` and `SettlementsKept` it may be on another thread.
        """
        ...


class Events:
    """Hands each event to all subscribers. `subscribers` is empty where no event needs to be made."""

    def __init__(self) -> None:
        self.subscribers: tuple[Subscriber, ...] = ()
        self.each_decision = False
        """Whether a subscriber needs a `DecisionEvent` of every decision, also of those that the front door makes."""

        self.subscribed: list[Callable[[], object]] = []
        """Called after each subscription."""

    def subscribe(self, subscriber: Subscriber, *, each_decision: bool = True) -> None:
        """Have a subscriber called with every event from now on.

        The front door makes no events of what it decides natively: where a subscriber needs `each_decision`, Python
        decides all checks. A subscriber that does not is called with the decisions that Python makes anyway.
        """
        self.subscribers += (subscriber,)
        self.each_decision |= each_decision
        for listener in list(self.subscribed):
            listener()

    def publish(self, event: Event) -> None:
        """Hand an event to all subscribers; the failure of one is logged, and concerns nothing else."""
        for subscriber in self.subscribers:
            try:
                subscriber.handle(event)
            except Exception:
                log.exception("a subscriber failed: %s", type(subscriber).__name__)

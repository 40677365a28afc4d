"""The service: its routes, and what they share."""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from headgate.observe.events import Events, RequestsWaiting, SettlementsKept, StoreDegraded, StoreRecovered
from headgate.observe.prometheus import Metrics
from headgate.observe.worker_files import Sharing
from headgate.policy.gate import AsyncGate
from headgate.service.admin.endpoints import Admin
from headgate.service.checks.decider import Decider
from headgate.service.checks.forward_auth import ForwardAuth
from headgate.service.checks.holds import Holds
from headgate.service.checks.holds import schema as holds_schema
from headgate.service.checks.json_checks import JsonChecks, schema
from headgate.service.http.messages import Reply, ServiceRequest, ServiceResponse, replied_as
from headgate.service.http.problems import failure_response
from headgate.service.pages.overview import Overview
from headgate.service.routes import ANY, GET, POST, Route, RouteTable

log = logging.getLogger("headgate")


class Service:
    """Answers checks with a gate. While it is `draining`, `/readyz` sends clients to another instance."""

    def __init__(self, gate: AsyncGate, sharing: Sharing | None = None, *, scheme: str = "http") -> None:
        """`scheme` is that of the service's address, for the page."""
        self.gate = gate
        self.events = Events()
        self.metrics = Metrics(gate.stats, sharing, clock=gate.clock or gate.store.clock)
        self.events.subscribe(self.metrics, each_decision=False)  # the front door counts its own decisions
        gate.watch_store(self._on_store)
        gate.watch_settlements(self._on_settlements)
        gate.watch_waiting(self._on_waiting)
        self.draining = False
        self.store_error: Exception | None = None
        """Why all requests are decided without the store; None while it decides, and of one that fails in parts."""

        decider = Decider(gate, self.events)
        checks, forward = JsonChecks(decider), ForwardAuth(decider)
        holds = Holds(decider)
        gate.reloaded.append(self._warn_in_flight)
        self._warn_in_flight()
        admin = Admin(gate, self.metrics, lambda: self.draining, lambda: self.store_error)
        self.routes = RouteTable([
            Route(POST, "/v1/check", checks.check, "check one or several requests, described in the body",
                  reads_body=True),
            Route(GET, "/v1/check/schema", schema, "the JSON Schema of that body"),
            Route(POST, "/v1/reserve", holds.reserve, "hold a request, described in the body, until it is settled",
                  reads_body=True),
            Route(POST, "/v1/commit", holds.commit, "settle a hold with what it really cost", reads_body=True),
            Route(POST, "/v1/cancel", holds.cancel, "settle a hold as if it had never been", reads_body=True),
            Route(POST, "/v1/extend", holds.extend, "let the lease of a hold end later, and hold more",
                  reads_body=True),
            Route(GET, "/v1/holds/schema", holds_schema, "the JSON Schema of these bodies"),
            Route(ANY, "/check/{ruleset}", forward.check, "check the request itself: forward auth for gateways"),
            Route(ANY, "/check-403/{ruleset}", forward.check_403, "the same, with 403 for 429, for nginx"),
            Route(GET, "/healthz", admin.health, "200 while it runs"),
            Route(GET, "/readyz", admin.readiness,
                  "200 while it takes requests and its store decides them; 503 while it drains"),
            Route(GET, "/metrics", admin.metrics, "metrics for Prometheus"),
            Route(GET, "/", Overview(gate, lambda: self.routes.routes, scheme).show,
                  "a page for people: what runs here, and how to use it"),
        ])  # fmt: skip
        self.wants_body = self.routes.wants_body

    def answer(self, request: ServiceRequest) -> Reply:
        """The reply to a request. It raises nothing, not even when it is awaited."""
        try:
            reply = self.routes.reply(request)
        except Exception as error:
            return failure_response(error)
        return reply if isinstance(reply, ServiceResponse) else replied_as(reply, _awaited(reply))

    def _warn_in_flight(self) -> None:
        """Log which rules cannot be checked without a hold."""
        rules = [rule.name for rule in self.gate.policy.rules if rule.in_flight]
        if rules:
            log.warning(
                "%s counts what is in flight: its requests are held by /v1/reserve; /v1/check and /check answer 400 "
                "for them, unless the ruleset leaves it out",
                ", ".join(rules),
            )

    def _on_store(self, error: Exception | None) -> None:
        if self.gate.store.failure != "in parts":
            self.store_error = error
        self.events.publish(StoreRecovered() if error is None else StoreDegraded(str(error)))

    def _on_settlements(self, stored: int, sent: int, lost: int) -> None:
        self.events.publish(SettlementsKept(stored, sent, lost))

    def _on_waiting(self, waiting: int) -> None:
        self.events.publish(RequestsWaiting(waiting))


async def _awaited(reply: Awaitable[ServiceResponse]) -> ServiceResponse:
    try:
        return await reply
    except Exception as error:
        return failure_response(error)

"""Health, readiness and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headgate.observe.prometheus import CONTENT_TYPE, Metrics
from headgate.policy.gate import AsyncGate
from headgate.service.http.messages import TEXT, ServiceRequest, ServiceResponse
from headgate.service.http.problems import failure_response, problem_response


class Admin:
    """The endpoints for operators and monitoring."""

    def __init__(
        self,
        gate: AsyncGate,
        metrics: Metrics,
        is_draining: Callable[[], bool],
        store_error: Callable[[], Exception | None],
    ) -> None:
        self._gate = gate
        self._metrics = metrics
        self._is_draining = is_draining
        self._store_error = store_error

    def health(self, request: ServiceRequest, suffix: str) -> ServiceResponse:
        """200 as long as the process answers, whatever the state of the store."""
        return ServiceResponse(200, TEXT, b"ok\n")

    async def readiness(self, request: ServiceRequest, suffix: str) -> ServiceResponse:
        """200 where requests can be sent here, else 503; raises StoreError where the store does not answer."""
        if self._is_draining():
            return problem_response(503, "draining: ask another instance")
        await self._gate.ping()
        if (error := self._store_error()) is not None:  # one that is full, or a replica, answers a ping
            return failure_response(error)
        return ServiceResponse(200, TEXT, b"ready\n")

    async def metrics(self, request: ServiceRequest, suffix: str) -> ServiceResponse:
        """The metrics in Prometheus' text format; they include every request that was answered before this one."""
        if self._metrics.lag_s:
            await asyncio.sleep(self._metrics.lag_s)
        return ServiceResponse(200, CONTENT_TYPE.encode(), self._metrics.exposition())

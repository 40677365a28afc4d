"""The parts that all calls of a proxy share, and its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headgate.llm.gate import AsyncLlmGate
from headgate.llm_proxy.metrics import ProxyMetrics
from headgate.llm_proxy.own_key import KeyFinder
from headgate.llm_proxy.provider_pool import ProviderPool
from headgate.llm_proxy.reading_on import ReadingOn
from headgate.llm_proxy.upstream import Upstream


class ProxyOptions(NamedTuple):
    """The options of a proxy. Times are seconds."""

    most_body_bytes: int = 32 * 1024 * 1024
    arriving_bytes: int = 512 * 1024 * 1024
    """The most memory of all requests that are incomplete, or that no provider has answered; at least the longest body.
    Beyond it, the earliest requests are refused."""

    body_s: float = 60.0
    """How long a body may take to arrive."""

    head_s: float = 10.0
    """How long the head of a request may take, from its first byte."""

    idle_s: float = 180.0
    """How long a connection without a request stays open."""

    connections: int = 8192
    """The most connections of clients; beyond it, the one that has waited longest for its client is closed."""

    stalled_s: float = 120.0
    """How long a client may read nothing of its answer."""

    read_on: int = 100
    """The most answers that are read to their end after their client has gone."""

    read_on_s: float = 60.0
    drain_s: float = 30.0
    """How long calls may go on after SIGTERM."""


@dataclass
class ProxyParts:
    """The parts of one proxy."""

    gate: AsyncLlmGate
    pool: ProviderPool
    upstream: Upstream
    keys: KeyFinder | None
    """None where calls need no key of the proxy's own."""

    metrics: ProxyMetrics
    options: ProxyOptions
    reading_on: ReadingOn

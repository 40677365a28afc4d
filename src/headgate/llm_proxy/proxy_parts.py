"""What all calls of a proxy share, and how it is set."""

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
    """How a proxy is set. Times are seconds."""

    most_body_bytes: int = 32 * 1024 * 1024
    arriving_bytes: int = 512 * 1024 * 1024
    """What all requests may occupy that have not come whole, or that no provider has answered: no less than the longest
    body. Beyond it, those that began first are refused."""

    body_s: float = 60.0
    """How long a body may take to arrive."""

    head_s: float = 10.0
    """How long the head of a request may take, from its first byte."""

    idle_s: float = 180.0
    """How long a connection stays open on which nothing is asked."""

    connections: int = 8192
    """How many clients may be connected; beyond them, the one that has waited longest for its client is closed."""

    stalled_s: float = 120.0
    """How long a client may take nothing of its answer."""

    read_on: int = 100
    """How many answers are read to their end whose client has gone."""

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

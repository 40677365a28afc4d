"""Headgate: exact rate limits for Python programs and for the gateways in front of them."""

from headgate.decision import Decision, LimitReading
from headgate.errors import (
    ArgumentError,
    ConfigError,
    HeadgateError,
    LimitSyntaxError,
    MissingExtraError,
    RateLimited,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
)
from headgate.limit_text import parse_limits
from headgate.limiter import AsyncLimiter, Limiter
from headgate.limits import (
    Concurrent,
    FixedWindow,
    LeakyBucket,
    LeakyQueue,
    Limit,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from headgate.policy.gate import AsyncGate, Gate
from headgate.policy.problems import PolicyError
from headgate.policy.request import Request
from headgate.stores.memory import MemoryStore
from headgate.stores.shared import SharedStore

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "AsyncGate",
    "AsyncLimiter",
    "Concurrent",
    "ConfigError",
    "Decision",
    "FixedWindow",
    "Gate",
    "HeadgateError",
    "LeakyBucket",
    "LeakyQueue",
    "Limit",
    "LimitReading",
    "LimitSyntaxError",
    "Limiter",
    "MemoryStore",
    "MissingExtraError",
    "PolicyError",
    "RateLimited",
    "Request",
    "SharedStore",
    "SlidingLog",
    "SlidingWindow",
    "StoreError",
    "StoreTimeout",
    "StoreUnavailable",
    "TokenBucket",
    "parse_limits",
]

"""Headgate: exact rate limits for Python programs and for the gateways in front of them."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from headgate import starting as starting  # before the slow imports: a signal may arrive during them

# isort: split
from headgate.decision import Decision, LimitReading
from headgate.errors import (
    ArgumentError,
    ConfigError,
    ConflictingId,
    HeadgateError,
    Held,
    LimitSyntaxError,
    MissingExtraError,
    RateLimited,
    StoreError,
    StoreKeyError,
    StoreTimeout,
    StoreUnavailable,
    Throttled,
)
from headgate.holding import Extension, Settlement
from headgate.limit_text import parse_limits
from headgate.limiter import AsyncLimiter, Limiter
from headgate.limits import (
    CalendarWindow,
    Concurrent,
    FixedWindow,
    LeakyBucket,
    LeakyQueue,
    Limit,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from headgate.policy.descriptor import Descriptor
from headgate.policy.gate import AsyncGate, Gate
from headgate.policy.problems import PolicyError
from headgate.policy.request import Request
from headgate.reservation import AsyncReservation, Reservation
from headgate.stores.guard.store import GuardedStore
from headgate.stores.memory import MemoryStore
from headgate.stores.shared.store import SharedStore

if TYPE_CHECKING:
    from headgate.stores.redis.store import RedisStore

__version__ = "0.2.0.dev0"

__all__ = [
    "ArgumentError",
    "AsyncGate",
    "AsyncLimiter",
    "AsyncReservation",
    "CalendarWindow",
    "Concurrent",
    "ConfigError",
    "ConflictingId",
    "Decision",
    "Descriptor",
    "Extension",
    "FixedWindow",
    "Gate",
    "GuardedStore",
    "HeadgateError",
    "Held",
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
    "RedisStore",
    "Request",
    "Reservation",
    "Settlement",
    "SharedStore",
    "SlidingLog",
    "SlidingWindow",
    "StoreError",
    "StoreKeyError",
    "StoreTimeout",
    "StoreUnavailable",
    "Throttled",
    "TokenBucket",
    "parse_limits",
]


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ValueError:  # a module without a specification stands in for it, as a test may have it
        return True


if not TYPE_CHECKING and not (_is_installed("redis") and _is_installed("hiredis")):
    __all__.remove("RedisStore")  # `from headgate import *` imports each of these names


def __getattr__(name: str) -> Any:
    """Import RedisStore, which needs the extra `redis`, on first use."""
    if name == "RedisStore":
        from headgate.stores.url import redis_store

        return redis_store()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The state of a client's destinations: until when each is on hold, its retry budget, and its share of failures.

There is one thread-safe `Destination` for each key. Nothing here sleeps or sends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from headgate.clock import US_PER_SECOND
from headgate.forks import ProcessLock
from headgate.keys import Key, encode_key

MOST_DESTINATIONS = 4096
"""The number of keys that are stored; beyond that the least recently used is removed, if possible one not on hold."""

LARGEST_SPREAD_US = US_PER_SECOND
"""Calls that were held continue within a tenth of the hold, at most within a second."""

RETRIES_AT_FIRST = 10
MOST_RETRIES_SAVED = 100
RETRY_EVERY_US = 10 * US_PER_SECOND
"""Independent of its share of the calls, a key may retry ten times at first, and later once in ten seconds."""

WINDOW_BUCKETS = 24
BUCKET_US = 5 * US_PER_SECOND
"""The buckets cover two minutes, as in the SRE book."""

_MOST_EXAMINED = 16


class Throttle:
    """Client-side throttling: the probability with which a call is rejected before it is sent.

    It is max(0, (requests - k * accepts) / (requests + 1)) over the last two minutes, where a rejected call is a
    request, too. Source: Beyer et al., Site Reliability Engineering, chapter 21, "Handling Overload".
    """

    __slots__ = ("_accepts", "_bucket", "_k", "_requests")

    def __init__(self, k: float) -> None:
        self._k = k
        self._requests = [0] * WINDOW_BUCKETS
        self._accepts = [0] * WINDOW_BUCKETS
        self._bucket = 0

    def chance(self, now_us: int) -> float:
        """Return the probability with which to reject a call now."""
        self._move_to(now_us)
        requests = sum(self._requests)
        return max(0.0, (requests - self._k * sum(self._accepts)) / (requests + 1))

    def count(self, now_us: int, *, accepted: bool) -> None:
        """Count a request whose outcome is known; one that was not sent counts as not accepted."""
        self._move_to(now_us)
        self._requests[self._bucket % WINDOW_BUCKETS] += 1
        self._accepts[self._bucket % WINDOW_BUCKETS] += accepted

    def _move_to(self, now_us: int) -> None:
        bucket = now_us // BUCKET_US
        for passed in range(max(self._bucket + 1, bucket - WINDOW_BUCKETS + 1), bucket + 1):
            self._requests[passed % WINDOW_BUCKETS] = self._accepts[passed % WINDOW_BUCKETS] = 0
        self._bucket = max(self._bucket, bucket)  # a clock that is set back clears nothing


class Budget:
    """Retries as a share of calls, so that they do not overload a failing server; a token bucket.

    Each call adds `share` of a token, each retry takes one.
    """

    __slots__ = ("_share", "_tokens", "_updated_us")

    def __init__(self, share: float, now_us: int) -> None:
        self._share = share
        self._tokens = float(RETRIES_AT_FIRST)
        self._updated_us = now_us

    def add_call(self) -> None:
        self._tokens = min(MOST_RETRIES_SAVED, self._tokens + self._share)

    def take(self, now_us: int) -> bool:
        """Take a retry, if there is one."""
        if self._tokens < RETRIES_AT_FIRST:
            passed_us = max(0, now_us - self._updated_us)
            self._tokens = min(RETRIES_AT_FIRST, self._tokens + passed_us / RETRY_EVERY_US)
        self._updated_us = max(now_us, self._updated_us)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def give_back(self) -> None:
        self._tokens = min(MOST_RETRIES_SAVED, self._tokens + 1)


class Destination:
    """The hold, the retry budget and the throttle of one key."""

    __slots__ = ("_budget", "_held_until_us", "_lock", "_spread_us", "_throttle")

    def __init__(self, now_us: int, *, retry_budget: float, adaptive_k: float | None) -> None:
        self._lock = ProcessLock()
        self._held_until_us = now_us
        self._spread_us = 0
        self._budget = Budget(retry_budget, now_us)
        self._throttle = None if adaptive_k is None else Throttle(adaptive_k)

    @property
    def held_until_us(self) -> int:
        """The moment before which nothing is sent."""
        return self._held_until_us

    @property
    def spread_us(self) -> int:
        """The time after that within which the waiting calls continue."""
        return self._spread_us

    def hold(self, now_us: int, duration_us: int) -> None:
        """Send nothing for so long; a longer hold stays in force."""
        with self._lock.current:
            if now_us + duration_us > self._held_until_us:
                self._held_until_us = now_us + duration_us
                self._spread_us = min(duration_us // 10, LARGEST_SPREAD_US)

    def add_call(self) -> None:
        """Count a new call."""
        with self._lock.current:
            self._budget.add_call()

    def take_retry(self, now_us: int) -> bool:
        """Take a retry from the budget; return whether there was one."""
        with self._lock.current:
            return self._budget.take(now_us)

    def give_retry_back(self) -> None:
        """Return a retry to the budget: the server had asked for it."""
        with self._lock.current:
            self._budget.give_back()

    def rejects(self, now_us: int, random: Callable[[], float]) -> float:
        """Decide at random whether to reject a call; return the probability if so, and count the call, else 0."""
        if self._throttle is None:
            return 0.0
        with self._lock.current:
            chance = self._throttle.chance(now_us)
            if chance == 0 or random() >= chance:
                return 0.0
            self._throttle.count(now_us, accepted=False)
            return chance

    def count(self, now_us: int, *, accepted: bool) -> None:
        """Count the outcome of a request that was sent."""
        if self._throttle is not None:
            with self._lock.current:
                self._throttle.count(now_us, accepted=accepted)


class Destinations:
    """The destinations of one client, by key; their number is bounded."""

    def __init__(self, *, retry_budget: float, adaptive_k: float | None, most: int = MOST_DESTINATIONS) -> None:
        self._retry_budget = retry_budget
        self._adaptive_k = adaptive_k
        self._most = most
        self._destinations: OrderedDict[str, Destination] = OrderedDict()
        self._lock = ProcessLock()

    def __len__(self) -> int:
        return len(self._destinations)

    def of(self, key: Key, now_us: int) -> Destination:
        """Return the destination of a key; raises ArgumentError for a value that is not a key."""
        name = encode_key(key)
        with self._lock.current:
            destination = self._destinations.get(name)
            if destination is not None:
                self._destinations.move_to_end(name)
                return destination
            if len(self._destinations) >= self._most:
                self._forget_one(now_us)
            destination = Destination(now_us, retry_budget=self._retry_budget, adaptive_k=self._adaptive_k)
            self._destinations[name] = destination
            return destination

    def _forget_one(self, now_us: int) -> None:
        oldest = list(islice(self._destinations, _MOST_EXAMINED))
        free = (name for name in oldest if self._destinations[name].held_until_us <= now_us)
        del self._destinations[next(free, oldest[0])]

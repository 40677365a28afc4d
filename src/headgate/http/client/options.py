"""The options of a client that obeys limits, and their checks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, cast

from headgate.clock import SYSTEM_CLOCK, Clock
from headgate.costs import Cost
from headgate.decision import OnStoreError
from headgate.decorator import check_plain
from headgate.errors import ArgumentError, ConfigError, check_flag
from headgate.http.client.held_call import holds
from headgate.keys import Key, check_cost
from headgate.limiter import AnyLimits, AsyncLimiter, Limiter
from headgate.limits import Limit
from headgate.stores.guard.fallback import check_on_store_error
from headgate.stores.protocol import Store
from headgate.waiting.steps import timeout_us

ClientLimits = AnyLimits | Limiter | AsyncLimiter | None
"""The client's own limits: limits, a limiter (for a client in asyncio an AsyncLimiter), or None."""

MOST_RETRIES = 10
_WITH_LIMITS = ("cost", "store", "name", "on_store_error")


class Options(TypedDict, total=False):
    """How calls are held and repeated; defaults are in brackets."""

    key: Callable[[Any], Key]
    """Returns the key of the calls that are counted and held together, by the library's request [scheme, host and port
    of its URL]."""

    cost: Cost | Callable[[Any], Cost]
    """The cost of a request, with limits: a number, or one for each unit that they count [1]."""

    store: str | Store
    """The store of the limits' states, or its URL ["memory://"]. A store that was opened here is closed here."""

    name: str
    """The limiter's name: those of one name and store are one limiter [none]."""

    timeout: float | None
    """Seconds within which the last attempt of a call begins, all waits included; None for no limit [30].

    An attempt in progress is bounded by the library's own timeouts.
    """

    retries: int
    """The greatest number of retries of a call, 0 to 10 [2]."""

    retry_budget: float
    """Retries as a share of a key's calls, 0 to 1 [0.1]. Ten at first and one in ten seconds are free."""

    adaptive: bool
    """Whether to reject calls here while the server refuses most of them [False]."""

    adaptive_k: float
    """With `adaptive`: how many requests are sent for each that is accepted, from 1 [2]."""

    on_store_error: OnStoreError
    """What happens to a call where the store of the limits does not answer: this process decides by limits of its own
    ("local"), the call is sent ("open"), or StoreError is raised ("closed"). A limiter's own choice comes first, then
    this one, then `?on_error=` of the store's URL ["local"; "open" for a store without a guard]."""

    clock: Clock
    """Replaces the store's clock, and measures waits."""

    random: Callable[[], float]
    """Returns random numbers from 0 up to 1, for jitter and rejections [random.random]."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Checked options."""

    limiter: Limiter | AsyncLimiter | None
    owned: bool
    """Whether the limiter was made here."""

    holds: bool
    """Whether calls are held while they are in flight."""

    key: Callable[[Any], Key] | None
    cost: Cost | Callable[[Any], Cost]
    timeout_us: int
    retries: int
    retry_budget: float
    adaptive_k: float | None
    """None where no call is rejected here."""

    closed: bool
    clock: Clock
    random: Callable[[], float]


def read_options(limits: ClientLimits, options: Options, *, asynchronous: bool) -> Settings:
    """Return the checked settings, `asynchronous` for a client in asyncio; raises ConfigError for invalid options."""
    unknown = set(options) - set(Options.__annotations__)
    if unknown:
        raise TypeError(
            f"no option is named {', '.join(sorted(unknown))}; there are {', '.join(Options.__annotations__)}"
        )
    if limits is None:
        for name in _WITH_LIMITS:
            if name in options:
                raise ConfigError(f"{name} goes with limits, and there are none")
    key, clock, chance = options.get("key"), options.get("clock", SYSTEM_CLOCK), options.get("random", random.random)
    if key is not None and not callable(key):
        raise ConfigError(f"key is a function of the request, not {key!r}")
    check_plain("key", key)
    check_plain("cost", options.get("cost"))
    if not isinstance(clock, Clock):
        raise ConfigError(f"clock is a clock, with now_us and let_pass, not {clock!r}")
    if not callable(chance):
        raise ConfigError(f"random is a function that gives numbers from 0 up to 1, not {chance!r}")
    limiter = _limiter(limits, options, asynchronous=asynchronous)
    held = limiter is not None and holds(limiter.limits)
    if limiter is not None and held:
        limiter.id_of(("anyone",), "any")  # ConfigError where the store does not hold
    return Settings(
        limiter=limiter,
        owned=not isinstance(limits, Limiter | AsyncLimiter),
        holds=held,
        key=key,
        cost=_cost(options.get("cost", 1), limiter),
        timeout_us=_timeout_us(options.get("timeout", 30.0)),
        retries=_retries(options.get("retries", 2)),
        retry_budget=_number("retry_budget", options.get("retry_budget", 0.1), 0, 1),
        adaptive_k=_adaptive_k(options),
        closed=check_on_store_error(options.get("on_store_error")) == "closed",
        clock=clock,
        random=chance,
    )


def _limiter(limits: ClientLimits, options: Options, *, asynchronous: bool) -> Limiter | AsyncLimiter | None:
    choice = options.get("on_store_error")
    kind, other = (AsyncLimiter, Limiter) if asynchronous else (Limiter, AsyncLimiter)
    if limits is None:
        return None
    if isinstance(limits, other):
        raise ConfigError(
            "this client needs an AsyncLimiter, not a Limiter"
            if asynchronous
            else "this client needs a Limiter, not an AsyncLimiter"
        )
    if isinstance(limits, kind):
        for name in ("store", "name"):
            if name in options:
                raise ConfigError(f"{name} goes with limits; a limiter has its own")
        return limits.with_on_store_error(choice) if choice is not None else limits
    if not isinstance(limits, str | Limit | Sequence):
        raise ConfigError(f"limits are text, limit values, a limiter or None, not {limits!r}")
    store, name = options.get("store", "memory://"), options.get("name", "")
    return kind(limits, store=store, name=name, clock=options.get("clock"), on_store_error=choice)


def _cost(cost: object, limiter: Limiter | AsyncLimiter | None) -> Cost | Callable[[Any], Cost]:
    if callable(cost):
        return cast(Callable[[Any], Cost], cost)
    try:
        if limiter is None:
            check_cost(cost)
        else:
            limiter.counted.read(cost)
    except ArgumentError as error:
        if isinstance(cost, Mapping) or (limiter is not None and not limiter.counted.is_plain):
            raise ConfigError(f"cost is a number, one for each unit, or a function of the request: {error}") from error
        raise ConfigError(f"cost is a whole number from 0, or a function of the request, not {cost!r}") from error
    return cast(Cost, cost)


def _timeout_us(timeout: object) -> int:
    try:
        return timeout_us(cast(float, timeout))
    except ArgumentError as error:
        raise ConfigError(f"timeout is a number of seconds from 0, or None for no end, not {timeout!r}") from error


def _retries(retries: object) -> int:
    if isinstance(retries, bool) or not isinstance(retries, int) or not 0 <= retries <= MOST_RETRIES:
        raise ConfigError(f"retries is a whole number from 0 to {MOST_RETRIES}, not {retries!r}")
    return retries


def _adaptive_k(options: Options) -> float | None:
    adaptive = check_flag("adaptive", options.get("adaptive", False))
    if not adaptive and "adaptive_k" in options:
        raise ConfigError("adaptive_k goes with adaptive=True")
    k = _number("adaptive_k", options.get("adaptive_k", 2.0), 1, 1000)
    return k if adaptive else None


def _number(name: str, value: object, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(f"{name} is a number from {least:g} to {most:g}, not {value!r}")
    return float(value)

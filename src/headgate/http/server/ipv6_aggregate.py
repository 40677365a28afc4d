"""Limits on a network and, less strict, on the wider one around it, decided together.

A site often has 256 to 65,536 networks of /64 (RFC 6177), so it can evade a limit on each /64 alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from headgate.clock import Clock
from headgate.costs import Cost, Counted
from headgate.decision import Decision, name_limits
from headgate.errors import ConfigError
from headgate.keys import Key
from headgate.limits import Limit, units_of
from headgate.operation import Operation, Receipt
from headgate.stores.guard.choice import with_fallback
from headgate.stores.protocol import Store
from headgate.units import LARGEST

MOST_TIMES = 1_000_000


class WideLimiter:
    """Limits a pair of keys: the network's and the wider one's. `name` is the limiter's, "" for none."""

    def __init__(
        self,
        limits: Sequence[Limit],
        times: int,
        *,
        store: Store,
        name: str,
        shadow: bool,
        clock: Clock | None,
        asynchronous: bool,
        on_store_error: str,
    ) -> None:
        self.counted = Counted(units_of(limits))
        for limit in limits:
            if limit.quota * times > LARGEST:
                raise ConfigError(f"{times} times {limit} is more than can be counted, {LARGEST}")
        text = "; ".join(map(str, limits))
        scope = f"limiter/{name}" if name else f"limits/{text}"
        wider = [limit.scaled(Fraction(times)) for limit in limits]
        definitions = (
            *name_limits(limits, scope=scope, name=name or "default", shadow=shadow, on_store_error=on_store_error),
            *name_limits(
                wider,
                scope=f"{scope}/wide",
                name=f"{name or 'default'}.wide",
                shadow=shadow,
                group=len(self.counted.units),
                on_store_error=on_store_error,
            ),
        )
        bound: Any = (store.bind_async if asynchronous else store.bind)(definitions, clock=clock)
        self._bound = with_fallback(store, bound, definitions, clock) if on_store_error else bound

    def hit(self, keys: tuple[Key, Key], cost: Cost) -> Any:
        """Decide and charge; awaitable where the store waits for I/O on an event loop."""
        return self._bound.decide(self._operation(keys, self.counted.read(cost)))

    ask = hit

    def peek(self, keys: tuple[Key, Key], cost: Cost) -> Any:
        """Decide without charging."""
        return self._bound.decide(self._operation(keys, self.counted.read(cost), commit=False))

    def give_back(self, keys: tuple[Key, Key], cost: Cost, ago_us: int, decision: Decision) -> Any:
        """Give back what `hit` has charged; see `Limiter.give_back`."""
        operation = self._operation(keys, self.counted.read_part(cost))
        return self._bound.give_back(Receipt.of(operation, decision), ago_us)

    def _operation(self, keys: tuple[Key, Key], costs: tuple[int, ...], *, commit: bool = True) -> Operation:
        """Return the operation that charges each unit on both networks."""
        network, wider = keys
        groups = len(costs)
        return Operation((network,) * groups + (wider,) * groups, costs + costs, commit=commit)

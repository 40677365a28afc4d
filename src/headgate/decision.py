"""The answer to a request: a `Decision`, and the readings of its limits.

A `Decision` is made for every request, so where the native core is available its class is native. The
class here gives the same answers and is what type checkers see. Durations are exact integers of
microseconds (`..._us`) and, at the public edge, seconds as float.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from headgate import core
from headgate.amounts import REQUESTS, amount_text
from headgate.limits import Limit, groups_of

OnStoreError = Literal["local", "open", "closed"]
"""What decides where the store does not answer: an in-process limiter, or the configured choice to pass or refuse."""
ON_STORE_ERROR: tuple[OnStoreError, ...] = get_args(OnStoreError)


@dataclass(frozen=True, slots=True)
class NamedLimit:
    """A limit of a limiter or of a policy's rule, with its names.

    `scope` is its identity in a store, without its numbers: usage is kept when a number changes. `name` is its name in
    headers and reports, `rule` the name of the policy's rule it belongs to. A `shadow` limit is counted and refuses
    nothing. `group` is the index of the key and cost it is checked with; each unit has its own. `on_store_error` is
    what decides where the store cannot, see `OnStoreError`; empty for the store's own choice.
    """

    limit: Limit
    scope: str
    name: str
    rule: str = ""
    shadow: bool = False
    group: int = 0
    on_store_error: str = ""


def name_limits(
    limits: Sequence[Limit],
    *,
    scope: str,
    name: str,
    rule: str = "",
    shadow: bool = False,
    group: int = 0,
    on_store_error: str = "",
) -> tuple[NamedLimit, ...]:
    """Give each limit a scope and a name of its own.

    A scope states the unit unless that is requests, the family of the algorithm, and an index among limits of the same,
    not the numbers. A single limit has the name `name`; of several, each adds its period: "search.second". One that
    does not count requests adds its unit before that: "search.tokens.hour". `group` is that of the first unit by name.
    """
    units = groups_of(limits)
    families: Counter[tuple[str, str]] = Counter()
    names: Counter[str] = Counter()
    named = []
    for limit in limits:
        kind, counts_requests = (limit.of, limit.family), limit.of == REQUESTS
        own_scope = f"{scope if counts_requests else f'{scope}/of/{limit.of}'}/{limit.family}.{families[kind]}"
        families[kind] += 1
        limit_name = name if counts_requests else f"{name}.{limit.of}"
        limit_name = limit_name if len(limits) == 1 else f"{limit_name}.{limit.period_name}"
        names[limit_name] += 1
        limit_name = limit_name if names[limit_name] == 1 else f"{limit_name}-{names[limit_name]}"
        own_group = group + units.index(limit.of)
        named.append(NamedLimit(limit, own_scope, limit_name, rule, shadow, own_group, on_store_error))
    return tuple(named)


class Reading(NamedTuple):
    """The numbers of one limit; times in microseconds, `retry_after_us` None for never."""

    allowed: bool
    remaining: int
    reset_after_us: int
    retry_after_us: int | None
    next_after_us: int
    delay_us: int


@dataclass(frozen=True, slots=True)
class LimitReading:
    """The part that the limit `definition` has in a decision; times are in microseconds, and None is never.

    After an admitted hit the numbers are those after the charge, after a refusal those of the unchanged state; a peek
    shows what its cost would leave. `next_after_us` is until one more unit remains, `delay_us` the wait in a queue.
    """

    definition: NamedLimit
    allowed: bool
    remaining: int
    reset_after_us: int
    retry_after_us: int | None
    next_after_us: int
    delay_us: int

    @property
    def limit(self) -> int:
        """The greatest cost that can ever pass at one instant."""
        return self.definition.limit.quota

    @property
    def unit(self) -> str:
        """The unit of `limit` and `remaining`: "requests", "tokens", or a currency, counted in billionths."""
        return self.definition.limit.of

    @property
    def name(self) -> str:
        """The limit's name in headers and reports, such as "search.minute"."""
        return self.definition.name

    @property
    def rule(self) -> str:
        """The name of its rule; empty outside a policy."""
        return self.definition.rule

    @property
    def shadow(self) -> bool:
        """Whether the limit only counts and reports, and refuses nothing."""
        return self.definition.shadow

    @property
    def reset_after(self) -> float:
        """Seconds until no earlier usage counts any more."""
        return self.reset_after_us / 1e6

    @property
    def retry_after(self) -> float | None:
        """Seconds until this cost would pass this limit: 0.0 if it passes now, None for never."""
        return None if self.retry_after_us is None else self.retry_after_us / 1e6

    @property
    def delay(self) -> float:
        """Seconds an admitted caller waits before it proceeds; above 0 only for queues."""
        return self.delay_us / 1e6


class Decision:
    """The answer for one request: yes, not until then, or never. `bool(decision)` is `allowed`.

    `limit`, `remaining` and `reset_after` are those of `binding`, the binding limit: of those that refuse the one with
    the longest wait, else the one nearest to refusing. They are None where no limit applied. `retry_after` is 0.0 when
    allowed and None when waiting cannot help. `degraded` says what decided where the store did not, see `OnStoreError`.
    """

    __slots__ = ("_binding", "_definitions", "_readings", "allowed", "degraded")

    allowed: bool
    degraded: str

    def __init__(
        self,
        definitions: tuple[NamedLimit, ...],
        readings: Sequence[Reading],
        *,
        allowed: bool,
        binding: int | None,
        degraded: str = "",
    ) -> None:
        self._definitions = definitions
        self._readings = tuple(readings)
        self._binding = binding
        self.allowed = allowed
        self.degraded = degraded

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def definitions(self) -> tuple[NamedLimit, ...]:
        """The limits that were asked, in their order."""
        return self._definitions

    @property
    def readings(self) -> tuple[tuple[bool, int, int, int | None, int, int], ...]:
        """The numbers of `limits`, in the order of a `Reading`; cheaper to read where few are needed."""
        return self._readings

    @property
    def limits(self) -> tuple[LimitReading, ...]:
        """Every limit's own numbers, in the order of the limits."""
        pairs = zip(self._definitions, self._readings, strict=True)
        return tuple(LimitReading(definition, *numbers) for definition, numbers in pairs)

    @property
    def refusals(self) -> tuple[LimitReading, ...]:
        """The limits that refuse by themselves, including shadow limits; usually none."""
        return tuple(reading for reading in self.limits if not reading.allowed)

    @property
    def binding(self) -> LimitReading | None:
        """The binding limit; None where no limit applied."""
        index = self._binding
        return None if index is None else LimitReading(self._definitions[index], *self._readings[index])

    @property
    def limit(self) -> int | None:
        """The binding limit's quota."""
        return None if self._binding is None else self._definitions[self._binding].limit.quota

    @property
    def rule(self) -> str:
        """The name of the binding limit's rule; empty outside a policy."""
        return "" if self._binding is None else self._definitions[self._binding].rule

    @property
    def remaining(self) -> int | None:
        """The greatest cost that the binding limit would still admit now."""
        return None if self._binding is None else self._readings[self._binding].remaining

    @property
    def reset_after_us(self) -> int | None:
        """Microseconds until the binding limit is as if never used."""
        return None if self._binding is None else self._readings[self._binding].reset_after_us

    @property
    def retry_after_us(self) -> int | None:
        """Microseconds until this request would pass: 0 when allowed, None for never."""
        if self.allowed:
            return 0
        return None if self._binding is None else self._readings[self._binding].retry_after_us

    @property
    def delay_us(self) -> int:
        """Microseconds an admitted caller waits before it proceeds; above 0 only for queues."""
        return max((reading.delay_us for reading in self._readings), default=0)

    @property
    def reset_after(self) -> float | None:
        """Seconds until the binding limit is as if never used."""
        return None if self.reset_after_us is None else self.reset_after_us / 1e6

    @property
    def retry_after(self) -> float | None:
        """Seconds until this request would pass: 0.0 when allowed, None for never."""
        return None if self.retry_after_us is None else self.retry_after_us / 1e6

    @property
    def delay(self) -> float:
        """Seconds an admitted caller waits before it proceeds; above 0 only for queues."""
        return self.delay_us / 1e6

    def __repr__(self) -> str:
        return describe(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self._definitions, self._readings, self.allowed, self._binding, self.degraded))


def binding_of(
    definitions: Sequence[NamedLimit], readings: Sequence[Reading], costs: Sequence[int], *, allowed: bool
) -> int | None:
    """The index of the binding limit, None where no limit is enforced.

    On a refusal that is the limit with the longest wait, of equals the first; else the one with the
    fewest further requests of this cost, of equals the one that resets last.
    """
    best: int | None = None
    best_rank: tuple[int, int] = (0, 0)
    for index, (definition, reading) in enumerate(zip(definitions, readings, strict=True)):
        if definition.shadow or (not allowed and reading.allowed):
            continue
        if allowed:
            rank = (-(reading.remaining // max(costs[index], 1)), reading.reset_after_us)
        else:
            rank = (1, 0) if reading.retry_after_us is None else (0, reading.retry_after_us)
        if best is None or rank > best_rank:
            best, best_rank = index, rank
    return best


def describe(decision: Decision) -> str:
    """A decision as one line of text, for `repr`."""
    parts = [f"allowed={decision.allowed}"]
    if decision.rule:
        parts.append(f"rule={decision.rule!r}")
    if (binding := decision.binding) is not None:
        limit, remaining = (amount_text(number, binding.unit) for number in (binding.limit, binding.remaining))
        parts.append(f"limit={limit}, remaining={remaining}, reset_after={binding.reset_after}")
    if not decision.allowed:
        parts.append(f"retry_after={decision.retry_after}")
    if decision.delay_us:
        parts.append(f"delay={decision.delay}")
    parts += [f"degraded={decision.degraded!r}"] if decision.degraded else []
    return f"Decision({', '.join(parts)})"


def _rebuild(definitions: Any, readings: Any, allowed: bool, binding: int | None, degraded: str) -> Decision:
    return Decision(definitions, readings, allowed=allowed, binding=binding, degraded=degraded)


PythonDecision = Decision
if not TYPE_CHECKING and core.native is not None:
    Decision = core.native.Decision

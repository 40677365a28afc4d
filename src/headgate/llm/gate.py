"""Gates of language models: what a policy says of calls, bound to a store. `LlmGate` for threads, `AsyncLlmGate`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any

from headgate.clock import SYSTEM_CLOCK, Clock, now_us
from headgate.decision import OnStoreError
from headgate.errors import ArgumentError, ConfigError, kind_of
from headgate.holding import Hold
from headgate.llm.around import Around
from headgate.llm.call import AsyncCall, Call
from headgate.llm.call_base import Asked
from headgate.llm.call_costs import UnknownPriceError
from headgate.llm.call_size import Counted, size_of
from headgate.llm.dialects.paths import check_dialect
from headgate.llm.entry import Books
from headgate.llm.fallback_models import first_of
from headgate.llm.gate_parts import GateParts
from headgate.llm.inputs import with_input_counted
from headgate.llm.known_calls import KnownCall, KnownCalls
from headgate.llm.learned import Coverage, Learned, NothingLearned, learned_for
from headgate.llm.prices import PriceBook, has_price_list
from headgate.llm.soft_limits import SoftLimit
from headgate.llm.terms import terms_text
from headgate.llm.told_once import ToldOnce
from headgate.policy.compiled import Policy
from headgate.policy.gate import AnyPolicy, AsyncGate, Gate, read_policy
from headgate.policy.llm_settings import HoldMode, LlmSettings
from headgate.policy.subject import Subject
from headgate.stores.protocol import Store

_TOLD_NEVER = "background"
"""What a body of responses has that is answered before it is done: what it made is asked for elsewhere, so all that it
may make is held."""


class _LlmGate:
    """What gates of both colours are made of."""

    _gate: Any
    _is_async: bool

    def __init__(
        self,
        policy: AnyPolicy,
        make: Callable[..., Any],
        store: str | Store | None,
        clock: Clock | None,
        on_store_error: OnStoreError | None,
        learned: Learned | None,
        books: Books | None,
    ) -> None:
        compiled, settings, prices = read_llm_policy(policy)
        self._gate = make(compiled, store=store, clock=clock, on_store_error=on_store_error)
        self._own_learned = learned_for(self._gate.store, namespace=compiled.namespace) if learned is None else None
        known = learned or self._own_learned or NothingLearned()
        told = ToldOnce(self._gate.store, namespace=compiled.namespace, clock=clock)
        choice: OnStoreError = getattr(self._gate.store, "on_error", "local")
        self._parts = GateParts(settings, clock or SYSTEM_CLOCK, prices, known, books, told, choice)
        self._now_us = now_us if clock is None else clock.now_us
        self._calls = KnownCalls(self._gate, settings, self._parts.prices)
        self._gate.before_reload.append(_settings_and_prices)
        self._gate.reloaded.append(self._follow)

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        policy: Policy = self._gate.policy
        return policy

    @property
    def settings(self) -> LlmSettings:
        """What the policy's section `llm` says."""
        return self._parts.settings

    @property
    def looks_at_requests(self) -> bool:
        """Whether rules or keys depend on the HTTP request that a call came in, so that `request` matters."""
        return not self._calls.is_alike

    @property
    def gate(self) -> Any:
        """The gate that decides: a `Gate`, or an `AsyncGate`."""
        return self._gate

    @property
    def learned(self) -> Learned:
        """What calls used to take."""
        return self._parts.learned

    def coverage(self) -> dict[str, Coverage]:
        """By model, of the last calls that were held by an estimate: how many there were, and made more than that.

        Of all processes that learn together, each as far as it has asked.
        """
        return self._parts.learned.coverage()

    def reload(self, policy: AnyPolicy) -> None:
        """Put another policy in force, completely or not at all; calls under way settle by what they held.

        Raises PolicyError or ConfigError; then the old one stays.
        """
        self._gate.reload(read_policy(policy))

    def _follow(self) -> None:
        """Go on with the settings and prices of the policy in force, and begin anew to know of calls."""
        settings, prices = _settings_and_prices(self.policy)
        self._parts.use(settings, prices)
        self._calls = KnownCalls(self._gate, settings, self._parts.prices)

    def watch_soft_limits(self, listener: Callable[[tuple[SoftLimit, ...]], object]) -> None:
        """Have a listener called with the soft limits that a call has reached, on the thread of that call."""
        self._parts.warned.append(listener)

    def _ask(
        self,
        asking: Any,
        body: Mapping[str, Any] | None,
        fields: dict[str, Any],
        input_tokens: Counted | None,
        request: Subject | None,
    ) -> Asked:
        """What is asked for a call, by the `Asking` that its caller gave. Raises ArgumentError, UnknownPriceError."""
        processing = fields.pop("processing", None) if "processing" in fields else None
        dialect = check_dialect(fields.pop("dialect")) if "dialect" in fields else ""
        if body is not None:
            if not isinstance(body, Mapping):
                raise ArgumentError(f"the body of a call is a mapping, not {kind_of(body)}")
            fields = {**body, **fields}
            if asking[0] is None:
                named = fields.pop("model", None)
                asking = (first_of(fields) if named is None else named, *asking[1:])
        parts, calls = self._parts, self._calls
        try:
            known = calls.known.get(asking)
        except TypeError:
            known = None  # what is no text may have no hash
        if known is None or not (request is None or calls.is_alike):
            known = calls.of(asking, request)
        size = size_of(fields, known, calls.settings, parts, input_tokens, processing, dialect)
        if size.others:
            known = calls.of_several(asking, size.others, request)
        plan = known.plan
        most = size.most
        made = (most,) * len(plan.modes)
        if not plan.holds_most and not fields.get(_TOLD_NEVER):
            settings = calls.settings
            made = tuple([most if mode == "max" else self._output(mode, known, most, settings) for mode in plan.modes])
        at_us = self._now_us()
        price = known.dearest(at_us, size.terms)
        unpriced = known.model
        for other in size.others:
            of_other = parts.prices.dearest(other, at_us, size.terms)
            if price is not None:
                price, unpriced = (None, other) if of_other is None else (price.dearest(of_other), unpriced)
        if price is None and plan.needs_price:
            asked = f" with {terms_text(size.terms)}" if size.terms else ""
            raise _unknown_price(unpriced, asked)
        return known, size, price, made, plan.units(size.input, made, price, size.searches), at_us

    def _output(self, mode: HoldMode, known: KnownCall, most: int, settings: LlmSettings) -> int:
        """The tokens of output that a way to hold asks for, of the most that there can be."""
        if mode == "slices":
            return min(settings.slice, most)
        learned = self._parts.learned.output(known.who, known.model, most)
        return min(settings.expected_output if learned is None else learned, most)

    def held_before(
        self,
        model: str | None = None,
        *,
        id: str | bytes,
        key: str = "",
        user: str = "",
        team: str = "",
        organisation: str = "",
        tier: str = "",
        body: Mapping[str, Any] | None = None,
        input_tokens: Counted | None = None,
        **fields: Any,
    ) -> Any:
        """The call that was held before under this id, by whatever estimate, to be settled; nothing is asked.

        Else as `reserve`, which raises ConflictingId where the estimate has changed.
        """
        asking = (model, key, user, team, organisation, tier)
        asked = self._ask(asking, body, fields, input_tokens, None)
        known = asked[0]
        reservation = self._gate.held_before(known.resolved, id, known.lease_us)
        call = AsyncCall if self._is_async else Call
        return call(self._parts, asked, reservation)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.policy.namespace!r}, store={self._gate.store!r})"


class LlmGate(_LlmGate, Around):
    """A policy of calls of language models, bound to a store; safe under threads.

    `policy` is the path of a policy file with a section `llm`, its values as a mapping, or a Policy. `store` and
    `on_store_error` are those of `Gate`. `learned` tells what calls used to take [what is learned by all processes that
    use the store], `books` keep what each held and used. Raises PolicyError, or ConfigError for a policy without the
    section.
    """

    def __init__(
        self,
        policy: AnyPolicy,
        *,
        store: str | Store | None = None,
        clock: Clock | None = None,
        on_store_error: OnStoreError | None = None,
        learned: Learned | None = None,
        books: Books | None = None,
    ) -> None:
        super().__init__(policy, Gate, store, clock, on_store_error, learned, books)

    def reserve(
        self,
        model: str | None = None,
        *,
        key: str = "",
        user: str = "",
        team: str = "",
        organisation: str = "",
        tier: str = "",
        body: Mapping[str, Any] | None = None,
        input_tokens: Counted | None = None,
        id: str | bytes | None = None,
        request: Subject | None = None,
        **fields: Any,
    ) -> Call:
        """Hold a call by all rules that apply, or none: true where it is held.

        `key`, `user`, `team`, `organisation` and `tier` say who calls. `body` is what is sent to the provider, and
        `fields` are fields of it (`messages=...`, `max_tokens=...`); its `model` counts where none is given. With
        `processing="batch"` it is a call of a batch, settled at its price; `dialect` is the name of the body's
        (`"chat"`, `"completions"`, `"responses"`, `"embeddings"`, `"messages"`), which says what bounds its output and
        its searches of the web. Its input is counted, unless `input_tokens` are given. `id` is a name for the hold
        within the key of the first rule that applies.
        `request` is the HTTP request that it came in, for rules by path, header or address. Where rules have a `wait`,
        it stands in line.
        Raises ArgumentError for a body that no provider takes, UnknownPriceError.
        """
        asked = self._ask((model, key, user, team, organisation, tier), body, fields, input_tokens, request)
        known, size, price, made, units, _ = asked
        keyed = known.keyed
        if keyed is not None and id is None:
            return Call(self._parts, asked, keyed.hold(units), keyed)
        hold = Hold(id, known.lease_us)
        reservation = self._gate.reserve_groups(known.resolver, known.resolved, known.plan.held(units), hold)
        return Call(self._parts, (known, size, price, made, units, self._now_us()), reservation)

    def call(self, model: str | None = None, **call: Any) -> AbstractContextManager[Call]:
        """`reserve` where a `with` block begins, which raises RateLimited where the call is refused; see `Call`."""
        return _Calling(self, model, call)

    def close(self) -> None:
        """Close the store, and tell other processes what was learned."""
        if self._own_learned is not None:
            self._own_learned.close()
        self._gate.close()

    def __enter__(self) -> LlmGate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncLlmGate(_LlmGate, Around):
    """`LlmGate` for asyncio: the same names, awaited."""

    _is_async = True

    def __init__(
        self,
        policy: AnyPolicy,
        *,
        store: str | Store | None = None,
        clock: Clock | None = None,
        on_store_error: OnStoreError | None = None,
        learned: Learned | None = None,
        books: Books | None = None,
    ) -> None:
        super().__init__(policy, AsyncGate, store, clock, on_store_error, learned, books)

    async def reserve(
        self,
        model: str | None = None,
        *,
        key: str = "",
        user: str = "",
        team: str = "",
        organisation: str = "",
        tier: str = "",
        body: Mapping[str, Any] | None = None,
        input_tokens: Counted | None = None,
        id: str | bytes | None = None,
        request: Subject | None = None,
        **fields: Any,
    ) -> AsyncCall:
        """See `LlmGate.reserve`. Count long inputs in a thread before, and give the InputCount as `input_tokens`."""
        asked = self._ask((model, key, user, team, organisation, tier), body, fields, input_tokens, request)
        known, size, price, made, units, _ = asked
        keyed = known.keyed
        if keyed is not None and id is None:
            return AsyncCall(self._parts, asked, keyed.hold(units), keyed)
        hold = Hold(id, known.lease_us)
        reservation = await self._gate.reserve_groups(known.resolver, known.resolved, known.plan.held(units), hold)
        return AsyncCall(self._parts, (known, size, price, made, units, self._now_us()), reservation)

    def call(self, model: str | None = None, **call: Any) -> AbstractAsyncContextManager[AsyncCall]:
        """See `LlmGate.call`; for `async with`."""
        return _AsyncCalling(self, model, call)

    async def warm_up(self) -> None:
        """Have the store connect before the first call; a failure is logged."""
        await self._gate.warm_up()

    async def close(self) -> None:
        """Close the store, and tell other processes what was learned."""
        if self._own_learned is not None:
            await asyncio.to_thread(self._own_learned.close)
        await self._gate.close()

    async def __aenter__(self) -> AsyncLlmGate:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Calling:
    """A call that is held when its block begins."""

    def __init__(self, gate: LlmGate, model: str | None, call: dict[str, Any]) -> None:
        self._gate = gate
        self._asked = (model, call)

    def __enter__(self) -> Call:
        model, asked = self._asked
        self._call = self._gate.reserve(model, **asked)
        return self._call.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call.__exit__(kind, error, trace)


class _AsyncCalling:
    """`_Calling` for asyncio."""

    def __init__(self, gate: AsyncLlmGate, model: str | None, call: dict[str, Any]) -> None:
        self._gate = gate
        self._asked = (model, call)

    async def __aenter__(self) -> AsyncCall:
        model, asked = self._asked
        self._call = await self._gate.reserve(model, **await with_input_counted(model, asked))
        return await self._call.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._call.__aexit__(kind, error, trace)


def _unknown_price(model: str, asked: str) -> UnknownPriceError:
    """The error for a model without a price, and what helps."""
    without = "" if has_price_list() else "; the list of prices is not installed: pip install 'headgate[llm]'"
    return UnknownPriceError(
        f"the price of the model {model!r}{asked} is not known, and a limit counts usd: give it one in llm.prices, "
        f"or say in llm.unknown_price what it costs{without}"
    )


def read_llm_policy(source: AnyPolicy) -> tuple[Policy, LlmSettings, PriceBook]:
    """A policy, what it says of calls, and the prices. Raises PolicyError, ConfigError."""
    policy = read_policy(source)
    return policy, *_settings_and_prices(policy)


def _settings_and_prices(policy: Policy) -> tuple[LlmSettings, PriceBook]:
    """What a policy says of calls. Raises ConfigError."""
    if policy.llm is None:
        raise ConfigError("the policy is not of calls of language models: it needs the section llm, such as llm: {}")
    try:
        return policy.llm, PriceBook(policy.llm.prices)
    except ConfigError as error:
        raise ConfigError(f"llm.{error}") from None

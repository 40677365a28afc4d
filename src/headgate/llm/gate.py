"""Gates of language models: policies of calls, bound to a store; `LlmGate` for threads, `AsyncLlmGate` for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any

from headgate.clock import SYSTEM_CLOCK, Clock, now_us
from headgate.decision import OnStoreError
from headgate.errors import ArgumentError, ConfigError, kind_of
from headgate.forks import InOneProcess
from headgate.holding import Hold
from headgate.llm.call import AsyncCall, Call
from headgate.llm.call_base import CallDemand
from headgate.llm.call_costs import UnknownPriceError
from headgate.llm.call_size import InputTokens, size_of
from headgate.llm.call_wrappers import CallWrappers
from headgate.llm.dialects.paths import check_dialect
from headgate.llm.entry import Books
from headgate.llm.fallback_models import first_of
from headgate.llm.gate_parts import GateParts
from headgate.llm.inputs import with_input_counted
from headgate.llm.known_calls import KnownCall, KnownCalls
from headgate.llm.learned import Coverage, Learned, NothingLearned, learned_for
from headgate.llm.notification_claims import NotificationClaims
from headgate.llm.prices import PriceBook, has_price_list
from headgate.llm.soft_limits import SoftLimit
from headgate.llm.terms import terms_text
from headgate.policy.compiled import Policy
from headgate.policy.gate import AnyPolicy, AsyncGate, Gate, read_policy
from headgate.policy.llm_settings import HoldMode, LlmSettings
from headgate.policy.subject import Subject
from headgate.stores.protocol import Store

_BACKGROUND = "background"
"""The field of responses that are answered before they are complete. Their output is fetched by other requests, so the
most output that they can have is held."""


class _LlmGate(InOneProcess):
    """The part of gates that threads and asyncio share."""

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
        claims = NotificationClaims(self._gate.store, namespace=compiled.namespace, clock=clock)
        choice: OnStoreError = getattr(self._gate.store, "on_error", "local")
        self._parts = GateParts(settings, clock or SYSTEM_CLOCK, prices, known, books, claims, choice)
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
        """The settings of the policy's section `llm`."""
        return self._parts.settings

    @property
    def looks_at_requests(self) -> bool:
        """Whether rules or keys depend on the HTTP request of a call, so that `request` matters."""
        return not self._calls.is_request_independent

    @property
    def gate(self) -> Any:
        """The gate that decides: a `Gate`, or an `AsyncGate`."""
        return self._gate

    @property
    def learned(self) -> Learned:
        """What was learned of the usage of earlier calls."""
        return self._parts.learned

    def coverage(self) -> dict[str, Coverage]:
        """By model, how many of the last calls were held by an estimate, and how many of these exceeded it.

        It covers all processes that learn together, for models that this process has requested.
        """
        return self._parts.learned.coverage()

    def reload(self, policy: AnyPolicy) -> None:
        """Put another policy in force, completely or not at all; calls under way settle by what they hold.

        Raises PolicyError or ConfigError; then the old policy stays in force.
        """
        self._gate.reload(read_policy(policy))

    def _follow(self) -> None:
        """Take over the settings and prices of the policy in force, and forget all known calls."""
        settings, prices = _settings_and_prices(self.policy)
        self._parts.use(settings, prices)
        self._calls = KnownCalls(self._gate, settings, self._parts.prices)

    def watch_soft_limits(self, listener: Callable[[tuple[SoftLimit, ...]], object]) -> None:
        """Register a listener, which is called with the soft limits that a call has reached, on that call's thread."""
        self._parts.listeners.append(listener)

    def _demand(
        self,
        model_and_caller: Any,
        body: Mapping[str, Any] | None,
        fields: dict[str, Any],
        input_tokens: InputTokens | None,
        request: Subject | None,
    ) -> CallDemand:
        """What a call demands, by the `ModelAndCaller` that was passed. Raises ArgumentError, UnknownPriceError."""
        processing = fields.pop("processing", None) if "processing" in fields else None
        dialect = check_dialect(fields.pop("dialect")) if "dialect" in fields else ""
        if body is not None:
            if not isinstance(body, Mapping):
                raise ArgumentError(f"the body of a call is a mapping, not {kind_of(body)}")
            fields = {**body, **fields}
            if model_and_caller[0] is None:
                model = fields.pop("model", None)
                model_and_caller = (first_of(fields) if model is None else model, *model_and_caller[1:])
        parts, calls = self._parts, self._calls
        try:
            known = calls.known.get(model_and_caller)
        except TypeError:
            known = None  # a value that is not text may be unhashable
        if known is None or not (request is None or calls.is_request_independent):
            known = calls.of(model_and_caller, request)
        size = size_of(fields, known, calls.settings, parts, input_tokens, processing, dialect)
        if size.others:
            known = calls.of_several(model_and_caller, size.others, request)
        plan = known.plan
        most = size.most
        held = (most,) * len(plan.modes)
        if not plan.holds_most and not fields.get(_BACKGROUND):
            settings = calls.settings
            held = tuple([most if mode == "max" else self._output(mode, known, most, settings) for mode in plan.modes])
        at_us = self._now_us()
        price = known.dearest(at_us, size.terms)
        unpriced = known.model
        for other in size.others:
            of_other = parts.prices.dearest(other, at_us, size.terms)
            if price is not None:
                price, unpriced = (None, other) if of_other is None else (price.dearest(of_other), unpriced)
        if price is None and plan.needs_price:
            terms = f" with {terms_text(size.terms)}" if size.terms else ""
            raise _unknown_price(unpriced, terms)
        return known, size, price, held, plan.units(size.input, held, price, size.searches), at_us

    def _output(self, mode: HoldMode, known: KnownCall, most: int, settings: LlmSettings) -> int:
        """The tokens of output to hold in a mode; `most` is the most that the call can have."""
        if mode == "slices":
            return min(settings.slice, most)
        learned = self._parts.learned.output(known.caller_id, known.model, most)
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
        input_tokens: InputTokens | None = None,
        **fields: Any,
    ) -> Any:
        """The call that was held before under this id, by whatever estimate, to be settled. The store is not called.

        Arguments are those of `reserve`, which raises ConflictingId where the estimate has changed.
        """
        model_and_caller = (model, key, user, team, organisation, tier)
        demand = self._demand(model_and_caller, body, fields, input_tokens, None)
        known = demand[0]
        reservation = self._gate.held_before(known.resolved, id, known.lease_us)
        call = AsyncCall if self._is_async else Call
        return call(self._parts, demand, reservation)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.policy.namespace!r}, store={self._gate.store!r})"


class LlmGate(_LlmGate, CallWrappers):
    """A policy of calls of language models, bound to a store; safe under threads.

    `policy` is the path of a policy file with a section `llm`, its values as a mapping, or a Policy. `store` and
    `on_store_error` are those of `Gate`. `learned` provides what was learned of the usage of earlier calls [by default
    by all processes that use the store]. `books` record what each call held and used. Raises PolicyError, or
    ConfigError for a policy without the section.
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
        input_tokens: InputTokens | None = None,
        id: str | bytes | None = None,
        request: Subject | None = None,
        **fields: Any,
    ) -> Call:
        """Hold a call by all rules that apply, or by none; the result is true if it is held.

        `key`, `user`, `team`, `organisation` and `tier` identify the caller. `body` is the body sent to the provider,
        and `fields` are further fields of it (`messages=...`, `max_tokens=...`); its `model` counts if `model` is None.
        With `processing="batch"` it is a call of a batch, settled at the batch price. `dialect` is the dialect of the
        body (`"chat"`, `"completions"`, `"responses"`, `"embeddings"`, `"messages"`), on which it depends which fields
        limit its output and its web searches. The input is counted, unless `input_tokens` are given. `id` is a name for
        the hold within the key of the first rule that applies.
        `request` is the HTTP request of the call, for rules by path, header or address. Where rules have a `wait`, the
        call waits in line.
        Raises ArgumentError for a body that no provider accepts, and UnknownPriceError.
        """
        demand = self._demand((model, key, user, team, organisation, tier), body, fields, input_tokens, request)
        known, size, price, outputs, units, _ = demand
        keyed = known.keyed
        if keyed is not None and id is None:
            return Call(self._parts, demand, keyed.hold(units), keyed)
        hold = Hold(id, known.lease_us)
        reservation = self._gate.reserve_groups(known.resolver, known.resolved, known.plan.held(units), hold)
        return Call(self._parts, (known, size, price, outputs, units, self._now_us()), reservation)

    def call(self, model: str | None = None, **call: Any) -> AbstractContextManager[Call]:
        """`reserve` at the start of a `with` block, which raises RateLimited if the call is refused; see `Call`."""
        return _CallBlock(self, model, call)

    def close(self) -> None:
        """Close the store, and share with other processes what was learned."""
        if self._own_learned is not None:
            self._own_learned.close()
        self._gate.close()

    def __enter__(self) -> LlmGate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncLlmGate(_LlmGate, CallWrappers):
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
        input_tokens: InputTokens | None = None,
        id: str | bytes | None = None,
        request: Subject | None = None,
        **fields: Any,
    ) -> AsyncCall:
        """See `LlmGate.reserve`. Count long inputs in a thread first, and pass the InputCount as `input_tokens`."""
        demand = self._demand((model, key, user, team, organisation, tier), body, fields, input_tokens, request)
        known, size, price, outputs, units, _ = demand
        keyed = known.keyed
        if keyed is not None and id is None:
            return AsyncCall(self._parts, demand, keyed.hold(units), keyed)
        hold = Hold(id, known.lease_us)
        reservation = await self._gate.reserve_groups(known.resolver, known.resolved, known.plan.held(units), hold)
        return AsyncCall(self._parts, (known, size, price, outputs, units, self._now_us()), reservation)

    def call(self, model: str | None = None, **call: Any) -> AbstractAsyncContextManager[AsyncCall]:
        """See `LlmGate.call`; for `async with`."""
        return _AsyncCallBlock(self, model, call)

    async def warm_up(self) -> None:
        """Connect the store before the first call; a failure is logged."""
        await self._gate.warm_up()

    async def close(self) -> None:
        """Close the store, and share with other processes what was learned."""
        if self._own_learned is not None:
            await asyncio.to_thread(self._own_learned.close)
        await self._gate.close()

    async def __aenter__(self) -> AsyncLlmGate:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _CallBlock:
    """The context manager of `LlmGate.call`, which holds the call when its block begins."""

    def __init__(self, gate: LlmGate, model: str | None, call: dict[str, Any]) -> None:
        self._gate = gate
        self._arguments = (model, call)

    def __enter__(self) -> Call:
        model, options = self._arguments
        self._call = self._gate.reserve(model, **options)
        return self._call.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call.__exit__(kind, error, trace)


class _AsyncCallBlock:
    """`_CallBlock` for asyncio."""

    def __init__(self, gate: AsyncLlmGate, model: str | None, call: dict[str, Any]) -> None:
        self._gate = gate
        self._arguments = (model, call)

    async def __aenter__(self) -> AsyncCall:
        model, options = self._arguments
        self._call = await self._gate.reserve(model, **await with_input_counted(model, options))
        return await self._call.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._call.__aexit__(kind, error, trace)


def _unknown_price(model: str, terms: str) -> UnknownPriceError:
    """The error for a model without a price, with its remedies."""
    hint = "" if has_price_list() else "; the list of prices is not installed: pip install 'headgate[llm]'"
    return UnknownPriceError(
        f"the price of the model {model!r}{terms} is not known, and a limit counts usd: give it one in llm.prices, "
        f"or say in llm.unknown_price what it costs{hint}"
    )


def read_llm_policy(source: AnyPolicy) -> tuple[Policy, LlmSettings, PriceBook]:
    """Read a policy, its settings of calls, and its prices. Raises PolicyError, ConfigError."""
    policy = read_policy(source)
    return policy, *_settings_and_prices(policy)


def _settings_and_prices(policy: Policy) -> tuple[LlmSettings, PriceBook]:
    """The settings and the prices of a policy. Raises ConfigError."""
    if policy.llm is None:
        raise ConfigError("the policy is not of calls of language models: it needs the section llm, such as llm: {}")
    try:
        return policy.llm, PriceBook(policy.llm.prices)
    except ConfigError as error:
        raise ConfigError(f"llm.{error}") from None

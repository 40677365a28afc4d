"""The proxy's metrics for Prometheus. Names of models are labels only up to a bound: clients choose them."""

from __future__ import annotations

import asyncio
from collections import Counter as Counts
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from headgate.errors import MissingExtraError
from headgate.llm.entry import Books, Entry
from headgate.llm.learned import Coverage
from headgate.observe.worker_files import Sharing, registries

try:
    from prometheus_client import Counter, Gauge, Histogram, generate_latest
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingExtraError("the proxy of language models", extra="llm-proxy", why=error) from error

_MOST_MODELS = 200
_MOST_HELD = 100_000
OTHERS = "other"
_COUNT_DELAY_S = 0.01
"""The delay of counting: by then the call or the answer that was ready was passed on."""

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class ProxyMetrics:
    """The metrics of one proxy; with `sharing` one worker's share of them. The exposition has those of all workers.

    They are books, too: entries of calls report what was held, used and spent. On an event loop, events are counted
    together a moment later: a call is sent to its provider, and an answer to its client, before they are counted.
    """

    def __init__(self, books: Books | None = None, sharing: Sharing | None = None) -> None:
        self._books = books
        self._models: set[str] = set()
        self._held: dict[str, tuple[int, int]] = {}
        """The tokens and billionths of a dollar that each call under way holds, by the id of its entries."""

        self._uncounted: deque[Callable[[], object]] = deque()
        """Functions that count the events of the last moment."""

        self._coverage: Callable[[], Mapping[str, Coverage]] = dict
        self.registry, registry = registries(sharing)
        self._calls = Counter(
            "headgate_llm_calls",
            "Calls by how they ended: answered, refused, invalid, failed (by the provider), busy (all providers), "
            "unreachable, lost, broken (in the middle), cut (a budget's end), left (by the client)",
            ["dialect", "model", "outcome"],
            registry=registry,
        )
        self._tokens = Counter(
            "headgate_llm_tokens",
            "Tokens that count, input with what caches read",
            ["model", "kind"],
            registry=registry,
        )
        self._cost = Counter(
            "headgate_llm_cost_nano_usd", "What calls cost, in billionths of a dollar", ["model"], registry=registry
        )
        self._estimated = Counter(
            "headgate_llm_estimated_calls",
            "Calls whose output was held by an estimate and is known exactly: covered (no more than that), exceeded",
            ["model", "result"],
            registry=registry,
        )
        self._held_tokens = Gauge(
            "headgate_llm_held_tokens",
            "Tokens held by calls under way",
            registry=registry,
            multiprocess_mode="sum",
        )
        self._held_cost = Gauge(
            "headgate_llm_held_nano_usd",
            "Billionths of a dollar held by calls under way",
            registry=registry,
            multiprocess_mode="sum",
        )
        self._under_way = Gauge(
            "headgate_llm_calls_under_way", "Calls under way", registry=registry, multiprocess_mode="sum"
        )
        self._warnings = Counter(
            "headgate_llm_warnings", "Calls that were past the soft share of a limit", ["limit"], registry=registry
        )
        self._first_byte = Histogram(
            "headgate_llm_first_byte_seconds",
            "Time from a call's arrival to the first byte of its answer, the provider's own time in it",
            ["dialect"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._errors = Counter(
            "headgate_llm_provider_errors",
            "Calls that a provider failed to answer, by reason: a status, unreachable, lost, broken",
            ["provider", "reason"],
            registry=registry,
        )
        self._read_on = Gauge(
            "headgate_llm_read_on",
            "Answers that are read to their end after their client has gone",
            registry=registry,
            multiprocess_mode="sum",
        )
        for gauge in (self._held_tokens, self._held_cost, self._under_way, self._read_on):
            gauge.set(0)  # the calls under way of a worker's predecessor are not its own
        self.registry.register(_LastEstimated(self._last_estimated))

    def ended(self, dialect: str, model: str, outcome: str) -> None:
        """Count a call that has ended."""
        self._count_later(lambda: self._calls.labels(dialect, self._model(model), outcome).inc())

    def first_byte_sent(self, dialect: str, seconds: float) -> None:
        """Record the time to the first byte of an answer, which was sent just now."""
        self._count_later(lambda: self._first_byte.labels(dialect).observe(seconds))

    def provider_failed(self, provider: str, reason: str) -> None:
        """Count a provider that did not answer, or refused."""
        self._errors.labels(provider, reason).inc()

    def warned(self, limit: str) -> None:
        """Count a call that was past the soft share of a limit."""
        self._warnings.labels(limit).inc()

    def reading_on(self, streams: int) -> None:
        """Set the number of answers that are read on after their client has gone."""
        self._read_on.set(streams)

    def add(self, entry: Entry) -> None:
        """Pass an entry on to the books, and count it."""
        if self._books is not None:
            self._books.add(entry)
        self._count_later(lambda: self._count(entry))

    def _count(self, entry: Entry) -> None:
        if entry.kind == "held":
            self._under_way.inc()
            self._hold(entry)
        elif entry.kind == "extended":
            self._hold(entry)
        elif entry.kind == "settled":
            self._under_way.dec()
            self._settle(entry)

    def watch_coverage(self, coverage: Callable[[], Mapping[str, Coverage]]) -> None:
        """Add to the metrics what a gate learned of its estimates (`AsyncLlmGate.coverage`)."""
        self._coverage = coverage

    def exposition(self) -> bytes:
        """All metrics, in Prometheus's text format."""
        self.count_all()
        return generate_latest(self.registry)

    def _count_later(self, count: Callable[[], object]) -> None:
        """Call `count` within a moment; at once where there is no event loop."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            count()
            return
        if not self._uncounted:
            loop.call_later(_COUNT_DELAY_S, self.count_all)
        self._uncounted.append(count)

    def count_all(self) -> None:
        """Count all events that are not counted yet; to be called when the event loop ends."""
        while self._uncounted:
            self._uncounted.popleft()()

    def _last_estimated(self) -> Mapping[tuple[str, str], int]:
        """The number of the last calls that were held by an estimate, by model and result."""
        last = Counts[tuple[str, str]]()
        for model, coverage in self._coverage().items():
            last[self._model(model), "covered"] += coverage.covered
            last[self._model(model), "exceeded"] += coverage.above
        return last

    def _hold(self, entry: Entry) -> None:
        tokens, cost = self._held.get(entry.id, (0, 0))
        held = self._held[entry.id] = entry.held_input + entry.held_output, entry.held_cost or 0
        self._held_tokens.inc(held[0] - tokens)
        self._held_cost.inc(held[1] - cost)
        if len(self._held) > _MOST_HELD:  # with calls that no store could settle
            self._release(next(iter(self._held)))

    def _settle(self, entry: Entry) -> None:
        self._release(entry.id)
        model = self._model(entry.model)
        if entry.usage is not None:
            self._tokens.labels(model, "input").inc(entry.usage.input)
            self._tokens.labels(model, "output").inc(entry.usage.output)
            self._tokens.labels(model, "cache_read").inc(entry.usage.cache_read)
        elif entry.mode == "unknown":
            self._tokens.labels(model, "input").inc(entry.held_input)
            self._tokens.labels(model, "output").inc(entry.held_output)
        self._cost.labels(model).inc(entry.cost or 0)
        if entry.mode == "exact" and entry.usage is not None and entry.estimate is not None:
            self._estimated.labels(model, "covered" if entry.usage.output <= entry.estimate else "exceeded").inc()

    def _release(self, id: str) -> None:
        tokens, cost = self._held.pop(id, (0, 0))
        self._held_tokens.dec(tokens)
        self._held_cost.dec(cost)

    def _model(self, model: str) -> str:
        if model in self._models:
            return model
        if len(self._models) >= _MOST_MODELS:
            return OTHERS
        self._models.add(model)
        return model


class _LastEstimated(Collector):
    """The coverage of the last estimates, read with each exposition: all workers learn together."""

    def __init__(self, calls: Callable[[], Mapping[tuple[str, str], int]]) -> None:
        self._calls = calls

    def collect(self) -> Iterator[Metric]:
        gauge = GaugeMetricFamily(
            "headgate_llm_last_estimated_calls",
            "Those among the last 512 to 1,024 calls of a model, of all processes that learn together",
            labels=["model", "result"],
        )
        for labels, calls in self._calls().items():
            gauge.add_metric(labels, calls)
        yield gauge

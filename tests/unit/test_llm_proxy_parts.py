"""Parts of the proxy: the configuration a worker starts with, the bodies that are refused, and what counts as sent."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.errors import ArgumentError, ConfigError
from headgate.llm import AsyncLlmGate, Entry
from headgate.llm.dialects.paths import CHAT, COUNT_TOKENS, MESSAGES, RESPONSES, Dialect
from headgate.llm.entry import Caller
from headgate.llm_proxy.call_body import read_body
from headgate.llm_proxy.exchange import Exchange
from headgate.llm_proxy.metrics import ProxyMetrics
from headgate.llm_proxy.provider_connection import ProviderConnection
from headgate.llm_proxy.provider_pool import ProviderPool
from headgate.llm_proxy.providers import ProviderSettings, read_providers
from headgate.llm_proxy.proxy_parts import ProxyOptions
from headgate.llm_proxy.reading_on import ReadingOn
from headgate.llm_proxy.server import InForce, ProxyServer, ProxySource
from headgate.llm_proxy.several import _make_server
from headgate.llm_proxy.upstream import Upstream
from headgate.policy.gate import read_policy
from headgate.policy.problems import PolicyError
from headgate.stores.memory import MemoryStore
from headgate.supervisor.last_good import LastGood
from headgate.testing import ManualClock

PRICES = {"m": {"input": "1", "output": "10", "web_searches": "10"}}
TOKENS_HELD = 100


def policy(limits: str) -> dict[str, Any]:
    return {
        "version": 1,
        "llm": {"prices": PRICES},
        "rules": [{"name": "all", "by": [], "limits": limits, "hold": "max"}],
    }


class SmallStore(MemoryStore):
    """A store that fits one limit."""

    def check_room(self, limits: Any, *, clock: Any = None) -> None:
        if len(limits) > 1:
            raise ConfigError("the store has no room")


@pytest.fixture
def good() -> Iterator[LastGood]:
    """The configuration in force in other workers."""
    good = LastGood(pickle.dumps(InForce(read_policy(policy("2/hour")), ())))
    yield good
    good._file.close()


def started_worker(folder: Path, limits: str, good: LastGood) -> ProxyServer:
    """The proxy of a worker that starts while its file has `limits`."""
    file = folder / "llm.yaml"
    file.write_text(json.dumps(policy(limits)))
    first = InForce(read_policy(policy("1/hour")), ())
    source = ProxySource(file, None, None, store=SmallStore())
    return _make_server(source, good, first, ProxyOptions(), None)


def limits_of(server: ProxyServer) -> list[str]:
    return [str(limit.limit) for rule in server.gate.policy.rules for each in rule.limits.values() for limit in each]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ('base_url: "http://ann:SECRET@api.example.com/v1"', "with no user, password, query or fragment"),
        ('base_url: "http://:SECRET@api.example.com/v1"', "with no user, password, query or fragment"),
        ('base_url: "https://api.example.com/v1?key=SECRET"', "with no user, password, query or fragment"),
        ("base_url: https://api.example.com/v1, api_key: SECRET", "there is no such field"),
        ("base_url: https://api.example.com/v1, api_key_env: sk-SECRET", "is the name of a variable, such as"),
        ("base_url: https://api.example.com/v1, api_key_env: aSECRET", "is the name of a variable, such as"),
        ("base_url: https://api.example.com/v1, api_key_env: NOT_SET", "the variable 'NOT_SET' is not set"),
    ],
)
def test_an_invalid_provider_is_described_without_its_key(tmp_path: Path, field: str, message: str) -> None:
    text = f"providers:\n  - {{name: a, {field}}}\n"
    with pytest.raises(PolicyError) as refused:
        read_providers(text, source="providers.yaml", folder=tmp_path)
    assert message in str(refused.value)
    assert "SECRET" not in str(refused.value)


def test_the_error_for_an_empty_file_of_providers_says_how_it_begins(tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as refused:
        read_providers(b"# none yet\n", source="providers.yaml", folder=tmp_path)
    assert str(refused.value) == "providers.yaml: the file of providers is empty; it begins with providers:"


def test_a_worker_starts_with_the_configuration_in_force_in_others_whatever_its_files_say(
    tmp_path: Path, good: LastGood
) -> None:
    for limits in ("5/hour", "5/hour; 6/day", "no limit"):
        assert limits_of(started_worker(tmp_path, limits, good)) == ["2/hour"]


def test_a_worker_starts_with_the_first_configuration_where_none_was_stored(tmp_path: Path, good: LastGood) -> None:
    os.ftruncate(good._file.fileno(), 0)
    assert limits_of(started_worker(tmp_path, "5/hour", good)) == ["1/hour"]


def test_a_configuration_that_a_worker_puts_in_force_is_that_of_the_next_worker(tmp_path: Path, good: LastGood) -> None:
    server = started_worker(tmp_path, "5/hour", good)
    server.reload()
    assert limits_of(server) == limits_of(started_worker(tmp_path, "7/hour", good)) == ["5/hour"]
    (tmp_path / "llm.yaml").write_text(json.dumps(policy("5/hour; 6/day")))
    server.reload()  # the store is too small for it
    assert limits_of(started_worker(tmp_path, "7/hour", good)) == ["5/hour"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has files in memory, and /proc to look at them")
def test_the_last_good_policy_is_kept_in_memory_and_a_later_one_replaces_it(good: LastGood) -> None:
    assert str(Path(f"/proc/self/fd/{good._file.fileno()}").readlink()).startswith("/memfd:")
    good.keep(b"another")
    assert good.text() == b"another"


@pytest.mark.parametrize("has_memory", [True, False])
def test_without_a_file_in_memory_a_temporary_one_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_memory: bool
) -> None:
    monkeypatch.setattr("headgate.supervisor.last_good.sys.platform", "other")
    monkeypatch.setattr("headgate.supervisor.last_good._MEMORY", str(tmp_path if has_memory else tmp_path / "none"))
    good = LastGood(b"one")
    assert good.text() == b"one" and os.fstat(good._file.fileno()).st_mode & 0o077 == 0
    if sys.platform == "linux":
        assert str(Path(f"/proc/self/fd/{good._file.fileno()}").readlink()).startswith(str(tmp_path)) == has_memory
    good._file.close()


@pytest.mark.parametrize("name", ["Web_Search_Options", "MAX_TOOL_CALLS", "Tools", "Background"])
def test_fields_that_decide_in_other_letters_are_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"write '{name.lower()}'"):
        read_body(json.dumps({"model": "m", name: 0}).encode(), CHAT)


@pytest.mark.parametrize("between", ["[%s]", '{"a": %s}', '[{"a": %s}]'])
def test_a_body_nested_deeper_than_any_call_is_refused(between: str) -> None:
    def nested_body(levels: int) -> bytes:
        start, end = (between.partition("%s")[place] * levels for place in (0, 2))
        return f'{{"model": "m", "messages": [], "tools": {start}"[[["{end}}}'.encode()

    levels = between.count("[") + between.count("{")
    assert read_body(nested_body(199 // levels), CHAT).model == "m"
    for more in (200, 900, 960, 100_000):
        with pytest.raises(ArgumentError, match="the body is nested too deeply"):
            read_body(nested_body(more), CHAT)
    many = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "{["}]}] * 500}
    assert read_body(json.dumps(many).encode(), CHAT).fields == many


@pytest.mark.parametrize("dialect", [CHAT, COUNT_TOKENS], ids=str)
@pytest.mark.parametrize("model", ["m" * 201, "m\n"])
def test_the_name_of_a_model_is_bounded_even_where_nothing_is_charged(dialect: Dialect, model: str) -> None:
    with pytest.raises(ArgumentError, match="model is a name of 1 to 200 printable characters"):
        read_body(json.dumps({"model": model}).encode(), dialect)


class Written:
    """Books that are a list."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)


class Client:
    """A client that reads its answers."""

    has_left = False
    on_leave: Callable[[], None]

    async def answer(self, answer: Any) -> None: ...

    def leave(self) -> None:
        self.has_left = True
        self.on_leave()


PROVIDER = ProviderSettings(
    name="p", base_url="http://127.0.0.1:9/v1", api_key="", auth="none", dialects=("chat", "responses", "messages"),
    models=("*",), timeout_s=10.0, connect_timeout_s=10.0, asks_usage=True, headers=(),
)  # fmt: skip


class Sending(Upstream):
    """The real upstream, with a connection that never opens, or one whose writes behave as the test sets."""

    def __init__(self, write: Callable[[bytes], None] | None) -> None:
        super().__init__()
        self._writes = write
        self.connecting = asyncio.Event()

    async def _connect(self, origin: Any, timeout_s: float) -> ProviderConnection:
        self.connecting.set()
        if self._writes is None:
            await asyncio.Event().wait()
        connection = ProviderConnection(asyncio.get_running_loop(), lambda _: None)
        transport: Any = SimpleNamespace(write=self._writes, abort=lambda: None, is_closing=lambda: False)
        transport.writelines = lambda parts: [transport.write(part) for part in parts]
        connection.connection_made(transport)
        return connection


async def exchanged(
    *, write: Callable[[bytes], None] | None, leaves: bool, dialect: Dialect = CHAT, **body: Any
) -> list[Entry]:
    """The entries in the books of a call whose client leaves, or not, while a connection is being made."""
    books, client, upstream = Written(), Client(), Sending(write)
    gate = AsyncLlmGate(policy("100/hour; 1000 tokens/hour bucket; 10 usd/day in UTC"), books=books)
    parts: Any = SimpleNamespace(
        gate=gate, pool=ProviderPool((PROVIDER,)), upstream=upstream, metrics=ProxyMetrics(None),
        reading_on=ReadingOn(0, 0.0),
    )  # fmt: skip
    bound = {"max_tokens": TOKENS_HELD, "max_output_tokens": TOKENS_HELD}  # in every dialect
    raw = json.dumps({"model": "m", **bound, "messages": [], **body}).encode()
    request: Any = None
    who: Any = client
    exchange = Exchange(
        parts, who, dialect, Caller(), read_body(raw, dialect), headers=[], query="", input_count=None, request=request,
        body_dropped=lambda: None,
    )  # fmt: skip
    running = asyncio.create_task(exchange.run())
    await asyncio.wait_for(upstream.connecting.wait(), 10)
    await asyncio.sleep(0)
    if leaves:
        client.leave()
    with suppress(OSError):
        await asyncio.wait_for(running, 10)
    await upstream.close()
    await gate.close()
    return books.entries


def test_a_call_that_is_abandoned_while_a_connection_is_made_costs_nothing() -> None:
    _, settled = asyncio.run(exchanged(write=None, leaves=True))
    assert settled.mode == "cancelled"


def test_a_call_that_is_abandoned_after_it_is_written_stays_as_held() -> None:
    _, settled = asyncio.run(exchanged(write=lambda _: None, leaves=True))
    assert settled.mode == "unknown"


def test_a_call_whose_writing_fails_half_way_counts_as_sent() -> None:
    written: list[bytes] = []

    def write(part: bytes) -> None:
        if written:
            raise BrokenPipeError
        written.append(part)

    _, settled = asyncio.run(exchanged(write=write, leaves=False))
    assert written and settled.mode == "unknown"


@pytest.mark.parametrize(
    ("dialect", "bound", "searches"),
    [
        (CHAT, {"max_tool_calls": 0}, 5),
        (MESSAGES, {"max_tool_calls": 0}, 5),
        (RESPONSES, {"max_tool_calls": 2}, 2),
        (RESPONSES, {"max_tool_calls": 2, "messages": []}, 2),
    ],
)
def test_the_dialect_of_a_path_says_which_fields_bound_searches(
    dialect: Dialect, bound: dict[str, Any], searches: int
) -> None:
    tools = [{"type": "web_search_20250305"}]
    plain, _ = asyncio.run(exchanged(write=None, leaves=True, dialect=dialect))
    held, _ = asyncio.run(exchanged(write=None, leaves=True, dialect=dialect, tools=tools, **bound))
    plain_cost, held_cost = plain.held_cost, held.held_cost
    assert plain_cost is not None and held_cost is not None
    assert (held_cost - plain_cost) // 10_000_000 == searches


def test_models_that_clients_invent_do_not_end_the_pause_of_a_provider() -> None:
    clock = ManualClock()
    pool = ProviderPool((PROVIDER,), clock)
    serving = pool.serving(CHAT, "m")
    pool.note(serving[0], "m", 429, [("retry-after", "60")])
    for number in range(3000):
        pool.note(serving[0], f"invented-{number}", 200, [])
    assert pool.ready(serving, "m") == ([], 60_000_000)
    clock.advance(60_000_000)
    assert pool.ready(serving, "m") == (serving, 0)

"""Law: the native core reads, orders and judges entries of logs as Python does, and sums them up alike."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import core
from headgate.errors import ConfigError
from headgate.policy.gate import read_policy
from headgate.replay import ordering
from headgate.replay.entries import Entry
from headgate.replay.judging import Judge, Refusals
from headgate.replay.replay import ALWAYS, Span, replay
from headgate.replay.results import Result
from headgate.replay.sources import Log, Reading
from headgate.replay.summary import summary
from headgate.replay.sums import Sums
from headgate.replay.times import iso_time

pytestmark = pytest.mark.skipif(core.native is None, reason="there is no native core to compare with")

POLICY: dict[str, Any] = {
    "version": 1,
    "client_ip": {"header": "X-Forwarded-For", "trusted_proxies": ["10.0.0.0/8"]},
    "identities": {"user": {"header": "X-User"}},
    "tiers": {"from": {"header": "X-Tier"}, "default": "free"},
    "rules": [
        {"name": "ip", "by": ["ip"], "limits": "3/second bucket"},
        {
            "name": "twice",
            "by": ["ip"],
            "limits": {"free": "5/minute; 8/hour", "x": "1/minute"},
            "match": {"path": "/a/**"},
        },
        {"name": "user", "by": ["user"], "limits": "2/minute", "missing": "refuse", "match": {"path": "/u"}},
        {"name": "some", "by": ["user"], "limits": "4/minute", "missing": "anonymous"},
        {"name": "shadow", "by": ["ip", "endpoint"], "limits": "1/second", "shadow": True},
        {"name": "all", "by": [], "limits": "9/second bucket", "cost": 2, "match": {"method": ["POST"]}},
        {"name": "host", "by": ["host"], "limits": "2/minute bucket", "match": {"host": "a.example"}},
    ],
}  # fmt: skip
_TEXTS = st.sampled_from(["", "x", "free", "\udce9", "é", "a, b", "10.0.0.1", "192.0.2.7, 10.0.0.2"])
_COSTS: st.SearchStrategy[int | dict[str, int]] = st.one_of(
    st.integers(0, 3),
    st.just(1),
    st.dictionaries(st.sampled_from(["requests", "tokens"]), st.integers(0, 4), max_size=2),
)
_PATHS = st.sampled_from(["/", "", "/a/1", "/a/../u", "/u", "/u?x=1", "/%61/2", "*", "/\udcff"])


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    """Entries in the order of time: some in one moment, some hours apart."""
    steps = draw(st.lists(st.one_of(st.integers(0, 400_000), st.integers(0, 9_000_000_000)), max_size=60))
    time_us, found = draw(st.sampled_from([1_700_000_000_000_000, 0])), list[Entry]()
    for step in steps:
        time_us += step
        names = draw(st.lists(st.sampled_from(["x-user", "x-forwarded-for", "x-tier", "other"]), max_size=2))
        headers = {name: draw(_TEXTS) for name in names}
        client = draw(st.sampled_from(["192.0.2.1", "192.0.2.2", "10.0.0.9", "2001:db8::1", "nothing", "", "\udc80"]))
        method, host = (
            draw(st.sampled_from(["GET", "POST", ""])),
            draw(st.sampled_from(["", "a.example", "A.example:80"])),
        )
        found.append((time_us, client, method, draw(_PATHS), host, headers, draw(_COSTS)))
    return found


def numbers_of(result: Result) -> dict[str, Any]:
    """All numbers of a result."""
    rules = [
        (rule.name, rule.matched, rule.refused, rule.hits, rule.refusals, rule.refused_minutes,
         rule.series.level, rule.series.counts) for rule in result.rules
    ]  # fmt: skip
    return {
        "rules": rules, "sums": (result.allowed, result.denied, result.cost_allowed, result.cost_denied),
        "series": (result.series.level, result.series.counts), "hits": result.hits,
    }  # fmt: skip


@given(entries=entries(), size=st.integers(1, 40))
def test_blocks_are_judged_and_summed_up_as_python_does(entries: list[Entry], size: int) -> None:
    native, python = Judge(read_policy(POLICY), "p"), Judge(read_policy(POLICY), "p")
    assert native._native is not None
    python._native, python._sums = None, Sums(len(POLICY["rules"]))
    of_native: Refusals = []
    of_python: Refusals = []
    for start in range(0, len(entries), size):
        native.judge(entries[start : start + size], of_native)
    python.judge(entries, of_python)
    results = native.finish(), python.finish()
    assert numbers_of(results[0]) == numbers_of(results[1])
    assert (native.first_us, native.last_us) == (python.first_us, python.last_us)
    shown = [
        [each and (each.time_us, [(rule.name, key) for rule, key in each.by]) for each in refusals]
        for refusals in (of_native, of_python)
    ]
    assert shown[0] == shown[1]
    assert [each is None for each in of_native].count(True) == results[0].allowed


_BEGINNING_US = 1_700_000_000_000_000
_LINES = st.tuples(
    st.integers(0, 90_000_000),
    st.sampled_from(
        ["192.0.2.1", "192.0.2.2", "10.0.0.9", "2001:db8::1", "nothing", "a.example:80 192.0.2.1 x", "\x9b"]
    ),
    st.sampled_from(
        ["GET /a/1", "POST /", "GET /u?x=1", "GET /a/../u", 'GET /"x', "PUT /a\\\\b", "get /a/1", "nonsense"]
    ),
    st.sampled_from(["{}", "{}", "{}", "\t", "not a line", "{}\r"]),
)  # fmt: skip


def text_of(lines: Sequence[tuple[int, str, str, str]]) -> str:
    """Lines of a common log, most of them as they should be."""
    texts = []
    for time_us, client, request, form in lines:
        moment = iso_time(_BEGINNING_US + time_us).replace("T", " ").replace("Z", "")
        texts.append(form.format(f'{client} - - [{moment}] "{request} HTTP/1.1" 200 5 "-" "A"'))
    return "\n".join(texts)


@given(
    logs=st.lists(st.tuples(st.lists(_LINES, max_size=40), st.booleans()), min_size=1, max_size=3),
    sizes=st.tuples(st.integers(1, 20), st.integers(1, 9)),
    span=st.sampled_from([ALWAYS, Span(_BEGINNING_US + 20_000_000, _BEGINNING_US + 70_000_000)]),
    compared=st.booleans(),
)
def test_logs_are_replayed_as_python_does(
    logs: list[tuple[list[tuple[int, str, str, str]], bool]],
    sizes: tuple[int, int],
    span: Span,
    compared: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    opened = []
    for number, (lines, packed) in enumerate(logs):
        text = text_of(lines).encode()
        (folder / str(number)).write_bytes(gzip.compress(text) if packed else text)
        opened.append(Log(folder / str(number), Reading(format="common")))
    policies = [("p", read_policy(POLICY)), ("q", read_policy({**POLICY, "rules": POLICY["rules"][:3]}))][
        : 1 + compared
    ]
    outcomes = []
    for native in (core.native, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(core, "native", native)
            patch.setattr(core, "CORE", "python" if native is None else "native")
            patch.setattr(ordering, "_WINDOW", sizes[0])
            patch.setattr(ordering, "_STEP", sizes[1])
            outcome = replay(opened, policies, lambda _: None, span=span)
        outcomes.append((summary(outcome, 5), outcome.unread, [numbers_of(result) for result in outcome.results]))
    assert outcomes[0] == outcomes[1]


def test_an_error_while_a_log_is_read_ahead_is_raised(tmp_path_factory: pytest.TempPathFactory) -> None:
    log = tmp_path_factory.mktemp("log") / "log"
    log.write_text("no format\tthat is\nknown")
    with pytest.raises(ConfigError, match="no column is named"):
        replay([Log(log, Reading())], [("p", read_policy(POLICY))], lambda _: None)

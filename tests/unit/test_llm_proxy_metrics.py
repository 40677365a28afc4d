"""The proxy's metrics of estimates: how many calls had no more output than was estimated."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headgate.llm import Entry, Usage
from headgate.llm.entry import Caller
from headgate.llm.learned import Coverage
from headgate.llm_proxy import metrics as bounds
from headgate.llm_proxy.metrics import ProxyMetrics


def figures(metrics: ProxyMetrics, name: str) -> dict[tuple[str, str], float]:
    """The samples of a metric by model and result."""
    families = text_string_to_metric_families(metrics.exposition().decode())
    [family] = [family for family in families if family.name == name]
    return {
        (sample.labels["model"], sample.labels["result"]): sample.value
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def settled(model: str, output: int, estimate: int | None) -> Entry:
    return Entry(
        "settled", "a", 1, Caller(), model, 10, 900, None, mode="exact", usage=Usage(10, output), estimate=estimate
    )


def test_calls_are_counted_by_whether_their_estimate_was_enough() -> None:
    metrics = ProxyMetrics()
    for output in (99, 100, 101):
        metrics.add(settled("m", output, 100))
    metrics.add(settled("m", 5, None))
    metrics.add(settled("m", 5, 100)._replace(mode="at least"))
    metrics.add(settled("m", 5, 100)._replace(mode="unknown", usage=None))
    metrics.add(settled("embedding", 0, 0))
    assert figures(metrics, "headgate_llm_estimated_calls") == {
        ("m", "covered"): 2, ("m", "exceeded"): 1, ("embedding", "covered"): 1,
    }  # fmt: skip


def test_held_amounts_grow_with_extensions_and_end_with_settling() -> None:
    metrics = ProxyMetrics()
    held = Entry("held", "a", 1, Caller(), "m", 10, 100, 7)

    def held_lines() -> list[str]:
        lines = metrics.exposition().decode().splitlines()
        return [line for line in lines if line.startswith(("headgate_llm_held", "headgate_llm_calls_under_way"))]

    for entry in (held, held._replace(id="b")):
        metrics.add(entry)
    metrics.add(held._replace(kind="extended", held_output=250, held_cost=9))
    assert held_lines() == ["headgate_llm_held_tokens 370.0", "headgate_llm_held_nano_usd 16.0",
                      "headgate_llm_calls_under_way 2.0"]  # fmt: skip
    metrics.add(settled("m", 5, None)._replace(held_output=250))
    assert held_lines() == ["headgate_llm_held_tokens 110.0", "headgate_llm_held_nano_usd 7.0",
                      "headgate_llm_calls_under_way 1.0"]  # fmt: skip


def test_the_metrics_have_the_current_coverage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_MOST_MODELS", 2)
    metrics = ProxyMetrics()
    learned = {"a": Coverage(20, 1), "b": Coverage(10, 0), "c": Coverage(5, 5), "d": Coverage(3, 1)}
    metrics.watch_coverage(lambda: learned)
    assert figures(metrics, "headgate_llm_last_estimated_calls") == {
        ("a", "covered"): 19, ("a", "exceeded"): 1, ("b", "covered"): 10, ("b", "exceeded"): 0,
        ("other", "covered"): 2, ("other", "exceeded"): 6,
    }  # fmt: skip
    learned.clear()
    assert figures(metrics, "headgate_llm_last_estimated_calls") == {}

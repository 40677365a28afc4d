"""Fields of a body that decide what a call costs: some readers take them in any letters, as `Model` for `model`."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.errors import ArgumentError
from headgate.llm.fallback_models import FIELDS as FALLING_BACK

_DECIDING = frozenset((
    "model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "n",
    "best_of", "messages", "input", "prompt", "system", "instructions", "tools", "service_tier",
    "web_search_options", "plugins", "max_tool_calls", "background", "speed", "inference_geo", *FALLING_BACK,
))  # fmt: skip


def check_field_case(fields: Iterable[str]) -> None:
    """Raise ArgumentError for the name of such a field in other letters, which a provider may read beside it."""
    for name in fields:
        if name not in _DECIDING and name.lower() in _DECIDING:
            raise ArgumentError(f"the body has a field {name[:40]!r}: write {name.lower()!r}")

"""Bodies of calls with no more output than their model makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.llm.model_table import most_output
from headgate.llm.usage import MOST_TOKENS

_MOST = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def within_model(body: Mapping[str, Any], model: str) -> Mapping[str, Any]:
    """The body as if it allowed no more output than the model makes, where that is known.

    What is no number of tokens stays as it is.
    """
    most = most_output(model)
    if most is None:
        return body
    told = {name: body[name] for name in _MOST if body.get(name) is not None}
    if not told:
        return {**body, _MOST[0]: most}
    above = {name: most for name, value in told.items() if isinstance(value, int) and most < value <= MOST_TOKENS}
    return {**body, **above} if above else body

"""The variables of the environment that hold keys of providers."""

from __future__ import annotations

import re

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,59}")


def may_be_shown(name: str) -> bool:
    """Whether a text looks like the name of a variable. What does not may be the key itself, and is never shown."""
    return _VARIABLE.fullmatch(name) is not None

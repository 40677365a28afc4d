"""Which core decides: the native one where it was built, the Python one everywhere else.

`HEADGATE_CORE=python` or `native` in the environment forces a core. Both give the same answers.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

from headgate.errors import ConfigError
from headgate.starting import is_the_command

CHOICES = ("native", "python")
SWITCHED_OFF = "HEADGATE_CORE=python"
"""The reason why the native core is not used where the environment excludes it."""


def _load(choice: str) -> tuple[ModuleType | None, str]:
    """Load the native module: (the module, ""), or (None, the reason why it is not used)."""
    if choice not in ("", *CHOICES):
        raise ConfigError(f'HEADGATE_CORE is "native" or "python", not {choice!r}')
    if choice == "python":
        return None, SWITCHED_OFF
    try:
        return importlib.import_module("headgate._native"), ""
    except ImportError as error:
        if choice == "native":
            raise ConfigError(
                f"HEADGATE_CORE=native, but the native core cannot be loaded ({error}); "
                "install a wheel, or install from source where a Rust toolchain is available"
            ) from error
        return None, f"the native core cannot be loaded ({error})"


try:
    native, why_not_native = _load(os.environ.get("HEADGATE_CORE", ""))
except ConfigError as error:
    if not is_the_command():
        raise
    print(f"headgate: {error}", file=sys.stderr)
    sys.exit(2)
"""The native module; or None, and the reason as text."""

CORE = "native" if native is not None else "python"

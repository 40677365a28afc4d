"""Which core decides: the native one where it was built, the Python one everywhere else.

`HEADGATE_CORE=python` or `native` in the environment forces a core. Both give the same answers.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

from headgate.errors import ConfigError

CHOICES = ("native", "python")
SWITCHED_OFF = "HEADGATE_CORE=python"
"""Why the native core is not used where it was not to be."""

_COMMAND = "headgate"


def _load(choice: str) -> tuple[ModuleType | None, str]:
    """The native module, or None and why it is not used."""
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
                "install a wheel, or install from source where a Rust toolchain is at hand"
            ) from error
        return None, f"the native core cannot be loaded ({error})"


def _is_the_command() -> bool:
    """Whether this process is `headgate` or `python -m headgate`, not a program that imports the package."""
    # While Python looks for the module of `-m`, it keeps "-m" in place of the module's path.
    by_module = sys.argv[:1] == ["-m"] and ("-m", _COMMAND) in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    return by_module or Path(next(iter(sys.argv), "")).stem == _COMMAND


try:
    native, why_not_native = _load(os.environ.get("HEADGATE_CORE", ""))
except ConfigError as error:
    if not _is_the_command():
        raise
    print(f"headgate: {error}", file=sys.stderr)
    sys.exit(2)
"""The native module or None, and in that case the reason in words."""

CORE = "native" if native is not None else "python"

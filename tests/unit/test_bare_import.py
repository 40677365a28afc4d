"""The library alone needs nothing else installed: what it imports by itself is Python's own and Headgate's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import headgate

ALONE = """
import headgate.http.asgi, headgate.http.wsgi, headgate.testing
from headgate import *

assert Limiter is headgate.Limiter and not hasattr(sys.modules[__name__], "RedisStore")
assert headgate.Limiter("5/minute").hit("user:42").remaining == 4
try:
    headgate.Gate({"version": 1, "rules": [{"name": "all", "limits": "5/minute"}]})
except headgate.MissingExtraError as error:
    assert "headgate[policy]" in str(error), error
"""


def test_headgate_is_imported_where_nothing_else_is_installed(tmp_path: Path) -> None:
    (tmp_path / "headgate").symlink_to(Path(headgate.__file__).parent)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{ALONE}"
    without_others = [sys.executable, "-I", "-S", "-c", program]
    ended = subprocess.run(without_others, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_headgate_is_imported_beside_a_stand_in_for_an_optional_library() -> None:
    program = "import sys, types; sys.modules['redis'] = types.ModuleType('redis'); import headgate"
    subprocess.run([sys.executable, "-c", program], check=True)

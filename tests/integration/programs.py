"""Programs of this folder that tests run in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LONG = os.environ.get("HEADGATE_LAWS") == "long"
"""Whether programs do all that they can, which takes hours."""


def told(program: str, *arguments: str, within_s: float = 120) -> list[dict[str, Any]]:
    """What a program of this folder prints: a JSON object a line."""
    ended = subprocess.run(
        [sys.executable, str(HERE / program), *arguments],
        capture_output=True, text=True, timeout=within_s, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]

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
"""Whether programs run in full, which takes hours."""


def results_of(program: str, *arguments: str, within_s: float = 120) -> list[dict[str, Any]]:
    """Run a program of this folder and return the JSON objects that it prints, one a line."""
    completed = subprocess.run(
        [sys.executable, str(HERE / program), *arguments],
        capture_output=True, text=True, timeout=within_s, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    return [json.loads(line) for line in completed.stdout.splitlines()]

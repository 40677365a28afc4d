"""The policies that commands read: files, or standard input as `-`."""

from __future__ import annotations

from pathlib import Path

from headgate.policy.compiled import Policy
from headgate.policy.gate import read_policy
from headgate.policy.policy_file import LARGEST_BYTES, read_policy_file

_STANDARD_INPUT = "standard input"


def policy_of(file: Path) -> Policy:
    """The policy of a file, or of standard input; raises PolicyError, or OSError where it cannot be read."""
    if str(file) != "-":
        return read_policy(file)
    from headgate.policy.compiler import compile_policy
    from headgate.policy.load import parse_policy

    return compile_policy(parse_policy(policy_text("-"), source=_STANDARD_INPUT))


def policy_text(file: str) -> bytes:
    """The text of a file or of standard input, at most as long as a policy may be; raises OSError."""
    if file != "-":
        return read_policy_file(Path(file))
    from headgate.replay.pipes import standard_input

    return standard_input().read(LARGEST_BYTES + 1)


def display_name(file: str | Path) -> str:
    """The name of a file in messages."""
    return _STANDARD_INPUT if str(file) == "-" else str(file)

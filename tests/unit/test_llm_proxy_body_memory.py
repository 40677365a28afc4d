"""What a body takes once it is read is never more than is told before: resident memory of a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

SIZE = 4 << 20
SLACK = 2 << 20
"""What the process itself may take meanwhile."""

MEASURE = """
import resource, sys
from headgate.llm.dialects.paths import CHAT
from headgate.llm_proxy.body_memory import read_bytes
from headgate.llm_proxy.call_body import read_body

raw = sys.stdin.buffer.read()
most = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
told, before = read_bytes(raw), most()
body = read_body(raw, CHAT)
print(told, most() - before)
"""


def repeated(unit: bytes) -> bytes:
    return b'{"model": "m", "x": [' + unit * (SIZE // len(unit)) + unit.rstrip(b",") + b"]}"


def text(letters: str) -> bytes:
    data = letters.encode()
    return b'{"model": "m", "x": "' + b"word " * ((SIZE - len(data)) // 5) + data + b'"}'


@pytest.mark.parametrize(
    "raw",
    [
        repeated(b"[],"), repeated(b"{},"), repeated(b"[[1]],"), repeated(b'{"a":1},'), repeated(b'{"a":1,"b":2},'),
        repeated(b"1.5,"), repeated(b"1234,"), repeated(b'"",'), repeated(b'"\\u0100",'), text(""), text("\U0001f600"),
        text("\\ud83d\\ude00"), b'{"model": "m", "x": {' + b",".join(b'"%x":1' % n for n in range(SIZE // 10)) + b"}}",
        b'{"model": "m", "x": [' + b",".join(b'{"%x":1}' % n for n in range(SIZE // 12)) + b"]}",
    ],
    ids=lambda raw: raw[:36].decode(errors="replace") + "..." + raw[-14:].decode(errors="replace"),
)  # fmt: skip
def test_a_body_takes_no_more_memory_than_is_told(raw: bytes) -> None:
    done = subprocess.run([sys.executable, "-c", MEASURE], input=raw, capture_output=True, check=True)
    told, took = map(int, done.stdout.split())
    assert took <= told + SLACK
    assert told <= 64 * len(raw), "and is told not much too high"

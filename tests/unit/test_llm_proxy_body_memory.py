"""A parsed body never takes more memory than estimated before: measured as resident memory of a separate process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from headgate.llm_proxy.body_memory import read_bytes

SIZE = 4 << 20
SLACK = 2 << 20
"""The memory that the process itself may take meanwhile."""

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
def test_a_body_takes_no_more_memory_than_estimated(raw: bytes) -> None:
    done = subprocess.run([sys.executable, "-c", MEASURE], input=raw, capture_output=True, check=True)
    estimated, took = map(int, done.stdout.split())
    assert took <= estimated + SLACK
    assert estimated <= 64 * len(raw), "the estimate is not much too high"


@pytest.mark.parametrize(
    "signs",
    ["[" * 1_000, "]" * 1_000, "[]" * 500, "[]," * 300, "{}," * 300, "," * 1_000, ":" * 1_000, '[\\"],' * 200,
     "[,\\\\" * 200, 'def f(x: dict[str, list[int]]) -> None: g({\\"a\\": [1, 2], \\"b\\": {}})\\n' * 15],
)  # fmt: skip
def test_signs_in_texts_count_as_text(signs: str) -> None:
    raw = b'{"model": "m", "messages": [' + ",".join(f'{{"content": "{signs}"}}' for _ in range(500)).encode() + b"]}"
    assert json.loads(raw)
    assert read_bytes(raw) <= 3 * len(raw)


@pytest.mark.parametrize(
    ("unit", "times"),
    [(b"[", 5), (b"]", 2), (b"{", 6), (b"}", 2), (b",", 2), (b":", 2), (b'":', 30), (b"[,", 30), (b"],", 30)],
)
def test_a_body_of_signs_that_no_reader_makes_anything_of_counts_little(unit: bytes, times: int) -> None:
    raw = unit * (SIZE // len(unit))
    with pytest.raises((ValueError, RecursionError)):
        json.loads(raw)
    assert read_bytes(raw) <= times * len(raw)


def test_an_unclosed_text_hides_nothing_before_it() -> None:
    parsed = b"[" + b"[]," * 100_000
    assert read_bytes(parsed + b'"' + b"," * 1_000) >= 100_000 * (88 + 48)
    assert read_bytes(b'"' + parsed) <= 3 * len(parsed), "nothing is counted after an unclosed text"

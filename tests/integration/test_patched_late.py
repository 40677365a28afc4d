"""What was made before gevent replaced threads, as in a worker of `gunicorn -k gevent --preload`, stops no process."""

from __future__ import annotations

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from until import in_thread, until

SETUP = """
import sys, time
from headgate.llm import LlmGate
from headgate.llm.books import open_books
from headgate.llm.learned.shared import SharedLearned

rule = {"name": "user", "by": ["user"], "limits": "9000 tokens/day in UTC", "warn": "1%"}
POLICY = {"version": 1, "llm": {"prices": {"m": {"input": "1", "output": "10"}}, "hold": "max"}, "rules": [rule]}

def patch():
    import gevent.monkey
    gevent.monkey.patch_all()
    return gevent

def call(gate, user):
    with gate.call("m", user=user, input_tokens=200, max_tokens=100):
        time.sleep(0.001)
"""
BOOKS = """
books = open_books(sys.argv[1])
gate = LlmGate(POLICY, store="memory://", books=books)
gevent = patch()
for turn in range(3):
    gevent.joinall([gevent.spawn(call, gate, str(number)) for number in range(5)])
    assert books.flush()
closing = [gevent.spawn(books.close) for _ in range(3)]
gevent.joinall(closing)
assert all(each.value for each in closing)
"""
WEBHOOK = """
gate = LlmGate({**POLICY, "llm": {**POLICY["llm"], "webhook": sys.argv[1]}}, store="memory://")
gevent = patch()
gevent.joinall([gevent.spawn(call, gate, str(number)) for number in range(5)])
gevent.sleep(30)
"""
LEARNED = """
class Slow:
    def merge(self, process, number, additions):
        time.sleep(0.2)
        return [{} for _ in additions]

learned = SharedLearned(Slow(), interval_s=0.01)
gevent = patch()
learned.output("", "m", 100)
gevent.sleep(0.1)
gevent.joinall([gevent.spawn(learned.close), gevent.spawn(learned.share)])
"""


def run(program: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SETUP + program, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        errors = process.communicate(timeout=20)[1]
    finally:
        process.kill()
    return process.returncode, errors


def test_books_are_written_and_closed(tmp_path: Path) -> None:
    assert result_of(run(BOOKS, str(tmp_path / "books.jsonl"))) == (0, "")
    written = [json.loads(line) for line in (tmp_path / "books.jsonl").read_text().splitlines()]
    assert sorted(entry["user"] for entry in written if entry["kind"] == "settled") == sorted("01234" * 3)


def test_the_webhook_is_called_for_each_user() -> None:
    notified: list[str] = []

    class WebhookHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            notified.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["user"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), WebhookHandler) as server, in_thread(server.serve_forever):
        process = run(WEBHOOK, f"http://127.0.0.1:{server.server_address[1]}/")
        try:
            until(lambda: sorted(notified) == list("01234"))
        finally:
            process.kill()
            process.communicate()
            server.shutdown()


def test_shared_learning_is_closed() -> None:
    assert result_of(run(LEARNED)) == (0, "")

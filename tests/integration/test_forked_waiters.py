"""A child process that was forked while callers wait in its parent: it does not stand in line behind them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

FORKING = """
import os, sys, threading, time
from headgate import Limiter, MemoryStore, Gate

def fork_while_waiting(wait, waiting):
    threads = [threading.Thread(target=wait, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    while waiting() < 3:
        time.sleep(0.01)
    return os.fork()

def ended(child):
    for _ in range(2_000):
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    print("the child never passed")
"""

LIMITER = """
store, text, lease = MemoryStore(core=sys.argv[1]), sys.argv[2], {"lease": 0.5} if "concurrent" in sys.argv[2] else {}
limiter = Limiter(text, store=store)
assert limiter.acquire("key", timeout=0, **lease)
child = fork_while_waiting(
    lambda: limiter.acquire("key", timeout=60, **lease), lambda: limiter._lines._shared.waiting
)
if not child:
    print("passed:", bool(limiter.acquire("key", timeout=30, **lease)), flush=True)
    os._exit(0)
ended(child)
"""

GATE = """
rule = {"name": "all", "by": ["ip"], "limits": "1/second bucket", "wait": "30s"}
policy = {"version": 1, "max_waiting": 4, "rules": [rule]}
gate = Gate(policy, store=MemoryStore(core=sys.argv[1]))
from headgate import Request
request = Request(client_ip="192.0.2.1")
while gate.hit(request):
    pass
child = fork_while_waiting(lambda: gate.acquire(request), lambda: gate._waits.waiting)
if not child:
    print("passed:", [bool(gate.acquire(request)) for _ in range(3)], flush=True)
    os._exit(0)
ended(child)
"""

ZONE = """
limiter = Limiter("1 concurrent", store=sys.argv[1], max_waiters=3)
assert limiter.acquire("key", timeout=0, lease=0.5)
child = fork_while_waiting(
    lambda: limiter.acquire("key", timeout=60, lease=0.5), lambda: limiter._lines._in_store.waiting
)
if not child:
    print("passed:", bool(limiter.acquire("key", timeout=30, lease=0.5)), flush=True)
    os._exit(0)
ended(child)
"""


def said(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", FORKING + program, *arguments], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("text", ["1/second bucket", "1 concurrent"])
def test_a_child_passes_though_its_parents_callers_were_in_line_before_it(core: str, text: str) -> None:
    assert said(LIMITER, core, text) == "passed: True"


def test_a_childs_requests_wait_for_rules_as_if_its_parents_did_not(core: str) -> None:
    assert said(GATE, core) == "passed: [True, True, True]"


def test_a_childs_callers_may_wait_in_a_zone_in_which_its_parent_has_as_many_as_it_may(tmp_path: Path) -> None:
    assert said(ZONE, f"shared://{tmp_path}/zone") == "passed: True"

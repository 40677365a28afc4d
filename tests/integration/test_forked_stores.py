"""A child process that was forked while its parent's threads were busy with a store: its own calls are answered."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

FORKING = """
import os, signal, sys, threading
from itertools import count
from headgate import Limiter

limiter = Limiter("5/minute", store=sys.argv[1])
sys.setswitchinterval(1e-6)

def use(name):
    limiter.hit(name)
    if held := limiter.reserve((name, "held"), lease=5):
        limiter.commit(held.id, 1)

def stay_busy(thread):
    for number in count():
        use(f"{thread} {number % 50}")

use("first")
for thread in range(4):
    threading.Thread(target=stay_busy, args=(thread,), daemon=True).start()
stuck = 0
for number in range(30):
    child = os.fork()
    if not child:
        signal.alarm(10)
        use(f"child {number}")
        os._exit(0)
    stuck += os.waitpid(child, 0)[1] != 0
    if stuck:
        break
print("stuck:", stuck, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("store", ["redis://127.0.0.1:1/0", "memory://"])
def test_children_of_a_busy_process_get_answers(core: str, store: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, store],
        env=os.environ | {"HEADGATE_CORE": core}, check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout == "stuck: 0\n", done.stderr

"""Holds a call of a language model and waits to be killed: `python llm_holder.py STORE POLICY`."""

from __future__ import annotations

import json
import sys
import time

from headgate.llm import LlmGate

if __name__ == "__main__":
    gate = LlmGate(json.loads(sys.argv[2]), store=sys.argv[1])
    print(gate.reserve("m", user="u1", input_tokens=1000, max_tokens=500).id, flush=True)
    time.sleep(600)

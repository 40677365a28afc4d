"""Who needs an event of each decision gets it, also of those that the front door would make without Python."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import httpx
import pytest

from headgate import MemoryStore, core
from headgate.observe.events import DecisionEvent, Event
from headgate.policy.gate import AsyncGate
from headgate.service.app import Service
from headgate.service.http.bounds import Bounds
from headgate.service.workers.front_door import FrontDoor

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not hasattr(core.native, "Door"), reason="there is no front door here"),
]
POLICY = {"version": 1, "rules": [{"name": "all", "by": ["ip"], "limits": "2/hour fixed"}]}


class Recorder:
    """Keeps the paths of what was decided, and whether it passed."""

    def __init__(self) -> None:
        self.decided: list[tuple[str, bool]] = []

    def handle(self, event: Event) -> None:
        if isinstance(event, DecisionEvent):
            self.decided.append((event.request.path, bool(event.decision)))


def ask_behind_a_door(service: Service, folder: Path, *, each_decision: bool) -> tuple[list[int], Recorder]:
    """What a service answers to requests, of which a subscriber comes after the first; and what that is told."""
    recorder = Recorder()

    async def main() -> list[int]:
        listener = socket.create_server(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        door = FrontDoor(service, listener, Bounds(), private_socket=folder / "door", threads=1)
        maintaining = asyncio.create_task(door.connections.maintain(lambda: None))
        await asyncio.sleep(0)
        await door.open()
        statuses = []
        async with httpx.AsyncClient(base_url=address, timeout=20) as client:
            for path in ("/a", "/b", "/c"):
                statuses.append((await client.get(f"/check/default{path}")).status_code)
                if path == "/a":
                    service.events.subscribe(recorder, each_decision=each_decision)
        await door.end(asyncio.Event())
        maintaining.cancel()
        return statuses

    return asyncio.run(main()), recorder


@pytest.mark.parametrize("each_decision", [True, False])
def test_a_subscriber_that_needs_each_decision_receives_it_behind_the_front_door(
    each_decision: bool, tmp_path: Path
) -> None:
    service = Service(AsyncGate(POLICY, store=MemoryStore()))
    statuses, recorder = ask_behind_a_door(service, tmp_path, each_decision=each_decision)
    assert statuses == [200, 200, 429]
    assert recorder.decided == ([("/b", True), ("/c", False)] if each_decision else [])
    assert b'headgate_decisions_total{result="refused",rule="all"} 1.0' in service.metrics.exposition()

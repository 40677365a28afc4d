"""One process that answers: its event loop, its port, and how it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from headgate.errors import MissingExtraError
from headgate.observe.prometheus import leave_out_creation_times
from headgate.service.app import Service
from headgate.service.workers.policy_watch import PolicyWatch
from headgate.service.workers.port import Port
from headgate.service.workers.shutdown import Shutdown
from headgate.supervisor.reloading import reload_on_signal

try:
    import uvloop
except ImportError as error:
    raise MissingExtraError("the service", extra="service", why=error) from error

log = logging.getLogger("headgate")


def run(
    service: Service,
    port: Port,
    watch: PolicyWatch,
    *,
    drain_s: float,
    announce: Callable[[], None],
    heartbeat: Callable[[], None] = lambda: None,
    lifeline: int | None = None,
) -> None:
    """Answer on a port until told to stop; `announce` is called once requests are answered.

    `heartbeat` is called about once a second, for as long as the event loop turns. `lifeline`, of a process that is
    supervised, is the reading end of a pipe: when its other end closes, what has begun is finished, and no more.
    """
    leave_out_creation_times()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        shutdown = Shutdown(service, port.announce_end, drain_s, supervised=lifeline is not None)
        tasks = [asyncio.create_task(port.connections.maintain(heartbeat)), asyncio.create_task(watch.run())]
        reload_on_signal(reload)
        shutdown.handle_signals()
        if lifeline is not None:
            loop.add_reader(lifeline, abandoned, loop, lifeline, shutdown)
        try:
            await asyncio.sleep(0)  # the tasks have begun: there is a date
            await service.gate.warm_up()
            await port.open()
            announce()
            await shutdown.begun.wait()
            await port.end(shutdown.at_once)
        finally:
            for task in tasks:
                task.cancel()
            await service.gate.close()

    def reload() -> None:
        watch.reload()
        port.reload()

    def abandoned(loop: asyncio.AbstractEventLoop, lifeline: int, shutdown: Shutdown) -> None:
        loop.remove_reader(lifeline)
        log.error("the supervisor is gone: ending")
        shutdown.begin()

    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(main())

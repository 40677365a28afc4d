"""One process of the service: its event loop, its port, and how it ends."""

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
    """Answer on a port until a signal stops the process; `announce` is called once the port is open.

    `heartbeat` is called about once a second, as long as the event loop runs. `lifeline`, of a supervised process, is
    the reading end of a pipe: when its other end closes, the process finishes requests that have begun, and ends.
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
            await asyncio.sleep(0)  # the tasks have started: there is a date
            await service.gate.warm_up()
            await port.open()
            announce()
            await shutdown.started.wait()
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
        shutdown.start()

    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(main())

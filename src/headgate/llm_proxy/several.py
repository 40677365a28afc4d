"""The proxy in several processes: one port, one store, one set of metrics.

Errors of the configuration are raised before the first process is forked. Each worker has a gate, connections to
providers and keys of its own; they share the store that the parent opened, and the books' file.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace

from headgate.llm.books.queued import QueuedBooks
from headgate.llm.gate import read_llm_policy
from headgate.llm.tokens import count_text
from headgate.llm_proxy.own_key import KeyFinder
from headgate.llm_proxy.process import work
from headgate.llm_proxy.proxy_parts import ProxyOptions
from headgate.llm_proxy.server import InForce, ProxyServer, ProxySource
from headgate.observe.locked_folder import METRICS, LockedFolder
from headgate.observe.worker_files import BYTES_PER_WORKER, Sharing, make_files
from headgate.supervisor.last_good import LastGood
from headgate.supervisor.link import SupervisorLink
from headgate.supervisor.listener import address_of, listen_together
from headgate.supervisor.shared_store import open_shared
from headgate.supervisor.supervisor import Supervisor

_GRACE_S = 15
"""How much longer than its drain a worker may take to end: to settle the calls cut off, and to write the books."""


def serve_workers(
    source: ProxySource,
    *,
    workers: int,
    store_url: str | None,
    make_keys: Callable[[], KeyFinder] | None,
    books: QueuedBooks | None,
    host: str,
    port: int,
    hang_s: float,
    options: ProxyOptions,
    announce: Callable[[str, str], None],
) -> bool:
    """Serve in several processes until a signal ends them; return whether all of them ended well.

    `store_url` replaces the policy's own store; without either, the store is the zone of this user and namespace.
    `make_keys` makes each worker's keys, None where calls need none; the source's keys and store are not used. A worker
    that hangs for `hang_s` seconds is replaced; with 0 never. `announce` is called with the address and that zone's URL
    ("" where a store was named), once all workers answer. Raises before anything starts: PolicyError and ConfigError
    for unusable settings, such as a store in the memory of each process; OSError for files.
    """
    first = source.read()
    read_llm_policy(first.policy)
    store, zone = open_shared(first.policy, store_url, file_name=str(source.policy), workers=workers)
    listeners = listen_together(host, port, workers)
    count_text("load the vocabulary", "gpt-5")  # once for all workers
    folder = LockedFolder(METRICS, size=workers * BYTES_PER_WORKER)
    last_good = LastGood(pickle.dumps(first))

    def run(link: SupervisorLink) -> None:
        keys = None if make_keys is None else make_keys()
        worker_source = replace(source, keys=keys, store=store, books=books)
        sharing = Sharing(folder.path, link.worker, supervisor.counts)
        server = _make_server(worker_source, last_good, first, options, sharing)
        try:
            work(server, link)
        finally:
            if books is not None:
                books.close()

    try:
        make_files(folder.path, workers)
        supervisor = Supervisor(
            listeners,
            run,
            drain_s=options.drain_s,
            stop_within_s=_GRACE_S,
            hang_s=hang_s,
            all_answer=lambda: announce(address, zone),
        )
        address = address_of(listeners[0])
        return supervisor.run()
    finally:
        folder.remove()
        store.close()


def _make_server(
    source: ProxySource, last_good: LastGood, first: InForce, options: ProxyOptions, sharing: Sharing | None
) -> ProxyServer:
    """Make a worker's proxy, with the policy that is in force in the others. The files are read on SIGHUP only."""
    stored = last_good.text()
    initial = first if stored is None else pickle.loads(stored)  # from an unnamed file of these processes alone
    return ProxyServer(
        source, options, sharing=sharing, initial=initial, applied=lambda read: last_good.keep(pickle.dumps(read))
    )

"""Real Redis servers for tests: one, with Sentinels, or a cluster; on free ports of the loopback, always ended.

    with single() as server: ...
    with sentinels() as watched: ...
    with cluster() as nodes: ...

They keep nothing but in a directory that goes with the block, and none outlives the process that
started it, even if that is killed. The environment variable HEADGATE_REDIS_SERVER names another
program than `redis-server`, such as `valkey-server`.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from tcp_proxy import HOST, hold_port

START_WITHIN_S = 30
SETTLE_WITHIN_S = 60
BUS_OFFSET = 10_000
SLOTS = 16_384
SERVICE = "mymaster"
# A test needs no patience: links and failures are noticed within fractions of a second.
# After a sync without a disk a primary sends nothing until the replica's first ACK, up to a second
# later, while the replica says that its link is up: what is written meanwhile dies with the primary.
IMPATIENT = ("repl-diskless-sync no", "repl-diskless-sync-delay 0", "repl-ping-replica-period 1")
SENTINEL_PERIODS = {"info-period": 500, "publish-period": 300, "ping-period": 200, "ask-period": 300}
# A Sentinel that was delayed for two seconds does nothing for half a minute by default.
SENTINEL_TILT = {"tilt-period": 1000}

_parent = ThreadPoolExecutor(max_workers=1, thread_name_prefix="redis-servers")
"""Servers are children of one thread that stays: they are killed when the thread that started them ends."""


def find(program: str, package: str) -> str:
    """The path of a program, or an error that names the package it is in."""
    found = shutil.which(program)
    if found is None:
        raise FileNotFoundError(f"{program} is not here: install {package}")
    return found


def wait_until(lacking: Callable[[], str], *, within_s: float) -> None:
    """Wait until nothing is lacking any more; servers that do not answer are queried again."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            lack = lacking()
        except redis.RedisError as error:
            lack = repr(error)
        if not lack:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {within_s:g} s still: {lack}")
        time.sleep(0.02)


class Certificates(NamedTuple):
    """Files of a server's certificate and of the authority that signed it."""

    ca: Path
    certificate: Path
    key: Path


def make_certificates(directory: Path) -> Certificates:
    """A certificate for 127.0.0.1 and localhost, of an authority of its own, for two days."""
    openssl = find("openssl", "Debian's openssl")
    files = Certificates(directory / "ca.crt", directory / "server.crt", directory / "server.key")
    extensions = directory / "extensions"
    extensions.write_text(
        f"subjectAltName=IP:{HOST},DNS:localhost\nbasicConstraints=critical,CA:FALSE\n"
        "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
    )
    new = "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    usage = "-addext keyUsage=critical,keyCertSign,cRLSign"
    for command in (
        f"{new} -x509 -days 2 -subj /CN=test-authority {usage} -keyout ca.key -out {files.ca}",
        f"{new} -subj /CN=localhost -keyout {files.key} -out server.csr",
        f"x509 -req -in server.csr -CA {files.ca} -CAkey ca.key -CAcreateserial -days 2"
        f" -extfile {extensions} -out {files.certificate}",
    ):
        subprocess.run([openssl, *command.split()], cwd=directory, check=True, capture_output=True, timeout=30)
    return files


class Server:
    """One server, with a port, a directory and a config file that outlast its process."""

    def __init__(
        self,
        directory: Path,
        *options: str,
        password: str = "",
        unixsocket: bool = False,
        certificates: Certificates | None = None,
        sentinel: bool = False,
        bus: bool = False,
    ) -> None:
        program = find(os.environ.get("HEADGATE_REDIS_SERVER") or "redis-server", "Debian's redis-server")
        # Not with a preexec_fn, of which Python warns where there are threads.
        self._command = [find("setpriv", "Debian's util-linux"), "--pdeathsig", "KILL", program]
        directory.mkdir()
        self.directory = directory
        self.password = password
        self.socket_path = directory / "redis.sock" if unixsocket else None
        self.ca_file = certificates.ca if certificates else None
        self._held = _hold_ports(bus=bus)
        self.port: int = self._held[0].getsockname()[1]
        self._credentials = f":{quote(password, safe='')}@" if password else ""
        scheme = "rediss" if certificates else "redis"
        self.url = f"{scheme}://{self._credentials}{HOST}:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        lines = [f"bind {HOST}", f"dir {directory}", *([] if sentinel else ['save ""', "appendonly no"])]
        if certificates:
            lines += ["tls-replication yes", *["tls-cluster yes"] * bus]
            lines += ["port 0", f"tls-port {self.port}", "tls-auth-clients no", f"tls-ca-cert-file {certificates.ca}"]
            lines += [f"tls-cert-file {certificates.certificate}", f"tls-key-file {certificates.key}"]
        else:
            lines.append(f"port {self.port}")
        if password:
            lines.append(f'requirepass "{password}"')
        if self.socket_path:
            lines += [f"unixsocket {self.socket_path}", "unixsocketperm 700"]
        self._config = directory / "redis.conf"
        self._config.write_text("\n".join([*lines, *options, ""]))
        self._log = directory / "log"
        self._command += [str(self._config), *["--sentinel"] * sentinel]

    def __repr__(self) -> str:
        return f"<Server {self.port}>"

    @property
    def unix_url(self) -> str:
        """The URL of its socket in the file system, if it has one."""
        assert self.socket_path is not None, "it was started without unixsocket=True"
        return f"unix://{self._credentials}{self.socket_path}?db=0"

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self} is not running"
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has a process that is not stopped."""
        return self._process is not None and self._process.poll() is None and not self._stopped

    @property
    def log(self) -> str:
        """The log of the server since its first start."""
        return self._log.read_text(errors="replace")

    def cli(self, *args: str | bytes | float, timeout_s: float = 5) -> Any:
        """Execute a command on a connection of its own, without retries; replies are text, not bytes.

        WAIT is useless here: it counts the replicas that have what was written on the same connection.
        """
        client: Any = redis.Redis(
            host=HOST,
            port=self.port,
            password=self.password or None,
            ssl=self.ca_file is not None,
            ssl_ca_certs=str(self.ca_file) if self.ca_file else None,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            decode_responses=True,
            encoding_errors="surrogateescape",
        )
        with client:
            return client.execute_command(*args)

    def launch(self) -> None:
        """Start its process, and do not wait for it."""
        with self._log.open("ab") as log:
            # In a group of its own: nothing but the test ends it, and what it forks ends with it.
            self._process = _parent.submit(
                subprocess.Popen,
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            ).result(START_WITHIN_S)
        self._stopped = False

    def wait_ready(self, within_s: float = START_WITHIN_S) -> None:
        """Wait until it answers; it has read its data then."""

        def lacking() -> str:
            if self._process is None or self._process.poll() is not None:
                raise ChildProcessError(f"{self._command} has ended:\n{self.log[-2000:]}")
            return "" if self.cli("PING", timeout_s=2) else "no PONG"

        wait_until(lacking, within_s=within_s)

    def stop(self) -> None:
        """Freeze it, with SIGSTOP: its port accepts connections, and it does not answer."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self._stopped = True

    def go_on(self) -> None:
        """Let it run again after stop()."""
        os.kill(self.pid, signal.SIGCONT)
        self._stopped = False

    def kill(self) -> None:
        """End it at once, with SIGKILL, and what it has forked; its port refuses connections then."""
        if self._process is None:
            return
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(START_WITHIN_S)
        self._process = None

    def restart(self) -> None:
        """Kill it, start it on the same port with the same config and directory, and wait until it answers.

        It then has no data, unless its options stored some.
        """
        self.kill()
        self.launch()
        self.wait_ready()

    def end(self) -> None:
        """Kill it for good, and give its port back."""
        try:
            self.kill()
        finally:
            for held in self._held:
                held.close()


def _hold_ports(*, bus: bool) -> list[socket.socket]:
    """A port that is free, and with a bus the port of the bus as well."""
    while True:
        held = hold_port()
        if not bus:
            return [held]
        with suppress(OSError):
            return [held, hold_port(held.getsockname()[1] + BUS_OFFSET)]
        held.close()


class _Room:
    """A directory where servers live, each until all are ended."""

    def __init__(self, directory: Path, ending: ExitStack) -> None:
        self.directory = directory
        self.ending = ending
        self.names = count()

    def launch(self, *options: str, **how: Any) -> Server:
        server = Server(self.directory / str(next(self.names)), *options, **how)
        self.ending.callback(server.end)
        server.launch()
        return server


@contextmanager
def _room() -> Iterator[_Room]:
    with TemporaryDirectory(prefix="headgate-redis-", ignore_cleanup_errors=True) as directory, ExitStack() as ending:
        yield _Room(Path(directory), ending)


@contextmanager
def single(*options: str, password: str = "", unixsocket: bool = False, tls: bool = False) -> Iterator[Server]:
    """One server until the end of the block; options are lines of redis.conf, and win over what is set here."""
    with _room() as room:
        certificates = make_certificates(room.directory) if tls else None
        server = room.launch(*options, password=password, unixsocket=unixsocket, certificates=certificates)
        server.wait_ready()
        yield server


class Sentinels:
    """A primary with replicas, and the Sentinels that watch them."""

    def __init__(self, servers: list[Server], watchers: list[Server]) -> None:
        self.servers = servers
        self.watchers = watchers
        """The Sentinels themselves, to be stopped and killed like other servers."""
        self.service = SERVICE
        self.sentinel_ports = [each.port for each in watchers]
        scheme = "rediss" if servers[0].ca_file else "redis"
        self.url = f"{scheme}+sentinel://{','.join(f'{HOST}:{port}' for port in self.sentinel_ports)}/{SERVICE}/0"

    @property
    def primary(self) -> Server:
        """The server that most Sentinels name as the primary now."""
        named: Counter[int] = Counter()
        for watcher in self.watchers:
            with suppress(redis.RedisError):
                if watcher.alive:
                    named[int(watcher.cli("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])] += 1
        assert named, "no Sentinel answers"
        port, _ = named.most_common(1)[0]
        return next(server for server in self.servers if server.port == port)

    def wait_failover(self, before: Server, *, within_s: float = SETTLE_WITHIN_S) -> Server:
        """Wait until another server than this one is the primary, in the eyes of all Sentinels and in its own."""

        def lacking() -> str:
            named = self._named_by_all()
            if named is None or named is before:
                return f"the Sentinels name {named or 'several'}"
            return "" if named.cli("ROLE")[0] == "master" else f"{named} is a replica"

        wait_until(lacking, within_s=within_s)
        return self.primary

    def wait_ok(self, *, within_s: float = SETTLE_WITHIN_S) -> None:
        """Wait until all live servers know each other, and replicas are in step with the primary."""
        wait_until(self._lacking, within_s=within_s)

    def _named_by_all(self) -> Server | None:
        ports = {
            int(each.cli("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1]) for each in self.watchers if each.alive
        }
        return next((server for server in self.servers if ports == {server.port}), None)

    def _lacking(self) -> str:
        primary = self._named_by_all()
        if primary is None or not primary.alive or primary.cli("ROLE")[0] != "master":
            return f"the primary is not sure: {primary}"
        replicas = {server.port for server in self.servers if server.alive} - {primary.port}
        for server in self.servers:
            if server.port in replicas and (lack := _replica_lacks(server, {primary.port: primary})):
                return lack
        for watcher in self.watchers:
            if not watcher.alive:
                continue
            others = _ports(watcher.cli("SENTINEL", "SENTINELS", SERVICE))
            if not {each.port for each in self.watchers if each.alive} - {watcher.port} <= others:
                return f"Sentinel {watcher.port} knows Sentinels {others} only"
            found = _ports(watcher.cli("SENTINEL", "REPLICAS", SERVICE))
            if not replicas <= found:
                return f"Sentinel {watcher.port} knows replicas {found} only"
            watcher.cli("SENTINEL", "CKQUORUM", SERVICE)
        return ""


def _ports(known: list[Any]) -> set[int]:
    """The ports of those whom a Sentinel lists and thinks to be well."""
    listed = [one if isinstance(one, dict) else dict(zip(one[::2], one[1::2], strict=True)) for one in known]
    unwell = {"s_down", "o_down", "disconnected"}
    return {int(one["port"]) for one in listed if unwell.isdisjoint(str(one["flags"]).split(","))}


def _replica_lacks(server: Server, primaries: dict[int, Server]) -> str:
    """What keeps it from having all that one of these primaries has."""
    primary = primaries.get(server.cli("INFO", "replication").get("master_port", 0))
    if primary is None:
        return f"{server} does not follow a primary"
    written = primary.cli("INFO", "replication")["master_repl_offset"]
    info = server.cli("INFO", "replication")
    if info["role"] != "slave" or info["master_port"] != primary.port or info["master_link_status"] != "up":
        return f"{server} has no link to {primary}: {info}"
    return "" if info["slave_repl_offset"] >= written else f"{server} is behind {primary}"


@contextmanager
def sentinels(
    replicas: int = 2,
    quorum: int = 2,
    *,
    watchers: int = 3,
    down_after_ms: int = 800,
    failover_timeout_ms: int = 3000,
    options: Sequence[str] = (),
    sentinel_password: str = "",
    tls: bool = False,
) -> Iterator[Sentinels]:
    """A primary with replicas, watched by Sentinels; options are lines of redis.conf of the servers.

    With a `sentinel_password` the Sentinels ask for it, each other as well; it is no part of the URL.
    """
    with _room() as room:
        launch = partial(room.launch, certificates=make_certificates(room.directory) if tls else None)
        primary = launch(*IMPATIENT, *options)
        primary.wait_ready()
        following = f"replicaof {HOST} {primary.port}"
        servers = [primary, *(launch(*IMPATIENT, following, *options) for _ in range(replicas))]
        for server in servers[1:]:
            server.wait_ready()
            wait_until(partial(_replica_lacks, server, {primary.port: primary}), within_s=SETTLE_WITHIN_S)
        eyes = [
            launch(
                f"sentinel monitor {SERVICE} {HOST} {primary.port} {quorum}",
                f"sentinel down-after-milliseconds {SERVICE} {down_after_ms}",
                f"sentinel failover-timeout {SERVICE} {failover_timeout_ms}",
                f"sentinel parallel-syncs {SERVICE} {replicas}",
                *[f'sentinel sentinel-pass "{sentinel_password}"'] * bool(sentinel_password),
                password=sentinel_password,
                sentinel=True,
            )
            for _ in range(watchers)
        ]
        for eye in eyes:
            eye.wait_ready()
            for name, value in {**SENTINEL_PERIODS, **SENTINEL_TILT}.items():
                with suppress(redis.ResponseError):  # before 7.0 they are what they are
                    eye.cli("SENTINEL", "DEBUG", name, value)
        watched = Sentinels(servers, eyes)
        watched.wait_ok()
        yield watched


class Node(NamedTuple):
    """One line of CLUSTER NODES."""

    id: str
    port: int
    flags: frozenset[str]
    primary_id: str
    epoch: int
    slots: tuple[tuple[int, int], ...]
    """First and last of each range."""


def nodes_seen_by(server: Server) -> list[Node]:
    """All nodes that this one knows, itself among them with the flag `myself`."""
    nodes: list[Node] = []
    for line in str(server.cli("CLUSTER", "NODES")).splitlines():
        name, address, flags, primary_id, _, _, epoch, _, *slots = line.split()
        port = int(address.partition("@")[0].rpartition(":")[2])
        ranges = [each.partition("-") for each in slots if not each.startswith("[")]
        owned = tuple((int(first), int(last or first)) for first, _, last in ranges)
        nodes.append(Node(name, port, frozenset(flags.split(",")), primary_id, int(epoch), owned))
    return nodes


class Cluster:
    """Servers that share the slots of a Redis Cluster."""

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers
        scheme = "rediss" if servers[0].ca_file else "redis"
        self.url = f"{scheme}+cluster://{','.join(f'{HOST}:{server.port}' for server in servers)}/"

    def primaries(self) -> list[Server]:
        """The servers that own slots now, as far as they answer."""
        owners = set(self._owners().values())
        return [server for server in self.servers if server in owners]

    def owner_of(self, slot: int) -> Server:
        """The server that owns this slot now; of several that claim it, the one with the latest epoch."""
        owner = self._owners().get(slot)
        assert owner is not None, f"no server that answers owns slot {slot}"
        return owner

    def replicas_of(self, primary: Server) -> list[Server]:
        """The servers that follow this one now, as far as they answer."""
        name = self._myself(primary).id
        return [server for server in self.servers if server.alive and self._myself(server).primary_id == name]

    def migrate_slot(self, slot: int, to: Server, *, pause: Callable[[], object] | None = None) -> None:
        """Move a slot and its keys to another primary while clients go on, as a resharding does.

        `pause` is called while the slot is half migrated: its owner migrates it, the other imports it,
        and half of its keys have moved, the one more of an odd number, so that a single key has moved.
        Whoever does not answer is left out. If `pause` raises, the slot stays half migrated.
        """
        source = self.owner_of(slot)
        assert source is not to, f"{to} owns slot {slot}"
        source_id, target_id = self._myself(source).id, self._myself(to).id
        to.cli("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        source.cli("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        keys = int(source.cli("CLUSTER", "COUNTKEYSINSLOT", slot))
        self._move_keys(source, to, source.cli("CLUSTER", "GETKEYSINSLOT", slot, (keys + 1) // 2))
        if pause is not None:
            pause()
        while left := source.cli("CLUSTER", "GETKEYSINSLOT", slot, 100):
            self._move_keys(source, to, left)
        # The new owner first: a slot that has no owner for a moment would be an error to clients.
        for server in (to, source, *(other for other in self.primaries() if other not in (to, source))):
            server.cli("CLUSTER", "SETSLOT", slot, "NODE", target_id)

    def wait_ok(self, *, within_s: float = SETTLE_WITHIN_S) -> None:
        """Wait until all live servers agree on the owners of all slots, and replicas are in step."""
        wait_until(self._lacking, within_s=within_s)

    @staticmethod
    def _move_keys(source: Server, to: Server, keys: list[str]) -> None:
        if keys:
            source.cli("MIGRATE", HOST, to.port, "", 0, 5000, "KEYS", *keys, timeout_s=10)

    @staticmethod
    def _myself(server: Server) -> Node:
        return next(node for node in nodes_seen_by(server) if "myself" in node.flags)

    def _owners(self) -> dict[int, Server]:
        """The owner of each slot, by what primaries say of themselves."""
        claims: list[tuple[Node, Server]] = []
        for server in self.servers:
            with suppress(redis.RedisError):
                if server.alive and "master" in (node := self._myself(server)).flags:
                    claims.append((node, server))
        claims.sort(key=lambda claim: claim[0].epoch)
        return {
            slot: server for node, server in claims for first, last in node.slots for slot in range(first, last + 1)
        }

    def _lacking(self) -> str:
        alive = {server.port: server for server in self.servers if server.alive}
        views = {port: nodes_seen_by(server) for port, server in alive.items()}
        views_of_live_servers = {
            frozenset((node.id, node.primary_id, node.slots) for node in view if node.port in alive or node.slots)
            for view in views.values()
        }
        if len(views_of_live_servers) != 1:
            return f"several views: {views}"
        owners = {node.port for view in views.values() for node in view if node.slots}
        if not owners <= set(alive):
            return f"servers that are not there own slots: {owners - set(alive)}"
        for port, server in alive.items():
            if any(node.flags & {"fail", "fail?", "handshake"} for node in views[port] if node.port in alive):
                return f"{server} misses another: {views[port]}"
            state = str(server.cli("CLUSTER", "INFO"))
            if "cluster_state:ok" not in state or f"cluster_slots_ok:{SLOTS}" not in state:
                return f"{server}: {state}"
            is_replica = any({"myself", "slave"} <= node.flags for node in views[port])
            if is_replica and (lack := _replica_lacks(server, {port: alive[port] for port in owners})):
                return lack
        return ""


@contextmanager
def cluster(
    shards: int = 3,
    replicas_each: int = 1,
    *,
    node_timeout_ms: int = 1500,
    options: Sequence[str] = (),
    tls: bool = False,
) -> Iterator[Cluster]:
    """A Redis Cluster, its first servers the primaries; options are lines of redis.conf of all servers."""
    with _room() as room:
        certificates = make_certificates(room.directory) if tls else None
        servers = [
            room.launch(
                *IMPATIENT,
                "cluster-enabled yes",
                f"cluster-node-timeout {node_timeout_ms}",
                "cluster-replica-validity-factor 0",  # a replica takes over however old its data is
                "cluster-migration-barrier 100",  # none is moved to another primary
                *options,
                bus=True,
                certificates=certificates,
            )
            for _ in range(shards * (1 + replicas_each))
        ]
        for number, server in enumerate(servers):
            server.wait_ready()
            server.cli("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < shards:
                slots = range(number * SLOTS // shards, (number + 1) * SLOTS // shards)
                server.cli("CLUSTER", "ADDSLOTS", *slots)
        for number, server in enumerate(servers):
            for other in servers[:number]:
                server.cli("CLUSTER", "MEET", HOST, other.port)
        for number, server in enumerate(servers):
            wait_until(partial(_knows_too_few, server, len(servers)), within_s=SETTLE_WITHIN_S)
            if number >= shards:
                primary = servers[number % shards]
                server.cli("CLUSTER", "REPLICATE", str(primary.cli("CLUSTER", "MYID")))
        nodes = Cluster(servers)
        nodes.wait_ok()
        yield nodes


def _knows_too_few(server: Server, size: int) -> str:
    known = [node for node in nodes_seen_by(server) if "handshake" not in node.flags]
    return "" if len(known) == size else f"{server} knows {len(known)} of {size} nodes"

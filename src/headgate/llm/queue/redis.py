"""Jobs in a Redis or Valkey, which many processes share and which outlive them; the operations are in `lua/queue.lua`.

Each call runs one script. News is read from a stream, by blocking reads on a separate connection; it is open from the
first time that something waits for news until `close`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from hashlib import sha1
from importlib import resources
from typing import Any

from headgate.clock import Clock
from headgate.errors import ConfigError, ConflictingId, MissingExtraError, StoreError
from headgate.llm.entry import Caller
from headgate.llm.queue.backlog import Bounds, Claim, Fairness, Finished, Nothing, StopReason, Taken
from headgate.llm.queue.job import Job, JobRequest, JobState, Position, QueueFull, UnknownJob
from headgate.llm.queue.memory import answer_of, starts_in
from headgate.llm.queue.news import News
from headgate.stores.redis.eviction import EvictionNotice
from headgate.stores.redis.url import RedisTarget, read_url
from headgate.stores.url_parts import split_url

log = logging.getLogger("headgate")

TIMEOUT_S = 1.0
"""The timeout of a call, unless the URL sets another."""

_BLOCK_MS = 10_000
_LEEWAY_S = 5.0
_PAUSE_S = 0.5
_READ_AT_ONCE = 100


class RedisBacklog:
    """`Backlog` in a Redis, by its URL: a single server, one behind Sentinels, or a Cluster.

    A worker that is silent for `lease_s` is dead. Times are those of `clock`, by default the server's.
    """

    def __init__(
        self, url: str, name: str, bounds: Bounds, fairness: Fairness, lease_s: float, clock: Clock | None
    ) -> None:
        target = read_url(url)
        if "timeout" not in dict(split_url(url).options):
            target = target._replace(timeout_s=TIMEOUT_S)
        self.bounds = bounds
        self.lease_us: int | None = round(lease_s * 1_000_000)
        self._lease_ms = max(1, round(lease_s * 1_000))
        self.news = News(self._listen)
        self._clock = clock
        self._fairness = fairness
        self._stream = f"{target.prefix}:{{{name}}}:queue:jobs".encode()
        self._news_stream = f"{target.prefix}:{{{name}}}:queue:news".encode()
        self._link = _link_to(target)
        self._reading_link = _link_to(target._replace(timeout_s=_BLOCK_MS / 1000 + _LEEWAY_S))
        self._reader: asyncio.Task[None] | None = None
        self._script = _script()

    async def submit(self, request: JobRequest) -> Job:
        bounds = self.bounds
        reply = await self._run(
            "submit", request.id, request.account, request.lane, request.digest, request.priority, request.tokens,
            request.deadline_us, json.dumps(request.caller), request.model, request.path, request.body,
            bounds.jobs, bounds.bytes, bounds.user_jobs, bounds.user_bytes,
        )  # fmt: skip
        if reply[0] == b"conflict":
            raise ConflictingId(f"the id {request.id!r} is that of another job: a new job needs an id of its own")
        if reply[0] == b"full":
            bound = reply[1].decode()
            raise QueueFull(bound, getattr(bounds, bound))
        return _job(request.id, reply)

    async def take(self, worker: str) -> Taken | Nothing:
        reply = await self._run("take", worker)
        if reply[0] == b"nothing":
            return Nothing(None if reply[1] < 0 else reply[1])
        _, id, fields, state_fields, claims = reply
        state, hold, attempts, deliveries, since_us, score, refusals, promised_us, answer, former = state_fields
        entry = dict(zip(fields[::2], fields[1::2], strict=True))
        return Taken(
            id.decode(), Caller(*json.loads(entry[b"c"])), entry[b"m"].decode(), entry[b"path"].decode(),
            entry[b"body"], state.decode(), int(hold), int(attempts), int(deliveries), int(since_us), int(score),
            int(refusals), int(promised_us), _claims(claims), answer or b"", int(former or 0),
        )  # fmt: skip

    async def park(
        self, worker: str, taken: Taken, after_us: int, scope: str = "", *, refused: bool, settled: bool, failed: bool
    ) -> bool:
        reply = await self._run(
            "park", worker, taken.id, after_us, scope, int(refused), int(settled), int(failed), taken.hold
        )
        return bool(reply[0] == b"parked")

    async def renew(self, worker: str, taken: Taken) -> Taken | None:
        reply = await self._run("renew", worker, taken.id)
        return taken._replace(hold=int(reply[1]), former=int(reply[2])) if reply[0] == b"renewed" else None

    async def finish(
        self, worker: str, taken: Taken, state: JobState, *, answer: bytes = b"", error: str = "", limit: str = "",
        scopes: tuple[str, ...] = (), tokens: int | None = None, settled: bool = True,
    ) -> Finished:  # fmt: skip
        reply = await self._run(
            "finish", worker, taken.id, state, answer, error, limit, "" if tokens is None else tokens, int(settled),
            taken.hold, *scopes,
        )  # fmt: skip
        finished: Finished = reply[0].decode()
        return finished

    async def release(self, worker: str, taken: Taken) -> None:
        await self._run("release", worker, taken.id)

    async def wake(self, scopes: tuple[str, ...]) -> None:
        await self._run("wake", *scopes)

    async def keep(self, worker: str, ids: tuple[str, ...]) -> dict[str, StopReason]:
        reply = await self._run("keep", worker, *ids)
        return {id: word.decode() for id, word in zip(ids, reply, strict=True) if word}

    async def cancel(self, id: str) -> Job:
        return _job(id, await self._run("cancel", id))

    async def get(self, id: str) -> Job:
        return _job(id, await self._run("get", id))

    async def position(self, id: str) -> Position:
        state, ahead, waiting, after_us, since_us, started = await self._run("position", id)
        if not state:
            raise UnknownJob(id)
        if state != b"waiting":
            return Position(state.decode(), 0, waiting, None)
        return Position("waiting", ahead, waiting, starts_in(ahead, after_us, since_us, started))

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
            self._reader = None
        await self._link.close()
        await self._reading_link.close()

    async def _run(self, operation: str, *arguments: str | bytes | int) -> Any:
        settings = (
            operation,
            "" if self._clock is None else self._clock.now_us(),
            self._fairness.ageing_tokens,
            self._fairness.priority_tokens,
            max(1, self.bounds.results_us // 1000),
            self._lease_ms,
            *arguments,
        )
        encoded = [setting if isinstance(setting, bytes) else str(setting).encode() for setting in settings]
        return await self._link.run(self._script.call([self._stream], encoded))

    def _listen(self) -> None:
        """Start reading news, unless it is being read; called whenever something waits for news."""
        if self._reader is None or self._reader.done():
            self._reader = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        """Publish the entries of the news stream. After a time when it could not be read, notify all waiters."""
        is_logged = False
        while True:
            try:
                newest_entries = await self._reading_link.execute(
                    self._news_stream, ("XREVRANGE", self._news_stream, "+", "-", "COUNT", 1)
                )
                last = newest_entries[0][0] if newest_entries else b"0-0"
                self.news.publish_all()
                is_logged = False
                while True:
                    reply = await self._reading_link.execute(
                        self._news_stream,
                        ("XREAD", "COUNT", _READ_AT_ONCE, "BLOCK", _BLOCK_MS, "STREAMS", self._news_stream, last),
                    )
                    for id, fields in reply[0][1] if reply else ():
                        last = id
                        self.news.publish(fields[1].decode(), fields[3].decode())
            except StoreError as error:
                if not is_logged:
                    log.warning("news of a queue cannot be read, and is tried again: %s", error)
                is_logged = True
                await asyncio.sleep(_PAUSE_S)


class _Script:
    """The Lua script of the queue."""

    def __init__(self, text: str) -> None:
        from headgate.stores.redis.commands import ScriptCall
        from headgate.stores.redis.scripts import Script

        self._call = ScriptCall
        self._script = Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())

    def call(self, keys: list[bytes], arguments: list[bytes]) -> Any:
        return self._call(self._script, keys, arguments)


def _script() -> _Script:
    return _Script((resources.files("headgate.llm.queue") / "lua" / "queue.lua").read_text())


def _link_to(target: RedisTarget) -> Any:
    try:
        from headgate.stores.redis.async_link import AsyncLink
    except ImportError as error:
        raise MissingExtraError("a queue on Redis", extra="redis", why=error) from error
    return AsyncLink(target, None, target.shown, {}, EvictionNotice(target.shown))


def _claims(reply: list[bytes]) -> tuple[Claim, ...]:
    return tuple(
        Claim(scope.decode(), int(score), int(after_us))
        for scope, score, after_us in zip(reply[::3], reply[1::3], reply[2::3], strict=True)
    )


def _job(id: str, reply: list[Any]) -> Job:
    """Parse a job from the script's reply; raises UnknownJob where there is none."""
    _, repeated, fields = reply
    state, caller, model, *numbers, answer, error, limit, is_known = fields
    if not is_known:
        raise UnknownJob(id)
    priority, tokens, submitted_us, started_us, ended_us, deadline_us, attempts = (
        int(number or 0) for number in numbers
    )
    return Job(
        id, Caller(*json.loads(caller)), model.decode(), state.decode(), priority, tokens, submitted_us, started_us,
        ended_us, deadline_us, attempts, answer_of(answer or b""), (error or b"").decode(), (limit or b"").decode(),
        bool(repeated),
    )  # fmt: skip


def check_name(name: str) -> str:
    """Return a valid name of a queue; raises ConfigError for any other."""
    if not name or len(name) > 60 or not all(character.isalnum() or character in "._-" for character in name):
        raise ConfigError(f"the name of a queue is up to 60 letters, digits, . _ or -, not {name[:70]!r}")
    return name

"""Keys on a Redis or Valkey, for proxies on several hosts: a hash from digests to the records of keys.

A proxy caches a reply for a second, so a second after it was revoked every proxy refuses a key.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from hashlib import sha1
from typing import Any

from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND, Clock
from headgate.errors import ConfigError, StoreError
from headgate.llm_proxy.own_key import OwnKey, add_to, key_values, read_key, revoked_in
from headgate.stores.redis.commands import ScriptCall
from headgate.stores.redis.scripts import Script
from headgate.stores.redis.store import RedisStore
from headgate.stores.url import open_store

_FIND = "return redis.call('HGET', KEYS[1], ARGV[1])"
_ALL = "return redis.call('HGETALL', KEYS[1])"

# ARGV: the number of changes when the caller read the keys, then pairs of a digest and a key's record. Replies with 0
# where another process has changed the keys since.
_CHANGE = """
if (redis.call('HGET', KEYS[1], 'changes') or '0') ~= ARGV[1] then return 0 end
for i = 2, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
return redis.call('HINCRBY', KEYS[1], 'changes', 1)
"""
_CHANGES = "changes"
_DIGEST = re.compile("[0-9a-f]{64}")
_MOST_CACHED = 10_000
_MOST_TRIES = 20


class RedisKeys:
    """The keys of a server, named by the URL of a store; all proxies and commands with this URL share them."""

    def __init__(self, url: str, clock: Clock = SYSTEM_CLOCK) -> None:
        """Raises ConfigError for a URL that names no Redis."""
        self._guarded = open_store(url)
        store = self._guarded.unguarded
        if not isinstance(store, RedisStore):
            raise ConfigError("keys are in a file, or on a Redis: a path, or a URL such as redis://HOST")
        self._link = store.sync_link
        self._key = f"{store.prefix}:{{llm-keys}}".encode()
        self._clock = clock
        self._cached: OrderedDict[str, tuple[int, OwnKey | None]] = OrderedDict()

    async def find(self, digest: str) -> OwnKey | None:
        """Find the key of a digest; raises StoreError where the server does not answer."""
        if not _DIGEST.fullmatch(digest):
            return None
        now_us = self._clock.now_us()
        cached = self._cached.get(digest)
        if cached is not None and now_us < cached[0]:
            return cached[1]
        reply = await asyncio.to_thread(self._run, _FIND, digest.encode())
        key = None if reply is None else _read(reply)
        self._cached[digest] = (now_us + US_PER_SECOND, key)
        self._cached.move_to_end(digest)
        if len(self._cached) > _MOST_CACHED:
            self._cached.popitem(last=False)
        return key

    def check(self) -> int:
        """The number of keys; raises ConfigError where there are none, StoreError where the server does not answer."""
        keys = self.all()
        if not keys:
            raise ConfigError("there are no keys yet: make one with `headgate llm key create NAME --keys URL`")
        return len(keys)

    def all(self) -> list[OwnKey]:
        """All keys, in the order of their creation."""
        return self._state()[1]

    def add(self, key: OwnKey) -> None:
        """Store a new key; raises ConfigError where one of its name is active."""
        self._change(lambda keys: (add_to(keys, key), 1))

    def revoke(self, name: str, now_us: int) -> int:
        """Revoke the keys of a name; return how many were revoked."""
        return self._change(lambda keys: revoked_in(keys, name, now_us))

    def close(self) -> None:
        """Close the connections."""
        self._guarded.close()

    def _state(self) -> tuple[str, list[OwnKey]]:
        """The number of changes so far, and all keys."""
        reply = [_text(item) for item in self._run(_ALL)]
        fields = dict(zip(reply[::2], reply[1::2], strict=True))
        changes = fields.pop(_CHANGES, "0")
        return changes, sorted(map(_read, fields.values()), key=lambda key: (key.created_us, key.name))

    def _change(self, change: Callable[[list[OwnKey]], tuple[list[OwnKey], int]]) -> int:
        for _ in range(_MOST_TRIES):
            changes, before = self._state()
            after, changed = change(before)
            if not changed:
                return 0
            arguments = [changes.encode()]
            for key in after:
                if key not in before:
                    arguments += [key.digest.encode(), json.dumps(key_values(key)).encode()]
            if self._run(_CHANGE, *arguments):
                return changed
        raise StoreError("other processes keep changing the keys: try again")

    def _run(self, script: str, *arguments: bytes) -> Any:
        [reply] = self._link.run_all([ScriptCall(_script(script), [self._key], list(arguments))])
        return reply


@cache
def _script(text: str) -> Script:
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _read(reply: Any) -> OwnKey:
    try:
        return read_key(json.loads(_text(reply)), "keys on Redis")
    except ValueError as error:
        raise StoreError("the stored record of a key is none that this version has written") from error

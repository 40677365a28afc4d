"""The samples of all processes, on a Redis or Valkey: a hash for each series, merged by one script call for each.

A series is kept for a month after its last change; one of few samples for a day, as clients that invent keys cause
any number of these.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from typing import Any

from headgate.errors import StoreError
from headgate.llm.learned.samples import FEWEST, MOST
from headgate.llm.learned.shared import GIVE_UP_AFTER_S, Addition
from headgate.stores.redis.commands import ScriptCall
from headgate.stores.redis.scripts import Script
from headgate.stores.redis.store import RedisStore

_SERIES_PER_WRITE = 25
"""The most series in one write, so that no other client waits long."""

_DAY_S = 86_400
_MONTH_S = 30 * _DAY_S

# KEYS: the series, and the number that this process last added there. ARGV: that number, for how many seconds it is
# remembered, then a bucket and a count each. Replies with the series as HGETALL does.
_MERGE = f"""
local added, name = KEYS[2], KEYS[1]
if #ARGV > 2 and redis.call('GET', added) ~= ARGV[1] then
  for i = 3, #ARGV, 2 do redis.call('HINCRBY', name, ARGV[i], ARGV[i + 1]) end
  redis.call('SET', added, ARGV[1], 'EX', ARGV[2])
  local flat, weight = redis.call('HGETALL', name), 0
  for i = 2, #flat, 2 do weight = weight + tonumber(flat[i]) end
  while weight > {MOST} do
    local counts, ended, cut = {{}}, {{}}, {{}}
    for i = 1, #flat, 2 do
      local bucket = tonumber(flat[i])
      counts[bucket] = tonumber(flat[i + 1])
      if bucket < 0 then cut[#cut + 1] = bucket else ended[#ended + 1] = bucket end
    end
    table.sort(ended)
    table.sort(cut, function(one, other) return one > other end)
    for _, buckets in ipairs({{ended, cut}}) do
      local remainder = 0
      for _, bucket in ipairs(buckets) do
        remainder = remainder + counts[bucket]
        local half = math.floor(remainder / 2)
        remainder = remainder - 2 * half
        if half > 0 then
          redis.call('HSET', name, string.format('%.0f', bucket), string.format('%.0f', half))
        else
          redis.call('HDEL', name, string.format('%.0f', bucket))
        end
      end
    end
    flat, weight = redis.call('HGETALL', name), 0
    for i = 2, #flat, 2 do weight = weight + tonumber(flat[i]) end
  end
  redis.call('EXPIRE', name, weight < {FEWEST} and {_DAY_S} or {_MONTH_S})
  return flat
end
return redis.call('HGETALL', name)
"""


class RedisSamples:
    """The samples of all processes on the servers of a store; raises ConfigError for a client of asyncio."""

    def __init__(self, store: RedisStore) -> None:
        self._link = store.sync_link
        self._prefix = store.prefix

    def merge(self, process: str, number: int, additions: list[Addition]) -> list[dict[int, int]]:
        calls = [self._call(process, number, *addition) for addition in additions]
        replies: list[Any] = []
        for start in range(0, len(calls), _SERIES_PER_WRITE):
            replies += self._link.run_all(calls[start : start + _SERIES_PER_WRITE])
        return list(map(_counts, replies))

    def _call(self, process: str, number: int, name: str, added_counts: dict[int, int]) -> ScriptCall:
        key = f"{self._prefix}:{{learned:{name}}}:"
        arguments = [b"%d" % number, b"%d" % (2 * GIVE_UP_AFTER_S)]
        for bucket, count in added_counts.items():
            arguments += [b"%d" % bucket, b"%d" % count]
        return ScriptCall(_script(), [f"{key}samples".encode(), f"{key}{process}".encode()], arguments)


@cache
def _script() -> Script:
    return Script(_MERGE, sha1(_MERGE.encode(), usedforsecurity=False).hexdigest())


def _counts(reply: Any) -> dict[int, int]:
    try:
        numbers = [int(number) for number in reply]
        return dict(zip(numbers[::2], numbers[1::2], strict=True))
    except (TypeError, ValueError) as error:
        raise StoreError("the learned samples of a model are not in the format of this version") from error

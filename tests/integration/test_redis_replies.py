"""Any invalid reply of a server or proxy is a StoreError in time; the guard decides, and the breaker opens."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import pytest
import redis
from fake_server import FakeServer
from redis_askers import COLOURS, SLACK_S, Asker
from redis_servers import Server
from stalls import stalled_s
from tcp_proxy import HOST

from headgate import Limiter
from headgate.errors import ArgumentError, StoreError, StoreKeyError
from headgate.stores.redis.store import RedisStore

pytestmark = pytest.mark.integration
TIMEOUT_S = 0.3
NAN, INF = float("nan"), float("inf")
_prefixes = count()


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


REPLIES = {
    "nil": b"$-1\r\n",
    "nil array": b"*-1\r\n",
    "a RESP3 nil": b"_\r\n",
    "an integer": b":1\r\n",
    "a huge integer": b":99999999999999999999999\r\n",
    "a status": b"+OK\r\n",
    "an empty error": b"-\r\n",
    "an error of no text": b"-\xff\xfe\r\n",
    "an empty text": bulk(b""),
    "a text of no numbers": bulk(b"hello"),
    "a whole answer too many": bulk(struct.pack("<7d", *[1.0] * 7)),
    "NaN": bulk(struct.pack("<3d", NAN, 1, 1)),
    "all NaN": bulk(struct.pack("<5d", *[NAN] * 5)),
    "infinite": bulk(struct.pack("<3d", INF, 1, 1)),
    "negative": bulk(struct.pack("<3d", -1e300, -5, 1)),
    "beyond any number": bulk(struct.pack("<5d", 1e300, 1, 1, 1, 0)),
    "a fraction": bulk(struct.pack("<5d", 0.5, 1, 1, 1, 0)),
    "units that are none": bulk(struct.pack("<d", NAN)),
    "a state that is none": bulk(struct.pack("<dd", NAN, INF) + b"\0" * 26),
    "an array": b"*2\r\n:1\r\n:2\r\n",
    "an empty array": b"*0\r\n",
    "a deep array": b"*1\r\n" * 20 + b":1\r\n",
    "a billion elements": b"*1000000000\r\n",
    "a billion pairs": b"%1000000000\r\n",
    "a billion of a set": b"~1000000000\r\n",
    "a billion pushed": b">1000000000\r\n",
    "a billion within": b"*2\r\n:1\r\n*1000000000\r\n",
    "a text without end": b"$999999999999\r\nabc",
    "a text of negative length": b"$-7\r\n",
    "a RESP3 double": b",nan\r\n",
    "a RESP3 truth": b"#t\r\n",
    "a RESP3 map": b"%1\r\n+a\r\n:1\r\n",
    "a RESP3 set": b"~1\r\n:1\r\n",
    "a RESP3 big number": b"(" + b"9" * 5000 + b"\r\n",
    "a RESP3 verbatim text": b"=7\r\ntxt:abc\r\n",
    "a RESP3 error": b"!5\r\nERR x\r\n",
    "a RESP3 attribute": b"|1\r\n+a\r\n:1\r\n:5\r\n",
    "a push": b">2\r\n+invalidate\r\n*0\r\n",
    "pushes for ever": b">2\r\n+invalidate\r\n*0\r\n" * 3000,
    "a RESP3 stream": b"$?\r\n;3\r\nabc\r\n;0\r\n",
    "a moved slot of nowhere": b"-MOVED\r\n",
    "a moved slot to no port": b"-MOVED 1 127.0.0.1:99999999\r\n",
    "a moved slot of words": b"-MOVED x y\r\n",
    "an ask of nowhere": b"-ASK\r\n",
    "no script for ever": b"-NOSCRIPT No matching script\r\n",
    "a web page": b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\n\r\n<html></html>",
    "zeros": b"\0" * 100,
    "noise": bytes(range(256)) * 4,
    "nothing": b"",
}  # fmt: skip


def url_of(kind: str, port: int) -> str:
    timeout_ms = round(TIMEOUT_S * 1000)
    timeout = f"timeout={timeout_ms}ms&connect_timeout={timeout_ms}ms&prefix=r{os.getpid()}-{next(_prefixes)}"
    return {
        "single": f"redis://{HOST}:{port}/0?{timeout}",
        "sentinel": f"redis+sentinel://{HOST}:{port}/main/0?{timeout}",
        "cluster": f"redis+cluster://{HOST}:{port}?{timeout}",
    }[kind]


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("kind", ["single", "sentinel", "cluster"])
@pytest.mark.parametrize("named", REPLIES)
def test_an_invalid_reply_is_a_store_error_in_time(named: str, kind: str, colour: str) -> None:
    with FakeServer(REPLIES[named]) as server:
        for text in ("5/minute bucket", "5/minute fixed; 7/hour"):
            with Asker(colour, text, RedisStore(url_of(kind, server.port))) as asker:
                start = time.monotonic()
                for _ in range(2):
                    with pytest.raises(StoreError):
                        asker.hit("key")
                took_s = time.monotonic() - start
                assert took_s < 2 * TIMEOUT_S + SLACK_S + stalled_s(start, time.monotonic())


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("named", ["nil", "an integer", "a billion elements", "a web page", "an array", "noise"])
def test_the_guard_decides_and_its_breaker_opens(named: str, colour: str) -> None:
    with (
        FakeServer(REPLIES[named], opens=False) as server,
        Asker(colour, "5/minute", url_of("single", server.port)) as asker,
    ):
        assert [asker.hit("key").degraded for _ in range(5)] == ["local"] * 5
        assert asker.store.breaker.opened == 1


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("method", ["peek", "reset", "give_back", "hit_many", "read"])
def test_an_invalid_reply_is_not_taken_by_any_other_operation(method: str, colour: str) -> None:
    answers = {"give_back": ["an integer"], "read": ["nil"]}.get(method, [])
    for named in ("nil", "an integer", "an array", "a text of no numbers", "a billion elements"):
        with (
            FakeServer(REPLIES[named]) as server,
            Asker(colour, "5/minute fixed", RedisStore(url_of("single", server.port))) as asker,
        ):
            call: Any = getattr(asker, method)
            if named not in answers:
                with pytest.raises(StoreError):
                    call(["key", "other"] if method == "hit_many" else "key")


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("opens", [True, False])
def test_a_reply_that_comes_a_byte_at_a_time_has_one_deadline(opens: bool, colour: str) -> None:
    with (
        FakeServer(bulk(b"x" * 200), opens=opens, pause_s=TIMEOUT_S / 5) as server,
        Asker(colour, "5/minute", RedisStore(url_of("single", server.port))) as asker,
    ):
        for _ in range(2):
            start = time.monotonic()
            with pytest.raises(StoreError):
                asker.hit("key")
            assert time.monotonic() - start < TIMEOUT_S + SLACK_S + stalled_s(start, time.monotonic())


DAMAGE = {
    "nothing": b"",
    "a word": b"x",
    "zeros": b"\0" * 60,
    "noise": bytes(range(100, 160)),
    "NaN": struct.pack("<ddd", NAN, NAN, NAN),
    "infinite": struct.pack("<ddd", INF, INF, INF),
    "minus infinite": struct.pack("<ddd", -INF, -INF, -INF),
    "huge": struct.pack("<ddd", 1e300, 1e300, 1e300),
    "minus huge": struct.pack("<ddd", -1e300, -1e300, -1e300),
}


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    "text",
    ["5/minute fixed", "500/minute", "5/minute bucket", "5/minute leaky 5", "5/minute queue 5",
     "5/minute bucket; 9/hour fixed", "5/minute burst 9 stepwise", "5/day in Europe/Zurich"],
)  # fmt: skip
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_state_is_an_answer_or_an_error_of_its_key_alone(
    server: Server, damage: str, text: str, colour: str
) -> None:
    client: Any = redis.Redis(port=server.port)
    with Asker(colour, text, url_of("single", server.port)) as asker:
        assert asker.hit("damaged").allowed
        name = next(iter(client.scan_iter(match=f"{asker.raw.prefix}:{{damaged}}:*", count=1000)))
        for field, value in client.hgetall(name).items():
            client.hset(name, field, (DAMAGE[damage] + value[24:])[: max(len(value), len(DAMAGE[damage]))])
        for _ in range(6):
            decision = asker.hit("damaged", 1)
            assert decision.degraded in ("", "local")
            assert decision.allowed or decision.retry_after is None or decision.retry_after >= 0
        assert asker.store.breaker.opened == 0, "other keys are asked"
        assert asker.hit("sound").degraded == ""
        asker.reset("damaged")
        assert asker.hit("damaged").degraded == "", "it is sound once it was forgotten"
    client.close()


LOG_END = struct.Struct("<dHHdIIIdIB15s")
LOG_WORDS = ("base", "skip", "copied", "before", "swept", "start", "end", "offset", "expires_s", "form", "numbers")
"""The data after the entries of a log that has moved entries in other fields."""


def ending(**words: float) -> Any:
    """A log with these words at its end."""

    def change(fields: dict[bytes, bytes]) -> dict[bytes, bytes]:
        entries, end = fields[b"w0"][: -LOG_END.size], fields[b"w0"][-LOG_END.size :]
        sound = dict(zip(LOG_WORDS, LOG_END.unpack(end.rjust(LOG_END.size)), strict=True))
        return fields | {b"w0": entries + LOG_END.pack(*(sound | words).values())}

    return change


def of_copies(copies: bytes) -> Any:
    """A log with other bytes where a long one has the copies of its oldest entries."""
    return lambda fields: fields | {b"w0": copies + fields[b"w0"][len(copies) :]}


def of_all(change: Any) -> Any:
    """A change of the log's own field and of those that its entries were moved to."""
    return lambda fields: {field: change(value) for field, value in fields.items()}


WORK_S = 0.02
"""The most processor time that a call on a damaged log may cost the server; an endless script takes seconds."""

LOG_DAMAGE: dict[str, Any] = {
    **{f"its own field cut to {left}": lambda fields, left=left: fields | {b"w0": fields[b"w0"][:left]}
       for left in (0, 1, 2, 16, 28, 36, 46, 60, 70, 84, 94, 100, 130)},
    **{f"its own field without the first {cut}": lambda fields, cut=cut: fields | {b"w0": fields[b"w0"][cut:]}
       for cut in (2, 10, 40, 50, 52, 60, 80, 100)},
    "all fields cut to a half": of_all(lambda value: value[: len(value) // 2]),
    "all fields lengthened": of_all(lambda value: value + b"\0" * 30),
    "all fields lengthened in front": of_all(lambda value: b"\xff" * 30 + value),
    "all fields zeros": of_all(lambda value: b"\0" * len(value)),
    "all fields ones": of_all(lambda value: b"\xff" * len(value)),
    "all fields noise": of_all(lambda value: bytes(range(7, 7 + len(value) % 200)) * 2),
    "entries of noise, a sound end": of_all(lambda value: b"\xa5\x5a" * (len(value) // 2 - 30) + value[-60:]),
    "empty fields": of_all(lambda value: b""),
    "no moved fields": lambda fields: {b"w0": fields[b"w0"]},
    "the first moved field missing": lambda fields: {k: v for k, v in fields.items() if k != b"w0:0"},
    "the last moved field missing": lambda fields: {k: v for k, v in fields.items() if k != b"w0:3"},
    "moved fields of one entry": lambda fields: fields | {k: v[-18:] for k, v in fields.items() if k != b"w0"},
    "moved fields of no entry": lambda fields: fields | {k: v[-8:] for k, v in fields.items() if k != b"w0"},
    "moved fields whose ends are NaN": lambda fields: fields | {
        k: v[:-8] + struct.pack("<d", NAN) for k, v in fields.items() if k != b"w0"},
    "moved fields whose ends are minus infinite": lambda fields: fields | {
        k: v[:-8] + struct.pack("<d", -INF) for k, v in fields.items() if k != b"w0"},
    "huge counts": ending(swept=0, start=0, end=0xFFFFFFFF),
    "a huge count to sweep": ending(swept=0, start=0xFFFFFFF0, end=0xFFFFFFFF),
    "the last before the first": ending(swept=0, start=2, end=1),
    "swept beyond the last": ending(swept=9, start=1, end=2),
    "more skipped than there are": ending(skip=99),
    "an endless skip": ending(skip=0xFFFF),
    **{f"{copied} bytes of copies": ending(copied=copied) for copied in (0, 7, 10, 50, 200, 0xFFFF)},
    "copies from the far past": of_copies(b"\0" * 40),
    "copies from the far future": of_copies(b"\xff" * 40),
    "one copy of an entry to come": of_copies(b"\xff" * 10),
    "sums that are NaN": ending(base=NAN, before=NAN),
    "huge sums": ending(base=-1e300, before=1e300),
    "an offset that is NaN": ending(offset=NAN, base=NAN),
    "an infinite offset": ending(offset=-INF, base=INF),
    "a huge offset": ending(offset=1e300, base=1e300),
    "an offset from the far past": ending(offset=-1e300),
    **{f"form {form}": lambda fields, form=form: fields | {
        b"w0": fields[b"w0"][:-16] + bytes([form]) + fields[b"w0"][-15:]} for form in (0, 1, 3, 4, 255)},
    "the numbers of another limit": lambda fields: fields | {b"w0": fields[b"w0"][:-15] + b"\0" + b"\1" * 14},
    "numbers that are none": lambda fields: fields | {b"w0": fields[b"w0"][:-15] + b"\xff" * 15},
    "a period of nothing": lambda fields: fields | {b"w0": fields[b"w0"][:-15] + b"\0" * 15},
}  # fmt: skip


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("damage", LOG_DAMAGE)
@pytest.mark.parametrize("entries", [5, 60])
def test_a_damaged_log_is_an_answer_or_an_error_of_its_key_and_no_endless_script(
    server: Server, entries: int, damage: str, colour: str
) -> None:
    client: Any = redis.Redis(port=server.port)
    url = f"redis://{HOST}:{server.port}/0?timeout=5s&prefix=r{os.getpid()}-{next(_prefixes)}"
    with Asker(colour, "70/hour log", RedisStore(url)) as asker:
        for _ in range(entries):
            assert asker.hit("damaged").allowed
        name = next(iter(client.scan_iter(match=f"{asker.raw.prefix}:{{damaged}}:*", count=1000)))
        sound = client.hgetall(name)
        taken_s: list[float] = []
        assert len(sound) == (1 if entries == 5 else 5)
        for step in ("hit", "hit", "hit 20", "hit 30", "peek", "read", "give_back", "reset"):
            client.delete(name)
            client.hset(name, mapping=LOG_DAMAGE[damage](sound))
            act, _, cost = step.partition(" ")
            call: Any = getattr(asker, act)
            for _ in range(3):
                before_s, answer = server_s(client), None
                with suppress(StoreKeyError):  # a script without end is a StoreTimeout
                    answer = call("damaged", int(cost)) if cost else call("damaged")
                taken_s.append(server_s(client) - before_s)
                if act == "hit" and answer is not None:
                    assert answer.allowed or answer.retry_after is None or answer.retry_after >= 0
            assert asker.hit("sound").allowed
            asker.reset("damaged")
            assert asker.hit("damaged").remaining == 69, "it is sound once it was forgotten"
            asker.reset("sound")
    print({"longest, ms": round(1000 * max(taken_s), 2)})
    assert max(taken_s) < WORK_S
    client.close()


def server_s(client: Any) -> float:
    """The processor time of a server in seconds, which does not depend on the load of the machine."""
    used = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def test_a_damaged_state_is_reported_as_such(server: Server) -> None:
    client: Any = redis.Redis(port=server.port)
    with Asker("sync", "5/minute bucket", RedisStore(url_of("single", server.port))) as asker:
        asker.hit("key")
        name = next(iter(client.scan_iter(match=f"{asker.raw.prefix}:{{key}}:*", count=1000)))
        [(field, value)] = client.hgetall(name).items()
        for state in (struct.pack("<dd", NAN, NAN) + value[16:], b"x"):
            client.hset(name, field, state)
            for call in (asker.hit, asker.peek, asker.read):
                with pytest.raises(StoreKeyError, match="another program wrote it"):
                    call("key")
    client.close()


RECORD_DAMAGE: dict[str, Any] = {
    "a word": lambda record: b"hello",
    "cut in the middle": lambda record: record[: len(record) // 2],
    "cut at its end": lambda record: record[:-9],
    "lengthened": lambda record: record + b"\xff" * 16,
    "noise": lambda record: record[:32] + bytes(range(7, 7 + len(record) % 200)) + record[-20:],
    "a lease without end": lambda record: record[:16] + struct.pack("<d", INF) + record[24:],
    "a lease that is NaN": lambda record: record[:16] + struct.pack("<d", NAN) + record[24:],
    "remembered for ever": lambda record: record[:24] + struct.pack("<d", INF) + record[32:],
    "remembered for NaN": lambda record: record[:24] + struct.pack("<d", NAN) + record[32:],
    "counts of nothing": lambda record: record[:32] + b"\0" * 8 + record[40:],
    "huge counts": lambda record: record[:32] + b"\xff" * 8 + record[40:],
    "units that are NaN": lambda record: record[:-40] + struct.pack("<5d", *[NAN] * 5),
    **{
        f"{value} at {at} from the end": lambda record, at=at, value=value: (
            record[:-at] + struct.pack("<d", value) + record[len(record) - at + 8 :]
        )
        for at in range(8, 140)
        for value in (INF, 1e300)
    },
    **{f"a byte more at {at}": lambda record, at=at: record[:at] + b"x" + record[at:] for at in range(32, 120, 8)},
    **{f"ones at {at}": lambda record, at=at: record[:at] + b"\xff" * 8 + record[at + 8 :] for at in range(0, 160, 8)},
}


@pytest.mark.parametrize(
    "text",
    [
        "5/minute bucket",
        "3 concurrent",
        "5/minute; 2 concurrent; 100/hour log",
        "5/day in Europe/Zurich",
        "5/day in Europe/Zurich; 3 concurrent",
    ],
)
def test_a_damaged_record_of_a_hold_is_an_answer_or_an_error_of_that_hold_alone(server: Server, text: str) -> None:
    client: Any = redis.Redis(port=server.port)
    raw = RedisStore(f"redis://{HOST}:{server.port}/0?timeout=5s", prefix=f"r{os.getpid()}-{next(_prefixes)}")
    errors: dict[str, str] = {}
    with Limiter(text, store=raw) as limiter:
        for damage, change in RECORD_DAMAGE.items():
            for call in (
                limiter.commit,
                lambda whole: limiter.commit(whole, 3),
                limiter.extend,
                lambda whole: limiter.extend(whole, more=1),
            ):
                held = limiter.reserve("damaged")
                [name] = client.scan_iter(match=f"{raw.prefix}:*:hold/*", count=1000)
                client.set(name, change(client.get(name)))
                try:
                    call(held.id)
                except (StoreKeyError, ArgumentError):  # some damages make a debt too large
                    pass
                except StoreError as error:
                    errors[damage] = str(error)
                limiter.reset("damaged")
                client.delete(name)
    client.close()
    assert errors == {}, "what is wrong with one hold must not count as an outage"


NUMBERS = 27
"""Bytes after the leases of a field: the digits that have sets, the expiry, the limit's numbers."""

PLACES_DAMAGE: dict[str, Any] = {
    "a word": lambda field: b"hello",
    "nothing": lambda field: b"",
    "cut to a half": lambda field: field[: len(field) // 2],
    "lengthened in front": lambda field: b"\xff" * 7 + field,
    "lengthened": lambda field: field + b"\xff" * 60,
    "leases of NaN": lambda field: struct.pack("<8d", *[NAN] * 8) + field,
    "a lease without end": lambda field: field[:24] + struct.pack("<d", INF) + field[32:],
    **{f"digits {value}": lambda field, value=value: field[:-NUMBERS] + struct.pack("<d", value) + field[8 - NUMBERS :]
       for value in (INF, -INF, NAN, -1.0, 0.5, 3.0, 1e300, 2.0**53)},
}  # fmt: skip


@pytest.mark.parametrize("damage", PLACES_DAMAGE)
def test_damaged_places_are_an_answer_or_an_error_of_their_key_and_no_endless_script(
    server: Server, damage: str
) -> None:
    client: Any = redis.Redis(port=server.port)
    raw = RedisStore(f"redis://{HOST}:{server.port}/0?timeout=5s", prefix=f"r{os.getpid()}-{next(_prefixes)}")
    with Limiter("3 concurrent", store=raw) as limiter:
        for act in ("peek", "reserve", "acquire", "extend", "commit", "reset"):
            held = limiter.reserve("damaged")
            [name] = client.scan_iter(match=f"{raw.prefix}:{{damaged}}:*", count=1000)
            client.hset(name, "p0", PLACES_DAMAGE[damage](client.hget(name, "p0")))
            call: dict[str, Callable[[], object]] = {
                "peek": lambda: limiter.peek("damaged", 0),
                "reserve": lambda: limiter.reserve("damaged"),
                "acquire": lambda: limiter.acquire("damaged", timeout=0, lease=5),
                "extend": held.extend,
                "commit": held.commit,
                "reset": lambda: None,
            }
            with suppress(StoreKeyError):  # a script without end is a StoreTimeout
                call[act]()
            limiter.reset("damaged")
            assert limiter.peek("damaged", 0).remaining == 3, "it is sound once it was forgotten"
    client.close()


@pytest.mark.parametrize("text", ["5/minute fixed", "5/day in Europe/Zurich"])
def test_a_hold_of_a_damaged_window_is_an_answer_or_an_error_of_its_key_alone(server: Server, text: str) -> None:
    client: Any = redis.Redis(port=server.port)
    raw = RedisStore(f"redis://{HOST}:{server.port}/0?timeout=5s", prefix=f"r{os.getpid()}-{next(_prefixes)}")
    errors: dict[str, str] = {}
    with Limiter(text, store=raw) as limiter:
        for damage in DAMAGE:
            for actual in (None, 0, 3):
                held = limiter.reserve("damaged", 2)
                [name] = client.scan_iter(match=f"{raw.prefix}:{{damaged}}:*", count=1000)
                for field, value in client.hgetall(name).items():
                    if field != b"+":
                        client.hset(name, field, (DAMAGE[damage] + value[24:])[: max(len(value), len(DAMAGE[damage]))])
                for call in (held.extend, partial(held.extend, more=1), partial(held.commit, actual)):
                    try:
                        call()
                    except (StoreKeyError, ArgumentError):
                        pass
                    except StoreError as error:
                        errors[damage] = str(error)
                limiter.reset("damaged")
    client.close()
    assert errors == {}, "what is wrong with one key must not count as an outage"


EPOCH_DAMAGE: dict[str, Any] = {
    "a word": lambda epoch: b"hello",
    "nothing": lambda epoch: b"",
    "cut": lambda epoch: epoch[:10],
    "no resets": lambda epoch: epoch[:12],
    "lengthened": lambda epoch: epoch + b"\xff" * 7,
    "lengthened by zeros": lambda epoch: epoch + b"\0" * 7,
    "cut in a reset": lambda epoch: epoch[:-2],
    "no more resets": lambda epoch: epoch[:5] + b"\xff" * 3 + epoch[8:],
    "noise": lambda epoch: bytes(range(7, 7 + 60)),
}


@pytest.mark.parametrize("damage", EPOCH_DAMAGE)
def test_damaged_holds_of_a_key_are_sound_after_a_reset(server: Server, damage: str) -> None:
    client: Any = redis.Redis(port=server.port)
    raw = RedisStore(f"redis://{HOST}:{server.port}/0?timeout=5s", prefix=f"r{os.getpid()}-{next(_prefixes)}")
    with Limiter("5/minute bucket; 3 concurrent", store=raw, name="api") as limiter:
        bucket = Limiter("5/minute bucket", store=raw, name="api")
        for resetting in (bucket, limiter):
            former = limiter.reserve("damaged")
            bucket.reset("damaged")
            held = limiter.reserve("damaged")
            [name] = client.scan_iter(match=f"{raw.prefix}:{{damaged}}:*", count=1000)
            client.hset(name, "+", EPOCH_DAMAGE[damage](client.hget(name, "+")))
            with suppress(StoreKeyError):
                limiter.extend(held.id)
            with suppress(StoreKeyError):
                limiter.commit(former.id, 0)
            resetting.reset("damaged")
            assert limiter.commit(held.id, 0).outcome == "unknown"
            sound = limiter.reserve("damaged")
            assert limiter.commit(sound.id, 0).outcome == "settled"
            limiter.reset("damaged")
            assert [reading.remaining for reading in limiter.peek("damaged", 0).limits] == [5, 3]
    client.close()


def test_places_in_sets_that_never_end_are_no_endless_script(server: Server) -> None:
    client: Any = redis.Redis(port=server.port)
    raw = RedisStore(f"redis://{HOST}:{server.port}/0?timeout=5s", prefix=f"r{os.getpid()}-{next(_prefixes)}")
    with Limiter("900 concurrent", store=raw) as limiter:
        for cost in (300, 301, 200):
            limiter.reserve("damaged", cost)
        for name in client.scan_iter(match=f"{raw.prefix}:{{damaged}}:*p0:*", count=1000):
            for member, _ in client.zrange(name, 0, -1, withscores=True):
                client.zadd(name, {member: INF})
        for cost in (1, 100, 450, 800):
            with suppress(StoreKeyError):
                limiter.reserve("damaged", cost)
        limiter.reset("damaged")
        assert limiter.peek("damaged", 0).remaining == 900
    client.close()


def test_a_settlement_that_cannot_be_sent_blocks_no_other(server: Server) -> None:
    client: Any = redis.Redis(port=server.port)
    prefix = f"r{os.getpid()}-{next(_prefixes)}"
    with Limiter("5/minute bucket", store=f"redis://{HOST}:{server.port}/0?timeout=5s&prefix={prefix}") as limiter:
        store: Any = limiter.store
        damaged, sound = limiter.reserve("damaged"), limiter.reserve("sound")
        [name] = [
            name
            for name in client.scan_iter(match=f"{prefix}:*:hold/*", count=1000)
            if b"{damaged}" in client.get(name)
        ]
        client.set(name, client.get(name)[:16] + struct.pack("<d", INF) + client.get(name)[24:32] + b"\xff" * 60)
        for held in (damaged, sound):
            store.pending_settlements.add(held.id, (0,), None, None)  # as in an outage
        store.pending_settlements.close()
        assert (store.stats().sent_later, store.stats().lost) == (1, 1)
        assert limiter.peek("sound", 0).remaining == 5
    client.close()

"""Reading ahead: while one block is judged, a thread reads the next ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, Queue
from threading import Event, Thread

from headgate import core
from headgate.replay.entries import Block

_MOST_AHEAD = 2


def read_ahead(blocks: Iterator[Block]) -> Iterator[Block]:
    """Yield the same blocks, and raise the same errors in their place.

    On the native core a thread reads them, a few ahead: reading and judging release the interpreter's lock. Where
    Python does both, they would only take turns.
    """
    if core.native is None:
        yield from blocks
        return
    ahead: Queue[Block | BaseException | None] = Queue(_MOST_AHEAD)
    is_over = Event()
    reader = Thread(target=_read, args=(blocks, ahead, is_over), name="headgate-replay-reader", daemon=True)
    reader.start()
    try:
        while (block := ahead.get()) is not None:
            if isinstance(block, BaseException):
                raise block
            yield block
    finally:
        is_over.set()
        with suppress(Empty):
            while True:
                ahead.get_nowait()
        reader.join()


def _read(blocks: Iterator[Block], ahead: Queue[Block | BaseException | None], is_over: Event) -> None:
    try:
        for block in blocks:
            ahead.put(block)
            if is_over.is_set():
                return
        ahead.put(None)
    except BaseException as error:
        ahead.put(error)

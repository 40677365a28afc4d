"""Which server of a Cluster has which slot, as far as is known; without I/O, for both colours."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from redis import exceptions

from headgate.errors import StoreError, StoreTimeout, StoreUnavailable
from headgate.stores.redis.errors import mark_unsent, store_error
from headgate.stores.redis.replies import read_ranges
from headgate.stores.redis.silent_servers import NotSent, SilentServers
from headgate.stores.redis.url import Address

_MOST_ATTEMPTS = 16
"""How often a call that was not executed is repeated; where a pause may help, it is repeated until its deadline."""

PAUSE_S = 0.005
"""How long such a pause is."""

_RETRY_LATER = (exceptions.TryAgainError, exceptions.ClusterDownError)
"""Not executed; the same server may execute it a moment later."""

ELSEWHERE = (exceptions.AskError, *_RETRY_LATER)
"""Not executed; another server may execute it. MovedError is an AskError."""

_PARTLY_MOVED = "attempted to access a non local key"

LOST = (StoreTimeout, StoreUnavailable, exceptions.ConnectionError, exceptions.TimeoutError, OSError)
"""Errors where a server has not answered."""

_TIMEOUTS = (StoreTimeout, exceptions.TimeoutError, TimeoutError)


class RecordKey(bytes):
    """The key of a record that names the other keys of its slot that a script uses.

    A server that is importing the slot may not have these keys yet, and would take them for new: no call is sent to it
    before the slot has moved.
    """

    __slots__ = ()


class SearchStep(Enum):
    """A step towards the right server, other than sending the call."""

    LEARN = "query where the slots are"
    PAUSE = "wait for PAUSE_S"


class SendTo(NamedTuple):
    """Send the call to a server, after `ASKING` where it is importing the slot."""

    address: Address
    asking: bool


def is_moving(error: Exception, *, needs_whole_slot: bool) -> bool:
    """Whether a server's refusal means that the call has to wait until its slot has moved.

    So do a script that looks for a key that has moved or is nowhere, and a call that needs the whole slot.
    """
    if _PARTLY_MOVED in str(error).lower():
        return True
    return needs_whole_slot and isinstance(error, exceptions.AskError) and not isinstance(error, exceptions.MovedError)


def too_late(shown: str, refusal: Exception | None, address: Address | None) -> StoreError:
    """The error of a call that no server has executed by its deadline; the last server, `address`, gave `refusal`.

    A moving slot says nothing about other slots, nor about the server.
    """
    if refusal is None or address is None:
        return mark_unsent(StoreTimeout(f"{shown}: no server said in time which one has the key; nothing was charged"))
    if isinstance(refusal, exceptions.ClusterDownError):
        return mark_unsent(store_error(refusal, shown))
    moving = StoreUnavailable(f"{shown}: the key's slot is moving to another server; nothing was charged")
    moving.server = f"{address.host}:{address.port}"
    return mark_unsent(moving)


class SlotMap:
    """A map of slots to servers; `seeds` are queried for it where no other server is known.

    Maps of several event loops may share `silent` servers, and the servers that `failed`, the most recent one last.
    """

    def __init__(
        self,
        seeds: Sequence[Address],
        silent: SilentServers | None = None,
        failed: dict[Address, None] | None = None,
    ) -> None:
        self._seeds = seeds
        self._servers: dict[int, Address] = {}
        self._failed: dict[Address, None] = {} if failed is None else failed
        self.silent = SilentServers() if silent is None else silent

    def __contains__(self, slot: int) -> bool:
        return slot in self._servers

    def servers(self) -> list[Address]:
        """All servers that have slots, as far as is known."""
        return list(dict.fromkeys(self._servers.values()))

    def server_of(self, slot: int) -> Address | None:
        """The server that has a slot; None where it is unknown."""
        return self._servers.get(slot)

    def redirected(self, error: Exception, slot: int, address: Address) -> Address | None:
        """The server to call once instead, according to the called server's error; None for the one of the map."""
        if isinstance(error, exceptions.MovedError):
            # Other slots have often moved along: query them again.
            servers = {known: server for known, server in self._servers.items() if server != address}
            self._servers = servers | {slot: Address(error.host or address.host, error.port)}
        elif isinstance(error, exceptions.AskError):  # MovedError is one, too
            return Address(error.host or address.host, error.port)
        elif isinstance(error, exceptions.ClusterDownError):
            self._servers = {}
        return None

    def note_failed(self, address: Address | None) -> None:
        """Record a failed server and forget the map: it may have been replaced, and the others know the slots."""
        self._servers = {}
        if address is not None:
            self._failed.pop(address, None)
            self._failed[address] = None

    def candidates(self, known: Iterable[Address]) -> list[Address]:
        """The servers to query for the slots, in order; those that did not answer are last, the latest at the end."""
        all_servers, last_failed = dict.fromkeys([*known, *self._seeds]), list(self._failed)
        silent = [address for address in all_servers if self.silent.has(address) and address not in last_failed]
        failed = [*silent, *last_failed]
        return [address for address in all_servers if address not in failed] + [
            address for address in failed if address in all_servers
        ]

    def learn(self, reply: Any, source: Address) -> None:
        """Update the map from a server's reply to CLUSTER SLOTS; raises StoreError for any other reply."""
        servers = dict(self._servers)
        for first, last, host, port in read_ranges(reply, source.host):
            servers |= dict.fromkeys(range(first, last + 1), Address(host, port))
        self._servers = servers
        self._failed.pop(source, None)

    def search(
        self, slot: int, shown: str, directed_to: Address | None = None, *, needs_whole_slot: bool = False
    ) -> Generator[SearchStep | SendTo, Any, Any]:
        """Follow the redirections of servers until one executes the call; its reply is the result.

        `directed_to` is the server to call first, according to another one. A call that `needs_whole_slot`, as one with
        a RecordKey does, waits while the slot moves.
        """
        attempts, refusal, refused_by = 0, None, None
        while attempts < _MOST_ATTEMPTS:
            attempts += 1
            if directed_to is None and slot not in self:
                try:
                    yield SearchStep.LEARN
                except _TIMEOUTS as error:
                    raise too_late(shown, None, None) from error
            address = directed_to or self.server_of(slot)
            if address is None:
                raise StoreUnavailable(f"{shown}: no server has slot {slot}")
            if self.silent.failures:
                self.silent.check(address, shown)
            try:
                reply = yield SendTo(address, directed_to is not None)
            except exceptions.ResponseError as error:
                moves = is_moving(error, needs_whole_slot=needs_whole_slot)
                if not (moves or isinstance(error, ELSEWHERE)):
                    self.silent.raise_for(error, address, shown)
                self.silent.redirected(error, address)
                refusal, refused_by = error, address
                directed_to = None if moves else self.redirected(error, slot, address)
                if moves or isinstance(error, _RETRY_LATER):
                    attempts = 0  # the deadline ends this, whatever redirections come in between
                    try:
                        yield SearchStep.PAUSE
                    except _TIMEOUTS as late:
                        raise too_late(shown, error, address) from late
            except NotSent as error:
                raise too_late(shown, refusal, refused_by) from error
            except LOST as error:
                self.note_failed(address)
                self.silent.raise_for(error, address, shown)
            else:
                if self.silent.failures:
                    self.silent.answered(address)
                return reply
        moving = StoreUnavailable(
            f"{shown}: slot {slot} is moving, and no server takes the call; a user with few rights needs +asking"
        )
        if refused_by is not None:
            moving.server = f"{refused_by.host}:{refused_by.port}"
        raise moving

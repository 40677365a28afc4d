"""Which server of a Cluster has which slot, as far as is known; without any I/O, for both colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from redis import exceptions

from headgate.stores.redis_url import Address

MOST_TURNS = 16
"""How often a call that was not executed is sent again; where it may be executed a moment later, until its deadline."""

PAUSE_S = 0.005

LATER = (exceptions.TryAgainError, exceptions.ClusterDownError)
"""Not executed, and perhaps executed a moment later."""

ELSEWHERE = (exceptions.AskError, *LATER)
"""Not executed, and somebody else may execute it; MovedError is an AskError."""


class Slots:
    """A map of slots to servers; `seeds` are asked for it where nobody else is known."""

    def __init__(self, seeds: Sequence[Address]) -> None:
        self._seeds = seeds
        self._servers: dict[int, Address] = {}
        self._failed: dict[Address, None] = {}

    def __contains__(self, slot: int) -> bool:
        return slot in self._servers

    def server_of(self, slot: int) -> Address | None:
        """The server that has a slot; None where that is not known."""
        return self._servers.get(slot)

    def directed(self, error: Exception, slot: int, address: Address) -> Address | None:
        """Who is to be asked once instead, by the word of the server that was asked; None for the one of the map."""
        if isinstance(error, exceptions.MovedError):
            # What moved once has often taken others along: ask again where they are.
            servers = {known: server for known, server in self._servers.items() if server != address}
            self._servers = servers | {slot: Address(error.host or address.host, error.port)}
        elif isinstance(error, exceptions.AskError):  # which MovedError is one of, too
            return Address(error.host or address.host, error.port)
        elif isinstance(error, exceptions.ClusterDownError):
            self._servers = {}
        return None

    def doubt(self, address: Address | None) -> None:
        """A server that does not answer may have been replaced: ask the others where the slots are."""
        self._servers = {}
        if address is not None:
            self._failed.pop(address, None)
            self._failed[address] = None

    def candidates(self, known: Iterable[Address]) -> list[Address]:
        """Whom to ask where the slots are, one after another; last those who did not answer, the latest at the end."""
        failed = list(self._failed)
        every = dict.fromkeys([*known, *self._seeds])
        return [address for address in every if address not in failed] + [one for one in failed if one in every]

    def learn(self, ranges: Iterable[Sequence[Any]], teller: Address) -> None:
        """Take over what a server replied to CLUSTER SLOTS."""
        servers = dict(self._servers)
        for first, end, primary, *_ in ranges:
            host = primary[0].decode() or teller.host
            servers |= dict.fromkeys(range(first, end + 1), Address(host, primary[1]))
        self._servers = servers
        self._failed.pop(teller, None)

"""The entries of the books about a call of a language model: what it held, what it used and what that cost."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from headgate.llm.usage import Usage

EntryKind = Literal["held", "extended", "refused", "settled", "corrected"]
SettleMode = Literal["", "exact", "at least", "cancelled", "failed", "unknown"]


class Caller(NamedTuple):
    """The caller of a call, and the tier whose limits apply; "" for an unknown field."""

    key: str = ""
    user: str = ""
    team: str = ""
    organisation: str = ""
    tier: str = ""


class Entry(NamedTuple):
    """One line of the books.

    Times are microseconds since the epoch, costs billionths of a dollar, None where no price is known.
    """

    kind: EntryKind
    id: str
    """The id of the call, the same in each of its entries."""

    at_us: int
    """The time at which the call was admitted, extended, refused, settled or corrected."""

    caller: Caller
    model: str
    held_input: int
    held_output: int
    held_cost: int | None
    lease_us: int = 0
    """How long after its admission, or its extension, the lease of a hold ends."""

    mode: SettleMode = ""
    """How the call was settled; "" for entries of other kinds."""

    usage: Usage | None = None
    """The usage that counts in the end; None where what was held counts."""

    cost: int | None = None
    price: str = ""
    """The version of the price."""

    limit: str = ""
    """The name of the limit that refused."""

    admitted_us: int = 0
    """For a settling or an extension: the time of the hold, in whose windows it counts."""

    estimate: int | None = None
    """For a settling: the output that was expected and held by rules that hold estimates; None without such rules."""


class Books(Protocol):
    """Accepts entries."""

    def add(self, entry: Entry) -> None:
        """Add an entry; never waits and never raises."""
        ...

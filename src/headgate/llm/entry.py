"""What the books keep of a call of a language model: what it held, what it used and what that cost."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from headgate.llm.usage import Usage

EntryKind = Literal["held", "extended", "refused", "settled", "corrected"]
SettleMode = Literal["", "exact", "at least", "cancelled", "failed", "unknown"]


class Caller(NamedTuple):
    """Who calls, and the tier whose limits apply; "" for what is unknown."""

    key: str = ""
    user: str = ""
    team: str = ""
    organisation: str = ""
    tier: str = ""


class Entry(NamedTuple):
    """One line of the books.

    Moments are microseconds since the epoch, costs billionths of a dollar, None where no price is known.
    """

    kind: EntryKind
    id: str
    """The call's, the same in each of its entries."""

    at_us: int
    """When it was admitted, extended, refused, settled or corrected."""

    caller: Caller
    model: str
    held_input: int
    held_output: int
    held_cost: int | None
    lease_us: int = 0
    """The lease of a hold ends so long after its admission, or its extension."""

    mode: SettleMode = ""
    """How it was settled; "" for what is no settling."""

    usage: Usage | None = None
    """What counts in the end; None where that is what was held."""

    cost: int | None = None
    price: str = ""
    """The version of the price."""

    limit: str = ""
    """The name of the limit that refused."""

    admitted_us: int = 0
    """Of a settling or an extension: the moment of the hold, whose windows it belongs to."""

    estimate: int | None = None
    """Of a settling: the output that was expected and held by rules that do so; None where there are none."""


class Books(Protocol):
    """What takes entries."""

    def add(self, entry: Entry) -> None:
        """Take an entry; never waits and never raises."""
        ...

"""Inconsistencies in books: holds that were never settled, settlings without a hold, and repeated settlings."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from headgate.llm.books.reading import ReadBooks, Unreadable
from headgate.llm.books.records import Correction, Dropped
from headgate.llm.books.remembering import calls_to_remember, corrected_in
from headgate.llm.entry import Entry


@dataclass(slots=True)
class Reconciliation:
    """Entries that need attention, each list in the order of the books."""

    unreconciled: list[Entry] = field(default_factory=list)
    """Holds that were not settled and whose lease, with all extensions, has ended: their charge stays as held."""

    in_flight: list[Entry] = field(default_factory=list)
    """Holds that are not settled yet, within their lease."""

    without_hold: list[Entry] = field(default_factory=list)
    """Settlings of calls whose hold is not in the books. They count."""

    settled_again: list[Entry] = field(default_factory=list)
    """Settlings of calls that were settled, or corrected, before. They do not count."""

    corrected_unknown: list[Entry] = field(default_factory=list)
    """Corrections of calls that are not in the books."""

    dropped: int = 0
    """Entries that were lost before they were written."""

    unreadable: Unreadable = field(default_factory=Unreadable)

    @property
    def is_clean(self) -> bool:
        """Whether everything is consistent; calls in flight are."""
        result = (self.unreconciled, self.without_hold, self.settled_again, self.corrected_unknown)
        return not (any(result) or self.dropped or self.unreadable.count)


def reconcile(books: Sequence[ReadBooks], *, now_us: int) -> Reconciliation:
    """Compare the holds of all these books with their settlings, as of `now_us`.

    Only calls that are not settled, or have entries after their settling, and the results are kept in memory.
    """
    result = Reconciliation()
    held: dict[str, Entry] = {}
    settled: set[str] = set()
    held_later: set[str] = set()
    remembered = calls_to_remember(books, corrected_in(books))
    for each in books:
        for record in each.records(result.unreadable):
            if isinstance(record, Dropped):
                result.dropped += record.entries
            elif isinstance(record, Correction):
                entry = record.entry
                if held.pop(entry.id, None) is None and entry.id not in settled:
                    result.corrected_unknown.append(entry)
                settled.add(entry.id)
            elif isinstance(record, Entry):
                _add(record, result, held, settled, held_later, remembered)
    result.without_hold = [entry for entry in result.without_hold if entry.id not in held_later]
    for entry in held.values():
        is_over = entry.at_us + entry.lease_us <= now_us
        (result.unreconciled if is_over else result.in_flight).append(entry)
    return result


def _add(
    entry: Entry,
    result: Reconciliation,
    held: dict[str, Entry],
    settled: set[str],
    held_later: set[str],
    remembered: Container[str],
) -> None:
    if entry.kind == "held":
        if entry.id in settled:
            held_later.add(entry.id)  # its settling was read before, in other books
        else:
            held.setdefault(entry.id, entry)
    elif entry.kind == "extended":
        if entry.id in settled:
            held_later.add(entry.id)
        else:
            held[entry.id] = _extended(held.get(entry.id), entry)
    elif entry.kind == "settled":
        if entry.id in settled:
            result.settled_again.append(entry)
        elif held.pop(entry.id, None) is None:
            result.without_hold.append(entry)
        if entry.id in remembered:
            settled.add(entry.id)


def _extended(hold: Entry | None, entry: Entry) -> Entry:
    """A hold after an extension: with the new amounts, and the later end of its lease."""
    held = hold or entry._replace(kind="held", at_us=entry.admitted_us or entry.at_us, lease_us=0)
    end_us = max(held.at_us + held.lease_us, entry.at_us + entry.lease_us)
    return held._replace(
        held_input=entry.held_input,
        held_output=entry.held_output,
        held_cost=entry.held_cost,
        lease_us=end_us - held.at_us,
    )

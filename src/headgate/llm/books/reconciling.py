"""What in books does not fit together: holds that were never settled, settlings without a hold, or a second time."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from headgate.llm.books.reading import ReadBooks, Unreadable
from headgate.llm.books.records import Correction, Dropped
from headgate.llm.books.remembering import calls_to_remember, corrected_in
from headgate.llm.entry import Entry


@dataclass(slots=True)
class Reconciliation:
    """Entries that need an eye, each list in the order of the books."""

    unreconciled: list[Entry] = field(default_factory=list)
    """Holds that nothing settled and whose lease, as it was extended last, has ended: their charge stays as held."""

    in_flight: list[Entry] = field(default_factory=list)
    """Holds that nothing settled yet, within their lease."""

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
        """Whether everything fits; what is in flight does."""
        found = (self.unreconciled, self.without_hold, self.settled_again, self.corrected_unknown)
        return not (any(found) or self.dropped or self.unreadable.count)


def reconcile(books: Sequence[ReadBooks], *, now_us: int) -> Reconciliation:
    """Compare the holds of all these books with what settled them, as of a moment.

    In memory are calls that are not settled, or were told of after that, and what is found; of all others nothing.
    """
    found = Reconciliation()
    held: dict[str, Entry] = {}
    done: set[str] = set()
    known: set[str] = set()
    remembered = calls_to_remember(books, corrected_in(books))
    for one in books:
        for record in one.records(found.unreadable):
            if isinstance(record, Dropped):
                found.dropped += record.entries
            elif isinstance(record, Correction):
                entry = record.entry
                if held.pop(entry.id, None) is None and entry.id not in done:
                    found.corrected_unknown.append(entry)
                done.add(entry.id)
            elif isinstance(record, Entry):
                _read(record, found, held, done, known, remembered)
    found.without_hold = [entry for entry in found.without_hold if entry.id not in known]
    for entry in held.values():
        is_over = entry.at_us + entry.lease_us <= now_us
        (found.unreconciled if is_over else found.in_flight).append(entry)
    return found


def _read(
    entry: Entry,
    found: Reconciliation,
    held: dict[str, Entry],
    done: set[str],
    known: set[str],
    remembered: Container[str],
) -> None:
    if entry.kind == "held":
        if entry.id in done:
            known.add(entry.id)  # the settling was read before it, in other books
        else:
            held.setdefault(entry.id, entry)
    elif entry.kind == "extended":
        if entry.id in done:
            known.add(entry.id)
        else:
            held[entry.id] = _extended(held.get(entry.id), entry)
    elif entry.kind == "settled":
        if entry.id in done:
            found.settled_again.append(entry)
        elif held.pop(entry.id, None) is None:
            found.without_hold.append(entry)
        if entry.id in remembered:
            done.add(entry.id)


def _extended(hold: Entry | None, entry: Entry) -> Entry:
    """A hold as it is after an extension: with what is held then, and the later end of its lease."""
    first = hold or entry._replace(kind="held", at_us=entry.admitted_us or entry.at_us, lease_us=0)
    end_us = max(first.at_us + first.lease_us, entry.at_us + entry.lease_us)
    return first._replace(
        held_input=entry.held_input,
        held_output=entry.held_output,
        held_cost=entry.held_cost,
        lease_us=end_us - first.at_us,
    )

"""Books of a few calls: one settled, one that used less than it held, one that nothing settled, one refused."""

from headgate.llm.books import open_books
from headgate.llm.entry import Caller, Entry
from headgate.llm.usage import Usage

AT_US = 1_790_000_000_000_000  # 2026-09-21 13:33:20 UTC


def calls():
    """The entries that a gate would add. Costs are billionths of a dollar."""
    for number, user in enumerate(("anna", "anna", "bert")):
        held = Entry(
            "held", f"call-{number}", AT_US + number, Caller(user=user, team="red"), "gpt-5", held_input=1000,
            held_output=800, held_cost=9_250_000, lease_us=600_000_000,
        )  # fmt: skip
        yield held
        if number < 2:
            usage = Usage(input=990, output=120 + number, cache_read=512)
            settled = held._replace(kind="settled", mode="exact", usage=usage, cost=1_861_500, admitted_us=held.at_us)
            yield settled._replace(estimate=120)
    yield held._replace(kind="refused", id="call-3", limit="user: 20 usd/day")


with open_books("llm-books.jsonl") as books:
    for entry in calls():
        books.add(entry)

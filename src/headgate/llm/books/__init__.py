"""The books: records of what each language model call held, used and cost, written in the background, append-only.

`open_books` creates the books that a gate writes to; `read_books`, `report_of` and `reconcile` read them. See
docs/llm-books.md.
"""

from headgate.llm.books.opening import open_books
from headgate.llm.books.queued import QueuedBooks
from headgate.llm.books.reading import read_books
from headgate.llm.books.reconciling import reconcile
from headgate.llm.books.report import report_of

__all__ = ["QueuedBooks", "open_books", "read_books", "reconcile", "report_of"]

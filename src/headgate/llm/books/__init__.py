"""The books: what each call of a language model held, used and cost, written in the background and never rewritten.

`open_books` makes what a gate writes to; `read_books`, `report_of` and `reconcile` read. See docs/llm-books.md.
"""

from headgate.llm.books.opening import open_books
from headgate.llm.books.queued import QueuedBooks
from headgate.llm.books.reading import read_books
from headgate.llm.books.reconciling import reconcile
from headgate.llm.books.report import report_of

__all__ = ["QueuedBooks", "open_books", "read_books", "reconcile", "report_of"]

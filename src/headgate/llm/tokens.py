"""How many tokens a text has for a model, without a network.

Exact where the model's vocabulary is known and `headgate[llm]` is installed. For other models the count of `o200k_base`
times a factor that `models.toml` tells. With nothing installed, by the bytes and kinds of the characters.
"""

from __future__ import annotations

import asyncio
import re
import string
from collections import OrderedDict
from hashlib import blake2b
from typing import NamedTuple

from headgate.drive import is_on_asyncio
from headgate.forks import ProcessLock
from headgate.llm.model_table import find
from headgate.llm.vocabularies import Count, counter, loaded

LONG = 10_000
"""A text of more characters takes too long for an event loop: it is counted in a thread."""

_USUAL = "o200k_base"
_REMEMBERED_FROM = 100
_MOST_REMEMBERED = 2_000
_MOST_ONCE = 20_000
_LONGEST_MODEL, _MOST_MODELS = 200, 2_000
_MOST_EXACT = 256


class TokenCount(NamedTuple):
    """A number of tokens, and whether a provider counts exactly as many."""

    tokens: int
    is_exact: bool


_EXACT = tuple(TokenCount(tokens, True) for tokens in range(_MOST_EXACT))
"""The counts of most texts, made once."""

_made = tuple.__new__
"""Makes a named tuple of all its fields in fewer steps than by their names."""


def count_text(text: str, model: str) -> TokenCount:
    """The tokens of a text for a model; the first one loads a vocabulary, which takes a while."""
    count, vocabulary, percent = _known.get(model) or _look_up(model)
    if count is None:
        return TokenCount(_by_characters(text), False)
    if len(text) < _REMEMBERED_FROM:
        tokens = count(text)
    else:  # without a lock: what two threads do here at once is done twice, and no more
        once, seen = _remembered.once, hash(text)
        if seen in once:
            tokens = _remembered.get(vocabulary, count, text)
        else:
            if len(once) >= _MOST_ONCE:
                once.clear()
            once[seen] = None
            tokens = count(text)
    if percent is None:
        return _EXACT[tokens] if tokens < _MOST_EXACT else _made(TokenCount, (tokens, True))
    return TokenCount(-(-tokens * percent // 100), False)


async def count_text_async(text: str, model: str) -> TokenCount:
    """`count_text` on an event loop, which goes on while a long text is counted."""
    if len(text) <= LONG or not is_on_asyncio():
        return count_text(text, model)
    try:
        counting = asyncio.get_running_loop().run_in_executor(None, count_text, text, model)
    except RuntimeError:  # no thread is to be had, as where the interpreter ends
        return count_text(text, model)
    return await counting


_Counting = tuple[Count | None, str, int | None]

_known: dict[str, _Counting] = {}
"""By model what counts its texts, by which vocabulary, and a factor in percent: None where it is its own."""


def _look_up(model: str) -> _Counting:
    own: str | None = find("vocabularies", model)
    vocabulary = own or _USUAL
    found = counter(vocabulary), vocabulary, None if own else find("percent", model)
    if len(model) <= _LONGEST_MODEL:  # clients may make up longer names
        if len(_known) >= _MOST_MODELS:
            _known.clear()
        _known[model] = found
    return found


def is_loaded(model: str) -> bool:
    """Whether the vocabulary that texts for a model are counted with is loaded."""
    return (find("vocabularies", model) or _USUAL) in loaded


class _Remembered:
    """Counts of texts that came before: a system's prompt, its tools and what was said so far come with each call.

    Of a text that comes for the first time no more than a number is remembered, so that one which never comes again
    takes no longer than to count it.
    """

    __slots__ = ("_counts", "_lock", "once")

    def __init__(self) -> None:
        self._counts: OrderedDict[bytes, int] = OrderedDict()
        self.once: dict[int, None] = {}
        """Numbers of texts that came, at least once; `get` is for these."""

        self._lock = ProcessLock()

    def get(self, vocabulary: str, count: Count, text: str) -> int:
        """The count of a text that came before, made anew the second time that it comes."""
        name = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=vocabulary.encode()).digest()
        with self._lock.current:
            known = self._counts.get(name)
            if known is not None:
                self._counts.move_to_end(name)
                return known
        tokens = count(text)
        with self._lock.current:
            self._counts[name] = tokens
            if len(self._counts) > _MOST_REMEMBERED:
                self._counts.popitem(last=False)
        return tokens


_remembered = _Remembered()

_HUNDREDTHS = {
    string.ascii_lowercase: 25,
    string.ascii_uppercase: 60,
    string.digits: 50,
    " ": 5,
    string.punctuation: 68,
    "\t\r\n": 30,
}
"""What characters of a kind cost on the average, in hundredths of a token."""

_OTHER_BYTES = 26
"""What a byte of any other character costs."""

_NO_WORDS = re.compile(r"[A-Za-z0-9+/=_-]{40,}")
_NO_WORD = 70
"""What a character costs in what has no words: base64, hashes."""


def _by_characters(text: str) -> int:
    """An estimate, rather too high than too low, where there is no vocabulary."""
    words = _NO_WORDS.sub("", text)
    data = words.encode("utf-8", "surrogatepass")
    hundredths, others = _NO_WORD * (len(text) - len(words)), len(data)
    for kind, each in _HUNDREDTHS.items():
        found = len(data) - len(data.translate(None, kind.encode()))
        hundredths += found * each
        others -= found
    return -(-(hundredths + others * _OTHER_BYTES) // 100)

"""Counts the tokens of a text for a model, without a network.

The count is exact where the model's vocabulary is known and `headgate[llm]` is installed. For other models it is the
count of `o200k_base` times a factor from `models.toml`; without the extra, an estimate by kinds of characters.
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
"""A text of more characters would block an event loop for too long: it is counted in a thread."""

_DEFAULT = "o200k_base"
_CACHED_FROM = 100
_MOST_CACHED = 2_000
_MOST_SEEN = 20_000
_LONGEST_MODEL, _MOST_MODELS = 200, 2_000
_MOST_EXACT = 256


class TokenCount(NamedTuple):
    """A number of tokens, and whether a provider counts exactly as many."""

    tokens: int
    is_exact: bool


_EXACT = tuple(TokenCount(tokens, True) for tokens in range(_MOST_EXACT))
"""The counts of most texts, created once."""

_new_tuple = tuple.__new__
"""Creates a named tuple from all its fields in fewer steps than its class does."""


def count_text(text: str, model: str) -> TokenCount:
    """The tokens of a text for a model; the first call loads a vocabulary, which takes a while."""
    count, vocabulary, percent = _by_model.get(model) or _look_up(model)
    if count is None:
        return TokenCount(_by_characters(text), False)
    if len(text) < _CACHED_FROM:
        tokens = count(text)
    else:  # without a lock: at worst two threads do the same work twice
        seen_hashes, text_hash = _cache.seen_hashes, hash(text)
        if text_hash in seen_hashes:
            tokens = _cache.get(vocabulary, count, text)
        else:
            if len(seen_hashes) >= _MOST_SEEN:
                seen_hashes.clear()
            seen_hashes[text_hash] = None
            tokens = count(text)
    if percent is None:
        return _EXACT[tokens] if tokens < _MOST_EXACT else _new_tuple(TokenCount, (tokens, True))
    return TokenCount(-(-tokens * percent // 100), False)


async def count_text_async(text: str, model: str) -> TokenCount:
    """`count_text` on an event loop, which continues while a long text is counted."""
    if len(text) <= LONG or not is_on_asyncio():
        return count_text(text, model)
    try:
        counting = asyncio.get_running_loop().run_in_executor(None, count_text, text, model)
    except RuntimeError:  # no thread can be started, as at the end of the interpreter
        return count_text(text, model)
    return await counting


_ModelCounter = tuple[Count | None, str, int | None]

_by_model: dict[str, _ModelCounter] = {}
"""By model: its counter, the vocabulary, and a factor in percent, None where the vocabulary is the model's own."""


def _look_up(model: str) -> _ModelCounter:
    vocabulary_of_model: str | None = find("vocabularies", model)
    vocabulary = vocabulary_of_model or _DEFAULT
    model_counter = counter(vocabulary), vocabulary, None if vocabulary_of_model else find("percent", model)
    if len(model) <= _LONGEST_MODEL:  # clients may invent longer names
        if len(_by_model) >= _MOST_MODELS:
            _by_model.clear()
        _by_model[model] = model_counter
    return model_counter


def is_loaded(model: str) -> bool:
    """Whether the vocabulary with which texts for a model are counted is loaded."""
    return (find("vocabularies", model) or _DEFAULT) in loaded


class _CountCache:
    """Caches the counts of repeated texts: a system prompt, its tools and the conversation so far come with each call.

    Of a text that is seen for the first time only a hash is stored, so that a text which never comes again takes no
    longer than its count.
    """

    __slots__ = ("_counts", "_lock", "seen_hashes")

    def __init__(self) -> None:
        self._counts: OrderedDict[bytes, int] = OrderedDict()
        self.seen_hashes: dict[int, None] = {}
        """Hashes of texts that were seen at least once; `get` is for these."""

        self._lock = ProcessLock()

    def get(self, vocabulary: str, count: Count, text: str) -> int:
        """The count of a text that was seen before; the second time, it is counted again."""
        name = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=vocabulary.encode()).digest()
        with self._lock.current:
            cached = self._counts.get(name)
            if cached is not None:
                self._counts.move_to_end(name)
                return cached
        tokens = count(text)
        with self._lock.current:
            self._counts[name] = tokens
            if len(self._counts) > _MOST_CACHED:
                self._counts.popitem(last=False)
        return tokens


_cache = _CountCache()

_HUNDREDTHS = {
    string.ascii_lowercase: 25,
    string.ascii_uppercase: 60,
    string.digits: 50,
    " ": 5,
    string.punctuation: 68,
    "\t\r\n": 30,
}
"""The average cost of characters of a kind, in hundredths of a token."""

_OTHER_BYTES = 26
"""The cost of a byte of any other character."""

_DATA = re.compile(r"[A-Za-z0-9+/=_-]{40,}")
_DATA_COST = 70
"""The cost of a character in text without words: base64, hashes."""


def _by_characters(text: str) -> int:
    """An estimate for where there is no vocabulary; it tends to be too high rather than too low."""
    words = _DATA.sub("", text)
    data = words.encode("utf-8", "surrogatepass")
    hundredths, others = _DATA_COST * (len(text) - len(words)), len(data)
    for kind, cost in _HUNDREDTHS.items():
        characters = len(data) - len(data.translate(None, kind.encode()))
        hundredths += characters * cost
        others -= characters
    return -(-(hundredths + others * _OTHER_BYTES) // 100)

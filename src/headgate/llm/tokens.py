"""How many tokens a text has for a model, without a network.

Exact where the model's vocabulary is known and `headgate[llm]` is installed. For other models the count of `o200k_base`
times a factor that `models.toml` tells. With nothing installed, by the bytes and kinds of the characters.
"""

from __future__ import annotations

import re
import string
from collections import OrderedDict
from hashlib import blake2b
from threading import Lock
from typing import NamedTuple

from headgate.llm.model_table import find
from headgate.llm.vocabularies import counter, loaded

_USUAL = "o200k_base"
_REMEMBERED_FROM = 500
_MOST_REMEMBERED = 2_000


class TokenCount(NamedTuple):
    """A number of tokens, and whether a provider counts exactly as many."""

    tokens: int
    is_exact: bool


def count_text(text: str, model: str) -> TokenCount:
    """The tokens of a text for a model; the first one loads a vocabulary, which takes a while."""
    vocabulary: str | None = find("vocabularies", model)
    count = counter(vocabulary or _USUAL)
    if count is None:
        return TokenCount(_by_characters(text), False)
    tokens = count(text) if len(text) < _REMEMBERED_FROM else _remembered.get(vocabulary or _USUAL, text)
    if vocabulary is not None:
        return TokenCount(tokens, True)
    percent: int = find("percent", model)
    return TokenCount(-(-tokens * percent // 100), False)


def is_loaded(model: str) -> bool:
    """Whether the vocabulary that texts for a model are counted with is loaded."""
    return (find("vocabularies", model) or _USUAL) in loaded


class _Remembered:
    """Counts of long texts that came before: a system's prompt and its tools are the same in each call."""

    def __init__(self) -> None:
        self._counts: OrderedDict[bytes, int] = OrderedDict()
        self._lock = Lock()

    def get(self, vocabulary: str, text: str) -> int:
        name = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=vocabulary.encode()).digest()
        with self._lock:
            known = self._counts.get(name)
            if known is not None:
                self._counts.move_to_end(name)
                return known
        count = counter(vocabulary)
        assert count is not None
        tokens = count(text)
        with self._lock:
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

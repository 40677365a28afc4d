"""What calls of language models used, learned from those that were settled: how much output to hold for the next one.

Output is learned by key, model and size of `max_tokens`, and by model and size for keys that have few calls. What a
provider counts as input is learned by model. See docs/language-models.md#what-is-learned.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import NamedTuple, Protocol

from headgate.forks import ProcessLock
from headgate.llm.learned.samples import FEWEST, Samples, bucket_of, largest_of
from headgate.llm.prices import LONGEST_MODEL

OUTPUT_PERCENT, INPUT_PERCENT = 95, 75
"""The share of calls that use no more than what is told."""

MOST_OF_KEYS, MOST_OF_MODELS = 4_000, 500
"""Series of keys, and models, that are remembered; the least recently used go."""

INPUT, COVERAGE = -1, -2
"""In the place of a size: what a model's input was counted as, and how many calls were above their hold."""

LONGEST_KEY = 100

_PERMILLE, _LEAST, _LARGEST = 25, 10, 160
"""Input is learned in steps of 25 permille, from 250 to 4,000."""

_FEWEST_TOKENS = 100
"""Input of fewer tokens tells nothing: most of it is what a chat format adds."""

MOST_UNREAD = 32
"""So many calls at the most are settled before they are learned from."""

LARGEST_SIZE = 24
"""No answer has so many tokens: twice the bits of `max_tokens`, rounded up."""

Name = tuple[str, str, int]
"""Of a series of samples: the key ("" for all), the model, and the size of `max_tokens`, `INPUT` or `COVERAGE`."""


class Coverage(NamedTuple):
    """Of the last calls held by an estimate, 512 to 1,024 with known usage, how many made more output than that."""

    calls: int
    above: int

    @property
    def covered(self) -> int:
        """How many made at most as much output as was estimated."""
        return self.calls - self.above


class Learned(Protocol):
    """What calls used, and what that says about the next one. All methods may be called in any thread or event loop."""

    def output(self, key: str, model: str, most: int) -> int | None:
        """Tokens of output to hold for a call that may make up to `most`: 95 % of such calls made no more.

        By what this key and model used; if these are fewer than 30 calls by what the model used; None where these are
        fewer, too.
        """
        ...

    def input_permille(self, model: str) -> int:
        """What a provider counts for a thousand tokens of `count_input`, where that is not exact.

        1000 if nothing is known.
        """
        ...

    def settled(
        self, key: str, model: str, most: int, held: int, made: int, cut: bool, counted_input: int, used_input: int
    ) -> None:
        """Learn from a call that may have made up to `most` tokens of output, and did make `made`.

        `cut`: it ended early, and would have made at least as many. `held` is the estimate that was held of output, -1
        where none was, or `made` is not the exact number. `counted_input` is what was counted before any factor, 0
        where it was exact or the body hid more; `used_input` what the provider told, 0 if nothing. Never waits and
        never raises.
        """
        ...

    def coverage(self) -> dict[str, Coverage]:
        """By model, how many of the last calls were above their estimate."""
        ...

    def start(self) -> None:
        """Begin to share with other processes, where that is done; the first call does it as well."""
        ...

    def close(self) -> None:
        """Tell other processes what is not told yet, for at most a second or so."""
        ...


class LearnedHere:
    """What was learned in this process, in bounded memory."""

    kind: type[Samples] = Samples

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._of_keys: OrderedDict[Name, Samples] = OrderedDict()
        self._of_models: OrderedDict[str, OfModel] = OrderedDict()
        self._unread: list[tuple[str, str, int, int, int, bool, int, int]] = []
        """Calls that were settled, as `settled` was told of them: many are read at once, which takes less of each."""

        self._read_from = MOST_UNREAD
        """So many of these are read."""

    def output(self, key: str, model: str, most: int) -> int | None:
        name = (key if len(key) <= LONGEST_KEY else hash_of(key), model, (most.bit_length() + 1) >> 1)
        samples = self._of_keys.get(name)
        if samples is None or samples.weight < FEWEST:
            samples = self._of_few(name)
            if samples is None:
                return None
        with self._lock.current:
            if samples.weight + len(self._unread) >= samples.due:
                self._read()
            bucket = samples.quantile(OUTPUT_PERCENT)
        return most if bucket is None else min(largest_of(bucket), most)

    def _of_few(self, name: Name) -> Samples | None:
        """What there is for a key of few calls: its own samples, its model's, or None.

        Calls are read where those that are not read yet could make enough of few samples.
        """
        own, of_model = self._own_and_models(name)
        few, many = 0 if own is None else own.weight, 0 if of_model is None else of_model.weight
        unread = len(self._unread)
        if unread and (few + unread >= FEWEST or many < FEWEST <= many + unread):
            with self._lock.current:
                self._read()
            own, of_model = self._own_and_models(name)
        if own is not None and own.weight >= FEWEST:
            return own
        return of_model if of_model is not None and of_model.weight >= FEWEST else None

    def _own_and_models(self, name: Name) -> tuple[Samples | None, Samples | None]:
        """What there is of a key, and of its model, for a size."""
        _, model, size = name
        of_model = self._of_models.get(model)
        return self._of_keys.get(name), None if of_model is None else of_model.by_size.get(size)

    def input_permille(self, model: str) -> int:
        of_model, unread = self._of_models.get(model), len(self._unread)
        weight, due = (0, 0) if of_model is None else (of_model.input.weight, of_model.input.due)
        if weight + unread < FEWEST:
            return 1000
        if unread and weight + unread >= due:  # they may change what is told
            with self._lock.current:
                self._read()
            of_model = self._of_models.get(model)
        if of_model is None or of_model.input.weight < FEWEST:
            return 1000
        with self._lock.current:
            return _PERMILLE * (of_model.input.quantile(INPUT_PERCENT) or _LARGEST)

    def settled(
        self, key: str, model: str, most: int, held: int, made: int, cut: bool, counted_input: int, used_input: int
    ) -> None:
        unread = self._unread
        unread.append((key, model, most, held, made, cut, counted_input, used_input))
        if len(unread) >= self._read_from:
            self._read_many()

    def _read_many(self) -> None:
        """Learn from the calls that were settled, of which there are enough."""
        with self._lock.current:
            self._read()

    def _read(self) -> None:
        """Learn from the calls that were settled since it was last done; the lock is held."""
        calls = self._unread[:]
        del self._unread[: len(calls)]  # what others add meanwhile comes behind
        found: tuple[OfModel, Samples, Samples | None] | None = None
        known_key, known_model, known_most = "", "", -1
        buckets: list[int] = []
        """Of the calls of the series that are `found`, of which many come one after another."""

        for key, model, most, held, made, cut, counted_input, used_input in calls:
            if made < 0:
                continue
            if most != known_most or key != known_key or model != known_model:
                _add_all(found, buckets)
                buckets = []
                known_key, known_model, known_most = key, model, most
                found = self._samples_of(key, model, most)
            if found is None:
                continue
            bucket = bucket_of(made)
            buckets.append(~bucket if cut else bucket)
            if held >= 0:
                found[0].coverage.add(1 if made > held else 0)
            if counted_input >= _FEWEST_TOKENS and used_input > 0:
                permille = -(-1000 * used_input // counted_input)
                found[0].input.add(min(max(-(-permille // _PERMILLE), _LEAST), _LARGEST))
        _add_all(found, buckets)

    def _samples_of(self, key: str, model: str, most: int) -> tuple[OfModel, Samples, Samples | None] | None:
        """(what is learned of a model, of its size, of this size of the key) of a call; None for one that cannot be."""
        size = (most.bit_length() + 1) >> 1
        if len(model) > LONGEST_MODEL or size > LARGEST_SIZE:
            return None
        of_model = self._of_models.get(model) or self._new_of_model(model)
        self._of_models.move_to_end(model)
        of_size = of_model.by_size.get(size) or of_model.new(size)
        if not key:
            return of_model, of_size, None
        name = (key if len(key) <= LONGEST_KEY else hash_of(key), model, size)
        of_key = self._of_keys.get(name) or self._new_of_key(name)
        self._of_keys.move_to_end(name)
        return of_model, of_size, of_key

    def coverage(self) -> dict[str, Coverage]:
        with self._lock.current:
            self._read()
            found = {model: of_model.coverage for model, of_model in self._of_models.items()}
            return {
                model: Coverage(samples.weight, samples.counts.get(1, 0))
                for model, samples in found.items()
                if samples.weight
            }

    def start(self) -> None: ...

    def close(self) -> None: ...

    def _new_of_key(self, name: Name) -> Samples:
        samples = self._of_keys[name] = self.kind()
        if len(self._of_keys) > MOST_OF_KEYS:
            self._of_keys.popitem(last=False)
        return samples

    def _new_of_model(self, model: str) -> OfModel:
        of_model = self._of_models[model] = OfModel(self.kind)
        if len(self._of_models) > MOST_OF_MODELS:
            self._of_models.popitem(last=False)
        return of_model


class NothingLearned:
    """Nothing is learned: calls hold what the policy states."""

    def output(self, key: str, model: str, most: int) -> int | None:
        return None

    def input_permille(self, model: str) -> int:
        return 1000

    def settled(
        self, key: str, model: str, most: int, held: int, made: int, cut: bool, counted_input: int, used_input: int
    ) -> None: ...

    def coverage(self) -> dict[str, Coverage]:
        return {}

    def start(self) -> None: ...

    def close(self) -> None: ...


class OfModel:
    """What the calls of one model used: output by the size of `max_tokens`, input, and calls above their hold."""

    __slots__ = ("_kind", "by_size", "coverage", "input")

    def __init__(self, kind: type[Samples]) -> None:
        self._kind = kind
        self.by_size: dict[int, Samples] = {}
        self.input = kind()
        self.coverage = kind()

    def get(self, size: int) -> Samples | None:
        """The samples of a size, or those that stand for one; None where there are none."""
        return self.input if size == INPUT else self.coverage if size == COVERAGE else self.by_size.get(size)

    def new(self, size: int) -> Samples:
        """The samples of a size that has none."""
        samples = self.by_size[size] = self._kind()
        return samples


def _add_all(series: tuple[OfModel, Samples, Samples | None] | None, buckets: list[int]) -> None:
    if series is not None and buckets:
        _, of_size, of_key = series
        of_size.add_all(buckets)
        if of_key is not None:
            of_key.add_all(buckets)


def hash_of(key: str) -> str:
    """What a long key is remembered by."""
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

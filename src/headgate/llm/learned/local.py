"""Estimates that are learned from the usage of settled calls of language models: how much to hold for the next one.

Output is learned by key, model and size of `max_tokens`, and by model and size for keys that have few calls. How a
provider counts input is learned by model. See docs/language-models.md#what-is-learned.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import NamedTuple, Protocol

from headgate.forks import ProcessLock
from headgate.llm.learned.samples import FEWEST, Samples, bucket_of, largest_of
from headgate.llm.prices import LONGEST_MODEL

OUTPUT_PERCENT, INPUT_PERCENT = 95, 75
"""The share of calls that use no more than the estimate."""

MOST_KEY_SERIES, MOST_MODELS = 4_000, 500
"""The numbers of series of keys, and of models, that are remembered; the least recently used are dropped."""

INPUT, COVERAGE = -1, -2
"""In place of a size: the series of a model's input factor, and of the calls that exceeded their estimate."""

LONGEST_KEY = 100

_PERMILLE, _LEAST, _LARGEST = 25, 10, 160
"""Input is learned in steps of 25 permille, from 250 to 4,000."""

_FEWEST_TOKENS = 100
"""Nothing is learned from input of fewer tokens: most of it is what a chat format adds."""

MOST_UNLEARNED = 32
"""The number of settled calls that are collected before they are learned from."""

LARGEST_SIZE = 24
"""The largest size: no answer has so many tokens. A size is half the bits of `max_tokens`, rounded up."""

SeriesName = tuple[str, str, int]
"""The name of a series: the key ("" for all), the model, and the size of `max_tokens`, `INPUT` or `COVERAGE`."""


class Coverage(NamedTuple):
    """How many of the last calls held by an estimate, 512 to 1,024 with known usage, exceeded it with their output."""

    calls: int
    above: int

    @property
    def covered(self) -> int:
        """How many had at most as much output as was estimated."""
        return self.calls - self.above


class Learned(Protocol):
    """Estimates from the usage of earlier calls. All methods may be called in any thread or event loop."""

    def output(self, key: str, model: str, most: int) -> int | None:
        """Tokens of output to hold for a call that may produce up to `most`: 95 % of such calls produced no more.

        The estimate uses the calls of this key and model; those of the model if these are fewer than 30; it is None
        where those are fewer, too.
        """
        ...

    def input_permille(self, model: str) -> int:
        """The tokens that a provider counts for a thousand tokens of `count_input`, where that is not exact.

        It is 1000 if nothing is known.
        """
        ...

    def settled(
        self, key: str, model: str, most: int, held: int, made: int, cut: bool, counted_input: int, used_input: int
    ) -> None:
        """Learn from a call that could produce up to `most` tokens of output, and produced `made`.

        `cut`: it ended early, and would have produced at least as many. `held` is the estimate that was held of
        output, -1 where none was, or `made` is not the exact number. `counted_input` is what was counted before any
        factor, 0 where it was exact or the body hid more; `used_input` is what the provider reported, 0 if nothing.
        Never waits and never raises.
        """
        ...

    def coverage(self) -> dict[str, Coverage]:
        """By model, how many of the last calls exceeded their estimate."""
        ...

    def start(self) -> None:
        """Begin to share with other processes, where samples are shared; the first call does so as well."""
        ...

    def close(self) -> None:
        """Share the remaining samples with other processes, within about a second."""
        ...


class LocalLearned:
    """Estimates that are learned in this process, in bounded memory."""

    kind: type[Samples] = Samples

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._of_keys: OrderedDict[SeriesName, Samples] = OrderedDict()
        self._of_models: OrderedDict[str, ModelSamples] = OrderedDict()
        self._unlearned: list[tuple[str, str, int, int, int, bool, int, int]] = []
        """The arguments of `settled` for calls not yet learned from: learning from many at once is faster."""

        self._learn_at = MOST_UNLEARNED
        """The number of these at which they are learned from."""

    def output(self, key: str, model: str, most: int) -> int | None:
        name = (key if len(key) <= LONGEST_KEY else hash_of(key), model, (most.bit_length() + 1) >> 1)
        samples = self._of_keys.get(name)
        if samples is None or samples.weight < FEWEST:
            samples = self._samples_of_few(name)
            if samples is None:
                return None
        with self._lock.current:
            if samples.weight + len(self._unlearned) >= samples.due:
                self._learn()
            bucket = samples.quantile(OUTPUT_PERCENT)
        return most if bucket is None else min(largest_of(bucket), most)

    def _samples_of_few(self, name: SeriesName) -> Samples | None:
        """The samples for a key of few calls: its own, its model's, or None.

        Settled calls that could raise the number of samples to `FEWEST` are learned from first.
        """
        of_key, of_model = self._of_key_and_model(name)
        key_weight, model_weight = 0 if of_key is None else of_key.weight, 0 if of_model is None else of_model.weight
        unlearned = len(self._unlearned)
        if unlearned and (key_weight + unlearned >= FEWEST or model_weight < FEWEST <= model_weight + unlearned):
            with self._lock.current:
                self._learn()
            of_key, of_model = self._of_key_and_model(name)
        if of_key is not None and of_key.weight >= FEWEST:
            return of_key
        return of_model if of_model is not None and of_model.weight >= FEWEST else None

    def _of_key_and_model(self, name: SeriesName) -> tuple[Samples | None, Samples | None]:
        """The samples of a key, and of its model, for a size."""
        _, model, size = name
        of_model = self._of_models.get(model)
        return self._of_keys.get(name), None if of_model is None else of_model.by_size.get(size)

    def input_permille(self, model: str) -> int:
        of_model, unlearned = self._of_models.get(model), len(self._unlearned)
        weight, due = (0, 0) if of_model is None else (of_model.input.weight, of_model.input.due)
        if weight + unlearned < FEWEST:
            return 1000
        if unlearned and weight + unlearned >= due:  # they may change the factor
            with self._lock.current:
                self._learn()
            of_model = self._of_models.get(model)
        if of_model is None or of_model.input.weight < FEWEST:
            return 1000
        with self._lock.current:
            return _PERMILLE * (of_model.input.quantile(INPUT_PERCENT) or _LARGEST)

    def settled(
        self, key: str, model: str, most: int, held: int, made: int, cut: bool, counted_input: int, used_input: int
    ) -> None:
        unlearned = self._unlearned
        unlearned.append((key, model, most, held, made, cut, counted_input, used_input))
        if len(unlearned) >= self._learn_at:
            self._learn_many()

    def _learn_many(self) -> None:
        """Learn from the collected calls, of which there are enough."""
        with self._lock.current:
            self._learn()

    def _learn(self) -> None:
        """Learn from the calls that were settled since the last time; the lock is held."""
        calls = self._unlearned[:]
        del self._unlearned[: len(calls)]  # other threads append meanwhile
        series: tuple[ModelSamples, Samples, Samples | None] | None = None
        last_key, last_model, last_most = "", "", -1
        buckets: list[int] = []
        """The output of consecutive calls of one `series`."""

        for key, model, most, held, made, cut, counted_input, used_input in calls:
            if made < 0:
                continue
            if most != last_most or key != last_key or model != last_model:
                _add_all(series, buckets)
                buckets = []
                last_key, last_model, last_most = key, model, most
                series = self._samples_of(key, model, most)
            if series is None:
                continue
            bucket = bucket_of(made)
            buckets.append(~bucket if cut else bucket)
            if held >= 0:
                series[0].coverage.add(1 if made > held else 0)
            if counted_input >= _FEWEST_TOKENS and used_input > 0:
                permille = -(-1000 * used_input // counted_input)
                series[0].input.add(min(max(-(-permille // _PERMILLE), _LEAST), _LARGEST))
        _add_all(series, buckets)

    def _samples_of(self, key: str, model: str, most: int) -> tuple[ModelSamples, Samples, Samples | None] | None:
        """(samples of the model, of its size, of this size of the key); None if the name or the size is too large."""
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
            self._learn()
            coverages = {model: of_model.coverage for model, of_model in self._of_models.items()}
            return {
                model: Coverage(samples.weight, samples.counts.get(1, 0))
                for model, samples in coverages.items()
                if samples.weight
            }

    def start(self) -> None: ...

    def close(self) -> None: ...

    def _new_of_key(self, name: SeriesName) -> Samples:
        samples = self._of_keys[name] = self.kind()
        if len(self._of_keys) > MOST_KEY_SERIES:
            self._of_keys.popitem(last=False)
        return samples

    def _new_of_model(self, model: str) -> ModelSamples:
        of_model = self._of_models[model] = ModelSamples(self.kind)
        if len(self._of_models) > MOST_MODELS:
            self._of_models.popitem(last=False)
        return of_model


class NothingLearned:
    """Learns nothing: calls hold what the policy states."""

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


class ModelSamples:
    """The samples of one model: output by the size of `max_tokens`, input, and calls above their estimate."""

    __slots__ = ("_kind", "by_size", "coverage", "input")

    def __init__(self, kind: type[Samples]) -> None:
        self._kind = kind
        self.by_size: dict[int, Samples] = {}
        self.input = kind()
        self.coverage = kind()

    def get(self, size: int) -> Samples | None:
        """The samples of a size, `INPUT` or `COVERAGE`; None where there are none."""
        return self.input if size == INPUT else self.coverage if size == COVERAGE else self.by_size.get(size)

    def new(self, size: int) -> Samples:
        """Create the samples of a size that has none."""
        samples = self.by_size[size] = self._kind()
        return samples


def _add_all(series: tuple[ModelSamples, Samples, Samples | None] | None, buckets: list[int]) -> None:
    if series is not None and buckets:
        _, of_size, of_key = series
        of_size.add_all(buckets)
        if of_key is not None:
            of_key.add_all(buckets)


def hash_of(key: str) -> str:
    """The hash by which a long key is remembered."""
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

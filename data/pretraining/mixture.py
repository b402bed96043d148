"""Mixtures of prepared texts: which source each sequence of a pretraining comes from, by weights; their batches.

Sequences are numbered through all steps. CYCLE of them in a row hold each source as often as its weight says, in an
order that depends on (seed, cycle) alone; so any sequence is found by arithmetic, whatever was read before. A source
that is read out begins again, with an epoch of its own.
"""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from contexture.data import rng
from contexture.data.batches import HeldOut
from contexture.data.binary_files import I64
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.layouts import Batch
from contexture.data.mixed_paths import CYCLE, MixedPath
from contexture.data.pretraining.sequence_batches import SequenceBatches
from contexture.data.pretraining.shards import Shards, prepared_at
from contexture.data.tokenizers.base import Tokenizer

_KEPT = 2
"""Cycles that are kept: a batch, or those who read ahead, may be in two."""


class Draws:
    """Which source the sequences of a mixture come from."""

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        """Raises: DataError for a weight that gives a source no sequence of a cycle."""
        exact = np.array(weights, np.float64) / sum(weights) * CYCLE
        # Rounded down; what is left goes to those that lost most (the method of largest remainders).
        self.counts = np.floor(exact).astype(np.int64)
        """How many sequences of a cycle each source has, i64 [sources]."""
        rest = CYCLE - int(self.counts.sum())
        self.counts[np.argsort(self.counts - exact, kind="stable")[:rest]] += 1
        if not self.counts.all():
            share = weights[int(self.counts.argmin())] / sum(weights)
            raise DataError(f"data.path: a share of {share:.1e} is less than one of {CYCLE:,} sequences; raise it")
        self._seed = seed
        self._cycles: OrderedDict[int, tuple[I64, I64]] = OrderedDict()
        # Readers are threads.
        self._lock = threading.Lock()

    def of(self, numbers: I64) -> tuple[I64, I64]:
        """Returns (the source of each sequence, its number among the sequences of that source), both i64 [n]."""
        sources, own = np.empty_like(numbers), np.empty_like(numbers)
        cycles, places = np.divmod(numbers, CYCLE)
        # A batch may begin in one cycle and end in the next.
        for cycle in np.unique(cycles).tolist():
            mine = cycles == cycle
            of, rank = self._cycle(cycle)
            sources[mine] = of[places[mine]]
            # Every cycle has the same number of each source.
            own[mine] = cycle * self.counts[sources[mine]] + rank[places[mine]]
        return sources, own

    def before(self, number: int) -> I64:
        """Returns how many sequences of each source come before a sequence, i64 [sources]."""
        # Whole cycles by their number, and what came before the sequence in its own.
        cycle, place = divmod(number, CYCLE)
        return cycle * self.counts + np.bincount(self._cycle(cycle)[0][:place], minlength=len(self.counts))

    def _cycle(self, number: int) -> tuple[I64, I64]:
        """Returns the source of each sequence of a cycle, and how many of that source come before it there."""
        with self._lock:
            if number not in self._cycles:
                # All slots of a cycle, source by source, shuffled.
                order = rng.permutation(rng.key(rng.MIXTURE, self._seed, number), CYCLE)
                of = np.repeat(np.arange(len(self.counts)), self.counts)[order]
                # Sorted by source, the sequences of one stand together: each one's place there, less the first one's.
                places = np.argsort(of, kind="stable")
                rank = np.empty_like(of)
                rank[places] = np.arange(CYCLE) - np.repeat(np.cumsum(self.counts) - self.counts, self.counts)
                self._cycles[number] = of, rank
                if len(self._cycles) > _KEPT:
                    self._cycles.popitem(last=False)
            return self._cycles[number]


@dataclass(frozen=True)
class MixedSource:
    """A source of a mixture, opened."""

    name: str
    weight: float
    shards: Shards


class MixedShards:
    """The shards of several sources, read in shares. All have one vocabulary and one stream."""

    def __init__(self, folder: Path, sources: Sequence[MixedSource]) -> None:
        """folder: where those lie that the run has made. Raises: DataError where two have another vocabulary."""
        self.sources = tuple(sources)
        # Ids mean the same in all of them, or nothing.
        first = self.sources[0].shards
        for each in self.sources[1:]:
            if each.shards.tokenizer_fingerprint != first.tokenizer_fingerprint:
                raise DataError(
                    f"{each.shards.folder} has another vocabulary than {first.folder}; prepare all sources of a "
                    "mixture with one --tokenizer"
                )
        # Where any lies elsewhere, each machine may have a copy of its own.
        own = [each.shards.folder for each in self.sources if each.shards.folder.parent != folder]
        self.folder = own[0] if own else folder
        self.vocabulary, self.stream = first.vocabulary, first.stream
        # In their order, which numbers the sources.
        facts = [(each.name, each.weight, each.shards.fingerprint) for each in self.sources]
        self.fingerprint = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        """sha256 (hex) over names, weights and fingerprints of the sources."""
        self.labels: tuple[str, ...] = ()
        self.counts: tuple[int, ...] = ()
        """Empty, as of Shards."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The vocabulary of all."""
        return self.sources[0].shards.tokenizer

    def verify(self, cancel: CancelToken = NEVER) -> None:
        """Reads every file once, as `Shards.verify`."""
        for each in self.sources:
            each.shards.verify(cancel)

    def unigrams(self) -> I64:
        """Returns how often each id occurs in as many tokens of the mixture as its sources have, i64 [V]."""
        # Frequencies of each source, by its share; as counts again, since a guess adds one to each.
        counts = [each.shards.unigrams() for each in self.sources]
        tokens, weights = sum(int(each.sum()) for each in counts), sum(each.weight for each in self.sources)
        shares = [each.weight / weights / max(int(n.sum()), 1) for each, n in zip(self.sources, counts, strict=True)]
        return np.rint(sum(share * n for share, n in zip(shares, counts, strict=True)) * tokens).astype(np.int64)


def open_mixture(paths: Sequence[MixedPath], folder: Path, cache_gb: float = DataConfig.cache_gb) -> MixedShards:
    """Opens the sources of a mixture: those that were prepared where they are, the others in the run's own `folder`.

    Raises: as `Shards.open`; DataError as `MixedShards`.
    """
    # Only what was not prepared is in the run's own folder.
    sources: list[MixedSource] = []
    for each in paths:
        place = prepared_at([each.path]) or folder / each.name
        if not place.exists():
            raise DataError(f"{each.path}: prepared text of the mixture is not there any more; put it back")
        sources.append(MixedSource(each.name, each.weight, Shards.open(place, cache_gb)))
    return MixedShards(folder, sources)


class Numbered(Protocol):
    """Sequences of a source by their numbers, from 0 on without end."""

    fields: dict[str, str]
    examples_per_epoch: int

    def sequences(self, numbers: I64, step: int | None = None) -> Batch: ...

    def lengths_of(self, numbers: I64) -> I64: ...

    def describe(self) -> str: ...

    def notes(self) -> list[str]: ...


class MixedBatches(SequenceBatches):
    """Batches of a mixture: step s, row r is sequence `s · batch + r`, of the source that is drawn for it."""

    def __init__(
        self,
        store: MixedShards,
        sources: Sequence[Numbered],
        config: DataConfig,
        *,
        seed: int,
        parts: int = 1,
        devices: int = 1,
    ) -> None:
        """Prepares batches.

        Args:
            store: the sources.
            sources: the sequences of each, unpacked where sequences share rows.
            config: the run's data.
            seed: of the order of sources.
            parts: microbatches of a batch.
            devices: how many devices share a batch.
        """
        # The weights alone decide, however large a source is.
        self.draws = Draws([each.weight for each in store.sources], seed)
        self.store, self.sources = store, sources
        # A BERT's sequences may share rows; a GPT's windows are full.
        fields = None if store.stream == "sentence_pairs" else sources[0].fields
        examples = sum(each.examples_per_epoch for each in sources)
        super().__init__(store.tokenizer, config, examples, parts, devices, fields)

    def passes(self, step: int) -> dict[str, float]:
        """Returns how often each source was read before a step, in epochs of its own, by `passes/NAME`."""
        counts = self.draws.before(self.config.examples_before(step)).tolist()
        return {
            f"passes/{named.name}": round(count / source.examples_per_epoch, 4)
            for named, source, count in zip(self.store.sources, self.sources, counts, strict=True)
        }

    def sequences(self, numbers: I64, step: int | None = None) -> Batch:
        """Returns the sequences with these numbers, with a row each, as they are in a step."""
        # One read of each source for all of its rows.
        parts = self._by_source(numbers, lambda source, own: source.sequences(own, step))
        return {name: _in_order(parts, name) for name in parts[0][1]}

    def lengths_of(self, numbers: I64) -> I64:
        """Returns the tokens of the sequences with these numbers, special ones counted."""
        return _in_order(self._by_source(numbers, lambda source, own: {"": source.lengths_of(own)}), "")

    def _by_source(self, numbers: I64, read: Callable[[Numbered, I64], Batch]) -> list[tuple[I64, Batch]]:
        """Returns what is read of each source, with the places that it has among the numbers."""
        # A source without a row in this batch is not read.
        of, own = self.draws.of(numbers)
        places = [(number, np.flatnonzero(of == number)) for number in range(len(self.sources))]
        return [(at, read(self.sources[number], own[at])) for number, at in places if len(at)]

    def notes(self) -> list[str]:
        return [line for source in self.sources for line in source.notes()]

    def describe_source(self) -> str:
        shares = self.draws.counts / CYCLE
        each = zip(self.store.sources, shares.tolist(), self.sources, strict=True)
        return "; ".join(f"{named.name} {share:.1%}: {source.describe()}" for named, share, source in each) + "; all"


def _in_order(parts: Sequence[tuple[I64, Batch]], name: str) -> np.ndarray:
    """Returns a field of all parts, each row at its place."""
    # Where each source's rows were asked for is where they go back to.
    rows = np.concatenate([batch[name] for _, batch in parts])
    return rows[np.argsort(np.concatenate([at for at, _ in parts]))]


class MixedHeldOut:
    """The held-out batches of each source, one after the other."""

    def __init__(self, sources: dict[str, HeldOut]) -> None:
        """sources: by name, of those that hold something out; one at least."""
        # In the order of the mixture, which is that of their figures.
        self._sources = list(sources.items())
        # Fields and size of a batch are the same for all.
        first = self._sources[0][1]
        self.fields, self.tokenizer, self.batch, self.unit = first.fields, first.tokenizer, first.batch, first.unit
        self.count = sum(each.count for each in sources.values())
        # After which step each source ends.
        self._ends = np.cumsum([each.steps for each in sources.values()])
        self.steps = int(self._ends[-1])

    def source_at(self, step: int) -> str:
        """Returns the name of the source that a step's batch is of."""
        return self._sources[self._number(step)][0]

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """Reads as the batches of the step's source do."""
        # Its own steps are counted from where it begins.
        number = self._number(step)
        before = int(self._ends[number - 1]) if number else 0
        return self._sources[number][1].read(step - before, rows)

    def _number(self, step: int) -> int:
        # Beyond the last step searchsorted would give a source that is not there.
        if not 0 <= step < self.steps:
            raise IndexError(f"held-out step {step} is not below {self.steps}")
        return int(np.searchsorted(self._ends, step, side="right"))

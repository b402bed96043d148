"""ELMo's lanes: a split's words are one long row, read from either end, and row b of a batch goes on where row b of the
batch before it stopped."""

import threading

import numpy as np
from numpy.typing import NDArray

from contexture.data import rng
from contexture.data.binary_files import I64
from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.layouts import Batch
from contexture.data.pretraining.lm_windows import TokenStream
from contexture.data.pretraining.shards import Shards
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.elmo_char_ids import FIRST_WORD, MOST_BYTES, word_table
from contexture.data.tokenizers.word_level import word_tokenizer

FIELDS = {
    "types": "i32 RW",
    "index": "i32 BL",
    "next": "i32 BL",
    "next_weights": "f32 BL",
    "index_backward": "i32 BL",
    "next_backward": "i32 BL",
    "next_weights_backward": "f32 BL",
    "valid": "f32 B",
}
"""The arrays of a batch of lanes. types: what is read of each different word of the batch, after three rows for
nothing, `<S>` and `</S>`; index: the row of the word that is read; next: the word after it; the same for the lanes that
read backward. next_weights: 0 where none is to be predicted; valid: 0 where a line only fills up a batch."""
SAMPLED = {"negatives": "i32 _S", "tries": "f32 _"}
"""What training has besides, forward and backward: the words that the next one is told from, and how many draws gave so
many different ones."""


class _Lanes:
    """What training and held-out lanes share.

    A split with N ids is a circle, `a b </S> c </S>`, which begins again behind its end. At each of its N places a word
    is read and the one at the next place is predicted. What is read at a `</S>` is the `<S>` of the sentence behind it,
    so that each sentence is read as `<S> a b` and predicted as `a b </S>`. Backward the circle runs the other way: at a
    `</S>` that is what is read, and `<S>` what is predicted there, so that a sentence is `</S> b a` and `b a <S>`.
    """

    def __init__(self, shards: Shards, config: DataConfig, split: str, lanes: int) -> None:
        """Raises: DataError where the split holds no text, or less than a word a lane, or other tokens than words."""
        self._words = word_tokenizer(shards.tokenizer)
        self.tokenizer: Tokenizer = self._words
        self.fields = dict(FIELDS)
        self.shards, self.config, self.split = shards, config, shards.splits[split]
        self.batch, self.length = config.batch, config.length
        self.row = TokenStream(shards, split)
        self.pairs = self.row.tokens
        """Words to be predicted in each direction, the ends of sentences counted."""
        if not self.pairs:
            raise DataError(f"{shards.folder}: no {split} text; prepare it again with data.dev or data.dev-fraction")
        if self.pairs < lanes:
            raise DataError(
                f"{shards.folder}: the {split} text has {self.pairs} words, the ends of sentences counted, too few for "
                f"{lanes} lanes; lower data.batch (held out: evaluate.batch), or give more text"
            )
        self._char_ids = shards.char_ids
        self._types = config.word_types or 2 * self.batch * self.length + FIRST_WORD
        self.rows_read = 0
        """Rows read so far, by all threads."""
        self.longer_tables = 0
        """How many batches had more different words than `data.word_types`, by all threads."""
        self._lock = threading.Lock()

    def _lines(self, forward_B: I64, backward_B: I64, inside_BL: NDArray[np.bool_], rows: I64) -> Batch:
        """Lines of a whole batch that begin at these places, the backward ones counted from the circle's end, and of
        them these rows. Where they are not inside, nothing is read and nothing predicted."""
        begin, end, unk, size = self._words.begin, self._words.end, self._words.unk, self._words.size
        forward, backward = self._read(forward_B, False), self._read(backward_B, True)
        read_BL, read_backward_BL = (np.where(inside_BL, line[:, :-1], 0) for line in (forward, backward))
        known = np.unique(np.concatenate([read_BL, read_backward_BL]))
        known = known[known > unk]
        types = word_table(self._char_ids[known], self._types)
        with self._lock:
            self.rows_read += len(rows)
            self.longer_tables += len(types) > self._types
        inside_BL = inside_BL[rows]
        next_BL, next_backward_BL = (np.where(line < size, line, unk)[rows, 1:] for line in (forward, backward))
        next_backward_BL[next_backward_BL == end] = begin
        return {
            "types": types,
            "index": _index(read_BL[rows], known, {end: 1}),
            "next": np.where(inside_BL, next_BL, 0).astype(np.int32),
            "next_weights": inside_BL.astype(np.float32),
            "index_backward": _index(read_backward_BL[rows], known, {end: 2}),
            "next_backward": np.where(inside_BL, next_backward_BL, 0).astype(np.int32),
            "next_weights_backward": inside_BL.astype(np.float32),
            "valid": np.ones(len(rows), np.float32),
        }

    def _read(self, starts_B: I64, backward: bool) -> NDArray[np.int64]:
        """Stretches of the circle with the word after each: where they begin → ids [B, L+1]."""
        width = self.length + 1
        if backward:
            starts_B = self.pairs - width - starts_B
        places = ((starts_B[:, None] + np.arange(width)) % self.pairs).ravel()
        apart = np.flatnonzero(np.append(True, places[1:] != places[:-1] + 1))
        ids = self.row.read(places[apart], np.diff(np.append(apart, len(places)))).astype(np.int64)
        return ids.reshape(-1, width)[:, :: -1 if backward else 1]


class LaneBatches(_Lanes):
    """ELMo's pretraining batches: of B lanes, each way, lane b begins b · (N // B) places from the circle's beginning,
    and each step goes on by `length` words.

    When a lane comes to where the next one began, it goes on there: what is carried from batch to batch is always what
    truly stood before. Nothing is left out, and nothing but the negatives is drawn by chance.

    Differs: bilm-tf draws the order of its files, and of the lines within each, and the backward lanes have an order of
    their own. Here the text stays in its order.
    """

    def __init__(self, shards: Shards, config: DataConfig, *, seed: int) -> None:
        """Raises: DataError as _Lanes, and where there are not more words than negatives."""
        super().__init__(shards, config, "train", config.batch)
        self.seed = seed
        if config.negatives:
            self.fields |= SAMPLED
            if config.negatives >= self._words.size:
                raise DataError(
                    f"{shards.folder}: data.negatives={config.negatives} is not below the {self._words.size} words of "
                    "the vocabulary; lower it, or give 0 for the whole vocabulary"
                )
        self.examples_per_epoch = -(-self.pairs // self.length)

    def notes(self) -> list[str]:
        """How often the table of distinct words was too small."""
        if not self.longer_tables:
            return []
        return [
            f"{self.longer_tables:,} batches had more distinct words than data.word-types={self._types}, and took a "
            "larger table; raise it where that is often"
        ]

    def describe(self) -> str:
        """What there is to train on, in a sentence."""
        words, cut = self.split.tokens - self.split.sentences, self.shards.index["cut"]
        unknown = int(self.shards.unigrams()[self._words.unk]) / words
        facts = [
            f"{words:,} words ({unknown:.1%} not in the vocabulary) in {self.split.sentences:,} sentences",
            f"a pass is {self.examples_per_epoch:,} lines forward and as many backward",
        ]
        if cut["times"]:
            words, times = f"{cut['words']:,}", f"{cut['times']:,}"
            facts.append(f"words longer than {MOST_BYTES} bytes are cut: {words}, {times} times in all text")
        return "; ".join(facts)

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """The rows (numbers within the batch, all of them if None) of the step's batch, in the order asked for; the
        types are those of the whole batch."""
        lanes_B = np.arange(self.batch)
        rows = lanes_B if rows is None else np.asarray(rows, np.int64)
        starts_B = (lanes_B * (self.pairs // self.batch) + step * self.length) % self.pairs
        batch = self._lines(starts_B, starts_B, np.ones((self.batch, self.length), np.bool_), rows)
        if self.config.negatives:
            batch |= self._negatives(step)
        return batch

    def _negatives(self, step: int) -> Batch:
        keys = [rng.key(rng.NEGATIVES, self.seed, step, direction) for direction in range(2)]
        found = [rng.distinct_log_uniform(key, self.config.negatives, self._words.size) for key in keys]
        return {
            "negatives": np.stack([words for words, _ in found]).astype(np.int32),
            "tries": np.array([tries for _, tries in found], np.float32),
        }


class HeldOutLanes(_Lanes):
    """Every held-out word once in each direction, in `steps` batches to be read in their order: `lanes` lines carry
    text, a contiguous part of it each, and go on from batch to batch; the others only fill up the batch."""

    unit = "words"

    def __init__(self, shards: Shards, config: DataConfig, lanes: int) -> None:
        """Raises: DataError as _Lanes."""
        super().__init__(shards, config, "dev", lanes)
        self.lanes, self.count = lanes, self.pairs
        """Lines that carry text, and how many words they predict in each direction."""
        sizes = self.pairs // lanes + (np.arange(lanes) < self.pairs % lanes)
        self._sizes_B = np.append(sizes, np.zeros(self.batch - lanes, np.int64))
        self._begins_B = np.cumsum(self._sizes_B) - self._sizes_B
        self.steps = -(-int(sizes[0]) // self.length)

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """As in LaneBatches, for steps below `steps`, without negatives. Where a lane has come to its end, nothing more
        is read and predicted."""
        if not 0 <= step < self.steps:
            raise IndexError(f"held-out step {step} is not below {self.steps}")
        rows = np.arange(self.batch) if rows is None else np.asarray(rows, np.int64)
        inside_BL = step * self.length + np.arange(self.length) < self._sizes_B[:, None]
        starts_B = np.where(inside_BL[:, 0], self._begins_B + step * self.length, 0)
        # The text begins with the `<S>` that is read at its last place, and backward with the `</S>` there.
        batch = self._lines(starts_B - 1, starts_B, inside_BL, rows)
        batch["valid"] = (rows < self.lanes).astype(np.float32)
        return batch


def _index(ids_BL: I64, known: I64, marks: dict[int, int]) -> NDArray[np.int32]:
    """The rows of words in the table of types; 0 for the id 0, which stands where nothing is read."""
    index_BL = np.searchsorted(known, ids_BL) + FIRST_WORD
    for number, row in {0: 0, **marks}.items():
        index_BL[ids_BL == number] = row
    return index_BL.astype(np.int32)

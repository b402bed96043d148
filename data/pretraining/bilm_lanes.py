"""ELMo's lanes: a split's words are one long row, read from either end, and row b of a batch continues where row b of
the batch before it stopped (bilm-tf, data.py, BidirectionalLMDataset: stateful truncated backpropagation)."""

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
from contexture.data.tokenizers.elmo_char_ids import FIRST_WORD, MAX_BYTES, word_table
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
"""The arrays of a batch of lanes. types: the characters of each distinct word of the batch, after three rows for
nothing, `<S>` and `</S>`; index: the row of the word that is read; next: the word after it; the same for the lanes that
read backward. next_weights: 0 where none is to be predicted; valid: 0 where a sequence only fills up a batch."""
SAMPLED = {"negatives": "i32 _S", "tries": "f32 _"}
"""The further arrays of training, forward and backward: the sampled negatives, and how many draws it took until so many
were distinct."""


class _Lanes:
    """What training and held-out lanes share.

    A split with N ids is a circle, `a b </S> c </S>`, which begins again after its end. At each of its N places a word
    is read and the one at the next place is predicted. The shards store one id between two sentences, where the
    original has two, `</S>` and `<S>`; it is read as the one that the direction needs:

        forward    read `<S> a b`,  predicted `a b </S>`
        backward   read `</S> b a`, predicted `b a <S>`
    """

    def __init__(self, shards: Shards, config: DataConfig, split: str, lanes: int) -> None:
        """Raises: DataError where the split holds no text, fewer words than lanes, or other tokens than words."""
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
        # Room for a batch in which every word of both directions is distinct.
        self._types = config.word_types or 2 * self.batch * self.length + FIRST_WORD
        self.rows_read = 0
        """Rows read so far, by all threads."""
        self.longer_tables = 0
        """Batches with more distinct words than `data.word_types`, by all threads."""
        self._lock = threading.Lock()

    def _sequences(self, forward_B: I64, backward_B: I64, inside_BL: NDArray[np.bool_], rows: I64) -> Batch:
        """Reads a whole batch whose sequences begin at these places, the backward ones counted from the circle's end,
        and returns these rows of it. Nothing is read or predicted where inside_BL is false."""
        begin, end, unk, size = self._words.begin, self._words.end, self._words.unk, self._words.size
        forward, backward = self._read(forward_B, False), self._read(backward_B, True)
        read_BL, read_backward_BL = (np.where(inside_BL, ids[:, :-1], 0) for ids in (forward, backward))
        # Each distinct word goes through the character CNN once, for both directions and for all rows: devices that
        # read other rows of the batch have the same table. Ids up to unk are <S>, </S> and <UNK>. No text holds <UNK>:
        # a word that the vocabulary lacks has an id of its own after V - 1, and is read by its characters.
        known = np.unique(np.concatenate([read_BL, read_backward_BL]))
        known = known[known > unk]
        types = word_table(self._char_ids[known], self._types)
        with self._lock:
            self.rows_read += len(rows)
            # The table was doubled, and another program compiled; `notes` says how often.
            self.longer_tables += len(types) > self._types
        inside_BL = inside_BL[rows]
        # A word that the vocabulary lacks is predicted as <UNK>.
        next_BL, next_backward_BL = (np.where(ids < size, ids, unk)[rows, 1:] for ids in (forward, backward))
        # Backward, the border before a sentence is the <S> that the lane predicts.
        next_backward_BL[next_backward_BL == end] = begin
        return {
            "types": types,
            # The stored </S> is read as <S> (row 1 of types) forward, and as itself (row 2) backward.
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
        # A backward stretch is the same text read forward and turned over at the end.
        if backward:
            # Place p of the circle read from its end is place N-1-p: `width` of them from p on begin at N-width-p.
            starts_B = self.pairs - width - starts_B
        places = ((starts_B[:, None] + np.arange(width)) % self.pairs).ravel()
        # Every place is looked up, since a stretch may run over the circle's end; those that adjoin are one read.
        apart = np.flatnonzero(np.append(True, places[1:] != places[:-1] + 1))
        ids = self.row.read(places[apart], np.diff(np.append(apart, len(places)))).astype(np.int64)
        return ids.reshape(-1, width)[:, :: -1 if backward else 1]


class LaneBatches(_Lanes):
    """ELMo's pretraining batches: B lanes each way. Lane b begins b · (N // B) places from the circle's beginning, and
    each step advances by `length` words.

    When a lane comes to where the next one began, it continues there: the state that is carried from batch to batch
    always comes from the words before. Nothing is left out, and only the negatives are random.

    Differs: bilm-tf shuffles its files, and the lines within each, and the backward lanes have an order of their own.
    Here the text stays in its order.
    """

    def __init__(self, shards: Shards, config: DataConfig, *, seed: int) -> None:
        """Raises: DataError as _Lanes, and where the vocabulary has no more words than data.negatives."""
        super().__init__(shards, config, "train", config.batch)
        self.seed = seed
        if config.negatives:
            self.fields |= SAMPLED
            if config.negatives >= self._words.size:
                raise DataError(
                    f"{shards.folder}: data.negatives={config.negatives} is not below the {self._words.size} words of "
                    "the vocabulary; lower it, or give 0 for the whole vocabulary"
                )
        # The last sequence of an epoch goes on into the next one.
        self.examples_per_epoch = -(-self.pairs // self.length)

    def notes(self) -> list[str]:
        """Says how often the table of distinct words was too small, and what was fetched from a bucket."""
        if not self.longer_tables:
            return self.shards.notes()
        return [
            *self.shards.notes(),
            f"{self.longer_tables:,} batches had more distinct words than data.word-types={self._types}, and took a "
            "larger table; raise it if that is often",
        ]

    def describe(self) -> str:
        """Describes the training data, in a sentence."""
        words, cut = self.split.tokens - self.split.sentences, self.shards.index["cut"]
        # <UNK> counts in the unigrams for all words that the vocabulary lacks.
        unknown = int(self.shards.unigrams()[self._words.unk]) / words
        facts = [
            f"{words:,} words ({unknown:.1%} not in the vocabulary) in {self.split.sentences:,} sentences",
            f"an epoch is {self.examples_per_epoch:,} sequences forward and as many backward",
        ]
        if cut["times"]:
            words, times = f"{cut['words']:,}", f"{cut['times']:,}"
            facts.append(f"cut to {MAX_BYTES} bytes: {words} longer words, which occur {times} times")
        return "; ".join(facts)

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """Returns the rows (numbers within the batch, all of them if None) of the step's batch, in the order asked for.
        The table of types is the whole batch's."""
        lanes_B = np.arange(self.batch)
        rows = lanes_B if rows is None else np.asarray(rows, np.int64)
        starts_B = (lanes_B * (self.pairs // self.batch) + step * self.length) % self.pairs
        batch = self._sequences(starts_B, starts_B, np.ones((self.batch, self.length), np.bool_), rows)
        if self.config.negatives:
            batch |= self._negatives(step)
        return batch

    def _negatives(self, step: int) -> Batch:
        # One draw for each step and direction, shared by all words of the batch, as in TensorFlow's
        # sampled_softmax_loss.
        keys = [rng.key(rng.NEGATIVES, self.seed, step, direction) for direction in range(2)]
        samples = [rng.distinct_log_uniform(key, self.config.negatives, self._words.size) for key in keys]
        return {
            "negatives": np.stack([words for words, _ in samples]).astype(np.int32),
            "tries": np.array([tries for _, tries in samples], np.float32),
        }


class HeldOutLanes(_Lanes):
    """Every held-out word once in each direction, in `steps` batches to be read in their order: the first `lanes` rows
    carry text, a contiguous part of it each, and continue from batch to batch; the others only fill up the batch."""

    unit = "words"

    def __init__(self, shards: Shards, config: DataConfig, lanes: int) -> None:
        """Raises: DataError as _Lanes."""
        super().__init__(shards, config, "dev", lanes)
        self.lanes, self.count = lanes, self.pairs
        """Rows that carry text, and how many words they predict in each direction."""
        # The parts differ by a word at most; the first ones have the remainder.
        sizes = self.pairs // lanes + (np.arange(lanes) < self.pairs % lanes)
        self._sizes_B = np.append(sizes, np.zeros(self.batch - lanes, np.int64))
        self._begins_B = np.cumsum(self._sizes_B) - self._sizes_B
        # The first part is the longest: it says how many batches there are.
        self.steps = -(-int(sizes[0]) // self.length)

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """Reads as LaneBatches does, for steps below `steps`, without negatives. Behind the end of a lane nothing is
        read or predicted."""
        if not 0 <= step < self.steps:
            raise IndexError(f"held-out step {step} is not below {self.steps}")
        rows = np.arange(self.batch) if rows is None else np.asarray(rows, np.int64)
        inside_BL = step * self.length + np.arange(self.length) < self._sizes_B[:, None]
        # A lane that has ended reads the text's beginning, which inside_BL leaves out.
        starts_B = np.where(inside_BL[:, 0], self._begins_B + step * self.length, 0)
        # The text begins with the `<S>` that is read at its last place, and backward with the `</S>` there.
        batch = self._sequences(starts_B - 1, starts_B, inside_BL, rows)
        batch["valid"] = (rows < self.lanes).astype(np.float32)
        return batch


def _index(ids_BL: I64, known: I64, marks: dict[int, int]) -> NDArray[np.int32]:
    """Returns the rows of words in the table of types. marks: rows for special words. The id 0, which no text holds,
    marks places where nothing is read, and has row 0."""
    index_BL = np.searchsorted(known, ids_BL) + FIRST_WORD
    for number, row in {0: 0, **marks}.items():
        index_BL[ids_BL == number] = row
    return index_BL.astype(np.int32)

"""ERNIE's dialogue language model (Sun et al. 2019, section 3.4): three turns of a dialogue with the roles of those who
speak, some of them fake. No code of it was released: what the paper leaves open says `Differs:`."""

import numpy as np
from numpy.typing import NDArray

from contexture.data import rng
from contexture.data.binary_files import I64
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.layouts import Batch
from contexture.data.pretraining.sentence_pairs import PairBatches
from contexture.data.pretraining.sequence_batches import HeldOutSequences
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.units import ANSWERS
from contexture.data.tokenizers.wordpiece import wordpiece

TURNS = 3
"""Turns of a sequence: a question, an answer and a question, and so on."""


class Dialogues:
    """Each three turns that follow each other in a dialogue, once an epoch, in an order that follows from (seed,
    epoch); half of them with one turn of another dialogue."""

    def __init__(self, shards: Shards, split: str, seed: int) -> None:
        """Raises: DataError where no dialogue has three turns, or where there is one alone."""
        self.split, self.seed = shards.splits[split], seed
        # Two numbers for each dialogue: its first turn, and how many windows of three there are up to its end.
        bounds = self.split.bounds(0, self.split.documents)
        self.first, self.turns = bounds[:, 0], bounds[:, 1] - bounds[:, 0]
        self._windows = np.maximum(self.turns - TURNS + 1, 0)
        self._ends = np.cumsum(self._windows)
        self.count = int(self._ends[-1]) if len(self._ends) else 0
        if not self.count or len(self.first) < 2:
            raise DataError(
                f"{shards.folder}: {len(self.first)} dialogues in {split}, with {self.count} times three turns; give "
                "two dialogues at least, of three turns or more"
            )

    def windows(self, numbers: I64) -> tuple[I64, I64, NDArray[np.bool_]]:
        """Returns (the turns of sequences, i64 B3; those that are read, of which one may be fake; whether one is)."""
        places, (epochs, at) = np.empty_like(numbers), np.divmod(numbers, self.count)
        # A batch may begin in one epoch and end in the next.
        for e in np.unique(epochs).tolist():
            mine = epochs == e
            places[mine] = rng.permutation_at(rng.key(rng.DIALOGUE_ORDER, self.seed, e), at[mine], self.count)
        dialogue = np.searchsorted(self._ends, places, side="right")
        first = self.first[dialogue] + places - (self._ends - self._windows)[dialogue]
        own_B3 = first[:, None] + np.arange(TURNS)
        # Four numbers of each sequence: whether one is fake, which one, of which other dialogue, and its turn.
        # Differs: the paper says neither how many are fake nor how many turns are replaced.
        draw_B = rng.random_bits(rng.key(rng.DIALOGUE_FAKE, self.seed), numbers)
        bits = [rng.random_bits(draw_B, np.full(len(numbers), part)) for part in range(4)]
        is_fake_B = rng.uniform(bits[0]) < 0.5
        other = (dialogue + 1 + rng.randint(bits[2], len(self.first) - 1)) % len(self.first)
        turn = self.first[other] + (rng.uniform(bits[3]) * self.turns[other]).astype(np.int64)
        read_B3 = own_B3.copy()
        rows = np.flatnonzero(is_fake_B)
        read_B3[rows, rng.randint(bits[1], TURNS)[rows]] = turn[rows]
        return own_B3, read_B3, is_fake_B


class DialogueBatches(PairBatches):
    """Batches of dialogues: `[CLS] turn [SEP] turn [SEP] turn [SEP]`, whose segments are the roles: 0 asks, 1 answers.

    `is_random` says that a turn is fake. All else is as for pairs of sentences.
    """

    def _open(self, split: str, cancel: CancelToken) -> int:
        self.dialogues = Dialogues(self.shards, split, self.seed)
        return self.dialogues.count

    def _spans(self, numbers: I64) -> tuple[I64, I64, I64, NDArray[np.bool_]]:
        """Returns (where turns begin, how many of their tokens fit, the first tokens of the original turns, i64 B3;
        which sequences are fake)."""
        own_B3, read_B3, is_fake_B = self.dialogues.windows(numbers)
        # Two offsets for each turn: neighbours in a dialogue, but a fake one may lie anywhere.
        ends = np.array([self.shards.offsets(turn, turn + 1) for turn in read_B3.ravel().tolist()], np.int64)
        starts_B3, lengths_B3 = (x.reshape(-1, TURNS) for x in (ends[:, 0], ends[:, 1] - ends[:, 0]))
        firsts = np.array([self.shards.offsets(turn, turn + 1)[0] for turn in own_B3.ravel().tolist()], np.int64)
        return starts_B3, fitting(lengths_B3, self.length - TURNS - 1), firsts, is_fake_B

    def lengths_of(self, numbers: I64) -> I64:
        """Returns the tokens of the sequences with these numbers, special ones counted."""
        return self._spans(self._drawn(numbers))[1].sum(1) + TURNS + 1

    def describe_source(self) -> str:
        split = self.dialogues.split
        return f"{split.tokens:,} tokens in {split.sentences:,} turns of {split.documents:,} dialogues"

    def _laid_out(self, numbers: I64) -> tuple[Batch, NDArray[np.bool_], I64, NDArray[np.bool_]]:
        starts_B3, lengths_B3, firsts, is_fake_B = self._spans(numbers)
        tokenizer, place = wordpiece(self.tokenizer), np.arange(self.length)
        # Behind each turn stands a [SEP].
        ends_B3 = np.cumsum(lengths_B3 + 1, 1)
        last = ends_B3[:, -1:]
        # The turn of each place: how many have ended before it.
        turn_BL = (place[None, :, None] > ends_B3[:, None, :]).sum(-1)
        text_BL = (place > 0) & (place < last) & ~(place[None, :, None] == ends_B3[:, None, :]).any(-1)
        tokens_BL = np.full(turn_BL.shape, tokenizer.pad, np.int32)
        tokens_BL[text_BL] = self.shards.read(starts_B3.ravel(), lengths_B3.ravel())
        tokens_BL[:, 0] = tokenizer.cls
        np.put_along_axis(tokens_BL, ends_B3, tokenizer.sep, 1)
        # A fake turn has the role of the one in whose place it stands: the role does not give it away.
        roles = self.shards.read(firsts, np.ones(len(firsts), np.int64)) & ANSWERS > 0
        role_B4 = np.pad(roles.reshape(-1, TURNS), ((0, 0), (0, 1))).astype(np.int32)
        batch = {
            "tokens": tokens_BL,
            "segments": np.take_along_axis(role_B4, turn_BL, 1),
            "mask": (place <= last).astype(np.int32),
        }
        return batch, text_BL, last[:, 0] + 1, is_fake_B


class HeldOutDialogues(HeldOutSequences):
    """Every held-out window of three turns once, with fakes and masks that never change."""

    def __init__(self, shards: Shards, config: DataConfig, *, devices: int = 1, cancel: CancelToken = NEVER) -> None:
        """Raises: DataError as `Dialogues`."""
        super().__init__(DialogueBatches(shards, config, seed=0, split="dev", devices=devices, cancel=cancel))


def fitting(lengths_B3: I64, room: int) -> I64:
    """Returns how many tokens of each turn fit: the longest ones give first, and a turn's end goes."""
    # Most fit, and are as they were.
    lengths = lengths_B3.copy()
    # The same bound for all that are longer, and what division leaves to the first of them.
    for row in np.flatnonzero(lengths.sum(1) > room).tolist():
        turns = lengths[row]
        order = np.argsort(turns, kind="stable")
        left = room
        for number, at in enumerate(order.tolist()):
            turns[at] = min(turns[at], -(-left // (TURNS - number)) if number else left // TURNS)
            left -= turns[at]
    return lengths

"""Masking for the masked language model: which tokens BERT predicts, and what is read in their place
(create_pretraining_data.py, create_masked_lm_predictions; Devlin et al. 2018, section 3.1)."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from contexture.data import rng
from contexture.data.binary_files import I64
from contexture.data.config import MaskingKind

I32 = NDArray[np.int32]
Bools = NDArray[np.bool_]
U64 = NDArray[np.uint64]
_NEVER = np.uint64(0xFFFFFFFFFFFFFFFF)
"""A number larger than any that is drawn."""
LONGEST_SPAN, _SPAN_END = 10, 0.2
"""Words of a span: at most so many, and the chance that it ends with a word (SpanBERT, section 3.1)."""


@dataclass(frozen=True)
class Masked:
    """tokens i32 BL with slots replaced; slots, labels i32 BP and weights f32 BP; unused slots are 0 in all three."""

    tokens: I32
    slots: I32
    labels: I32
    weights: NDArray[np.float32]


class Masking(NamedTuple):
    """How sequences are masked.

    Args:
        seed: the run's seed.
        predictions: the most slots of a sequence, P.
        masked_fraction: the share of a sequence's tokens that is masked.
        mask: the id of [MASK].
        vocab: how many ids there are.
        kind: which tokens are chosen together.
        mask_share: the share of chosen tokens that become [MASK].
        random_share: the share that becomes any id; the rest stay.
    """

    seed: int
    predictions: int
    masked_fraction: float
    mask: int
    vocab: int
    kind: MaskingKind = "pieces"
    mask_share: float = 0.8
    random_share: float = 0.1


def bert_masking(
    tokens_BL: I32,
    candidates_BL: Bools,
    lengths_B: I64,
    numbers_B: I64,
    masking: Masking,
    continues_BL: Bools | None = None,
) -> Masked:
    """Chooses about a fraction of a sequence's candidates; 80 % of them become [MASK], 10 % any id of the vocabulary,
    and 10 % stay as they are.

    The choice depends on (seed, the sequence's number) alone. Slots ascend.

    - pieces: min(P, max(1, round(length · fraction))) candidates; halves round to even.
    - whole_words (do_whole_word_mask): all pieces of a word or none, words in a random order, each that does not go
      beyond that number, so that a few pieces fewer may be masked.
    - spans (SpanBERT, section 3.1): runs of whole words up to that number, of geometric lengths. What becomes of a
      token is drawn once for a run of them.
    - ernie (ERNIE 1.0): each unit by a draw of its own, all its pieces or none, so that their number varies.

    Differs: the original masks a sequence once, before training; here each epoch masks it anew, but for
    data.masking-copies. An ERNIE's sequence whose choice exceeds P loses some units.

    Args:
        tokens_BL: the sequences.
        candidates_BL: which tokens may be chosen.
        lengths_B: the sequences' tokens, special ones counted, which are no candidates.
        numbers_B: the sequences' numbers.
        masking: how.
        continues_BL: which pieces continue a word, or an ERNIE's unit; None: none of them.
    """
    (B, L), P = tokens_BL.shape, masking.predictions
    continues_BL = np.zeros((B, L), bool) if continues_BL is None else continues_BL
    chosen_BL = _chosen(candidates_BL, continues_BL, lengths_B, numbers_B, masking)
    # nonzero goes row by row and from left to right, so the slots ascend. Row b has as many of them as used_BP has in
    # that row, which lets one boolean assignment fill all rows.
    rows, columns = np.nonzero(chosen_BL)
    used_BP = np.arange(P)[None, :] < chosen_BL.sum(1)[:, None]
    slots_BP = np.zeros((B, P), np.int32)
    labels_BP = np.zeros((B, P), np.int32)
    slots_BP[used_BP] = columns
    labels = tokens_BL[rows, columns]
    labels_BP[used_BP] = labels
    # A run of masked tokens shares what becomes of it: the numbers of its first place decide.
    owners = span_starts(slots_BP, used_BP)[used_BP] if masking.kind == "spans" else columns
    tokens = tokens_BL.copy()
    tokens[rows, columns] = _read_instead(labels, rows, columns, owners, numbers_B, masking)
    return Masked(tokens, slots_BP, labels_BP, used_BP.astype(np.float32))


def _chosen(candidates_BL: Bools, continues_BL: Bools, lengths_B: I64, numbers_B: I64, masking: Masking) -> Bools:
    """Returns which tokens are chosen, bool BL."""
    (B, L), P, seed = candidates_BL.shape, masking.predictions, masking.seed
    # The original shuffles the candidates and takes the first `count`. The same choice without a generator that walks
    # from sequence to sequence: each place draws a number of its own, and the `count` smallest are chosen.
    choice_B = rng.random_bits(rng.key(rng.MASK_CHOICE, seed), numbers_B)
    # The place in the low bits keeps all numbers of a sequence apart, so that exactly `count` are the smallest.
    low = np.uint64((1 << max(L - 1, 1).bit_length()) - 1)
    lots_BL = rng.random_bits(choice_B[:, None], np.arange(L)[None, :]) & ~low | np.arange(L, dtype=np.uint64)
    # [CLS], [SEP] and padding get the largest number, which is never chosen.
    lots_BL[~candidates_BL] = _NEVER
    # rint rounds halves to even, as Python's round does in the original.
    count_B = np.minimum(P, np.maximum(1, np.rint(lengths_B * masking.masked_fraction).astype(np.int64)))
    count_B = np.minimum(count_B, candidates_BL.sum(1))
    if masking.kind == "pieces":
        return _smallest(lots_BL, count_B, P)
    if masking.kind == "whole_words":
        return _whole_words(lots_BL, count_B, _Words.joined(candidates_BL, continues_BL))
    words = _Words.adjacent(candidates_BL, continues_BL)
    if masking.kind == "spans":
        return _spans(rng.random_bits(rng.key(rng.SPAN, seed), numbers_B), count_B, words)
    # Independent draws: a number below the fraction of all numbers. Words of no pieces are never taken.
    limit = np.uint64(masking.masked_fraction * 2.0**64)
    drawn = words._replace(sizes_BW=np.where(words.of_first(lots_BL) < limit, words.sizes_BW, 0))
    return _whole_words(lots_BL, np.full(B, P), drawn)


def _read_instead(
    labels: I32, rows: I64, columns: I64, owners: NDArray[np.integer], numbers_B: I64, masking: Masking
) -> NDArray[np.int64]:
    """Returns what is read in place of each chosen token; owners: the places whose numbers decide."""
    # What becomes of a slot, by three numbers of its own: [MASK] or not (80 %), else kept or replaced (half of 20 %
    # each), and the id that replaces it, which may be any of the vocabulary, special tokens included, as in the
    # original. Numbered 3 · place + part, they belong to the place, whatever other slots are chosen.
    action_B = rng.random_bits(rng.key(rng.MASK_ACTION, masking.seed), numbers_B)
    first, second = (rng.random_bits(action_B[rows], 3 * owners + part) for part in range(2))
    third = rng.random_bits(action_B[rows], 3 * columns + 2)
    # Rounded: 0.1 / (1 - 0.8) is a little more than a half in floats.
    rest = 1.0 - masking.mask_share
    kept = 1.0 - round(masking.random_share / rest, 12) if rest > 0 else 1.0
    # ERNIE's own code never draws id 0, [PAD].
    lowest = int(masking.kind == "ernie" and masking.vocab > 1)
    replaced = np.where(rng.uniform(second) < kept, labels, lowest + rng.randint(third, masking.vocab - lowest))
    return np.where(rng.uniform(first) < masking.mask_share, masking.mask, replaced)


def span_starts(slots_BP: I32, used_BP: Bools) -> I32:
    """Returns the first place of the run of masked tokens that each slot is in, i32 BP; 0 for unused slots."""
    # A slot begins a run unless it follows the one before it; the latest begin is that of its run, since slots ascend.
    begins_BP = np.ones(slots_BP.shape, bool)
    begins_BP[:, 1:] = slots_BP[:, 1:] != slots_BP[:, :-1] + 1
    return np.where(used_BP, np.maximum.accumulate(np.where(begins_BP & used_BP, slots_BP, 0), 1), 0)


def span_boundaries(masked: Masked) -> dict[str, I32]:
    """Returns what SpanBERT's second objective reads of each slot, i32 BP: the places of the tokens on the `left` and
    the `right` of its run of masked tokens, and its place in the run, `offset`, from 0 on. Unused slots are 0 in all.

    Runs that touch are one: the two tokens beside it are never masked ones.
    """
    slots_BP, used_BP = masked.slots, masked.weights > 0
    starts_BP = span_starts(slots_BP, used_BP)
    # The last slot of a run, the same way from the right: places of the reversed sequence ascend too.
    last = slots_BP.max(initial=0)
    # Unused slots come first in the mirror: -2 begins no run, and is followed by none.
    mirrored_BP = np.where(used_BP, last - slots_BP, -2)[:, ::-1]
    ends_BP = last - span_starts(mirrored_BP, used_BP[:, ::-1])[:, ::-1]
    # [CLS] is before every run and [SEP] behind it, so that both places are there.
    places = {"left": starts_BP - 1, "right": ends_BP + 1, "offset": slots_BP - starts_BP}
    return {name: np.where(used_BP, each, 0).astype(np.int32) for name, each in places.items()}


def _smallest(lots_BL: U64, count_B: I64, P: int) -> Bools:
    """Returns the places of the smallest numbers of each row, so many as `count_B` says, at most P."""
    B, L = lots_BL.shape
    # partition finds the P smallest without sorting all L; the count-th of them is the last number chosen.
    smallest_BP = np.partition(lots_BL, P - 1, axis=1)[:, :P] if P < L else lots_BL.copy()
    smallest_BP.sort(axis=1)
    last_B = smallest_BP[np.arange(B), np.maximum(count_B, 1) - 1]
    return (lots_BL <= last_B[:, None]) & (count_B > 0)[:, None]


class _Words(NamedTuple):
    """The words of each row, numbered from 0 on."""

    word_BL: I64
    """The word of each place; where no candidate is, that of the one before, or -1."""
    first_BW: I64
    """The place that each word begins at; there are as many W as L."""
    sizes_BW: I64
    """How many pieces each has, 0 beyond the last word."""
    candidates_BL: Bools

    @classmethod
    def joined(cls, candidates_BL: Bools, continues_BL: Bools) -> "_Words":
        """Words as the original joins them: a piece to the candidate before it, also where that lies before a
        [SEP]."""
        # The first candidate of a row begins a word in any case.
        return cls._of(candidates_BL, candidates_BL & (~continues_BL | (np.cumsum(candidates_BL, 1) == 1)))

    @classmethod
    def adjacent(cls, candidates_BL: Bools, continues_BL: Bools) -> "_Words":
        """Words whose pieces lie side by side: none reaches over a [SEP]."""
        before_BL = np.zeros_like(candidates_BL)
        before_BL[:, 1:] = candidates_BL[:, :-1]
        return cls._of(candidates_BL, candidates_BL & ~(continues_BL & before_BL))

    @classmethod
    def _of(cls, candidates_BL: Bools, begins_BL: Bools) -> "_Words":
        word_BL = np.cumsum(begins_BL, 1) - 1
        sizes_BW, first_BW = np.zeros(word_BL.shape, np.int64), np.zeros(word_BL.shape, np.int64)
        rows, columns = np.nonzero(candidates_BL)
        np.add.at(sizes_BW, (rows, word_BL[rows, columns]), 1)
        rows, columns = np.nonzero(begins_BL)
        first_BW[rows, word_BL[rows, columns]] = columns
        return cls(word_BL, first_BW, sizes_BW, candidates_BL)

    def of_first(self, lots_BL: U64) -> U64:
        """Returns the numbers of the words' first pieces, u64 BW."""
        return np.where(self.sizes_BW > 0, np.take_along_axis(lots_BL, self.first_BW, 1), _NEVER)

    def places(self, chosen_BW: Bools) -> Bools:
        """Returns the places of some words, bool BL."""
        return self.candidates_BL & np.take_along_axis(chosen_BW, np.maximum(self.word_BL, 0), 1)


def _whole_words(lots_BL: U64, count_B: I64, words: _Words) -> Bools:
    """Returns the places of whole words, taken by the numbers of their first pieces, the smallest first, each that fits
    into what is left of `count_B` places."""
    # Words without pieces come last.
    order_BW = np.argsort(np.where(words.sizes_BW > 0, words.of_first(lots_BL), _NEVER), axis=1)
    chosen_BW = np.zeros(words.sizes_BW.shape, bool)
    left_B, each = count_B.copy(), np.arange(len(count_B))
    # Word after word, all rows at once: whether one is taken depends on those before it.
    for place in range(int((words.sizes_BW > 0).sum(1).max(initial=0))):
        word_B = order_BW[:, place]
        size_B = words.sizes_BW[each, word_B]
        taken_B = (size_B <= left_B) & (size_B > 0)
        chosen_BW[each, word_B] = taken_B
        left_B -= size_B * taken_B
        if not left_B.any():
            break
    return words.places(chosen_BW)


def span_lengths(numbers: U64) -> NDArray[np.int64]:
    """64-bit numbers → the words of spans: P(n) ∝ 0.8ⁿ for n = 1 … 10, whose mean is 3.8 (SpanBERT, section 3.1)."""
    shares = (1.0 - _SPAN_END) ** np.arange(LONGEST_SPAN)
    return 1 + np.searchsorted(np.cumsum(shares / shares.sum())[:-1], rng.uniform(numbers), side="right")


def _spans(span_B: U64, count_B: I64, words: _Words) -> Bools:
    """Returns the places of spans: from the word of a random token on as many words as are drawn, until `count_B`
    places are chosen.

    A span ends early at the end of a sentence pair's half, and before a word that does not fit. It may run into an
    earlier one. A token that is chosen already begins none.
    """
    sizes_BW, L = words.sizes_BW, words.word_BL.shape[1]
    # The k-th candidate of a row; whether a word lies directly behind the one before it.
    candidate_BL = np.argsort(~words.candidates_BL, axis=1, kind="stable")
    follows_BW = np.zeros(sizes_BW.shape, bool)
    follows_BW[:, 1:] = (words.first_BW[:, 1:] == (words.first_BW + sizes_BW)[:, :-1]) & (sizes_BW[:, 1:] > 0)
    chosen_BW, left_B, candidates_B = np.zeros(sizes_BW.shape, bool), count_B.copy(), words.candidates_BL.sum(1)
    for attempt in range(int(2 * count_B.max(initial=0)) + 8):
        # As many tries as the row's own number says, whatever other rows are read with it: what is left then fits no
        # word that begins where tries fell.
        rows = np.flatnonzero((left_B > 0) & (attempt < 2 * count_B + 8))
        if not len(rows):
            break
        place = (rng.uniform(rng.random_bits(span_B[rows], np.array([2 * attempt]))) * candidates_B[rows]).astype(
            np.int64
        )
        word = words.word_BL[rows, candidate_BL[rows, place]]
        length = span_lengths(rng.random_bits(span_B[rows], np.array([2 * attempt + 1])))
        going = ~chosen_BW[rows, word]
        for number in range(LONGEST_SPAN):
            new = np.where(chosen_BW[rows, word], 0, sizes_BW[rows, word])
            going &= (number < length) & (new <= left_B[rows])
            if number:
                going &= follows_BW[rows, word]
            if not going.any():
                break
            chosen_BW[rows[going], word[going]] = True
            left_B[rows[going]] -= new[going]
            # Behind the last word of a row nothing follows, so that its number may stay.
            going &= word < L - 1
            word = np.minimum(word + 1, L - 1)
    return words.places(chosen_BW)

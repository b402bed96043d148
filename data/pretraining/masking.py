"""Masking for the masked language model: which tokens BERT predicts, and what is read in their place
(create_pretraining_data.py, create_masked_lm_predictions; Devlin et al. 2018, section 3.1)."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from contexture.data import rng
from contexture.data.binary_files import I64

I32 = NDArray[np.int32]


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
        continues_V: which ids continue a word (##…), bool [V]; None where each piece is masked by itself.
    """

    seed: int
    predictions: int
    masked_fraction: float
    mask: int
    vocab: int
    continues_V: NDArray[np.bool_] | None = None


def bert_masking(
    tokens_BL: I32,
    candidates_BL: NDArray[np.bool_],
    lengths_B: I64,
    numbers_B: I64,
    masking: Masking,
) -> Masked:
    """Chooses min(P, max(1, round(length · fraction))) of a sequence's candidates; 80 % of them become [MASK], 10 % any
    id of the vocabulary, and 10 % stay as they are.

    `lengths` count the special tokens, which are no candidates; halves round to even. The choice depends on (seed, the
    sequence's number) alone. Slots ascend. Of whole words (do_whole_word_mask) all pieces are chosen or none: words in
    a random order, each that does not go beyond that number, so that a few pieces fewer may be masked.

    Differs: the original masks a sequence once, before training; here each epoch masks it anew.
    """
    B, L = tokens_BL.shape
    P, seed = masking.predictions, masking.seed
    # The original shuffles the candidates and takes the first `count`. The same choice without a generator that walks
    # from sequence to sequence: each place draws a number of its own, and the `count` smallest are chosen.
    choice_B = rng.random_bits(rng.key(rng.MASK_CHOICE, seed), numbers_B)
    # The place in the low bits keeps all numbers of a sequence apart, so that exactly `count` are the smallest.
    low = np.uint64((1 << max(L - 1, 1).bit_length()) - 1)
    lots_BL = rng.random_bits(choice_B[:, None], np.arange(L)[None, :]) & ~low | np.arange(L, dtype=np.uint64)
    # [CLS], [SEP] and padding get the largest number, which is never chosen.
    lots_BL[~candidates_BL] = np.uint64(0xFFFFFFFFFFFFFFFF)
    # rint rounds halves to even, as Python's round does in the original.
    count_B = np.minimum(P, np.maximum(1, np.rint(lengths_B * masking.masked_fraction).astype(np.int64)))
    count_B = np.minimum(count_B, candidates_BL.sum(1))
    if masking.continues_V is None:
        chosen_BL = _smallest(lots_BL, count_B, P)
    else:
        chosen_BL = _whole_words(lots_BL, count_B, candidates_BL, masking.continues_V[tokens_BL])
        count_B = chosen_BL.sum(1)
    # nonzero goes row by row and from left to right, so the slots ascend. Row b has count_B[b] of them: exactly as many
    # as used_BP has in that row, which lets one boolean assignment fill all rows.
    rows, columns = np.nonzero(chosen_BL)
    used_BP = np.arange(P)[None, :] < count_B[:, None]

    slots_BP = np.zeros((B, P), np.int32)
    labels_BP = np.zeros((B, P), np.int32)
    slots_BP[used_BP] = columns
    labels = tokens_BL[rows, columns]
    labels_BP[used_BP] = labels

    # What becomes of a slot, by three numbers of its own: [MASK] or not (80 %), else kept or replaced (half of 20 %
    # each), and the id that replaces it, which may be any of the vocabulary, special tokens included, as in the
    # original. Numbered 3 · place + part, they belong to the place, whatever other slots are chosen.
    action_B = rng.random_bits(rng.key(rng.MASK_ACTION, seed), numbers_B)
    first, second, third = (rng.random_bits(action_B[rows], 3 * columns + part) for part in range(3))
    replaced = np.where(rng.uniform(second) < 0.5, labels, rng.randint(third, masking.vocab))
    tokens = tokens_BL.copy()
    tokens[rows, columns] = np.where(rng.uniform(first) < 0.8, masking.mask, replaced)
    return Masked(tokens, slots_BP, labels_BP, used_BP.astype(np.float32))


def _smallest(lots_BL: NDArray[np.uint64], count_B: I64, P: int) -> NDArray[np.bool_]:
    """Returns the places of the smallest numbers of each row, so many as `count_B` says, at most P."""
    B, L = lots_BL.shape
    # partition finds the P smallest without sorting all L; the count-th of them is the last number chosen.
    smallest_BP = np.partition(lots_BL, P - 1, axis=1)[:, :P] if P < L else lots_BL.copy()
    smallest_BP.sort(axis=1)
    last_B = smallest_BP[np.arange(B), np.maximum(count_B, 1) - 1]
    return (lots_BL <= last_B[:, None]) & (count_B > 0)[:, None]


def _whole_words(
    lots_BL: NDArray[np.uint64],
    count_B: I64,
    candidates_BL: NDArray[np.bool_],
    continues_BL: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Returns the places of whole words, taken by the numbers of their first pieces, the smallest first.

    Args:
        lots_BL: a number for each place.
        count_B: the most places of each row.
        candidates_BL: the places that may be chosen.
        continues_BL: which pieces continue a word. The first candidate of a row begins one in any case.
    """
    B, L = lots_BL.shape
    # As in the original, a piece is joined to the candidate before it, also where that lies before a [SEP].
    first_BL = np.cumsum(candidates_BL, 1) == 1
    begins_BL = candidates_BL & (~continues_BL | first_BL)
    # The word of each place, numbered from 0 in its row, and how many pieces each has.
    word_BL = np.cumsum(begins_BL, 1) - 1
    rows, columns = np.nonzero(candidates_BL)
    sizes_BW = np.zeros((B, L), np.int64)
    np.add.at(sizes_BW, (rows, word_BL[rows, columns]), 1)
    lots_BW = np.full((B, L), np.uint64(0xFFFFFFFFFFFFFFFF))
    rows, columns = np.nonzero(begins_BL)
    lots_BW[rows, word_BL[rows, columns]] = lots_BL[rows, columns]
    order_BW = np.argsort(lots_BW, axis=1)
    chosen_BW = np.zeros((B, L), bool)
    left_B, each = count_B.copy(), np.arange(B)
    # Word after word, all rows at once: whether one is taken depends on those before it. Words without pieces come
    # last, and change nothing.
    for place in range(int(word_BL.max(initial=-1)) + 1):
        word_B = order_BW[:, place]
        size_B = sizes_BW[each, word_B]
        taken_B = (size_B <= left_B) & (size_B > 0)
        chosen_BW[each, word_B] = taken_B
        left_B -= size_B * taken_B
        if not left_B.any():
            break
    return candidates_BL & np.take_along_axis(chosen_BW, np.maximum(word_BL, 0), 1)

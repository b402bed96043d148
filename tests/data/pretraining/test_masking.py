"""Masking: what may be guessed, how many, what stands there instead, and on what it depends."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data import rng
from contexture.data.pretraining.masking import Masked, Masking, bert_masking
from tests.helpers.slow_pairs import guesses

MASK, V = 4, 100


def _lines(lengths: list[int], L: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lines `[CLS] a [SEP] b [SEP]` with a of one token."""
    tokens = np.zeros((len(lengths), L), np.int32)
    candidates = np.zeros_like(tokens, bool)
    for row, length in enumerate(lengths):
        tokens[row, :length] = 10 + (np.arange(length) * 7 + row) % 80
        tokens[row, [0, 2, length - 1]] = 2, 3, 3
        candidates[row, :length] = True
        candidates[row, [0, 2, length - 1]] = False
    return tokens, candidates, np.array(lengths)


def _masked(lengths: list[int], L: int, numbers=None, **options) -> tuple[np.ndarray, np.ndarray, Masked]:
    tokens, candidates, lengths_B = _lines(lengths, L)
    numbers = np.arange(len(lengths)) if numbers is None else numbers
    options = {"seed": 1, "predictions": 20, "masked_fraction": 0.15, "mask": MASK, "vocab": V} | options
    return tokens, candidates, bert_masking(tokens, candidates, lengths_B, numbers, Masking(**options))


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(st.integers(5, 40), min_size=1, max_size=8),
    room=st.integers(0, 10),
    predictions=st.integers(1, 12),
    fraction=st.floats(0.0, 0.99),
    seed=st.integers(-3, 2**63),
)
def test_slots_are_candidates_in_order_and_as_many_as_the_originals(lengths, room, predictions, fraction, seed):
    L = max(max(lengths) + room, predictions)
    tokens, candidates, masked = _masked(lengths, L, seed=seed, predictions=predictions, masked_fraction=fraction)
    assert masked.slots.dtype == masked.labels.dtype == masked.tokens.dtype == np.int32
    assert masked.weights.dtype == np.float32 and masked.slots.shape == (len(lengths), predictions)
    for row, length in enumerate(lengths):
        count = min(guesses(length, predictions, fraction), length - 3)
        slots = masked.slots[row, :count]
        assert masked.weights[row].tolist() == [1.0] * count + [0.0] * (predictions - count)
        assert (np.diff(slots) > 0).all() and candidates[row, slots].all()
        assert (masked.labels[row, :count] == tokens[row, slots]).all()
        assert not masked.slots[row, count:].any() and not masked.labels[row, count:].any()
        untouched = np.setdiff1d(np.arange(L), slots)
        assert (masked.tokens[row, untouched] == tokens[row, untouched]).all()
        assert ((0 <= masked.tokens) & (masked.tokens < V)).all()


@pytest.mark.parametrize(
    ("length", "count"), [(5, 1), (10, 2), (30, 4), (50, 8), (70, 10), (90, 14), (128, 19), (140, 20)]
)
def test_halves_round_to_even(length: int, count: int):
    assert _masked([length], 140)[2].weights.sum() == count == guesses(length, 20, 0.15)


def test_fifteen_of_a_hundred_are_guessed_80_10_10():
    n = 4000
    tokens, candidates, masked = _masked([128] * n, 128)
    used = masked.weights > 0
    assert used.sum() == 19 * n and abs(used.sum() / (128 * n) - 0.15) < 0.005
    rows, _ = np.nonzero(used)
    now = masked.tokens[rows, masked.slots[used]]
    labels = masked.labels[used]
    is_mask, same = (now == MASK).mean(), (now == labels).mean()
    assert abs(is_mask - (0.8 + 0.1 / V)) < 0.006
    assert abs(same - (0.1 + 0.1 / V)) < 0.006
    changed = now[(now != MASK) & (now != labels)]
    assert abs(len(changed) / used.sum() - 0.1 * (1 - 2 / V)) < 0.006
    # Any id of the vocabulary takes their place, special ones too, each as often.
    counts = np.bincount(changed, minlength=V)
    assert (np.delete(counts, MASK) > 0).all() and counts.max() < 1.5 * counts.mean()
    # Every place is chosen as often.
    places = np.bincount(masked.slots[used], minlength=128)[candidates[0]]
    assert (abs(places / places.mean() - 1) < 0.2).all()


def test_places_are_chosen_independently():
    n = 20_000
    _, _, masked = _masked([13] * n, 13, masked_fraction=0.16)
    pairs, counts = np.unique(masked.slots[:, :2], axis=0, return_counts=True)
    assert len(pairs) == 10 * 9 // 2 and (abs(counts / counts.mean() - 1) < 0.25).all()


def test_masks_depend_on_seed_and_line_alone():
    whole = _masked([40] * 8, 40)[2]
    tokens, candidates, lengths = _lines([40] * 8, 40)
    options = {"predictions": 20, "masked_fraction": 0.15, "mask": MASK, "vocab": V}
    rows = np.array([6, 1, 3])
    part = bert_masking(tokens[rows], candidates[rows], lengths[rows], rows, Masking(seed=1, **options))
    assert (part.tokens == whole.tokens[rows]).all() and (part.slots == whole.slots[rows]).all()
    for other in (_masked([40] * 8, 40, seed=2)[2], _masked([40] * 8, 40, numbers=np.arange(8) + 100)[2]):
        assert (other.slots != whole.slots).any(axis=1).all()


def test_no_candidates_means_no_slots():
    tokens, candidates, lengths = _lines([10], 12)
    options = {"predictions": 4, "masked_fraction": 0.15, "mask": MASK, "vocab": V}
    masked = bert_masking(tokens, np.zeros_like(candidates), lengths, np.array([0]), Masking(seed=1, **options))
    assert not masked.weights.any() and (masked.tokens == tokens).all()


def _by_words(tokens, candidates, lengths, numbers, masking: Masking, continues) -> list[list[int]]:
    """The places that whole-word masking chooses, as the original walks over shuffled words; the order of words is that
    of the numbers that their first pieces draw."""
    chosen = []
    for row, (line, length) in enumerate(zip(tokens, lengths, strict=True)):
        words: list[list[int]] = []
        for place in np.flatnonzero(candidates[row]).tolist():
            if words and continues[row, place]:
                words[-1].append(place)
            else:
                words.append([place])
        key = rng.random_bits(rng.key(rng.MASK_CHOICE, masking.seed), numbers[row : row + 1])
        lots = rng.random_bits(key, np.arange(len(line)))
        low = (1 << max(len(line) - 1, 1).bit_length()) - 1
        words.sort(key=lambda word: (int(lots[word[0]]) & ~low) | word[0])
        count, places = guesses(int(length), masking.predictions, masking.masked_fraction), list[int]()
        for word in words:
            if len(places) + len(word) <= count:
                places += word
        chosen.append(sorted(places))
    return chosen


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(st.integers(5, 40), min_size=1, max_size=6),
    share=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
    predictions=st.integers(1, 12),
    fraction=st.floats(0.0, 0.99),
    seed=st.integers(-3, 2**63),
)
def test_whole_words_are_masked_or_not_as_in_the_original(lengths, share, predictions, fraction, seed):
    tokens, candidates, lengths_B = _lines(lengths, max(max(lengths), predictions))
    continues = np.random.default_rng(seed % 2**32).random(V) < share
    continues = continues[tokens]
    masking = Masking(seed, predictions, fraction, MASK, V, "whole_words")
    numbers = np.arange(len(lengths)) + 5
    masked = bert_masking(tokens, candidates, lengths_B, numbers, masking, continues)
    expected = _by_words(tokens, candidates, lengths_B, numbers, masking, continues)
    for row, places in enumerate(expected):
        used = masked.weights[row] > 0
        assert masked.slots[row, used].tolist() == places
        assert (masked.labels[row, used] == tokens[row, places]).all() and not masked.labels[row, ~used].any()
        untouched = np.setdiff1d(np.arange(tokens.shape[1]), places)
        assert (masked.tokens[row, untouched] == tokens[row, untouched]).all()


def test_words_of_one_piece_are_masked_as_pieces_are():
    """The same places too: a seed means the same."""
    tokens, candidates, lengths = _lines([40] * 50, 40)
    plain = Masking(7, 20, 0.15, MASK, V)
    one, other = (
        bert_masking(tokens, candidates, lengths, np.arange(50), masking)
        for masking in (plain, plain._replace(kind="whole_words"))
    )
    assert (one.slots == other.slots).all() and (one.tokens == other.tokens).all()


def test_whole_words_are_15_of_a_hundred_and_each_alike():
    """Words of one, two and three pieces, each as often as it is there; 80/10/10 for each piece by itself."""
    n, L = 4000, 128
    tokens = np.tile(np.array([10, 20, 61, 30, 61, 62] * 21 + [10, 10], np.int32), (n, 1))
    tokens[:, 0] = tokens[:, -1] = 2
    candidates = np.ones((n, L), bool)
    candidates[:, [0, -1]] = False
    masking = Masking(1, 20, 0.15, MASK, V, "whole_words")
    masked = bert_masking(tokens, candidates, np.full(n, L), np.arange(n), masking, np.isin(tokens, (61, 62)))
    used = masked.weights > 0
    # 19 of 128, or one fewer where no word of one piece was left to fill up with: never, with so many of them.
    assert (used.sum(1) == 19).all()
    rows, _ = np.nonzero(used)
    chosen = np.zeros((n, L), bool)
    chosen[rows, masked.slots[used]] = True
    words = chosen[:, 6:126].reshape(n, 20, 6)
    assert (words[..., 1] == words[..., 2]).all()
    assert (words[..., 3] == words[..., 4]).all() and (words[..., 4] == words[..., 5]).all()
    # Short words fill up what is left, and so are a little more frequent.
    rates = words[..., [0, 1, 3]].mean((0, 1))
    assert rates[0] > rates[1] > rates[2] > 0.13 and rates[0] < 0.19
    now, labels = masked.tokens[rows, masked.slots[used]], masked.labels[used]
    assert abs((now == MASK).mean() - (0.8 + 0.1 / V)) < 0.006
    assert abs((now == labels).mean() - (0.1 + 0.1 / V)) < 0.006

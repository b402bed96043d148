"""Masking: what may be guessed, how many, what stands there instead, and on what it depends."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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

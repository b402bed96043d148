"""Masked spans and units: lengths, whole words, rates, and the tokens beside a span, against slow references."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from contexture.data import rng
from contexture.data.pretraining.masking import Masked, Masking, bert_masking, span_boundaries, span_lengths
from tests.helpers.slow_pairs import guesses

MASK, V, L = 4, 100, 128
WORDS = np.array([1, 2, 1, 3, 1, 1, 2, 4] * 8 + [1] * 5)
"""The pieces of each word of a sequence [CLS] a [SEP] b [SEP], of which a has half of the words."""


def sequence() -> tuple[np.ndarray, np.ndarray]:
    """(which places may be masked, which continue a word), bool L."""
    candidates, continues, at = np.zeros(L, bool), np.zeros(L, bool), 1
    for number, size in enumerate(WORDS.tolist()):
        if at + size > L - 1:
            break
        candidates[at : at + size] = True
        continues[at + 1 : at + size] = True
        at += size + (number == len(WORDS) // 2)
    return candidates, continues


def masked_by(kind: str, rows: int, numbers: np.ndarray | None = None, **options) -> tuple[Masked, np.ndarray]:
    """(the masked sequences; which places are chosen, bool BL)."""
    candidates, continues = (np.tile(each, (rows, 1)) for each in sequence())
    tokens = np.tile(10 + np.arange(L, dtype=np.int32) % 80, (rows, 1))
    numbers = np.arange(rows) if numbers is None else numbers
    P = {"ernie": 60}.get(kind, 20)
    masking = Masking(
        **{"seed": 1, "predictions": P, "masked_fraction": 0.15, "mask": MASK, "vocab": V, "kind": kind, **options}
    )
    masked = bert_masking(tokens, candidates, np.full(rows, L), numbers, masking, continues)
    chosen = np.zeros((rows, L), bool)
    used = masked.weights > 0
    chosen[np.nonzero(used)[0], masked.slots[used]] = True
    assert (masked.labels[used] == tokens[chosen]).all() and not chosen[~candidates].any()
    assert (masked.tokens[~chosen] == tokens[~chosen]).all()
    return masked, chosen


def runs_of(chosen: np.ndarray) -> list[tuple[int, int]]:
    """(first place, behind the last) of each run of chosen places."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], chosen.astype(int), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def spans_by_hand(generator: random.Random) -> np.ndarray:
    """One sequence's chosen places, by SpanBERT's procedure with whole words, place by place."""
    candidates, continues = sequence()
    words: list[list[int]] = []
    for place in np.flatnonzero(candidates).tolist():
        if words and continues[place]:
            words[-1].append(place)
        else:
            words.append([place])
    of = {place: number for number, word in enumerate(words) for place in word}
    budget, chosen = guesses(L, 20, 0.15), set[int]()
    for _ in range(500):
        if len(chosen) == budget:
            break
        anchor = generator.choice(sorted(of))
        if anchor in chosen:
            continue
        length = generator.choices(range(1, 11), [0.8**n for n in range(10)])[0]
        before = words[of[anchor]][0] - 1
        for word in words[of[anchor] : of[anchor] + length]:
            # At the gap of a [SEP] a span ends, and before a word that does not fit.
            if word[0] != before + 1 or len(chosen | set(word)) > budget:
                break
            chosen |= set(word)
            before = word[-1]
    result = np.zeros(L, bool)
    result[sorted(chosen)] = True
    return result


def agreement(counts) -> float:
    """How likely two rows of counts differ as much by chance (χ²)."""
    answer: Any = stats.chi2_contingency(counts)
    return answer.pvalue


def test_lengths_of_spans_are_geometric_up_to_ten():
    lengths = span_lengths(rng.random_bits(3, np.arange(200_000)))
    counts = np.bincount(lengths, minlength=11)[1:]
    assert len(counts) == 10
    shares = 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10)
    assert stats.chisquare(counts, shares * counts.sum()).pvalue > 0.001
    assert lengths.mean() == pytest.approx(3.8, abs=0.02)


def test_spans_are_those_of_a_slow_reference_in_distribution():
    """Lengths of runs, and how often each place is masked."""
    _, ours = masked_by("spans", 3000)
    generator = random.Random(5)
    theirs = np.stack([spans_by_hand(generator) for _ in range(3000)])
    lengths = [
        np.bincount([min(end - start, 19) for row in rows for start, end in runs_of(row)], minlength=20)[1:]
        for rows in (ours, theirs)
    ]
    assert agreement(lengths) > 0.001
    places = np.stack([ours.sum(0), theirs.sum(0)])[:, sequence()[0]]
    assert agreement(places) > 0.001
    # Longer than pieces by themselves would be.
    pieces = masked_by("pieces", 3000)[1]
    assert len([1 for row in ours for _ in runs_of(row)]) < 0.5 * len([1 for row in pieces for _ in runs_of(row)])


def test_spans_are_whole_words_within_a_text_and_15_of_a_hundred():
    masked, chosen = masked_by("spans", 2000)
    candidates, continues = sequence()
    for row in chosen[:300]:
        for start, end in runs_of(row):
            assert not continues[start] and (end == L or not continues[end]) and candidates[start:end].all()
    # Words of three pieces at most could be left out at the end.
    assert chosen.sum(1).max() == 19 and chosen.sum(1).mean() > 18.9 and chosen.sum(1).min() >= 16
    assert masked.weights.sum(1).tolist() == chosen.sum(1).tolist()


def test_a_run_of_masked_tokens_shares_what_becomes_of_it():
    masked, chosen = masked_by("spans", 3000)
    kinds = list[str]()
    for row, number in zip(chosen, range(3000), strict=True):
        tokens, original = masked.tokens[number], 10 + np.arange(L) % 80
        for start, end in runs_of(row):
            now, was = tokens[start:end], original[start:end]
            # A random id may be the token's own, or [MASK].
            if (now == MASK).all():
                kinds.append("mask")
            elif (now == was).all():
                kinds.append("kept")
            else:
                kinds.append("random")
                assert end - start < 4 or (now != was).any()
    shares = {kind: kinds.count(kind) / len(kinds) for kind in ("mask", "random", "kept")}
    assert abs(shares["mask"] - 0.8) < 0.02 and abs(shares["kept"] - 0.1) < 0.02 and abs(shares["random"] - 0.1) < 0.02


@pytest.mark.parametrize("kind", ["spans", "ernie", "whole_words", "pieces"])
def test_a_sequences_masks_depend_on_seed_and_number_alone(kind: str):
    whole, _ = masked_by(kind, 40)
    rows = np.array([31, 2, 17])
    part, _ = masked_by(kind, 3, rows)
    assert (part.tokens == whole.tokens[rows]).all() and (part.slots == whole.slots[rows]).all()
    other, _ = masked_by(kind, 40, seed=2)
    assert (other.slots != whole.slots).any()


@pytest.mark.parametrize("kind", ["spans", "pieces"])
def test_boundaries_are_the_tokens_beside_each_run(kind: str):
    masked, chosen = masked_by(kind, 500)
    found = span_boundaries(masked)
    for number, row in enumerate(chosen):
        expected = [(start - 1, end, place - start) for start, end in runs_of(row) for place in range(start, end)]
        count = len(expected)
        assert (
            list(zip(*(found[name][number, :count].tolist() for name in ("left", "right", "offset")), strict=True))
            == expected
        )
        assert not any(found[name][number, count:].any() for name in found)
        assert not chosen[number, found["left"][number, :count]].any()
        assert not chosen[number, found["right"][number, :count]].any()


def test_units_are_chosen_independently_each_whole():
    """An ERNIE's: by one draw for each, so that the number of masked tokens varies; each piece its own of 80/10/10."""
    masked, chosen = masked_by("ernie", 20_000)
    candidates, continues = sequence()
    first = candidates & ~continues
    assert not (chosen[:, 1:] & continues[1:] & ~chosen[:, :-1]).any()
    assert not (~chosen[:, 1:] & continues[1:] & chosen[:, :-1]).any()
    rates = chosen[:, first].mean(0)
    assert np.abs(rates - 0.15).max() < 0.012 and rates.mean() == pytest.approx(0.15, abs=0.002)
    # Two units next to each other: as often as independence says.
    both = (chosen[:, 1] & chosen[:, 2]).mean()
    assert both == pytest.approx(0.15**2, abs=0.004)
    now, was = masked.tokens[chosen], np.tile(10 + np.arange(L) % 80, (len(chosen), 1))[chosen]
    assert (now == MASK).mean() == pytest.approx(0.8 + 0.1 / 99, abs=0.005)
    assert (now == was).mean() == pytest.approx(0.1 + 0.1 / 99, abs=0.005)
    # Id 0 never stands in, as in ERNIE's own code.
    assert (now > 0).all() and (now == 1).any()


def test_units_beyond_the_slots_are_left_out_whole():
    masked, chosen = masked_by("ernie", 300, predictions=7, masked_fraction=0.5)
    _, continues = sequence()
    assert (masked.weights.sum(1) <= 7).all() and (masked.weights.sum(1) == 7).mean() > 0.9
    assert not (chosen[:, 1:] & continues[1:] & ~chosen[:, :-1]).any()


@given(mask=st.floats(0, 1), other=st.floats(0, 1))
@settings(max_examples=30, deadline=None)
def test_shares_of_what_is_read_are_as_asked(mask: float, other: float):
    other = min(other, 1 - mask)
    masked, chosen = masked_by("pieces", 600, mask_share=mask, random_share=other)
    was = np.tile(10 + np.arange(L) % 80, (600, 1))[chosen]
    now = masked.tokens[chosen]
    assert (now == MASK).mean() == pytest.approx(mask + other / V, abs=0.03)
    assert (now == was).mean() == pytest.approx(1 - mask - other + other / V, abs=0.03)

"""Sequences that share rows: none lies over another, each comes once and whole, and little is padding."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from contexture.data import packing as module
from contexture.data.bucketing import bucket
from contexture.data.layouts import Batch
from contexture.data.packing import (
    Packing,
    RowFiller,
    Shape,
    apart,
    best_fit,
    choose_heights,
    fill,
    height_for,
    in_rows,
    pack,
    packed_batch,
    placed,
    row_width,
)

WIDTHS = st.sampled_from([8, 24, 64, 100])


@st.composite
def sequences(draw: st.DrawFn, most: int = 60) -> tuple[np.ndarray, int]:
    """(the lengths of some sequences, the width of a row that holds the longest)."""
    width = draw(WIDTHS)
    lengths = draw(st.lists(st.integers(1, width), min_size=1, max_size=most))
    return np.array(lengths), width


def places(packing: Packing) -> list[range]:
    return [range(b, b + n) for b, n in zip(packing.begins.tolist(), packing.lengths.tolist(), strict=True)]


def check(packing: Packing) -> None:
    """No place belongs to two sequences, and none leaves its row. From a row's first place on, those of a row follow
    each other without a gap, in their own order."""
    rows: dict[int, list[range]] = {}
    for place in places(packing):
        assert place.start // packing.width == (place.stop - 1) // packing.width
        rows.setdefault(place.start // packing.width, []).append(place)
    assert all(0 <= row < packing.rows for row in rows)
    for row, mine in rows.items():
        assert [place.start for place in mine] == [row * packing.width, *(place.stop for place in mine[:-1])]


# Rows


@settings(max_examples=100, deadline=None)
@given(sequences(), st.sampled_from([1, 2, 5, 1 << 30]))
def test_a_sequence_goes_where_it_leaves_the_least_room(given, most):
    lengths, width = given
    rows = best_fit(lengths, width, most)
    assert np.array_equal(rows, best_fit(lengths.copy(), width, most))
    room, held = list[int](), list[int]()
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        need, row = int(lengths[number]), int(rows[number])
        fitting = [left for left, count in zip(room, held, strict=True) if left >= need and count < most]
        if fitting:
            assert row < len(room) and held[row] < most and room[row] == min(fitting)
        else:
            # A new row has the next number.
            assert row == len(room)
            room.append(width)
            held.append(0)
        room[row] -= need
        held[row] += 1
    assert min(room) >= 0 and max(held) <= most


@settings(max_examples=100, deadline=None)
@given(sequences(), st.randoms(use_true_random=False))
def test_sequences_of_a_row_follow_each_other(given, random):
    """Also in rows that are drawn, of which some hold nothing."""
    lengths, width = given
    room, row = [width] * (len(lengths) + 3), []
    for need in lengths.tolist():
        row.append(random.choice([n for n, left in enumerate(room) if left >= need]))
        room[row[-1]] -= need
    packing = placed(np.array(row), lengths, len(room), width)
    check(packing)
    assert (packing.begins // width).tolist() == row and packing.lengths.tolist() == lengths.tolist()
    assert (packing.rows, packing.width) == (len(room), width)


@settings(max_examples=100, deadline=None)
@given(
    sequences(),
    st.lists(st.integers(1, 6), min_size=0, max_size=3, unique=True),
    st.sampled_from([(1, 1), (2, 1), (4, 1), (2, 2), (6, 2), (3, 3)]),
    st.sampled_from([1, 2, 3]),
)
def test_a_batch_has_rows_of_a_height_and_each_part_its_own(given, heights, multiples, each):
    (lengths, width), (multiple, parts) = given, multiples
    lengths = np.repeat(lengths, each)
    heights = sorted(multiple * height for height in heights)
    packing = pack(lengths, width, heights, multiple, parts, each)
    check(packing)
    again = pack(lengths.copy(), width, tuple(heights), multiple, parts, each)
    assert packing.rows == again.rows and np.array_equal(packing.begins, again.begins)
    assert packing.width == width and np.array_equal(packing.lengths, lengths)
    example = np.arange(len(lengths)) // each
    assert np.array_equal(packing.begins // width % parts, example % parts)
    # Each part has as many rows as the fullest one wants, and the batch no more than the next height.
    wanted = [best_fit(lengths[example % parts == part], width).max(initial=0) + 1 for part in range(parts)]
    needed = -(-int(max(wanted)) * parts // multiple) * multiple
    assert packing.rows == min((n for n in heights if n >= needed), default=needed)
    assert packing.rows % multiple == packing.rows % parts == 0


@given(
    st.integers(1, 40),
    st.lists(st.integers(1, 12), max_size=4, unique=True).map(sorted),
    st.sampled_from([1, 2, 3]),
)
def test_a_height_is_the_least_that_suffices(rows, heights, multiple):
    heights = [height * multiple for height in heights]
    height = height_for(rows, heights, multiple)
    assert height >= rows and height % multiple == 0
    least = next(n for n in range(rows, rows + multiple) if n % multiple == 0)
    assert height == min((n for n in heights if n >= rows), default=least)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 200), min_size=1, max_size=20).map(np.array), min_size=1, max_size=3),
    st.integers(1, 3000),
    st.sampled_from([1, 2, 4]),
)
def test_a_row_has_the_width_that_computes_the_least(groups, share, multiple):
    longest = max(int(lengths.max()) for lengths in groups)
    width, least = row_width(groups, share, multiple), next(n for n in range(128, 1000, 64) if n >= longest)
    assert width >= longest
    if bucket(share) <= least:
        # A device has no more tokens than that.
        assert width == max(bucket(share), longest)
        return

    def cost(width: int) -> float:
        """Tokens, and pairs of tokens."""
        rows = [int(best_fit(lengths, width).max()) + 1 for lengths in groups]
        return sum(-(-n // multiple) * multiple for n in rows) * (width + width**2 / module.ATTENTION)

    widths = [n for n in range(64, 1000, 64) if least <= n <= module.WIDEST * least]
    assert width in widths and cost(width) == pytest.approx(min(map(cost, widths)))


# Arrays


def drawn(lengths: np.ndarray, limit: int) -> Batch:
    """Fields of sequences, a row for each, no token of which is 0, and padding that is not."""
    rng, shape = np.random.default_rng(int(lengths.sum())), (len(lengths), limit)
    return {
        "tokens": rng.integers(1, 900, shape, np.int32),
        "next": rng.integers(1, 900, shape, np.int32),
        "next_weights": rng.random(shape, np.float32) + 1,
    }


@settings(max_examples=100, deadline=None)
@given(sequences(most=24), st.sampled_from([1, 2, 3]), st.booleans(), st.sampled_from([0, 7]))
def test_what_is_put_in_rows_comes_back(given, each, several, pad):
    lengths, width = given
    lengths = np.repeat(lengths, each)
    limit = int(lengths.max()) + 3
    alone, packing = drawn(lengths, limit), pack(lengths, width, (), each=each)
    packed = packed_batch(alone, packing, pad)
    assert set(packed) == {*alone, "packs", "positions"}
    assert all(x.shape == (packing.rows, width) for x in packed.values())
    assert all(packed[name].dtype == x.dtype for name, x in alone.items())
    # By the slow road: one token at a time.
    full = np.zeros(packing.rows * width, bool)
    for number, place in enumerate(places(packing)):
        for position, at in enumerate(place):
            assert packed["packs"].ravel()[at] == number + 1 and packed["positions"].ravel()[at] == position
            assert all(packed[name].ravel()[at] == x[number, position] for name, x in alone.items())
            full[at] = True
    for name, x in packed.items():
        assert (x.ravel()[~full] == (pad if name == "tokens" else 0)).all(), name
    mask = (np.arange(limit) < lengths[:, None]).astype(np.int32)
    shape = (-1, each) if several or each > 1 else (-1,)
    batch = {**packed, "begins": packing.begins.reshape(shape), "mask": mask.reshape(*shape, limit), "labels": lengths}
    back = apart(batch)
    assert set(back) == {*alone, "mask", "labels"} and back["labels"] is lengths
    for name, x in alone.items():
        assert back[name].dtype == x.dtype and np.array_equal(back[name], (x * mask).reshape(*shape, limit)), name
    # Some examples of a batch have the rows of all.
    some = np.array([len(lengths) // each - 1, 0])
    part = apart({**batch, **{name: batch[name][some] for name in ("begins", "mask")}})
    assert all(np.array_equal(part[name], back[name][some]) for name in alone)


@settings(max_examples=60, deadline=None)
@given(sequences(most=24), st.integers(0, 5))
def test_a_batch_may_have_room_for_more_sequences(given, spare):
    lengths, width = given
    slots, limit = len(lengths) + spare, int(lengths.max()) + 1
    mask = (np.arange(limit) < lengths[:, None]).astype(np.int32)
    alone = {**drawn(lengths, limit), "mask": mask}
    packing = pack(lengths, width, ())
    batch = in_rows(alone, packing, slots, 7)
    assert alone["mask"] is mask and batch["begins"].dtype == np.int32
    assert batch["begins"][: len(lengths)].tolist() == packing.begins.tolist()
    assert batch["begins"].shape == (slots,) and batch["tokens"].shape == (packing.rows, width)
    assert (batch["tokens"][batch["packs"] == 0] == 7).all()
    back = apart(batch)
    for name, x in alone.items():
        assert np.array_equal(back[name][: len(lengths)], x * mask) and not back[name][len(lengths) :].any(), name


def test_a_batch_without_shared_rows_is_apart_already():
    batch = drawn(np.array([3, 1]), 4)
    assert apart(batch) == batch and apart(batch) is not batch


# Numbers of rows


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 14), min_size=1, max_size=30),
    st.integers(1, 400),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([0.1, 3.0]),
)
def test_the_heights_compute_the_least_of_all(needed, steps, multiple, saving):
    rounded = [-(-n // multiple) * multiple for n in needed]

    def cost(heights: tuple[int, ...]) -> float:
        """Whole batches, of the greatest height."""
        rows = [min(height for height in heights if height >= n) for n in rounded]
        return sum(rows) / len(rows) / max(rounded) * steps + saving * len(heights)

    every = [
        (*others, max(rounded))
        for count in range(3)
        for others in combinations(sorted({*rounded} - {max(rounded)}), count)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MIN_SAVING", saving)
        heights = choose_heights(needed, steps, multiple)
        assert heights == choose_heights(sorted(needed), steps, multiple)
    assert heights in every and all(height % multiple == 0 for height in heights)
    assert cost(heights) == pytest.approx(min(map(cost, every)))


@settings(max_examples=60, deadline=None)
@given(sequences(most=200), st.integers(1, 40), st.sampled_from([1, 2, 8]))
def test_a_shape_has_room_for_its_sequences(given, batch, multiple):
    lengths, _ = given
    shape = Shape.for_lengths(lengths, batch, multiple)
    assert shape.width >= lengths.max() and 1 <= len(shape.heights) <= 2
    assert list(shape.heights) == sorted(shape.heights) and shape.heights[0] >= 1 and shape.slots >= 1
    assert all(n % multiple == 0 for n in (*shape.heights, shape.slots))
    assert shape == Shape.for_lengths(lengths[::-1].copy(), batch, multiple)
    # About as many tokens as so many sequences have, and no more rows than all want, to a power of two; but a row for
    # each device.
    wanted = 1 << int(best_fit(lengths, shape.width).max()).bit_length()
    rows = min(round(lengths.mean() * batch / shape.width), wanted)
    assert rows <= shape.heights[-1] < max(rows, 1) + multiple


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 200), min_size=1, max_size=20).map(np.array), min_size=1, max_size=3),
    st.sampled_from([1, 2, 4]),
)
def test_a_row_of_words_is_little_longer_than_the_longest(groups, multiple):
    """At most twice as wide, and as wide as costs the least: places, and steps that cost eight places each."""
    longest = max(int(lengths.max()) for lengths in groups)
    step = 8 if longest < 128 else longest // 64 * 8
    least = next(n for n in range(step, 1000, step) if n >= longest)

    def cost(width: int) -> int:
        rows = [int(best_fit(lengths, width).max()) + 1 for lengths in groups]
        return sum((-(-n // multiple) * multiple + 8) * width for n in rows)

    width = row_width(groups, 10**6, multiple, words=True)
    assert longest <= width <= 2 * least and cost(width) == min(map(cost, range(least, 2 * least + 1, step)))
    assert row_width(groups, 1, multiple, words=True) == max(longest, 8)


def test_words_are_embedded_in_as_many_lanes_as_are_asked_for():
    """Of 1,024 sentences: a lane takes an LSTM as long with few sentences beside it as with many."""
    lengths = np.clip(np.exp(np.random.default_rng(3).normal(2.6, 0.7, 1024)), 3, 92).astype(np.int64) + 2
    batches = list(RowFiller(32, words=True).fill(lengths))
    assert batches[0][1].rows == 32 and 94 <= batches[0][1].width <= 104
    assert sum(packing.rows * packing.width for _, packing, _ in batches) / lengths.sum() < 1.1
    assert all(len(numbers) <= slots for numbers, _, slots in batches)


def test_a_shape_holds_the_longest_sequence_wherever_it_stands(monkeypatch):
    monkeypatch.setattr(module, "SAMPLE", 4)
    monkeypatch.setattr(module, "ROW", 16)
    for lengths in ([90] + [3] * 30, [3] * 30 + [90]):
        assert Shape.for_lengths(np.array(lengths), 4).width >= 90


@st.composite
def shaped(draw: st.DrawFn) -> tuple[np.ndarray, Shape]:
    """Sequences, and arrays that hold them: what suits them, or any."""
    lengths, width = draw(sequences(most=200))
    if draw(st.booleans()):
        return lengths, Shape.for_lengths(lengths, draw(st.integers(1, 40)))
    multiple, slots = draw(st.sampled_from([1, 2, 8])), draw(st.sampled_from([1, 3, 12, 400]))
    heights = draw(st.lists(st.integers(1, 9), min_size=1, max_size=2, unique=True).map(sorted))
    return lengths, Shape(width, tuple(multiple * n for n in heights), multiple * slots)


@settings(max_examples=100, deadline=None)
@example((np.full(80, 40), Shape(64, (3, 13), 100)))
@example((np.full(20, 4), Shape(8, (2, 4), 3)))
@given(shaped())
def test_batches_hold_each_sequence_once_within_their_slots(given):
    lengths, shape = given
    batches = list(fill(lengths, shape))
    assert sorted(np.concatenate([numbers for numbers, _ in batches]).tolist()) == list(range(len(lengths)))
    for (numbers, packing), (same, again) in zip(batches, fill(lengths.copy(), shape), strict=True):
        check(packing)
        assert np.array_equal(numbers, same) and np.array_equal(packing.begins, again.begins)
        assert (np.diff(numbers) > 0).all() and 1 <= len(numbers) <= shape.slots
        # The least height that suffices: no further program is compiled.
        used = len(np.unique(packing.begins // packing.width))
        assert packing.rows == min(n for n in shape.heights if n >= used) and packing.width == shape.width
        assert np.array_equal(packing.lengths, lengths[numbers])
    assert list(fill(lengths[:0], shape)) == []


# Padding


@pytest.mark.parametrize(("mean", "deviation", "limit"), [(3.5, 0.6, 128), (4.0, 0.5, 128), (5.0, 0.7, 512)])
def test_few_places_of_many_texts_are_padding(mean, deviation, limit):
    """Lengths are log-normal, as those of texts about are; longer ones are cut."""
    drawn = np.exp(np.random.default_rng(3).normal(mean, deviation, 1024))
    lengths = np.clip(drawn.astype(np.int64), 3, limit)
    width = row_width([lengths], int(lengths.sum()))
    assert pack(lengths, width, ()).rows * width / lengths.sum() <= 1.03
    for batch in (8, 32, 64):
        held_out = [packing for _, packing in fill(lengths, Shape.for_lengths(lengths, batch))]
        assert sum(packing.rows * packing.width for packing in held_out) / lengths.sum() <= 1.03, batch


def test_another_shape_is_chosen_for_windows_of_other_lengths():
    """Long texts before short ones, short ones before longer ones, one before many; not for what is left over."""
    draw = np.random.default_rng(0)
    short, middle, long = (draw.integers(*sizes, 512) for sizes in ((3, 9), (40, 41), (500, 511)))
    for windows in ((long, short), (short, middle), (short[:1], short), (short, short)):
        filler, found = RowFiller(64), []
        for window in windows:
            found = [*filler.fill(window)]
            assert sorted(np.concatenate([numbers for numbers, _, _ in found])) == [*range(len(window))]
        computed = sum(packing.rows * packing.width for _, packing, _ in found)
        assert computed <= 1.2 * windows[-1].sum()
        shapes = {(packing.rows, packing.width) for _, packing, _ in found}
        # Some that are left over keep the shape.
        (last,) = [(packing.rows, packing.width) for _, packing, _ in filler.fill(np.array([4, 5]))]
        assert last in shapes

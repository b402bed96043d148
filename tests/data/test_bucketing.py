"""Batches of what a frozen backbone has computed are padded to the least of a few lengths, and hold what they would
hold padded to the greatest."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from contexture.data import bucketing as lengths
from contexture.data.bucketing import choose_lengths, length_for
from contexture.data.config import DataConfig, TaskConfig
from contexture.data.tasks.batch.batches import WINDOW, HeldOutTask
from contexture.data.tasks.batch.training_batches import TaskBatches
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tokenizers.word_level import StaticWords
from tests.helpers.packed import STORED


@settings(max_examples=60, deadline=None)
@example(counts=[0, 2, 1, 1], batch=1, shuffled=False, saving=1.0)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=7).filter(any),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from([0.1, 1.0, 8.0]),
)
def test_the_lengths_cost_the_least_of_all(counts, batch, shuffled, saving):
    places = np.flatnonzero(counts)
    needed, held, limit = places * 8 + 8, np.array(counts)[places], int(places[-1]) * 8 + 8
    batches = -(-held.sum() // batch)
    reached = np.cumsum(held) / held.sum()
    reached = reached**batch if shuffled else reached
    less = saving if shuffled else saving / 3

    def cost(chosen: tuple[int, ...]) -> float:
        below = [0.0, *(reached[needed <= length][-1] for length in chosen)]
        return sum((b - a) * n / limit * batches for a, b, n in zip(below, below[1:], chosen)) + less * len(chosen)  # noqa: B905

    every = [
        (*others, limit)
        for count in range(min(len(needed), lengths.MAX_LENGTHS))
        for others in combinations(needed[:-1].tolist(), count)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lengths, "MIN_SAVING", saving)
        chosen = choose_lengths(needed, held, limit, batch, shuffled=shuffled)
    assert chosen in every
    assert cost(chosen) == pytest.approx(min(map(cost, every)))


WORDS = StaticWords([f"w{n}" for n in range(10)], "spaces")


@pytest.fixture
def store(tmp_path, monkeypatch):
    """301 texts of 1 to 50 words, short ones more often, and lengths that need not save much."""
    monkeypatch.setattr(lengths, "MIN_SAVING", 0.05)
    rng = np.random.default_rng(5)
    lines = [
        f"{' '.join(f'w{n}' for n in rng.integers(10, size=int(50 * x**3 + 1)))}\t{'no' if x < 0.5 else 'yes'}\n"
        for x in rng.random(301)
    ]
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(lines), "utf-8")
    task = TaskConfig(kind="classify", train=(str(tmp_path / "train.tsv"),))
    return encode(task, WORDS, tmp_path / "data")


CONFIG = DataConfig(batch=4, length=48)


def test_a_training_batch_has_the_least_length_that_holds_it(store, monkeypatch):
    opened = TaskBatches(store, WORDS, CONFIG, TaskConfig(kind="classify"), seed=3, family="vectors")
    batches = opened.with_features(STORED, {})
    monkeypatch.setattr(lengths, "MAX_LENGTHS", 1)
    whole = opened.with_features(STORED, {})
    assert whole.lengths == (48,)
    assert 1 < len(batches.lengths) <= 6
    assert batches.lengths[-1] == 48 and list(batches.lengths) == sorted(batches.lengths)
    seen = set()
    for step in range(90):
        batch, full, length = batches.read(step), whole.read(step), batches.length_at(step)
        # From the batch of full length: one that is cut would agree with itself. A length counts two places more.
        longest = int(full["mask"].sum(1).max())
        assert batch["mask"].shape == (4, length - 2)
        assert length == min(n for n in batches.lengths if n >= longest + 2)
        for name, x in full.items():
            assert np.array_equal(batch[name], x[:, : length - 2] if x.ndim == 2 else x), name
        # What belongs to another process has the length of the whole batch too.
        part = batches.read(step, np.array([2]))
        assert all(np.array_equal(part[name][0], batch[name][2]) for name in batch)
        seen.add(length)
    assert seen == set(batches.lengths)


def test_held_out_examples_are_read_once_each_and_sorted_within_a_window(store, monkeypatch):
    opened = HeldOutTask(store.splits["train"], WORDS, CONFIG, 3, family="vectors")
    held_out = opened.with_features(STORED, {})
    with monkeypatch.context() as patch:
        patch.setattr(lengths, "MAX_LENGTHS", 1)
        whole = opened.with_features(STORED, {})
    expected = np.concatenate([whole.read(step)["mask"] for step in range(whole.steps)])
    assert held_out.steps == whole.steps == 101 and WINDOW == 64
    numbers, sizes = [], []
    for step in range(held_out.steps):
        batch, own = held_out.read(step), held_out.numbers(step)
        length = batch["mask"].shape[1]
        assert np.array_equal(batch["mask"][: len(own)], expected[own, :length]) and not expected[own, length:].any()
        assert batch["numbers"].tolist() == [*own, *[own[-1]] * (3 - len(own))]
        assert batch["valid"].tolist() == [1.0] * len(own) + [0.0] * (3 - len(own))
        numbers.append(own)
        sizes.append(length)
        if held_out.ends_window(step):
            assert sorted(np.concatenate(numbers)) == list(range(len(np.concatenate(numbers))))
    assert len(np.concatenate(numbers)) == 301
    assert len({*sizes}) > 1
    for window in (sizes[:64], sizes[64:]):
        assert window == sorted(window, reverse=True)


def test_small_sets_have_one_length(tmp_path):
    texts = "".join(f"{'w1 ' * n}w1\t{n % 2}\n" for n in range(40))
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + texts, "utf-8")
    task = TaskConfig(kind="classify", train=(str(tmp_path / "train.tsv"),))
    split = encode(task, WORDS, tmp_path / "data").splits["train"]
    assert lengths.batch_lengths(split, 48, 4, shuffled=True) == (48,)
    assert lengths.batch_lengths(split, 48, 16, shuffled=False) == (48,)


@given(st.lists(st.integers(1, 60), min_size=1), st.sampled_from([(8,), (8, 24), (16, 24, 48)]))
def test_a_length_holds_tokens_and_two_more(tokens, of):
    length = length_for(of, np.array(tokens))
    assert length == min((n for n in of if n >= max(tokens) + 2), default=of[-1])

"""Sentence pairs: exactly the original's plan, every line once a pass, any line in any order, at once."""

import json
import os
import stat
import time
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data import rng
from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.layouts import SpanPairs, truncate_randomly
from contexture.data.pretraining import sentence_pairs
from contexture.data.pretraining.sentence_pairs import SentencePairs
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.tokenizers.wordpiece import WordPiece
from tests.helpers.slow_pairs import Document, Instance, as_text, instances_of, random_documents, truncate, vocabulary


def _prepared(folder: Path, documents: list[Document], block: int = 40, window: int = 3, **options) -> Shards:
    (folder / "text.txt").write_text(as_text(documents), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("contexture.data.pretraining.shards.BLOCK_SENTENCES", block)
        config = DataConfig(path=(str(folder / "text.txt"),), split_sentences=False, **options)
        return prepare(config, WordPiece(vocabulary(), lowercase=True), folder / "shards")


def _spans(shards: Shards, pairs: SpanPairs) -> list[Instance]:
    def text(starts, lengths):
        return [shards.read(starts[i : i + 1], lengths[i : i + 1]).tolist() for i in range(len(starts))]

    a, b = text(pairs.a_start, pairs.a_length), text(pairs.b_start, pairs.b_length)
    return [Instance(*row) for row in zip(a, b, pairs.is_random.tolist(), strict=True)]


def _slow(documents: list[Document], e: int, length: int, short: float, seed: int) -> list[Instance]:
    """Pass e of a seed, in the order of the documents."""
    instances = []
    for number in range(len(documents)):
        generator = Random(rng.key(rng.key(rng.DOCUMENT, seed, e), number))
        instances += instances_of(documents, number, length, short, generator)
    return instances


def _hashable(instances: list[Instance]) -> Counter:
    return Counter((tuple(i.a), tuple(i.b), i.is_random) for i in instances)


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    documents = random_documents(11, 80)
    documents[7] = [[5] * 70, [6], [7] * 200]  # sentences longer than any line
    documents[30] = [[8] * 300]
    return documents


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory, documents: list[Document]) -> Shards:
    return _prepared(tmp_path_factory.mktemp("pairs"), documents)


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_pairs, "WINDOW", 3)
    monkeypatch.setattr(sentence_pairs, "_GUESS", 2)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(-5, 2**40),
    e=st.integers(0, 3),
    length=st.integers(8, 60),
    short=st.sampled_from([0.0, 0.1, 0.9]),
)
def test_the_plan_is_exactly_the_originals(shards, documents, seed, e, length, short):
    stream = SentencePairs(shards, "train", length=length, short_fraction=short, seed=seed)
    blocks = range(len(shards.splits["train"].blocks) - 1)
    assert len(blocks) > 5
    fast = [line for block in blocks for line in _spans(shards, stream._resolved(stream.plan(block, e)))]
    assert fast == _slow(documents, e, length, short, seed)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 12), sentences=st.integers(1, 6), length=st.integers(8, 24))
def test_the_plan_of_any_text_is_the_originals(tmp_path_factory, seed, count, sentences, length):
    text = random_documents(seed, count, sentences)
    text[0] = [[5], *text[0]]
    shards = _prepared(tmp_path_factory.mktemp("any"), text, block=7)
    stream = SentencePairs(shards, "train", length=length, short_fraction=0.2, seed=seed)
    lines = _spans(shards, stream.pairs(np.arange(stream.examples_per_epoch)))
    assert _hashable(lines) == _hashable(_slow(text, 0, length, 0.2, seed))


def test_held_out_text_pairs_with_held_out_text_only(tmp_path: Path):
    text = random_documents(5, 200)
    shards = _prepared(tmp_path, text, dev_fraction=0.3)
    kept = shards.splits["train"].documents
    for split, part in (("train", text[:kept]), ("dev", text[kept:])):
        stream = SentencePairs(shards, split, length=32, short_fraction=0.1, seed=3)
        lines = _spans(shards, stream.pairs(np.arange(stream.examples_per_epoch)))
        assert _hashable(lines) == _hashable(_slow(part, 0, 32, 0.1, 3))


def test_every_line_comes_once_in_pass_0_and_as_often_later(shards, documents):
    stream = SentencePairs(shards, "train", length=32, short_fraction=0.1, seed=9)
    N = stream.examples_per_epoch
    first = _spans(shards, stream.pairs(np.arange(N)))
    assert _hashable(first) == _hashable(_slow(documents, 0, 32, 0.1, 9))
    for e in (1, 2):
        lines = _spans(shards, stream.pairs(np.arange(e * N, (e + 1) * N)))
        allowed = _hashable(_slow(documents, e, 32, 0.1, 9))
        counts = _hashable(lines)
        assert set(counts) <= set(allowed)
        at_most = {line: 2 * count for line, count in allowed.items()}
        assert all(counts[line] <= at_most[line] for line in counts)
        assert len(set(counts)) > 0.8 * N  # few are left out, few come twice
        assert lines != first


def test_a_block_gives_as_many_lines_in_every_pass(shards):
    """Where a pass has more of them, some are left out; where it has less, some come twice."""
    stream, sizes = SentencePairs(shards, "train", length=16, short_fraction=0.5, seed=9), Counter()
    for e in range(4):
        order, ends = stream._order(e)
        for w, end in enumerate(ends.tolist()):
            blocks = order[3 * w : 3 * w + 3]
            assert len(stream._window(e, w)) == stream.quotas[blocks].sum() == end - (int(ends[w - 1]) if w else 0)
        sizes.update(np.sign(len(stream.plan(block, e)) - quota) for block, quota in enumerate(stream.quotas))
    assert min(sizes[1], sizes[-1], sizes[0]) > 1  # all three were met


def test_the_lines_of_a_single_block_have_another_order_in_each_pass(tmp_path):
    """As text of less than a block has; short lines are left out, so that each pass has the same spans."""
    text = [[[document + 5] * 6, [document + 5] * 6] for document in range(60)]
    stream = SentencePairs(_prepared(tmp_path, text, block=10**6), "train", length=32, short_fraction=0.0, seed=1)
    assert len(stream.quotas) == 1
    N = stream.examples_per_epoch
    starts = [stream.pairs(np.arange(e * N, (e + 1) * N)).a_start for e in range(3)]
    for one, other in ((0, 1), (1, 2)):
        assert abs(np.corrcoef(starts[one], starts[other])[0, 1]) < 5 / np.sqrt(N)


def test_order_changes_with_pass_and_seed_and_mixes_a_window(shards):
    stream = SentencePairs(shards, "train", length=32, short_fraction=0.1, seed=1)
    N = stream.examples_per_epoch
    orders = [stream.pairs(np.arange(e * N, e * N + 200)).a_start for e in range(2)]
    other = SentencePairs(shards, "train", length=32, short_fraction=0.1, seed=2).pairs(np.arange(200)).a_start
    assert (orders[0] != orders[1]).mean() > 0.9 and (orders[0] != other).mean() > 0.9
    # Neighbours in the order are not neighbours in the text.
    assert np.median(np.abs(np.diff(orders[0]))) > 100
    assert sorted(stream._order(0)[0].tolist()) == list(range(len(stream.quotas)))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 5000), min_size=1, max_size=50))
def test_any_lines_in_any_order_are_the_same_lines(shards, numbers):
    stream = SentencePairs(shards, "train", length=32, short_fraction=0.1, seed=1)
    together = _spans(shards, stream.pairs(np.array(numbers)))
    fresh = SentencePairs(shards, "train", length=32, short_fraction=0.1, seed=1)
    assert together == [_spans(shards, fresh.pairs(np.array([number])))[0] for number in numbers]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 400), st.integers(1, 400), st.integers(8, 128), st.integers(0, 99), st.integers(0, 10**9))
def test_cutting_is_the_originals_token_by_token(a, b, length, seed, number):
    a += 1
    one = lambda x: np.array([x])  # noqa: E731
    pairs = SpanPairs(one(0), one(a), one(1000), one(b), np.array([True]))
    short = truncate_randomly(pairs, one(number), length=length, seed=seed)

    def front(side: str, taken: int) -> bool:
        purpose = {"a": rng.CUT_A, "b": rng.CUT_B}[side]
        line = rng.random_bits(rng.key(purpose, seed), one(number))
        word = int(rng.random_bits(line, one(taken // 64))[0])
        return bool(word >> taken % 64 & 1)

    kept = truncate(list(range(a)), list(range(1000, 1000 + b)), length, front)
    assert list(range(short.a_start[0], short.a_start[0] + short.a_length[0])) == kept[0]
    assert list(range(short.b_start[0], short.b_start[0] + short.b_length[0])) == kept[1]
    assert min(map(len, kept)) >= 1


def test_front_and_end_are_cut_equally_often():
    n = 2000
    pairs = SpanPairs(np.zeros(n, int), np.full(n, 100), np.zeros(n, int), np.full(n, 100), np.zeros(n, bool))
    short = truncate_randomly(pairs, np.arange(n), length=103, seed=1)
    assert (short.a_length == 50).all() and (short.b_length == 50).all()
    for fronts in (short.a_start, short.b_start):
        assert abs(fronts.mean() - 25) < 0.5 and abs(fronts.std() - 12.5**0.5) < 0.3
    assert abs(np.corrcoef(short.a_start, short.b_start)[0, 1]) < 0.1


def test_more_than_half_of_the_second_spans_are_random(tmp_path: Path):
    shards = _prepared(tmp_path, random_documents(2, 1500, most_tokens=6), block=4000)
    stream = SentencePairs(shards, "train", length=64, short_fraction=0.1, seed=4)
    pairs = stream.pairs(np.arange(stream.examples_per_epoch))
    assert stream.examples_per_epoch > 1500
    assert 0.52 < pairs.is_random.mean() < 0.75
    # Where there is a choice, it is a fair coin: a span that is next means a chunk of two sentences or more.
    plan = [stream.plan(block, 0) for block in range(len(stream.quotas))]
    assert all((part.b_length > 0).all() for part in plan)


def test_short_lines_are_as_many_as_asked(tmp_path: Path):
    text = [[[5 + n % 90] * 2 for n in range(300)] for _ in range(400)]  # 600 tokens: a short target is seen
    shards = _prepared(tmp_path, text, block=10**6)
    stream = SentencePairs(shards, "train", length=128, short_fraction=0.1, seed=1)
    plan = stream.plan(0, 0)
    documents = plan.a_start // 600
    first = np.unique(documents, return_index=True)[1]
    total = np.where(plan.is_random, plan.a_length + plan.b_target, plan.a_length + plan.b_length)[first]
    assert 0.06 < (total < 124).mean() < 0.14
    assert total.min() >= 2


def test_step_a_million_is_answered_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sentence_pairs, "WINDOW", 16)
    shards = _prepared(tmp_path, random_documents(2, 3000, 30), block=8192)
    SentencePairs(shards, "train", length=128, short_fraction=0.1, seed=1)
    start = time.perf_counter()
    stream = SentencePairs(Shards.open(shards.folder), "train", length=128, short_fraction=0.1, seed=1)
    stream.pairs(np.arange(64) + 10**6 * 64)
    assert time.perf_counter() - start < 1.0


def test_counts_are_kept_with_the_shards_and_made_again_when_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shards = _prepared(tmp_path, random_documents(2, 100))
    make = lambda: SentencePairs(shards, "train", length=32, short_fraction=0.1, seed=1)  # noqa: E731
    quotas = make().quotas
    (file,) = shards.folder.glob("pairs-*.json")
    assert file.name == "pairs-train-32-0.1-1.json"
    with monkeypatch.context() as patch:
        patch.setattr(SentencePairs, "plan", None)
        assert (make().quotas == quotas).all()
    kept = file.read_text()
    first = json.loads(kept)["lines"][0]
    other = [kept.replace(f"[{first},", f"[{number},") for number in (first + 5, 0, f"{first}.0", "null", "true")]
    assert kept not in other
    for damage in ("", "{}", "[1]", "[" * 100_000, kept.replace('"seed": 1', '"seed": 2'), *other):
        file.write_text(damage)
        assert (make().quotas == quotas).all()
        assert file.read_text() == kept
    Shards.open(shards.folder)
    assert not list(shards.folder.glob(".pairs*"))


def test_shards_that_cannot_be_written_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shards = _prepared(tmp_path, random_documents(2, 100))

    def refuse(*_, **__):
        raise PermissionError("read-only")

    monkeypatch.setattr(sentence_pairs, "atomic_file", refuse)
    shards.folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert SentencePairs(shards, "train", length=32, short_fraction=0.1, seed=1).examples_per_epoch > 100
        assert not [name for name in os.listdir(shards.folder) if "pairs" in name]
    finally:
        shards.folder.chmod(0o755)


def test_a_split_without_text_is_refused(shards):
    with pytest.raises(DataError, match=r"no dev text; prepare it again with data\.dev or data\.dev-fraction"):
        SentencePairs(shards, "dev", length=32, short_fraction=0.1, seed=1)


@pytest.mark.parametrize("split", ["train", "dev"])
def test_a_split_that_gives_no_line_is_refused(tmp_path: Path, split: str):
    shards = _prepared(tmp_path, random_documents(5, 40), dev_fraction=0.3)
    with (shards.folder / f"{split}.bin").open("r+b") as file:  # no documents of text are so: only damage is
        file.write(bytes((shards.folder / f"{split}.bin").stat().st_size))
    with pytest.raises(DataError, match=f"the {split} text has no document that gives a pair of sentences; prepare"):
        SentencePairs(shards, split, length=32, short_fraction=0.1, seed=1)
    assert not list(shards.folder.glob("*pairs*"))


def test_held_out_documents_of_one_sentence_give_lines(tmp_path: Path):
    shards = _prepared(tmp_path, [[[5, 6], [7, 8]], [[9, 10]]], dev_fraction=0.3)
    assert (shards.splits["dev"].documents, shards.splits["dev"].sentences) == (1, 1)
    assert SentencePairs(shards, "dev", length=32, short_fraction=0.1, seed=1).examples_per_epoch == 1


def test_draws_are_those_of_splitmix64_and_uniform():
    # The first outputs of SplitMix64 from seed 0, as published with its reference implementation.
    assert rng.random_bits(0, np.arange(3)).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    numbers = rng.random_bits(rng.key(1, 2), np.arange(100_000))
    assert abs(rng.uniform(numbers).mean() - 0.5) < 0.005
    counts = np.bincount(rng.randint(numbers, 10), minlength=10)
    assert len(counts) == 10 and (abs(counts - 10_000) < 500).all()
    assert len({rng.key(*parts) for parts in ((1, 2), (2, 1), (1, -2), (1,), (1, 2, 0))}) == 5
    assert sorted(rng.permutation(5, 100).tolist()) == list(range(100))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**40))
def test_an_order_without_memory_is_a_permutation(size: int, key: int):
    order = rng.permutation_at(key, np.arange(size), size)
    assert sorted(order.tolist()) == list(range(size))
    assert rng.permutation_at(key, np.array([size - 1, 0]), size).tolist() == [order[-1], order[0]]
    if size > 100:
        assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < 5 / size**0.5

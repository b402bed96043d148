"""Lanes: every word of the text is read and predicted as sentences have it, and the carry is what stood before."""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data import rng as draws
from contexture.data.batches import check_fields, iterate
from contexture.data.cancel import NEVER
from contexture.data.config import DataConfig
from contexture.data.describe import describe
from contexture.data.errors import DataError
from contexture.data.families.registry import TEXT_FAMILIES
from contexture.data.layouts import Batch
from contexture.data.pretraining import shards as shards_module
from contexture.data.pretraining.bilm_lanes import FIELDS, SAMPLED, HeldOutLanes, LaneBatches
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.elmo_char_ids import BEGIN_ROW, END_ROW, char_ids, words_from_char_ids
from contexture.data.tokenizers.word_level import Words
from contexture.data.tokenizers.wordpiece import SPECIAL, WordPiece
from contexture.models.config import ElmoConfig
from contexture.train.settings.run import Run

LETTERS = list("abcdefgh")
TOKENIZER = Words(["<S>", "</S>", "<UNK>", *LETTERS])
SENTENCES = st.lists(st.lists(st.sampled_from([*LETTERS, "x", "y", "<S>", "zoë"]), max_size=7), min_size=1, max_size=9)
SEED = 7
Pairs = list[tuple[str, str]]


def _config(**more) -> DataConfig:
    options = {"vocabulary": "words", "split_sentences": False}
    return DataConfig(**{**options, "batch": 4, "length": 3, "negatives": 0, **more})


def _prepared(folder: Path, train: list[list[str]], dev: list[list[str]] | None = None, **more) -> Shards:
    for name, sentences in (("train", train), ("dev", dev or [])):
        (folder / f"{name}.txt").write_text("\n".join(map(" ".join, sentences)), "utf-8")
    held_out = {"dev": (str(folder / "dev.txt"),)} if dev else {}
    tokenizer, per_file = more.pop("tokenizer", TOKENIZER), more.pop("per_file", 1 << 20)
    config = _config(path=(str(folder / "train.txt"),), **held_out, **more)
    return prepare(config, tokenizer, folder / "shards", stream="lanes", per_file=per_file)


def _known(word: str) -> str:
    return word if word in LETTERS else "<UNK>"


def _pairs(sentences: list[list[str]]) -> tuple[Pairs, Pairs]:
    """What is read and what predicted there, a sentence at a time, forward, and backward from the last one on."""
    forward, backward = [], []
    for words in filter(None, sentences):
        read = ["<S>", *(f"word {word}" for word in words), "</S>"]
        predicted = ["<S>", *map(_known, words), "</S>"]
        forward += zip(read[:-1], predicted[1:], strict=True)
        backward[:0] = zip(read[:0:-1], predicted[-2::-1], strict=True)
    return forward, backward


def _read(batch: Batch, way: str) -> list[list[tuple[str, str]]]:
    """The lines of a batch as pairs of what is read and what is predicted; what has no weight is left out."""
    marks = {1: "<S>", 2: "</S>"}
    lines = []
    for index, after, weights in zip(*(batch[n + way] for n in ("index", "next", "next_weights")), strict=True):
        assert (index[weights == 0] == 0).all() and set(weights.tolist()) <= {0.0, 1.0}
        here = np.flatnonzero(weights)
        words = words_from_char_ids(batch["types"][index[here]])
        read = [marks.get(int(i)) or f"word {word}" for i, word in zip(index[here], words, strict=True)]
        lines.append(list(zip(read, (TOKENIZER.token(int(i)) for i in after[here]), strict=True)))
    return lines


@settings(max_examples=50, deadline=None)
@given(SENTENCES, st.integers(1, 4), st.integers(1, 12), st.sampled_from([3, 1 << 20]))
def test_going_around_gives_the_pairs_of_all_sentences(tmp_path_factory, sentences, batch, length, per_file):
    sentences = [["a", "b", "x"], *sentences]
    shards = _prepared(tmp_path_factory.mktemp("s"), sentences, per_file=per_file)
    batches = LaneBatches(shards, _config(batch=batch, length=length), seed=SEED)
    expected = _pairs(sentences)
    N = len(expected[0])
    assert batches.pairs == N and batches.examples_per_epoch == -(-N // length)
    steps = [batches.read(step) for step in range(N)]  # `length` times around
    for way, pairs, begin in zip(("", "_backward"), expected, (1, 0), strict=True):
        for b in range(batch):
            start = (begin + N // batch * b) % N
            assert sum((_read(step, way)[b] for step in steps), []) == (pairs[start:] + pairs[:start]) * length


@settings(max_examples=30, deadline=None)
@given(SENTENCES, st.integers(1, 5), st.integers(1, 6), st.integers(0, 40))
def test_the_row_of_the_next_batch_goes_on(tmp_path_factory, sentences, batch, length, step):
    shards = _prepared(tmp_path_factory.mktemp("s"), [["a", "b", "c", "d"], *sentences])
    short, long = (LaneBatches(shards, _config(batch=batch, length=n), seed=SEED) for n in (length, 2 * length))
    whole = long.read(step)
    for way in ("", "_backward"):
        two = [_read(short.read(at), way) for at in (2 * step, 2 * step + 1)]
        assert [first + second for first, second in zip(*two, strict=True)] == _read(whole, way)
        for first, second in zip(*two, strict=True):
            ends = {"</S>": "<S>", "<S>": "</S>"}  # what ends a sentence is not what the next one begins with
            predicted, read = first[-1][1], second[0][0].removeprefix("word ")
            assert read == ends.get(predicted, predicted) or predicted == "<UNK>" and second[0][0].startswith("word ")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(0, 20))
def test_rows_asked_for_alone_are_rows_of_the_whole(tmp_path_factory, rows, step):
    sentences = [["a", "b", "x"], ["c"], ["d", "e", "f", "g", "y"]]
    shards = _prepared(tmp_path_factory.mktemp("s"), sentences, sentences[1:])
    config = _config(batch=5, negatives=4)
    held_out = HeldOutLanes(shards, config, 3)
    for batches, at in ((LaneBatches(shards, config, seed=SEED), step), (held_out, step % held_out.steps)):
        whole, some = batches.read(at), batches.read(at, np.array(rows))
        check_fields(whole, batches.fields)
        assert batches.fields == ({**FIELDS, **SAMPLED} if "negatives" in whole else FIELDS)
        for name, array in some.items():
            of_batch = name in ("types", *SAMPLED)
            assert array.tolist() == (whole[name] if of_batch else whole[name][rows]).tolist(), name
        assert batches.rows_read == 5 + len(rows)


def test_a_batch_is_what_the_sentences_say(tmp_path: Path):
    shards = _prepared(tmp_path, [["a", "x"], ["b"]])
    batches = LaneBatches(shards, _config(batch=1, length=5, word_types=8), seed=SEED)
    batch = batches.read(0)
    table = char_ids(["", "", "", "a", "b", "x", "", ""])
    assert batch["types"][1:3].tolist() == [BEGIN_ROW.tolist(), END_ROW.tolist()]
    assert batch["types"][3:].tolist() == table[3:].tolist() and not batch["types"][0].any()
    assert batch["index"].tolist() == [[3, 5, 1, 4, 1]] and batch["next"].tolist() == [[2, 1, 4, 1, 3]]
    assert batch["index_backward"].tolist() == [[2, 4, 2, 5, 3]]
    assert batch["next_backward"].tolist() == [[4, 0, 2, 3, 0]]
    assert batch["next_weights"].all() and batch["next_weights_backward"].all() and batch["valid"].tolist() == [1.0]
    description = (
        "a x <S> b <S> → <UNK> </S> b </S> a\n(5 words forward, as many backward; 5 distinct rows in the batch)"
    )
    assert describe(batch, 0, TOKENIZER) == description


def test_a_table_that_is_too_small_is_doubled(tmp_path: Path):
    shards = _prepared(tmp_path, [LETTERS, ["a"] * 60])
    small = LaneBatches(shards, _config(batch=1, length=8, word_types=3), seed=SEED)
    usual = LaneBatches(shards, _config(batch=1, length=8), seed=SEED)
    tables = []
    for step in range(9):
        batch, whole = small.read(step), usual.read(step)
        tables.append(len(batch["types"]))
        assert len(whole["types"]) == 2 * 8 + 3
        used = int(whole["types"].any(1).sum()) + 1
        assert tables[-1] // 2 < max(used, 3) <= tables[-1]
        for name in batch.keys() - {"types"}:
            assert batch[name].tolist() == whole[name].tolist()
    assert tables[0] == 12 and 6 in tables and usual.longer_tables == 0
    assert small.longer_tables == sum(size > 3 for size in tables)


@settings(max_examples=60, deadline=None)
@given(SENTENCES, st.integers(1, 5), st.integers(0, 3), st.integers(1, 9))
def test_every_held_out_word_is_predicted_once(tmp_path_factory, sentences, lanes, filler, length):
    sentences = [["a", "b", "x", "c"], *sentences]
    shards = _prepared(tmp_path_factory.mktemp("s"), [["a"]], sentences)
    held_out = HeldOutLanes(shards, _config(batch=lanes + filler, length=length), lanes)
    steps = [held_out.read(step) for step in range(held_out.steps)]
    with pytest.raises(IndexError):
        held_out.read(held_out.steps)
    assert held_out.lanes == lanes
    for way, expected in zip(("", "_backward"), _pairs(sentences), strict=True):
        read = [[_read(step, way)[b] for step in steps] for b in range(lanes + filler)]
        in_order = [pair for lane in read for step in lane for pair in step]
        assert in_order == expected and held_out.pairs == len(in_order)
        sizes = [sum(map(len, lane)) for lane in read]
        assert max(sizes[:lanes]) - min(sizes[:lanes]) <= 1 and not any(sizes[lanes:])
        for lane, size in zip(read, sizes, strict=True):
            left = [min(max(size - step * length, 0), length) for step in range(len(steps))]
            assert [len(step) for step in lane] == left
    for step in steps:
        assert step["valid"].tolist() == [1.0] * lanes + [0.0] * filler
        assert len(step["types"]) == 2 * (lanes + filler) * length + 3


def test_the_figures_do_not_hang_on_how_lines_were_rounded_up(tmp_path: Path):
    shards = _prepared(tmp_path, [["a"]] * 3, [["a", "b", "c"], ["d", "x"]] * 3)
    text = TEXT_FAMILIES["elmo"]
    exact, rounded = (text.open_held_out(shards, _config(batch=lines), 3, NEVER) for lines in (3, 4))
    assert exact.steps == rounded.steps and rounded.batch == 4
    for step in range(exact.steps):
        a, b = exact.read(step), rounded.read(step)
        for way in ("", "_backward"):
            assert _read(a, way) == _read(b, way)[:3]
    larger = text.open_held_out(shards, _config(batch=2), 0, NEVER)
    assert isinstance(larger, HeldOutLanes) and larger.lanes == 2
    batches = text.open_batches(shards, _config(), SEED, NEVER)
    assert isinstance(batches, LaneBatches)
    for reader in (batches, rounded):
        with iterate(reader, 0, 3) as steps:
            for step, batch in steps:
                assert all(array.tolist() == reader.read(step)[name].tolist() for name, array in batch.items())


def _slow_negatives(key: int, count: int, limit: int) -> tuple[list[int], int]:
    """One draw after the other until there are so many different ones."""
    negatives: list[int] = []
    tries = 0
    while len(negatives) < count:
        share = float(draws.uniform(draws.random_bits(key, np.array([tries])))[0])
        number = min(int(math.exp(share * math.log(limit + 1))) - 1, limit - 1)
        tries += 1
        if number not in negatives:
            negatives.append(number)
    return negatives, tries


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 300), st.data(), st.integers(0, 2**40))
def test_negatives_are_drawn_until_there_are_enough(limit: int, data: st.DataObject, key: int):
    count = data.draw(st.integers(1, min(limit - 1, 60)))
    negatives, tries = draws.distinct_log_uniform(key, count, limit)
    assert (negatives.tolist(), tries) == _slow_negatives(key, count, limit)


def test_negatives_follow_the_law_of_zipf():
    limit, count = 1000, 200_000
    drawn = draws.log_uniform(draws.random_bits(draws.key(1), np.arange(count)), limit)
    expected = np.log((np.arange(limit) + 2) / (np.arange(limit) + 1)) / np.log(limit + 1)
    assert expected.sum() == pytest.approx(1) and drawn.min() == 0 and drawn.max() == limit - 1
    counts, error = np.bincount(drawn, minlength=limit), np.sqrt(count * expected)
    assert (np.abs(counts - count * expected) < 5 * error).all()


def test_negatives_belong_to_the_step_and_the_direction(tmp_path: Path):
    shards = _prepared(tmp_path, [LETTERS] * 3)
    config = _config(negatives=6)
    batches, again = (LaneBatches(shards, config, seed=SEED) for _ in range(2))
    other = LaneBatches(shards, config, seed=SEED + 1)
    seen = set()
    for step in range(20):
        batch = batches.read(step)
        assert batch["negatives"].shape == (2, 6) and batch["tries"].shape == (2,)
        assert batch["negatives"].tolist() == again.read(step, np.array([2]))["negatives"].tolist()
        for row, tries in zip(batch["negatives"].tolist(), batch["tries"].tolist(), strict=True):
            assert len(set(row)) == 6 and 0 <= min(row) and max(row) < TOKENIZER.size and tries >= 6
            seen.add(tuple(row))
        seen.update(map(tuple, other.read(step)["negatives"].tolist()))
    assert len(seen) > 75


def test_words_that_the_vocabulary_lacks_are_kept(tmp_path: Path):
    long = "ö" * 30
    train = [["a", "x", "x", long], [], ["<UNK>", "y"]]
    shards = _prepared(tmp_path, train, [["y", "new", long]])
    assert shards.stream == "lanes" and shards.dtype == np.dtype("<u4")
    assert (tmp_path / "shards" / "words.txt").read_text("utf-8") == f"x\n{long}\n<UNK>\ny\nnew\n"
    assert shards.index["unknown"] == {"words": 5, "bytes": 75}
    assert shards.index["cut"] == {"words": 1, "times": 2}
    assert shards.unigrams().tolist() == [0, 2, 5, 1] + [0] * 7
    assert (shards.splits["train"].sentences, shards.splits["train"].tokens) == (2, 8)
    words = ["<UNK>", *LETTERS, "x", long, "<UNK>", "y", "new"]
    assert shards.char_ids[2:].tolist() == char_ids(words).tolist()
    assert LaneBatches(shards, _config(), seed=SEED).describe() == (
        "6 words (83.3% not in the vocabulary) in 2 sentences; an epoch is 3 sequences forward and as many backward; "
        "cut to 48 bytes: 1 longer words, which occur 2 times"
    )


def test_held_out_shares_and_long_documents_are_those_of_sentences(tmp_path: Path):
    rng = random.Random(1)
    text = [" ".join(rng.choices(LETTERS, k=4)) + "." for _ in range(40)]
    (tmp_path / "a.txt").write_text(" ".join(text) + "\n", "utf-8")
    config = _config(path=(str(tmp_path / "a.txt"),), dev_fraction=0.25, split_sentences=False)
    with pytest.raises(DataError, match="no dev text; prepare it again with data.dev or data.dev-fraction"):
        HeldOutLanes(prepare(config, TOKENIZER, tmp_path / "one", stream="lanes"), _config(), 1)
    (tmp_path / "a.txt").write_text("\n".join(text) + "\n", "utf-8")
    shards = prepare(config, TOKENIZER, tmp_path / "many", stream="lanes")
    assert [shards.splits[name].sentences for name in ("train", "dev")] == [30, 10]
    assert shards.unigrams().sum() == 30 * 5
    assert shards.unigrams()[2] == 30  # "h." is no word of the vocabulary


def test_damage_to_the_kept_words_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _prepared(tmp_path, [["a", "x", "y"]])
    folder = tmp_path / "shards"
    Shards.open(folder).verify()
    file = folder / "words.txt"
    for raw, message in (
        (b"x\nz\n", r"words\.txt: damaged, not the bytes that were written"),
        (b"x\n", r"words\.txt: 2 bytes where the index says 4"),
    ):
        file.write_bytes(raw)
        with pytest.raises(DataError, match=message):
            Shards.open(folder)
    file.write_bytes(b"x\nz\n")
    monkeypatch.setattr(shards_module, "_SMALL", -1)
    large = Shards.open(folder)
    for read in (large.verify, lambda: LaneBatches(large, _config(batch=1), seed=SEED)):
        with pytest.raises(DataError, match=r"words\.txt: damaged, .*; prepare the text again into another folder"):
            read()
    file.unlink()
    with pytest.raises(DataError, match=r"words\.txt: missing; prepare"):
        Shards.open(folder)
    index = json.loads((folder / "index.json").read_text("utf-8"))
    del index["unknown"]["bytes"]
    (folder / "index.json").write_text(json.dumps(index), "utf-8")
    with pytest.raises(DataError, match=r"index\.json: unknown\.bytes is missing or not what it should be; prepare"):
        Shards.open(folder)


def test_what_lanes_cannot_do_is_refused(tmp_path: Path):
    shards = _prepared(tmp_path, [["a", "b", "c"]], [["a"]])
    with pytest.raises(DataError, match=r"the train text has 4 words, .*, too few for 5 lanes; lower data\.batch"):
        LaneBatches(shards, _config(batch=5), seed=SEED)
    with pytest.raises(DataError, match=r"the dev text has 2 words, .*, too few for 3 lanes; lower data\.batch"):
        HeldOutLanes(shards, _config(batch=3), 3)
    for negatives in (11, 12):
        with pytest.raises(DataError, match=rf"data\.negatives={negatives} is not below the 11 words .*; lower it, or"):
            LaneBatches(shards, _config(negatives=negatives), seed=SEED)
    other: Tokenizer = WordPiece(SPECIAL, True)
    with pytest.raises(DataError, match="an ELMo reads a vocabulary of kind words, and this one is wordpiece"):
        prepare(_config(path=(str(tmp_path / "train.txt"),)), other, tmp_path / "other", stream="lanes")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "data.length=0 is not a positive number of tokens"),
        ({"word_types": 2}, "data.word-types=2 has no room for the three marks; give more, or 0"),
        ({"word_types": -1}, "data.word-types=-1 has no room"),
        ({"negatives": -1}, r"data.negatives=-1 is not a number of words \(0: the whole vocabulary\)"),
        ({"packed": True}, "data.packed has no meaning for pretraining an ELMo; leave it out"),
        ({"documents": "files"}, "data.documents has no meaning for pretraining an ELMo; leave it out"),
        ({"ramp_from": 2, "ramp_steps": 9}, "data.ramp-from has no meaning for pretraining an ELMo; leave it out"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        Run(model=ElmoConfig(), data=_config(**options))

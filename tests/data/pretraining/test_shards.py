"""Shards: everything that was in the text and nothing else, whole or not there at all, in flat memory."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data import plain_files
from contexture.data.cancel import NEVER
from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.pretraining import tokenize_corpus
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.tokenizers.char_level import learn_characters
from contexture.data.tokenizers.unknown_tokens import UnknownTokens
from contexture.data.tokenizers.wordpiece import WordPiece
from contexture.models.config import GptConfig
from tests.helpers.long import long
from tests.helpers.slow_pairs import Document, as_text, random_documents, vocabulary

ROOT = Path(__file__).parents[3]
TOKENIZER = WordPiece(vocabulary(), lowercase=True)


def _prepared(folder: Path, files: dict[str, list[Document]], dev: tuple[str, ...] = (), **options) -> Shards:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(as_text(content), "utf-8")
    paths = tuple(str(folder / name) for name in files if name not in dev)
    fraction = options.pop("dev_fraction", 0.0)
    config = DataConfig(
        path=paths, dev=tuple(str(folder / name) for name in dev), dev_fraction=fraction, split_sentences=False
    )
    return prepare(config, TOKENIZER, folder / "shards", **options)


def _documents(shards: Shards, split: str) -> list[Document]:
    """Reads everything back."""
    side = shards.splits[split]
    documents = []
    for first, last in side.bounds(0, side.documents).tolist():
        offsets = shards.offsets(first, last)
        tokens = shards.read(offsets[:1], offsets[-1:] - offsets[:1]).tolist()
        borders = (offsets - offsets[0]).tolist()
        documents.append([tokens[a:b] for a, b in zip(borders, borders[1:], strict=False)])
    return documents


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=3), st.integers(1, 8), st.sampled_from([7, 64, 1 << 27]))
def test_what_is_written_is_read_back(tmp_path_factory, seeds, count, per_file):
    folder = tmp_path_factory.mktemp("shards")
    files = {f"{place}.txt": random_documents(seed, count + 1) for place, seed in enumerate(seeds)}
    files["0.txt"][0] = [[5, 6], [7]]
    shards = _prepared(folder, files, per_file=per_file)
    whole = [document for content in files.values() for document in content]
    assert _documents(shards, "train") == whole
    flat = [token for document in whole for sentence in document for token in sentence]
    assert shards.unigrams().tolist() == np.bincount(flat, minlength=TOKENIZER.size).tolist()
    assert (shards.tokens, shards.sentences) == (len(flat), sum(map(len, whole)))
    assert _documents(Shards.open(folder / "shards"), "train") == whole


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 30), st.sampled_from([0.05, 0.1, 0.5]))
def test_the_end_of_each_file_is_held_out_in_whole_documents(tmp_path_factory, seed, count, fraction):
    folder = tmp_path_factory.mktemp("shards")
    files = {"a.txt": random_documents(seed, count), "b.txt": random_documents(seed + 1, count)}
    for content in files.values():
        content[0] = [[5], [6]]
    shards = _prepared(folder, files, dev_fraction=fraction)
    train, dev = _documents(shards, "train"), _documents(shards, "dev")
    at = 0
    for content in files.values():
        kept = max(k for k in range(count) if train[at : at + k] == content[:k])
        at += kept
        assert 1 <= kept < count
        assert content[kept:] == dev[: count - kept]
        dev = dev[count - kept :]
        held_out, total = sum(map(len, content[kept:])), sum(map(len, content))
        assert held_out <= max(fraction * total, len(content[-1]))
        if kept > 1:  # one more document would be too much
            assert held_out + len(content[kept - 1]) > fraction * total
    assert not dev and at == len(train)
    flat = [token for document in train for sentence in document for token in sentence]
    assert shards.unigrams().tolist() == np.bincount(flat, minlength=TOKENIZER.size).tolist()


def test_the_last_sentences_of_a_single_document_are_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenize_corpus, "LONGEST_DOCUMENT", 30)
    document = [[5 + number % 90] for number in range(100)]
    shards = _prepared(tmp_path, {"a.txt": [document]}, dev_fraction=0.25)
    assert [len(lines) for lines in _documents(shards, "train")] == [30, 30, 15]
    assert [len(lines) for lines in _documents(shards, "dev")] == [15, 10]
    assert sum(_documents(shards, "train") + _documents(shards, "dev"), []) == document


def test_files_of_data_dev_are_held_out_whole(tmp_path: Path):
    files = {name: random_documents(place, 5) for place, name in enumerate(("a.txt", "b.txt"))}
    shards = _prepared(tmp_path, files, dev=("b.txt",))
    assert _documents(shards, "train") == files["a.txt"] and _documents(shards, "dev") == files["b.txt"]


def test_long_documents_are_cut_in_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenize_corpus, "LONGEST_DOCUMENT", 10)
    document = [[5]] * 20
    assert [len(lines) for lines in _documents(_prepared(tmp_path, {"a.txt": [document]}), "train")] == [10, 10]


def test_blocks_are_runs_of_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("contexture.data.pretraining.shards.BLOCK_SENTENCES", 40)
    shards = _prepared(tmp_path, {"a.txt": random_documents(3, 60)})
    blocks, side = shards.splits["train"].blocks, shards.splits["train"]
    assert blocks[0] == 0 and blocks[-1] == side.documents and list(blocks) == sorted(set(blocks))
    sizes = [int(np.diff(side.bounds(a, b), axis=1).sum()) for a, b in zip(blocks, blocks[1:], strict=False)]
    assert all(40 <= size < 60 for size in sizes[:-1])


def test_empty_sentences_and_documents_are_dropped(tmp_path: Path):
    (tmp_path / "a.txt").write_text("\n\nw1 w2\n\u200b\nw3\n\n\u200b\n\n\n\nw4\n", "utf-8")
    config = DataConfig(path=(str(tmp_path / "a.txt"),))
    assert _documents(prepare(config, TOKENIZER, tmp_path / "s"), "train") == [[[6, 7], [8]], [[9]]]


def test_paragraphs_are_split_where_that_is_asked(tmp_path: Path):
    (tmp_path / "a.txt").write_text("W1 w2. W3!\nW4", "utf-8")
    counts = [
        prepare(
            DataConfig(path=(str(tmp_path / "a.txt"),), split_sentences=split), TOKENIZER, tmp_path / str(split)
        ).sentences
        for split in (True, False)
    ]
    assert counts == [3, 2]


def test_large_vocabularies_take_four_bytes(tmp_path: Path):
    tokenizer = WordPiece(vocabulary(70_000), lowercase=True)
    (tmp_path / "a.txt").write_text("w69999 w1\nw65533", "utf-8")
    shards = prepare(DataConfig(path=(str(tmp_path / "a.txt"),)), tokenizer, tmp_path / "s")
    assert shards.dtype.itemsize == 4 and _documents(shards, "train") == [[[70_004, 6], [65_538]]]


def test_the_index_says_where_everything_came_from(tmp_path: Path):
    shards = _prepared(tmp_path, {"a.txt": random_documents(1, 5), "b.txt": random_documents(2, 5)})
    index = json.loads((tmp_path / "shards" / "index.json").read_text("utf-8"))
    assert index["format"] == 1 and index["fingerprint"] == shards.fingerprint
    for source in index["sources"]:
        raw = (tmp_path / source["name"]).read_bytes()
        assert (source["size"], source["sha256"]) == (len(raw), hashlib.sha256(raw).hexdigest())
    for file in (tmp_path / "shards").glob("*.bin"):
        raw = file.read_bytes()
        assert index["files"].pop(file.name) == {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    assert not index["files"]
    assert shards.tokenizer.fingerprint == TOKENIZER.fingerprint == index["tokenizer"]
    (tmp_path / "elsewhere").mkdir()
    again = _prepared(tmp_path / "elsewhere", {"a.txt": random_documents(1, 5), "b.txt": random_documents(2, 5)})
    assert again.fingerprint == shards.fingerprint
    shutil.rmtree(tmp_path / "shards")
    other = _prepared(tmp_path, {"a.txt": random_documents(1, 5), "b.txt": random_documents(3, 5)})
    assert other.fingerprint != shards.fingerprint


def test_changed_sources_are_told_and_missing_ones_are_not(tmp_path: Path):
    shards = _prepared(tmp_path, {"a.txt": random_documents(1, 5), "b.txt": random_documents(2, 5)})
    config = DataConfig(path=(str(tmp_path),))
    assert shards.sources_changed(config) == ""
    (tmp_path / "b.txt").unlink()
    assert shards.sources_changed(config) == ""
    with (tmp_path / "a.txt").open("a") as file:
        file.write("\nw1")
    assert "a.txt has" in shards.sources_changed(config)
    (tmp_path / "a.txt").unlink()
    (tmp_path / "c.txt").write_text("w1")
    assert "c.txt was not there when" in shards.sources_changed(config)
    shutil.rmtree(tmp_path / "shards" / "tokenizer")
    assert shards.sources_changed(DataConfig(path=(str(tmp_path / "gone"),))) == ""
    assert shards.sources_changed(DataConfig(path=(str(tmp_path / "shards"),))) == ""


def test_progress_counts_every_byte(tmp_path: Path):
    calls: list[tuple[int, int]] = []
    _prepared(tmp_path, {"a.txt": random_documents(1, 50)}, progress=lambda *at: calls.append(at))
    size = (tmp_path / "a.txt").stat().st_size
    assert calls[-1] == (size, size) and calls == sorted(calls)


def test_nothing_to_train_on_is_refused_and_leaves_nothing(tmp_path: Path):
    with pytest.raises(
        DataError, match=r"a\.txt: no document with two sentences to train on \(2 of one sentence\); put"
    ):
        _prepared(tmp_path, {"a.txt": [[[5]], [[6]]]})
    assert os.listdir(tmp_path) == ["a.txt"]
    # Of several files the first is named, and not the one that is held out.
    (tmp_path / "a.txt").write_text("w1\n")
    (tmp_path / "b.txt").write_text("w1\nw2\n")
    config = DataConfig(path=(str(tmp_path / "a.txt"),), dev=(str(tmp_path / "b.txt"),))
    with pytest.raises(DataError, match=r"a\.txt: no document with two sentences"):
        prepare(config, TOKENIZER, tmp_path / "s")
    (tmp_path / "a.txt").write_text("\u200b\n", "utf-8")
    with pytest.raises(DataError, match=r"a\.txt: no sentence in the file"):
        prepare(DataConfig(path=(str(tmp_path / "a.txt"),)), TOKENIZER, tmp_path / "s")


def test_a_taken_folder_and_shared_files_are_refused(tmp_path: Path):
    _prepared(tmp_path, {"a.txt": random_documents(1, 5)})
    with pytest.raises(DataError, match="already holds something; give another folder"):
        _prepared(tmp_path, {"a.txt": random_documents(1, 5)})
    name = str(tmp_path / "a.txt")
    with pytest.raises(DataError, match=r"a\.txt: data\.dev names a file that data\.path holds too"):
        prepare(DataConfig(path=(name,), dev=(name,)), TOKENIZER, tmp_path / "s")


class _Stop(BaseException):
    pass


@pytest.mark.parametrize("kind", [_Stop, KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("call", [1, 3, -1], ids=["first", "third", "last"])
def test_what_progress_raises_comes_through_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException], call: int
):
    monkeypatch.setattr(plain_files, "_PIECE", 256)
    (tmp_path / "a.txt").write_text(as_text(random_documents(1, 50)), "utf-8")
    size = (tmp_path / "a.txt").stat().st_size
    calls = 0

    def stop(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == call or (call == -1 and done == total):
            raise kind("enough")

    with pytest.raises(kind, match="enough"):
        prepare(DataConfig(path=(str(tmp_path / "a.txt"),)), TOKENIZER, tmp_path / "deep" / "s", stop)
    assert size and not os.listdir(tmp_path / "deep")


@pytest.mark.parametrize(
    "kind",
    ["lines", *long("a_long_line", "blank_lines", "a_long_document")],
)
def test_progress_is_told_every_half_megabyte_read_or_tokenised(tmp_path: Path, kind: str):
    if kind == "a_long_document":
        file = tmp_path / "a.jsonl"
        file.write_text(json.dumps({"text": "w1 w2.\nw3\n" * 80_000}))
    else:
        file = tmp_path / "a.txt"
        body = {"lines": "w1 w2. w3\n" * 80_000, "a_long_line": "w1 w2 w3 " * 200_000, "blank_lines": "\n" * 1_500_000}
        file.write_text("w1\nw2\n" + body[kind])
    calls: list[tuple[int, int]] = []
    tokens: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        encode = WordPiece.encode
        patch.setattr(WordPiece, "encode", lambda *given: tokens.append(len(calls)) or encode(*given))
        patch.setattr(UnknownTokens, "warning", lambda *given: "")  # it encodes once more, when all is read
        prepare(DataConfig(path=(str(file),)), TOKENIZER, tmp_path / "s", lambda *at: calls.append(at))
    done = np.array([0, *(at[0] for at in calls)])
    assert done[-1] == file.stat().st_size and 0 <= np.diff(done).min() and np.diff(done).max() <= 1 << 19
    assert len(tokens) > 1 and (np.diff([*tokens, len(calls)]) > 0).all()  # between any two batches


def test_a_killed_preparation_leaves_nothing_that_looks_whole(tmp_path: Path):
    lines = random_documents(1, 4000)
    (tmp_path / "a.txt").write_text(as_text(lines), "utf-8")
    program = (
        "import sys, time\n"
        "from contexture.data.config import DataConfig\n"
        "from contexture.data.pretraining.tokenize_corpus import prepare\n"
        "from contexture.data.tokenizers.wordpiece import WordPiece\nfrom tests.helpers.slow_pairs import vocabulary\n"
        "def slow(done, total):\n    print(done, flush=True); time.sleep(0.01)\n"
        "prepare(DataConfig(path=(sys.argv[1],)), WordPiece(vocabulary(), True), sys.argv[2], slow)"
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / "a.txt"), str(tmp_path / "s")]
    child = subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    (left,) = tmp_path.glob(".s.parts-*")
    assert not (tmp_path / "s").exists()
    theirs = tmp_path / ".s.partial"  # a folder of the user's own, which no preparation may touch
    theirs.mkdir()
    shards = prepare(DataConfig(path=(str(tmp_path / "a.txt"),), split_sentences=False), TOKENIZER, tmp_path / "s")
    assert shards.sentences == sum(map(len, lines)) and theirs.is_dir()
    # What the killed one has left is of other settings, and stays.
    assert sorted(os.listdir(tmp_path)) == sorted([left.name, ".s.partial", "a.txt", "s"])


def test_shards_made_for_something_else_are_refused(tmp_path: Path):
    from contexture.train.errors import ConfigError
    from contexture.train.settings.run import Run
    from contexture.train.setup import open_data

    (tmp_path / "a.txt").write_text("some text\nof two lines\n")
    text = (str(tmp_path / "a.txt"),)
    learned = learn_characters(["some text of two lines\n"], 99)
    prepare(DataConfig(path=text, documents="files"), learned, tmp_path / "windows", stream="windows")
    prepare(DataConfig(path=text), learned, tmp_path / "pairs")
    for folder, stream, message in (
        (
            "pairs",
            "windows",
            r"for the family bert, and this model is of gpt; prepare the text again: contexture prepare g",
        ),
        ("windows", "sentence_pairs", r"for the family gpt, and this model is of bert; prepare the text again"),
        ("windows", "windows", r"was prepared with --data\.documents files; give the same"),
    ):
        data = DataConfig(path=(str(tmp_path / folder),))
        run = Run(data=data) if stream == "sentence_pairs" else Run(model=GptConfig(), data=data)
        with pytest.raises(ConfigError, match=message):
            open_data(run, tmp_path / "run", NEVER)


def test_text_that_is_not_there_is_asked_for_by_its_option(tmp_path: Path):
    (tmp_path / "a.txt").write_text("A b c.\n", "utf-8")
    here, nowhere = str(tmp_path / "a.txt"), str(tmp_path / "nowhere")
    for path, dev, option in ((here, (nowhere,), "data.dev"), (nowhere, (), "data.path")):
        with pytest.raises(DataError, match=rf"nowhere: {option} names no such file or folder"):
            prepare(DataConfig(path=(path,), dev=dev), TOKENIZER, tmp_path / "shards")

"""Shards that are not as they were written are never read from: each harm is one clear line."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from contexture.data.binary_files import fingerprint_of
from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.pretraining import shards as shards_module
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.tokenizers.wordpiece import learn_wordpiece
from tests.data.pretraining.test_shards import ROOT, TOKENIZER, _prepared
from tests.helpers.long import long
from tests.helpers.slow_pairs import random_documents


def test_damaged_shards_are_refused(tmp_path: Path):
    _prepared(tmp_path, {"a.txt": random_documents(1, 5)})
    folder = tmp_path / "shards"
    with pytest.raises(DataError, match=r"holds no shards \(index\.json is missing\); prepare the text again into"):
        Shards.open(tmp_path)
    for name in ("tokens-00000.bin", "sentences.bin", "train.bin", "unigrams.bin"):
        raw = (folder / name).read_bytes()
        (folder / name).write_bytes(raw[:-1])
        with pytest.raises(DataError, match=rf"{name}: {len(raw) - 1} bytes where the index says {len(raw)}; prepare"):
            Shards.open(folder)
        (folder / name).unlink()
        with pytest.raises(DataError, match=rf"{name}: missing; prepare"):
            Shards.open(folder)
        (folder / name).write_bytes(raw)
    index = (folder / "index.json").read_text("utf-8")
    (folder / "index.json").write_text(index.replace('"format": 1', '"format": 3'), "utf-8")
    with pytest.raises(DataError, match="shards of format 3, this reads format 1; prepare"):
        Shards.open(folder)
    (folder / "index.json").write_text(index[:50], "utf-8")
    with pytest.raises(DataError, match="not the index of shards"):
        Shards.open(folder)
    (folder / "index.json").write_text(index, "utf-8")
    shutil.rmtree(folder / "tokenizer")
    learn_wordpiece(["a b c"] * 9, 50, True).save(folder / "tokenizer")
    with pytest.raises(DataError, match="not the tokenizer that made these shards"):
        _ = Shards.open(folder).tokenizer


def _flip(file: Path, at: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[at] ^= 1
    file.write_bytes(raw)


def test_a_flipped_byte_of_any_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _prepared(tmp_path, {"a.txt": random_documents(1, 40)}, dev_fraction=0.2, per_file=64).verify()
    folder = tmp_path / "shards"
    files = sorted(file.name for file in folder.glob("*.bin"))
    assert len(files) > 6
    for name in files:
        size = (folder / name).stat().st_size
        for at in {0, size // 2, size - 1}:
            _flip(folder / name, at)
            damaged = rf"{name}: damaged, not the bytes that were written .*; prepare the text again into another"
            with pytest.raises(DataError, match=damaged):
                Shards.open(folder)  # it is small
            with monkeypatch.context() as patch:
                patch.setattr(shards_module, "_SMALL", -1)
                large = Shards.open(folder)
            with pytest.raises(DataError, match=damaged):
                large.verify()
            _flip(folder / name, at)
    shards = Shards.open(folder)
    (folder / files[0]).unlink()
    with pytest.raises(DataError, match=rf"{files[0]}: cannot be read"):
        shards.verify()


def test_a_flipped_byte_of_the_kept_tokenizer_is_found(tmp_path: Path):
    _prepared(tmp_path, {"a.txt": random_documents(1, 5)})
    vocab, options = (tmp_path / "shards" / "tokenizer" / name for name in ("vocab.txt", "tokenizer.json"))
    for at in range(0, vocab.stat().st_size, 5):
        _flip(vocab, at)
        with pytest.raises(DataError):
            Shards.open(tmp_path / "shards").verify()
        _flip(vocab, at)
    Shards.open(tmp_path / "shards").verify()
    options.write_text(options.read_text().replace("true", "false"))
    with pytest.raises(DataError, match="not the tokenizer that made these shards; prepare the text again into"):
        Shards.open(tmp_path / "shards").verify()


def _leaves(tree, path=()):
    """Every place in JSON, branches too."""
    if path:
        yield path
    for key, inner in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from _leaves(inner, (*path, key))


@pytest.mark.parametrize("every", [5, *long(1)])
def test_an_index_that_is_not_as_it_was_written_is_refused_in_one_line(tmp_path: Path, every: int):
    _prepared(tmp_path, {"a.txt": random_documents(1, 40)}, dev_fraction=0.2, per_file=64)
    file = tmp_path / "shards" / "index.json"
    text = file.read_text("utf-8")
    folder = file.parent

    def refused(index: dict) -> None:
        file.write_text(json.dumps(index), "utf-8")
        with pytest.raises(DataError, match="; prepare the text again into another folder$") as caught:
            Shards.open(folder)
        assert "\n" not in str(caught.value)

    changes = ("remove", None, "x", -1, 10**6, [], {}, [None], 1.5, True)
    for number, place in enumerate(_leaves(json.loads(text))):
        for change in changes[number % every :: every]:
            index = json.loads(text)
            *above, last = place
            inner = index
            for key in above:
                inner = inner[key]
            same_kind = type(change) is type(inner[last])
            if same_kind and change == inner[last]:
                continue
            removed = change == "remove"
            if removed:
                del inner[last]
            else:
                inner[last] = change
            refused(index)
            wrong = isinstance(inner, dict) if removed else not same_kind
            if wrong and last not in ("fingerprint", "dev_fraction"):  # even where somebody sealed it anew
                refused({**index, "fingerprint": fingerprint_of(index)})
    file.write_text(text, "utf-8")
    Shards.open(folder).verify()
    generator = random.Random(0)
    whole = json.loads(text)
    for at in generator.sample(range(len(text)), 60):
        _flip(file, at)
        try:
            same = json.loads(file.read_text("utf-8")) == whole
        except ValueError:
            same = False
        if not same:  # not a space between two marks
            with pytest.raises(DataError):
                Shards.open(folder)
        _flip(file, at)


def test_the_index_says_what_shards_were_made_for(tmp_path: Path):
    pairs = _prepared(tmp_path, {"a.txt": random_documents(1, 5)})
    assert (pairs.stream, pairs.documents) == ("sentence_pairs", "blank_lines") and "stream" not in pairs.index

    def open_with(**more: Any) -> Shards:
        index = {**pairs.index, **more}
        sealed = {**index, "fingerprint": fingerprint_of(index)}
        (pairs.folder / "index.json").write_text(json.dumps(sealed), "utf-8")
        return Shards.open(pairs.folder)

    windows = open_with(stream="windows", documents="files")
    assert (windows.stream, windows.documents) == ("windows", "files")
    for wrong in ({"stream": "lines"}, {"stream": None}, {"documents": ["files"]}):
        with pytest.raises(DataError, match="stream or documents is not what it should be; prepare the text again"):
            open_with(**wrong)


def test_a_text_folder_with_some_index_json_is_a_text_folder(tmp_path: Path):
    for text in ("{}", "[1]", '{"format": 9}', '{"format": 9, "splits": []}', "not JSON", "[" * 100_000):
        (tmp_path / "index.json").write_text(text)
        assert not Shards.is_at(tmp_path)
        with pytest.raises(DataError, match="not the index of shards|format 9"):
            Shards.open(tmp_path)
    (tmp_path / "a.txt").write_text("w1\nw2")
    shards = prepare(DataConfig(path=(str(tmp_path),)), TOKENIZER, tmp_path / "s")
    assert Shards.is_at(shards.folder) and not Shards.is_at(tmp_path / "a.txt") and not Shards.is_at(tmp_path / "none")
    (shards.folder / "index.json").write_text("{")
    with pytest.raises(DataError, match=r"holds shards, not text; give their folder alone, with the index\.json that"):
        prepare(DataConfig(path=(str(shards.folder),)), TOKENIZER, tmp_path / "t")


def test_no_message_asks_to_remove_a_folder_of_data():
    for file in (ROOT / "data").rglob("*.py"):
        assert "remove it" not in file.read_text("utf-8") and "; remove" not in file.read_text("utf-8")


def test_a_place_that_cannot_be_a_folder_is_refused(tmp_path: Path):
    (tmp_path / "a.txt").write_text("w1\nw2")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    config = DataConfig(path=(str(tmp_path / "a.txt"),))
    for to, message in (("a.txt", "a file where a folder is wanted"), ("a.txt/s", "a.txt is a file")):
        with pytest.raises(DataError, match=message):
            prepare(config, TOKENIZER, tmp_path / to)
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "link"]
    assert Shards.open(prepare(config, TOKENIZER, tmp_path / "link").folder).sentences == 2
    assert (tmp_path / "gone" / "index.json").is_file()

"""Windows: whole documents, byte for byte, as one row; every window once a pass, every held-out token once."""

import hashlib
import json
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.batches import check_fields, iterate
from contexture.data.cancel import NEVER
from contexture.data.config import DataConfig
from contexture.data.describe import describe
from contexture.data.families.registry import TEXT_FAMILIES
from contexture.data.pretraining.lm_windows import FIELDS, PACKED, HeldOutWindows, WindowBatches
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.tokenize_corpus import RUN, prepare
from contexture.data.text import sources
from contexture.data.text.sources import expand, whole_texts
from contexture.data.tokenizers.byte_pair import learn_byte_bpe
from contexture.data.tokenizers.char_level import learn_characters
from contexture.data.tokenizers.sentencepiece_model import learn_sentencepiece
from contexture.models.config import GptConfig
from contexture.train.settings.run import Run
from tests.data.text.test_sources import TEXT, documents_of

ROOT = Path(__file__).parents[3]
SEED = 5


class Bytes:
    """A token is a byte of UTF-8; `end` stands behind a document, unless there is none."""

    kind, size, pad, unk, lossless = "bytes", 257, 0, None, True

    def __init__(self, end: int | None = 256) -> None:
        self.end = end
        self.fingerprint = hashlib.sha256(f"{self.kind} {end}".encode()).hexdigest()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode()) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")

    def token(self, id: int) -> str:
        return "<end>" if id == self.end else chr(id)

    def split_long(self, text: str, limit: int) -> list[str]:
        return [text[at : at + limit] for at in range(0, len(text), limit)]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)


class Words(Bytes):
    """A token is a word with the white space before it, hashed, so that a cut within it would be seen."""

    kind = "words"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[zlib.crc32(word.encode()) % 256 for word in self._words(text)] for text in texts]

    def split_long(self, text: str, limit: int) -> list[str]:
        parts = [""]
        for word in self._words(text):
            parts += [""] if len(parts[-1]) >= limit else []
            parts[-1] += word
        return parts

    def _words(self, text: str) -> list[str]:
        return re.findall(r"\s*\S+|\s+", text)


TOKENIZERS: dict[str, Any] = {each.fingerprint: each for each in (Bytes(), Bytes(None), Words())}
BYTES, ENDLESS, WORDS = TOKENIZERS.values()


def known(shards: Shards) -> Shards:
    """The same shards, which find their tokenizer among those of this file."""
    shards.__dict__["tokenizer"] = TOKENIZERS[shards.tokenizer_fingerprint]
    return shards


def _prepared(folder: Path, files: dict[str, str], tokenizer: Any = BYTES, dev: tuple[str, ...] = (), **more) -> Shards:
    for name, text in files.items():
        (folder / name).write_bytes(text.encode())
    per_file = more.pop("per_file", 1 << 20)
    paths = tuple(str(folder / name) for name in files if name not in dev)
    config = DataConfig(path=paths, dev=tuple(str(folder / name) for name in dev), **more)
    return known(prepare(config, tokenizer, folder / "shards", stream="windows", per_file=per_file))


def _config(**more) -> DataConfig:
    return DataConfig(**{"length": 16, "batch": 8, **more})


def _row(shards: Shards, split: str) -> list[int]:
    """The tokens of a split, by way of its documents."""
    side = shards.splits[split]
    spans = [shards.offsets(first, last)[[0, -1]] for first, last in side.bounds(0, side.documents).tolist()]
    return [token for a, b in spans for token in shards.read(np.array([a]), np.array([b - a])).tolist()]


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=4), st.integers(1, 9), st.sampled_from([BYTES, ENDLESS, WORDS]))
def test_the_shards_hold_the_tokens_of_whole_documents(tmp_path_factory, texts, small, tokenizer):
    texts = ["one\ntwo", *("x" + text for text in texts)]
    files = {f"{number}.txt": text for number, text in enumerate(texts)}
    for documents in ("blank_lines", "files"):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (("CHUNK", small), ("_PART", small + 2), ("_BATCH", 3 * small)):
                patch.setattr(sources, name, value)
            shards = _prepared(tmp_path_factory.mktemp("s"), files, tokenizer, documents=documents, per_file=50)
        whole = [d for text in texts for d in (documents_of(text) if documents == "blank_lines" else [text])]
        end = [] if tokenizer.end is None else [tokenizer.end]
        expected = [[*tokenizer.encode([document])[0], *end] for document in whole]
        assert _row(shards, "train") == sum(expected, [])
        assert shards.splits["train"].documents == len(whole)
        assert shards.unigrams().tolist() == np.bincount(sum(expected, []), minlength=257).tolist()
        if tokenizer is BYTES and documents == "files":
            restored = bytes(token if token < 256 else 10 for token in _row(shards, "train"))
            assert restored == b"".join(text.encode() + b"\n" for text in texts)
        for (first, last), ids in zip(shards.splits["train"].bounds(0, len(whole)).tolist(), expected, strict=True):
            runs = np.diff(shards.offsets(first, last))
            assert runs.sum() == len(ids) and (runs[:-1] == RUN).all() and 1 <= runs[-1] <= RUN


LEARNERS = {
    "byte-bpe": learn_byte_bpe,
    "characters": learn_characters,
    "sentencepiece": partial(learn_sentencepiece, kind="sentencepiece-unigram"),
}


@pytest.mark.parametrize("kind", LEARNERS)
def test_vocabularies_that_lose_nothing_give_the_files_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    texts = ["One  two;\r\n\r\n\tthree,\n\n\n four' five\n" * 20 + "so", "\nÄrger, 漢字 😀 \n" * 30]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_bytes(text.encode())
    config = DataConfig(path=(str(tmp_path),), documents="files")
    tokenizer = LEARNERS[kind](whole_texts(expand(tmp_path), "files"), 350)
    for name, value in (("CHUNK", 30), ("_PART", 20), ("_BATCH", 200)):
        monkeypatch.setattr(sources, name, value)
    shards = prepare(config, tokenizer, tmp_path / "shards", stream="windows")
    end = [] if tokenizer.end is None else [tokenizer.end]
    row = _row(shards, "train")
    assert row == [id for ids in tokenizer.encode(texts) for id in [*ids, *end]]
    assert shards.tokenizer.decode([id for id in row if id != tokenizer.end]) == "".join(texts)


def test_every_kind_of_source_gives_the_same_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from tests.helpers.tfds_sets import build

    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    rows = ["one\r\n two ", "\n\nthree\n\nfour\n", "fünf"]
    build(tmp_path / "tfds", "lm1b", {"train": [{"text": text} for text in rows]})
    files = {"a.jsonl": "\n".join(json.dumps({"text": text}) for text in [*rows, ""])}
    of_rows = _prepared(tmp_path, files)
    config = DataConfig(path=("tfds:lm1b",))
    of_set = known(prepare(config, BYTES, tmp_path / "of_set", stream="windows"))
    one_by_one = tmp_path / "files"
    one_by_one.mkdir()
    of_files = _prepared(one_by_one, {f"{n}.txt": text for n, text in enumerate(rows)}, documents="files")
    expected = b"".join(text.encode() + b"\xff" for text in rows)
    for shards in (of_rows, of_set, of_files):
        assert bytes(min(token, 255) for token in _row(shards, "train")) == expected
        assert shards.splits["train"].documents == 3
    assert (of_files.stream, of_files.documents, of_rows.documents) == ("windows", "files", "blank_lines")
    assert "".join(whole_texts(expand([tmp_path / "a.jsonl"]), "files")) == "".join(rows)


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5])
def test_the_last_share_is_held_out(tmp_path: Path, fraction: float):
    one = "".join(chr(97 + n % 26) for n in range(3000))
    count = "\n\n".join("d" * (20 + 7 * n) for n in range(30))
    shards = _prepared(tmp_path, {"one.txt": one, "many.txt": count}, dev_fraction=fraction)
    documents = [[*d.encode(), 256] for d in ([one] + [f"{d}\n" for d in count.split("\n\n")[:-1]] + ["d" * 223])]
    train, dev = _row(shards, "train"), _row(shards, "dev")
    at = next(n for n in range(len(train)) if train[n : n + 1] != documents[0][n : n + 1])
    assert abs((3001 - at) - fraction * 3001) <= RUN and dev[: 3001 - at] == documents[0][at:]
    kept = next(n for n in range(30) if train[at:] == sum(documents[1 : n + 1], []))
    assert dev[3001 - at :] == sum(documents[kept + 1 :], [])
    total = sum(map(len, documents[1:]))
    assert len(dev) - (3001 - at) <= max(fraction * total, len(documents[-1]))
    assert kept == 29 or len(dev) - (3001 - at) + len(documents[kept]) > fraction * total
    assert shards.splits["dev"].tokens == len(dev) and shards.splits["train"].tokens == len(train)
    assert shards.unigrams().tolist() == np.bincount(train, minlength=257).tolist()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """Three files with held-out ends, in token files of 100 tokens."""
    rng = np.random.default_rng(1)
    documents = ["".join(map(chr, rng.integers(97, 123, rng.integers(1, 60)))) for _ in range(120)]
    files = {f"{n}.txt": "\n\n".join(documents[n::3]) for n in range(3)}
    return _prepared(tmp_path_factory.mktemp("windows"), files, dev_fraction=0.3, per_file=100)


def _lines(batches: Any, steps: int) -> dict[str, np.ndarray]:
    """Whole batches behind each other."""
    read = [batches.read(step) for step in range(steps)]
    return {name: np.concatenate([batch[name] for batch in read]) for name in read[0]}


@pytest.mark.parametrize("length", [2, 16, 61, 512])
@pytest.mark.parametrize("packed", [False, True])
def test_each_pass_has_each_window_once_and_windows_are_slices(shards: Shards, length: int, packed: bool):
    row = np.array(_row(shards, "train"))
    batches = WindowBatches(shards, _config(length=length, packed=packed), seed=SEED)
    N = batches.examples_per_epoch
    assert N == len(row) // length - 1
    shifts = []
    for e in range(3):
        starts = batches.starts(np.arange(e * N, (e + 1) * N))
        shifts.append(shift := int(starts.min()))
        assert sorted(starts.tolist()) == list(range(shift, shift + N * length, length))
        assert 0 <= shift < length and starts.max() + length < len(row)
        assert N < 9 or starts.tolist() != sorted(starts.tolist())
        for number, start in enumerate(starts.tolist()[:40], e * N):
            line = batches.read(number // 8, np.array([number % 8]))
            assert line["tokens"][0].tolist() == row[start : start + length].tolist()
            assert line["next"][0].tolist() == row[start + 1 : start + length + 1].tolist()
            assert line["mask"].all() and line["valid"].all() and (packed or line["next_weights"].all())
    assert length < 16 or len(set(shifts)) > 1


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_rows_of_any_batch_in_any_order_are_the_same_lines(shards: Shards, batch: int):
    whole = _lines(WindowBatches(shards, _config(batch=1, packed=True), seed=SEED), 3 * 64)
    batches = WindowBatches(known(Shards.open(shards.folder)), _config(batch=batch, packed=True), seed=SEED)
    for step in reversed(range(192 // batch)):
        rows = np.random.default_rng(step).permutation(batch)
        for name, array in batches.read(step, rows).items():
            assert array.dtype == whole[name].dtype and (array == whole[name][step * batch + rows]).all()
    assert batches.rows_read == 192 // batch * batch
    check_fields(batches.read(0), batches.fields)
    assert batches.fields == {**FIELDS, **PACKED} and set(batches.fields) == set(whole)


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for packed in (False, True):
        batches = WindowBatches(known(Shards.open(folder)), _config(packed=packed), seed=SEED)
        for step in (0, 7, 12345):
            for name, array in sorted(batches.read(step).items()):
                digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def test_batches_are_the_same_in_every_process(shards: Shards):
    program = (
        "import sys\nfrom pathlib import Path\nfrom tests.data.pretraining.test_lm_windows import _digest\n"
        "print(_digest(Path(sys.argv[1])), 'jax' in sys.modules)"
    )
    arguments = [sys.executable, "-c", program, str(shards.folder)]
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [_digest(shards.folder), "False"]
    one, other = (WindowBatches(shards, _config(), seed=seed) for seed in (SEED, SEED + 1))
    assert (one.read(0)["tokens"] != other.read(0)["tokens"]).any(axis=1).all()


@pytest.mark.parametrize("batch", [1, 7, 64])
@pytest.mark.parametrize("length", [2, 16, 10**5])
def test_every_held_out_token_but_the_first_is_predicted_once(shards: Shards, batch: int, length: int):
    row = np.array(_row(shards, "dev"))
    held_out = HeldOutWindows(shards, _config(batch=batch, length=length))
    lines = _lines(held_out, held_out.steps)
    used = lines["next_weights"] > 0
    assert lines["next"][used].tolist() == row[1:].tolist() and lines["tokens"][used].tolist() == row[:-1].tolist()
    real = lines["valid"] > 0
    assert (lines["mask"][real] == used[real]).all() and real.sum() == held_out.count
    assert not lines["tokens"][~used & real[:, None]].any() and not lines["next"][~used & real[:, None]].any()
    assert used.shape == (held_out.steps * batch, length) and lines["mask"].any(axis=1).all()
    with iterate(held_out, 0, held_out.steps) as steps:
        assert sum(float(batch["next_weights"].sum()) for _, batch in steps) == len(row) - 1
    with pytest.raises(IndexError):
        held_out.read(held_out.steps)


def test_windows_side_by_side_are_read_at_once(shards: Shards, monkeypatch: pytest.MonkeyPatch):
    held_out = HeldOutWindows(shards, _config(batch=64))
    spans = []
    read = held_out.row.read
    monkeypatch.setattr(
        held_out.row, "read", lambda starts, lengths: spans.append(len(starts)) or read(starts, lengths)
    )
    held_out.read(0)
    held_out.read(0, np.array([5, 6, 9, 10, 3]))
    assert spans == [1, 3]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text("ab", min_size=1, max_size=12), min_size=2, max_size=20), st.integers(2, 30))
def test_packed_documents_do_not_see_each_other(tmp_path_factory, texts, length):
    files = {"a.jsonl": "\n".join(json.dumps({"text": text}) for text in texts)}
    shards = _prepared(tmp_path_factory.mktemp("packed"), files, dev_fraction=0.5)
    row = _row(shards, "dev")
    document = np.cumsum([0] + [token == 256 for token in row])[:-1]
    held_out = HeldOutWindows(shards, _config(length=length, packed=True, batch=3))
    lines = _lines(held_out, held_out.steps)
    check_fields(lines, held_out.fields)
    for number in range(held_out.count):
        begin = number * length
        own = document[begin : begin + length][: len(row) - 1 - begin]
        packs, positions = lines["packs"][number], lines["positions"][number]
        fill = [0] * (length - len(own))
        assert packs.tolist() == [*(own - own[0] + 1).tolist(), *fill]
        assert positions.tolist() == [*(int((own[:n] == own[n]).sum()) for n in range(len(own))), *fill]
        same = [int(document[begin + n] == document[begin + n + 1]) for n in range(len(own))]
        assert lines["next_weights"][number].tolist() == [*same, *fill]


def test_the_road_is_chosen_by_the_stream_and_says_what_there_is(shards: Shards):
    text = TEXT_FAMILIES["gpt"]
    batches = text.open_batches(shards, _config(), SEED, NEVER)
    held_out = text.open_held_out(shards, _config(batch=3), 0, NEVER)
    assert isinstance(batches, WindowBatches) and isinstance(held_out, HeldOutWindows) and held_out.batch == 3
    split = shards.splits["train"]
    assert batches.describe() == (
        f"{split.tokens:,} tokens in {split.documents:,} documents; an epoch is {split.tokens // 16 - 1:,} windows"
    )


def test_a_window_is_described_as_its_text(tmp_path: Path):
    shards = _prepared(tmp_path, {"a.txt": "to be,\r\nor not\n\nto"})
    for packed, facts in ((False, "18 tokens; 18 to predict"), (True, "18 tokens; 2 documents apart; 17 to predict")):
        line = WindowBatches(shards, _config(length=18, packed=packed), seed=0).read(0)
        assert describe(line, 0, BYTES) == f"to be,⏎or not⏎<end>to\n({facts})"


def _refused(message: str, what: Any, *words: Any, **more: Any) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        what(*words, **more)
    assert "\n" not in str(caught.value)


def test_text_that_gives_no_window_is_refused(tmp_path: Path):
    _refused(r"a\.txt: no text in the file; it wants text in UTF-8", _prepared, tmp_path, {"a.txt": " \n\n"})
    _refused(r"a\.txt: fewer than two tokens to train on; give", _prepared, tmp_path, {"a.txt": "x"}, ENDLESS)
    _refused(r"a\.txt:2: not UTF-8", lambda: prepare(_bad(tmp_path), BYTES, tmp_path / "s", stream="windows"))
    few = learn_characters(["fine"], 9)
    _refused(
        r"a\.txt: the character '\\n'",
        lambda: prepare(_bad(tmp_path, b"fine\n"), few, tmp_path / "s", stream="windows"),
    )
    assert os.listdir(tmp_path) == ["a.txt"]
    shards = _prepared(tmp_path, {"a.txt": "x" * 16})
    assert WindowBatches(shards, _config(length=16), seed=1).examples_per_epoch == 1
    assert WindowBatches(shards, _config(length=9), seed=1).examples_per_epoch == 1
    message = r"the train text has 17 tokens, too few for a window of data\.length=17 and the token after it; lower"
    _refused(message, WindowBatches, shards, _config(length=17), seed=1)
    _refused(r"no dev text; prepare it again with data\.dev or data\.dev-fraction", HeldOutWindows, shards, _config())
    other = tmp_path / "other"
    other.mkdir()
    single = _prepared(other, {"a.txt": "some text", "b.txt": "x"}, ENDLESS, dev=("b.txt",))
    _refused(r"the dev text has a single token; prepare it again and hold out more", HeldOutWindows, single, _config())
    message = r"data\.packed wants a vocabulary with a token that ends documents, and that of kind bytes has none;"
    _refused(message, WindowBatches, single, _config(length=4, packed=True), seed=1)


def _bad(folder: Path, text: bytes = b"fine\n\xff\n") -> DataConfig:
    (folder / "a.txt").write_bytes(text)
    return DataConfig(path=(str(folder / "a.txt"),))


def test_what_does_not_fit_a_stream_is_refused():
    def gpt(**data) -> Run:
        return Run(model=GptConfig(), data=DataConfig(**data))

    def bert(**data) -> Run:
        return Run(data=DataConfig(**data))

    assert gpt(length=4, max_predictions=20).data.length == 4
    _refused(r"data\.length=1 is too short for a window of text; give at least 2", gpt, length=1)
    _refused(r"data\.length=7 is too short for a pair of sentences", bert, length=7)
    _refused(r"data\.documents has no meaning for pretraining a BERT", bert, documents="files")


def test_text_without_a_window_is_named_and_not_what_is_held_out(tmp_path: Path):
    both = {"a.txt": "x", "b.txt": "held out"}
    _refused(r"a\.txt: fewer than two tokens to train on; give", _prepared, tmp_path, both, ENDLESS, ("b.txt",))

"""Units that an ERNIE masks together: found by rows, a list or a segmenter, kept with tokens, and masked as wholes."""

import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.pretraining.join_parts import join
from contexture.data.pretraining.sentence_pairs import PairBatches
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.text_parts import job_of
from contexture.data.pretraining.tokenize_corpus import prepare, tokenize_part
from contexture.data.pretraining.units import (
    CONTINUES_ENTITY,
    CONTINUES_PHRASE,
    ID,
    Units,
    by_beginning,
    longest_matches,
    units_of,
)
from contexture.data.text.row_facts import RowSpans
from contexture.data.tokenizers.wordpiece import WordPiece
from tests.conftest import SHARED

LETTERS = "abcdefgh"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), "。", "天", "安", "门"]
TOKENIZER = WordPiece(PIECES, True)


@st.composite
def marked_texts(draw: st.DrawFn) -> tuple[str, list[tuple[int, int]], list[tuple[int, int]]]:
    text = draw(st.text("天安门abc ", min_size=1, max_size=30))
    place = st.integers(0, len(text))
    span = (
        st.tuples(place, place).map(sorted).filter(lambda each: each[0] < each[1]).map(lambda each: (each[0], each[1]))
    )
    return text, draw(st.lists(span, max_size=6)), draw(st.lists(span, max_size=3))


@given(marked_texts())
@settings(max_examples=300, deadline=None)
def test_a_token_continues_the_unit_of_the_one_before(case: tuple[str, list[tuple[int, int]], list[tuple[int, int]]]):
    """Character by character: the first span that holds it, entities before words."""
    text, words, entities = case
    units = Units(None, None, True, {})
    ((ids, offsets),) = TOKENIZER.encode_with_offsets([text])
    marks = units.marks(text, offsets, RowSpans(text, words, entities))

    def unit(place: int, spans: list[tuple[int, int]]) -> int | None:
        return next((number for number, (first, last) in enumerate(spans) if first <= place < last), None)

    assert len(marks) == len(ids)
    for number, (first, _) in enumerate(offsets):
        before = offsets[number - 1][0] if number else -1
        by_word = number > 0 and unit(first, words) is not None and unit(first, words) == unit(before, words)
        one, other = (unit(place, entities) for place in (first, before))
        by_entity = number > 0 and (one == other if one is not None or other is not None else by_word)
        assert bool(marks[number] & CONTINUES_PHRASE) == by_word
        assert bool(marks[number] & CONTINUES_ENTITY) == by_entity


@given(st.text("天安门ab ", max_size=25), st.sets(st.text("天安门ab ", min_size=1, max_size=4), min_size=1, max_size=8))
@settings(max_examples=300, deadline=None)
def test_the_longest_name_that_stands_in_a_text_is_a_unit(text: str, names: set[str]):
    def borders(first: int, last: int) -> bool:
        return all(not (0 < at < len(text) and text[at - 1] in "ab" and text[at] in "ab") for at in (first, last))

    expected, at = [], 0
    while at < len(text):
        found = [at + len(n) for n in names if text.startswith(n, at) and borders(at, at + len(n))]
        if found:
            expected.append((at, max(found)))
        at = max(found, default=at + 1)
    assert longest_matches(by_beginning(names), text) == expected


def rows_file(folder: Path, count: int = 60) -> Path:
    """Rows of two or three lines, with words of one to three characters and an entity in some."""
    rng = np.random.default_rng(4)
    rows = []
    for number in range(count):
        text, words = "", []
        for size in rng.integers(1, 4, 30).tolist():
            words.append([len(text), len(text) + size, "X"])
            text += "".join(rng.choice(list("天安门"), size))
            if rng.random() < 0.2:
                text += "\n"
        entities = [[words[4][0], words[5][1], "LOC"]] if number % 2 else []
        rows.append({"text": text, "words": words, "entities": entities, "id": str(number)})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return folder / "rows.jsonl"


def config_of(file: Path, **options) -> DataConfig:
    return DataConfig(path=(str(file),), split_sentences=False, batch=8, length=48, **options)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    folder = tmp_path_factory.mktemp("units")
    return prepare(config_of(rows_file(folder), units="spans"), TOKENIZER, folder / "shards")


def test_tokens_with_units_are_the_tokens_without(shards: Shards, tmp_path: Path):
    plain = prepare(config_of(Path(shards.folder).parent / "rows.jsonl"), TOKENIZER, tmp_path / "plain")
    whole = np.array([0]), np.array([plain.index["tokens"]])
    assert (shards.read(*whole) & ID == plain.read(*whole)).all()
    assert (shards.unigrams() == plain.unigrams()).all() and shards.index["sentences"] == plain.index["sentences"]
    assert shards.index.get("units") == {"units": "spans"} and "units" not in plain.index
    assert shards.fingerprint != plain.fingerprint


@pytest.mark.parametrize("count", [1, 3])
def test_units_are_the_same_in_any_number_of_parts(shards: Shards, count: int, tmp_path: Path):
    job = job_of(config_of(Path(shards.folder).parent / "rows.jsonl", units="spans"), TOKENIZER, "sentence_pairs")
    for part in reversed(range(count)):
        tokenize_part(job, tmp_path / "parts", part, count, lambda *_: None)
    joined = join(tmp_path / "parts", tmp_path / "joined", TOKENIZER)
    assert joined.fingerprint == shards.fingerprint


def chosen_units(batches: PairBatches, count: int, step: int | None = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(which places are masked, which continue a phrase, which continue an entity), of so many sequences."""
    numbers = np.arange(count)
    seen: dict[str, np.ndarray] = {}

    def continuing(self: PairBatches, tokens: np.ndarray, numbers: np.ndarray, step: int | None) -> Any:
        seen["tokens"] = tokens.copy()
        return original(self, tokens, numbers, step)

    original = PairBatches._continuing
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PairBatches, "_continuing", continuing)
        batch = batches.sequences(numbers, step)
    assert (batch["tokens"] <= ID).all()
    masked = np.zeros(batch["tokens"].shape, bool)
    used = batch["slot_weights"] > 0
    masked[np.nonzero(used)[0], batch["slots"][used]] = True
    # The first token of a text that was cut at its beginning continues nothing that is there.
    inside = np.pad(seen["tokens"][:, :-1] & ID, ((0, 0), (1, 0))) >= len(SPECIAL)
    phrase, entity = (inside & (seen["tokens"] & bit > 0) for bit in (CONTINUES_PHRASE, CONTINUES_ENTITY))
    return masked, phrase, entity


def broken(masked: np.ndarray, continues: np.ndarray) -> int:
    """How many units are masked in part."""
    return int((continues[:, 1:] & (masked[:, 1:] != masked[:, :-1])).sum())


def test_stages_mask_pieces_then_phrases_then_entities(shards: Shards):
    config = config_of(Path(shards.folder), masking="ernie", masking_stages=("pieces:5", "phrases:5", "entities"))
    batches = PairBatches(shards, config, seed=2)
    for step, whole in ((0, ""), (4, ""), (5, "phrase"), (9, "phrase"), (10, "entity"), (None, "entity")):
        masked, phrase, entity = chosen_units(batches, 60, step)
        assert 0.1 < masked.sum() / (60 * 48) < 0.2
        # An entity here is whole words.
        assert (broken(masked, phrase) == 0) == (whole != "")
        assert (broken(masked, entity) == 0) == (whole == "entity")


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_share_of_sequences_is_masked_by_units(shards: Shards, share: float):
    batches = PairBatches(shards, config_of(Path(shards.folder), masking="ernie", unit_fraction=share), seed=2)
    masked, _, entity = chosen_units(batches, 400)
    whole = np.array([broken(masked[row : row + 1], entity[row : row + 1]) == 0 for row in range(400)])
    # By chance single tokens leave every unit whole too, now and then.
    assert whole.mean() == pytest.approx(share, abs=0.08) if share != 1.0 else whole.all()


def test_whole_words_are_those_of_the_units(shards: Shards):
    """Chinese has no pieces of words: without units each character is a word."""
    batches = PairBatches(shards, config_of(Path(shards.folder), masking="whole_words"), seed=2)
    masked, phrase, _ = chosen_units(batches, 60)
    assert broken(masked, phrase) == 0 and phrase.sum() > 500


def test_a_segmenter_and_a_gazetteer_find_units(tmp_path: Path):
    pytest.importorskip("jieba", reason="the extra [zh] is not installed")
    (tmp_path / "names.txt").write_text("北京天安门广场\tLOC\n\n天安门\n", "utf-8")
    units = units_of(DataConfig(units="jieba", gazetteer=str(tmp_path / "names.txt")))
    assert units is not None and units.facts["units"].startswith("jieba 0.") and len(units.facts["gazetteer"]) == 64
    text = "我爱北京天安门广场和天安门"
    marks = units.marks(text, [(at, at + 1) for at in range(len(text))], None)
    assert units.segmenter is not None
    words = units.segmenter(text)
    assert "".join(text[a:b] for a, b in words) == text and 4 < len(words) < 9
    entity = [bool(mark & CONTINUES_ENTITY) for mark in marks]
    assert entity == [False, False, False, *[True] * 6, False, False, True, True]
    phrase = [at for at, mark in enumerate(marks) if mark & CONTINUES_PHRASE]
    assert phrase == [at for first, last in words for at in range(first + 1, last)]


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared beside the project")
def test_units_of_a_treebank_are_its_words_and_names(tmp_path: Path):
    file = SHARED / "data/zh_ernie_spans/ud_gsdsimp_dev.jsonl"
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    letters = sorted({letter for row in rows for letter in row["text"].lower() if not letter.isspace()})
    tokenizer = WordPiece([*SPECIAL, *letters, *(f"##{letter}" for letter in letters)], True)
    (tmp_path / "rows.jsonl").write_bytes(file.read_bytes())
    config = dataclasses.replace(config_of(tmp_path / "rows.jsonl", units="spans"), split_sentences=True)
    shards = prepare(config, tokenizer, tmp_path / "shards")
    tokens = shards.read(np.array([0]), np.array([shards.index["tokens"]]))
    # Of words in Chinese characters each but the first continues.
    expected = Counter[str]()
    for row in rows:
        for first, last, *_ in row["words"]:
            if all("\u4e00" <= letter <= "\u9fff" for letter in row["text"][first:last]):
                expected["continued"] += last - first - 1
    han = np.array(["\u4e00" <= piece[-1] <= "\u9fff" for piece in tokenizer.vocabulary])
    found = int(((tokens & CONTINUES_PHRASE > 0) & han[tokens & ID]).sum())
    assert expected["continued"] <= found < 1.02 * expected["continued"]
    assert int((tokens & CONTINUES_ENTITY > 0).sum()) > int((tokens & CONTINUES_PHRASE > 0).sum())


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"text": "天安"}, 'rows.jsonl:1: neither "words" nor "entities", which data.units=spans reads'),
        ({"text": "天安", "words": [[0, 3]]}, "rows.jsonl:1: 'words' of a row is '[[0, 3]]'; give [[first, last], …]"),
        ({"text": "天安", "words": [[1, 1]]}, "places in its text that has 2 characters"),
        ({"text": "天安", "entities": ["天"]}, "'entities' of a row is"),
        ({"text": "天安", "words": 3}, "'words' of a row is '3'"),
    ],
)
def test_a_wrong_row_is_one_line(row: dict[str, object], line: str, tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n", "utf-8")
    with pytest.raises(DataError) as caught:
        prepare(config_of(tmp_path / "rows.jsonl", units="spans"), TOKENIZER, tmp_path / "shards")
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_text_without_rows_has_no_spans(tmp_path: Path):
    (tmp_path / "a.txt").write_text("天安\n门\n", "utf-8")
    with pytest.raises(DataError, match="a.txt: no \\*.jsonl, in which data.units=spans reads words and entities"):
        prepare(config_of(tmp_path / "a.txt", units="spans"), TOKENIZER, tmp_path / "shards")
    for text, line in (("", "holds no name"), ("\n \n", "holds no name")):
        (tmp_path / "names.txt").write_text(text)
        with pytest.raises(DataError, match=line):
            units_of(DataConfig(gazetteer=str(tmp_path / "names.txt")))
    with pytest.raises(DataError, match="missing.txt: no such file"):
        units_of(DataConfig(gazetteer=str(tmp_path / "missing.txt")))
    shutil.rmtree(tmp_path / "shards", ignore_errors=True)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"masking_stages": ("pieces:5",)}, "'pieces:5' is not one of pieces, phrases, entities with its steps"),
        ({"masking_stages": ("pieces", "phrases")}, "'pieces' is not one of"),
        ({"masking_stages": ("words:5", "phrases")}, "'words:5' is not one of"),
        ({"masking_stages": ("pieces:0", "phrases")}, "'pieces:0' is not one of"),
        ({"masking_stages": ("pieces:5", "phrases"), "masking": "spans"}, "has no meaning without units; give"),
        ({"unit_fraction": 1.5}, "data.unit-fraction=1.5 is not in"),
    ],
)
def test_mistakes_in_options_are_one_line(options: dict, line: str):
    with pytest.raises(ValueError, match=line):
        DataConfig(**{"masking": "ernie", **options})

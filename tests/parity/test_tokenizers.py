"""Vocabularies as transformers reads them: the same tokens and ids as its fast tokenizers, brought in from its folders
and taken out again.

A special token that text spells out is text here, and cut out there; no text below holds one.
"""

import csv
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contexture.data.tokenizers.huggingface.read_folder import open_published
from contexture.data.tokenizers.huggingface.write_folder import transformers_files
from contexture.data.tokenizers.wordpiece import wordpiece

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

MODELS = {
    "uncased": ("BertTokenizer", "wordpiece", {"vocab.txt": "vocab_bert/bert-base-uncased-vocab.txt"}, True),
    "cased": ("BertTokenizer", "wordpiece", {"vocab.txt": "vocab_bert/bert-base-cased-vocab.txt"}, False),
    "chinese": ("BertTokenizer", "wordpiece", {"vocab.txt": "vocab_bert/bert-base-chinese-vocab.txt"}, True),
    "multilingual": (
        "BertTokenizer",
        "wordpiece",
        {"vocab.txt": "vocab_bert/bert-base-multilingual-cased-vocab.txt"},
        False,
    ),
    "gpt2": (
        "GPT2Tokenizer",
        "byte-bpe",
        {"vocab.json": "vocab_gpt2/encoder.json", "merges.txt": "vocab_gpt2/vocab.bpe"},
        None,
    ),
    "gpt1": (
        "OpenAIGPTTokenizer",
        "gpt1-bpe",
        {"vocab.json": "vocab_gpt1/encoder_bpe_40000.json", "merges.txt": "vocab_gpt1/vocab_40000.bpe"},
        None,
    ),
}
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<|endoftext|>", "<unk>")


@pytest.fixture(scope="module", params=MODELS)
def both(request: pytest.FixtureRequest, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(ours, theirs, theirs of what ours is written as, ours of what theirs is saved as)."""
    name, kind, files, lowercase = MODELS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    for file, source in files.items():
        shutil.copy(shared / "data" / source, folder / file)
    if lowercase is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}), "utf-8")
    ours = open_published(folder, kind, "", None, [])[0]
    theirs = getattr(transformers, name).from_pretrained(folder)
    assert theirs.is_fast and len(theirs) == ours.size
    theirs.save_pretrained(folder / "saved")
    out = folder / "out"
    out.mkdir()
    for file, content in transformers_files(ours, 512, {}, []).items():
        (out / file).write_bytes(content)
    again = transformers.AutoTokenizer.from_pretrained(out)
    assert type(again) is type(theirs)
    return ours, theirs, again, open_published(folder / "saved", kind, "", None, [])[0]


def agree(both: Any, texts: list[str]) -> None:
    """All four, ids and tokens."""
    texts = [text for text in texts if not any(special in text for special in SPECIAL)]
    ours, theirs, again, saved = both
    mine = ours.encode(texts)
    for other in (theirs, again):
        expected = other(texts, add_special_tokens=False)["input_ids"] if texts else []
        for text, a, b in zip(texts, mine, expected, strict=True):
            assert a == b, text
            if ours.kind != "byte-bpe":
                assert [ours.token(number) for number in a] == other.convert_ids_to_tokens(b), text
    assert saved.encode(texts) == mine and saved.fingerprint == ours.fingerprint


def texts_of(tree: Any) -> Iterator[str]:
    """Every text in a tree of JSON."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict | list):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from texts_of(item)


def test_every_golden_text_is_cut_alike(both: Any, shared: Path):
    texts: list[str] = []
    for folder in ("golden_tokenizer_bert", "golden_tokenizer_gpt2"):
        for file in sorted((shared / "data" / folder).glob("*.json*")):
            lines = file.read_text("utf-8")
            trees = map(json.loads, lines.splitlines()) if file.suffix == ".jsonl" else [json.loads(lines)]
            for tree in trees:
                texts += texts_of(tree)
    assert len(texts) > 10_000
    agree(both, list(dict.fromkeys(texts)))


def test_lines_of_books_and_of_six_languages_are_cut_alike(both: Any, shared: Path):
    lines = [line for file in sorted((shared / "data" / "pretrain_books").glob("*.txt"))
             for line in file.read_text("utf-8").splitlines() if line.strip()]  # fmt: skip
    drawn = random.Random(0).sample(lines, 14_000)
    with open(shared / "data" / "par_pud" / "pud.tsv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    drawn += [row[language] for row in rows for language in ("en", "de", "fr", "es", "ru", "zh")]
    assert len(drawn) == 20_000
    agree(both, drawn)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(max_size=40), min_size=5, max_size=20))
def test_any_text_is_cut_alike(both: Any, texts: list[str]):
    agree(both, texts)


@pytest.mark.parametrize("length", [99, 100, 101, 200, 201])
def test_long_words_end_alike(both: Any, length: int):
    agree(both, ["a" * length, "ab" * length, "é" * length])


def test_a_vocabulary_with_the_originals_limit_goes_out_whole(shared: Path, tmp_path: Path):
    """Words of 101 to 200 characters are read as the original reads them."""
    file = str(shared / "data" / "vocab_bert" / "bert-base-uncased-vocab.txt")
    ours = wordpiece(open_published(tmp_path, "wordpiece", file, True, [])[0])
    for name, content in transformers_files(ours, 512, {}, []).items():
        (tmp_path / name).write_bytes(content)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = ["Unbelievable Ünïted", "ab" * 75, "ab" * 101]
    assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode(text)
    assert theirs("a", "b")["input_ids"] == [
        ours.cls,
        *ours.encode(["a"])[0],
        ours.sep,
        *ours.encode(["b"])[0],
        ours.sep,
    ]
    assert theirs("a", "b")["token_type_ids"] == [0, 0, 0, 1, 1] and theirs.mask_token == "[MASK]"
    back = open_published(tmp_path, "wordpiece", "", None, [])[0]
    assert back.fingerprint == ours.fingerprint


def test_tokens_that_were_added_keep_their_ids(shared: Path, tmp_path: Path):
    """To a GPT-2: they stand behind the vocabulary, and no text spells them."""
    folder = tmp_path / "gpt2"
    folder.mkdir()
    for file, source in MODELS["gpt2"][2].items():
        shutil.copy(shared / "data" / source, folder / file)
    theirs = transformers.GPT2Tokenizer.from_pretrained(folder)
    theirs.add_special_tokens({"pad_token": "[PAD]", "additional_special_tokens": ["_start_"]})
    theirs.save_pretrained(tmp_path / "saved")
    ours = open_published(tmp_path / "saved", "byte-bpe", "", None, [])[0]
    assert dict(ours.specials) == {name: theirs.convert_tokens_to_ids(name) for name in ("[PAD]", "_start_")}
    (tmp_path / "out").mkdir()
    for name, content in transformers_files(ours, 512, {}, []).items():
        (tmp_path / "out" / name).write_bytes(content)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert len(again) == ours.size
    assert [again.convert_tokens_to_ids(name) for name in ours.specials] == list(ours.specials.values())


def test_names_and_added_tokens_go_out_again(shared: Path, tmp_path: Path):
    """Of a GPT-2 its padding; of a BERT a token of its own, which text spells there and not here."""
    folder, bert = tmp_path / "gpt2", tmp_path / "bert"
    for place, model in ((folder, "gpt2"), (bert, "uncased")):
        place.mkdir()
        for file, source in MODELS[model][2].items():
            shutil.copy(shared / "data" / source, place / file)
    gpt2 = transformers.GPT2Tokenizer.from_pretrained(folder)
    gpt2.add_special_tokens({"pad_token": "<pad>"})
    uncased = transformers.BertTokenizer.from_pretrained(bert)
    uncased.add_special_tokens({"additional_special_tokens": ["[ENT]"]})
    uncased.add_tokens(["c++"])
    for theirs, kind in ((gpt2, "byte-bpe"), (uncased, "wordpiece")):
        theirs.save_pretrained(tmp_path / kind)
        notes: list[str] = []
        ours, special = open_published(tmp_path / kind, kind, "", None, notes)
        assert ours.size == len(theirs) and any("'c++'" in note for note in notes) == (kind == "wordpiece")
        out = tmp_path / f"{kind} out"
        out.mkdir()
        for name, content in transformers_files(ours, 512, special, []).items():
            (out / name).write_bytes(content)
        again = transformers.AutoTokenizer.from_pretrained(out)
        assert again.pad_token == theirs.pad_token and len(again) == len(theirs)
        text = "the <pad> and [ENT] stay"
        assert again(text)["input_ids"] == theirs(text)["input_ids"]


@pytest.mark.parametrize("name", [None, "BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("lower", [{}, {"do_lower_case": True}, {"do_lower_case": False}])
@pytest.mark.parametrize("accents", [{}, {"strip_accents": True}, {"strip_accents": False}])
@pytest.mark.parametrize("normal", [(True, None), (True, False), (False, None), (False, True)])
def test_every_way_to_write_case_and_accents_is_read_alike(
    tmp_path: Path, name: Any, lower: Any, accents: Any, normal: Any
):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    pieces = [*SPECIAL[:5], "the", "The", "cafe", "café", "Cafe", "Café"]
    made = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=normal[0], strip_accents=normal[1])  # pyright: ignore[reportAttributeAccessIssue]
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    made.save(str(tmp_path / "tokenizer.json"))
    settings = {**lower, **accents, **({"tokenizer_class": name} if name else {})}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}), "utf-8")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = open_published(tmp_path, "wordpiece", "", None, [])[0]
    texts = ["The the Café café Cafe cafe"]
    assert ours.encode(texts) == theirs(texts, add_special_tokens=False)["input_ids"]

"""Folders of transformers: the ids are those of tokenizer.json, or what says otherwise is refused by its name."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers as libraries
from tokenizers import models, normalizers, pre_tokenizers

from contexture.data.errors import DataError
from contexture.data.tokenizers.byte_pair import Gpt1BPE
from contexture.data.tokenizers.huggingface.known_options import Special
from contexture.data.tokenizers.huggingface.read_folder import open_published
from contexture.data.tokenizers.huggingface.write_folder import transformers_files
from contexture.data.tokenizers.registry import load_tokenizer
from contexture.data.tokenizers.wordpiece import SPECIAL, WordPiece

PIECES = [*SPECIAL, "the", "The", "cafe", "café", "Café", "##s", "中", "x"]
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
PAIRS = ["<|endoftext|>", *LETTERS, "zx", "qz", "qzx"]
WORDS = ["<unk>", *"zxq", *(f"{letter}</w>" for letter in "zxq"), "zx</w>"]
TEXTS = ["The cafés Café 中文 the", "qzx qz zxq x" + "x" * 120]
PLAIN = "PreTrainedTokenizerFast"


def whole_of(kind: str, **model: Any) -> dict[str, Any]:
    """A tokenizer.json of a kind, some options of its model changed."""
    if kind == "wordpiece":
        made = libraries.Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(PIECES)}, unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer()  # pyright: ignore[reportAttributeAccessIssue]
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    elif kind == "byte-bpe":
        merges = [("z", "x"), ("q", "z"), ("qz", "x")]
        made = libraries.Tokenizer(models.BPE({token: n for n, token in enumerate(PAIRS)}, merges))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    else:
        ids = {token: n for n, token in enumerate(WORDS)}
        made = libraries.Tokenizer(
            models.BPE(ids, [("z", "x</w>")], unk_token="<unk>", end_of_word_suffix="</w>", fuse_unk=False)
        )
        made.normalizer = normalizers.BertNormalizer(lowercase=True)  # pyright: ignore[reportAttributeAccessIssue]
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    whole = json.loads(made.to_str())
    whole["model"] |= model
    return whole


def opened(folder: Path, kind: str, whole: dict[str, Any], lowercase: bool | None = None, **settings: Any) -> Any:
    (folder / "tokenizer.json").write_text(json.dumps(whole), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return open_published(folder, kind, "", lowercase, [])[0]


def library_ids(folder: Path) -> list[list[int]]:
    library = libraries.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [each.ids for each in library.encode_batch(TEXTS, add_special_tokens=False)]


MODELS = [
    ("wordpiece", {}),
    ("wordpiece", {"max_input_chars_per_word": 3}),
    ("wordpiece", {"max_input_chars_per_word": 200}),
    ("byte-bpe", {}),
    ("byte-bpe", {"fuse_unk": True, "byte_fallback": True, "unk_token": "<|endoftext|>"}),  # no text is unknown
    ("byte-bpe", {"ignore_merges": None, "dropout": None}),
    ("gpt1-bpe", {}),
]
REFUSED = [
    ("wordpiece", "unk_token", "[PAD]"),
    ("wordpiece", "continuing_subword_prefix", "@@"),
    ("byte-bpe", "ignore_merges", True),
    ("byte-bpe", "end_of_word_suffix", "x"),
    ("byte-bpe", "continuing_subword_prefix", "x"),
    ("byte-bpe", "dropout", 0.5),
    ("gpt1-bpe", "ignore_merges", True),
    ("gpt1-bpe", "end_of_word_suffix", None),
    ("gpt1-bpe", "unk_token", None),
    ("gpt1-bpe", "fuse_unk", True),
    ("gpt1-bpe", "byte_fallback", True),
    ("gpt1-bpe", "dropout", 1),
]


@pytest.mark.parametrize(("kind", "model"), MODELS)
def test_ids_are_those_of_tokenizer_json(kind: str, model: dict[str, Any], tmp_path: Path):
    ours = opened(tmp_path, kind, whole_of(kind, **model), tokenizer_class=PLAIN)
    assert ours.encode(TEXTS) == library_ids(tmp_path)


@pytest.mark.parametrize(("kind", "option", "value"), REFUSED)
def test_an_option_that_changes_ids_is_refused_by_its_name(kind: str, option: str, value: Any, tmp_path: Path):
    for named in (PLAIN, None):
        with pytest.raises(DataError, match=rf"tokenizer.json: model.{option} is .* nothing else is known"):
            opened(tmp_path, kind, whole_of(kind, **{option: value}), tokenizer_class=named)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("accents", [None, True, False])
def test_case_and_accents_are_those_of_the_file_that_counts(lowercase: bool, accents: bool | None, tmp_path: Path):
    """A plain class does what tokenizer.json says, another what tokenizer_config.json says; and they are kept."""
    normal = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=accents)
    whole, other = whole_of("wordpiece"), whole_of("wordpiece")
    whole["normalizer"] = {**whole["normalizer"], "lowercase": lowercase, "strip_accents": accents}
    other["normalizer"] = {**other["normalizer"], "lowercase": not lowercase}
    words = [normal.normalize_str(word) for word in ("Café", "The")]
    plain = opened(tmp_path, "wordpiece", whole, tokenizer_class=PLAIN, do_lower_case=not lowercase)
    settings = {"do_lower_case": lowercase, "strip_accents": accents}
    named = opened(tmp_path, "wordpiece", other, tokenizer_class="BertTokenizerFast", **settings)
    for tokenizer in (plain, named):
        assert [tokenizer.words(word) for word in ("Café", "The")] == [[word] for word in words]
    plain.save(tmp_path / "saved")
    (out := tmp_path / "out").mkdir()
    for name, content in transformers_files(plain, 64, {}, []).items():
        (out / name).write_bytes(content)
    for again in (load_tokenizer(tmp_path / "saved"), open_published(out, "wordpiece", "", None, [])[0]):
        assert again.fingerprint == plain.fingerprint and again.encode(TEXTS) == plain.encode(TEXTS)


def test_a_gpt1_goes_out_as_the_librarys_tokenizer_reads_it(tmp_path: Path):
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    tokenizer = opened(tmp_path / "in", "gpt1-bpe", whole_of("gpt1-bpe"), tokenizer_class=PLAIN)
    assert tokenizer.token(tokenizer.pad) == "<unk>" and tokenizer.end is None
    notes: list[str] = []
    for name, content in transformers_files(tokenizer, 64, {}, notes).items():
        (tmp_path / "out" / name).write_bytes(content)
    assert library_ids(tmp_path / "out") == tokenizer.encode(TEXTS)
    assert open_published(tmp_path / "out", "gpt1-bpe", "", None, [])[0].encode(TEXTS) == tokenizer.encode(TEXTS)
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text("utf-8"))
    assert (settings["tokenizer_class"], settings["unk_token"]) == ("OpenAIGPTTokenizer", "<unk>")
    library = libraries.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert library.decode(tokenizer.encode(["zx zx q"])[0]) == "zx zx q"
    assert notes == []
    transformers_files(Gpt1BPE(WORDS, [("z", "x</w>")]), 64, {}, notes)
    assert [note.partition(":")[0] for note in notes] == ["transformers has no port of GPT-1's clean-up of text"]


def test_further_special_tokens_are_named_in_the_settings(tmp_path: Path):
    tokenizer = opened(tmp_path, "wordpiece", whole_of("wordpiece"), tokenizer_class=PLAIN)
    name = "additional_special_tokens"
    cases: list[tuple[Special, Any]] = [({}, None), ({name: ["the", "absent"]}, ["the"])]
    for special, expected in cases:
        settings = json.loads(transformers_files(tokenizer, 64, special, [])["tokenizer_config.json"])
        assert settings.get(name) == expected and (name in settings) == bool(expected)


def test_without_a_word_on_case_a_bert_lower_cases(tmp_path: Path):
    """As transformers' BertTokenizer does, whatever tokenizer.json says; --lowercase decides."""
    whole = whole_of("wordpiece")
    whole["normalizer"]["lowercase"] = False
    assert opened(tmp_path, "wordpiece", whole, tokenizer_class="BertTokenizer").lowercase
    assert not opened(tmp_path, "wordpiece", whole, False, tokenizer_class="BertTokenizer").lowercase
    assert not opened(tmp_path, "wordpiece", whole, tokenizer_class=PLAIN).lowercase


@pytest.mark.parametrize(
    ("kind", "single", "fits"),
    [
        ("wordpiece", "[CLS] $A [SEP]", True),
        ("wordpiece", "$A", True),
        ("wordpiece", "[CLS] $A", False),
        ("byte-bpe", "$A", True),
        ("byte-bpe", "<|endoftext|> $A", False),
    ],
)
def test_special_tokens_around_a_text_are_the_kinds_own(kind: str, single: str, fits: bool, tmp_path: Path):
    whole, pair = whole_of(kind), f"{single} $B:1" + (" [SEP]:1" if "[SEP]" in single else "")
    names = [name for name in (*PIECES, *PAIRS) if name in single]
    template = libraries.processors.TemplateProcessing(single, pair, [(name, 0) for name in names])
    whole["post_processor"] = json.loads(template.__getstate__())
    if fits:
        assert opened(tmp_path, kind, whole, tokenizer_class=PLAIN).kind == kind
        return
    with pytest.raises(DataError, match="its post_processor puts .*, and .* here has .*; nothing else is known"):
        opened(tmp_path, kind, whole, tokenizer_class=PLAIN)
    # Other classes surround texts by their own rule.
    assert opened(tmp_path, kind, whole).kind == kind


def test_names_of_special_tokens_may_lie_in_a_file_of_their_own(tmp_path: Path):
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": {"content": "[PAD]"}, "x_token": "x"}))
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole_of("wordpiece")), "utf-8")
    tokenizer, special = open_published(tmp_path, "wordpiece", "", None, [])
    assert isinstance(tokenizer, WordPiece) and special == {"pad_token": "[PAD]", "x_token": "x"}

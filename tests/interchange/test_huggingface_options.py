"""Options of a folder of transformers: each is read, or refused by its name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interchange.hf_folders import Change, raw_with, refused

pytestmark = pytest.mark.usefixtures("one_device")


def tokenizer_with(edit: Callable[[dict[str, Any]], Any]) -> Change:
    def change(folder: Path) -> None:
        tree = json.loads((folder / "tokenizer.json").read_text("utf-8"))
        edit(tree)
        (folder / "tokenizer.json").write_text(json.dumps(tree), "utf-8")

    return change


BERT = {"tokenizer_class": "BertTokenizer"}


def settings_with(**values: Any) -> Change:
    return raw_with("tokenizer_config.json", lambda raw: json.dumps({**json.loads(raw), **values}).encode())


def names_with(**values: Any) -> Change:
    """What older releases wrote beside an almost empty tokenizer_config.json."""

    def change(folder: Path) -> None:
        (folder / "tokenizer_config.json").unlink()
        (folder / "special_tokens_map.json").write_text(json.dumps(values), "utf-8")

    return change


def specials_alone(folder: Path) -> None:
    """A tokenizer.json without the vocabulary that lies beside it."""
    specials = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    edit = {"vocab": {token: n for n, token in enumerate(specials)}}
    tokenizer_with(lambda t: (t["model"].update(edit), t.update(added_tokens=[])))(folder)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (tokenizer_with(lambda t: t["model"].update(type="BPE")), "model is of type 'BPE', and a WordPiece with its"),
        (tokenizer_with(lambda t: t["model"]["vocab"].update(new=3)), "both have id 3; give each its own"),
        (tokenizer_with(lambda t: t["model"]["vocab"].update(new=10**9)), "no token has id"),
        (tokenizer_with(lambda t: t["model"]["vocab"].update(new="3")), "not a vocabulary; it wants one object"),
        (tokenizer_with(lambda t: t["model"]["vocab"].pop("the")), "no token has id "),
        (tokenizer_with(lambda t: t.update(added_tokens=[7])), "added_tokens holds '7', no token with its id"),
        (tokenizer_with(lambda t: t["model"].update(max_input_chars_per_word=-1)), "max_input_chars_per_word is -1"),
        (tokenizer_with(lambda t: t["model"].update(continuing_subword_prefix="@@")), "prefix is '@@', and wordp"),
        (tokenizer_with(lambda t: t["model"].update(max_input_chars_per_word=10**30)), "max_input_chars_per_word is 1"),
        (tokenizer_with(lambda t: t["model"]["vocab"].update({"\ud800": 48})), "is no text in UTF-8"),
        (tokenizer_with(lambda t: t["normalizer"].update(clean_text=False)), "its normalizer is {"),
        (tokenizer_with(lambda t: t.update(normalizer={"type": "Lowercase"})), "its normalizer is {"),
        (tokenizer_with(lambda t: t.update(normalizer=None)), "its normalizer is None, and wordpiece here has {'type'"),
        (tokenizer_with(lambda t: t.update(pre_tokenizer={"type": "WhitespaceSplit"})), "its pre_tokenizer is {"),
        (raw_with("tokenizer.json", lambda raw: b'{"a": ' + b"1" * 5000 + b"}"), "tokenizer.json: not JSON (Exceeds"),
        (settings_with(**BERT, strip_accents=1), "strip_accents is '1', not one of (True, False, None)"),
        (settings_with(**BERT, tokenize_chinese_chars=False), "tokenize_chinese_chars is 'False', not one of"),
        (settings_with(tokenizer_class="BertJapaneseTokenizer"), "tokenizer_class is 'BertJapaneseTokenizer', not one"),
        (settings_with(cls_token={"content": "the"}), "cls_token is 'the', and a BERT's is [CLS]; nothing else"),
        (names_with(mask_token="the"), "mask_token is 'the', and a BERT's is [MASK]; nothing else is known"),
        (tokenizer_with(lambda t: t["model"].update(unk_token="[PAD]")), "model.unk_token is '[PAD]', and word"),
        (tokenizer_with(lambda t: t["model"].update(fast=True)), "model.fast is an option that is not known here"),
        (tokenizer_with(lambda t: t.update(before=True)), "tokenizer.json: before is an option that is not known here"),
        (specials_alone, "holds special tokens alone, so that every text is [UNK]; give --vocabulary vocab.txt"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_tokenizer_is_said(folder, capsys, change, line):
    change(folder)
    refused(capsys, folder, line)

"""Files of vocabularies that are wrong, models of other people, and the command that learns."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from contexture.cli import main as cli
from contexture.data.errors import DataError
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.byte_pair import BYTES
from contexture.data.tokenizers.registry import learn, load_tokenizer
from contexture.data.tokenizers.wordpiece import SPECIAL, WordPiece, wordpiece

KINDS = ("wordpiece", "byte-bpe", "characters", "sentencepiece-unigram", "sentencepiece-bpe")
SAMPLE = [
    "The cat sat on a mat, and the dog's bone lay in the sun.\nWanting, waiting, walking: naïve café! 他来了。\n"
] * 9


def _whole(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode([text])[0]


def _encoder() -> str:
    """A vocabulary of all bytes and `ab`, as it is published."""
    return json.dumps({token: number for number, token in enumerate([*BYTES, "ab"])})


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({"encoder.json": _encoder()}, r"vocab\.bpe: missing beside encoder\.json; put both files"),
        ({"vocab.bpe": "a b\n"}, r"encoder\.json: missing beside vocab\.bpe; put both files"),
        ({"vocab_40000.bpe": "a b\n"}, r"encoder_bpe_40000\.json: missing beside vocab_40000\.bpe"),
        (
            {"encoder.json": '{"a": 0,\n"b" 1}', "vocab.bpe": ""},
            r"encoder\.json:2: not JSON \(Expecting ':' delimiter\)",
        ),
        ({"encoder.json": "[" * 100_000, "vocab.bpe": ""}, r"encoder\.json: not JSON \(nested too deep\)"),
        ({"encoder.json": '["a"]', "vocab.bpe": ""}, r"encoder\.json: not a vocabulary; it wants one object"),
        ({"encoder.json": '{"a": "0"}', "vocab.bpe": ""}, r"encoder\.json: not a vocabulary; it wants one object"),
        ({"encoder.json": "{}", "vocab.bpe": ""}, r"encoder\.json: not a vocabulary; it wants one object"),
        (
            {"encoder.json": '{"a": 0, "b": 0}', "vocab.bpe": ""},
            r"encoder\.json: 'a' and 'b' both have id 0; give each",
        ),
        (
            {"encoder.json": '{"a": 0, "b": 2}', "vocab.bpe": ""},
            r"encoder\.json: no token has id 1; 2 ids run from 0 to 1",
        ),
        ({"encoder.json": '{"a": 0, "a": 1}', "vocab.bpe": ""}, r"encoder\.json: the token 'a' stands there 2 times"),
        (
            {"encoder.json": '{"a": 0}', "vocab.bpe": ""},
            r"encoder\.json: no token for byte 0x21; a byte vocabulary holds",
        ),
        ({"encoder.json": _encoder(), "vocab.bpe": "a b\na b c\n"}, r"vocab\.bpe:2: 'a b c' is no merge; it wants two"),
        (
            {"encoder.json": _encoder(), "vocab.bpe": "a b\nab\n"},
            r"vocab\.bpe:2: 'ab' is no merge; it wants two tokens",
        ),
        (
            {"encoder.json": _encoder(), "vocab.bpe": "#version: 0.2\na c\n"},
            r"vocab\.bpe:2: .* names 'ac', which encoder",
        ),
        ({"encoder.json": _encoder(), "vocab.bpe": ""}, "no merge makes 1 of the tokens in encoder.json, as 'ab'; the"),
        ({"encoder.json": _encoder(), "vocab.bpe": b"a b\n\xff\n"}, r"vocab\.bpe:2: not UTF-8 \(byte 0xff\)"),
        ({"encoder_bpe_40000.json": '{"a": 0}', "vocab_40000.bpe": ""}, r"bpe_40000\.json: <unk> is missing; a GPT-1"),
        ({"a.model": b"no model"}, r"a\.model: no SentencePiece model, or a damaged one; give a \*\.model file"),
        ({"a.model": b""}, r"a\.model: no SentencePiece model, or a damaged one; give a \*\.model file"),
        (
            {"a.model": b"", "b.model": b""},
            r"the folder holds no vocab\.txt, encoder\.json, .* and no single \*\.model",
        ),
        ({"tokenizer.json": '{"format": 1, "kind": "characters"}'}, r"characters\.json: cannot be read \(No such file"),
        (
            {"tokenizer.json": '{"format": 1, "kind": "characters"}', "characters.json": "{}"},
            "not a vocabulary; it wants",
        ),
        ({"tokenizer.json": '{"format": 1, "kind": "characters"}', "characters.json": "[]"}, "the vocabulary is empty"),
        (
            {"tokenizer.json": '{"format": 1, "kind": "characters"}', "characters.json": '["ab"]'},
            "'ab' is not one charac",
        ),
        (
            {"tokenizer.json": '{"format": 1, "kind": "characters"}', "characters.json": '["a", "a"]'},
            "'a' stands there 2",
        ),
        ({"tokenizer.json": '{"format": 1, "kind": "byte-bpe"}'}, r"encoder\.json: missing beside vocab\.bpe"),
        ({"tokenizer.json": '{"format": 1, "kind": "sentencepiece-bpe"}'}, r"sentencepiece\.model: cannot be read"),
        (
            {"tokenizer.json": '{"format": 2, "kind": "byte-bpe"}'},
            "format 2, kind 'byte-bpe'; this reads format 1, kinds",
        ),
        (
            {"tokenizer.json": '{"format": 1, "kind": "phrases"}'},
            "kind 'phrases'; this reads format 1, kinds wordpiece, byte-",
        ),
        (
            {"tokenizer.json": '{"version": "1.0", "model": {}}'},
            "not the options of a tokenizer; make it again, or give the voc",
        ),
        ({"tokenizer.json": '{"format": 1, "kind": "byte-bpe", "specials": [1]}'}, "not the options of a tokenizer"),
        ({"tokenizer.json": '{"format": 1, "kind": ["byte-bpe"]}'}, "this reads format 1"),
        ({"tokenizer.json": "[1]"}, "not the options of a tokenizer"),
    ],
)
def test_files_that_are_wrong_are_one_clear_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], files: dict[str, str | bytes], line: str
):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=line) as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("version", ["#version: 0.2\n", ""])
def test_merges_are_read_with_and_without_the_line_of_a_version(tmp_path: Path, version: str):
    (tmp_path / "encoder.json").write_text(_encoder())
    (tmp_path / "vocab.bpe").write_text(f"{version}a b\n")
    for path in (tmp_path, tmp_path / "encoder.json", tmp_path / "vocab.bpe"):
        assert load_tokenizer(path).encode(["ab", "b"]) == [[256], [65]]


def test_a_model_of_another_kind_than_the_folder_says_is_refused(tmp_path: Path):
    learn("sentencepiece-bpe", SAMPLE, 350, True).save(tmp_path / "t")
    options = tmp_path / "t" / "tokenizer.json"
    options.write_text(options.read_text().replace("-bpe", "-unigram"))
    with pytest.raises(
        DataError, match="of kind sentencepiece-bpe, not sentencepiece-unigram; make the tokenizer again"
    ):
        load_tokenizer(tmp_path / "t")


def _model(**options: Any) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SAMPLE),
        model_writer=model,
        vocab_size=90,
        hard_vocab_limit=False,
        minloglevel=3,
        **options,
    )
    return model.getvalue()


def test_other_peoples_models_are_read_as_they_are(tmp_path: Path):
    (tmp_path / "their.model").write_bytes(_model())
    text = "  The  cat's ﬁne\n☃ "
    for path in (tmp_path, tmp_path / "their.model"):
        tokenizer = load_tokenizer(path)
        assert tokenizer.kind == "sentencepiece-unigram" and not tokenizer.lossless and tokenizer.end == 2
        theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "their.model"))
        assert _whole(tokenizer, text) == theirs.encode(text) and tokenizer.unk in _whole(tokenizer, text)
        assert tokenizer.decode(theirs.encode(text)) == theirs.decode(theirs.encode(text))
        assert tokenizer.split_long(text, 3) == [text]
    (tmp_path / "words.model").write_bytes(_model(model_type="char"))
    with pytest.raises(DataError, match=r"words\.model: a SentencePiece model of words or characters; give one of uni"):
        load_tokenizer(tmp_path / "words.model")


def test_a_model_that_changes_text_does_not_say_that_it_is_lossless(tmp_path: Path):
    keeps = {"normalization_rule_name": "identity", "add_dummy_prefix": False, "remove_extra_whitespaces": False}
    keeps = {**keeps, "byte_fallback": True, "vocab_size": 400}
    changes: list[dict[str, Any]] = [
        {}, {"normalization_rule_name": "nfkc"}, {"add_dummy_prefix": True}, {"remove_extra_whitespaces": True},
        {"byte_fallback": False}, {"split_by_whitespace": False},
    ]  # fmt: skip
    messages = []
    lines = "".join(SAMPLE * 3).splitlines()
    for change in changes:
        model = io.BytesIO()
        options = {"sentence_iterator": iter(lines), "model_writer": model, "hard_vocab_limit": False, **keeps}
        sentencepiece.SentencePieceTrainer.train(**{**options, "minloglevel": 3, **change})
        (tmp_path / "a.model").write_bytes(model.getvalue())
        messages.append(load_tokenizer(tmp_path / "a.model").lossless)
    assert messages == [True, False, False, False, False, False]


def _said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = cli.main([str(word) for word in words])
    output = capsys.readouterr()
    return code, output.out, output.err


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_learns_every_kind(capsys, tmp_path: Path, kind: str):
    (tmp_path / "a.txt").write_text("".join(SAMPLE), "utf-8")
    words = ["tokenizer", kind, "--input", tmp_path / "a.txt", "--vocab-size", 350, "--to", tmp_path / "t", "--json"]
    code, out, err = _said(capsys, *words)
    assert code == 0, err
    tokenizer = load_tokenizer(tmp_path / "t")
    assert tokenizer.kind == kind and json.loads(out)["fingerprint"] == tokenizer.fingerprint
    assert tokenizer.size == json.loads(out)["vocab_size"] <= 350
    if kind == "characters":
        assert tokenizer.decode(_whole(tokenizer, "".join(SAMPLE))) == "".join(SAMPLE)


def test_bert_refuses_what_has_no_mask(capsys, text_folder: Path, tmp_path: Path):
    tokenizer = learn("byte-bpe", SAMPLE, 300, True)
    tokenizer.save(tmp_path / "bytes")
    words = ["pretrain", "bert.tiny", "--data.path", text_folder]
    for number, more in enumerate((["--data.tokenizer", tmp_path / "bytes"], ["--data.vocabulary", "byte-bpe"])):
        code, _, err = _said(capsys, *words, *more, "--dir", tmp_path / f"run{number}")
        assert (
            code == 2 and "bert reads a vocabulary of kind wordpiece" in err and "is byte-bpe; give a vocab.txt" in err
        )
    with pytest.raises(DataError, match="BERT reads a vocabulary of kind wordpiece, .* and this one is byte-bpe; give"):
        wordpiece(tokenizer)
    mine = WordPiece(SPECIAL, True)
    assert wordpiece(mine) is mine

"""Whole words: what ELMo reads of them, their vocabulary, learned or published, and where it is refused."""

import dataclasses
import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.cli import main as cli
from contexture.data.cancel import NEVER
from contexture.data.errors import DataError
from contexture.data.pretraining.shards import Shards
from contexture.data.tokenizers.base import with_added_tokens
from contexture.data.tokenizers.elmo_char_ids import BEGIN_ROW, END_ROW, are_cut, char_ids, words_from_char_ids
from contexture.data.tokenizers.open_vocabulary import CorpusVocabulary
from contexture.data.tokenizers.registry import learn, load_tokenizer
from contexture.data.tokenizers.word_level import StaticWords, Words, learn_words, word_tokenizer
from contexture.data.tokenizers.wordpiece import SPECIAL, WordPiece

WORD = st.text(st.characters(codec="utf-8"), max_size=60)


def _row(word: str) -> list[int]:
    """A word's ids, one byte at a time."""
    if not word:
        return [0] * 50
    row = [259]
    for byte in word.encode()[:48]:
        row.append(byte + 1)
    row.append(260)
    while len(row) < 50:
        row.append(261)
    return row


@settings(max_examples=100, deadline=None)
@given(st.lists(WORD, max_size=6))
def test_a_word_is_read_by_its_first_48_bytes(words: list[str]):
    rows = char_ids(words)
    assert rows.dtype == np.int32 and rows.shape == (len(words), 50)
    assert rows.tolist() == [_row(word) for word in words]
    cut = are_cut(words)
    assert cut.tolist() == [len(word.encode()) > 48 for word in words]
    assert [again for again, c in zip(words_from_char_ids(rows), cut, strict=True) if not c] == [
        word for word, c in zip(words, cut, strict=True) if not c
    ]


def test_begin_and_end_of_a_sentence_are_rows_that_no_text_spells():
    assert BEGIN_ROW.tolist() == [259, 257, 260] + [261] * 47
    assert END_ROW.tolist() == [259, 258, 260] + [261] * 47
    assert words_from_char_ids(np.stack([BEGIN_ROW, END_ROW])) == ["<S>", "</S>"]
    assert char_ids(["<S>"]).tolist() == [_row("<S>")] != [BEGIN_ROW.tolist()]
    assert char_ids(["\ud800"]).tolist() == [[259, 260] + [261] * 48]


def test_the_most_frequent_words_come_first_and_ties_by_unicode():
    tokenizer = learn_words(["b a a z é", "b c <S> </S> <UNK> !!!MAXTERMID", ""], 100)
    assert tokenizer.vocabulary == ("<S>", "</S>", "<UNK>", "a", "b", "c", "z", "é")
    assert learn("words", ["b a a z é b c"], 5, True).token(4) == "b"
    assert (tokenizer.size, tokenizer.pad, tokenizer.begin, tokenizer.end, tokenizer.unk) == (8, 0, 0, 1, 2)
    assert not tokenizer.lossless and tokenizer.specials == {}


def test_texts_become_ids_and_words_again():
    tokenizer = Words(["<S>", "</S>", "<UNK>", "the", "cat"])
    assert tokenizer.encode([" the\u2003cat sat\n", "", "The"]) == [[3, 4, 2], [], [2]]
    assert tokenizer.encode(["<S> </S> <UNK> the"]) == [[2, 2, 2, 3]]
    assert tokenizer.decode([0, 3, 4, 2, 1]) == "<S> the cat <UNK> </S>"


def test_raw_text_is_parted_from_its_punctuation():
    words = Words(["<S>", "</S>", "<UNK>"], "punctuation").words
    assert words("Don't stop: well-known 3.5% (e.g. rock’n’roll)!") == (
        ["Don't", "stop", ":", "well-known", "3.5", "%", "(", "e.g", ".", "rock’n’roll", ")", "!"]
    )
    assert words("'quoted' -x- a--b a_b 1,000") == (
        ["'", "quoted", "'", "-", "x", "-", "a", "-", "-", "b", "a", "_", "b", "1", ",", "000"]
    )
    assert words("cafe\u0301 नमस्ते मी\u200cروم ❤\ufe0f。") == ["cafe\u0301", "नमस्ते", "मी\u200cروم", "❤\ufe0f", "。"]


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40), st.sampled_from(["spaces", "punctuation"]), st.integers(1, 9))
def test_no_character_of_a_text_is_lost(text: str, split: str, limit: int):
    tokenizer = Words(["<S>", "</S>", "<UNK>"], split)
    words = tokenizer.words(text)
    assert "".join(words) == "".join(text.split())
    assert [word for part in tokenizer.split_long(text, limit) for word in tokenizer.words(part)] == words
    assert [tokenizer.words(word) for word in words] == [[word] for word in words]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.text(st.characters(codec="utf-8"), max_size=20), min_size=1), st.sampled_from(["spaces", "punctuation"])
)
def test_a_saved_vocabulary_is_the_same_again(tmp_path_factory, texts: list[str], split: str):
    tokenizer = learn_words([*texts, "one"], 20, split)
    folder = tmp_path_factory.mktemp("words") / "t"
    tokenizer.save(folder)
    for again in (load_tokenizer(folder), load_tokenizer(folder / "tokenizer.json")):
        assert isinstance(again, Words) and again.split == split
        assert again.vocabulary == tokenizer.vocabulary and again.fingerprint == tokenizer.fingerprint
    assert Words(tokenizer.vocabulary, "punctuation").fingerprint != Words(tokenizer.vocabulary).fingerprint


def test_a_published_vocabulary_opens_as_it_is(shared: Path, tmp_path: Path):
    file = shared / "data" / "golden_bilm_tf" / "train" / "vocab.txt"
    tokenizer = load_tokenizer(file)
    assert isinstance(tokenizer, Words) and tokenizer.split == "spaces"
    assert "".join(f"{word}\n" for word in tokenizer.vocabulary) == file.read_text("utf-8")
    assert load_tokenizer(file.parent, split="punctuation").fingerprint != tokenizer.fingerprint


def test_lines_that_count_for_nothing_are_skipped(tmp_path: Path):
    (tmp_path / "vocab.txt").write_bytes("<S>\r\n</S>\r\n<UNK>\r\nthe \r\n!!!MAXTERMID\r\na\u00a0\r\n".encode())
    tokenizer = load_tokenizer(tmp_path)
    assert isinstance(tokenizer, Words) and tokenizer.vocabulary[3:] == ("the", "a\u00a0")
    (tmp_path / "bert.txt").write_text("\n".join([*SPECIAL, "<S>", "</S>"]), "utf-8")
    assert isinstance(load_tokenizer(tmp_path / "bert.txt"), WordPiece)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"<S>\n</S>\nthe\n",
            r"vocab\.txt: the first lines are '<S>', '</S>', 'the'; a vocabulary of words begins wit",
        ),
        (
            b"</S>\n<S>\n<UNK>\n",
            r"vocab\.txt: the first lines are '</S>', '<S>', '<UNK>'; .* the lines <S>, </S>, <UNK>",
        ),
        (b"<S>\n</S>\n<UNK>\na\nb\na\n", r"vocab\.txt:6: the word 'a' stands in 2 lines; keep each word once"),
        (
            b"<S>\n</S>\n<UNK>\na\n \nb\n",
            r"vocab\.txt:5: an empty line in the vocabulary; it wants one word in each li",
        ),
        (b"<S>\n</S>\n<UNK>\na\n\xff\n", r"vocab\.txt:5: not UTF-8 \(byte 0xff\); save the file as UTF-8"),
    ],
)
def test_a_vocabulary_that_is_wrong_is_one_clear_line(tmp_path: Path, content: bytes, message: str):
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_tokenizer(tmp_path / "vocab.txt")


def test_what_words_cannot_do_is_refused(tmp_path: Path):
    words = Words(["<S>", "</S>", "<UNK>", "a"])
    with pytest.raises(DataError, match=r"no special tokens are added to a vocabulary of kind words; use it as it is"):
        with_added_tokens(words, ["_start_"])
    with pytest.raises(DataError, match=r"no word in the text to learn a vocabulary from; give text"):
        learn_words([" ", "<S>"], 100)
    with pytest.raises(
        DataError, match=r"a vocabulary of 3 has no room beside the 3 special words; give a larger size"
    ):
        learn_words(["a"], 3)
    with pytest.raises(DataError, match=r"ELMo reads a vocabulary of kind words, and this one is wordpiece; give"):
        word_tokenizer(WordPiece(SPECIAL, True))
    assert word_tokenizer(words) is words
    words.save(tmp_path / "t")
    for options in ({"split": "lines"}, {}):
        (tmp_path / "t" / "tokenizer.json").write_text(json.dumps({"format": 1, "kind": "words", **options}))
        with pytest.raises(DataError, match="not the options of a tokenizer; make it again"):
            load_tokenizer(tmp_path / "t")


def test_words_that_the_vocabulary_lacks_are_numbered_behind_it():
    long, longer = "x" * 49, "y" * 200
    numbering = CorpusVocabulary(Words(["<S>", "</S>", "<UNK>", "a", long, "w" * 48]))
    ids, counts = numbering.encode(["b a <S>", "", "<UNK> b " + long, longer])
    assert ids.tolist() == [6, 3, 7, 1, 8, 6, 4, 1, 9, 1] and counts.tolist() == [4, 0, 4, 2]
    assert numbering.unknown() == f"b\n<S>\n<UNK>\n{longer}\n".encode()
    numbering.count(ids)
    numbering.count(numbering.encode([f"{longer} z {long} {long}z"])[0])
    assert numbering.facts() == {"unknown": {"words": 6, "bytes": 266}, "cut": {"words": 3, "times": 5}}
    assert numbering.known(np.array([1, 5, 6, 9])).tolist() == [1, 5, 2, 2]


def test_the_command_learns_words(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    rng = random.Random(3)
    text = "\n".join(" ".join(rng.choices(["old,", "cat", "sat", "it's"], k=6)) + "." for _ in range(40))
    (tmp_path / "a.txt").write_text(text, "utf-8")
    for split in ("spaces", "punctuation"):
        to = tmp_path / split
        words = ["tokenizer", "words", "--input", tmp_path / "a.txt", "--vocab-size", 9, "--to", to, "--json"]
        assert cli.main([str(word) for word in [*words, "--word-splitter", split]]) == 0
        summary, tokenizer = json.loads(capsys.readouterr().out), load_tokenizer(to)
        assert tokenizer.fingerprint == learn_words(text.splitlines(), 9, split).fingerprint == summary["fingerprint"]
    assert isinstance(tokenizer, Words) and set(tokenizer.vocabulary[3:]) == {"old", ",", "cat", "sat", "it's", "."}


def test_elmo_is_prepared_with_words_alone(capsys: pytest.CaptureFixture[str], text_folder: Path, tmp_path: Path):
    from contexture.configs import recipe
    from contexture.train.errors import ConfigError
    from contexture.train.run.vocabulary import check_tokenizer_kind
    from contexture.train.setup import open_data

    words = ["prepare", "elmo.tiny", "--input", text_folder, "--dev-fraction", 0.2, "--to", tmp_path / "s", "--json"]
    assert cli.main([str(word) for word in words]) == 0
    summary, shards = json.loads(capsys.readouterr().out), Shards.open(tmp_path / "s")
    assert summary["fingerprint"] == shards.fingerprint and shards.stream == "lanes"
    assert summary["vocab_size"] == shards.tokenizer.size and "." in word_tokenizer(shards.tokenizer).ids
    run = recipe("elmo.tiny")
    data = dataclasses.replace(run.data, path=(str(tmp_path / "s"),))
    tokenizer, opened = open_data(dataclasses.replace(run, data=data), tmp_path / "run", NEVER)
    assert isinstance(tokenizer, Words) and opened.fingerprint == shards.fingerprint
    other = dataclasses.replace(run, data=dataclasses.replace(data, word_splitter="spaces"))
    with pytest.raises(ConfigError, match="the text was prepared with --data.word-splitter punctuation; give the same"):
        open_data(other, tmp_path / "other", NEVER)
    with pytest.raises(
        ConfigError, match="elmo reads a vocabulary of kind words, and this one is byte-bpe; give a voc"
    ):
        check_tokenizer_kind(run, "byte-bpe")
    with pytest.raises(ConfigError, match="no gpt should start with a vocabulary of kind words"):
        check_tokenizer_kind(recipe("gpt.tiny"), "words")


@pytest.mark.parametrize("space", [" ", "\t", "\n", "\u2003"])
def test_a_long_text_is_split_before_white_space_alone(space: str):
    """The words of the parts are those of the whole, also where no space is near."""
    text = f"aaasx{space}bbb{space}ccccccccc{space}d"
    parts = Words(["<S>", "</S>", "<UNK>", "a"]).split_long(text, 3)
    assert parts == ["aaasx", f"{space}bbb", f"{space}ccccccccc", f"{space}d"]
    assert StaticWords(["a", "b"]).split_long(text, 3) == parts

"""The instances of BERT's original script: every one, in its order, against a second writing of its rules."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.cancel import NEVER
from contexture.data.errors import DataError
from contexture.data.pretraining.create_instances import InstanceOptions
from contexture.data.pretraining.instance_records import write_instances
from contexture.data.text.sources import expand
from contexture.data.tokenizers.wordpiece import WordPiece, learn_wordpiece
from tests.helpers.long import long
from tests.helpers.original_instances import Flags, instances_of, read_tfrecord

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##a", "##b", "##ba", "c", ".", "#"]
WORDS = ("a", "b", "ab", "aba", "abba", "c", "ca", "z", "Á", "c.", "##a", "[MASK]")


def written(folder: Path, texts: list[str], tokenizer: WordPiece, flags: Flags, files: int = 1) -> list[Path]:
    """The writer's files for the contents of some text files."""
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_bytes(text.encode())
    options = InstanceOptions(
        length=flags.max_seq_length,
        predictions=flags.max_predictions_per_seq,
        masked_fraction=flags.masked_lm_prob,
        short_fraction=flags.short_seq_prob,
        dupe_factor=flags.dupe_factor,
        whole_word_mask=flags.do_whole_word_mask,
    )
    sources = expand([folder / f"{number}.txt" for number in range(len(texts))])
    to, seed = folder / "records", flags.random_seed
    write_instances(sources, tokenizer, options, to, seed=seed, files=files, check=NEVER.check)
    return sorted(to.glob("*.tfrecord"))


@pytest.mark.parametrize("whole_word", [False, True])
def test_the_published_sample_gives_the_scripts_instances(whole_word: bool, shared: Path, tmp_path: Path):
    """With the settings of the script's documentation; they were compared with the script itself, too."""
    text = (shared / "data/pretrain_bert_sample/sample_text.txt").read_text("utf-8")
    tokenizer = learn_wordpiece(text.split("\n"), 400, True)
    flags = Flags(do_whole_word_mask=whole_word)
    expected = instances_of([text], list(tokenizer.vocabulary), flags)
    (file,) = written(tmp_path, [text], tokenizer, flags)
    assert read_tfrecord(file) == expected and len(expected) > 60


def flags() -> st.SearchStrategy[Flags]:
    return st.builds(
        Flags,
        max_seq_length=st.integers(8, 40),
        max_predictions_per_seq=st.integers(1, 8),
        masked_lm_prob=st.sampled_from([0.0, 0.15, 0.25, 0.5, 0.9]),
        short_seq_prob=st.sampled_from([0.0, 0.1, 0.7]),
        dupe_factor=st.integers(1, 3),
        random_seed=st.integers(0, 2**40),
        do_whole_word_mask=st.booleans(),
    )


def texts() -> st.SearchStrategy[list[str]]:
    line = st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join)
    spaced = st.one_of(line, st.sampled_from(["", "  ", "\t", "a\x00 b", " a  b "]))
    text = st.builds(
        lambda lines, end: "\n".join(lines) + end, st.lists(spaced, max_size=12), st.sampled_from(["", "\n"])
    )
    return st.lists(text, min_size=1, max_size=3).map(lambda each: ["a b\n" + each[0], *(t or "\n" for t in each[1:])])


@settings(deadline=None, max_examples=120)
@given(texts(), flags())
def test_any_text_and_flags_give_the_scripts_instances(tmp_path_factory, texts: list[str], flags: Flags):
    expected = instances_of(texts, PIECES, flags)
    (file,) = written(tmp_path_factory.mktemp("text"), texts, WordPiece(PIECES, lowercase=True), flags)
    assert read_tfrecord(file) == expected


def test_a_files_end_ends_no_document(tmp_path: Path):
    """As in the script: the next file's first line continues the document."""
    flags, tokenizer = Flags(max_seq_length=12, short_seq_prob=0.0), WordPiece(PIECES, lowercase=True)
    (tmp_path / "one").mkdir()
    two, one = ["a b\nc a\n", "b b\n\nc\n"], ["a b\nc a\nb b\n\nc\n"]
    (of_two,), (of_one,) = (written(tmp_path / n, t, tokenizer, flags) for n, t in (("", two), ("one", one)))
    assert of_two.read_bytes() == of_one.read_bytes()


def test_instances_are_dealt_to_files_in_turn(tmp_path: Path):
    tokenizer, flags = WordPiece(PIECES, lowercase=True), Flags(max_seq_length=9, dupe_factor=3)
    text = "\n".join("a b c" for _ in range(20))
    expected = instances_of([text], PIECES, flags)
    files = written(tmp_path, [text], tokenizer, flags, files=3)
    assert [file.name for file in files] == [f"instances-{n:05d}-of-00003.tfrecord" for n in range(3)]
    assert [read_tfrecord(file) for file in files] == [expected[n::3] for n in range(3)]
    assert WordPiece.open(tmp_path / "records/tokenizer/vocab.txt", True).vocabulary == tokenizer.vocabulary


def test_text_without_a_sentence_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match="no sentence in the text; give text in UTF-8"):
        written(tmp_path, ["\n \n\x00\n"], WordPiece(PIECES, lowercase=True), Flags())
    assert not (tmp_path / "records").exists()


def test_text_of_other_words_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    written(tmp_path, ["x y z\nq w\n"], WordPiece(PIECES, lowercase=True), Flags(max_seq_length=9))
    assert "unknown" in caplog.text and "give a vocabulary of this text" in caplog.text


@pytest.mark.parametrize("count", [3, *long(40)])
def test_the_work_stops_where_it_is_asked_to(count: int, tmp_path: Path):
    """Before each document, and nothing is left."""
    asked: list[Any] = []

    def check() -> None:
        asked.append(1)
        if len(asked) > count:
            raise KeyboardInterrupt

    options = InstanceOptions(
        length=9, predictions=2, masked_fraction=0.15, short_fraction=0.1, dupe_factor=10, whole_word_mask=False
    )
    (tmp_path / "a.txt").write_text("a b\n\nc a\n" * 20)
    with pytest.raises(KeyboardInterrupt):
        write_instances(
            expand([tmp_path / "a.txt"]),
            WordPiece(PIECES, True),
            options,
            tmp_path / "to",
            seed=1,
            files=1,
            check=check,
        )
    assert not (tmp_path / "to").exists() and len(asked) == count + 1

"""A list that was written as text is read as the list it was, or refused; a sentence in brackets is neither."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contexture.data.config import TaskConfig
from contexture.data.errors import DataError
from contexture.data.tasks.read.examples import Answer, ChoiceExample, QuestionExample, Tagged
from contexture.data.tasks.read.read_examples import examples
from contexture.data.text.written_lists import written_list

TAG = TaskConfig(kind="tag")


@given(st.lists(st.text(max_size=6), max_size=5))
def test_lists_come_back_from_what_python_and_json_write(words: list[str]):
    for written in (str(words), json.dumps(words), json.dumps(words, ensure_ascii=False)):
        assert written_list(written) == words
    if words:
        assert written_list(str(tuple(words))) == words


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), min_size=1, max_size=30))
def test_lists_come_back_from_what_numpy_writes(words: list[str]):
    array = np.array(words)
    assert written_list(str(array)) == array.tolist()


@pytest.mark.parametrize(
    ("text", "numbers", "items"),
    [("[0, 1]", True, ["0", "1"]), ("[ 1 10]", True, ["1", "10"]), ("[0, 1]", False, None), ("[1]", False, None),
     ("['a', None, nan]", False, ["a", None, None]), ("[]", False, []), ("()", True, None), ("[ ' a ' ]", True, None),
     ("[PAD]", True, None), ("[ Laughter ]", True, None), ("('x')", True, None), ("(1, 2)", True, None),
     ("[-]", True, None), ("", True, None)],
)  # fmt: skip
def test_a_sentence_in_brackets_is_no_list(text: str, numbers: bool, items: list[str | None] | None):
    assert written_list(text, numbers=numbers) == items
    if not numbers:  # as of a text, unless it is said otherwise
        assert written_list(text) == items


@pytest.mark.parametrize(
    ("text", "reason"),
    [(str(np.array(["a"] * 2000)), "NumPy left out its middle"), ("['a', b]", "not every item is in quotes"),
     ('["\\ud800"]', "half a character"),
     ("['a' 'b', 'c']", "commas are missing"), (r"['\q']", "is no string of Python")],
)  # fmt: skip
def test_half_a_list_is_refused(tmp_path: Path, text: str, reason: str):
    with pytest.raises(ValueError, match=reason):
        written_list(text)
    (tmp_path / "a.tsv").write_text(f"words\ttags\n{text}\tO\n".replace("\n '", " '"))
    with pytest.raises(DataError, match=rf"a\.tsv:2: the words .* are a list written as text .*{reason}"):
        list(examples(str(tmp_path / "a.tsv"), TAG, labelled=True))


def test_words_tags_alternatives_and_answers_may_be_lists_written_as_text(tmp_path: Path):
    file = tmp_path / "a.csv"
    file.write_text('tokens,tags\n"[\'Anna\' \'sees\']","[\'B-PER\', \'O\']"\n"[""a b""]",[7]\n')
    assert list(examples(str(file), TAG, labelled=True)) == [
        Tagged(("Anna", "sees"), ("B-PER", "O"), "a.csv:2"), Tagged(("a b",), ("7",), "a.csv:3")
    ]  # fmt: skip
    file.write_text("text,choices,label\na,\"['b, c', 'd']\",1\n")
    (choice,) = examples(str(file), TaskConfig(kind="choice"), labelled=True)
    assert isinstance(choice, ChoiceExample) and choice.choices == ("b, c", "d")
    file.write_text("question,context,answers\na,b c,\"['b', 'c']\"\na,b c,[]\na,see ['b'],['b']\n")
    read = [x for x in examples(str(file), TaskConfig(kind="span"), labelled=True) if isinstance(x, QuestionExample)]
    assert [x.answers for x in read] == [(Answer("b", 0), Answer("c", 2)), (), (Answer("['b']", 4),)]


@pytest.mark.parametrize("label", ["['a', 'b']", '["a"]', "[1, 2]", "[]", "['a', b]"])
def test_a_list_written_as_text_is_no_label(tmp_path: Path, label: str):
    (tmp_path / "a.tsv").write_text(f"text\tlabel\na\t{label}\n")
    with pytest.raises(DataError, match=r"a\.tsv:2: the label .* a list written as text; give every example one label"):
        list(examples(str(tmp_path / "a.tsv"), TaskConfig(kind="classify"), labelled=True))


def test_an_object_written_as_text_is_no_answer(tmp_path: Path):
    (tmp_path / "a.csv").write_text("question,context,answers\na,b c,\"{'text': ['b'], 'answer_start': [0]}\"\n")
    with pytest.raises(DataError, match=r"a\.csv:2: the answers are an object written as text; give \*\.jsonl"):
        list(examples(str(tmp_path / "a.csv"), TaskConfig(kind="span"), labelled=True))

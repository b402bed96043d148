"""Questions → windows: equal to the slow road on drawn and on real questions, for every kind of tokenizer."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.errors import DataError
from contexture.data.tasks.encode.token_places import encode_with_places
from contexture.data.tasks.encode.windows import SpanLayout, SpanWindows, span_windows, widest_window, window_spans
from contexture.data.tasks.read.examples import Answer, QuestionExample
from contexture.data.tasks.read.file_report import FileReport
from contexture.data.tasks.store.span_store import NO_ANSWER, UNSPELLED
from contexture.data.tokenizers.base import Tokenizer, with_added_tokens
from contexture.data.tokenizers.byte_pair import ByteBPE
from contexture.data.tokenizers.char_level import Characters
from contexture.data.tokenizers.open_vocabulary import OpenVocabulary
from contexture.data.tokenizers.word_level import Words
from contexture.data.tokenizers.wordpiece import WordPiece
from tests.helpers import slow_spans
from tests.helpers.logs import logged
from tests.helpers.slow_pairs import vocabulary

PIECES = WordPiece([*vocabulary(), *"abcdefgh", *(f"##{x}" for x in "abcdefgh"), ",", "é"], lowercase=True)
LETTERS = with_added_tokens(Characters(list("abcdefgh ,")), ["_start_", "_delimiter_", "_classify_"])
WORDS = Words(["<S>", "</S>", "<UNK>", "ab"], "punctuation")
TOKENIZERS = {"bert": PIECES, "gpt": LETTERS, "elmo": OpenVocabulary(WORDS)}


def cut(examples: list[QuestionExample], tokenizer: Tokenizer | OpenVocabulary, layout: SpanLayout) -> SpanWindows:
    return span_windows(examples, tokenizer, layout, FileReport("f", tokenizer))


def compare(
    examples: list[QuestionExample], tokenizer: Tokenizer | OpenVocabulary, layout: SpanLayout, family: str
) -> None:
    """Every window, every place and every label of these questions is that of the slow road."""
    windows = cut(examples, tokenizer, layout)
    ends = np.cumsum([len(ids) for ids in windows.tokens])
    row = 0
    for number, example in enumerate(examples):
        question = tokenizer.encode([example.question])[0][: layout.longest_question]
        ((ids, places),) = encode_with_places([example.context], tokenizer)
        inside = slow_spans.windows(
            len(ids), layout.length - (2 if family == "elmo" else 3) - len(question), layout.stride
        )
        assert windows.chunk.windows[number] == len(inside)
        # Which window shows most, for a sample of the tokens: the slow road asks every window about every token.
        asked = range(0, len(ids), max(len(ids) // 40, 1))
        most = {token: slow_spans.most_context(token, inside) for token in asked}
        answer = example.answers[0] if example.answers else None
        for which, tokens in enumerate(inside):
            assert windows.owners[row] == number
            shown = [ids[token] for token in tokens]
            expected = [*shown, *question] if family == "gpt" else [*question, *shown]
            assert windows.tokens[row] == expected
            second = {"gpt": len(tokens), "bert": len(question), "elmo": -1}[family]
            assert windows.seconds[row] == second
            before = 0 if family == "gpt" else len(question)
            placed = windows.chunk.places[ends[row] - len(expected) : ends[row]]
            assert placed["begin"][before : before + len(tokens)].tolist() == [places[t][0] for t in tokens]
            assert placed["end"][before : before + len(tokens)].tolist() == [places[t][1] for t in tokens]
            of_question = np.ones(len(expected), bool)
            of_question[before : before + len(tokens)] = False
            assert (placed["begin"][of_question] == -1).all() and not placed["widest"][of_question].any()
            for place, token in enumerate(tokens):
                if token in most:
                    assert placed["widest"][before + place] == (most[token] == which)
            gold = slow_spans.label(answer, places.tolist(), tokens)
            found = windows.chunk.labels[row]
            if gold is None:
                assert found["start"] == found["end"] and found["start"] in (NO_ANSWER, UNSPELLED)
            else:
                assert (found["start"], found["end"]) == tuple(t - tokens[0] + before for t in gold)
            row += 1
    assert row == len(windows.tokens)


@st.composite
def questions(draw: st.DrawFn) -> QuestionExample:
    words = st.text("abcdefgh", min_size=1, max_size=5)
    context = " ".join(draw(st.lists(words, min_size=1, max_size=30)))
    begin = draw(st.integers(0, len(context) - 1))
    text = context[begin : begin + draw(st.integers(1, 12))]
    answers = (Answer(text, begin),) if draw(st.booleans()) else ()
    return QuestionExample("q", draw(words), context, answers, "f:1")


@pytest.mark.parametrize("family", TOKENIZERS)
@settings(max_examples=40, deadline=None)
@given(st.lists(questions(), min_size=1, max_size=3), st.integers(16, 40), st.integers(1, 20), st.integers(1, 20))
def test_windows_labels_and_places_are_those_of_the_slow_road(family, examples, length, stride, longest):
    layout = SpanLayout(length, stride, longest)
    compare(examples, TOKENIZERS[family], layout, family)


def _squad(file: Path, every: int) -> list[QuestionExample]:
    examples = []
    for article in json.loads(file.read_text("utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                answers = tuple(Answer(each["text"], each["answer_start"]) for each in question["answers"])
                origin = f"f:{len(examples) + 1}"
                examples.append(
                    QuestionExample(question["id"], question["question"], paragraph["context"], answers, origin)
                )
    return examples[::every]


FILES = ["xquad/xquad.en.train36", "xquad/xquad.zh", "xquad/xquad.de", "xquad/xquad.ru", "squad2_subset/dev_part"]


@pytest.mark.long
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("length", [64, 384])
def test_real_questions_are_cut_as_on_the_slow_road(shared, name, length):
    vocabulary_file = shared / "data" / "vocab_bert" / "bert-base-multilingual-cased-vocab.txt"
    tokenizer = WordPiece.open(vocabulary_file, lowercase=False)
    compare(_squad(shared / "data" / f"qa_{name}.json", 7), tokenizer, SpanLayout(length), "bert")


def test_some_real_questions_are_cut_as_on_the_slow_road(shared):
    gpt = with_added_tokens(ByteBPE.open(shared / "data" / "vocab_gpt2"), ["_start_", "_delimiter_", "_classify_"])
    for tokenizer, family in ((gpt, "gpt"), (OpenVocabulary(WORDS), "elmo")):
        compare(_squad(shared / "data" / "qa_xquad" / "xquad.zh.json", 150), tokenizer, SpanLayout(128), family)


def test_the_published_rule_of_most_context():
    """The example of run_squad.py: of `the man went to the | to the store and bought | and bought a gallon of`, the
    word `bought` has most context in the third window."""
    windows = [(0, 5), (3, 5), (6, 5)]
    assert widest_window(11, windows)[7] == 2
    assert window_spans(11, 5, 3) == windows


def test_a_short_context_is_one_window_and_a_wide_stride_skips_nothing():
    assert window_spans(4, 9, 3) == [(0, 4)]
    assert window_spans(0, 9, 3) == [(0, 0)]
    assert window_spans(10, 4, 100) == [(0, 4), (4, 4), (8, 2)]


def test_a_question_loses_its_end_and_a_quarter_is_left_for_the_context():
    example = QuestionExample("q", "ab " * 40, "ab cd ef gh", (Answer("ef", 6),), "f:1")
    windows = cut([example], PIECES, SpanLayout(20, 4, 64))
    assert {second for second in windows.seconds} == {12}  # (20 - 3)·3/4
    assert max(map(len, windows.tokens)) == 17


def test_an_answer_that_no_token_holds_teaches_nothing():
    """U+FE0E alone has no piece: the window is kept, for its text, and has no weight."""
    example = QuestionExample("q", "ab", "ab \u200b cd", (Answer("\u200b", 3),), "f:1")
    assert cut([example], PIECES, SpanLayout(16)).chunk.labels["start"].tolist() == [UNSPELLED]


@pytest.mark.parametrize("tokenizer", [PIECES, LETTERS, OpenVocabulary(WORDS)])
@pytest.mark.parametrize("texts", [("q", "ab", "c \ud800"), ("q", "\udfff", "ab"), ("\udcff", "ab", "cd")])
def test_half_a_character_is_one_clear_line(tokenizer, texts: tuple[str, str, str]):
    with pytest.raises(DataError, match=r"f:1: half a character, U\+D[8CF][0F][0F]; give text in UTF-8"):
        cut([QuestionExample(*texts, None, "f:1")], tokenizer, SpanLayout(16))


def test_no_room_is_one_clear_line():
    with pytest.raises(DataError, match="data.length=15 has no room for a question and its context; give at least 16"):
        SpanLayout(15)


@pytest.mark.parametrize(
    ("tokenizer", "text", "expected"),
    [
        (PIECES, "Ab  cé", ["A", "b", "c", "é"]),  # lower-cased and without its accent, it is that of the text
        (LETTERS, "a b", ["a", "", "b"]),
        (OpenVocabulary(WORDS), " ab, cd", ["ab", ",", "cd"]),
    ],
)
def test_a_token_stands_for_its_characters_without_white_space(tokenizer, text, expected):
    ((_, places),) = encode_with_places([text], tokenizer)
    assert [text[begin:end] for begin, end in places] == expected


def test_a_byte_pair_token_has_no_space_and_half_a_character_is_the_whole(shared):
    tokenizer = ByteBPE.open(shared / "data" / "vocab_gpt2")
    text = "The 猫 sat"
    ((ids, places),) = encode_with_places([text], tokenizer)
    assert len(ids) > 4 and {text[begin:end] for begin, end in places} <= {"The", "猫", "sat", ""}


def test_a_token_of_gpt1_is_a_part_of_its_word(shared):
    from contexture.data.tokenizers.byte_pair import Gpt1BPE

    tokenizer = Gpt1BPE.open(shared / "data" / "vocab_gpt1")
    text = "Antidisestablishmentarianism, 你好"
    ((ids, places),) = encode_with_places([text], tokenizer)
    parts = [text[begin:end] for begin, end in places]
    assert len(parts) > 5 and "".join(parts) == text.replace(" ", "") and parts[-3:] == [",", "你", "好"]
    assert ids == tokenizer.encode(text)


def test_a_question_that_loses_its_end_is_counted():
    examples = [QuestionExample("1", "a b c d e", "a b", None, "f:1"), QuestionExample("2", "a b", "a b", None, "f:2")]
    report = FileReport("f", PIECES)
    windows = span_windows(examples, PIECES, SpanLayout(16, question_length=3), report)
    assert windows.chunk.cut == [True, False]
    with logged() as lines:
        report.finish()
    assert "warning: f: truncated 1 question; raise --task.question-length, or --data.length" in lines

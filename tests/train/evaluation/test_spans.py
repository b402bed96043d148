"""From scores of places to answers: equal to the slow road, and every answer is recovered from perfect scores."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.config import DataConfig, Family, TaskConfig
from contexture.data.tasks.batch.answer_rules import AnswerRules, answer_rules
from contexture.data.tasks.batch.batches import HeldOutTask
from contexture.data.tasks.encode.example_tokens import encode_chunk, in_memory
from contexture.data.tasks.encode.token_places import encode_with_places
from contexture.data.tasks.encode.windows import SpanLayout
from contexture.data.tasks.read.examples import Answer, QuestionExample
from contexture.data.tasks.read.labels import Labels
from contexture.data.tasks.read.read_examples import examples
from contexture.data.tokenizers.base import Tokenizer, with_added_tokens
from contexture.data.tokenizers.byte_pair import ByteBPE
from contexture.data.tokenizers.char_level import Characters
from contexture.data.tokenizers.open_vocabulary import OpenVocabulary
from contexture.data.tokenizers.word_level import Words
from contexture.data.tokenizers.wordpiece import WordPiece
from contexture.train.evaluation.spans import SpanCollector, SpanPrediction
from contexture.train.objectives import span_candidates
from tests.helpers import slow_spans
from tests.helpers.long import long
from tests.helpers.slow_pairs import vocabulary

PIECES = WordPiece([*vocabulary(), *"abcdefgh", *(f"##{x}" for x in "abcdefgh")], lowercase=True)
LETTERS = with_added_tokens(Characters(list("abcdefgh ")), ["_start_", "_delimiter_", "_classify_"])
WORDS = Words(["<S>", "</S>", "<UNK>", "ab"], "punctuation")
TOKENIZERS: dict[Family, Tokenizer] = {"bert": PIECES, "gpt": LETTERS, "elmo": WORDS}


def open_questions(
    given: list[QuestionExample], family: Family, tokenizer: Tokenizer, layout: SpanLayout, batch: int = 4, **rules
) -> HeldOutTask:
    reader = OpenVocabulary(tokenizer) if isinstance(tokenizer, Words) else tokenizer
    encoded = encode_chunk(given, "span", reader, Labels(), layout=layout)
    char_ids = reader.char_ids() if isinstance(reader, OpenVocabulary) else None
    split = in_memory(encoded, "span", (), "f", char_ids=char_ids)
    config = DataConfig(batch=batch, length=layout.length, max_predictions=1)
    return HeldOutTask(split, tokenizer, config, batch, family=family).with_rules(AnswerRules(**rules))


_candidates = jax.jit(span_candidates, static_argnums=2)


def collect(held_out: HeldOutTask, logits) -> tuple[list[SpanPrediction], SpanCollector]:
    """logits(batch, numbers of its windows) → f32 BLC, the scores of every place."""
    collector, records = SpanCollector(held_out), list[SpanPrediction]()
    for step in range(held_out.steps):
        batch = held_out.read(step)
        numbers = held_out.numbers(step)
        # What fills a batch up has scores too, which nothing reads.
        numbers = np.pad(numbers, (0, held_out.batch - len(numbers)), "edge")
        scores = jnp.asarray(logits(batch, numbers), jnp.float32)
        best = _candidates(scores, jnp.asarray(batch["mask"]), held_out.rules.n_best)
        records += collector.add(step, {name: np.asarray(x) for name, x in best.items()})
    return records, collector


def perfect(batch: dict[str, np.ndarray], numbers: np.ndarray) -> np.ndarray:
    """The scores of a model that knows every answer."""
    rows, length = batch["mask"].shape
    scores = np.zeros((rows, length, 2), np.float32)
    for row in range(rows):
        scores[row, batch["starts"][row], 0] = scores[row, batch["ends"][row], 1] = 9.0
    return scores


@st.composite
def questions(draw: st.DrawFn) -> QuestionExample:
    words = st.text("abcdefgh", min_size=1, max_size=4)
    context = " ".join(draw(st.lists(words, min_size=1, max_size=20)))
    begin = draw(st.integers(0, len(context) - 1))
    text = context[begin : begin + draw(st.integers(1, 8))].strip()
    begin = context.index(text) if text else 0
    answers = (Answer(text, begin),) if text and draw(st.booleans()) else ()
    return QuestionExample(str(draw(st.integers(0, 10**9))), draw(words), context, answers, "f:1")


@pytest.mark.parametrize("family", TOKENIZERS)
@settings(max_examples=30, deadline=None)
@given(
    st.lists(questions(), min_size=1, max_size=3),
    st.integers(16, 30), st.integers(3, 12), st.integers(1, 6), st.integers(1, 9), st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_answers_are_those_of_the_slow_road(family, examples, length, stride, n_best, longest, unanswerable, seed):
    layout = SpanLayout(length, stride, 4)
    held_out = open_questions(
        examples, family, TOKENIZERS[family], layout, batch=2, n_best=n_best, answer_length=longest,
        unanswerable=unanswerable,
    )  # fmt: skip
    drawn = np.random.default_rng(seed)
    # Few different scores, so that there are ties.
    scores = drawn.integers(0, 6, (held_out.split.examples, held_out.length, 2)).astype(np.float32)
    records, _ = collect(held_out, lambda batch, numbers: scores[numbers, : batch["mask"].shape[1]])
    assert [record["id"] for record in records] == [example.id for example in examples]
    row = 0
    reader = OpenVocabulary(WORDS) if family == "elmo" else TOKENIZERS[family]
    for example, record in zip(examples, records, strict=True):
        question = len(reader.encode([example.question])[0][: layout.longest_question])
        ((ids, places),) = encode_with_places([example.context], reader)
        special = 2 if family == "elmo" else 3
        inside = slow_spans.windows(len(ids), length - special - question, stride)
        both, null = [], []
        for tokens in inside:
            first = {"bert": 2 + question, "gpt": 1, "elmo": question}[family]
            last = first + len(tokens)
            used = {"bert": last + 1, "gpt": last + 2 + question, "elmo": last}[family]
            named = {}
            for place in range(used):
                in_context = first <= place < last
                named[place] = tokens[place - first] if in_context else place - 10_000
            ordered = [{named[place]: float(scores[row, place, c]) for place in range(used)} for c in (0, 1)]
            both.append((ordered[0], ordered[1]))
            null.append(float(scores[row, 0].sum()))
            row += 1
        expected = slow_spans.n_best(
            example.context, places.tolist(), inside, both, null, count=n_best, longest=longest,
            unanswerable=unanswerable,
        )  # fmt: skip
        assert [(each["text"], each["score"]) for each in record["n_best"]] == expected
        spans = [each for each in expected if each[0]]
        best = spans[0] if spans else ("", -np.inf)
        silent = unanswerable and (not spans or min(null) - best[1] > 0)
        assert record["prediction"] == ("" if silent else best[0])


@pytest.mark.parametrize("family", long("bert", "gpt", "elmo"))
@settings(max_examples=20, deadline=None)
@given(st.lists(questions(), min_size=1, max_size=4, unique_by=lambda q: q.id), st.integers(1, 9))
def test_batches_change_nothing(family, examples, batch):
    layout = SpanLayout(24, 5, 4)
    expected, _ = collect(open_questions(examples, family, TOKENIZERS[family], layout, unanswerable=True), perfect)
    other = open_questions(examples, family, TOKENIZERS[family], layout, batch=batch, unanswerable=True)
    assert collect(other, perfect)[0] == expected


def recovered(shared: Path, name: str, family: Family, length: int, every: int = 1) -> tuple[int, set[str]]:
    """Answers questions of a file from perfect scores; returns (questions, ids of those with another text).

    An answer can be recovered if a token begins where it begins and one ends where it ends. All of these are.
    """
    files = shared / "data"
    tokenizers: dict[Family, Tokenizer] = {
        "bert": WordPiece.open(files / "vocab_bert" / "bert-base-multilingual-cased-vocab.txt", lowercase=False),
        "elmo": WORDS,
        "gpt": with_added_tokens(ByteBPE.open(files / "vocab_gpt2"), ["_start_", "_delimiter_", "_classify_"]),
    }
    rows = examples(str(files / f"qa_{name}.json"), TaskConfig(kind="span"), labelled=True)
    given = [each for each in rows if isinstance(each, QuestionExample)][::every]
    tokenizer = tokenizers[family]
    held_out = open_questions(
        given, family, tokenizer, SpanLayout(length), 32, unanswerable="squad2" in name, answer_length=length
    )
    records, collector = collect(held_out, perfect)
    reader = OpenVocabulary(tokenizer) if isinstance(tokenizer, Words) else tokenizer
    within = {each.id for each in given if each.answers and not _on_borders(each, reader)}
    other = {record["id"] for record in records if record["prediction"] not in (record.get("answers") or [""])}
    assert other <= within
    assert collector.figures()["exact_match"] >= 1 - len(other) / len(given)
    return len(given), other


def _on_borders(example: QuestionExample, reader: Tokenizer | OpenVocabulary) -> bool:
    assert example.answers
    text, start = example.answers[0]
    ((_, places),) = encode_with_places([example.context], reader)
    begin, end = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
    return begin in places[:, 0].tolist() and end in places[:, 1].tolist()


REAL = {
    "xquad/xquad.en.train36": (925, {"bert": 1, "gpt": 10, "elmo": 14}),
    "xquad/xquad.en.dev12": (265, {"bert": 0, "gpt": 3, "elmo": 1}),
    "xquad/xquad.zh": (1190, {"bert": 0, "gpt": 1, "elmo": 138}),
    "xquad/xquad.de": (1190, {"bert": 0, "gpt": 7, "elmo": 13}),
    "squad2_subset/dev_part": (208, {"bert": 0, "gpt": 0, "elmo": 1}),
    "squad2_subset/train_part": (418, {"bert": 0, "gpt": 3, "elmo": 4}),
}
"""The questions of each file, and how many answers begin or end within a token: a part of a word for an ELMo (of
Chinese, a run of characters between stops), of a piece with punctuation for the others."""


@pytest.mark.long
@pytest.mark.parametrize("family", ["bert", "gpt", "elmo"])
@pytest.mark.parametrize("name", REAL)
def test_every_answer_of_real_questions_is_recovered(shared, name, family):
    questions, within_tokens = REAL[name]
    count, other = recovered(shared, name, family, 384)
    assert (count, len(other)) == (questions, within_tokens[family])


@pytest.mark.parametrize(
    ("family", "length"),
    [("bert", 96), *(pytest.param(family, 384, marks=pytest.mark.long) for family in ("bert", "gpt"))],
)
def test_answers_of_some_real_questions_are_recovered(shared, family, length):
    assert recovered(shared, "squad2_subset/dev_part", family, length, 4) == (52, set())


def test_scores_that_are_no_numbers_are_no_hit():
    example = QuestionExample("q", "ab", "ab cd", (), "f:1")
    held_out = open_questions([example], "bert", PIECES, SpanLayout(16), unanswerable=True)
    records, collector = collect(held_out, lambda batch, numbers: perfect(batch, numbers) * np.nan)
    assert records[0]["prediction"] == "" and collector.figures()["exact_match"] == 0.0


def test_without_unanswerable_questions_every_question_is_answered():
    example = QuestionExample("q", "ab", "ab cd", (Answer("cd", 3),), "f:1")
    held_out = open_questions([example], "bert", PIECES, SpanLayout(16))

    def to_null(batch, numbers):
        scores = perfect(batch, numbers)
        scores[:, 0] = 99.0
        return scores

    (record,), _ = collect(held_out, to_null)
    assert record["prediction"] == "cd" and record.get("null_score") == 180.0
    third = np.float32(1 / 3)
    (record,), _ = collect(held_out, lambda batch, numbers: np.maximum(perfect(batch, numbers), third))
    assert record.get("null_score") == -17.333333
    assert all(each["text"] for each in record["n_best"])


def test_a_threshold_moves_the_line_between_an_answer_and_none():
    example = QuestionExample("q", "ab", "ab cd", (Answer("cd", 3),), "f:1")

    def slightly_null(batch, numbers):
        scores = perfect(batch, numbers)
        scores[:, 0, 0] = 19.0
        return scores

    given = {}
    for threshold in (0.5, 1.0, 1.5):
        held_out = open_questions([example], "bert", PIECES, SpanLayout(16), unanswerable=True, threshold=threshold)
        given[threshold] = collect(held_out, slightly_null)[0][0]["prediction"]
    assert given == {0.5: "", 1.0: "cd", 1.5: "cd"}  # 19 + 0 for none against 9 + 9: one more


@pytest.mark.parametrize(
    ("threshold", "counts", "expected"),
    [
        ("dev", (5, 3), AnswerRules(unanswerable=True, threshold=1.5)),
        ("dev", (5, 0), AnswerRules(threshold=1.5)),
        ("dev", (), AnswerRules(threshold=1.5)),  # an imported model
        ("never", (5, 3), AnswerRules(threshold=1.5)),
        ("-2", (), AnswerRules(unanswerable=True, threshold=-2.0)),
    ],
)
def test_whether_no_answer_is_one_follows_from_training_or_option(threshold, counts, expected):
    assert answer_rules(TaskConfig(kind="span", null_threshold=threshold), counts, 1.5) == expected


def test_the_baseline_is_the_share_of_questions_without_an_answer():
    given = [QuestionExample(str(n), "ab", "ab cd", (Answer("cd", 3),) if n else (), f"f:{n + 1}") for n in range(4)]
    unread: Any = None
    split = open_questions(given, "bert", PIECES, SpanLayout(16)).split
    assert SpanCollector.baseline(unread, split) == {"majority_exact_match": 0.25}


def test_records_hold_what_a_file_of_answers_needs():
    example = QuestionExample("q7", "ab", "ab cd", (Answer("cd", 3), Answer("d", 4)), "f:1")
    (record,), _ = collect(open_questions([example], "bert", PIECES, SpanLayout(16)), perfect)
    assert record["id"] == "q7" and record.get("answers") == ["cd", "d"] and record["prediction"] == "cd"
    assert record["n_best"][0]["start"] == 3 and json.dumps(record)
    assert sum(each["probability"] for each in record["n_best"]) == pytest.approx(1, abs=1e-4)


@settings(max_examples=40, deadline=None)
@given(st.lists(questions(), min_size=1, max_size=8), st.integers(0, 2**32 - 1), st.sampled_from([-9.0, 0.0, 9.0]))
def test_answers_by_the_best_threshold_have_the_scores_it_promised(drawn, seed: int, null: float):
    """In batches of another size too; also where giving no answer at all is best (null 9)."""
    examples = [replace(each, answers=() if n % 2 else each.answers) for n, each in enumerate(drawn)]

    def logits(batch: dict[str, np.ndarray], numbers: np.ndarray) -> np.ndarray:
        scores = np.random.default_rng(seed).integers(-3, 4, (100, batch["mask"].shape[1], 2)).astype(np.float32)
        scores[:, 0] += null
        return scores[numbers]

    def figures(batch: int, threshold: float) -> dict[str, float]:
        layout = SpanLayout(16)
        rules = {"unanswerable": True, "threshold": threshold}
        return collect(open_questions(examples, "bert", PIECES, layout, batch, **rules), logits)[1].figures()

    promised = figures(4, 0.0)
    if "best_f1_threshold" in promised:
        assert figures(3, promised["best_f1_threshold"])["f1"] == pytest.approx(promised["best_f1"], abs=1e-12)

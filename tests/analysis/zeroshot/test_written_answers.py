"""Tasks in which a GPT writes: prompts written by hand, a slow greedy loop, and the libraries' own figures."""

import json
import math
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

import contexture
from contexture.analysis.zeroshot.conversations import Question, read_questions
from contexture.analysis.zeroshot.prompts import (
    fitting_summary_prompt,
    question_prompt,
    summary_prompt,
    translation_prompts,
)
from contexture.analysis.zeroshot.referenced_texts import ReferencedTexts, Shots, read_referenced_texts
from contexture.analysis.zeroshot.written_answers import (
    answer_questions,
    first_sentences,
    leave_one_out,
    summarize,
    translate,
)
from contexture.cli import main as cli
from contexture.data.errors import DataError
from contexture.models.config import GptConfig
from contexture.train.evaluation.squad_metrics import text_scores
from tests.helpers.commands import json_of
from tests.helpers.long import long

pytestmark = pytest.mark.usefixtures("one_device")
COQA: dict[str, Any] = {
    "version": "1.0",
    "data": [
        {
            "id": "tale",
            "story": "The cat sees a dog.",
            "questions": [{"input_text": text, "turn_id": n} for n, text in enumerate(("Who sees?", "Whom?"), 1)],
            "answers": [{"input_text": text, "span_text": "…"} for text in ("The cat", "a dog")],
            "additional_answers": {
                "0": [{"input_text": "cat"}, {"input_text": "dog"}],
                "1": [{"input_text": "it"}, {"input_text": "the small dog"}],
            },
        },
        {"story": "A bird.", "questions": [{"input_text": "What?"}], "answers": [{"input_text": "unknown"}]},
    ],
}
SQUAD = {"data": [{"paragraphs": [{"context": "The cat sees a dog.", "qas": [
    {"id": "1", "question": "Who sees?", "answers": [{"text": "The cat", "answer_start": 0}]},
    {"id": "2", "question": "Why?", "answers": [], "is_impossible": True},
]}]}]}  # fmt: skip


NEWLINE = 198


def random_gpt(run: Path, seed: int) -> contexture.TrainedModel:
    """A GPT of random numbers that writes a great many kinds of words, for its pieces of one byte are rare but the line
    end."""
    model, rng = contexture.open(run), np.random.default_rng(seed)
    params: Any = jax.tree.map(lambda x: rng.normal(0, 1, x.shape).astype(x.dtype) if x.ndim > 1 else x, model.params)
    tables = params["backbone"]["embeddings"]
    tables["positions"] = rng.normal(0, 0.3, tables["positions"].shape).astype(np.float32)
    tables["tokens"] = rng.normal(0, 0.1, tables["tokens"].shape).astype(np.float32)
    tables["tokens"][:256] *= 0.3
    tables["tokens"][NEWLINE] *= 5
    model.params = params
    return model


@pytest.fixture(scope="module")
def gpt(gpt_run) -> contexture.TrainedModel:
    return random_gpt(gpt_run, 2)


def slow_answers(gpt: contexture.TrainedModel, prompts: list[str], tokens: int) -> list[str]:
    """What is written greedily by reading the whole text again for each token, up to a line end or the document's."""
    config, params = gpt.model.config, cast(Any, gpt.params)
    assert isinstance(config, GptConfig)
    length, tokenizer, model = config.length, gpt.tokenizer, cast(Any, gpt.model.clone(heads={}))
    table = params["backbone"]["embeddings"]["tokens"][: tokenizer.size]
    read = jax.jit(lambda batch: model.apply({"params": params}, batch).encoding.hidden_BLD[0])

    def write(prompt: str) -> str:
        ids = tokenizer.encode([prompt])[0][-(length - tokens) :]
        before = tokenizer.decode(ids)
        for _ in range(tokens):
            row = np.pad(np.array([ids], np.int32), ((0, 0), (0, length - len(ids))))
            ids.append(int((table @ read({"tokens": row, "mask": np.ones_like(row)})[len(ids) - 1]).argmax()))
            if ids[-1] == tokenizer.end:
                ids.pop()
                break
        return tokenizer.decode(ids)[len(before) :].split("\n")[0]

    return [write(prompt) for prompt in prompts]


def saved(file: Path, content: object) -> Path:
    file.write_text(json.dumps(content), "utf-8")
    return file


def test_prompts_are_those_written_by_hand(tmp_path: Path):
    first, second, third = read_questions([str(saved(tmp_path / "coqa.json", COQA))])
    assert question_prompt(first) == "The cat sees a dog.\nQ: Who sees?\nA:"
    assert question_prompt(second) == "The cat sees a dog.\nQ: Who sees?\nA: The cat\nQ: Whom?\nA:"
    assert (first.id, second.id, third.id) == ("tale:1", "tale:2", "1:1")
    assert second.answers == ("a dog", "dog", "the small dog") and third.answers == ("unknown",)
    # The questions of SQuAD do not need each other.
    one, two = read_questions([str(saved(tmp_path / "squad.json", SQUAD))])
    assert question_prompt(two) == "The cat sees a dog.\nQ: Why?\nA:" and (one.answers, two.answers) == (
        ("The cat",),
        (),
    )
    assert summary_prompt("A cat sat.\nIt ran.\n") == "A cat sat.\nIt ran.\nTL;DR:"
    shown = ReferencedTexts(["the  cat", "a dog"], [("le chat", "un chat"), ("un chien",)])
    assert translation_prompts(["a bird"], shown, 0, 0) == ["a bird ="]
    both = {"the cat = le chat\na dog = un chien\na bird =", "a dog = un chien\nthe cat = le chat\na bird ="}
    assert set(translation_prompts(["a bird"] * 9, shown, 2, 0)) == both
    # A sentence is not its own example.
    assert translation_prompts(["the cat", "a dog"], shown, 1, 5) == [
        "a dog = un chien\nthe cat =",
        "the cat = le chat\na dog =",
    ]
    with pytest.raises(DataError, match="shots=2, and there are 1 examples to draw them from beside the text itself"):
        translation_prompts(["a dog"], shown, 2, 0)


@pytest.mark.parametrize("seed", [3, *long(2)])
def test_greedy_answers_are_those_of_a_slow_loop(gpt_run, seed):
    gpt = random_gpt(gpt_run, seed)
    assert isinstance(gpt.model.config, GptConfig)
    room = gpt.model.config.length - 10
    long = "the cat sees the dog . " * room
    questions = [
        Question("1", "the cat sees the dog .", "who", ("cat",)),
        Question("2", long, "what", ("the dog", "dog"), (("who", "the cat"),)),
        Question("3", "a bird", "which bird", ()),
    ]
    result = answer_questions(gpt, questions, tokens=10, batch=2)
    prompts = [question_prompt(question) for question in questions]
    written = slow_answers(gpt, prompts, 10)
    rows = result["answers"]
    assert [row["written"] for row in rows] == written and [row["prompt"] for row in rows] == prompts
    assert [row["answer"] for row in rows] == [text.strip() for text in written]
    # One of the two models ends lines, the other does not.
    assert ("stop" in {row["stopped"] for row in rows}) == (seed == 3)
    lost = [max(len(ids) - room, 0) for ids in gpt.tokenizer.encode(prompts)]
    assert [row["truncated"] for row in rows] == lost and lost[1] > 0 and result["truncated"] == np.count_nonzero(lost)
    asked = ReferencedTexts(["the queen", "a small dog"], [("la reine",), ("un petit chien",)])
    result = translate(gpt, asked, Shots(asked, 1), tokens=10)
    prompts = ["a small dog = un petit chien\nthe queen =", "the queen = la reine\na small dog ="]
    assert [row["written"] for row in result["answers"]] == slow_answers(gpt, prompts, 10)


def test_answers_score_as_in_the_official_scripts(gpt):
    questions = [Question("1", "the cat sees", "who", ("x",)), Question("2", "a dog", "what", ("x", "y"))]
    own = [row["answer"] for row in answer_questions(gpt, questions, tokens=8)["answers"]]
    right = [(own[0],), (f"{own[1]} bird", own[1], "the man")]
    asked = [Question(each.id, each.document, each.question, answers)
             for each, answers in zip(questions, right, strict=True)]  # fmt: skip
    result = answer_questions(gpt, [*asked, Question("3", "a", "b", ("never so",))], tokens=8)
    assert result["exact_match"] == 2 / 3 and result["examples"] == 3
    assert result["f1"] == math.fsum(row["f1"] for row in result["answers"]) / 3
    assert [(row["exact_match"], row["f1"]) for row in result["answers"]][:2] == [(1.0, 1.0)] * 2
    assert result["leave_one_out_exact_match"] == math.fsum([1.0, 2 / 3, 0.0]) / 3
    assert "leave_one_out_f1" not in answer_questions(gpt, asked[:1], tokens=8)
    json.dumps(result)  # plain numbers, strings, lists and dicts


def test_one_right_answer_is_left_out_in_turn():
    right = ("the small cat", "a cat", "dog")
    by_hand = [max(text_scores("small cat", [text])[1] for text in right[:n] + right[n + 1 :]) for n in range(3)]
    assert leave_one_out("small cat", right) == (2 / 3, math.fsum(by_hand) / 3)
    assert leave_one_out("dog", ["a dog"]) == (1.0, 1.0) and leave_one_out("", []) == (1.0, 1.0)


def test_summaries_have_the_librarys_rouge(gpt, monkeypatch):
    def no_network(*_: object) -> None:
        raise AssertionError("something is downloaded")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    texts = ["the cat sees the dog . the dog ran .", "a small dog likes my brother"]
    result = summarize(gpt, ReferencedTexts(texts, [("x",), ("y",)]), tokens=16, seed=3)
    prompts = [f"{text}\nTL;DR:" for text in texts]
    written = [each["text"] for each in gpt.generate(prompts, tokens=16, top_k=2, seed=3, truncate=True)]
    own = [row["answer"] for row in result["answers"]]
    assert [row["written"] for row in result["answers"]] == written
    assert own == [first_sentences(text) for text in written] and any(own)
    plural = " ".join(f"{word}s" for word in own[1].split())  # the same word to a stemmer
    right = [(f"{own[0]} running birds", "a bird"), (plural,)]
    result = summarize(gpt, ReferencedTexts(texts, right), tokens=16, seed=3)
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    scores = [scorer.score_multi(gold, text) for gold, text in zip(right, own, strict=True)]
    for name in ("rouge1", "rouge2", "rougeL"):
        assert result[name] == math.fsum(score[name].fmeasure for score in scores) / 2, name
    assert 0 < result["rouge1"] <= 1
    assert "use_stemmer=True" in result["convention"]
    json.dumps(result)


@pytest.mark.parametrize("limit", [1, 8, 9, 20, 40, 1000])
def test_an_article_that_is_too_long_loses_its_end(gpt, limit):
    article = " the cat sees the dog . the dog ran . " * 8
    prompt, lost = fitting_summary_prompt(article, gpt.tokenizer, limit)
    count, whole = (len(gpt.tokenizer.encode(text)) for text in (prompt, summary_prompt(article)))
    assert lost == whole - count and prompt.endswith("\nTL;DR:")
    assert article.strip().startswith(prompt.removesuffix("\nTL;DR:"))
    least = len(gpt.tokenizer.encode("\nTL;DR:"))
    assert count == least if limit < least else count <= limit
    longer = summary_prompt(article.strip()[: len(prompt.removesuffix("\nTL;DR:")) + 4])
    assert len(gpt.tokenizer.encode(longer)) > limit or not lost  # no more of it fits


@pytest.mark.long
def test_a_long_article_is_counted_and_its_beginning_read(gpt):
    article = "the cat sees the dog . " * 200
    result = summarize(gpt, ReferencedTexts([article, "the cat"], [("x",), ("y",)]), tokens=16)
    long, short = result["answers"]
    assert long["prompt"].startswith("the cat sees the dog .") and long["prompt"].endswith("\nTL;DR:")
    assert long["truncated"] > 0 == short["truncated"] and result["truncated"] == 1
    assert long["written"] == gpt.generate(long["prompt"], tokens=16, top_k=2, seed=0)["text"]
    assert "an article that is too long for the model loses its end" in result["convention"]


def test_a_summary_is_the_first_three_sentences():
    assert first_sentences(" Mr. Hill left. He\tran!  Why? No.") == "Mr. Hill left. He ran! Why?"
    assert first_sentences("\n\nA title\nIt  ran. It sat.\nIt slept.") == "A title It ran. It sat."
    assert first_sentences("") == first_sentences(" \n ") == "" and first_sentences("no stop") == "no stop"


@pytest.mark.parametrize("tokenize", ["13a", "char", "zh", "intl", "none"])
def test_translations_have_the_librarys_bleu(gpt, tokenize):
    texts = ["the cat sees the dog", "a small dog", "the queen"]
    own = [row["answer"] for row in translate(gpt, ReferencedTexts(texts, [("x",)] * 3), tokens=24)["answers"]]
    right = [(f"{own[0]} now", "le chat"), (f"so {own[1]}",), (own[2], "la reine")]
    result = translate(gpt, ReferencedTexts(texts, right), tokens=24, tokenize=tokenize)
    streams = [[gold[0] for gold in right], ["le chat", None, "la reine"]]
    assert result["bleu"] == sacrebleu.corpus_bleu(own, streams, tokenize=tokenize).score > 0  # pyright: ignore[reportArgumentType]
    assert result["signature"].startswith(f"nrefs:var|case:mixed|eff:no|tok:{tokenize}")
    assert result["signature"].endswith(f"|smooth:exp|version:{sacrebleu.__version__}")
    json.dumps(result)


def test_texts_and_references_are_columns_of_a_table(tmp_path: Path):
    table = tmp_path / "pairs.tsv"
    table.write_text("id\ten\tfr\tes\n1\tthe cat\tle chat\tel gato\n2\ta dog\t\tun perro\n")
    read = read_referenced_texts([str(table)], "translate", text="en", references=["fr", "ES"])
    assert read == ReferencedTexts(["the cat", "a dog"], [("le chat", "el gato"), ("un perro",)])
    assert (
        read_referenced_texts([str(table)], "translate", text="2", references=["4"], header="yes").texts == read.texts
    )
    # Columns by position alone: the first line is a row.
    bare = read_referenced_texts([str(table)], "translate", text="2", references=["4"])
    assert bare.texts[0] == "en" and bare.references[0] == ("es",)
    for usual, option in (("", "text"), ("en", "references")):
        with pytest.raises(DataError, match=f"no column has a usual name .*; name it with --{option}$"):
            read_referenced_texts([str(table)], "translate", text=usual)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"article": "A cat sat.", "highlights": ["a cat", "it sat"]}\n')
    assert read_referenced_texts([str(rows)], "summarize") == ReferencedTexts(["A cat sat."], [("a cat", "it sat")])


def test_the_command_reads_a_table_and_writes_answers(gpt_run, shared: Path, tmp_path: Path):
    table = tmp_path / "pud.tsv"
    table.write_text(
        "".join((shared / "data" / "par_pud" / "pud.tsv").read_text("utf-8").splitlines(keepends=True)[:5]), "utf-8"
    )
    answers = tmp_path / "answers.jsonl"
    words = [
        "--text",
        "en",
        "--references",
        "zh",
        "--tokens",
        8,
        "--bleu-tokenize",
        "zh",
        "--shots",
        1,
        "--to",
        answers,
    ]
    result = json_of("zeroshot", gpt_run, "--task", "translate", "--input", table, "--examples", table, *words)
    rows = [json.loads(line) for line in answers.read_text("utf-8").splitlines()]
    assert result["examples"] == len(rows) == 4 and result["shots"] == 1 and "|tok:zh|" in result["signature"]
    streams = [[row["references"][0] for row in rows]]
    assert result["bleu"] == sacrebleu.corpus_bleu([row["answer"] for row in rows], streams, tokenize="zh").score
    assert all(row["prompt"].endswith(" =") and row["prompt"].count("\n") == 1 for row in rows)
    coqa = saved(tmp_path / "coqa.json", COQA)
    result = json_of("zeroshot", gpt_run, "--task", "qa", "--input", coqa, "--tokens", 4, "--to", answers)
    rows = [json.loads(line) for line in answers.read_text("utf-8").splitlines()]
    assert result["f1"] == math.fsum(text_scores(row["answer"], row["references"])[1] for row in rows) / 3
    assert [row["id"] for row in rows] == ["tale:1", "tale:2", "1:1"] and "convention" in result
    table.write_text("text\tsummary\nThe cat sat.\ta cat\n")
    result = json_of("zeroshot", gpt_run, "--task", "summarize", "--input", table, "--tokens", 8)
    assert result["examples"] == 1 and {"rouge1", "rouge2", "rougeL"} <= result.keys()


@pytest.mark.long
def test_the_libraries_are_loaded_for_their_tasks_alone():
    program = (
        "import sys, contexture.analysis.zeroshot.written_answers, contexture.cli.inspection.zeroshot\n"
        "assert not {'nltk', 'rouge_score', 'sacrebleu'} & sys.modules.keys()"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0


MISTAKES = {
    "BERT --task qa --input QA": "--task qa is for a GPT, which writes its answers; ",
    "BERT --task summarize --input TABLE": "--task summarize is for a GPT, which writes its answers; ",
    "ELMO --task translate --input TABLE": "--task translate is for a GPT, which writes its answers; ",
    "RUN --task qa --input none.json": "none.json: --input names no such file; check the path",
    "RUN --task qa --input NONE": "none_right.json: data[0]: 2 questions and 1 answers; give every question one",
    "RUN --task qa --input NO_STORY": "no_story.json: data[0] has no text 'story'; a file in CoQA's form is",
    "RUN --task qa --input NO_TURN": "no_turn.json: data[0].questions is no list with a turn in it; a file in CoQA's",
    "RUN --task qa --input BROKEN": "broken.json:1: not JSON (",
    "RUN --task qa --input QA --tokens 5000": "5000 tokens to be written leave no room for a prompt in the ",
    "RUN --task qa --input QA --tokens -1": "tokens=-1 is not a number of tokens",
    "RUN --task qa --input QA --shots 1": "shots= has no meaning for --task qa; it is for choice, cbt and translate",
    "RUN --task summarize --input TABLE --bleu-tokenize zh": "bleu-tokenize= has no meaning for --task summarize;",
    "RUN --task lambada --input TABLE --tokens 4": "tokens= has no meaning for --task lambada; it is for qa, summarize",
    "RUN --task translate --input TABLE --text en --references de": "table.tsv:1: there is no column 'de' (did you",
    "RUN --task translate --input TABLE --text en": "table.tsv:1: no column has a usual name of the reference (",
    "RUN --task translate --input TABLE --text en --references en": "table.tsv:1: one column is read for two things;",
    "RUN --task translate --input HOLES --text en --references fr": "holes.tsv:3: the row has no reference; fill it,",
    "RUN --task translate --input HOLES --text fr --references en": "holes.tsv:3: the text is empty, or a list; give",
    "RUN --task translate --input TABLE --text en --references fr --bleu-tokenize spm": "--bleu-tokenize is 'spm',",
    "RUN --task translate --input TABLE --text en --references fr --seed -1": "seed=-1 is not in [0, 2^31)",
    "RUN --task translate --input TABLE --text en --references fr --shots 1 --examples TABLE": "shots=1, and there are",
    "RUN --task translate --input TABLE --text en --references fr --shots 1 --examples none.tsv": "none.tsv: --exam",
    "RUN --task summarize --input NUMBER": "number.jsonl:1: '7' is no text; give strings",
}  # fmt: skip


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line(gpt_run, tiny_run, elmo_run, tmp_path, capsys, words):
    (story,) = COQA["data"][:1]
    files: dict[str, tuple[str, object]] = {
        "QA": ("coqa.json", COQA),
        "NONE": ("none_right.json", {"data": [{**story, "answers": story["answers"][:1]}]}),
        "NO_STORY": ("no_story.json", {"data": [{**story, "story": ""}]}),
        "NO_TURN": ("no_turn.json", {"data": [{"story": "A bird."}]}),
        "BROKEN": ("broken.json", '{"data": '),
        "TABLE": ("table.tsv", "en\tfr\nthe cat\tle chat\n"),
        "HOLES": ("holes.tsv", "en\tfr\nthe cat\tle chat\na dog\t\n"),
        "NUMBER": ("number.jsonl", '{"text": "a", "summary": 7}\n'),
    }
    places: dict[str, Path] = {"RUN": gpt_run, "BERT": tiny_run, "ELMO": elmo_run}
    for word, (name, content) in files.items():
        places[word] = tmp_path / name
        places[word].write_text(content if isinstance(content, str) else json.dumps(content))
    assert cli.main(["zeroshot", *(str(places.get(word, word)) for word in words.split())]) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if "Error" in line]
    assert MISTAKES[words] in line

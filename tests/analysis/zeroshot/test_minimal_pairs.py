"""BLiMP's minimal pairs, and the standard errors of zero-shot figures, against arithmetic by hand."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contexture
from contexture.analysis.zeroshot.alternatives import choose
from contexture.analysis.zeroshot.lambada import lambada, split_passage
from contexture.analysis.zeroshot.minimal_pairs import MinimalPair, _mean, minimal_pairs, read_pairs
from contexture.analysis.zeroshot.standard_error import of_sum, standard_error
from tests.helpers.commands import json_of, run_command
from tests.helpers.long import long
from tests.helpers.parity_rule import close
from tests.train.run.test_formats import GOLDEN

pytestmark = pytest.mark.usefixtures("one_device")
PAIRS = {
    "first": [("the old cat sees", "sees cat old the"), ("a river", "river a"), ("the sea", "the sea")],
    "second": [("two apples", "apples two"), ("a cat ran", "ran a cat")],
    "third": [("the moon", "moon the")],
}
TERMS = {"first": ("word order", "syntax"), "second": ("word order", "syntax"), "third": ("else", "semantics")}


@pytest.fixture
def blimp(tmp_path: Path) -> Path:
    """A folder as BLiMP's, a file for each UID; beside it a file of another kind."""
    (tmp_path / "data").mkdir()
    for uid, pairs in PAIRS.items():
        term, field = TERMS[uid]
        rows = [
            {"sentence_good": good, "sentence_bad": bad, "field": field, "linguistics_term": term, "UID": uid,
             "simple_LM_method": True, "pair_id": str(n)}
            for n, (good, bad) in enumerate(pairs)
        ]  # fmt: skip
        (tmp_path / "data" / f"{uid}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "data" / "README.md").write_text("about")
    return tmp_path / "data"


def _log_prob(model: contexture.TrainedModel, sentence: str) -> float:
    scored = model.score(sentence)
    return -scored["loss"] * scored["tokens"]


@pytest.mark.parametrize("run", ["elmo", *long("gpt")])
def test_a_pair_is_right_where_the_acceptable_sentence_is_more_probable(run, blimp, tmp_path):
    options = ("--task", "blimp", "--input", blimp, "--to", tmp_path / "pairs.jsonl")
    result = json_of("zeroshot", GOLDEN / run, *options)
    model = contexture.open(GOLDEN / run)
    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    expected = [[_log_prob(model, each) for each in pair] for uid in PAIRS for pair in PAIRS[uid]]
    close(np.array([row["log_probs"] for row in rows]), np.array(expected), tolerance=1e-4)
    hits = {uid: [row["hit"] for row in rows if row["uid"] == uid] for uid in PAIRS}
    assert [hit for own in hits.values() for hit in own] == [good > bad for good, bad in expected]
    assert hits["first"][2] is False  # a tie
    shares = {uid: sum(own) / len(own) for uid, own in hits.items()}
    assert {row["UID"]: row["accuracy"] for row in result["paradigms"]} == shares
    assert result["accuracy"] == pytest.approx(sum(shares.values()) / 3) and result["examples"] == 6
    order = (shares["first"] + shares["second"]) / 2
    assert {row["linguistics_term"]: row["accuracy"] for row in result["phenomena"]} == {
        "word order": order, "else": shares["third"]
    }  # fmt: skip
    assert [(row["field"], row["paradigms"]) for row in result["fields"]] == [("syntax", 2), ("semantics", 1)]


def test_a_mean_over_paradigms_has_the_errors_of_all(monkeypatch):
    def chosen(model: object, texts: list[str], *_: object, **__: object) -> dict[str, Any]:
        return {"log_probs": [np.array([1.0, 0.0]) if n % 3 else np.array([0.0, 0.0]) for n in range(len(texts))]}

    monkeypatch.setattr("contexture.analysis.zeroshot.minimal_pairs.choose", chosen)
    pairs = [MinimalPair("a", "b", uid, "t", "f") for uid in ("x", "y") for _ in range(6)]
    result = minimal_pairs(contexture.open(GOLDEN / "gpt"), pairs)
    p, n = 4 / 6, 6
    error = math.sqrt(p * (1 - p) / (n - 1))
    assert [row["standard_error"] for row in result["paradigms"]] == pytest.approx([error, error])
    assert result["standard_errors"]["accuracy"] == pytest.approx(math.sqrt(2 * error**2) / 2)


def test_a_mean_of_paradigms_without_an_error_has_none():
    """Of one pair, say: 0 would read as certain."""
    rows: list[dict[str, Any]] = [{"accuracy": 1.0, "standard_error": None}, {"accuracy": 0.5, "standard_error": 0.1}]
    assert _mean(rows) == {"accuracy": 0.75, "standard_error": None}


def test_the_standard_error_is_the_deviation_over_the_root_of_n():
    values = np.random.default_rng(0).normal(size=50)
    assert standard_error(values) == pytest.approx(np.std(values, ddof=1) / np.sqrt(50))
    hits = [1.0] * 30 + [0.0] * 10
    assert standard_error(hits) == pytest.approx(math.sqrt(0.75 * 0.25 / 39))
    assert standard_error([1.0]) is None and standard_error([0.5] * 9) == 0
    assert of_sum([3.0, 4.0]) == 5 and of_sum([1.0, None]) is None and of_sum([]) is None


def test_choices_and_passages_have_standard_errors():
    gpt = contexture.open(GOLDEN / "gpt")
    texts, choices = ["the", "a", "the old"], [("cat", "river"), ("cat", "river"), ("river", "cat")]
    result = choose(gpt, texts, choices, [0, 0, 0], ["f", "m", "f"])
    right = [each[0] > each[1] for each in result["log_probs"]]
    error = np.std(right, ddof=1) / np.sqrt(3)
    assert result["standard_errors"]["accuracy"] == pytest.approx(error)
    assert result["groups"]["f"]["standard_error"] == pytest.approx(np.std(right[::2], ddof=1) / np.sqrt(2))
    assert result["standard_errors"]["gap"] is None  # one group has one example
    passages = ["the cat sees the river", "two old apples", "the sea and the moon"]
    result = lambada(gpt, passages)
    losses = []
    for passage in passages:
        context, word = split_passage(passage, 0)
        losses.append(_log_prob(gpt, context) - _log_prob(gpt, context + word))
    close(result["loss"], np.mean(losses), tolerance=1e-4)
    close(result["standard_errors"]["loss"], np.std(losses, ddof=1) / np.sqrt(3), tolerance=1e-3)
    assert result["perplexity"] == pytest.approx(math.exp(result["loss"]))


def test_a_table_has_a_row_for_each_paradigm(blimp, tmp_path):
    json_of("zeroshot", GOLDEN / "gpt", "--task", "blimp", "--input", blimp, "--table", tmp_path / "t.md")
    lines = (tmp_path / "t.md").read_text().splitlines()
    assert lines[0] == "| UID | linguistics\\_term | field | examples | accuracy | standard\\_error |"
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| first", "| second", "| third", "| mean"]


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        (
            "a.jsonl",
            '{"sentence_good": "a", "UID": "x"}\n',
            "a.jsonl:1: no string `sentence_bad`; give BLiMP's",
        ),
        ("a.jsonl", "{\n", "a.jsonl:1: not JSON"),
        ("a.jsonl", "", "a.jsonl: no pairs of sentences; give BLiMP's *.jsonl"),
        ("a.tsv", "a\tb\n", "a.tsv: no *.jsonl file and no folder of them; give BLiMP's *.jsonl"),
        ("folder/a.txt", "a", "folder: no *.jsonl in the folder; give BLiMP's *.jsonl"),
        ("", "", "none.jsonl: no *.jsonl file and no folder of them; give BLiMP's *.jsonl"),
    ],
)
def test_what_is_no_file_of_pairs_is_one_line(tmp_path, capsys, name, text, line):
    given = tmp_path / (name.split("/")[0] or "none.jsonl")
    if name:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    code, err = run_command(capsys, "zeroshot", GOLDEN / "gpt", "--task", "blimp", "--input", given)
    assert code == 2 and line in err and len(err.splitlines()) == 1, err


def test_a_field_that_is_null_is_missing(tmp_path):
    row = {"sentence_good": "a b", "sentence_bad": "b a", "UID": "u", "field": None}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    (pair,) = read_pairs([tmp_path / "a.jsonl"])
    assert (pair.field, pair.term) == ("", "")

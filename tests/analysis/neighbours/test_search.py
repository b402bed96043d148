"""The nearest sentences and words of a text, and the cosines of pairs, by a trained model of each family."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import contexture
from contexture.analysis.neighbours.search import sentence_neighbours, word_neighbours
from contexture.analysis.neighbours.sentence_vectors import sentence_vectors
from contexture.analysis.neighbours.similarity import pair_similarities, read_pairs
from contexture.analysis.neighbours.whitening import fit_whitening
from contexture.analysis.options import VectorOptions
from contexture.cli import main as cli
from contexture.data.errors import DataError
from contexture.models.heads.layer_mix import learned_mixes
from tests.helpers.commands import done, json_of
from tests.helpers.logs import logged
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close, close
from tests.helpers.random_runs import random_training
from tests.train.run.test_formats import GOLDEN

pytestmark = pytest.mark.usefixtures("one_device")
LINES = [
    "the cat sees the dog",
    "a small dog sees the old man",
    "",
    "the queen likes my brother",
    "one bird follows that cat",
    "the old man finds a bird",
]


RUN = GOLDEN / "bert"


@pytest.fixture(scope="module", params=["bert", "elmo", *long("gpt")])
def model(request) -> contexture.TrainedModel:
    return contexture.open(GOLDEN / request.param)


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("neighbours") / "text.txt"
    file.write_text("\n".join(LINES) + "\n", "utf-8")
    return file


def cosine(a, b) -> float:
    norm = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / norm) if norm else 0.0


@pytest.mark.parametrize("whiten", [False, True], ids=["plain", "whitened"])
def test_the_nearest_sentences_are_those_of_all_cosines(model, whiten):
    queries = ["my dog likes the cat", "that man"]
    got = sentence_neighbours(
        model, lambda: iter(LINES), queries, top=4, how=VectorOptions(pool="mean", layers="1", batch=2, whiten=whiten)
    )
    vectors, asked = (model.embed(texts, pool="mean", layers=1) for texts in (LINES, queries))
    if whiten:
        whitening = fit_whitening([vectors])
        vectors, asked = whitening(vectors), whitening(asked)
    for row, vector in zip(got, asked, strict=True):
        cosines = [cosine(vector, each) for each in vectors]
        order = sorted(range(len(LINES)), key=lambda n: -cosines[n])[:4]
        assert [each["line"] - 1 for each in row["neighbours"]] == order
        assert [each["text"] for each in row["neighbours"]] == [LINES[n] for n in order]
        assert_close([each["cosine"] for each in row["neighbours"]], [cosines[n] for n in order], atol=1e-5)


def test_the_nearest_words_are_those_of_all_cosines(model):
    got = word_neighbours(model, lambda: iter(LINES), "the dog finds one cat", "cat", top=5)
    asked = model.embed(["the dog finds one cat"], of="words")[0][4]
    words = [(line, place, word) for line, text in enumerate(LINES) for place, word in enumerate(text.split())]
    vectors = np.concatenate([each for each in model.embed([x for x in LINES if x], of="words")])
    cosines = [cosine(asked, each) for each in vectors]
    order = sorted(range(len(words)), key=lambda n: -cosines[n])[:5]
    expected = [words[n] for n in order]
    assert [(each["line"] - 1, each["position"], each["word"]) for each in got["neighbours"]] == expected
    assert_close([each["cosine"] for each in got["neighbours"]], [cosines[n] for n in order], atol=1e-5)


def test_a_learned_mix_weighs_the_layers(tmp_path):
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("words\ttags\n" + "the cat\tD N\na dog\tD N\n" * 4)
    words = f"finetune {RUN} --task.kind tag --task.train {tmp_path}/train.tsv --task.dev {tmp_path}/dev.tsv"
    words += f" --dir {tmp_path}/run --steps 8 --data.batch 8 --head.mix all --optim.frozen backbone --lr 1e-3"
    words += " --optim.mix-lr 0.1"
    with random_training(8):
        done(*words.split())
    run = contexture.open(tmp_path / "run")
    weights = np.array(learned_mixes(run.params)["input"]["weights"], np.float32)
    assert np.ptp(weights) > 0.01
    expected = np.tensordot(run.embed(LINES, layers="all"), weights, ((1,), (0,)))
    got = np.concatenate(list(sentence_vectors(run, LINES, VectorOptions(layers="mix"))))
    close(got, expected, tolerance=1e-5)
    with pytest.raises(DataError, match="layers=mix, and .* has learned no mix of layers; give a number, or a run"):
        list(sentence_vectors(contexture.open(RUN), LINES, VectorOptions(layers="mix")))


def test_the_commands_give_what_the_functions_do(text, tmp_path):
    model = contexture.open(RUN)
    (tmp_path / "queries.txt").write_text("my dog\nthe queen\n")
    got = json_of("neighbours", RUN, "--input", text, "--queries", tmp_path / "queries.txt", "--top", "2")
    assert got["queries"] == sentence_neighbours(model, lambda: iter(LINES), ["my dog", "the queen"], top=2)
    got = json_of("neighbours", RUN, "--input", text, "--text", "my dog", "--word", "dog", "--layers", "0")
    assert got["queries"] == [
        word_neighbours(model, lambda: iter(LINES), "my dog", "dog", how=VectorOptions(layers="0"))
    ]

    rows = [("the cat", "a cat", 4.5), ("my dog", "the queen", 1.0), ("one bird", "that bird", 5.0), ("a", "the", 2.0)]
    (tmp_path / "sts.tsv").write_text("sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{s}\n" for a, b, s in rows))
    result = json_of("similarity", RUN, "--input", tmp_path / "sts.tsv", "--to", tmp_path / "cosines.txt")
    cosines = [model.similarity(a, b) for a, b, _ in rows]
    written = [float(line) for line in (tmp_path / "cosines.txt").read_text().split()]
    close(written, cosines)
    scores = [score for *_, score in rows]
    assert result["pairs"] == 4
    # Of the command's own cosines: they differ from those of single pairs by rounding, and are all near 1.
    close([result["spearman"], result["pearson"]],
          [stats.spearmanr(written, scores)[0], stats.pearsonr(written, scores)[0]])  # fmt: skip
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"sentence1": "a cat", "sentence2": "a dog"}) + "\n")
    assert read_pairs(str(tmp_path / "pairs.jsonl")) == ([("a cat", "a dog")], None)
    assert "spearman" not in json_of("similarity", RUN, "--input", tmp_path / "pairs.jsonl")
    whitened = pair_similarities(model, [row[:2] for row in rows], how=VectorOptions(whiten=True, dimensions=2))
    assert whitened.shape == (4,) and np.abs(whitened).max() <= 1 + 1e-6


@pytest.mark.parametrize("folder", ["pairs", "labels"])
def test_one_missing_score_is_an_error_and_never_takes_all_away(tmp_path, folder):
    """Whatever the path says: a message that names it is not asked for words."""
    file = tmp_path / folder / "sts.tsv"
    file.parent.mkdir()
    rows = ["a cat\ta dog\t3.0", "a man\ta boy\t", "the sun\tthe moon\t1.0"]
    for header in ("sentence1\tsentence2\tscore", "sentence1\tsentence2\tlabel"):
        file.write_text("\n".join([header, *rows]) + "\n")
        with pytest.raises(DataError, match=r"sts\.tsv:3: the label \(column .* is empty; fill it, or leave"):
            read_pairs(str(file))
    file.write_text("sentence1\tsentence2\na cat\ta dog\n")
    assert read_pairs(str(file)) == ([("a cat", "a dog")], None)
    pairs = [{"sentence1": "a", "sentence2": "b"}] * 3
    (tmp_path / "few.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in [{**pairs[0], "score": 1}, *pairs]))
    with pytest.raises(DataError, match=r"few\.jsonl:1: few of the pairs have a 'score'; give each a score, or none"):
        read_pairs(str(tmp_path / "few.jsonl"))


MISTAKES = {
    "neighbours RUN --input TEXT": "give --text TEXT, or --queries FILE with a sentence in each line",
    "neighbours RUN --input none.txt --text a": "none.txt: no such file; give one with a sentence in each line",
    "neighbours RUN --input TEXT --queries none.txt": "none.txt: no such file; give one with a sentence in each line",
    "neighbours RUN --input TEXT --queries EMPTY": "no line in the file; give a sentence to search for in each line",
    "neighbours RUN --input EMPTY --text a": "empty.txt: no line in the file; give one with a sentence in each line",
    "neighbours RUN --input TEXT --text a --top 0": "top=0 is not a positive number of neighbours",
    "neighbours RUN --input TEXT --text a --word b": "the word 'b' is not in the text 'a'; give one of its words",
    "neighbours RUN --input TEXT --text a b --word b": "word= is for one sentence; give it as --text TEXT",
    "neighbours RUN --input TEXT --text a --layers 9": "layers=9 are not all, last, or numbers from 0 to 2 with commas",
    "neighbours RUN --input TEXT --text a --layers all": "layers=all are several vectors of a text; give one layer, or",
    "neighbours RUN --input TEXT --text a --dimensions 2": "dimensions= is for whitened vectors; give --whiten too",
    "neighbours RUN --input TEXT --text a --whiten --dimensions 99": "dimensions=99, and the vectors vary in 5",
    "similarity RUN --input none.tsv": "none.tsv: --input names no such file; check the path",
    "similarity RUN --input BAD": "bad.tsv:2: 'high' is not a number; give a score",
    "similarity RUN --input WIDE": "the columns are 'a', 'b', 'c'; name it with --text; if this line is no header, "
    "give positions: --text 1 --header no",
    "similarity RUN --input ONE": "one.tsv: no column of second texts; name it: --second COLUMN",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line(text, tmp_path, capsys, words):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "bad.tsv").write_text("sentence1\tsentence2\tscore\na\tb\thigh\n")
    (tmp_path / "one.tsv").write_text("sentence\tscore\na\t1\n")
    (tmp_path / "wide.tsv").write_text("a\tb\tc\nx\ty\t1\n")
    places = {"RUN": RUN, "TEXT": text, "WIDE": tmp_path / "wide.tsv",
              "EMPTY": tmp_path / "empty.txt", "BAD": tmp_path / "bad.tsv",
              "ONE": tmp_path / "one.tsv"}  # fmt: skip
    assert cli.main([str(places.get(word, word)) for word in words.split()]) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if "Error" in line]
    assert MISTAKES[words] in line


def test_texts_that_are_cut_are_counted():
    model, long_text = contexture.open(GOLDEN / "bert"), "the cat sees the river " * 9
    for texts, lines in ((["the cat"], []), ([long_text, "the", long_text], ["2 texts"]), ([long_text], ["1 texts"])):
        with logged() as messages:
            assert len([*sentence_vectors(model, texts, VectorOptions())]) == 1
        cut = [line.partition(", ")[0] for line in messages if "truncated" in line]
        assert cut == [f"warning: truncated {count}" for count in lines]

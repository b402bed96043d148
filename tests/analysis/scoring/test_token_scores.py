"""Predictions of each token, against one forward pass for each of them and a softmax in float64; their page."""

import json
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import contexture
from contexture.analysis.scoring.score import token_scores
from contexture.analysis.scoring.score_page import write_score_page
from contexture.analysis.scoring.scorer import Prediction, ScoredToken
from contexture.cli import main as cli
from contexture.data.layouts import elmo_lines
from tests.helpers.commands import json_of
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close
from tests.train.run.test_formats import GOLDEN

pytestmark = pytest.mark.usefixtures("one_device")
RUNS = {"forward": "gpt", "masked": "bert", "backward": "elmo"}
WINDOWS: list[dict[str, int]] = [{}, {"length": 7, "stride": 2}]
TEXTS = ["the cat sat. a dog", "the mat"]


def scored(model: contexture.TrainedModel, texts: list[str], **options: Any) -> list[list[ScoredToken]]:
    with model.computing():
        windows = {name: options.pop(name) for name in ("length", "stride") if name in options}
        return list(token_scores(model.token_scorer(**windows), texts, **options))


def check(one: Prediction, logits: np.ndarray, label: int, name: Any, top: int = 5) -> None:
    """A prediction is that of these logits."""
    logits = np.asarray(logits, np.float64)
    probs = np.exp(logits - logits.max())
    probs /= probs.sum()
    order = sorted(range(len(probs)), key=lambda id: -probs[id])
    assert_close(one.log_prob, math.log(probs[label]), rtol=1e-4, atol=1e-5)
    assert_close(one.entropy, -sum(p * math.log(p) for p in probs), rtol=1e-4)
    assert one.rank == 1 + sum(p > probs[label] for p in probs)
    assert_close([guess["score"] for guess in one.guesses], probs[order[:top]], rtol=1e-4)
    assert [guess["token"] for guess in one.guesses] == [name(id) for id in order[:top]]


def test_a_gpts_predictions_are_those_of_each_prefix_alone():
    model = contexture.open(GOLDEN / RUNS["forward"])
    tokenizer = model.tokenizer
    (got,) = scored(model, TEXTS[:1])
    (ids,) = tokenizer.encode(TEXTS[:1])
    row = ids if tokenizer.end is None else [tokenizer.end, *ids]
    assert [each.token for each in got] == [tokenizer.token(id) for id in ids]
    if tokenizer.end is None:
        assert not got.pop(0).predictions
    forward: Any = jax.jit(partial(model.model.apply, only=()))
    for place, one in enumerate(got, 1):
        # What stands behind the prefix is padding.
        tokens = np.array([row[:place] + [0] * (len(row) - place)], np.int32)
        encoding = forward({"params": model.params}, {"tokens": tokens, "mask": np.arange(len(row))[None] < place})
        encoding = encoding.encoding
        check(one.predictions["forward"], np.asarray(encoding.table_VD) @ np.asarray(encoding.hidden_BLD)[0, place - 1],
              row[place], tokenizer.token)  # fmt: skip


def test_a_berts_predictions_are_those_of_each_masked_token():
    model = contexture.open(GOLDEN / RUNS["masked"])
    pieces: Any = model.tokenizer
    (got,) = scored(model, TEXTS[:1], top=3, batch=2)
    (ids,) = pieces.encode(TEXTS[:1])
    whole = [pieces.cls, *ids, pieces.sep]
    assert [each.token for each in got] == [pieces.token(id) for id in ids]
    forward: Any = jax.jit(partial(model.model.apply, only=("mlm",)))
    for place, one in enumerate(got, 1):
        tokens = np.array([[*whole[:place], pieces.mask, *whole[place + 1 :]]], np.int32)
        fields = {
            "tokens": tokens,
            "segments": 0 * tokens,
            "mask": 0 * tokens + 1,
            "slots": np.array([[place]], np.int32),
        }
        outputs: Any = forward({"params": model.params}, fields)
        logits = np.asarray(outputs.heads["mlm"])[0, 0, : pieces.size]
        check(one.predictions["masked"], logits, whole[place], pieces.token, 3)


@pytest.mark.long
def test_an_elmos_predictions_are_those_of_both_directions():
    model = contexture.open(GOLDEN / RUNS["backward"])
    words: Any = model.tokenizer
    text = "the cat zzz"
    (got,) = scored(model, [text])
    own = text.split()
    assert [each.token for each in got] == ["<S>", *own, "</S>"] and got[3].scored_as == "<UNK>"
    kernel, bias = (np.asarray(model.params["heads_bilm"][name]) for name in ("kernel", "bias"))  # pyright: ignore
    width = kernel.shape[1]
    for number, (direction, order, first, last) in enumerate((
        ("forward", own, 1, words.end), ("backward", own[::-1], 2, words.begin)
    )):  # fmt: skip
        shown = got[1:] if direction == "forward" else got[-2::-1]
        assert direction not in (got[0] if direction == "forward" else got[-1]).predictions
        fields = elmo_lines([order], length=len(order))
        read = np.array([[first, *fields["index"][0][: len(order)]]], np.int32)
        for place, label in enumerate([*(words.ids.get(word, words.unk) for word in order), last]):
            prefix = read[:, : place + 1]
            some = {"types": fields["types"], "index": prefix, "index_backward": prefix}
            outputs: Any = jax.jit(partial(model.model.apply, only=()))({"params": model.params}, some)
            hidden = np.asarray(outputs.encoding.hidden_BLD)[0, -1, number * width : (number + 1) * width]
            check(shown[place].predictions[direction], kernel @ hidden + bias, label, words.token)


@pytest.mark.parametrize(
    ("run", "windows"),
    [
        (RUNS["backward"], WINDOWS[0]),
        *long(*((run, windows) for run in RUNS.values() for windows in WINDOWS)),
    ],
)
def test_what_is_summed_is_the_score(run: str, windows: dict[str, int]):
    model = contexture.open(GOLDEN / run)
    if model.run.family == "elmo" and windows:
        return
    texts = [" ".join(TEXTS * 3), *TEXTS]
    score = model.score(texts, batch=3, **windows)
    how = {"length": model.run.data.length, **windows} if model.run.family != "elmo" else {}
    documents = scored(model, texts, batch=3, **how)
    predictions = [one for document in documents for token in document for one in token.predictions.items()]
    directions = {name for name, _ in predictions}
    assert len(predictions) == len(directions) * score["tokens"]
    assert_close(-sum(one.log_prob for _, one in predictions) / len(predictions), score["loss"], rtol=1e-5)
    if "backward" in directions:
        for name in directions:
            nats = -sum(one.log_prob for own, one in predictions if own == name) / score["tokens"]
            assert_close(math.exp(nats), score[f"{name}_perplexity"], rtol=1e-5)  # pyright: ignore


def _data(page: str) -> dict[str, Any]:
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(block)


@pytest.mark.parametrize("run", [RUNS["forward"], *long(RUNS["masked"], RUNS["backward"])])
def test_the_commands_page_has_the_predictions_and_text_stays_text(run: str, tmp_path: Path):
    text, to = "the cat </script><!-- sat", tmp_path / "page.html"
    result = json_of("score", GOLDEN / run, "--text", text, "--to", to, "--top", "2")
    assert result["to"] == str(to)
    page = to.read_text()
    assert page.count("<script") == page.count("</script>") == 2 and "<!--" not in page
    assert not re.findall(r"https?://|//[a-z]+\.[a-z]+/| src=| style=", page)
    data = _data(page)
    model = contexture.open(GOLDEN / run)
    expected = scored(model, [text], top=2)
    shown = [token for document in data["documents"] for token in document]
    for (name, label, predictions), token in zip(shown, sum(expected, []), strict=True):
        assert data["names"][name] == token.token and data["names"][label] == (token.scored_as or token.token)
        for direction, (log_prob, entropy, rank, guesses) in predictions.items():
            one = token.predictions[direction]
            assert_close([log_prob, entropy], [one.log_prob, one.entropy], rtol=0, atol=0.6e-5)
            assert rank == one.rank and len(guesses) == 2
            assert [data["names"][guess] for guess, _ in guesses] == [guess["token"] for guess in one.guesses]
    assert data["title"] == f"Log-probabilities by {run}, step {model.step}: “{text}”"
    nats = [one[0] for *_, predictions in shown for one in predictions.values()]
    assert_close(-np.mean(nats), result["loss"], rtol=1e-4)
    assert dict(data["figures"])["tokens"] == result["tokens"]
    assert (
        data["directions"]
        == {"gpt": ["forward"], "bert": ["masked"], "elmo": ["forward", "backward"]}[model.run.family]
    )


def test_control_characters_are_shown_and_do_not_act(tmp_path: Path):
    one = Prediction(-1.0, 1.0, 1, [{"token": "\x1b", "score": 0.5}])
    write_score_page(tmp_path / "page.html", "a\x1b", [[ScoredToken("\u202e", {"forward": one})]], 3, {})
    page = (tmp_path / "page.html").read_text()
    assert not set(page) & {"\x1b", "\u202e"} and _data(page)["names"] == ["\\u202e", "\\x1b"]


def test_a_page_of_both_directions_begins_with_forward(tmp_path: Path):
    one = Prediction(-1.0, 1.0, 1, [{"token": "a", "score": 0.5}])
    write_score_page(tmp_path / "page.html", "a", [[ScoredToken("b", {"backward": one, "forward": one})]], 3, {})
    assert _data((tmp_path / "page.html").read_text())["directions"] == ["forward", "backward"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "give --input FILE, or --text TEXT"),
        ("--text a --input b.txt", "give --input FILE, or --text TEXT"),
        ("--text a --top 0 --to page.html", "top=0 is not a positive number of guesses"),
        ("--text a --to none/page.html", "--to none/page.html: its folder is not there; make it, or give another name"),
        ("--text a --to page.png", "--to page.png: a page ends in .html; give such a name"),
    ],
)
def test_a_mistake_is_one_clear_line(tmp_path: Path, capsys, monkeypatch, words: str, message: str):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["score", str(GOLDEN / "gpt"), *words.split()]) == 2
    out, err = capsys.readouterr()
    assert not out and len(err.splitlines()) == 1 and message in err, err
    assert not list(tmp_path.iterdir())

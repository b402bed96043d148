"""What was written once can be read for ever."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import contexture
from contexture.models.heads.layer_mix import learned_mixes
from contexture.train.errors import ConfigError
from contexture.train.evaluation.predict import Predictor
from contexture.train.settings import run_file
from contexture.train.settings.sections import MeshConfig, SaveConfig
from tests.helpers.commands import json_of
from tests.helpers.parity_rule import assert_close

GOLDEN = Path(__file__).parents[2] / "golden"


def test_a_bert_loads_for_ever():
    model, params, tokenizer = contexture.load(GOLDEN / "bert_3_steps")
    expected = np.load(GOLDEN / "bert_3_steps_expected.npz")
    batch = {name: expected[name] for name in ("tokens", "segments", "mask")}
    out: Any = jax.jit(model.clone(heads={}).apply)({"params": {"backbone": params["backbone"]}}, batch)
    assert_close(out.encoding.hidden_BLD, expected["hidden"], atol=1e-6)
    assert_close(out.encoding.pooled_BD, expected["pooled"], atol=1e-6)
    assert tokenizer.encode(["the cat"])[0] == batch["tokens"][0][1:5].tolist()


def test_a_classifier_answers_for_ever():
    answers: Any = Predictor(GOLDEN / "bert_classify_3")(["the old cat", "a river"])
    assert [answer["prediction"] for answer in answers] == ["thing", "thing"]
    scores = [answer["scores"]["animal"] for answer in answers]
    assert_close(scores, [0.454133, 0.451204], atol=1e-5)


def test_a_banded_gpt_writes_and_scores_for_ever(tmp_path):
    """With byte pairs of its own and a banded layer."""
    run, prompts = GOLDEN / "gpt_banded", ["the old", "a boat came"]
    written = contexture.open(run).generate(prompts, tokens=16, temperature=0.0)
    texts = [line["text"] for line in written]
    assert texts == [" cat sat by the river and saw the moon.\n", " down the river in the night."]
    (tmp_path / "new.txt").write_text("the dog saw the moon and ran to the river.\n")
    result = json_of("score", run, "--input", tmp_path / "new.txt")
    assert (result["tokens"], result["bytes"]) == (17, 43) and result["loss"] == pytest.approx(4.307320, abs=1e-5)


def test_a_tagger_of_an_elmo_answers_for_ever():
    """Its layers mixed below and beside the task's biLSTM, its tags chained."""
    run = GOLDEN / "elmo_tag"
    answers: Any = Predictor(run)([["Zoë", "paints", "the", "old", "sea", "."], ["that", "whale", "likes", "tales"]])
    tags = [["DET", "NOUN", "VERB", "DET", "NOUN", "PUNCT"], ["DET", "ADJ", "NOUN", "PUNCT"]]
    assert [answer["predictions"] for answer in answers] == tags
    assert_close(answers[1]["scores"], [0.564246, 0.786603, 0.947021, 0.866907], atol=1e-4)
    mixes = learned_mixes(contexture.load(run)[1])
    assert_close(mixes["input"]["weights"], [0.403691, 0.221692, 0.374617], atol=1e-5)
    assert_close(mixes["output"]["gamma"], 1.796061, atol=1e-5)


def test_a_bert_fills_and_classifies_for_ever():
    (mask,) = contexture.open(GOLDEN / "bert").fill("the queen sees the [MASK] .", top=2)
    assert [token["token"] for token in mask] == ["##n", "the"]
    assert_close([token["score"] for token in mask], [0.085755, 0.065431], atol=1e-5)
    record = run_file.read(GOLDEN / "bert_classify")
    assert (record.labels, record.counts, record.pair) == (("animal", "person"), (57, 69), False)
    answer: Any = Predictor(GOLDEN / "bert_classify")(["the cat sees the moon ."])[0]
    assert answer["prediction"] == "person"
    assert_close(answer["scores"]["person"], 0.585377, atol=1e-5)


def test_a_gpt_writes_and_scores_for_ever():
    run = GOLDEN / "gpt"
    model = contexture.open(run)
    text = model.generate("my brother likes", tokens=12, temperature=0.0)
    assert text["text"] == " the moon .\ntherd remembers the moon .\n"
    result = model.score("the queen sees the river .\n")
    assert (result["tokens"], result["bytes"]) == (14, 27) and result["loss"] == pytest.approx(1.429044, abs=1e-5)


def test_an_elmo_reads_for_ever():
    assert run_file.read(GOLDEN / "elmo").words == 27
    vectors = contexture.open(GOLDEN / "elmo").embed("Zoë paints the moon .", of="words", layers="all")
    assert vectors.shape == (3, 5, 8)
    assert_close(vectors[:, 0, :2], [[-2.463387, 1.869776], [-2.941660, 1.928160], [-3.707275, 1.772445]], atol=1e-5)


def test_run_json_is_read_back_as_it_was_written():
    record = run_file.read(GOLDEN / "bert_3_steps")
    assert run_file.from_json(run_file.to_json(record.run), "here") == record.run


def test_a_record_that_is_written_again_is_the_same_file(tmp_path: Path):
    record = run_file.read(GOLDEN / "bert_classify")
    run_file.write(tmp_path, record)
    assert run_file.read(tmp_path) == record
    written = (tmp_path / "run.json").stat().st_mtime_ns
    run_file.write(tmp_path, record)
    assert (tmp_path / "run.json").stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"format": 3}, "has format 3; this version reads format 2"),
        ({"format": True}, "has format True; this version reads format 2"),
        ({"config": {"model": {"family": "bort"}}}, "model.family is 'bort', not one of bert"),
        ({"config": {"model": {"family": "bert", "hiden": 8}}}, r"no field 'hiden' \(did you mean hidden\?\)"),
        ({"config": {"model": {"family": "bert", "hidden": "8"}}}, "hidden is '8', not a whole number"),
        ({"config": {"model": {"family": "bert", "gelu": "x"}}}, "gelu is 'x', not one of erf, tanh"),
        ({"config": {"model": {"family": "bert"}, "data": {"path": "x"}}}, "path is 'x', not a list"),
        ({"config": {"model": {"family": "bert"}, "steps": True}}, "steps is True, not a whole number"),
        ({"config": [1]}, "the configuration is not an object with a model"),
        ({"config": {"model": "x"}}, "the configuration is not an object with a model"),
        ({"config": {"model": {"family": ["bert"]}}}, r"model.family is \['bert'\]"),
        ({"words": "2000"}, "words is '2000', which no training writes; put it back"),
        ({"labels": None}, "labels is 'None', which no training writes; put it back"),
        ({"counts": [1, "2"]}, "counts is .*, which no training writes; put it back"),
        ({"data": 3}, "data is '3', which no training writes; put it back"),
    ],
)
def test_a_run_json_that_is_not_ours_is_one_clear_line(tmp_path, change, line):
    run_file.write_json(tmp_path / "run.json", {"format": 2, "config": {"model": {"family": "bert"}}, **change})
    with pytest.raises(ConfigError, match=line):
        run_file.read(tmp_path)


def test_a_runs_identity_is_what_makes_its_numbers_and_nothing_else():
    run = run_file.read(GOLDEN / "bert_3_steps").run
    word = run_file.fingerprint(run, "t", "d")
    same = [{"steps": 99}, {"dir": "x"}, {"mesh": MeshConfig(fsdp=2)}, {"save": SaveConfig(every=7)}]
    assert {run_file.fingerprint(dataclasses.replace(run, **change), "t", "d") for change in same} == {word}
    other = [{"seed": 1}, {"optim": dataclasses.replace(run.optim, b1=0.5)}]
    words = {run_file.fingerprint(dataclasses.replace(run, **change), "t", "d") for change in other}
    assert len({word, run_file.fingerprint(run, "u", "d"), run_file.fingerprint(run, "t", "e")} | words) == 5

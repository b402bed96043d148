"""Exported programs answer as the run does, without this library; each export has a model card."""

import functools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import contexture
from contexture.data.layouts import bert_texts, text_batch
from contexture.data.tokenizers.char_level import Characters
from contexture.interchange import stablehlo
from contexture.interchange.model_card import model_card
from contexture.models.shapes import by_path
from contexture.train.settings.run_file import read
from tests.conftest import ROOT
from tests.helpers.commands import done
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close, close

GOLDEN = ROOT / "tests" / "golden"
RUNS = ("bert", "gpt", "elmo", "bert_classify", "elmo_tag")

TEXTS = ["the cat sees the river .", "a whale", "my brother likes the moon and the sea ."]
# What a process with jax alone does: the libraries of this project cannot be imported.
ALONE = """
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("contexture", "flax", "optax", "orbax", "grain", "tokenizers", "qwix"):
            raise ImportError(name)

sys.meta_path.insert(0, Absent())
import jax, jax.export, numpy as np

folder, given, to = sys.argv[1:]
program = jax.export.deserialize(bytearray(open(folder + "/model.stablehlo", "rb").read()))
weights, inputs = dict(np.load(folder + "/weights.npz")), dict(np.load(given))
np.savez(to, **jax.jit(program.call)(weights, inputs))
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Callable[[str], Path]:
    """The folder of a run's program, which is written once."""

    @functools.cache
    def folder(name: str) -> Path:
        to = tmp_path_factory.mktemp("stablehlo") / name
        done("export", GOLDEN / name, "stablehlo", "--to", to)
        return to

    return folder


def _alone(folder: Path, inputs: dict[str, np.ndarray], tmp_path: Path, environment) -> dict[str, np.ndarray]:
    np.savez(tmp_path / "in.npz", **inputs)  # pyright: ignore[reportArgumentType]
    command = [sys.executable, "-c", ALONE, str(folder), str(tmp_path / "in.npz"), str(tmp_path / "out.npz")]
    subprocess.run(command, check=True, env=environment(1), cwd=tmp_path)
    return dict(np.load(tmp_path / "out.npz"))


@pytest.mark.parametrize("name", long(*RUNS[:3]))
def test_a_pretrained_runs_program_gives_its_layers_and_logits(exported, name, tmp_path, environment):
    """On a batch and a length of its own."""
    model = contexture.open(GOLDEN / name)
    inputs = text_batch(model.tokenizer, TEXTS, getattr(model.model.config, "length", None))
    fields = json.loads((exported(name) / "model.json").read_text())["inputs"]
    inputs = {field: x for field, x in inputs.items() if field in fields}
    heads: tuple[str, ...] = ()
    if "slots" in fields:
        inputs["slots"], heads = np.array([[1, 2], [1, 0], [3, 1]], np.int32), ("mlm",)
    out: Any = jax.jit(partial(model.model.apply, only=heads, states=True))({"params": model.params}, inputs)
    outputs = _alone(exported(name), inputs, tmp_path, environment)
    close(outputs.pop("hidden"), out.encoding.hidden_BLD, tolerance=1e-6)
    if name.startswith("elmo"):
        close(outputs.pop("states"), np.stack(out.encoding.states), tolerance=1e-6)
    else:
        tokens = model.tokenizer.size
        table: Any = model.params["backbone"]["embeddings"]["tokens"]  # pyright: ignore[reportIndexIssue, reportArgumentType, reportCallIssue]
        expected = out.heads["mlm"] if heads else out.encoding.hidden_BLD @ table.T
        close(outputs.pop("logits"), expected[..., :tokens], tolerance=1e-6)
    assert not outputs


def test_a_classifiers_program_gives_the_probabilities_of_predict(exported, tmp_path, environment):
    model = contexture.open(GOLDEN / "bert_classify")
    answers = model.predict(TEXTS)
    outputs = _alone(exported("bert_classify"), text_batch(model.tokenizer, TEXTS, 24), tmp_path, environment)
    labels = json.loads((exported("bert_classify") / "model.json").read_text())["labels"]
    assert tuple(labels) == model.labels
    assert_close(outputs["scores"], [[answer["scores"][label] for label in labels] for answer in answers], atol=1e-6)


def test_a_taggers_program_gives_the_tags_of_predict(exported, tmp_path, environment):
    """Those of an ELMo with a CRF, of sentences of several lengths."""
    model = contexture.open(GOLDEN / "elmo_tag")
    words = [text.split() for text in TEXTS]
    answers = model.predict(words)
    outputs = _alone(exported("elmo_tag"), text_batch(model.tokenizer, TEXTS), tmp_path, environment)
    for row, (own, answer) in enumerate(zip(words, answers, strict=True)):
        tags = [model.labels[number] for number in outputs["tags"][row, : len(own)]]
        assert tags == answer["predictions"]
        assert_close(outputs["scores"][row, : len(own)], answer["scores"], atol=1e-6)


@pytest.mark.parametrize("name", [RUNS[3], *long(*RUNS[:3], RUNS[4])])
def test_the_example_shows_inputs_and_their_outputs(exported, name):
    folder = exported(name)
    description = json.loads((folder / "model.json").read_text())
    example = dict(np.load(folder / "example.npz"))
    program = jax.export.deserialize(bytearray((folder / "model.stablehlo").read_bytes()))
    assert set(program.platforms) == {"cpu", "cuda", "tpu"}
    inputs = {name: example[f"inputs/{name}"] for name in description["inputs"]}
    outputs: Any = program.call(dict(np.load(folder / "weights.npz")), inputs)
    assert list(outputs) == list(description["outputs"])
    for field, x in outputs.items():
        assert_close(x, example[f"outputs/{field}"], atol=1e-6)
        assert x.ndim == len(description["outputs"][field].partition(" ")[2])
    assert (folder / "tokenizer").is_dir()


@pytest.mark.parametrize("kind", long("regress", "tag"))
def test_other_tasks_are_exported(task_run, kind, tmp_path):
    done("export", task_run(kind), "stablehlo", "--to", tmp_path / "out")
    description = json.loads((tmp_path / "out" / "model.json").read_text())
    assert description["objective"] == kind and description["outputs"]


@pytest.mark.long
@pytest.mark.usefixtures("one_device")
def test_a_choice_is_exported_with_its_alternatives(tiny_run, tmp_path, environment):
    rows = [("the cat", ["sees the river", "of of of"], 0), ("my brother", ["of of", "likes the moon"], 1)]
    options = {"epochs": 1, "data.batch": 2, "data.length": 16}
    run = contexture.finetune(tiny_run, "choice", train=rows, dir=tmp_path / "run", options=options)
    done("export", run, "stablehlo", "--to", tmp_path / "out")
    model, choices = contexture.open(run), ["sees", "likes the moon"]
    (answer,) = model.predict([("the cat", choices)])
    batch = bert_texts(model.tokenizer, [("the cat", choice) for choice in [*choices, "nothing"]], 16)
    inputs = {name: x[None] for name, x in batch.items()} | {"choices": np.array([[1, 1, 0]], np.float32)}
    outputs = _alone(tmp_path / "out", inputs, tmp_path, environment)
    assert_close(outputs["scores"][0], [*answer["scores"].values(), 0.0], atol=1e-6)


def test_a_card_says_what_the_model_is_and_no_folder_of_the_machine(tiny_run, tmp_path):
    tuned = tmp_path / "tuned"
    shutil.copytree(GOLDEN / "bert_classify", tuned)
    held_out = {"step": 8, "split": "dev", "loss": 0.5, "accuracy": 0.25}
    (tuned / "metrics.jsonl").write_text(json.dumps(held_out) + "\n")
    for run, format, task in ((tiny_run, "hf", "fill-mask"), (tuned, "stablehlo", "text-classification")):
        done("export", run, format, "--to", tmp_path / format)
        card = (tmp_path / format / "README.md").read_text("utf-8")
        assert card.startswith("---\n") and f"pipeline_tag: {task}\n" in card and "/" + "tmp" not in card
        assert "## Held-out figures" in card and "| loss | " in card
        assert ("| epochs | " in card) == (run == tuned)
        assert format != "hf" or "config.architectures[0]" in card
    assert "Labels: `animal`, `person`" in card and "| accuracy | 0.25" in card and "trained for" in card
    record = read(GOLDEN / "bert")
    whole = replace(record.run, optim=replace(record.run.optim, warmup=7, weight_decay=0.1), seed=3)
    card = model_card(GOLDEN / "bert", replace(record, run=whole), 120, "hf", 7)
    settings = ("steps data.batch data.length optim.name optim.peak-lr optim.warmup optim.weight-decay optim.schedule "
                "model.dropout model.dtype seed")  # fmt: skip
    table = card.partition("## Training")[2].partition("\n## ")[0]
    assert re.findall(r"^\| ([\w.-]+) \|", table, re.M)[1 : len(settings.split()) + 1] == settings.split()
    tags = {"regress": "text-classification", "tag": "token-classification", "choice": "multiple-choice",
            "span": "question-answering", "classify": "text-classification"}  # fmt: skip
    for kind, tag in tags.items():
        task = replace(record.run, task=replace(record.run.task, kind=kind))
        assert f"pipeline_tag: {tag}\n" in model_card(GOLDEN / "bert", replace(record, run=task), 120, "hf", 7)
    for run, tag in (("gpt", "text-generation"), ("elmo", "feature-extraction")):
        assert f"pipeline_tag: {tag}\n" in model_card(GOLDEN / run, read(GOLDEN / run), 120, "hf", 7)
    card = model_card(GOLDEN / "bert", record, 120, "hf", 7)
    assert "Held-out" not in card and "7 parameters" in card and "dim L" not in card
    limits = (
        "A sequence (dim L) has at most 24 tokens; it was trained on sequences of at most 24. A batch (dim B) has any"
    )
    assert limits in model_card(GOLDEN / "bert", record, 120, "stablehlo", 7)
    record = read(GOLDEN / "elmo")
    assert "(dim L) has any number of words; it" in model_card(GOLDEN / "elmo", record, 9, "stablehlo", 7)


def test_another_format_is_one_clear_line(capsys, tmp_path):
    from tests.helpers.commands import run_command

    code, err = run_command(capsys, "export", GOLDEN / "bert", "onnx", "--to", tmp_path / "x")
    assert code == 2 and "stablehlo" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bert", {"hidden": "f32 BLD", "logits": "f32 BPV"}),
        ("gpt", {"hidden": "f32 BLD", "logits": "f32 BLV"}),
        ("elmo", {"hidden": "f32 BLD", "states": "f32 NBLD"}),
        ("bert_classify", {"scores": "f32 BC"}),
        *long(("elmo_tag", {"scores": "f32 BL", "tags": "i32 BL"})),
    ],
)
def test_a_program_has_these_outputs(name, expected):
    run, (model, params, tokenizer) = read(GOLDEN / name).run, contexture.load(GOLDEN / name)
    inputs = stablehlo._example(run, stablehlo._inputs(run), tokenizer)
    outputs = jax.eval_shape(stablehlo._compute(run, model, tokenizer.size), by_path(params), inputs)
    dims: Any = {"B": 2, "P": 1, "V": tokenizer.size, "L": inputs["mask"].shape[1]}
    dims["D"] = getattr(run.model, "hidden", 8)
    dims |= {"N": run.model.layers + 1, "C": len(read(GOLDEN / name).labels)}
    assert {each: x.shape for each, x in outputs.items()} == {
        each: tuple(dims[letter] for letter in kind.split()[1]) for each, kind in expected.items()
    }
    given = {each: np.zeros(x.shape, x.dtype) for each, x in outputs.items()}
    assert stablehlo._output_dims(run, given) == list(expected.values())


def test_a_vocabulary_that_cannot_spell_the_example_has_an_empty_one():
    run = read(GOLDEN / "gpt").run
    inputs = stablehlo._example(run, {"tokens": "i32 BL", "mask": "i32 BL"}, Characters(["x", "y"]))
    assert {name: x.shape for name, x in inputs.items()} == {"tokens": (2, 0), "mask": (2, 0)}

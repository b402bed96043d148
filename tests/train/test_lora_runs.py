"""Runs with adapters: what they begin with, what they keep, and what others make of them."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import contexture
from contexture.data.layouts import text_batch
from contexture.models.shapes import by_path
from contexture.train import mesh as meshes
from contexture.train.checkpoints.transfer import load_parameters
from contexture.train.run.report import read_metrics
from contexture.train.settings import run_file
from contexture.train.settings.sections import MeshConfig
from tests.helpers.commands import done, json_of, run_command
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close, assert_differs

pytestmark = pytest.mark.usefixtures("optimized_steps", "one_device")

LORA = ("--optim.lora-rank", "4", "--optim.peak-lr", "1e-2")


def stored(folder: Path) -> dict[str, np.ndarray]:
    """The parameters as the newest checkpoint has them, adapters apart."""
    record, mesh = run_file.read(folder), meshes.build(MeshConfig(), jax.devices()[:1])
    params = load_parameters(folder, record.run, record.labels, mesh, merge=False).params
    return {path: np.asarray(x) for path, x in by_path(params).items()}


def opened(folder: Path) -> dict[str, np.ndarray]:
    return {path: np.asarray(x) for path, x in by_path(contexture.load(folder)[1]).items()}


def held_out(folder: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(folder / "metrics.jsonl") if record["split"] == "dev"]


@pytest.fixture(scope="module")
def lora_task(once, task_words) -> Path:
    """A task that a BERT's adapters have learned: 60 steps, a checkpoint every 10."""
    return once(
        "lora/task", lambda folder: done(*task_words("tag"), *LORA, "--optim.lora-targets", "all", "--dir", folder)
    )


@pytest.fixture(params=["tiny", *long("gpt", "elmo")])
def source(request: pytest.FixtureRequest) -> tuple[Path, list[str]]:
    """(a pretrained run, the words of its command without --dir) of each family."""
    return request.getfixturevalue(f"{request.param}_run"), request.getfixturevalue(f"{request.param}_words")


def test_step_0_is_the_source_and_only_adapters_and_heads_change(source, tmp_path):
    """And the last evaluation of the training is that of `evaluate`, which merges what it reads."""
    source, words = source
    folder = tmp_path / "run"
    done(*words, "--init", source, *LORA, "--steps", "6", "--optim.warmup", "1", "--dir", folder)
    first, *_, last = held_out(folder)
    assert first["step"] == 0 and last["step"] == 6
    assert first["loss"] == held_out(source)[-1]["loss"]
    assert_differs(first["loss"], last["loss"], 1e-6)
    assert_close(json_of("evaluate", folder)["metrics"]["loss"], last["loss"], rtol=1e-6)
    before, after = stored(source), stored(folder)
    tokenizers = [{of.name: of.read_bytes() for of in (run / "tokenizer").iterdir()} for run in (source, folder)]
    assert tokenizers[0] == tokenizers[1]
    assert all(np.array_equal(x, after[path]) for path, x in before.items() if path.startswith("backbone/"))
    assert any(path.endswith("/b") and x.any() for path, x in after.items())
    changed = {path for path, x in opened(folder).items() if not np.array_equal(x, before[path])}
    kernels = {path.replace("lora/", "backbone/")[:-2] for path in after if path.startswith("lora/")}
    assert changed == kernels | {path for path in before if path.startswith("heads_")}


@pytest.mark.long
def test_a_task_is_learned_and_its_run_answers_as_any_other(lora_task, capsys):
    figures = held_out(lora_task)[-1]
    assert figures["accuracy"] > figures["majority_accuracy"] + 0.2
    shown = json_of("show", lora_task)
    paths = [row["path"] for row in shown["table"]]
    assert "lora/layers/ffn/out/kernel/a" in paths and shown["parameters"] > shown["backbone"]
    evaluated = json_of("evaluate", lora_task)
    assert evaluated["metrics"]["accuracy"] == figures["accuracy"]
    assert contexture.predict(lora_task, [["the", "cat", "sees"]])[0]["predictions"] == ["DET", "NOUN", "VERB"]
    vectors = contexture.open(lora_task).embed(["the cat sees a red house"])
    model, params, tokenizer = contexture.load(lora_task)
    batch = text_batch(tokenizer, ["the cat sees a red house"])
    states: Any = jax.jit(partial(model.apply, only=()))({"params": params}, batch)
    assert_close(vectors[0], np.asarray(states.encoding.hidden_BLD[0, 1:-1]).mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_a_run_that_was_stopped_is_the_whole_run(lora_task, task_words, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(lora_task, folder)
    for step in (folder / "checkpoints").iterdir():
        if step.name.isdigit() and int(step.name) > 50:
            shutil.rmtree(step)
    words = [*task_words("tag"), *LORA, "--optim.lora-targets", "all"]
    code, err = run_command(capsys, *words, "--optim.lora-rank", "3", "--dir", folder)
    assert code == 2 and "optim.lora-rank" in err
    done(*words, "--dir", folder)
    assert "resuming from step 50" in capsys.readouterr().err
    assert held_out(folder)[-1]["loss"] == held_out(lora_task)[-1]["loss"]
    assert all(np.array_equal(x, stored(folder)[path]) for path, x in stored(lora_task).items())


@pytest.mark.long
@pytest.mark.parametrize("option", ["frozen", "lora-rank"])
def test_the_next_training_begins_from_merged_kernels(lora_task, task_words, tmp_path, capsys, option):
    """With and without adapters of its own."""
    value = {"frozen": "backbone", "lora-rank": "2"}[option]
    words = ["finetune", lora_task, *task_words("tag")[2:], f"--optim.{option}", value]
    done(*words, "--steps", "1", "--dir", tmp_path / "run")
    messages = " ".join(capsys.readouterr().err.split())
    assert f"merged the adapters of {lora_task}" in messages and "kept heads_tag/… (2 tensors)" in messages
    before, after = opened(lora_task), stored(tmp_path / "run")
    assert any(path.startswith("lora/") for path in after) == (option == "lora-rank")
    assert all(np.array_equal(x, after[path]) for path, x in before.items() if path.startswith("backbone/"))


@pytest.mark.long
def test_new_tokens_of_a_gpt_are_reported_as_frozen(gpt_run, task_words, tmp_path, capsys):
    done("finetune", gpt_run, *task_words()[2:], *LORA, "--steps", "1", "--dir", tmp_path / "run")
    assert "3 new token embeddings are frozen at their random initial values" in " ".join(
        capsys.readouterr().err.split()
    )
    code, err = run_command(capsys, "export", tmp_path / "run", "peft", "--to", tmp_path / "peft")
    assert code == 2 and "adds three tokens, which the base model lacks" in err and len(err.splitlines()) == 1


@pytest.mark.long
def test_an_export_has_merged_kernels_and_one_for_peft_has_the_adapters(lora_task, tiny_run, tmp_path):
    done("export", lora_task, "hf", "--to", tmp_path / "whole")
    done("export", lora_task, "peft", "--to", tmp_path / "peft")
    done("export", tiny_run, "hf", "--to", tmp_path / "base")
    whole, base = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "base"))
    adapter = load_file(tmp_path / "peft" / "adapter_model.safetensors")
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["modules_to_save"]) == (4, 8.0, ["classifier"])
    modules = {name.removesuffix(".lora_A.weight") for name in adapter if name.endswith("lora_A.weight")}
    assert len(modules) == 2 * 6
    for module in modules:
        name = module.removeprefix("base_model.model.") + ".weight"
        product = adapter[f"{module}.lora_B.weight"] @ adapter[f"{module}.lora_A.weight"]
        assert_close(whole[name], base[name] + 8.0 / 4 * product, rtol=1e-5, atol=1e-6)
        assert_differs(whole[name], base[name], 1e-4)
    assert np.array_equal(adapter["base_model.model.classifier.weight"], whole["classifier.weight"])
    card = (tmp_path / "peft" / "README.md").read_text("utf-8")
    assert "library_name: peft" in card and "PeftModel.from_pretrained" in card


def test_what_adapters_cannot_be_is_one_line(tiny_run, tiny_words, task_words, tmp_path, capsys):
    folder = tmp_path / "run"
    for words, line in (
        ([*tiny_words, *LORA], "optim.lora-rank=4 adapts a trained backbone, and no init.run leaves it random"),
        ([*task_words(), *LORA, "--init.random"], "and init.random leaves it random; give --init.run RUN"),
        ([*task_words(), "--optim.lora-rank", "33"], "optim.lora-rank=33 is above the rank of layers/attention/query"),
        ([*task_words(), *LORA, "--optim.frozen", "bias"], "optim.frozen contradicts optim.lora-rank=4"),
        (["export", tiny_run, "peft", "--to", folder], "has no adapters (optim.lora-rank=0); export it as hf"),
    ):
        code, err = run_command(capsys, *words, *([] if words[0] == "export" else ["--dir", folder]))
        assert code == 2 and line in err and len(err.splitlines()) == 1, err
        assert not folder.exists()

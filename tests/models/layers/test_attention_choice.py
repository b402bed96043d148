"""Which attention a device gets, what is refused, and that results do not depend on it."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np
import pytest

import contexture
from contexture.models.config import BertConfig, GptConfig
from contexture.models.gpt import Gpt
from contexture.models.layers.attention.mask import choose
from tests.helpers.commands import run_command
from tests.train.run.test_formats import GOLDEN

BERT = BertConfig(dtype="bfloat16")
GPT = GptConfig(dtype="bfloat16", attention_dropout=0.0)


@pytest.mark.parametrize(
    ("config", "platform", "name", "why"),
    [
        (BERT, "cpu", "reference", "no kernel for cpu"),
        (BERT, "tpu", "pallas", "for TPUs"),
        (BERT, "gpu", "pallas", "cuDNN's does not go with padding, which it takes on the right alone"),
        (dataclasses.replace(GPT, attention_dropout=0.1), "gpu", "pallas", "with model.attention-dropout=0.1"),
        (BERT, "TPU v3", "reference", "no kernel for TPU v3"),
        (dataclasses.replace(BERT, length=1 << 16), "tpu", "pallas", "for TPUs"),
        (GPT, "gpu", "cudnn", "the fastest kernel on NVIDIA GPUs"),
        (dataclasses.replace(GPT, local_window=256), "gpu", "pallas", "does not go with model.local-window=256"),
        (dataclasses.replace(GPT, dtype="float32"), "gpu", "pallas", "does not go with model.dtype=float32"),
        (dataclasses.replace(GPT, hidden=12 * 136), "gpu", "pallas", "does not go with heads of 136"),
        (BERT, "AMD Instinct MI300X", "reference", "no kernel for AMD Instinct MI300X"),
        (dataclasses.replace(BERT, attention="reference"), "tpu", "reference", "as asked for"),
        (dataclasses.replace(BERT, attention="pallas"), "cpu", "pallas", "interprets the kernel, which is slow"),
    ],
)
def test_the_device_decides_unless_the_user_does(config: BertConfig | GptConfig, platform: str, name: str, why: str):
    choice = choose(config, platform)
    assert choice.name == name and why in choice.why


@pytest.mark.parametrize(
    ("config", "platform", "line"),
    [
        (GPT, "cpu", "model.attention=cudnn does not go on cpu; give --model.attention auto"),
        (BERT, "gpu", "model.attention=cudnn does not go with padding"),
    ],
)
def test_cudnn_where_it_does_not_go_is_refused(config: BertConfig | GptConfig, platform: str, line: str):
    with pytest.raises(ValueError, match=line):
        choose(dataclasses.replace(config, attention="cudnn"), platform)


def test_packed_text_has_no_cudnn():
    assert choose(GPT, "gpu", packed=True).name == "pallas"
    with pytest.raises(ValueError, match="cudnn does not go with packed text"):
        choose(dataclasses.replace(GPT, attention="cudnn"), "gpu", packed=True)
    with pytest.raises(ValueError, match="pallas does not go on TPU v2"):
        choose(dataclasses.replace(GPT, attention="pallas"), "TPU v2")


@pytest.mark.parametrize(("packed", "kernel"), [(True, "pallas"), (False, "cudnn")])
def test_a_gpt_asks_for_a_kernel_that_keeps_packed_documents_apart(packed: bool, kernel: str, monkeypatch):
    """cuDNN's would have each document see those before it in its sequence."""
    config = dataclasses.replace(GPT, vocab=9, length=8, layers=1, hidden=16, heads=2, ffn=8)
    batch = {name: np.ones((2, 8), np.int32) for name in ("tokens", "mask", *(["packs"] if packed else []))}
    params = jax.eval_shape(Gpt(config).init, jax.random.key(0), batch)
    chosen = []

    def choosing(*words: Any, **more: Any) -> NoReturn:
        chosen.append(choose(*words, **more).name)
        raise InterruptedError

    monkeypatch.setattr("contexture.models.gpt.platform", lambda: "gpu")
    monkeypatch.setattr("contexture.models.gpt.choose", choosing)
    with pytest.raises(InterruptedError):
        jax.eval_shape(Gpt(config).apply, params, batch)
    assert chosen == [kernel]


def test_a_run_asks_for_it_in_one_line_before_anything_is_written(capsys, text_folder: Path, tmp_path: Path):
    words = [
        "pretrain",
        "gpt.tiny",
        "--data.path",
        text_folder,
        "--dir",
        tmp_path / "run",
        "--model.attention",
        "cudnn",
    ]
    code, err = run_command(capsys, *words)
    assert code == 2 and err == "ConfigError: model.attention=cudnn does not go on cpu; give --model.attention auto"
    assert not (tmp_path / "run").exists()


def test_a_run_of_another_device_is_read_and_shown_here(capsys, tmp_path: Path):
    """Its attention is that of the devices here, whatever it was trained with."""
    shutil.copytree(GOLDEN / "bert", tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    record["config"]["model"]["attention"] = "cudnn"
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    assert run_command(capsys, "show", tmp_path / "run")[0] == 0
    model, params, _ = contexture.load(tmp_path / "run")
    assert isinstance(model.config, BertConfig) and model.config.attention == "auto"
    _, expected, _ = contexture.load(GOLDEN / "bert")
    assert jax.tree.all(jax.tree.map(np.array_equal, params, expected))

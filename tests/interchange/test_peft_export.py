"""The folder that peft loads, without peft: its settings by name, and adapters whose product is the merged kernels'."""

import dataclasses
import json
import re
from typing import Any

import jax
import numpy as np
import pytest

import contexture
from contexture.interchange.huggingface_export import hf_files
from contexture.interchange.peft_export import peft_files
from contexture.train.optim.lora import add_adapters, merged
from contexture.train.settings.run_file import read
from tests.helpers.parity_rule import assert_close, assert_differs
from tests.train.run.test_formats import GOLDEN

BASE = "base_model.model."


@pytest.mark.parametrize(
    ("name", "targets", "task", "saved", "adapted"),
    [
        ("bert", ("query", "ffn"), None, ["cls"], "attention.self.query intermediate.dense output.dense"),
        ("gpt", ("query", "value"), "CAUSAL_LM", None, "attn.c_attn"),
    ],
)
def test_adapters_are_what_peft_adds_to_the_base(name, targets, task, saved, adapted):
    record, (_, params, tokenizer) = read(GOLDEN / name), contexture.load(GOLDEN / name)
    optim = dataclasses.replace(record.run.optim, lora_rank=2, lora_alpha=6.0, lora_targets=targets)
    run = dataclasses.replace(record.run, optim=optim)
    rng = np.random.default_rng(0)
    params: Any = add_adapters(params, run, jax.random.key(0))
    params["lora"] = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), params["lora"])
    base = hf_files(record, {part: tree for part, tree in params.items() if part != "lora"}, tokenizer)[1]
    whole = hf_files(record, jax.device_get(merged(params, optim)), tokenizer)[1]
    files, stored = peft_files(dataclasses.replace(record, run=run), params, tokenizer)

    config = json.loads(files["adapter_config.json"])
    fused = {pattern for pattern in config["target_modules"].split("|") if "c_attn" in pattern}
    ranks = {pattern: 2 * len(targets) for pattern in fused}
    assert config == {
        "peft_type": "LORA", "task_type": task, "base_model_name_or_path": None, "r": 2, "lora_alpha": 6.0,
        "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": name.startswith("gpt"), "inference_mode": True,
        "target_modules": config["target_modules"], "rank_pattern": ranks,
        "alpha_pattern": {pattern: 3.0 * rank for pattern, rank in ranks.items()}, "modules_to_save": saved,
    }  # fmt: skip
    modules = {each.removesuffix(".lora_A.weight").removeprefix(BASE) for each in stored if "lora_A" in each}
    assert {re.sub(r"^.*layer\.\d+\.|^.*h\.\d+\.", "", module) for module in modules} == {*adapted.split()}
    for tensor, x in base.items():
        module = tensor.removesuffix(".weight")
        if module in modules:
            assert any(re.fullmatch(pattern, module) for pattern in config["target_modules"].split("|"))
            product = stored[f"{BASE}{module}.lora_B.weight"] @ stored[f"{BASE}{module}.lora_A.weight"]
            assert_close(whole[tensor], x + 3.0 * (product.T if "c_" in module else product), atol=1e-5)
            assert_differs(whole[tensor], x, 1e-2)
        else:
            assert not any(re.fullmatch(pattern, module) for pattern in config["target_modules"].split("|")), module
            assert np.array_equal(whole[tensor], x)

"""Every recipe's numbers against one table, which says where each number was published.

A number that changes in a recipe changes here too, with its source, or not at all.
"""

import dataclasses
from typing import Any

import pytest

from contexture.configs import recipe, recipes, task_recipes
from contexture.configs.finetuning import finetune_run, pretrain_further
from contexture.models.config import BertConfig, ElmoConfig, GptConfig
from contexture.train.settings.run import Run, fields
from contexture.train.settings.sections import OptimConfig

BERT = "Devlin et al. 2018, A.2; google-research/bert: optimization.py, create_pretraining_data.py"
GPT1 = "Radford et al. 2018, 4.1; eps and clip of finetune-transformer-lm, train.py"
GPT2 = "Radford et al. 2019, 2.3: batch, length; rates of nanoGPT, config/train_gpt2.py, and GPT-3's table 2.1 by size"
GPT3 = "Brown et al. 2020, table 2.1 and appendix B; its batch ramp is left out"
ERNIE = "Sun et al. 2019; PaddlePaddle/ERNIE, folder ERNIE: its configuration, script and optimizer"
LAMB = "You et al. 2020, section 4; NVIDIA DeepLearningExamples, BERT: rates and warm-ups of 65,536 and 32,768"
ELMO = "bilm-tf: bin/train_elmo.py, bilm/training.py (3 GPUs of 128 lanes); Peters et al. 2018, 3.4"
NANO = "nanoGPT's README: shakespeare_char on a CPU"
OURS = "chosen here, for a small corpus on a CPU"

# What the recipes of a family have in common. A rate or a share, as the field has it.
COMMON: dict[str, dict[str, Any]] = {
    BERT: {
        "optim.name": "bert", "optim.schedule": "bert", "optim.b1": 0.9, "optim.b2": 0.999, "optim.eps": 1e-6,
        "optim.weight_decay": 0.01, "optim.no_decay": ("norm", "bias"), "optim.clip": 1.0, "optim.decay_steps": 0,
        "model.dropout": 0.1, "model.attention_dropout": 0.1, "model.eps": 1e-12, "model.init_std": 0.02,
        "model.gelu": "erf", "model.segments": 2, "model.length": 512, "model.tied": True,
        "data.slots": 20, "data.masked_fraction": "0.15", "data.short_fraction": 0.1, "objective": "mlm_nsp",
    },
    ERNIE: {
        "optim.name": "adamw", "optim.schedule": "bert", "optim.b1": 0.9, "optim.b2": 0.999, "optim.eps": 1e-8,
        "optim.weight_decay": 0.01, "optim.no_decay": ("norm", "bias"), "optim.clip": 1.0, "model.vocab": 18000,
        "model.length": 513, "model.gelu": "relu", "model.eps": 1e-5, "model.layers": 12, "model.hidden": 768,
        "model.heads": 12, "model.ffn": 3072, "model.segments": 2, "model.init_std": 0.02, "data.masking": "ernie",
        "data.masked_fraction": "0.15", "data.next_label": 1, "objective": "mlm_nsp",
    },
    LAMB: {
        "optim.name": "lamb", "optim.schedule": "linear", "optim.b1": 0.9, "optim.b2": 0.999, "optim.eps": 1e-6,
        "optim.weight_decay": 0.01, "optim.clip": 1.0, "optim.phase_lr": (6e-3, 4e-3),
        "optim.phase_warmup": (2000, 200), "data.phases": ("128x65536:7038", "512x32768"), "model.layers": 24,
        "model.hidden": 1024, "objective": "mlm_nsp",
    },
    GPT1: {
        "optim.name": "adamw", "optim.schedule": "cosine", "optim.b1": 0.9, "optim.b2": 0.999, "optim.eps": 1e-8,
        "optim.weight_decay": 0.01, "optim.clip": 1.0, "optim.final_lr": 0.0, "optim.decay_steps": 0,
        "model.dropout": 0.1, "model.attention_dropout": 0.1, "model.eps": 1e-5, "model.gelu": "tanh",
        "model.norm": "post", "model.init": "released", "model.init_std": 0.02, "model.position_std": 0.02,
        "model.length": 512, "model.vocab": 40478, "model.local_window": 0, "objective": "lm",
    },
    GPT2: {
        "optim.name": "adamw", "optim.schedule": "cosine", "optim.b1": 0.9, "optim.b2": 0.95, "optim.eps": 1e-8,
        "optim.weight_decay": 0.1, "optim.clip": 1.0, "optim.final_lr": 0.1, "optim.decay_steps": 0,
        "model.dropout": 0.0, "model.attention_dropout": 0.0, "model.eps": 1e-5, "model.gelu": "tanh",
        "model.norm": "pre", "model.init": "paper", "model.init_std": 0.02, "model.position_std": 0.01,
        "model.length": 1024, "model.vocab": 50257, "model.local_window": 0, "objective": "lm",
    },
    GPT3: {
        "optim.name": "adamw", "optim.schedule": "cosine", "optim.b1": 0.9, "optim.b2": 0.95, "optim.eps": 1e-8,
        "optim.weight_decay": 0.1, "optim.clip": 1.0, "optim.final_lr": 0.1,
        "model.dropout": 0.0, "model.attention_dropout": 0.0, "model.eps": 1e-5, "model.gelu": "tanh",
        "model.norm": "pre", "model.init": "paper", "model.init_std": 0.02, "model.length": 2048,
        "model.vocab": 50257, "model.local_window": 256, "data.ramp_from": 0, "objective": "lm",
    },
    ELMO: {
        "optim.name": "adagrad", "optim.schedule": "linear", "optim.final_lr": 1.0, "optim.weight_decay": 0.0,
        "optim.clip": 10.0, "optim.gradient_scale": 20.0, "model.dropout": 0.1, "model.cell_clip": 3.0,
        "model.projection_clip": 3.0, "model.skip": True, "model.layers": 2, "model.char_width": 16,
        "model.filters": ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)),
        "model.activation": "relu", "model.vocab": 793471, "data.negatives": 8192, "data.split_sentences": False,
        "save.every": 1250, "save.max_to_keep": 2, "objective": "bilm",
    },
    NANO: {
        "optim.name": "adamw", "optim.schedule": "cosine", "optim.b1": 0.9, "optim.b2": 0.99, "optim.eps": 1e-8,
        "optim.weight_decay": 0.1, "optim.clip": 1.0, "optim.final_lr": 0.1, "optim.decay_steps": 0,
        "model.dropout": 0.0, "model.attention_dropout": 0.0, "model.layers": 4, "model.hidden": 128,
        "model.heads": 4, "model.vocab": 65, "model.biases": False, "model.position_std": 0.02, "model.norm": "pre",
        "model.init": "paper", "objective": "lm",
    },
    OURS: {"optim.weight_decay": 0.01, "optim.clip": 1.0, "model.dropout": 0.1},
}  # fmt: skip

# recipe: source, peak rate, warm-up, lines a batch, their length, steps, passes.
TABLE: dict[str, tuple[str, float, int, int, int, int, float]] = {
    **{
        f"bert.{name}": (BERT, 1e-4, 10_000, 256, 128, 1_000_000, 0)
        for name in ("base", "large", "base_cased", "large_cased", "base_chinese", "multilingual")
    },
    # the last tenth of the steps, at length 512; what is left of the rate is a tenth of it
    **{
        f"bert.{name}_phase2": (BERT, 1e-5, 1_000, 256, 512, 100_000, 0)
        for name in ("base", "large", "base_cased", "large_cased")
    },
    "bert.base_chinese_wwm": (BERT, 1e-4, 10_000, 256, 128, 1_000_000, 0),
    "ernie.base": (ERNIE, 1e-4, 5_000, 64, 128, 1_000_000, 0),
    "bert.large_lamb": (LAMB, 6e-3, 10_000, 32_768, 512, 8_601, 0),
    "bert.tiny": (OURS, 2e-3, 100, 32, 128, 10_000, 0),
    **{f"bert.{name}": (OURS, 1e-3, 100, 32, 128, 10_000, 0) for name in ("mini", "small", "medium")},
    "gpt.tiny": (OURS, 2e-3, 100, 32, 128, 10_000, 0),
    "gpt.shakespeare_char": (NANO, 1e-3, 100, 12, 64, 2_000, 0),
    "gpt.gpt1": (GPT1, 2.5e-4, 2_000, 64, 512, 0, 100),
    "gpt.gpt2_124m": (GPT2, 6e-4, 2_000, 512, 1024, 600_000, 0),
    "gpt.gpt2_355m": (GPT2, 3e-4, 2_000, 512, 1024, 600_000, 0),
    "gpt.gpt2_774m": (GPT2, 2.5e-4, 2_000, 512, 1024, 600_000, 0),
    "gpt.gpt2_1558m": (GPT2, 2e-4, 2_000, 512, 1024, 600_000, 0),
    "gpt.gpt3_125m": (GPT3, 6e-4, 715, 256, 2048, 572_205, 0),
    "gpt.gpt3_350m": (GPT3, 3e-4, 715, 256, 2048, 572_205, 0),
    "gpt.gpt3_760m": (GPT3, 2.5e-4, 715, 256, 2048, 572_205, 0),
    "gpt.gpt3_1_3b": (GPT3, 2e-4, 358, 512, 2048, 286_102, 0),
    "gpt.gpt3_2_7b": (GPT3, 1.6e-4, 358, 512, 2048, 286_102, 0),
    "gpt.gpt3_6_7b": (GPT3, 1.2e-4, 191, 960, 2048, 152_588, 0),
    "gpt.gpt3_13b": (GPT3, 1e-4, 191, 960, 2048, 152_588, 0),
    "gpt.gpt3_175b": (GPT3, 0.6e-4, 119, 1536, 2048, 95_367, 0),
    "elmo.tiny": (OURS, 0.2, 0, 32, 20, 10_000, 0),
    **{f"elmo.{name}": (ELMO, 0.2, 0, 384, 20, 0, 10) for name in ("small", "medium", "original", "original_5_5b")},
}

# What single recipes have besides, and tiny ones of ours have of their families.
BESIDES: dict[str, dict[str, Any]] = {
    "bert.tiny": {"optim.name": "adamw", "optim.schedule": "linear", "optim.b2": 0.999, "optim.eps": 1e-6},
    "gpt.tiny": {"optim.name": "adamw", "optim.schedule": "linear", "optim.b2": 0.99, "optim.eps": 1e-8},
    "elmo.tiny": {"optim.name": "adagrad", "optim.final_lr": 0.1, "optim.clip": 10.0, "optim.gradient_scale": 20.0,
                  "optim.weight_decay": 0.0, "data.negatives": 1024, "model.highway": 1},
    "bert.base": {"model.vocab": 30522, "data.lowercase": True},
    "bert.base_cased": {"model.vocab": 28996, "data.lowercase": False},
    "bert.large_cased": {"model.vocab": 28996, "data.lowercase": False},
    "bert.base_phase2": {"data.slots": 77},
    "bert.large_phase2": {"data.slots": 77},
    "bert.base_cased_phase2": {"model.vocab": 28996, "data.lowercase": False, "data.slots": 77},
    "bert.large_cased_phase2": {"model.vocab": 28996, "data.lowercase": False, "data.slots": 77},
    "bert.base_chinese": {"model.vocab": 21128, "data.lowercase": True},
    "bert.base_chinese_wwm": {"model.vocab": 21128, "data.masking": "whole_words", "data.units": "jieba"},
    "bert.multilingual": {"model.vocab": 119547, "data.lowercase": False},
    "elmo.small": {"model.cells": 1024, "model.projection": 128, "model.highway": 1},
    "elmo.medium": {"model.cells": 2048, "model.projection": 256, "model.highway": 1},
    "elmo.original": {"model.cells": 4096, "model.projection": 512, "model.highway": 2},
}  # fmt: skip

# layers, hidden, heads, ffn: Turc et al. 2019; Devlin et al. 2018, section 3; the GPTs' papers.
SIZES = {
    "bert.tiny": (2, 128, 2), "bert.mini": (4, 256, 4), "bert.small": (4, 512, 8), "bert.medium": (8, 512, 8),
    "bert.base": (12, 768, 12), "bert.large": (24, 1024, 16), "gpt.gpt1": (12, 768, 12), "gpt.gpt2_124m": (12, 768, 12),
    "gpt.gpt2_355m": (24, 1024, 16), "gpt.gpt2_774m": (36, 1280, 20), "gpt.gpt2_1558m": (48, 1600, 25),
    "gpt.gpt3_125m": (12, 768, 12), "gpt.gpt3_350m": (24, 1024, 16), "gpt.gpt3_760m": (24, 1536, 16),
    "gpt.gpt3_1_3b": (24, 2048, 16), "gpt.gpt3_2_7b": (32, 2560, 32), "gpt.gpt3_6_7b": (32, 4096, 32),
    "gpt.gpt3_13b": (40, 5120, 40), "gpt.gpt3_175b": (96, 12288, 96),
}  # fmt: skip


def _numbers(run: Run) -> dict[str, Any]:
    """Its fields, and how many tokens of a sequence are predicted, which follows from the length."""
    return {**fields(run), "data.slots": run.data.slots, "objective": run.objective}


def test_every_recipe_has_a_row():
    assert recipes().keys() == TABLE.keys()


@pytest.mark.parametrize("name", TABLE)
def test_a_recipe_has_the_numbers_that_were_published(name):
    source, *numbers = TABLE[name]
    actual = _numbers(recipes()[name]())
    named = ("optim.peak_lr", "optim.warmup", "data.batch", "data.length", "steps", "epochs")
    expected = {**COMMON[source], **dict(zip(named, numbers, strict=True)), **BESIDES.get(name, {})}
    assert {field: actual[field] for field in expected} == expected, source
    parts = 64 if source == LAMB else 1
    for field, value in {"optim.warmup_fraction": 0.0, "optim.accumulate": parts, "optim.layer_decay": 1.0}.items():
        assert actual[field] == value
    if name in SIZES:
        layers, hidden, heads = SIZES[name]
        sizes = tuple(actual[f"model.{word}"] for word in ("layers", "hidden", "heads", "ffn"))
        assert sizes == (layers, hidden, heads, 4 * hidden)


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row[0] == GPT3])
def test_a_gpt_3_is_trained_on_the_tokens_of_its_paper(name):
    """300 billion; a warm-up over 375 million, the cosine over 260 billion. A step is the nearest to table 2.1's batch
    that has a multiple of 64 lines."""
    published = {
        "125m": 0.5, "350m": 0.5, "760m": 0.5, "1_3b": 1.0, "2_7b": 1.0, "6_7b": 2.0, "13b": 2.0, "175b": 3.2
    }[name.removeprefix("gpt.gpt3_")]  # fmt: skip
    run = recipes()[name]()
    tokens = run.data.batch * run.data.length
    assert run.data.batch % 64 == 0 and tokens == pytest.approx(published * 1e6, rel=0.05)
    for steps, expected in ((run.steps, 300e9), (run.optim.decay_steps, 260e9), (run.optim.warmup, 375e6)):
        assert steps * tokens == pytest.approx(expected, abs=tokens / 2)


# task: peak rate, passes (Devlin et al. 2018, A.3; GLUE's passes and rate as transformers' Flax examples give them).
TASKS = {
    **dict.fromkeys(("classify", "regress", "tag", "choice", "span", "squad11", "xquad", "conll2003"), (5e-5, 3.0)),
    **dict.fromkeys(("conll2003_documents", "wnut17", "ud_pos", "msra_ner"), (5e-5, 3.0)),
    "squad2": (5e-5, 2.0),
    **dict.fromkeys(("cola", "sst2", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"), (2e-5, 3.0)),
    "mrpc": (2e-5, 5.0),
    **dict.fromkeys(("snli", "sst5", "chnsenticorp", "lcqmc"), (2e-5, 3.0)),
    "xnli": (5e-5, 2.0),  # google-research/bert, multilingual.md
    **dict.fromkeys(("swag", "race", "commonsense_qa", "copa", "roc_stories"), (2e-5, 3.0)),  # section 4.4
}
OTHER_SIZES = {
    "swag": {"data.batch": 16},
    "race": {"data.length": 512},
    "conll2003_documents": {"data.length": 512, "data.context": "document"},
}
"""SWAG's batches (section 4.4); RACE's sequences, which hold a passage; the document around a name (section 5.3)."""
FINE_TUNING = {
    "optim.name": "bert", "optim.schedule": "bert", "optim.b1": 0.9, "optim.b2": 0.999, "optim.eps": 1e-6,
    "optim.weight_decay": 0.01, "optim.clip": 1.0, "optim.warmup": 0, "optim.warmup_fraction": 0.1, "data.batch": 32,
    "data.length": 128, "data.context": "sentence", "steps": 0, "model.dropout": 0.1,
    "model.attention_dropout": 0.1, "model.head_dropout": 0.1,
}  # fmt: skip


@pytest.mark.parametrize("name", task_recipes())
def test_a_task_is_fine_tuned_as_berts_paper_says(name):
    assert task_recipes().keys() == TASKS.keys()
    actual, (peak_lr, epochs) = fields(task_recipes()[name]()), TASKS[name]
    expected = {**FINE_TUNING, "optim.peak_lr": peak_lr, "epochs": epochs, **OTHER_SIZES.get(name, {})}
    if actual["task.kind"] == "span":  # run_squad.py; sections 4.2 and 4.3
        expected |= {"data.length": 384, "task.stride": 128, "task.question_length": 64, "task.answer_length": 30,
                     "task.n_best": 20, "data.batch": 48 if name == "squad2" else 32}  # fmt: skip
    assert {field: actual[field] for field in expected} == expected


def test_a_gpt_is_fine_tuned_as_gpt_1_was():
    """finetune-transformer-lm, train.py: its defaults."""
    source = Run(model=GptConfig(vocab=40478, length=512))
    actual = fields(finetune_run(source, "runs/gpt", "classify", task_vocabulary=40481))
    expected = {
        "optim.name": "gpt1", "optim.schedule": "gpt1", "optim.peak_lr": 6.25e-5, "optim.warmup_fraction": 0.002,
        "optim.b1": 0.9, "optim.b2": 0.999, "optim.eps": 1e-8, "optim.weight_decay": 0.01, "optim.clip": 1.0,
        "task.lm_weight": 0.5, "data.batch": 32, "epochs": 3.0, "model.vocab": 40481, "model.dropout": 0.1,
        "model.head_dropout": 0.1, "init.grow": True,
    }  # fmt: skip
    assert {field: actual[field] for field in expected} == expected


@pytest.mark.parametrize(
    ("model", "rate"),
    [
        (BertConfig(), 5e-5),
        (BertConfig(hidden=1024, heads=16), 5e-5),
        (BertConfig(hidden=512, heads=8), 7.5e-5),
        (BertConfig(hidden=128, heads=2), 3e-4),
        (BertConfig(hidden=16, heads=2), 1e-3),
        (GptConfig(), 6.25e-5),
        (GptConfig(hidden=384, heads=6), 1.25e-4),
    ],
)
def test_a_small_model_is_fine_tuned_at_a_rate_for_its_width(model, rate):
    """Six times 5e-5 at 128 units is the highest of the rates that Turc et al. 2019 try for their small BERTs."""
    assert finetune_run(Run(model=model), "runs/mine", "classify").optim.peak_lr == rate


@pytest.mark.parametrize(("model", "recipe_of"), [(BertConfig, "bert.tiny"), (GptConfig, "gpt.tiny")])
def test_the_attention_of_another_run_is_not_inherited(model, recipe_of):
    """It may be that of a device which is not here; what else its model is stays."""
    source = Run(model=model(attention="pallas", hidden=48, heads=4))
    further = pretrain_further(source, recipe(recipe_of), "runs/source")
    for run in (finetune_run(source, "runs/source", "classify"), further):
        assert run.model == dataclasses.replace(source.model, attention="auto")


@pytest.mark.parametrize("random", [False, True])
def test_an_elmos_task_is_trained_over_a_frozen_mix(random):
    """Frozen and without dropout below, 0.5 above (AllenNLP's Elmo); all else is chosen here."""
    actual = fields(finetune_run(Run(model=ElmoConfig()), "runs/elmo", "classify", random=random))
    expected = {
        "optim.name": "adamw", "optim.schedule": "linear", "optim.peak_lr": 1e-3, "optim.warmup": 0,
        "optim.final_lr": 0.1, "optim.eps": 1e-8, "optim.weight_decay": 0.0, "optim.clip": 5.0, "epochs": 10.0,
        "optim.frozen": () if random else ("backbone",), "model.dropout": 0.1 if random else 0.0,
        "model.head_dropout": 0.5, "head.mix": "all", "head.cells": 128,
    }  # fmt: skip
    assert {field: actual[field] for field in expected} == expected


@pytest.mark.parametrize(
    ("config", "rates"),
    [
        (BertConfig(), {"dropout": 0.1, "attention_dropout": 0.1, "head_dropout": 0.1}),
        (GptConfig(), {"dropout": 0.1, "attention_dropout": 0.1, "head_dropout": 0.1}),
        (ElmoConfig(), {"dropout": 0.1, "head_dropout": 0.5}),
    ],
)
def test_a_familys_dropout_is_the_originals_unless_said_otherwise(config, rates):
    assert {name: value for name, value in vars(config).items() if "dropout" in name} == rates


def test_a_runs_defaults_are_berts():
    actual, expected = _numbers(Run()), COMMON[BERT]
    assert {field: actual[field] for field in expected} == expected
    assert OptimConfig().clip == 1.0 and OptimConfig().max_skipped == 10

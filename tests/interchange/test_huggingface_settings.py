"""config.json of an export: each setting by the name that transformers gives it."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from contexture.interchange.huggingface_export import hf_files
from contexture.models.families import example
from contexture.train.checkpoints.transfer import model_of
from contexture.train.errors import ConfigError
from contexture.train.objectives import batch_fields, batch_sizes
from contexture.train.run.vocabulary import read_tokenizer
from contexture.train.settings.run_file import read
from tests.helpers.random_runs import random_parameters
from tests.train.run.test_formats import GOLDEN

ODD = {
    "layers": 3, "hidden": 24, "heads": 4, "ffn": 20, "length": 37,
    "init_std": 0.03, "eps": 1e-9, "dropout": 0.11, "attention_dropout": 0.12,
}  # fmt: skip
"""Each a number of its own."""


def exported(golden: Path, **settings: Any) -> tuple[Any, Any, dict[str, Any]]:
    """(the model's settings, the tokenizer, config.json) of the run with these settings."""
    record, tokenizer = read(golden), read_tokenizer(golden, read(golden))
    model: Any = dataclasses.replace(record.run.model, **{**ODD, **settings})
    run = dataclasses.replace(record.run, model=model)
    params = random_parameters(model_of(run, ()), example(batch_fields(run), batch_sizes(run, 1)))
    files = hf_files(dataclasses.replace(record, run=run), params, tokenizer)[0]
    return model, tokenizer, json.loads(files["config.json"])


@pytest.mark.parametrize("tied", [True, False])
def test_settings_go_out_by_the_names_of_transformers(tied):
    model, tokenizer, written = exported(GOLDEN / "bert_3_steps", head_dropout=0.13, segments=5, tied=tied)
    of = {
        "hidden_size": model.hidden, "num_attention_heads": model.heads, "intermediate_size": model.ffn,
        "initializer_range": 0.03,
        "layer_norm_eps": 1e-9, "hidden_dropout_prob": 0.11, "attention_probs_dropout_prob": 0.12,
        "classifier_dropout": 0.13, "max_position_embeddings": model.length,
        "type_vocab_size": 5, "pad_token_id": tokenizer.pad,
        "num_hidden_layers": model.layers, "vocab_size": tokenizer.size, "model_type": "bert",
        "hidden_act": {"erf": "gelu", "tanh": "gelu_new"}[model.gelu], "tie_word_embeddings": tied,
        "architectures": ["BertForPreTraining"], "dtype": "float32",
    }  # fmt: skip
    assert {name: written.get(name) for name in of} == of, written


@pytest.mark.parametrize(("one_table", "tied"), [(False, True), (True, True), (False, False)])
def test_a_table_of_tokens_and_places_goes_out_with_a_warning(one_table, tied, caplog):
    with caplog.at_level("WARNING", "contexture"):
        model, tokenizer, written = exported(GOLDEN / "gpt", one_table=one_table, tied=tied)
    assert ("its softmax is over the tokens alone" in caplog.text) == one_table
    of = {
        "model_type": "gpt2", "n_embd": model.hidden, "n_head": model.heads, "n_inner": model.ffn,
        "n_positions": model.length, "layer_norm_epsilon": 1e-9,
        "resid_pdrop": 0.11, "embd_pdrop": 0.11, "attn_pdrop": 0.12, "initializer_range": 0.03,
        "n_layer": model.layers, "vocab_size": tokenizer.size, "activation_function": "gelu_new",
        "tie_word_embeddings": tied, "bos_token_id": tokenizer.end, "eos_token_id": tokenizer.end,
    }  # fmt: skip
    assert {name: written.get(name) for name in of} == of, written


@pytest.mark.parametrize(("gelu", "afn"), [("tanh", "gelu"), ("relu", "relu")])
def test_a_post_norm_gpt_goes_out_as_a_gpt1(gelu, afn):
    model, tokenizer, written = exported(GOLDEN / "gpt", norm="post", ffn=96, gelu=gelu)
    of = {
        "model_type": "openai-gpt", "afn": afn, "n_embd": 24, "n_head": 4, "n_layer": 3, "n_positions": 37,
        "resid_pdrop": 0.11, "embd_pdrop": 0.11, "attn_pdrop": 0.12, "vocab_size": tokenizer.size, "n_inner": None,
    }  # fmt: skip
    assert {name: written.get(name) for name in of} == of and model.norm == "post"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"local_window": 4}, "transformers' GPT-2 has no banded layers, and this run has model.local-window=4"),
        ({"norm": "post"}, "GPT-1 has an ffn of 4 · hidden and tanh gelu or relu, and this run model.ffn=20, model.g"),
        ({"norm": "post", "ffn": 96, "gelu": "erf"}, "and this run model.ffn=96, model.gelu=erf"),
    ],
)
def test_what_transformers_has_no_class_for_is_refused(settings, line):
    with pytest.raises(ConfigError, match=re.escape(line)):
        exported(GOLDEN / "gpt", **settings)


def test_biases_that_a_run_lacks_go_out_as_zeros(caplog):
    with caplog.at_level("INFO", "contexture"):
        exported(GOLDEN / "gpt")
    assert "wrote zeros for the biases" not in caplog.text
    golden = GOLDEN / "gpt"
    record = read(golden)
    run = dataclasses.replace(record.run, model=dataclasses.replace(record.run.model, biases=False))  # pyright: ignore[reportCallIssue]
    params = random_parameters(model_of(run, ()), example(batch_fields(run), batch_sizes(run, 1)))
    with caplog.at_level("INFO", "contexture"):
        _, tensors = hf_files(dataclasses.replace(record, run=run), params, read_tokenizer(golden, record))[:2]
    assert "wrote zeros for the biases that transformers' classes have and this run lacks" in caplog.text
    zeros = {name for name, x in tensors.items() if name.endswith("bias") and "ln_" not in name}
    assert zeros and all(not tensors[name].any() for name in zeros)
    assert all(tensors[name].any() for name in tensors.keys() - zeros if "ln_" not in name)

"""config.json of an export: each setting by the name that transformers gives it."""

import dataclasses
import json
from typing import Any

import pytest

import contexture
from contexture.train.interchange.huggingface_export import hf_files
from contexture.train.run_file import read
from tests.train.run.test_formats import GOLDEN

ODD = {"init_std": 0.03, "eps": 1e-9, "dropout": 0.11, "attention_dropout": 0.12}


def test_settings_go_out_by_the_names_of_transformers():
    """Each a number of its own."""
    golden = GOLDEN / "run_format_1"
    record, (_, params, tokenizer) = read(golden), contexture.load(golden)
    model: Any = dataclasses.replace(record.run.model, **ODD, head_dropout=0.13)
    record = dataclasses.replace(record, run=dataclasses.replace(record.run, model=model))
    written = json.loads(hf_files(record, params, tokenizer)[0]["config.json"])
    of = {
        "hidden_size": model.hidden, "num_attention_heads": model.heads, "intermediate_size": model.ffn,
        "initializer_range": 0.03,
        "layer_norm_eps": 1e-9, "hidden_dropout_prob": 0.11, "attention_probs_dropout_prob": 0.12,
        "classifier_dropout": 0.13, "max_position_embeddings": model.length,
        "type_vocab_size": model.segments, "pad_token_id": tokenizer.pad,
        "num_hidden_layers": model.layers, "vocab_size": tokenizer.size, "model_type": "bert",
        "hidden_act": {"erf": "gelu", "tanh": "gelu_new"}[model.gelu], "tie_word_embeddings": model.tied,
        "architectures": ["BertForPreTraining"], "dtype": "float32",
    }  # fmt: skip
    assert {name: written.get(name) for name in of} == of, written


@pytest.mark.parametrize("one_table", [False, True])
def test_a_table_of_tokens_and_places_goes_out_with_a_warning(one_table, caplog):
    golden = GOLDEN / "gpt_format_2"
    record, (_, params, tokenizer) = read(golden), contexture.load(golden)
    model: Any = dataclasses.replace(record.run.model, **ODD, one_table=one_table)
    record = dataclasses.replace(record, run=dataclasses.replace(record.run, model=model))
    with caplog.at_level("WARNING", "contexture"):
        written = json.loads(hf_files(record, params, tokenizer)[0]["config.json"])
    assert ("its softmax is over the tokens alone" in caplog.text) == one_table
    of = {
        "model_type": "gpt2", "n_embd": model.hidden, "n_head": model.heads, "n_inner": model.ffn,
        "n_positions": model.length, "layer_norm_epsilon": 1e-9,
        "resid_pdrop": 0.11, "embd_pdrop": 0.11, "attn_pdrop": 0.12, "initializer_range": 0.03,
        "n_layer": model.layers, "vocab_size": tokenizer.size, "activation_function": "gelu_new",
        "tie_word_embeddings": True, "bos_token_id": tokenizer.end, "eos_token_id": tokenizer.end,
    }  # fmt: skip
    assert {name: written.get(name) for name in of} == of, written

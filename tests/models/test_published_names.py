"""The names of published checkpoints, written down apart from the tables: those that the originals' code gives."""

import re
from itertools import product

import pytest

from contexture.interchange.name_tables import (
    BERT_HF,
    BERT_HF_FORMAT,
    BERT_TF_FORMAT,
    GPT1_HF,
    GPT1_NPY_FORMAT,
    GPT2_HF,
    GPT2_TF_FORMAT,
    bilm,
)
from contexture.interchange.renaming import NameTable

BERT_MODULES = (
    "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
    "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm",
)  # fmt: skip
BERT = {
    *(f"bert.encoder.layer.{{layer}}.{module}.{of}" for module, of in product(BERT_MODULES, ("weight", "bias"))),
    *(f"bert.embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type")),
    *(f"bert.embeddings.LayerNorm.{of}" for of in ("weight", "bias")),
    *(f"bert.pooler.dense.{of}" for of in ("weight", "bias")),
    *(f"cls.predictions.transform.{module}.{of}" for module in ("dense", "LayerNorm") for of in ("weight", "bias")),
    *("cls.predictions.bias", "cls.seq_relationship.weight", "cls.seq_relationship.bias"),
}
GPT_MODULES = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
GPT_LAYERS = {f"transformer.h.{{layer}}.{module}.{of}" for module, of in product(GPT_MODULES, ("weight", "bias"))}
GPT2 = GPT_LAYERS | {"transformer.wte.weight", "transformer.wpe.weight"}
GPT2 |= {"transformer.ln_f.weight", "transformer.ln_f.bias"}
GPT1 = GPT_LAYERS | {"transformer.tokens_embed.weight", "transformer.positions_embed.weight"}


def of_google(name: str) -> str:
    """A name of google-research/bert, for that of transformers: as its authors' script converts them."""
    if name == "cls.predictions.bias":
        return "cls/predictions/output_bias"
    if name.startswith("cls.seq_relationship"):
        return f"cls/seq_relationship/output_{'weights' if name.endswith('weight') else 'bias'}"
    name = re.sub(r"(_embeddings)\.weight$", r"\1", name)
    name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    return re.sub(r"weight$", "kernel", name).replace("layer.{layer}", "layer_{layer}").replace(".", "/")


def of_openai(name: str) -> str:
    """A name of openai/gpt-2, for that of transformers."""
    name = re.sub(r"\b(wte|wpe)\.weight$", r"\1", name.replace("transformer.h.{layer}", "model.h{layer}"))
    name = re.sub(r"(ln_\w)\.weight$", r"\1.g", name).replace("transformer.", "model.")
    return re.sub(r"weight$", "w", re.sub(r"bias$", "b", name)).replace(".", "/")


def names(table: NameTable) -> set[str]:
    return {row[0] for row in table.rows}


def ours(table: NameTable, name: str) -> set[str]:
    return {row[1] for row in table.rows if row[0] == name}


@pytest.mark.parametrize(("table", "expected"), [(BERT_HF, BERT), (GPT2_HF, GPT2), (GPT1_HF, GPT1)])
def test_names_are_those_of_transformers(table, expected):
    assert names(table) == expected


@pytest.mark.parametrize(
    ("table", "like", "renamed"),
    [(BERT_TF_FORMAT.table(("pooler", "mlm", "nsp")), BERT_HF, of_google),
     (GPT2_TF_FORMAT.table(("lm",)), GPT2_HF, of_openai)],
)  # fmt: skip
def test_names_of_the_originals_are_of_the_same_parameters(table, like, renamed):
    assert names(table) == {renamed(name) for name in names(like)}
    for name in names(like):
        assert ours(table, renamed(name)) == ours(like, name), name


def test_gpt1s_arrays_are_of_the_parameters_of_gpt2s():
    """But for the norm at the end, which it has not; its files have no names, and positions come first."""
    at_end = {"backbone/norm/scale", "backbone/norm/bias"}
    table = GPT1_NPY_FORMAT.table(("lm",))
    assert {row[1] for row in table.rows} == {row[1] for row in GPT2_HF.rows} - at_end
    assert [row[1] for row in table.rows[:2]] == ["backbone/embeddings/positions", "backbone/embeddings/tokens"]


def test_heads_of_tasks_and_second_names_are_those_of_transformers():
    heads = {kind: {row[0] for row in BERT_HF_FORMAT.parts[kind]} for kind in ("classify", "tag", "choice", "span")}
    assert heads.pop("span") == {"qa_outputs.weight", "qa_outputs.bias"}
    assert all(named == {"classifier.weight", "classifier.bias"} for named in heads.values())
    assert BERT_HF_FORMAT.repeats["mlm"] == (
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    )
    heads = {kind: {row[0] for row in BERT_TF_FORMAT.parts[kind]} for kind in ("classify", "span")}
    assert heads["classify"] == {"output_weights", "output_bias"}
    assert heads["span"] == {"cls/squad/output_weights", "cls/squad/output_bias"}


def test_a_bilms_names_are_those_of_its_dump():
    cell = "RNN_{}/RNN/MultiRNNCell/Cell{{layer}}/LSTMCell/{}"
    assert names(bilm(((1, 4), (2, 4)), 1, True)) == {
        "char_embed", "CNN/W_cnn_0", "CNN/b_cnn_0", "CNN/W_cnn_1", "CNN/b_cnn_1", "CNN_high_0/W_carry",
        "CNN_high_0/b_carry", "CNN_high_0/W_transform", "CNN_high_0/b_transform", "CNN_proj/W_proj", "CNN_proj/b_proj",
        *(cell.format(rnn, of) for rnn in (0, 1) for of in ("W_0", "B", "W_P_0")),
    }  # fmt: skip

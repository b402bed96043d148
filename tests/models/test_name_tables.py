"""Published names: each table accounts for everything, goes both ways bit for bit, and says what does not fit."""

from typing import Any

import jax
import numpy as np
import pytest

from contexture.interchange.name_tables import (
    BERT_HF,
    BERT_HF_FORMAT,
    BERT_TF_FORMAT,
    GPT1_HF_FORMAT,
    GPT1_NPY_FORMAT,
    GPT2_HF_FORMAT,
    GPT2_TF_FORMAT,
)
from contexture.interchange.renaming import param_mappings, shapes_of, to_ours, to_theirs
from contexture.models import bert, gpt
from contexture.models.config import BertConfig, GptConfig
from contexture.models.families import build, example
from contexture.models.shapes import dims_of, path_of

CONFIG = BertConfig(vocab=13, length=7, segments=3, layers=3, hidden=12, heads=3, ffn=5)
SIZES = bert.sizes(CONFIG)
WORDS = "bert.embeddings.word_embeddings.weight"


def _params() -> Any:
    """Every number of a model is another one."""
    model = build(CONFIG, ("mlm", "nsp"))
    fields = {"tokens": "i32 BL", "segments": "i32 BL", "mask": "i32 BL", "slots": "i32 BP"}
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), example(fields, {"B": 1, "L": 7, "P": 1}))["params"])
    leaves, tree = jax.tree.flatten(shapes)
    rng = np.random.default_rng(0)
    return jax.tree.unflatten(tree, [rng.standard_normal(x.shape, np.float32) for x in leaves])


PARAMS = _params()
THEIRS = to_theirs(BERT_HF, PARAMS, SIZES)


def test_published_round_trip():
    back = to_ours(BERT_HF, THEIRS, SIZES)
    assert jax.tree.structure(back) == jax.tree.structure(PARAMS)
    for (path, got), expected in zip(jax.tree.leaves_with_path(back), jax.tree.leaves(PARAMS), strict=True):
        assert got.dtype == expected.dtype and np.array_equal(got, expected), path_of(path)
    again = to_theirs(BERT_HF, back, SIZES)
    assert again.keys() == THEIRS.keys() and all(np.array_equal(again[name], THEIRS[name]) for name in again)


def test_a_heads_rows_stand_together_in_their_kernels():
    """Of 3 heads of 4 the number 2 of head 1 is number 6 of all; the last of all is the last in any order."""
    attention, theirs = PARAMS["backbone"]["layers"]["attention"], "bert.encoder.layer.1.attention."
    google = to_theirs(BERT_TF_FORMAT.table(("pooler", "mlm", "nsp")), PARAMS, SIZES)
    for part in ("query", "key", "value"):
        kernel, bias = attention[part]["kernel"], attention[part]["bias"]  # NDHK, NHK
        assert THEIRS[f"{theirs}self.{part}.weight"][1 * 4 + 2, 5] == kernel[1, 5, 1, 2]
        assert THEIRS[f"{theirs}self.{part}.bias"][1 * 4 + 2] == bias[1, 1, 2]
        assert google[f"bert/encoder/layer_1/attention/self/{part}/kernel"][5, 1 * 4 + 2] == kernel[1, 5, 1, 2]
        assert google[f"bert/encoder/layer_1/attention/self/{part}/bias"][1 * 4 + 2] == bias[1, 1, 2]
    out = attention["out"]["kernel"]  # NHKD
    assert THEIRS[theirs + "output.dense.weight"][5, 1 * 4 + 2] == out[1, 1, 2, 5]
    assert google["bert/encoder/layer_1/attention/output/dense/kernel"][1 * 4 + 2, 5] == out[1, 1, 2, 5]


def test_the_decoder_repeats_the_token_table_and_the_heads_bias():
    assert np.array_equal(THEIRS["cls.predictions.decoder.weight"], PARAMS["backbone"]["embeddings"]["tokens"])
    assert np.array_equal(THEIRS["cls.predictions.decoder.bias"], PARAMS["heads_mlm"]["bias"])
    without = {name: x for name, x in THEIRS.items() if "decoder" not in name}
    assert jax.tree.all(jax.tree.map(np.array_equal, to_ours(BERT_HF, without, SIZES), PARAMS))
    untied = THEIRS | {"cls.predictions.decoder.weight": THEIRS["cls.predictions.decoder.weight"] + 1}
    with pytest.raises(ValueError, match=r"cls\.predictions\.decoder\.weight is not equal to bert\.embeddings\.word"):
        to_ours(BERT_HF, untied, SIZES)


def test_what_is_given_is_not_shared_with_what_comes_back():
    ours: Any = to_ours(BERT_HF, THEIRS, SIZES)
    back = to_theirs(BERT_HF, ours, SIZES)
    ours["backbone"]["embeddings"]["tokens"][:] = 0
    assert THEIRS[WORDS].any() and back[WORDS].any()


def test_a_tensor_missing_unknown_or_misshapen_is_named():
    missing = {name: x for name, x in THEIRS.items() if name != "bert.encoder.layer.2.intermediate.dense.bias"}
    with pytest.raises(ValueError, match=r"bert\.encoder\.layer\.2\.intermediate\.dense\.bias is missing"):
        to_ours(BERT_HF, missing, SIZES)
    with pytest.raises(ValueError, match=r"bert\.extra is not accounted for"):
        to_ours(BERT_HF, THEIRS | {"bert.extra": np.zeros(1)}, SIZES)
    with pytest.raises(ValueError, match=r"layer\.3\..* not accounted for"):  # a fourth layer
        extra = {name.replace("layer.2", "layer.3"): x for name, x in THEIRS.items() if "layer.2" in name}
        to_ours(BERT_HF, THEIRS | extra, SIZES)
    with pytest.raises(ValueError, match=r"position_embeddings\.weight is \[6, 12\], and LD = \[7, 12\] is wanted"):
        name = "bert.embeddings.position_embeddings.weight"
        to_ours(BERT_HF, THEIRS | {name: THEIRS[name][:6]}, SIZES)


def test_a_parameter_missing_unknown_or_misshapen_is_named():
    with pytest.raises(ValueError, match="heads_nsp/bias, heads_nsp/kernel is missing"):
        to_theirs(BERT_HF, {name: x for name, x in PARAMS.items() if name != "heads_nsp"}, SIZES)
    with pytest.raises(ValueError, match="heads_other/bias is not accounted for"):
        to_theirs(BERT_HF, PARAMS | {"heads_other": {"bias": np.zeros(2)}}, SIZES)
    with pytest.raises(ValueError, match=r"heads_nsp/bias is \[3\], and C = \[2\] is wanted"):
        wrong = PARAMS | {"heads_nsp": {**PARAMS["heads_nsp"], "bias": np.zeros(3)}}
        to_theirs(BERT_HF, wrong, SIZES)


BERT_SIZES = bert.sizes(CONFIG)
GPT_SIZES = gpt.sizes(GptConfig(vocab=13, length=7, layers=3, hidden=12, heads=3, ffn=48))
TABLES = {
    f"{name}, {' '.join(parts) or 'backbone alone'}{'' if tied else ', untied'}": (book.table(parts, tied), sizes)
    for name, book, sizes, every in (
        ("BERT of transformers", BERT_HF_FORMAT, BERT_SIZES, [(), ("pooler",), ("mlm",), ("pooler", "mlm", "nsp"),
         ("pooler", "nsp"), ("pooler", "classify"), ("pooler", "regress"), ("tag",), ("pooler", "choice"), ("span",)]),
        ("BERT of Google", BERT_TF_FORMAT, BERT_SIZES, [("pooler",), ("pooler", "mlm", "nsp"), ("pooler", "classify"),
         ("pooler", "span")]),
        ("GPT-1 of transformers", GPT1_HF_FORMAT, GPT_SIZES, [("lm",), ("tag",)]),
        ("GPT-2 of transformers", GPT2_HF_FORMAT, GPT_SIZES, [(), ("lm",), ("tag",)]),
        ("GPT-2 of OpenAI", GPT2_TF_FORMAT, GPT_SIZES, [("lm",)]),
        ("GPT-1 of OpenAI", GPT1_NPY_FORMAT, GPT_SIZES, [("lm",)]),
    )
    for parts in every
    for tied in (True, *([False] if book.untied.keys() & {*parts} else []))
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_every_table_accounts_for_each_number_once_and_goes_both_ways(name: str):
    """Its dims are those of the parameters; every tensor's every number has a place of its own among ours."""
    table, sizes = TABLES[name]
    for mapping in param_mappings(table, sizes):
        assert mapping.stacked == dims_of(mapping.ours), mapping.ours
    count = 0
    theirs: dict[str, np.ndarray] = {}
    for tensor, shape in shapes_of(table, sizes).items():
        size = int(np.prod(shape))
        theirs[tensor] = np.arange(count, count + size, dtype=np.float32).reshape(shape)
        count += size
    ours = to_ours(table, theirs, sizes)
    numbers = np.concatenate([np.ravel(x) for x in jax.tree.leaves(ours)])
    assert np.array_equal(np.sort(numbers), np.arange(count))
    back = to_theirs(table, ours, sizes)
    assert back.keys() == theirs.keys() | dict(table.repeats).keys()
    assert all(np.array_equal(back[tensor], x) for tensor, x in theirs.items())


@pytest.mark.parametrize("name", ["transformers", "gpt-2's own"])
def test_a_gpts_queries_keys_and_values_stand_side_by_side_in_this_order(name):
    """A head's columns together within each third; kernels [in, out], as in the originals."""
    table = GPT2_HF_FORMAT.table(("lm",)) if name == "transformers" else GPT2_TF_FORMAT.table(("lm",))
    theirs = {
        tensor: np.random.default_rng(n).normal(size=shape).astype(np.float32)
        for n, (tensor, shape) in enumerate(shapes_of(table, GPT_SIZES).items())
    }
    ours: Any = to_ours(table, theirs | {a: theirs[b] for a, b in table.repeats}, GPT_SIZES)
    layers = ours["backbone"]["layers"]
    prefix, ends = ("transformer.h.1.", ".weight .bias") if name == "transformers" else ("model/h1/", "/w /b")
    weight, bias = ends.split()
    sep = weight[0]
    attention = np.squeeze(theirs[f"{prefix}attn{sep}c_attn{weight}"])
    for third, part in enumerate(("query", "key", "value")):
        assert layers["attention"][part]["kernel"][1, 5, 1, 2] == attention[5, 12 * third + 1 * 4 + 2]
        value = layers["attention"][part]["bias"][1, 1, 2]
        assert value == theirs[f"{prefix}attn{sep}c_attn{bias}"][12 * third + 1 * 4 + 2]
    out = np.squeeze(theirs[f"{prefix}attn{sep}c_proj{weight}"])
    assert layers["attention"]["out"]["kernel"][1, 1, 2, 5] == out[1 * 4 + 2, 5]
    assert layers["ffn"]["in"]["kernel"][1, 5, 40] == np.squeeze(theirs[f"{prefix}mlp{sep}c_fc{weight}"])[5, 40]

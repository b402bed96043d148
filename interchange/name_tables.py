"""Name tables of published checkpoints: their name ↔ our path and dims, one table a format, used in both directions.

interchange/renaming.py explains how a row reads. This file holds tables alone.
"""

from collections.abc import Sequence

from contexture.interchange.renaming import CheckpointFormat, NameTable, Row

_ONE = {"_": 1}

# BERT as transformers' BertFor… classes name it. Kernels are [out, in], as in torch.nn.Linear. First the rows of a
# layer, without its prefix.
_BERT_HF_LAYER = (
    ("attention.self.query.weight", "attention/query/kernel", "(HK)D -> DHK"),
    ("attention.self.query.bias", "attention/query/bias", "(HK) -> HK"),
    ("attention.self.key.weight", "attention/key/kernel", "(HK)D -> DHK"),
    ("attention.self.key.bias", "attention/key/bias", "(HK) -> HK"),
    ("attention.self.value.weight", "attention/value/kernel", "(HK)D -> DHK"),
    ("attention.self.value.bias", "attention/value/bias", "(HK) -> HK"),
    ("attention.output.dense.weight", "attention/out/kernel", "D(HK) -> HKD"),
    ("attention.output.dense.bias", "attention/out/bias", "D -> D"),
    ("attention.output.LayerNorm.weight", "attention_norm/scale", "D -> D"),
    ("attention.output.LayerNorm.bias", "attention_norm/bias", "D -> D"),
    ("intermediate.dense.weight", "ffn/in/kernel", "FD -> DF"),
    ("intermediate.dense.bias", "ffn/in/bias", "F -> F"),
    ("output.dense.weight", "ffn/out/kernel", "DF -> FD"),
    ("output.dense.bias", "ffn/out/bias", "D -> D"),
    ("output.LayerNorm.weight", "ffn_norm/scale", "D -> D"),
    ("output.LayerNorm.bias", "ffn_norm/bias", "D -> D"),
)


def _hf_head(kind: str, theirs: str = "classifier") -> tuple[Row, ...]:
    if kind == "choice":  # one logit for each alternative, whatever the number of classes
        return (
            (f"{theirs}.weight", "heads_choice/kernel", "_D -> D_", _ONE),
            (f"{theirs}.bias", "heads_choice/bias", "_ -> _", _ONE),
        )
    return (
        (f"{theirs}.weight", f"heads_{kind}/kernel", "CD -> DC"),
        (f"{theirs}.bias", f"heads_{kind}/bias", "C -> C"),
    )


_TOKEN_TABLE = "bert.embeddings.word_embeddings.weight"
BERT_HF_FORMAT = CheckpointFormat(
    "transformers",
    parts={
        "backbone": (
            (_TOKEN_TABLE, "backbone/embeddings/tokens", "VD -> VD"),
            ("bert.embeddings.position_embeddings.weight", "backbone/embeddings/positions", "LD -> LD"),
            ("bert.embeddings.token_type_embeddings.weight", "backbone/embeddings/segments", "TD -> TD"),
            ("bert.embeddings.LayerNorm.weight", "backbone/embeddings/norm/scale", "D -> D"),
            ("bert.embeddings.LayerNorm.bias", "backbone/embeddings/norm/bias", "D -> D"),
            *(
                (f"bert.encoder.layer.{{layer}}.{theirs}", f"backbone/layers/{ours}", dims)
                for theirs, ours, dims in _BERT_HF_LAYER
            ),
        ),
        "pooler": (
            ("bert.pooler.dense.weight", "backbone/pooler/kernel", "_D -> D_"),
            ("bert.pooler.dense.bias", "backbone/pooler/bias", "D -> D"),
        ),
        "mlm": (
            ("cls.predictions.transform.dense.weight", "heads_mlm/transform/kernel", "_D -> D_"),
            ("cls.predictions.transform.dense.bias", "heads_mlm/transform/bias", "D -> D"),
            ("cls.predictions.transform.LayerNorm.weight", "heads_mlm/norm/scale", "D -> D"),
            ("cls.predictions.transform.LayerNorm.bias", "heads_mlm/norm/bias", "D -> D"),
            ("cls.predictions.bias", "heads_mlm/bias", "V -> V"),
        ),
        "nsp": (
            ("cls.seq_relationship.weight", "heads_nsp/kernel", "CD -> DC"),
            ("cls.seq_relationship.bias", "heads_nsp/bias", "C -> C"),
        ),
        "span": _hf_head("span", "qa_outputs"),
        **{kind: _hf_head(kind) for kind in ("classify", "regress", "tag", "choice")},
    },
    repeats={
        "mlm": (
            ("cls.predictions.decoder.weight", _TOKEN_TABLE),
            ("cls.predictions.decoder.bias", "cls.predictions.bias"),
        )
    },
    # transformers adds the decoder's own bias; cls.predictions.bias is a second name of it.
    untied={
        "mlm": (
            ("cls.predictions.decoder.weight", "heads_mlm/table", "VD -> VD"),
            ("cls.predictions.decoder.bias", "heads_mlm/bias", "V -> V"),
        )
    },
    untied_repeats={"mlm": (("cls.predictions.bias", "cls.predictions.decoder.bias"),)},
    ignored=r"bert\.embeddings\.(position_ids|token_type_ids)",
)
BERT_HF = BERT_HF_FORMAT.table(("pooler", "mlm", "nsp"))

# BERT as google-research/bert's checkpoints name it. Kernels are [in, out], except in the heads that the code
# multiplies with transpose_b=True.
_BERT_TF_LAYER = (
    ("attention/self/query/kernel", "attention/query/kernel", "D(HK) -> DHK"),
    ("attention/self/query/bias", "attention/query/bias", "(HK) -> HK"),
    ("attention/self/key/kernel", "attention/key/kernel", "D(HK) -> DHK"),
    ("attention/self/key/bias", "attention/key/bias", "(HK) -> HK"),
    ("attention/self/value/kernel", "attention/value/kernel", "D(HK) -> DHK"),
    ("attention/self/value/bias", "attention/value/bias", "(HK) -> HK"),
    ("attention/output/dense/kernel", "attention/out/kernel", "(HK)D -> HKD"),
    ("attention/output/dense/bias", "attention/out/bias", "D -> D"),
    ("attention/output/LayerNorm/gamma", "attention_norm/scale", "D -> D"),
    ("attention/output/LayerNorm/beta", "attention_norm/bias", "D -> D"),
    ("intermediate/dense/kernel", "ffn/in/kernel", "DF -> DF"),
    ("intermediate/dense/bias", "ffn/in/bias", "F -> F"),
    ("output/dense/kernel", "ffn/out/kernel", "FD -> FD"),
    ("output/dense/bias", "ffn/out/bias", "D -> D"),
    ("output/LayerNorm/gamma", "ffn_norm/scale", "D -> D"),
    ("output/LayerNorm/beta", "ffn_norm/bias", "D -> D"),
)
BERT_TF_FORMAT = CheckpointFormat(
    "bert-tf",
    parts={
        "backbone": (
            ("bert/embeddings/word_embeddings", "backbone/embeddings/tokens", "VD -> VD"),
            ("bert/embeddings/position_embeddings", "backbone/embeddings/positions", "LD -> LD"),
            ("bert/embeddings/token_type_embeddings", "backbone/embeddings/segments", "TD -> TD"),
            ("bert/embeddings/LayerNorm/gamma", "backbone/embeddings/norm/scale", "D -> D"),
            ("bert/embeddings/LayerNorm/beta", "backbone/embeddings/norm/bias", "D -> D"),
            *(
                (f"bert/encoder/layer_{{layer}}/{theirs}", f"backbone/layers/{ours}", dims)
                for theirs, ours, dims in _BERT_TF_LAYER
            ),
        ),
        "pooler": (
            ("bert/pooler/dense/kernel", "backbone/pooler/kernel", "D_ -> D_"),
            ("bert/pooler/dense/bias", "backbone/pooler/bias", "D -> D"),
        ),
        "mlm": (
            ("cls/predictions/transform/dense/kernel", "heads_mlm/transform/kernel", "D_ -> D_"),
            ("cls/predictions/transform/dense/bias", "heads_mlm/transform/bias", "D -> D"),
            ("cls/predictions/transform/LayerNorm/gamma", "heads_mlm/norm/scale", "D -> D"),
            ("cls/predictions/transform/LayerNorm/beta", "heads_mlm/norm/bias", "D -> D"),
            ("cls/predictions/output_bias", "heads_mlm/bias", "V -> V"),
        ),
        "nsp": (
            ("cls/seq_relationship/output_weights", "heads_nsp/kernel", "CD -> DC"),
            ("cls/seq_relationship/output_bias", "heads_nsp/bias", "C -> C"),
        ),
        "classify": (
            ("output_weights", "heads_classify/kernel", "CD -> DC"),
            ("output_bias", "heads_classify/bias", "C -> C"),
        ),
        "span": (
            ("cls/squad/output_weights", "heads_span/kernel", "CD -> DC"),
            ("cls/squad/output_bias", "heads_span/bias", "C -> C"),
        ),
    },
    repeats={},
    untied={},
    ignored=r".*/adam_[mv]|global_step|beta[12]_power|.*/Adam(_1)?",
)

# GPT as transformers' GPT2LMHeadModel and OpenAIGPTLMHeadModel name it. Kernels are [in, out], as in the originals:
# they are of its class Conv1D. c_attn joins queries, keys and values.
_GPT_HF_LAYER = (
    *(
        row
        for ours, part in (("query", "q"), ("key", "k"), ("value", "v"))
        for row in (
            ("attn.c_attn.weight", f"attention/{ours}/kernel", f"D({part}HK) -> DHK"),
            ("attn.c_attn.bias", f"attention/{ours}/bias", f"({part}HK) -> HK"),
        )
    ),
    ("attn.c_proj.weight", "attention/out/kernel", "(HK)D -> HKD"),
    ("attn.c_proj.bias", "attention/out/bias", "D -> D"),
    ("ln_1.weight", "attention_norm/scale", "D -> D"),
    ("ln_1.bias", "attention_norm/bias", "D -> D"),
    ("mlp.c_fc.weight", "ffn/in/kernel", "DF -> DF"),
    ("mlp.c_fc.bias", "ffn/in/bias", "F -> F"),
    ("mlp.c_proj.weight", "ffn/out/kernel", "FD -> FD"),
    ("mlp.c_proj.bias", "ffn/out/bias", "D -> D"),
    ("ln_2.weight", "ffn_norm/scale", "D -> D"),
    ("ln_2.bias", "ffn_norm/bias", "D -> D"),
)


def _gpt_hf(tokens: str, positions: str, final: tuple[Row, ...] = ()) -> CheckpointFormat:
    table = f"transformer.{tokens}.weight"
    return CheckpointFormat(
        "transformers",
        parts={
            "backbone": (
                (table, "backbone/embeddings/tokens", "VD -> VD"),
                (f"transformer.{positions}.weight", "backbone/embeddings/positions", "LD -> LD"),
                *(
                    (f"transformer.h.{{layer}}.{theirs}", f"backbone/layers/{ours}", dims)
                    for theirs, ours, dims in _GPT_HF_LAYER
                ),
                *final,
            ),
            "lm": (),
            "tag": _hf_head("tag"),
        },
        repeats={"lm": (("lm_head.weight", table),)},
        untied={"lm": (("lm_head.weight", "heads_lm/table", "VD -> VD"),)},
        ignored=r"transformer\.(h\.\d+\.attn\.(bias|masked_bias)|position_ids)",
    )


GPT1_HF_FORMAT = _gpt_hf("tokens_embed", "positions_embed")
GPT2_HF_FORMAT = _gpt_hf(
    "wte",
    "wpe",
    (
        ("transformer.ln_f.weight", "backbone/norm/scale", "D -> D"),
        ("transformer.ln_f.bias", "backbone/norm/bias", "D -> D"),
    ),
)
GPT1_HF, GPT2_HF = GPT1_HF_FORMAT.table(("lm",)), GPT2_HF_FORMAT.table(("lm",))

# GPT as openai/gpt-2 and finetune-transformer-lm name it. Kernels are [1, in, out]: the code uses convolutions over one
# position.
_GPT_TF_LAYER = (
    *(
        ("attn/c_attn/w", f"attention/{ours}/kernel", f"XD({part}HK) -> DHK")
        for ours, part in (("query", "q"), ("key", "k"), ("value", "v"))
    ),
    *(
        ("attn/c_attn/b", f"attention/{ours}/bias", f"({part}HK) -> HK")
        for ours, part in (("query", "q"), ("key", "k"), ("value", "v"))
    ),
    ("attn/c_proj/w", "attention/out/kernel", "X(HK)D -> HKD"),
    ("attn/c_proj/b", "attention/out/bias", "D -> D"),
    ("ln_1/g", "attention_norm/scale", "D -> D"),
    ("ln_1/b", "attention_norm/bias", "D -> D"),
    ("mlp/c_fc/w", "ffn/in/kernel", "XDF -> DF"),
    ("mlp/c_fc/b", "ffn/in/bias", "F -> F"),
    ("mlp/c_proj/w", "ffn/out/kernel", "XFD -> FD"),
    ("mlp/c_proj/b", "ffn/out/bias", "D -> D"),
    ("ln_2/g", "ffn_norm/scale", "D -> D"),
    ("ln_2/b", "ffn_norm/bias", "D -> D"),
)


def _gpt_tf(name: str, tokens: str, positions: str, final: tuple[Row, ...] = ()) -> CheckpointFormat:
    layers = ((f"model/h{{layer}}/{theirs}", f"backbone/layers/{ours}", dims) for theirs, ours, dims in _GPT_TF_LAYER)
    tables: tuple[Row, ...] = (
        (positions, "backbone/embeddings/positions", "LD -> LD"),
        (tokens, "backbone/embeddings/tokens", "VD -> VD"),
    )
    return CheckpointFormat(
        name, {"backbone": (*tables, *layers, *final), "lm": ()}, {}, {}, {}, r"global_step|.*/Adam(_1)?"
    )


GPT2_TF_FORMAT = _gpt_tf(
    "gpt2-tf",
    "model/wte",
    "model/wpe",
    (("model/ln_f/g", "backbone/norm/scale", "D -> D"), ("model/ln_f/b", "backbone/norm/bias", "D -> D")),
)
# The published .npy files have no names: their arrays follow each other in the order of these rows, layer by layer.
GPT1_NPY_FORMAT = _gpt_tf("gpt1-npy", "model/we of tokens", "model/we of positions")


# ELMo's biLM as bilm-tf dumps it to hdf5. Kernels are [in, out], gates in the order i, j, f, o. It has no softmax.
_DIRECTIONS = (("RNN_0", "forward"), ("RNN_1", "backward"))


def bilm(filters: Sequence[tuple[int, int]], highway: int, projected: bool) -> NameTable:
    """Returns the table of a biLM with these filters (width, count); projected: whether their outputs are projected."""
    rows: list[Row] = [("char_embed", "backbone/embeddings/characters", "_E -> _E", {"_": 261})]
    for n, (width, count) in enumerate(filters):
        # A 2-D convolution over [1, width] in the original.
        sizes = {"X": 1, "W": width, "_": count}
        rows.append((f"CNN/W_cnn_{n}", f"backbone/embeddings/filters_{n}/kernel", "XWE_ -> WE_", sizes))
        rows.append((f"CNN/b_cnn_{n}", f"backbone/embeddings/filters_{n}/bias", "_ -> _", sizes))
    sizes = {"_": sum(count for _, count in filters)}
    for n in range(highway):
        for part in ("carry", "transform"):
            ours = f"backbone/embeddings/highway_{n}/{part}"
            rows.append((f"CNN_high_{n}/W_{part}", f"{ours}/kernel", "F_ -> F_", sizes))
            rows.append((f"CNN_high_{n}/b_{part}", f"{ours}/bias", "_ -> _", sizes))
    if projected:
        rows.append(("CNN_proj/W_proj", "backbone/embeddings/projection/kernel", "FJ -> FJ"))
        rows.append(("CNN_proj/b_proj", "backbone/embeddings/projection/bias", "J -> J"))
    for rnn, direction in _DIRECTIONS:
        theirs, ours = f"{rnn}/RNN/MultiRNNCell/Cell{{layer}}/LSTMCell", f"backbone/layers/{direction}"
        # W_0 holds the kernels of the input and of the hidden state one above the other, J rows each.
        rows.append((f"{theirs}/W_0", f"{ours}/kernel", "(_J)(GU) -> _JGU", {"_": 2}))
        rows.append((f"{theirs}/B", f"{ours}/bias", "(GU) -> GU"))
        rows.append((f"{theirs}/W_P_0", f"{ours}/projection", "UJ -> UJ"))
    return NameTable("bilm-tf", tuple(rows))

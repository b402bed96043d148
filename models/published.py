"""Names elsewhere: published name ↔ our path and dims, a table per format, used in both directions.

A row reads `(theirs, ours, "their dims -> our dims")` in the letters of models/shapes.py. `{layer}` in a name stands
for each layer in turn: theirs are one tensor a layer, ours are stacked on a leading N. `(HK)` is one dim of theirs that
holds two of ours, H the slower; in `(qHK)`, `(kHK)`, `(vHK)` their dim holds queries, keys and values one after the
other, of which ours is one. `X` is a dim of theirs of size 1 that ours has not. A row may bring sizes of its own for
its letters. Nothing is computed: values and dtypes pass as they are, bit for bit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray
Sizes = Mapping[str, int]
Row = tuple[str, str, str] | tuple[str, str, str, Sizes]


@dataclass(frozen=True)
class Format:
    """rows: what a file holds, each tensor once. repeats: names that hold another name's tensor again.

    A repeat is written on the way out; on the way in it may be absent, and must else be equal.
    """

    name: str
    rows: tuple[Row, ...]
    repeats: tuple[tuple[str, str], ...] = ()


# BERT as transformers' BertForPreTraining names it: kernels are [out, in]. First each layer's rows, within the layer.
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
BERT_HF = Format(
    "transformers",
    rows=(
        ("bert.embeddings.word_embeddings.weight", "backbone/embeddings/tokens", "VD -> VD"),
        ("bert.embeddings.position_embeddings.weight", "backbone/embeddings/positions", "LD -> LD"),
        ("bert.embeddings.token_type_embeddings.weight", "backbone/embeddings/segments", "TD -> TD"),
        ("bert.embeddings.LayerNorm.weight", "backbone/embeddings/norm/scale", "D -> D"),
        ("bert.embeddings.LayerNorm.bias", "backbone/embeddings/norm/bias", "D -> D"),
        *(
            (f"bert.encoder.layer.{{layer}}.{theirs}", f"backbone/layers/{ours}", dims)
            for theirs, ours, dims in _BERT_HF_LAYER
        ),
        ("bert.pooler.dense.weight", "backbone/pooler/kernel", "_D -> D_"),
        ("bert.pooler.dense.bias", "backbone/pooler/bias", "D -> D"),
        ("cls.predictions.transform.dense.weight", "heads_mlm/transform/kernel", "_D -> D_"),
        ("cls.predictions.transform.dense.bias", "heads_mlm/transform/bias", "D -> D"),
        ("cls.predictions.transform.LayerNorm.weight", "heads_mlm/norm/scale", "D -> D"),
        ("cls.predictions.transform.LayerNorm.bias", "heads_mlm/norm/bias", "D -> D"),
        ("cls.predictions.bias", "heads_mlm/bias", "V -> V"),
        ("cls.seq_relationship.weight", "heads_nsp/kernel", "CD -> DC"),
        ("cls.seq_relationship.bias", "heads_nsp/bias", "C -> C"),
    ),
    repeats=(
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ),
)

# GPT as transformers' GPT2LMHeadModel and OpenAIGPTLMHeadModel name it: kernels are [in, out], as in the originals.
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


def _gpt_hf(tokens: str, positions: str, final: tuple[tuple[str, str, str], ...] = ()) -> Format:
    return Format(
        "transformers",
        rows=(
            (f"transformer.{tokens}.weight", "backbone/embeddings/tokens", "VD -> VD"),
            (f"transformer.{positions}.weight", "backbone/embeddings/positions", "LD -> LD"),
            *(
                (f"transformer.h.{{layer}}.{theirs}", f"backbone/layers/{ours}", dims)
                for theirs, ours, dims in _GPT_HF_LAYER
            ),
            *final,
        ),
        repeats=(("lm_head.weight", f"transformer.{tokens}.weight"),),
    )


GPT1_HF = _gpt_hf("tokens_embed", "positions_embed")
GPT2_HF = _gpt_hf(
    "wte",
    "wpe",
    (
        ("transformer.ln_f.weight", "backbone/norm/scale", "D -> D"),
        ("transformer.ln_f.bias", "backbone/norm/bias", "D -> D"),
    ),
)


# ELMo's biLM as bilm-tf dumps it to hdf5: kernels are [in, out], gates i, j, f, o. The softmax is not in it.
_DIRECTIONS = (("RNN_0", "forward"), ("RNN_1", "backward"))


def bilm(filters: Sequence[tuple[int, int]], highway: int, projected: bool) -> Format:
    """The table of a biLM with these filters (width, count); projected: whether their outputs are projected."""
    rows: list[Row] = [("char_embed", "backbone/embeddings/characters", "_E -> _E", {"_": 261})]
    for n, (width, count) in enumerate(filters):
        own = {"X": 1, "W": width, "_": count}
        rows.append((f"CNN/W_cnn_{n}", f"backbone/embeddings/filters_{n}/kernel", "XWE_ -> WE_", own))
        rows.append((f"CNN/b_cnn_{n}", f"backbone/embeddings/filters_{n}/bias", "_ -> _", own))
    own = {"_": sum(count for _, count in filters)}
    for n in range(highway):
        for part in ("carry", "transform"):
            place = f"backbone/embeddings/highway_{n}/{part}"
            rows.append((f"CNN_high_{n}/W_{part}", f"{place}/kernel", "F_ -> F_", own))
            rows.append((f"CNN_high_{n}/b_{part}", f"{place}/bias", "_ -> _", own))
    if projected:
        rows.append(("CNN_proj/W_proj", "backbone/embeddings/projection/kernel", "FJ -> FJ"))
        rows.append(("CNN_proj/b_proj", "backbone/embeddings/projection/bias", "J -> J"))
    for theirs, ours in _DIRECTIONS:
        cell, place = f"{theirs}/RNN/MultiRNNCell/Cell{{layer}}/LSTMCell", f"backbone/layers/{ours}"
        rows.append((f"{cell}/W_0", f"{place}/kernel", "(_J)(GU) -> _JGU", {"_": 2}))
        rows.append((f"{cell}/B", f"{place}/bias", "(GU) -> GU"))
        rows.append((f"{cell}/W_P_0", f"{place}/projection", "UJ -> UJ"))
    return Format("bilm-tf", tuple(rows))


def shapes_of(table: Format, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Their tensors' shapes by name, repeats left out."""
    found = {}
    for theirs, _, dims, *own in table.rows:
        shape = _shape(dims.split(" -> ")[0], _with(sizes, own))
        found |= dict.fromkeys(_names(theirs, sizes), shape)
    return found


def to_ours(table: Format, tensors: Mapping[str, Array], sizes: Sizes) -> dict[str, Any]:
    """Their tensors by name → our nested parameters: `to_ours(BERT_HF, state, bert.sizes(config))`.

    Raises ValueError where a tensor is missing, is in no row, has another shape, or differs from the one it repeats.
    """
    rows = [
        (_names(theirs, sizes), ours, dims, "{layer}" in theirs, _with(sizes, own))
        for theirs, ours, dims, *own in table.rows
    ]
    _same_names(table, "tensor", {name for names, *_ in rows for name in names}, tensors.keys() - dict(table.repeats))
    for name, source in table.repeats:
        if name in tensors and not np.array_equal(tensors[name], tensors[source]):
            raise ValueError(f"tensor {name} is not equal to {source}, which {table.name} ties it to")
    params: dict[str, Any] = {}
    for names, ours, dims, layered, size in rows:
        their_dims, our_dims = dims.split(" -> ")
        flat, third = their_dims.translate(_PLAIN), _third(their_dims)
        parts = []
        for name in names:
            _same_shape(name, their_dims, tensors[name].shape, _shape(their_dims, size))
            split = third(tensors[name]).reshape([size[letter] for letter in flat])
            parts.append(split.transpose([flat.index(letter) for letter in our_dims]))
        *folders, leaf = ours.split("/")
        place = params
        for folder in folders:
            place = place.setdefault(folder, {})
        place[leaf] = np.stack(parts) if layered else parts[0].copy()
    return params


def to_theirs(table: Format, params: Mapping[str, Any], sizes: Sizes) -> dict[str, Array]:
    """Our nested parameters → their tensors by name, repeats among them.

    Raises ValueError where a parameter is missing, is in no row, or has another shape.
    """
    leaves = _leaves(params)
    _same_names(table, "parameter", {ours for _, ours, *_ in table.rows}, leaves.keys())
    tensors: dict[str, Array] = {}
    for theirs, ours, dims, *own in table.rows:
        size = _with(sizes, own)
        their_dims, our_dims = dims.split(" -> ")
        flat, stacked = their_dims.translate(_PLAIN), "N" * ("{layer}" in theirs) + our_dims
        shape, third = _shape(their_dims, size), _third(their_dims)
        _same_shape(ours, stacked, leaves[ours].shape, _shape(stacked, size))
        layers = leaves[ours] if "{layer}" in theirs else leaves[ours][None]
        for name, part in zip(_names(theirs, sizes), layers, strict=True):
            joined = part.transpose([our_dims.index(letter) for letter in flat])
            place = third(tensors.setdefault(name, np.empty(shape, part.dtype)))
            place[...] = joined.reshape(place.shape)
    return tensors | {name: tensors[source] for name, source in table.repeats}


def _with(sizes: Sizes, own: Sequence[Sizes]) -> dict[str, int]:
    """The sizes of a row: the table's, and its own where it brings such."""
    return {**sizes, **(own[0] if own else {})}


_PARTS = "qkv"
_PLAIN = str.maketrans("", "", "()X" + _PARTS)


def _third(dims: str) -> Callable[[Array], Array]:
    """A view of the third of an array that a row with these dims speaks of; of an array without thirds, all of it."""
    part = next((_PARTS.index(letter) for letter in dims if letter in _PARTS), None)

    def view(array: Array) -> Array:
        width = array.shape[-1] // 3
        return array if part is None else array[..., part * width : (part + 1) * width]

    return view


def _names(theirs: str, sizes: Sizes) -> list[str]:
    return [theirs.format(layer=n) for n in range(sizes["N"])] if "{layer}" in theirs else [theirs]


def _shape(dims: str, sizes: Sizes) -> tuple[int, ...]:
    """`_shape("(HK)D", {"H": 3, "K": 4, "D": 12})` → (12, 12); `(qHK)` is three times (HK)."""
    shape: list[int] = []
    inside = False
    for letter in dims:
        if letter in "()":
            inside = letter == "("
            shape += [1] * inside
        elif inside:
            shape[-1] *= 3 if letter in _PARTS else sizes[letter]
        else:
            shape.append(sizes[letter])
    return tuple(shape)


def _leaves(tree: Mapping[str, Any], path: str = "") -> dict[str, Array]:
    found: dict[str, Array] = {}
    for name, value in tree.items():
        found |= _leaves(value, f"{path}{name}/") if isinstance(value, Mapping) else {path + name: np.asarray(value)}
    return found


def _same_names(table: Format, what: str, wanted: Any, got: Any) -> None:
    if missing := sorted(wanted - got):
        raise ValueError(f"{what} {', '.join(missing)} is missing; the format {table.name} has it")
    if unknown := sorted(got - wanted):
        raise ValueError(f"{what} {', '.join(unknown)} is not accounted for: the format {table.name} has no row for it")


def _same_shape(name: str, dims: str, got: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if got != wanted:
        raise ValueError(f"{name} is {list(got)}, and {dims} = {list(wanted)} is wanted")

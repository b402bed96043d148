"""The dimension letters: one legend for array names, einsums, batch fields, parameter dims and sharding rules.

    B batch            L length (queries)   M memory length (keys)   D hidden width     V vocabulary
    H heads            K width of one head  F feed-forward width     N layers           T segment types
    P predicted slots  C classes            A choices                R distinct words   W characters per word
    E character width  U LSTM cell units    G gates (four)           J LSTM direction   S sampled negatives
    X rows that sequences share             Y tokens of such a row   Z shares of a batch's tokens
    _ a dim without a letter

Arrays are named `x_BLD`; equal letters in one function mean equal sizes.
"""

import re
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Params: TypeAlias = Mapping[str, "Params | jax.Array"]
"""Parameters as nested mappings: {"backbone": {"embeddings": {"tokens": array, …}, …}, "heads_<name>": …}."""

Leaf = TypeVar("Leaf")
Nested: TypeAlias = "dict[str, Nested[Leaf] | Leaf]"
"""Leaves of one type in nested dicts."""
LETTERS = frozenset("BLMDVHKFNTPCARWEUGJSXYZ_")

# Every parameter of every family, and the state carried from step to step: path → dims. Exactly one row matches a path.
# Sharding, weight decay, transfer and the parameter table of a run all go by these dims. "_" is never sharded: a second
# D of a square kernel, or a dim too small to be worth it.
PARAMETER_DIMS: tuple[tuple[str, str], ...] = (
    # Tables and norms of BERT, GPT and static vectors.
    (r"backbone/embeddings/tokens", "VD"),
    (r"backbone/embeddings/positions", "LD"),
    (r"backbone/embeddings/segments", "TD"),
    (r"backbone/(embeddings/)?norm/(scale|bias)", "D"),
    # Transformer layers, stacked on a leading N.
    (r"backbone/layers/attention/(query|key|value)/kernel", "NDHK"),
    (r"backbone/layers/attention/(query|key|value)/bias", "NHK"),
    (r"backbone/layers/attention/out/kernel", "NHKD"),
    (r"backbone/layers/ffn/in/kernel", "NDF"),
    (r"backbone/layers/ffn/in/bias", "NF"),
    (r"backbone/layers/ffn/out/kernel", "NFD"),
    (r"backbone/layers/(attention/out|ffn/out)/bias", "ND"),
    (r"backbone/layers/(attention|ffn)_norm/(scale|bias)", "ND"),
    # ELMo: characters, filters, highways, LSTMs, and the state that these carry from batch to batch.
    (r"backbone/embeddings/characters", "_E"),
    (r"backbone/embeddings/filters_\d+/kernel", "_E_"),
    (r"backbone/embeddings/filters_\d+/bias", "_"),
    (r"backbone/embeddings/highway_\d+/(carry|transform)/kernel", "F_"),
    (r"backbone/embeddings/highway_\d+/(carry|transform)/bias", "_"),
    (r"backbone/embeddings/projection/kernel", "FJ"),
    (r"backbone/embeddings/projection/bias", "J"),
    (r"backbone/layers/(forward|backward)/kernel", "N_JGU"),
    (r"backbone/layers/(forward|backward)/bias", "NGU"),
    (r"backbone/layers/(forward|backward)/projection", "NUJ"),
    (r"carry/backbone/layers/(forward|backward)/cell", "BNU"),
    (r"carry/backbone/layers/(forward|backward)/hidden", "BNJ"),
    # BERT's pooler and the heads of pretraining.
    (r"backbone/pooler/kernel", "D_"),
    (r"backbone/pooler/bias", "D"),
    # BERT's masked LM: a square layer and its norm, then the words' scores (the table is the backbone's if tied).
    (r"heads_mlm/transform/kernel", "D_"),
    (r"heads_mlm/transform/bias", "D"),
    (r"heads_mlm/norm/(scale|bias)", "D"),
    (r"heads_(mlm|boundary)/bias", "V"),
    # SpanBERT's second objective: the tokens beside a span, the places in it (a small table), and a second layer.
    (r"heads_boundary/(left|right|transform)/kernel", "D_"),
    (r"heads_boundary/(left|transform)/bias", "D"),
    (r"heads_boundary/norm(_2)?/(scale|bias)", "D"),
    (r"heads_boundary/places", "__"),
    (r"heads_boundary/place/kernel", "__"),
    # The softmax of an ELMo reads the projected state, so its width is J and not D.
    (r"heads_bilm/kernel", "VJ"),
    (r"heads_bilm/bias", "V"),
    (r"heads_(mlm|boundary|lm)/table", "VD"),
    # Any head of one linear map, of a task too that is not among ours: the width to the classes.
    (r"heads_(?!bilm|choice)\w+/kernel", "DC"),
    (r"heads_span/query/kernel", "DC_"),
    (r"heads_span/query/bias", "C_"),
    (r"heads_(?!mlm|boundary|bilm|choice)\w+/bias", "C"),
    # Task heads on a mix of layers: the mix, the task's biLSTM, the linear map and the CRF over tags.
    (r"heads_\w+/features/(output_)?mix/weights", "_"),
    (r"heads_\w+/features/(output_)?mix/gamma", ""),
    (r"heads_\w+/features/lstm(_\d+)?/(forward|backward)/cell/[ih][ifgo]/kernel", "__"),
    (r"heads_\w+/features/lstm(_\d+)?/(forward|backward)/cell/[ih][ifgo]/bias", "_"),
    (r"heads_\w+/out/kernel", "_C"),
    (r"heads_\w+/out/bias", "C"),
    (r"heads_tag/chain/steps", "C_"),
    (r"heads_tag/chain/(first|last)", "C"),
    # One score for each alternative: no letter, so that no mesh axis is given a dim of size 1.
    (r"heads_choice/kernel", "D_"),
    (r"heads_choice/bias", "_"),
    # Adapters (LoRA): `a` has the input dims of its kernel and the rank, `b` the rank and the output dims.
    (r"lora/layers/(attention/(query|key|value)|ffn/in)/kernel/a", "ND_"),
    (r"lora/layers/attention/(query|key|value)/kernel/b", "N_HK"),
    (r"lora/layers/ffn/in/kernel/b", "N_F"),
    (r"lora/layers/attention/out/kernel/a", "NHK_"),
    (r"lora/layers/ffn/out/kernel/a", "NF_"),
    (r"lora/layers/(attention|ffn)/out/kernel/b", "N_D"),
    # The rank has no letter either: it is small, and whole on every device.
    (r"lora/pooler/kernel/a", "D_"),
    (r"lora/layers/(forward|backward)/kernel/a", "N_J_"),
    (r"lora/layers/(forward|backward)/kernel/b", "N_GU"),
    (r"lora/layers/(forward|backward)/projection/a", "NU_"),
    (r"lora/layers/(forward|backward)/projection/b", "N_J"),
    (r"lora/embeddings/(highway_\d+/(carry|transform)|projection)/kernel/a", "F_"),
    (r"lora/embeddings/projection/kernel/b", "_J"),
    (r"lora/(pooler|embeddings/highway_\d+/(carry|transform))/kernel/b", "__"),
)


def check(x: jax.Array | np.ndarray, dims: str, **sizes: int) -> dict[str, int]:
    """Returns the sizes of x by letter: `check(x, "BLD", D=64)` → {"B": 2, "L": 8, "D": 64}.

    Raises: ValueError if the rank differs, or if a letter has two sizes.
    """
    if x.ndim != len(dims):
        raise ValueError(f"an array of shape {tuple(x.shape)} is not {dims}: {len(dims)} dims are wanted")
    # The caller, else the first axis with a letter, fixes its size; every later axis must agree. "_" is no letter.
    by_letter = dict(sizes)
    for letter, size in zip(dims, x.shape, strict=True):
        if letter != "_" and by_letter.setdefault(letter, size) != size:
            expected = f"{letter}={by_letter[letter]}"
            raise ValueError(f"an array of shape {tuple(x.shape)} is not {dims}: {expected} is wanted")
    return by_letter


def path_of(keys: tuple[object, ...]) -> str:
    """Returns a jax key path as one string: 'backbone/layers/ffn/in/kernel'."""
    # jax has a class of key for each container: dict (key), dataclass (name), sequence (idx).
    return "/".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in keys)


def nested(leaves: Mapping[str, Leaf]) -> "Nested[Leaf]":
    """Returns leaves by path as a tree: {"a/b": x} → {"a": {"b": x}}."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *folders, name = path.split("/")
        folder = tree
        for part in folders:
            folder = folder.setdefault(part, {})
        folder[name] = leaf
    return tree


def by_path(tree: object) -> dict[str, Any]:
    """Returns the leaves of a tree by their paths. They are whatever the tree holds: arrays, shapes or shardings."""
    return {path_of(keys): x for keys, x in jax.tree_util.tree_flatten_with_path(tree)[0]}


def dims_of(path: str) -> str:
    """Returns the dims of a parameter by its path.

    Raises: ValueError unless exactly one row of PARAMETER_DIMS matches.
    """
    rows = [dims for pattern, dims in PARAMETER_DIMS if re.fullmatch(pattern, path)]
    if len(rows) != 1:
        raise ValueError(f"parameter {path} matches {len(rows)} rows of PARAMETER_DIMS, not exactly one")
    return rows[0]


def count(parameters: object) -> int:
    """Returns how many numbers a tree of arrays (or of shapes) holds."""
    return sum(int(jnp.size(x)) if not hasattr(x, "size") else int(x.size) for x in jax.tree.leaves(parameters))

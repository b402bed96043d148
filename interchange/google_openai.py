"""Models as their makers published them: Google's BERT, OpenAI's GPT-2 and GPT-1."""

import math
from pathlib import Path
from typing import Any

from contexture.data.errors import DataError
from contexture.data.tokenizers.byte_pair import ByteBPE, Gpt1BPE
from contexture.data.tokenizers.huggingface.read_folder import of_kind, open_vocabulary
from contexture.data.tokenizers.wordpiece import VOCABULARY, WordPiece
from contexture.interchange.imported_model import (
    TASKS,
    ImportedModel,
    Settings,
    build,
    checked,
    keep_task_head,
    lookup,
    note_unread,
    parts_of,
    require_settings,
    rows_of_head,
    run_of,
    typed_value,
)
from contexture.interchange.name_tables import BERT_TF_FORMAT, GPT1_NPY_FORMAT, GPT2_TF_FORMAT
from contexture.interchange.renaming import Shape, param_mappings
from contexture.interchange.tf_checkpoint import find_prefix, open_bundle
from contexture.interchange.weight_files import open_npy, read_json
from contexture.models import bert, gpt
from contexture.models.config import BertConfig, GptConfig
from contexture.train.settings.run_file import Imported

_GPT1_PARTS = 10
_GPT1_HEADS = 12


def _read_config(folder: Path, name: str, expected: str) -> tuple[Path, Settings]:
    """Returns (the file, its JSON object). expected: the files of such a folder, for the error."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; give the one that holds {expected}")
    tree = read_json(folder / name)
    if not isinstance(tree, dict):
        raise DataError(f"{folder / name}: not a JSON object; give the original's")
    return folder / name, Settings(tree)


def open_bert_tf(
    folder: Path, to: Path, vocabulary: str, lowercase: bool | None, gelu: str, notes: list[str]
) -> ImportedModel:
    """Google's BERT: bert_config.json, vocab.txt and a checkpoint, of pretraining or of a classifier or SQuAD.

    Args:
        gelu: the GELU that `hidden_act: gelu` meant in training: the code changed, the configuration did not say so.

    Raises:
        DataError: when a file is missing, damaged, or of an unknown form.
    """
    file, tree = _read_config(folder, "bert_config.json", "bert_config.json, vocab.txt and bert_model.ckpt.*")

    def of(name: str, kind: type, usual: Any) -> Any:
        return typed_value(file, tree, name, kind, usual)

    require_settings(file, tree, directionality="bidi")
    act = lookup(file, tree, "hidden_act", {"gelu": gelu, "relu": "relu"}, "gelu")
    dropout = of("hidden_dropout_prob", float, 0.1)
    config = build(BertConfig, file, {
        "vocab": of("vocab_size", int, None), "length": of("max_position_embeddings", int, 512),
        "layers": of("num_hidden_layers", int, 12), "hidden": of("hidden_size", int, 768),
        "heads": of("num_attention_heads", int, 12), "ffn": of("intermediate_size", int, 3072),
        "segments": of("type_vocab_size", int, 16), "gelu": act, "dropout": dropout, "head_dropout": 0.1,
        "attention_dropout": of("attention_probs_dropout_prob", float, 0.1),
        "init_std": of("initializer_range", float, 0.02),
    })  # fmt: skip
    note_unread(file, tree, notes)
    tensors = open_bundle(find_prefix(folder, "bert_model.ckpt"))
    names = {name: name for name in tensors.shapes if not BERT_TF_FORMAT.is_ignored(name)}
    parts = parts_of(BERT_TF_FORMAT, names)
    task = next((part for part in parts if part in TASKS), "off")
    names, parts = keep_task_head(BERT_TF_FORMAT, names, parts, task, notes)
    # Next sentence and SQuAD's start and end have two rows.
    classes = rows_of_head(tensors.where, tensors, "output_weights", config.hidden) if task == "classify" else 2
    labels = tuple(map(str, range(classes))) if task == "classify" else ()
    sizes, table = bert.sizes(config, classes), BERT_TF_FORMAT.table(parts)
    kept = checked(BERT_TF_FORMAT, names, tensors, table, sizes)
    if ignored := sum(map(BERT_TF_FORMAT.is_ignored, tensors.shapes)):
        notes.append(f"ignored {ignored} tensors of the optimizer")
    if act == "erf" and tree.get("hidden_act", "gelu") == "gelu":
        notes.append("gelu is taken as the one with erf, the code's until February 2019 (--gelu tanh: the later one)")
    where = Path(vocabulary) if vocabulary else folder / VOCABULARY
    tokenizer = of_kind(open_vocabulary(where, lowercase, notes), WordPiece.kind, where)
    provenance = Imported(format="bert-tf", config=dict(tree), parts=tuple(parts))
    return ImportedModel(run_of(config, tokenizer, task, to, file), tokenizer, table, sizes, kept, provenance, labels)


def open_gpt2_tf(folder: Path, to: Path, vocabulary: str, notes: list[str]) -> ImportedModel:
    """OpenAI's GPT-2: hparams.json, encoder.json, vocab.bpe and a checkpoint.

    Raises:
        DataError: when a file is missing, damaged, or of an unknown form.
    """
    file, tree = _read_config(folder, "hparams.json", "hparams.json, encoder.json, vocab.bpe and model.ckpt.*")
    if unknown := sorted(tree.keys() - {"n_vocab", "n_ctx", "n_embd", "n_head", "n_layer"}):
        raise DataError(f"{file}: {unknown[0][:60]} is an option that is not known here; leave it out")
    width = typed_value(file, tree, "n_embd", int, 768)
    config = build(GptConfig, file, {
        "vocab": typed_value(file, tree, "n_vocab", int, 50257), "length": typed_value(file, tree, "n_ctx", int, 1024),
        "layers": typed_value(file, tree, "n_layer", int, 12), "hidden": width, "ffn": 4 * width,
        "heads": typed_value(file, tree, "n_head", int, 12), "init": "released",
    })  # fmt: skip
    tensors = open_bundle(find_prefix(folder, "model.ckpt"))
    names = {name: name for name in tensors.shapes if not GPT2_TF_FORMAT.is_ignored(name)}
    sizes, table = gpt.sizes(config), GPT2_TF_FORMAT.table(("lm",))
    kept = checked(GPT2_TF_FORMAT, names, tensors, table, sizes)
    where = Path(vocabulary) if vocabulary else folder
    tokenizer = of_kind(open_vocabulary(where, None, notes), ByteBPE.kind, where)
    provenance = Imported(format="gpt2-tf", config=dict(tree), parts=("lm",))
    return ImportedModel(run_of(config, tokenizer, "off", to, file), tokenizer, table, sizes, kept, provenance)


def open_gpt1_npy(folder: Path, to: Path, vocabulary: str, notes: list[str]) -> ImportedModel:
    """OpenAI's GPT-1: params_shapes.json, params_0.npy to params_9.npy, encoder_bpe_40000.json and vocab_40000.bpe.

    Raises:
        DataError: when a file is missing, damaged, or of an unknown form.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; give the one that holds params_shapes.json and params_0.npy …")
    file = folder / "params_shapes.json"
    shapes = read_json(file)
    fits = isinstance(shapes, list) and all(
        isinstance(shape, list) and shape and all(type(n) is int and 0 < n < 1 << 32 for n in shape) for shape in shapes
    )
    # Positions and tokens, then 12 tensors for each layer.
    if not fits or len(shapes) < 14 or (len(shapes) - 2) % 12 or [len(shape) for shape in shapes[:2]] != [2, 2]:
        raise DataError(f"{file}: not the shapes of positions, tokens and 12 tensors a layer; give the original's")
    (length, width), (vocab, _) = shapes[:2]
    config = build(GptConfig, file, {
        "vocab": vocab, "length": length, "layers": (len(shapes) - 2) // 12, "hidden": width, "ffn": 4 * width,
        "heads": _GPT1_HEADS, "norm": "post", "init": "released", "position_std": 0.02,
    })  # fmt: skip
    sizes, table = gpt.sizes(config), GPT1_NPY_FORMAT.table(("lm",))
    # The files hold numbers without names, in the order of the table: positions and tokens, then layer by layer.
    mappings = param_mappings(table, sizes)
    expected: dict[str, Shape] = {m.names[0]: m.their_shape for m in mappings if not m.layered}
    for layer in range(config.layers):
        expected |= {m.names[layer]: m.their_shape for m in mappings if m.layered}
    for (name, shape), got in zip(expected.items(), shapes, strict=True):
        if tuple(got) != shape:
            raise DataError(f"{file}: {name} is {got}, and {list(shape)} is wanted; give the original's")
    tensors = checked(
        GPT1_NPY_FORMAT, {name: name for name in expected}, open_npy(folder, _GPT1_PARTS, expected), table, sizes
    )
    where = Path(vocabulary) if vocabulary else folder
    tokenizer = of_kind(open_vocabulary(where, None, notes), Gpt1BPE.kind, where)
    count = sum(math.prod(shape) for shape in expected.values())
    provenance = Imported(format="gpt1-npy", config={"numbers": count}, parts=("lm",))
    return ImportedModel(run_of(config, tokenizer, "off", to, file), tokenizer, table, sizes, tensors, provenance)

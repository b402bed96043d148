"""Import of models as transformers saves them: config.json, weights and tokenizer."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contexture.data.errors import DataError
from contexture.data.text import hub
from contexture.data.tokenizers import wordpiece
from contexture.data.tokenizers.huggingface.known_options import NAMES, PAIR, SETTINGS, WHOLE
from contexture.data.tokenizers.huggingface.read_folder import open_published
from contexture.interchange.imported_model import (
    TASKS,
    ImportedModel,
    Settings,
    build,
    check_labels,
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
from contexture.interchange.name_tables import BERT_HF_FORMAT, GPT1_HF_FORMAT, GPT2_HF_FORMAT
from contexture.interchange.weight_files import open_folder, read_json
from contexture.models.config import BertConfig, GptConfig
from contexture.models.families import family_of
from contexture.train.settings.run_file import Imported

_GELU = {"gelu": "erf", "gelu_python": "erf", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu_fast": "tanh",
         "relu": "relu"}  # fmt: skip
_AFN = {"gelu": "tanh", "relu": "relu"}
FORMATS = {"bert": BERT_HF_FORMAT, "ernie": BERT_HF_FORMAT, "gpt2": GPT2_HF_FORMAT, "openai-gpt": GPT1_HF_FORMAT}
PREFIXES = {"bert": "bert.", "ernie": "ernie.", "gpt2": "transformer.", "openai-gpt": "transformer."}
TABLE_PREFIXES = {**PREFIXES, "ernie": PREFIXES["bert"]}
_VOCABULARIES = {"bert": "wordpiece", "ernie": "wordpiece", "gpt2": "byte-bpe", "openai-gpt": "gpt1-bpe"}
_DESCRIPTION = ("config.json", WHOLE, SETTINGS, NAMES, wordpiece.VOCABULARY, *PAIR)
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model-*.safetensors")
_HEADS = ("cls.", "classifier.", "qa_outputs.", "lm_head.", "score.", "multiple_choice_head.", "dropout.")


def open_hf(path: Path, to: Path, vocabulary: str, lowercase: bool | None, notes: list[str]) -> ImportedModel:
    """Opens a BERT, an ERNIE 1.0, a GPT-1 or a GPT-2, with or without a head: a folder that transformers saved, or a
    model of the hub by its name. A folder takes precedence over a model of the same name.

    Raises:
        DataError: when a file is missing, damaged, or of an unknown form.
        ConnectionError: when the hub does not answer.
    """
    folder, source = (path, None) if path.is_dir() else _downloaded(path)
    file = folder / "config.json"
    tree, kind = _described(file)
    checkpoint_format = FORMATS[kind]
    require_settings(file, tree, pruned_heads={}, quantization_config=None, is_encoder_decoder=False)
    config = (
        _bert(file, tree)
        if checkpoint_format is BERT_HF_FORMAT
        else (_gpt2 if kind == "gpt2" else _gpt1)(file, tree, notes)
    )
    tensors = open_folder(folder)
    names = _ours(tensors.shapes, kind, config.tied, tensors.where)
    parts, classes = (
        parts_of(checkpoint_format, names),
        rows_of_head(tensors.where, tensors, "classifier.weight", config.hidden),
    )
    task = _task_of(file, tree, parts, classes)
    names, parts = keep_task_head(checkpoint_format, names, parts, task, notes)
    if "lm" in checkpoint_format.parts and task == "off" and "lm" not in parts:
        parts.append("lm")  # which has nothing of its own while it is tied
        config = build(type(config), file, {**vars(config), "tied": True})
    labels = _labels(file, tree, task, classes)
    # Only classifiers have labels; for other models the entry means nothing and needs no note.
    tree.seen.add("id2label")
    note_unread(file, tree, notes)
    sizes = family_of(config).sizes(config, classes if task in TASKS and task != "span" else 2)
    table = checkpoint_format.table(parts, config.tied)
    kept = checked(checkpoint_format, names, tensors, table, sizes)
    if kind == "gpt2" and task == "tag":
        notes.append("this head was trained without GPT-1's special tokens; fine-tune it before evaluate or predict")
    if lowercase is not None and checkpoint_format is not BERT_HF_FORMAT:
        raise DataError(f"--lowercase is for a BERT, and {file} describes a {kind}; leave it out")
    tokenizer, special = open_published(folder, _VOCABULARIES[kind], vocabulary, lowercase, notes)
    # A bare GPT has the same tensors as one with a tied softmax: only its architecture tells them apart.
    alone = _architecture(tree) in ("GPT2Model", "OpenAIGPTModel")
    parts = [part for part in parts if part != "lm" or not alone]
    provenance = Imported(format="hf", source=source, config=dict(tree), parts=tuple(parts), special=special)
    return ImportedModel(run_of(config, tokenizer, task, to, file), tokenizer, table, sizes, kept, provenance, labels)


def _described(file: Path) -> tuple[Settings, str]:
    """Returns (a configuration, the model_type); an unknown model is a DataError."""
    tree = read_json(file)
    if not isinstance(tree, dict):
        raise DataError(f"{file}: not a JSON object; give the model's own")
    tree = Settings(tree)
    guess = "bert" if "type_vocab_size" in tree else ""  # the first ones do not say
    return tree, lookup(file, tree, "model_type", {name: name for name in FORMATS}, guess)


def _downloaded(name: Path) -> tuple[Path, str]:
    """Downloads a model of the hub → (the folder of its files, OWNER/NAME@COMMIT).

    Raises:
        DataError: when no model has this name, or it cannot be read.
    """
    if not hub.is_model_name(str(name)):
        raise DataError(f"{name}: no such folder; give the one that a model was saved in, or a name on the hub")
    folder, source = hub.model_files(str(name), _DESCRIPTION)
    if not (folder / "config.json").is_file():
        raise DataError(f"{name}: holds no config.json; give a model that transformers saved")
    _described(folder / "config.json")  # before weights are downloaded that nothing here can read
    hub.model_files(source, _WEIGHTS)
    if not any((folder / weights).is_file() for weights in _WEIGHTS):
        raise DataError(
            f"{name}: holds no model.safetensors, and no other weights are downloaded; give a revision that has it, as "
            f"{name}@refs/pr/NUMBER, or a folder that you saved it in with save_pretrained"
        )
    return folder, source


def _ours(shapes: Mapping[str, Any], kind: str, tied: bool, where: str) -> dict[str, str]:
    """Returns the table's name of each tensor → its name in the file.

    Names differ in old releases, and in a backbone that was saved alone.
    """
    names: dict[str, str] = {}
    prefix, whole = PREFIXES[kind], TABLE_PREFIXES[kind]
    for name in shapes:
        # Models converted from TensorFlow's checkpoints have gamma and beta.
        new = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
        if not new.startswith(_HEADS):
            new = whole + new.removeprefix(prefix)
        if new in names:
            raise DataError(
                f"{where}: the tensors {name[:100]} and {names[new][:100]} are one parameter; leave one out"
            )
        names[new] = name
    table = {"gpt2": "transformer.wte.weight", "openai-gpt": "transformer.tokens_embed.weight"}.get(kind, "")
    if tied and table and table not in names and "lm_head.weight" in names:  # one tensor, under its other name
        names[table] = names.pop("lm_head.weight")
    own, other = "cls.predictions.decoder.bias", "cls.predictions.bias"
    if not tied and other in names:  # where both are there, the decoder's is the one that is added
        names.setdefault(own, names[other])
        del names[other]
    return names


def _architecture(tree: Mapping[str, Any]) -> str:
    named = tree.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def _task_of(file: Path, tree: Mapping[str, Any], parts: list[str], classes: int) -> str:
    if "span" in parts:
        return "span"
    if not classes:
        return "off"
    suffixes = {"ForSequenceClassification": "classify", "ForTokenClassification": "tag", "ForMultipleChoice": "choice"}
    task = next((kind for suffix, kind in suffixes.items() if _architecture(tree).endswith(suffix)), "")
    if not task:
        given = str(tree.get("architectures"))[:80]
        raise DataError(f"{file}: architectures is {given}, and a classifier wants one of …{', …'.join(suffixes)}")
    problem = lookup(
        file, tree, "problem_type", {"single_label_classification": "classify", "regression": "regress", "": ""}, ""
    )
    if task == "choice" and classes != 1 or problem == "regress" and classes != 1:
        raise DataError(f"{file}: its classifier has {classes} rows, and one number is what {task} reads here")
    return (problem or ("regress" if classes == 1 else "classify")) if task == "classify" else task


def _labels(file: Path, tree: Mapping[str, Any], task: str, classes: int) -> tuple[str, ...]:
    """Returns the names of a task's classes, as many as its head has."""
    if task not in ("classify", "tag"):
        return ()
    given = tree.get("id2label") or {}
    if not isinstance(given, dict) or not given.keys() <= {str(number) for number in range(classes)}:
        raise DataError(f"{file}: id2label is {str(given)[:60]}, and the classifier's {classes} classes count from 0")
    labels = tuple(given.get(str(number), f"LABEL_{number}") for number in range(classes))
    check_labels(f"{file}: id2label", labels)
    return labels


def _bert(file: Path, tree: Mapping[str, Any]) -> BertConfig:
    require_settings(
        file, tree, position_embedding_type="absolute", is_decoder=False, add_cross_attention=False, use_task_id=False
    )

    def of(name: str, kind: type, usual: Any) -> Any:
        return typed_value(file, tree, name, kind, usual)

    dropout = of("hidden_dropout_prob", float, 0.1)
    return build(
        BertConfig,
        file,
        {
            "vocab": of("vocab_size", int, 30522),
            "length": of("max_position_embeddings", int, 512),
            "layers": of("num_hidden_layers", int, 12),
            "hidden": of("hidden_size", int, 768),
            "heads": of("num_attention_heads", int, 12),
            "ffn": of("intermediate_size", int, 3072),
            "segments": of("type_vocab_size", int, 2),
            "gelu": lookup(file, tree, "hidden_act", _GELU, "gelu"),
            "eps": of("layer_norm_eps", float, 1e-12),
            "dropout": dropout,
            "attention_dropout": of("attention_probs_dropout_prob", float, 0.1),
            # As in transformers: null means hidden_dropout_prob.
            "head_dropout": of("classifier_dropout", float, dropout),
            "init_std": of("initializer_range", float, 0.02),
            "tied": of("tie_word_embeddings", bool, True),
        },
    )


def _gpt2(file: Path, tree: Mapping[str, Any], notes: list[str]) -> GptConfig:
    require_settings(
        file, tree, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False
    )
    gelu = lookup(file, tree, "activation_function", _GELU, "gelu_new")
    ffn = typed_value(file, tree, "n_inner", int, 4 * typed_value(file, tree, "n_embd", int, 768))
    return _gpt(file, tree, {"vocab_size": 50257, "n_positions": 1024}, notes, gelu=gelu, ffn=ffn)


def _gpt1(file: Path, tree: Mapping[str, Any], notes: list[str]) -> GptConfig:
    gelu, ffn = lookup(file, tree, "afn", _AFN, "gelu"), 4 * typed_value(file, tree, "n_embd", int, 768)
    usual = {"vocab_size": 40478, "n_positions": 512}
    return _gpt(file, tree, usual, notes, gelu=gelu, ffn=ffn, norm="post", position_std=0.02, init="released")


def _gpt(file: Path, tree: Mapping[str, Any], usual: Mapping[str, int], notes: list[str], **more: Any) -> GptConfig:
    def of(name: str, kind: type, usual: Any) -> Any:
        return typed_value(file, tree, name, kind, usual)

    dropout = of("resid_pdrop", float, 0.1)
    if of("embd_pdrop", float, 0.1) != dropout:
        notes.append(f"embd_pdrop is not resid_pdrop={dropout}, which further training drops out there too")
    return build(
        GptConfig,
        file,
        {
            "vocab": of("vocab_size", int, usual["vocab_size"]),
            "length": of("n_positions", int, usual["n_positions"]),
            "layers": of("n_layer", int, 12),
            "hidden": of("n_embd", int, 768),
            "heads": of("n_head", int, 12),
            "eps": of("layer_norm_epsilon", float, 1e-5),
            "dropout": dropout,
            "attention_dropout": of("attn_pdrop", float, 0.1),
            "head_dropout": dropout,
            "init_std": of("initializer_range", float, 0.02),
            "tied": of("tie_word_embeddings", bool, True),
            **more,
        },
    )

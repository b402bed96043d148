"""Export of runs to folders that transformers loads: config.json, weights and the files of its fast tokenizer."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.huggingface.write_folder import transformers_files
from contexture.interchange.huggingface_import import FORMATS, PREFIXES, TABLE_PREFIXES
from contexture.interchange.renaming import param_mappings, to_theirs
from contexture.models.config import BertConfig, GptConfig
from contexture.models.families import family_of
from contexture.models.shapes import Params, by_path, dims_of, nested
from contexture.train.errors import ConfigError
from contexture.train.families import FAMILIES
from contexture.train.objectives import objective_of
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import RunRecord

logger = logging.getLogger(__name__)

_ACT = {"erf": "gelu", "tanh": "gelu_new", "relu": "relu"}
_NAMES = {"bert": "Bert", "ernie": "Ernie", "gpt2": "GPT2", "openai-gpt": "OpenAIGPT"}
# transformers' classes, and the parts that each holds besides the backbone. The first class whose parts a run has is
# taken, so classes with more parts come first.
_CLASSES: dict[str, tuple[tuple[str, frozenset[str]], ...]] = {
    "bert": (
        ("ForPreTraining", frozenset({"pooler", "mlm", "nsp"})),
        ("ForMaskedLM", frozenset({"mlm"})),
        ("ForNextSentencePrediction", frozenset({"pooler", "nsp"})),
        ("ForSequenceClassification", frozenset({"pooler", "classify"})),
        ("ForSequenceClassification", frozenset({"pooler", "regress"})),
        ("ForTokenClassification", frozenset({"tag"})),
        ("ForMultipleChoice", frozenset({"pooler", "choice"})),
        ("ForQuestionAnswering", frozenset({"span"})),
        ("Model", frozenset({"pooler"})),
        ("Model", frozenset()),
    ),
    "gpt2": (
        ("ForTokenClassification", frozenset({"tag"})),
        ("LMHeadModel", frozenset({"lm"})),
        ("Model", frozenset()),
    ),
    "openai-gpt": (("LMHeadModel", frozenset({"lm"})), ("Model", frozenset())),
}


def hf_files(record: RunRecord, params: Params, tokenizer: Tokenizer) -> tuple[dict[str, bytes], dict[str, np.ndarray]]:
    """Returns (the files of a folder that transformers loads, by name; the tensors of model.safetensors).

    Raises:
        ConfigError: when transformers has no class for the run.
        DataError: when it has no tokenizer for the vocabulary.
    """
    run, imported = record.run, record.imported
    if (other := FAMILIES[run.family].exports) != "hf":
        raise ConfigError(f"transformers has no {run.text.plain_name}; export it as {other}")
    notes: list[str] = []
    files = transformers_files(tokenizer, run.model.length, imported.special if imported else {}, notes)
    for note in notes:
        logger.warning(note)
    if imported and imported.format == "hf":
        # A model that came from transformers keeps its configuration, including settings unknown here. But the exported
        # weights are float32, whatever they were, and early configurations have no model_type.
        kind, vocab = str(imported.config.get("model_type") or "bert"), run.model.vocab
        kept = {name: value for name, value in imported.config.items() if name != "torch_dtype"}
        config = {**kept, "model_type": kind, "dtype": "float32", **_labels_of(record.labels)}
    else:
        vocab = tokenizer.size
        kind, config = _hf_config(run, vocab, tokenizer, record.labels)
    leaves = {path: np.asarray(x) for path, x in by_path(params).items()}
    parts = _parts(record, leaves)
    class_name, held = _class_of(kind, parts)
    leaves = _exported_leaves(leaves, class_name, held, parts, vocab)
    tensors = _tensors(record, kind, class_name, held, leaves, vocab)
    config = {**config, "architectures": [class_name]}
    files["config.json"] = (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()
    return files, tensors


def write_hf_weights(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes model.safetensors."""
    from safetensors.numpy import save_file

    file = folder / "model.safetensors"
    save_file(dict(tensors), file, metadata={"format": "pt"})
    # The library lets nobody but the user read it; it gets the rights of the other files.
    file.chmod((folder / "config.json").stat().st_mode)


def _parts(record: RunRecord, leaves: Mapping[str, np.ndarray]) -> list[str]:
    """Returns the parts of a run besides the backbone: the parts its imported files held, or its training trained."""
    if record.imported and record.imported.parts is not None:
        return list(record.imported.parts)
    pooler = ["pooler"] if "backbone/pooler/bias" in leaves else []
    return [*objective_of(record.run).heads, *pooler]


def _exported_leaves(
    leaves: Mapping[str, np.ndarray], class_name: str, held: frozenset[str], parts: list[str], vocab: int
) -> dict[str, np.ndarray]:
    """Returns the parameters that the class holds, without padded vocabulary rows; warns of other trained parts."""
    left_out = sorted(path for path in leaves if _part(path) not in ("backbone", *held))
    if lost := [path for path in left_out if _part(path) in parts]:
        logger.warning(f"{class_name} has no place for {', '.join(lost)}; not exported")
    return {path: _cut(path, x, vocab) for path, x in leaves.items() if path not in left_out}


def _tensors(
    record: RunRecord,
    kind: str,
    class_name: str,
    held: Iterable[str],
    leaves: dict[str, np.ndarray],
    vocab: int,
) -> dict[str, np.ndarray]:
    """Returns the tensors of model.safetensors by the names that the class gives them."""
    model = record.run.model
    sizes = {**family_of(model).sizes(model, max(len(record.labels), 1)), "V": vocab}
    # Start and end of an answer, or next sentence and not: two outputs without labels.
    if "span" in held or "nsp" in held:
        sizes["C"] = 2
    tied = getattr(model, "tied", True)
    table = FORMATS[kind].table(sorted(held), tied)
    if not getattr(model, "biases", True):
        biases = [mapping for mapping in param_mappings(table, sizes) if mapping.ours.endswith("bias")]
        leaves = leaves | {mapping.ours: np.zeros(mapping.shape, np.float32) for mapping in biases}
        logger.info("wrote zeros for the biases that transformers' classes have and this run lacks")
    try:
        tensors = to_theirs(table, nested(leaves), sizes)
    except ValueError as error:
        raise ConfigError(f"transformers has no class for this run: {error}") from None
    if tied:
        # safetensors refuses one tensor under two names; transformers ties them again when it loads.
        tensors = {name: x for name, x in tensors.items() if name not in dict(table.repeats)}
    return {
        name_in_class(kind, class_name, name) if name.startswith(TABLE_PREFIXES[kind]) else name: x
        for name, x in tensors.items()
    }


def name_in_class(kind: str, class_name: str, name: str) -> str:
    """Returns the name that a class gives to the backbone's tensor `name` of the table.

    The table has the names of a model with a head: a bare backbone has no prefix, and ERNIE has another one.
    """
    prefix = "" if class_name == _NAMES[kind] + "Model" else PREFIXES[kind]
    return prefix + name.removeprefix(TABLE_PREFIXES[kind])


def _part(path: str) -> str:
    if path.startswith("backbone/pooler/"):
        return "pooler"
    return path.split("/")[0].removeprefix("heads_")


def _cut(path: str, x: np.ndarray, vocab: int) -> np.ndarray:
    """Returns a parameter without the rows beyond the vocabulary, to which this project pads its tables."""
    dims = dims_of(path)
    return x[(slice(None),) * dims.index("V") + (slice(vocab),)] if "V" in dims else x


def _class_of(kind: str, parts: list[str]) -> tuple[str, frozenset[str]]:
    """Returns (transformers' class, which of these parts it holds).

    Raises:
        ConfigError: when transformers has none for a task's head.
    """
    known = _CLASSES["bert" if kind == "ernie" else kind]
    suffix, held = next((suffix, held) for suffix, held in known if held <= set(parts))
    pretraining = {"pooler", "mlm", "nsp", "boundary", "lm"}
    if lost := sorted(set(parts) - held - pretraining):
        heads = sorted({part for _, its in known for part in its} - pretraining)
        raise ConfigError(
            f"transformers' {_NAMES[kind]} has no head like this run's {lost[0]}; of tasks' heads "
            f"{', '.join(heads) or 'none'} can be exported"
        )
    return _NAMES[kind] + suffix, held


def _labels_of(labels: tuple[str, ...]) -> dict[str, Any]:
    """Returns the entries of config.json about labels."""
    if not labels:
        return {}
    numbers = {name: n for n, name in enumerate(labels)}
    return {"id2label": {str(n): name for name, n in numbers.items()}, "label2id": numbers}


def _hf_config(run: Run, vocab: int, tokenizer: Tokenizer, labels: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """Returns (model_type, config.json) of a run that was trained here."""
    task: dict[str, Any] = {}
    if labels:
        task = _labels_of(labels)
        task |= {"problem_type": "single_label_classification"} if run.objective == "classify" else {}
    if run.objective == "regress":
        task = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}
    return _CONFIGS[run.family](run.model, vocab, tokenizer, task)


def _bert_config(c: BertConfig, vocab: int, tokenizer: Tokenizer, task: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "bert", {
        "model_type": "bert", "vocab_size": vocab, "hidden_size": c.hidden, "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads, "intermediate_size": c.ffn, "hidden_act": _ACT[c.gelu],
        "hidden_dropout_prob": c.dropout, "attention_probs_dropout_prob": c.attention_dropout,
        "classifier_dropout": c.head_dropout, "max_position_embeddings": c.length, "type_vocab_size": c.segments,
        "initializer_range": c.init_std, "layer_norm_eps": c.eps, "pad_token_id": tokenizer.pad,
        "tie_word_embeddings": c.tied, "dtype": "float32", **task,
    }  # fmt: skip


def _gpt_config(c: GptConfig, vocab: int, tokenizer: Tokenizer, task: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if c.local_window:
        raise ConfigError(
            f"transformers' GPT-2 has no banded layers, and this run has model.local-window={c.local_window}"
        )
    if c.one_table:
        logger.warning(
            "transformers' GPT keeps token and position embeddings apart: its softmax is over the tokens alone"
        )
    common = {
        "vocab_size": vocab, "n_positions": c.length, "n_embd": c.hidden, "n_layer": c.layers, "n_head": c.heads,
        "resid_pdrop": c.dropout, "embd_pdrop": c.dropout, "attn_pdrop": c.attention_dropout,
        "layer_norm_epsilon": c.eps, "initializer_range": c.init_std, "tie_word_embeddings": c.tied,
        "bos_token_id": tokenizer.end, "eos_token_id": tokenizer.end, "dtype": "float32", **task,
    }  # fmt: skip
    if c.norm == "pre":
        return "gpt2", {"model_type": "gpt2", "n_inner": c.ffn, "activation_function": _ACT[c.gelu], **common}
    if c.ffn != 4 * c.hidden or c.gelu == "erf":
        raise ConfigError(
            f"transformers' GPT-1 has an ffn of 4 · hidden and tanh gelu or relu, and this run model.ffn={c.ffn}, "
            f"model.gelu={c.gelu}"
        )
    afn = "gelu" if c.gelu == "tanh" else "relu"
    return "openai-gpt", {"model_type": "openai-gpt", "afn": afn, **common}


_CONFIGS: dict[str, Callable[..., tuple[str, dict[str, Any]]]] = {"bert": _bert_config, "gpt": _gpt_config}
"""By family: (model, rows of the vocabulary, tokenizer, fields of the task) → (model_type, config.json)."""

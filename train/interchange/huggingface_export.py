"""Runs as folders that transformers loads: config.json, weights and its fast tokenizer's files."""

import json
import logging
from typing import Any

import numpy as np

from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.huggingface import transformers_files
from contexture.models.config import BertConfig, GptConfig
from contexture.models.interchange.renaming import nested, param_mappings, to_theirs
from contexture.models.model import FAMILIES
from contexture.models.shapes import by_path, dims_of
from contexture.train.config import Run
from contexture.train.errors import ConfigError
from contexture.train.interchange.huggingface_import import BOOKS, PREFIXES, TABLE_PREFIXES
from contexture.train.objectives import objective_of
from contexture.train.run_file import RunRecord

logger = logging.getLogger(__name__)

_ACT = {"erf": "gelu", "tanh": "gelu_new", "relu": "relu"}
_NAMES = {"bert": "Bert", "ernie": "Ernie", "gpt2": "GPT2", "openai-gpt": "OpenAIGPT"}
# Its classes, and what each holds beside the backbone; the first of which a run has all is taken.
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


def hf_files(record: RunRecord, params: Any, tokenizer: Tokenizer) -> tuple[dict[str, bytes], dict[str, np.ndarray]]:
    """(the files of a folder that transformers loads, by name; the tensors of model.safetensors).

    Raises: ConfigError for what it has no class for, DataError for a vocabulary that it has no tokenizer for.
    """
    run, imported = record.run, record.imported
    if not isinstance(run.model, BertConfig | GptConfig):
        raise ConfigError("transformers has no ELMo; export it as bilm")
    leaves = {path: np.asarray(x) for path, x in by_path(params).items()}
    notes: list[str] = []
    files = transformers_files(tokenizer, run.model.length, imported.special if imported else {}, notes)
    for note in notes:
        logger.warning(note)
    if imported and imported.format == "hf":
        kind, config, vocab = imported.config.get("model_type", "bert"), imported.config, run.model.vocab
    else:
        vocab = tokenizer.size
        kind, config = _hf_config(run, vocab, tokenizer, record.labels)
    pooler = ["pooler"] if "backbone/pooler/bias" in leaves else []
    known = imported.parts if imported else None
    parts = [*objective_of(run).heads, *pooler] if known is None else list(known)
    name, held = _class_of(kind, parts)
    behind = sorted(path for path in leaves if _part(path) not in ("backbone", *held))
    if lost := [path for path in behind if _part(path) in parts]:
        logger.warning(f"{name} has no place for {', '.join(lost)}; not exported")
    tied, biases = run.model.tied, getattr(run.model, "biases", True)
    sizes = {**FAMILIES[type(run.model)].sizes(run.model, max(len(record.labels), 1)), "V": vocab}
    if "span" in held or "nsp" in held:
        sizes["C"] = 2
    table = BOOKS[kind].table(sorted(held), tied)
    kept = {path: _cut(path, x, vocab) for path, x in leaves.items() if path not in behind}
    if not biases:
        kept |= {p.ours: np.zeros(p.shape, np.float32) for p in param_mappings(table, sizes) if p.ours.endswith("bias")}
        logger.info("wrote zeros for the biases that transformers' classes have and this run lacks")
    try:
        tensors = to_theirs(table, nested(kept), sizes)
    except ValueError as error:
        raise ConfigError(f"transformers has no class for this run: {error}") from None
    if tied:
        tensors = {name: x for name, x in tensors.items() if name not in dict(table.repeats)}
    whole, prefix = TABLE_PREFIXES[kind], "" if name == _NAMES[kind] + "Model" else PREFIXES[kind]
    tensors = {prefix + n.removeprefix(whole) if n.startswith(whole) else n: x for n, x in tensors.items()}
    config = {**config, "architectures": [name]}
    files["config.json"] = (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()
    return files, tensors


def _part(path: str) -> str:
    if path.startswith("backbone/pooler/"):
        return "pooler"
    return path.split("/")[0].removeprefix("heads_")


def _cut(path: str, x: np.ndarray, vocab: int) -> np.ndarray:
    """Without the rows that stand for no token."""
    dims = dims_of(path)
    return x[(slice(None),) * dims.index("V") + (slice(vocab),)] if "V" in dims else x


def _class_of(kind: str, parts: list[str]) -> tuple[str, frozenset[str]]:
    """(transformers' class, which of these parts it holds). Raises: ConfigError where it has none for a task's head."""
    known = _CLASSES["bert" if kind == "ernie" else kind]
    suffix, held = next((suffix, held) for suffix, held in known if held <= set(parts))
    if lost := sorted(set(parts) - held - {"pooler", "mlm", "nsp", "lm"}):
        heads = sorted({part for _, its in known for part in its} - {"pooler", "mlm", "nsp", "lm"})
        raise ConfigError(
            f"transformers' {_NAMES[kind]} has no head like this run's {lost[0]}; of tasks' heads "
            f"{', '.join(heads) or 'none'} can be exported"
        )
    return _NAMES[kind] + suffix, held


def _hf_config(run: Run, vocab: int, tokenizer: Tokenizer, labels: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """(model_type, config.json) of a run that was trained here."""
    c = run.model
    task: dict[str, Any] = {}
    if labels:
        task = {
            "id2label": {str(n): name for n, name in enumerate(labels)},
            "label2id": {name: n for n, name in enumerate(labels)},
        }
        task |= {"problem_type": "single_label_classification"} if run.objective == "classify" else {}
    if run.objective == "regress":
        task = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}
    if isinstance(c, BertConfig):
        return "bert", {
            "model_type": "bert", "vocab_size": vocab, "hidden_size": c.hidden, "num_hidden_layers": c.layers,
            "num_attention_heads": c.heads, "intermediate_size": c.ffn, "hidden_act": _ACT[c.gelu],
            "hidden_dropout_prob": c.dropout, "attention_probs_dropout_prob": c.attention_dropout,
            "classifier_dropout": c.head_dropout, "max_position_embeddings": c.length, "type_vocab_size": c.segments,
            "initializer_range": c.init_std, "layer_norm_eps": c.eps, "pad_token_id": tokenizer.pad,
            "tie_word_embeddings": c.tied, "dtype": "float32", **task,
        }  # fmt: skip
    assert isinstance(c, GptConfig)
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

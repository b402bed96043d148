"""Models as transformers saves them: config.json, weights and tokenizer, read and written."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from data.errors import DataError
from data.published import open_published, transformers_files
from data.tokenizer import Tokenizer
from models.config import BertConfig, GptConfig
from models.model import FAMILIES
from models.published import BERT_HF_BOOK, GPT1_HF_BOOK, GPT2_HF_BOOK
from models.renaming import nested, places, to_theirs
from models.shapes import by_path, dims_of
from train.config import ConfigError, Run
from train.objectives import objective_of
from train.published import Published, Say, build, checked, one_of, parts_of, refuse, run_of, value
from train.tensors import open_folder, read_json

_GELU = {"gelu": "erf", "gelu_python": "erf", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu_fast": "tanh",
         "relu": "relu"}  # fmt: skip
_AFN = {"gelu": "tanh", "relu": "relu"}
_BOOKS = {"bert": BERT_HF_BOOK, "ernie": BERT_HF_BOOK, "gpt2": GPT2_HF_BOOK, "openai-gpt": GPT1_HF_BOOK}
_PREFIXES = {"bert": "bert.", "ernie": "ernie.", "gpt2": "transformer.", "openai-gpt": "transformer."}
_NAMES = {"bert": "Bert", "ernie": "Ernie", "gpt2": "GPT2", "openai-gpt": "OpenAIGPT"}
_VOCABULARIES = {"bert": "wordpiece", "ernie": "wordpiece", "gpt2": "byte-bpe", "openai-gpt": "gpt1-bpe"}
_HEADS = ("cls.", "classifier.", "qa_outputs.", "lm_head.", "score.", "multiple_choice_head.", "dropout.")
# Its classes by what they hold beside the backbone, the fullest first.
_CLASSES: dict[str, tuple[str, ...]] = {
    "ForPreTraining": ("pooler", "mlm", "nsp"),
    "ForMaskedLM": ("mlm",),
    "ForNextSentencePrediction": ("pooler", "nsp"),
    "ForSequenceClassification": ("pooler", "classify"),
    "ForTokenClassification": ("tag",),
    "ForMultipleChoice": ("pooler", "choice"),
    "ForQuestionAnswering": ("span",),
    "LMHeadModel": ("lm",),
    "Model": ("pooler",),
}
_TASKS = ("classify", "regress", "tag", "choice", "span")


def open_hf(folder: Path, to: Path, vocabulary: str, lowercase: bool | None, say: Say) -> Published:
    """A folder that transformers saved, of a BERT, an ERNIE 1.0, a GPT-1 or a GPT-2, with or without a head.

    Raises: DataError for what is missing, damaged, or not known here.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; give the one that a model was saved in")
    file = folder / "config.json"
    tree = read_json(file)
    if not isinstance(tree, dict):
        raise DataError(f"{file}: not a JSON object; give the model's own")
    guess = "bert" if "type_vocab_size" in tree else ""  # the first ones do not say
    kind = one_of(file, tree, "model_type", {name: name for name in _BOOKS}, guess)
    book = _BOOKS[kind]
    config = _bert(file, tree) if book is BERT_HF_BOOK else (_gpt2 if kind == "gpt2" else _gpt1)(file, tree, say)
    tensors = open_folder(folder)
    names = _ours(tensors.shapes, kind, config.tied, tensors.where)
    parts = parts_of(book, names)
    task = _task_of(file, tree, parts, tensors.shapes.get("classifier.weight", ()))
    parts = [part for part in parts if part not in _TASKS or part == task]
    if isinstance(config, GptConfig) and task == "off" and "lm" not in parts:
        parts.append("lm")  # which has nothing of its own while it is tied
        if not config.tied:
            config = build(GptConfig, file, {**vars(config), "tied": True})
    labels = _labels(file, tree, task, tensors.shapes.get("classifier.weight", ()))
    classes = len(labels) if labels else 1 if task == "regress" else 2
    sizes, table = FAMILIES[type(config)].sizes(config, classes), book.table(parts, config.tied)
    kept = checked(book, names, tensors, table, sizes)
    tokenizer = open_published(folder, _VOCABULARIES[kind], vocabulary, lowercase, say)
    told = {"format": "hf", "config": tree, "parts": parts}
    return Published(run_of(config, tokenizer, task, to, file), tokenizer, table, sizes, kept, labels, told)


def _ours(shapes: Mapping[str, Any], kind: str, tied: bool, where: str) -> dict[str, str]:
    """The table's name of each tensor → its name in the file: names of old releases, of a backbone saved alone."""
    names: dict[str, str] = {}
    whole = _PREFIXES["bert"] if kind == "ernie" else _PREFIXES[kind]
    for name in shapes:
        new = re.sub(
            r"LayerNorm\.(gamma|beta)$", lambda m: "LayerNorm." + {"gamma": "weight", "beta": "bias"}[m[1]], name
        )
        if kind == "ernie":
            new = re.sub(r"^ernie\.", "bert.", new)
        if not new.startswith((whole, *_HEADS)):
            new = whole + new
        if new in names:
            raise DataError(
                f"{where}: the tensors {name[:100]} and {names[new][:100]} are one parameter; leave one out"
            )
        names[new] = name
    own, other = "cls.predictions.decoder.bias", "cls.predictions.bias"
    if not tied and other in names:  # where both are there, the decoder's is the one that is added
        names.setdefault(own, names[other])
        del names[other]
    return names


def _task_of(file: Path, tree: Mapping[str, Any], parts: list[str], classifier: tuple[int, ...]) -> str:
    if "span" in parts:
        return "span"
    if not classifier:
        return "off"
    named = tree.get("architectures") or [""]
    suffixes = {"ForSequenceClassification": "classify", "ForTokenClassification": "tag", "ForMultipleChoice": "choice"}
    found = next((kind for suffix, kind in suffixes.items() if str(named[0]).endswith(suffix)), "")
    if not found:
        raise DataError(f"{file}: architectures is {str(named)[:80]}, and a classifier is there: it must say one of "
                        f"…{', …'.join(suffixes)}")  # fmt: skip
    problem = one_of(file, tree, "problem_type", {"single_label_classification": "classify", "regression": "regress",
                                                  "": ""}, "")  # fmt: skip
    return (
        "regress"
        if found == "classify" and (problem or ("regress" if classifier[0] == 1 else "")) == "regress"
        else found
    )


def _labels(file: Path, tree: Mapping[str, Any], task: str, classifier: tuple[int, ...]) -> tuple[str, ...]:
    """The names of a task's classes, as many as its head has."""
    if task not in ("classify", "tag"):
        return ()
    count = classifier[0]
    said = tree.get("id2label") or {}
    if not isinstance(said, dict) or len(said) > count:
        raise DataError(
            f"{file}: id2label is {str(said)[:60]}, and the classifier has {count} classes; give the model's own"
        )
    labels = tuple(str(said.get(str(number), f"LABEL_{number}")) for number in range(count))
    if len(set(labels)) < count:
        raise DataError(f"{file}: id2label names a class twice; give each its own name")
    return labels


def _bert(file: Path, tree: Mapping[str, Any]) -> BertConfig:
    refuse(
        file, tree, position_embedding_type="absolute", is_decoder=False, add_cross_attention=False, use_task_id=False
    )

    def of(name: str, kind: type, usual: Any) -> Any:
        return value(file, tree, name, kind, usual)

    dropout = of("hidden_dropout_prob", float, 0.1)
    return build(BertConfig, file, {
        "vocab": of("vocab_size", int, 30522),
        "length": of("max_position_embeddings", int, 512),
        "layers": of("num_hidden_layers", int, 12),
        "hidden": of("hidden_size", int, 768),
        "heads": of("num_attention_heads", int, 12),
        "ffn": of("intermediate_size", int, 3072),
        "segments": of("type_vocab_size", int, 2),
        "gelu": one_of(file, tree, "hidden_act", _GELU, "gelu"),
        "eps": of("layer_norm_eps", float, 1e-12),
        "dropout": dropout,
        "attention_dropout": of("attention_probs_dropout_prob", float, 0.1),
        "head_dropout": of("classifier_dropout", float, dropout),
        "init_std": of("initializer_range", float, 0.02),
        "tied": of("tie_word_embeddings", bool, True),
    })  # fmt: skip


def _gpt2(file: Path, tree: Mapping[str, Any], say: Say) -> GptConfig:
    refuse(file, tree, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    gelu = one_of(file, tree, "activation_function", _GELU, "gelu_new")
    ffn = value(file, tree, "n_inner", int, 4 * value(file, tree, "n_embd", int, 768))
    return _gpt(file, tree, {"vocab_size": 50257, "n_positions": 1024}, say, gelu=gelu, ffn=ffn)


def _gpt1(file: Path, tree: Mapping[str, Any], say: Say) -> GptConfig:
    gelu, ffn = one_of(file, tree, "afn", _AFN, "gelu"), 4 * value(file, tree, "n_embd", int, 768)
    usual = {"vocab_size": 40478, "n_positions": 512}
    return _gpt(file, tree, usual, say, gelu=gelu, ffn=ffn, norm="post", position_std=0.02, init="released")


def _gpt(file: Path, tree: Mapping[str, Any], usual: Mapping[str, int], say: Say, **more: Any) -> GptConfig:
    def of(name: str, kind: type, usual: Any) -> Any:
        return value(file, tree, name, kind, usual)

    dropout = of("resid_pdrop", float, 0.1)
    if of("embd_pdrop", float, 0.1) != dropout:
        say(f"embd_pdrop is not resid_pdrop={dropout}, which further training drops out there too")
    return build(GptConfig, file, {
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
    })  # fmt: skip


def hf_files(
    run: Run, described: Mapping[str, Any], params: Any, tokenizer: Tokenizer, say: Say
) -> tuple[dict[str, bytes], dict[str, np.ndarray]]:
    """(the files of a folder that transformers loads, by name; the tensors of model.safetensors).

    Raises: ConfigError for what it has no class for, DataError for a vocabulary that it has no tokenizer for.
    """
    leaves = {path: np.asarray(x) for path, x in by_path(params).items()}
    published = described.get("published", {})
    if published.get("format") == "hf":
        kind, config, parts = published["config"].get("model_type", "bert"), published["config"], published["parts"]
        vocab = run.model.vocab
    else:
        vocab = tokenizer.size
        kind, config = _described(run, vocab, tokenizer, tuple(described.get("labels", ())), say)
        parts = [*objective_of(run).heads, *(["pooler"] if "backbone/pooler/bias" in leaves else [])]
    book = _BOOKS[kind]
    name, parts = _class_of(run, kind, parts, config)
    behind = sorted(path for path in leaves if _part(path) not in ("backbone", *parts))
    if behind and not published:
        say(f"{name} has no place for {', '.join(behind)}: left behind")
    tied, biases = getattr(run.model, "tied", True), getattr(run.model, "biases", True)
    sizes = {**FAMILIES[type(run.model)].sizes(run.model, max(len(described.get("labels", ())), 1)), "V": vocab}
    if "span" in parts or "nsp" in parts:
        sizes["C"] = 2
    table = book.table(parts, tied)
    kept = {path: _cut(path, x, vocab) for path, x in leaves.items() if path not in behind}
    if not biases:
        kept |= {p.ours: np.zeros(p.shape, np.float32) for p in places(table, sizes) if p.ours.endswith("bias")}
        say("this run has no biases, and transformers' classes do: they are written as zeros")
    try:
        tensors = to_theirs(table, nested(kept), sizes)
    except ValueError as error:
        raise ConfigError(f"transformers has no class for this run: {error}") from None
    if tied:
        tensors = {name: x for name, x in tensors.items() if name not in dict(table.repeats)}
    prefix = _PREFIXES[kind]
    whole = "bert." if kind == "ernie" else prefix
    cut = "" if name.endswith("Model") and not name.endswith("LMHeadModel") else prefix
    tensors = {cut + n.removeprefix(whole) if n.startswith(whole) else n: x for n, x in tensors.items()}
    files = transformers_files(tokenizer, run.model.length, say)  # pyright: ignore[reportAttributeAccessIssue]
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


def _class_of(run: Run, kind: str, parts: list[str], config: Mapping[str, Any]) -> tuple[str, list[str]]:
    """(transformers' class, the parts that it holds of those there)."""
    there = {"classify" if part == "regress" else part for part in parts}
    named = (config.get("architectures") or [""])[0]
    for suffix, held in _CLASSES.items():
        its = set(held) - ({"pooler"} if kind in ("gpt2", "openai-gpt") else set())
        if (named == _NAMES[kind] + suffix) if named in {_NAMES[kind] + s for s in _CLASSES} else its <= there:
            break
    else:
        suffix, its = "Model", set()
    left = there - its - {"pooler", "lm", "mlm", "nsp"}
    has = {"gpt2": ("lm", "tag"), "openai-gpt": ("lm",)}.get(kind, tuple(there))
    if left or not its <= {*has, "pooler"}:
        kept = sorted(left or its)[0]
        raise ConfigError(
            f"transformers has no class of {_NAMES[kind]} for objective={run.objective} as it is here (the head "
            f"{kept}); a BERT's heads are exported, and a GPT-2's of task.kind=tag"
        )
    return _NAMES[kind] + suffix, [part for part in parts if ("classify" if part == "regress" else part) in its]


def _described(
    run: Run, vocab: int, tokenizer: Tokenizer, labels: tuple[str, ...], say: Say
) -> tuple[str, dict[str, Any]]:
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
        act = {"erf": "gelu", "tanh": "gelu_new", "relu": "relu"}[c.gelu]
        return "bert", {
            "model_type": "bert", "vocab_size": vocab, "hidden_size": c.hidden, "num_hidden_layers": c.layers,
            "num_attention_heads": c.heads, "intermediate_size": c.ffn, "hidden_act": act,
            "hidden_dropout_prob": c.dropout, "attention_probs_dropout_prob": c.attention_dropout,
            "classifier_dropout": c.head_dropout, "max_position_embeddings": c.length, "type_vocab_size": c.segments,
            "initializer_range": c.init_std, "layer_norm_eps": c.eps, "pad_token_id": tokenizer.pad,
            "tie_word_embeddings": c.tied, "dtype": "float32", **task,
        }  # fmt: skip
    if not isinstance(c, GptConfig):
        raise ConfigError("transformers has no ELMo; export it as bilm")
    if c.local_window:
        raise ConfigError(
            f"transformers' GPT-2 has no banded layers, and this run has model.local-window={c.local_window}"
        )
    if c.one_table:
        say("transformers' GPT has tokens and positions apart: its softmax is over the tokens alone")
    common = {
        "vocab_size": vocab, "n_positions": c.length, "n_embd": c.hidden, "n_layer": c.layers, "n_head": c.heads,
        "resid_pdrop": c.dropout, "embd_pdrop": c.dropout, "attn_pdrop": c.attention_dropout,
        "layer_norm_epsilon": c.eps, "initializer_range": c.init_std, "tie_word_embeddings": c.tied,
        "bos_token_id": tokenizer.end, "eos_token_id": tokenizer.end, "dtype": "float32", **task,
    }  # fmt: skip
    if c.norm == "pre":
        act = {"erf": "gelu", "tanh": "gelu_new", "relu": "relu"}[c.gelu]
        return "gpt2", {"model_type": "gpt2", "n_inner": c.ffn, "activation_function": act, **common}
    if c.ffn != 4 * c.hidden or c.gelu == "erf":
        raise ConfigError(
            f"transformers' GPT-1 has an ffn of 4 · hidden and tanh gelu or relu, and this run model.ffn={c.ffn}, "
            f"model.gelu={c.gelu}"
        )
    return "openai-gpt", {"model_type": "openai-gpt", "afn": {"tanh": "gelu", "relu": "relu"}[c.gelu], **common}

"""A published model before it is written as a run: the result of every importer, and typed reading of JSON."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from contexture.data.config import DataConfig, TaskConfig
from contexture.data.errors import DataError
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.wordpiece import WordPiece
from contexture.data.visible import visible
from contexture.interchange.renaming import CheckpointFormat, NameTable, check
from contexture.interchange.weight_files import Tensors
from contexture.models.config import ModelConfig
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import Imported
from contexture.train.settings.sections import OptimConfig

T = TypeVar("T")

TASKS = ("classify", "regress", "tag", "choice", "span")


@dataclass(frozen=True)
class ImportedModel:
    """A run that is not written yet.

    Args:
        run: its settings.
        tokenizer: its tokenizer.
        table: the names of its tensors in the files.
        sizes: the sizes of dims, by letter.
        tensors: the tensors, by the table's names.
        provenance: where the model comes from, as run.json keeps it.
        labels: the labels of its task.
        missing_note: the warning before the list of parameters that the files lack.
    """

    run: Run
    tokenizer: Tokenizer
    table: NameTable
    sizes: Mapping[str, int]
    tensors: Tensors
    provenance: Imported
    labels: tuple[str, ...] = ()
    missing_note: str = "not in these files; initialised randomly"


def with_labels(model: ImportedModel, labels: tuple[str, ...]) -> ImportedModel:
    """Returns the same model with names for its classes.

    Raises:
        DataError: when there are more or fewer names than classes, or a name is invalid.
    """
    classes = len(model.labels)
    if len(labels) != classes:
        has = f"the model has {classes} classes ({', '.join(model.labels[:12])})" if classes else "it has no classes"
        raise DataError(f"--labels gives {len(labels)} names, and {has}; give each class one")
    check_labels("--labels", labels)
    return dataclasses.replace(model, labels=labels)


def check_labels(where: str, labels: Sequence[object]) -> None:
    """Raises: DataError when a label is no text or occurs twice."""
    if not all(isinstance(label, str) and label and is_utf8(label) for label in labels):
        raise DataError(f"{where} holds what is no name; give each class one")
    if len(set(labels)) < len(labels):
        raise DataError(f"{where} names a class twice; give each its own name")


def is_utf8(text: str) -> bool:
    """Returns whether a text can be written: it holds no half of a character."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def run_of(model: ModelConfig, tokenizer: Tokenizer, kind: str, to: Path, where: Path) -> Run:
    """Returns the run of a published transformer at step 0.

    Args:
        model: its configuration.
        tokenizer: its tokenizer.
        kind: the kind of its task, such as `span`; `off` for a language model.
        to: the run's folder.
        where: the model's files, for errors.

    Raises:
        DataError: when the vocabulary is larger than the model's table, or settings do not fit together.
    """
    if tokenizer.size > model.vocab:
        raise DataError(
            f"{where}: the vocabulary has {tokenizer.size:,} tokens, the model {model.vocab:,} rows; give its own"
        )
    length = model.length if kind != "off" else min(model.length, 1024 if model.is_causal else 128)
    data: dict[str, Any] = {"length": length, "max_predictions": min(20, length)}
    if isinstance(tokenizer, WordPiece):
        data["lowercase"] = tokenizer.lowercase
    if model.is_causal:
        data["vocabulary"] = "byte-bpe"
    try:
        return Run(
            model=model,
            data=DataConfig(**data),
            optim=OptimConfig(warmup=0),
            task=TaskConfig(kind=kind),  # pyright: ignore[reportArgumentType]
            dir=str(to),
            steps=1,
        )
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None


def checked(
    checkpoint_format: CheckpointFormat,
    names: Mapping[str, str],
    tensors: Tensors,
    table: NameTable,
    sizes: Mapping[str, int],
) -> Tensors:
    """Returns the tensors of a table under its names.

    Args:
        checkpoint_format: says which names hold no parameter.
        names: the table's name → the file's name.
        tensors: the tensors of the file.
        table: the names that the model has in this format.
        sizes: the sizes of dims, by letter.

    Raises:
        DataError: when a tensor is missing, is in no row, or has another shape.
    """
    kept = tensors.renamed({new: old for new, old in names.items() if not checkpoint_format.is_ignored(new)})
    # Checked first: a damaged configuration may claim a number of layers whose table would not fit into memory.
    if sizes["N"] > len(kept.shapes):
        raise DataError(
            f"{tensors.where}: {len(kept.shapes)} tensors, too few for {sizes['N']:,} layers; give the "
            "configuration and the weights of one model"
        )
    try:
        check(table, kept.shapes, sizes)
    except ValueError as error:
        raise DataError(f"{tensors.where}: {error}") from None
    return kept


def parts_of(checkpoint_format: CheckpointFormat, names: Mapping[str, object]) -> list[str]:
    """Returns the parts of a format, besides the backbone, that have a tensor in a file."""
    return [
        part for part in checkpoint_format.parts if part != "backbone" and checkpoint_format.names(part) & names.keys()
    ]


def keep_task_head(
    checkpoint_format: CheckpointFormat, names: Mapping[str, str], parts: list[str], task: str, notes: list[str]
) -> tuple[dict[str, str], list[str]]:
    """Returns (the names, the parts) of one objective: with a task's head, pretraining heads are left out and noted."""
    kept = [part for part in parts if part in (task, "pooler") or (task == "off" and part not in TASKS)]
    theirs = set().union(*(checkpoint_format.names(part) for part in ("backbone", *kept)))
    others = [part for part in parts if part not in kept and not checkpoint_format.names(part) <= theirs]
    dropped = set().union(*(checkpoint_format.names(part) for part in others)) - theirs
    if dropped:
        notes.append(f"ignoring pretraining heads ({', '.join(others)}): the checkpoint also has a task head")
    return {name: old for name, old in names.items() if name not in dropped}, kept


def rows_of_head(where: str, tensors: Tensors, name: str, hidden: int) -> int:
    """Returns how many classes a head of [classes, hidden] has; 0 without one. Another shape is a DataError."""
    shape = tuple(tensors.shapes.get(name, ()))
    if name in tensors.shapes and (len(shape) != 2 or shape[1] != hidden or shape[0] < 1):
        raise DataError(f"{where}: {name} is {list(shape)}, and CD = [classes, {hidden}] is wanted")
    return shape[0] if shape else 0


def build(config: Callable[..., T], where: Path, fields: Mapping[str, object]) -> T:
    """Returns a model's configuration; values that it refuses are a DataError."""
    try:
        return config(**fields)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{where}: {error}; give the model's own") from None


def typed_value(where: Path, tree: Mapping[str, object], name: str, kind: type[T], usual: T | None = None) -> T:
    """Returns a value of a JSON object; `usual` if it is absent or null. Another type is a DataError."""
    value = tree.get(name)
    value = usual if value is None else value
    if kind is float and type(value) is int and abs(value) < 1 << 53:
        value = float(value)
    if type(value) is not kind or not isinstance(value, kind):  # a bool is an instance of int
        raise DataError(f"{where}: {name} is {str(value)[:60]!r}, not of kind {kind.__name__}; give the model's own")
    return value


def lookup(where: Path, tree: Mapping[str, object], name: str, known: Mapping[str, T], usual: str) -> T:
    """Returns the meaning of a word of a JSON object; an unknown word is a DataError."""
    word = tree.get(name) or usual
    if not isinstance(word, str) or word not in known:
        words = ", ".join(filter(None, known))
        raise DataError(f"{where}: {name} is {str(word)[:60]!r}, not one of {words}; nothing else is known here")
    return known[word]


class Settings(dict[str, Any]):
    """A published configuration that knows which of its settings were read."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        super().__init__(tree)
        self.seen: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.seen.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.seen.add(name)
        return super().get(name, default)


_NO_SETTINGS = {
    *("_name_or_path", "name", "language", "architectures", "model_type", "finetuning_task", "transformers_version"),
    *("torch_dtype", "dtype", "torchscript", "use_bfloat16", "use_cache", "xla_device", "tokenizer_class", "prefix"),
    *("gradient_checkpointing", "output_past", "output_attentions", "output_hidden_states", "return_dict"),
    *("chunk_size_feed_forward", "label2id", "num_labels", "_num_labels", "problem_type", "directionality"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "decoder_start_token_id"),
    *("n_ctx", "n_special", "predict_special_tokens", "reorder_and_upcast_attn", "task_specific_params", "pooler_type"),
    *("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head"),
    *("task_type_vocab_size", "is_encoder_decoder", "cross_attention_hidden_size", "tie_encoder_decoder"),
    *("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "temperature"),
    *("diversity_penalty", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "bad_words_ids"),
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "num_return_sequences", "output_scores"),
    *("forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty"),
    *("suppress_tokens", "begin_suppress_tokens", "return_dict_in_generate", "tf_legacy_loss"),
    *("summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout", "summary_proj_to_labels"),
}
"""Entries of published configurations that do not change the forward pass: origin, special token ids, generation, heads
that are not imported."""


def note_unread(where: Path, tree: Settings, notes: list[str]) -> None:
    """Notes the settings of a configuration that nothing has read and that may change the model."""
    unread = sorted(name for name in tree.keys() - tree.seen - _NO_SETTINGS if tree.get(name) is not None)
    if unread:
        more = f" and {len(unread) - 8} more" if unread[8:] else ""
        names = ", ".join(visible(name[:40]) for name in unread[:8])
        notes.append(f"{where.name} has settings that are not known here and were not read: {names}{more}")


def require_settings(where: Path, tree: Mapping[str, object], **allowed: object) -> None:
    """Raises: DataError when a setting has a value other than the only supported one."""
    for name, only in allowed.items():
        if tree.get(name, only) not in (only, None):
            raise DataError(f"{where}: {name} is {str(tree[name])[:60]!r}, and only {only!r} is known here")

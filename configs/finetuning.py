"""The settings of a fine-tuning: a task's recipe, completed by the pretrained run and by the papers' practice."""

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from contexture.configs import task
from contexture.data.config import DataConfig
from contexture.models.config import HeadConfig, ModelConfig, TransformerConfig
from contexture.train.errors import ConfigError
from contexture.train.families import FAMILIES
from contexture.train.settings.run import Run
from contexture.train.settings.sections import InitConfig, OptimConfig, rate_at_width


def finetune_run(source: Run, folder: str, name: str, *, task_vocabulary: int = 0, random: bool = False) -> Run:
    """Returns the run that fine-tunes `source`, which lies in `folder`, on the task or kind of task `name`.

    Args:
        source: the run to begin from.
        folder: its folder.
        name: a task of the recipes, or a kind of task.
        task_vocabulary: for a GPT: the size of its vocabulary with the tokens that separate a task's texts.
        random: whether the model is initialised randomly, as a baseline.

    Raises:
        ConfigError: when the task is unknown.
    """
    base = task(name)
    begin = _Beginning(
        model=_inherited(source.model),
        data=_data_like(source, base),
        head=source.head if source.task.kind == base.task.kind else base.head,
        init=InitConfig(run=folder),
        task_vocabulary=task_vocabulary,
        random=random,
    )
    run = _PRACTICE[source.family](base, begin)
    return dataclasses.replace(run, optim=dataclasses.replace(run.optim, mix_lr=MIX_LR))


@dataclass(frozen=True, kw_only=True)
class _Beginning:
    """The settings that a fine-tuning takes from the run that it begins from."""

    model: ModelConfig
    data: DataConfig
    head: HeadConfig
    init: InitConfig
    task_vocabulary: int
    random: bool


MIX_LR = 0.05
"""The learning rate of the weights that mix layers. Adam's updates are about as large as its rate, so at the rates of
heads, or of a whole model, the weights hardly leave their start in the steps that a task has."""


def load_source_run(source: Path, folder: Path) -> tuple[Run, Path]:
    """Returns the run that a training in `folder` is initialised from, and its folder.

    If that folder is gone, the training itself takes its place: once it has a checkpoint it resumes without the source.

    Raises:
        ConfigError: when the folder is no run, or the training's own.
    """
    from contexture.train.settings.run_file import read  # imports more than a setting needs

    if os.path.realpath(folder) == os.path.realpath(source):
        raise ConfigError(f"--dir {folder} is the run to begin from; give another --dir")
    try:
        return read(source).run, source
    except ConfigError:
        if source.exists() or not any((folder / "checkpoints").glob("[0-9]*")):
            raise
        return read(folder).run, folder


def task_run(source: Run, place: Path, folder: str, name: str, *, random: bool = False) -> Run:
    """Returns the run that fine-tunes `source`, as `finetune_run` does. place: the folder with its tokenizer."""
    from contexture.data.tokenizers.registry import load_tokenizer

    # The tokens that separate texts are counted by the tokenizer: it may have some of them already.
    vocabulary = 0
    if source.text.task_tokens:
        vocabulary = source.text.with_task_tokens(load_tokenizer(place / "tokenizer")).size
    return finetune_run(source, folder, name, task_vocabulary=vocabulary, random=random)


SIZES = ("layers", "hidden", "heads", "ffn", "biases", "char_width", "filters", "highway", "cells", "projection")
"""Fields that decide the shapes of a model's parameters, except for tables, which may grow."""


def check_same_sizes(run: Run, source: Run) -> None:
    """Raises: ConfigError when a run takes the parameters of another, and its model has other sizes."""
    for name in SIZES:
        mine, others = (getattr(each.model, name, None) for each in (run, source))
        if mine != others and not run.init.random:
            raise ConfigError(
                f"model.{name.replace('_', '-')}={mine} is not that of {run.init.run}, whose parameters the run begins "
                f"with: {others}; leave it out, or give --init.random"
            )


def pretrain_further(source: Run, base: Run, folder: str) -> Run:
    """Returns a recipe with the model of another run, in `folder`, and that run's way of splitting text into words.

    Raises:
        ConfigError: when the run is of another family.
    """
    if source.family != base.family:
        raise ConfigError(
            f"{folder} is a run of the family {source.family}, and this model one of {base.family}; "
            "begin from a run of the same family"
        )
    data = _data_like(source, base)
    data = dataclasses.replace(data, max_predictions=min(data.max_predictions, data.length))
    return dataclasses.replace(base, model=_inherited(source.model), data=data)


def _inherited(model: ModelConfig) -> ModelConfig:
    """Returns the model of another run; its attention kernel is chosen anew, since its devices may have been others."""
    return dataclasses.replace(model, attention="auto") if isinstance(model, TransformerConfig) else model


def _data_like(source: Run, base: Run) -> DataConfig:
    """Returns the recipe's data, read as the vocabulary of `source` expects, no longer than its model allows."""
    return dataclasses.replace(
        base.data,
        lowercase=source.data.lowercase,
        word_splitter=source.data.word_splitter,
        length=min(base.data.length, source.model.length),
    )


def _as_bert(base: Run, begin: _Beginning) -> Run:
    """Returns a fine-tuning as in BERT's paper: as the task's recipe says, at a rate for the model's width."""
    run = dataclasses.replace(base, model=begin.model, data=begin.data, head=begin.head, init=begin.init)
    return _at_width(run)


def _at_width(run: Run) -> Run:
    assert isinstance(run.model, TransformerConfig)
    rate = rate_at_width(run.optim.peak_lr, run.model.hidden)
    return dataclasses.replace(run, optim=dataclasses.replace(run.optim, peak_lr=rate))


def _as_gpt(base: Run, begin: _Beginning) -> Run:
    """Returns a fine-tuning as GPT-1 has it (Radford et al. 2018, section 4.1).

    Its optimizer, 6.25e-5, a warm-up over 0.2 % of the steps, half of the language-modelling loss added; the token
    table grows to hold a task's tokens.
    """
    optim = OptimConfig(
        name="gpt1", schedule="gpt1", peak_lr=6.25e-5, warmup=0, warmup_fraction=0.002, eps=1e-8, weight_decay=0.01
    )
    # A padded table may have room for the new tokens already.
    vocab = max(begin.model.vocab, begin.task_vocabulary)
    run = dataclasses.replace(
        base,
        model=dataclasses.replace(begin.model, vocab=vocab),
        data=begin.data,
        head=begin.head,
        optim=optim,
        task=dataclasses.replace(base.task, lm_weight=0.5),
        init=dataclasses.replace(begin.init, grow=True),
    )
    return _at_width(run)


def _as_elmo(base: Run, begin: _Beginning) -> Run:
    """Returns a fine-tuning that follows common ELMo practice (Peters et al. 2018).

    The biLM is frozen and without dropout, a scalar mix of its layers goes into a biLSTM of the task's own, trained by
    Adam at 1e-3. A head that mixes layers already is kept. A randomly initialised biLM is trained too.
    """
    return dataclasses.replace(
        base,
        model=begin.model if begin.random else dataclasses.replace(begin.model, dropout=0.0),
        data=dataclasses.replace(begin.data, vocabulary="words", word_types=512),
        head=_head_of_words(begin),
        init=begin.init,
        optim=dataclasses.replace(_ADAM_OF_WORDS, frozen=() if begin.random else ("backbone",)),
        epochs=10.0,
    )


_ADAM_OF_WORDS = OptimConfig(
    name="adamw", schedule="linear", peak_lr=1e-3, warmup=0, final_lr=0.1, eps=1e-8, weight_decay=0.0, clip=5.0
)
"""Adam at 1e-3, for heads with a biLSTM of their own."""


def _head_of_words(begin: _Beginning) -> HeadConfig:
    """Returns the existing head if it mixes layers; else a mix and a biLSTM of the task's own."""
    return HeadConfig(mix=FAMILIES[begin.model.family].mix, cells=128) if begin.head.mix == "off" else begin.head


def _as_vectors(base: Run, begin: _Beginning) -> Run:
    """Returns a fine-tuning of static vectors: like an ELMo's, so that both are compared on the same head, but the
    vectors are trained with it."""
    return dataclasses.replace(
        base,
        model=begin.model,
        data=begin.data,
        head=_head_of_words(begin),
        init=begin.init,
        optim=_ADAM_OF_WORDS,
        epochs=10.0,
    )


_PRACTICE: dict[str, Callable[[Run, _Beginning], Run]] = {
    "bert": _as_bert,
    "gpt": _as_gpt,
    "elmo": _as_elmo,
    "vectors": _as_vectors,
}
"""How each family is fine-tuned: (the task's recipe, settings from the pretrained run) → the run."""

"""Checks of a pretraining's text against its settings: before any work, and of text that was tokenised before."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.families.registry import TEXT_FAMILIES
from contexture.data.mixed_paths import mixture_of
from contexture.data.plain_files import check_plain
from contexture.data.pretraining.instance_records import record_files
from contexture.data.pretraining.shards import Shards, prepared_at
from contexture.data.pretraining.text_parts import sources_of
from contexture.data.pretraining.units import units_of
from contexture.data.text.sources import check_beginnings, present, shared
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.registry import load_tokenizer
from contexture.data.tokenizers.word_level import Words
from contexture.data.tokenizers.wordpiece import WordPiece
from contexture.train.errors import ConfigError
from contexture.train.run.folder import flag
from contexture.train.run.vocabulary import check_tokenizer
from contexture.train.settings.run import Run


def of_source(run: Run, path: str) -> Run:
    """Returns the run with the text of a source of a mixture alone."""
    alone = dataclasses.replace(run, data=dataclasses.replace(run.data, path=(path,)))
    # The column is that of tables, which not all sources need be.
    if prepared_at([path]) or not any(source.has_rows for source in present(path)):
        return dataclasses.replace(alone, data=dataclasses.replace(alone.data, text_column=DataConfig.text_column))
    return alone


def check_records(run: Run) -> None:
    """Raises ConfigError where TFRecords are not what the run reads."""
    if run.stream != "sentence_pairs":
        raise ConfigError(
            f"TFRecords of create_pretraining_data.py are for a BERT, not for {run.text.called}; give text"
        )
    for name in ("masking", "masking_copies", "mask_token_fraction", "random_token_fraction", "masked_fraction"):
        # A fraction alone says how many slots a sequence has at most.
        changes = name != "masked_fraction" or ":" in run.data.masked_fraction
        if changes and getattr(run.data, name) != getattr(DataConfig, name):
            raise ConfigError(f"TFRecords are masked already; leave {flag('data.' + name)} out")
    if run.data.phases:
        raise ConfigError("TFRecords have sequences of one length; leave data.phases out, and train on each in turn")
    if run.data.dev and not record_files(run.data.dev, "data.dev"):
        raise ConfigError("data.path names TFRecords, and data.dev text; give both of one kind")


def check_stream(run: Run, shards: Shards) -> None:
    """Raises ConfigError if the text was prepared for another family of models."""
    if shards.stream != run.stream:
        family = next(name for name, each in TEXT_FAMILIES.items() if each.stream == shards.stream)
        raise ConfigError(
            f"{shards.folder} was prepared for the family {family}, and this model is of {run.family}; "
            f"prepare the text again: contexture prepare {run.family}.tiny --input F… --to DIR"
        )


def check_agreement(run: Run, shards: Shards, tokenizer: Tokenizer) -> None:
    """Raises ConfigError if the run asks for another vocabulary, or another preparation, than the text has.

    The options of preparation have no effect on text that is prepared already: one that says otherwise is refused,
    not ignored.
    """
    config = run.data
    if config.tokenizer:
        given = load_tokenizer(config.tokenizer, config.lowercase, config.word_splitter)
        if given.fingerprint != tokenizer.fingerprint:
            raise ConfigError(f"the text was tokenised with another vocabulary than {config.tokenizer}; leave it out")
    # A vocabulary that has no such property agrees with any option.
    lowercase = tokenizer.lowercase if isinstance(tokenizer, WordPiece) else config.lowercase
    splitter = tokenizer.split if isinstance(tokenizer, Words) else config.word_splitter
    # What the shards were prepared with depends on the stream: a BERT and an ELMo read sentences, a GPT documents.
    sentences = ("split_sentences", shards.index["split_sentences"])
    of_stream = {"sentence_pairs": sentences, "windows": ("documents", shards.documents), "lanes": sentences}
    for name, was in (("lowercase", lowercase), ("word_splitter", splitter), of_stream[shards.stream]):
        if getattr(config, name) != was:
            raise ConfigError(f"the text was prepared with {flag('data.' + name)} {was}; give the same")
    units = shards.index.get("units", {})
    if config.masking == "ernie" and not units:
        raise ConfigError(
            f"{shards.folder} has no units, which --data.masking ernie masks; prepare the text with --data.units jieba "
            "or spans, or a --data.gazetteer"
        )
    # As of the other options of preparation: what was asked for is there, or nothing was asked for.
    asked = units_of(config)
    if asked is not None and asked.facts != units:
        raise ConfigError("the text was prepared with other units; give the same data.units and data.gazetteer")
    # Left out, it says nothing; the shards know their own.
    column = shards.index.get("text_column", DataConfig.text_column)
    if config.text_column not in (DataConfig.text_column, column):
        raise ConfigError(f"the text was prepared from the column {column!r}; leave data.text-column out")
    check_tokenizer(run, tokenizer)


def check_text(run: Run, directory: Path) -> None:
    """Raises DataError if a new run, whose folder is not made yet, would find no text, none in UTF-8, or no
    tokenizer; ConfigError for a family that is not pretrained."""
    if run.task.kind != "off" or not run.stream or (directory / "run.json").exists():
        return
    if mixed := mixture_of(run.data.path):
        _check_mixture(run, [each.path for each in mixed], directory)
        return
    if prepared_folder(run) is None:
        if record_files(run.data.path, "data.path"):
            check_records(run)
        else:
            # The first bytes of each file are enough to refuse a picture or another encoding in time.
            for sources in sources_of(run.data):
                check_beginnings(sources)
        if run.data.tokenizer and not Path(run.data.tokenizer).exists():
            check_plain(run.data.tokenizer)  # a bucket is named as one
            raise DataError(f"{run.data.tokenizer}: data.tokenizer names no such file or folder; check the path")


def _check_mixture(run: Run, paths: Sequence[str], directory: Path) -> None:
    """Raises DataError for a source of a mixture that `check_text` refuses, or that holds what another holds too;
    ConfigError for a column that none of them has."""
    tables, texts = False, []
    for path in paths:
        if record_files([path], "data.path"):
            raise DataError(f"{path}: TFRecords, of which no mixture is made; give text, or prepared text")
        if not prepared_at([path]):
            sources = present(path)
            texts += sources
            tables = tables or any(source.has_rows for source in sources)
        check_text(of_source(run, path), directory)
    if twice := shared(texts):
        raise DataError(f"{twice}: two sources of the mixture hold this {twice.kind}; give it to one")
    if run.data.text_column != DataConfig.text_column and not tables:
        raise ConfigError("data.text-column has no meaning for these texts; leave it out")


def prepared_folder(run: Run) -> Path | None:
    """Returns the folder of `contexture prepare` that data.path names, or None."""
    if not run.data.path:
        raise ConfigError("data.path is empty; give the text to train on: --data.path FILE… or a folder")
    return prepared_at(run.data.path)

"""Learns the vocabulary of a run on its text, opens it again, and checks vocabularies against models."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from contexture.data.cancel import CancelToken
from contexture.data.errors import DataError
from contexture.data.mixed_paths import mixture_of
from contexture.data.pretraining.text_parts import sampled
from contexture.data.pretraining.vocabulary_parts import texts_of
from contexture.data.storage import move_aside
from contexture.data.text.sources import Source, expand
from contexture.data.tokenizers import word_counts
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.registry import counted_words, learn_from_counts, load_tokenizer
from contexture.data.tokenizers.unknown_tokens import LostMarks
from contexture.data.tokenizers.word_level import StaticWords, Words
from contexture.train.errors import ConfigError
from contexture.train.settings import run_file
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import RunRecord

logger = logging.getLogger(__name__)
Weighted: TypeAlias = tuple[Sequence[Source], float]
"""The files of a text, and its weight among others."""


def learn(
    kind: str,
    texts: Sequence[Weighted],
    size: int,
    lowercase: bool,
    cancel: CancelToken,
    documents: str,
    split: str,
    marks: LostMarks | None = None,
) -> Tokenizer:
    """Returns a vocabulary of at most `size` tokens, learned on these texts.

    Args:
        kind: the kind of tokenizer, as `Tokenizer.kind`.
        texts: each as `text_parts.sampled` cuts it; of several each counts by its weight, not by its length.
        size: maximum number of tokens.
        lowercase: whether the text is lower-cased first.
        cancel: may raise to stop the work.
        documents: how documents are told apart (`data.documents`).
        split: how words are told apart (`data.word_splitter`).
        marks: counts the accents that a lower-case WordPiece strips.
    """

    def checked(files: Sequence[Source]) -> Iterator[str]:
        # A generator: the text of a Wikipedia is never in memory as a whole.
        for text in texts_of(kind, files, documents):
            # Before each text, so that a signal is answered while a large file is read.
            cancel.check()
            if marks is not None:
                marks.add(text)
            yield text

    # The library learns in native code after it has read all text; a signal is seen before and after that.
    words = counted_words(kind, lowercase, split)
    counts = [(word_counts.count(checked(files), words), weight) for files, weight in texts]
    every = word_counts.weighted(counts) if len(counts) > 1 else counts[0][0]
    tokenizer = learn_from_counts(kind, every, size, lowercase, split)
    cancel.check()
    return tokenizer


def check_tokenizer(run: Run, tokenizer: Tokenizer) -> None:
    """Raises ConfigError if the model has fewer rows than the vocabulary has tokens, or reads another kind."""
    _check_kind(run, tokenizer.kind)
    # Fewer tokens than rows is fine: the rows left over are never read.
    if tokenizer.size > run.model.vocab:
        raise ConfigError(
            f"the vocabulary has {tokenizer.size} tokens, more than model.vocab={run.model.vocab}; "
            f"give --model.vocab {tokenizer.size} or another --data.tokenizer"
        )
    # Words split in another way would mostly be unknown to the vocabulary.
    if isinstance(tokenizer, Words | StaticWords) and tokenizer.split != run.data.word_splitter:
        raise ConfigError(
            f"the vocabulary splits words by {tokenizer.split}, and data.word-splitter is {run.data.word_splitter}; "
            f"give --data.word-splitter {tokenizer.split}, or another vocabulary"
        )


def _check_kind(run: Run, kind: str) -> None:
    # A family says which kinds it can read at all, …
    if why := run.text.why_not(kind):
        raise ConfigError(why)


def check_tokenizer_kind(run: Run, kind: str) -> None:
    """Raises ConfigError for a vocabulary that no new run should start with.

    The model reads another kind, or could never be fine-tuned with it.
    """
    # … and which of these a new run may begin with.
    if why := run.text.why_not_learned(kind):
        raise ConfigError(why)


def read_tokenizer(folder: Path, record: RunRecord) -> Tokenizer:
    """Returns a run's tokenizer. Raises ConfigError if nothing was trained, or with another tokenizer."""
    if not record.tokenizer:
        raise ConfigError(f"{folder} holds no checkpoint yet; train it first")
    tokenizer = load_tokenizer(folder / "tokenizer", record.run.data.lowercase)
    if record.tokenizer != tokenizer.fingerprint:
        raise ConfigError(f"{folder / 'tokenizer'} is not the vocabulary that this run was trained with; put it back")
    return tokenizer


def choose_tokenizer(run: Run, directory: Path, cancel: CancelToken) -> Tokenizer:
    """Returns the vocabulary of a new run: that of the run which it begins from, one that is given, or one that is
    learned on its text and kept in `directory`.

    Raises: ConfigError for a vocabulary that does not fit the run; DataError for one, or text, that cannot be read.
    """
    if run.init.run:
        if run.data.tokenizer:
            raise ConfigError(f"{run.init.run} brings its own vocabulary; leave data.tokenizer out")
        source = run_file.read(Path(run.init.run))
        if source.run.family != run.family:
            raise ConfigError(
                f"{run.init.run} is a run of the family {source.run.family}, and this model one of {run.family}; "
                "begin from a run of the same family"
            )
        # The embeddings that are taken over belong to these ids.
        tokenizer = read_tokenizer(Path(run.init.run), source)
        if run.task.kind != "off":
            # A GPT's task adds start, delimiter and extract tokens behind the vocabulary (Radford et al. 2018).
            tokenizer = run.text.with_task_tokens(tokenizer)
        keep_tokenizer(tokenizer, directory)
        return tokenizer
    if run.data.tokenizer:
        tokenizer = load_tokenizer(run.data.tokenizer, run.data.lowercase, run.data.word_splitter)
        check_tokenizer_kind(run, tokenizer.kind)
        return tokenizer
    # Neither a run nor a vocabulary is given: learn one from the text, of the recipe's kind and size.
    data, mixed = run.data, mixture_of(run.data.path)
    paths = [((each.path,), each.weight) for each in mixed] or [(data.path, 1.0)]
    texts = [(sampled(expand(path, "data.path", data.text_column)), weight) for path, weight in paths]
    check_tokenizer_kind(run, data.vocabulary)
    logger.info(f"learning a vocabulary of at most {run.model.vocab} tokens ({data.vocabulary})")
    tokenizer = learn(
        data.vocabulary, texts, run.model.vocab, data.lowercase, cancel, data.documents, data.word_splitter
    )
    keep_tokenizer(tokenizer, directory)
    return tokenizer


def keep_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Saves the run's vocabulary.

    A different one, which a stopped start has left and nothing was trained with, is moved aside. Raises ConfigError if
    the run was trained with a different one.
    """
    # The same vocabulary may be saved again; another one in its place is a DataError.
    with contextlib.suppress(DataError):
        tokenizer.save(directory / "tokenizer")
        return
    # run.json has a tokenizer's fingerprint, or a checkpoint exists: something was trained with it.
    known = (directory / "run.json").exists() and run_file.read(directory).tokenizer
    if known or any((directory / "checkpoints").glob("[0-9]*")):
        raise ConfigError(
            f"the text has another vocabulary than {directory / 'tokenizer'}, which this run was trained with; "
            "put the text back, or give another --dir"
        )
    aside = move_aside(directory, ["tokenizer"], "earlier")
    logger.warning(f"{directory / 'tokenizer'} was learned on other text; moved it to {aside}")
    tokenizer.save(directory / "tokenizer")

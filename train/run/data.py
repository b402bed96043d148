"""The text or the examples of a run, and its tokenizer: found where an earlier start has left them, else made."""

import contextlib
import logging
from pathlib import Path

from contexture.data.cancel import CancelToken
from contexture.data.config import STREAMS
from contexture.data.errors import DataError
from contexture.data.layouts import with_task_tokens
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.storage import move_aside
from contexture.data.tasks.encode_examples import encode
from contexture.data.tasks.example_store import ExampleStore
from contexture.data.text.sources import expand
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.registry import load_tokenizer
from contexture.data.tokenizers.word_level import Words
from contexture.data.tokenizers.wordpiece import WordPiece
from contexture.train import run_file
from contexture.train.config import Run
from contexture.train.errors import ConfigError
from contexture.train.run.folder import flag
from contexture.train.run.vocabulary import check_tokenizer, check_tokenizer_kind, learn
from contexture.train.run_file import RunRecord

logger = logging.getLogger(__name__)


def open_data(run: Run, directory: Path, cancel: CancelToken) -> tuple[Tokenizer, Shards | ExampleStore]:
    """The run's tokenizer and tokenised text or examples, made now where they are not there yet. `cancel` may raise to
    stop it.

    Raises DataError for text or vocabulary that are not what they should be, ConfigError where they do not fit the run.
    """
    return (_open_shards if run.task.kind == "off" else _open_examples)(run, directory, cancel)


def _open_examples(run: Run, directory: Path, cancel: CancelToken) -> tuple[Tokenizer, ExampleStore]:
    if run.data.path or run.data.dev or run.data.dev_fraction:
        raise ConfigError("data.path is text to pretrain on; give a task's examples as --task.train and --task.dev")
    if not run.task.train:
        raise ConfigError("task.train is empty; give the examples to learn from: --task.train FILE")
    here = directory / "data"
    if here.exists():
        store = ExampleStore.open(here)
        if changed := store.sources_changed(run.task):
            raise ConfigError(f"{directory}: {changed}; put it back, or give another --dir")
        tokenizer = load_tokenizer(directory / "tokenizer", run.data.lowercase)
    else:
        tokenizer = _tokenizer(run, directory, cancel)
        check_tokenizer(run, tokenizer)
        store = encode(run.task, tokenizer, here, cancel)
    if store.index["tokenizer"] != tokenizer.fingerprint:
        raise ConfigError(f"{here} was encoded with another vocabulary than {directory / 'tokenizer'}; put it back")
    return tokenizer, store


def _open_shards(run: Run, directory: Path, cancel: CancelToken) -> tuple[Tokenizer, Shards]:
    prepared = _prepared_folder(run)
    here = directory / "data"
    if prepared is not None:
        if run.data.dev or run.data.dev_fraction:
            raise ConfigError(
                f"{prepared} was prepared with what it holds out; leave data.dev and data.dev-fraction out"
            )
        shards = Shards.open(prepared)
        tokenizer = shards.tokenizer
    elif here.exists():
        shards = Shards.open(here)
        if changed := shards.sources_changed(run.data):
            raise ConfigError(f"{directory}: {changed}; put the text back, or give another --dir")
        tokenizer = load_tokenizer(directory / "tokenizer", run.data.lowercase)
    else:
        sources = expand(run.data.path, "data.path")
        expand(run.data.dev, "data.dev") if run.data.dev else None  # refused before a vocabulary is learned
        tokenizer = _tokenizer(run, directory, cancel)
        check_tokenizer(run, tokenizer)
        logger.info(f"tokenising {len(sources)} source(s) into {here}")
        shards = prepare(run.data, tokenizer, here, lambda done, total: cancel.check(), stream=run.stream)
    if shards.stream != run.stream:
        family = next(name for name, stream in STREAMS.items() if stream == shards.stream)
        raise ConfigError(
            f"{shards.folder} was prepared for the family {family}, and this model is of {run.family}; "
            f"prepare the text again: contexture prepare {run.family}.tiny --input F… --to DIR"
        )
    if not (directory / "tokenizer").exists():
        check_tokenizer_kind(run, tokenizer.kind)
    asked = run.data
    given = load_tokenizer(asked.tokenizer, asked.lowercase, asked.word_splitter) if asked.tokenizer else tokenizer
    if given.fingerprint != tokenizer.fingerprint:
        raise ConfigError(f"the text was tokenised with another vocabulary than {run.data.tokenizer}; leave it out")
    lowercase = tokenizer.lowercase if isinstance(tokenizer, WordPiece) else asked.lowercase
    split = tokenizer.split if isinstance(tokenizer, Words) else asked.word_splitter
    sentences = ("split_sentences", shards.index["split_sentences"])
    of_stream = {"sentence_pairs": sentences, "windows": ("documents", shards.documents), "lanes": sentences}
    for name, was in (("lowercase", lowercase), ("word_splitter", split), of_stream[shards.stream]):
        if getattr(run.data, name) != was:
            raise ConfigError(f"the text was prepared with {flag('data.' + name)} {was}; give the same")
    check_tokenizer(run, tokenizer)
    if prepared is not None or not (directory / "tokenizer").exists():
        _keep_tokenizer(tokenizer, directory)
    return tokenizer, shards


def open_shards(directory: Path, run: Run) -> Shards:
    """The tokenised text that a run was trained on. Raises DataError where it is gone."""
    return Shards.open(_prepared_folder(run) or directory / "data")


def check_text(run: Run, directory: Path) -> None:
    """Raises DataError where a new run, whose folder is not made yet, would find no text."""
    if run.task.kind == "off" and not (directory / "run.json").exists() and _prepared_folder(run) is None:
        expand(run.data.path, "data.path")
        expand(run.data.dev, "data.dev") if run.data.dev else None


def _prepared_folder(run: Run) -> Path | None:
    """The folder of `contexture prepare` that data.path names, or None."""
    if not run.data.path:
        raise ConfigError("data.path is empty; give the text to train on: --data.path FILE… or a folder")
    first = Path(run.data.path[0])
    return first if len(run.data.path) == 1 and Shards.is_at(first) else None


def _tokenizer(run: Run, directory: Path, cancel: CancelToken) -> Tokenizer:
    if run.init.run:
        if run.data.tokenizer:
            raise ConfigError(f"{run.init.run} brings its own vocabulary; leave data.tokenizer out")
        source = run_file.read(Path(run.init.run))
        if source.run.family != run.family:
            raise ConfigError(
                f"{run.init.run} is a run of the family {source.run.family}, and this model one of {run.family}; "
                "begin from a run of the same family"
            )
        tokenizer = read_tokenizer(Path(run.init.run), source)
        if run.task.kind != "off" and run.family == "gpt":
            tokenizer = with_task_tokens(tokenizer)
        _keep_tokenizer(tokenizer, directory)
        return tokenizer
    if run.data.tokenizer:
        tokenizer = load_tokenizer(run.data.tokenizer, run.data.lowercase, run.data.word_splitter)
        check_tokenizer_kind(run, tokenizer.kind)
        return tokenizer
    files, data = expand(run.data.path, "data.path"), run.data
    check_tokenizer_kind(run, data.vocabulary)
    logger.info(f"learning a vocabulary of at most {run.model.vocab} tokens ({data.vocabulary})")
    tokenizer = learn(
        data.vocabulary, files, run.model.vocab, data.lowercase, cancel, data.documents, data.word_splitter
    )
    _keep_tokenizer(tokenizer, directory)
    return tokenizer


def _keep_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Saves the run's vocabulary. One that a stopped start has left, and with which nothing was tokenised, is moved
    aside where it is another."""
    with contextlib.suppress(DataError):
        tokenizer.save(directory / "tokenizer")
        return
    known = (directory / "run.json").exists() and run_file.read(directory).tokenizer
    if known or any((directory / "checkpoints").glob("[0-9]*")):
        raise ConfigError(
            f"the text has another vocabulary than {directory / 'tokenizer'}, which this run was trained with; "
            "put the text back, or give another --dir"
        )
    aside = move_aside(directory, ["tokenizer"], "earlier")
    logger.warning(f"{directory / 'tokenizer'} was learned on other text; moved it to {aside}")
    tokenizer.save(directory / "tokenizer")


def read_tokenizer(folder: Path, record: RunRecord) -> Tokenizer:
    """A run's tokenizer. Raises ConfigError where nothing was trained, or with another tokenizer."""
    if not record.tokenizer:
        raise ConfigError(f"{folder} holds no checkpoint yet; train it first")
    tokenizer = load_tokenizer(folder / "tokenizer", record.run.data.lowercase)
    if record.tokenizer != tokenizer.fingerprint:
        raise ConfigError(f"{folder / 'tokenizer'} is not the vocabulary that this run was trained with; put it back")
    return tokenizer

"""Opens the text or the examples of a run, and its tokenizer, or makes them where no earlier start has."""

import contextlib
import logging
from pathlib import Path

from contexture.data.cancel import CancelToken
from contexture.data.errors import DataError
from contexture.data.families.registry import TEXT_FAMILIES
from contexture.data.plain_files import check_plain
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.storage import move_aside
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tasks.read.entity_schemes import why_no_entities
from contexture.data.tasks.store.example_store import ExampleStore
from contexture.data.text.sources import check_beginnings, expand
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.registry import load_tokenizer
from contexture.data.tokenizers.word_level import Words
from contexture.data.tokenizers.wordpiece import WordPiece
from contexture.train.errors import ConfigError
from contexture.train.run.folder import flag
from contexture.train.run.vocabulary import check_tokenizer, check_tokenizer_kind, learn
from contexture.train.settings import run_file
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import RunRecord

logger = logging.getLogger(__name__)


def open_data(run: Run, directory: Path, cancel: CancelToken) -> tuple[Tokenizer, Shards | ExampleStore]:
    """Returns the run's tokenizer and its tokenised text or examples, making what does not exist yet.

    Args:
        run: the settings; `task.kind` says whether it reads text or examples.
        directory: the run's folder.
        cancel: may raise to stop the work.

    Raises:
        DataError: when text or vocabulary are damaged or missing.
        ConfigError: when they do not fit the run.
    """
    return (_open_shards if run.task.kind == "off" else _open_examples)(run, directory, cancel)


def _open_examples(run: Run, directory: Path, cancel: CancelToken) -> tuple[Tokenizer, ExampleStore]:
    if run.data.path or run.data.dev or run.data.dev_fraction:
        raise ConfigError("data.path is text to pretrain on; give a task's examples as --task.train and --task.dev")
    if not run.task.train:
        raise ConfigError("task.train is empty; give the examples to learn from: --task.train FILE")
    # An earlier start encoded the examples: they count, if the files are still the same.
    folder = directory / "data"
    if folder.exists():
        store = ExampleStore.open(folder)
        if changed := store.sources_changed(run.task):
            raise ConfigError(f"{directory}: {changed}; put it back, or give another --dir")
        if store.context != run.data.context:
            raise ConfigError(
                f"{folder} was encoded with --data.context {store.context}; give the same, or another --dir"
            )
        tokenizer = load_tokenizer(directory / "tokenizer", run.data.lowercase)
    else:
        tokenizer = _tokenizer(run, directory, cancel)
        # Before the work: encoding may take minutes, and ids that the model has no row for would be found at its end.
        check_tokenizer(run, tokenizer)
        store = encode(run.task, tokenizer, folder, cancel, length=run.data.length, context=run.data.context)
    # Ids mean nothing without their vocabulary.
    if store.index["tokenizer"] != tokenizer.fingerprint:
        raise ConfigError(f"{folder} was encoded with another vocabulary than {directory / 'tokenizer'}; put it back")
    # Entity F1 needs tags like B-PER and I-PER; without them accuracy is all there is.
    if store.kind == "tag" and (line := why_no_entities(store.labels)):
        logger.warning(line)
    return tokenizer, store


def _open_shards(run: Run, directory: Path, cancel: CancelToken) -> tuple[Tokenizer, Shards]:
    shards, tokenizer = _resolve_shards(run, directory, cancel)
    # A run that has started keeps its vocabulary, even if its kind is no longer offered to new ones.
    started = (directory / "tokenizer").exists()
    # In this order each message names the first thing that is wrong: family, kind of vocabulary, then its content.
    check_stream(run, shards)
    if not started:
        check_tokenizer_kind(run, tokenizer.kind)
    check_agreement(run, shards, tokenizer)
    # Text that was prepared elsewhere brings its tokenizer. The run keeps a copy, and can predict without that folder.
    if not started or _prepared_folder(run) is not None:
        _keep_tokenizer(tokenizer, directory)
    return tokenizer, shards


def _resolve_shards(run: Run, directory: Path, cancel: CancelToken) -> tuple[Shards, Tokenizer]:
    """Returns the tokenised text and its tokenizer: of `contexture prepare`, of an earlier start, or made now."""
    prepared, own = _prepared_folder(run), directory / "data"
    if prepared is not None:
        # `contexture prepare` has held out already; an option now would have no effect.
        if run.data.dev or run.data.dev_fraction:
            raise ConfigError(
                f"{prepared} was prepared with what it holds out; leave data.dev and data.dev-fraction out"
            )
        shards = Shards.open(prepared)
        return shards, shards.tokenizer
    if own.exists():
        shards = Shards.open(own)
        if changed := shards.sources_changed(run.data):
            raise ConfigError(f"{directory}: {changed}; put the text back, or give another --dir")
        return shards, load_tokenizer(directory / "tokenizer", run.data.lowercase)
    # A new run: learn a vocabulary if none is given, then tokenise into RUN/data.
    sources = expand(run.data.path, "data.path")
    expand(run.data.dev, "data.dev") if run.data.dev else None  # refused before a vocabulary is learned
    tokenizer = _tokenizer(run, directory, cancel)
    check_tokenizer(run, tokenizer)
    logger.info(f"tokenising {len(sources)} source(s) into {own}")
    return prepare(run.data, tokenizer, own, lambda done, total: cancel.check(), stream=run.stream), tokenizer


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
    check_tokenizer(run, tokenizer)


def open_shards(directory: Path, run: Run) -> Shards:
    """Returns the tokenised text that a run was trained on. Raises DataError if it does not exist any more."""
    return Shards.open(_prepared_folder(run) or directory / "data")


def check_text(run: Run, directory: Path) -> None:
    """Raises DataError if a new run, whose folder is not made yet, would find no text, none in UTF-8, or no
    tokenizer; ConfigError for a family that is not pretrained."""
    if (
        run.task.kind == "off"
        and run.stream
        and not (directory / "run.json").exists()
        and _prepared_folder(run) is None
    ):
        # The first bytes of each file are enough to refuse a picture or another encoding in time.
        check_beginnings(expand(run.data.path, "data.path"))
        check_beginnings(expand(run.data.dev, "data.dev") if run.data.dev else [])
        if run.data.tokenizer and not Path(run.data.tokenizer).exists():
            check_plain(run.data.tokenizer)  # a bucket is named as one
            raise DataError(f"{run.data.tokenizer}: data.tokenizer names no such file or folder; check the path")


def _prepared_folder(run: Run) -> Path | None:
    """Returns the folder of `contexture prepare` that data.path names, or None."""
    if not run.data.path:
        raise ConfigError("data.path is empty; give the text to train on: --data.path FILE… or a folder")
    # Told by its index file: any other folder is one of *.txt and *.jsonl.
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
        # The embeddings that are taken over belong to these ids.
        tokenizer = read_tokenizer(Path(run.init.run), source)
        if run.task.kind != "off":
            # A GPT's task adds start, delimiter and extract tokens behind the vocabulary (Radford et al. 2018).
            tokenizer = run.text.with_task_tokens(tokenizer)
        _keep_tokenizer(tokenizer, directory)
        return tokenizer
    if run.data.tokenizer:
        tokenizer = load_tokenizer(run.data.tokenizer, run.data.lowercase, run.data.word_splitter)
        check_tokenizer_kind(run, tokenizer.kind)
        return tokenizer
    # Neither a run nor a vocabulary is given: learn one from the text, of the recipe's kind and size.
    files, data = expand(run.data.path, "data.path"), run.data
    check_tokenizer_kind(run, data.vocabulary)
    logger.info(f"learning a vocabulary of at most {run.model.vocab} tokens ({data.vocabulary})")
    tokenizer = learn(
        data.vocabulary, files, run.model.vocab, data.lowercase, cancel, data.documents, data.word_splitter
    )
    _keep_tokenizer(tokenizer, directory)
    return tokenizer


def _keep_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
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


def read_tokenizer(folder: Path, record: RunRecord) -> Tokenizer:
    """Returns a run's tokenizer. Raises ConfigError if nothing was trained, or with another tokenizer."""
    if not record.tokenizer:
        raise ConfigError(f"{folder} holds no checkpoint yet; train it first")
    tokenizer = load_tokenizer(folder / "tokenizer", record.run.data.lowercase)
    if record.tokenizer != tokenizer.fingerprint:
        raise ConfigError(f"{folder / 'tokenizer'} is not the vocabulary that this run was trained with; put it back")
    return tokenizer

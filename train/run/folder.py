"""A run's folder: taken by one process at a time, described by run.json, with its tokenizer and its data."""

import contextlib
import fcntl
import os
import platform
import re
import secrets
import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

from contexture.data.errors import DataError
from contexture.data.layouts import with_task_tokens
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.storage import is_bucket, move_aside, partial_of, remove_partials
from contexture.data.tasks.encode_examples import encode
from contexture.data.tasks.example_store import Store
from contexture.data.text.sources import expand
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.registry import load_tokenizer
from contexture.data.tokenizers.word_level import Words
from contexture.data.tokenizers.wordpiece import WordPiece
from contexture.models.config import ElmoConfig
from contexture.train import config as configs
from contexture.train.config import CheckpointError, ConfigError, Run
from contexture.train.run.vocabulary import fits, fits_new, learn

Say = Callable[[str], None]


def take(directory: Path) -> IO[str]:
    """Make the folder and hold it, so that no second run writes into it. Keep what is returned for as long as it runs.

    Raises ConfigError where another process holds it, CheckpointError where it cannot be written.
    """
    if is_bucket(directory):
        raise ConfigError(f"dir={directory}: buckets are not supported yet; give a folder on a disk of this machine")
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory} is a file; give a folder as --dir")
    saved = directory / "checkpoints"
    if saved.is_symlink() and not saved.exists():
        raise ConfigError(f"{saved} is a link to {os.readlink(saved)}, which is not there; mount that disk first")
    if directory.is_dir() and not (directory / "run.json").exists():
        present = [entry.name for entry in directory.iterdir()]
        others = sorted(name for name in present if name != "lock" and partial_of(name) not in _WRITTEN)
        if (directory / "lock").is_file() and not _is_lock(directory / "lock"):
            others.append("lock")
        if others:
            raise ConfigError(
                f"{directory} holds {', '.join(others[:3])}{', …' if len(others) > 3 else ''} and no run.json: "
                "it is no run's folder; give a new or an empty --dir"
            )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = open(directory / "lock", "a+", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be written: {error.strerror}; give another --dir") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        holder = lock.readline().strip() or "another process"
        lock.close()
        raise ConfigError(f"{directory} is in use by {holder}; wait for it, or give another --dir") from None
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {platform.node()}\n{secrets.token_hex(16)}\n")
    lock.flush()
    remove_partials(directory, _WRITTEN)
    return lock


def _is_lock(file: Path) -> bool:
    """Whether `take` wrote this file: it is empty, or names a process."""
    with open(file, "rb") as opened:
        return opened.read(8) in (b"", b"process ")


def token(directory: Path) -> str:
    """What the process that holds the folder wrote into it: processes that read the same see the same folder."""
    try:
        return (directory / "lock").read_text("utf-8").partition("\n")[2].strip()
    except OSError:
        return ""


def versions() -> dict[str, str]:
    """What made a run: Python and the libraries that its numbers may depend on."""
    found = {"python": platform.python_version()}
    libraries = "jax jaxlib flax optax orbax-checkpoint grain tokenizers sentencepiece ftfy numpy"
    for name in ("contexture", *libraries.split()):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


_OF_A_RUN = ["tokenizer", "data", "checkpoints", "damaged", "metrics.jsonl", "tensorboard", "loss.png", "evaluations"]
_WRITTEN = ["run.json", *_OF_A_RUN]


def settle(run: Run, directory: Path, say: Say) -> dict[str, Any]:
    """What this folder's run.json says of the run begun here ({} where it is new), and writes it where it is new.

    Other settings than those of run.json are refused once there is a checkpoint, naming the field; before that, all
    that the folder holds is moved aside and the run starts over. Nothing is ever deleted. What a start that was stopped
    has left (a vocabulary, tokenised text) is used where the settings are the same: text and vocabulary are checked
    against their digests when they are opened, and a checkpoint's identity against both.

    Raises ConfigError.
    """
    begun: Run | None = None
    old: dict[str, Any] = {}
    if (directory / "run.json").exists():
        begun, old = configs.read(directory)
        if "published" in old:
            raise ConfigError(
                f"{directory} was imported: begin from it, --init.run {directory}, and give another --dir"
            )
        run = configs.of_data(run, old)
    changes = configs.difference(run, begun) if begun is not None else {}
    if begun is not None and "data.predictions" in changes:
        new, was = configs.predictions_of(run), configs.predictions_of(begun)
        changes["data.predictions"] = (new, was)
        if new == was:
            del changes["data.predictions"]
    fixed = [name for name in changes if not configs.may_change(name)]
    trained = any((directory / "checkpoints").glob("[0-9]*"))
    if begun is None or (fixed and not trained):
        if begun is not None:
            aside = move_aside(directory, _OF_A_RUN, "earlier")
            if aside:
                shutil.copy2(directory / "run.json", aside)
            where = f"; moved what it held to {aside}" if aside else ""
            say(f"{directory} has other settings ({_flag(fixed[0])}) and no checkpoint; starting over{where}")
        configs.write_json(directory / "run.json", _tree(run, {}))
        return {}
    if fixed:
        new, was = changes[fixed[0]]
        raise ConfigError(
            f"{directory} holds a run with {_flag(fixed[0])} {was}, not {new}; "
            f"give {_flag(fixed[0])} {was}, or another --dir"
        )
    for name in ("steps", "epochs") if old.get("data") else ():
        if 0 < getattr(run, name) < getattr(begun, name):
            raise ConfigError(
                f"{directory} holds a run of --{name} {getattr(begun, name)}, not {getattr(run, name)}; "
                "a run can only be made longer"
            )
    for name, (new, was) in changes.items():
        if name != "dir":
            say(f"{_flag(name)} is now {new}, was {was}")
    return old


def not_shorter(run: Run, directory: Path, old: dict[str, Any], lines_per_pass: int) -> None:
    """Raises ConfigError where the run, its epochs told in steps, is shorter than it was begun, or than it is."""
    steps = configs.scheduled(run, lines_per_pass).steps
    if old.get("data"):
        begun = configs.scheduled(configs.from_json(old["config"], str(directory)), lines_per_pass).steps
        if steps < begun:
            raise ConfigError(f"{directory} holds a run of {begun} steps, not {steps}; a run can only be made longer")
    found = (entry.name for entry in (directory / "checkpoints").glob("[0-9]*"))
    there = max((int(name) for name in found if re.fullmatch("[0-9]+", name)), default=0)
    if there > steps:
        raise ConfigError(f"{directory} is at step {there} already, beyond --steps {steps}")


def _tree(run: Run, more: dict[str, Any]) -> dict[str, Any]:
    return {"format": configs.FORMAT, "config": configs.to_json(run), "versions": versions(), **more}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def describe(directory: Path, run: Run, tokenizer: Tokenizer, data: Shards | Store, old: dict[str, Any]) -> None:
    """Write run.json. Raises ConfigError where tokenizer or data are not those that the run was started with."""
    for name, now in (("tokenizer", tokenizer.fingerprint), ("data", data.fingerprint)):
        if old.get(name) not in (None, now):
            raise ConfigError(
                f"{directory}: the {name} is not the one that this run was started with "
                f"(fingerprint {now[:12]}, was {old[name][:12]}); put it back, or give another --dir"
            )
    more: dict[str, Any] = {}
    if isinstance(data, Store):
        more = {"labels": list(data.labels), "counts": list(data.counts), "pair": data.pair}
    if isinstance(run.model, ElmoConfig):
        more["words"] = tokenizer.size
    tree = _tree(run, {"tokenizer": tokenizer.fingerprint, "data": data.fingerprint, **more})
    if tree != old:
        configs.write_json(directory / "run.json", tree)


def open_data(run: Run, directory: Path, say: Say, check: Callable[[], None]) -> tuple[Tokenizer, Shards | Store]:
    """The run's tokenizer and tokenised text or examples, made now where they are not there yet. `check` may raise to
    stop it.

    Raises DataError for text or vocabulary that are not what they should be, ConfigError where they do not fit the run.
    """
    return (_open_shards if run.task.kind == "off" else _open_examples)(run, directory, say, check)


def _open_examples(run: Run, directory: Path, say: Say, check: Callable[[], None]) -> tuple[Tokenizer, Store]:
    if run.data.path or run.data.dev or run.data.dev_fraction:
        raise ConfigError("data.path is text to pretrain on; give a task's examples as --task.train and --task.dev")
    if not run.task.train:
        raise ConfigError("task.train is empty; give the examples to learn from: --task.train FILE")
    here = directory / "data"
    if here.exists():
        store = Store.open(here)
        if changed := store.sources_changed(run.task):
            raise ConfigError(f"{directory}: {changed}; put it back, or give another --dir")
        tokenizer = load_tokenizer(directory / "tokenizer", run.data.lowercase)
    else:
        tokenizer = _tokenizer(run, directory, say, check)
        fits(run, tokenizer)
        store = encode(run.task, tokenizer, here, say, check)
    if store.index["tokenizer"] != tokenizer.fingerprint:
        raise ConfigError(f"{here} was encoded with another vocabulary than {directory / 'tokenizer'}; put it back")
    return tokenizer, store


def _open_shards(run: Run, directory: Path, say: Say, check: Callable[[], None]) -> tuple[Tokenizer, Shards]:
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
        tokenizer = _tokenizer(run, directory, say, check)
        fits(run, tokenizer)
        say(f"tokenising {len(sources)} source(s) into {here}")
        shards = prepare(run.data, tokenizer, here, lambda done, total: check(), say=say)
    if shards.stream != run.data.stream:
        raise ConfigError(
            f"{shards.folder} was prepared for data.stream={shards.stream}, and this run reads {run.data.stream}; "
            "prepare the text again with a recipe of that stream: contexture prepare RECIPE --input F… --to DIR"
        )
    if not (directory / "tokenizer").exists():
        fits_new(run, tokenizer.kind)
    asked = run.data
    given = load_tokenizer(asked.tokenizer, asked.lowercase, asked.split) if asked.tokenizer else tokenizer
    if given.fingerprint != tokenizer.fingerprint:
        raise ConfigError(f"the text was tokenised with another vocabulary than {run.data.tokenizer}; leave it out")
    lowercase = tokenizer.lowercase if isinstance(tokenizer, WordPiece) else asked.lowercase
    split = tokenizer.split if isinstance(tokenizer, Words) else asked.split
    sentences = ("split_sentences", shards.index["split_sentences"])
    of_stream = {"sentence_pairs": sentences, "windows": ("documents", shards.documents), "lanes": sentences}
    for name, was in (("lowercase", lowercase), ("split", split), of_stream[shards.stream]):
        if getattr(run.data, name) != was:
            raise ConfigError(f"the text was prepared with {_flag('data.' + name)} {was}; give the same")
    fits(run, tokenizer)
    if prepared is not None or not (directory / "tokenizer").exists():
        _keep_tokenizer(tokenizer, directory, say)
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


def _tokenizer(run: Run, directory: Path, say: Say, check: Callable[[], None]) -> Tokenizer:
    if run.init.run:
        if run.data.tokenizer:
            raise ConfigError(f"{run.init.run} brings its own vocabulary; leave data.tokenizer out")
        source, described = configs.read(Path(run.init.run))
        if source.data.layout != run.data.layout:
            raise ConfigError(
                f"{run.init.run} is a run of the family {source.data.layout}, and this model one of {run.data.layout}; "
                "begin from a run of the same family"
            )
        tokenizer = read_tokenizer(Path(run.init.run), source, described)
        if run.task.kind != "off" and run.data.layout == "gpt":
            tokenizer = with_task_tokens(tokenizer)
        _keep_tokenizer(tokenizer, directory, say)
        return tokenizer
    if run.data.tokenizer:
        tokenizer = load_tokenizer(run.data.tokenizer, run.data.lowercase, run.data.split)
        fits_new(run, tokenizer.kind)
        return tokenizer
    files, data = expand(run.data.path, "data.path"), run.data
    fits_new(run, data.vocabulary)
    say(f"learning a vocabulary of at most {run.model.vocab} pieces ({data.vocabulary})")
    tokenizer = learn(data.vocabulary, files, run.model.vocab, data.lowercase, check, data.documents, data.split)
    _keep_tokenizer(tokenizer, directory, say)
    return tokenizer


def _keep_tokenizer(tokenizer: Tokenizer, directory: Path, say: Say) -> None:
    """Saves the run's vocabulary. One that a stopped start has left, and with which nothing was tokenised, is moved
    aside where it is another."""
    with contextlib.suppress(DataError):
        tokenizer.save(directory / "tokenizer")
        return
    described = configs.read(directory)[1] if (directory / "run.json").exists() else {}
    if "tokenizer" in described or any((directory / "checkpoints").glob("[0-9]*")):
        raise ConfigError(
            f"the text has another vocabulary than {directory / 'tokenizer'}, which this run was trained with; "
            "put the text back, or give another --dir"
        )
    aside = move_aside(directory, ["tokenizer"], "earlier")
    say(f"{directory / 'tokenizer'} is of other text than this; moved it to {aside}")
    tokenizer.save(directory / "tokenizer")


def make_folder(folder: Path, option: str) -> None:
    """Raises ConfigError where a file stands in the way, or nothing may be written."""
    if is_bucket(folder):
        raise ConfigError(f"{option} {folder}: buckets are not supported yet; give a folder on a disk of this machine")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(f"{folder} may not be written to; give another {option}")
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"{folder} cannot be a folder, a file is in the way; give another {option}") from None
    except PermissionError:
        raise ConfigError(f"{folder} cannot be made, it may not be written to; give another {option}") from None


def read_tokenizer(folder: Path, run: Run, described: dict[str, Any]) -> Tokenizer:
    """A run's tokenizer. Raises ConfigError where nothing was trained, or with another tokenizer."""
    if "tokenizer" not in described:
        raise ConfigError(f"{folder} holds no checkpoint yet; train it first")
    tokenizer = load_tokenizer(folder / "tokenizer", run.data.lowercase)
    if described["tokenizer"] != tokenizer.fingerprint:
        raise ConfigError(f"{folder / 'tokenizer'} is not the vocabulary that this run was trained with; put it back")
    return tokenizer


def steps(directory: Path) -> list[int]:
    """The steps that lie in a checkpoint folder, oldest first, good or not."""
    if not directory.is_dir():
        return []
    folders = (entry.name for entry in directory.iterdir() if entry.is_dir())
    return sorted(int(name) for name in folders if re.fullmatch("[0-9]+", name))

"""A run's folder: taken by one process at a time, described by run.json, with its tokenizer and its data."""

import fcntl
import logging
import os
import platform
import re
import secrets
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

from contexture.data.pretraining.shards import Shards
from contexture.data.storage import is_bucket, move_aside, partial_of, remove_partials
from contexture.data.tasks.example_store import ExampleStore
from contexture.data.tokenizers.base import Tokenizer
from contexture.models.config import ElmoConfig
from contexture.train import run_file
from contexture.train.config import Run
from contexture.train.errors import CheckpointError, ConfigError
from contexture.train.run_file import RunRecord

logger = logging.getLogger(__name__)


def lock_run_dir(directory: Path) -> IO[str]:
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
    """Whether `lock_run_dir` wrote this file: it is empty, or names a process."""
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


def open_or_create(run: Run, directory: Path) -> RunRecord | None:
    """The record of the run that was started here, or None where it is new; then writes its run.json.

    Other settings than those of run.json are refused once there is a checkpoint, naming the field; before that, all
    that the folder holds is moved aside and the run starts over. Nothing is ever deleted. What a start that was stopped
    has left (a vocabulary, tokenised text) is used where the settings are the same: text and vocabulary are checked
    against their digests when they are opened, and a checkpoint's identity against both.

    Raises ConfigError.
    """
    old: RunRecord | None = None
    existing: Run | None = None
    if (directory / "run.json").exists():
        old = run_file.read(directory)
        existing = old.run
        if old.imported:
            raise ConfigError(
                f"{directory} was imported: begin from it, --init.run {directory}, and give another --dir"
            )
        run = run_file.with_data_facts(run, words=old.words, pair=old.pair)
    changes = run_file.difference(run, existing) if existing is not None else {}
    if existing is not None and "data.max_predictions" in changes:
        new, was = run_file.predictions_of(run), run_file.predictions_of(existing)
        changes["data.max_predictions"] = (new, was)
        if new == was:
            del changes["data.max_predictions"]
    fixed = [name for name in changes if not run_file.may_change(name)]
    trained = any((directory / "checkpoints").glob("[0-9]*"))
    if existing is None or (fixed and not trained):
        if existing is not None:
            aside = move_aside(directory, _OF_A_RUN, "earlier")
            if aside:
                shutil.copy2(directory / "run.json", aside)
            where = f"; moved what it held to {aside}" if aside else ""
            logger.warning(
                f"{directory} has other settings ({flag(fixed[0])}) and no training steps yet; starting over{where}"
            )
        run_file.write(directory, RunRecord(run=run, versions=versions()))
        return None
    if fixed:
        new, was = changes[fixed[0]]
        raise ConfigError(
            f"{directory} holds a run with {flag(fixed[0])} {was}, not {new}; "
            f"give {flag(fixed[0])} {was}, or another --dir"
        )
    for name in ("steps", "epochs") if old and old.data else ():
        if 0 < getattr(run, name) < getattr(existing, name):
            raise ConfigError(
                f"{directory} holds a run of --{name} {getattr(existing, name)}, not {getattr(run, name)}; "
                "a run can only be made longer"
            )
    for name, (new, was) in changes.items():
        if name != "dir":
            logger.info(f"{flag(name)} is now {new}, was {was}")
    return old


def check_not_shortened(run: Run, directory: Path, old: RunRecord | None, examples_per_epoch: int) -> None:
    """Raises ConfigError where the run, its epochs in steps, is shorter than the existing one or its newest step."""
    steps = run_file.resolve_schedule(run, examples_per_epoch).steps
    if old and old.data:
        existing = run_file.resolve_schedule(old.run, examples_per_epoch).steps
        if steps < existing:
            raise ConfigError(
                f"{directory} holds a run of {existing} steps, not {steps}; a run can only be made longer"
            )
    found = (entry.name for entry in (directory / "checkpoints").glob("[0-9]*"))
    there = max((int(name) for name in found if re.fullmatch("[0-9]+", name)), default=0)
    if there > steps:
        raise ConfigError(f"{directory} is at step {there} already, beyond --steps {steps}")


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def write_run_json(
    directory: Path, run: Run, tokenizer: Tokenizer, data: Shards | ExampleStore, old: RunRecord | None
) -> None:
    """Write run.json. Raises ConfigError where tokenizer or data are not those that the run was started with."""
    for name, now in (("tokenizer", tokenizer.fingerprint), ("data", data.fingerprint)):
        was = getattr(old, name, "")
        if was not in ("", now):
            raise ConfigError(
                f"{directory}: the {name} is not the one that this run was started with "
                f"(fingerprint {now[:12]}, was {was[:12]}); put it back, or give another --dir"
            )
    facts: dict[str, Any] = {"tokenizer": tokenizer.fingerprint, "data": data.fingerprint}
    if isinstance(data, ExampleStore):
        facts |= {"labels": data.labels, "counts": data.counts, "pair": data.pair}
    if isinstance(run.model, ElmoConfig):
        facts["words"] = tokenizer.size
    run_file.write(directory, RunRecord(run=run, versions=versions(), **facts))


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


def steps(directory: Path) -> list[int]:
    """The steps that lie in a checkpoint folder, oldest first, good or not."""
    if not directory.is_dir():
        return []
    folders = (entry.name for entry in directory.iterdir() if entry.is_dir())
    return sorted(int(name) for name in folders if re.fullmatch("[0-9]+", name))

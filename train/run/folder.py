"""A run's folder: taken by one process at a time, described by run.json, with its tokenizer and its data."""

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

from contexture.data.pretraining.shards import Shards
from contexture.data.storage import is_bucket, move_aside, partial_of, remove_partials
from contexture.data.tasks.example_store import ExampleStore
from contexture.data.tokenizers.base import Tokenizer
from contexture.models.config import ElmoConfig
from contexture.train import run_file
from contexture.train.config import Run
from contexture.train.errors import CheckpointError, ConfigError

Say = Callable[[str], None]


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


def open_or_create(run: Run, directory: Path, say: Say) -> dict[str, Any]:
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
        begun, old = run_file.read(directory)
        if "published" in old:
            raise ConfigError(
                f"{directory} was imported: begin from it, --init.run {directory}, and give another --dir"
            )
        run = run_file.with_data_facts(run, old)
    changes = run_file.difference(run, begun) if begun is not None else {}
    if begun is not None and "data.predictions" in changes:
        new, was = run_file.predictions_of(run), run_file.predictions_of(begun)
        changes["data.predictions"] = (new, was)
        if new == was:
            del changes["data.predictions"]
    fixed = [name for name in changes if not run_file.may_change(name)]
    trained = any((directory / "checkpoints").glob("[0-9]*"))
    if begun is None or (fixed and not trained):
        if begun is not None:
            aside = move_aside(directory, _OF_A_RUN, "earlier")
            if aside:
                shutil.copy2(directory / "run.json", aside)
            where = f"; moved what it held to {aside}" if aside else ""
            say(f"{directory} has other settings ({flag(fixed[0])}) and no checkpoint; starting over{where}")
        run_file.write_json(directory / "run.json", _tree(run, {}))
        return {}
    if fixed:
        new, was = changes[fixed[0]]
        raise ConfigError(
            f"{directory} holds a run with {flag(fixed[0])} {was}, not {new}; "
            f"give {flag(fixed[0])} {was}, or another --dir"
        )
    for name in ("steps", "epochs") if old.get("data") else ():
        if 0 < getattr(run, name) < getattr(begun, name):
            raise ConfigError(
                f"{directory} holds a run of --{name} {getattr(begun, name)}, not {getattr(run, name)}; "
                "a run can only be made longer"
            )
    for name, (new, was) in changes.items():
        if name != "dir":
            say(f"{flag(name)} is now {new}, was {was}")
    return old


def check_not_shortened(run: Run, directory: Path, old: dict[str, Any], examples_per_epoch: int) -> None:
    """Raises ConfigError where the run, its epochs told in steps, is shorter than it was begun, or than it is."""
    steps = run_file.resolve_schedule(run, examples_per_epoch).steps
    if old.get("data"):
        begun = run_file.resolve_schedule(run_file.from_json(old["config"], str(directory)), examples_per_epoch).steps
        if steps < begun:
            raise ConfigError(f"{directory} holds a run of {begun} steps, not {steps}; a run can only be made longer")
    found = (entry.name for entry in (directory / "checkpoints").glob("[0-9]*"))
    there = max((int(name) for name in found if re.fullmatch("[0-9]+", name)), default=0)
    if there > steps:
        raise ConfigError(f"{directory} is at step {there} already, beyond --steps {steps}")


def _tree(run: Run, more: dict[str, Any]) -> dict[str, Any]:
    return {"format": run_file.FORMAT, "config": run_file.to_json(run), "versions": versions(), **more}


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def write_run_json(
    directory: Path, run: Run, tokenizer: Tokenizer, data: Shards | ExampleStore, old: dict[str, Any]
) -> None:
    """Write run.json. Raises ConfigError where tokenizer or data are not those that the run was started with."""
    for name, now in (("tokenizer", tokenizer.fingerprint), ("data", data.fingerprint)):
        if old.get(name) not in (None, now):
            raise ConfigError(
                f"{directory}: the {name} is not the one that this run was started with "
                f"(fingerprint {now[:12]}, was {old[name][:12]}); put it back, or give another --dir"
            )
    more: dict[str, Any] = {}
    if isinstance(data, ExampleStore):
        more = {"labels": list(data.labels), "counts": list(data.counts), "pair": data.pair}
    if isinstance(run.model, ElmoConfig):
        more["words"] = tokenizer.size
    tree = _tree(run, {"tokenizer": tokenizer.fingerprint, "data": data.fingerprint, **more})
    if tree != old:
        run_file.write_json(directory / "run.json", tree)


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

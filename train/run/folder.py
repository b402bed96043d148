"""A run's folder: locked by one process at a time, described by run.json."""

import dataclasses
import fcntl
import logging
import os
import platform
import re
import secrets
import shutil
import time
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from contexture.data import bucket, mirror
from contexture.data.mixed_paths import mixture_of
from contexture.data.storage import check_no_address, check_run_path, move_aside, partial_of, remove_partials
from contexture.data.stores import Store
from contexture.data.tasks.store.example_store import ExampleStore
from contexture.data.tokenizers.base import Tokenizer
from contexture.train.errors import CheckpointError, ConfigError
from contexture.train.run import lease
from contexture.train.run.lease import Lease
from contexture.train.settings import run_file
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import RunRecord
from contexture.train.settings.schedule import resolve_schedule

logger = logging.getLogger(__name__)


def lock_run_dir(directory: Path) -> IO[str] | Lease:
    """Makes the folder and locks it, so that no second run writes into it.

    The lock lasts as long as the returned file is open.

    Raises:
        ConfigError: when another process holds the lock, or the folder belongs to no run.
        CheckpointError: when the folder cannot be written.
    """
    check_no_address(directory)
    # flock, and the renames that keep files whole, are promises of a file system, not of a bucket.
    check_run_path(directory)
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory} is a file; give a folder as --dir")
    # A link to a disk that is not mounted: a new run would start in its place.
    saved = directory / "checkpoints"
    if saved.is_symlink() and not saved.exists():
        raise ConfigError(f"{saved} is a link to {os.readlink(saved)}, which is not there; mount that disk first")
    # A folder without run.json may hold the rest of a start that was killed; anything else is somebody's files, and
    # nothing is trained among them.
    if directory.is_dir() and not (directory / "run.json").exists():
        present = [entry.name for entry in directory.iterdir()]
        # Logs and inputs are written before run.json; partial files are what a kill leaves.
        others = sorted(
            name
            for name in present
            if name not in ("lock", INPUTS) and not _LOGS.fullmatch(name) and partial_of(name) not in _WRITTEN
        )
        # A file that is called lock, but that no run has written.
        if (directory / "lock").is_file() and not _is_lock(directory / "lock"):
            others.append("lock")
        if others:
            raise ConfigError(
                f"{directory} holds {', '.join(others[:3])}{', …' if len(others) > 3 else ''} and no run.json: "
                "it is no run's folder; give a new or an empty --dir"
            )
    lock = lock_folder(directory)
    # Unfinished files of a process that was killed: the lock is held, so nobody is writing them now.
    remove_partials(directory, _WRITTEN)
    return lock


def lock_folder(directory: Path) -> IO[str] | Lease:
    """Makes a folder and locks it for as long as the returned file is open.

    Raises:
        ConfigError: when another process holds the lock.
        CheckpointError: when the folder cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if address := mirror.address_of(directory):
            if address.scheme == "gs" and not find_spec("gcsfs"):
                raise ConfigError(f"{directory}: checkpoints in gs:// need gcsfs; pip install -e '.[gcs]'")
            held = Lease(directory, address)
            # What was fetched before may be of the holder before, who has gone on since.
            mirror.fetch_again(directory)
            return held
        # a+ neither truncates nor needs the file: its text names the holder until the lock is ours.
        lock = open(directory / "lock", "a+", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be written: {error.strerror}; give another --dir") from None
    # flock is released by the system when the process ends, however it ends: no lock can outlive its run.
    if not _locked(lock) and not (time.sleep(_GLANCE) or _locked(lock)):
        # a+ opens at the end; the first line names the process that holds the lock.
        lock.seek(0)
        holder = lock.readline().strip() or "another process"
        lock.close()
        raise ConfigError(f"{directory} is in use by {holder}; wait for it, or give another --dir") from None
    # The holder, for the message above, and a token by which the job's other processes recognise the folder.
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {platform.node()}\n{secrets.token_hex(16)}\n")
    lock.flush()
    return lock


def _locked(lock: IO[str]) -> bool:
    """Locks the file; returns whether nobody else holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def holder_of(directory: Path) -> str:
    """Returns who trains in a folder now, "process 4711 on host", or "". Holds a shared lock for a moment at most."""
    if mirror.address_of(directory):
        return lease.current_holder(directory)
    try:
        with open(directory / "lock", encoding="utf-8") as lock:
            try:
                # Shared: two commands may look at once. Closing the file gives the lock back.
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return lock.readline().strip() or "another process"
    except OSError:
        pass  # no lock: nothing was ever trained here
    return ""


def _is_lock(file: Path) -> bool:
    """Returns whether `lock_run_dir` wrote this file: it is empty, or names a process."""
    with open(file, "rb") as opened:
        return opened.read(8) in (b"", b"process ")


def token(directory: Path) -> str:
    """Returns the token that the holder wrote into the lock: processes that read the same one see the same folder."""
    if address := mirror.address_of(directory):
        return lease.token_of(bucket.read(address / lease.NAME).value)
    try:
        # Its second line; the first one is for people.
        return (directory / "lock").read_text("utf-8").partition("\n")[2].strip()
    except OSError:
        return ""


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the libraries that a run's numbers may depend on."""
    # Compared between the processes of a job, and kept in run.json to explain other numbers on another day.
    versions = {"python": platform.python_version()}
    libraries = "jax jaxlib flax optax orbax-checkpoint grain tokenizers sentencepiece ftfy numpy"
    for name in ("contexture", *libraries.split()):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def log_file(process: int) -> str:
    """Returns the log of a run's folder that a process of its job writes: log.txt, or log.N.txt of process N > 0."""
    return f"log.{process}.txt" if process else LOG


_GLANCE = 0.1
"""Seconds before a lock is tried a second time: `holder_of` may have held it just then."""
INPUTS = "inputs"
"""The folder of a run for examples that were given in Python; written before the run starts."""
LOG = "log.txt"
"""The log of a training, over all its starts."""
_LOGS = re.compile(r"log(\.[1-9][0-9]*)?\.txt")
"""The logs of all processes of a job: `log_file`."""
_OF_A_RUN = [
    "tokenizer",
    "data",
    "checkpoints",
    "damaged",
    "metrics.jsonl",
    "tensorboard",
    "loss.png",
    "loss.svg",
    "loss.pdf",
    "evaluations",
    "trackers.json",
    "wandb",
]
"""The files and folders of a run, apart from run.json and the lock."""
# Names whose partial files (temporary names, renamed once whole) a killed start may have left.
_WRITTEN = ["run.json", *_OF_A_RUN]


def open_or_create(run: Run, directory: Path) -> RunRecord | None:
    """Returns the record of the run that was started here; for a new run writes run.json and returns None.

    Settings that differ from run.json's are refused once there is a checkpoint. Before that, all that the folder holds
    is moved aside and the run starts over: nothing is ever deleted. With the same settings, the vocabulary and the
    tokenised text of a start that was stopped are used again. They are checked against their digests when they are
    opened, and a checkpoint's fingerprint against both.

    Raises ConfigError.
    """
    old: RunRecord | None = None
    existing: Run | None = None
    if (directory / "run.json").exists():
        old = run_file.read(directory)
        existing = old.run
        begin = "contexture finetune" if run.task.kind != "off" else "--init.run"
        for applies, why in ((old.imported, "imported"), (old.slimmed, "slimmed and has no optimizer state")):
            if applies:
                raise ConfigError(f"{directory} was {why}: begin from it, {begin} {directory}, and give another --dir")
        run = run_file.with_data_facts(run, words=old.words, pair=old.pair)
    # fixed: settings that make a run's numbers; all others (steps, mesh, logging, …) may change between two starts.
    changes = changed_fields(run, old) if old else {}
    fixed = [name for name in changes if not run_file.may_change(name)]
    # Paths may change, since the content of their files is compared; names and weights of a mixture may not.
    if existing and _shares(existing) != _shares(run):
        fixed.insert(0, "data.path")
    trained = any((directory / "checkpoints").glob("[0-9]*"))
    # New, or of other settings before any checkpoint: start over.
    if existing is None or (fixed and not trained):
        if existing is not None:
            aside = move_aside(directory, _OF_A_RUN, "earlier")
            # The old settings go with the old files; run.json itself is overwritten below.
            if aside:
                shutil.copy2(directory / "run.json", aside)
            where = f"; moved what it held to {aside}" if aside else ""
            logger.warning(
                f"{directory} has other settings ({flag(fixed[0])}) and no training steps yet; starting over{where}"
            )
        run_file.write(directory, RunRecord(run=run, versions=versions()))
        return None
    # The first difference is named in the words of the command line, so that it can be typed as it was.
    if fixed:
        new, was = (as_option(fixed[0], value) for value in changes[fixed[0]])
        new = new.removeprefix(f"{flag(fixed[0])} ")
        raise ConfigError(f"{directory} holds a run with {was}, not {new}; give {was}, or another --dir")
    # Until data exists, nothing depends on the length of the run. Steps now and epochs before are compared later, once
    # epochs are steps: check_not_shortened.
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


def _shares(run: Run) -> list[tuple[str, float]]:
    return [(source.name, source.weight) for source in mixture_of(run.data.path)]


def changed_fields(run: Run, record: RunRecord) -> dict[str, tuple[object, object]]:
    """Returns the fields in which a run differs from a record: name → (the run's value, the record's)."""
    run, existing = run_file.with_data_facts(run, words=record.words, pair=record.pair), record.run
    changes = run_file.difference(run, existing)
    # 0 means a fraction of the length, so two runs may differ in the option and still mask as many tokens.
    if "data.max_predictions" in changes:
        new, was = run_file.predictions_of(run), run_file.predictions_of(existing)
        changes["data.max_predictions"] = (new, was)
        if new == was:
            del changes["data.max_predictions"]
    return changes


def check_not_shortened(run: Run, directory: Path, old: RunRecord | None, examples_per_epoch: int) -> None:
    """Raises ConfigError if the run, in steps, ends before the existing one or before its newest checkpoint."""
    # Shorter is refused: the schedule has gone further already, and a checkpoint cannot be taken back.
    length = resolve_schedule(run, examples_per_epoch).steps
    if old and old.data:
        existing = resolve_schedule(old.run, examples_per_epoch).steps
        if length < existing:
            raise ConfigError(
                f"{directory} holds a run of {existing} steps, not {length}; a run can only be made longer"
            )
    newest = max(steps(directory / "checkpoints"), default=0)
    if newest > length:
        raise ConfigError(f"{directory} is at step {newest} already, beyond --steps {length}")


def flag(name: str) -> str:
    """Returns the option of a field: "data.batch" → "--data.batch"."""
    return "--" + name.replace("_", "-")


def as_option(name: str, value: object) -> str:
    """Returns a setting as the command line takes it: --data.dev a b, --init.random, --data.no-lowercase;
    no --data.dev where it is empty."""
    # tyro negates the last part of a name: data.lowercase → --data.no-lowercase.
    section, dot, last = name.replace("_", "-").rpartition(".")
    if isinstance(value, bool):
        return f"--{section}{dot}{last if value else f'no-{last}'}"
    words = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"--{section}{dot}{last} {words}" if words else f"no --{section}{dot}{last}"


def write_run_json(
    directory: Path,
    run: Run,
    tokenizer: Tokenizer,
    data: Store,
    old: RunRecord | None,
    total_steps: int = 0,
) -> None:
    """Writes run.json with the facts of the data.

    Args:
        directory: the run's folder.
        run: its settings.
        tokenizer: gives its fingerprint, and the size of an ELMo's vocabulary.
        data: gives its fingerprint, and the labels of a task.
        old: the record of an earlier start; None for a new run.
        total_steps: length of the run in steps, its epochs counted out.

    Raises:
        ConfigError: when tokenizer or data differ from those that the run was started with.
    """
    # "" in the old record: it was written before there were tokenizer or data.
    for name, now in (("tokenizer", tokenizer.fingerprint), ("data", data.fingerprint)):
        was = getattr(old, name, "")
        if was not in ("", now):
            raise ConfigError(
                f"{directory}: the {name} is not the one that this run was started with "
                f"(fingerprint {now[:12]}, was {was[:12]}); put it back, or give another --dir"
            )
    facts = {"tokenizer": tokenizer.fingerprint, "data": data.fingerprint, "total_steps": total_steps}
    record = RunRecord(run=run, versions=versions(), **facts)
    if isinstance(data, ExampleStore):
        record = dataclasses.replace(record, labels=data.labels, counts=data.counts, pair=data.pair)
    # An ELMo reads characters: only its softmax has a row for each word, so run.json must say how many there are.
    if run.text.reads_characters:
        record = dataclasses.replace(record, words=tokenizer.size)
    run_file.write(directory, record)


def make_folder(folder: Path, option: str) -> None:
    """Makes a folder for output. Raises ConfigError if a file is in the way, or nothing may be written."""
    check_no_address(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(f"{folder} may not be written to; give another {option}")
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"{folder} cannot be a folder, a file is in the way; give another {option}") from None
    except PermissionError:
        raise ConfigError(f"{folder} cannot be made, it may not be written to; give another {option}") from None


def steps(directory: Path, ask: bool = True) -> list[int]:
    """Returns the steps of a folder's checkpoints, good or damaged, oldest first. ask: whether to ask a bucket for new
    ones, which may take as long as its server does not answer."""
    if ask:
        mirror.refresh_steps(directory)
    if not directory.is_dir():
        return []
    folders = (entry.name for entry in directory.iterdir() if entry.is_dir())
    # As numbers: 10 comes after 9. A folder that Orbax is still writing has a suffix and is left out.
    return sorted(int(name) for name in folders if re.fullmatch("[0-9]+", name))

"""Removes the optimizer state of a run, and all checkpoints but one."""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from contexture.data import mirror
from contexture.models.shapes import by_path
from contexture.train.checkpoints.digests import host_digest
from contexture.train.checkpoints.initial import Leaf, write_checkpoint
from contexture.train.checkpoints.meta import Step, find_steps, first_line, read_json, slim_places
from contexture.train.checkpoints.orbax_logging import orbax_silenced
from contexture.train.checkpoints.read_back import read_arrays, read_back
from contexture.train.errors import CheckpointError, ConfigError
from contexture.train.run.folder import lock_folder, steps
from contexture.train.settings.run_file import read, write


class Slimmed(TypedDict):
    """What was removed from a run. bytes_before, bytes_after: size of its checkpoints on disk."""

    run: str
    step: int
    removed_steps: list[int]
    bytes_before: int
    bytes_after: int


def slim(folder: Path, step: Step = None, check: Callable[[], None] = lambda: None) -> Slimmed:
    """Keeps only the parameters of one checkpoint of a run; returns what was removed.

    The run can still be evaluated, exported and fine-tuned. Its training cannot be resumed. The new checkpoint is
    written and read back whole before the old ones are removed: a kill loses nothing.

    Args:
        folder: the run.
        step: the checkpoint to keep; None is the one that answers for the run, as `find_steps` says.
        check: called between two arrays, before anything is removed; it may raise.

    Raises:
        ConfigError: when the folder is no run, is in use, or lacks that checkpoint.
        CheckpointError: when the checkpoint cannot be read, or the folder not written; nothing is removed then.
    """
    record = read(folder)
    if mirror.address_of(folder):
        raise ConfigError(f"{folder}: `slim` renames folders, which a bucket cannot; copy the run to a disk first")
    if (folder / "checkpoints").exists():  # else a kill may have come between the two renames below
        find_steps(folder, step)
    with contextlib.closing(lock_folder(folder)):
        # Clean up after a slim that was killed: between the renames the old checkpoints still exist aside.
        place, aside, new = slim_places(folder)
        if place.is_mount():
            raise ConfigError(f"{place} is a disk of its own, whose folder cannot be replaced; slim a copy of the run")
        if aside.exists() and not place.exists():
            os.rename(aside, place)
        if not place.exists() or not steps(place):
            raise ConfigError(f"{folder} holds no checkpoint yet; train it first")
        for left in (aside, new):
            shutil.rmtree(left, ignore_errors=True)
        # Slimmed already: nothing to do, and saying so is no error.
        if not _has_more(place):
            (kept,), size = steps(place), _bytes(place)
            return {"run": str(folder), "step": kept, "removed_steps": [], "bytes_before": size, "bytes_after": size}
        # If this checkpoint cannot be read, no other one takes its place: the reason may pass, but what is removed is
        # gone for ever.
        kept = find_steps(folder, step)[0]
        try:
            _copy(folder / "checkpoints" / str(kept), new, check)
            before, after = _bytes(place), _bytes(new)
            # run.json first: a run that is marked as slimmed but is not loses nothing; the opposite would be resumed.
            write(folder, dataclasses.replace(record, slimmed=True))
            removed = [each for each in steps(place) if each != kept]
            # Two renames; a kill between them leaves both folders, and the next slim puts the old one back.
            os.rename(place, aside)
            os.rename(new, place)
            shutil.rmtree(aside)
        except CheckpointError as error:
            others = ", ".join(str(each) for each in steps(place) if each != kept)
            hint = f"; --step N keeps another one: {others}" if others else ""
            raise CheckpointError(f"checkpoint of step {kept}: {error}; nothing was removed{hint}") from None
        except OSError as error:
            if steps(place) and not aside.exists():
                write(folder, record)  # nothing was taken from it
            raise CheckpointError(f"{error.filename or place}: {error.strerror or error}; nothing is lost") from None
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return {"run": str(folder), "step": kept, "removed_steps": removed, "bytes_before": before, "bytes_after": after}


def _has_more(place: Path) -> bool:
    """Returns whether checkpoints hold more than the parameters of one."""
    try:
        # The digests list every array: only params/… is a slim one. A damaged checkpoint counts as not slimmed.
        return len(steps(place)) > 1 or any(
            not name.startswith("params/") for name in read_json(place / str(steps(place)[0]))[1]
        )
    except CheckpointError:
        return True


def _copy(source: Path, folder: Path, check: Callable[[], None]) -> None:
    """Writes the parameters of a checkpoint as the only one of a folder."""
    source = source.resolve()  # Orbax reads absolute paths
    meta, words = read_json(source)
    state = epath.Path(source / "state")
    with orbax_silenced(), contextlib.closing(ocp.PyTreeCheckpointHandler()) as reader, ThreadPoolExecutor(1) as thread:
        # What the file holds must be all that the digests know of, or the slim copy would lack an array.
        tree = _readable(lambda: reader.metadata(state).tree, "state")
        facts = by_path(tree)
        if lost := [name for name in words if name not in facts]:
            raise CheckpointError(f"array {lost[0]}: is missing")

        def read_one(name: str) -> np.ndarray:
            check()
            # In a thread of its own: the writer runs in an event loop, and so does the reader.
            read = thread.submit(read_arrays, reader, state, tree, {name})
            array = np.asarray(_readable(read.result, f"array {name}")[name])
            if host_digest(array) != words[name]:
                raise CheckpointError(f"array {name}: its values do not match their digest")
            return array

        # Each array is read when the writer asks for it: one at a time in memory, and verified.
        leaves = {name: _leaf(name, facts[name], read_one) for name in words if name.startswith("params/")}
        write_checkpoint(folder / source.name, leaves, meta)
        read_back(folder / source.name, whole=True)


def _readable(get: Callable[[], Any], what: str) -> Any:
    try:
        return get()
    except Exception as error:  # of many kinds, where Orbax cannot read
        raise CheckpointError(f"{what}: cannot be read ({first_line(error)})") from None


def _leaf(name: str, fact: Any, read_one: Callable[[str], np.ndarray]) -> Leaf:
    return Leaf(tuple(fact.shape), lambda: read_one(name), np.dtype(fact.dtype))


def _bytes(folder: Path) -> int:
    # lstat: a link counts as itself, not as the file of another run.
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())

"""Checkpoints: written in the background, verified number by number when read, with a loud fall-back.

A checkpoint is one Orbax composite of three items:

    state   the arrays
    meta    JSON: the step, the run's fingerprint, the shapes, the evaluation after the step
    digest  JSON: a digest of each array, of `meta` and of itself

Orbax alone would read a flipped byte as another number; the digests show it. Orbax writes into a folder
`<step>.orbax-checkpoint-tmp` and renames it once all is on disk, so a folder with a number as its name is complete: a
kill leaves no half-written checkpoint under that name.
"""

import contextlib
import dataclasses
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from orbax.checkpoint import checkpoint_managers as policies

from contexture.data import bucket, mirror
from contexture.data.storage import numbered, without_parents
from contexture.models.shapes import by_path
from contexture.train.checkpoints import orbax_s3
from contexture.train.checkpoints.digests import digests
from contexture.train.checkpoints.late_evaluation import text_digest, write
from contexture.train.checkpoints.meta import (
    FORMAT,
    Meta,
    best_step,
    first_line,
    rank_of,
    read_json,
    read_meta,
    write_failure,
)
from contexture.train.checkpoints.orbax_logging import orbax_silenced, silence_orbax
from contexture.train.checkpoints.read_back import read_back
from contexture.train.distributed import processes
from contexture.train.errors import CheckpointError, ConfigError, Diverged
from contexture.train.run.folder import steps
from contexture.train.settings.sections import SaveConfig

logger = logging.getLogger(__name__)

T = TypeVar("T")


def read_meta_together(directory: Path) -> Meta:
    """Returns the meta of a checkpoint in every process of a job; raises in all of them if one cannot read it."""
    return processes.together(lambda: read_meta(directory), CheckpointError)


def _stored(state: Any) -> dict[str, object]:
    """Returns the stored form of a state: its fields by name, without those that hold no array (an empty carry)."""
    parts = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    return {name: part for name, part in parts.items() if jax.tree.leaves(part)}


def _read_arrays(directory: Path, expected: Any, prefix: str, part: bool) -> Any:
    """Returns the stored arrays under `prefix` ('' for the whole state), with `expected`'s shapes and shardings.

    part: the stored tree may hold more than `expected`.
    """
    # Shardings go in here, so each device reads its own part: a checkpoint of one mesh is restored on any other.
    restore = ocp.checkpoint_utils.construct_restore_args
    target = {prefix: expected} if prefix else _stored(expected)
    arguments = ocp.args.PyTreeRestore(target, restore_args=restore(target), partial_restore=part)
    place = mirror.arrays_at(without_parents(directory / "state"))

    def read() -> Any:
        # Not by a Checkpointer, whose restore ends with a barrier: one process may fail here and the others not.
        with contextlib.closing(ocp.PyTreeCheckpointHandler()) as reader:
            return reader.restore(orbax_s3.place(place), args=arguments)

    try:
        with orbax_silenced():
            restored = bucket.answering(bucket.parse_address(place), read)
    except bucket.BucketError:
        raise  # nothing is known of the checkpoint: it is not passed over as damaged
    except Exception as error:
        raise CheckpointError(f"item state: cannot be read ({first_line(error)})") from None
    # Fields without arrays were not stored; they keep their value.
    return restored[prefix] if prefix else dataclasses.replace(expected, **restored)


def restore(directory: Path, expected: T, mesh: Mesh, prefix: str = "", part: bool = False) -> tuple[T, Meta]:
    """Returns (arrays like `expected`, verified; meta) of one checkpoint.

    Args:
        directory: the checkpoint, `checkpoints/<step>`.
        expected: a tree of ShapeDtypeStructs with shardings.
        mesh: the devices that the arrays go to, and that compute their digests.
        prefix: the part of the state that `expected` is, such as "params"; "" for all of it.
        part: whether `expected` may lack arrays that are stored under the prefix.

    Raises:
        CheckpointError: when an item or array, which it names, is damaged or has another shape; in all processes of a
            job if one cannot read its share.
    """
    start = prefix + "/" if prefix else ""
    # Shapes first, then the numbers: a large file of another model is refused before it is read.
    meta, stored = processes.together(lambda: _read_fitting(directory, by_path(expected), start, part), CheckpointError)
    state = processes.together(lambda: _read_arrays(directory, expected, prefix, part or bool(prefix)), CheckpointError)
    # Orbax raises nothing for a flipped bit: what arrived on the devices is compared with what was saved.
    words, _ = digests(state, mesh)

    # All processes compare, and all raise if one of them sees a difference: none may go on alone.
    def verify() -> None:
        for name, word in stored.items():
            if words[name] != word:
                raise CheckpointError(f"array {start}{name}: its values do not match their digest")

    processes.together(verify, CheckpointError)
    return state, meta


def _read_fitting(
    directory: Path, expected: dict[str, jax.ShapeDtypeStruct], start: str, part: bool
) -> tuple[Meta, dict[str, int]]:
    """Returns (meta, the digest of each expected array).

    Raises CheckpointError unless the checkpoint holds arrays of these shapes.
    """
    meta, words = read_json(directory)
    # A folder that somebody has renamed or copied would resume at the wrong step.
    if str(meta["step"]) != directory.name:
        raise CheckpointError(f"item meta: is of step {meta['step']}")
    # Paths relative to the prefix, as in `expected`.
    stored = {name[len(start) :]: word for name, word in words.items() if name.startswith(start)}
    if part:
        stored = {name: word for name, word in stored.items() if name in expected}
    # The first path by name on one side only: it says what differs between the two models.
    if set(stored) != set(expected):
        odd = sorted(set(stored) ^ set(expected))[0]
        side = "holds" if odd in stored else "lacks"
        raise CheckpointError(f"it {side} {start}{odd}, unlike this model")
    for name, x in expected.items():
        if list(x.shape) != meta["shapes"][start + name]:
            held = meta["shapes"][start + name]
            raise CheckpointError(f"it holds {start}{name} {held}, this model wants {list(x.shape)}")
    return meta, stored


_NOWHERE = (0, 0)
_POLL = 0.005
"""Seconds between two looks at a write that is waited for."""


def _identity_of(folder: Path) -> tuple[int, int]:
    """Returns a folder's device and inode, which it keeps when it is renamed; _NOWHERE if it does not exist."""
    try:
        status = folder.stat()
    except OSError:
        return _NOWHERE
    # Renaming keeps the inode; a new folder of the same name has another one.
    return status.st_dev, status.st_ino


@dataclass
class _Best(policies.PreservationPolicy):
    """Keeps the checkpoint of the least rank. ranks: step → rank, or None if it was not measured."""

    ranks: dict[int, float | None]

    # ranks is shared with `Checkpoints`, which adds the rank of each step before it is saved.
    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        best = best_step({info.step: self.ranks.get(info.step) for info in checkpoints})
        return [info.step == best for info in checkpoints]


class _Manager(ocp.CheckpointManager):
    """Keeps the error of a write that has failed in this process.

    Orbax raises it only when all processes of a job have come as far, for which it waits up to an hour: another one may
    wait as long for what this one was to write.
    """

    failure: BaseException | None = None

    def _wait_for_checkpointers(self) -> None:
        try:
            super()._wait_for_checkpointers()
        except BaseException as error:
            self.failure = error
            raise


class Checkpoints:
    """The checkpoints of one run: `checkpoints/<step>/`."""

    def __init__(
        self,
        run_directory: Path,
        mesh: Mesh,
        config: SaveConfig,
        identity: str = "",
        metric: str = "loss",
    ) -> None:
        """Touches no file yet.

        Args:
            run_directory: the run's folder.
            mesh: the devices of the state.
            config: which checkpoints are kept.
            identity: the run's fingerprint; a checkpoint of another one is refused.
            metric: decides the best checkpoint, which is kept.

        Raises:
            CheckpointError: where the run is in s3, and the installed Orbax cannot write there.
        """
        self.metric = metric
        self.directory = without_parents(run_directory / "checkpoints")
        self.damaged = without_parents(run_directory / "damaged")
        # If the folder is moved during training, Orbax would create it again and split the run: see `_was_moved`.
        self._place = _identity_of(self.directory.parent)
        self.mesh, self.config, self.identity = mesh, config, identity
        # Now, and not at the first save: an Orbax that cannot write to s3 is found before the first step.
        self._root = orbax_s3.place(str(mirror.address_of(self.directory) or self.directory))
        self._manager: _Manager | None = None
        self._ranks: dict[int, float | None] = {}
        self._writing = 0, False  # the step, and whether it is the run's last

    def restore_latest(self, expected: T) -> tuple[T, Meta] | None:
        """Returns the newest checkpoint that is good in every number, or None if there are no checkpoints.

        Warns of each damaged one, and moves it to `damaged/`.

        Raises:
            CheckpointError: when none is good.
            ConfigError: when the newest good one has another fingerprint.
        """
        # Newest first. All processes walk the same list: `restore` fails in all of them or in none.
        existing = steps(self.directory)
        bad: list[str] = []
        for step in reversed(existing):
            try:
                state, meta = restore(self.directory / str(step), expected, self.mesh)
            except CheckpointError as error:
                bad.append(f"step {step}: {error}")
                logger.warning(f"checkpoint of {bad[-1]}; trying the one before")
                continue
            # Good, but of another run: an older one would be no better, so nothing is skipped.
            if meta["identity"] != self.identity:
                raise ConfigError(
                    f"checkpoint {self.directory / str(step)} is of a run with other settings, text or vocabulary; "
                    "give another --dir"
                )
            # Moved only now that a good one is known: a run without a good one is left unchanged.
            if bad:
                self._move_damaged([s for s in existing if s > step])
            return state, meta
        if bad:
            raise CheckpointError(
                f"no good checkpoint is left in {self.directory} ({'; '.join(bad)}); "
                "give another --dir to start again from nothing"
            )
        return None

    def _move_damaged(self, bad: list[int]) -> None:
        if jax.process_index() == 0:
            self.damaged.mkdir(exist_ok=True)
            for step in bad:
                target = numbered(self.damaged / str(step), first=0)
                if mirror.address_of(target):
                    mirror.move(self.directory / str(step), target)
                else:
                    os.rename(self.directory / str(step), target)
            logger.warning(f"moved damaged checkpoints to {self.damaged}")
        # Nobody saves into a folder that process 0 is still sorting.
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices("damaged checkpoints moved")

    def _open(self) -> _Manager:
        if self._manager is None:
            silence_orbax()
            # What a killed process was writing: the run's lock is held, so nobody is writing it now.
            if jax.process_index() == 0:
                mirror.remove_uncommitted(self.directory)
                for left in self.directory.glob("*.orbax-checkpoint-tmp*"):
                    shutil.rmtree(left, ignore_errors=True)
            # The ranks of an earlier start, so that its best checkpoint is still protected. A damaged one has none.
            latest = policies.LatestN(self.config.max_to_keep)
            for step in steps(self.directory):
                with contextlib.suppress(CheckpointError):
                    meta = read_meta(self.directory / str(step))
                    self._ranks[step] = rank_of(meta, self.metric)
            # A checkpoint stays if any policy wants it. Orbax's best_fn alone would delete the newest one.
            kept: list[policies.PreservationPolicy] = [latest, _Best(self._ranks)]
            if self.config.keep_every:
                kept.append(policies.EveryNSteps(self.config.keep_every))
            options = ocp.CheckpointManagerOptions(
                preservation_policy=policies.AnyPreservationPolicy(kept),
                enable_async_checkpointing=True,
                # The other processes of a job wait while process 0 reads a large checkpoint back.
                async_options=ocp.options.AsyncOptions(timeout_secs=3600, post_finalization_callback=self._read_back),
            )
            self._manager = self._answering(lambda: _Manager(self._root, options=options))
        return self._manager

    def _answering(self, work: Callable[[], T]) -> T:
        """Returns `work()`, which Orbax does; raises BucketError where the run's bucket is silent meanwhile."""
        return bucket.answering(mirror.address_of(self.directory), work)

    def _read_back(self) -> None:
        """Reads a checkpoint before it gets its name. If this raises, Orbax removes no earlier checkpoint."""
        step, last = self._writing
        if address := mirror.address_of(self.directory / str(step)):
            self._read_back_from(address, last)
            return
        # Called in Orbax's thread on process 0 when all arrays are written, before the folder is renamed.
        for written in self.directory.glob(f"{step}.orbax-checkpoint-tmp*"):
            try:
                read_back(written, whole=last)
            except Exception as error:
                raise CheckpointError(f"step {step} cannot be read back: {first_line(error)}") from None

    def _read_back_from(self, address: bucket.Address, last: bool) -> None:
        # Just before the commit: the run must still be this process's, and its metrics be there as far as its steps.
        mirror.check_guard(self.directory)
        mirror.sync(self.directory.parent)
        # Not committed yet, so it is no step of this run: its items are read into a folder of their own.
        with tempfile.TemporaryDirectory() as scratch:
            items = Path(scratch) / Path(address.key).name
            for item in ("meta", "digest"):
                (items / item).mkdir(parents=True)
                bucket.download(address / item / "metadata", items / item / "metadata")
            try:
                read_back(items, whole=last, state=str(address / "state"))
            except Exception as error:
                raise CheckpointError(f"step {items.name} cannot be read back: {first_line(error)}") from None

    def save(self, step: int, state: object, meta: Meta, held_out_loss: float | None, last: bool = False) -> None:
        """Starts to write the state of a step; the write continues in the background, and ends with reading it back.

        The best step, which is kept, has the least meta["rank"], or without ranks the least held-out loss.

        Args:
            step: its number.
            state: the arrays, on the devices.
            meta: further fields of the item `meta`: seed, lines_read, best, rank, …
            held_out_loss: of the evaluation after the step; None without one.
            last: no step follows, so the whole is read back and not a sample.

        Raises:
            CheckpointError: when this or the previous write has failed.
            Diverged: when the state holds numbers that are not finite.
        """
        if self._was_moved():
            raise self._failed(FileNotFoundError())
        shapes = {path: list(x.shape) for path, x in by_path(state).items()}
        meta = {
            "format": FORMAT,
            "step": step,
            "identity": self.identity,
            "held_out_loss": held_out_loss,
            **meta,
            "shapes": shapes,
        }
        # The digests are computed from the arrays on the devices, before they go through memory, network and disk.
        arrays, broken = digests(state, self.mesh)
        # A checkpoint with NaN can never be trained further; the one before it can.
        if broken:
            good = self.finished
            where = f"the last checkpoint is of step {good}" if good else "there is no checkpoint yet"
            raise Diverged(f"{broken[0]} holds numbers that are not finite at step {step}, not saved; {where}")
        digest: dict[str, Any] = {"arrays": arrays, "meta": text_digest(meta)}
        digest["self"] = text_digest(digest)
        # PyTreeSave for the state: StandardSave could not restore a part of it, such as the parameters alone.
        items = ocp.args.Composite(
            state=ocp.args.PyTreeSave(_stored(state)), meta=ocp.args.JsonSave(meta), digest=ocp.args.JsonSave(digest)
        )
        # One write at a time: each holds a copy of the arrays in the host's memory.
        self.wait()
        # Another process may have taken a run in a bucket over: it writes nothing there any more.
        mirror.check_guard(self.directory)
        try:
            manager = self._open()
            # Known before the save, which decides at once which older checkpoints are removed.
            self._ranks[step] = rank_of(meta, self.metric)
            self._writing = step, last
            # force: Orbax's own save_interval has no say, the run decides when to save.
            self._answering(lambda: manager.save(step, args=items, force=True))
        except Exception as error:
            raise self._failed(error) from error

    def add_evaluation(self, step: int, evaluated: Meta) -> None:
        """Stores the evaluation of a checkpoint that was saved before it: held_out_loss, rank, metric, best.

        Raises CheckpointError if it cannot be written.
        """
        if self._was_moved():
            raise self._failed(FileNotFoundError())
        self._open()
        # Before the next save, which decides what is kept.
        self._ranks[step] = rank_of(evaluated, self.metric)
        if jax.process_index() == 0:
            try:
                write(self.directory / str(step), evaluated)
            except OSError as error:
                raise self._failed(error) from error

    def _was_moved(self) -> bool:
        return self._place != _NOWHERE and _identity_of(self.directory.parent) != self._place

    def _failed(self, error: BaseException) -> CheckpointError:
        # First: a write that was under way then has failed with another message.
        if self._was_moved():
            return CheckpointError(
                f"{self.directory.parent} was moved or removed while it trains, and its newest step is not saved; "
                "start the same command again, with --dir where the run is now"
            )
        # A bucket that does not answer is not asked once more.
        reason = error.strerror if isinstance(error, bucket.BucketError) else write_failure(error)
        good = steps(self.directory, ask=not isinstance(error, bucket.BucketError))
        last = f"the last good checkpoint is of step {good[-1]}" if good else "there is no checkpoint yet"
        return CheckpointError(f"could not write a checkpoint to {self.directory}: {reason}; {last}")

    @property
    def finished(self) -> int:
        """The newest step that is completely on disk; 0 if there is none."""
        # Read from the disk: a folder has its number as its name only when Orbax has finished it.
        return (steps(self.directory) or [0])[-1]

    def wait(self) -> None:
        """Waits until the checkpoint that was started is on disk. Raises CheckpointError if it cannot be written."""
        if (manager := self._manager) is None:
            return

        def finished() -> None:
            # Polled: wait_until_finished alone would wait for other processes that wait for a failed write of this one.
            while manager.is_saving_in_progress():
                if manager.failure is not None:
                    raise manager.failure
                time.sleep(_POLL)
            manager.wait_until_finished()

        try:
            self._answering(finished)
            mirror.look_again(self.directory)
        except Exception as error:
            raise self._failed(error) from error

    def abandon(self) -> None:
        """Closes the folder after an error, whatever state it is in.

        Not in a job of several processes: others may be gone, and Orbax would wait for them. Nor where a bucket is
        silent, for which it would wait too.
        """
        if self._manager is not None and jax.process_count() == 1 and not bucket.left_waiting():
            # An error is on its way already; a second one must not hide it.
            with contextlib.suppress(Exception):
                self._manager.close()
            self._manager = None

    def close(self) -> None:
        """Closes the folder; call `wait` first."""
        if self._manager is not None:
            try:
                self._answering(self._manager.close)
            except Exception as error:
                raise self._failed(error) from error
            self._manager = None

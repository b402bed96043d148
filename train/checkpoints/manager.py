"""Checkpoints: written in the background, verified number by number when read, with a loud fall-back.

A checkpoint is one Orbax composite of three items: `state` (the arrays), `meta` (JSON: the step, what it was trained
on) and `digest` (JSON: a digest of each array, of `meta` and of itself). Orbax alone would read a flipped byte as a
number; the digests are what makes a damaged file known.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from orbax.checkpoint import checkpoint_managers as policies

from contexture.data.storage import numbered
from contexture.models.shapes import by_path, path_of
from contexture.train.checkpoints.late_evaluation import text_digest, with_evaluation, write
from contexture.train.checkpoints.orbax_logging import quiet_orbax
from contexture.train.distributed import processes
from contexture.train.errors import CheckpointError, ConfigError, Diverged
from contexture.train.mesh import replicated
from contexture.train.metrics import saved_rank
from contexture.train.options import SaveConfig
from contexture.train.run.folder import steps

logger = logging.getLogger(__name__)

FORMAT = 1
_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}


def _digest_one(x: jax.Array) -> jax.Array:
    """A word (u32) that changes with any element's value or place, the same however the array is cut over devices."""
    x = x.astype(jnp.uint8) if x.dtype == jnp.bool_ else x
    b = jax.lax.bitcast_convert_type(x, _WORDS[x.dtype.itemsize]).astype(jnp.uint32)
    place = jnp.zeros((1,) * b.ndim, jnp.uint32)
    for axis in range(b.ndim):
        place = place * jnp.uint32(b.shape[axis]) + jax.lax.broadcasted_iota(jnp.uint32, b.shape, axis)
    place = place * jnp.uint32(2654435761) + jnp.uint32(1)
    return jnp.sum((b ^ (b >> 15)) * (place | 1), dtype=jnp.uint32)


@functools.cache
def _examine(mesh: Mesh) -> Callable[[list[jax.Array]], jax.Array]:
    """Arrays → u32 [arrays, 2]: the digest of each, and 1 where all its numbers are finite."""

    def one(x: jax.Array) -> jax.Array:
        finite = jnp.isfinite(x).all() if jnp.issubdtype(x.dtype, jnp.floating) else jnp.bool_(True)
        return jnp.stack([_digest_one(x), finite.astype(jnp.uint32)])

    return jax.jit(lambda leaves: jnp.stack([one(x) for x in leaves]), out_shardings=replicated(mesh))


def digests(tree: Any, mesh: Mesh) -> tuple[dict[str, int], list[str]]:
    """(path → digest of every array of a tree, the paths whose numbers are not all finite); taken where they live."""
    paths, leaves = zip(*jax.tree_util.tree_flatten_with_path(tree)[0], strict=True)
    found = np.asarray(jax.device_get(_examine(mesh)(list(leaves))))
    words = {path_of(path): int(word) for path, (word, _) in zip(paths, found, strict=True)}
    return words, [path_of(path) for path, (_, finite) in zip(paths, found, strict=True) if not finite]


def _read_item(directory: Path, item: str) -> Any:
    path = directory / item / "metadata"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"item {item}: {path.name} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"item {item}: cannot be read ({_first_line(error)})") from None


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) < 160 else text[:157] + "…"


def _read_json(directory: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """(meta, array digests) of one checkpoint, both verified."""
    whole = _read_item(directory, "digest")
    digest = dict(whole) if isinstance(whole, dict) else {}
    if digest.pop("self", None) != text_digest(digest):
        raise CheckpointError("item digest: does not match its own digest")
    meta = _read_item(directory, "meta")
    if isinstance(meta, dict) and meta.get("format") != FORMAT:
        raise CheckpointError(f"item meta: has format {meta.get('format')!r}; this version reads format {FORMAT}")
    if text_digest(meta) != digest["meta"]:
        raise CheckpointError("item meta: does not match its digest")
    return with_evaluation(directory, meta, whole), digest["arrays"]


def read_meta(directory: Path) -> dict[str, Any]:
    """What a checkpoint says of itself. Raises CheckpointError where it is damaged."""
    return _read_json(directory)[0]


def read_meta_together(directory: Path) -> dict[str, Any]:
    """`read_meta` in every process of a job; raises in all where one cannot read it."""
    return processes.together(lambda: read_meta(directory), CheckpointError)


def _stored(state: Any) -> dict[str, Any]:
    """A state as it is written: its parts by name, without those that hold no array."""
    parts = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    return {name: part for name, part in parts.items() if jax.tree.leaves(part)}


def _read_arrays(directory: Path, wanted: Any, prefix: str) -> Any:
    """Arrays of `wanted`'s shapes and shardings, a part of the stored tree under prefix ('' for all of it)."""
    quiet_orbax()
    restore = ocp.checkpoint_utils.construct_restore_args
    target = {prefix: wanted} if prefix else _stored(wanted)
    arguments = ocp.args.PyTreeRestore(target, restore_args=restore(target), partial_restore=bool(prefix))
    try:
        # Not by a Checkpointer, whose restore ends with a barrier: one process may fail here and the others not.
        with contextlib.closing(ocp.PyTreeCheckpointHandler()) as reader:
            found = reader.restore(epath.Path(directory / "state").absolute(), args=arguments)
    except Exception as error:
        raise CheckpointError(f"item state: cannot be read ({_first_line(error)})") from None
    return found[prefix] if prefix else dataclasses.replace(wanted, **found)


def restore(
    directory: Path, wanted: Any, mesh: Mesh, prefix: str = "", part: bool = False
) -> tuple[Any, dict[str, Any]]:
    """One checkpoint: (arrays like `wanted`, verified; meta). `wanted` holds ShapeDtypeStructs with shardings, of all
    arrays under prefix, or of a part of them.

    Raises CheckpointError naming the item or the array that is damaged, or that has another shape than is wanted; in
    every process of a job where one of them cannot read it.
    """
    start = prefix + "/" if prefix else ""
    meta, there = processes.together(lambda: _read_fitting(directory, by_path(wanted), start, part), CheckpointError)
    state = processes.together(lambda: _read_arrays(directory, wanted, prefix), CheckpointError)
    found, _ = digests(state, mesh)

    def verify() -> None:
        for name, word in there.items():
            if found[name] != word:
                raise CheckpointError(f"array {start}{name}: its values do not match their digest")

    processes.together(verify, CheckpointError)
    return state, meta


def _read_fitting(
    directory: Path, shapes: dict[str, Any], start: str, part: bool
) -> tuple[dict[str, Any], dict[str, int]]:
    """(meta, the digest of each array that is wanted), where the checkpoint holds arrays of these shapes."""
    meta, stored = _read_json(directory)
    if str(meta["step"]) != directory.name:
        raise CheckpointError(f"item meta: is of step {meta['step']}")
    there = {name[len(start) :]: word for name, word in stored.items() if name.startswith(start)}
    if part:
        there = {name: word for name, word in there.items() if name in shapes}
    if set(there) != set(shapes):
        odd = sorted(set(there) ^ set(shapes))[0]
        side = "holds" if odd in there else "lacks"
        raise CheckpointError(f"it {side} {start}{odd}, unlike this model")
    for name, x in shapes.items():
        if list(x.shape) != meta["shapes"][start + name]:
            held = meta["shapes"][start + name]
            raise CheckpointError(f"it holds {start}{name} {held}, this model wants {list(x.shape)}")
    return meta, there


_NOWHERE = (0, 0)


def _identity_of(folder: Path) -> tuple[int, int]:
    """What stays a folder's own when it is moved: its device and inode; _NOWHERE where there is none."""
    try:
        found = folder.stat()
    except OSError:
        return _NOWHERE
    return found.st_dev, found.st_ino


def rank_of(meta: dict[str, Any], metric: str) -> float | None:
    """What a checkpoint is worth by a metric, the less the better; None where that was not measured at its step."""
    if meta.get("metric", "loss") == metric:
        return saved_rank(metric, meta.get("rank", meta["held_out_loss"]))
    return meta["held_out_loss"] if metric == "loss" else None


def best_step(ranks: dict[int, float | None]) -> int | None:
    """The step of the least rank that is finite."""
    measured = {step: rank for step, rank in ranks.items() if rank is not None and math.isfinite(rank)}
    return min(measured, key=lambda step: measured[step], default=None)


@dataclass
class _Best(policies.PreservationPolicy):
    """Keeps the step of the least rank (the held-out loss): step → rank, or None where it was not measured."""

    ranks: dict[int, float | None]

    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        best = best_step({info.step: self.ranks.get(info.step) for info in checkpoints})
        return [info.step == best for info in checkpoints]


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
        """identity: what makes this run's numbers; a checkpoint of another one is refused. metric: what the best one,
        which is kept, is known by."""
        self.metric = metric
        self.directory = (run_directory / "checkpoints").absolute()
        self.damaged = (run_directory / "damaged").absolute()
        self._place = _identity_of(self.directory.parent)
        self.mesh, self.config, self.identity = mesh, config, identity
        self._manager: ocp.CheckpointManager | None = None
        self._ranks: dict[int, float | None] = {}

    def restore_latest(self, wanted: Any) -> tuple[Any, dict[str, Any]] | None:
        """The newest checkpoint that is good in every number, or None where there is none at all.

        Says what is wrong with each that is not, and lays it aside in `damaged/`. Raises CheckpointError where there
        are checkpoints and none is good.
        """
        found = steps(self.directory)
        bad: list[str] = []
        for step in reversed(found):
            try:
                state, meta = restore(self.directory / str(step), wanted, self.mesh)
            except CheckpointError as error:
                bad.append(f"step {step}: {error}")
                logger.warning(f"checkpoint of {bad[-1]}; trying the one before")
                continue
            if meta["identity"] != self.identity:
                raise ConfigError(
                    f"checkpoint {self.directory / str(step)} is of a run with other settings, text or vocabulary; "
                    "give another --dir"
                )
            if bad:
                self._lay_aside([s for s in found if s > step])
            return state, meta
        if bad:
            raise CheckpointError(
                f"no good checkpoint is left in {self.directory} ({'; '.join(bad)}); "
                "give another --dir to start again from nothing"
            )
        return None

    def _lay_aside(self, bad: list[int]) -> None:
        if jax.process_index() == 0:
            self.damaged.mkdir(exist_ok=True)
            for step in bad:
                os.rename(self.directory / str(step), numbered(self.damaged / str(step), first=0))
            logger.warning(f"moved damaged checkpoints to {self.damaged}")
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices("damaged checkpoints moved")

    def _open(self) -> ocp.CheckpointManager:
        if self._manager is None:
            quiet_orbax()
            if jax.process_index() == 0:
                for left in self.directory.glob("*.orbax-checkpoint-tmp*"):
                    shutil.rmtree(left, ignore_errors=True)
            latest = policies.LatestN(self.config.max_to_keep)
            for step in steps(self.directory):
                with contextlib.suppress(CheckpointError):
                    meta = read_meta(self.directory / str(step))
                    self._ranks[step] = rank_of(meta, self.metric)
            kept: list[Any] = [latest, _Best(self._ranks)]
            if self.config.keep_every:
                kept.append(policies.EveryNSteps(self.config.keep_every))
            options = ocp.CheckpointManagerOptions(
                preservation_policy=policies.AnyPreservationPolicy(kept), enable_async_checkpointing=True
            )
            self._manager = ocp.CheckpointManager(self.directory, options=options)
        return self._manager

    def save(self, step: int, state: Any, meta: dict[str, Any], held_out_loss: float | None) -> None:
        """Begin to write the state of a step; the write goes on in the background.

        The best step, which is kept, is that of the least meta["rank"], or where meta has none of the least loss.

        Raises CheckpointError where the write before this one has failed.
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
        arrays, broken = digests(state, self.mesh)
        if broken:
            good = self.finished
            where = f"the last checkpoint is of step {good}" if good else "there is no checkpoint yet"
            raise Diverged(f"{broken[0]} holds numbers that are not finite at step {step}, not saved; {where}")
        digest: dict[str, Any] = {"arrays": arrays, "meta": text_digest(meta)}
        digest["self"] = text_digest(digest)
        items = ocp.args.Composite(
            state=ocp.args.PyTreeSave(_stored(state)), meta=ocp.args.JsonSave(meta), digest=ocp.args.JsonSave(digest)
        )
        try:
            manager = self._open()
            manager.wait_until_finished()
            self._ranks[step] = rank_of(meta, self.metric)
            manager.save(step, args=items, force=True)
        except Exception as error:
            raise self._failed(error) from error

    def add_evaluation(self, step: int, found: dict[str, Any]) -> None:
        """Keep what an evaluation found of a checkpoint that was saved before it: held_out_loss, rank, metric, best.

        Raises CheckpointError where that could not be written.
        """
        if self._was_moved():
            raise self._failed(FileNotFoundError())
        self._open()
        self._ranks[step] = rank_of(found, self.metric)
        if jax.process_index() == 0:
            try:
                write(self.directory / str(step), found)
            except OSError as error:
                raise self._failed(error) from error

    def _was_moved(self) -> bool:
        return self._place != _NOWHERE and _identity_of(self.directory.parent) != self._place

    def _failed(self, error: BaseException) -> CheckpointError:
        if self._was_moved():  # also where a write was under way then, which failed in its own words
            return CheckpointError(
                f"{self.directory.parent} was moved or removed while it trains, and its newest step is not saved; "
                "start the same command again, with --dir where the run is now"
            )
        space = re.search(r"No space left|File too large|ENOSPC|EFBIG|RESOURCE_EXHAUSTED", str(error))
        files = "Too many open files" in str(error)
        why = "too many open files (ulimit -n)" if files else "the disk is full" if space else _first_line(error)
        good = steps(self.directory)
        last = f"the last good checkpoint is of step {good[-1]}" if good else "there is no checkpoint yet"
        return CheckpointError(f"could not write a checkpoint to {self.directory}: {why}; {last}")

    @property
    def finished(self) -> int:
        """The newest step that is on disk, whole."""
        return (steps(self.directory) or [0])[-1]

    def wait(self) -> None:
        """Until what was begun is on disk. Raises CheckpointError where it could not be written."""
        if self._manager is not None:
            try:
                self._manager.wait_until_finished()
            except Exception as error:
                raise self._failed(error) from error

    def abandon(self) -> None:
        """Let go of the folder whatever happened; for the way out of an error. Of several processes others may be gone,
        and Orbax would wait for them."""
        if self._manager is not None and jax.process_count() == 1:
            with contextlib.suppress(Exception):
                self._manager.close()
            self._manager = None

    def close(self) -> None:
        """Let go of the folder; call wait first."""
        if self._manager is not None:
            try:
                self._manager.close()
            except Exception as error:
                raise self._failed(error) from error
            self._manager = None

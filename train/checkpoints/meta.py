"""The JSON items of checkpoints, verified by their digests, and the choice of a run's checkpoint. Needs no jax."""

import json
import math
import re
from pathlib import Path
from typing import Any, Literal, TypeAlias

from contexture.train.checkpoints.late_evaluation import text_digest, with_evaluation
from contexture.train.errors import CheckpointError, ConfigError
from contexture.train.run.folder import steps
from contexture.train.settings import run_file

FORMAT = 1
Meta: TypeAlias = dict[str, Any]
"""The item `meta` as JSON holds it: format, step, identity, seed, shapes, held_out_loss, lines_read, best, …"""
Step: TypeAlias = int | Literal["best"] | None
"""A checkpoint as a user names it: its step, "best", or None for the run's default (`find_steps`)."""


def read_item(directory: Path, item: str) -> Any:
    """Returns the JSON value of an item, of any type: it may be damaged. Raises CheckpointError if it is no JSON."""
    path = directory / item / "metadata"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"item {item}: {path.name} is missing") from None
    # RecursionError: damaged bytes may be thousands of nested brackets.
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"item {item}: cannot be read ({first_line(error)})") from None


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) < 160 else text[:157] + "…"


def write_failure(error: BaseException) -> str:
    """Returns why a checkpoint could not be written, by the messages of TensorStore and of the system."""
    # Both texts and codes: the message comes from the system, from TensorStore, or from gRPC.
    if re.search(r"No space left|File too large|ENOSPC|EFBIG|RESOURCE_EXHAUSTED", str(error)):
        return "the disk is full"
    return "too many open files (ulimit -n)" if "Too many open files" in str(error) else first_line(error)


def read_json(directory: Path) -> tuple[Meta, dict[str, int]]:
    """Returns (meta, digests of the arrays) of one checkpoint, both verified. Raises CheckpointError."""
    # From the root downward: `digest` vouches for itself, then for `meta`, then for the arrays.
    whole = read_item(directory, "digest")
    digest = dict(whole) if isinstance(whole, dict) else {}
    if digest.pop("self", None) != text_digest(digest):
        raise CheckpointError("item digest: does not match its own digest")
    meta = read_item(directory, "meta")
    # The format before the digest: a newer version may digest in another way, and the message should say so.
    if isinstance(meta, dict) and meta.get("format") != FORMAT:
        raise CheckpointError(f"item meta: has format {meta.get('format')!r}; this version reads format {FORMAT}")
    if text_digest(meta) != digest["meta"]:
        raise CheckpointError("item meta: does not match its digest")
    return with_evaluation(directory, meta, whole), digest["arrays"]


def read_meta(directory: Path) -> Meta:
    """Returns the meta of a checkpoint. Raises CheckpointError if it is damaged."""
    return read_json(directory)[0]


def digest_of(directory: Path) -> str:
    """Returns one digest of everything in a checkpoint. Raises CheckpointError if it has none."""
    # The item lists the digests of arrays and meta, so its own digest covers all of them.
    return text_digest(read_item(directory, "digest"))


def rank_of(meta: Meta, metric: str) -> float | None:
    """Returns a checkpoint's rank by a metric, the lower the better; None if that was not measured at its step."""
    # evaluate.metric may have changed since this step: then only its loss is comparable, which is always measured.
    if meta.get("metric", "loss") == metric:
        return meta.get("rank", meta["held_out_loss"])
    return meta["held_out_loss"] if metric == "loss" else None


def best_step(ranks: dict[int, float | None]) -> int | None:
    """Returns the step of the least finite rank; None if there is none."""
    # A rank that is not finite is of an evaluation that diverged: never the best.
    measured = {step: rank for step, rank in ranks.items() if rank is not None and math.isfinite(rank)}
    return min(measured, key=lambda step: measured[step], default=None)


def best_checkpoint(folder: Path, metric: str) -> tuple[int | None, dict[int, float | None]]:
    """Returns (the step of a run's best checkpoint, or None if none was evaluated; the rank of each good one)."""
    ranks: dict[int, float | None] = {}
    for step in steps(folder / "checkpoints"):
        # A damaged checkpoint is not the best one, however good it was.
        try:
            ranks[step] = rank_of(read_meta(folder / "checkpoints" / str(step)), metric)
        except CheckpointError:
            continue
    return best_step(ranks), ranks


def slim_places(folder: Path) -> tuple[Path, Path, Path]:
    """Returns the folder of a run's checkpoints, and the two that `contexture slim` uses for the old and new ones.

    Their names are specific to it: any other folder next to the checkpoints may be somebody's copy of them.
    """
    # Beside the real folder, if checkpoints/ is a link to another disk: a rename must not cross disks.
    place = (folder / "checkpoints").resolve()
    old, new = (place.with_name(f"{place.name}.contexture-slim-{end}") for end in ("old", "new"))
    return place, old, new


def find_steps(folder: Path, step: Step) -> list[int]:
    """Returns the steps of the checkpoints that may answer for a run, in the order in which they are tried.

    Args:
        folder: the run.
        step: a number for that step alone, "best" for the best alone. None is the best one first if the run has
            evaluate.patience, and then all others, newest first.

    Raises:
        ConfigError: when the run has no checkpoint, or not the one that is asked for.
    """
    existing = steps(folder / "checkpoints")
    # A run without checkpoints: untrained, or between the two renames of `slim`.
    if not existing:
        if slim_places(folder)[1].exists():
            raise ConfigError(f"{folder} was left in the middle of `contexture slim`; give that command again")
        raise ConfigError(f"{folder} holds no checkpoint yet; train it first")
    if isinstance(step, int):
        if step not in existing:
            there = ", ".join(map(str, existing))
            raise ConfigError(f"{folder} holds no checkpoint of step {step}; those there are of step {there}")
        return [step]
    # With patience, training ends some evaluations after the best one: the best step is the run's result.
    evaluate = run_file.read(folder).run.evaluate
    best = best_checkpoint(folder, evaluate.metric)[0] if step == "best" or evaluate.patience else None
    if step == "best":
        if best is None:
            raise ConfigError(f"{folder} holds no checkpoint with a held-out {evaluate.metric}; give --step N")
        return [best]
    # Then the newest first: if the best one is damaged, others may still answer.
    return [*([best] if best is not None else []), *(each for each in reversed(existing) if each != best)]

"""The status of a run: step, losses, speed, whether a process trains it now, newest checkpoint.

Needs no jax, and reads the ends of files only, so it answers at once for a run of any length.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from contexture.train.checkpoints.meta import read_meta
from contexture.train.errors import CheckpointError
from contexture.train.metric_directions import Best, rank
from contexture.train.run.folder import holder_of, steps
from contexture.train.run.goodput import SPLIT, describe_goodput
from contexture.train.run.progress import duration
from contexture.train.run.report import Record, parse_record
from contexture.train.settings.run_file import read

_BLOCK = 1 << 16
"""Bytes of metrics.jsonl that are read at a time, from its end."""


class RunStatus(TypedDict):
    """The state of a run. Numbers that are not known are None.

    state: training, done, stopped (the same command resumes it), imported, or slimmed (it cannot be resumed). A run
    that ended by its patience is done, and stopped_early. step and loss come from the newest line of metrics.jsonl;
    best is the best `metric` (evaluate.metric) up to the newest checkpoint. Losses are in nats, times in seconds.
    goodput: the newest record of the split goodput, without step and split: the share of the wall time of all starts
    that went into steps that were kept, and the seconds of each part.
    """

    run: str
    what: str
    state: str
    process: str | None
    step: int
    steps: int | None
    loss: float | None
    held_out_loss: float | None
    held_out_step: int | None
    tokens_per_second: float | None
    padding_ratio: float | None
    seconds_left: float | None
    seconds_since: float | None
    stopped_early: bool
    metric: str
    best: float | None
    best_step: int | None
    checkpoint: int | None
    checkpoint_seconds: float | None
    goodput: dict[str, float] | None


def status(folder: Path) -> RunStatus:
    """Returns the status of the run in a folder. Raises ConfigError for a folder that is no run."""
    record = read(folder)
    run, metrics = record.run, folder / "metrics.jsonl"
    # The newest line of each split; evaluations may be thousands of training steps apart, so this may read further
    # back.
    newest: dict[str, Record] = {}
    for line in _from_the_end(metrics):
        newest.setdefault(str(line["split"]), line)
        # One of training and one held out: the rest of the file is not read. Totals of goodput follow both.
        if {"train", "dev"} <= newest.keys():
            break
    train, held = newest.get("train", {}), newest.get("dev", {})
    totals = newest.get(SPLIT)
    saved = steps(folder / "checkpoints")
    # An imported run has no metrics, and a file may be lost: then the newest checkpoint tells the step.
    step = max([train.get("step", 0), *saved])
    # Whoever holds the folder's lock is training; without a holder the run is done or waits to be resumed.
    total, process = record.total_steps or run.steps or None, holder_of(folder)
    best = _best(folder, saved[-1]) if saved else Best()
    # Patience has ended in the newest checkpoint, before the last step.
    early = bool(saved) and saved[-1] != total and 0 < run.evaluate.patience <= best.evals_without_improvement
    # metrics.jsonl may have the last step before its checkpoint is saved; a killed run then resumes from an older one.
    finished = early or (bool(saved) and saved[-1] == total)
    trained = "slimmed" if record.slimmed else "done" if finished else "stopped"
    state = "training" if process else "imported" if record.imported else trained
    # A task from our list has a name; the user's own has only its kind.
    kind = run.task.name if run.task.name != "off" else run.task.kind
    return {
        "run": str(folder),
        "what": "static vectors" if run.objective == "static" else f"{run.family} {kind.replace('off', 'pretraining')}",
        "state": state,
        "process": process or None,
        "step": step,
        "steps": None if record.imported else total,
        "loss": train.get("loss"),
        "held_out_loss": held.get("loss"),
        "held_out_step": held.get("step"),
        "tokens_per_second": train.get("tokens_per_second"),
        "padding_ratio": train.get("padding_ratio"),
        "seconds_left": train.get("seconds_left") if process else None,
        "seconds_since": _age(metrics),
        "stopped_early": early and not process,
        "metric": best.metric,
        "best": None if best.rank is None else rank(best.metric, best.rank),
        "best_step": None if best.rank is None else best.step,
        "checkpoint": saved[-1] if saved else None,
        "checkpoint_seconds": _age(folder / "checkpoints" / str(saved[-1])) if saved else None,
        "goodput": {name: x for name, x in totals.items() if name not in ("step", "split")} if totals else None,
    }


def _best(folder: Path, step: int) -> Best:
    """Returns the best evaluation up to a checkpoint, as it stores that; an empty one where it is damaged."""
    try:
        return Best(**read_meta(folder / "checkpoints" / str(step)).get("best", {}))
    except (CheckpointError, TypeError):  # damaged, or of another version, which kept other fields
        return Best()


def describe_status(now: RunStatus) -> str:
    """Returns the state of a run as a few lines for people, of at most 80 columns plus names."""
    # What is unknown is left out: an imported run has no length, a damaged one no losses.
    step = f"step {now['step']:,}" + (f" of {now['steps']:,}" if now["steps"] else "")
    if now["steps"]:
        step += f" ({now['step'] / now['steps']:.0%})"
    early = " (stopped early)" if now["stopped_early"] else ""
    # Line 1 says what it is, line 2 how far it is, line 3 how good; then checkpoint and goodput.
    lines = [f"{now['run']}: {now['what']}", f"  {now['state']}{early}, {step}"]
    if now["process"]:
        lines[-1] += f"; {now['process']}"
    # Figures that are unknown are left out, and with none of them the line.
    figures = []
    if now["loss"] is not None:
        figures.append(f"loss {now['loss']:.4f}")
    if now["held_out_loss"] is not None:
        figures.append(f"held out {now['held_out_loss']:.4f} at step {now['held_out_step']:,}")
    if now["best"] is not None and now["best_step"] != now["held_out_step"]:
        figures.append(f"best {now['metric']} {now['best']:.4g} at step {now['best_step']:,}")
    if now["process"] and now["tokens_per_second"] is not None:
        figures.append(f"{now['tokens_per_second']:,.0f} tokens/s")
    if now["process"] and now["padding_ratio"] is not None:
        figures.append(f"padding ratio {now['padding_ratio']:.2f}")
    if now["seconds_left"] is not None:
        figures.append(f"{duration(now['seconds_left'])} left")
    if figures:
        lines.append("  " + ", ".join(figures))
    if now["checkpoint"] is not None and now["checkpoint_seconds"] is not None:
        lines.append(f"  last checkpoint: step {now['checkpoint']:,}, {duration(now['checkpoint_seconds'])} ago")
    elif now["checkpoint"] is None:
        lines.append("  no checkpoint yet")
    if now["goodput"] is not None:
        lines.append("  " + describe_goodput(now["goodput"], most=2))
    return "\n".join(lines) + "\n"


def _age(path: Path) -> float | None:
    """Returns the seconds since a file was written; None if there is no such file."""
    # Never negative: a file system's clock may be ahead of this machine's.
    try:
        return max(time.time() - path.stat().st_mtime, 0.0)
    except OSError:
        return None


def _from_the_end(path: Path) -> Iterator[Record]:
    """Yields the records of metrics.jsonl, newest first, without damaged lines and a torn last one."""
    try:
        file = open(path, "rb")
    except OSError:
        return
    with file:
        # Block by block towards the beginning; `rest` is the part of a line that begins in an earlier block.
        place, rest = file.seek(0, 2), b""
        while place > 0:
            size = min(_BLOCK, place)
            place -= size
            file.seek(place)
            # The first piece may be the end of a line: only those behind it are whole.
            first, *lines = (file.read(size) + rest).split(b"\n")
            rest = first
            for line in reversed(lines):
                if (record := parse_record(line)) is not None:
                    yield record
        if (record := parse_record(rest)) is not None:
            yield record

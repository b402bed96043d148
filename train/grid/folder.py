"""The folder of a grid: a run's folder for each combination of settings and seed, and grid.json. Needs no jax.

grid.json holds the runs' common settings, the values that vary, the checkpoint that the runs begin from, and the runs
that diverged, which cannot be recognised by their own files.
"""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from contexture.data.errors import DataError
from contexture.data.plain_files import read_plain
from contexture.data.storage import check_no_address, partial_of
from contexture.train.errors import ConfigError
from contexture.train.grid.settings import Grid, Value, shown
from contexture.train.run.folder import INPUTS, as_option, changed_fields, flag, steps
from contexture.train.settings import run_file
from contexture.train.settings.run import Run

logger = logging.getLogger(__name__)

GRID, RESULTS = "grid.json", "results.json"
FEATURES = "features"
"""Folder of the outputs of frozen backbones, shared by the runs."""
FORMAT = 1
_DECIDE = ("steps", "epochs", "evaluate.every", "evaluate.patience")
"""Fields that may change when a run resumes, but decide which of its figures count."""
_ALTERNATIVES = {"epochs": "steps", "steps": "epochs", "optim.warmup": "optim.warmup_fraction"}
"""Field → the field that it overrides: varying the first makes the second meaningless."""


class Checkpoint(TypedDict):
    """The checkpoint of another run. digest: one digest of everything in it."""

    step: int
    digest: str


def check_folder(folder: Path) -> None:
    """Raises ConfigError unless a grid can live in this folder: it is new, empty, or a grid's."""
    if not str(folder).strip() or folder == Path():
        raise ConfigError("dir is empty; say where the grid shall live: --dir DIR")
    check_no_address(folder)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; give a folder as --dir")
    if (folder / "run.json").exists():
        raise ConfigError(f"{folder} is the folder of one run; give a grid another --dir")
    # New, or a grid's: fine. Otherwise only what a killed start may have left is allowed.
    if not folder.exists() or (folder / GRID).exists():
        return
    names = (entry.name for entry in folder.iterdir())
    # The lock, and examples given in Python, are written before grid.json.
    others = sorted(name for name in names if name not in ("lock", INPUTS) and partial_of(name) not in (GRID, RESULTS))
    if others:
        raise ConfigError(
            f"{folder} holds {', '.join(others[:3])}{', …' if len(others) > 3 else ''} and no {GRID}: it is no grid's "
            "folder; give a new or an empty --dir"
        )


def without_shared(folders: Sequence[str]) -> tuple[str, ...]:
    """Returns the folders without those that a grid's runs share (as `DIR/*/` lists them), and logs which."""
    shared = [each for each in folders if Path(each).name in (FEATURES, INPUTS) and (Path(each).parent / GRID).exists()]
    # evaluate DIR/*/ would otherwise stop at a folder that is no run.
    for each in shared:
        logger.info(f"leaving out {each}, which holds what the runs of a grid share")
    return tuple(each for each in folders if each not in shared)


def runs_beneath(folder: Path) -> list[Path]:
    """Returns the runs in the folders below one, ordered by name. A run's folder holds no further runs."""
    found: list[Path] = []
    for place, names, files in os.walk(folder):
        if "run.json" in files:
            found.append(Path(place))
            # Emptying the list stops os.walk from going deeper; hidden folders are no runs either.
            names.clear()
        names[:] = sorted(name for name in names if not name.startswith("."))
    return found


def diverged_runs(grid: Grid) -> dict[str, str]:
    """Returns the diverged runs of the grid in this folder: folder name → reason; {} for a new grid.

    Writes nothing. Raises ConfigError for a grid that was started with other settings. Values and seeds may be added.
    """
    old = _read(grid.folder)
    # A new grid, or one whose training has not started.
    if old is None:
        return {}
    _check_base(grid, old)
    _check_larger(grid, old)
    return dict(old["diverged"])


def check_runs(grid: Grid) -> None:
    """Raises ConfigError if the folder of one of the grid's runs holds a run of other settings, whose figures would
    count: it was trained further by itself, or comes from elsewhere."""
    for run in grid.runs:
        folder = Path(run.dir)
        if not (folder / "run.json").exists() or not steps(folder / "checkpoints"):
            continue
        # A run without a checkpoint is left to training, which starts it over.
        changes = changed_fields(run_file.with_absolute_paths(run), run_file.read(folder))
        for name, (new, was) in changes.items():
            if name != "dir" and (_decides(name, run) or not run_file.may_change(name)):
                raise ConfigError(
                    f"{folder} holds a run with {as_option(name, was)}, which has {as_option(name, new)} in this grid; "
                    "move that folder away, or give the grid another --dir"
                )


def first_checkpoint(folder: Path) -> Checkpoint | None:
    """Returns the checkpoint that the runs of the grid in this folder start from; None before the first run."""
    return (_read(folder) or {}).get("start")


def write(grid: Grid, diverged: Mapping[str, str], start: Checkpoint | None = None) -> None:
    """Writes grid.json, unless it holds the same already. start: the checkpoint that the runs begin from."""
    # The base run with absolute paths: the grid may be continued from another working directory.
    tree = {
        "format": FORMAT,
        "config": run_file.to_json(run_file.with_absolute_paths(grid.base)),
        "grid": {name: list(values) for name, values in grid.values.items()},
        "seeds": grid.seeds,
        "diverged": dict(diverged),
        "start": start,
    }
    write_if_changed(grid.folder / GRID, tree)


def write_if_changed(path: Path, tree: object) -> None:
    """Writes a JSON file, unless it holds the same already."""
    # As JSON gives it back: tuples become lists, so that both sides can be compared.
    plain = json.loads(json.dumps(tree))
    try:
        same = json.loads(read_plain(path)) == plain
    # Missing or damaged: written again.
    except (OSError, DataError, ValueError, RecursionError):
        same = False
    if not same:
        run_file.write_json(path, plain)


def _read(folder: Path) -> dict | None:
    """Returns the content of grid.json, None without one. Raises ConfigError for content that no training writes."""
    path = folder / GRID
    if not path.exists():
        return None
    try:
        tree = json.loads(read_plain(path))
    except (OSError, DataError, ValueError, RecursionError) as error:
        # Nothing is overwritten that cannot be read: the list of diverged runs would be lost.
        raise ConfigError(f"{path} cannot be read: {error}") from None
    # Checked by type, since a user may have edited it: a later KeyError would be a traceback.
    kinds = {"config": dict, "grid": dict, "seeds": int, "diverged": dict}
    kinds |= {"start": dict} if isinstance(tree, dict) and tree.get("start") is not None else {}
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        form = tree.get("format") if isinstance(tree, dict) else None
        raise ConfigError(f"{path} has format {form!r}; this version reads format {FORMAT}")
    for name, kind in kinds.items():
        values = tree[name].values() if name == "grid" and isinstance(tree.get(name), dict) else ()
        if not isinstance(tree.get(name), kind) or not all(isinstance(each, list) for each in values):
            raise ConfigError(f"{path}: {name} is {str(tree.get(name))[:60]!r}, which no training writes; put it back")
    return tree


def _check_base(grid: Grid, old: Mapping) -> None:
    """Raises ConfigError if the runs' common settings differ from those at the start."""
    then = run_file.from_json(old["config"], str(grid.folder / GRID))
    now = run_file.with_absolute_paths(grid.base)
    # Fields that vary have no common value; a field that follows from one (steps from epochs) has none either.
    varied = {*grid.values, *(_ALTERNATIVES.get(name) for name in grid.values)}
    # Compared with absolute paths, so that the same files from another working directory are the same.
    for name, (new, was) in run_file.difference(now, then).items():
        if name == "dir" or name in varied or (run_file.may_change(name) and not _decides(name, now)):
            continue
        raise ConfigError(
            f"{grid.folder} holds a grid with {flag(name)} {_shown(was)}, not {_shown(new)}; give "
            f"{flag(name)} {_shown(was)}, or another --dir"
        )


def _decides(name: str, run: Run) -> bool:
    # Without patience the last step counts, whatever metric chooses the best one.
    return name in _DECIDE or (name == "evaluate.metric" and run.evaluate.patience > 0)


def _check_larger(grid: Grid, old: Mapping) -> None:
    """Raises ConfigError if the grid varies other fields, or lacks a value or a seed that it was started with."""
    # Runs that vary other fields are not comparable; more values and more seeds of the same fields are.
    for name in sorted({*old["grid"]} ^ {*grid.values}):
        which = "varies" if name in old["grid"] else "does not vary"
        raise ConfigError(
            f"{grid.folder} holds a grid that {which} {flag(name)}; vary the same fields, or give another --dir"
        )
    for name, values in grid.values.items():
        # Values as grid.json holds them, to compare alike with alike.
        given = json.loads(json.dumps(list(values)))
        missing = [value for value in old["grid"][name] if value not in given]
        if missing:
            raise ConfigError(
                f"{grid.folder} holds a grid with {flag(name)} {_shown(missing[0])} too; give this value as well, or "
                "another --dir: a grid can only be made larger"
            )
    if grid.seeds < old["seeds"]:
        raise ConfigError(
            f"{grid.folder} holds a grid of --seeds {old['seeds']}, not {grid.seeds}; a grid can only be made larger"
        )


def _shown(value: object) -> str:
    # JSON has lists where a setting has tuples.
    plain: Value = tuple(map(str, value)) if isinstance(value, list | tuple) else value  # type: ignore[assignment]
    return shown(plain)

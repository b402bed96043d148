"""Examples that a Python caller gives: files by their names, or rows in memory, which are written as a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contexture.data.inputs import as_jsonl, is_paths, records
from contexture.data.storage import atomic_file, check_run_path
from contexture.train.errors import ConfigError
from contexture.train.grid.folder import GRID
from contexture.train.run.folder import INPUTS
from contexture.train.settings.run_file import read


def is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str | list | tuple) and not value)


def files_given(given: Any) -> tuple[str, ...] | None:
    """Returns the files that are given, None for examples in memory."""
    if is_empty(given):
        return ()
    if not is_paths(given):
        return None
    return (str(given),) if isinstance(given, str | Path) else tuple(map(str, given))


def files_of(examples: Any, name: str, folder: Path) -> tuple[str, ...]:
    """Returns the files of examples: the given ones, or the file that examples in memory are written to."""
    files = files_given(examples)
    return (str(_inputs(folder, name)),) if files is None else files


def _inputs(folder: Path, name: str) -> Path:
    return folder / INPUTS / f"{name}.jsonl"


def write_examples(given: Mapping[str, Any], kind: str, folder: Path) -> None:
    """Writes the examples in memory into the run's folder."""
    for name, examples in given.items():
        if not is_paths(examples):
            _write_inputs(as_jsonl(records(examples, kind, name)), _inputs(folder, name), folder)


def _write_inputs(content: bytes, file: Path, folder: Path) -> None:
    # The same examples again: the run may be resumed.
    if file.is_file() and file.read_bytes() == content:
        return
    check_run_path(folder)
    if any((folder / "checkpoints").glob("[0-9]*")) or (folder / GRID).exists():
        raise ConfigError(f"{folder} was trained with another {file.name}; give the same examples, or another dir")
    if folder.exists() and not (folder / "run.json").exists() and set(folder.iterdir()) - {folder / INPUTS}:
        raise ConfigError(f"{folder} holds other files and no run.json: it is no run's folder; give another dir")
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(file) as part:
        part.write_bytes(content)


def as_file(examples: Any, run: str | Path, folder: str) -> str:
    """Writes examples in memory, of the run's kind of task, as a file; returns its path."""
    file = Path(folder) / "dev.jsonl"
    file.write_bytes(as_jsonl(records(examples, read(Path(run)).run.task.kind, "dev")))
    return str(file)

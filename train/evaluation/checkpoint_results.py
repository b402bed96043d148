"""Stores the results of a run's checkpoints: a line each in checkpoints.jsonl, and a curve for TensorBoard.

Each line also holds what was evaluated, so that the same command, started again, evaluates only what is missing:

    of            what the result depends on: the data's fingerprint, the batch, the threshold of no answer, the version
    checkpoint    a digest of the checkpoint's digests, which changes with any of its numbers
    written       sha256 of the file of predictions, if there is one
"""

import contextlib
import filecmp
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NotRequired, TypedDict, cast

import jax

from contexture.data.storage import atomic_file, move_aside
from contexture.train.checkpoints.meta import digest_of
from contexture.train.errors import CheckpointError
from contexture.train.evaluation.figures import Calibration
from contexture.train.evaluation.request import EvaluationRequest
from contexture.train.evaluation.submission import SubmittedFile
from contexture.train.evaluation.task_metrics import FileRow, LabelRow
from contexture.train.run.folder import make_folder, steps, versions
from contexture.train.run.report import Figure

logger = logging.getLogger(__name__)

NAME = "checkpoints.jsonl"
_BASELINES = ("majority_", "mean_mse", "unigram_")
"""Prefixes of the names of baseline metrics, which do not depend on a model."""


class CheckpointResult(TypedDict):
    """The evaluation of one checkpoint. A task adds a row for each file, if there are several, a row for each label,
    and the file of predictions; figures add their folder and the calibration."""

    step: int
    metrics: dict[str, Figure]
    by_file: NotRequired[list[FileRow]]
    labels: NotRequired[list[LabelRow]]
    predictions: NotRequired[str]
    figures: NotRequired[str]
    calibration: NotRequired[Calibration | None]


class EvaluationResult(TypedDict):
    """The evaluation of a run: the fields of one CheckpointResult, or `checkpoints`, a list of them.

    Attributes:
        files: the evaluated files, as the request names them, if not the run's own split
        left_out: rows of these files that could not be read
        unknown: for static vectors, the share of words without one
        results: the file with a line for each checkpoint, if all were evaluated
        error: why this run, one of several, could not be evaluated
    """

    run: str
    split: str
    files: NotRequired[list[str]]
    examples: int
    truncated: NotRequired[int]
    left_out: NotRequired[int]
    unknown: NotRequired[float]
    step: NotRequired[int]
    metrics: NotRequired[dict[str, Figure]]
    by_file: NotRequired[list[FileRow]]
    labels: NotRequired[list[LabelRow]]
    predictions: NotRequired[str]
    figures: NotRequired[str]
    calibration: NotRequired[Calibration | None]
    error: NotRequired[str]
    submission: NotRequired[list[SubmittedFile]]
    results: NotRequired[str]
    checkpoints: NotRequired[list[CheckpointResult]]


def numbers_of(metrics: Mapping[str, Figure]) -> list[tuple[str, float]]:
    """Returns the metrics that are numbers, without the baselines."""
    # None is a metric that was not finite.
    return [
        (name, value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not name.startswith(_BASELINES)
    ]


class CheckpointResults:
    """The results of one run's checkpoints on the same data with the same settings. Only process 0 writes."""

    def __init__(
        self, run: Path, to: Path, name: str, split: str, of: Callable[[int], dict[str, object]], events: bool
    ) -> None:
        """Reads the results of earlier calls.

        Args:
            run: the run's folder.
            to: the folder of checkpoints.jsonl and of the predictions.
            name: names the data, in the curve's and the predictions' folders.
            split: names the figures of the curve.
            of: step → what its result depends on, apart from the checkpoint.
            events: whether to write a curve.

        Raises:
            ConfigError: when nothing may be written to `to`.
        """
        self.path, self.split = to / NAME, split
        self._checkpoints, self._name = run / "checkpoints", name
        self._of, self._version = of, versions().get("contexture", "")
        # All processes evaluate and gather; one of them writes.
        self._speaks = jax.process_index() == 0
        self._curve = run / "tensorboard" / f"evaluated-{name}" if events and self._speaks else None
        self._events: Any = None
        if self._speaks:
            # Before the first evaluation, which may take hours.
            make_folder(to, "--to")
        # Processes of a job may see different files: all of them evaluate everything.
        self._stored = _read(self.path) if jax.process_count() == 1 else {}

    def removed_steps(self) -> list[int]:
        """Returns the steps with a result whose checkpoints retention has removed since."""
        # Their results stay in table and curve, though nobody can evaluate them again.
        existing = set(steps(self._checkpoints))
        return [step for step in self._stored if step not in existing and self.stored(step)]

    def stored(self, step: int) -> CheckpointResult | None:
        """Returns the result that an earlier call wrote for this checkpoint, data and settings, or None."""
        digest, of = self.digest(step), self._facts(step)
        # Newest first: a step may have been evaluated on several data, or by several versions.
        for record in self._stored.get(step, ()):
            # digest None: the checkpoint is gone, and the stored result is all there is of it.
            if record["of"] != of or digest not in (None, record["checkpoint"]):
                continue
            result = cast(CheckpointResult, {**record["result"]})
            # Pretraining: there are no predictions.
            if record["written"] is None:
                return result
            # The file of predictions may have been replaced by one for other examples.
            file = self._predictions(step)
            if record["written"] == _sha256(file):
                result["predictions"] = str(file)
                return result
        return None

    def _facts(self, step: int) -> dict[str, object]:
        # Another version of the program may compute other metrics.
        return {**self._of(step), "version": self._version}

    def _predictions(self, step: int) -> Path:
        return self.path.parent / f"{self._name}-{step}" / "predictions.jsonl"

    def digest(self, step: int) -> str | None:
        """Returns the digest of a checkpoint, "" if it is damaged, None if it is gone."""
        try:
            return digest_of(self._checkpoints / str(step))
        except CheckpointError:
            return "" if (self._checkpoints / str(step)).is_dir() else None

    def add(self, result: CheckpointResult, checkpoint: str | None) -> None:
        """Adds the next result, in order of step. checkpoint: the digest of the evaluated checkpoint; None for a stored
        result."""
        if checkpoint is not None and self._speaks:
            facts = {name: value for name, value in result.items() if name != "predictions"}
            # Absolute paths are left out: the line stays true when the run is moved.
            written = _sha256(self._predictions(result["step"])) if "predictions" in result else None
            record = {
                "step": result["step"],
                "of": self._facts(result["step"]),
                "checkpoint": checkpoint,
                "written": written,
                "result": facts,
            }
            # Appended in one write: readers and a kill see whole lines, or a torn last one.
            with open(self.path, "a+b") as file:
                # A line torn by a kill is ended here; `_read` skips it as damaged.
                torn = file.tell() > 0 and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
                file.write(b"\n" * torn + json.dumps(record, ensure_ascii=False).encode() + b"\n")
        if self._curve is not None and (checkpoint is not None or self._events is not None):
            self._draw(self._curve, result["step"], result)

    def _draw(self, curve: Path, step: int, result: CheckpointResult) -> None:
        """Adds a point to the curve. From the first new point on all are written again, since TensorBoard hides older
        event files from the first step of a newer one on."""
        from contexture.train.loggers.tensorboard import Events

        try:
            # Opened with the first new result; a command that finds everything stored writes nothing.
            self._events = self._events or Events(curve, step - 1)
            figures = {name: x for name, x in result["metrics"].items() if isinstance(x, int | float)}
            self._events.add(step, self.split, figures)
            self._events.flush()
        # A curve is a convenience: the evaluation goes on without it.
        except OSError as error:
            logger.warning(f"no curve is written to {curve}: {error.strerror}")
            self._curve = None

    def close(self) -> None:
        """Closes the curve."""
        if self._events is not None:
            self._events.close()
            self._events = None


def _sha256(file: Path) -> str:
    """Returns the sha256 of a file, "" if there is none."""
    try:
        with open(file, "rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError:
        return ""


_FIELDS = {"step": int, "of": dict, "checkpoint": str, "written": (str, type(None)), "result": dict}


def _read(path: Path) -> dict[int, list[dict[str, Any]]]:
    """Returns the records by step, newest first, without damaged lines."""
    records: dict[int, list[dict[str, Any]]] = {}
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return records
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        # A user may have edited the file: only whole records of the right types count. `...` is of no type below.
        if isinstance(record, dict) and all(isinstance(record.get(n, ...), kind) for n, kind in _FIELDS.items()):
            result = record["result"]
            if result.get("step") == record["step"] and isinstance(result.get("metrics"), dict):
                records.setdefault(record["step"], []).insert(0, record)
    return records


def data_name(request: EvaluationRequest) -> str:
    """Returns the name of the split or of the first file, in characters that a folder's name may have."""
    if not request.files:
        return request.split
    # xnli.test.tsv:de → xnli.test-de: the part of a set is in the name, suffixes are not.
    parts = (Path(part).stem for part in Path(request.files[0]).name.split(":"))
    return re.sub(r"[^\w.-]+", "-", ":".join(parts))


def results_folder(folder: Path, request: EvaluationRequest) -> Path:
    return Path(request.to or folder / "evaluations")


def predictions_file(folder: Path, request: EvaluationRequest, step: int) -> Path:
    return results_folder(folder, request) / f"{data_name(request)}-{step}" / "predictions.jsonl"


@contextlib.contextmanager
def writing(path: Path | None) -> Iterator[IO[str] | None]:
    """Yields the file of predictions, open for writing in process 0, else None; it appears at `path` atomically."""
    if path is None or jax.process_index() > 0:
        yield None
        return
    make_folder(path.parent, "--to")
    with atomic_file(path) as part:
        with open(part, "w", encoding="utf-8") as file:
            yield file
        # Still inside: the new file has not taken the name yet, so the old one can be moved.
        if path.is_file() and not filecmp.cmp(part, path, shallow=False):
            # The old file has predictions for other examples, or from before the run was trained further.
            logger.info(f"moved the {path.name} of other examples to {move_aside(path.parent, [path.name], 'earlier')}")


def as_printed(
    folder: Path, request: EvaluationRequest, examples: int, odd: dict[str, float], results: list[CheckpointResult]
) -> EvaluationResult:
    """Returns the results as they are printed: one checkpoint's fields merged with the run's, several as a list."""
    of = {"split": request.split, **({"files": list(request.files)} if request.files else {}), "examples": examples}
    if len(results) > 1 or request.every_step:
        head = {"run": str(folder), **of, **odd}
        return cast(EvaluationResult, {**head, "checkpoints": results})
    # One checkpoint: its figures on the top level of the JSON, where scripts look for them.
    (result,) = results
    head = {"run": str(folder), "step": result["step"], **of, **odd}
    return cast(EvaluationResult, {**head, **{name: value for name, value in result.items() if name != "step"}})

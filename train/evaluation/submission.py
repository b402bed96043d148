"""Files of predictions in the formats of the GLUE and SQuAD servers.

GLUE    DIR/CoLA.tsv, …: `index` and `prediction`, a line for each example, in the order of GLUE's file
SQuAD   DIR/predictions.json: the answer to each question by its id, "" for none; and where questions may have no answer
        DIR/na_probs.json: the probability of none, 1 / (1 + exp(-null_score)). evaluate-v2.0.py --na-prob-file, which
        searches for the best threshold, keeps every answer at its usual threshold of 1.

The examples need no labels; nothing is measured.
"""

import dataclasses
import itertools
import json
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypedDict

import numpy as np

from contexture.data.cancel import CancelToken
from contexture.data.config import TaskConfig
from contexture.data.errors import DataError
from contexture.data.storage import atomic_file
from contexture.data.tasks.read.examples import example_chunks
from contexture.data.tasks.read.read_examples import check_sources, examples, open_table
from contexture.data.text import tfds
from contexture.train import mesh as meshes
from contexture.train.errors import CheckpointError, ConfigError
from contexture.train.evaluation.predict import Predictor
from contexture.train.evaluation.predictions import Prediction
from contexture.train.evaluation.request import EvaluationRequest
from contexture.train.evaluation.steps import steps_named
from contexture.train.run.folder import make_folder
from contexture.train.settings.run_file import RunRecord
from contexture.train.settings.sections import MeshConfig

logger = logging.getLogger(__name__)

Labels: TypeAlias = Mapping[str, str]
"""Label of a run → what is written for it."""


class SubmittedFile(TypedDict):
    """A file of a submission, and the source of its examples."""

    file: str
    source: str
    examples: int


@dataclass(frozen=True)
class _Form:
    """GLUE's format for a task: the name of its file, what is written for each label (none: a number from 0 to 5), and
    the splits that are handed in."""

    file: str
    labels: Labels
    tests: tuple[str, ...] = ("test",)


def _numbered(negative: str, positive: str) -> Labels:
    # TFDS names the classes; GLUE's own files have their numbers.
    return {negative: "0", positive: "1", "0": "0", "1": "1"}


def _named(*labels: str) -> Labels:
    return {label: label for label in labels}


_NLI = _named("entailment", "neutral", "contradiction")
_ENTAILMENT = _named("entailment", "not_entailment")
_GLUE = {
    "cola": _Form("CoLA.tsv", _numbered("unacceptable", "acceptable")),
    "sst2": _Form("SST-2.tsv", _numbered("negative", "positive")),
    "mrpc": _Form("MRPC.tsv", _numbered("not_equivalent", "equivalent")),
    "stsb": _Form("STS-B.tsv", {}),
    "qqp": _Form("QQP.tsv", _numbered("not_duplicate", "duplicate")),
    "mnli": _Form("", _NLI, ("test_matched", "test_mismatched")),
    "qnli": _Form("QNLI.tsv", _ENTAILMENT),
    "rte": _Form("RTE.tsv", _ENTAILMENT),
    "wnli": _Form("WNLI.tsv", _numbered("not_entailment", "entailment")),
}
"""By task name. MNLI's files are named by their source, since its model also answers the diagnostic set."""
_PAIRS = (("sentence1", "sentence2"), ("#1 String", "#2 String"))
"""Column names of pairs in GLUE's own files, which differ from TFDS's."""
_PROBABILITIES = "na_probs.json"
_AT_ONCE = 1024
"""Rows of a TFDS set that are read at a time."""
_HIGHEST = 5.0
"""The highest similarity of two sentences in STS-B."""


def check_submission(folder: Path, record: RunRecord, request: EvaluationRequest) -> list[Path]:
    """Returns the files that will be written.

    Raises:
        ConfigError: when the run's task has no format of submission, or a file exists.
        DataError: for the user's files.
    """
    return [file for _, file in _planned(folder, record, request)]


def _planned(folder: Path, record: RunRecord, request: EvaluationRequest) -> list[tuple[str, Path]]:
    """Returns (source, the file that is written for it) of each source."""
    task, to = record.run.task, Path(request.submission)
    # By the name of the task: a user's own task has no server to hand it to.
    form = _GLUE.get(task.name)
    if form is None and task.kind != "span":
        what = "a pretraining" if task.kind == "off" else f"--task {task.name}" if task.name != "off" else task.kind
        raise ConfigError(f"{folder} is {what}, which has no form of submission; there are {', '.join(_GLUE)} and span")
    # The run was trained on labels that GLUE's files do not have: nothing could be written for them.
    if form is not None and form.labels and (others := [x for x in record.labels if x not in form.labels]):
        expected = ", ".join(form.labels)
        raise ConfigError(f"{folder} has the label {others[0]}, which is none of GLUE {task.name}; it has {expected}")
    # GLUE's server takes its own test sets, which have no labels; for questions the run's own files are handed in.
    own = {"train": task.train, "dev": task.dev, "test": task.test}[request.split]
    tests = tuple(f"tfds:glue/{task.name}:{split}" for split in form.tests) if form is not None else own
    sources = request.files or tests
    if not sources:
        raise ConfigError(f"{folder} names no file of its {request.split} set; give it as --dev F")
    if to.exists() and not to.is_dir():
        raise ConfigError(f"--submission {to} is a file; give a folder")
    planned = [(source, to / _name_of(form, source)) for source in sources]
    # Two sources of one name would overwrite each other, and an older submission is not lost by accident.
    for source, file in planned:
        if [other for _, other in planned].count(file) > 1:
            raise ConfigError(f"{source} and another file would both be {file.name}; give one of them")
        # Both files of SQuAD: an older na_probs.json would not fit new predictions.
        taken = next((each for each in (file, file.with_name(_PROBABILITIES)) if each.exists()), None)
        if taken and not request.overwrite:
            raise ConfigError(f"{taken} is there already; give another --submission, or --overwrite")
    check_sources(sources, "submission")
    return planned


def _name_of(form: _Form | None, source: str) -> str:
    """Returns the name of the file for a source: test_mismatched.tsv → MNLI-mm.tsv. form: None for questions."""
    if form is None or form.file:
        return form.file if form is not None else "predictions.json"
    # tfds:glue/mnli:test_matched → mnli:test_matched; a path → its last part.
    name = (source.rpartition("glue/")[2] if source.startswith(tfds.PREFIX) else Path(source).name).lower()
    # The diagnostic set, which is answered by the model of MNLI.
    if re.match("ax\\b|diagnostic", name):
        return "AX.tsv"
    if "matched" not in name:
        raise ConfigError(
            f"{source}: its name says neither matched, mismatched nor diagnostic; rename it as GLUE has it"
        )
    return "MNLI-mm.tsv" if "mismatched" in name else "MNLI-m.tsv"


def write_submission(
    request: EvaluationRequest, record: RunRecord, cancel: CancelToken
) -> dict[str, str | int | list[SubmittedFile]]:
    """Writes the files of a run's submission, atomically: {"run", "step", "submission": a row for each file}.

    Raises:
        ConfigError: as `check_submission`, and for steps that do not exist.
        DataError: when an example is invalid: each has to be answered.
        CheckpointError: when no checkpoint is good, or a prediction is not a number.
    """
    folder = request.folder
    # Everything is checked before the model is loaded.
    planned = _planned(folder, record, request)
    (step,) = steps_named(folder, request.steps, record.run.evaluate.metric)
    # The model is loaded once, and answers all sources.
    meshes.check_context(request.mesh, record.run.model, record.run.data.length)
    mesh = meshes.build(request.mesh) if request.mesh != MeshConfig() else None
    predictor = Predictor(folder, step=step, batch=request.batch or 64, mesh=mesh)
    make_folder(Path(request.submission), "--submission")
    written: list[SubmittedFile] = []
    for source, file in planned:
        form = _GLUE.get(record.run.task.name)
        answers = _answers(predictor, source, cancel)
        count = _write_glue(form, answers, file, source) if form is not None else _write_squad(predictor, answers, file)
        written.append({"file": str(file), "source": source, "examples": count})
        logger.info(f"{file}: {count:,} predictions for {source}")
    return {"run": str(folder), "step": predictor.loaded.step, "submission": written}


def _answers(predictor: Predictor, source: str, cancel: CancelToken) -> Iterator[tuple[object, Prediction]]:
    """Yields (GLUE's index, the prediction) of each example of a source, in order."""
    task = predictor.run.task
    table = open_table(source, task)
    # A run that was trained on TFDS's names reads GLUE's own files by theirs.
    if predictor.pair:
        task = _with_columns(task, table.names or ())
    # The table is read twice side by side, for its indices and for its examples; both are in the file's order.
    rows = (row for _, row in table.rows)
    ids = itertools.count() if task.kind == "span" else _indices(source, table.names or (), rows)
    for chunk in example_chunks(examples(source, task, labelled=False)):
        # In chunks, so memory does not grow with the file.
        cancel.check()
        for prediction in predictor.answer(chunk):
            yield next(ids), prediction


def _with_columns(task: TaskConfig, names: Sequence[str]) -> TaskConfig:
    lower = [name.lower() for name in names]
    for text, second in _PAIRS:
        if task.text.lower() not in lower and {text, second} <= {*names}:
            return dataclasses.replace(task, text=text, second=second)
    return task


def _indices(source: str, names: Sequence[str], rows: Iterator[object]) -> Iterator[object]:
    """Yields the index in each row, or the row's number from 0 on if it has none."""
    if source.startswith(tfds.PREFIX):
        # TFDS shuffles the rows of a set when it prepares it; only `idx` has their original places.
        records = tfds.open_split(source).records
        for start in range(0, len(records), _AT_ONCE):
            for record in records.__getitems__([*range(start, min(start + _AT_ONCE, len(records)))]):
                if "idx" not in record:
                    raise DataError(f"{source}: it has no column idx, the index of GLUE's file; give GLUE's own file")
                yield int(np.asarray(record["idx"]))
        return
    # GLUE's files say index, copies of TFDS sets idx; others are numbered.
    own = next((name for name in ("index", "idx") if name in names), None)
    for number, row in enumerate(rows):
        if own is None or isinstance(row, DataError):
            yield number
        else:
            yield row[own] if isinstance(row, Mapping) else row[names.index(own)]  # pyright: ignore


def _write_glue(form: _Form, answers: Iterator[tuple[object, Prediction]], file: Path, source: str) -> int:
    lines: list[tuple[object, str]] = []
    for index, answer in answers:
        value = answer.get("prediction", "")
        if form.labels:
            lines.append((index, form.labels[str(value)]))
        elif math.isfinite(float(value)):
            # A regression is not bounded, and the server refuses numbers outside 0 to 5.
            lines.append((index, f"{np.clip(float(value), 0.0, _HIGHEST):.6f}"))
        else:
            raise CheckpointError(f"{source}: the prediction of example {index} is {value}, no number")
    # Back into the order of GLUE's own file.
    if source.startswith(tfds.PREFIX):
        lines.sort(key=lambda line: int(str(line[0])))
    # A header and tab-separated lines, as GLUE's sample submission.
    with atomic_file(file) as part:
        part.write_text("".join(f"{a}\t{b}\n" for a, b in [("index", "prediction"), *lines]), "utf-8")
    return len(lines)


def _write_squad(predictor: Predictor, answers: Iterator[tuple[object, Prediction]], file: Path) -> int:
    given: dict[str, str] = {}
    none: dict[str, float] = {}
    for _, answer in answers:
        # The official scorer wants an entry for every question, "" for no answer.
        given[answer["id"]] = str(answer.get("prediction", ""))
        # A question without any candidate answer has no null score: no answer is certain.
        none[answer["id"]] = _sigmoid(answer.get("null_score", math.inf))
    # Questions that all have an answer have no probability of none.
    if predictor.rules.unanswerable:
        with atomic_file(file.with_name(_PROBABILITIES)) as part:
            part.write_text(json.dumps(none), "utf-8")
    with atomic_file(file) as part:
        part.write_text(json.dumps(given, ensure_ascii=False), "utf-8")
    return len(given)


def _sigmoid(x: float) -> float:
    # Two forms, so that exp never overflows.
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0.0 else math.exp(x) / (1.0 + math.exp(x))

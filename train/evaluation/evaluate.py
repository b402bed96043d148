"""Metrics on held-out data: every example once, exact whatever the batch or the mesh."""

import dataclasses
import filecmp
import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NotRequired, TypedDict, cast

import jax
import numpy as np
from jax.sharding import Mesh

from contexture.data.batches import HeldOut
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.pretraining.bilm_lanes import SAMPLED
from contexture.data.pretraining.shards import Shards
from contexture.data.storage import atomic_file, move_aside
from contexture.data.tasks.batches import HeldOutTask
from contexture.data.tasks.example_store import ExampleStore
from contexture.data.tasks.spans.answer_rules import answer_rules
from contexture.models.model import Model, Outputs, example
from contexture.models.shapes import Params
from contexture.train import mesh as meshes
from contexture.train import run_file
from contexture.train.checkpoints import manager
from contexture.train.checkpoints.transfer import find_step, load_parameters
from contexture.train.compilation.programs import Programs
from contexture.train.config import Run
from contexture.train.distributed import processes
from contexture.train.distributed.agreement import agree_on_content, agree_on_run
from contexture.train.errors import CheckpointError, ConfigError
from contexture.train.evaluation.best import note_better
from contexture.train.evaluation.file_rows import FileRow
from contexture.train.evaluation.held_out import baseline, open_request
from contexture.train.evaluation.outputs import computed
from contexture.train.evaluation.predictions import PredictionCollector, collector_of, metric_names
from contexture.train.evaluation.request import EvaluationRequest
from contexture.train.evaluation.spans import SpanCollector, answer_counts, searched_threshold
from contexture.train.evaluation.task_metrics import LabelRow
from contexture.train.losses import Sum, mean
from contexture.train.objectives import Objective, batch_fields, batch_sizes, objective_of
from contexture.train.options import MeshConfig
from contexture.train.run.folder import make_folder
from contexture.train.run.report import Figure, plain, read_metrics
from contexture.train.run_file import RunRecord
from contexture.train.step import EvaluationStep, evaluation_step

logger = logging.getLogger(__name__)


class CheckpointResult(TypedDict):
    """The evaluation of one checkpoint; of a task also a row for each file, where there are several, a row for each
    label, and the file of predictions."""

    step: int
    metrics: dict[str, Figure]
    by_file: NotRequired[list[FileRow]]
    labels: NotRequired[list[LabelRow]]
    predictions: NotRequired[str]


class EvaluationResult(TypedDict):
    """The evaluation of a run: the fields of one CheckpointResult, or `checkpoints`, a list of them; files: those that
    were evaluated, as the request names them, in place of the run's own split."""

    run: str
    split: str
    files: NotRequired[list[str]]
    examples: int
    truncated: NotRequired[int]
    step: NotRequired[int]
    metrics: NotRequired[dict[str, Figure]]
    by_file: NotRequired[list[FileRow]]
    labels: NotRequired[list[LabelRow]]
    predictions: NotRequired[str]
    checkpoints: NotRequired[list[CheckpointResult]]


def evaluate(
    step: EvaluationStep,
    objective: Objective,
    params: Params,
    held_out: HeldOut,
    mesh: Mesh,
    write: IO[str] | None = None,
    cancel: CancelToken = NEVER,
) -> tuple[dict[str, float], PredictionCollector | SpanCollector | None]:
    """Returns (the loss and all metrics, the predictions of a task or None).

    write gets a JSON line for each example of a task. `cancel` may raise to stop the evaluation.
    """
    totals: dict[str, np.ndarray] = {}
    collector = collector_of(held_out) if isinstance(held_out, HeldOutTask) else None
    for number, sums, predictions in computed(step, params, held_out, mesh, cancel=cancel):
        # A mean over batches would weigh the last, smaller one too much, so totals and weights are added up, in
        # float64: many batches in float32 would lose digits.
        for name, s in sums.items():
            totals[name] = totals.get(name, np.zeros(2)) + np.array([s.total, s.weight], np.float64)
        for record in collector.add(number, predictions) if collector is not None else ():
            if write is not None:
                write.write(json.dumps(record, ensure_ascii=False) + "\n")
    metrics = {name: mean(name, total, weight) for name, (total, weight) in totals.items()}
    loss = sum(coefficient * metrics[name] for name, coefficient in objective.terms.items())
    return {"loss": float(loss), **metrics, **(collector.figures() if collector else {})}, collector


def measured(model: Model, objective: Objective, run: Run, params: Params, store: Shards | ExampleStore) -> list[str]:
    """Returns the names of the metrics that `evaluate` measures, without measuring them; params may be shapes."""
    fields = {name: kind for name, kind in batch_fields(run).items() if name not in SAMPLED}
    batch = example(fields, batch_sizes(run, 1))

    def sums(params: Params) -> dict[str, Sum]:
        outputs = model.apply({"params": params}, batch)
        assert isinstance(outputs, Outputs)
        return objective.sums(outputs, batch)

    of_task: list[str] = []
    if isinstance(store, ExampleStore):
        # Whether questions have no answer says the split that is measured, and not training's.
        spans = store.splits["dev"].spans if store.kind == "span" and "dev" in store.splits else None
        of_task = metric_names(store.kind, store.labels, answer_counts(spans) if spans else ())
    return ["loss", *jax.eval_shape(sums, params), *of_task]


def report_truncated(held_out: HeldOut) -> int | None:
    """Returns how many examples of a task are longer than a sequence, and warns if there are any; None for text."""
    if not isinstance(held_out, HeldOutTask):
        return None
    truncated = held_out.split.longer_than(held_out.length)
    if truncated:
        limit = held_out.length
        logger.warning(f"truncated {truncated:,} of {held_out.count:,} held-out examples to data.length={limit} tokens")
    return truncated


def evaluate_run(
    request: EvaluationRequest, cancel: CancelToken = NEVER, programs: Programs | None = None
) -> EvaluationResult:
    """Evaluates a run's newest good checkpoint, or those of `request.step`.

    It uses the run's own mesh if that fits the devices here, else all of them as copies. programs: the compiled steps
    of the runs before, of which this run takes the one that fits. Raises ConfigError if the folder is no run or holds
    nothing out, DataError for the user's files, CheckpointError if no checkpoint is good.
    """
    folder = request.folder
    record = run_file.read(folder)
    with processes.joined(request.mesh, lambda: manager.steps(folder / "checkpoints")):
        return _evaluate_run(folder, record, request, cancel, programs)


def _evaluate_run(
    folder: Path, record: RunRecord, request: EvaluationRequest, cancel: CancelToken, programs: Programs | None
) -> EvaluationResult:
    run = record.run
    meshes.find_devices()  # before anything else asks jax for them
    agree_on_run(run)
    options = {name: value for name, value in dataclasses.asdict(request).items() if name != "run"}
    processes.agree({"options": options}, "start all processes by one command")
    mesh = _mesh(request.mesh, run)
    steps = _steps_request(folder, request.steps, run.evaluate.metric)
    results: list[CheckpointResult] = []
    with meshes.use(mesh, run.model.dtype), open_request(folder, record, request, mesh, cancel) as (held_out, store):
        objective = objective_of(run)
        truncated = report_truncated(held_out)
        agree_on_content(folder, run, held_out.tokenizer, store)
        known = baseline(held_out, store, cancel) if store is not None else {}
        function: EvaluationStep | None = None
        for number in steps:
            try:
                loaded = load_parameters(folder, run, record.labels, mesh, number)
            except CheckpointError:
                # A damaged checkpoint was logged. Of several it is left out; alone, or the last chance, it is an error.
                if number == steps[-1] and not results:
                    raise
                continue
            # One program serves all checkpoints.
            function = function or evaluation_step(loaded.model, objective, mesh, run, programs)
            file = _predictions_file(folder, request, loaded.step) if run.task.kind != "off" else None
            others = request.files or request.split == "test"
            if isinstance(held_out, HeldOutTask) and held_out.split.spans is not None and record.counts and others:
                # Other questions than those that the threshold was searched on: answered as `predict` answers them.
                held_out.rules = answer_rules(run.task, record.counts, searched_threshold(folder, loaded.step))
            with _writing(file) as write:
                metrics, collector = evaluate(function, objective, loaded.params, held_out, mesh, write, cancel)
            result: CheckpointResult = {
                "step": loaded.step,
                "metrics": {name: plain(value) for name, value in (metrics | known).items()},
            }
            if collector is not None:
                if rows := collector.by_file():
                    result["by_file"] = rows
                result["labels"], result["predictions"] = collector.table(), str(file)
            results.append(result)
    return _joined(folder, request, held_out.count, truncated, results)


def _joined(
    folder: Path, request: EvaluationRequest, examples: int, truncated: int | None, results: list[CheckpointResult]
) -> EvaluationResult:
    """Returns the results as they are printed: one checkpoint's fields beside the run's, several as a list."""
    of = {"split": request.split, **({"files": list(request.files)} if request.files else {}), "examples": examples}
    cut = {"truncated": truncated} if truncated is not None else {}
    if len(results) > 1 or request.steps == ("all",):
        head = {"run": str(folder), **of, **cut}
        return cast(EvaluationResult, {**head, "checkpoints": results})
    (result,) = results
    head = {"run": str(folder), "step": result["step"], **of, **cut}
    return cast(EvaluationResult, {**head, **{name: value for name, value in result.items() if name != "step"}})


def _mesh(given: MeshConfig, run: Run) -> Mesh:
    if given != MeshConfig():
        return meshes.build(given)
    try:
        return meshes.build(run.mesh)
    except ConfigError:
        return meshes.build(MeshConfig())


def _steps_request(folder: Path, words: Sequence[str], metric: str) -> list[int | None]:
    """Returns the steps that the words name: numbers, `best`, `all`; [None], the newest good one, for no words.

    Raises ConfigError for steps that do not exist, and for other words.
    """
    if not words:
        return [None]
    existing = sorted(find_step(folder, None))
    if tuple(words) == ("all",):
        return list(existing)
    steps: list[int | None] = []
    for word in words:
        if word == "best":
            ranks: dict[int, float | None] = {}
            for step in existing:
                try:
                    meta = manager.read_meta(folder / "checkpoints" / str(step))
                except CheckpointError:
                    continue
                ranks[step] = manager.rank_of(meta, metric)
            best = manager.best_step(ranks)
            if best is None:
                raise ConfigError(f"{folder} holds no checkpoint with a held-out figure; give --step N")
            if note := note_better(read_metrics(folder / "metrics.jsonl"), metric, best, ranks):
                logger.warning(note)
            steps.append(best)
        elif word.isascii() and word.isdecimal():
            find_step(folder, int(word))
            steps.append(int(word))
        else:
            raise ConfigError(f"--step {word}: give the numbers of steps, `best`, or `all`")
    return steps


def _predictions_file(folder: Path, request: EvaluationRequest, step: int) -> Path:
    # The name of the split or of the first file, as far as it can be part of a folder's name.
    name = request.split
    if request.files:
        # xnli.test.tsv:de → xnli.test-de: the part of a set counts, and no suffix does.
        parts = (Path(part).stem for part in Path(request.files[0]).name.split(":"))
        name = re.sub(r"[^\w.-]+", "-", ":".join(parts))
    return Path(request.to or folder / "evaluations") / f"{name}-{step}" / "predictions.jsonl"


@contextmanager
def _writing(path: Path | None) -> Iterator[IO[str] | None]:
    """The file of predictions, opened for writing in process 0; it is at `path` whole or not at all."""
    if path is None or jax.process_index() > 0:
        yield None
        return
    make_folder(path.parent, "--to")
    with atomic_file(path) as part:
        with open(part, "w", encoding="utf-8") as file:
            yield file
        if path.is_file() and not filecmp.cmp(part, path, shallow=False):
            # It holds other predictions: of other examples, or of the run before it was trained further.
            logger.info(f"moved the {path.name} of other examples to {move_aside(path.parent, [path.name], 'earlier')}")

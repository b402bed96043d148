"""Metrics on held-out data: every example once, exact whatever the batch or the mesh."""

import contextlib
import dataclasses
import filecmp
import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, NotRequired, TypedDict, cast

import jax
import numpy as np
from jax.sharding import Mesh

from contexture.data.batches import HeldOut
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.pretraining.bilm_lanes import SAMPLED
from contexture.data.pretraining.shards import Shards
from contexture.data.storage import atomic_file, move_aside
from contexture.data.tasks.batch.answer_rules import answer_rules
from contexture.data.tasks.batch.batches import HeldOutTask
from contexture.data.tasks.store.example_store import ExampleStore
from contexture.data.tokenizers.word_level import StaticWords
from contexture.models.families import example
from contexture.models.model import Model, Outputs
from contexture.models.shapes import Params
from contexture.train import mesh as meshes
from contexture.train.checkpoints import manager
from contexture.train.checkpoints.meta import read_meta
from contexture.train.checkpoints.transfer import first_good, load_parameters
from contexture.train.distributed import processes
from contexture.train.distributed.agreement import agree_on_content, agree_on_run
from contexture.train.errors import CheckpointError, ConfigError
from contexture.train.evaluation.checkpoint_results import CheckpointResult, CheckpointResults, numbers_of
from contexture.train.evaluation.figures import Calibration, write_figures
from contexture.train.evaluation.held_out import HeldOutData, baseline, check_request, open_request
from contexture.train.evaluation.predictions import ClassCollector, Collector, collector_of, metric_names
from contexture.train.evaluation.request import EvaluationRequest
from contexture.train.evaluation.spans import answer_counts, searched_threshold
from contexture.train.evaluation.steps import checkpoints_as_written, steps_named, wait_for_first
from contexture.train.evaluation.submission import SubmittedFile, check_submission, write_submission
from contexture.train.evaluation.task_metrics import FileRow, LabelRow
from contexture.train.objectives import Objective, Sum, batch_fields, batch_sizes, mean, objective_of
from contexture.train.run.folder import make_folder
from contexture.train.run.report import Figure, plain
from contexture.train.settings import run_file
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import RunRecord
from contexture.train.settings.sections import MeshConfig
from contexture.train.step import EvaluationStep, computed, evaluation_step

logger = logging.getLogger(__name__)


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


def evaluate(
    step: EvaluationStep,
    objective: Objective,
    params: Params,
    held_out: HeldOut,
    mesh: Mesh,
    write: IO[str] | None = None,
    cancel: CancelToken = NEVER,
) -> tuple[dict[str, float], Collector | None]:
    """Returns (the loss and all metrics, the predictions of a task or None).

    Args:
        step: the jitted evaluation step.
        objective: gives the terms of the loss.
        params: of the model, on the mesh.
        held_out: the batches.
        mesh: the devices.
        write: gets a JSON line for each example of a task.
        cancel: may raise to stop the evaluation.
    """
    totals: dict[str, np.ndarray] = {}
    # Sums come from the device; metrics that are no sums (F1, correlations) from the collected predictions.
    collector = collector_of(held_out) if isinstance(held_out, HeldOutTask) else None
    for number, sums, predictions in computed(step, params, held_out, mesh, cancel=cancel):
        # A mean over batches would weigh the last, smaller one too much, so totals and weights are added up, in
        # float64: many batches in float32 would lose digits.
        for name, s in sums.items():
            totals[name] = totals.get(name, np.zeros(2)) + np.array([s.total, s.weight], np.float64)
        for record in collector.add(number, predictions) if collector is not None else ():
            if write is not None:
                write.write(json.dumps(record, ensure_ascii=False) + "\n")
    # The loss is put together from the means of its terms, as the step does for a batch.
    metrics = {name: mean(name, total, weight) for name, (total, weight) in totals.items()}
    loss = sum(coefficient * metrics[name] for name, coefficient in objective.terms.items())
    return {"loss": float(loss), **metrics, **(collector.figures() if collector else {})}, collector


def measured(model: Model, objective: Objective, run: Run, params: Params, store: Shards | ExampleStore) -> list[str]:
    """Returns the names of the metrics that `evaluate` will return, without computing them; params may be shapes."""
    # Held-out batches have no negatives: they are measured over the whole vocabulary.
    fields = {name: kind for name, kind in batch_fields(run).items() if name not in SAMPLED}
    batch = example(fields, batch_sizes(run, 1))

    def sums(params: Params) -> dict[str, Sum]:
        outputs = model.apply({"params": params}, batch)
        assert isinstance(outputs, Outputs)
        return objective.sums(outputs, batch)

    of_task: list[str] = []
    if isinstance(store, ExampleStore):
        # Scores of questions without an answer exist only if the measured split has some, whatever training has.
        spans = store.splits["dev"].spans if store.kind == "span" and "dev" in store.splits else None
        of_task = metric_names(store.kind, store.labels, answer_counts(spans) if spans else ())
    return ["loss", *jax.eval_shape(sums, params), *of_task]


def report_odd(held_out: HeldOut) -> dict[str, float]:
    """Returns the irregularities of a task's examples: how many are longer than a sequence (with a warning), how many
    rows could not be read, and the share of words without a static vector. {} for text."""
    if not isinstance(held_out, HeldOutTask):
        return {}
    # Counted once for the data, not for each checkpoint.
    truncated = held_out.split.longer_than(held_out.length)
    if truncated:
        limit = held_out.length
        logger.warning(f"truncated {truncated:,} of {held_out.count:,} held-out examples to data.length={limit} tokens")
    left_out = held_out.split.left_out
    odd: dict[str, float] = {"truncated": truncated, **({"left_out": left_out} if left_out else {})}
    if isinstance(held_out.tokenizer, StaticWords):
        odd["unknown"] = held_out.split.share_of(held_out.tokenizer.unk)
    return odd


def evaluate_run(request: EvaluationRequest, cancel: CancelToken = NEVER) -> EvaluationResult:
    """Evaluates the checkpoints that `request.step` names, or the run's default (`find_steps`).

    Uses the run's mesh if it fits the available devices, else pure data parallelism over all of them.

    Raises:
        ConfigError: when the folder is no run or holds nothing out.
        DataError: for the user's files.
        CheckpointError: when no checkpoint is good.
    """
    folder = request.folder
    record = run_file.read(folder)
    if request.submission:
        return cast(EvaluationResult, write_submission(request, record, cancel))
    # A submission is written by one process; everything else may be a job of several.
    with processes.joined(request.mesh, lambda: manager.steps(folder / "checkpoints")):
        return _evaluate_run(folder, record, request, cancel)


def evaluate_runs(requests: Sequence[EvaluationRequest], cancel: CancelToken = NEVER) -> list[EvaluationResult]:
    """Evaluates several runs; those that differ only in rate and seed share the compiled program.

    Raises ConfigError or CheckpointError, before any run is evaluated, for what can be checked in advance. A later
    error of one run is logged, and becomes the `error` of its result.
    """
    # First a cheap look at every run: a mistake in the last one should not cost the evaluation of the others.
    submitted = dict[Path, Path]()
    for request in requests:
        record = run_file.read(request.folder)
        if not request.submission:
            check_request(request.folder, record, request)
        else:
            for file in check_submission(request.folder, record, request):
                if file in submitted:
                    runs = f"{submitted[file]} and {request.folder}"
                    raise ConfigError(f"{runs} would both write {file}; evaluate one of them")
                submitted[file] = request.folder
        # At least the last step asked for must have a checkpoint whose JSON is good.
        for step in steps_named(request.folder, request.steps, record.run.evaluate.metric)[-1:]:
            first_good(request.folder, step, read_meta)
    results = list[EvaluationResult]()
    for request in requests:
        cancel.check()
        logger.info(f"evaluating {request.run}")
        try:
            results.append(evaluate_run(request, cancel))
        except (ConfigError, DataError, CheckpointError) as error:
            # One run that fails must not cost the results of the others.
            logger.warning(f"{request.run} was not evaluated: {error}")
            results.append(cast(EvaluationResult, {"run": str(request.folder), "error": str(error)}))
    return results


def _evaluate_run(folder: Path, record: RunRecord, request: EvaluationRequest, cancel: CancelToken) -> EvaluationResult:
    meshes.find_devices()  # before anything else asks jax for them
    # run.json describes the data only once the training has prepared them.
    if request.watch:
        record = wait_for_first(folder, cancel)
    run = record.run
    agree_on_run(run)
    options = {name: value for name, value in dataclasses.asdict(request).items() if name != "run"}
    processes.agree({"options": options}, "start all processes by one command")
    # Steps may be an iterator without a known end (--watch): results appear as the training writes checkpoints.
    mesh = _mesh(request.mesh, run)
    steps: Iterable[int | None] = (
        checkpoints_as_written(folder, cancel)
        if request.watch
        else steps_named(folder, request.steps, run.evaluate.metric)
    )
    with meshes.use(mesh, run.model.dtype), open_request(folder, record, request, mesh, cancel) as data:
        odd = report_odd(data.held_out)
        # All processes must have read the same examples, or their sums would mix.
        agree_on_content(folder, run, data.held_out.tokenizer, data.store)
        evaluation = _Evaluation(folder, record, request, data, mesh, cancel)
        if not request.every_step:
            results = evaluation.of_steps(steps)
            return _joined(folder, request, data.held_out.count, odd, results)
        with contextlib.closing(evaluation.stored_results()) as stored:
            results = evaluation.of_steps(steps, stored)
            joined = _joined(folder, request, data.held_out.count, odd, results)
            return cast(EvaluationResult, {**joined, "results": str(stored.path), "checkpoints": results})


class _Evaluation:
    """The evaluation of a run's checkpoints, one after the other; one compiled program serves all of them."""

    def __init__(
        self,
        folder: Path,
        record: RunRecord,
        request: EvaluationRequest,
        data: HeldOutData,
        mesh: Mesh,
        cancel: CancelToken,
    ) -> None:
        self.folder, self.record, self.run, self.request = folder, record, record.run, request
        self.data, self.mesh, self.cancel = data, mesh, cancel
        self.objective = objective_of(self.run)
        # The figures of a guess do not depend on the checkpoint: once for all.
        self.known = baseline(data.held_out, data.store, cancel) if data.store is not None else {}

    def stored_results(self) -> CheckpointResults:
        """Opens the results of the run's checkpoints on these data. Raises ConfigError if they cannot be written."""

        # What a stored result must agree in to be taken over; digest and version are compared as well.
        def depends_on(step: int) -> dict[str, object]:
            return {
                "data": self.data.fingerprint,
                "batch": self.data.held_out.batch,
                "threshold": self._threshold(step),
            }

        # Predictions of each step have a folder of their own; the table of all steps is next to these folders.
        to, name = _results_folder(self.folder, self.request), _data_name(self.request)
        return CheckpointResults(self.folder, to, name, self.request.split, depends_on, self.run.log.tensorboard)

    def _threshold(self, step: int) -> float | None:
        """Returns the threshold of no answer for questions other than the dev set, on which it was searched: they are
        answered as `predict` answers them. None where it plays no part."""
        # On the dev set itself the threshold is searched again, so none is given.
        others = self.request.files or self.request.split == "test"
        return searched_threshold(self.folder, step) if self.run.task.kind == "span" and others else None

    def of_steps(self, steps: Iterable[int | None], stored: CheckpointResults | None = None) -> list[CheckpointResult]:
        """Returns the results of checkpoints, and of those that retention has removed since they were evaluated.

        Step None is the run's default (`find_steps`). A checkpoint that is damaged or gone is left out with one line.
        Raises CheckpointError if none is left.
        """
        results: list[CheckpointResult] = []
        failure: CheckpointError | None = None
        before = 0
        for step in self._with_removed(steps, stored):
            self.cancel.check()
            known = stored.stored(step) if stored is not None and step is not None else None
            # Taken before the checkpoint is read: whoever trains the run may remove it at any time.
            digest = stored.digest(step) or "" if stored is not None and step is not None and known is None else None
            try:
                result = known or self._evaluate(step)
            except CheckpointError as error:
                failure = error
                continue
            except ConfigError:
                # Gone between listing and reading: retention removed it, which is no error of the user's.
                if stored is None or (self.folder / "checkpoints" / str(step)).is_dir():
                    raise
                logger.warning(f"checkpoint of step {step}: removed before it was read")
                continue
            results.append(result)
            if stored is not None:
                stored.add(result, digest)
                # A line for each new result, since a large model takes minutes for each.
                if known is None:
                    figures = ", ".join(f"{name} {value:.4g}" for name, value in numbers_of(result["metrics"])[:4])
                    logger.info(f"step {result['step']:,}: {figures}")
                before += known is not None
        if stored is not None and before:
            logger.info(f"{before:,} of {len(results):,} results were in {stored.path} already")
        # Some results are better than none: a damaged checkpoint among others is a warning.
        if failure is not None and not results:
            raise failure
        return results

    @staticmethod
    def _with_removed(steps: Iterable[int | None], stored: CheckpointResults | None) -> Iterator[int | None]:
        # Merged by step, so that the curve and the table are in the order of training.
        removed = sorted(stored.removed_steps()) if stored is not None else []
        for step in steps:
            while removed and step is not None and removed[0] < step:
                yield removed.pop(0)
            yield step
        yield from removed

    def _evaluate(self, number: int | None) -> CheckpointResult:
        """Returns the result of a checkpoint. Raises CheckpointError if it is not good, ConfigError if it is gone."""
        folder, held_out = self.folder, self.data.held_out
        # Parameters alone; the step below is compiled once for all checkpoints (`shared`).
        loaded = load_parameters(folder, self.run, self.record.labels, self.mesh, number)
        step = evaluation_step(loaded.model, self.objective, self.mesh)
        file = _predictions_file(folder, self.request, loaded.step) if self.run.task.kind != "off" else None
        threshold = self._threshold(loaded.step)
        # Each checkpoint has the threshold that its own evaluation on the dev set found.
        if isinstance(held_out, HeldOutTask) and self.record.counts and threshold is not None:
            held_out.rules = answer_rules(self.run.task, self.record.counts, threshold)
        # Predictions are written while the device computes the next batch.
        with _writing(file) as write:
            metrics, collector = evaluate(
                step, self.objective, loaded.unstacked, held_out, self.mesh, write, self.cancel
            )
        result: CheckpointResult = {
            "step": loaded.step,
            "metrics": {name: plain(value) for name, value in (metrics | self.known).items()},
        }
        if collector is not None:
            # Only tasks have predictions, rows by file and rows by label.
            if rows := collector.by_file():
                result["by_file"] = rows
            result["labels"], result["predictions"] = collector.table(), str(file)
        if self.request.figures and isinstance(collector, ClassCollector) and jax.process_index() == 0:
            result["figures"] = self.request.figures
            result["calibration"] = self._draw(collector, loaded.step)
        return result

    def _draw(self, collector: ClassCollector, step: int) -> Calibration | None:
        to, task = Path(self.request.figures), self.run.task
        make_folder(to, "--figures")
        name = task.name if task.name != "off" else self.folder.resolve().name
        title = f"{name} ({_data_name(self.request)}, step {step:,})"
        return write_figures(to, collector.gathered(), collector.table(), title, self.request.theme)


def _joined(
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


def _mesh(given: MeshConfig, run: Run) -> Mesh:
    # A mesh that the user gives is used, or refused.
    if given != MeshConfig():
        return meshes.build(given)
    # A run of many devices is often evaluated on one: metrics do not depend on the mesh.
    try:
        return meshes.build(run.mesh)
    except ConfigError:
        return meshes.build(MeshConfig())


def _data_name(request: EvaluationRequest) -> str:
    """Returns the name of the split or of the first file, in characters that a folder's name may have."""
    if not request.files:
        return request.split
    # xnli.test.tsv:de → xnli.test-de: the part of a set is in the name, suffixes are not.
    parts = (Path(part).stem for part in Path(request.files[0]).name.split(":"))
    return re.sub(r"[^\w.-]+", "-", ":".join(parts))


def _results_folder(folder: Path, request: EvaluationRequest) -> Path:
    return Path(request.to or folder / "evaluations")


def _predictions_file(folder: Path, request: EvaluationRequest, step: int) -> Path:
    return _results_folder(folder, request) / f"{_data_name(request)}-{step}" / "predictions.jsonl"


@contextlib.contextmanager
def _writing(path: Path | None) -> Iterator[IO[str] | None]:
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

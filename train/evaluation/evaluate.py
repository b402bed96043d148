"""Metrics on held-out data, of a run's own or of labelled files: every example once, exact whatever the batch or the
mesh."""

import contextlib
import dataclasses
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, cast

import jax
import numpy as np
from jax.sharding import Mesh

from contexture.data.batches import HeldOut
from contexture.data.bucketing import check_batch
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.config import TaskConfig
from contexture.data.errors import DataError
from contexture.data.pretraining.mixture import MixedHeldOut
from contexture.data.storage import partial_beside
from contexture.data.stores import open_text
from contexture.data.tasks.batch.answer_rules import answer_rules
from contexture.data.tasks.batch.batches import HeldOutTask
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tasks.read.entity_schemes import why_no_entities
from contexture.data.tasks.read.labels import class_weights
from contexture.data.tasks.store.example_store import ExampleSplit, ExampleStore
from contexture.data.tokenizers.base import Tokenizer
from contexture.models.shapes import Params
from contexture.train import mesh as meshes
from contexture.train.checkpoints import manager
from contexture.train.checkpoints.meta import read_meta
from contexture.train.checkpoints.transfer import first_good, load_parameters
from contexture.train.distributed import processes
from contexture.train.distributed.agreement import agree_on_content, agree_on_run
from contexture.train.errors import CheckpointError, ConfigError
from contexture.train.evaluation.checkpoint_results import (
    CheckpointResult,
    CheckpointResults,
    EvaluationResult,
    as_printed,
    data_name,
    numbers_of,
    predictions_file,
    results_folder,
    writing,
)
from contexture.train.evaluation.figures import KINDS, Calibration, write_figures
from contexture.train.evaluation.held_out import HeldOutData, baseline, mean_of_sources, open_held_out, report_odd
from contexture.train.evaluation.predictions import (
    ClassCollector,
    Collector,
    collector_of,
)
from contexture.train.evaluation.request import EvaluationRequest
from contexture.train.evaluation.spans import answer_counts, searched_threshold
from contexture.train.evaluation.steps import checkpoints_as_written, steps_named, wait_for_first
from contexture.train.evaluation.submission import check_submission, write_submission
from contexture.train.objectives import Objective, mean, objective_of
from contexture.train.run.folder import make_folder
from contexture.train.run.report import plain
from contexture.train.run.vocabulary import read_tokenizer
from contexture.train.settings import run_file
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import RunRecord
from contexture.train.settings.sections import MeshConfig
from contexture.train.step import EvaluationStep, computed, evaluation_step

logger = logging.getLogger(__name__)


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
    # By source, for a mixture.
    totals: dict[str, dict[str, np.ndarray]] = {}
    # Sums come from the device; metrics that are no sums (F1, correlations) from the collected predictions.
    collector = collector_of(held_out) if isinstance(held_out, HeldOutTask) else None
    for number, sums, predictions in computed(step, params, held_out, mesh, cancel=cancel):
        # A mean over batches would weigh the last, smaller one too much, so totals and weights are added up, in
        # float64: many batches in float32 would lose digits.
        own = totals.setdefault(held_out.source_at(number) if isinstance(held_out, MixedHeldOut) else "", {})
        for name, s in sums.items():
            own[name] = own.get(name, np.zeros(2)) + np.array([s.total, s.weight], np.float64)
        for record in collector.add(number, predictions) if collector is not None else ():
            if write is not None:
                write.write(json.dumps(record, ensure_ascii=False) + "\n")
    figures = {}
    for source, own in totals.items():
        metrics = {name: mean(name, total, weight) for name, (total, weight) in own.items()}
        # The loss is put together from the means of its terms, as the step does for a batch.
        loss = sum(coefficient * metrics[name] for name, coefficient in objective.terms.items())
        figures[source] = {"loss": float(loss), **metrics}
    return {**mean_of_sources(figures), **(collector.figures() if collector else {})}, collector


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
    with processes.joined(request.mesh, lambda: manager.steps(folder / "checkpoints", ask=False)):
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
            return as_printed(folder, request, data.held_out.count, odd, results)
        with contextlib.closing(evaluation.stored_results()) as stored:
            results = evaluation.of_steps(steps, stored)
            joined = as_printed(folder, request, data.held_out.count, odd, results)
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
        to, name = results_folder(self.folder, self.request), data_name(self.request)
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
        file = predictions_file(folder, self.request, loaded.step) if self.run.task.kind != "off" else None
        threshold = self._threshold(loaded.step)
        # Each checkpoint has the threshold that its own evaluation on the dev set found.
        if isinstance(held_out, HeldOutTask) and self.record.counts and threshold is not None:
            held_out.rules = answer_rules(self.run.task, self.record.counts, threshold)
        # Predictions are written while the device computes the next batch.
        with writing(file) as write:
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
        title = f"{name} ({data_name(self.request)}, step {step:,})"
        return write_figures(to, collector.gathered(), collector.table(), title, self.request.theme)


def _mesh(given: MeshConfig, run: Run) -> Mesh:
    # A mesh that the user gives is used, or refused.
    if given != MeshConfig():
        meshes.check_context(given, run.model, run.data.length)
        return meshes.build(given)
    # A run of many devices is often evaluated on one: metrics do not depend on the mesh.
    try:
        return meshes.build(run.mesh)
    except ConfigError:
        return meshes.build(MeshConfig())


def open_request(
    folder: Path, record: RunRecord, request: EvaluationRequest, mesh: Mesh, cancel: CancelToken
) -> AbstractContextManager[HeldOutData]:
    """Returns the held-out examples that a request asks for, to be used in a `with`.

    Raises:
        ConfigError: when the request does not fit the run.
        DataError: for the user's files.
    """
    check_request(folder, record, request)
    # An ELMo's lanes carry state from batch to batch, so the perplexity depends on how many there are: they must not
    # depend on the number of devices. Only the batch around them is rounded up.
    lanes = request.batch or record.run.evaluate.batch or record.run.data.batch
    batch = meshes.round_up_to_devices(mesh, lanes)
    devices = meshes.batch_devices(mesh)
    if record.run.task.kind == "off":
        return nullcontext(_held_out_text(folder, record, batch, lanes, cancel, devices))
    return _held_out_task(folder, record, request, batch, devices, cancel)


def check_request(folder: Path, record: RunRecord, request: EvaluationRequest) -> None:
    """Raises ConfigError or DataError for a request that does not fit the run, before anything is opened."""
    run = record.run
    if request.figures:
        if run.task.kind not in KINDS:
            kind = "a pretraining" if run.task.kind == "off" else run.task.kind
            raise ConfigError(f"{folder} is {kind}; --figures is for tasks with labels: {', '.join(KINDS)}")
        # The folder is made only when there is something to draw.
        if Path(request.figures).exists() and not Path(request.figures).is_dir():
            raise ConfigError(f"--figures {request.figures} is a file; give a folder")
    if request.batch:
        check_batch(request.batch, "examples")
    # Pretraining has one held-out text, fixed when the run began: nothing to choose.
    if run.task.kind == "off":
        if request.files or request.split != "dev":
            raise ConfigError(f"{folder} is a pretraining: it has its own held-out text (--split dev) and no task")
        if run.objective == "static":
            raise ConfigError(f"{folder} has static vectors and no task; train them for one: contexture finetune")
        if not run.data.path:
            raise ConfigError(f"{folder} was imported and holds no text; tune it to some: pretrain --init {folder} …")
        return
    if request.files and request.split == "train":
        raise ConfigError("--split train and --task.dev both choose the examples; give one of them")
    if request.split == "test" and not request.files and not run.task.test:
        raise ConfigError(f"{folder} was trained without --task.test; give the file as --task.dev F")


def _held_out_text(
    folder: Path, record: RunRecord, batch: int, lanes: int, cancel: CancelToken, devices: int
) -> HeldOutData:
    run = record.run
    shards = open_text(run.data, folder / "data")
    # Digests of the files are checked: a figure on changed text would look like one on the run's own.
    shards.verify(cancel)
    if shards.fingerprint != record.data:
        raise ConfigError(f"{shards.folder} is not the text that {folder} was trained with; put it back")
    # The run's own vocabulary: losses over another one cannot be compared.
    tokenizer = read_tokenizer(folder, record)
    held_out = open_held_out(run, shards, tokenizer, batch, lanes, cancel, devices)
    if held_out is None:
        raise ConfigError(f"{folder} holds nothing out; pretrain with --data.dev F or --data.dev-fraction 0.1")
    return HeldOutData(held_out, shards, shards.fingerprint)


@contextmanager
def _held_out_task(
    folder: Path, record: RunRecord, request: EvaluationRequest, batch: int, devices: int, cancel: CancelToken
) -> Iterator[HeldOutData]:
    run, tokenizer = record.run, read_tokenizer(folder, record)
    store = _open_store(folder, record, cancel)
    if run.task.kind == "tag" and (line := why_no_entities(record.labels)):
        logger.warning(line)

    def held_out(split: ExampleSplit, labels: tuple[str, ...]) -> HeldOut:
        # The training data of an imported model are unknown, so the file decides whether questions may lack an answer.
        counts = answer_counts(split.spans) if split.spans is not None and not record.counts else record.counts
        # The loss weighs each label as in training, by the counts of the training set.
        weights = class_weights(run.task, labels, record.counts)
        # Other questions may have more alternatives than those that were learned from.
        weights = np.pad(weights, (0, max(len(split.labels) - len(weights), 0)), constant_values=1.0)
        # counts decide whether "no answer" is among the answers of a question.
        rules = answer_rules(run.task, counts)
        return HeldOutTask(split, tokenizer, run.data, batch, weights, family=run.family, devices=devices).with_rules(
            rules
        )

    # Other files are encoded now, with the run's labels and layout; its own splits were encoded for training.
    if files := request.files or (run.task.test if request.split == "test" else ()):
        task = dataclasses.replace(run.task, train=(), dev=files, test=(), dev_fraction=0.0)
        with _encoded(task, tokenizer, record, request, folder, cancel) as other:
            batches = held_out(other.splits["dev"], record.labels or other.labels)
            yield HeldOutData(batches, store, other.fingerprint)
        return
    # The run's own examples, encoded when it was trained.
    split = store.splits[request.split] if store is not None else None
    if store is None or split is None or not split.examples:
        raise ConfigError(f"{folder} holds no {request.split} examples; give a file: --task.dev F")
    yield HeldOutData(held_out(split, record.labels), store, f"{store.fingerprint}/{request.split}")


def _open_store(folder: Path, record: RunRecord, cancel: CancelToken) -> ExampleStore | None:
    """Returns the examples that the run was trained on; None if it has none, like an imported run."""
    if not (folder / "data").is_dir():
        return None
    # An imported run has no examples; everything else is checked against its digests.
    store = ExampleStore.open(folder / "data")
    store.verify(cancel)
    if store.fingerprint != record.data:
        raise ConfigError(f"{store.folder} is not the data that {folder} was trained with; put it back")
    return store


@contextmanager
def _encoded(
    task: TaskConfig,
    tokenizer: Tokenizer,
    record: RunRecord,
    request: EvaluationRequest,
    folder: Path,
    cancel: CancelToken,
) -> Iterator[ExampleStore]:
    """Encodes other files with the run's labels, for as long as they are evaluated."""
    # Encoded to disk as for training, so memory does not grow with the file; removed afterwards.
    with _temporary_folder(request, folder) as encoded:
        # One process encodes, the others wait for it.
        if jax.process_index() == 0:
            data = record.run.data
            encode(task, tokenizer, encoded, cancel, record.labels, record.pair, data.length, data.context)
            processes.publish("encoded", "")
        else:
            processes.wait_for("encoded")
        yield ExampleStore.open(encoded)


@contextmanager
def _temporary_folder(request: EvaluationRequest, folder: Path) -> Iterator[Path]:
    """Yields the path of a folder to make, which is removed afterwards; for several processes, one that all see."""
    if jax.process_count() == 1:
        with tempfile.TemporaryDirectory(prefix="contexture-") as temporary:
            yield Path(temporary) / "encoded"
        return
    # /tmp is each machine's own. The results' folder is shared, as it must be for the results.
    if jax.process_index() == 0:
        shared = partial_beside(Path(os.path.realpath(request.to or folder / "evaluations")) / "encoded")
        make_folder(shared.parent, "--to")
        processes.publish("folder of encoded examples", str(shared))
    else:
        shared = Path(processes.wait_for("folder of encoded examples"))
    try:
        yield shared
    finally:
        if jax.process_index() == 0:
            shutil.rmtree(shared, ignore_errors=True)

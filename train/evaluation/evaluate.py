"""Held-out figures: every line once, exact whatever the batch or the mesh."""

import dataclasses
import filecmp
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np
from jax.sharding import Mesh

from contexture.data.batches import HeldOut, iterate, open_held_out
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.pretraining.bilm_lanes import SAMPLED, HeldOutLanes
from contexture.data.pretraining.shards import Shards
from contexture.data.storage import atomic_file, move_aside, partial_beside
from contexture.data.tasks.batches import HeldOutTask, class_weights
from contexture.data.tasks.encode_examples import check_batch, encode
from contexture.data.tasks.example_store import ExampleStore
from contexture.data.tokenizers.word_level import word_tokenizer
from contexture.models.model import Model, example
from contexture.train import cpu_memory, run_file
from contexture.train import mesh as meshes
from contexture.train.checkpoints import manager
from contexture.train.checkpoints.transfer import find_step, load_parameters
from contexture.train.config import Run
from contexture.train.distributed import processes
from contexture.train.distributed.agreement import agree_on_content, agree_on_run
from contexture.train.errors import CheckpointError, ConfigError
from contexture.train.evaluation.best import unigram_baseline
from contexture.train.evaluation.predictions import PredictionCollector, guess, names
from contexture.train.evaluation.request import EvaluationRequest
from contexture.train.losses import Sum
from contexture.train.objectives import Batch, Objective, batch_fields, batch_sizes, mean, objective_of
from contexture.train.options import MeshConfig
from contexture.train.run.data import open_shards, read_tokenizer
from contexture.train.run.folder import make_folder
from contexture.train.run.report import plain
from contexture.train.run_file import RunRecord
from contexture.train.step import evaluation_step

logger = logging.getLogger(__name__)

Step = Callable[[Any, Batch, Any], tuple[dict[str, Sum], dict[str, jax.Array], Any]]
Check = Callable[[], None]


def evaluate(
    step: Step,
    objective: Objective,
    params: Any,
    held_out: HeldOut,
    mesh: Mesh,
    write: IO[str] | None = None,
    cancel: CancelToken = NEVER,
) -> tuple[dict[str, float], PredictionCollector | None]:
    """({"loss": …, and everything measured}, the answers of a task); step is `train.step.evaluation_step`'s.

    Sums of a batch are added up in float64 on the host. write gets a JSON line for each example of a task; check may
    raise to stop it.
    """
    lines = held_out.batch
    rows = meshes.local_rows(mesh, lines)
    totals: dict[str, np.ndarray] = {}
    carry: Any = None
    answers = PredictionCollector(held_out) if isinstance(held_out, HeldOutTask) else None
    with iterate(held_out, 0, held_out.steps, rows) as stream:
        for number, local in stream:
            cancel.check()
            batch = meshes.shard_batch(mesh, local, held_out.fields, lines)
            *found, carry = step(params, batch, carry)
            sums, predictions = jax.device_get(found)
            for name, s in sums.items():
                totals[name] = totals.get(name, np.zeros(2)) + np.array([s.total, s.weight], np.float64)
            if answers is not None:
                for record in answers.add(number, predictions):
                    if write is not None:
                        write.write(json.dumps(record, ensure_ascii=False) + "\n")
    measured = {name: mean(name, total, weight) for name, (total, weight) in totals.items()}
    total = sum(coefficient * measured[name] for name, coefficient in objective.terms.items())
    return {"loss": float(total), **measured, **(answers.figures() if answers else {})}, answers


def measured(model: Model, objective: Objective, run: Run, params: Any, store: Shards | ExampleStore) -> list[str]:
    """The names of what `evaluate` gives; params may be shapes."""
    fields = {name: kind for name, kind in batch_fields(run).items() if name not in SAMPLED}
    batch = example(fields, batch_sizes(run, 1))

    def sums(params: Any) -> dict[str, Sum]:
        return objective.sums(model.apply({"params": params}, batch), batch)  # pyright: ignore[reportArgumentType]

    of_task = names(store.kind, store.labels) if isinstance(store, ExampleStore) else []
    return ["loss", *jax.eval_shape(sums, params), *of_task]


def baseline(held_out: HeldOut, store: Shards | ExampleStore, cancel: CancelToken = NEVER) -> dict[str, float]:
    """What guessing gives on the held-out lines: by frequency alone on their slots, or the same label for all. `cancel`
    may raise to stop the counting."""
    if isinstance(held_out, HeldOutTask):
        return guess(store, held_out.split) if isinstance(store, ExampleStore) else {}
    assert isinstance(store, Shards)
    names = {"next": "next_weights", "next_backward": "next_weights_backward", "labels": "slot_weights"}
    counts_V = np.zeros(store.vocabulary, np.int64)
    for step in range(held_out.steps):
        cancel.check()
        batch = held_out.read(step)
        for truth in names.keys() & held_out.fields.keys():
            counts_V += np.bincount(batch[truth][batch[names[truth]] > 0], minlength=store.vocabulary)
    if isinstance(held_out, HeldOutLanes):  # what begins a sentence, backwards, is counted as what ends one
        words = word_tokenizer(store.tokenizer)
        counts_V[words.end] += counts_V[words.begin]
        counts_V[words.begin] = 0
    return unigram_baseline(store.unigrams(), counts_V)


def report_truncated(held_out: HeldOut) -> dict[str, int]:
    """{"truncated": how many examples of a task are longer than a sequence}; warns where there are any."""
    if not isinstance(held_out, HeldOutTask):
        return {}
    cut = held_out.split.longer_than(held_out.length)
    if cut:
        most = held_out.length
        logger.warning(f"truncated {cut:,} of {held_out.count:,} held-out examples to data.length={most} tokens")
    return {"truncated": cut}


def evaluate_run(request: EvaluationRequest, cancel: CancelToken = NEVER) -> dict[str, Any]:
    """{"run", "step", "split", "examples", "metrics"} of a run's newest good checkpoint, or of those of `request.steps`
    ({"run", "split", "examples", "checkpoints": [{"step", "metrics", …}]}), on the run's own mesh where it fits the
    devices here, else on all of them as copies. A task's has "labels", its table, and "predictions", the file of them.

    Raises ConfigError where the folder is no run or holds nothing out, DataError for the user's files, CheckpointError
    where no checkpoint is good.
    """
    folder = request.folder
    record = run_file.read(folder)
    cpu_memory.tune_cpu_allocator()
    with processes.joined(request.mesh, lambda: manager.steps(folder / "checkpoints")):
        return _evaluate_run(folder, record, request, cancel)


def _evaluate_run(folder: Path, record: RunRecord, request: EvaluationRequest, cancel: CancelToken) -> dict[str, Any]:
    run = record.run
    meshes.prepare_jax(run.model.dtype)
    agree_on_run(run)
    options = {name: value for name, value in dataclasses.asdict(request).items() if name != "run"}
    processes.agree({"options": options}, "start all processes by one command")
    mesh = _mesh(request.mesh, run)
    steps = _steps_request(folder, request.steps, run.evaluate.metric)
    results = []
    with jax.set_mesh(mesh), _held_out(folder, record, request, mesh, cancel) as (held_out, store):
        objective = objective_of(run)
        cut = report_truncated(held_out)
        agree_on_content(folder, run, held_out.tokenizer, store)
        known = baseline(held_out, store, cancel) if store is not None else {}
        function: Step | None = None
        for number in steps:
            try:
                loaded = load_parameters(folder, run, record.labels, mesh, number)
            except CheckpointError:
                if number == steps[-1] and not results:
                    raise
                continue  # said by then
            function = function or evaluation_step(loaded.model, objective, mesh)
            file = _predictions_file(folder, request, loaded.step) if run.task.kind != "off" else None
            with _writing(file) as write:
                figures, answers = evaluate(function, objective, loaded.params, held_out, mesh, write, cancel)
            metrics = {name: plain(value) for name, value in (figures | known).items()}
            more = {"labels": answers.table(), "predictions": str(file)} if answers is not None else {}
            results.append({"step": loaded.step, "metrics": metrics, **more})
    head = {"run": str(folder), "split": request.split, "examples": held_out.count, **cut}
    if len(results) > 1 or request.steps == ("all",):
        return {**head, "checkpoints": results}
    first = results[0]
    return {"run": head["run"], "step": first.pop("step"), **{k: head[k] for k in ("split", "examples", *cut)}, **first}


def _mesh(given: MeshConfig, run: Run) -> Mesh:
    if given != MeshConfig():
        return meshes.build(given)
    try:
        return meshes.build(run.mesh)
    except ConfigError:
        return meshes.build(MeshConfig())


def _steps_request(folder: Path, words: Sequence[str], metric: str) -> list[int | None]:
    """`100 200`, `best`, `all`, or nothing (the newest good one: None)."""
    if not words:
        return [None]
    there = sorted(find_step(folder, None))
    if tuple(words) == ("all",):
        return list(there)
    found: list[int | None] = []
    for word in words:
        if word == "best":
            ranks: dict[int, float | None] = {}
            for step in there:
                try:
                    meta = manager.read_meta(folder / "checkpoints" / str(step))
                except CheckpointError:
                    continue
                ranks[step] = manager.rank_of(meta, metric)
            best = manager.best_step(ranks)
            if best is None:
                raise ConfigError(f"{folder} holds no checkpoint with a held-out figure; give --step N")
            found.append(best)
        elif word.isascii() and word.isdecimal():
            find_step(folder, int(word))
            found.append(int(word))
        else:
            raise ConfigError(f"--step {word}: give the numbers of steps, `best`, or `all`")
    return found


@contextmanager
def _held_out(
    folder: Path, record: RunRecord, request: EvaluationRequest, mesh: Mesh, cancel: CancelToken
) -> Iterator[tuple[HeldOut, Shards | ExampleStore | None]]:
    """The held-out examples request for, and what the run was trained on, where that is still there."""
    run = record.run
    if request.batch:
        check_batch(request.batch)
    lanes = request.batch or run.evaluate.batch or run.data.batch
    lines = meshes.round_up_to_devices(mesh, lanes)
    if run.objective == "span":
        raise ConfigError(f"{folder} answers questions out of texts, which is no task here yet; export it, or embed")
    if run.task.kind == "off":
        if request.files or request.split != "dev":
            raise ConfigError(f"{folder} is a pretraining: it has its own held-out text (--split dev) and no task")
        if not run.data.path:
            raise ConfigError(f"{folder} was imported and holds no text; tune it to some: pretrain --init {folder} …")
        shards = open_shards(folder, run)
        shards.verify(cancel)
        if shards.fingerprint != record.data:
            raise ConfigError(f"{shards.folder} is not the text that {folder} was trained with; put it back")
        tokenizer = read_tokenizer(folder, record)
        held_out = open_held_out(shards, tokenizer, run.data, run.task, run.family, lines, lanes, cancel)
        if held_out is None:
            raise ConfigError(f"{folder} holds nothing out; pretrain with --data.dev F or --data.dev-fraction 0.1")
        yield held_out, shards
        return
    tokenizer = read_tokenizer(folder, record)
    store = ExampleStore.open(folder / "data") if (folder / "data").is_dir() else None
    if store is not None:
        store.verify(cancel)
        if store.fingerprint != record.data:
            raise ConfigError(f"{store.folder} is not the data that {folder} was trained with; put it back")
    if request.files and request.split == "train":
        raise ConfigError("--split train and --task.dev both say what to look at; give one of them")
    paths = request.files or (run.task.test if request.split == "test" else ())
    if request.split == "test" and not paths:
        raise ConfigError(f"{folder} was trained without --task.test; give the file as --task.dev F")
    if not paths:
        split = store.splits[request.split] if store is not None else None
        if split is None or not split.examples:
            raise ConfigError(f"{folder} holds no {request.split} examples; give a file: --task.dev F")
        weights = class_weights(run.task, record.labels, record.counts)
        yield HeldOutTask(split, tokenizer, run.data, lines, weights, family=run.family), store
        return
    task = dataclasses.replace(run.task, train=(), dev=paths, test=(), dev_fraction=0.0)
    with _shared_place(request, folder) as place:
        if jax.process_index() == 0:
            encode(task, tokenizer, place, cancel, record.labels, record.pair)
            processes.publish("encoded", "")
        else:
            processes.wait_for("encoded")
        other = ExampleStore.open(place)
        weights = class_weights(run.task, record.labels or other.labels, record.counts)
        yield HeldOutTask(other.splits["dev"], tokenizer, run.data, lines, weights, family=run.family), store


@contextmanager
def _shared_place(request: EvaluationRequest, folder: Path) -> Iterator[Path]:
    """A folder to be made and taken away again; where there are several processes, one that all of them see."""
    if jax.process_count() == 1:
        with tempfile.TemporaryDirectory(prefix="contexture-") as temporary:
            yield Path(temporary) / "encoded"
        return
    if jax.process_index() == 0:
        place = partial_beside(Path(os.path.realpath(request.to or folder / "evaluations")) / "encoded")
        make_folder(place.parent, "--to")
        processes.publish("place of encoded examples", str(place))
    else:
        place = Path(processes.wait_for("place of encoded examples"))
    try:
        yield place
    finally:
        if jax.process_index() == 0:
            shutil.rmtree(place, ignore_errors=True)


def _predictions_file(folder: Path, request: EvaluationRequest, step: int) -> Path:
    looked_at = re.sub(r"[^\w.-]+", "-", Path(request.files[0]).stem) if request.files else request.split
    return Path(request.to or folder / "evaluations") / f"{looked_at}-{step}" / "predictions.jsonl"


@contextmanager
def _writing(path: Path | None) -> Iterator[IO[str] | None]:
    """A file that is there whole or not at all; process 0 writes."""
    if path is None or jax.process_index() > 0:
        yield None
        return
    make_folder(path.parent, "--to")
    with atomic_file(path) as part:
        with open(part, "w", encoding="utf-8") as file:
            yield file
        if path.is_file() and not filecmp.cmp(part, path, shallow=False):  # of other examples, or another split
            logger.info(f"moved the {path.name} of other examples to {move_aside(path.parent, [path.name], 'earlier')}")

"""Predictions for new examples: from a file of any size, or given in Python."""

import dataclasses
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Required, TypedDict, cast

import numpy as np
from jax.sharding import Mesh

from contexture.data.bucketing import check_batch, power_of_two
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.packing import Shape
from contexture.data.storage import atomic_file, is_address
from contexture.data.tasks.batch.answer_rules import AnswerRules, answer_rules
from contexture.data.tasks.batch.batches import HeldOutTask
from contexture.data.tasks.batch.document_context import chunks_in_documents
from contexture.data.tasks.encode.example_tokens import (
    encode_chunk,
    in_memory,
    reader,
    same_shape,
    window_of,
    with_context,
)
from contexture.data.tasks.encode.windows import span_layout
from contexture.data.tasks.read.examples import (
    CHUNK,
    ChoiceExample,
    Example,
    Pair,
    QuestionExample,
    Tagged,
    Text,
    example_chunks,
)
from contexture.data.tasks.read.file_report import FileReport
from contexture.data.tasks.read.labels import Labels
from contexture.data.tasks.read.read_examples import check_documents, check_sources, examples, examples_of
from contexture.data.tasks.store.example_store import ExampleSplit
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.open_vocabulary import OpenVocabulary
from contexture.data.tokenizers.word_level import WordNumbers
from contexture.train import mesh as meshes
from contexture.train.checkpoints.meta import Step, find_steps
from contexture.train.checkpoints.transfer import Loaded, load_parameters
from contexture.train.errors import ConfigError
from contexture.train.evaluation.predictions import Prediction, collector_of
from contexture.train.evaluation.spans import SpanAnswer, searched_threshold
from contexture.train.objectives import objective_of
from contexture.train.run.folder import make_folder
from contexture.train.run.vocabulary import read_tokenizer
from contexture.train.settings import run_file
from contexture.train.settings.sections import MeshConfig
from contexture.train.step import computed, evaluation_step

logger = logging.getLogger(__name__)


class FilePrediction(TypedDict, total=False):
    """The record of one example of a file: its texts, and the fields of its Prediction."""

    id: Required[str]
    text: str
    second: str
    choices: list[str]
    words: list[str]
    question: str
    label: str | float
    prediction: str | float
    labels: list[str]
    predictions: list[str]
    scores: dict[str, float] | list[float]
    null_score: float
    n_best: list[SpanAnswer]
    truncated: bool


class PredictFileResult(TypedDict):
    """The predictions of a file. unknown: the fraction of tokens that are the unknown one."""

    run: str
    step: int
    examples: int
    truncated: int
    unknown: float
    predictions: str


class Predictor:
    """A fine-tuned run, ready to predict: `Predictor("runs/intents")(["Where is my card?"])`."""

    report: FileReport | None = None
    """Counts irregularities in the examples of a file."""

    def __init__(
        self,
        run: str | Path,
        *,
        step: Step = None,
        batch: int = 64,
        mesh: Mesh | None = None,
        loaded: Loaded | None = None,
    ) -> None:
        """Loads the run.

        Args:
            run: its folder.
            step: the checkpoint, as `find_steps` takes it.
            batch: examples at a time.
            mesh: the devices; None for all of them.
            loaded: the run's parameters on this mesh, if they are loaded already.

        Raises:
            ConfigError: when the folder is no fine-tuned run or holds no checkpoint.
            CheckpointError: when no checkpoint is good.
            DataError: when the batch has no sequences, or too many.
        """
        check_batch(batch, "examples")
        # run.json first: it needs no jax, and refuses most mistakes.
        self.folder = Path(run)
        record = run_file.read(self.folder)
        self.run = record.run
        if self.run.task.kind == "off":
            raise ConfigError(f"{run} was pretrained and not fine-tuned for a task: contexture finetune {run} --task …")
        # Refused before parameters are read and devices are started.
        find_steps(self.folder, step)
        self.labels: tuple[str, ...] = record.labels
        self.pair: bool | None = record.pair
        self.tokenizer: Tokenizer = read_tokenizer(self.folder, record)
        self.mesh: Mesh = mesh or meshes.build(MeshConfig())
        self.batch = batch
        # The mesh decides how parameters are sharded, and which attention kernel the model gets.
        with meshes.use(self.mesh, self.run.model.dtype):
            self.loaded: Loaded = loaded or load_parameters(self.folder, self.run, self.labels, self.mesh, step)
        # For questions: n best, length, and the threshold of no answer that the dev set gave for this checkpoint.
        self.rules: AnswerRules = answer_rules(
            self.run.task, record.counts, searched_threshold(self.folder, self.loaded.step)
        )
        self.truncated = 0
        """Number of examples so far that were longer than the model's sequences, or whose question was cut."""
        self._shape: tuple[Shape, float] | None = None
        """The rows of the last large chunk, and the tokens of its sequences on average."""
        self._step = evaluation_step(self.loaded.model, objective_of(self.run), self.mesh)

    def __call__(self, texts: Sequence[object]) -> list[Prediction]:
        """Returns {"prediction", "scores"} for each text, in order, with "truncated": True if a text or a question lost
        its end (and one warning).

        A text is a str, or a pair of str; for tags a list of words, for choices (text, [alternative, …]), for spans
        (question, context); or all are dicts of columns, like the rows of a file. A text or a word that the vocabulary
        cannot spell is read as the unknown token. Raises DataError for anything else.
        """
        if isinstance(texts, str):
            raise DataError("give a list of texts, also for one: [text]")
        # Rows of columns are read as a file's; a mixture is refused below, example by example.
        rows = [text for text in texts if isinstance(text, Mapping)]
        if rows and len(rows) == len(texts):
            given = examples_of(rows, self.run.task)
        else:
            given = [self._example(text, f"text:{number}") for number, text in enumerate(texts)]
        # In the order of the texts, whatever batches they were in.
        records = [record for _, records in self.chunks(given) for record in records]
        if cut := sum(record.get("truncated", False) for record in records):
            logger.warning(self._truncated(cut, len(records)))
        return records

    def _truncated(self, cut: int, examples: int) -> str:
        limit = f"{self.run.data.length} tokens"
        if self.run.task.kind == "span":
            return f"truncated the questions of {cut:,} of {examples:,} examples, to fit sequences of {limit}"
        return f"truncated {cut:,} of {examples:,} examples to {limit}"

    def _example(self, text: object, origin: str) -> Example:
        if self.run.task.kind == "choice":
            return self._choice(text, origin)
        # By the kind of task; every misfit names the example by its number in the list.
        given = [text] if isinstance(text, str) else list(text) if isinstance(text, list | tuple) else []
        parts = [part for part in given if isinstance(part, str)]
        if not parts or len(parts) < len(given):
            raise DataError(f"{origin}: {text!r} is not a text, a pair of texts or, for tags, a list of words")
        # Words are the user's: a text is split at white space, a list is used unchanged.
        if self.run.task.kind == "tag":
            return Tagged(tuple(text.split() if isinstance(text, str) else parts), None, origin)
        if self.run.task.kind == "span":
            if len(parts) != 2:
                raise DataError(f"{origin}: {text!r} is no question with its context: (question, context)")
            return QuestionExample(origin, parts[0], parts[1], None, origin)
        if len(parts) > 2:
            raise DataError(f"{origin}: {len(parts)} texts are neither one nor a pair")
        return Text(parts[0], None, origin) if len(parts) == 1 else Pair(parts[0], parts[1], None, origin)

    def _choice(self, item: object, origin: str) -> ChoiceExample:
        # Checked by hand: a string of two letters would unpack as well.
        text, choices = item if isinstance(item, list | tuple) and len(item) == 2 else (None, None)
        choices = choices if isinstance(choices, list | tuple) else ()
        if not isinstance(text, str) or not choices or not all(isinstance(choice, str) for choice in choices):
            raise DataError(f"{origin}: {item!r} is not a text with a list of alternatives: (text, [one, another])")
        return ChoiceExample(text, tuple(choices), None, origin)

    def chunks(self, given: Iterable[Example]) -> Iterator[tuple[list[Example], Iterator[Prediction]]]:
        """Yields (a chunk of examples, their records), chunk by chunk. With document context, sentences of neighbouring
        chunks are context too."""
        # The neighbours of a chunk's first and last sentence are in other chunks of the stream.
        if self.run.data.context == "document":
            for before, chunk, after in chunks_in_documents(given, CHUNK, self.run.data.length):
                yield chunk, self.answer(chunk, before, after)
        else:
            for chunk in example_chunks(given):
                yield chunk, self.answer(chunk)

    def answer(
        self, given: Sequence[Example], before: Sequence[Example] = (), after: Sequence[Example] = ()
    ) -> Iterator[Prediction]:
        """Yields a record for each example of a chunk, in order. before, after: neighbouring sentences, from the
        documents of its first and its last example."""
        # Encoded as the training examples were, but in memory.
        kind, origin = self.run.task.kind, given[0].origin
        numbers = reader(self.tokenizer)
        # A choice has no labels but its alternatives; a regression has one output.
        labels = Labels(self.labels or (() if kind == "choice" else ("",)), bool(self.run.task.labels))
        # Questions and long texts are cut into windows, with the run's own stride and length.
        layout = span_layout(self.run.task, self.run.data.length)
        context = self.run.data.context
        limit, windows = self.run.data.length, self.run.task.windows
        window = window_of(self.run.task, limit)
        if window and any(isinstance(example, Pair) for example in given):
            raise DataError(f"{origin}: a pair of texts, and the run reads single texts, in windows; give one text")
        # Tokens, labels and windows of the chunk, as the files of a training set would have them.
        encoded = encode_chunk(given, kind, numbers, labels, self.report, layout, context, window)
        same_shape(encoded, self.pair, origin)
        if before or after:
            # No report here: irregularities in these are reported with their own chunks.
            parts = [encode_chunk(x, kind, numbers, labels, context=context) if x else None for x in (before, after)]
            encoded = with_context(parts[0], encoded, parts[1])
        # An ELMo's words outside the vocabulary are read by their characters, which come with the chunk.
        char_ids = numbers.char_ids() if isinstance(numbers, OpenVocabulary) else None
        names = tuple(labels.numbers) if kind == "choice" else self.labels
        source, by_words = origin.rpartition(":")[0], isinstance(numbers, WordNumbers)
        split = in_memory(encoded, kind, names, source, self.run.task.symmetric, char_ids, by_words, windows)
        # Windows always fit, so nothing is cut there; of questions only the question itself may be.
        cut = np.concatenate([split.are_longer(part, limit) for part in split.parts()]).tolist()[: split.count]
        cut = encoded.spans.cut if encoded.spans else cut
        self.truncated += sum(cut)
        # A few examples make a small batch, of a power of two: few programs are compiled.
        batch = meshes.round_up_to_devices(self.mesh, min(self.batch, power_of_two(split.examples)))
        held_out = HeldOutTask(
            split,
            self.tokenizer,
            self.run.data,
            batch,
            shape=self._rows(split),
            family=self.run.family,
            devices=meshes.batch_devices(self.mesh),
        ).with_rules(self.rules)
        if split.examples >= self.batch:
            self._shape = held_out.shape, _mean_tokens(split)
        # From here on as in an evaluation: batches, the same compiled step, records in the order of the examples.
        collector = collector_of(held_out, labelled=False)
        with meshes.use(self.mesh, self.run.model.dtype):
            records = (
                record
                for number, _, predictions in computed(self._step, self.loaded.unstacked, held_out, self.mesh, {})
                for record in cast(Iterator[Prediction], collector.add(number, predictions))
            )
            # One record for each example, in order: so the flags fit.
            for record, lost in zip(records, cut, strict=True):
                if lost:
                    record["truncated"] = True
                yield record

    def _rows(self, split: ExampleSplit) -> Shape | None:
        """Returns the rows of a chunk's batches: the ones of the first large chunk, so that later ones are compiled for
        nothing new; None for what suits the chunk."""
        if self._shape is None or split.examples < self.batch:
            return None
        shape, mean = self._shape
        # A later chunk may have a longer sequence, or texts for which other rows are better.
        fits = shape.width >= min(split.longest + 2, self.run.data.length)
        return shape if fits and 2 / 3 <= _mean_tokens(split) / mean <= 3 / 2 else None


def _mean_tokens(split: ExampleSplit) -> float:
    return float(np.mean([split.tokens_of(part).mean() for part in split.parts()])) + 2


def predict_file(
    predictor: Predictor,
    source: str,
    to: Path,
    columns: dict[str, str],
    cancel: CancelToken = NEVER,
    *,
    overwrite: bool = False,
) -> PredictFileResult:
    """Writes a JSON line for each example of a file: its text, the prediction, the scores. Memory is bounded.

    Args:
        predictor: the model.
        source: the file of examples.
        to: the file to write, atomically.
        columns: task.text, task.second, task.choices, task.header, if they differ from the training set's.
        cancel: may raise to stop the work.
        overwrite: whether to replace an older file.

    Raises:
        ConfigError: when `to` cannot be written.
        DataError: for the user's file.
    """
    check_sources((source,), "input")
    if predictor.run.data.context == "document":
        check_documents((source,))
    try:
        task = dataclasses.replace(predictor.run.task, **{name: word for name, word in columns.items() if word})
    except ValueError as error:
        raise ConfigError(str(error)) from None
    # Everything that can be refused has been refused by here: reading may take hours.
    to = _free_file(to, overwrite)
    count = 0
    # Tokens that the vocabulary cannot spell, rows cut short: one summary for the file at its end.
    report = predictor.report = FileReport(Path(source).name, reader(predictor.tokenizer), every_row=True)
    with atomic_file(to) as part, open(part, "w", encoding="utf-8") as file:
        for chunk, predictions in predictor.chunks(examples(source, task, labelled=False, report=report)):
            cancel.check()
            for example, prediction in zip(chunk, predictions, strict=True):
                # The text follows the id: a person who reads the file sees what was asked first.
                record: FilePrediction = {"id": prediction["id"], **_texts(example), **prediction}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
                count += 1
    if predictor.truncated and not report.cut_questions:  # these are counted by the report
        logger.warning(predictor._truncated(predictor.truncated, count))
    report.finish()
    return {
        "run": str(predictor.folder),
        "step": predictor.loaded.step,
        "examples": count,
        "truncated": predictor.truncated,
        "unknown": report.unknown,
        "predictions": str(to),
    }


def _free_file(to: Path, overwrite: bool) -> Path:
    """Returns the path to write to, its folder made. Raises ConfigError if nothing can be written there."""
    if os.path.isdir(to):
        raise ConfigError(f"{to} is a folder; give a file as --to, as in {to}/predictions.jsonl")
    if to.exists() and not to.is_file():
        raise ConfigError(f"{to} is no plain file; give another --to")
    if to.exists() and not overwrite:
        raise ConfigError(f"--to {to} is there already; give another name, or --overwrite")
    # A link is followed: the rename would replace the link itself.
    if not is_address(to):
        to = Path(os.path.realpath(to))
    make_folder(to.parent, "--to")
    return to


class _Texts(TypedDict, total=False):
    text: str
    second: str
    choices: list[str]
    words: list[str]
    question: str


def _texts(example: Example) -> _Texts:
    # As the user gave it, so that a record can be read without the file.
    if isinstance(example, ChoiceExample):
        return {"text": example.text, "choices": list(example.choices)}
    if isinstance(example, Tagged):
        return {"words": list(example.words)}
    if isinstance(example, QuestionExample):  # without the context, which is long, and which questions share
        return {"question": example.question}
    return {"text": example.text} if isinstance(example, Text) else {"text": example.first, "second": example.second}

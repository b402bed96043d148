"""The Python functions of `import contexture`. Importing this needs no jax."""

import contextlib
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from contexture import configs
from contexture.analysis.call_arguments import with_hints
from contexture.data.inputs import Examples
from contexture.example_files import as_file, files_given, files_of, is_empty, write_examples
from contexture.grid_search import first_values, make_grid
from contexture.option_scope import check_effects
from contexture.overrides import with_options
from contexture.places import with_places
from contexture.train.errors import ConfigError
from contexture.train.evaluation.request import EvaluationOptions, requests_of
from contexture.train.grid.settings import Grid
from contexture.train.settings.run import Run
from contexture.train.settings.sections import MeshConfig

if TYPE_CHECKING:
    from contexture.analysis.trained_model import TrainedModel
    from contexture.data.tokenizers.base import Tokenizer
    from contexture.models.model import Model
    from contexture.models.shapes import Params

Place = str | Path
Options = Mapping[str, Any]
"""Settings by their dotted names: {"optim.peak_lr": 1e-4, "steps": 1000}; the options of the command line."""


@with_hints
def recipe(name: str, options: Options | None = None) -> Run:
    """Returns the run of a recipe; `contexture recipes` lists the names.

    Example:
        run = contexture.recipe("bert.tiny", {"data.path": "text/", "steps": 1000})

    Args:
        name: the recipe, such as "bert.tiny".
        options: settings that replace the recipe's, by their dotted names; None: none.

    Raises:
        ConfigError: when no recipe has this name, or an option does not exist or does not fit.
    """
    base = configs.recipe(name)
    run = with_options(base, options or {})
    check_effects(_names(options), [run], base)
    return run


@with_hints
@with_places
def pretrain(run: Run | str, options: Options | None = None) -> Path:
    """Trains a run, or resumes it from its newest good checkpoint, and returns its folder.

    Example:
        run = contexture.recipe("bert.tiny", {"data.path": "text/", "dir": "runs/mine"})
        folder = contexture.pretrain(run)

    While it trains, Ctrl-C and SIGTERM are noted and answered between two steps, with everything saved; the C
    library's allocator is set to keep memory, and Orbax's own messages are silenced.

    Args:
        run: what `recipe` returns, or the name of a recipe.
        options: settings that replace the run's, by their dotted names; None: none.

    Raises:
        ConfigError: when settings do not fit together, or do not fit the run that is resumed.
        DataError: when text or another input cannot be read.
        CheckpointError: when a checkpoint or the run's folder is damaged or does not fit.
        Diverged: when the loss is not finite, or rose.
        Interrupted: on SIGTERM and Ctrl-C, with everything saved.
    """
    base = configs.recipe(run) if isinstance(run, str) else run
    changed = with_options(base, options or {})
    check_effects(_names(options), [changed], base)
    return _train(changed, base)


@with_hints
@with_places
def finetune(
    source: Place,
    task: str = "classify",
    *,
    train: "Examples | Place | Sequence[Place]" = (),
    dev: "Examples | Place | Sequence[Place]" = (),
    test: "Examples | Place | Sequence[Place]" = (),
    dir: Place,
    options: Options | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | None = None,
) -> Path:
    """Fine-tunes a run on a task, in a new run's folder `dir`, or resumes that; returns the folder.

    Example:
        rows = [("a great film", "good"), ("a bore", "bad")] * 8
        folder = contexture.finetune("runs/mine", "classify", train=rows, dir="runs/films")

    It changes the process as `pretrain` does.

    Args:
        source: the folder of the run to begin from.
        task: classify, regress, tag, choice or span, or the name of a task that `contexture recipes` lists.
        train: labelled examples. Files (*.tsv, *.csv, *.jsonl, CoNLL, tfds:NAME, hf://…); or rows: (text, label),
            (first, second, label), (words, tags), (text, choices, label), (question, context, answers), or dicts of
            columns; or a table of pandas, polars or Arrow.
        dev: held-out examples, likewise; {"task.dev_fraction": 0.1} among the options holds out a part of train.
        test: further held-out examples, likewise.
        dir: the new run's folder.
        options: settings that replace the task's, by their dotted names; None: none.
        grid: settings that vary: {"optim.peak_lr": [2e-5, 3e-5]}. Every combination is trained, in a folder of its own
            within `dir`, and results.json there has the figures of all and names the best.
        seeds: how many seeds each setting is trained with; results.json has their mean and standard deviation. None:
            one, and without `grid` a single run instead of a grid.

    Raises:
        ConfigError: as `pretrain`, which names the other errors too.
    """
    given = {name: value for name, value in (("train", train), ("dev", dev), ("test", test)) if not is_empty(value)}
    base = _task_of(Path(source), Path(dir), task, random=bool((options or {}).get("init.random")))
    names = _names(options)
    files = {f"task.{name}": files_of(examples, name, Path(dir)) for name, examples in given.items()}
    common = {**(options or {}), **files, "dir": str(dir)}
    try:
        run = with_options(base, common)
    except ConfigError as error:  # an option may need a value that only the grid gives
        try:
            run = with_options(base, {**first_values(grid, names), **common})
        except ConfigError:
            raise error from None
    if grid is None and seeds is None:
        check_effects(names, [run], base)
        write_examples(given, run.task.kind, Path(dir))
        return _train(run, base)
    runs = make_grid(run, grid or {}, 1 if seeds is None else seeds, names, "grid")
    check_effects({*names, *runs.values}, runs.runs, base)
    write_examples(given, run.task.kind, Path(dir))  # only now: an error above leaves nothing behind
    return _train_grid(runs, base)


def _names(options: Options | None) -> set[str]:
    return {name.replace("-", "_") for name in options or {}}


def _task_of(source: Path, folder: Path, name: str, *, random: bool) -> Run:
    from contexture.configs.finetuning import load_source_run, task_run

    run, place = load_source_run(source, folder)
    return task_run(run, place, str(source), name, random=random)


def _train(run: Run, base: Run) -> Path:
    from contexture.train.loop import train
    from contexture.train.run.divergence import check_not_diverged
    from contexture.train.run.signals import Signals

    signals = Signals()
    try:
        folder = train(run, base, signals)
    finally:
        signals.close()
    check_not_diverged(folder)
    return folder


def _train_grid(grid: Grid, base: Run) -> Path:
    from contexture.train.grid.train_grid import train_grid
    from contexture.train.run.signals import Signals

    signals = Signals()
    try:
        train_grid(grid, base, signals)
    finally:
        signals.close()
    return grid.folder


@with_hints
@with_places
def evaluate(
    run: "Place | Sequence[Place]",
    *,
    dev: "Examples | Place | Sequence[Place]" = (),
    split: Literal["dev", "test", "train"] = "dev",
    step: int | str | Sequence[int | str] = (),
    watch: bool = False,
    batch: int = 0,
    to: Place = "",
    figures: Place = "",
    theme: Literal["light", "dark"] = "light",
    submission: Place = "",
    overwrite: bool = False,
    mesh: MeshConfig = MeshConfig(),  # noqa: B008  # frozen
) -> dict[str, Any]:
    """Evaluates a run on held-out examples, each once: {"run", "step", "split", "examples", "metrics", …}.

    Args:
        run: the run's folder. A list of folders gives {"runs": [{"run", …}, …]}, with "error" in place of the metrics
            of a run that failed after the first was evaluated.
        dev: for a task: labelled examples to evaluate instead of the run's own; files or rows, as in `finetune`.
        split: for a task: which of the run's own examples.
        step: checkpoints: their steps, "best", or "all"; empty: as for `open`. Results are kept in checkpoints.jsonl,
            and computed again only if a checkpoint, the data or the batch has changed.
        watch: follow a training that another process does: evaluate each checkpoint as it appears.
        batch: sequences at a time; 0: as in training.
        to: a folder for predictions.jsonl and checkpoints.jsonl; empty: RUN/evaluations.
        figures: for a task with labels: a folder for confusion matrix, rates of each label, and calibration, as CSV,
            PNG, SVG and PDF; empty: none.
        theme: the colours of PNG and PDF.
        submission: a folder for the files that GLUE's or SQuAD's server reads. Instead of metrics it gets predictions
            of unlabelled examples: the files of `dev`, else GLUE's test sets or the run's questions. Empty: none.
        overwrite: replace the files of an earlier submission in that folder.
        mesh: of devices; the default: as in training if that fits, else data parallelism over all devices.

    Raises:
        ConfigError: when the folder is no run, or lacks the checkpoint or examples that are asked for.
        DataError: when examples cannot be read.
        CheckpointError: when no checkpoint is good.
    """
    return _evaluate(
        run,
        dev,
        split=split,
        step=(step,) if isinstance(step, int | str) else tuple(step),
        watch=watch,
        batch=batch,
        to=str(to),
        figures=str(figures),
        theme=theme,
        submission=str(submission),
        overwrite=overwrite,
        mesh=mesh,
    )


def _evaluate(
    run: "Place | Sequence[Place]", dev: "Examples | Place | Sequence[Place]", **options: Any
) -> dict[str, Any]:
    """Evaluates one run or several; `options` are the fields of EvaluationOptions apart from `dev`."""
    from contexture.train.evaluation import evaluate

    runs = (run,) if isinstance(run, str | Path) else tuple(run)
    with contextlib.ExitStack() as stack:
        # Examples in memory become a temporary file, so that one reader serves both.
        files = files_given(dev)
        if files is None:
            files = (as_file(dev, runs[0], stack.enter_context(tempfile.TemporaryDirectory())),)
        try:
            asked = EvaluationOptions(dev=files, **options)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        requests = requests_of(runs, asked)
        if isinstance(run, str | Path):
            return dict(evaluate.evaluate_run(requests[0]))
        return {"runs": list(map(dict, evaluate.evaluate_runs(requests)))}


@with_hints
@with_places
def predict(run: Place, texts: Any, *, step: int | Literal["best"] | None = None) -> list[dict[str, Any]]:
    """Predicts texts with a fine-tuned run: [{"id", "prediction", "scores"}, …]. Keep `open(run)` for many calls.

    Args:
        run: the run's folder.
        texts: one text or several, as in `TrainedModel.predict`.
        step: the checkpoint, as in `open`.

    Raises:
        ConfigError: when the folder is no run, lacks the checkpoint, or has no task.
        CheckpointError: when no checkpoint is good.
        DataError: when a text does not fit the task.
    """
    return open(run, step).predict([texts] if isinstance(texts, str) else texts)


@with_hints
@with_places
def open(run: Place, step: int | Literal["best"] | None = None) -> "TrainedModel":
    """Loads a run, ready for any number of calls.

    Example:
        model = contexture.open("runs/mine")
        vectors = model.embed(["The cat sat.", "It slept."])

    Args:
        run: the run's folder.
        step: the checkpoint of that step, or "best": of the best held-out figure (evaluate.metric). None: the best if
            the run was trained with evaluate.patience, else the newest good one.

    Raises:
        ConfigError: when the folder is no run or holds no such checkpoint.
        CheckpointError: when no checkpoint is good.
    """
    from contexture.analysis.trained_model import TrainedModel

    return TrainedModel(run, step, finetune)


@with_places
def load(run: Place, step: int | Literal["best"] | None = None) -> "tuple[Model, Params, Tokenizer]":
    """Loads (model, params, tokenizer) of a run, to compute with them in jax.

    Example:
        model, params, tokenizer = contexture.load("runs/mine")
        batch = contexture.data.layouts.text_batch(tokenizer, ["The cat sat.", "It slept."])
        hidden_BLD = model.apply({"params": params}, batch, only=()).encoding.hidden_BLD

    `only` names the heads to run: a head reads fields of its own (masked tokens, targets). A TPU or a recent GPU
    multiplies float32 matrices in lower precision unless `jax.default_matmul_precision("float32")` is set.

    Args:
        run: the run's folder.
        step: the checkpoint, as in `open`.

    Raises:
        ConfigError: when the folder is no run or holds no such checkpoint.
        CheckpointError: when no checkpoint is good.
    """
    opened = open(run, step)
    return opened.model, opened.params, opened.tokenizer


@with_hints
@with_places
def import_model(
    format: Literal["hf", "bert-tf", "gpt2-tf", "gpt1-npy", "bilm", "vectors"],
    path: Place,
    to: Place,
    *,
    vocabulary: Place = "",
    lowercase: bool | None = None,
    gelu: Literal["erf", "tanh"] = "erf",
    word_splitter: Literal["auto", "spaces", "punctuation"] = "auto",
    labels: Sequence[str] = (),
) -> Path:
    """Writes a published model as a run, and returns its folder.

    Args:
        format: what `path` holds. hf: a BERT, ERNIE 1.0, GPT-1 or GPT-2 of transformers; bert-tf, gpt2-tf, gpt1-npy:
            the original checkpoints of BERT, GPT-2 and GPT-1; bilm: ELMo as bilm-tf has it; vectors: static word
            vectors.
        path: a file or folder; for hf also the name of a model on the Hugging Face hub, such as
            `google-bert/bert-base-uncased`.
        to: the new run's folder.
        vocabulary: a file to use instead of the model's own vocabulary; for bilm the words of a softmax to train.
        lowercase: for hf, bert-tf and vectors: whether text is lower-cased; None: as the files say, else no if the
            vocabulary has capitals.
        gelu: for bert-tf: which GELU the model was trained with; its files do not say.
        word_splitter: for bilm and vectors: how text is split into words, at spaces alone or around punctuation too;
            auto: spaces for bilm, punctuation for vectors.
        labels: for hf and bert-tf: names for the classes of a classifier or a tagger, in order; (): as the files say.

    Raises:
        ConfigError: when the format is unknown.
        DataError: when files are damaged, missing or unknown.
        ConnectionError: when the Hugging Face hub does not answer.
    """
    from contexture.interchange.convert import IMPORTERS, import_model
    from contexture.interchange.import_options import ImportOptions

    _check_format(format, IMPORTERS)
    how = ImportOptions(
        vocabulary=str(vocabulary),
        lowercase="auto" if lowercase is None else "yes" if lowercase else "no",
        gelu=gelu,
        word_splitter=word_splitter,
        labels=tuple(labels),
    )
    import_model(format, Path(path), Path(to), how=how)
    return Path(to)


@with_hints
@with_places
def export_model(
    run: Place,
    format: Literal["hf", "peft", "bilm", "stablehlo"],
    to: Place,
    *,
    step: int | Literal["best"] | None = None,
    pooling: Literal["", "mean", "cls", "max", "lasttoken"] = "",
    overwrite: bool = False,
) -> Path:
    """Writes a run as files that other libraries read, and returns their folder.

    Args:
        run: the run's folder.
        format: hf: a model of transformers; peft: only adapters and heads; bilm: ELMo in the form of bilm-tf;
            stablehlo: a program that jax runs without this library.
        to: the folder to write.
        step: the checkpoint, as in `open`.
        pooling: for hf: how sentence-transformers, which then loads the folder too, combines the vectors of a text's
            tokens into one; empty: the folder is for transformers alone.
        overwrite: replace an earlier export in the folder; a folder with other files is refused.

    Raises:
        ConfigError: when the format is unknown or cannot hold the run.
        DataError: when the format cannot hold the run's vocabulary.
    """
    from contexture.interchange.convert import EXPORTERS, export_model
    from contexture.interchange.sentence_transformers import POOLINGS

    _check_format(format, EXPORTERS)
    if pooling and (format != "hf" or pooling not in POOLINGS):
        raise ConfigError(f"pooling {pooling!r} of {format}: hf has one of {', '.join(POOLINGS)}; leave it out")
    export_model(Path(run), format, Path(to), step, pooling=pooling, overwrite=overwrite)
    return Path(to)


def _check_format(format: str, known: Collection[str]) -> None:
    if format not in known:
        raise ConfigError(f"format {format!r} is not one of {', '.join(known)}")

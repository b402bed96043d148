"""The commands that query a run, or convert one: argv → the printed result."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from contexture.api import load, open
from contexture.cli.output import Result, StreamingResult, TwofoldResult
from contexture.cli.parse import parse
from contexture.data.text.sources import documents_of, lines_of
from contexture.requests import (
    CompareRequest,
    ExportRequest,
    FillRequest,
    GenerationRequest,
    ImportRequest,
    LayersRequest,
    PredictionRequest,
    ScoreRequest,
    SlimRequest,
    StatusRequest,
    several,
)
from contexture.requests.arguments import checkpoint_of
from contexture.table_files import Cell, check_table, write_table
from contexture.train.errors import ConfigError
from contexture.train.grid.folder import runs_beneath, without_shared
from contexture.train.run.signals import NOTHING_WRITTEN, STOPPED, Signals
from contexture.train.settings.run_file import read

if TYPE_CHECKING:
    from contexture.analysis.compare import Comparison
    from contexture.analysis.results import LayerMix, TextScore
    from contexture.analysis.trained_model import TrainedModel
    from contexture.train.evaluation.predict import Predictor

logger = logging.getLogger(__name__)
_FIGURES = ("tokens", "loss", "perplexity", "pseudo_perplexity", "forward_perplexity", "backward_perplexity", "unknown")
"""What a page of scores shows of them."""


def predict_command(argv: list[str]) -> Result | TwofoldResult:
    """Predicts the examples of a file, or one that the arguments hold."""
    request = parse(PredictionRequest, argv, "predict")
    read(Path(request.run))
    with Signals(NOTHING_WRITTEN) as signals:
        from contexture.train.cpu_memory import tune_cpu_allocator
        from contexture.train.evaluation.predict import Predictor, predict_file

        tune_cpu_allocator()
        predictor = Predictor(request.run, step=checkpoint_of(request.step), batch=request.batch)
        if request.to is None:
            return _predict_one(predictor, request)
        columns = {name: getattr(request, name) for name in ("text", "second", "choices", "header")}
        to = Path(request.to)
        return dict(predict_file(predictor, request.input, to, columns, signals, overwrite=request.overwrite))


def _predict_one(predictor: "Predictor", request: PredictionRequest) -> TwofoldResult:
    """Predicts the example of a request; people see the five best answers to a question."""
    kind = predictor.run.task.kind
    if request.second and kind in ("choice", "tag"):
        raise ConfigError(f"--second is for a pair of texts or a question, and {request.run} is {kind}; leave it out")
    if request.choices and kind != "choice":
        raise ConfigError(f"--choices is for --task.kind choice, and {request.run} is {kind}")
    if kind == "choice" and not request.choices:
        raise ConfigError(f"{request.run} chooses among alternatives; give them as --choices A B")
    if kind == "span" and not request.second:
        raise ConfigError(f"{request.run} answers a question from its context; give the context as --second TEXT")
    if kind == "choice":
        example: object = request.text, request.choices
    else:
        example = (request.text, request.second) if request.second else request.text
    (answer,) = predictor([example])
    result = {"run": request.run, "step": predictor.loaded.step, "truncated": False, **answer}
    del result["id"]
    return TwofoldResult(result, {**result, **({"n_best": answer["n_best"][:5]} if "n_best" in answer else {})})


def fill_command(argv: list[str]) -> Result:
    """Returns the most probable tokens for each [MASK]."""
    request = parse(FillRequest, argv, "fill")
    return {
        "text": request.text,
        "masks": open(request.run, checkpoint_of(request.step)).fill(request.text, request.top),
    }


def generate_command(argv: list[str]) -> StreamingResult:
    """Continues prompts, printed while they grow."""
    request = parse(GenerationRequest, argv, "generate")
    read(Path(request.run))
    prompts = several(request.prompt) or tuple(lines_of(Path(request.input), "a prompt"))

    def write(show: Callable[[str], None]) -> Result:
        started = False

        def show_part(number: int, text: str) -> None:
            nonlocal started
            if len(prompts) > 1:
                return  # the texts of a batch grow side by side
            show(text if started else prompts[number] + text)
            started = True

        with Signals("stopped") as signals:
            model = open(request.run, checkpoint_of(request.step))
            texts = model.continue_prompts(prompts, request, show_part, signals)
        if len(prompts) > 1:
            show("\n\n".join(text["prompt"] + text["text"] for text in texts))
        return {"run": request.run, "texts": texts}

    return StreamingResult(write)


def score_command(argv: list[str]) -> Result:
    """Measures how well a run predicts text."""
    request = parse(ScoreRequest, argv, "score")
    from contexture.data.text.sources import expand

    read(Path(request.run))
    if request.to:
        from contexture.analysis.pages.one_page import check_page

        check_page(Path(request.to))
    sources = expand(several(request.input), "input") if request.input else ()
    with Signals(STOPPED) as signals:
        model = open(request.run, checkpoint_of(request.step))
        documents = [request.text] if request.text else documents_of(sources, request.documents)
        documents = list(documents) if request.to else documents  # a page reads them again
        scored = model.score_documents(
            documents, length=request.length, stride=request.stride, batch=request.batch, cancel=signals
        )
        if request.to:
            _write_score_page(model, documents, scored, request, signals)
        return {"run": request.run, **scored, **({"to": request.to} if request.to else {})}


def _write_score_page(
    model: "TrainedModel",
    documents: Iterable[str],
    scored: "TextScore",
    request: ScoreRequest,
    signals: Signals,
) -> None:
    from contexture.analysis.pages.one_page import run_title, text_title
    from contexture.analysis.scoring.score import token_scores
    from contexture.analysis.scoring.score_page import write_score_page

    figures = {name: value for name, value in scored.items() if isinstance(value, int | float) and name in _FIGURES}
    scored_text = text_title(request.text) if request.text else " ".join(several(request.input))
    title = f"Log-probabilities by {run_title(model)}: {scored_text}"
    with model.computing():
        scorer = model.token_scorer(scored.get("length", 0), scored.get("stride", 0))  # those that were scored
        tokens = token_scores(scorer, documents, top=request.top, batch=request.batch, cancel=signals)
        write_score_page(Path(request.to), title, tokens, model.tokenizer.size, figures)


def status_command(argv: list[str]) -> StreamingResult:
    """Returns where runs are, printed as lines."""
    request = parse(StatusRequest, argv, "status")
    if not request.runs:
        raise ConfigError("status needs runs: contexture status RUN …")
    from contexture.train.checkpoints.status import describe_status, status

    runs = without_shared(request.runs)
    # A folder of runs means all runs in it; any other folder that is no run is an error.
    states = [status(folder) for run in runs for folder in runs_beneath(Path(run)) or [Path(run)]]

    def show(write: Callable[[str], None]) -> Result:
        write("\n".join(map(describe_status, states)).rstrip("\n"))
        return {"runs": states}

    return StreamingResult(show)


def compare_command(argv: list[str]) -> Result:
    """Returns the losses and the differing settings of runs."""
    request = parse(CompareRequest, argv, "compare")
    from contexture.analysis.compare import compare

    to = Path(request.to) if request.to else None
    if request.table:
        check_table(Path(request.table))
    compared = compare([Path(run) for run in without_shared(request.runs)], to, request.theme)
    if request.table:
        write_table(Path(request.table), _with_settings(compared))
    return {**compared, **_files(request)}


def _with_settings(compared: "Comparison") -> list[dict[str, Cell]]:
    """Returns a row for each run: its name, the settings that differ, its figures."""
    # A row of differences has the setting, then the runs in their order.
    settings = [list(row.values()) for row in compared["differences"]]
    rows: list[dict[str, Cell]] = []
    for n, figures in enumerate(compared["runs"]):
        row: dict[str, Cell] = {"run": figures["run"]}
        row |= {f"{name} (setting)" if name in figures else name: values[n] for name, *values in settings}
        row |= cast(dict[str, Cell], figures)
        for each in (metric for metric in compared["metrics"] if metric["run"] == figures["run"]):
            row |= {each["metric"]: each["newest"], f"best {each['metric']}": each["best"]}
        rows.append(row)
    return rows


def _files(request: CompareRequest | LayersRequest) -> dict[str, str]:
    """Returns the figure and the table, as far as they were asked for."""
    name = "figure" if isinstance(request, LayersRequest) else "to"
    return {key: file for key, file in ((name, request.to), ("table", request.table)) if file}


def layers_command(argv: list[str]) -> Result:
    """Returns the learned weight of each layer."""
    request = parse(LayersRequest, argv, "layers")
    from contexture.analysis.layers import check_figure, draw, layers

    if not request.runs:
        raise ConfigError("layers needs runs: contexture layers RUN … [--to FILE]")
    if request.to:
        check_figure(Path(request.to))
    if request.table:
        check_table(Path(request.table))
    mixes = layers([Path(run) for run in without_shared(request.runs)], lambda folder: load(folder)[1])
    if request.to:
        draw(mixes, Path(request.to), request.theme)
    if request.table:
        write_table(Path(request.table), _weight_rows(mixes))
    return {"mixes": mixes, **_files(request)}


def _weight_rows(mixes: "Iterable[LayerMix]") -> list[dict[str, Cell]]:
    """Returns a row for each mix, with a column for each layer."""
    rows: list[dict[str, Cell]] = []
    for mix in mixes:
        row: dict[str, Cell] = {name: mix[name] for name in ("run", "task", "seed", "place", "gamma")}
        names = ("words" if layer == 0 else f"layer {layer}" for layer in mix["layers"])
        rows.append({**row, **dict(zip(names, mix["weights"], strict=True))})
    return rows


def import_command(argv: list[str]) -> Result:
    """Turns a published model into a run."""
    request = parse(ImportRequest, argv, "import")
    from contexture.interchange.convert import import_model

    with Signals(NOTHING_WRITTEN) as signals:
        return dict(import_model(request.format, Path(request.path), Path(request.to), signals, request))


def export_command(argv: list[str]) -> Result:
    """Writes a run as files that others read."""
    request = parse(ExportRequest, argv, "export")
    from contexture.interchange.convert import export_model

    with Signals(NOTHING_WRITTEN) as signals:
        step = checkpoint_of(request.step)
        options = {"pooling": request.pooling, "overwrite": request.overwrite}
        exported = export_model(Path(request.run), request.format, Path(request.to), step, signals, **options)
        return dict(exported)


def slim_command(argv: list[str]) -> TwofoldResult:
    """Drops optimizer state and old checkpoints from a run, and says what that frees."""
    request = parse(SlimRequest, argv, "slim")
    from contexture.train.checkpoints.slim import slim

    with Signals("stopped, nothing was removed; the same command starts again") as signals:
        result = slim(Path(request.run), checkpoint_of(request.step), signals.check)
    removed = ", ".join(map(str, result["removed_steps"])) or "none"
    freed = f"{max(result['bytes_before'] - result['bytes_after'], 0):,} of {result['bytes_before']:,} bytes"
    shown = {"run": result["run"], "kept": f"the parameters of step {result['step']}"}
    return TwofoldResult(json=dict(result), shown={**shown, "removed checkpoints": removed, "freed": freed})

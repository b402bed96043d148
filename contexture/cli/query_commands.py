"""The commands that query a run, or convert one: argv → what is printed."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from contexture.api import embed_file, fill_masks, generate_texts, lines_of, load, score_files
from contexture.cli.output import Result, StreamingResult, results_alone
from contexture.cli.parse import parse
from contexture.requests import (
    EmbeddingRequest,
    EvaluationArgs,
    ExportRequest,
    FillRequest,
    GenerationRequest,
    ImportRequest,
    LayersRequest,
    PredictionRequest,
    ScoreRequest,
    several,
)
from contexture.train.errors import ConfigError
from contexture.train.run.signals import Signals
from contexture.train.run_file import read

NOTHING_WRITTEN = "stopped, nothing was written; the same command starts again"
STOPPED = "stopped; the same command starts again"


@contextlib.contextmanager
def listening(state: str) -> Iterator[Signals]:
    """Notes signals while this lasts; `state` is the message when the work stops for one."""
    signals = Signals(state)
    try:
        yield signals
    finally:
        signals.close()


def predict_command(argv: list[str]) -> Result:
    """predictions for new examples: contexture predict RUN --input F --to F"""
    request = parse(PredictionRequest, argv, "predict")
    read(Path(request.run))
    with listening(NOTHING_WRITTEN) as signals:
        from contexture.train.evaluation.predict import Predictor, predict_file

        predictor = Predictor(request.run, step=request.step or None, batch=request.batch)
        columns = {name: getattr(request, name) for name in ("text", "second", "choices", "header")}
        return dict(predict_file(predictor, request.input, Path(request.to), columns, signals))


def fill_command(argv: list[str]) -> Result:
    """the most probable tokens for each [MASK]: contexture fill RUN --text "… [MASK] …" """
    request = parse(FillRequest, argv, "fill")
    return {"text": request.text, "masks": fill_masks(request)}


def generate_command(argv: list[str]) -> StreamingResult:
    """text after a prompt, from a GPT: contexture generate RUN --prompt TEXT [--tokens N --temperature T --top-k K]"""
    request = parse(GenerationRequest, argv, "generate")
    read(Path(request.run))
    prompts = several(request.prompt) or tuple(lines_of(Path(request.input), "a prompt"))
    request = dataclasses.replace(request, prompt=prompts, input="") if prompts else request

    def write(show: Callable[[str], None]) -> Result:
        started = False

        def show_part(number: int, text: str) -> None:
            nonlocal started
            if len(prompts) > 1:
                return  # the texts of a batch grow side by side
            show(text if started else prompts[number] + text)
            started = True

        with listening("stopped") as signals:
            texts = generate_texts(request, show_part, signals)
        if len(prompts) > 1:
            show("\n\n".join(text["prompt"] + text["text"] for text in texts))
        return {"run": request.run, "texts": texts}

    return StreamingResult(write)


def score_command(argv: list[str]) -> Result:
    """how well a GPT predicts text: contexture score RUN --input F… [--stride N]"""
    request = parse(ScoreRequest, argv, "score")
    read(Path(request.run))
    with listening(STOPPED) as signals:
        return score_files(request, signals)


def embed_command(argv: list[str]) -> Result:
    """contextual vectors of a text's words: contexture embed RUN --input F --to F.hdf5|F.npz [--layers last|all|0,2]"""
    request = parse(EmbeddingRequest, argv, "embed")
    read(Path(request.run))
    with listening(NOTHING_WRITTEN) as signals:
        return embed_file(request, signals)


def layers_command(argv: list[str]) -> Result:
    """the learned weight of each layer: contexture layers RUN… [--to F.png]"""
    request = parse(LayersRequest, argv, "layers")
    from contexture.analysis.layers import check_figure, draw, layers

    if not request.runs:
        raise ConfigError("layers wants runs: contexture layers RUN… [--to F.png]")
    if request.to:
        check_figure(Path(request.to))
    mixes = layers([Path(run) for run in request.runs], lambda folder: load(folder)[1])
    if request.to:
        draw(mixes, Path(request.to))
    return {"mixes": mixes, **({"figure": request.to} if request.to else {})}


def import_command(argv: list[str]) -> Result:
    """a published model as a run: contexture import hf|bert-tf|gpt2-tf|gpt1-npy|bilm DIR --to RUN"""
    request = parse(ImportRequest, argv, "import")
    from contexture.train.interchange.convert import import_model

    with listening(NOTHING_WRITTEN) as signals:
        imported = import_model(
            request.format,
            Path(request.path),
            Path(request.to),
            signals,
            vocabulary=request.vocabulary,
            lowercase={"auto": None, "yes": True, "no": False}[request.lowercase],
            gelu=request.gelu,
            word_splitter=request.word_splitter,
        )
        return dict(imported)


def export_command(argv: list[str]) -> Result:
    """a run as files that others read: contexture export RUN hf|bilm --to DIR"""
    request = parse(ExportRequest, argv, "export")
    from contexture.train.interchange.convert import export_model

    with listening(NOTHING_WRITTEN) as signals:
        return dict(export_model(Path(request.run), request.format, Path(request.to), request.step or None, signals))


def evaluate_command(argv: list[str]) -> Result | None:
    """held-out metrics of a run: contexture evaluate RUN [--task.dev F] [--split dev|test] [--step N…|best|all]"""
    request = parse(EvaluationArgs, argv, "evaluate")
    read(request.folder)
    from contexture.train.evaluation.evaluate import evaluate_run

    with listening(STOPPED) as signals, results_alone() if request.mesh.distributed else contextlib.nullcontext():
        result = evaluate_run(request, signals)
    import jax

    return dict(result) if jax.process_index() == 0 else None

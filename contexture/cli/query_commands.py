"""The commands that query a run, or convert one: argv → what is printed."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from contexture.analysis.results import EmbeddingFile
from contexture.api import load, open
from contexture.cli.lines import check_lines, documents_of, lines_of
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

if TYPE_CHECKING:
    from contexture.analysis.embed import SplitSentence, Units

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
        from contexture.train.cpu_memory import tune_cpu_allocator
        from contexture.train.evaluation.predict import Predictor, predict_file

        tune_cpu_allocator()
        predictor = Predictor(request.run, step=request.step or None, batch=request.batch)
        columns = {name: getattr(request, name) for name in ("text", "second", "choices", "header")}
        return dict(predict_file(predictor, request.input, Path(request.to), columns, signals))


def fill_command(argv: list[str]) -> Result:
    """the most probable tokens for each [MASK]: contexture fill RUN --text "… [MASK] …" """
    request = parse(FillRequest, argv, "fill")
    return {"text": request.text, "masks": open(request.run, request.step or None).fill(request.text, request.top)}


def generate_command(argv: list[str]) -> StreamingResult:
    """text after a prompt, from a GPT: contexture generate RUN --prompt TEXT [--tokens N --temperature T --top-k K]"""
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

        with listening("stopped") as signals:
            texts = open(request.run, request.step or None).generate(
                prompts,
                tokens=request.tokens,
                temperature=request.temperature,
                top_k=request.top_k,
                top_p=request.top_p,
                top_p_exclusive=request.top_p_exclusive,
                stop=several(request.stop),
                seed=request.seed,
                batch=request.batch,
                show=show_part,
                cancel=signals,
            )
        if len(prompts) > 1:
            show("\n\n".join(text["prompt"] + text["text"] for text in texts))
        return {"run": request.run, "texts": texts}

    return StreamingResult(write)


def score_command(argv: list[str]) -> Result:
    """how well a GPT predicts text: contexture score RUN --input F… [--stride N]"""
    request = parse(ScoreRequest, argv, "score")
    from contexture.data.text.sources import expand

    read(Path(request.run))
    sources = expand(several(request.input), "input")
    with listening(STOPPED) as signals:
        model = open(request.run, request.step or None)
        scored = model.score_documents(
            documents_of(sources, request.documents),
            length=request.length,
            stride=request.stride,
            batch=request.batch,
            cancel=signals,
        )
        return {"run": request.run, **scored}


def embed_command(argv: list[str]) -> Result:
    """contextual vectors of a text's words: contexture embed RUN --input F --to F.hdf5|F.npz [--layers last|all|0,2]"""
    request = parse(EmbeddingRequest, argv, "embed")
    read(Path(request.run))
    file, to = Path(request.input), Path(request.to)
    check_lines(file, "a sentence")
    from contexture.analysis.embed import embed, sentence_splitter, vectors_file

    result: EmbeddingFile = {"to": str(to), "lines": 0, "tokens": 0, "words": 0, "truncated": 0}

    def sentences(split: "Callable[[str], SplitSentence]") -> "Iterator[Units]":
        for line in lines_of(file, "a sentence"):
            sentence = split(line)
            result["tokens"] += len(sentence.units)
            result["words"] += sentence.own
            result["truncated"] += sentence.truncated
            yield sentence.units

    # First: an unwritable place is refused at once.
    with listening(NOTHING_WRITTEN) as signals, vectors_file(to) as write:
        opened = open(request.run, request.step or None)
        vectors = embed(
            opened.model,
            opened.params,
            opened.tokenizer,
            sentences(sentence_splitter(opened.model, opened.tokenizer)),
            layers=request.layers,
            pool=request.pool,
            batch=request.batch,
            stateful=request.stateful,
            cancel=signals,
        )
        with opened.computing():
            for number, array in enumerate(vectors):
                write(str(number), array)
                result["lines"] = number + 1
    return result


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
    """a run as files that others read: contexture export RUN hf|peft|bilm|stablehlo --to DIR"""
    request = parse(ExportRequest, argv, "export")
    from contexture.train.interchange.convert import export_model

    with listening(NOTHING_WRITTEN) as signals:
        return dict(export_model(Path(request.run), request.format, Path(request.to), request.step or None, signals))


def evaluate_command(argv: list[str]) -> Result | None:
    """held-out metrics of a run: contexture evaluate RUN [--task.dev F] [--split dev|test] [--step N…|best|all]"""
    request = parse(EvaluationArgs, argv, "evaluate")
    read(request.folder)
    from contexture.train.cpu_memory import tune_cpu_allocator
    from contexture.train.evaluation.evaluate import evaluate_run

    tune_cpu_allocator()
    with listening(STOPPED) as signals, results_alone() if request.mesh.distributed else contextlib.nullcontext():
        result = evaluate_run(request, signals)
    import jax

    return dict(result) if jax.process_index() == 0 else None

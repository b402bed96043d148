"""The commands that ask a run something, or convert it: their words → what is printed."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from contexture.api import embed, fill, generate, load, score, warn
from contexture.cli.arguments import (
    Embed,
    Evaluate,
    Export,
    Fill,
    Generate,
    Import,
    Layers,
    Predict,
    Score,
)
from contexture.cli.output import Result, StreamingResult, results_alone
from contexture.cli.parse import parse
from contexture.train.errors import ConfigError
from contexture.train.run.signals import Signals
from contexture.train.run_file import read


def predict_command(argv: list[str]) -> Result:
    """answers to new examples: contexture predict RUN --input F --to F"""
    args = parse(Predict, argv, "predict")
    read(Path(args.run))
    signals = Signals("stopped, nothing was written; the same command begins again")
    try:
        from contexture.train.evaluation.predict import Predictor, predict_file

        predictor = Predictor(args.run, step=args.step or None, batch=args.batch, say=warn)
        columns = {"text": args.text, "second": args.second, "choices": args.choices, "header": args.header}
        return predict_file(predictor, args.input, Path(args.to), columns, warn, signals.check)
    finally:
        signals.close()


def fill_command(argv: list[str]) -> Result:
    """what fits a gap: contexture fill RUN --text "… [MASK] …" """
    args = parse(Fill, argv, "fill")
    return {"text": args.text, "masks": fill(args.run, args.text, top=args.top, step=args.step or None)}


def generate_command(argv: list[str]) -> StreamingResult:
    """what a GPT writes on: contexture generate RUN --prompt TEXT [--tokens N --temperature T --top-k K --top-p P]"""
    args = parse(Generate, argv, "generate")
    read(Path(args.run))
    prompts = args.prompt or tuple(_lines(args.input))
    names = ("tokens", "temperature", "top_k", "top_p", "exclusive", "stop", "seed", "batch")
    options: Any = {"step": args.step or None, **{name: getattr(args, name) for name in names}}

    def write(tell: Callable[[str], None]) -> Result:
        told = -1

        def tell_line(line: int, text: str) -> None:
            nonlocal told
            if len(prompts) > 1:
                return  # lines of a batch grow side by side
            tell(text if told == line else prompts[line] + text)
            told = line

        signals = Signals("stopped")
        try:
            texts = generate(args.run, prompts, tell=tell_line, check=signals.check, **options)
        finally:
            signals.close()
        if len(prompts) > 1:
            tell("\n\n".join(text["prompt"] + text["text"] for text in texts))
        return {"run": args.run, "texts": texts}

    return StreamingResult(write)


def _lines(file: str) -> Iterator[str]:
    from contexture.data.plain_files import check_not_packed, check_plain
    from contexture.data.text.sources import lines

    check_plain(file)
    if not Path(file).is_file():
        raise ConfigError(f"{file}: no such file; give one with a prompt in each line")
    check_not_packed(file)
    for _, line in lines(Path(file)):
        yield line.rstrip("\r\n")


def score_command(argv: list[str]) -> Result:
    """how well a GPT predicts text: contexture score RUN --input F… [--stride N]"""
    args = parse(Score, argv, "score")
    read(Path(args.run))
    signals = Signals("stopped; the same command begins again")
    try:
        options: Any = {name: getattr(args, name) for name in ("documents", "length", "stride", "batch")}
        return score(args.run, args.input, step=args.step or None, check=signals.check, **options)
    finally:
        signals.close()


def embed_command(argv: list[str]) -> Result:
    """the vectors of a text's words: contexture embed RUN --input F --to F.hdf5|F.npz [--layers last|all|0,2]"""
    args = parse(Embed, argv, "embed")
    read(Path(args.run))
    signals = Signals("stopped, nothing was written; the same command begins again")
    try:
        options: Any = {name: getattr(args, name) for name in ("layers", "pool", "batch", "stateful")}
        return embed(args.run, args.input, args.to, step=args.step or None, check=signals.check, **options)
    finally:
        signals.close()


def layers_command(argv: list[str]) -> Result:
    """what each layer counts in the learned mixes: contexture layers RUN… [--to F.png]"""
    args = parse(Layers, argv, "layers")
    from contexture.analysis.layers import check_figure, draw, layers

    if not args.runs:
        raise ConfigError("layers wants runs: contexture layers RUN… [--to F.png]")
    if args.to:
        check_figure(Path(args.to))
    rows = layers([Path(run) for run in args.runs], load)
    if args.to:
        draw(rows, Path(args.to))
    return {"mixes": rows, **({"figure": args.to} if args.to else {})}


def import_command(argv: list[str]) -> Result:
    """a published model as a run: contexture import hf|bert-tf|gpt2-tf|gpt1-npy|bilm DIR --to RUN"""
    args = parse(Import, argv, "import")
    from contexture.train.interchange.convert import import_model

    signals = Signals("stopped, nothing was written; the same command begins again")
    try:
        return import_model(
            args.format,
            Path(args.path),
            Path(args.to),
            warn,
            signals.check,
            vocabulary=args.vocabulary,
            lowercase={"auto": None, "yes": True, "no": False}[args.lowercase],
            gelu=args.gelu,
            split=args.split,
        )
    finally:
        signals.close()


def export_command(argv: list[str]) -> Result:
    """a run as files that others read: contexture export RUN hf|bilm --to DIR"""
    args = parse(Export, argv, "export")
    from contexture.train.interchange.convert import export_model

    signals = Signals("stopped, nothing was written; the same command begins again")
    try:
        return export_model(Path(args.run), args.format, Path(args.to), args.step or None, warn, signals.check)
    finally:
        signals.close()


def evaluate_command(argv: list[str]) -> Result | None:
    """held-out figures of a run: contexture evaluate RUN [--task.dev F] [--split dev|test] [--step N…|best|all]"""
    args = parse(Evaluate, argv, "evaluate")
    read(Path(args.run))
    from contexture.train.evaluation import evaluate as evaluation

    signals = Signals("stopped; the same command begins again")
    try:
        with results_alone() if args.mesh.distributed else contextlib.nullcontext():
            what = evaluation.EvaluationRequest(args.split, args.task.dev, args.step, args.batch, args.to, args.mesh)
            result = evaluation.evaluate_run(Path(args.run), what, warn, signals.check)
    finally:
        signals.close()
    import jax

    return result if jax.process_index() == 0 else None

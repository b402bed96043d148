"""The commands that ask a run something, or carry it elsewhere: their words → what the door prints."""

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


def predict_command(words: list[str]) -> Result:
    """answers to new examples: contexture predict RUN --input F --to F"""
    asked = parse(Predict, words, "predict")
    read(Path(asked.run))
    signals = Signals("stopped, nothing was written; the same command begins again")
    try:
        from contexture.train.evaluation.predict import Predictor, predict_file

        predictor = Predictor(asked.run, step=asked.step or None, batch=asked.batch, say=warn)
        columns = {"text": asked.text, "second": asked.second, "choices": asked.choices, "header": asked.header}
        return predict_file(predictor, asked.input, Path(asked.to), columns, warn, signals.check)
    finally:
        signals.close()


def fill_command(words: list[str]) -> Result:
    """what fits a gap: contexture fill RUN --text "… [MASK] …" """
    asked = parse(Fill, words, "fill")
    return {"text": asked.text, "masks": fill(asked.run, asked.text, top=asked.top, step=asked.step or None)}


def generate_command(words: list[str]) -> StreamingResult:
    """what a GPT writes on: contexture generate RUN --prompt TEXT [--tokens N --temperature T --top-k K --top-p P]"""
    asked = parse(Generate, words, "generate")
    read(Path(asked.run))
    prompts = asked.prompt or tuple(_lines(asked.input))
    names = ("tokens", "temperature", "top_k", "top_p", "exclusive", "stop", "seed", "batch")
    options: Any = {"step": asked.step or None, **{name: getattr(asked, name) for name in names}}

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
            texts = generate(asked.run, prompts, tell=tell_line, check=signals.check, **options)
        finally:
            signals.close()
        if len(prompts) > 1:
            tell("\n\n".join(text["prompt"] + text["text"] for text in texts))
        return {"run": asked.run, "texts": texts}

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


def score_command(words: list[str]) -> Result:
    """how well a GPT foretells text: contexture score RUN --input F… [--stride N]"""
    asked = parse(Score, words, "score")
    read(Path(asked.run))
    signals = Signals("stopped; the same command begins again")
    try:
        options: Any = {name: getattr(asked, name) for name in ("documents", "length", "stride", "batch")}
        return score(asked.run, asked.input, step=asked.step or None, check=signals.check, **options)
    finally:
        signals.close()


def embed_command(words: list[str]) -> Result:
    """the vectors of a text's words: contexture embed RUN --input F --to F.hdf5|F.npz [--layers last|all|0,2]"""
    asked = parse(Embed, words, "embed")
    read(Path(asked.run))
    signals = Signals("stopped, nothing was written; the same command begins again")
    try:
        options: Any = {name: getattr(asked, name) for name in ("layers", "pool", "batch", "stateful")}
        return embed(asked.run, asked.input, asked.to, step=asked.step or None, check=signals.check, **options)
    finally:
        signals.close()


def layers_command(words: list[str]) -> Result:
    """what each layer counts in the learned mixes: contexture layers RUN… [--to F.png]"""
    asked = parse(Layers, words, "layers")
    from contexture.analysis.layers import check_figure, draw, layers

    if not asked.runs:
        raise ConfigError("layers wants runs: contexture layers RUN… [--to F.png]")
    if asked.to:
        check_figure(Path(asked.to))
    rows = layers([Path(run) for run in asked.runs], load)
    if asked.to:
        draw(rows, Path(asked.to))
    return {"mixes": rows, **({"figure": asked.to} if asked.to else {})}


def import_command(words: list[str]) -> Result:
    """a published model as a run: contexture import hf|bert-tf|gpt2-tf|gpt1-npy|bilm DIR --to RUN"""
    asked = parse(Import, words, "import")
    from contexture.train.interchange.convert import import_model

    signals = Signals("stopped, nothing was written; the same command begins again")
    try:
        return import_model(
            asked.format,
            Path(asked.path),
            Path(asked.to),
            warn,
            signals.check,
            vocabulary=asked.vocabulary,
            lowercase={"auto": None, "yes": True, "no": False}[asked.lowercase],
            gelu=asked.gelu,
            split=asked.split,
        )
    finally:
        signals.close()


def export_command(words: list[str]) -> Result:
    """a run as files that others read: contexture export RUN hf|bilm --to DIR"""
    asked = parse(Export, words, "export")
    from contexture.train.interchange.convert import export_model

    signals = Signals("stopped, nothing was written; the same command begins again")
    try:
        return export_model(Path(asked.run), asked.format, Path(asked.to), asked.step or None, warn, signals.check)
    finally:
        signals.close()


def evaluate_command(words: list[str]) -> Result | None:
    """held-out figures of a run: contexture evaluate RUN [--task.dev F] [--split dev|test] [--step N…|best|all]"""
    asked = parse(Evaluate, words, "evaluate")
    read(Path(asked.run))
    from contexture.train.evaluation import evaluate as evaluation

    signals = Signals("stopped; the same command begins again")
    try:
        with results_alone() if asked.mesh.distributed else contextlib.nullcontext():
            what = evaluation.EvaluationRequest(
                asked.split, asked.task.dev, asked.step, asked.batch, asked.to, asked.mesh
            )
            result = evaluation.evaluate_run(Path(asked.run), what, warn, signals.check)
    finally:
        signals.close()
    import jax

    return result if jax.process_index() == 0 else None

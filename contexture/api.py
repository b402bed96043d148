"""What `import contexture` gives: runs opened, evaluated and asked in Python. Importing this needs no jax."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contexture.data.visible import visible
from contexture.train.options import MeshConfig
from contexture.train.run_file import read

if TYPE_CHECKING:
    from contexture.data.tokenizers.base import Tokenizer
    from contexture.models.model import Model

Result = dict[str, Any]


def warn(line: str) -> None:
    """What a person should know goes to stderr."""
    print(visible(line), file=sys.stderr)


def load(run: str | Path, step: int | None = None) -> "tuple[Model, Any, Tokenizer]":
    """A run opened in Python: (model, params, tokenizer), from its newest good checkpoint or that of `step`.

    `model.apply({"params": params}, batch)` with
    `batch = contexture.data.layouts.bert_texts(tokenizer, texts, length)`. Raises ConfigError where the folder is no
    run, CheckpointError where no checkpoint is good.
    """

    from contexture.train import mesh as meshes
    from contexture.train.checkpoints.transfer import load_parameters
    from contexture.train.run.data import read_tokenizer

    folder = Path(run)
    settings, described = read(folder)
    tokenizer = read_tokenizer(folder, settings, described)
    meshes.prepare_jax(settings.model.dtype)
    mesh = meshes.build(MeshConfig(), meshes.find_devices()[:1])
    loaded = load_parameters(folder, settings, tuple(described.get("labels", ())), mesh, warn, step)
    return loaded.model, loaded.params, tokenizer


def evaluate(
    run: str | Path,
    *,
    split: str = "dev",
    dev: str | Sequence[str] = (),
    step: int | str | Sequence[str] = (),
    batch: int = 0,
    to: str = "",
    mesh: MeshConfig | None = None,
) -> Result:
    """What `contexture evaluate` prints, as a dict: {"run", "step", "split", "examples", "metrics", …}.

    dev: labelled files instead of the run's own examples; step: the numbers of checkpoints, "best" or "all". Raises as
    `load` does, and DataError for a file.
    """
    from contexture.train.evaluation.evaluate import EvaluationRequest, evaluate_run

    steps = (str(step),) if isinstance(step, int | str) else tuple(step)
    asked = EvaluationRequest(split, (dev,) if isinstance(dev, str) else tuple(dev), steps, batch, to, mesh)
    return evaluate_run(Path(run), asked, warn)


def predict(run: str | Path, texts: "Sequence[Any]", *, step: int | None = None) -> list[Result]:
    """A fine-tuned run's answers to texts, pairs of texts or lists of words: [{"id", "prediction", "scores"}, …].

    For many calls keep a `contexture.train.evaluation.predict.Predictor`. Raises as `load` does, and DataError for an
    empty text.
    """
    from contexture.train.evaluation.predict import Predictor

    return Predictor(run, step=step, say=warn)(texts)


def fill(run: str | Path, text: str, *, top: int = 5, step: int | None = None) -> list[list[Result]]:
    """What a pretrained run would put in each [MASK] of a text: a list of {"piece", "score"} for each, best first."""
    from contexture.analysis.fill import fill as fill_in

    if "heads_mlm/bias" in read(Path(run))[1].get("published", {}).get("drawn", ()):
        warn("the head that fills was in no file of this imported run, but drawn: train it before you believe it")
    model, params, tokenizer = load(run, step)
    return fill_in(model, params, tokenizer, text, top)


def embed(
    run: str | Path,
    input: str | Path,
    to: str | Path,
    *,
    layers: str = "all",
    pool: str = "none",
    batch: int = 64,
    stateful: bool = False,
    step: int | None = None,
    check: Callable[[], None] = lambda: None,
) -> Result:
    """The vectors of the words (of a BERT or a GPT, pieces) of each line of a file, written to *.hdf5 (the original
    ELMo's layout) or *.npz, one array by the line's number: {"to", "lines", "tokens", "words", "cut"}.

    tokens are those that the model read (the rows of all arrays with pool="none"), words those without a BERT's [CLS]
    and [SEP], cut the words of which not all bytes are read, or the pieces for which a line of the model has no room.

    `contexture.analysis.embed.embed` says what the options do. Raises as `load` does, and DataError for the files.
    """
    from contexture.analysis.embed import embed as vectors_of
    from contexture.analysis.embed import parted, vectors_file
    from contexture.data.errors import DataError
    from contexture.data.plain_files import check_not_packed, check_plain
    from contexture.data.text.sources import lines

    file = Path(input)
    check_plain(file)
    if not file.is_file():
        raise DataError(f"{file}: no such file; give one with a sentence in each line")
    check_not_packed(file)
    told = {"to": str(to), "lines": 0, "tokens": 0, "words": 0, "cut": 0}

    def read(part: Any) -> Iterator[list[Any]]:
        for _, line in lines(file):
            units, count, cut = part(line)
            told["tokens"] += len(units)
            told["words"] += count
            told["cut"] += cut
            yield units

    with vectors_file(Path(to)) as write:  # first: it says at once where nothing can be written
        model, params, tokenizer = load(run, step)
        options: Any = {"layers": layers, "pool": pool, "batch": batch, "stateful": stateful, "check": check}
        found = vectors_of(model, params, tokenizer, read(parted(model, tokenizer)), **options)
        for number, vectors in enumerate(found):
            write(str(number), vectors)
            told["lines"] = number + 1
    return told


def generate(
    run: str | Path,
    prompts: str | Sequence[str],
    *,
    tokens: int = 0,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    exclusive: bool = False,
    stop: str | Sequence[str] = (),
    seed: int = 0,
    batch: int = 16,
    step: int | None = None,
    tell: Callable[[int, str], None] = lambda line, text: None,
    check: Callable[[], None] = lambda: None,
) -> list[Result]:
    """What a pretrained GPT writes behind each prompt: [{"prompt", "text", "tokens", "stopped"}, …].

    `contexture.analysis.generate.generate` says what the options mean. Raises as `load` does, and DataError for a
    prompt.
    """
    from contexture.analysis.generate import generate as write
    from contexture.models.config import Sampling

    model, params, tokenizer = load(run, step)
    lines = [prompts] if isinstance(prompts, str) else list(prompts)
    how = Sampling(temperature, top_k, top_p, exclusive)
    more: Any = {"tokens": tokens, "stop": stop, "seed": seed, "batch": batch, "tell": tell, "check": check}
    trained = read(Path(run))[0].data.length
    return write(model, params, tokenizer, lines, how, **more, trained=trained, say=warn)


def score(
    run: str | Path,
    texts: str | Sequence[str],
    *,
    documents: str = "files",
    length: int = 0,
    stride: int = 0,
    batch: int = 8,
    step: int | None = None,
    check: Callable[[], None] = lambda: None,
) -> Result:
    """How well a pretrained GPT predicts the text of files: what `contexture score` prints.

    `contexture.analysis.score.score` says what the options mean; length 0 is that of the training. Raises as `load`
    does, and DataError for a file.
    """
    from contexture.analysis.score import score as score_texts
    from contexture.data.text.sources import expand

    def each() -> Iterator[str]:
        for source in sources:
            held: list[str] = []
            for chunk in source.chunks(documents):
                if chunk:
                    held.append(chunk)
                elif held:
                    yield "".join(held)
                    held = []
            if held:
                yield "".join(held)

    sources = expand((texts,) if isinstance(texts, str) else tuple(texts), "input")
    model, params, tokenizer = load(run, step)
    length = length or read(Path(run))[0].data.length
    found = score_texts(model, params, tokenizer, each(), length=length, stride=stride, batch=batch, check=check)
    return {"run": str(run), **found}

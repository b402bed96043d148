"""The Python functions of `import contexture`: load, evaluate and query runs. Importing this needs no jax.

The functions take the fields of the requests in `contexture.requests`, which are also the options of the command line.
"""

import ast
import functools
import inspect
import logging
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, get_type_hints

from contexture.analysis.results import EmbeddingFile, GeneratedText, RunScore, TokenScore
from contexture.data.cancel import NEVER, CancelToken
from contexture.requests import EmbeddingRequest, FillRequest, GenerationRequest, Place, ScoreRequest, several
from contexture.train.errors import ConfigError
from contexture.train.evaluation.request import EvaluationRequest
from contexture.train.options import MeshConfig
from contexture.train.run_file import read

if TYPE_CHECKING:
    from contexture.analysis.embed import SplitSentence, Units
    from contexture.data.tokenizers.base import Tokenizer
    from contexture.models.model import Model
    from contexture.models.shapes import Params

logger = logging.getLogger(__name__)
Result = dict[str, Any]
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def load(run: str | Path, step: int | None = None) -> "tuple[Model, Params, Tokenizer]":
    """Loads (model, params, tokenizer) of a run, from its newest good checkpoint or that of `step`.

    Use them as `model.apply({"params": params}, batch)` with
    `batch = contexture.data.layouts.bert_texts(tokenizer, texts, length)`.

    Raises: ConfigError for a folder that is no run, CheckpointError where no checkpoint is good.
    """
    from contexture.train import mesh as meshes
    from contexture.train.checkpoints.transfer import load_parameters
    from contexture.train.run.data import read_tokenizer

    folder = Path(run)
    record = read(folder)
    tokenizer = read_tokenizer(folder, record)
    meshes.prepare_jax(record.run.model.dtype)
    mesh = meshes.build(MeshConfig(), meshes.find_devices()[:1])
    loaded = load_parameters(folder, record.run, record.labels, mesh, step)
    return loaded.model, loaded.params, tokenizer


def predict(run: str | Path, texts: "Sequence[Any]", *, step: int | None = None) -> list[Result]:
    """Predicts texts, pairs of texts or lists of words with a fine-tuned run: [{"id", "prediction", "scores"}, …].

    For many calls keep a `contexture.train.evaluation.predict.Predictor`.

    Raises: as `load`; DataError for an empty text.
    """
    from contexture.train.evaluation.predict import Predictor

    return [dict(record) for record in Predictor(run, step=step)(texts)]


def call_with_fields(name: str, request: Callable[P, R], function: Callable[[R], T]) -> Callable[P, T]:
    """Returns a function of a request as one of the request's fields, with their types and documentation."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            made = request(*args, **kwargs)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        return function(made)

    kinds = get_type_hints(request)  # without what the command line reads in them
    fields = [field.replace(annotation=kinds[field.name]) for field in inspect.signature(request).parameters.values()]
    call.__signature__ = inspect.Signature(fields, return_annotation=get_type_hints(function)["return"])  # pyright: ignore[reportAttributeAccessIssue]
    call.__name__ = call.__qualname__ = name
    options = "\n".join(f"    {name}: {text}" for name, text in _field_docs(request).items())
    if function.__doc__ and options:
        call.__doc__ = f"{inspect.getdoc(function)}\n\nArgs:\n{options}\n"
    return call


def _field_docs(request: Any) -> dict[str, str]:
    """Returns field → the string below it in the source of its class; nothing where only bytecode is installed."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(request))).body[0]
    except OSError:
        return {}
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            docs[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return docs


def evaluate_run(request: EvaluationRequest, cancel: CancelToken = NEVER) -> Result:
    """Evaluates a run on held-out examples, each once: {"run", "step", "split", "examples", "metrics", …}.

    Raises: as `load`; DataError for a file.
    """
    from contexture.train.evaluation import evaluate

    return dict(evaluate.evaluate_run(request, cancel))


def fill_masks(request: FillRequest) -> list[list[TokenScore]]:
    """Predicts the tokens behind each [MASK] of a text: a list of {"token", "score"} for each, best first.

    Raises: as `load`; DataError for a text without [MASK].
    """
    from contexture.analysis.fill import fill

    imported = read(Path(request.run)).imported
    if imported and "heads_mlm/bias" in imported.missing:
        logger.warning("the masked-LM head of this imported run is randomly initialised; train it before using fill")
    model, params, tokenizer = load(request.run, request.step or None)
    return fill(model, params, tokenizer, request.text, request.top)


def embed_file(request: EmbeddingRequest, cancel: CancelToken = NEVER) -> EmbeddingFile:
    """Writes the contextual vectors of each line of a file to *.hdf5 (the original ELMo's layout) or *.npz.

    The file holds one array for each line, named by the line's number from 0. Returns {"to", "lines", "tokens",
    "words", "truncated"}: tokens are those that the model read (the rows of all arrays with pool="none"), words those
    without a BERT's [CLS] and [SEP], truncated the words whose last bytes are not read, or the tokens beyond the
    model's length.

    Raises: as `load`; DataError for the files.
    """
    from contexture.analysis.embed import embed, sentence_splitter, vectors_file

    file, to = Path(request.input), Path(request.to)
    result: EmbeddingFile = {"to": str(to), "lines": 0, "tokens": 0, "words": 0, "truncated": 0}

    def sentences(split: "Callable[[str], SplitSentence]") -> "Iterator[Units]":
        for line in lines_of(file, "a sentence"):
            sentence = split(line)
            result["tokens"] += len(sentence.units)
            result["words"] += sentence.own
            result["truncated"] += sentence.truncated
            yield sentence.units

    _check_lines(file, "a sentence")
    with vectors_file(to) as write:  # first: an unwritable place is refused at once
        model, params, tokenizer = load(request.run, request.step or None)
        vectors = embed(
            model,
            params,
            tokenizer,
            sentences(sentence_splitter(model, tokenizer)),
            layers=request.layers,
            pool=request.pool,
            batch=request.batch,
            stateful=request.stateful,
            cancel=cancel,
        )
        for number, array in enumerate(vectors):
            write(str(number), array)
            result["lines"] = number + 1
    return result


def generate_texts(
    request: GenerationRequest, show: Callable[[int, str], None] | None = None, cancel: CancelToken = NEVER
) -> list[GeneratedText]:
    """Continues each prompt with a pretrained GPT: [{"prompt", "text", "tokens", "stopped"}, …].

    Raises: as `load`; DataError for a prompt.
    """
    from contexture.analysis.generate import generate

    read(Path(request.run))
    prompts = several(request.prompt) or tuple(lines_of(Path(request.input), "a prompt"))
    model, params, tokenizer = load(request.run, request.step or None)
    return generate(
        model,
        params,
        tokenizer,
        list(prompts),
        request.sampling,
        tokens=request.tokens,
        stop=several(request.stop),
        seed=request.seed,
        batch=request.batch,
        trained_length=read(Path(request.run)).run.data.length,
        show=show or (lambda number, text: None),
        cancel=cancel,
    )


def score_files(request: ScoreRequest, cancel: CancelToken = NEVER) -> RunScore:
    """Measures how well a pretrained GPT predicts the text of files: {"run", "loss", "perplexity", …}.

    Raises: as `load`; DataError for a file.
    """
    from contexture.analysis.score import score
    from contexture.data.text.sources import expand

    sources = expand(several(request.input), "input")

    def documents() -> Iterator[str]:
        for source in sources:
            parts: list[str] = []
            for chunk in source.chunks(request.documents):
                if chunk:
                    parts.append(chunk)
                elif parts:  # an empty chunk ends a document
                    yield "".join(parts)
                    parts = []
            if parts:
                yield "".join(parts)

    model, params, tokenizer = load(request.run, request.step or None)
    length = request.length or read(Path(request.run)).run.data.length
    result = score(
        model, params, tokenizer, documents(), length=length, stride=request.stride, batch=request.batch, cancel=cancel
    )
    return {"run": str(request.run), **result}


def lines_of(file: Path, what: str) -> Iterator[str]:
    """Yields the lines of a file, each `what`, without their ends.

    Raises: DataError for a file that cannot be read as text.
    """
    from contexture.data.text.lines import lines

    _check_lines(file, what)
    for _, line in lines(file):
        yield line.rstrip("\r\n")


def _check_lines(file: Place, what: str) -> None:
    from contexture.data.errors import DataError
    from contexture.data.plain_files import check_plain
    from contexture.data.text.sources import check_plain_text

    check_plain(file)
    if not Path(file).is_file():
        raise DataError(f"{file}: no such file; give one with {what} in each line")
    check_plain_text(Path(file), what)


evaluate = call_with_fields("evaluate", EvaluationRequest, evaluate_run)
fill = call_with_fields("fill", FillRequest, fill_masks)
embed = call_with_fields("embed", EmbeddingRequest, embed_file)
generate = call_with_fields("generate", GenerationRequest, generate_texts)
score = call_with_fields("score", ScoreRequest, score_files)

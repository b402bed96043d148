"""`contexture embed`: argv → a file of vectors."""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contexture.analysis.options import EmbedOptions, layer_numbers
from contexture.api import open
from contexture.cli.output import Result
from contexture.cli.parse import parse
from contexture.data.cancel import CancelToken
from contexture.data.text.sources import check_lines, lines_of
from contexture.requests import EmbeddingRequest
from contexture.requests.arguments import checkpoint_of
from contexture.train.run.signals import NOTHING_WRITTEN, Signals
from contexture.train.settings.run_file import read

if TYPE_CHECKING:
    from contexture.analysis.trained_model import TrainedModel
    from contexture.analysis.vectors.row_names import NamedLine
    from contexture.analysis.vectors.vector_files import Write

logger = logging.getLogger(__name__)


def embed_command(argv: list[str]) -> Result:
    """Writes contextual vectors of sentences, words or tokens."""
    request = parse(EmbeddingRequest, argv, "embed")
    read(Path(request.run))
    file, to = Path(request.input), Path(request.to)
    check_lines(file, "a sentence")
    from contexture.analysis.vectors.row_names import line_reader
    from contexture.analysis.vectors.vector_files import resolve, vectors_file

    layers, pool, of = resolve(to, request.layers, request.pool, request.of, overwrite=request.overwrite)
    # First: an unwritable place is refused at once.
    with Signals(NOTHING_WRITTEN) as signals, vectors_file(to, of, layers) as write:
        opened = open(request.run, checkpoint_of(request.step))
        numbers = layer_numbers(layers, opened.run.model.layers)
        how = EmbedOptions(layers=numbers, pool=pool, batch=request.batch, stateful=request.stateful)
        reader = line_reader(opened.model, opened.tokenizer, of)
        return {"to": str(to), **_write_lines(opened, file, reader, write, how, layers == "last", signals)}


def _write_lines(
    opened: "TrainedModel",
    file: Path,
    reader: "Callable[[str, str], NamedLine]",
    write: "Write",
    how: EmbedOptions,
    squeezed: bool,
    cancel: CancelToken,
) -> dict[str, int]:
    """Writes the vectors of each line of a file, without the axis of layers if `squeezed`; warns of truncated lines.

    Returns counts:

    lines      the lines of the file
    tokens     the tokens that the model read
    words      with --of words the words, else the tokens without a BERT's [CLS] and [SEP]
    truncated  words whose last bytes were not read, or tokens beyond the model's length
    unknown    for static vectors: the words that have none
    """
    from contexture.analysis.embed import embed
    from contexture.data.tokenizers.unknown_tokens import UnknownTokens
    from contexture.data.tokenizers.word_level import StaticWords

    unknown = UnknownTokens(opened.tokenizer) if isinstance(opened.tokenizer, StaticWords) else None
    waiting: deque[tuple[str, NamedLine]] = deque()  # lines that are read and whose vectors are still to come
    result: dict[str, int] = {"lines": 0, "tokens": 0, "words": 0, "truncated": 0}
    cut = 0

    def sentences() -> Iterator[Any]:
        nonlocal cut
        for number, text in enumerate(lines_of(file, "a sentence"), 1):
            line = reader(text, f"{file}:{number}")
            if unknown is not None:
                unknown.add([text], [line.units])  # pyright: ignore[reportArgumentType]  # they are ids
            result["tokens"] += len(line.units)
            result["words"] += line.own
            result["truncated"] += line.truncated
            cut += line.truncated > 0
            # Read ahead by the batches: its vectors come later, in the same order.
            waiting.append((text, line))
            yield line.units

    fixed = opened.model, opened.forward_params, opened.tokenizer
    with opened.computing():
        for array in embed(*fixed, sentences(), how, cancel=cancel, trained=opened.watch_lengths()):
            text, line = waiting.popleft()
            write(text, line.vectors(array[0] if squeezed else array), line.names)
            result["lines"] += 1
    if cut:
        logger.warning(opened.run.text.truncation(f"{cut:,} of {result['lines']:,} lines", opened.run.model.length))
    if unknown is not None:
        result["unknown"] = unknown.unknown
        if line := unknown.warning(file.name, "give vectors that have these words"):
            logger.warning(line)
    return result

"""The vectors of the lines of a file, written while they are computed."""

import logging
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contexture.analysis.embed import embed
from contexture.analysis.options import EmbedOptions
from contexture.analysis.vectors.row_names import NamedLine, line_reader
from contexture.analysis.vectors.vector_files import Of, Write
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.text.sources import lines_of
from contexture.data.tokenizers.unknown_tokens import UnknownTokens
from contexture.data.tokenizers.word_level import StaticWords

if TYPE_CHECKING:
    from contexture.analysis.trained_model import TrainedModel

logger = logging.getLogger(__name__)


def embed_lines(
    opened: "TrainedModel",
    file: Path,
    write: Write,
    of: Of,
    how: EmbedOptions,
    *,
    squeezed: bool = False,
    cancel: CancelToken = NEVER,
) -> dict[str, int]:
    """Writes the vectors of each line of a text file, in memory bounded by a batch; warns of truncated lines.

    Args:
        opened: the model.
        file: the text; each line is a sentence.
        write: takes the vectors of each line (`vector_files.vectors_file`).
        of: whether sentences, words or tokens have vectors.
        how: which vectors.
        squeezed: whether one layer's vectors are written without an axis of layers.
        cancel: may raise to stop the work.

    Returns:
        Counts: lines; tokens that the model read; words (without of="words", the tokens but a BERT's [CLS] and [SEP]);
        truncated, the words whose last bytes were not read, or the tokens beyond the model's length; for static vectors
        also unknown, the words that have none.
    """
    reader = line_reader(opened.model, opened.tokenizer, of)
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

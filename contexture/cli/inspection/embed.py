"""`contexture embed`: argv → a file of vectors."""

from pathlib import Path

from contexture.analysis.options import EmbedOptions, layer_numbers
from contexture.api import open
from contexture.cli.output import Result
from contexture.cli.parse import parse
from contexture.data.text.sources import check_lines
from contexture.requests import EmbeddingRequest
from contexture.requests.arguments import checkpoint_of
from contexture.train.run.signals import NOTHING_WRITTEN, Signals
from contexture.train.settings.run_file import read


def embed_command(argv: list[str]) -> Result:
    """Writes contextual vectors of sentences, words or tokens."""
    request = parse(EmbeddingRequest, argv, "embed")
    read(Path(request.run))
    file, to = Path(request.input), Path(request.to)
    check_lines(file, "a sentence")
    from contexture.analysis.vectors.embed_lines import embed_lines
    from contexture.analysis.vectors.vector_files import resolve, vectors_file

    layers, pool, of = resolve(to, request.layers, request.pool, request.of, overwrite=request.overwrite)
    # First: an unwritable place is refused at once.
    with Signals(NOTHING_WRITTEN) as signals, vectors_file(to, of, layers) as write:
        opened = open(request.run, checkpoint_of(request.step))
        numbers = layer_numbers(layers, opened.run.model.layers)
        how = EmbedOptions(layers=numbers, pool=pool, batch=request.batch, stateful=request.stateful)
        counts = embed_lines(opened, file, write, of, how, squeezed=layers == "last", cancel=signals)
        return {"to": str(to), **counts}

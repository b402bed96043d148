"""The commands that compare vectors: argv → the printed result."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contexture.api import open
from contexture.cli.output import Result
from contexture.cli.parse import parse
from contexture.data.errors import DataError
from contexture.data.text.sources import check_lines, lines_of
from contexture.requests import NeighboursRequest, SimilarityRequest, several
from contexture.requests.arguments import checkpoint_of
from contexture.train.run.signals import NOTHING_WRITTEN, STOPPED, Signals
from contexture.train.settings.run_file import read


def neighbours_command(argv: list[str]) -> Result:
    """Returns the nearest sentences, or words, of a text."""
    request = parse(NeighboursRequest, argv, "neighbours")
    read(Path(request.run))
    file = Path(request.input)
    check_lines(file, "a sentence")
    # An empty file is an error before the model is loaded.
    if next(lines_of(file, "a sentence"), None) is None:
        raise DataError(f"{file}: no line in the file; give one with a sentence in each line")
    if request.queries:
        check_lines(Path(request.queries), "a sentence")
    queries = list(lines_of(Path(request.queries), "a sentence")) if request.queries else [*several(request.text)]
    if not queries:
        raise DataError(f"{request.queries}: no line in the file; give a sentence to search for in each line")
    from contexture.analysis.neighbours.search import sentence_neighbours, word_neighbours

    # Opened anew for each reading: the neighbours are found first, and their lines read again afterwards.
    def lines() -> Iterator[str]:
        return lines_of(file, "a sentence")

    with Signals(STOPPED) as signals:
        model = open(request.run, checkpoint_of(request.step))
        options: Any = {"top": request.top, "how": request, "cancel": signals}
        if request.word:
            nearest = [word_neighbours(model, lines, queries[0], request.word, **options)]
        else:
            nearest = sentence_neighbours(model, lines, queries, **options)
        return {"run": str(request.run), "queries": nearest}


def similarity_command(argv: list[str]) -> Result:
    """Returns how the cosines of pairs correlate with their scores, and writes the cosines."""
    request = parse(SimilarityRequest, argv, "similarity")
    read(Path(request.run))
    from contexture.analysis.neighbours.similarity import correlations, pair_similarities, read_pairs
    from contexture.data.storage import atomic_file

    pairs, scores = read_pairs(request.input, request.text, request.second, request.label, request.header)
    if request.to and not Path(request.to).parent.is_dir():
        raise DataError(f"{request.to}: its folder is not there; make it, or give another name")
    with Signals(NOTHING_WRITTEN) as signals:
        model = open(request.run, checkpoint_of(request.step))
        cosines = pair_similarities(model, pairs, how=request, cancel=signals)
        result: dict[str, object] = {"run": str(request.run), "pairs": len(pairs), "mean_cosine": float(cosines.mean())}
        if scores is not None:
            result |= correlations(scores, cosines)
        if request.to:
            with atomic_file(Path(request.to)) as part:
                part.write_text("".join(f"{cosine:.9g}\n" for cosine in cosines.tolist()), "utf-8")
            result["to"] = request.to
        return result

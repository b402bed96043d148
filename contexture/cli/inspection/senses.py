"""`contexture senses`: argv → the figures of a word's vectors, and a page or a picture of them."""

from collections import Counter
from pathlib import Path
from typing import Any

from contexture.analysis.options import layer_numbers
from contexture.api import open
from contexture.cli.output import Result
from contexture.cli.parse import parse
from contexture.data.errors import DataError
from contexture.requests import SensesRequest, several
from contexture.requests.arguments import checkpoint_of
from contexture.train.run.signals import NOTHING_WRITTEN, Signals
from contexture.train.settings.run_file import read


def senses_command(argv: list[str]) -> Result:
    """Compares the vectors of a word in its sentences, by sense or cluster, at each layer."""
    request = parse(SensesRequest, argv, "senses")
    top = read(Path(request.run)).run.model.layers
    to = Path(request.to) if request.to else None
    if to is not None:
        _check_target(to)
    layers = None if request.layers == "all" else sorted(set(layer_numbers(request.layers, top, ["all"])))
    from contexture.analysis.pages.one_page import run_title
    from contexture.analysis.senses.occurrences import check_files, read_sentences
    from contexture.analysis.senses.projections import PROJECTIONS
    from contexture.analysis.senses.senses_figure import draw_senses
    from contexture.analysis.senses.senses_page import write_senses_page
    from contexture.analysis.senses.static_vector import static_similarities, static_vector
    from contexture.analysis.senses.word_senses import word_senses

    files = several(request.input)
    check_files(files, request.text, request.sense)
    with Signals(NOTHING_WRITTEN) as signals:
        # Read before the run is opened: a word that the file lacks is an error at once.
        own_vector = static_vector(Path(request.static), request.word, signals) if request.static else None
        model = open(request.run, checkpoint_of(request.step))
        with model.computing():
            senses = word_senses(
                model.model,
                model.forward_params,
                model.tokenizer,
                read_sentences(files, request.text, request.sense, request.header),
                request.word,
                request,
                cancel=signals,
                trained=model.watch_lengths(),
            )
    static = static_similarities(Path(request.static), *own_vector, senses) if own_vector else None
    how: Any = {"projection": request.projection, "seed": request.seed, "static": static}
    title = f"{request.word} in {run_title(model)}: {PROJECTIONS[request.projection]}"
    if to is not None and to.suffix == ".html":
        write_senses_page(to, title, senses, **how)
    elif to is not None:
        draw_senses(senses, to, title, layers=layers, theme=request.theme, **how)
    result: dict[str, object] = {
        "run": request.run,
        "step": model.step,
        "word": request.word,
        "occurrences": len(senses["texts"]),
    }
    # More occurrences than were computed or left out: the others were not sampled.
    if senses["count"] > len(senses["texts"]) + senses["left_out"]:
        result["sampled_from"] = senses["count"]
    if senses["left_out"]:
        result["left_out"] = senses["left_out"]
    if senses["senses"] is not None:
        result["senses"] = dict(Counter(senses["senses"]))
    if static is not None:
        result["static"] = static
    return {**result, "layers": senses["layers"], **({"to": request.to} if to is not None else {})}


def _check_target(to: Path) -> None:
    from contexture.analysis.pages.one_page import check_folder
    from contexture.train.run.plots import PICTURES

    if to.suffix not in (".html", *PICTURES):
        raise DataError(f"--to {to}: a page ends in .html, a figure in .png, .svg or .pdf; give such a name")
    check_folder(to)

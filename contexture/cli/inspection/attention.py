"""`contexture attention`: a page that shows which tokens each token of a text reads."""

from pathlib import Path

from contexture.api import open
from contexture.cli.output import Result
from contexture.cli.parse import parse
from contexture.requests import AttentionRequest
from contexture.requests.arguments import checkpoint_of
from contexture.train.errors import ConfigError
from contexture.train.settings.run_file import read


def attention_command(argv: list[str]) -> Result:
    """Writes the page of a text's attention, or of an ELMo's gates."""
    request = parse(AttentionRequest, argv, "attention")
    layers, heads = _numbers("layers", request.layers), _numbers("heads", request.heads)
    read(Path(request.run))
    from contexture.analysis.attention.write_page import write_page
    from contexture.analysis.pages.one_page import check_page, run_title, text_title

    check_page(Path(request.to))
    model = open(request.run, checkpoint_of(request.step))
    kind = "Gates" if model.run.model.is_recurrent else "Attention"
    with model.computing():
        page = write_page(
            Path(request.to),
            f"{kind} in {run_title(model)}: {text_title(request.text)}",
            model,
            request.text,
            request.second,
            layers=layers,
            heads=heads,
        )
    # LSTMs have no positions, so no text is longer than they were trained for.
    if kind == "Attention":
        model.watch_lengths().check(page.tokens)
    result: Result = {"run": str(request.run), "step": model.step, "to": str(request.to), **page._asdict()}
    return (
        result
        if page.heads
        else {name: value for name, value in result.items() if name not in ("heads", "query_key_layers")}
    )


def _numbers(name: str, given: str) -> list[int] | None:
    """Returns the numbers of an option such as `1,6,12`; None for all. Anything else is a ConfigError."""
    if given == "all":
        return None
    for word in given.split(","):
        if not word.strip().isdecimal():
            raise ConfigError(f"--{name} {given}: {word!r} is no number; give all, or numbers from 1 such as 1,6,12")
    return [int(word) for word in given.split(",")]

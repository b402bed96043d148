"""The options of the commands that compare vectors. Needs no jax."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

from contexture.analysis.options import VectorOptions
from contexture.requests.arguments import FILE, POSITIONAL, RUN, STEP, TEXT, TEXTS, Place, check_place
from contexture.train.evaluation.request import Strings


@dataclass(frozen=True)
class NeighboursRequest(VectorOptions):
    """The sentences of a text, or the words in them, whose vectors have the largest cosine with those of others."""

    run: Annotated[Place, RUN, POSITIONAL]
    """The folder of a run of any family."""
    input: Annotated[Place, FILE]
    """The text file to search in; each line is a sentence."""
    _: KW_ONLY
    text: Annotated[Strings, TEXTS] = ()
    """A sentence to search for, or several."""
    queries: Annotated[str, FILE] = ""
    """A file with a sentence to search for in each line, in place of --text."""
    word: Annotated[str, TEXT] = ""
    """A word of --text: search for words in their sentences, the nearest to this one in its own."""
    top: int = 10
    """How many neighbours to list."""

    step: Annotated[str, STEP] = ""
    """The checkpoint to use: its step, or `best`. Without it, the best of a run with --evaluate.patience, else the
    newest good one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = (self.text,) if isinstance(self.text, str) else self.text
        if bool(given) == bool(self.queries):
            raise ValueError("give --text TEXT, or --queries FILE with a sentence in each line")
        if not all(text.strip() for text in given):
            raise ValueError("text= is empty; give a sentence to search for")
        if self.word and len(given) != 1:
            raise ValueError("word= is for one sentence; give it as --text TEXT")
        if self.top < 1:
            raise ValueError(f"top={self.top} is not a positive number of neighbours")


@dataclass(frozen=True)
class SimilarityRequest(VectorOptions):
    """The cosine of two texts' vectors, for the pairs of a file, and its correlation with their scores (STS)."""

    run: Annotated[Place, RUN, POSITIONAL]
    """The folder of a run of any family."""
    input: Annotated[str, FILE]
    """Pairs of texts, with or without a score: *.tsv, *.csv, *.jsonl."""
    _: KW_ONLY
    to: Annotated[str, FILE] = ""
    """A file to write the cosine of each pair to, a line each."""
    text: Annotated[str, TEXT] = ""
    """The column of the first text. Without it, one with a usual name."""
    second: Annotated[str, TEXT] = ""
    """The column of the second text."""
    label: Annotated[str, TEXT] = ""
    """The column of the score. Without it, one with a usual name, where there is one."""
    header: Literal["auto", "yes", "no"] = "auto"
    """Whether tsv and csv begin with the names of their columns."""

    step: Annotated[str, STEP] = ""
    """The checkpoint to use: its step, or `best`. Without it, the best of a run with --evaluate.patience, else the
    newest good one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.to:
            check_place(self.to, self.input)

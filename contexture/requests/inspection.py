"""The options of the commands that look into runs. Needs no jax."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

from contexture.analysis.options import ProbeOptions, SensesOptions
from contexture.requests.arguments import (
    DIR,
    FILE,
    FILES,
    POSITIONAL,
    RUN,
    STEP,
    TEXT,
    Arg,
    Place,
    check_effect,
    check_place,
)
from contexture.train.evaluation.request import Strings

_THEMED = (".png", ".pdf")
"""Figures with colours of their own; an *.svg follows its reader."""


@dataclass(frozen=True)
class AttentionRequest:
    """A page that shows which tokens each token of a text reads, by layer and head, and how the weights come about."""

    run: Annotated[Place, RUN, POSITIONAL]
    """The folder of a run of any family; an ELMo's page shows its gates and the layers that its task mixes."""
    text: Annotated[str, TEXT]
    """The text to look at."""
    to: Annotated[Place, FILE]
    """The page to write, *.html. It holds all that it shows, and loads nothing."""
    _: KW_ONLY
    second: Annotated[str | None, TEXT] = None
    """The second text of a pair, for a BERT, or a GPT that was fine-tuned on pairs."""
    layers: str = "all"
    """Layers to show: all, or numbers such as `1,6,12`, where 1 is the first above the embeddings."""
    heads: str = "all"
    """Heads to show: all, or numbers such as `1,2`."""
    step: Annotated[str, STEP] = ""
    """The checkpoint to use: its step, or `best`. Without it, the best of a run with --evaluate.patience, else the
    newest good one."""

    def __post_init__(self) -> None:
        check_place(self.to)


@dataclass(frozen=True, kw_only=True)
class SensesRequest(SensesOptions):
    """The vectors of one word in its sentences: how they part by sense, or by cluster, layer by layer."""

    run: Annotated[str, RUN, POSITIONAL]
    """The folder of a run of any family."""
    word: Annotated[str, TEXT]
    """The word, as it is written in the sentences."""
    input: Annotated[Strings, FILES]
    """The sentences, in text files with one in each line, or in *.tsv, *.csv and *.jsonl with a column of them."""
    to: Annotated[str, FILE] = ""
    """A page or a figure to write: *.html, *.png, *.svg or *.pdf. The page holds all that it shows, and loads
    nothing."""
    text: Annotated[str, TEXT] = ""
    """The column of the sentence, by name or by position from 1. Without it, one with a usual name."""
    sense: Annotated[str, TEXT] = ""
    """The column of the word's sense. Without it, the column `sense`; where there is none, vectors are clustered."""
    header: Literal["auto", "yes", "no"] = "auto"
    """Whether tsv and csv begin with the names of their columns."""
    static: Annotated[str, FILE] = ""
    """A file of static vectors (word2vec, GloVe, fastText *.vec), whose vector of the word is shown beside."""
    layers: str = "all"
    """Layers to draw in a figure: all, or numbers such as `0,6,12`, where 0 is the words' own."""
    projection: Literal["pca", "tsne"] = "pca"
    """How vectors become points: principal components, or t-SNE."""
    theme: Literal["light", "dark"] = "light"
    """The colours of a *.png or a *.pdf. A page and an *.svg follow their reader."""
    step: Annotated[str, STEP] = ""
    """The checkpoint to use: its step, or `best`. Without it, the best of a run with --evaluate.patience, else the
    newest good one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.to:
            check_place(self.to, self.input, self.static)
        check_effect(self, ("projection",), bool(self.to), "a page or a figure; give --to page.html")
        figure = bool(self.to) and not self.to.endswith(".html")
        check_effect(self, ("layers",), figure, "a figure; give --to figure.png")
        check_effect(self, ("theme",), self.to.endswith(_THEMED), "a *.png or a *.pdf; give --to figure.png")
        if not self.word.strip():
            raise ValueError("word= is empty; give a word: --word bank")


@dataclass(frozen=True, kw_only=True)
class LayersRequest:
    """The weight of each layer in the mixes that fine-tuned runs have learned."""

    runs: Annotated[tuple[str, ...], Arg(metavar="RUN …"), POSITIONAL]
    """The folders of fine-tuned runs: seeds of a task, or several tasks."""
    to: Annotated[str, FILE] = ""
    """A figure to draw, *.png, *.svg or *.pdf: a bar for each layer and task, the deviation over seeds upon it."""
    table: Annotated[str, FILE] = ""
    """A file to write a table of the weights to, a row for each mix: *.tex (LaTeX), *.csv or *.md."""
    theme: Literal["light", "dark"] = "light"
    """The colours of a *.png or a *.pdf. An *.svg follows its reader."""

    def __post_init__(self) -> None:
        check_effect(self, ("theme",), self.to.endswith(_THEMED), "a *.png or a *.pdf; give --to figure.png")


@dataclass(frozen=True, kw_only=True)
class StatusRequest:
    """Where runs are: step, loss, speed, whether one trains now, its newest checkpoint."""

    runs: Annotated[tuple[str, ...], Arg(metavar="RUN …"), POSITIONAL]
    """The folders of runs, or of folders with runs in them."""


@dataclass(frozen=True, kw_only=True)
class ShowShardsRequest:
    """What prepared text holds: documents, tokens, unknown tokens and languages by source, and lengths."""

    shards: Annotated[str, DIR, POSITIONAL]
    """The folder that `contexture prepare` wrote."""
    to: Annotated[str, FILE] = ""
    """A page to write, *.html, with figures and tables."""


@dataclass(frozen=True, kw_only=True)
class CompareRequest:
    """Losses and metrics of several runs, and the settings in which they differ."""

    runs: Annotated[tuple[str, ...], Arg(metavar="RUN …"), POSITIONAL]
    """The folders of two runs or more."""
    to: Annotated[str, FILE] = ""
    """A page or a picture of their curves to write, *.html, *.png, *.svg or *.pdf. Without it, tables are printed
    alone."""
    table: Annotated[str, FILE] = ""
    """A file to write a table to, a row for each run with its figures and the settings that differ: *.tex (LaTeX),
    *.csv or *.md."""
    theme: Literal["light", "dark"] = "light"
    """The colours of a *.png or a *.pdf. A page and an *.svg follow their reader."""

    def __post_init__(self) -> None:
        if len(self.runs) < 2:
            raise ValueError("compare needs two runs or more: contexture compare RUN RUN …")
        check_effect(self, ("theme",), self.to.endswith(_THEMED), "a *.png or a *.pdf; give --to curves.png")


@dataclass(frozen=True, kw_only=True)
class ProbeRequest(ProbeOptions):
    """What each layer of a run knows of labelled spans, by small probes on its frozen vectors."""

    runs: Annotated[tuple[str, ...], Arg(metavar="RUN …"), POSITIONAL]
    """The folder of a run, or of several, which are probed one after the other."""
    task: Annotated[Strings, Arg(metavar="NAME …")] = ()
    """Tasks that the files hold labels of: pos, dependencies, entities, srl, coreference. *.jsonl files hold spans of
    their own: they need no name, or may have any."""
    train: Annotated[Strings, FILES]
    """The labelled files that probes are trained on."""
    dev: Annotated[Strings, FILES]
    """The files by which their training stops, and on which they are measured where there is no --test."""
    test: Annotated[Strings, FILES] = ()
    """The files to measure the probes on."""
    to: Annotated[str, DIR]
    """The folder to write probe.json and figures to. It keeps the results of earlier calls beside the new ones."""
    layers: Annotated[str, Arg(metavar="all|each|N,…")] = "all"
    step: Annotated[tuple[str, ...], Arg(metavar="N …|best|all")] = ()
    """The steps of checkpoints to probe, `best`, or `all`. Without it, the one that `predict` takes."""
    table: Annotated[str, FILE] = ""
    """A file to write the main figures of this call to, a row for each task: *.tex (LaTeX), *.csv or *.md."""
    theme: Literal["light", "dark"] = "light"
    """The colours of *.png and *.pdf. An *.svg follows its reader."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.runs:
            raise ValueError("probe needs runs: contexture probe RUN … --train FILE --dev FILE --to DIR")
        check_place(self.to)
        if self.table:
            check_place(self.table, self.train, self.dev, self.test, option="table")

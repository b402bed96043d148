"""The options of `contexture zeroshot`. Needs no jax."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

import tyro

from contexture.requests.arguments import FILE, FILES, RUN, TEXT, TEXTS, Place
from contexture.train.evaluation.request import Strings


@dataclass(frozen=True)
class ZeroshotRequest:
    """How well a pretrained run does a task that it was not trained for, by the probabilities of texts alone."""

    run: tyro.conf.Positional[Annotated[Place, RUN]]
    """The folder of a pretrained run of any family."""
    _: KW_ONLY
    task: Literal["lambada", "cbt", "choice", "wikitext", "lm1b"]
    """The task. lambada: the last word of each passage. cbt: the Children's Book Test. choice: which alternative fits a
    text, or its blank (XXXXX or _). wikitext, lm1b: perplexity by word of a tokenised corpus."""
    input: Annotated[Strings, FILES]
    """The files of the task, as their publishers ship them. lambada: a passage in each line, or in `text` of a *.jsonl.
    cbt: numbered lines. choice: rows with text, alternatives and label. wikitext, lm1b: tokenised text."""
    shots: int = 0
    """Show so many answered examples before each question of a choice, drawn from --examples."""
    examples: Annotated[Strings, FILES] = ()
    """Files of answered examples for --shots, in the form of --input."""
    group: Annotated[str, TEXT] = ""
    """A column of a choice, such as the gender of a pronoun: each of its values has an accuracy of its own."""
    to: Annotated[str, FILE] = ""
    """A file to write the answer to each question to, a JSON object in each line."""
    text: Annotated[str, TEXT] = ""
    """The column of a choice's text. Without it, one with a usual name."""
    choices: Annotated[tuple[str, ...], TEXTS] = ()
    """The columns of a choice's alternatives."""
    label: Annotated[str, TEXT] = ""
    """The column of the right alternative."""
    labels: Annotated[tuple[str, ...], TEXTS] = ()
    """The names of the alternatives in their order, where they are not 0, 1, …: 1 2, or A B C D."""
    header: Literal["auto", "yes", "no"] = "auto"
    """Whether tsv and csv begin with the names of their columns."""
    length: int = 0
    """Tokens of a window of a corpus; 0 is as in training."""
    stride: int = 0
    """New tokens in each window of a corpus; 0 is all."""
    batch: int = 16
    """Texts at a time."""
    seed: int = 0
    """The seed by which examples are drawn."""
    step: int = 0
    """The step of the checkpoint to use; 0 is the newest good one."""

    def __post_init__(self) -> None:
        chooses = self.task in ("choice", "cbt")
        for name, given, meaning, of in (
            ("shots", self.shots, chooses, "choice and cbt"),
            ("examples", self.examples, chooses, "choice and cbt"),
            ("to", self.to, chooses, "choice and cbt"),
            ("group", self.group, self.task == "choice", "choice"),
            ("text", self.text, self.task == "choice", "choice"),
            ("choices", self.choices, self.task == "choice", "choice"),
            ("label", self.label, self.task == "choice", "choice"),
            ("labels", self.labels, self.task == "choice", "choice"),
            ("length", self.length, self.task in ("wikitext", "lm1b"), "wikitext and lm1b"),
            ("stride", self.stride, self.task in ("wikitext", "lm1b"), "wikitext and lm1b"),
        ):
            if given and not meaning:
                raise ValueError(f"{name}= has no meaning for --task {self.task}; it is for {of}")
        if self.shots < 0:
            raise ValueError(f"shots={self.shots} is not a number of examples")
        if bool(self.shots) != bool(self.examples):
            raise ValueError("give --shots N and the files to draw them from, --examples FILE, or neither")
        if self.batch < 1:
            raise ValueError(f"batch={self.batch} is not a positive number of texts")

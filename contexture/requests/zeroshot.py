"""The options of `contexture zeroshot`. Needs no jax."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

from contexture.requests.arguments import FILE, FILES, POSITIONAL, RUN, STEP, TEXT, TEXTS, Place, check_place
from contexture.train.evaluation.request import Strings

Task = Literal["lambada", "cbt", "choice", "blimp", "wikitext", "lm1b", "qa", "summarize", "translate"]


@dataclass(frozen=True)
class ZeroshotRequest:
    """How well a pretrained run does a task that it was not trained for: by the probabilities of texts, or by the
    answers that a GPT writes."""

    run: Annotated[Place, RUN, POSITIONAL]
    """The folder of a pretrained run of any family."""
    _: KW_ONLY
    task: Task
    """The task. lambada: the last word of each passage. cbt: the Children's Book Test. choice: which alternative fits a
    text, or its blank (XXXXX or _). blimp: which sentence of a minimal pair is acceptable. wikitext, lm1b: perplexity
    by word of a tokenised corpus. A GPT writes its answers in qa: questions about documents (CoQA, SQuAD), summarize:
    summaries after TL;DR:, and translate."""
    input: Annotated[Strings, FILES]
    """The files of the task, as their publishers ship them. lambada: a passage in each line, or in `text` of a *.jsonl.
    cbt: numbered lines. choice: rows with text, alternatives and label. blimp: *.jsonl, or a folder of them. wikitext,
    lm1b: tokenised text. qa: a *.json in CoQA's or SQuAD's form. summarize, translate: rows with text and reference."""
    shots: int = 0
    """Show so many answered examples before each question of a choice, or translated ones before each sentence, drawn
    from --examples."""
    examples: Annotated[Strings, FILES] = ()
    """Files of answered examples for --shots, in the form of --input."""
    group: Annotated[str, TEXT] = ""
    """A column of a choice, such as the gender of a pronoun: each of its values has an accuracy of its own."""
    to: Annotated[str, FILE] = ""
    """A file to write the answer to each question to, or what was written, a JSON object in each line."""
    table: Annotated[str, FILE] = ""
    """A file to write a table of the figures to, with a row for each group: *.tex (LaTeX), *.csv or *.md."""
    text: Annotated[str, TEXT] = ""
    """The column of a choice's text, of the article, or of the sentence to translate. Without it, one with a usual
    name."""
    references: Annotated[Strings, TEXTS] = ()
    """The column of the right summary or translation, or several columns. Without it, one with a usual name."""
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
    tokens: int = 0
    """Most tokens to write for each example; 0 is 50 for qa, 100 for summarize, 128 for translate."""
    bleu_tokenize: Literal["13a", "intl", "zh", "char", "none"] = "13a"
    """How sacrebleu cuts translations into tokens; zh or char where they are Chinese."""
    batch: int = 16
    """Texts at a time."""
    seed: int = 0
    """The seed by which examples are drawn, and summaries sampled."""
    step: Annotated[str, STEP] = ""
    """The checkpoint to use: its step, or `best`. Without it, the best of a run with --evaluate.patience, else the
    newest good one."""

    def __post_init__(self) -> None:
        if self.to:
            check_place(self.to, self.input, self.examples)
        if self.table:
            check_place(self.table, self.input, self.examples, self.to, option="table")
        written = ("qa", "summarize", "translate")
        for name, given, tasks in (
            ("shots", self.shots, ("choice", "cbt", "translate")),
            ("examples", self.examples, ("choice", "cbt", "translate")),
            ("to", self.to, ("choice", "cbt", "blimp", *written)),
            ("group", self.group, ("choice",)),
            ("text", self.text, ("choice", "summarize", "translate")),
            ("references", self.references, ("summarize", "translate")),
            ("choices", self.choices, ("choice",)),
            ("label", self.label, ("choice",)),
            ("labels", self.labels, ("choice",)),
            ("length", self.length, ("wikitext", "lm1b")),
            ("stride", self.stride, ("wikitext", "lm1b")),
            ("tokens", self.tokens, written),
            ("bleu-tokenize", self.bleu_tokenize != "13a", ("translate",)),
            ("header", self.header != "auto", ("choice", "summarize", "translate")),
            ("seed", self.seed, ("choice", "cbt", "summarize", "translate")),
        ):
            if given and self.task not in tasks:
                *others, last = tasks
                of = f"{', '.join(others)} and {last}" if others else last
                raise ValueError(f"{name}= has no meaning for --task {self.task}; it is for {of}")
        if self.shots < 0:
            raise ValueError(f"shots={self.shots} is not a number of examples")
        if bool(self.shots) != bool(self.examples):
            raise ValueError("give --shots N and the files to draw them from, --examples FILE, or neither")
        if self.batch < 1:
            raise ValueError(f"batch={self.batch} is not a positive number of texts")
        if self.tokens < 0:
            raise ValueError(f"tokens={self.tokens} is not a number of tokens")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed={self.seed} is not in [0, 2^31)")

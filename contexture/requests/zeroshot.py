"""The options of `contexture zeroshot`. Needs no jax."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from contexture.analysis.zeroshot.tasks import ZeroShotOptions
from contexture.requests.arguments import FILE, FILES, POSITIONAL, RUN, STEP, TEXT, TEXTS, Place, check_place
from contexture.train.evaluation.request import Strings


@dataclass(frozen=True)
class ZeroshotRequest(ZeroShotOptions):
    """How well a pretrained run does a task that it was not trained for: by the probabilities of texts, or by the
    answers that a GPT writes."""

    run: Annotated[Place, RUN, POSITIONAL]
    """The folder of a pretrained run of any family."""
    _: KW_ONLY
    input: Annotated[Strings, FILES]
    examples: Annotated[Strings, FILES] = ()
    group: Annotated[str, TEXT] = ""
    text: Annotated[str, TEXT] = ""
    references: Annotated[Strings, TEXTS] = ()
    choices: Annotated[tuple[str, ...], TEXTS] = ()
    label: Annotated[str, TEXT] = ""
    labels: Annotated[tuple[str, ...], TEXTS] = ()
    to: Annotated[str, FILE] = ""
    """A file to write the answer to each question to, or what was written, a JSON object in each line."""
    table: Annotated[str, FILE] = ""
    """A file to write a table of the figures to, with a row for each group: *.tex (LaTeX), *.csv or *.md."""
    step: Annotated[str, STEP] = ""
    """The checkpoint to use: its step, or `best`. Without it, the best of a run with --evaluate.patience, else the
    newest good one."""

    def __post_init__(self) -> None:
        if self.to:
            check_place(self.to, self.input, self.examples)
        if self.table:
            check_place(self.table, self.input, self.examples, self.to, option="table")
        super().__post_init__()

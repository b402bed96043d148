"""The options of the commands that look into runs. Needs no jax."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

import tyro

from contexture.requests.common import FILE, RUN, TEXT, Place, check_place


@dataclass(frozen=True)
class AttentionRequest:
    """A page that shows which tokens each token of a text reads, by layer and head, and how the weights come about."""

    run: tyro.conf.Positional[Annotated[Place, RUN]]
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
    step: int = 0
    """The step of the checkpoint to use; 0 is the newest good one."""

    def __post_init__(self) -> None:
        check_place(self.to)


@dataclass(frozen=True, kw_only=True)
class LayersRequest:
    """The weight of each layer in the mixes that fine-tuned runs have learned."""

    runs: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN …")]]
    """The folders of fine-tuned runs: seeds of a task, or several tasks."""
    to: Annotated[str, FILE] = ""
    """A figure to draw, *.png or *.svg: a bar for each layer and task, the deviation over seeds upon it."""
    theme: Literal["light", "dark"] = "light"
    """The colours of a *.png. An *.svg follows its reader."""


@dataclass(frozen=True, kw_only=True)
class StatusRequest:
    """Where runs are: step, loss, speed, whether one trains now, its newest checkpoint."""

    runs: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN …")]]
    """The folders of runs."""


@dataclass(frozen=True, kw_only=True)
class CompareRequest:
    """Losses of several runs, and the settings in which they differ."""

    runs: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN …")]]
    """The folders of two runs or more."""
    to: Annotated[str, FILE] = ""
    """A page or a picture of their curves to write, *.html, *.png or *.svg. Without it, tables are printed alone."""
    theme: Literal["light", "dark"] = "light"
    """The colours of a *.png. A page and an *.svg follow their reader."""

    def __post_init__(self) -> None:
        if len(self.runs) < 2:
            raise ValueError("compare needs two runs or more: contexture compare RUN RUN …")

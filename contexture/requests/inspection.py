"""The options of the commands that look into runs. Needs no jax."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from contexture.requests.common import FILE


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

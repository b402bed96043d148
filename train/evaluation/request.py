"""The options of an evaluation. Needs no jax."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, TypeAlias

from contexture.train.errors import ConfigError
from contexture.train.settings.sections import MeshConfig

Strings = str | tuple[str, ...] | list[str]
"""One or several."""
Theme: TypeAlias = Literal["light", "dark"]
Steps = int | str | tuple[int | str, ...] | list[int | str]
"""Steps of checkpoints, `best` or `all`."""


def several(values: Strings) -> tuple[str, ...]:
    """Returns one string or several as a tuple."""
    return (values,) if isinstance(values, str) else tuple(values)


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Which examples and which checkpoints are evaluated, and how."""

    split: Literal["dev", "test", "train"] = "dev"
    """Which of the run's own examples to evaluate, where it has a task."""
    dev: Strings = ()
    """Labelled files to evaluate instead, with the columns of the training set."""
    step: Steps = ()
    """The steps of checkpoints to evaluate, `best`, or `all`. Without it, the best of a run with
    --evaluate.patience, else the newest good one."""
    watch: bool = False
    """Follow a training that another process does: evaluate each checkpoint as it appears, until the training ends."""
    batch: int = 0
    """Sequences at a time; 0 is as in training."""
    to: str = ""
    """The folder to write predictions.jsonl to, and with --step all checkpoints.jsonl. Without it, RUN/evaluations."""
    figures: str = ""
    """The folder to write figures of a task with labels to: confusion matrix, rates of each label, calibration."""
    theme: Theme = "light"
    """The colours of *.png and *.pdf. An *.svg follows its reader."""
    submission: str = ""
    """The folder to write files for GLUE's or SQuAD's server to, of examples without labels: those of --dev, else
    GLUE's test sets, or the run's questions. Nothing is measured."""
    overwrite: bool = False
    """Replace the files of an earlier --submission in that folder."""
    mesh: MeshConfig = field(default_factory=MeshConfig)

    def __post_init__(self) -> None:
        if self.batch < 0:
            raise ValueError(f"batch={self.batch} is not a number of sequences (0: as in training)")
        # Options that exclude each other are refused here, for the command line and for Python alike.
        if self.watch and self.steps not in ((), ("all",)):
            raise ValueError(f"watch evaluates every checkpoint; give --step all, not {' '.join(self.steps)}")
        if self.submission and (self.every_step or len(self.steps) > 1):
            raise ValueError("a submission is of one checkpoint; give one --step, or leave it out")
        if self.figures and (self.every_step or len(self.steps) > 1):
            raise ValueError("figures are of one checkpoint; give one --step, or leave it out")
        if self.theme != "light" and not self.figures:
            raise ValueError("theme= is for figures; give --figures DIR too, or leave --theme out")
        if self.overwrite and not self.submission:
            raise ValueError("overwrite= is for a submission; give --submission DIR too, or leave --overwrite out")
        if self.figures and self.submission:
            raise ValueError("figures= is for what is measured, and submission= measures nothing; give one of them")
        if self.submission and self.mesh.distributed:
            raise ValueError("submission is for one process; leave --mesh.distributed out")
        if self.watch and self.mesh.distributed:
            raise ValueError("watch is for one process; leave --mesh.distributed out")

    @property
    def files(self) -> tuple[str, ...]:
        """The labelled files."""
        return (self.dev,) if isinstance(self.dev, str) else tuple(self.dev)

    @property
    def steps(self) -> tuple[str, ...]:
        """The checkpoints, as words."""
        # 5, "best" or [5, 10] in Python; always words on the command line.
        return tuple(map(str, (self.step,) if isinstance(self.step, int | str) else self.step))

    @property
    def every_step(self) -> bool:
        """Whether every checkpoint is evaluated."""
        return self.watch or self.steps == ("all",)


@dataclass(frozen=True)
class EvaluationRequest(EvaluationOptions):
    """The evaluation of one run."""

    run: str | Path
    """The folder of the run."""

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return Path(self.run)


def requests_of(runs: Sequence[str | Path], options: EvaluationOptions) -> list[EvaluationRequest]:
    """Returns a request for each run, with the same options; of several runs each writes into a folder of its own.

    Raises ConfigError for runs that cannot be evaluated in one call.
    """
    if not runs:
        raise ConfigError("evaluate needs RUN: contexture evaluate RUN … [options]")
    # The fields of the options alone: `options` may be a subclass with more.
    given = {field.name: getattr(options, field.name) for field in fields(EvaluationOptions)}
    if len(runs) == 1:
        return [EvaluationRequest(runs[0], **given)]
    # Both wait for other processes, which several runs in turn cannot do.
    if options.watch or options.mesh.distributed:
        option = "watch" if options.watch else "mesh.distributed"
        raise ConfigError(f"--{option} is for one run; give one, or leave --{option} out")
    # By real paths: two names of one folder are one run.
    places = [os.path.realpath(run) for run in runs]
    # Without --to or --figures each run's files go into its own folder, and names do not matter.
    folder, option = (options.to, "to") if options.to else (options.figures, "figures")
    for run, place in zip(runs, places, strict=True):
        if places.count(place) > 1:
            raise ConfigError(f"{run} is named twice; give every run once")
        name = Path(place).name
        if folder and [Path(each).name for each in places].count(name) > 1:
            raise ConfigError(f"several runs are called {name}, a folder in {folder}; leave --{option} out")
    # Several runs would overwrite each other's files: each gets a folder of its name inside the given one.
    own = [
        {name: str(Path(to, Path(place).name)) for name in ("to", "figures") if (to := given[name])} for place in places
    ]
    return [EvaluationRequest(run, **{**given, **of_run}) for run, of_run in zip(runs, own, strict=True)]

"""What an evaluation looks at. Needs no jax."""

from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Literal

from contexture.train.options import MeshConfig

Strings = str | tuple[str, ...] | list[str]
"""One or several."""
Steps = int | str | tuple[int | str, ...] | list[int | str]
"""Steps of checkpoints, `best` or `all`."""


@dataclass(frozen=True)
class EvaluationRequest:
    """Which examples and which checkpoints of a run are evaluated, and how."""

    run: str | Path
    """The folder of the run."""
    _: KW_ONLY
    split: Literal["dev", "test", "train"] = "dev"
    """Which of the run's own examples to evaluate, where it has a task."""
    dev: Strings = ()
    """Labelled files to evaluate instead, with the columns of the training set."""
    step: Steps = ()
    """The steps of checkpoints to evaluate, `best`, or `all`. Without it, the newest good one."""
    watch: bool = False
    """Follow a training that another process does: evaluate each checkpoint as it appears, until the training ends."""
    batch: int = 0
    """Sequences at a time; 0 is as in training."""
    to: str = ""
    """The folder to write predictions.jsonl to, and with --step all checkpoints.jsonl. Without it, RUN/evaluations."""
    mesh: MeshConfig = field(default_factory=MeshConfig)

    def __post_init__(self) -> None:
        if self.batch < 0:
            raise ValueError(f"batch={self.batch} is not a number of sequences (0: as in training)")
        if self.watch and self.steps not in ((), ("all",)):
            raise ValueError(f"watch evaluates every checkpoint; give --step all, not {' '.join(self.steps)}")
        if self.watch and self.mesh.distributed:
            raise ValueError("watch is for one process; leave --mesh.distributed out")

    @property
    def files(self) -> tuple[str, ...]:
        """The labelled files."""
        return (self.dev,) if isinstance(self.dev, str) else tuple(self.dev)

    @property
    def steps(self) -> tuple[str, ...]:
        """The checkpoints, as words."""
        return tuple(map(str, (self.step,) if isinstance(self.step, int | str) else self.step))

    @property
    def every_step(self) -> bool:
        """Whether every checkpoint is evaluated."""
        return self.watch or self.steps == ("all",)

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return Path(self.run)

"""Batches of a run in phases: each phase has sequences of its own length, and batches of its own size."""

import threading
from collections.abc import Sequence

from contexture.data.batches import Batches
from contexture.data.binary_files import I64
from contexture.data.config import DataConfig
from contexture.data.layouts import Batch
from contexture.data.phases import phase_number
from contexture.data.pretraining.mixture import MixedBatches


class PhasedBatches:
    """The batches of each phase in its steps.

    A step's number is that of the run in all phases, so that its batch is a function of (seed, step) as ever: the
    sequences of the second phase are numbered as if it had all steps.
    """

    def __init__(self, config: DataConfig, phases: Sequence[Batches]) -> None:
        """config: the run's data; phases: the batches of each phase, without end."""
        self.config, self.phases = config, tuple(phases)
        last = self.phases[-1]
        # What is said of a run is said of its last phase, with which it ends.
        self.fields, self.tokenizer, self.batch = last.fields, last.tokenizer, last.batch
        self.examples_per_epoch = last.examples_per_epoch
        self.rows_read = 0
        """Sequences read so far, by all threads."""
        self._lock = threading.Lock()

    @property
    def length(self) -> int:
        """Tokens of a sequence of the last phase."""
        return self.phases[-1].length

    def describe(self) -> str:
        """Describes the training data of each phase."""
        stretches = zip(self.config.stretches, self.phases, strict=True)
        return "; ".join(
            f"from step {phase.first:,} on {phase.length} tokens: {own.describe()}" for phase, own in stretches
        )

    def notes(self) -> list[str]:
        # Phases read the same text, and may have the same to say.
        return list(dict.fromkeys(note for each in self.phases for note in each.notes()))

    def passes(self, step: int) -> dict[str, float]:
        """Returns how often each source of a mixture was read before a step, in epochs of each phase; {} without a
        mixture."""
        total: dict[str, float] = {}
        # A phase ends where the next one begins, and the last one with the run.
        starts = [phase.first for phase in self.config.stretches]
        for own, first, end in zip(self.phases, starts, [*starts[1:], step], strict=True):
            if isinstance(own, MixedBatches) and first < step:
                # From its first step on: sequences before that were numbered, and not read.
                before, until = own.passes(first), own.passes(min(end, step))
                for name in until:
                    total[name] = round(total.get(name, 0.0) + until[name] - before[name], 4)
        return total

    def epochs(self, steps: int) -> float:
        """Returns how many epochs so many steps are, each phase counted by its own."""
        starts = [phase.first for phase in self.config.stretches]
        spans = zip(self.phases, starts, [*starts[1:], steps], strict=True)
        return sum(max(min(end, steps) - first, 0) * own.batch / own.examples_per_epoch for own, first, end in spans)

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """Returns the rows of the step's batch, as the batches of its phase."""
        count = self.config.batch_size_at(step) if rows is None else len(rows)
        # Readers are threads.
        with self._lock:
            self.rows_read += count
        return self.phases[phase_number(self.config.stretches, step)].read(step, rows)

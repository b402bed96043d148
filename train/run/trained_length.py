"""The length of the sequences that a run was trained on, and a warning where text is longer."""

import logging
from pathlib import Path

from contexture.models.config import MAX_SIZE
from contexture.train.errors import ConfigError
from contexture.train.settings.run_file import RunRecord, read

logger = logging.getLogger(__name__)


def trained_length(record: RunRecord) -> int:
    """Returns the length in tokens of the longest sequences that a run, or the runs it began from, were trained on.

    Where that is unknown, because a run was imported or its folder is gone, it is the model's length. Models that read
    words have no positions, so their length has no bound that matters.
    """
    # LSTMs and word vectors read text of any length alike.
    if record.run.text.reads_words:
        return record.run.model.length
    # Back along init.run: a run begins with the positions that the runs before it have trained.
    longest, seen = 0, set[str]()
    while True:
        run = record.run
        # An import may be of any training: its model's length is the only figure there is.
        if record.imported:
            return run.model.length
        longest = max(longest, run.data.length)
        # `seen` ends a circle of folders that were renamed after training.
        if not run.init.run or run.init.random or run.init.run in seen:
            return longest
        seen.add(run.init.run)
        try:
            record = read(Path(run.init.run))
        except ConfigError:
            return run.model.length


class LengthWatch:
    """Warns once if a text has positions that were never trained."""

    def __init__(self, tokens: int) -> None:
        """tokens: the length of the longest sequences in training."""
        self.tokens = tokens
        self.warned = False

    def check(self, length: int) -> None:
        """Checks a text of `length` tokens."""
        # Once a command: a file of long texts would print a line for each.
        if length > self.tokens and not self.warned:
            self.warned = True
            logger.warning(
                f"trained on sequences of at most {self.tokens} tokens; text beyond that may degrade, and here are "
                f"{length}"
            )


ANY_LENGTH = LengthWatch(MAX_SIZE)
"""Never warns: for callers that do not care about the length in training."""

"""How long the sequences were that a run has learned from, and a warning where text is longer."""

import logging
from pathlib import Path

from contexture.models.config import MAX_SIZE
from contexture.train.errors import ConfigError
from contexture.train.settings.run_file import RunRecord, read

logger = logging.getLogger(__name__)


def trained_length(record: RunRecord) -> int:
    """Returns the tokens of the longest sequences that a run or the runs before it were trained on.

    Where that is not known, because the run or one before it was imported, or a folder is gone, it is the length of the
    model. What reads words has no positions: it is as good as endless.
    """
    if record.run.text.reads_words:
        return record.run.model.length
    longest, seen = 0, set[str]()
    while True:
        run = record.run
        if record.imported:
            return run.model.length
        longest = max(longest, run.data.length)
        if not run.init.run or run.init.random or run.init.run in seen:
            return longest
        seen.add(run.init.run)
        try:
            record = read(Path(run.init.run))
        except ConfigError:
            return run.model.length


class LengthWatch:
    """Warns once where a text has positions that were never trained."""

    def __init__(self, tokens: int) -> None:
        """tokens: those of the longest sequences of training."""
        self.tokens = tokens
        self.warned = False

    def check(self, length: int) -> None:
        """Looks at a text of so many tokens."""
        if length > self.tokens and not self.warned:
            self.warned = True
            logger.warning(
                f"trained on sequences of at most {self.tokens} tokens; text beyond that may degrade, and here are "
                f"{length}"
            )


ANY_LENGTH = LengthWatch(MAX_SIZE)
"""Where nobody asks how long the texts of training were."""

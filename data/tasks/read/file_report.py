"""Odd rows of a file of examples (ones that cannot be read, and empty texts), which do not end the work: they are
counted, and reported once."""

import logging
from collections.abc import Sequence

from contexture.data.config import BadRows
from contexture.data.errors import DataError
from contexture.data.tokenizers.unknown_tokens import Encoder, UnknownTokens

logger = logging.getLogger(__name__)

MAX_ODD = 0.01
"""The share of rows that may be odd. More than that is a mistake in the file as a whole, or in the options."""
_FEW = 3
"""Odd rows that a short file may hold, where they are a tenth of it at most."""
_SURE = 100
"""Odd rows after which reading stops before the end of the file, where they are more than MAX_ODD of the rows read."""
_MEND = "start from a run whose vocabulary covers them"
_CASED = "start from a run with a cased vocabulary, as --data.no-lowercase of pretrain learns"


class FileReport:
    """The odd rows of one file. A row that cannot be read is left out. An empty text, and a text or a word that no
    token spells, is read as the unknown token."""

    def __init__(
        self, name: str, tokenizer: Encoder, *, every_row: bool = False, bad_rows: BadRows = "few", trains: bool = True
    ) -> None:
        """Begins a report.

        Args:
            name: the file, for messages.
            tokenizer: what encodes its texts.
            every_row: for predictions, where no row may be left out, since each needs an answer; any text may be empty.
            bad_rows: task.bad_rows.
            trains: whether the file is read for a training, which takes that option.
        """
        self.name, self.every_row, self.bad_rows, self.trains = name, every_row, bad_rows, trains
        self.rows = self.left_out = self.empty = self.unspelled = self.quoted = self.cut_questions = 0
        # The first of each kind alone: memory does not grow with the odd rows.
        self._odd: list[DataError] = []
        self._first_left_out = self._first_empty = self._unspelled = ""
        self._unknown = UnknownTokens(tokenizer)

    def leave_out(self, error: DataError) -> None:
        """Counts a row that cannot be read. Raises: DataError where it may not be left out, or too many are odd."""
        if self.every_row or self.bad_rows == "fail":
            raise error
        self.left_out += 1
        self._first_left_out = self._first_left_out or str(error)
        self._count(error)

    def read_empty(self, error: DataError, origin: str) -> None:
        """Counts an empty text. Raises: DataError where too many are odd."""
        if self.bad_rows == "fail" and not self.every_row:
            raise error
        self.empty += 1
        self._first_empty = self._first_empty or origin
        # An empty text to predict for is an input like others, and answered.
        if not self.every_row:
            self._count(error)

    def read_unspelled(self, what: str, origin: str) -> None:
        """Counts a text or a word that no token spells."""
        self.unspelled += 1
        self._unspelled = self._unspelled or f"{what} at {origin}"

    def count_tokens(self, texts: Sequence[str], encoded: Sequence[Sequence[int]]) -> None:
        """Counts the unknown tokens of texts."""
        self._unknown.add(texts, encoded)

    def _count(self, error: DataError) -> None:
        # The first one is shown, whatever follows.
        self._odd = self._odd or [error]
        # So many are no accident: a file of gigabytes need not be read to its end to say so.
        if self.bad_rows != "skip" and self.left_out + self.empty >= _SURE:
            self.check()

    def check(self) -> None:
        """Raises: DataError, the first one, where more than MAX_ODD of the rows are odd, and more than a few: the fault
        is then in the file as a whole, or in the options, and training on the rest would hide it."""
        # Where every row is answered, an empty text is an input like others.
        odd = self.left_out + (0 if self.every_row else self.empty)
        # Any number may be skipped, but not all rows.
        if self.bad_rows == "skip" and self.left_out < max(self.rows, 1):
            return
        # One in a hundred, or in a short file one in ten, up to three.
        if odd > max(MAX_ODD * self.rows, min(_FEW, self.rows // 10)):
            # A training has that option. Other commands that read labelled files have not.
            mend = "" if self.bad_rows == "skip" or not self.trains else "; --task.bad-rows skip leaves them out"
            raise DataError(
                f"{self._odd[0]} ({odd:,} of {self.rows:,} rows are odd{mend})" if odd > 1 else str(self._odd[0])
            )

    def finish(self) -> None:
        """Warns of odd rows, a line for each kind. Raises: as `check`."""
        self.check()
        if self.left_out:
            logger.warning(
                f"{self.name}: left out {self.left_out:,} of {self.rows:,} rows; the first: {self._first_left_out}"
            )
        if self.empty:
            logger.warning(
                f"{self.name}: {_times(self.empty, 'empty text')} read as unknown; the first is at {self._first_empty}"
            )
        if self.unspelled:
            count = _times(self.unspelled, "word or text", "words or texts")
            logger.warning(
                f"{self.name}: {count} with no letter that the vocabulary can spell, read as unknown; "
                f"the first is {self._unspelled}"
            )
        if self.quoted:
            logger.warning(
                f"{self.name}: {_times(self.quoted, 'field')} in double quotes; a *.tsv has no quoting, so "
                "the quotes are read as text; if they are CSV quoting, save the file as *.csv"
            )
        if self.cut_questions:
            mend = "" if self.every_row else "; raise --task.question-length, or --data.length"
            logger.warning(f"{self.name}: truncated {_times(self.cut_questions, 'question')}{mend}")
        for line in self._unknown.warnings(self.name, _MEND, _CASED):
            logger.warning(line)

    @property
    def unknown(self) -> float:
        """Returns the share of unknown tokens."""
        return self._unknown.share


def _times(count: int, one: str, more: str = "") -> str:
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def is_quoted(cell: object) -> bool:
    """Returns whether a field of a *.tsv looks quoted as in a *.csv: in double quotes, those within it doubled."""
    if not isinstance(cell, str):
        return False
    # Within quotes a quote is doubled; a single one ends the field.
    return len(cell) > 2 and cell[0] == cell[-1] == '"' and '"' not in cell[1:-1].replace('""', "")

"""Which documents the sentences of a split belong to.

SPLIT-documents.bin    i64 [documents + 1]: where the tokens of each document begin; at the end, how many there are
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from contexture.data.binary_files import I64, Column, Int64Writer, Memory

FILE = "documents"


@dataclass(frozen=True)
class DocumentOffsets:
    """The documents of one split, whose sentences lie in the order of the file. A sentence's row has the number of its
    `document`."""

    offsets: Column[np.int64]

    def bounds(self, rows: NDArray[np.void]) -> tuple[I64, I64]:
        """Returns where the tokens of each sentence's document begin and end."""
        documents = rows["document"]
        # A document ends where the next one begins: two neighbours of one list.
        pairs = self.offsets.read(documents, np.full(len(documents), 2)).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def lengths(self, rows: NDArray[np.void]) -> I64:
        """Returns the tokens of each sentence's document."""
        begins, ends = self.bounds(rows)
        return ends - begins


class DocumentWriter(Int64Writer):
    """SPLIT-documents.bin while sentences are written to the split."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.longest = 0
        """Tokens of the longest document, once all of them have ended."""
        # Documents so far, where the last one begins, and which one that is in its file.
        self._count = self._begin = 0
        self._last: tuple[int, int] | None = None

    def number(self, file: int, documents: I64, begins: I64) -> I64:
        """Returns the number within the split of each sentence's document.

        Args:
            file: the number of the sentences' file.
            documents: the number of each one's document within the file.
            begins: where the tokens of each sentence begin in the split.
        """
        # A document ends where the next one begins; the first of these sentences may go on with the one before.
        # By the file too: documents are numbered anew in each.
        changes = np.append((file, int(documents[0])) != self._last, documents[1:] != documents[:-1])
        self._enter(begins[changes])
        # A sentence that goes on with a document has the number that was given last.
        numbers = self._count - 1 + np.cumsum(changes)
        self._count, self._last = self._count + int(changes.sum()), (file, int(documents[-1]))
        return numbers

    def finish(self, tokens: int) -> None:
        """Ends the last document at the end of the split's tokens."""
        self._enter(np.array([tokens]))
        self.flush()

    def _enter(self, begins: I64) -> None:
        # The length of a document is known when the next one begins.
        self.longest = max(self.longest, int(np.diff(begins, prepend=self._begin).max(initial=0)))
        # Without a new document, the last one goes on through all of these sentences.
        self._begin = int(begins[-1]) if len(begins) else self._begin
        self.extend(begins)


def offsets_in_memory(documents: I64, begins: I64, tokens: int) -> tuple[I64, DocumentOffsets]:
    """Returns the number of each sentence's document, and the documents, for consecutive sentences among `tokens`
    tokens. What lies before the first sentence and after the last one belongs to their documents."""
    changes = np.append(True, documents[1:] != documents[:-1])
    offsets = np.append(begins[changes], tokens)
    offsets[0] = 0
    return np.cumsum(changes) - 1, DocumentOffsets(Column(Memory(offsets.astype("<i8")), np.dtype("<i8")))

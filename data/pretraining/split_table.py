"""The documents of a split of shards while they are written, and the blocks that they are planned in."""

from pathlib import Path

from contexture.data.binary_files import Int64Writer
from contexture.data.pretraining.shards import SplitCounts

BLOCK_SENTENCES, BLOCK_TOKENS = 32768, 1 << 20
"""A block of documents, the unit of planning and shuffling, is closed when it holds this much of either."""


class SplitTable:
    """The documents of one split, as they are written to its file, and its blocks.

    A block is closed by whichever comes first, BLOCK_SENTENCES or BLOCK_TOKENS, so that planning one takes about the
    same time and memory whatever the text is like.
    """

    def __init__(self, path: Path) -> None:
        self.rows = Int64Writer(path)
        self.documents = self.sentences = self.tokens = self.pairs = 0
        # The first document of each block; what the current one holds.
        self.blocks = [0]
        self._block = [0, 0]

    def add(self, first: int, last: int, tokens: int) -> None:
        self.rows.add(first, last)
        self.documents += 1
        self.sentences += last - first
        self.tokens += tokens
        # A document of one sentence gives no pair but a random one: a text of such documents alone is refused.
        self.pairs += last - first > 1
        self._block[0] += last - first
        self._block[1] += tokens
        if self._block[0] >= BLOCK_SENTENCES or self._block[1] >= BLOCK_TOKENS:
            self.blocks.append(self.documents)
            self._block = [0, 0]

    def summary(self) -> SplitCounts:
        """Writes what is buffered, closes the last block, and returns the split's entry in index.json."""
        self.rows.flush()
        # The number of documents closes the list, so that block n is blocks[n] … blocks[n + 1].
        blocks = self.blocks if self.blocks[-1] == self.documents else [*self.blocks, self.documents]
        return {"documents": self.documents, "sentences": self.sentences, "tokens": self.tokens, "blocks": blocks}

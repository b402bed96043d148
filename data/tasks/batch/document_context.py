"""A sentence in the middle of its document's other sentences (Devlin et al. 2018, section 5.3: "we include the maximal
document context provided by the data").

Nothing is stored twice: the tokens of a split lie in the order of the file, so that a sentence's context is next to it,
up to the ends of its document.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from contexture.data.binary_files import I64, Column
from contexture.data.tasks.read.examples import Example, Tagged
from contexture.data.tasks.store.document_offsets import DocumentOffsets

AnyExample = TypeVar("AnyExample", bound=Example)


def context_tokens(
    rows: NDArray[np.void], documents: DocumentOffsets, tags: Column[np.int32], room: int, *, at_ends: bool
) -> tuple[I64, I64]:
    """Returns how many tokens before and after each sentence are read with it.

    All of them together fill at most `room` tokens. Each side gets half of what the sentence leaves, and what the other
    side has no use for. Only whole words are read: no word more fits on either side.

    Args:
        rows: the sentences.
        documents: where their documents begin and end.
        tags: for each token, 0 or more where a word is read at it, else -1.
        room: the most tokens of a sequence.
        at_ends: whether words are read at their last token, as by a GPT, or at their first.
    """
    begins, ends = documents.bounds(rows)
    # What the sentence itself leaves of the room; nothing where it is longer.
    spare = np.maximum(room - (rows["end"] - rows["a"]), 0)
    before, after = rows["a"] - begins, ends - rows["end"]
    left_words = _whole_words(tags, rows["a"], before, spare, at_ends, backward=True)
    right_words = _whole_words(tags, rows["end"], after, spare, at_ends, backward=False)
    every = np.arange(len(rows))
    # Half of it to the left, then to the right all that remains.
    left = left_words[every, np.minimum(before, spare // 2)]
    right = right_words[every, np.minimum(after, spare - left)]
    # The right side may be short, or leave room after its last word for one more on the left.
    left = left_words[every, np.minimum(before, spare - right)]
    return left, right


def _whole_words(
    tags: Column[np.int32], edge: I64, available: I64, spare: I64, at_ends: bool, *, backward: bool
) -> NDArray[np.int64]:
    """Returns for each sentence and each number of tokens how many of them, counted from the sentence's `edge`, are
    whole words. available: how many tokens the document has on this side; spare: for how many
    the sequence has room."""
    limit = int(np.minimum(available, spare).max(initial=0))
    place = np.arange(limit + 1)
    # borders[s, n]: whether a word begins or ends n tokens away from the edge. The document's end is such a border,
    # whatever lies behind it.
    inner = np.maximum(np.minimum(available - 1, spare), 0)
    borders = np.zeros((len(edge), limit + 1), bool)
    # A border is before a word's first piece, or with `at_ends` after the last piece of the word before it.
    if backward:
        # Tokens are read from left to right, so the places away from the edge are filled from the far end.
        read = tags.read(np.maximum(edge - inner - at_ends, 0), inner)
        inside = (place >= limit - inner[:, None]) & (place < limit)
        borders[:, ::-1][inside] = read >= 0
    else:
        read = tags.read(edge + 1 - at_ends, inner)
        inside = (place > 0) & (place <= inner[:, None])
        borders[inside] = read >= 0
    borders |= place == available[:, None]
    borders[:, 0] = True
    # For every number of tokens at once, the last border that is not beyond it.
    return np.maximum.accumulate(np.where(borders, place, 0), axis=1)


def own_tags(tags_BL: NDArray[np.int32], before: I64, own: I64, first: int) -> NDArray[np.int32]:
    """Returns the tags of the sentences alone, -1 at their context. first: where the text begins in a sequence."""
    place = np.arange(tags_BL.shape[1]) - first - before[:, None]
    return np.where((place >= 0) & (place < own[:, None]), tags_BL, -1)


def chunks_in_documents(
    examples: Iterable[AnyExample], size: int, reach: int
) -> Iterator[tuple[list[AnyExample], list[AnyExample], list[AnyExample]]]:
    """Yields chunks of at least `reach` examples, each with its neighbours of the same documents before and after it:
    as many as have `reach` words together. A word has at least one token, so that no more could be read."""
    iterator, size = iter(examples), max(size, reach)
    before: list[AnyExample] = []
    chunk = list(islice(iterator, size))
    while chunk:
        # A chunk ahead is read, since its first sentences follow this chunk's last ones.
        following = list(islice(iterator, size))
        yield before, chunk, _neighbours(following, chunk[-1], reach)
        # Backward from the end of this chunk, as far as the document goes with which the next one begins.
        last = following[0] if following else chunk[-1]
        before, chunk = _neighbours([*before, *chunk][::-1], last, reach)[::-1], following


def _neighbours(examples: Sequence[AnyExample], of: Example, reach: int) -> list[AnyExample]:
    """Returns the first examples that are of the same document, as many as have `reach` words together."""
    chosen: list[AnyExample] = []
    words = 0
    for example in takewhile(lambda each: _same_document(each, of), examples):
        if words >= reach:
            break
        chosen.append(example)
        words += len(example.words) if isinstance(example, Tagged) else 0
    return chosen


def _same_document(example: Example, other: Example) -> bool:
    if not isinstance(example, Tagged) or not isinstance(other, Tagged):
        return False
    return example.document is not None and example.document == other.document

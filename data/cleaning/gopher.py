"""The rules of Gopher (Rae et al. 2021, Scaling Language Models, appendix A1.1; the bounds of repetition: table A1).

What the paper leaves open is so here: words are what white space parts; lines and paragraphs are those with text, a
blank line ends a paragraph; one is a duplicate that an earlier one equals; characters of n-grams are those of their
words, each counted once, and an n-gram is a duplicate wherever it occurs, if it occurs twice.

Differs: the paper's filters of content (SafeSearch) and of text extraction are none of text.
"""

import string
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from contexture.data.cleaning.rules import lines_of

WORDS = (50, 100_000)
WORD_LENGTH = (3.0, 10.0)
MOST_SYMBOLS = 0.1
MOST_BULLETS, MOST_ELLIPSES = 0.9, 0.3
LEAST_LETTERS = 0.8
LEAST_STOP_WORDS = 2
STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
BULLETS = ("•", "‣", "◦", "●", "▪", "*", "-")
ELLIPSES = ("...", "…")
MOST_DUPLICATE, MOST_DUPLICATE_CHARACTERS = 0.30, 0.20
"""Of lines and of paragraphs: their number, and their characters."""
MOST_TOP = {2: 0.20, 3: 0.18, 4: 0.16}
MOST_DUPLICATE_GRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
I64 = NDArray[np.int64]


def refused(text: str) -> str:
    """Returns the first rule that refuses a document, or ""."""
    # The quality of a document is cheap to see, its n-grams are not: most go before them.
    words = text.split()
    lines = [line.strip() for line in lines_of(text)]
    return _quality(text, words, [line for line in lines if line]) or _repetition(words, lines)


def _quality(text: str, words: Sequence[str], lines: Sequence[str]) -> str:
    count = len(words)
    if not WORDS[0] <= count <= WORDS[1]:
        return "gopher-words"
    # Shorter words are symbols and numbers, longer ones addresses and code.
    if not WORD_LENGTH[0] <= sum(map(len, words)) / count <= WORD_LENGTH[1]:
        return "gopher-word-length"
    # The symbol-to-word ratio, of each of the two symbols.
    if text.count("#") / count > MOST_SYMBOLS:
        return "gopher-hashes"
    if sum(map(text.count, ELLIPSES)) / count > MOST_SYMBOLS:
        return "gopher-ellipses"
    # Lists of links and menus, and lists of beginnings that a page shows of other pages.
    if sum(line.startswith(BULLETS) for line in lines) / len(lines) > MOST_BULLETS:
        return "gopher-bullets"
    if sum(line.endswith(ELLIPSES) for line in lines) / len(lines) > MOST_ELLIPSES:
        return "gopher-ellipsis-lines"
    # isalpha of a whole word is fast, and true for most.
    if sum(word.isalpha() or any(map(str.isalpha, word)) for word in words) / count < LEAST_LETTERS:
        return "gopher-letters"
    # Two different ones of the eight.
    known = {word.strip(string.punctuation + "“”‘’").lower() for word in set(words)}
    return "" if len(known & STOP_WORDS) >= LEAST_STOP_WORDS else "gopher-stop-words"


def _repetition(words: Sequence[str], lines: Sequence[str]) -> str:
    units = {"line": [line for line in lines if line], "paragraph": _paragraphs(lines)}
    shares = {name: _duplicate_shares(each) for name, each in units.items()}
    # Both numbers first, then both shares of characters: the order of table A1.
    for name, (number, _) in shares.items():
        if number > MOST_DUPLICATE:
            return f"gopher-duplicate-{name}s"
    for name, (_, characters) in shares.items():
        if characters > MOST_DUPLICATE_CHARACTERS:
            return f"gopher-duplicate-{name}-characters"
    # Words by number, so that n-grams are numbers too.
    numbers: dict[str, int] = {}
    ids = np.array([numbers.setdefault(word, len(numbers)) for word in words], np.int64)
    lengths = np.array(list(map(len, words)), np.int64)
    grams = ids
    for n in range(2, 11):
        grams = _longer(grams, ids, n)
        counts = np.bincount(grams) if len(grams) else np.zeros(1, np.int64)
        # Where none occurs twice, no longer one does.
        if counts.max() < 2:
            return ""
        # The most frequent one for short n-grams, all that come again for long ones.
        if n in MOST_TOP:
            # Of several that are as frequent, the one that occurs first.
            most = grams[np.argmax(counts[grams])]
            if _share(grams == most, lengths, n) > MOST_TOP[n]:
                return f"gopher-top-{n}-gram"
        elif _share(counts[grams] > 1, lengths, n) > MOST_DUPLICATE_GRAMS[n]:
            return f"gopher-duplicate-{n}-gram"
    return ""


def _paragraphs(lines: Sequence[str]) -> list[str]:
    # Lines come without outer spaces, so that a blank one is empty.
    joined = "\n".join(lines)
    return [each for paragraph in joined.split("\n\n") if (each := paragraph.strip("\n"))]


def _duplicate_shares(units: Sequence[str]) -> tuple[float, float]:
    """Returns the share of units that an earlier one equals, of their number and of their characters."""
    # The first of several equal ones is no duplicate.
    seen: set[str] = set()
    number = characters = 0
    for unit in units:
        if unit in seen:
            number += 1
            characters += len(unit)
        seen.add(unit)
    return number / len(units), characters / sum(map(len, units))


def _longer(grams: I64, ids: I64, n: int) -> I64:
    """Returns the number of each n-gram, from those of the (n-1)-grams: equal for those that are equal."""
    # A pair of numbers is one number; they are then counted anew, so that no product grows beyond 64 bits.
    # An n-gram is an (n-1)-gram and one word more.
    pairs = grams[:-1] * (ids.max() + 1) + ids[n - 1 :]
    return np.unique(pairs, return_inverse=True)[1].astype(np.int64)


def _share(starts: NDArray[np.bool_], lengths: I64, n: int) -> float:
    """Returns the share of characters within the n-grams that start at some words; words in several count once."""
    # +1 where an n-gram starts, -1 behind it: their running sum is how many a word is in.
    edges = np.zeros(len(lengths) + 1, np.int64)
    edges[: len(starts)] += starts
    edges[n : n + len(starts)] -= starts
    inside = np.cumsum(edges[:-1]) > 0
    return float(lengths[inside].sum() / lengths.sum())

"""GPT-1's clean-up of text, and the places in a text that the cleaned characters come from."""

import re
import unicodedata
from functools import cache, lru_cache
from itertools import accumulate, pairwise

import numpy as np

from contexture.data.binary_files import I64

# GPT-1's text_standardize. The original's first pattern means to hold a backslash, but without a raw string has none.
_RUNS = re.compile(r'([-~!";?+,()/*\[\]{}|_])\1*')
_BLANKS = re.compile(r"\s+")
LINES = re.compile(r" ?\n ?")
_WORDS = re.compile(r"\s+|\S+")
_ENTITY = re.compile(r"&#?\w+;")
"""A character as HTML writes it."""


def standardized(text: str) -> str:
    """GPT-1's clean-up: `"Well…  it's—2018!!"` → `"Well... it's - 2018 !!"`. Backslashes are not spaced: the original's
    pattern means to, but has no raw string.

    Differs: marks behind the thirtieth on one letter are put in order among themselves alone, in linear time.
    """
    # Spaces around each run of one mark; a run stays together.
    text = _RUNS.sub(r" \g<0> ", _mended(text))
    # White space that holds a line end becomes one, with a space on both sides; other white space a space.
    return _BLANKS.sub(lambda blanks: " \n " if "\n" in blanks[0] else " ", text).strip()


def nonblank_places(text: str) -> I64:
    """Returns the place in `text` of each character of `standardized(text).lower()` that is no white space: begin and
    end, i64 [n, 2]."""
    mended = _mended(text)
    places_N2 = _places(text, mended)
    # Behind the mending the clean-up adds and takes away white space alone, and lower-casing makes two of İ.
    counts = np.array([0 if character.isspace() else len(character.lower()) for character in mended], np.int64)
    return np.repeat(places_N2, counts, axis=0)


def _mended(text: str) -> str:
    """Returns a text as ftfy mends it, its dashes and dots as ASCII has them."""
    import ftfy

    # Very long runs of combining marks are cut, so that normalising each part takes linear time.
    long = () if text.isascii() else _long_marks().finditer(text)
    cuts = [0, *(match.end() for match in long), len(text)]
    text = "".join(ftfy.fix_text(text[begin:end]) for begin, end in pairwise(cuts))
    for character, plain in (("—", "-"), ("–", "-"), ("―", "-"), ("…", "..."), ("´", "'")):
        text = text.replace(character, plain)
    return text


def _places(text: str, mended: str) -> I64:
    """Returns the place in `text` of each character of `mended`, i64 [n, 2].

    Characters are mended one by one, with the marks on them. Where the whole text reads otherwise (encodings are mended
    in whole lines), a run of words that differ has the place of everything that it replaces.
    """
    # Where each unit ends in the text; its begin is the end of the one before.
    ends = [*accumulate(map(len, units := _units(text)), initial=0)]
    alone = [_mended_alone(unit) for unit in units]
    places_N2 = np.repeat(np.array([*pairwise(ends)], np.int64).reshape(-1, 2), [*map(len, alone)], axis=0)
    # Mended one by one, the units read as the whole text does: every place is known.
    if (joined := "".join(alone)) == mended:
        return places_N2
    # Otherwise the two readings are compared word by word.
    ours, theirs = _WORDS.findall(joined), _WORDS.findall(mended)
    begins, parts, i, j = [*accumulate(map(len, ours), initial=0)], list[I64](), 0, 0
    # Equal words keep their places; between them lie runs of words that differ.
    while i < len(ours) or j < len(theirs):
        if ours[i : i + 1] == theirs[j : j + 1]:
            parts.append(places_N2[begins[i] : begins[i + 1]])
            i, j = i + 1, j + 1
            continue
        k, m = _where_equal(ours, theirs, i, j)
        block_N2 = places_N2[begins[i] : begins[k]]
        # Words that match nothing in our reading have an empty place.
        at = places_N2[begins[i] - 1, 1] if begins[i] else 0
        whole = (block_N2[0, 0], block_N2[-1, 1]) if len(block_N2) else (at, at)
        parts.append(np.tile(np.array(whole, np.int64), (sum(map(len, theirs[j:m])), 1)))
        i, j = k, m
    return np.concatenate([np.zeros((0, 2), np.int64), *parts])


_FAR, _RUN = 64, 3
"""How many words ahead two readings are compared, and how many equal words in a row are no coincidence."""


def _where_equal(ours: list[str], theirs: list[str], i: int, j: int) -> tuple[int, int]:
    """Returns where lists of words, which differ at i and j, are equal again: the nearest place, else their ends."""
    # Nearest first, by the number of words that are passed over on both sides together.
    for distance in range(1, _FAR):
        for k in range(i, i + distance + 1):
            m = i + j + distance - k
            if k <= len(ours) and m <= len(theirs) and ours[k : k + _RUN] == theirs[m : m + _RUN]:
                return k, m
    return len(ours), len(theirs)


def _units(text: str) -> list[str]:
    """Cuts a text into characters with the marks on them, runs of white space, and entities of HTML."""
    units, at = list[str](), 0
    while at < len(text):
        end = at + 1
        if text[at] == "&" and (entity := _ENTITY.match(text, at)):
            end = entity.end()
        elif text[at].isspace():
            while end < len(text) and text[end].isspace():
                end += 1
        else:
            while end < len(text) and _joins(text[end]):
                end += 1
        units.append(text[at:end])
        at = end
    return units


@lru_cache(1 << 16)
def _joins(character: str) -> bool:
    """Returns whether a character belongs to the one before it: a mark, or a vowel or final of a Korean syllable."""
    return unicodedata.category(character)[0] == "M" or "\u1160" <= character <= "\u11ff"


@lru_cache(1 << 16)
def _mended_alone(unit: str) -> str:
    return _mended(unit)


@cache
def _long_marks() -> re.Pattern[str]:
    """Matches 30 combining marks in a row (Unicode's limit for stream-safe text, UAX #15) that more of them follow.
    Normalising the order of n marks takes time in n²."""
    sure = range(0x20000)  # Unicode has no combining marks behind these planes
    letters = [unicodedata.normalize("NFD", chr(code)) for code in sure]
    marks = "".join(chr(code) for code in sure if all(map(unicodedata.combining, letters[code])))
    return re.compile(f"[{marks}]{{30}}(?=[{marks}])")

"""The rules of C4 (Raffel et al. 2020, Exploring the Limits of Transfer Learning, section 2.2).

A line is a paragraph here. Pages go first, then citation markers, then lines, then pages with too few sentences left.

Differs: the rule for languages is --languages (C4: langdetect, English with a probability of 0.99); three-sentence
spans that occur twice are left to --duplicates; sentences are those of `data.text.lines`; the list of bad words is the
user's (--bad-words), and without one this rule takes nothing.
"""

import re
from collections.abc import Iterable

from contexture.data.cleaning.rules import Removed, lines_of, size, without
from contexture.data.text.lines import sentences

FEWEST_SENTENCES = 3
FEWEST_WORDS = 5
TERMINAL = (".", "!", "?", '"', "”")
"""A period, exclamation mark, question mark, or end quotation mark."""
POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
_CITATION = re.compile(r"\[(?:[0-9]+|edit|citation needed)\]")


def bad_words_pattern(words: Iterable[str]) -> re.Pattern[str] | None:
    """Returns what finds any of these words or phrases in a text in lower case; None where there is none."""
    # A list may have blank lines, and words twice.
    each = sorted({re.escape(word.strip().lower()) for word in words if word.strip()})
    # Whole words alone: a list has many that are parts of harmless ones.
    return re.compile(rf"(?<!\w)(?:{'|'.join(each)})(?!\w)") if each else None


def clean(text: str, bad_words: re.Pattern[str] | None) -> tuple[str, list[Removed]]:
    """Returns what is left of a page, "" for nothing, and what the rules took of it."""
    # Case tells nothing apart: "Lorem Ipsum", "JavaScript".
    if rule := _refused(text.lower(), bad_words):
        return "", [Removed(rule, text, size(text), "document")]
    removed: list[Removed] = []
    # Before lines are looked at: a marker may follow the period.
    unmarked = _CITATION.sub("", text)
    if unmarked != text:
        removed.append(Removed("c4-citations", "", size(text) - size(unmarked), ""))
    lines = lines_of(unmarked)
    reasons = {number: rule for number, line in enumerate(lines) if (rule := _refused_line(line))}
    # Lines keep their own ends, so that what is left is the text as it was.
    left, sizes = without(lines, reasons)
    for number, rule in reasons.items():
        # A blank line ends in no punctuation either, and is no paragraph.
        unit = "paragraph" if lines[number].strip() else ""
        removed.append(Removed(rule, lines[number], sizes[number], unit))
    # Last, as in the paper: lines that are gone have no sentences.
    if sum(len(sentences(line.strip())) for line in lines_of(left)) < FEWEST_SENTENCES:
        removed.append(Removed("c4-sentences", left or text, size(left), "document"))
        left = ""
    return left, removed


def _refused(lower: str, bad_words: re.Pattern[str] | None) -> str:
    """Returns the rule that refuses a whole page, or ""."""
    if "lorem ipsum" in lower:
        return "c4-lorem-ipsum"
    # In many programming languages, and in no natural text.
    if "{" in lower:
        return "c4-curly-bracket"
    # The paper's list is not shipped: which words are bad is for the user to say.
    return "c4-bad-words" if bad_words and bad_words.search(lower) else ""


def _refused_line(line: str) -> str:
    """Returns the rule that refuses a line, or ""."""
    line = line.strip()
    # In the order of the paper: what is no sentence goes first.
    if not line.endswith(TERMINAL):
        return "c4-terminal-punctuation"
    if len(line.split()) < FEWEST_WORDS:
        return "c4-words"
    lower = line.lower()
    # A warning that it should be enabled.
    if "javascript" in lower:
        return "c4-javascript"
    return "c4-policy" if any(policy in lower for policy in POLICIES) else ""

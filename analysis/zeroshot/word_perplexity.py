"""Perplexity by word of tokenised corpora, WikiText and the One Billion Word benchmark, as GPT-2 measured it (Radford
et al. 2019, section 3.1).

These corpora separate all tokens by white space, a form that a subword language model was not trained on. Their tokens
are joined by invertible rules, the plain text is scored, and the sum is divided by the number of words of the original,
so that models of different vocabularies can be compared.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from contexture.analysis.scoring.scorer import perplexity
from contexture.analysis.trained_model import TrainedModel
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.text.lines import LONGEST_DOCUMENT

_WITHIN_WORDS = {" @-@ ": "-", " @,@ ": ",", " @.@ ": "."}
"""WikiText's marks of a hyphen or a separator within a word or a number."""
_PAIRS = (r"\(", r"\)"), (r"\[", r"\]"), (r"\{", r"\}"), ('"', '"'), ("'", "'")
_ENDINGS = "'s 're 've 'll 'd 'm n't"
"""What English tokenisers cut off the end of a word."""
_HEADING = re.compile(r"^\s*=\s(?!=).*(?<!=)\s=\s*$")
"""The title of an article of WikiText: ` = Title = `; headings within it have more signs."""


def join_tokens(text: str) -> str:
    """Returns a tokenised text as plain text: no space before punctuation, within brackets, quotes or words."""
    for mark, plain in _WITHIN_WORDS.items():
        text = text.replace(mark, plain)
    # Only before white space: a mark that begins a word, as in `.5`, stays apart.
    text = re.sub(r" ([.,:;!?])(?=\s|$)", r"\1", text)
    for left, right in _PAIRS:
        text = re.sub(rf"(?<!\S){left} ([^\n]*?) {right}(?=\W|$)", lambda m: m[0][0] + m[1] + m[0][-1], text)
    for ending in _ENDINGS.split():
        text = re.sub(rf" {ending}(?!\w)", ending, text)
    # The possessive of plurals: `boys ' toys`.
    text = re.sub(r"(?<=s) '(?=\s|$)", "'", text)
    # WikiText's headings of lower levels: `= = Section = =`.
    text = re.sub(r"=(?: =)+", lambda m: m[0].replace(" ", ""), text)
    text = text.replace(" ° ", "°")
    return re.sub(r" ?\n ?", "\n", text)


def word_perplexity(
    model: TrainedModel,
    lines: Iterable[str],
    form: Literal["wikitext", "lm1b"],
    *,
    length: int = 0,
    stride: int = 0,
    batch: int = 8,
    cancel: CancelToken = NEVER,
) -> dict[str, Any]:
    """Returns the perplexity by word of a tokenised corpus.

        word_perplexity            exp(nats / words), words between white space of the original
        word_perplexity_line_ends  exp(nats / (words + lines)): each line that is not empty has an <eos> or </s> too, as
                                   models of words predict it

    Args:
        model: an open run.
        lines: the corpus.
        form: "wikitext": articles begin with a line ` = Title = `, and each is read alone; "lm1b": each line is a
            sentence, read alone.
        length: tokens of a window; 0: as in training.
        stride: new tokens in each window; 0: all.
        batch: windows at a time.

    Raises:
        DataError: when the text has no words, and as `score`.
    """
    # Counted while the scorer reads the lines: a corpus may be larger than memory.
    words = ends = 0

    def counted() -> Iterator[str]:
        nonlocal words, ends
        for line in lines:
            own = line.split()
            words += len(own)
            ends += bool(own)
            yield line

    documents = _articles(counted()) if form == "wikitext" else (line.strip() for line in counted() if line.strip())
    scored: dict[str, Any] = dict(
        model.score_documents(map(join_tokens, documents), length=length, stride=stride, batch=batch, cancel=cancel)
    )
    if not words:
        raise DataError("there is no word to score in the text; give text")
    # From the mean per token back to the sum.
    nats = scored["loss"] * scored["tokens"]
    return {
        "documents": scored["documents"],
        "words": words,
        "word_perplexity": perplexity(nats / words),
        "word_perplexity_line_ends": perplexity(nats / (words + ends)),
        "loss": scored["loss"],
        "tokens": scored["tokens"],
        "convention": (
            f"tokens joined to plain text; {'an article' if form == 'wikitext' else 'a line'} is a document; words of "
            f"the original stand between white space; line_ends counts each line's end too; {scored['convention']}"
        ),
    }


def _articles(lines: Iterable[str]) -> Iterator[str]:
    """Yields the articles of WikiText; each begins with its title."""
    article: list[str] = []
    size = 0
    for line in lines:
        # Blank lines before the first title are no article.
        if _HEADING.match(line) and any(each.strip() for each in article):
            yield "\n".join(article).strip("\n")
            article, size = [], 0
        article.append(line)
        size += len(line) + 1
        if size > LONGEST_DOCUMENT:
            raise DataError(
                f"an article of more than {LONGEST_DOCUMENT:,} characters; give WikiText, whose articles begin with a "
                "line ` = Title = `"
            )
    if any(each.strip() for each in article):
        yield "\n".join(article).strip("\n")

"""Words ↔ pieces: a tag belongs to a word, a token to a piece of it."""

from collections.abc import Sequence

from data.errors import DataError
from data.examples import Tagged
from data.tokenizer import Tokenizer


def cut_words(examples: Sequence[Tagged], tokenizer: Tokenizer) -> tuple[list[list[int]], list[list[int]]]:
    """(the pieces of each example's words, joined; where among them each word begins).

    Each word is tokenised alone; its first piece stands for it (Devlin et al. 2018, section 5.3).
    `["Jim", "Henson"]` → pieces `jim hen ##son`, beginnings `0 1`. Raises: DataError for a word without a piece.
    """
    distinct = list({word: None for example in examples for word in example.words})
    pieces = dict(zip(distinct, tokenizer.encode(distinct), strict=True))
    lines: list[list[int]] = []
    begins: list[list[int]] = []
    for example in examples:
        line: list[int] = []
        begin: list[int] = []
        for word in example.words:
            if not pieces[word]:
                raise DataError(
                    f"{example.origin}: the word {word!r} has no letter that the vocabulary can spell; "
                    "take it out, with its tag"
                )
            begin.append(len(line))
            line += pieces[word]
        lines.append(line)
        begins.append(begin)
    return lines, begins

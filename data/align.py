"""Words ↔ pieces: a tag belongs to a word, a token to a piece of it."""

from collections.abc import Sequence

from data.errors import DataError
from data.examples import Tagged
from data.layouts import GPT_SPECIALS
from data.tokenizer import Tokenizer
from data.words import Spelling


def cut_words(examples: Sequence[Tagged], tokenizer: Tokenizer | Spelling) -> tuple[list[list[int]], list[list[int]]]:
    """(the pieces of each example's words, joined; where among them each word is read).

    Each word is tokenised alone; its first piece stands for it (Devlin et al. 2018, section 5.3). A vocabulary that has
    GPT-1's special tokens is read from left to right: there it is the last piece, which alone has seen the whole word.
    Where spaces are part of the pieces, each word but the first has one before it. An ELMo reads words as they stand.

    `["Jim", "Henson"]` → pieces `jim hen ##son`, places `0 1`. Raises: DataError for a word without a piece.
    """
    if isinstance(tokenizer, Spelling):
        lines = [tokenizer.number(example.words) for example in examples]
        return lines, [[*range(len(line))] for line in lines]
    last, space = GPT_SPECIALS[-1] in tokenizer.specials, " " if tokenizer.lossless else ""
    written = [[f"{space if n else ''}{word}" for n, word in enumerate(example.words)] for example in examples]
    where = {word: example.origin for example, words in zip(examples, written, strict=True) for word in words}
    pieces = dict(zip(where, spelled(list(where), list(where.values()), tokenizer), strict=True))
    lines: list[list[int]] = []
    places: list[list[int]] = []
    for example, words in zip(examples, written, strict=True):
        line: list[int] = []
        place: list[int] = []
        for word in words:
            if not pieces[word]:
                raise DataError(
                    f"{example.origin}: the word {word!r} has no letter that the vocabulary can spell; "
                    "take it out, with its tag"
                )
            begin = len(line)
            line += pieces[word]
            place.append(len(line) - 1 if last else begin)
        lines.append(line)
        places.append(place)
    return lines, places


def spelled(texts: Sequence[str], origins: Sequence[str], tokenizer: Tokenizer | Spelling) -> list[list[int]]:
    """The pieces of texts. Raises: DataError with the origin of one that has what the vocabulary cannot spell."""
    try:
        return tokenizer.encode(texts)
    except (DataError, TypeError, UnicodeEncodeError):
        for text, origin in zip(texts, origins, strict=True):
            if not isinstance(text, str):
                raise DataError(f"{origin}: {text!r} is no text") from None
            try:
                text.encode()
                tokenizer.encode([text])
            except DataError as error:
                raise DataError(f"{origin}: {error}") from None
            except UnicodeEncodeError as error:
                half = f"half a character, U+{ord(text[error.start]):04X}, at place {error.start}"
                raise DataError(f"{origin}: {half}; give text in UTF-8") from None
        raise

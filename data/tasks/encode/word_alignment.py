"""Words ↔ pieces: tags belong to words, and a model predicts them at pieces."""

from collections.abc import Sequence

from contexture.data.config import Context
from contexture.data.layouts import GPT_SPECIALS
from contexture.data.tasks.read.examples import Tagged
from contexture.data.tasks.read.file_report import FileReport
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.checked_text import encode_checked, unknown_ids
from contexture.data.tokenizers.open_vocabulary import OpenVocabulary
from contexture.data.tokenizers.word_level import WordNumbers


def cut_words(
    examples: Sequence[Tagged],
    tokenizer: Tokenizer | OpenVocabulary,
    report: FileReport,
    context: Context = "sentence",
) -> tuple[list[list[int]], list[list[int]]]:
    """Returns the pieces of each example's words, joined, and the place among them of the piece that each word is read
    at.

        BERT   a word's first piece (Devlin et al. 2018, section 5.3)
        GPT    its last piece: reading from left to right, that alone has seen the whole word
        ELMo, static vectors   words are not split

    Words are tokenised alone. A word without a piece (a variation selector alone) is read as the unknown token, which
    `report` counts.

    context: data.context.

    `["Jim", "Henson"]` → pieces `jim hen ##son`, places `0 1`.
    """
    # Words are the units themselves: each is read at its own place.
    if isinstance(tokenizer, WordNumbers):
        numbers = [tokenizer.number(example.words) for example in examples]
        report.count_tokens([" ".join(example.words) for example in examples], numbers)
        return numbers, [[*range(len(words))] for words in numbers]
    # A fine-tuned GPT is known by its special tokens. Where spaces are part of the pieces, each word but the first has
    # one before it, as in running text; read within its document, the first has one too.
    last, space = GPT_SPECIALS[-1] in tokenizer.specials, " " if tokenizer.lossless else ""
    leads = [context == "document" and example.follows for example in examples]
    written = [
        [f"{space if n or lead else ''}{word}" for n, word in enumerate(example.words)]
        for example, lead in zip(examples, leads, strict=True)
    ]
    # Each distinct word is encoded once.
    # With the origin of the first sentence that holds it, for an error.
    where: dict[str, str] = {}
    for example, words in zip(examples, written, strict=True):
        for word in words:
            where.setdefault(word, example.origin)
    pieces = dict(zip(where, encode_checked(list(where), list(where.values()), tokenizer), strict=True))
    unknown = unknown_ids(tokenizer)
    sequences: list[list[int]] = []
    places: list[list[int]] = []
    for example, words in zip(examples, written, strict=True):
        sequence: list[int] = []
        place: list[int] = []
        for word in words:
            ids = pieces[word]
            if not ids:
                if word.strip():  # an empty one is counted by its reader
                    report.read_unspelled(f"the word {word.strip()!r}", example.origin)
                ids = unknown
            begin = len(sequence)
            sequence += ids
            place.append(len(sequence) - 1 if last else begin)
        sequences.append(sequence)
        places.append(place)
    report.count_tokens([" ".join(example.words) for example in examples], sequences)
    return sequences, places

"""The texts and words of examples → pieces, by a tokenizer or an open vocabulary."""

from collections.abc import Sequence
from itertools import chain

from contexture.data.tasks.examples import ChoiceExample, Pair, Tagged, Text
from contexture.data.tasks.file_report import FileReport
from contexture.data.tasks.labels import Labels
from contexture.data.tasks.word_alignment import cut_words, encode_checked, unknown_ids
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.open_vocabulary import OpenVocabulary


def tagged_tokens(
    chunk: Sequence[Tagged], tokenizer: Tokenizer | OpenVocabulary, labels: Labels, report: FileReport
) -> tuple[list[list[int]], list[list[int]]]:
    """Returns the pieces of each example, and beside each piece its word's tag, or -1 where another piece stands for
    the word. Where tags are not known, 0 marks the pieces that stand for words."""
    pieces, places = cut_words(chunk, tokenizer, report)
    tags = [[-1] * len(ids) for ids in pieces]
    for example, example_tags, example_places in zip(chunk, tags, places, strict=True):
        known = example.tags or ("",) * len(example_places)
        for place, tag in zip(example_places, known, strict=True):
            example_tags[place] = labels.number(tag, example.origin) if example.tags is not None else 0
    return pieces, tags


def text_tokens(
    chunk: Sequence[Text | Pair | ChoiceExample], tokenizer: Tokenizer | OpenVocabulary, report: FileReport
) -> list[tuple[list[int], list[int] | None]]:
    """Returns the pieces of each row's first text and of its second, where it has one; a choice has a row for each
    alternative."""
    texts = [_texts(example) for example in chunk]
    # The tokenizer gets all texts at once (it runs on all cores), and they are dealt out to the rows afterwards.
    origins = [example.origin for example, parts in zip(chunk, texts, strict=True) for _ in parts]
    flat = list(chain.from_iterable(texts))
    encoded = encode_checked(flat, origins, tokenizer)
    unknown = unknown_ids(tokenizer)
    for place, (text, ids) in enumerate(zip(flat, encoded, strict=True)):
        if not ids:
            encoded[place] = unknown
            if text:  # an empty one is counted by its reader
                report.read_unspelled(f"the text {text[:40]!r}", origins[place])
    report.count_tokens(flat, encoded)
    pieces = iter(encoded)
    rows: list[tuple[list[int], list[int] | None]] = []
    for parts in texts:
        first, *others = [next(pieces) for _ in parts]
        rows += [(first, other) for other in others or [None]]
    return rows


def _texts(example: Text | Pair | ChoiceExample) -> tuple[str, ...]:
    if isinstance(example, Pair):
        return example.first, example.second
    return (example.text, *example.choices) if isinstance(example, ChoiceExample) else (example.text,)

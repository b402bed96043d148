"""Every kind of tokenizer: loaded from files, or learned from text."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NotRequired, TypedDict, get_args

from contexture.data import mirror
from contexture.data.config import LearnedKind
from contexture.data.errors import DataError
from contexture.data.plain_files import check_plain
from contexture.data.tokenizers import (
    byte_pair,
    sentencepiece_model,
    tokenizer_files,
    word_counts,
    word_level,
    wordpiece,
)
from contexture.data.tokenizers.base import Tokenizer, with_added_tokens
from contexture.data.tokenizers.byte_pair import ByteBPE, Cleaned, Gpt1BPE
from contexture.data.tokenizers.char_level import Characters, characters_of
from contexture.data.tokenizers.sentencepiece_model import SentencePiece
from contexture.data.tokenizers.word_counts import WordCount
from contexture.data.tokenizers.word_level import StaticWords, Words
from contexture.data.tokenizers.wordpiece import WordPiece

# GPT-1's and static vocabularies are read, and never learned.
KINDS = (*get_args(LearnedKind), Gpt1BPE.kind, StaticWords.kind)
_NO_OPTIONS = "not the options of a tokenizer; make it again, or give the vocabulary's own file"


class SavedOptions(TypedDict):
    """The content of a saved tokenizer's tokenizer.json. Options of one kind are there for that kind alone."""

    format: int
    kind: str
    lowercase: bool
    """For WordPiece and static words."""
    longest_word: NotRequired[int]
    """For WordPiece, where it differs from the original's."""
    strip_accents: NotRequired[bool]
    """For WordPiece, where it differs from `lowercase`."""
    cleaned: NotRequired[Cleaned]
    """For GPT-1, where it differs from the original's."""
    split: str
    """For words."""
    specials: NotRequired[list[str]]
    """Tokens that were added."""


def load_tokenizer(path: str | Path, lowercase: bool = True, split: str = "spaces") -> Tokenizer:
    """Opens a folder written by `save`, or a published vocabulary: a folder with one of these files, or the file.

        vocab.txt                                     WordPiece; `lowercase` is for it alone
        vocab.txt that begins with `<S>`              ELMo's words; `split` is for it alone
        encoder.json, vocab.bpe                       GPT-2's byte pairs
        encoder_bpe_40000.json, vocab_40000.bpe       GPT-1's byte pairs
        *.model                                       SentencePiece

    Raises: DataError for a file that is missing, not UTF-8, of another format, or no vocabulary.
    """
    path = Path(path)
    # One file of several names its folder.
    if path.name in (*byte_pair.BYTE_FILES, *byte_pair.GPT1_FILES, tokenizer_files.OPTIONS):
        path = path.parent
    mirror.fetched(path)
    # A saved folder first: its vocabulary may have a published name, but its options count.
    if (path / tokenizer_files.OPTIONS).is_file():
        return _open_saved(path)
    # Then a published vocabulary, by the names of its files.
    if (file := path / wordpiece.VOCABULARY).is_file():
        return _open_lines(file, lowercase, split)
    # One of a pair is enough to know the kind: the other one's absence is then an error of its own.
    for kind, names in ((ByteBPE, byte_pair.BYTE_FILES), (Gpt1BPE, byte_pair.GPT1_FILES)):
        if any((path / name).is_file() for name in names):
            return kind.open(path)
    if path.is_dir():
        # *.model files have no usual name, so the only one is taken.
        candidates = sorted(path.glob("*.model"))
        if len(candidates) != 1:
            files = ", ".join((wordpiece.VOCABULARY, *byte_pair.BYTE_FILES, *byte_pair.GPT1_FILES))
            raise DataError(
                f"{path}: no such vocabulary; the folder holds no {files} and no single *.model; give a folder with "
                "one of them"
            )
        path = candidates[0]
    # Before the path is called missing: a pipe or a bucket has an error of its own.
    check_plain(path)
    if not path.is_file():
        raise DataError(f"{path}: no such vocabulary; give a tokenizer folder, a vocab.txt or a *.model")
    return SentencePiece.open(path) if path.suffix == ".model" else _open_lines(path, lowercase, split)


def _open_lines(file: Path, lowercase: bool, split: str) -> Tokenizer:
    # BERT's and ELMo's vocabularies are both called vocab.txt; their first lines tell them apart.
    if not word_level.are_words(file):
        return WordPiece.open(file, lowercase)
    tokenizer = Words.open(file, split)
    if tokenizer.size == len(word_level.SPECIAL):
        raise DataError(
            f"{file}: holds special words alone, so that every word is {word_level.UNK}; give a vocabulary of text"
        )
    return tokenizer


LARGEST_LEARNED = 1 << 22
"""Tokens of a learned vocabulary: the libraries reserve 132 bytes for each beforehand, and end the process where memory
does not suffice."""


def learn(kind: str, texts: Iterable[str], size: int, lowercase: bool, split: str = "spaces") -> Tokenizer:
    """Learns a vocabulary of at most `size` tokens, the same from the same texts in every process.

    Args:
        kind: one of `LearnedKind`.
        texts: the text to learn from.
        size: the most tokens.
        lowercase: for WordPiece, whether text is lower-cased.
        split: for words, how text is split.

    Raises:
        DataError: when the texts are empty, or the size is too small or too large; and whatever the texts raise.
    """
    counts = word_counts.count(texts, counted_words(kind, lowercase, split))
    return learn_from_counts(kind, counts, size, lowercase, split)


def counted_words(kind: str, lowercase: bool, split: str = "spaces") -> Callable[[str], Iterable[str]]:
    """Returns what a text is counted as for a vocabulary of a kind. Counts of texts, added up, are those of all."""
    if kind == WordPiece.kind:
        return wordpiece.counted_chunks(lowercase)
    if kind == ByteBPE.kind:
        return byte_pair.counted_chunks
    # How often a text has a character does not matter.
    if kind == Characters.kind:
        return set
    if kind in sentencepiece_model.KINDS:
        return sentencepiece_model.counted_chunks
    if kind == Words.kind:
        return word_level.splitter(split)
    learned = ", ".join(get_args(LearnedKind))
    raise DataError(f"a vocabulary of kind {kind!r} cannot be learned; choose one of {learned}")


def learn_from_counts(
    kind: str, counts: Iterable[WordCount], size: int, lowercase: bool, split: str = "spaces"
) -> Tokenizer:
    """As `learn`, from the counts of `counted_words`, sorted by their words."""
    if size > LARGEST_LEARNED:
        raise DataError(
            f"a vocabulary of {size:,} tokens is too large to learn; give {LARGEST_LEARNED:,} at most, or a vocabulary "
            "that exists: --data.tokenizer"
        )
    if kind == WordPiece.kind:
        return wordpiece.wordpiece_of(counts, size, lowercase)
    if kind == ByteBPE.kind:
        return byte_pair.byte_bpe_of(counts, size)
    if kind == Characters.kind:
        return characters_of(counts, size)
    if kind in sentencepiece_model.KINDS:
        return sentencepiece_model.sentencepiece_of(counts, size, kind)
    return word_level.words_of(counts, size, split)


def _open_saved(folder: Path) -> Tokenizer:
    """Opens a folder written by `save`. Raises: DataError where tokenizer.json is not as `save` writes it, or the
    vocabulary has changed."""
    file = folder / tokenizer_files.OPTIONS
    try:
        # The shape first, then the values.
        options: SavedOptions = json.loads(tokenizer_files.read_text(file))
        kind, format, names = options["kind"], options.get("format"), options.get("specials", [])
        # Options of the kind; "specials" are of any kind.
        fits = kind not in (WordPiece.kind, StaticWords.kind) or (
            isinstance(options["lowercase"], bool)
            and type(options.get("longest_word", 1)) is int
            and isinstance(options.get("strip_accents", True), bool)
        )
        fits = fits and options.get("cleaned", "original") in ("original", "transformers")
        fits = fits and (kind not in (Words.kind, StaticWords.kind) or options["split"] in word_level.SPLITS)
        named = isinstance(names, list) and all(isinstance(name, str) for name in names)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DataError(f"{file}: {_NO_OPTIONS}") from None
    # type() and not isinstance: True is no format.
    if type(format) is not int or format != tokenizer_files.FORMAT or kind not in KINDS:
        raise DataError(
            f"{file}: format {format!r}, kind {kind!r}; this reads format {tokenizer_files.FORMAT}, "
            f"kinds {', '.join(KINDS)}"
        )
    if not fits or not named:
        raise DataError(f"{file}: {_NO_OPTIONS}")
    # The base first: its files are the folder's, and the added names only an option.
    tokenizer = _open_kind(folder, kind, options)
    return with_added_tokens(tokenizer, names) if names else tokenizer


def _open_kind(folder: Path, kind: str, options: SavedOptions) -> Tokenizer:
    if kind == WordPiece.kind:
        longest = options.get("longest_word", wordpiece.LONGEST_WORD)
        # Left out where it follows `lowercase`.
        file, accents = folder / wordpiece.VOCABULARY, options.get("strip_accents")
        return WordPiece.open(file, options["lowercase"], longest, accents)
    if kind == ByteBPE.kind:
        return ByteBPE.open(folder)
    if kind == Gpt1BPE.kind:
        return Gpt1BPE.open(folder, cleaned=options.get("cleaned", "original"))
    if kind == Characters.kind:
        return Characters.open(folder)
    if kind == Words.kind:
        return Words.open(folder / word_level.VOCABULARY, options["split"])
    if kind == StaticWords.kind:
        return StaticWords.open(folder, options["split"], options["lowercase"])
    # Both kinds have one file, which says its kind itself.
    tokenizer = SentencePiece.open(folder / sentencepiece_model.FILE)
    if tokenizer.kind != kind:
        raise DataError(
            f"{folder / sentencepiece_model.FILE}: of kind {tokenizer.kind}, not {kind}; make the tokenizer again"
        )
    return tokenizer

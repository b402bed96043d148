"""Text ↔ ids: what code outside this folder needs to know about a tokenizer."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from contexture.data.errors import DataError
from contexture.data.plain_files import check_plain
from contexture.data.tokenizers import byte_pair as bpe
from contexture.data.tokenizers import common as vocabularies
from contexture.data.tokenizers import sentencepiece_model as pieces
from contexture.data.tokenizers import word_level as words
from contexture.data.tokenizers import wordpiece
from contexture.data.tokenizers.byte_pair import ByteBPE, Gpt1BPE, learn_byte_bpe
from contexture.data.tokenizers.char_level import Characters, learn_characters
from contexture.data.tokenizers.sentencepiece_model import SentencePiece, learn_sentencepiece
from contexture.data.tokenizers.word_level import Words, learn_words
from contexture.data.tokenizers.wordpiece import WordPiece, learn_wordpiece

KINDS = ("wordpiece", "byte-bpe", "gpt1-bpe", "characters", *pieces.KINDS, "words")
_NO_OPTIONS = "not the options of a tokenizer; make it again, or give the vocabulary's own file"


class Tokenizer(Protocol):
    """What the rest of the house knows of a tokenizer. WordPiece alone has `cls`, `sep` and `mask` besides."""

    kind: str
    size: int
    """How many ids there are, `specials` counted."""
    pad: int
    """An id that may stand in padding; 0 where the vocabulary has none for that."""
    lossless: bool
    """Whether every text comes back from its ids as it was."""
    specials: Mapping[str, int]
    """Tokens that were grown behind the vocabulary (`with_specials`), and their ids."""
    fingerprint: str
    """sha256 (hex) over all that makes the tokenizer."""

    @property
    def end(self) -> int | None:
        """The token that ends a document; None where the vocabulary has none."""
        ...

    @property
    def unk(self) -> int | None:
        """What stands for text that no token spells; None where every text is spelled, or such text is an error."""
        ...

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts → ids, without special tokens; one that is spelled out in text is text."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Ids, special tokens too → text."""
        ...

    def token(self, id: int) -> str:
        """What an id stands for, for people."""
        ...

    def parts(self, text: str, most: int) -> list[str]:
        """A long text in parts of about `most` characters (more where it cannot be cut), whose ids, joined, are those
        of the whole."""
        ...

    def files(self) -> dict[str, bytes]:
        """What `save` writes, by name."""
        ...

    def save(self, folder: Path) -> None:
        """Writes the folder beside its place and renames it there; one that holds the same is left as it is.

        Raises: DataError where something else stands in that place, or no folder can.
        """
        ...


class Grown:
    """A vocabulary with special tokens behind it; all other ids stay. Text that spells one of them is text."""

    def __init__(self, base: Tokenizer, names: Sequence[str]) -> None:
        self.base, self.names = base, tuple(names)
        self.kind, self.pad, self.lossless = base.kind, base.pad, base.lossless
        self.end, self.unk = base.end, base.unk
        self.size = base.size + len(names)
        self.specials: Mapping[str, int] = {name: base.size + place for place, name in enumerate(names)}
        self.fingerprint = vocabularies.fingerprint(self.kind, base=base.fingerprint, specials=self.names)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self.base.encode(texts)

    def decode(self, ids: Iterable[int]) -> str:
        """Special tokens by their names, between them the text as it is without them."""
        texts: list[str] = []
        between: list[int] = []
        for number in ids:
            if number < self.base.size:
                between.append(number)
            else:
                texts += [self.base.decode(between), self.token(number)]
                between = []
        return "".join([*texts, self.base.decode(between)])

    def token(self, id: int) -> str:
        return self.base.token(id) if id < self.base.size else self.names[id - self.base.size]

    def parts(self, text: str, most: int) -> list[str]:
        return self.base.parts(text, most)

    def files(self) -> dict[str, bytes]:
        files = self.base.files()
        options = {**json.loads(files[vocabularies.OPTIONS]), "specials": self.names}
        return {**files, vocabularies.OPTIONS: vocabularies.as_options(options)}

    def save(self, folder: Path) -> None:
        vocabularies.save(folder, self.files())


def with_specials(tokenizer: Tokenizer, names: Sequence[str]) -> Tokenizer:
    """The same vocabulary with tokens behind it that no text spells: `with_specials(tokenizer, ["_start_"])`.

    Raises: DataError for WordPiece, which has its own, for words, for a name twice, and for no name.
    """
    if tokenizer.kind == WordPiece.kind:
        raise DataError(f"a wordpiece vocabulary has its own special tokens ({', '.join(wordpiece.SPECIAL)}); use them")
    if tokenizer.kind == Words.kind:
        raise DataError(f"no special tokens are added to a vocabulary of kind {Words.kind}; use it as it is")
    base, old = (tokenizer.base, tokenizer.names) if isinstance(tokenizer, Grown) else (tokenizer, ())
    together = [*old, *names]
    if not names or "" in names:
        raise DataError("a special token without a name; give each a name, like _start_")
    if len(set(together)) < len(together):
        name = next(name for name in together if together.count(name) > 1)
        raise DataError(f"the special token {name!r} is there already; give each name once")
    return Grown(base, together)


def load_tokenizer(path: str | Path, lowercase: bool = True, split: str = "spaces") -> Tokenizer:
    """Opens a folder written by `save`, or a published vocabulary as it is: vocab.txt of BERT (`lowercase` is for
    that alone) or of ELMo, which begins with `<S>` (`split` is for that alone), encoder.json with vocab.bpe,
    encoder_bpe_40000.json with vocab_40000.bpe, a *.model; or a folder with one of these.

    Raises: DataError for what is missing, not UTF-8, of another format, or no vocabulary.
    """
    path = Path(path)
    if path.name in (*bpe.BYTE_FILES, *bpe.GPT1_FILES, vocabularies.OPTIONS):
        path = path.parent
    if (path / vocabularies.OPTIONS).is_file():
        return _open_saved(path)
    if (file := path / wordpiece.VOCABULARY).is_file():
        return _open_lines(file, lowercase, split)
    for kind, names in ((ByteBPE, bpe.BYTE_FILES), (Gpt1BPE, bpe.GPT1_FILES)):
        if any((path / name).is_file() for name in names):
            return kind.open(path)
    if path.is_dir():
        found = sorted(path.glob("*.model"))
        if len(found) != 1:
            known = f"{wordpiece.VOCABULARY}, {', '.join(bpe.BYTE_FILES + bpe.GPT1_FILES)} and no single *.model"
            raise DataError(f"{path}: no such vocabulary; the folder holds no {known}; give a folder with one of them")
        path = found[0]
    check_plain(path)
    if not path.is_file():
        raise DataError(f"{path}: no such vocabulary; give a tokenizer folder, a vocab.txt or a *.model")
    return SentencePiece.open(path) if path.suffix == ".model" else _open_lines(path, lowercase, split)


def _open_lines(file: Path, lowercase: bool, split: str) -> Tokenizer:
    if not words.are_words(file):
        return WordPiece.open(file, lowercase)
    tokenizer = Words.open(file, split)
    if tokenizer.size == len(words.SPECIAL):
        raise DataError(
            f"{file}: holds special words alone, so that every word is {words.UNK}; give a vocabulary of text"
        )
    return tokenizer


LARGEST_LEARNED = 1 << 22
"""Tokens: the libraries that learn a vocabulary set memory aside for all that are asked for, 132 bytes each, and end
the process where there is not so much."""


def learn(kind: str, texts: Iterable[str], size: int, lowercase: bool, split: str = "spaces") -> Tokenizer:
    """A vocabulary of at most `size` tokens, the same from the same texts in every process; `lowercase` is WordPiece's,
    `split` that of words.

    Raises: DataError where the texts hold nothing, the size has no room or is too large; and whatever the texts raise.
    """
    if size > LARGEST_LEARNED:
        raise DataError(
            f"a vocabulary of {size:,} tokens is too large to learn; give {LARGEST_LEARNED:,} at most, or a vocabulary "
            "that is there: --data.tokenizer"
        )
    if kind == WordPiece.kind:
        return learn_wordpiece(texts, size, lowercase)
    if kind == ByteBPE.kind:
        return learn_byte_bpe(texts, size)
    if kind == Characters.kind:
        return learn_characters(texts, size)
    if kind in pieces.KINDS:
        return learn_sentencepiece(texts, size, kind)
    if kind == Words.kind:
        return learn_words(texts, size, split)
    learned = ", ".join(known for known in KINDS if known != Gpt1BPE.kind)
    raise DataError(f"a vocabulary of kind {kind!r} cannot be learned; choose one of {learned}")


def _open_saved(folder: Path) -> Tokenizer:
    """Raises: DataError where tokenizer.json is not what `save` writes, and for a vocabulary that is not as it was."""
    file = folder / vocabularies.OPTIONS
    try:
        options: dict[str, Any] = json.loads(vocabularies.read_text(file))
        kind, format, names = options["kind"], options.get("format"), options.get("specials", [])
        fits = kind != WordPiece.kind or (
            isinstance(options["lowercase"], bool) and type(options.get("longest_word", 1)) is int
        )
        fits = fits and options.get("cleaned", "original") in ("original", "transformers")
        fits = fits and (kind != Words.kind or options["split"] in words.SPLITS)
        named = isinstance(names, list) and all(isinstance(name, str) for name in names)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DataError(
            f"{file}: not the options of a tokenizer; make it again, or give the vocabulary's own file"
        ) from None
    if type(format) is not int or format != vocabularies.FORMAT or kind not in KINDS:
        raise DataError(
            f"{file}: format {format!r}, kind {kind!r}; "
            f"this reads format {vocabularies.FORMAT}, kinds {', '.join(KINDS)}"
        )
    if not fits or not named:
        raise DataError(f"{file}: {_NO_OPTIONS}")
    tokenizer = _open_kind(folder, kind, options)
    return with_specials(tokenizer, names) if names else tokenizer


def _open_kind(folder: Path, kind: str, options: Mapping[str, Any]) -> Tokenizer:
    if kind == WordPiece.kind:
        longest = options.get("longest_word", wordpiece.LONGEST_WORD)
        return WordPiece.open(folder / wordpiece.VOCABULARY, options["lowercase"], longest)
    if kind == ByteBPE.kind:
        return ByteBPE.open(folder)
    if kind == Gpt1BPE.kind:
        return Gpt1BPE.open(folder, cleaned=options.get("cleaned", "original"))
    if kind == Characters.kind:
        return Characters.open(folder)
    if kind == Words.kind:
        return Words.open(folder / words.VOCABULARY, options["split"])
    tokenizer = SentencePiece.open(folder / pieces.FILE)
    if tokenizer.kind != kind:
        raise DataError(f"{folder / pieces.FILE}: of kind {tokenizer.kind}, not {kind}; make the tokenizer again")
    return tokenizer

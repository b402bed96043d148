"""Text ↔ ids: the `Tokenizer` protocol and BERT's WordPiece, learned here or read from a published vocab.txt.

The matching, normalising and learning run in the `tokenizers` library (Rust, all cores).
"""

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from data.errors import DataError
from data.sources import check_free

PAD, UNK, CLS, SEP, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LONGEST_WORD = 200
"""A word of more characters is [UNK] (max_input_chars_per_word)."""
_VOCABULARY, _OPTIONS = "vocab.txt", "tokenizer.json"
_CLEANED = re.compile(r" [.?!,]| ' ")
_MOST_WORDS = 1_000_000


class Tokenizer(Protocol):
    """What the rest of the house knows of a tokenizer."""

    size: int
    pad: int
    unk: int
    cls: int
    sep: int
    mask: int
    fingerprint: str
    """sha256 (hex) over the vocabulary and the options."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts → ids, without special tokens."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Ids, special tokens too → text."""
        ...

    def token(self, id: int) -> str: ...

    def save(self, folder: Path) -> None: ...


class WordPiece:
    """The tokenizer of google-research/bert (tokenization.py): clean, space CJK characters, lower-case and strip
    accents (`lowercase`), split at white space and punctuation, then the longest piece first, `##` inside a word.

    A special token spelled out in text is text, as in the original.

    Differs: characters for private use are dropped like control characters, and U+2B820–2B91F are not spaced as CJK,
    for so does the library.
    """

    def __init__(self, vocabulary: Sequence[str], lowercase: bool, where: str = "vocabulary") -> None:
        """Raises: DataError for a vocabulary that is empty, holds a piece twice, or lacks one of SPECIAL."""
        ids = {piece: number for number, piece in enumerate(vocabulary)}
        if not vocabulary:
            raise DataError(f"{where}: the vocabulary is empty; it wants one piece in each line")
        if len(ids) != len(vocabulary):
            piece, times = Counter(vocabulary).most_common(1)[0]
            line = list(vocabulary).index(piece, list(vocabulary).index(piece) + 1) + 1
            raise DataError(f"{where}:{line}: the piece {piece!r} stands in {times} lines; keep each piece once")
        if "" in ids:
            raise DataError(f"{where}:{ids[''] + 1}: an empty line in the vocabulary; it wants one piece in each line")
        if missing := [special for special in SPECIAL if special not in ids]:
            raise DataError(f"{where}: {', '.join(missing)} missing; a BERT vocabulary holds {', '.join(SPECIAL)}")
        self.vocabulary = tuple(vocabulary)
        self.lowercase = lowercase
        self.size = len(vocabulary)
        self.pad, self.unk, self.cls, self.sep, self.mask = (ids[special] for special in SPECIAL)
        whole = json.dumps({"kind": "wordpiece", "lowercase": lowercase, "vocabulary": self.vocabulary})
        self.fingerprint = hashlib.sha256(whole.encode()).hexdigest()
        self._normalizer, self._splitter = _rules(lowercase)
        model = models.WordPiece(ids, unk_token=UNK, max_input_chars_per_word=LONGEST_WORD)
        self._tokenizer = tokenizers.Tokenizer(model)
        self._tokenizer.normalizer = self._normalizer  # type: ignore[assignment]
        self._tokenizer.pre_tokenizer = self._splitter  # type: ignore[assignment]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts → ids, without special tokens, on all cores."""
        return [line.ids for line in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """Ids, special tokens too → text: pieces joined, and spaces taken away around English stops and apostrophes."""
        text = " ".join(self.vocabulary[number] for number in ids).replace(" ##", "")
        return _CLEANED.sub(lambda match: match[0].strip(), text)

    def token(self, id: int) -> str:
        return self.vocabulary[id]

    def words(self, text: str) -> list[str]:
        """The words that are then cut into pieces (the original's BasicTokenizer)."""
        return [word for word, _ in self._splitter.pre_tokenize_str(self._normalizer.normalize_str(text))]

    def save(self, folder: Path) -> None:
        """Writes the folder (vocab.txt, tokenizer.json) beside its place and renames it there.

        Raises: DataError where something else stands in that place, or no folder can.
        """
        folder = Path(os.path.realpath(folder))
        if os.path.isfile(folder / _VOCABULARY):
            if load_tokenizer(folder).fingerprint == self.fingerprint:
                return
            raise DataError(f"{folder}: holds another tokenizer; give another folder")
        check_free(folder)
        temporary = folder.parent / f".{folder.name}.partial"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        (temporary / _VOCABULARY).write_text("".join(f"{piece}\n" for piece in self.vocabulary), "utf-8", newline="\n")
        options = {"format": 1, "kind": "wordpiece", "lowercase": self.lowercase}
        (temporary / _OPTIONS).write_text(json.dumps(options, indent=1) + "\n", "utf-8")
        os.rename(temporary, folder)


def load_tokenizer(path: str | Path, lowercase: bool = True) -> WordPiece:
    """Opens a folder written by `save` (which knows its own `lowercase`), a published vocab.txt, or a folder with one.

    Raises: DataError for what is missing, not UTF-8, of another format, or no BERT vocabulary.
    """
    path = Path(path)
    file = path / _VOCABULARY if path.is_dir() else path
    if not file.is_file():
        hint = f"; the folder holds no {_VOCABULARY}" if path.is_dir() else ""
        raise DataError(f"{file}: no such vocabulary{hint}; give a tokenizer folder or a vocab.txt")
    if path.is_dir() and (path / _OPTIONS).is_file():
        lowercase = _read_options(path / _OPTIONS)
    try:
        # Only \n ends a line: published vocabularies hold pieces that are themselves Unicode line separators.
        lines = file.read_bytes().decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        byte = error.object[error.start]
        raise DataError(f"{file}:{line}: not UTF-8 (byte 0x{byte:02x}); save the file as UTF-8") from None
    while lines and not lines[-1]:
        lines.pop()
    return WordPiece(lines, lowercase, str(file))


def learn_wordpiece(texts: Iterable[str], size: int, lowercase: bool) -> WordPiece:
    """Learns a vocabulary of at most `size` pieces: SPECIAL, the characters, then the most frequent joins of pieces.

    The same texts give the same vocabulary in every process: the library numbers characters inside words in the order
    of a hash map, so all characters are named to it beforehand, sorted. Memory holds the distinct words alone.

    Differs: the original's learner was never published; this joins the most frequent pair first (as in byte pairs).

    Raises: DataError where the texts hold no word or the size leaves no room for pieces; and whatever the texts raise.
    """
    counts = _count_words(texts, lowercase)
    if not counts:
        raise DataError("no word in the text to learn a vocabulary from; give text")
    room = size - len(SPECIAL)
    if room < 2:
        raise DataError(
            f"a vocabulary of {size} has no room beside the {len(SPECIAL)} special pieces; give a larger size"
        )
    alphabet = _alphabet(counts, max(room * 3 // 4, min(room, 256)))
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=2, special_tokens=[*SPECIAL, *sorted(alphabet)], show_progress=False
    )
    learner = tokenizers.Tokenizer(models.WordPiece(unk_token=UNK))
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    learner.train_from_iterator(_repeated(counts, alphabet), trainer)
    vocabulary = learner.get_vocab(with_added_tokens=False)
    return WordPiece(sorted(vocabulary, key=vocabulary.__getitem__), lowercase)


def _rules(lowercase: bool) -> tuple[normalizers.BertNormalizer, pre_tokenizers.BertPreTokenizer]:
    normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=lowercase, lowercase=lowercase
    )
    return normalizer, pre_tokenizers.BertPreTokenizer()


def _count_words(texts: Iterable[str], lowercase: bool) -> Counter[str]:
    """Counts words; the rarest are forgotten where there would be more than a million."""
    normalizer, splitter = _rules(lowercase)
    coarse: Counter[str] = Counter()
    floor = 1
    for text in texts:
        coarse.update(normalizer.normalize_str(text).split())
        while len(coarse) > _MOST_WORDS:
            coarse = Counter({word: count for word, count in coarse.items() if count > floor})
            floor += 1
    words: Counter[str] = Counter()
    for chunk, count in coarse.items():
        for word, _ in splitter.pre_tokenize_str(chunk):
            if len(word) <= LONGEST_WORD:
                words[word] += count
    return words


def _alphabet(counts: Counter[str], room: int) -> set[str]:
    """The most frequent characters, as pieces that begin a word and, where they are found inside one, with `##`.

    Rare characters yield to joins of frequent ones: those of CJK text alone could fill a vocabulary.
    """
    characters: Counter[str] = Counter()
    inside: set[str] = set()
    for word, count in counts.items():
        for character in word:
            characters[character] += count
        inside.update(word[1:])
    pieces: set[str] = set()
    for character in sorted(characters, key=lambda c: (-characters[c], c)):
        forms = {character, "##" + character} if character in inside else {character}
        if len(pieces) + len(forms) > room:
            break
        pieces |= forms
    return pieces


def _repeated(counts: Counter[str], alphabet: set[str]) -> Iterator[str]:
    """Each word that the alphabet can spell, in sorted order, as often as it was counted."""
    for word in sorted(counts):
        if word[0] in alphabet and all("##" + character in alphabet for character in word[1:]):
            left = counts[word]
            while left > 0:
                yield " ".join([word] * min(left, 4096))
                left -= 4096


def _read_options(file: Path) -> bool:
    try:
        options = json.loads(file.read_text("utf-8"))
        kind, lowercase = options["kind"], options["lowercase"]
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{file}: not the options of a tokenizer; make the tokenizer again") from None
    if options.get("format") != 1 or kind != "wordpiece" or not isinstance(lowercase, bool):
        got = f"format {options.get('format')!r}, kind {kind!r}"
        raise DataError(f"{file}: {got}; this reads format 1, kind 'wordpiece'")
    return lowercase

"""GPT's byte-pair encodings: GPT-2's over bytes (`ByteBPE`), GPT-1's over the letters of words (`Gpt1BPE`).

Both read the published pair of files as they are: a JSON object that gives each token its id, and the merges, best
first. The matching and learning run in the `tokenizers` library (Rust, all cores).
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from contexture.data.errors import DataError
from contexture.data.tokenizers import tokenizer_files, word_counts
from contexture.data.tokenizers.gpt1_text import LINES, nonblank_places, standardized
from contexture.data.tokenizers.text_encoder import Placed, TextEncoder
from contexture.data.tokenizers.word_counts import WordCount

END = "<|endoftext|>"
BYTE_FILES = ("encoder.json", "vocab.bpe")
GPT1_FILES = ("encoder_bpe_40000.json", "vocab_40000.bpe")
Merges = Sequence[tuple[str, str]]
Cleaned = Literal["original", "transformers"]

# GPT-2's bytes_to_unicode: a vocabulary in JSON and a list of merges cut at spaces need characters that can be printed.
_PRINTED = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_ORDER = [*_PRINTED, *sorted(set(range(256)) - set(_PRINTED))]
BYTES = {chr(byte if byte in _PRINTED else 0x100 + n - len(_PRINTED)): byte for n, byte in enumerate(_ORDER)}
"""GPT-2's characters for bytes: printable ones are themselves, the others are U+0100 and on."""

# Where a text may be cut and its parts encoded alone: no word of GPT-2's pattern holds white space after something
# else, or a punctuation mark after a letter or a digit.
_SAFE = re.compile(r"(?<=\S)(?=[ \t\r\n])|(?<=[^\W_])(?=[.,;:!?。，、；：！？])")


_OTHER_SPACES = "\t\r\x0b\x0c\x1c\x1d\x1e\x1f\0"
_ANY_OTHER_SPACE = re.compile(r"[^\S \n]|\0")


class ByteBPE(TextEncoder):
    """GPT-2's tokenizer (encoder.py): its pattern cuts words with the space before them, whose bytes are joined by the
    merges, best first. Every text is spelled, and comes back as it was.

    `<|endoftext|>` joins documents; spelled out in text it is text.
    """

    kind = "byte-bpe"
    lossless = True
    pad = 0
    unk = None
    specials: Mapping[str, int] = {}

    def __init__(self, vocabulary: Sequence[str], merges: Merges, where: str = "vocabulary") -> None:
        """Raises: DataError where a byte has no token."""
        ids = {token: number for number, token in enumerate(vocabulary)}
        if missing := [byte for character, byte in BYTES.items() if character not in ids]:
            raise DataError(f"{where}: no token for byte 0x{missing[0]:02x}; a byte vocabulary holds all 256 of them")
        self.vocabulary, self.merges = tuple(vocabulary), tuple(merges)
        self.size = len(vocabulary)
        self.end = ids.get(END)
        self.fingerprint = tokenizer_files.fingerprint(self.kind, vocabulary=self.vocabulary, merges=self.merges)
        # What each token spells, for decoding and for places.
        self._bytes = [_bytes(token) for token in vocabulary]
        self._tokenizer = tokenizers.Tokenizer(models.BPE(ids, list(self.merges)))
        self._tokenizer.pre_tokenizer = _byte_words()  # type: ignore[assignment]
        self._words = tokenizer_files.WordIds(self._encode_words)
        self._chunks = tokenizer_files.WordIds(self._encode_chunks)

    @staticmethod
    def open(folder: Path, names: tuple[str, str] = BYTE_FILES) -> "ByteBPE":
        """Raises: DataError where one of the two files is missing or damaged, or they do not belong together."""
        return ByteBPE(*read_pair(folder, *names), where=str(folder / names[0]))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts → ids, without special tokens, on all cores."""
        # Cut here, so that each distinct chunk is encoded once: before spaces, which is fast, then at all safe places.
        return self._chunks.encode([_before_spaces(text) for text in texts])

    def _encode_chunks(self, chunks: list[str]) -> list[list[int]]:
        return self._words.encode([_SAFE.split(chunk) for chunk in chunks])

    def _encode_words(self, words: list[str]) -> list[list[int]]:
        return _ids(self._tokenizer, words)

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Placed]:
        # A token spells so many bytes: places follow from sizes alone, and need no second encoding.
        return [
            (ids, tokenizer_files.offsets_of_bytes(text, [len(self._bytes[number]) for number in ids]))
            for text, ids in zip(texts, self.encode_batch(texts), strict=True)
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """Ids → text; bytes that are no character become U+FFFD, as in the original."""
        return b"".join(self._bytes[number] for number in ids).decode("utf-8", "replace")

    def token(self, id: int) -> str:
        """Returns the text of an id; bytes that are no character as \\xe2."""
        return self._bytes[id].decode("utf-8", "backslashreplace")

    def split_long(self, text: str, limit: int) -> list[str]:
        """Splits before a space or line end that follows something else, or a mark that follows a letter."""
        return tokenizer_files.cut(text, limit, _SAFE)

    def files(self) -> dict[str, bytes]:
        return _pair(self.kind, BYTE_FILES, self.vocabulary, self.merges)

    def save(self, folder: Path) -> None:
        """Raises: DataError where the folder holds something else, or cannot be made."""
        tokenizer_files.save(folder, self.files())


class Gpt1BPE(TextEncoder):
    """GPT-1's tokenizer (finetune-transformer-lm, text_utils.py): ftfy mends the text, dashes, dots and runs of marks
    are normalised, words are lower-cased and spelled by the merges; `</w>` ends a word, and a line end is a word.

    The published vocabulary has no token that ends a text: documents follow each other without one.

    Differs: the original cut words with the spaCy of 2018; here white space and punctuation cut them.

    cleaned `transformers`: instead of all that, text is cleaned and cut as for BERT (lower-cased, without accents), as
    in the port in transformers; line ends are lost.
    """

    kind = "gpt1-bpe"
    lossless = False
    pad = 0
    end = None
    specials: Mapping[str, int] = {}

    def __init__(
        self, vocabulary: Sequence[str], merges: Merges, where: str = "vocabulary", cleaned: Cleaned = "original"
    ) -> None:
        """Raises: DataError where the vocabulary lacks `<unk>`."""
        ids = {token: number for number, token in enumerate(vocabulary)}
        if "<unk>" not in ids:
            raise DataError(f"{where}: <unk> is missing; a GPT-1 vocabulary holds it")
        if all(map(is_added, ids)):
            raise DataError(
                f"{where}: holds special tokens alone, so that every text is <unk>; give a vocabulary of text"
            )
        self.vocabulary, self.merges = tuple(vocabulary), tuple(merges)
        self.size = len(vocabulary)
        self.unk = ids["<unk>"]
        self.cleaned: Cleaned = cleaned
        # The original's way is the default, and needs no option.
        self._options = {} if cleaned == "original" else {"cleaned": cleaned}
        self.fingerprint = tokenizer_files.fingerprint(
            self.kind, vocabulary=self.vocabulary, merges=self.merges, **self._options
        )
        model = models.BPE(ids, list(self.merges), unk_token="<unk>", end_of_word_suffix="</w>")
        self._tokenizer = tokenizers.Tokenizer(model)
        if cleaned == "original":
            # In place of spaCy. White space has cut the text before (`_gpt1_words`).
            self._tokenizer.pre_tokenizer = pre_tokenizers.Punctuation()  # type: ignore[assignment]
        else:
            self._tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)  # type: ignore[assignment]
            self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
        self._words = tokenizer_files.WordIds(self._encode_words)

    @staticmethod
    def open(folder: Path, names: tuple[str, str] = GPT1_FILES, cleaned: Cleaned = "original") -> "Gpt1BPE":
        """Raises: DataError where one of the two files is missing or damaged, or they do not belong together."""
        return Gpt1BPE(*read_pair(folder, *names), where=str(folder / names[0]), cleaned=cleaned)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts → ids, without special tokens; what no token spells is `<unk>`."""
        # Cleaned and cut within the library, which wants whole texts.
        if self.cleaned == "transformers":
            return _ids(self._tokenizer, list(texts))
        words = [_gpt1_words(text) for text in texts]
        return self._words.encode(words)

    def _encode_words(self, words: list[str]) -> list[list[int]]:
        return _ids(self._tokenizer, words)

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Placed]:
        if self.cleaned == "transformers":
            return tokenizer_files.encode_placed(self._tokenizer, texts)
        return [self._placed(text) for text in texts]

    def _placed(self, text: str) -> Placed:
        # The tokenizer knows the place of a token in its word, the clean-up where the characters of words come from.
        words, origins_N2 = _gpt1_words(text), nonblank_places(text)
        # at: characters of the cleaned text so far, white space not counted.
        ids, offsets, at = list[int](), list[tuple[int, int]](), 0
        encoded = tokenizer_files.encode_placed(self._tokenizer, words)
        for word, (tokens, places) in zip(words, encoded, strict=True):
            ids += tokens
            if word == "\n":  # a token of its own, which spells no character of the text
                end = int(origins_N2[at - 1, 1]) if at else 0
                # Words that are mended together have one place, before and after the line end.
                begin = min(end, int(origins_N2[at, 0])) if at < len(origins_N2) else end
                offsets += [(begin, end)] * len(tokens)
                continue
            # Places within the word become places in the text, from its first character's to its last's.
            offsets += [(int(origins_N2[at + a, 0]), int(origins_N2[at + b - 1, 1])) for a, b in places]
            at += len(word)
        return ids, offsets

    def decode(self, ids: Iterable[int]) -> str:
        """Ids → words with spaces between."""
        # Every word ends in </w>, which becomes the space after it.
        text = "".join(self.vocabulary[number] for number in ids).replace("</w>", " ")
        return LINES.sub("\n", text).strip(" ")

    def token(self, id: int) -> str:
        return self.vocabulary[id]

    def split_long(self, text: str, limit: int) -> list[str]:
        """Never splits: the clean-up looks at whole lines, and drops the line ends that a text begins or ends with."""
        return [text]

    def files(self) -> dict[str, bytes]:
        return _pair(self.kind, GPT1_FILES, self.vocabulary, self.merges, **self._options)

    def save(self, folder: Path) -> None:
        """Raises: DataError where the folder holds something else, or cannot be made."""
        tokenizer_files.save(folder, self.files())


def learn_byte_bpe(texts: Iterable[str], size: int) -> ByteBPE:
    """Learns at most `size` tokens: the 256 bytes, the most frequent joins (those met twice at least), and
    `<|endoftext|>`.

    The same texts give the same vocabulary in every process: among equally frequent joins the one with older parts
    comes first. Memory holds only the distinct words.

    Raises: DataError where the texts are empty or the size has no room for the bytes; and whatever the texts raise.
    """
    return byte_bpe_of(word_counts.count(texts, counted_chunks), size)


def counted_chunks(text: str) -> Iterator[str]:
    """Returns what a text is counted as for a vocabulary."""
    return word_counts.slices(_SAFE.split(text))


def byte_bpe_of(counts: Iterable[WordCount], size: int) -> ByteBPE:
    """As `learn_byte_bpe`, from the counts of `counted_chunks`."""
    if size < len(BYTES) + 1:
        raise DataError(f"a vocabulary of {size} has no room for the 256 bytes and {END}; give at least 257")
    # As many as fit into memory, of which the rarest would make no join.
    chunks = word_counts.most_frequent(counts)
    words: Counter[str] = Counter()
    splitter = _byte_words()
    # Chunks are counted before GPT-2's pattern cuts them: the pattern then runs once for each distinct one.
    for chunk, count in chunks.items():
        for word, _ in splitter.pre_tokenize_str(chunk):
            words[word] += count
    if not words:
        raise DataError("no word in the text to learn a vocabulary from; give text")
    # One less: <|endoftext|> comes after all that is learned.
    trainer = trainers.BpeTrainer(vocab_size=size - 1, min_frequency=2, initial_alphabet=[*BYTES], show_progress=False)
    learner = tokenizers.Tokenizer(models.BPE())
    # Words are spelled in the characters for bytes, with spaces between them: no pattern is needed.
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    learner.train_from_iterator(word_counts.repeated(words), trainer)
    # The learned model is published as JSON only; its tokens are numbered in the order in which they were joined.
    learned = json.loads(learner.to_str())["model"]
    vocabulary = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    return ByteBPE([*vocabulary, END], [(first, second) for first, second in learned["merges"]])


def _before_spaces(text: str) -> list[str]:
    """Cuts a text at some places of _SAFE: before a space or line end that follows none."""
    # Other white space, or the mark below, within the text: all places are looked for, at several times the time.
    others = _OTHER_SPACES if text.isascii() else _ANY_OTHER_SPACE.findall(text)
    if any(space in text for space in others):
        return _SAFE.split(text)
    marked = text.replace(" ", "\0 ").replace("\n", "\0\n")
    # Within a run of them no place is safe.
    return marked.replace(" \0", " ").replace("\n\0", "\n").split("\0")


def _byte_words() -> pre_tokenizers.ByteLevel:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _ids(tokenizer: tokenizers.Tokenizer, words: list[str]) -> list[list[int]]:
    # encode_batch_fast computes no places.
    return [word.ids for word in tokenizer.encode_batch_fast(words, add_special_tokens=False)]


def _gpt1_words(text: str) -> list[str]:
    return standardized(text).lower().split(" ")


def _bytes(token: str) -> bytes:
    """Returns the bytes that a token's characters stand for; a token of other characters is its own text."""
    known = all(character in BYTES for character in token)
    return bytes(BYTES[character] for character in token) if known else token.encode("utf-8", "replace")


def _pair(
    kind: str, names: tuple[str, str], vocabulary: Sequence[str], merges: Merges, **more: str
) -> dict[str, bytes]:
    encoder = json.dumps({token: number for number, token in enumerate(vocabulary)})
    lines = "".join(f"{first} {second}\n" for first, second in merges)
    files = {names[0]: encoder.encode(), names[1]: f"#version: 0.2\n{lines}".encode()}
    return {**files, tokenizer_files.OPTIONS: tokenizer_files.options(kind, **more)}


def read_pair(folder: Path, encoder: str, merges: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Returns the tokens in the order of their ids, and the merges."""
    for name, other in ((encoder, merges), (merges, encoder)):
        if not (folder / name).is_file():
            raise DataError(f"{folder / name}: missing beside {other}; put both files of a published pair there")
    lines = tokenizer_files.read_lines(folder / merges)
    first = int(lines[0].startswith("#version") or not lines[0])  # a line with a version, or none
    # Each merge with its line, for messages.
    numbered = [(f"{folder / merges}:{number}", line) for number, line in enumerate(lines[first:], first + 1)]
    # As pairs, in which a token that occurs twice can be seen.
    entries = tokenizer_files.read_json(folder / encoder, hook=list)
    return checked_pair(entries, folder / encoder, numbered, folder / merges)


def checked_pair(
    entries: object, encoder: Path, lines: Iterable[tuple[str, str]], merges: Path
) -> tuple[list[str], list[tuple[str, str]]]:
    """Returns the tokens in the order of their ids, and the merges.

    Args:
        entries: (token, id) each.
        encoder: the file of the tokens.
        lines: (where, merge) each.
        merges: the file of the merges.

    Raises:
        DataError: when they do not belong together.
    """
    vocabulary = ordered(entries, encoder)
    pairs = _merges(lines, set(vocabulary), encoder.name)
    # Every token of several characters is the result of a merge; else the list of merges is not this vocabulary's.
    made = {first + second for first, second in pairs}
    never = [x for x in vocabulary if len(x.removesuffix("</w>")) > 1 and x not in made and not is_added(x)]
    if never:
        raise DataError(
            f"{merges}: no merge makes {len(never):,} of the tokens in {encoder.name}, as {never[0]!r}; the file "
            "is cut off, or belongs to another vocabulary"
        )
    return vocabulary, pairs


def is_added(token: str) -> bool:
    """Returns whether a token looks like one that no merge makes: `<|endoftext|>`, `<unk>`."""
    return re.fullmatch(r"<.+>", token) is not None


def ordered(pairs: object, file: Path) -> list[str]:
    """Returns tokens in the order of their ids. Raises: DataError where pairs are not (token, id), or the ids do not
    run from 0 without a hole."""
    entries = pairs if isinstance(pairs, list) else []
    if lone := [e[0] for e in entries if isinstance(e, tuple) and any("\ud800" <= c <= "\udfff" for c in str(e[0]))]:
        raise DataError(f"{file}: the token {lone[0]!r} is no text in UTF-8; give the file as it was published")
    # type() and not isinstance: True is no id.
    if not entries or not all(isinstance(entry, tuple) and type(entry[1]) is int for entry in entries):
        raise DataError(
            f'{file}: not a vocabulary; it wants one object that gives each token its id: {{"the": 262, …}}'
        )
    # Pairs, not a dict: a token that occurs twice in the file must be seen.
    tokens: dict[int, str] = {}
    for token, number in entries:
        if number in tokens:
            raise DataError(f"{file}: {tokens[number]!r} and {token!r} both have id {number}; give each its own")
        tokens[number] = token
    # Ids run from 0 without a hole, since they are rows of a table.
    for number in range(len(tokens)):
        if number not in tokens:
            raise DataError(f"{file}: no token has id {number}; {len(tokens)} ids run from 0 to {len(tokens) - 1}")
    if len(set(tokens.values())) < len(tokens):
        token, times = Counter(tokens.values()).most_common(1)[0]
        raise DataError(f"{file}: the token {token!r} stands there {times} times; keep it once")
    return [tokens[number] for number in range(len(tokens))]


def _merges(lines: Iterable[tuple[str, str]], vocabulary: set[str], encoder: str) -> list[tuple[str, str]]:
    """Returns the merges of lines. Raises: DataError naming a line that is no merge of the vocabulary."""
    merges: list[tuple[str, str]] = []
    for where, line in lines:
        first, _, second = line.partition(" ")
        if not first or not second or " " in second:
            raise DataError(f"{where}: {line!r} is no merge; it wants two tokens with a space between")
        # Checked here, where the line is known.
        for token in (first, second, first + second):
            if token not in vocabulary:
                raise DataError(
                    f"{where}: the merge {line!r} names {token!r}, which {encoder} lacks; "
                    "give two files that belong together"
                )
        merges.append((first, second))
    return merges

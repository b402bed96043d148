"""SentencePiece: a unigram model or byte pairs over text with its spaces, learned here or read from a *.model file."""

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from contexture.data.errors import DataError
from contexture.data.plain_files import read_plain
from contexture.data.protobuf import Value, message_fields
from contexture.data.tokenizers import tokenizer_files, word_counts
from contexture.data.tokenizers.text_encoder import Placed, TextEncoder
from contexture.data.tokenizers.word_counts import WordCount

FILE = "sentencepiece.model"
KINDS = ("sentencepiece-unigram", "sentencepiece-bpe")
_SPACE = "▁"
"""How pieces spell a space (U+2581)."""
# A word with the spaces before it; a line end and the mark itself are words of their own.
_WORD = re.compile(rf"\n|{_SPACE}| *[^ \n{_SPACE}]+| +")
_PLAIN = re.compile(rf"{_SPACE}*[^{_SPACE}]*")
# Before a space that follows something else, and around a line end.
_SAFE = re.compile(r"(?<=[^ ])(?= )|(?<=\n)|(?=\n)")
# Numbers of the fields of sentencepiece_model.proto that are read: of TrainerSpec, and of NormalizerSpec.
_MODEL_TYPE, _BYTE_FALLBACK = 3, 35
_RULES, _TABLE, _DUMMY_PREFIX, _FEWER_SPACES, _MARK_SPACES = 1, 2, 3, 4, 5
_UNLEARNED = re.compile(rf"[\0\t\n{_SPACE}\u2585]+")
"""Characters that the learner reserves; bytes spell them."""


class SentencePiece(TextEncoder):
    """A model of the sentencepiece library.

    A model that keeps text unchanged (no normalising, no space added or removed, bytes for text that no piece spells)
    and has no piece across a space or line end is `lossless`: every text comes back as it was, and each word is encoded
    alone. Models learned here are lossless. Any other model encodes and decodes as the library does.

    A control token spelled out in text is text.
    """

    specials: Mapping[str, int] = {}

    def __init__(self, model: bytes, where: str = "model") -> None:
        """Raises: DataError where it is no model, or neither a unigram model nor one of byte pairs."""
        import sentencepiece

        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.load_from_serialized_proto(model)
            trainer, normal, back = _specs(model)
            pieces = [self._processor.id_to_piece(number) for number in range(self._processor.get_piece_size())]
        except (RuntimeError, IndexError, ValueError, TypeError):  # also a piece that is not UTF-8
            raise DataError(f"{where}: no SentencePiece model, or a damaged one; give a *.model file") from None
        # The schema numbers its kinds from 1: unigrams, then byte pairs.
        kinds = dict(enumerate(KINDS, 1))
        # A model that leaves the field out has its default, unigrams.
        if (kind := trainer.get(_MODEL_TYPE, 1)) not in kinds:
            raise DataError(f"{where}: a SentencePiece model of words or characters; give one of unigrams or bpe")
        self.kind = kinds[int(kind)]
        self.model = model
        self.size = self._processor.get_piece_size()
        if all(self._processor.is_control(n) or self._processor.is_unknown(n) for n in range(self.size)):
            raise DataError(f"{where}: holds special tokens alone, so that every text is unknown; give a model of text")
        # The library says -1 where a model lacks a token.
        self.pad = max(self._processor.pad_id(), 0)
        self.end: int | None = self._processor.eos_id() if self._processor.eos_id() >= 0 else None
        self.unk: int | None = self._processor.unk_id()
        # As hex digits: a fingerprint is taken over JSON, which has no bytes.
        self.fingerprint = tokenizer_files.fingerprint(self.kind, model=model.hex())
        self._bytes = [_bytes(piece, self._processor.is_byte(number)) for number, piece in enumerate(pieces)]
        # No piece goes across a space or a line end: spaces are at its beginning only.
        apart = all(_PLAIN.fullmatch(piece) and (piece == "\n" or "\n" not in piece) for piece in pieces)
        # Without a piece for a space it would be written as the mark's bytes, and come back as the mark.
        apart = apart and self._processor.piece_to_id(_SPACE) != self.unk
        self.lossless = apart and bool(trainer.get(_BYTE_FALLBACK)) and _keeps_text(normal, back)
        # The three bytes of U+2581, which encode the mark where a text itself contains it.
        marks = [f"<0x{byte:02X}>" for byte in _SPACE.encode()] if self.lossless else []
        self._mark = [self._processor.piece_to_id(mark) for mark in marks]
        self._words = tokenizer_files.WordIds(self._encode_words)

    @staticmethod
    def open(file: Path) -> "SentencePiece":
        """Raises: DataError where the file cannot be read, or is no model."""
        try:
            return SentencePiece(read_plain(file), str(file))
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error.strerror}); give a *.model file") from None

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts → ids, without control tokens, on all cores."""
        if not self.lossless:
            # Pieces may go across words: only whole texts can be encoded.
            return self._processor.encode(list(texts))
        return self._words.encode([_WORD.findall(text) for text in texts])

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Placed]:
        if not self.lossless:
            encoded = self._processor.encode(list(texts), return_type="offset_mapping")
            return [(one["ids"], _with_parts(one["pieces"], one["offsets"])) for one in encoded]
        return [
            (ids, tokenizer_files.offsets_of_bytes(text, [len(self._bytes[number]) for number in ids]))
            for text, ids in zip(texts, self.encode_batch(texts), strict=True)
        ]

    def _encode_words(self, words: list[str]) -> list[list[int]]:
        # The mark for a space, where text itself holds it, is no space: it is spelled by its bytes.
        encoded = zip(words, self._processor.encode(words), strict=True)
        return [self._mark if word == _SPACE else ids for word, ids in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        """Ids, control tokens too → text; bytes that are no character become U+FFFD."""
        if not self.lossless:
            return self._processor.decode(list(ids))
        return b"".join(self._bytes[number] for number in ids).decode("utf-8", "replace")

    def token(self, id: int) -> str:
        """Returns the text of an id; bytes that are no character as \\xe2."""
        return self._bytes[id].decode("utf-8", "backslashreplace")

    def split_long(self, text: str, limit: int) -> list[str]:
        """Splits before spaces and around line ends; never where pieces may go across them."""
        return tokenizer_files.cut(text, limit, _SAFE) if self.lossless else [text]

    def files(self) -> dict[str, bytes]:
        return {FILE: self.model, tokenizer_files.OPTIONS: tokenizer_files.options(self.kind)}

    def save(self, folder: Path) -> None:
        """Raises: DataError where the folder holds something else, or cannot be made."""
        tokenizer_files.save(folder, self.files())


def learn_sentencepiece(texts: Iterable[str], size: int, kind: str) -> SentencePiece:
    """Learns at most `size` pieces: `<pad>`, `<unk>`, `</s>` (which joins documents), the line end, the 256 bytes, and
    unigrams or byte pairs, which begin with a space or have none.

    The same texts give the same model in every process. Memory holds only the distinct words.

    Raises: DataError where the texts hold no word or the size leaves no room for pieces; and whatever the texts raise.
    """
    return sentencepiece_of(word_counts.count(texts, counted_chunks), size, kind)


def counted_chunks(text: str) -> Iterator[str]:
    """Returns what a text is counted as for a vocabulary."""
    return word_counts.slices(_learned(text))


def sentencepiece_of(words: Iterable[WordCount], size: int, kind: str) -> SentencePiece:
    """As `learn_sentencepiece`, from the counts of `counted_chunks`."""
    import sentencepiece

    # As many as fit into memory, of which the rarest would make no piece.
    counts = word_counts.most_frequent(words)
    # White space alone teaches nothing.
    if not any(word.strip() for word in counts):
        raise DataError("no word in the text to learn a vocabulary from; give text")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            # Words with their counts, sorted: the learner depends on the order of its input.
            sentence_iterator=(f"{word}\t{counts[word]}" for word in sorted(counts)),
            input_format="tsv",
            model_writer=model,
            model_type=kind.removeprefix("sentencepiece-"),
            vocab_size=size,
            # Small texts may not have enough pieces: the vocabulary is smaller then.
            hard_vocab_limit=False,
            # The library's default. Rarer characters are encoded as their bytes.
            character_coverage=0.9995,
            required_chars=_SPACE,
            byte_fallback=True,
            # Text is left unchanged, so that the model is lossless.
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            user_defined_symbols=["\n"],
            pad_id=0,
            unk_id=1,
            # -1: no token for the begin of a text, which nothing here would read.
            bos_id=-1,
            eos_id=2,
            pad_piece="<pad>",
            minloglevel=3,
        )
    except RuntimeError:
        raise DataError(
            f"a vocabulary of {size} has no room for tokens beside 256 bytes, 4 other tokens and the "
            "characters of the text; give a larger size"
        ) from None
    return SentencePiece(model.getvalue())


def _learned(text: str) -> Iterator[str]:
    """Yields the words of a text, with the spaces before them."""
    for line in _UNLEARNED.split(text):
        yield from _WORD.findall(line)


def _bytes(piece: str, is_byte: bool) -> bytes:
    """Returns the bytes of a piece; one for a byte is spelled <0x41>."""
    return bytes([int(piece[3:5], 16)]) if is_byte else piece.replace(_SPACE, " ").encode()


def _with_parts(pieces: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the places of pieces. Where several pieces spell one character, the library gives its place only to the
    last; here each has it, except for the space that is added in front of a text."""
    places = list(offsets)
    # From the end, so that a place is handed on through any number of pieces.
    for n in range(len(places) - 2, -1, -1):
        (begin, end), (following, _) = places[n], places[n + 1]
        if begin == end == following and pieces[n] != _SPACE:
            places[n] = places[n + 1]
    return places


def _specs(model: bytes) -> list[dict[int, Value]]:
    """Returns the fields of a ModelProto's TrainerSpec (2), NormalizerSpec (3), and NormalizerSpec of decoding (5).

    The library reads these but does not show them.
    """
    fields = dict(message_fields(model))
    specs = [spec for number in (2, 3, 5) if isinstance(spec := fields.get(number, b""), bytes)]
    if len(specs) < 3:
        raise ValueError("a number in place of a message")
    return [dict(message_fields(spec)) for spec in specs]


def _keeps_text(normal: Mapping[int, Value], back: Mapping[int, Value]) -> bool:
    """Returns whether the rules that a model encodes and decodes text by (NormalizerSpec) change nothing."""
    # A field that is left out has its default, which is true for these three.
    if normal.get(_RULES, b"identity") != b"identity" or normal.get(_TABLE) or back.get(_TABLE):
        return False
    return not normal.get(_DUMMY_PREFIX, 1) and not normal.get(_FEWER_SPACES, 1) and bool(normal.get(_MARK_SPACES, 1))

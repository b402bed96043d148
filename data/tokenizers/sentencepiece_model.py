"""SentencePiece: unigram pieces or byte pairs over text with its spaces, learned here or read from a *.model file."""

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from contexture.data.errors import DataError
from contexture.data.plain_files import read_plain
from contexture.data.protobuf import Value, message_fields
from contexture.data.tokenizers import tokenizer_files, word_counts

FILE = "sentencepiece.model"
KINDS = ("sentencepiece-unigram", "sentencepiece-bpe")
_SPACE = "▁"
"""How pieces spell a space (U+2581)."""
_WORD = re.compile(rf"\n|{_SPACE}| *[^ \n{_SPACE}]+| +")
_PLAIN = re.compile(rf"{_SPACE}*[^{_SPACE}]*")
_SAFE = re.compile(r"(?<=[^ ])(?= )|(?<=\n)|(?=\n)")
# Fields of sentencepiece_model.proto: of TrainerSpec, and of NormalizerSpec.
_MODEL_TYPE, _BYTE_FALLBACK = 3, 35
_RULES, _TABLE, _DUMMY_PREFIX, _FEWER_SPACES, _MARK_SPACES = 1, 2, 3, 4, 5
_UNLEARNED = re.compile(rf"[\0\t\n{_SPACE}\u2585]+")
"""What the learner keeps for itself; bytes spell it."""


class SentencePiece:
    """A model of the sentencepiece library.

    One that keeps text as it is (no normalising, no space added or taken away, bytes for what no piece spells) and
    holds no piece that goes over a space or line end, as those learned here, is `lossless`: every text comes back as it
    was, and each word is encoded alone. Any other encodes and decodes as the library does.

    A control token spelled out in text is text.
    """

    specials: Mapping[str, int] = {}

    def __init__(self, model: bytes, where: str = "model") -> None:
        """Raises: DataError for what is no model, or one of other pieces than unigrams and byte pairs."""
        import sentencepiece

        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.load_from_serialized_proto(model)
            trained, normal, back = _specs(model)
            pieces = [self._processor.id_to_piece(number) for number in range(self._processor.get_piece_size())]
        except (RuntimeError, IndexError, ValueError, TypeError):  # also a piece that is not UTF-8
            raise DataError(f"{where}: no SentencePiece model, or a damaged one; give a *.model file") from None
        kinds = dict(enumerate(KINDS, 1))
        if (kind := trained.get(_MODEL_TYPE, 1)) not in kinds:
            raise DataError(f"{where}: a SentencePiece model of words or characters; give one of unigrams or bpe")
        self.kind = kinds[kind]
        self.model = model
        self.size = self._processor.get_piece_size()
        if all(self._processor.is_control(n) or self._processor.is_unknown(n) for n in range(self.size)):
            raise DataError(f"{where}: holds special tokens alone, so that every text is unknown; give a model of text")
        self.pad = max(self._processor.pad_id(), 0)
        self.end: int | None = self._processor.eos_id() if self._processor.eos_id() >= 0 else None
        self.unk: int | None = self._processor.unk_id()
        self.fingerprint = tokenizer_files.fingerprint(self.kind, model=model.hex())
        self._bytes = [_bytes(piece, self._processor.is_byte(number)) for number, piece in enumerate(pieces)]
        apart = all(_PLAIN.fullmatch(piece) and (piece == "\n" or "\n" not in piece) for piece in pieces)
        apart = apart and self._processor.piece_to_id(_SPACE) != self.unk  # else a space is written as the mark's bytes
        self.lossless = apart and bool(trained.get(_BYTE_FALLBACK)) and _keeps_text(normal, back)
        marks = [f"<0x{byte:02X}>" for byte in _SPACE.encode()] if self.lossless else []
        self._mark = [self._processor.piece_to_id(mark) for mark in marks]

    @staticmethod
    def open(file: Path) -> "SentencePiece":
        """Raises: DataError for what cannot be read, or is no model."""
        try:
            return SentencePiece(read_plain(file), str(file))
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error.strerror}); give a *.model file") from None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts → ids, without control tokens, on all cores."""
        if not self.lossless:
            return self._processor.encode(list(texts))
        return tokenizer_files.encode_words([_WORD.findall(text) for text in texts], self._encode_words)

    def _encode_words(self, words: list[str]) -> list[list[int]]:
        """The mark for a space is no space where it stands in text: its bytes say so."""
        found = zip(words, self._processor.encode(words), strict=True)
        return [self._mark if word == _SPACE else ids for word, ids in found]

    def decode(self, ids: Iterable[int]) -> str:
        """Ids, control tokens too → text; bytes that are no character become U+FFFD."""
        if not self.lossless:
            return self._processor.decode(list(ids))
        return b"".join(self._bytes[number] for number in ids).decode("utf-8", "replace")

    def token(self, id: int) -> str:
        """What an id stands for; bytes that are no character as \\xe2."""
        return self._bytes[id].decode("utf-8", "backslashreplace")

    def split_long(self, text: str, most: int) -> list[str]:
        """Cut before spaces and around line ends; never cut where pieces may go over them."""
        return tokenizer_files.cut(text, most, _SAFE) if self.lossless else [text]

    def files(self) -> dict[str, bytes]:
        return {FILE: self.model, tokenizer_files.OPTIONS: tokenizer_files.options(self.kind)}

    def save(self, folder: Path) -> None:
        """Raises: DataError where something else stands in that place, or no folder can."""
        tokenizer_files.save(folder, self.files())


def learn_sentencepiece(texts: Iterable[str], size: int, kind: str) -> SentencePiece:
    """Learns at most `size` pieces: `<pad>`, `<unk>`, `</s>` (which joins documents), the line end, the 256 bytes, and
    unigrams or byte pairs, which begin with a space or have none.

    The same texts give the same model in every process. Memory holds the distinct words alone.

    Raises: DataError where the texts hold no word or the size leaves no room for pieces; and whatever the texts raise.
    """
    import sentencepiece

    counts = word_counts.count(texts, lambda text: word_counts.slices(_learned(text)))
    if not any(word.strip() for word in counts):
        raise DataError("no word in the text to learn a vocabulary from; give text")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{counts[word]}" for word in sorted(counts)),
            input_format="tsv",
            model_writer=model,
            model_type=kind.removeprefix("sentencepiece-"),
            vocab_size=size,
            hard_vocab_limit=False,
            character_coverage=0.9995,
            required_chars=_SPACE,
            byte_fallback=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            user_defined_symbols=["\n"],
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=2,
            pad_piece="<pad>",
            minloglevel=3,
        )
    except RuntimeError:
        raise DataError(f"a vocabulary of {size} has no room for pieces beside 256 bytes, 4 other tokens and the "
                        "characters of the text; give a larger size") from None  # fmt: skip
    return SentencePiece(model.getvalue())


def _learned(text: str) -> Iterator[str]:
    """The words of a text, spaces before them."""
    for line in _UNLEARNED.split(text):
        yield from _WORD.findall(line)


def _bytes(piece: str, is_byte: bool) -> bytes:
    return bytes([int(piece[3:5], 16)]) if is_byte else piece.replace(_SPACE, " ").encode()


def _specs(model: bytes) -> list[dict[int, Value]]:
    """The fields of a model's TrainerSpec, NormalizerSpec and denormalizer, which is a NormalizerSpec, too."""
    parts = dict(message_fields(model))
    specs = [spec for number in (2, 3, 5) if isinstance(spec := parts.get(number, b""), bytes)]
    if len(specs) < 3:
        raise ValueError("a number in place of a message")
    return [dict(message_fields(spec)) for spec in specs]


def _keeps_text(normal: Mapping[int, Value], back: Mapping[int, Value]) -> bool:
    """Whether the rules that a model reads and writes text by (NormalizerSpec) change nothing."""
    if normal.get(_RULES, b"identity") != b"identity" or normal.get(_TABLE) or back.get(_TABLE):
        return False
    return not normal.get(_DUMMY_PREFIX, 1) and not normal.get(_FEWER_SPACES, 1) and bool(normal.get(_MARK_SPACES, 1))

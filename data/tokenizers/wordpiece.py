"""BERT's WordPiece, learned here or read from a published vocab.txt.

The matching, normalising and learning run in the `tokenizers` library (Rust, all cores).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from contexture.data.errors import DataError
from contexture.data.tokenizers import tokenizer_files, word_counts
from contexture.data.tokenizers.text_encoder import Placed, TextEncoder
from contexture.data.tokenizers.word_counts import WordCount

PAD, UNK, CLS, SEP, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LONGEST_WORD = 200
"""Characters beyond which a word is [UNK] (max_input_chars_per_word); transformers has 100."""
VOCABULARY = "vocab.txt"
# Spaces that decoding takes away: before a stop, and around an apostrophe.
_CLEANED = re.compile(r" [.?!,]| ' ")
_SPACE = re.compile(" ")


class WordPiece(TextEncoder):
    """The tokenizer of google-research/bert (tokenization.py): clean, space CJK characters, lower-case and strip
    accents (`lowercase`), split at white space and punctuation, then the longest piece first, `##` inside a word.

    A special token spelled out in text is text, as in the original.

    Differs: the library drops characters for private use like control characters, does not space U+2B820–2B91F as CJK,
    and takes marks, stops and format characters that came to Unicode after 2015 for letters.
    """

    kind = "wordpiece"
    lossless = False
    end = None
    specials: Mapping[str, int] = {}

    def __init__(
        self,
        vocabulary: Sequence[str],
        lowercase: bool,
        where: str = "vocabulary",
        longest_word: int = LONGEST_WORD,
        strip_accents: bool | None = None,
    ) -> None:
        """strip_accents: None as lowercase, like the original.

        Raises: DataError for a vocabulary that is empty, holds a piece twice, or lacks one of SPECIAL.
        """
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
        self.lowercase, self.longest_word = lowercase, longest_word
        self.strip_accents = lowercase if strip_accents is None else strip_accents
        self.size = len(vocabulary)
        self.pad, self.unk, self.cls, self.sep, self.mask = (ids[special] for special in SPECIAL)
        self.fingerprint = tokenizer_files.fingerprint(self.kind, **self._options(), vocabulary=self.vocabulary)
        self._normalizer, self._splitter = _rules(lowercase, self.strip_accents)
        model = models.WordPiece(ids, unk_token=UNK, max_input_chars_per_word=longest_word)
        self._tokenizer = tokenizers.Tokenizer(model)
        self._tokenizer.normalizer = self._normalizer  # type: ignore[assignment]
        self._tokenizer.pre_tokenizer = self._splitter  # type: ignore[assignment]
        self._words = tokenizer_files.WordIds(self._encode_words)

    @staticmethod
    def open(
        file: Path, lowercase: bool, longest_word: int = LONGEST_WORD, strip_accents: bool | None = None
    ) -> "WordPiece":
        """Raises: DataError for a file that is not UTF-8, or no BERT vocabulary."""
        lines = tokenizer_files.read_lines(file)
        if lines != [""] and set(lines) <= set(SPECIAL):
            raise DataError(f"{file}: holds special tokens alone; every text would be {UNK}; give a vocabulary of text")
        return WordPiece([] if lines == [""] else lines, lowercase, str(file), longest_word, strip_accents)

    def _options(self) -> dict[str, bool | int]:
        """Returns the options besides the vocabulary."""
        # Options with the original's value are left out: vocabularies saved before the option existed keep their
        # fingerprints.
        longest = {} if self.longest_word == LONGEST_WORD else {"longest_word": self.longest_word}
        accents = {} if self.strip_accents == self.lowercase else {"strip_accents": self.strip_accents}
        return {"lowercase": self.lowercase, **longest, **accents}

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts → ids, without special tokens, on all cores."""
        # A space ends a word whatever stands beside it, so that each distinct one is encoded once.
        return self._words.encode([text.split(" ") for text in texts])

    def _encode_words(self, words: list[str]) -> list[list[int]]:
        # encode_batch_fast computes no places.
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(words, add_special_tokens=False)]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Placed]:
        return tokenizer_files.encode_placed(self._tokenizer, texts)

    def decode(self, ids: Iterable[int]) -> str:
        """Ids, special tokens too → text: pieces joined, without spaces around English stops and apostrophes."""
        # A piece with ## continues the one before.
        text = " ".join(self.vocabulary[number] for number in ids).replace(" ##", "")
        return _CLEANED.sub(lambda match: match[0].strip(), text)

    def token(self, id: int) -> str:
        return self.vocabulary[id]

    def words(self, text: str) -> list[str]:
        """Returns the words that are then cut into pieces (the original's BasicTokenizer)."""
        return [word for word, _ in self._splitter.pre_tokenize_str(self._normalizer.normalize_str(text))]

    def split_long(self, text: str, limit: int) -> list[str]:
        """Splits before spaces, which no piece holds."""
        return tokenizer_files.cut(text, limit, _SPACE)

    def files(self) -> dict[str, bytes]:
        vocabulary = "".join(f"{piece}\n" for piece in self.vocabulary).encode()
        return {VOCABULARY: vocabulary, tokenizer_files.OPTIONS: tokenizer_files.options(self.kind, **self._options())}

    def save(self, folder: Path) -> None:
        """Raises: DataError where the folder holds something else, or cannot be made."""
        tokenizer_files.save(folder, self.files())


def wordpiece(tokenizer: tokenizer_files.HasKind) -> WordPiece:
    """Returns the tokenizer, known to be WordPiece. Raises: DataError where it is of another kind."""
    if not isinstance(tokenizer, WordPiece):
        raise DataError(
            f"BERT reads a vocabulary of kind wordpiece, with [MASK] and its like, and this one is {tokenizer.kind}; "
            "give a BERT vocab.txt, or learn one: contexture tokenizer wordpiece"
        )
    return tokenizer


def learn_wordpiece(texts: Iterable[str], size: int, lowercase: bool) -> WordPiece:
    """Learns a vocabulary of at most `size` pieces: SPECIAL, the characters, then the most frequent joins of pieces.

    The same texts give the same vocabulary in every process. Memory holds only the distinct words.

    Differs: the original's learner was never published; this one joins the most frequent pair first (as byte pairs do).

    Raises: DataError where the texts hold no word or the size leaves no room for pieces; and whatever the texts raise.
    """
    return wordpiece_of(word_counts.count(texts, counted_chunks(lowercase)), size, lowercase)


def counted_chunks(lowercase: bool) -> Callable[[str], list[str]]:
    """Returns what a text is counted as for a vocabulary: normalised, between white space."""
    normalizer, _ = _rules(lowercase, lowercase)
    return lambda text: normalizer.normalize_str(text).split()


def wordpiece_of(chunks: Iterable[WordCount], size: int, lowercase: bool) -> WordPiece:
    """As `learn_wordpiece`, from the counts of `counted_chunks`."""
    counts = _words(word_counts.most_frequent(chunks), lowercase)
    if not counts:
        raise DataError("no word in the text to learn a vocabulary from; give text")
    room = size - len(SPECIAL)
    if room < 2:
        raise DataError(
            f"a vocabulary of {size} has no room beside the {len(SPECIAL)} special tokens; give a larger size"
        )
    # Characters get three quarters of the room at most, so that there is some for joins.
    alphabet = _alphabet(counts, max(room * 3 // 4, min(room, 256)))
    # The library numbers characters inside words in the order of a hash map, which differs from process to process.
    # Named as special tokens beforehand, sorted, they have the same numbers in each.
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=2, special_tokens=[*SPECIAL, *sorted(alphabet)], show_progress=False
    )
    learner = tokenizers.Tokenizer(models.WordPiece(unk_token=UNK))
    # Words come with spaces between them (`word_counts.repeated`), and are split already.
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    learner.train_from_iterator(word_counts.repeated(_spelled(counts, alphabet)), trainer)
    vocabulary = learner.get_vocab(with_added_tokens=False)
    return WordPiece(sorted(vocabulary, key=vocabulary.__getitem__), lowercase)


def _rules(lowercase: bool, strip_accents: bool) -> tuple[normalizers.BertNormalizer, pre_tokenizers.BertPreTokenizer]:
    normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lowercase
    )
    return normalizer, pre_tokenizers.BertPreTokenizer()


def _words(chunks: Mapping[str, int], lowercase: bool) -> Counter[str]:
    # They are normalised already.
    _, splitter = _rules(lowercase, lowercase)
    words: Counter[str] = Counter()
    # Chunks between white space were counted first: splitting runs once for each distinct one.
    for chunk, count in chunks.items():
        for word, _ in splitter.pre_tokenize_str(chunk):
            # Longer words are never looked up: encoding makes [UNK] of them.
            if len(word) <= LONGEST_WORD:
                words[word] += count
    return words


def _alphabet(counts: Counter[str], room: int) -> set[str]:
    """Returns the most frequent characters, as pieces that begin a word and, where they occur inside one, with `##`.

    Rare characters yield to joins of frequent ones: the characters of CJK text alone could fill a vocabulary.
    """
    # How often each character occurs, and which occur inside words.
    characters: Counter[str] = Counter()
    inside: set[str] = set()
    for word, count in counts.items():
        for character in word:
            characters[character] += count
        # A character after the first needs a piece with ##.
        inside.update(word[1:])
    pieces: set[str] = set()
    # A character and its form with ## come in together or not at all: half of it would leave words unspelled.
    for character in sorted(characters, key=lambda c: (-characters[c], c)):
        forms = {character, "##" + character} if character in inside else {character}
        if len(pieces) + len(forms) > room:
            # All rarer ones are left out too: the vocabulary is the most frequent characters.
            break
        pieces |= forms
    return pieces


def _spelled(counts: Counter[str], alphabet: set[str]) -> Counter[str]:
    """Returns the words that the alphabet can spell."""
    # Words with a character outside the alphabet would teach joins that no text can use.
    return Counter(
        {
            word: count
            for word, count in counts.items()
            if word[0] in alphabet and all("##" + character in alphabet for character in word[1:])
        }
    )

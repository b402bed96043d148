"""A token for each character of the text that the vocabulary was learned on."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from contexture.data.errors import DataError
from contexture.data.tokenizers import tokenizer_files, word_counts
from contexture.data.tokenizers.text_encoder import Placed, TextEncoder
from contexture.data.tokenizers.word_counts import WordCount

FILE = "characters.json"


class Characters(TextEncoder):
    """A token for each character; a character outside the vocabulary is an error."""

    kind = "characters"
    lossless = True
    # Every id is a character of the text: 0 pads too, and only masks tell a padded place from that character.
    pad = 0
    end = None
    unk = None
    specials: Mapping[str, int] = {}

    def __init__(self, characters: Sequence[str], where: str = "vocabulary") -> None:
        """Raises: DataError for a vocabulary that is empty, or holds a character twice or what is not one."""
        if not characters:
            raise DataError(f"{where}: the vocabulary is empty; it wants a list of characters")
        if wrong := [one for one in characters if not isinstance(one, str) or len(one) != 1]:
            raise DataError(f"{where}: {wrong[0]!r} is not one character; it wants a list of characters")
        character, times = Counter(characters).most_common(1)[0]
        if times > 1:
            raise DataError(f"{where}: the character {character!r} stands there {times} times; keep each once")
        self.characters = "".join(characters)
        self.size = len(characters)
        self.fingerprint = tokenizer_files.fingerprint(self.kind, characters=self.characters)
        # A table by code point: a whole text is looked up at once. Its last entry, -1, is for all larger code points.
        codes = _codes(self.characters)
        self._ids = np.full(int(codes.max()) + 2, -1, np.int32)
        self._ids[codes] = np.arange(self.size)

    @staticmethod
    def open(folder: Path) -> "Characters":
        """Raises: DataError for a file that is missing, or not a list of characters."""
        file = folder / FILE
        characters = tokenizer_files.read_json(file)
        if not isinstance(characters, list):
            raise DataError(f"{file}: not a vocabulary; it wants a list of characters")
        return Characters(cast(list[str], characters), str(file))  # which looks at each of them

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts → ids. Raises: DataError for a character that is not in the vocabulary."""
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> list[int]:
        # Larger code points than any in the vocabulary meet the last entry, which is -1.
        ids = self._ids[np.minimum(_codes(text), len(self._ids) - 1)]
        if len(ids) and ids.min() < 0:
            # -1 is the smallest of all, so argmin finds the first character without an id.
            character = text[int(ids.argmin())]
            raise DataError(
                f"the character {character!r} (U+{ord(character):04X}) is none of the vocabulary's {self.size}; "
                "learn the vocabulary on text that holds it"
            )
        return ids.tolist()

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Placed]:
        return [(self._encode(text), [(n, n + 1) for n in range(len(text))]) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.characters[number] for number in ids)

    def token(self, id: int) -> str:
        return self.characters[id]

    def split_long(self, text: str, limit: int) -> list[str]:
        """Splits anywhere."""
        # An empty text is one part.
        return [text[at : at + limit] for at in range(0, len(text), limit)] or [text]

    def files(self) -> dict[str, bytes]:
        return {
            # JSON, since any character may be in it, line ends too.
            FILE: json.dumps([*self.characters]).encode(),
            tokenizer_files.OPTIONS: tokenizer_files.options(self.kind),
        }

    def save(self, folder: Path) -> None:
        """Raises: DataError where the folder holds something else, or cannot be made."""
        tokenizer_files.save(folder, self.files())


def learn_characters(texts: Iterable[str], size: int) -> Characters:
    """Returns a vocabulary of all characters of the texts, in the order of Unicode.

    Raises: DataError where there are none, or more than `size`; and whatever the texts raise.
    """
    # Once for each text: how often it has a character does not matter.
    return characters_of(word_counts.count(texts, set), size)


def characters_of(counts: Iterable[WordCount], size: int) -> Characters:
    """As `learn_characters`, from counts of the characters."""
    characters = {character for character, _ in counts}
    if not characters:
        raise DataError("no character in the text to learn a vocabulary from; give text")
    if len(characters) > size:
        raise DataError(
            f"the text has {len(characters)} different characters, a vocabulary of {size} no room for them; "
            f"give a size of {len(characters)}, or learn a byte-bpe"
        )
    # Sorted, so that the order of the text does not matter.
    return Characters(sorted(characters))


def _codes(text: str) -> NDArray[np.uint32]:
    """Returns the code points of a text."""
    # surrogatepass: half a character is then one that the vocabulary lacks, with its error.
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")

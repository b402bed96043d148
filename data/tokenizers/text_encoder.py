"""What all tokenizers share: `encode` takes one text or several, and each token knows its characters."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias, overload

Placed: TypeAlias = tuple[list[int], list[tuple[int, int]]]
"""The ids of a text, and begin and end of each among its characters."""


class TextEncoder(ABC):
    """A tokenizer that encodes batches of texts."""

    @overload
    def encode(self, texts: str) -> list[int]: ...  # pyright: ignore[reportOverlappingOverload]  # a str is a sequence
    @overload
    def encode(self, texts: Sequence[str]) -> list[list[int]]: ...
    def encode(self, texts: str | Sequence[str]) -> list[int] | list[list[int]]:
        """One text → its ids; several → the ids of each. Without special tokens; one that is spelled out is text."""
        # A str is a sequence too: each of its characters would be taken for a text.
        return self.encode_batch([texts])[0] if isinstance(texts, str) else self.encode_batch(texts)

    # A batch, since most libraries encode its texts on all cores at once.
    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts → the ids of each."""

    @abstractmethod
    def encode_with_offsets(self, texts: Sequence[str]) -> list[Placed]:
        """Texts → the same ids, with their places: a character that lies in several tokens belongs to each, a token
        that stands for no character has an empty place."""

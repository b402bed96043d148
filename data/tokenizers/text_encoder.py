"""What all tokenizers share: `encode` takes one text, or several."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import overload


class TextEncoder(ABC):
    """A tokenizer that encodes batches of texts."""

    @overload
    def encode(self, texts: str) -> list[int]: ...  # pyright: ignore[reportOverlappingOverload]  # a str is a sequence
    @overload
    def encode(self, texts: Sequence[str]) -> list[list[int]]: ...
    def encode(self, texts: str | Sequence[str]) -> list[int] | list[list[int]]:
        """One text → its ids; several → the ids of each. Without special tokens; one that is spelled out is text."""
        # A str is a sequence too, of characters, each of which would be taken for a text.
        return self.encode_batch([texts])[0] if isinstance(texts, str) else self.encode_batch(texts)

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts → the ids of each."""

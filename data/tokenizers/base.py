"""Text ↔ ids: what code outside this folder needs to know about a tokenizer."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from contexture.data.errors import DataError
from contexture.data.tokenizers import tokenizer_files, wordpiece
from contexture.data.tokenizers.word_level import Words
from contexture.data.tokenizers.wordpiece import WordPiece


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
    """Tokens that were grown behind the vocabulary (`with_added_tokens`), and their ids."""
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

    def split_long(self, text: str, most: int) -> list[str]:
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


class WithAddedTokens:
    """A vocabulary with special tokens behind it; all other ids stay. Text that spells one of them is text."""

    def __init__(self, base: Tokenizer, names: Sequence[str]) -> None:
        self.base, self.names = base, tuple(names)
        self.kind, self.pad, self.lossless = base.kind, base.pad, base.lossless
        self.end, self.unk = base.end, base.unk
        self.size = base.size + len(names)
        self.specials: Mapping[str, int] = {name: base.size + place for place, name in enumerate(names)}
        self.fingerprint = tokenizer_files.fingerprint(self.kind, base=base.fingerprint, specials=self.names)

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

    def split_long(self, text: str, most: int) -> list[str]:
        return self.base.split_long(text, most)

    def files(self) -> dict[str, bytes]:
        files = self.base.files()
        options = {**json.loads(files[tokenizer_files.OPTIONS]), "specials": self.names}
        return {**files, tokenizer_files.OPTIONS: tokenizer_files.as_options(options)}

    def save(self, folder: Path) -> None:
        tokenizer_files.save(folder, self.files())


def with_added_tokens(tokenizer: Tokenizer, names: Sequence[str]) -> Tokenizer:
    """The same vocabulary with tokens behind it that no text spells: `with_added_tokens(tokenizer, ["_start_"])`.

    Raises: DataError for WordPiece, which has its own, for words, for a name twice, and for no name.
    """
    if tokenizer.kind == WordPiece.kind:
        raise DataError(f"a wordpiece vocabulary has its own special tokens ({', '.join(wordpiece.SPECIAL)}); use them")
    if tokenizer.kind == Words.kind:
        raise DataError(f"no special tokens are added to a vocabulary of kind {Words.kind}; use it as it is")
    base, old = (tokenizer.base, tokenizer.names) if isinstance(tokenizer, WithAddedTokens) else (tokenizer, ())
    together = [*old, *names]
    if not names or "" in names:
        raise DataError("a special token without a name; give each a name, like _start_")
    if len(set(together)) < len(together):
        name = next(name for name in together if together.count(name) > 1)
        raise DataError(f"the special token {name!r} is there already; give each name once")
    return WithAddedTokens(base, together)

"""Text ↔ ids: what code outside this folder needs to know about a tokenizer."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, overload

from contexture.data.errors import DataError
from contexture.data.tokenizers import tokenizer_files, wordpiece
from contexture.data.tokenizers.text_encoder import Placed, TextEncoder
from contexture.data.tokenizers.word_level import StaticWords, Words
from contexture.data.tokenizers.wordpiece import WordPiece


class Tokenizer(Protocol):
    """A tokenizer, as code outside this folder uses it. Only WordPiece also has `cls`, `sep` and `mask`."""

    kind: str
    size: int
    """How many ids there are, `specials` counted."""
    pad: int
    """The id for padding; 0 where the vocabulary has no token for it."""
    lossless: bool
    """Whether every text comes back from its ids as it was."""
    specials: Mapping[str, int]
    """Tokens that were added behind the vocabulary (`with_added_tokens`), and their ids."""
    fingerprint: str
    """sha256 (hex) over the vocabulary and all options."""

    @property
    def end(self) -> int | None:
        """The token that ends a document; None where the vocabulary has none."""
        ...

    @property
    def unk(self) -> int | None:
        """The token for text that no other spells; None where every text is spelled, or such text is an error."""
        ...

    @overload
    def encode(self, texts: str) -> list[int]: ...  # pyright: ignore[reportOverlappingOverload]  # a str is a sequence
    @overload
    def encode(self, texts: Sequence[str]) -> list[list[int]]: ...
    def encode(self, texts: str | Sequence[str]) -> list[int] | list[list[int]]:
        """One text → its ids; several → the ids of each. Without special tokens; one that is spelled out is text."""
        ...

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Placed]:
        """Texts → the same ids, and begin and end of each among the characters of its text."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Ids, special tokens too → text."""
        ...

    def token(self, id: int) -> str:
        """Returns the text of an id, for people."""
        ...

    def split_long(self, text: str, limit: int) -> list[str]:
        """Splits a text into parts of about `limit` characters (more where it cannot be cut) that may be encoded alone:
        their ids, joined, are the ids of the whole."""
        ...

    def files(self) -> dict[str, bytes]:
        """Returns the files that `save` writes, by name."""
        ...

    def save(self, folder: Path) -> None:
        """Writes the files into a folder that appears whole; a folder with the same files is left alone.

        Raises: DataError where the folder holds something else, or cannot be made.
        """
        ...


class WithAddedTokens(TextEncoder):
    """A vocabulary with special tokens appended; all other ids stay. Text that spells one of them is text."""

    def __init__(self, base: Tokenizer, names: Sequence[str]) -> None:
        self.base, self.names = base, tuple(names)
        self.kind, self.pad, self.lossless = base.kind, base.pad, base.lossless
        self.end, self.unk = base.end, base.unk
        self.size = base.size + len(names)
        # Behind the base's ids, so that rows of the base's embeddings keep their meaning.
        self.specials: Mapping[str, int] = {name: base.size + place for place, name in enumerate(names)}
        self.fingerprint = tokenizer_files.fingerprint(self.kind, base=base.fingerprint, specials=self.names)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        # The base vocabulary does not have the added tokens: a name of one within a text is tokenised as plain text.
        return self.base.encode(texts)

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Placed]:
        return self.base.encode_with_offsets(texts)

    def decode(self, ids: Iterable[int]) -> str:
        """Ids → text, added tokens by their names."""
        # Ids between two added tokens are decoded together: a character's bytes may lie in several of them.
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

    def split_long(self, text: str, limit: int) -> list[str]:
        # No text holds an added token, so every place that is safe for the base is safe here.
        return self.base.split_long(text, limit)

    def files(self) -> dict[str, bytes]:
        files = self.base.files()
        # The base's own files, with the names among its options.
        options = {**json.loads(files[tokenizer_files.OPTIONS]), "specials": self.names}
        return {**files, tokenizer_files.OPTIONS: tokenizer_files.as_options(options)}

    def save(self, folder: Path) -> None:
        tokenizer_files.save(folder, self.files())


def with_added_tokens(tokenizer: Tokenizer, names: Sequence[str]) -> Tokenizer:
    """Returns the same vocabulary with tokens appended that no text spells: `with_added_tokens(tokenizer,
    ["_start_"])`.

    Raises: DataError for WordPiece, which has its own, for words, for a name twice, and for no name.
    """
    # A BERT's tasks need no further token: [CLS] and [SEP] are pieces of its vocab.txt.
    if tokenizer.kind == WordPiece.kind:
        raise DataError(f"a wordpiece vocabulary has its own special tokens ({', '.join(wordpiece.SPECIAL)}); use them")
    # An id of these vocabularies is a word with characters, or with a vector. An added token would have neither.
    if tokenizer.kind in (Words.kind, StaticWords.kind):
        raise DataError(f"no special tokens are added to a vocabulary of kind {tokenizer.kind}; use it as it is")
    # Tokens added in two turns are one list: no vocabulary is wrapped twice.
    base, old = (tokenizer.base, tokenizer.names) if isinstance(tokenizer, WithAddedTokens) else (tokenizer, ())
    all_names = [*old, *names]
    if not names or "" in names:
        raise DataError("a special token without a name; give each a name, like _start_")
    if len(set(all_names)) < len(all_names):
        name = next(name for name in all_names if all_names.count(name) > 1)
        raise DataError(f"the special token {name!r} is there already; give each name once")
    return WithAddedTokens(base, all_names)

"""The files of tokenizers: written as a folder that appears whole, read with errors that say where. And what several
kinds share: long texts are cut between tokens, and encoded word by word."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Protocol

import tokenizers

from contexture.data.errors import DataError
from contexture.data.plain_files import read_plain
from contexture.data.storage import atomic_folder
from contexture.data.tokenizers.text_encoder import Placed

OPTIONS = "tokenizer.json"
"""The file with the kind and the options of a saved tokenizer."""
FORMAT = 1


class HasKind(Protocol):
    """Any tokenizer, as far as messages name it. `base.Tokenizer` says more, but imports the kinds."""

    @property
    def kind(self) -> str: ...


_WORDS, _CHARACTERS = 1 << 17, 1 << 21
"""Words whose ids are kept, and their characters: about 40 MB of words, 80 MB of text without spaces."""


def fingerprint(kind: str, **content: object) -> str:
    """Returns the sha256 (hex) over a tokenizer's kind, vocabulary and options, as JSON."""
    # In the order in which a kind names its options: another order would be another fingerprint.
    return hashlib.sha256(json.dumps({"kind": kind, **content}).encode()).hexdigest()


def options(kind: str, **more: object) -> bytes:
    """Returns the content of tokenizer.json."""
    return as_options({"format": FORMAT, "kind": kind, **more})


def as_options(tree: Mapping[str, object]) -> bytes:
    return (json.dumps(tree, indent=1) + "\n").encode()


def save(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes a tokenizer's files into a folder that appears whole; does nothing where it holds the same files already.

    Raises: DataError where the folder holds something else, or cannot be made.
    """
    # Links stay links: the folder is made where they lead.
    folder = Path(os.path.realpath(folder))
    # One of the files is enough to be another tokenizer: nothing is ever mixed or replaced.
    if any(os.path.isfile(folder / name) for name in files):
        if all(os.path.isfile(folder / name) and (folder / name).read_bytes() == files[name] for name in files):
            return
        raise DataError(f"{folder}: holds another tokenizer; give another folder")
    with atomic_folder(folder) as part:
        for name, content in files.items():
            (part / name).write_bytes(content)


def read_text(file: Path) -> str:
    """Returns a file in UTF-8, its line ends as \\n. Raises: DataError where it cannot be read, or is not UTF-8."""
    try:
        # A byte-order mark is no part of the first piece.
        return read_plain(file).decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); give a tokenizer that can") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        byte = error.object[error.start]
        raise DataError(f"{file}:{line}: not UTF-8 (byte 0x{byte:02x}); save the file as UTF-8") from None


def read_lines(file: Path) -> list[str]:
    """Returns the lines of a file in UTF-8."""
    # Only \n ends a line: published vocabularies hold pieces that are themselves Unicode line separators, at which
    # splitlines would split.
    return read_text(file).rstrip("\n").split("\n")


def read_json(file: Path, hook: Callable[[list[tuple[str, object]]], object] | None = None) -> object:
    """Returns the content of a JSON file. hook: makes something else than a dict of an object's pairs.

    Raises: DataError with file:line where it is not JSON.
    """
    text = read_text(file)
    try:
        return json.loads(text, object_pairs_hook=hook)
    except json.JSONDecodeError as error:
        raise DataError(f"{file}:{error.lineno}: not JSON ({error.msg}); give the file as it was published") from None
    except (RecursionError, ValueError) as error:  # a number of thousands of digits
        why = "nested too deep" if isinstance(error, RecursionError) else str(error).splitlines()[0][:80]
        raise DataError(f"{file}: not JSON ({why}); give the file as it was published") from None


def cut(text: str, limit: int, safe: re.Pattern[str]) -> list[str]:
    """Cuts a text into parts of about `limit` characters: each ends at the first place after so many where `safe`
    matches."""
    parts: list[str] = []
    start = 0
    # Only where `safe` matches: the parts' ids, joined, must be the ids of the whole.
    # Searched from a place on, and not in a slice, so that `safe` can look back at the characters before it.
    while len(text) - start > limit and (match := safe.search(text, start + limit)):
        parts.append(text[start : match.start()])
        start = match.start()
    return [*parts, text[start:]]


class WordIds:
    """The ids of words that were encoded before: most words come again and again, and are looked up instead."""

    def __init__(self, encode: Callable[[list[str]], Sequence[Sequence[int]]]) -> None:
        """encode: words → the ids of each, whatever words stand beside them."""
        self._encode = encode
        self._ids: dict[str, Sequence[int]] = {}
        self._characters = 0

    def encode(self, texts: Sequence[Sequence[str]]) -> list[list[int]]:
        """The words of each text → the text's ids."""
        # Local: another thread may begin a new dictionary meanwhile.
        ids = self._ids
        new = [*set(chain.from_iterable(texts)).difference(ids)]
        if new:
            ids.update(zip(new, self._encode(new), strict=True))
            self._characters += sum(map(len, new))
        encoded = [list(chain.from_iterable(map(ids.__getitem__, words))) for words in texts]
        # Emptied as a whole: what is common is there again after the next texts.
        if len(ids) > _WORDS or self._characters > _CHARACTERS:
            self._ids, self._characters = {}, 0
        return encoded


def encode_placed(tokenizer: tokenizers.Tokenizer, texts: Sequence[str]) -> list[Placed]:
    """Texts → ids and places, as the library knows them."""
    return [(each.ids, each.offsets) for each in tokenizer.encode_batch(list(texts), add_special_tokens=False)]


def offsets_of_bytes(text: str, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Returns begin and end of each token among the characters of a text whose UTF-8 the tokens spell, from how many
    bytes each has. A character that lies in several tokens belongs to each."""
    # For each byte of the text, the number of its character.
    characters = [n for n, character in enumerate(text) for _ in character.encode()]
    ends = accumulate(sizes, initial=0)
    # The last byte of a token lies in its last character.
    return [(characters[begin], characters[end - 1] + 1) for begin, end in pairwise(ends)]

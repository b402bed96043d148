"""The files of tokenizers: written as a folder that appears whole, read with errors that say where; and long texts cut
where no token is, encoded word by word."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from contexture.data.errors import DataError
from contexture.data.plain_files import read_plain
from contexture.data.storage import atomic_folder

OPTIONS = "tokenizer.json"
"""The file that says of what kind a saved tokenizer is."""
FORMAT = 1


def fingerprint(kind: str, **content: Any) -> str:
    """sha256 (hex) over all that makes a tokenizer."""
    return hashlib.sha256(json.dumps({"kind": kind, **content}).encode()).hexdigest()


def options(kind: str, **more: Any) -> bytes:
    """The content of tokenizer.json."""
    return as_options({"format": FORMAT, "kind": kind, **more})


def as_options(tree: Mapping[str, Any]) -> bytes:
    return (json.dumps(tree, indent=1) + "\n").encode()


def save(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes a tokenizer's files beside the folder's place and renames it there; nothing where they stand already.

    Raises: DataError where something else stands in that place, or no folder can.
    """
    folder = Path(os.path.realpath(folder))
    if any(os.path.isfile(folder / name) for name in files):
        if all(os.path.isfile(folder / name) and (folder / name).read_bytes() == files[name] for name in files):
            return
        raise DataError(f"{folder}: holds another tokenizer; give another folder")
    with atomic_folder(folder) as part:
        for name, content in files.items():
            (part / name).write_bytes(content)


def read_text(file: Path) -> str:
    """A file in UTF-8; its lines end in \\n. Raises: DataError for what cannot be read, or is not UTF-8."""
    try:
        return read_plain(file).decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); give a tokenizer that can") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        byte = error.object[error.start]
        raise DataError(f"{file}:{line}: not UTF-8 (byte 0x{byte:02x}); save the file as UTF-8") from None


def read_lines(file: Path) -> list[str]:
    """Only \\n ends a line: published vocabularies hold pieces that are themselves Unicode line separators."""
    return read_text(file).rstrip("\n").split("\n")


def read_json(file: Path, hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """`hook` makes something else than a dict of an object's pairs. Raises: DataError with file:line for what is not
    JSON."""
    text = read_text(file)
    try:
        return json.loads(text, object_pairs_hook=hook)
    except json.JSONDecodeError as error:
        raise DataError(f"{file}:{error.lineno}: not JSON ({error.msg}); give the file as it was published") from None
    except (RecursionError, ValueError) as error:  # a number of thousands of digits
        why = "nested too deep" if isinstance(error, RecursionError) else str(error).splitlines()[0][:80]
        raise DataError(f"{file}: not JSON ({why}); give the file as it was published") from None


def cut(text: str, most: int, safe: re.Pattern[str]) -> list[str]:
    """Parts of about `most` characters: each ends at the first place after so many where `safe` matches."""
    parts: list[str] = []
    start = 0
    while len(text) - start > most and (found := safe.search(text, start + most)):
        parts.append(text[start : found.start()])
        start = found.start()
    return [*parts, text[start:]]


def encode_words(
    lines: Sequence[Sequence[str]], encode: Callable[[list[str]], Sequence[Sequence[int]]]
) -> list[list[int]]:
    """The words of each line → the line's ids; `encode` sees every distinct word once."""
    distinct = list(dict.fromkeys(chain.from_iterable(lines)))
    ids = dict(zip(distinct, encode(distinct), strict=True))
    return [list(chain.from_iterable(map(ids.__getitem__, line))) for line in lines]

"""index.json of shards: which files there are, their sizes and digests, and what they were made of and for."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np

from contexture.data.binary_files import FileEntry, fingerprint_of, misfit
from contexture.data.block_cache import BLOCK, DIGEST
from contexture.data.errors import DataError
from contexture.data.plain_files import read_plain

FORMAT = 1
INDEX = "index.json"
UNKNOWN = "words.txt"
DIGESTS = "digests.bin"
SPLITS = ("train", "dev")
PER_FILE = 1 << 27
"""Ids in a token file."""
MEND = "prepare the text again into another folder"

_COUNTS = {"documents": int, "sentences": int, "tokens": int, "blocks": [int]}
_INDEX = {
    "tokenizer": str,
    "vocabulary": int,
    "dtype": str,
    "per_file": int,
    "sentences": int,
    "tokens": int,
    "split_sentences": bool,
    "dev_fraction": float,
    "splits": {name: _COUNTS for name in SPLITS},
    "sources": [{"name": str, "size": int, "sha256": str, "split": str, "sentences": [int]}],
    "files": dict,
    "fingerprint": str,
}
"""The type of everything in index.json: whole numbers are not negative, lists hold any number of one type."""
_OF_LANES = {"unknown": {"words": int, "bytes": int}, "cut": {"words": int, "times": int}}
PAIRS = "sentence_pairs"
MADE_FOR = {"stream": (PAIRS, "windows", "lanes"), "documents": ("blank_lines", "files")}
"""What shards may be made for, as in `data.config`; index.json may leave out the first."""


class SplitCounts(TypedDict):
    """A split's entry in index.json."""

    documents: int
    sentences: int
    tokens: int
    blocks: list[int]


class SourceEntry(TypedDict):
    """A source's entry in index.json."""

    name: str
    size: int
    sha256: str
    split: str
    """The split that it was given for; with dev_fraction, both splits have some of it."""
    sentences: list[int]
    """Its first sentence, the first one held out, and the one after its last."""


class UnknownWords(TypedDict):
    """Words that the vocabulary of lanes lacks: how many, and the size of their file."""

    words: int
    bytes: int


class CutWords(TypedDict):
    """Words of lanes with more bytes than are read: how many, and how many times they occur."""

    words: int
    times: int


class ShardsIndex(TypedDict):
    """The content of index.json. Only lanes have `unknown` and `cut`."""

    format: int
    tokenizer: str
    """The tokenizer's fingerprint."""
    vocabulary: int
    dtype: str
    per_file: int
    sentences: int
    tokens: int
    split_sentences: bool
    dev_fraction: float
    splits: dict[str, SplitCounts]
    sources: list[SourceEntry]
    files: dict[str, FileEntry]
    fingerprint: str
    stream: NotRequired[str]
    documents: NotRequired[str]
    text_column: NotRequired[str]
    units: NotRequired[dict[str, str]]
    """How the units were found that the upper bits of tokens mark (`data.pretraining.units`)."""
    block: NotRequired[int]
    """Bytes of the blocks that have a digest each; not in the first shards, which a bucket gives whole."""
    unknown: UnknownWords
    cut: CutWords


def read_index(folder: Path) -> ShardsIndex:
    """Returns the content of index.json. Raises: DataError where it is missing, of another format, or not as it was
    written."""
    file = folder / INDEX
    # What can be wrong with a file that is no index, or no file, is one line each.
    try:
        index = json.loads(read_plain(file))
        format = index["format"]
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{folder}: holds no shards ({INDEX} is missing); {MEND}") from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); {MEND}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{file}: not the index of shards; {MEND}") from None
    # The format first: what else another format holds is not known here.
    # Exactly an int: True == 1 and 1.0 == 1.
    if type(format) is not int or format != FORMAT:
        raise DataError(f"{folder}: shards of format {format!r}, this reads format {FORMAT}; {MEND}")
    # Then the types, the values, and at last whether they belong together.
    if wrong := misfit(index, _INDEX):
        raise DataError(f"{file}: {wrong} is missing or not what it should be; {MEND}")
    if index["dtype"] not in ("<u2", "<u4") or not index["per_file"]:
        raise DataError(f"{file}: dtype or per_file is not what it should be; {MEND}")
    # Digests of other blocks could not be compared with what is fetched.
    if index.get("block", BLOCK) != BLOCK:
        raise DataError(f"{file}: digests of blocks of {index['block']} bytes, not {BLOCK}; {MEND}")
    if any(index.get(name, may[0]) not in may for name, may in MADE_FOR.items()):
        raise DataError(f"{file}: stream or documents is not what it should be; {MEND}")
    if index.get("stream") == "lanes" and (wrong := misfit(index, _OF_LANES)):
        raise DataError(f"{file}: {wrong} is missing or not what it should be; {MEND}")
    if index["fingerprint"] != fingerprint_of(index):
        raise DataError(f"{file}: damaged, its content does not match its fingerprint; {MEND}")
    # The files that there must be, and their sizes, follow from the counts.
    kinds = {name: {"size": int, "sha256": str} for name in file_sizes(index)}
    wrong = misfit(index["files"], kinds, "files.")
    # Neither more files nor fewer than the counts say.
    if wrong or {name: index["files"][name]["size"] for name in index["files"]} != file_sizes(index):
        raise DataError(f"{file}: {wrong or 'files'} is missing or not what it should be; {MEND}")
    return index


def file_sizes(index: ShardsIndex) -> dict[str, int]:
    """Returns the files of shards, the tokens in their order, and how many bytes each has; the digests at the end."""
    # One offset more than sentences: the end of the last one.
    sizes = {"sentences.bin": (index["sentences"] + 1) * 8, "unigrams.bin": index["vocabulary"] * 8}
    sizes |= {f"{name}.bin": index["splits"][name]["documents"] * 16 for name in SPLITS}
    if index.get("stream") == "lanes":
        sizes[UNKNOWN] = index["unknown"]["bytes"]
    # All token files are full but the last.
    width, per, tokens = np.dtype(index["dtype"]).itemsize, index["per_file"], index["tokens"]
    sizes |= {f"tokens-{at // per:05d}.bin": min(per, tokens - at) * width for at in range(0, tokens, per)}
    # As many digests as blocks; the last block of each file may be short.
    if "block" in index:
        sizes[DIGESTS] = DIGEST * sum(-(-sizes[name] // BLOCK) for name in by_position(sizes))
    return sizes


def by_position(names: Iterable[str]) -> list[str]:
    """Returns the files that are read by position, in the order of their digests."""
    return [name for name in names if name not in ("unigrams.bin", UNKNOWN, DIGESTS)]

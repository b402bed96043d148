"""manifest.json of shards: what they hold of each source, and how they were made.

It is not part of the shards' fingerprint: whatever it says, a run reads the same tokens.
"""

import importlib.metadata
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from contexture.data.binary_files import fingerprint_of, misfit
from contexture.data.errors import DataError
from contexture.data.plain_files import read_plain
from contexture.data.text.row_facts import add

MANIFEST = "manifest.json"
IDS = "documents.tsv"
"""The ids of documents: the first sentence (or run) of each, a tab, its id."""
FORMAT = 1
LIBRARIES = ("contexture", "tokenizers", "sentencepiece", "numpy")
_SOURCE = {"name": str, "split": str, "documents": int, "sentences": int, "tokens": int, "unknown": int, "counts": dict}
_MANIFEST = {
    "shards": str,
    "command": str,
    "versions": dict,
    "tokenizer": {"kind": str, "size": int, "fingerprint": str},
    "sources": [_SOURCE],
    "lengths": {"train": [int], "dev": [int]},
    "ids": int,
    "fingerprint": str,
}


class SourceFacts(TypedDict):
    """What shards hold of a source."""

    name: str
    split: str
    documents: int
    sentences: int
    """Of a GPT, runs."""
    tokens: int
    unknown: int
    """Tokens that stand for what the vocabulary lacks."""
    counts: dict[str, dict[str, int]]
    """Documents by language, and by where they come from, as the rows of a table say."""


def versions() -> dict[str, str]:
    """Returns the versions of the libraries that decide what tokens there are."""
    # Of what is installed: not every vocabulary needs each of them.
    installed: dict[str, str] = {}
    for name in LIBRARIES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Writes manifest.json, with its format and its fingerprint."""
    # Letters as they are: names of files and languages are for people.
    content: dict[str, Any] = {"format": FORMAT, **manifest}
    content["fingerprint"] = fingerprint_of(content)
    (folder / MANIFEST).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")


def read_manifest(folder: Path, shards: str) -> dict[str, Any] | None:
    """Returns the content of manifest.json; None where there is none, as of shards that were made before there was one.

    shards: their fingerprint.

    Raises: DataError where it is damaged, or of other shards.
    """
    file = folder / MANIFEST
    # Whoever has no manifest reads the shards all the same; one that is damaged would say what is not so.
    try:
        manifest = json.loads(read_plain(file))
        known = manifest["format"] == FORMAT and manifest["fingerprint"] == fingerprint_of(manifest)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); delete it, or prepare the text again") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        known = False
        manifest = {}
    if not known or misfit(manifest, _MANIFEST) or manifest["shards"] != shards:
        raise DataError(f"{file}: damaged, or of other shards; delete it, or prepare the text again")
    return manifest


def merged(parts: Sequence[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Returns the counts of several parts together, the largest first."""
    counts: dict[str, Counter[str]] = {}
    for part in parts:
        for name, values in part.items():
            for value, count in values.items():
                add(counts.setdefault(name, Counter()), value, count)
    # In an order that depends on the counts alone, whatever the parts were.
    return {
        name: dict(sorted(values.items(), key=lambda item: (-item[1], item[0])))
        for name, values in sorted(counts.items())
    }

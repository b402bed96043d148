"""What an evaluation found of a checkpoint that was saved before it: a stopped run saves first, and is evaluated when
it goes on.

It stands in a file of its own in the checkpoint's folder, `evaluated.json`, so that the checkpoint itself is never
written a second time: there is no moment at which a kill could lose it. Where the file is missing or damaged, the
checkpoint says that it is unevaluated, and is evaluated when the run goes on.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from contexture.data.errors import DataError
from contexture.data.plain_files import read_plain
from contexture.data.storage import atomic_file

_NAME = "evaluated.json"


def text_digest(tree: Any) -> str:
    """The digest of what JSON can hold."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def write(checkpoint: Path, found: dict[str, Any]) -> None:
    """Keeps what an evaluation found of a checkpoint. Raises OSError."""
    of = (checkpoint / "digest" / "metadata").read_text("utf-8")
    tree = {"of": text_digest(json.loads(of)), "found": found}
    with atomic_file(checkpoint / _NAME) as part:
        part.write_text(json.dumps({**tree, "self": text_digest(tree)}) + "\n", "utf-8")


def with_evaluation(checkpoint: Path, meta: dict[str, Any], digest: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint says of itself, with what was found of it later. digest: its item of that name, whole."""
    if not meta.get("unevaluated"):
        return meta
    try:
        tree = json.loads(read_plain(checkpoint / _NAME))
        whole = tree.pop("self") == text_digest(tree) and tree["of"] == text_digest(digest)
    except (OSError, DataError, ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return meta
    return {name: value for name, value in meta.items() if name != "unevaluated"} | tree["found"] if whole else meta

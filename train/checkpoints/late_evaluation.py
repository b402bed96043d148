"""Late evaluations: a stopped run saves its checkpoint first, and evaluates it when it resumes.

The evaluation is kept in a file of its own in the checkpoint's folder, `evaluated.json`, so that the checkpoint itself
is never written a second time: there is no moment at which a kill could lose it. Where that file is missing or damaged,
the checkpoint's meta says `unevaluated`, and the evaluation is done when the run resumes.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from contexture.data.errors import DataError
from contexture.data.plain_files import read_plain
from contexture.data.storage import atomic_file

_NAME = "evaluated.json"


def text_digest(tree: object) -> str:
    """Returns the digest of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def write(checkpoint: Path, evaluated: Mapping[str, object]) -> None:
    """Writes the evaluation of a checkpoint. Raises OSError."""
    # `of` identifies the checkpoint by the digest of its digests: the file is void in any other checkpoint's folder.
    of = (checkpoint / "digest" / "metadata").read_text("utf-8")
    tree = {"of": text_digest(json.loads(of)), "found": evaluated}
    with atomic_file(checkpoint / _NAME) as part:
        part.write_text(json.dumps({**tree, "self": text_digest(tree)}) + "\n", "utf-8")


def with_evaluation(checkpoint: Path, meta: dict[str, object], digest: Mapping[str, object]) -> dict[str, object]:
    """Returns the meta of a checkpoint with a later evaluation, if there is one. digest: the item of that name."""
    if not meta.get("unevaluated"):
        return meta
    try:
        tree = json.loads(read_plain(checkpoint / _NAME))
        good = tree.pop("self") == text_digest(tree) and tree["of"] == text_digest(digest)
    # Missing, or damaged in any way: the evaluation is done again, which costs time and nothing else.
    except (OSError, DataError, ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return meta
    # `unevaluated` goes; held_out_loss, rank, metric and best come from the file.
    return {name: value for name, value in meta.items() if name != "unevaluated"} | tree["found"] if good else meta

"""Checkpoints of JSON alone, for what reads no arrays."""

import json
from pathlib import Path
from typing import Any

from contexture.train.checkpoints.late_evaluation import text_digest
from contexture.train.checkpoints.meta import FORMAT


def write_meta(run: Path, step: int, **more: Any) -> None:
    """Writes the items `meta` and `digest` of a checkpoint. more: what its meta holds."""
    meta = {"format": FORMAT, "step": step, "held_out_loss": None, "shapes": {}, **more}
    digest: dict[str, Any] = {"arrays": {}, "meta": text_digest(meta)}
    digest["self"] = text_digest(digest)
    for name, item in (("meta", meta), ("digest", digest)):
        file = run / "checkpoints" / str(step) / name / "metadata"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(item))

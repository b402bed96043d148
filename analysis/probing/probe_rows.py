"""The figures of probes, and the file that keeps the figures of several calls: DIR/probe.json. Needs no jax."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from contexture.data.errors import DataError
from contexture.data.storage import atomic_file

FILE = "probe.json"


ProbeRow: TypeAlias = dict[str, Any]
"""A task probed in a run (run, family, step, task), as JSON has it. Which figures there are, `probes` decides.

split              the set of all F1 below: test where one was given, else dev
targets            how many of each set were read; left_out: those in sentences longer than the model takes
labels             how many the training set has; unknown_labels: labels of other sets that it lacks, which count as
                   not predicted
layers             the layers that were read, 0 for the embeddings
probes             cumulative, each or mix: which probes were trained
f1                 micro F1 of the mix of these layers; with `each`, of the layer that is best on dev
majority_f1        the baseline: always giving the most frequent label
weights            of the layers in the mix; gamma: its factor
centre_of_gravity  the mean layer by these weights; divergence: from equal weights, in bits
cumulative_f1      of mixes of the layers up to each one; lexical_f1 is the first, of the embeddings alone
differentials      what each layer adds to the one before; expected_layer: the mean layer by these
layer_f1           of each layer alone; layer_selectivity: of each
control_f1         of the control task; selectivity: f1 - control_f1
epochs             the epoch at which the probe was best on dev
seeds              of several: how many; all above are figures of the first one. over_seeds: the mean and the deviation
                   (of a sample) of f1, lexical_f1, centre_of_gravity, selectivity, … over all: {"mean", "deviation"}
"""


def read_rows(folder: Path) -> list[ProbeRow]:
    """Returns the rows that a folder holds; none if it has no such file. A file of another form is a DataError."""
    path = folder / FILE
    if not path.exists():
        return []
    try:
        rows = json.loads(path.read_text("utf-8"))["probes"]
        if not all(isinstance(row[name], kind) for row in rows for name, kind in _KEY.items()):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path} holds no results of probes; give --to another folder, or remove the file") from None
    return rows


def write_rows(folder: Path, new: Sequence[ProbeRow]) -> list[ProbeRow]:
    """Adds rows to a folder's file, and returns all of its rows.

    A row replaces an older one of the same run, step, task, layers and kind of probes.
    """
    keys = {_key(row) for row in new}
    rows = [row for row in read_rows(folder) if _key(row) not in keys] + list(new)
    with atomic_file(folder / FILE) as part:
        part.write_text(json.dumps({"format": 1, "probes": rows}, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return rows


_KEY = {"run": str, "step": int, "task": str, "probes": str, "layers": list}


def _key(row: ProbeRow) -> str:
    return json.dumps([row[name] for name in _KEY])

"""BLiMP, minimal pairs of English sentences (Warstadt et al. 2020, BLiMP: The benchmark of linguistic minimal pairs for
English, TACL 8): a model should find the acceptable sentence more probable than the unacceptable one.

A paradigm (UID) is one contrast, of 1,000 pairs; paradigms of one phenomenon share their `linguistics_term`. Its
accuracy is the share of pairs whose acceptable sentence is more probable as a whole; a tie is no hit. The accuracy of a
phenomenon, of a field and of all is the mean over their paradigms, as the paper reports it.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from contexture.analysis.scoring.families import convention_of
from contexture.analysis.trained_model import TrainedModel
from contexture.analysis.zeroshot.alternatives import choose
from contexture.analysis.zeroshot.standard_error import of_sum, standard_error
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.plain_files import inner_suffix
from contexture.data.text.json_rows import json_objects
from contexture.train.objectives import is_hit

_EXPECTED = "give BLiMP's *.jsonl, with sentence_good, sentence_bad and UID in each line"


class MinimalPair(NamedTuple):
    """Two sentences that differ only in what makes one of them unacceptable."""

    good: str
    bad: str
    uid: str
    term: str
    field: str


def pair_files(paths: Sequence[str]) -> list[Path]:
    """Returns the files that are given, and the *.jsonl of given folders, by name.

    Raises:
        DataError: when something is no such file, a folder has none, or a file is given twice.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        inside = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not inside:
            raise DataError(f"{path}: no *.jsonl in the folder; {_EXPECTED}")
        if not inside[0].is_file() or inner_suffix(inside[0]) != ".jsonl":
            raise DataError(f"{path}: no *.jsonl file and no folder of them; {_EXPECTED}")
        files += inside
    if twice := next((file for file in files if files.count(file) > 1), None):
        raise DataError(f"{twice}: given twice; give each file once")
    return files


def read_pairs(files: Sequence[Path]) -> list[MinimalPair]:
    """Returns the pairs of BLiMP's files.

    Raises:
        DataError: with file:line, when a line has another form; when there are no pairs.
    """
    pairs: list[MinimalPair] = []
    for file in files:
        for number, row in json_objects(file, _EXPECTED):
            for name in ("sentence_good", "sentence_bad", "UID"):
                if not isinstance(row.get(name), str) or not str(row[name]).strip():
                    raise DataError(f"{file}:{number}: no string `{name}`; {_EXPECTED}")
            names = ("sentence_good", "sentence_bad", "UID", "linguistics_term", "field")
            pairs.append(MinimalPair(*("" if row.get(name) is None else str(row[name]) for name in names)))
    if not pairs:
        raise DataError(f"{', '.join(map(str, files))}: no pairs of sentences; {_EXPECTED}")
    return pairs


def minimal_pairs(
    model: TrainedModel, pairs: Sequence[MinimalPair], *, batch: int = 16, cancel: CancelToken = NEVER
) -> dict[str, Any]:
    """Returns the accuracies of pairs: `paradigms`, `phenomena` and `fields`, a row for each, and the mean `accuracy`
    over paradigms; and `answers`, a row for each pair: its sentences, log_probs, and whether it is a hit.

    The standard error of a paradigm is √(p (1 - p) / (n - 1)), of a mean over K paradigms √(Σ error²) / K.

    Raises:
        DataError: as `choose`.
    """
    sentences = [(pair.good, pair.bad) for pair in pairs]
    # Each pair is a choice between two whole sentences, without a context.
    scored = choose(model, [""] * len(pairs), sentences, [0] * len(pairs), batch=batch, cancel=cancel)
    hits = [is_hit(log_probs, 0) for log_probs in scored["log_probs"]]
    paradigms = []
    for uid in dict.fromkeys(pair.uid for pair in pairs):
        own = [(pair, hit) for pair, hit in zip(pairs, hits, strict=True) if pair.uid == uid]
        row = {"UID": uid, "linguistics_term": own[0][0].term, "field": own[0][0].field, "examples": len(own)}
        paradigms.append({**row, **_figures([float(hit) for _, hit in own])})
    # The mean over paradigms, not over pairs, as in the paper: all weigh the same.
    every = _mean(paradigms)
    return {
        "examples": len(pairs),
        "accuracy": every["accuracy"],
        "standard_errors": {"accuracy": every["standard_error"]},
        "fields": _groups(paradigms, "field"),
        "phenomena": _groups(paradigms, "linguistics_term"),
        "paradigms": paradigms,
        "convention": f"{convention_of(model.run.model)}, here of whole sentences; a tie is no hit; accuracies of "
        "several paradigms are the means of theirs",
        "answers": [
            {**pair._asdict(), "log_probs": log_probs.tolist(), "hit": hit}
            for pair, log_probs, hit in zip(pairs, scored["log_probs"], hits, strict=True)
        ],
    }


def _figures(hits: Sequence[float]) -> dict[str, float | None]:
    return {"accuracy": math.fsum(hits) / len(hits), "standard_error": standard_error(hits)}


def _groups(paradigms: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in paradigms:
        groups.setdefault(row[name], []).append(row)
    return [{name: group, "paradigms": len(own), **_mean(own)} for group, own in groups.items()]


def _mean(paradigms: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    count, error = len(paradigms), of_sum([row["standard_error"] for row in paradigms])
    accuracy = math.fsum(row["accuracy"] for row in paradigms) / count
    return {"accuracy": accuracy, "standard_error": None if error is None else error / count}

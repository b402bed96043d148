"""Sources of a mixture, as data.path names them: NAME=WEIGHT:PATH for each."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

_FORM = re.compile(r"(?P<name>[^\s=:/]+)=(?P<weight>[^\s=:/]*):(?P<path>.+)", re.DOTALL)
_NAME = re.compile(r"\w[\w.-]*")
CYCLE = 1 << 16
"""Sequences in which each source of a mixture has its share, to one of them."""
_USAGE = "give each source as NAME=WEIGHT:PATH"


class MixedPath(NamedTuple):
    """A source of a mixture."""

    name: str
    weight: float
    """Its share of the sequences, relative to those of the others."""
    path: str


def is_name(text: str) -> bool:
    """Returns whether a text can be the name of a source."""
    return bool(_NAME.fullmatch(text))


def split_weight(path: str) -> tuple[str, str]:
    """Returns what stands in front of the path of a source, and the path: ("de=0.3:", "de/"); ("", path) for a path
    alone."""
    # Names and weights have no slash and no colon, so that addresses have neither.
    match = _FORM.fullmatch(path)
    return (path[: match.start("path")], match["path"]) if match else ("", path)


def mixture_of(paths: Sequence[str]) -> tuple[MixedPath, ...]:
    """Returns the sources that paths name with weights; () for paths alone.

    Raises: ValueError for some paths with weights and some without, a weight that is no positive number, and a name
    that is none of a folder or given twice.
    """
    # By its form alone: no file is looked at.
    matches = [_FORM.fullmatch(path) for path in paths]
    if not any(matches):
        return ()
    sources: list[MixedPath] = []
    for path, match in zip(paths, matches, strict=True):
        # Text without a name would have no share.
        if match is None:
            raise ValueError(f"data.path={path} has no weight, and another source has one; {_USAGE}")
        # Each source has figures, and a folder, under its name.
        if not is_name(match["name"]):
            raise ValueError(f"data.path={path}: {match['name']!r} is no name of letters and digits; {_USAGE}")
        # Also what float() reads and is no weight: nan, inf.
        try:
            weight = float(match["weight"])
        except ValueError:
            weight = math.nan
        if not 0.0 < weight < math.inf:
            raise ValueError(f"data.path={path}: {match['weight']!r} is no positive number; {_USAGE}")
        sources.append(MixedPath(match["name"], weight, match["path"]))
    # Of so many sequences one at least, or its share could not be kept (`pretraining.mixture`).
    total = sum(each.weight for each in sources)
    for each in sources:
        if not each.weight / total >= 1 / CYCLE:
            raise ValueError(
                f"data.path={each.name}=…: its share of the weights, {each.weight / total:.1e}, is less than one of "
                f"{CYCLE:,} sequences; raise its weight, or lower the others"
            )
    names = [each.name for each in sources]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise ValueError(f"data.path names {twice!r} twice; give each source a name of its own")
    return tuple(sources)

"""Folders of parts: each part is a folder with a part.json that names the work it belongs to and seals its files."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from contexture.data import mirror
from contexture.data.binary_files import FileEntry, Kind, fingerprint_of, misfit
from contexture.data.errors import DataError
from contexture.data.plain_files import open_plain, read_plain
from contexture.data.storage import atomic_folder

FORMAT = 1
PART = "part.json"
_NAME = re.compile(r"part-([0-9]+)-of-([0-9]+)")
Index = TypeVar("Index", bound=Mapping[str, Any])
Made = TypeVar("Made")


class PartError(DataError):
    """A part that is missing, damaged or of another preparation: the text itself is no fault."""


def parts_name(name: str, job: str) -> str:
    """Returns the name of the folder of parts next to what is made of them; job: what tells preparations apart."""
    return f".{name}.parts-{job}"


def part_name(part: int, count: int) -> str:
    """Returns the name of a part's folder."""
    return f"part-{part:05d}-of-{count:05d}"


def write_index(folder: Path, index: dict[str, object]) -> None:
    """Writes a part's part.json, with its format and its fingerprint."""
    # The fingerprint is last, since it covers all that is above it.
    index = {"format": FORMAT, **index}
    index["fingerprint"] = fingerprint_of(index)
    (folder / PART).write_text(json.dumps(index, indent=1) + "\n", "utf-8")


def read_index(folder: Path, kind: Kind, job: Mapping[str, object] | None = None) -> dict[str, Any]:
    """Returns the content of a part's part.json. Raises: DataError where it is none, damaged, or of another job.

    kind: the type of everything in it.
    """
    file = folder / PART
    again = f"delete {folder}, and make the part again"
    try:
        index = json.loads(read_plain(file))
        known = index["format"] == FORMAT and index["fingerprint"] == fingerprint_of(index)
    except OSError as error:
        raise PartError(f"{file}: cannot be read ({error.strerror}); {again}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise PartError(f"{file}: not the description of a part; {again}") from None
    # The fingerprint covers all of it: a part that was half copied, or changed by hand, is seen here.
    if not known or misfit(index, kind):
        raise PartError(f"{file}: damaged, its content does not match its fingerprint; {again}")
    if job is not None and index["job"] != job:
        raise PartError(f"{folder}: a part of another preparation ({_difference(index['job'], job)}); {again}")
    return index


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Returns the first fact in which two preparations differ, in words."""
    # Facts of both: one may have a fact that the other lacks.
    name = next(name for name in {**one, **other} if one.get(name) != other.get(name))
    # Of sources, the first that only one of them has.
    if name != "sources":
        return f"{name.replace('_', ' ')} {one.get(name)}, not {other.get(name)}"
    ours, theirs = one["sources"], other["sources"]
    odd = next((each for each in [*ours, *theirs] if each not in ours or each not in theirs), None)
    return f"other sources: {odd['name']} of {odd['size']:,} bytes" if odd else "its sources in another order"


def parts_in(folder: Path, read: Callable[[Path, Mapping[str, object] | None], Index]) -> Sequence[tuple[Path, Index]]:
    """Returns the parts in a folder, in their order. read: gives the part.json of one, of a given job.

    Raises: DataError where one is missing, or of another job.
    """
    mirror.fetched(folder)
    # By their names alone: a part that is being written has another one.
    names = sorted(each.name for each in folder.iterdir() if _NAME.fullmatch(each.name)) if folder.is_dir() else []
    if not names:
        raise PartError(f"{folder}: holds no parts of a preparation; make them with --part 0/N to N-1/N")
    # One number of parts: those of another would have some of the text twice.
    counts = sorted({int(name.split("-")[-1]) for name in names})
    if len(counts) > 1:
        raise PartError(f"{folder}: holds parts of {counts[0]} and of {counts[1]}; delete those of one")
    count = counts[0]
    missing = [number for number in range(count) if part_name(number, count) not in names]
    if missing:
        more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        mend = f"make it with --part {missing[0]}/{count}"
        raise PartError(f"{folder}: part {missing[0]} of {count}{more} missing; {mend}")
    # All parts must be of one preparation, which the first one names.
    first = read(folder / names[0], None)
    parts = [(folder / name, read(folder / name, first["job"])) for name in names]
    for place, index in parts:
        if part_name(index["part"], index["of"]) != place.name:
            raise PartError(f"{place}: holds part {index['part']} of {index['of']}; give it its name, or make it again")
    return parts


class PartReader:
    """A file of a part, read once from its beginning to its end and compared with its digest then."""

    def __init__(self, folder: Path, files: Mapping[str, FileEntry], name: str) -> None:
        self._path, self._sha256 = folder / name, files[name]["sha256"]
        try:
            self._file, self._digest = open_plain(self._path), hashlib.sha256()
        except OSError:
            raise self._damaged() from None

    def read(self, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Returns the next numbers, at most so many."""
        raw = self._file.read(count * dtype.itemsize)
        self._digest.update(raw)
        if len(raw) < count * dtype.itemsize:
            raise self._damaged()
        return np.frombuffer(raw, dtype)

    def rest(self) -> bytes:
        """Returns what is left, and closes the file. Raises: DataError where it is not as it was written."""
        # Nothing is left of a file that was copied: more would make another digest.
        raw = self._file.read()
        self._digest.update(raw)
        self._end()
        return raw

    def lines(self) -> Iterator[bytes]:
        """Yields what is left in whole lines, and closes the file. Raises: as `rest`, behind the last."""
        for line in self._file:
            self._digest.update(line)
            yield line
        self._end()

    def _end(self) -> None:
        self.close()
        if self._digest.hexdigest() != self._sha256:
            raise self._damaged()

    def close(self) -> None:
        self._file.close()

    def _damaged(self) -> PartError:
        return PartError(f"{self._path}: damaged, not what was written; delete {self._path.parent}, and make it again")


@contextlib.contextmanager
def new_part(place: Path, check: Callable[[], object]) -> Iterator[Path]:
    """Gives a folder to write a part into, which appears at `place` when it is whole. check: raises where the part that
    is there is of another job."""
    # Whoever sees the folder need not make it.
    try:
        with atomic_folder(place) as partial:
            yield partial
    except DataError:
        # Made by somebody else meanwhile: then it is the same.
        if not (place / PART).is_file():
            raise
        check()


def with_parts(to: Path, facts: Mapping[str, object], make: Callable[[Path], Made], hidden: bool = True) -> Made:
    """Calls `make` with the folder of the parts of a job, next to `to`, and deletes it at the end. Where the work is
    stopped it stays, and the next call of the same job resumes with the parts that are done.

    Args:
        to: where what is made of the parts will be.
        facts: what tells jobs apart.
        make: the work.
        hidden: whether the folder's name begins with a dot.

    Raises: as `make`; DataError where another process makes the same.
    """
    # Named after the preparation: parts of another text or vocabulary are never taken for its own.
    name = parts_name(to.name, fingerprint_of(facts)[:8])
    parts = to.with_name(name if hidden else name[1:])
    with _alone(parts):
        try:
            made = make(parts)
        except PartError:
            raise
        except DataError:
            # The text must change, and these parts could not be used again.
            mirror.remove(parts)
            raise
        except BaseException:
            # Only where no part is done.
            with contextlib.suppress(OSError):
                parts.rmdir()
            raise
        mirror.remove(parts)
    return made


@contextlib.contextmanager
def _alone(parts: Path) -> Iterator[None]:
    """Holds a folder of parts for this process. Raises: DataError where another one is at work there."""
    parts.mkdir(parents=True, exist_ok=True)
    number = os.open(parts, os.O_RDONLY)
    try:
        try:
            # The lock ends with its process, however it ends.
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{parts}: another process makes the same now; wait for it") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(number)

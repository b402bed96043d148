"""Files and folders that appear whole or not at all, and never replace something else.

A file is written next to its place as `.NAME.XXXXXXXX.partial`, a name that nobody else has, and is renamed when it is
whole. So a killed process leaves a partial file behind and harms nothing, and no clean-up can meet a file that somebody
else has made.
"""

import itertools
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Protocol

from contexture.data import mirror
from contexture.data.errors import DataError

_unfinished: set[Path] = set()
"""Partial files and folders that this process is writing now."""
_PARTIAL = re.compile(r"\.(.+)\.[0-9a-f]{8}\.partial")


_ADDRESS = re.compile(r"(gs|gcs|s3|s3a|az|abfs|abfss|wasbs|hdfs|https?|ftp|file):/")


def is_address(path: Path | str) -> bool:
    """Returns whether a path is an address (hdfs://…), which would become a local folder by mistake."""
    return _ADDRESS.match(str(path)) is not None


def check_no_address(path: Path | str) -> None:
    """Raises: DataError for an address that is not read or written. Those of buckets have become paths before."""
    if is_address(path):
        address = re.sub(r":/+", "://", str(path), count=1)  # pathlib makes one slash of two
        raise DataError(f"{address}: only gs://BUCKET/… and s3://BUCKET/… are supported; copy the files there, or here")


def partial_beside(path: Path) -> Path:
    """Returns a new name next to `path` to write to: `.run.json.1f3a9b04.partial`."""
    # In the same folder, since a rename is atomic only within a file system.
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")


def partial_of(name: str) -> str:
    """Returns the name that a partial file or folder was to get, or "" where it is none."""
    match = _PARTIAL.fullmatch(name)
    return match[1] if match else ""


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Gives a name to write to; afterwards the file is at `path`, in place of a file there, or the write has failed and
    nothing is left of it. It is on disk (fsync) before it gets its name: else a power cut could leave an empty file."""
    part = partial_beside(path)
    _unfinished.add(part)
    try:
        yield part
        # Whoever wrote has closed the file: fsync by another descriptor writes the same pages to disk.
        with open(part, "rb") as written:
            os.fsync(written.fileno())
        os.replace(part, path)
        mirror.push(path)
    except BaseException as error:
        _name_file(error, path)
        part.unlink(missing_ok=True)
        raise
    finally:
        _unfinished.discard(part)


@contextmanager
def atomic_folder(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """Gives a new folder to write into; afterwards it is at `path`, or the work has failed and nothing is left of it.

    Args:
        path: where the folder will be.
        overwrite: whether it may replace a folder there; every file of that folder must be replaced.

    Raises:
        DataError: when `path` is taken, before the work or after it.
    """
    check_free(path, overwrite)
    path = Path(os.path.realpath(path))
    # Links are followed first: the folder is made where they lead, and they stay links.
    # The name is known to the handler of signals, which ends the process without running the clean-up below.
    part = partial_beside(path)
    _unfinished.add(part)
    part.mkdir(parents=True)
    try:
        yield part
        check_free(path, overwrite)  # another process may have been faster
        if overwrite and path.is_dir():
            _replace(path, part)
        else:
            os.rename(part, path)  # onto an empty folder or none: a folder with files makes this fail
        mirror.push(path)
    except BaseException as error:
        _name_file(error, path)
        shutil.rmtree(part, ignore_errors=True)  # made here, under a name that nobody else has
        raise
    finally:
        _unfinished.discard(part)


def _name_file(error: BaseException, path: Path) -> None:
    """Gives an error of the system the name of what was written, where it has none, as on a full disk."""
    if isinstance(error, OSError) and error.filename is None and error.strerror:
        error.filename = str(path)


def _replace(folder: Path, part: Path) -> None:
    """Puts a new folder in the place of an old one. Raises: DataError for an old file that the new folder lacks."""
    # Checked before anything moves: where the new folder lacks a file, the old one stays as it was.
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder)
        # A file where there was a folder would be a loss as well.
        if file.is_dir() != (part / name).is_dir() or not (part / name).exists():
            raise DataError(
                f"{folder}: holds {name}, which would not be written anew; move it away, or give another folder"
            )
    # A rename cannot replace a folder with files, so there are two. A process
    # killed in between leaves the old folder as a partial one.
    old = partial_beside(folder)
    os.rename(folder, old)
    try:
        os.rename(part, folder)
    except BaseException:
        os.rename(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def remove_unfinished() -> None:
    """Removes the partial files and folders that this process is writing: it is about to end."""
    # A copy: other threads may finish a file meanwhile.
    for part in tuple(_unfinished):
        shutil.rmtree(part, ignore_errors=True) if part.is_dir() else part.unlink(missing_ok=True)


def left_partials(path: Path) -> list[Path]:
    """Returns what killed writers of `path` have left next to it. Nobody may be writing `path` meanwhile."""
    if not path.parent.is_dir():
        return []
    return sorted(entry for entry in path.parent.iterdir() if path.name == partial_of(entry.name))


def remove_partials(folder: Path, names: list[str]) -> None:
    """Removes partial files of these names, which killed processes have left in a folder.

    Only the caller writes these names: it holds the folder's lock. Others may be writing other names meanwhile.
    """
    for entry in folder.iterdir():
        if partial_of(entry.name) in names:
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)


def move_aside(folder: Path, names: list[str], into: str) -> Path | None:
    """Moves the named entries of a folder, as far as they exist, to `into`-1, or -2, … inside it, and returns that
    folder; None where none exists."""
    # lexists is also true for links that lead nowhere: they are in the way just as well.
    present = [name for name in names if os.path.lexists(folder / name)]
    if not present:
        return None
    aside = numbered(folder / into, first=1)
    aside.mkdir()
    for name in present:
        os.rename(folder / name, aside / name)
    mirror.removed([folder / name for name in present])
    return aside


def numbered(path: Path, first: int) -> Path:
    """Returns the first of path-0, path-1, … (from the number `first`) that does not exist."""
    numbers = itertools.count(first)
    return next(each for number in numbers if not os.path.lexists(each := path.with_name(f"{path.name}-{number}")))


def check_free(path: Path | str, overwrite: bool = False) -> None:
    """Raises: DataError where a new folder cannot be made, or something exists already. An empty folder may exist, and
    any that is to be overwritten."""
    check_no_address(path)
    # What would be written is where the links lead.
    real = Path(os.path.realpath(path))
    try:
        # What is there already.
        if not overwrite and real.is_dir() and any(real.iterdir()):
            raise DataError(f"{path}: already holds something; give another folder")
        if os.path.islink(real):  # realpath has followed all links but those in a circle
            raise DataError(f"{path}: a link that leads to itself; give another path")
        # A folder is put in place by renaming, which neither a mount nor a file nor our own folder allows.
        if os.path.ismount(real):
            raise DataError(f"{path}: a mounted disk, which a folder cannot replace; give a folder inside it")
        if real.exists() and not real.is_dir():
            raise DataError(f"{path}: a file where a folder is wanted; give another folder")
        if real in (here := Path.cwd().resolve(), *here.parents):
            raise DataError(f"{path}: the current folder or one above it, which cannot be replaced; give another")
        # The folder that exists and that new ones would be made in.
        above = next(folder for folder in real.parents if folder.exists())
    except OSError as error:
        raise DataError(f"{path}: cannot be a folder ({error.strerror}); give another one") from None
    # Whether the folder could be made at all.
    if not above.is_dir():
        raise DataError(f"{path}: cannot be a folder, {above} is a file; give another one")
    if not os.access(above, os.W_OK | os.X_OK):
        raise DataError(f"{path}: cannot be made, {above} may not be written to; give another folder")


def check_new_file(file: Path, overwrite: bool = False) -> None:
    """Raises: DataError for a file that exists, unless it is to be overwritten; then for what is no plain file."""
    if os.path.lexists(file) and not overwrite:
        raise DataError(f"{file}: there is such a file already; give another name, or --overwrite")
    if file.exists() and not file.is_file():
        raise DataError(f"{file}: not a plain file, which is not overwritten; give another name")


def without_parents(path: Path) -> Path:
    """Returns the absolute path without `..`. Links stay as they are where there is none.

    TensorStore drops `link/..` by the names, while the file system goes up from where the link leads.
    """
    # Not by pathlib, which raises for links that lead in a circle: whoever opens the path says so in one line.
    return Path(os.path.realpath(path)) if ".." in path.parts else path.absolute()


def check_run_path(folder: Path, option: str = "dir", writes: bool = True) -> None:
    """Raises: DataError where Orbax and TensorStore, which keep a run's arrays, read a path otherwise than the system.

    TensorStore reads a backslash as `/`, and takes text alone. Orbax merges what several processes wrote by a glob over
    the whole path, which may match nothing, or another run.

    Args:
        folder: the run's folder.
        option: the option that names it, for the message.
        writes: whether the run is written to; else it is only read.
    """
    path = str(without_parents(folder))
    # Reading needs less: only the backslash misleads TensorStore then.
    for sign in "\\*?[" if writes else "\\":
        if sign in path:
            at = "" if sign in str(folder) else f" ({path})"
            raise DataError(
                f"{option}={folder}: the path{at} holds {sign!r}, which Orbax reads as a pattern or as a separator; "
                "give a path without it, or a link to the folder from such a path"
            )
    try:
        # Bytes that are no UTF-8 come as lone surrogates, which do not encode.
        path.encode()
    except UnicodeEncodeError:
        raise DataError(
            f"{option}={path.encode('utf-8', 'backslashreplace').decode()}: the path holds bytes that are no UTF-8, "
            "which TensorStore cannot take; give another path, or a link to the folder"
        ) from None


class _Unfailing:
    """A file for HDF5's library, which ends the process where it cannot write its last bytes when a file is closed.

    An error is kept instead of raised; from then on nothing is written, and what is read is zeros.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.error: OSError | None = None
        self._file, self._place, self._end = file, 0, 0

    def check(self) -> None:
        """Raises: OSError, the first one that a write met."""
        if self.error is not None:
            raise self.error

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._end}[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: memoryview) -> int:
        self._file.seek(self._place)
        content = self._file.read(len(buffer))
        # Zeros for what was never written, after an error.
        buffer[:] = content.ljust(len(buffer), b"\0")
        self._place += len(buffer)
        return len(buffer)

    def read(self, size: int = -1) -> bytes:
        buffer = bytearray(self._end - self._place if size < 0 else size)
        self.readinto(memoryview(buffer))
        return bytes(buffer)

    def write(self, data: bytes | memoryview) -> int:
        view, size = memoryview(data).cast("B"), memoryview(data).nbytes
        try:
            self._file.seek(self._place)
            # A file without a buffer may write only a part.
            while self.error is None and len(view):
                view = view[self._file.write(view) :]
        except OSError as error:
            self.error = error
        # The place moves on after an error too: HDF5 goes on as if the write had been done.
        self._place += size
        self._end = max(self._end, self._place)
        return size

    def truncate(self, size: int | None = None) -> int:
        self._end = self._place if size is None else size
        try:
            if self.error is None:
                self._file.truncate(self._end)
        except OSError as error:
            self.error = error
        return self._end

    def flush(self) -> None:
        """The file has no buffer."""


class WriteDataset(Protocol):
    """Takes the name of a dataset, its array, and attributes, each a list of strings."""

    def __call__(self, name: str, array: Any, attributes: Mapping[str, Sequence[str]] = ..., /) -> None: ...


@contextmanager
def hdf5_writer(path: Path) -> Iterator[WriteDataset]:
    """Opens a new *.hdf5; the function that is given writes an array as a dataset, and lists of strings as its
    attributes.

    Raises: OSError for a disk that is full, when a dataset is written or the file is closed.
    """
    import h5py

    with open(path, "w+b", buffering=0) as opened:
        file = _Unfailing(opened)
        # Of the format of HDF5 1.8 (2008): an older one has no room for an attribute of more than 64 KB.
        with h5py.File(file, "w", libver=("v108", "v108")) as hdf5:  # pyright: ignore[reportArgumentType]

            def write(name: str, array: Any, attributes: Mapping[str, Sequence[str]] = MappingProxyType({})) -> None:
                dataset = hdf5.create_dataset(name, data=array)
                for attribute, texts in attributes.items():
                    # With a type of its own: text of any length in UTF-8.
                    dataset.attrs.create(attribute, texts, (len(texts),), h5py.string_dtype())
                # An error that the file has kept is raised here, outside of HDF5's own code.
                file.check()

            yield write
        # Closing writes the last bytes, for which the disk may have had no room.
        file.check()

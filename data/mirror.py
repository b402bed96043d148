"""Paths in buckets: gs:// and s3:// addresses as folders of this process, which follow the bucket.

Inside the program there are local paths alone. Where a path comes in (the command line, the functions of `contexture`,
a run.json), `local` turns an address into a path below a temporary folder, and fetches what the bucket holds there;
where a text goes out (a message, a table, a run.json), `with_addresses` turns it back. `push` and `sync` write to the
bucket what was written below that folder; arrays of checkpoints never pass through it, since Orbax reads and writes
them in the bucket itself (`arrays_at`).

An object is written whole, so a reader sees the old one or the new one. Files that only grow (APPENDED) are written
as one object and parts that follow it, and joined when they are fetched.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from contexture.data import bucket
from contexture.data.bucket import Address, parse_address
from contexture.data.process_folder import process_folder

APPENDED = ("metrics.jsonl", "log.txt")
"""Files that are only added to, between two writes of the whole."""
_PARTS = ".parts"
_LATE = re.compile(r"((?:.*/)?)checkpoints/([0-9]+)/(.+)")
_COMMITTED = "commit_success.txt"
"""Orbax writes this object last: a checkpoint without it was never finished."""
_LAST = ("index.json", "run.json")
"""What makes a folder a run, or shards: written after everything else."""
_BY_RANGES = re.compile(r"((?:.*/)?)(?:sentences|train|dev|tokens-[0-9]+)\.bin")
"""Files of shards that are read by ranges, where the digests of their blocks lie beside them."""

_lock = threading.RLock()
_roots: list[Path] = []
_known: dict[Path, tuple[int, int, int]] = {}
"""Files that are in the bucket as they are here: their inode, size and time of change."""
_wholes: dict[Path, tuple[str, int]] = {}
"""Files of APPENDED: the name that the parts of the present whole begin with, and how many bytes are written."""


_places: set[Path] = set()
"""The paths that `local` has returned."""
_looked: dict[Path, float] = {}
"""When each folder of checkpoints was listed last: a training asks after each step."""
_left: set[Path] = set()
"""Files of _BY_RANGES that were left in the bucket."""
_GLANCE = 5.0
"""Seconds for which the list is taken as it is."""
_guards: dict[Path, Callable[[], None]] = {}


def guard(folder: Path, check: Callable[[], None] | None) -> None:
    """Has `check` called before anything is written below a folder; None ends that. It raises to forbid the write."""
    if check is None:
        _guards.pop(folder, None)
    else:
        _guards[folder] = check


def check_guard(path: Path) -> None:
    """Raises: what the guard of a folder above raises, where this process may not write there any more."""
    # A run within a grid has two: both must still be held.
    for folder, check in tuple(_guards.items()):
        if folder == path or folder in path.parents:
            check()


def _root() -> Path:
    # Folder and known files are of this process alone: two processes on one machine never share them.
    if not _roots:
        _roots.append(process_folder())
    return _roots[0]


def address_of(path: Path | str) -> Address | None:
    """Returns the address that a path stands for; None for a path of this machine, and outside a bucket."""
    if not _roots:
        return None
    # By the name alone: nothing is looked up, and `..` cannot lead out of the folder unseen.
    try:
        scheme, *rest = Path(os.path.normpath(Path(path).absolute())).relative_to(_roots[0]).parts
    except ValueError:
        return None
    return Address(scheme, rest[0], "/".join(rest[1:])) if rest else None


def with_addresses(text: str) -> str:
    """Returns a text with addresses in place of the paths that stand for them."""
    # No folder, no address: most processes pass through here with an empty list.
    for root in _roots:
        text = re.sub(re.escape(str(root)) + r"/(gs|s3)/", r"\1://", text)
    return text


def local(path: Path | str) -> str:
    """Returns a path of this machine for an address, after fetching what the bucket holds there; another path as it is.

    Raises:
        BucketError: where the bucket cannot be read.
    """
    address = parse_address(path)
    if address is None:
        return str(path)
    place = _place(address)
    # In a long process the bucket may have changed since the last call.
    if place in _places and not _owned(place):
        fetch_again(place)
    else:
        # The thread of a lease may be writing the same files to the bucket.
        with _lock:
            refresh(place)
    _places.add(place)
    # A bucket has every folder: a file may be written below any name.
    place.parent.mkdir(parents=True, exist_ok=True)
    return str(place)


def fetch_again(folder: Path) -> None:
    """Fetches all that the bucket holds at a path, whatever was known of it. Files that it has never had stay."""
    with _lock:
        for file in _forget(folder):
            file.unlink(missing_ok=True)
        for checkpoints in [each for each in _looked if folder in each.parents]:
            look_again(checkpoints)
        refresh(folder)


def finish() -> None:
    """Writes to the bucket what a command has left at the addresses that it was given: lines that it added, tables."""
    for place in tuple(_places):
        if place.is_dir():
            sync(place)
        elif place.is_file() and _known.get(place) != _state(place):
            push(place)


def _place(address: Address) -> Path:
    return _root().joinpath(address.scheme, address.bucket, *Path(address.key).parts)


def placed(path: str) -> str:
    """Returns the path that stands for an address, without fetching anything; another path as it is."""
    address = parse_address(path)
    return path if address is None else str(_place(address))


def fetched(path: Path | str) -> None:
    """Fetches what the bucket holds at a path that was never looked at. Raises: as `refresh`."""
    # What is here is taken as it is; commands are short, and a training is the one writer.
    if _roots and (address := address_of(path)) is not None and address.key and not os.path.exists(path):
        with _lock:
            refresh(Path(path))


def refresh(folder: Path) -> None:
    """Fetches what the bucket holds at a path and what is not here yet: a file, or the files of a folder.

    Raises:
        BucketError: where the bucket cannot be read.
    """
    if (address := address_of(folder)) is None:
        return
    names = bucket.keys(address)
    # Nothing below it: an object, or nothing at all.
    if not names:
        if address.key and folder not in _known:
            _fetch([(address, folder)])
        return
    # An empty folder does not exist in a bucket.
    folder.mkdir(parents=True, exist_ok=True)
    # Parts are joined, and checkpoints chosen, below.
    late = {name: match for name in names if (match := _LATE.fullmatch(name)) and f"{match[1]}run.json" in names}
    wanted = [name for name in names if name not in late and not _is_part(name)]
    # run.json and the metrics change while a run goes on; the other files are written once.
    changing = ("run.json", *APPENDED) if not _owned(folder) else ()
    by_ranges = {name for name in wanted if (match := _BY_RANGES.fullmatch(name)) and f"{match[1]}digests.bin" in names}
    # Shards without digests of their blocks, of earlier versions, are fetched whole.
    _left.update(folder / name for name in by_ranges)
    _fetch(
        [
            (address / name, folder / name)
            for name in wanted
            if name not in by_ranges and (folder / name not in _known or Path(name).name in changing)
        ]
    )
    _join(address, folder, names)
    # Each folder of checkpoints below: committed steps alone, without their arrays.
    for checkpoints in {name[: match.start(2)] for name, match in late.items()}:
        _refresh_steps(
            folder / checkpoints, [name[len(checkpoints) :] for name in names if name.startswith(checkpoints)]
        )


def is_left(file: Path) -> bool:
    """Returns whether a file of shards lies in the bucket alone. `fetched` fetches it whole."""
    return file in _left and not file.exists()


def _owned(folder: Path) -> bool:
    """Returns whether this process holds the lease of a folder or of one above it, so that its files are the newest."""
    return any(each == folder or each in folder.parents for each in _guards)


def _fetch(pairs: Sequence[tuple[Address, Path]]) -> None:
    # Under temporary names first: nobody reads half a file. A folder is made only for what is there.
    with tempfile.TemporaryDirectory(dir=_root()) as scratch:
        parts = [Path(scratch) / str(number) for number in range(len(pairs))]
        generations = bucket.download_all([(address, part) for (address, _), part in zip(pairs, parts, strict=True)])
        for (_, file), part, generation in zip(pairs, parts, generations, strict=True):
            if generation is not None:
                os.replace(part, _made(file))
                _know(file)
                if file.name in APPENDED:
                    _wholes[file] = _mark(generation), file.stat().st_size


def _know(file: Path) -> None:
    _known[file] = _state(file)


def _state(file: Path) -> tuple[int, int, int]:
    status = file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _mark(generation: bytes) -> str:
    """Returns what the parts of a whole object are called by: parts of an earlier whole have another name."""
    return hashlib.sha256(generation).hexdigest()[:16]


def _is_part(name: str) -> bool:
    return any(f"{each}{_PARTS}/" in name for each in APPENDED)


def _join(address: Address, folder: Path, names: Sequence[str]) -> None:
    """Adds to the files of APPENDED the parts that follow them."""
    for name in names:
        file = folder / name
        if file.name not in APPENDED or file not in _wholes:
            continue
        # Parts of an earlier whole, which a kill has left, are called by another mark.
        mark, size = _wholes[file]
        parts = f"{name}{_PARTS}/{mark}-"
        for part in (each for each in names if each.startswith(parts)):
            # In the order of their places, which have as many digits each: one that is here already is passed over.
            if int(part.rpartition("-")[2]) == size and (value := bucket.read(address / part).value):
                with open(file, "ab") as opened:
                    size += opened.write(value)
        # What was joined is in the bucket: it is not written there again.
        _wholes[file] = mark, size
        _know(file)


def refresh_steps(checkpoints: Path) -> None:
    """Makes a folder of checkpoints hold the steps that are committed in the bucket, without their arrays.

    Raises:
        BucketError: where the bucket cannot be read.
    """
    # A list of all objects is one request for each thousand of them.
    if (address := address_of(checkpoints)) is None or time.monotonic() - _looked.get(checkpoints, -_GLANCE) < _GLANCE:
        return
    with _lock:
        _refresh_steps(checkpoints, bucket.keys(address))
        _looked[checkpoints] = time.monotonic()


def look_again(checkpoints: Path) -> None:
    """Has the next `refresh_steps` ask the bucket, though it has just been asked."""
    _looked.pop(checkpoints, None)


def _refresh_steps(checkpoints: Path, names: Sequence[str]) -> None:
    address = address_of(checkpoints)
    assert address is not None
    # STEP/commit_success.txt itself: each item of a checkpoint has one of its own too.
    committed = {name.partition("/")[0] for name in names if name.partition("/")[2] == _COMMITTED}
    new = [
        name
        for name in names
        if name.partition("/")[0] in committed
        and not name.partition("/")[2].startswith("state/")
        and checkpoints / name not in _known
    ]
    # A step appears here whole: the folder takes its name when its files are there.
    for step in {name.partition("/")[0] for name in new}:
        files = [name for name in new if name.partition("/")[0] == step]
        # Here already: an evaluation that came later.
        if (checkpoints / step).is_dir():
            _fetch([(address / name, checkpoints / name) for name in files])
            continue
        with tempfile.TemporaryDirectory(dir=_root()) as scratch:
            bucket.download_all(
                [(address / name, _made(Path(scratch) / "step" / name.partition("/")[2])) for name in files]
            )
            checkpoints.mkdir(parents=True, exist_ok=True)
            os.rename(Path(scratch) / "step", checkpoints / step)
        for name in files:
            _know(checkpoints / name)
        _date(checkpoints / step)
    # Steps that retention has removed, or that somebody has.
    for folder in checkpoints.iterdir() if checkpoints.is_dir() else ():
        if folder.name.isdigit() and folder.name not in committed and not (folder / "state").is_dir():
            shutil.rmtree(folder, ignore_errors=True)
            _forget(folder)


def _date(step: Path) -> None:
    """Gives the folder of a step the time of its commit."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        noted, file = (step / _COMMITTED).read_text("utf-8"), step / "_CHECKPOINT_METADATA"
        # One that was written here, and not by Orbax in the bucket, notes it in its mark.
        nanoseconds = json.loads(file.read_text("utf-8"))["commit_timestamp_nsecs"] if file.exists() else int(noted)
        os.utime(step, ns=(nanoseconds, nanoseconds))


def _made(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def _forget(folder: Path) -> list[Path]:
    """Forgets all files below a folder, and returns them."""
    # The next look fetches them anew, if they are in the bucket again.
    gone = [file for file in tuple(_known) if file == folder or folder in file.parents]
    for file in gone:
        _known.pop(file, None)
        _wholes.pop(file, None)
    return gone


def remove_uncommitted(checkpoints: Path) -> None:
    """Deletes the objects of checkpoints that were never committed. Nobody may be writing one meanwhile."""
    # The lease is held, so what is there was left by a process that was killed.
    if (address := address_of(checkpoints)) is not None:
        names = bucket.keys(address)
        committed = {name.partition("/")[0] for name in names if name.partition("/")[2] == _COMMITTED}
        bucket.delete(address / name for name in names if name.partition("/")[0] not in committed)


def move(source: Path, target: Path) -> None:
    """Moves a folder, here and in the bucket, object by object, since a bucket renames nothing."""
    old, new = address_of(source), address_of(target)
    assert old is not None and new is not None
    # Copied first, deleted last: a kill leaves two, and loses nothing.
    names = bucket.keys(old)
    with tempfile.TemporaryDirectory(dir=_root()) as scratch:
        # One at a time, through the disk: arrays may be larger than memory.
        for name in names:
            bucket.download(old / name, Path(scratch) / "object")
            copy = Path(scratch) / "object"
            bucket.upload_all([(copy, copy.stat().st_size, new / name)])
    bucket.delete(old / name for name in names)
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.exists():
        os.rename(source, target)
    _forget(source)


def arrays_at(path: Path) -> str:
    """Returns where the arrays of a path lie, for Orbax: in the bucket, or at the path where they are here."""
    address = address_of(path)
    return str(path) if address is None or path.exists() else str(address)


def push(path: Path) -> None:
    """Writes a file, or all files of a folder, to the bucket; does nothing for a path outside one.

    Raises:
        BucketError: where the bucket cannot be written.
    """
    # Nothing of a folder that is still being written, under a name that begins with a dot: it is pushed as a whole.
    if (address := address_of(path)) is None or any(part.startswith(".") for part in address.key.split("/")):
        return
    check_guard(path)
    with _lock:
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        # Order: who reads meanwhile takes a folder for whole once it has the last of these.
        last = [file for file in files if file.name in _LAST and file.parent == path]
        _write([file for file in files if file not in last])
        # A checkpoint that was written here, and not by Orbax in the bucket, counts from now on.
        for step in {
            Path(match[0]) for file in files if (match := re.match(r".*/checkpoints/[0-9]+(?=/state/)", str(file)))
        }:
            mark = address_of(step / _COMMITTED)
            assert mark is not None
            (step / _COMMITTED).write_text(str(time.time_ns()), "utf-8")
            bucket.write(mark, (step / _COMMITTED).read_bytes())
            _know(step / _COMMITTED)
        _write(last)


def _write(files: Sequence[Path]) -> None:
    # Noted before they are read: what is added meanwhile is found by the next `sync`.
    states = [file.stat() for file in files]
    wanted = [
        (file, status.st_size, address)
        for file, status in zip(files, states, strict=True)
        if (address := address_of(file)) is not None
    ]
    for file, status, generation in zip(files, states, bucket.upload_all(wanted), strict=True):
        _known[file] = status.st_ino, status.st_size, status.st_mtime_ns
        if file.name in APPENDED:
            address = address_of(file)
            assert address is not None
            # The parts of the whole before this one.
            old = Address(address.scheme, address.bucket, address.key + _PARTS)
            mark, parts = _mark(generation), bucket.keys(old)
            # In s3 a whole of the same content has the same generation. The last part of it goes first: what a kill
            # leaves is the file as it was up to some part, and no gap that later parts would fill.
            for name in reversed([name for name in parts if name.startswith(mark)]):
                bucket.delete([old / name])
            bucket.delete(old / name for name in parts if not name.startswith(mark))
            _wholes[file] = mark, status.st_size


def sync(folder: Path) -> None:
    """Writes to the bucket what has changed below a folder since it was fetched or written.

    Raises:
        BucketError: where the bucket cannot be written.
    """
    if address_of(folder) is None:
        return
    check_guard(folder)
    with _lock:
        changed: list[Path] = []
        for file in sorted(folder.rglob("*")):
            name = str(file.relative_to(folder))
            # Names that begin with a dot are of files being written; the lock is the lease's.
            if name.startswith(".") or "/." in name or file.name == "lock" or _LATE.fullmatch(name):
                continue
            with contextlib.suppress(FileNotFoundError):  # moved a moment ago
                now = _state(file)
                if _known.get(file) == now or not file.is_file() or file.is_symlink():
                    continue
                # The same file as before, and longer: only what was added is written.
                if file.name in APPENDED and file in _wholes and _known.get(file, (0,))[0] == now[0]:
                    _append(file)
                else:
                    changed.append(file)
        _write(changed)


def removed(paths: Sequence[Path]) -> None:
    """Deletes from the bucket files and folders that this process has moved or removed here.

    Only what is said so is ever deleted: that a file is missing here, where others may clean up, means nothing.
    """
    with _lock:
        gone = [file for path in paths if address_of(path) for file in _forget(path)]
        bucket.delete(address for file in gone if (address := address_of(file)) is not None)


def remove(folder: Path) -> None:
    """Deletes a folder, here and in the bucket, with what other processes have written there."""
    # This process's copy, or all there is.
    shutil.rmtree(folder, ignore_errors=True)
    address = address_of(folder)
    # Nothing is in the bucket below a hidden name.
    if address is not None and not any(part.startswith(".") for part in address.key.split("/")):
        with _lock:
            _forget(folder)
            bucket.delete(address / name for name in bucket.keys(address))


def _append(file: Path) -> None:
    """Writes what was added to a file as a part of its own."""
    mark, size = _wholes[file]
    address = address_of(file)
    assert address is not None
    # As in `_write`: what comes later than this look is left for the next.
    status = file.stat()
    with open(file, "rb") as opened:
        opened.seek(size)
        added = opened.read(status.st_size - size)
    # Its place in the whole is its name: parts are joined in that order, each once.
    if added:
        parts = Address(address.scheme, address.bucket, address.key + _PARTS)
        bucket.write(parts / f"{mark}-{size:020d}", added)
    _wholes[file] = mark, size + len(added)
    _known[file] = status.st_ino, status.st_size, status.st_mtime_ns

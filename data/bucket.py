"""Objects of a bucket, gs://NAME/KEY and s3://NAME/KEY: read whole or by ranges, listed, written, deleted.

All goes through TensorStore's KvStore, which tries again after a lost answer, a cut one or a 503, and which writes only
where an object still has the generation that the writer has seen. Each call ends within a deadline: a store that does
not answer is an error of one line, and no hang.
"""

import contextlib
import contextvars
import errno
import functools
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

_ADDRESS = re.compile(r"(gs|s3):/+([^/]+)(?:/+(.*))?", re.DOTALL)
PIECE = 8 << 20
"""Bytes of an object that are held in memory at once."""
_AT_ONCE, _UPLOADS = 16, 4
"""Objects that are read, and written, at once."""
_LARGE = 32 << 20
"""Bytes of a file above which it is uploaded alone."""
_SLOWEST = 1 << 20
"""Bytes a second below which a connection counts as gone."""
_RETRIES = {"max_retries": 8, "initial_delay": "500ms", "max_delay": "8s"}
_AGAIN = 8
"""Part of the limit in which a call must end after one that got no answer: the end of a command has several."""
_PROBE = 5.0
"""Seconds between two looks at whether the store still answers."""

T = TypeVar("T")
_silent, _left = threading.Event(), threading.Event()
"""Set: the last call got no answer; others' work was left that may wait for one."""


def deadline() -> float:
    """Returns the seconds in which a call must end, its retries included."""
    return float(os.environ.get("CONTEXTURE_BUCKET_SECONDS", "120"))


class Address(NamedTuple):
    """An object, or a folder of objects, of a bucket."""

    scheme: str
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}".rstrip("/")

    def __truediv__(self, name: str) -> "Address":
        return self._replace(key=f"{self.key}/{name}".lstrip("/"))


def parse_address(path: Path | str) -> Address | None:
    """Returns the address that a path is, also with the one slash that pathlib leaves of two; None for another path."""
    match = _ADDRESS.fullmatch(str(path))
    # A folder is the same with and without its last slash.
    return Address(match[1], match[2], (match[3] or "").rstrip("/")) if match else None


class BucketError(OSError):
    """A bucket that cannot be read or written: an error of the system, as that of a disk."""

    def __init__(self, address: Address, reason: str, forbidden: bool = False) -> None:
        """forbidden: whether the server has answered, that this must not be done."""
        super().__init__(errno.EIO, reason, str(address))
        self.forbidden = forbidden

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class Stored(NamedTuple):
    """What an object holds (None: there is no such object), and its generation, which changes with each write."""

    value: bytes | None
    generation: bytes


def store_spec(scheme: str, bucket: str) -> dict[str, Any]:
    """Returns TensorStore's description of a bucket."""
    if scheme == "gs":
        return {"driver": "gcs", "bucket": bucket, "context": {"gcs_request_retries": _RETRIES}}
    context: dict[str, Any] = {"s3_request_retries": _RETRIES}
    # Left to look everywhere, TensorStore prints a line for each file of credentials that is missing.
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        context["aws_credentials"] = {"type": "environment"}
    # Conditions are the server's to check: on other servers than Amazon's TensorStore would ask first, and then write.
    spec = {"driver": "s3", "bucket": bucket, "use_conditional_write": True, "context": context}
    # TensorStore does not read these variables, which every other client of S3 does.
    if endpoint := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        spec["endpoint"] = endpoint
    if region := os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        spec["aws_region"] = region
    return spec


@functools.cache
def _store(scheme: str, bucket: str) -> Any:
    import tensorstore as ts  # here, since it takes a while, and most commands open no bucket

    # Opening asks nothing of the server yet.
    try:
        return ts.KvStore.open(store_spec(scheme, bucket)).result(timeout=deadline())
    except Exception as error:
        raise _failed(Address(scheme, bucket, ""), error) from None


def _failed(address: Address, error: BaseException) -> BucketError:
    if isinstance(error, TimeoutError):
        wait = f"the bucket's server does not answer within {deadline():g} s"
        return BucketError(address, f"{wait}; check the network, and start again")
    # The message's head: what follows in brackets is the server's page and the place in TensorStore's source.
    reason = " ".join(str(error).split(" [")[0].split())[:200] or type(error).__name__
    if forbidden := bool(re.search(r"PERMISSION_DENIED|UNAUTHENTICATED|http_response_code='40[13]'", str(error))):
        reason += "; check the credentials, and the rights on the bucket"
    return BucketError(address, reason, forbidden)


def _answer(ask: Callable[[], Any], size: int = 0) -> Any:
    """Returns the answer of a request; size: bytes that it sends, which take a second for each MiB at most."""
    # A command that ends because the store is silent still has a lease to give back, a log to write, and more.
    limit = deadline() / (_AGAIN if _silent.is_set() else 1)
    try:
        answer = ask().result(timeout=limit + size / _SLOWEST)
    except TimeoutError:
        _silent.set()
        raise
    _silent.clear()
    return answer


def _result(address: Address, ask: Callable[[], Any], size: int = 0) -> Any:
    try:
        return _answer(ask, size)
    except Exception as error:
        raise _failed(address, error) from None


def answering(address: Address | None, work: Callable[[], T]) -> T:
    """Returns `work()`, as long as the bucket answers: for work of libraries, whose limits are of half an hour.

    While the work lasts, the bucket is asked for an object every few seconds. The work is done in a thread of its own,
    which is left behind where the bucket is silent.

    Args:
        address: any object of the bucket; None: the work is elsewhere, and done as it is.
        work: what is to be done, in any thread.

    Raises:
        BucketError: where the bucket does not answer within the limit, or fails again and again.
    """
    if address is None:
        return work()
    done: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            done.set_result(context.run(work))
        except BaseException as error:
            done.set_exception(error)

    # A daemon: one that waits for ever must not keep the interpreter.
    threading.Thread(target=run, name="bucket", daemon=True).start()
    while not wait([done], min(_PROBE, deadline() / 4)).done:
        try:
            read(address)
        except BucketError as error:
            # Who may not read this object was answered all the same. Other failures were tried again for long enough.
            if not error.forbidden and not done.done():
                _left.set()
                raise
    return done.result()


def left_waiting() -> bool:
    """Returns whether work was left behind (`answering`), for whose threads the interpreter would wait at its end."""
    return _left.is_set()


def read(address: Address) -> Stored:
    """Returns an object. Raises: BucketError where the store fails or does not answer."""
    answer = _result(address, lambda: _store(address.scheme, address.bucket).read(address.key))
    return Stored(bytes(answer.value) if answer.state == "value" else None, answer.stamp.generation)


def read_range(address: Address, first: int, last: int | None, generation: bytes | None = None) -> Stored:
    """Returns bytes first … last-1 of an object (last None: to its end); None where it has fewer, or is not there.

    Raises:
        BucketError: as `read`, and where the object has another generation than this one.
    """
    try:
        store = _store(address.scheme, address.bucket)
        answer = _answer(lambda: store.read(address.key, byte_range=slice(first, last)))
    except Exception as error:
        # Of an empty object some servers name a range that TensorStore takes for an error.
        if "OUT_OF_RANGE" in str(error) or "Unexpected Content-Range" in str(error):
            return Stored(None, b"")
        raise _failed(address, error) from None
    if generation is not None and answer.stamp.generation != generation:
        raise BucketError(address, "was written to while it was read; start again")
    return Stored(bytes(answer.value) if answer.state == "value" else None, answer.stamp.generation)


def read_ranges(ranges: Sequence[tuple[Address, int, int]]) -> list[bytes]:
    """Returns bytes first … last-1 of several objects, all requests under way together.

    Raises:
        BucketError: as `read`, and where an object is missing or shorter.
    """
    # TensorStore itself bounds how many are on the wire at once.
    waiting = [
        (address, last - first, _store(address.scheme, address.bucket).read(address.key, byte_range=slice(first, last)))
        for address, first, last in ranges
    ]
    # In their order, whichever comes first.
    values = []
    for address, size, future in waiting:
        value = bytes(_result(address, lambda future=future: future, size).value)
        if len(value) != size:
            raise BucketError(address, "is missing, or shorter than it was; put it back")
        values.append(value)
    return values


def write(address: Address, value: bytes) -> bytes:
    """Writes an object whole, in place of one there; returns its generation. Raises: as `read`."""
    store = _store(address.scheme, address.bucket)
    return _result(address, lambda: store.write(address.key, value), len(value)).generation


def swap(address: Address, value: bytes, generation: bytes) -> Stored | None:
    """Writes an object if its generation is still this one, which `read` gave, also for an object that did not exist.

    A write whose answer was lost is tried again, and then refused though it is stored. So the stored value decides, and
    each writer's must be its own.

    Returns:
        what is stored, if it is `value`, else None.

    Raises:
        BucketError: as `read`.
    """
    # Whether the write was refused is not asked: see above.
    store = _store(address.scheme, address.bucket)
    _result(address, lambda: store.write(address.key, value, if_equal=generation))
    now = read(address)
    return now if now.value == value else None


def delete(addresses: Iterable[Address]) -> None:
    """Deletes objects, as far as they exist. Raises: as `read`."""
    # All are under way before the first is waited for.
    waiting = [(each, _store(each.scheme, each.bucket).write(each.key, None)) for each in addresses]
    for address, future in waiting:
        _result(address, lambda future=future: future)


def keys(folder: Address) -> list[str]:
    """Returns the keys of all objects below a folder, relative to it, sorted. Raises: as `read`."""
    import tensorstore as ts

    # One list for all folders below: a bucket has none of its own.
    start = f"{folder.key}/" if folder.key else ""
    end = f"{folder.key}0" if folder.key else ""  # 0 follows / in ASCII
    answer = _result(folder, lambda: _store(folder.scheme, folder.bucket).list(ts.KvStore.KeyRange(start, end)))
    # Objects whose names end in / are the folders of web consoles, and hold nothing.
    names = sorted(key.decode("utf-8", "replace")[len(start) :] for key in answer if not key.endswith(b"/"))
    # Names become paths below a folder of this machine: none may lead out of it, or be a file and a folder.
    files = set(names)
    for name in names:
        parts = name.split("/")
        above = {"/".join(parts[:count]) for count in range(1, len(parts))}
        if any(part in ("", ".", "..") or "\0" in part or len(part.encode()) > 200 for part in parts) or above & files:
            raise BucketError(folder, f"holds an object {name!r}, whose name cannot be a file's on a disk; rename it")
    return names


def download(address: Address, file: Path) -> bytes | None:
    """Writes an object to a file, a piece at a time; returns its generation, or None where there is no object.

    Raises:
        BucketError: as `read_range`.
    """
    # Its size is not asked: most objects are small, and a range that is there says that one is not.
    piece = read_range(address, 0, PIECE)
    # Shorter than a piece, or absent: one more request gives the whole of it.
    if piece.value is None:
        piece = read(address)
        if piece.value is not None:
            file.write_bytes(piece.value)
        return piece.generation if piece.value is not None else None
    generation, at = piece.generation, 0
    with open(file, "wb") as opened:
        while piece.value is not None:
            at += opened.write(piece.value)
            # Of the same generation: pieces of two objects never mix.
            piece = read_range(address, at, at + PIECE, generation)
        # The rest is shorter than a piece: read without an end.
        opened.write(read_range(address, at, None, generation).value or b"")
    # A shorter object may have come in its place: its end would look like the end of this one.
    read_range(address, 0, 1, generation)
    return generation


def download_all(pairs: Sequence[tuple[Address, Path]]) -> list[bytes | None]:
    """Downloads objects to files, several at once; returns their generations in order. Raises: as `download`."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda pair: download(*pair), pairs))


def upload_all(files: Sequence[tuple[Path, int, Address]]) -> list[bytes]:
    """Uploads files, each up to a size, as objects, several small ones at once; returns their generations in order.

    Raises:
        BucketError: as `read`.
        OSError: when a file cannot be read.
    """
    alone = threading.Lock()

    def upload(each: tuple[Path, int, Address]) -> bytes:
        file, size, address = each
        store = _store(address.scheme, address.bucket)
        # An object is written from memory: of large ones, one at a time.
        with alone if size > _LARGE else contextlib.nullcontext(), open(file, "rb") as opened:
            # No more than the size, which the caller knows: what another thread adds meanwhile is written later.
            # TensorStore copies the bytes: these are let go when the call returns, before they are sent.
            return _result(address, lambda: store.write(address.key, opened.read(size)), size).generation

    with ThreadPoolExecutor(_UPLOADS) as pool:
        return list(pool.map(upload, files))

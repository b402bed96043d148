"""Checkpoints in s3://: Orbax 0.12 knows gs:// alone, and takes s3:// for a folder of a disk.

It rests on names that Orbax and etils keep to themselves, and is used only where arrays are in s3. A test compares the
names with those of the installed versions.

    gcs_utils._GCS_PATH_PREFIX           what is written into its place and committed by an object, commit_success.txt
    gcs_utils.get_kvstore_for_gcs        where TensorStore writes the arrays
    tensorstore_utils._use_gcs_driver    whether it does so in a bucket
    tensorstore_utils._normalize_path    an address without a / at its end
    etils.epath.gpath.PosixGPath         the path by which Orbax writes its small files; `_backend` is what it calls

The small files go through `contexture.data.bucket`, as all else in buckets: s3fs is not needed.
"""

import fnmatch
import functools
import io
import os
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, NoReturn

from etils import epath
from etils.epath.backend import Backend
from etils.epath.stat_utils import StatResult
from etils.epath.typing import PathLike

from contexture.data import bucket
from contexture.data.bucket import Address, parse_address
from contexture.train.errors import CheckpointError

_SCHEMES = ("gs://", "s3://")


def place(path: Path | str) -> epath.Path:
    """Returns the path of a folder of checkpoints or arrays as Orbax takes it; from an address in s3 on, it knows s3.

    Raises:
        CheckpointError: where the installed Orbax lacks the names that s3 needs.
    """
    if str(path).startswith("s3://"):
        try:
            _teach()
        except (ImportError, AttributeError, TypeError) as error:
            reason = f"orbax-checkpoint {version('orbax-checkpoint')} keeps no checkpoints in s3:// ({error})"
            raise CheckpointError(f"{reason}; install a version of 0.12, or give gs://…") from None
    return epath.Path(path)


@functools.cache
def _teach() -> None:
    from etils.epath import gpath
    from orbax.checkpoint._src.path import gcs_utils
    from orbax.checkpoint._src.serialization import tensorstore_utils

    of_gs, normal = gcs_utils.get_kvstore_for_gcs, tensorstore_utils._normalize_path

    def kvstore(path: str) -> dict[str, Any]:
        address = parse_address(path)
        if address is None or address.scheme != "s3":
            return of_gs(path)
        return bucket.store_spec(address.scheme, address.bucket) | {"path": address.key}

    # All are read before the first is changed: an Orbax that lacks one stays as it is.
    names = gcs_utils._GCS_PATH_PREFIX, tensorstore_utils._use_gcs_driver, gpath.PosixGPath._backend
    assert all(names)

    # register_path_cls is public: every epath.Path of an address in s3 is one of these from now on.
    @epath.register_path_cls("s3://")
    class _S3Path(gpath.PosixGPath):
        _backend = _Small()  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]

    gcs_utils._GCS_PATH_PREFIX = _SCHEMES
    gcs_utils.get_kvstore_for_gcs = kvstore
    tensorstore_utils._use_gcs_driver = lambda directory: directory.startswith(_SCHEMES)
    # normpath makes one slash of the two.
    tensorstore_utils._normalize_path = lambda path: re.sub(r"^s3:/+", "s3://", normal(path))


def _address(path: PathLike) -> Address:
    address = parse_address(os.fspath(path))
    assert address is not None
    return address


class _Written(io.BytesIO):
    """A file that becomes an object when it is closed."""

    def __init__(self, address: Address) -> None:
        super().__init__()
        self._address = address

    def close(self) -> None:
        if not self.closed:
            bucket.write(self._address, self.getvalue())
        super().close()


class _Small(Backend):
    """Small files of Orbax as objects. A bucket has no folders: making one does nothing, and one without an object does
    not exist."""

    def open(self, path: PathLike, mode: str) -> IO[Any]:
        address = _address(path)
        if "a" in mode:
            self._refuse()
        if "w" in mode:
            binary: IO[bytes] = _Written(address)
        else:
            if (value := bucket.read(address).value) is None:
                raise FileNotFoundError(str(address))
            binary = io.BytesIO(value)
        return binary if "b" in mode else io.TextIOWrapper(binary, encoding="utf-8")

    def exists(self, path: PathLike) -> bool:
        return bucket.read(_address(path)).value is not None or self.isdir(path)

    def isdir(self, path: PathLike) -> bool:
        return bool(bucket.keys(_address(path)))

    def listdir(self, path: PathLike) -> list[str]:
        return list(dict.fromkeys(name.partition("/")[0] for name in bucket.keys(_address(path))))

    def glob(self, path: PathLike) -> list[str]:
        # The pattern's folder has no wildcards: Orbax looks for names within one.
        folder, _, pattern = os.fspath(path).rpartition("/")
        return [f"{folder}/{name}" for name in self.listdir(folder) if fnmatch.fnmatchcase(name, pattern)]

    def walk(self, top: PathLike, **_: object) -> Iterator[Any]:
        self._refuse()

    def makedirs(self, path: PathLike, **_: object) -> None:
        """Does nothing."""

    def mkdir(self, path: PathLike, *, exist_ok: bool = False, mode: int | None = None) -> None:
        if not exist_ok and self.exists(path):
            raise FileExistsError(str(_address(path)))

    def rmtree(self, path: PathLike) -> None:
        folder = _address(path)
        if not (names := bucket.keys(folder)):
            raise FileNotFoundError(str(folder))
        # What makes it a checkpoint goes first: a kill in between leaves none that looks whole.
        names.sort(key=lambda name: name != "commit_success.txt")
        bucket.delete([folder / names[0]])
        bucket.delete(folder / name for name in names[1:])

    def remove(self, path: PathLike) -> None:
        bucket.delete([_address(path)])

    def rename(self, path: PathLike, dst: PathLike) -> None:
        self._refuse()

    def replace(self, path: PathLike, dst: PathLike) -> None:
        self._refuse()

    def copy(self, path: PathLike, dst: PathLike, overwrite: bool) -> None:
        self._refuse()

    def stat(self, path: PathLike) -> StatResult:
        value = bucket.read(_address(path)).value
        if value is None and not self.isdir(path):
            raise FileNotFoundError(str(_address(path)))
        # No time: Orbax takes that of a checkpoint from the file in it.
        return StatResult(is_directory=value is None, length=len(value or b""), mtime=0)

    def _refuse(self) -> NoReturn:
        raise NotImplementedError("objects of s3:// are written whole, read, listed and deleted")

"""Files of the Hugging Face hub by name, as files in the cache of huggingface_hub, which nothing else here imports.

    google-bert/bert-base-uncased[@REVISION]                a model
    hf://datasets/OWNER/NAME[@REVISION]/PATH                files of a data set; PATH is a file, a folder or a pattern

Downloads, progress bars, tokens and the environment variables (HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE) are that
library's. Where the hub cannot be reached, what is in the cache is read.
"""

import contextlib
import functools
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

from contexture.data.errors import DataError, did_you_mean
from contexture.data.mixed_paths import split_weight
from contexture.data.plain_files import COLUMNAR, inner_suffix

PREFIX = "hf:"
_FORM = "hf://datasets/OWNER/NAME[@REVISION]/FILE"
# pathlib makes one slash of two. A revision with a slash is one of the hub's own (refs/convert/parquet), or has %2F.
_REVISION = r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?"
_ADDRESS = re.compile(rf"hf://?datasets/(?P<repo>[\w.-]+/[\w.-]+){_REVISION}/(?P<path>.+)")
_MODEL = re.compile(r"(?P<repo>\w[\w.-]*(?:/[\w.-]+)?)(?:@(?P<revision>[\w./-]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Without *.json, as for folders on disk (`plain_files.IN_FOLDERS`).
_IN_FOLDERS = (".txt", ".jsonl", ".tsv", ".csv", ".conll", ".conllu", *COLUMNAR)
"""Files that are read where an address names a folder of a data set."""
_TOKEN = "a token (`hf auth login`, or HF_TOKEN)"
P = TypeVar("P", str, Path)


@dataclass(frozen=True)
class _Address:
    """Where files of a data set lie: its repository, the revision ("" for the newest), the path within it."""

    repo: str
    revision: str
    path: str

    @classmethod
    def parse(cls, address: str) -> "_Address":
        match = _ADDRESS.fullmatch(address)
        path = match["path"].rstrip("/") if match else ""
        # `..` would lead out of the data set's folder in the cache.
        if not match or not path or ".." in path.split("/"):
            raise DataError(f"{address}: no address of a data set's files on the hub; give {_FORM}")
        # A slash in a revision is written %2F.
        return cls(match["repo"], unquote(match["revision"] or ""), path)

    def at(self, commit: str) -> str:
        return f"hf://datasets/{self.repo}@{commit}/{self.path}"


def is_address(path: str | Path) -> bool:
    """Returns whether this is the address of files on the hub, hf://…"""
    return str(path).startswith(f"{PREFIX}/")


def is_model_name(name: str) -> bool:
    """Returns whether a model of the hub may have this name: OWNER/NAME or NAME, and perhaps @REVISION."""
    return _MODEL.fullmatch(name) is not None and ".." not in name


def local_files(address: str) -> list[Path]:
    """Returns the files that an address names, downloaded; for a folder, the files directly within it, in their order.

    Raises: DataError for an address, a data set, a revision or a file that does not exist, or may not be read;
    ConnectionError where the hub cannot be reached and the cache lacks the files.
    """
    return list(_download(address)[1])


def local_file(path: P) -> P:
    """Returns a path unchanged, or the file on disk that an address names.

    Raises: as `local_files`; DataError where it names several.
    """
    if not is_address(path):
        return path
    files = local_files(str(path))
    if len(files) > 1:
        raise DataError(f"{path}: stands for {len(files)} files, and one is wanted; name it: {files[0].name}, …")
    # A str or a Path, as it was given.
    return type(path)(files[0])


def with_local_files(paths: Iterable[str]) -> tuple[str, ...]:
    """Returns paths with the files on disk in place of each address. Raises: as `local_files`."""
    each = (map(str, local_files(path)) if is_address(path) else (path,) for path in paths)
    return tuple(file for files in each for file in files)


def cached_files(address: str) -> list[Path]:
    """Returns the files that an address names if the cache has them, [] otherwise; downloads nothing."""
    # What is wrong with an address is said where it is read.
    with contextlib.suppress(DataError, ConnectionError):
        return list(_download(address, cached=True)[1])
    return []


def with_commits(paths: Iterable[str], before: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns paths with the commit of the data set in each address, so that it names the same files for ever.

    Args:
        paths: paths and addresses.
        before: paths that a run began with. Where an address differs from one of them by its commit alone, that one is
            taken, whatever the data set's newest commit is now.

    Raises: as `local_files`.
    """
    # A source of a mixture has its weight in front.
    earlier = [split_weight(path)[1] for path in before]
    parts = map(split_weight, paths)
    return tuple(lead + (_pinned(path, earlier) if is_address(path) else path) for lead, path in parts)


def _pinned(address: str, before: Sequence[str]) -> str:
    """Returns an address with its commit. Files that the run did not begin with are downloaded, to be compared."""
    this = _Address.parse(address)
    # The very address that the run began with: nothing is asked of the hub.
    if _COMMIT.fullmatch(this.revision) and address in before:
        return address
    # Without a revision it means the newest state; a run goes on with the one that it began with.
    for other in () if this.revision else map(_Address.parse, filter(is_address, before)):
        if _COMMIT.fullmatch(other.revision) and (other.repo, other.path) == (this.repo, this.path):
            return this.at(other.revision)
    return this.at(_download(address)[0])


def model_files(name: str, patterns: Sequence[str]) -> tuple[Path, str]:
    """Downloads the files of a model that fit one of the patterns → (their folder, OWNER/NAME@COMMIT).

    Raises: as `local_files`.
    """
    match = _MODEL.fullmatch(name)
    if match is None:
        raise DataError(f"{name}: no name of a model on the hub; give OWNER/NAME[@REVISION]")
    folder = _snapshot(name, "model", match["repo"], match["revision"], patterns)
    return folder, f"{match['repo']}@{folder.name}"


@functools.cache  # a process reads one state of a data set, and asks for it once
def _download(address: str, cached: bool = False) -> tuple[str, tuple[Path, ...]]:
    """Returns (the commit, the files that an address names). cached: nothing is downloaded."""
    this = _Address.parse(address)
    # The signs of a pattern, as glob and the hub's own library read them.
    has_signs = any(sign in this.path for sign in "*?[")
    # A path may be a file or a folder: which one is seen when its files are there.
    patterns = [this.path] if has_signs else [this.path, f"{this.path}/*"]
    folder = _snapshot(address, "data set", this.repo, this.revision, patterns, cached)
    place = folder / this.path
    if has_signs:
        # Sorted, so that the same address is the same text on every machine.
        files = sorted(file for file in folder.glob(this.path) if file.is_file())
    elif place.is_dir():
        files = sorted(file for file in place.iterdir() if inner_suffix(file) in _IN_FOLDERS and file.is_file())
    else:
        files = [place] if place.is_file() else []
    if not files:
        raise DataError(f"{address}: the data set has no such file{'' if cached else _others(address, folder.name)}")
    return folder.name, tuple(files)


def _others(address: str, commit: str) -> str:
    """Returns which files a data set has, for a message. Raises: ConnectionError where the hub cannot be asked: the
    cache may lack the file alone."""
    from huggingface_hub import HfApi

    this = _Address.parse(address)
    with _one_line_errors(address, "data set"):
        names = HfApi().list_repo_files(this.repo, repo_type="dataset", revision=commit)
    # Only files that could be read here are suggested.
    names = sorted(name for name in names if inner_suffix(name) in (*_IN_FOLDERS, ".json"))
    near = did_you_mean(this.path, names)
    shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return near or (f"; it has {shown}" if names else "; it has none that is read here")


def _snapshot(
    name: str, what: str, repo: str, revision: str | None, patterns: Sequence[str], cached: bool = False
) -> Path:
    """Returns the folder of a repository's commit in the cache, whose name is the commit's, with the files that fit one
    of the patterns. name: as the user gave it; what: a model or a data set."""
    from huggingface_hub import snapshot_download

    # Its warnings say in other words what the errors here say.
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with _one_line_errors(name, what):
            return Path(
                snapshot_download(
                    repo,
                    # The hub writes `dataset` in one word.
                    repo_type=what.replace("data set", "dataset"),
                    revision=revision or None,
                    allow_patterns=list(patterns),
                    local_files_only=cached,
                )
            )
    finally:
        log.setLevel(level)


@contextlib.contextmanager
def _one_line_errors(name: str, what: str) -> Iterator[None]:
    """Turns the library's errors into one line."""
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT.removeprefix("https://")
    try:
        yield
    # First, since the library derives it from the error for a missing repository.
    except errors.GatedRepoError:
        raise DataError(
            f"{name}: its owner wants to be asked first; ask on its page at {hub}, then give {_TOKEN}"
        ) from None
    except errors.RevisionNotFoundError:
        raise DataError(f"{name}: the {what} has no such revision; give a branch, a tag or a commit of it") from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        where = "no such folder here, and " if what == "model" else ""
        raise DataError(
            f"{name}: {where}no such {what} at {hub}, or a private one; check the name, or give {_TOKEN}"
        ) from None
    # Neither hub nor cache has it; the cause says why the hub did not answer.
    except errors.LocalEntryNotFoundError as error:
        raise _unreachable(name, what, hub, error.__cause__ or error) from None
    except OSError as error:
        if error.errno is not None and not isinstance(error, ConnectionError):
            raise  # of this machine's disk
        raise _unreachable(name, what, hub, error) from None
    except Exception as error:  # of the library that it speaks HTTP with, which is another in each of its versions
        raise _unreachable(name, what, hub, error) from None


def _unreachable(name: str, what: str, hub: str, error: BaseException) -> ConnectionError:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return ConnectionError(f"{name}: not in the cache, and HF_HUB_OFFLINE=1 forbids downloading it")
    where = "no such folder here, and " if what == "model" else ""
    reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
    return ConnectionError(f"{name}: {where}{hub} does not answer ({reason}); check the network, or copy the files")

"""TFDS sets on disk, by names like "tfds:glue/sst2:train[:10%]": looked for, opened, and read row by row.

Rows are read by their number in the split (TFDS's data source of array_record files), so TensorFlow is not needed.
Nothing is ever downloaded.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

from contexture.data.errors import DataError, did_you_mean
from contexture.data.plain_files import read_plain
from contexture.data.text.lines import LONGEST_ROW, split_lines

PREFIX = "tfds:"
_NAME = re.compile(r"(?P<set>\w+(?:/[\w.+-]+)?)(?::(?P<version>\d+\.\d+\.\d+))?(?::(?P<split>[^/]+))?")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_FEATURE = re.compile(r"tensorflow_datasets(\.core|\.public_api)?\.features(\.\w+)+")
"""The class of a column, as features.json names it."""
_AT_ONCE = 64
"""Examples read together: several times as fast as one by one."""
Cell: TypeAlias = object
"""str, int, float, bool, None, or a list of them; features that nothing here reads stay as TFDS has them."""


class Records(Protocol):
    """A TFDS data source: examples by their numbers."""

    def __len__(self) -> int: ...

    def __getitems__(self, numbers: list[int], /) -> Sequence[Mapping[str, object]]: ...


@dataclass(frozen=True)
class Split:
    """A split of a TFDS set, or a part of one. Rows are numbered from 0."""

    kind: ClassVar = "split"
    name: str
    """As the user gave it, with its split: "tfds:glue/sst2:train"."""
    size: int
    """Bytes of its files."""
    parts: tuple[tuple[str, int, int], ...]
    """Its files, each with the first example that is read and the one after the last."""
    features: Mapping[str, object]
    """TFDS's description of each column but `idx`, which only counts the rows."""
    records: Records
    column: str = "text"
    """The column of the text."""
    has_rows: ClassVar = True

    def __str__(self) -> str:
        return self.name

    def can_be_cut(self, documents: str) -> bool:
        """Returns False: rows are no bytes of a file that follow each other."""
        return False

    def rows(self) -> Iterator[tuple[int, dict[str, Cell]]]:
        """Yields (number, {column: value}). A class is its name, None for class -1, which marks a hidden label.

        Raises: DataError naming a row that cannot be read, or a text that is not UTF-8.
        """
        for at in range(0, len(self.records), _AT_ONCE):
            numbers = range(at, min(at + _AT_ONCE, len(self.records)))
            try:
                records = self.records.__getitems__(list(numbers))
            # The library raises anything for a damaged file.
            except Exception as error:
                raise self._damaged(at, error) from None
            for number, record in zip(numbers, records, strict=True):
                row: dict[str, Cell] = {}
                # Cell by cell, so that an error names its row.
                for name, feature in self.features.items():
                    try:
                        row[name] = _plain(feature, record[name])
                    except UnicodeDecodeError:
                        raise DataError(f"{self.name}:{number}: {name!r} is not UTF-8; prepare the set again") from None
                    except Exception as error:
                        raise self._damaged(number, error) from None
                    if isinstance(text := row[name], str) and len(text) > LONGEST_ROW:
                        long = f"holds {len(text):,} characters in one row, more than {LONGEST_ROW:,}"
                        raise DataError(f"{self.name}:{number}: {name!r} {long}; break the text up")
                yield number, row

    def documents(self, seen: Callable[[bytes], object] = len) -> Iterator[tuple[int, str]]:
        """Yields the text as (number, line without outer spaces); an empty line is a border between documents.

        An example of several lines is a document of them; one of a single line is a line of the current document, as in
        a text file (lm1b has a sentence an example). Every text goes through `seen`, with a line's end.
        """
        for number, text in self._texts(seen):
            lines = [line.strip() for line in split_lines(text)]
            full = [line for line in lines if line]
            if len(full) < 2:
                # An example without text is an empty line, and so a border.
                yield number, "".join(full)
            else:
                yield from ((number, line) for line in ("", *full, ""))

    def chunks(self, documents: str, seen: Callable[[bytes], object] = len) -> Iterator[str]:
        """Yields the text of each example unchanged, and "" after it: each is a document, whatever `documents` is.

        Every text goes through `seen`, with a line's end.
        """
        for _, text in self._texts(seen):
            yield from (text, "") if text else ()

    def _texts(self, seen: Callable[[bytes], object]) -> Iterator[tuple[int, str]]:
        """Yields the text of each example with its number."""
        column = self._text_column()
        for number, row in self.rows():
            text = row[column]
            if not isinstance(text, str):
                raise self._damaged(number, ValueError(f"{column!r} is missing"))
            seen(f"{text}\n".encode())
            yield number, text

    def _damaged(self, number: int, error: Exception) -> DataError:
        return DataError(f"{self.name}:{number}: cannot be read ({_reason(error)}); prepare the set again")

    def _text_column(self) -> str:
        import tensorflow_datasets as tfds

        texts = [name for name, feature in self.features.items() if isinstance(feature, tfds.features.Text)]
        # A set may have other texts too, such as titles.
        if self.column in texts:
            return self.column
        # A set of a single text needs no name for it.
        if len(texts) != 1 or self.column != "text":
            if not texts:
                raise DataError(f"{self.name}: the set has no text; give one with a column 'text', or *.txt files")
            several = f"several texts ({', '.join(texts)})" if len(texts) > 1 else f"one text ({texts[0]})"
            none = f"none of them is {self.column!r}{did_you_mean(self.column, texts)}"
            raise DataError(f"{self.name}: the set has {several} and {none}; name one (--data.text-column)")
        return texts[0]


def open_split(name: str) -> Split:
    """tfds:NAME[/CONFIG][:VERSION][:SPLIT] → the split, by default all of `train` of the newest version on disk.

    It is looked for in $TFDS_DATA_DIR, or else in ~/tensorflow_datasets.

    Raises: DataError for another name, and for a set that is not on disk, not in array_record, damaged, or has no such
    split.
    """
    # Where the set lies ...
    match = _NAME.fullmatch(name.removeprefix(PREFIX))
    if match is None:
        raise DataError(f"{name}: no name of a TFDS set; give tfds:NAME[/CONFIG][:VERSION][:SPLIT], as tfds:lm1b:train")
    folder = _folder(name, match["set"], match["version"])
    spec = match["split"] or "train"
    import tensorflow_datasets as tfds

    # ... what it is, after a look at what it would import ...
    _check_features(folder / "features.json")
    try:
        builder: Any = tfds.builder_from_directory(folder)  # TFDS has no types
        info: Any = builder.info
        splits, features = info.splits, {key: info.features[key] for key in sorted(info.features) if key != "idx"}
    except Exception as error:
        raise DataError(f"{folder}: damaged, no TFDS set ({_reason(error)}); prepare it again") from None
    # Names are checked here, so that a wrong one gets a suggestion; the expression is TFDS's own.
    for split in re.findall(r"(?:^|\+)\s*(\w+)", spec):
        if split not in splits and split != "all":
            existing = ", ".join(splits)
            raise DataError(f"{name}: there is no split {split!r}{did_you_mean(split, splits)}; there are {existing}")
    # train[:10%], train+test[50:]: TFDS reads the expression itself and says which rows of which files it means.
    try:
        instructions = splits[spec].file_instructions
    except Exception as error:
        reason = _reason(error).partition(". See format")[0]
        raise DataError(f"{name}: {spec!r} is no part of a split ({reason}); write it as train[:10%]") from None
    if sum(each.take for each in instructions) < 1:
        raise DataError(f"{name}: {spec!r} holds no example; write the part as train[:10%], or give a larger one")
    # Other formats are read by TensorFlow alone.
    if "array_record" not in {each.value for each in info.available_file_formats()}:
        raise DataError(
            f"{name}: lies in {folder} as {info.file_format.value}, which needs TensorFlow; get it as array_record "
            f"into another TFDS_DATA_DIR, on a machine with network: {_how_to_get(match['set'], match['version'])}"
        )
    # ... and whether its files are there.
    files = sorted({str(each.filename) for each in instructions})
    if missing := [file for file in files if not os.path.isfile(file)]:
        raise DataError(f"{missing[0]}: missing, a file of {name}; prepare the set again")
    try:
        records = builder.as_data_source(spec)
    except Exception as error:
        raise DataError(f"{name}: cannot be read ({_reason(error)}); prepare the set again") from None
    parts = tuple((os.path.realpath(each.filename), each.skip, each.skip + each.take) for each in instructions)
    # The split is part of the name, given or not.
    named = name if match["split"] else f"{name}:{spec}"
    return Split(named, sum(os.path.getsize(file) for file in files), parts, features, records)


def _check_features(file: Path) -> None:
    """Raises: DataError for a column whose dtype NumPy does not know, or of a class that is not TFDS's own. TFDS would
    ask TensorFlow for the first, which is loaded for seconds where it is installed and writes to the user's home; and
    import whatever module the second names."""
    try:
        tree = json.loads(read_plain(file))
    except (OSError, ValueError, RecursionError):
        return  # TFDS says what is wrong with it
    # Depth-first without recursion: the file is not trusted yet, and may be nested as deep as JSON allows.
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        nodes += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        if not isinstance(node, dict):
            continue
        name = node.get("type" if "content" in node else "pythonClassName")
        if not isinstance(name, str):
            continue  # no feature, but perhaps columns of any names
        if not _FEATURE.fullmatch(name):
            raise DataError(f"{file}: {name[:80]!r} is no feature of TFDS; prepare the set again")
        for kind, feature in node.items():
            dtype = feature.get("dtype") if isinstance(feature, dict) else None
            dtype = "" if kind == "tensor" and dtype is None else dtype  # a tensor has to have one
            if dtype is not None and not _is_dtype(dtype):
                raise DataError(f"{file}: {str(dtype)[:40]!r} is no dtype of a column; prepare the set again")


def _is_dtype(name: object) -> bool:
    try:
        return isinstance(name, str) and np.dtype(name) is not None
    except (TypeError, ValueError, SyntaxError):
        # TFDS's own names, which NumPy lacks.
        return name in ("string", "bfloat16")


def _folder(name: str, dataset: str, version: str | None) -> Path:
    """Returns the folder of a set, by default of its newest version. Raises: DataError where it is not on disk."""
    root = Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()
    versions: dict[str, list[tuple[tuple[int, ...], Path]]] = {}
    # ROOT/SET/VERSION, or with a configuration ROOT/SET/CONFIG/VERSION.
    for pattern in ("*/*/dataset_info.json", "*/*/*/dataset_info.json"):
        for file in root.glob(pattern):
            folder = file.parent
            if _VERSION.fullmatch(folder.name):
                key = folder.parent.relative_to(root).as_posix()
                versions.setdefault(key, []).append((tuple(map(int, folder.name.split("."))), folder))
    # A set with configurations may be given without one, where it has only one on disk.
    inside = sorted(key for key in versions if key.startswith(f"{dataset.partition('/')[0]}/"))
    if dataset not in versions and "/" not in dataset and inside:
        if len(inside) > 1:
            raise DataError(f"{name}: there are {', '.join(inside)}; name one of them, as tfds:{inside[0]}")
        dataset = inside[0]
    if dataset not in versions:
        near = did_you_mean(dataset, versions) or (f" (there are {', '.join(inside)})" if inside else "")
        raise DataError(
            f"{name}: {dataset} is not in {root}{near}; set TFDS_DATA_DIR to the folder that it is in, or get it, on a "
            f"machine with network: {_how_to_get(dataset, version)}"
        )
    if version is None:
        # By numbers: 1.10.0 is newer than 1.9.0.
        return max(versions[dataset])[1]
    for numbers, folder in versions[dataset]:
        if numbers == tuple(map(int, version.split("."))):
            return folder
    existing = ", ".join(folder.name for _, folder in sorted(versions[dataset]))
    raise DataError(f"{name}: there is no version {version} of {dataset} in {root}; there are {existing}")


def _how_to_get(dataset: str, version: str | None) -> str:
    """Returns the command that gets a set."""
    full = f"{dataset}:{version}" if version else dataset
    return (
        'python -c "import tensorflow_datasets as tfds; '
        f"tfds.builder('{full}', file_format='array_record').download_and_prepare()\""
    )


def _reason(error: Exception) -> str:
    """Returns the last line of a library's error, which gives the reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__


def _plain(feature: Any, value: Any) -> Cell:
    """Returns a value of a TFDS row as a Python object; arrays and nested features stay as they are."""
    import tensorflow_datasets as tfds

    kinds: Any = tfds.features
    if isinstance(feature, kinds.ClassLabel):
        # -1 marks a hidden label, as of GLUE's tests.
        return feature.int2str(int(value)) if value >= 0 else None
    if isinstance(feature, kinds.Sequence) and not isinstance(value, dict):
        return [_plain(feature.feature, each) for each in value]
    # Texts are bytes in TFDS.
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, str | dict | list) or np.ndim(value):
        return value
    # In the feature's own dtype again, whatever the reader made of it.
    kept = np.asarray(value, feature.np_dtype)[()]
    # A float32 has its own shortest decimals: 3.8, and not 3.799999952316284, which is the same number as a float64.
    if isinstance(kept, np.floating):
        return None if np.isnan(kept) else float(str(kept))
    return kept.item()

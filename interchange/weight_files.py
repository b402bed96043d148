"""Tensors in published files, by name: shapes are read at once, numbers one tensor at a time.

No file can run code here: pickles are read only by torch's weights-only reader, and only if torch is installed.
"""

import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from contexture.data.errors import DataError
from contexture.data.plain_files import check_plain, read_plain
from contexture.interchange.renaming import Shape

Array = np.ndarray
_FLOATS = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
_SAFE = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
_MAX_ITEMS = 1 << 48
_WHOLE = "give files that were written whole"


@dataclass(frozen=True)
class Tensors:
    """The tensors of one model.

    Args:
        where: the file or folder, for messages.
        shapes: the shape of each tensor, by name.
        kinds: numpy's name of each tensor's dtype, by name.
        load: name → the tensor's numbers in the dtype of the file.
        lost: the tensors that were cut to float32 → the largest error, relative to the tensor's largest number.
    """

    where: str
    shapes: Mapping[str, Shape]
    kinds: Mapping[str, str]
    load: Callable[[str], Array]
    lost: dict[str, float] = field(default_factory=dict)

    def read(self, name: str) -> Array:
        """Returns a tensor in float32; other kinds of numbers, NaN and infinity are a DataError."""
        if self.kinds[name] not in _FLOATS:
            raise DataError(
                f"{self.where}: the tensor {name} is of kind {self.kinds[name]}, not one of {', '.join(_FLOATS)}; give "
                "weights in one of them"
            )
        stored = self.load(name)
        # A float64 may be too large for float32: infinity is refused below.
        with np.errstate(over="ignore"):
            tensor = stored.astype(np.float32, copy=False)
        if not np.isfinite(tensor).all():
            raise DataError(f"{self.where}: the tensor {name} holds what is no number in float32; {_WHOLE}")
        if stored.dtype == np.float64 and stored.size:
            self.lost[name] = float(np.abs(stored - tensor).max() / max(float(np.abs(stored).max()), 1e-300))
        return tensor

    def renamed(self, names: Mapping[str, str]) -> "Tensors":
        """Returns some of the tensors under other names. names: new → old."""
        return Tensors(
            self.where,
            {new: self.shapes[old] for new, old in names.items()},
            {new: self.kinds[old] for new, old in names.items()},
            lambda name: self.load(names[name]),
            self.lost,
        )

    def note(self) -> str:
        """Returns a note about the conversion of numbers that are not float32 in the file; else ""."""
        kinds = sorted(set(self.kinds.values()) - {"float32"})
        if not kinds:
            return ""
        if not self.lost:
            return f"{' and '.join(kinds)} weights are held as float32: nothing of them is lost"
        name = max(self.lost, key=lambda name: self.lost[name])
        return f"float64 weights are cut to float32: by at most {self.lost[name]:.1e} of a tensor's greatest ({name})"


@contextmanager
def _damage(file: Path, what: str) -> Iterator[None]:
    """Turns the errors that readers raise for damaged files into a DataError of one line."""
    try:
        yield
    except (DataError, KeyboardInterrupt, SystemExit):
        raise
    except OSError as error:
        why = error.strerror or str(error)
        raise DataError(f"{file}: cannot be read ({why}); {_WHOLE}") from None
    except BaseException as error:  # a panic in a library is no Exception
        lines = str(error).splitlines() or [type(error).__name__]
        raise DataError(f"{file}: cannot be read as {what} ({lines[0][:120]}); {_WHOLE}") from None


def open_folder(folder: Path) -> Tensors:
    """Opens the weights of a folder of transformers: safetensors, in one file or several, else torch's pickles.

    Raises:
        DataError: when there are none, or they are damaged.
    """
    # Safetensors first: they hold numbers alone, and need no torch.
    for name, read in (("model.safetensors", _safetensors), ("pytorch_model.bin", _pickles)):
        if (folder / name).is_file():
            return read([folder / name], str(folder / name))
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _in_parts(index, read)
    raise DataError(f"{folder}: no model.safetensors and no pytorch_model.bin; give the folder of a saved model")


def _in_parts(index: Path, read: Callable[[list[Path], str], Tensors]) -> Tensors:
    tree = read_json(index)
    parts = tree.get("weight_map") if isinstance(tree, dict) else None
    if not isinstance(parts, dict) or not parts or not all(isinstance(part, str) for part in parts.values()):
        raise DataError(f"{index}: weight_map does not say in which file each tensor lies; {_WHOLE}")
    for part in sorted(set(parts.values())):
        # A name with folders in it could lead to any file of the machine.
        if Path(part).name != part or not os.path.isfile(index.parent / part):
            raise DataError(f"{index}: weight_map names {part[:100]!r}, which is no file of this folder; {_WHOLE}")
    tensors = read([index.parent / part for part in sorted(set(parts.values()))], str(index))
    if odd := sorted(tensors.shapes.keys() ^ parts.keys()):
        side = "lies in no file" if odd[0] in parts else "is not in weight_map"
        raise DataError(f"{index}: the tensor {odd[0][:100]} {side}; {_WHOLE}")
    return tensors


def read_json(file: Path) -> Any:
    """Returns the JSON value of a file; a damaged file is a DataError."""
    try:
        return json.loads(read_plain(file).decode("utf-8-sig"))
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); give the folder of a whole model") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: cannot be read as JSON ({str(error).splitlines()[0][:120]}); {_WHOLE}") from None


def _together(
    where: str,
    files: list[Path],
    tensors: Mapping[Path, Mapping[str, tuple[Shape, str]]],
    load: Callable[[Path, str], Array],
) -> Tensors:
    """Returns the tensors of several files as one; a name that is in two files is a DataError."""
    place: dict[str, Path] = {}
    for file in files:
        for name in tensors[file]:
            if name in place:
                raise DataError(f"{file}: the tensor {name[:100]} is in {place[name].name} too; {_WHOLE}")
            place[name] = file
    return Tensors(
        where,
        {name: tensors[file][name][0] for name, file in place.items()},
        {name: tensors[file][name][1] for name, file in place.items()},
        lambda name: load(place[name], name),
    )


def _safetensors(files: list[Path], where: str) -> Tensors:
    """Opens safetensors. Each tensor is read from its file alone; files are not mapped into memory."""
    import ml_dtypes  # noqa: F401  (bfloat16 for numpy)
    from safetensors import safe_open

    tensors: dict[Path, dict[str, tuple[Shape, str]]] = {}
    for file in files:
        with _damage(file, "safetensors"), safe_open(file, "np") as opened:
            parts = {name: opened.get_slice(name) for name in opened.keys()}
            tensors[file] = {
                name: (tuple(part.get_shape()), _SAFE.get(str(part.get_dtype()), str(part.get_dtype())))
                for name, part in parts.items()
            }

    def load(file: Path, name: str) -> Array:
        with _damage(file, "safetensors"), safe_open(file, "np") as opened:
            return opened.get_tensor(name)

    return _together(where, files, tensors, load)


def _pickles(files: list[Path], where: str) -> Tensors:
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise DataError(
            f"{where}: a pickle, which torch alone reads without running it; install torch, or save the model as "
            "safetensors"
        ) from None

    def opened(file: Path) -> Mapping[str, Any]:
        with warnings.catch_warnings(action="ignore"):  # errors are raised, and reported by _damage
            return torch.load(file, map_location="cpu", weights_only=True, mmap=_is_zip(file))

    whole: dict[Path, Mapping[str, Any]] = {}  # the files of old, which cannot be mapped into memory
    tensors: dict[Path, dict[str, tuple[Shape, str]]] = {}
    for file in files:
        with _damage(file, "torch's weights"):
            state = opened(file)
            # A sparse tensor is no plain array of numbers.
            dense = isinstance(state, dict) and all(
                isinstance(k, str) and isinstance(x, torch.Tensor) and x.layout == torch.strided
                for k, x in state.items()
            )
            if not dense:
                raise DataError(f"{file}: no dictionary of tensors by name; give a model's state_dict")
            tensors[file] = {k: (tuple(x.shape), str(x.dtype).removeprefix("torch.")) for k, x in state.items()}
            if not _is_zip(file):
                whole[file] = state
            del state

    def load(file: Path, name: str) -> Array:
        with _damage(file, "torch's weights"):
            x = (whole[file] if file in whole else opened(file))[name].detach()
            return np.array((x.float() if x.dtype == torch.bfloat16 else x).numpy())  # a copy: the mapping goes

    return _together(where, files, tensors, load)


def _is_zip(file: Path) -> bool:
    with open(file, "rb") as opened:
        return opened.read(4) == b"PK\x03\x04"


def open_npy(folder: Path, parts: int, names: Mapping[str, Shape]) -> Tensors:
    """Opens numbers that are concatenated in params_0.npy … of a folder, as tensors of these shapes, in order.

    Raises:
        DataError: when a part is missing or damaged, or they hold more or fewer numbers.
    """
    files = [folder / f"params_{number}.npy" for number in range(parts)]
    flat: list[Array] = []
    for file in files:
        with _damage(file, "npy"):
            check_plain(file)
            # Not np.load, which takes a file that begins as a zip for one, and leaves it open where it is none.
            array = np.lib.format.open_memmap(file, mode="r")
            if array.ndim != 1 or array.dtype.name not in _FLOATS:
                raise DataError(f"{file}: holds {array.dtype.name} {list(array.shape)}, not a row of floats; {_WHOLE}")
            flat.append(array)
    ends = np.cumsum([len(array) for array in flat])
    starts = dict(zip(names, np.cumsum([0, *map(math.prod, names.values())]).tolist(), strict=False))
    expected = sum(map(math.prod, names.values()))
    if ends[-1] != expected:
        raise DataError(
            f"{folder}: params_*.npy hold {ends[-1]:,} numbers, params_shapes.json wants {expected:,}; {_WHOLE}"
        )

    def load(name: str) -> Array:
        start, stop = starts[name], starts[name] + math.prod(names[name])
        pieces = []
        # A tensor may begin in one part and end in another.
        for array, end in zip(flat, ends.tolist(), strict=True):
            begin = end - len(array)
            if begin < stop and start < end:
                pieces.append(np.asarray(array[max(start - begin, 0) : stop - begin]))
        return np.concatenate(pieces or [np.empty(0, np.float32)]).reshape(names[name])

    kind = flat[0].dtype.name
    return Tensors(f"{folder}/params_*.npy", names, dict.fromkeys(names, kind), load)


def fits_in(shape: Shape, item: int, size: int) -> bool:
    """Returns whether an array of this shape takes exactly `size` bytes, also for shapes of absurd numbers."""
    return all(0 <= n < _MAX_ITEMS for n in shape) and math.prod(shape) * item == size

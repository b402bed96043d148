"""ELMo's biLM as bilm-tf publishes it: options.json and weights in hdf5."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.plain_files import check_plain, read_plain
from contexture.data.storage import hdf5_writer
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.word_level import SPECIAL, VOCABULARY, Words
from contexture.interchange.imported_model import ImportedModel
from contexture.interchange.name_tables import bilm
from contexture.interchange.renaming import NameTable, Shape, Tree, shapes_of, to_theirs
from contexture.interchange.weight_files import Tensors
from contexture.models import elmo
from contexture.models.config import WORD_CHARS, ElmoConfig
from contexture.models.layers.char_cnn import CHARACTERS
from contexture.models.shapes import Params
from contexture.train.errors import ConfigError
from contexture.train.families import FAMILIES
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import Imported, RunRecord
from contexture.train.settings.sections import OptimConfig

logger = logging.getLogger(__name__)

_LSTM = {
    "dim": int,
    "n_layers": int,
    "projection_dim": int,
    "cell_clip": float,
    "proj_clip": float,
    "use_skip_connections": bool,
}
_CNN = {"filters": list, "n_characters": int, "max_characters_per_token": int, "activation": str}
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError)
"""The errors that h5py raises for files that are no HDF5, truncated or corrupted."""


def open_bilm(path: Path, to: Path, vocabulary: str, split: str) -> ImportedModel:
    """Opens a folder of options.json and weights in hdf5.

    These files have no softmax: it is initialised randomly.

    Args:
        path: the folder.
        to: the run's folder.
        vocabulary: a file of the softmax's words; empty: the folder's vocab.txt, or else only the three special ones.
        split: how the run splits text into words (`data.word_splitter`).

    Raises:
        DataError: when a file is invalid; the message names the option or the tensor.
    """
    config = _bilm_config(_one(path, "options.json", "*options.json"))
    tokenizer = _words(path, vocabulary, split)
    table, sizes = table_of(config), elmo.sizes(config)
    tensors = read_hdf5(_one(path, "weights.hdf5", "*weights*.hdf5"), shapes_of(table, sizes), table)
    # A sampled softmax needs more words than samples.
    negatives = DataConfig().negatives if tokenizer.size > DataConfig().negatives else 0
    try:
        run = Run(
            model=_with_vocab(config, tokenizer.size),
            data=DataConfig(
                batch=128,
                length=20,
                split_sentences=False,
                vocabulary="words",
                word_splitter=split,  # pyright: ignore[reportArgumentType]
                negatives=negatives,
            ),
            optim=OptimConfig(name="adamw", schedule="linear", peak_lr=1e-3, warmup=0),
            dir=str(to),
            steps=1,
        )
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    missing = f"the softmax over {tokenizer.size:,} words is not in such files and was initialised randomly"
    return ImportedModel(
        run, tokenizer, table, sizes, tensors, missing_note=missing, provenance=Imported(format="bilm")
    )


def check_bilm_family(folder: Path, run: Run) -> None:
    """Raises: ConfigError when the run is no ELMo."""
    if FAMILIES[run.family].exports != "bilm":
        raise ConfigError(f"{folder} is no ELMo, and bilm is ELMo's format; give a run of an elmo recipe")


def bilm_files(
    record: RunRecord, params: Params, tokenizer: Tokenizer
) -> tuple[dict[str, bytes], dict[str, np.ndarray]]:
    """Returns (options.json and vocab.txt, the tensors of weights.hdf5) of an ELMo's run."""
    run, config = record.run, record.run.model
    assert isinstance(config, ElmoConfig)
    backbone = cast(Tree, {"backbone": params["backbone"]})
    tensors = to_theirs(table_of(config), backbone, elmo.sizes(config))
    options = (json.dumps(_bilm_options(config), indent=1) + "\n").encode()
    logger.warning("this format holds no softmax; not exported")
    if run.data.word_splitter != "spaces":
        logger.info(
            f"this run was trained with --data.word-splitter {run.data.word_splitter}, which these files cannot hold; "
            "give --word-splitter when you import them"
        )
    return {"options.json": options, VOCABULARY: tokenizer.files()[VOCABULARY]}, tensors


def write_bilm_weights(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes weights.hdf5."""
    with hdf5_writer(folder / "weights.hdf5") as write:
        for name, tensor in tensors.items():
            write(name, tensor.astype(np.float32))


def table_of(config: ElmoConfig) -> NameTable:
    # As in the original, there is a projection only if the filters give another width.
    return bilm(config.filters, config.highway, sum(count for _, count in config.filters) != config.projection)


def _with_vocab(config: ElmoConfig, vocab: int) -> ElmoConfig:
    return ElmoConfig(**{**vars(config), "vocab": vocab})


def _one(path: Path, usual: str, pattern: str) -> Path:
    """Returns the file of the folder with its usual name, or the only one whose name fits the pattern."""
    if not path.is_dir():
        raise DataError(f"{path}: no such folder; give the one that holds options.json and the weights in hdf5")
    files = [path / usual] if (path / usual).is_file() else sorted(path.glob(pattern))
    for file in files:
        check_plain(file)
    if len(files) != 1:
        names = f", but {', '.join(file.name for file in files)}" if files else ""
        raise DataError(f"{path}: not one {pattern}{names}; give a folder with {usual}")
    return files[0]


def _words(path: Path, vocabulary: str, split: str) -> Words:
    file = Path(vocabulary) if vocabulary else path / VOCABULARY
    return Words.open(file, split) if vocabulary or file.is_file() else Words(SPECIAL, split)


def _bilm_config(file: Path) -> ElmoConfig:
    try:
        options = json.loads(read_plain(file))
    except DataError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: cannot be read as JSON ({str(error).splitlines()[0]}); give the original's") from None
    lstm, cnn = _section(file, options, "lstm", _LSTM), _section(file, options, "char_cnn", _CNN, "embedding n_highway")
    if options.get("bidirectional", True) is not True:
        raise DataError(f"{file}: bidirectional is {str(options['bidirectional'])[:40]}, and an ELMo reads both ways")
    width = _section(file, cnn, "embedding", {"dim": int})["dim"]
    highway, filters = cnn.get("n_highway") or 0, cnn["filters"]
    if type(highway) is not int:
        raise DataError(f"{file}: char_cnn.n_highway is {highway!r}, not of kind int; give the original's")
    if not all(isinstance(pair, list) and [type(n) for n in pair] == [int, int] for pair in filters):
        raise DataError(f"{file}: char_cnn.filters are {filters}, not pairs of width and number; give the original's")
    if cnn["max_characters_per_token"] != WORD_CHARS or cnn["n_characters"] not in (CHARACTERS, CHARACTERS + 1):
        raise DataError(
            f"{file}: char_cnn.max_characters_per_token={cnn['max_characters_per_token']}, n_characters="
            f"{cnn['n_characters']}; this reads words of {WORD_CHARS} and {CHARACTERS + 1} characters alone; give such "
            "a model"
        )
    try:
        return ElmoConfig(
            char_width=width,
            filters=tuple((width, count) for width, count in filters),
            activation=cnn["activation"],
            highway=highway,
            layers=lstm["n_layers"],
            cells=lstm["dim"],
            projection=lstm["projection_dim"],
            cell_clip=float(lstm["cell_clip"] or 0),
            projection_clip=float(lstm["proj_clip"] or 0),
            skip=lstm["use_skip_connections"],
        )
    except (ValueError, OverflowError) as error:
        raise DataError(f"{file}: {error}; give the original's options") from None


def _section(file: Path, options: Any, name: str, kinds: Mapping[str, type], more: str = "") -> dict[str, Any]:
    """Returns a part of the options after checking that its keys are there and have their types; a clip may be null.

    more: keys that are read elsewhere.
    """
    section = options.get(name) if isinstance(options, dict) else None
    if not isinstance(section, dict):
        raise DataError(f"{file}: {name} is missing; give the original's options")
    if unknown := sorted(section.keys() - kinds.keys() - {*more.split()}):
        raise DataError(f"{file}: {name}.{unknown[0][:60]} is an option that is not known here; leave it out")
    for key, kind in kinds.items():
        value = section.get(key)
        fits = isinstance(value, kind) or (kind is float and (value is None or type(value) is int))
        if key not in section or not fits or (kind is int and isinstance(value, bool)):
            raise DataError(f"{file}: {name}.{key} is {value!r}, not of kind {kind.__name__}; give the original's")
    if section.get("activation", "relu") not in ("relu", "tanh"):
        raise DataError(f"{file}: {name}.activation is {section['activation']!r}, not relu or tanh; give one of them")
    return section


def _bilm_options(config: ElmoConfig) -> dict[str, Any]:
    """The original's options.json of a configuration."""
    return {
        "lstm": {
            "use_skip_connections": config.skip,
            "projection_dim": config.projection,
            "cell_clip": config.cell_clip or None,
            "proj_clip": config.projection_clip or None,
            "dim": config.cells,
            "n_layers": config.layers,
        },
        "char_cnn": {
            "activation": config.activation,
            "filters": [list(pair) for pair in config.filters],
            "n_highway": config.highway,
            "embedding": {"dim": config.char_width},
            "n_characters": CHARACTERS + 1,
            "max_characters_per_token": WORD_CHARS,
        },
    }


def read_hdf5(file: Path, shapes: Mapping[str, Shape], table: NameTable) -> Tensors:
    """Returns the tensors of a file; all are checked before any is read. Links and data in other files are ignored.

    Raises:
        DataError: when a tensor is missing, unknown, of another shape or type, or holds NaN or infinity.
    """
    import h5py

    tensors: dict[str, Any] = {}
    try:
        size = file.stat().st_size
        with h5py.File(file, "r") as opened:

            def note(name: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset):
                    tensors[name] = item

            opened.visititems(note)
            for name, shape in shapes.items():
                if name not in tensors:
                    raise DataError(f"{file}: the tensor {name} {list(shape)} is missing; {table.name} has it")
                item = tensors[name]
                if item.shape != shape:
                    raise DataError(
                        f"{file}: the tensor {name} is {list(item.shape or ())}, the options want {list(shape)}"
                    )
                if item.dtype.kind != "f" or item.external or item.is_virtual:
                    raise DataError(f"{file}: the tensor {name} is of kind {item.dtype}, not numbers in this file")
                # A damaged header may claim more than fits into memory.
                if item.nbytes > size:
                    raise DataError(f"{file}: the tensor {name} claims {item.nbytes:,} bytes, more than the file has")
            if more := sorted(tensors.keys() - shapes.keys()):
                raise DataError(f"{file}: the tensor {more[0]} is in no row of {table.name}'s table; leave it out")
            kinds = {name: tensors[name].dtype.name for name in shapes}
    except DataError:
        raise
    except _DAMAGE as error:
        raise _damaged(file, error) from None

    def load(name: str) -> np.ndarray:
        try:
            with h5py.File(file, "r") as opened:
                item: Any = opened[name]
                return np.asarray(item[()])
        except _DAMAGE as error:
            raise _damaged(file, error) from None

    return Tensors(str(file), dict(shapes), kinds, load)


def _damaged(file: Path, error: BaseException) -> DataError:
    why = str(error).splitlines()[0]
    return DataError(f"{file}: cannot be read as hdf5 ({why}); give a file that was written whole")

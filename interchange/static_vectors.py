"""Static word vectors (word2vec, GloVe, fastText) as a run that tasks begin from."""

from pathlib import Path

import numpy as np

from contexture.data.cancel import CancelToken
from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.tokenizers.word_level import STATIC_SPECIAL, StaticWords
from contexture.data.word_vectors import read_word_vectors
from contexture.interchange.imported_model import ImportedModel
from contexture.interchange.renaming import NameTable
from contexture.interchange.weight_files import Tensors
from contexture.models import vectors
from contexture.models.config import VectorsConfig
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import Imported
from contexture.train.settings.sections import OptimConfig

_TABLE = NameTable("vectors", (("vectors", "backbone/embeddings/tokens", "VD -> VD"),))
UNKNOWN = "<unk>"
"""The word whose vector is used for words that a file lacks, if the file has it."""


def open_vectors(
    file: Path, to: Path, lowercase: bool | None, word_splitter: str, notes: list[str], cancel: CancelToken
) -> ImportedModel:
    """Reads a file of word vectors.

    Rows of the table are zeros for padding; a vector for unknown words, the file's `<unk>` or the mean of all its
    vectors; then the file's vectors.

    Args:
        file: the file.
        to: the run's folder.
        lowercase: whether words of a text are looked up in lower case; None: if no word of the file has a capital.
        word_splitter: how text is split into words, as for an ELMo; auto: punctuation.
        notes: messages to log once the run is written.
        cancel: may raise to stop the reading.

    Raises:
        DataError: when `read_word_vectors` refuses the file.
    """
    if file.is_dir():
        raise DataError(f"{file}: a folder; give the file of word vectors")
    read = read_word_vectors(file, cancel)
    # Vectors without capitals were trained on lower-cased text.
    lowercase = all(word == word.lower() for word in read.words) if lowercase is None else lowercase
    split = "punctuation" if word_splitter == "auto" else word_splitter
    tokenizer = StaticWords(read.words, split, lowercase)
    known = UNKNOWN in tokenizer.ids
    count, dim = read.vectors_VD.shape
    # In float64: the sum of many large float32 is beyond the largest one.
    mean_D = read.vectors_VD.mean(0, dtype=np.float64).astype(np.float32)
    unknown_D = read.vectors_VD[tokenizer.ids[UNKNOWN] - len(STATIC_SPECIAL)] if known else mean_D
    shape = (count + len(STATIC_SPECIAL), dim)

    def table(name: str) -> np.ndarray:
        return np.concatenate([np.zeros((1, dim), np.float32), unknown_D[None], read.vectors_VD])

    notes += [note] if (note := read.note()) else []
    notes.append(
        f"{count:,} words of {dim} numbers ({read.form}), looked up {'in lower case' if lowercase else 'as written'}; "
        f"a word without a vector has {'that of ' + UNKNOWN if known else 'the mean of all vectors'}"
    )
    if lowercase and (lost := sum(word != word.lower() for word in read.words)):
        notes.append(f"{lost:,} words have capitals, which --lowercase yes never asks for")
    model = VectorsConfig(vocab=shape[0], hidden=dim)
    run = Run(
        model=model,
        data=DataConfig(lowercase=lowercase, word_splitter=split),  # pyright: ignore[reportArgumentType]
        optim=OptimConfig(name="adamw", schedule="linear", peak_lr=1e-3, warmup=0),
        dir=str(to),
        steps=1,
    )
    tensors = Tensors(str(file), {"vectors": shape}, {"vectors": "float32"}, table)
    return ImportedModel(run, tokenizer, _TABLE, vectors.sizes(model), tensors, Imported(format="vectors"))

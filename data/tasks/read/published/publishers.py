"""Names like "published:swag/train.csv": whose set it is, where its files lie, and which table they are.

The files lie beneath the folder that CONTEXTURE_DATA names, a folder for each set. Where a set has parts, one may be
named behind a colon: "published:xnli/xnli.test.tsv:de". Nothing is ever downloaded.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from contexture.data.errors import DataError, did_you_mean
from contexture.data.tasks.read.conll import conll
from contexture.data.tasks.read.published.choices import (
    cloze_stories,
    commonsense_questions,
    copa,
    passages_of_race,
    swag,
)
from contexture.data.tasks.read.published.texts import snli, tagged_characters, trees, xnli
from contexture.data.tasks.read.tables import Table, separated
from contexture.data.text.sources import TextFile

PREFIX = "published:"
FOLDER = "CONTEXTURE_DATA"


@dataclass(frozen=True)
class PublishedSet:
    """A data set as its publisher ships it."""

    title: str
    publisher: str
    """Who publishes it, and under which name."""
    files: str
    """What is put into its folder."""
    read: Callable[..., Table]
    """(path) or, where a part is named, (path, part) → its table."""
    parts: str = ""
    """What a part of its files is: a language."""


def _table(path: Path) -> Table:
    # A header with usual names: nothing is converted.
    return separated(path, header=True)


_ERNIE = "Baidu with ERNIE 1.0, in its task data (Sun et al. 2019)"
SETS = {
    "snli": PublishedSet(
        "SNLI",
        "the Stanford NLP group (snli_1.0; Bowman et al. 2015)",
        "snli_1.0_train.jsonl, snli_1.0_dev.jsonl and snli_1.0_test.jsonl",
        snli,
    ),
    "sst5": PublishedSet(
        "SST-5",
        "the Stanford NLP group (Stanford Sentiment Treebank, its trees in PTB form; Socher et al. 2013)",
        "train.txt, dev.txt and test.txt",
        trees,
    ),
    "swag": PublishedSet(
        "SWAG",
        "its authors (swagaf, folder data; Zellers et al. 2018)",
        "train.csv and val.csv",
        swag,
    ),
    "race": PublishedSet(
        "RACE",
        "Carnegie Mellon University (RACE; Lai et al. 2017)",
        "the folders train, dev and test, with high and middle in each",
        passages_of_race,
    ),
    "commonsense_qa": PublishedSet(
        "CommonsenseQA",
        "its authors at Tel Aviv University (random split of version 1.11; Talmor et al. 2019)",
        "train_rand_split.jsonl and dev_rand_split.jsonl",
        commonsense_questions,
    ),
    "copa": PublishedSet(
        "COPA",
        "SuperGLUE (COPA; Roemmele et al. 2011, Wang et al. 2019)",
        "train.jsonl and val.jsonl",
        copa,
    ),
    # GPT-1's code splits the validation file of 2016: 1,497 of its stories to learn from, 374 to validate.
    "roc_stories": PublishedSet(
        "the Story Cloze Test",
        "the University of Rochester (ROCStories, spring 2016; Mostafazadeh et al. 2016)",
        '"cloze_test_val__spring2016 - cloze_test_ALL_val.csv" and '
        '"cloze_test_test__spring2016 - cloze_test_ALL_test.csv"',
        cloze_stories,
    ),
    "xnli": PublishedSet(
        "XNLI",
        "New York University and Facebook (XNLI-1.0, XNLI-MT-1.0; Conneau et al. 2018)",
        "xnli.dev.tsv and xnli.test.tsv of XNLI-1.0, and multinli.train.en.tsv of XNLI-MT-1.0",
        xnli,
        "language",
    ),
    # TFDS's conll2003 has no borders of documents. These files have them: lines -DOCSTART-.
    "conll2003_documents": PublishedSet(
        "CoNLL-2003",
        "the shared task of CoNLL-2003, made from the Reuters Corpus (Tjong Kim Sang, De Meulder 2003)",
        "eng.train, eng.testa and eng.testb",
        conll,
    ),
    "wnut17": PublishedSet(
        "WNUT 2017",
        "the Workshop on Noisy User-generated Text (emerging entities; Derczynski et al. 2017)",
        "wnut17train.conll, emerging.dev.conll and emerging.test.annotated",
        conll,
    ),
    "ud_pos": PublishedSet(
        "UD English-EWT",
        "Universal Dependencies (UD_English-EWT)",
        "en_ewt-ud-train.conllu, en_ewt-ud-dev.conllu and en_ewt-ud-test.conllu",
        conll,
    ),
    "chnsenticorp": PublishedSet("ChnSentiCorp", _ERNIE, "train.tsv, dev.tsv and test.tsv", _table),
    "lcqmc": PublishedSet("LCQMC", _ERNIE, "train.tsv, dev.tsv and test.tsv", _table),
    "msra_ner": PublishedSet("MSRA-NER", _ERNIE, "train.tsv, dev.tsv and test.tsv", tagged_characters),
}
"""By the name of their folder, which is the task's name too."""


@dataclass(frozen=True)
class PassageFolder(TextFile):
    """A folder of files that are read as one, as RACE's are."""

    @property
    def size(self) -> int:
        # The size of the folder itself says nothing, and callers refuse a source of 0 bytes.
        return sum(file.stat().st_size for file in self.files())

    @property
    def parts(self) -> tuple[tuple[str, int, int], ...]:
        # As a TextFile's, so that a folder and one of its own files, given separately, are known to overlap.
        return tuple((os.path.realpath(file), 0, 1) for file in self.files())

    def files(self) -> list[Path]:
        # Sorted, since questions are numbered over all files.
        return sorted(self.path.rglob("*.txt"))


def is_published(path: str) -> bool:
    """Returns whether this names a published file: "published:swag/train.csv"."""
    return path.startswith(PREFIX)


def open_published(name: str) -> TextFile:
    """Returns the file of a name. Raises: DataError for a set that is not known, and a file that is missing, with where
    its publisher keeps it and what to put where."""
    inside, _, known = _set_of(name)
    whose = f"{known.title} is published by {known.publisher}"
    folder = Path(inside).parts[0]
    root = os.environ.get(FOLDER)
    if not root:
        raise DataError(
            f"{name}: {FOLDER} is not set; {whose}; put {known.files} into a folder {folder}, and set {FOLDER} to the "
            "folder that holds it"
        )
    # The shell leaves a `~` alone where the variable was set within quotes.
    path = Path(root).expanduser() / inside
    if not path.exists():
        put = Path(root).expanduser() / folder
        raise DataError(f"{name}: {path} is missing; {whose}; put {known.files} into {put}, as they are")
    # Only RACE names a folder, whose files are read as one.
    return PassageFolder(path) if path.is_dir() else TextFile(path)


def table_of(name: str) -> Table:
    """Returns the table of a published file. Raises: as `open_published`; DataError for a file in another form."""
    path, (_, part, known) = open_published(name).path, _set_of(name)
    # Only XNLI has parts, its languages.
    if part and not known.parts:
        raise DataError(f"{name}: {known.title} has no part {part!r}; leave it out")
    # Readers of sets without parts take a path alone.
    return known.read(path, part) if part else known.read(path)


def table_reader(name: str) -> Callable[..., Table]:
    """Returns the function that reads the tables of a published file's set. Raises: DataError for an unknown set."""
    return _set_of(name)[2].read


def _set_of(name: str) -> tuple[str, str, PublishedSet]:
    """Returns the place of a file beneath the folder of all sets, the part of it that is named, and its set."""
    # SET/FILE[:PART].
    inside, _, part = name.removeprefix(PREFIX).partition(":")
    folder, _, rest = inside.partition("/")
    # `..` would lead out of the folder of all sets.
    if folder not in SETS or not rest or ".." in Path(inside).parts:
        raise DataError(
            f"{name}: names no published file{did_you_mean(folder, SETS)}; give {PREFIX}SET/FILE, with one of "
            f"{', '.join(SETS)}"
        )
    return inside, part, SETS[folder]

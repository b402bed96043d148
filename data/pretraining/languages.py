"""Texts of several languages in one folder, mixed by their sizes: P(L)^S, as multilingual BERT's (multilingual.md of
google-research/bert). No code of the original's sampler was released; this is its formula."""

from collections.abc import Sequence
from pathlib import Path

from contexture.data import mirror
from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.mixed_paths import CYCLE, is_name
from contexture.data.plain_files import IN_FOLDERS, inner_suffix
from contexture.data.pretraining.shards import Shards, prepared_at
from contexture.data.storage import check_no_address
from contexture.data.text.sources import present


def languages_in(folder: str) -> list[Path]:
    """Returns the folder or file of each language, sorted by its name.

    Raises: DataError where there is no folder, or fewer than two languages in it.
    """
    check_no_address(folder)
    mirror.fetched(Path(folder))
    if not Path(folder).is_dir():
        raise DataError(f"{folder}: data.languages names no folder; give one with a folder or a file for each language")
    # What programs leave in folders is no language, nor is a file that a folder of text would leave out: a README.
    inside = [each for each in sorted(Path(folder).iterdir()) if not each.name.startswith((".", "_"))]
    inside = [each for each in inside if each.is_dir() or inner_suffix(each) in IN_FOLDERS]
    if len(inside) < 2:
        raise DataError(f"{folder}: {len(inside)} languages; give a folder with a folder or a file for each of several")
    return inside


def mixed(folder: str, exponent: float = DataConfig.language_exponent) -> tuple[str, ...]:
    """Returns the sources of a mixture, NAME=WEIGHT:PATH for each language: `mixed("wiki/")` → ("de=0.41:wiki/de", …).

    P(L) is a language's share of the bytes, or of the tokens where all are prepared. exponent: S; below 1 small
    languages come more often than their share, at 0 all alike.

    Raises: DataError as `languages_in`, for a language without text or whose name or share fits no mixture, two of one
    name, and where only some are prepared.
    """
    paths = languages_in(folder)
    # "de.txt.gz" and "de/" are both de.
    names = [path.name.partition(".")[0] for path in paths]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise DataError(f"{folder}: {twice!r} is the name of two languages; rename one")
    if odd := next((path for path, name in zip(paths, names, strict=True) if not is_name(name)), None):
        raise DataError(f"{odd}: a language's name has letters, digits, - and _ alone; rename it")
    shards = [prepared_at([str(path)]) for path in paths]
    if any(shards) and not all(shards):
        raise DataError(f"{folder}: some languages are prepared, and others are text, whose sizes do not compare")
    sizes = [
        Shards.open(at).splits["train"].tokens if at else sum(source.size for source in present(path))
        for at, path in zip(shards, paths, strict=True)
    ]
    if empty := next((path for path, size in zip(paths, sizes, strict=True) if not size), None):
        raise DataError(f"{empty}: holds no text; leave this language out")
    weights = shares(sizes, exponent)
    # As `mixture_of`, which knows nothing of languages.
    if rare := next((path for path, weight in zip(paths, weights, strict=True) if weight < 1 / CYCLE), None):
        raise DataError(
            f"{rare}: with an exponent of {exponent:g} this language has less than one of {CYCLE:,} sequences; lower "
            "data.language-exponent, or leave the language out"
        )
    # Enough digits for a share of one in 65,536 sequences.
    return tuple(f"{name}={weight:.9g}:{path}" for name, weight, path in zip(names, weights, paths, strict=True))


def shares(sizes: Sequence[float], exponent: float) -> list[float]:
    """Returns P(L)^S of each, which add up to 1."""
    # Powers of shares do not add up to 1: they are shared out anew. Of the largest, which cancels: powers of shares of
    # the sum may all be too small for a float.
    powers = [(size / max(sizes)) ** exponent for size in sizes]
    return [power / sum(powers) for power in powers]

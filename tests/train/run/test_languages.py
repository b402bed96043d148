"""Several languages in one folder: shares by P(L)^S, in the text and in the vocabulary; resumed; every mistake."""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.errors import DataError
from contexture.data.mixed_paths import mixture_of
from contexture.data.pretraining.languages import mixed, shares
from contexture.data.pretraining.mixture import Draws
from contexture.data.tokenizers import word_counts
from contexture.train.run.report import read_metrics
from contexture.train.settings import run_file
from tests.conftest import TINY
from tests.helpers.commands import done, json_of, run_command
from tests.helpers.slow_pairs import as_text, random_documents
from tests.train.run.test_resume import assert_same_run

FEW = ["--steps", 4, "--save.every", 2, "--log.every", 1, "--optim.warmup", 1, "--evaluate.every", 2]
SIZES = {"de": 30, "en": 90, "is": 8}
"""Documents of each language."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """de as a folder of two files, en and is as files; the words of each begin with its name."""
    to = tmp_path_factory.mktemp("languages")
    for number, (name, count) in enumerate(SIZES.items()):
        text = as_text(random_documents(number, count)).replace("w", name)
        if name == "de":
            (to / "de").mkdir()
            half = text.index("\n\n", len(text) // 2)
            (to / "de/a.txt").write_text(text[:half], "utf-8")
            (to / "de/b.txt").write_text(text[half:], "utf-8")
        else:
            (to / f"{name}.txt").write_text(text, "utf-8")
    (to / "README.md").write_text("Where this is from.")
    return to


def bytes_of(folder: Path, name: str) -> int:
    files = (folder / name).iterdir() if (folder / name).is_dir() else [folder / f"{name}.txt"]
    return sum(file.stat().st_size for file in files)


@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=8), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_shares_are_powers_of_the_sizes(sizes: list[int], exponent: float):
    found = shares(sizes, exponent)
    assert sum(found) == pytest.approx(1)
    for a, b, size_a, size_b in zip(found, found[1:], sizes, sizes[1:], strict=False):
        assert a / b == pytest.approx((size_a / size_b) ** exponent)


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0])
def test_a_hundred_thousand_sequences_have_the_shares_to_one_percent(folder: Path, exponent: float):
    sources = mixture_of(mixed(str(folder), exponent))
    assert [source.name for source in sources] == ["de", "en", "is"]
    sizes = np.array([bytes_of(folder, name) for name in SIZES], float)
    expected = (sizes / sizes.sum()) ** exponent
    of, _ = Draws([source.weight for source in sources], 3).of(np.arange(100_000))
    shares_drawn = np.bincount(of) / 100_000
    assert np.abs(shares_drawn / (expected / expected.sum()) - 1).max() < 0.01


def test_a_language_counts_by_its_share_in_a_vocabulary():
    """Three times as long, and a third of the weight: each word of both counts as often."""
    short = word_counts.count(["a a b"], str.split)
    long = word_counts.count(["c c d c c d c c d"], str.split)
    assert list(word_counts.weighted([(short, 1.0), (long, 1.0)])) == [("a", 4), ("b", 2), ("c", 4), ("d", 2)]
    # No word is lost, and a word of both adds up.
    rare = list(word_counts.weighted([(iter([("a", 1), ("x", 1)]), 0.001), (iter([("a", 1000)]), 1.0)]))
    assert dict(rare)["x"] == 1 and dict(rare)["a"] >= 1000


def test_a_vocabulary_of_languages_has_more_of_the_small_one(folder: Path, tmp_path: Path):
    kept = {}
    for exponent in (0.2, 1.0):
        to = tmp_path / str(exponent)
        given = ["--languages", folder, "--language-exponent", exponent, "--vocab-size", 150]
        done("tokenizer", "wordpiece", *given, "--to", to)
        pieces = (to / "vocab.txt").read_text("utf-8").split()
        kept[exponent] = Counter(piece[:2] for piece in pieces if not piece.startswith(("[", "##")))["is"]
    assert kept[0.2] > kept[1.0]
    # The same by weights that are written out.
    done("tokenizer", "wordpiece", "--input", *mixed(str(folder), 0.2), "--vocab-size", 150, "--to", tmp_path / "x")
    assert (tmp_path / "x/vocab.txt").read_bytes() == (tmp_path / "0.2/vocab.txt").read_bytes()


@pytest.mark.usefixtures("one_device")
def test_languages_are_trained_on_resumed_and_measured_each(folder: Path, tmp_path: Path):
    given = ["pretrain", "bert.tiny", *TINY, *FEW, "--data.languages", folder, "--data.dev-fraction", 0.2]
    done(*given, "--dir", tmp_path / "whole")
    done(*given, "--dir", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts/checkpoints/4")
    done(*given, "--dir", tmp_path / "parts")
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    record = run_file.read(tmp_path / "whole")
    assert [source.name for source in mixture_of(record.run.data.path)] == list(SIZES) and not record.run.data.languages
    held = [each for each in read_metrics(tmp_path / "whole/metrics.jsonl") if each["split"] == "dev"]
    assert all(f"mlm_loss/{name}" in held[-1] for name in SIZES)
    trained = [each for each in read_metrics(tmp_path / "whole/metrics.jsonl") if each["split"] == "train"]
    # The smallest language is read more often than the largest.
    assert trained[-1]["passes/is"] > trained[-1]["passes/en"] > 0
    assert "mlm_loss/is" in json_of("evaluate", tmp_path / "whole")["metrics"]


def test_prepared_languages_are_mixed_by_their_tokens(folder: Path, tmp_path: Path):
    done("tokenizer", "wordpiece", "--languages", folder, "--vocab-size", 150, "--to", tmp_path / "words")
    for name, path in (("de", folder / "de"), ("en", folder / "en.txt"), ("is", folder / "is.txt")):
        given = ["--input", path, "--tokenizer", tmp_path / "words", "--to", tmp_path / "all" / name]
        done("prepare", "bert.tiny", *given)
    by_tokens = {source.name: source.weight for source in mixture_of(mixed(str(tmp_path / "all"), 1.0))}
    by_bytes = {source.name: source.weight for source in mixture_of(mixed(str(folder), 1.0))}
    assert by_tokens.keys() == by_bytes.keys() and by_tokens != by_bytes
    assert sum(by_tokens.values()) == pytest.approx(1) and by_tokens["en"] > by_tokens["de"] > by_tokens["is"]
    shutil.copytree(folder / "de", tmp_path / "all" / "raw")
    with pytest.raises(DataError, match="some languages are prepared, and others are text, whose sizes do not compare"):
        mixed(str(tmp_path / "all"))


@pytest.mark.parametrize(
    ("made", "line"),
    [
        ([], "0 languages; give a folder with a folder or a file for each of several"),
        (
            ["de.txt.gz", "notes.md", "README", "sizes.json", ".git/", "_old.txt"],
            "1 languages; give a folder with a folder or a file for each of several",
        ),
        (["de.txt", "de.jsonl"], "'de' is the name of two languages; rename one"),
        (["de.txt", "en/"], "en"),
        (["de.txt", "en.txt=empty"], "holds no text; leave this language out"),
        (["de.txt", "pt br.txt"], "pt br.txt: a language's name has letters, digits, - and _ alone; rename it"),
        (["de.txt", "pt:br.txt"], "pt:br.txt: a language's name has letters, digits, - and _ alone; rename it"),
    ],
)
def test_a_folder_without_languages_is_one_line(made: list[str], line: str, tmp_path: Path):
    (tmp_path / "in").mkdir()
    for name in made:
        place = tmp_path / "in" / name.partition("=")[0]
        if name.endswith("/"):
            place.mkdir()
        else:
            place.write_text("" if name.endswith("=empty") else "some text\n")
    with pytest.raises(DataError, match=line):
        mixed(str(tmp_path / "in"))


@pytest.mark.parametrize("exponent", [20.0, 1e9])
def test_a_language_too_rare_for_a_mixture_is_one_line(exponent: float, folder: Path):
    """Also where powers of all shares are below the smallest float."""
    with pytest.raises(DataError, match=r"de: with an exponent of .* less than one of 65,536 sequences; lower data"):
        mixed(str(folder), exponent)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "pretrain bert.tiny --data.languages F --data.path F --dir x",
            "data.languages and data.path both name the text",
        ),
        ("pretrain bert.tiny --data.languages missing --dir x", "missing: data.languages names no folder"),
        (
            "pretrain bert.tiny --data.languages F --data.language-exponent -1 --dir x",
            "data.language-exponent=-1.0 is not",
        ),
        ("pretrain bert.tiny --data.languages F --data.dev F --dir x", "data.dev has no meaning for several languages"),
        ("pretrain bert.tiny --data.path F --data.language-exponent 0.5 --dir x", "is for a run with --data.languages"),
        ("pretrain bert.tiny --data.language F --dir x", "did you mean --data.languages"),
        ("pretrain elmo.tiny --data.languages F --dir x", "is for pretraining a BERT or a GPT"),
        ("tokenizer wordpiece --languages F --input F --to x", "languages and input both name the text"),
        (
            "tokenizer wordpiece --languages F --workers 2 --to x",
            "workers= is for text without weights, since others are counted in one process; give paths alone",
        ),
        ("tokenizer wordpiece --input F --language-exponent 0.5 --to x", "language-exponent= is for languages"),
        ("tokenizer wordpiece --languages F --language-exponent nan --to x", "language-exponent=nan is not a number"),
        ("tokenizer wordpiece --languages missing --to x", "missing: data.languages names no folder"),
    ],
)
def test_mistakes_are_one_line(
    words: str,
    line: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    code, err = run_command(capsys, *(str(folder) if word == "F" else word for word in words.split()))
    assert code and line in err and len(err.splitlines()) == 1 and not (tmp_path / "x").exists()

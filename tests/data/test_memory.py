"""Cleaning, preparing and reading take as much memory on much text as on little."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.pretraining.test_shards import ROOT


def _peak(program: str, *arguments: str) -> float:
    """The most memory (MB) that a fresh process ever held, as Linux counts it (VmHWM)."""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs Linux's /proc to read the peak of a process's memory")
    program += "\nprint(next(int(line.split()[1]) / 1024 for line in open('/proc/self/status') if 'VmHWM' in line))\n"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


PREPARE = (
    "import sys\nfrom contexture.data.config import DataConfig\n"
    "from contexture.data.pretraining.tokenize_corpus import prepare\n"
    "from contexture.data.tokenizers.wordpiece import SPECIAL, WordPiece\n"
    "tokenizer = WordPiece([*SPECIAL, *(f'contextual{number}' for number in range(90))], True)\n"
    "prepare(DataConfig(path=(sys.argv[1],), dev_fraction=0.02), tokenizer, sys.argv[2])"
)
CLEAN = (
    "import sys\nfrom contexture.data.cleaning.clean_parts import clean\n"
    "from contexture.data.cleaning.config import CleanConfig\n"
    "clean(CleanConfig(input=(sys.argv[1],), duplicates=('documents', 'paragraphs', 'near')), sys.argv[2])"
)
READ = (
    "import sys\nfrom contexture.data.config import DataConfig\n"
    "from contexture.data.pretraining.sentence_pairs import PairBatches\n"
    "from contexture.data.pretraining.shards import Shards\n"
    "batches = PairBatches(Shards.open(sys.argv[1]), DataConfig(batch=64), seed=1)\n"
    "steps = batches.examples_per_epoch // 64\n"
    "for step in range(0, steps, max(1, steps // 20)):\n    batches.read(step)\n"
)


def _write_text(file: Path, megabytes: float, border: str) -> None:
    generator = random.Random(0)
    words = [f"contextual{number}" for number in range(90)]
    lines = [" ".join(generator.choices(words, k=generator.randint(5, 40))) for _ in range(6_000)]
    part = border.join("\n".join(lines[at : at + 20]) for at in range(0, len(lines), 20)) + border
    with file.open("w") as out:
        for _ in range(max(1, round(megabytes * 1e6 / len(part)))):
            out.write(part)


@pytest.mark.long
@pytest.mark.parametrize("border", ["\n", "\n\n"], ids=["no_blank_line", "documents"])
def test_memory_does_not_grow_with_the_text(tmp_path: Path, border: str):
    small, large = 10, 100
    peaks = {"prepare": [], "read": [], "clean": []}
    for size in (small, large):
        folder = tmp_path / str(size)
        folder.mkdir()
        _write_text(folder / "text.txt", size, border)
        peaks["prepare"].append(_peak(PREPARE, str(folder / "text.txt"), str(folder / "shards")))
        peaks["read"].append(_peak(READ, str(folder / "shards")))
        # Without a blank line all is one document, which is cleaned as a whole or not at all.
        if border == "\n\n":
            peaks["clean"].append(_peak(CLEAN, str(folder / "text.txt"), str(folder / "clean")))
    print(f"{small} and {large} MB of text: {peaks}")
    for before, after in filter(None, peaks.values()):
        assert after < before + 30

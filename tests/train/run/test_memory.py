"""Training takes as much memory on much text as on little: a real run, its peak told by the operating system."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TINY


def write_text(path: Path, megabytes: int) -> None:
    """Documents of words drawn from a few thousand, sentence by sentence."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(3000)]
    block = ""
    while len(block) < 1 << 20:
        document = [" ".join(rng.choices(words, k=rng.randint(4, 25))) + "." for _ in range(rng.randint(3, 40))]
        block += "\n".join(document) + "\n\n"
    with path.open("w") as file:
        for _ in range(megabytes):
            file.write(block)


def peak_megabytes(words: list[str]) -> float:
    """Peak resident memory of one command."""
    command = [sys.executable, "-m", "contexture", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=os.environ) as run:
        assert run.stderr is not None
        stderr = run.stderr.read()
        _, status, usage = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
    assert run.returncode == 0, stderr
    return usage.ru_maxrss / (1024 if sys.platform == "linux" else 1 << 20)


@pytest.mark.long
def test_a_run_on_100_megabytes_takes_the_memory_of_one_on_10(tmp_path):
    peaks = {}
    vocabulary = tmp_path / "vocab.txt"
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *letters, *(f"##{c}" for c in letters)]
    vocabulary.write_text("\n".join(pieces) + "\n")
    for megabytes in (10, 100):
        text = tmp_path / f"{megabytes}.txt"
        write_text(text, megabytes)
        peaks[megabytes] = peak_megabytes(
            ["pretrain", "bert.tiny", *TINY, "--data.path", str(text), "--data.tokenizer", str(vocabulary)]
            + ["--dir", str(tmp_path / f"run{megabytes}")]
        )
        text.unlink()
    print(f"peak of a run, MB, by MB of text: {peaks}")
    assert peaks[100] < peaks[10] + 40

"""Fine-tuning and predicting take as much memory on many rows as on few, told by the operating system."""

import random
import time
from pathlib import Path

import pytest

from tests.data.test_memory import _peak
from tests.train.run.test_formats import GOLDEN
from tests.train.run.test_memory import peak_megabytes

FEW, MANY = 50_000, 300_000
READ = (
    "import sys\nfrom pathlib import Path\nfrom contexture.data.config import DataConfig, TaskConfig\n"
    "from contexture.data.tasks.encode.encode_examples import encode\n"
    "from contexture.data.tasks.batch.training_batches import TaskBatches\n"
    "from contexture.data.tokenizers.registry import load_tokenizer\n"
    "task, tokenizer = TaskConfig(kind='classify', train=(sys.argv[1],)), load_tokenizer(sys.argv[2], True)\n"
    "store = encode(task, tokenizer, Path(sys.argv[3]))\nstore.verify()\n"
    "config = DataConfig(batch=64, length=16, max_predictions=1)\n"
    "batches = TaskBatches(store, tokenizer, config, task, seed=0, family='bert')\n"
    "for step in (*range(20), store.splits['train'].examples // 64):\n    batches.read(step)\n"
)
"""What a fine-tuning does with its rows, without jax, whose compiler takes more memory than all of it."""


def write_rows(path: Path, count: int) -> None:
    """So many labelled sentences, about 110 bytes each, in the words of the small run's vocabulary."""
    rng = random.Random(0)
    words = ["the", "cat", "river", "likes", "old", "sees", "house", "under", "letter", "stars"]
    block = [f"{' '.join(rng.choices(words, k=20))}\t{rng.choice(['no', 'yes'])}\n" for _ in range(1000)]
    with path.open("w") as file:
        file.write("text\tlabel\n")
        for _ in range(count // len(block)):
            file.writelines(block)


@pytest.mark.long
def test_reading_many_rows_takes_the_memory_of_a_sixth_of_them(tmp_path):
    """All that may grow is the order of a pass and of the one before: 8 bytes a row each, and as many again while one
    is drawn. The file has 110 a row."""
    peaks = []
    for count in (FEW, MANY):
        file = tmp_path / f"{count}.tsv"
        write_rows(file, count)
        start = time.monotonic()
        peaks.append(_peak(READ, str(file), str(GOLDEN / "bert_3_steps" / "tokenizer"), str(tmp_path / f"{count}")))
        print(f"{count:,} rows, {file.stat().st_size / 1e6:.0f} MB, read in {time.monotonic() - start:.0f} s")
    print(f"peaks in MB: {peaks}")
    assert peaks[1] < peaks[0] + 15


@pytest.mark.long
def test_many_rows_take_the_memory_of_a_sixth_of_them(tmp_path):
    """The commands themselves; the first round, of few rows, leaves the compiled programs to the others."""
    peaks: dict[str, list[float]] = {"finetune": [], "predict": []}
    for place, count in enumerate((1_000, FEW, MANY)):
        file, run, answers = tmp_path / f"{place}.tsv", tmp_path / f"run{place}", tmp_path / f"answers{place}.jsonl"
        write_rows(file, count)
        words = {
            "finetune": ["finetune", str(GOLDEN / "bert_3_steps"), "--task.kind", "classify", "--task.train", str(file)]
            + ["--data.batch", "64", "--steps", "10", "--log.no-tensorboard", "--dir", str(run)],
            "predict": ["predict", str(run), "--input", str(file), "--to", str(answers), "--batch", "1024"],
        }
        for command, asked in words.items():
            start = time.monotonic()
            peaks[command].append(peak_megabytes(asked))
            print(f"{command} of {count:,} rows {time.monotonic() - start:.0f} s")
        with answers.open() as file:
            assert sum(1 for _ in file) == count
    print(f"peaks in MB: {peaks}")
    assert peaks["finetune"][2] < peaks["finetune"][1] + 15
    assert peaks["predict"][2] < peaks["predict"][1] + 15

"""Tokenising text: `contexture prepare` against its tokenizer alone on all cores, and Hugging Face `datasets.map`.

    python benchmarks/preparation.py --family bert [--megabytes 50] [--workers 2] [--rounds 3] [--json]

All read one file of made text (words by Zipf's law, a blank line between documents) with one vocabulary, learned on the
beginning of it. Each contender is a process of its own; rounds alternate, the order rotates. Figures are megabytes of
text a second of wall time: of a whole process for `prepare`, which writes shards with digests; without the import for
`datasets`, which writes its cache; of the loop alone, without start and reading, for the tokenizer's library.
`datasets` is installed by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

RECIPES = {"bert": "bert.tiny", "gpt": "gpt.tiny", "elmo": "elmo.small"}
"""Of an ELMo one that reads a sentence in each line, as the original: `elmo.tiny` splits lines into sentences."""
KINDS = {"bert": "wordpiece", "gpt": "byte-bpe", "elmo": "words"}
WORDS, VOCABULARY = 50_000, 8_000
LETTERS = "etaoinshrdlucmfwypvbgkqjxz"
CONTENDERS = ("prepare", "tokenizer", "datasets")


def write_text(file: Path, megabytes: float) -> None:
    """Writes lines of two sentences, four to a document, of words that occur by Zipf's law."""
    rng = np.random.default_rng(0)
    letters = rng.choice(list(LETTERS), (WORDS, 12), p=(weights := 1 / np.arange(1, 27)) / weights.sum())
    words = ["".join(row[: 2 + n % 9]) for n, row in enumerate(letters)]
    shares = 1 / np.arange(1, WORDS + 1)
    size = 0
    with file.open("w", encoding="utf-8") as out:
        while size < megabytes * 1e6:
            drawn = rng.choice(WORDS, (4000, 24), p=shares / shares.sum())
            lines = []
            for number, row in enumerate(drawn.tolist()):
                text = " ".join(words[word] for word in row)
                lines.append(
                    f"{text[:60].capitalize()}. {text[60:].strip().capitalize()}.\n" + "\n" * (number % 4 == 3)
                )
            size += out.write("".join(lines))


def lines_of(file: Path) -> Iterator[list[str]]:
    """Yields lines in lists of about half a million characters, as `prepare` gives them to a tokenizer."""
    batch: list[str] = []
    size = 0
    for line in file.open(encoding="utf-8"):
        if line := line.strip():
            batch.append(line)
            size += len(line)
        if size > 1 << 19:
            yield batch
            batch, size = [], 0
    yield batch


def prepare(args: argparse.Namespace, folder: Path, text: Path) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        words = ["prepare", RECIPES[args.family], "--input", text, "--tokenizer", folder / "vocabulary"]
        words += ["--to", Path(scratch) / "shards", "--workers", args.workers]
        if args.family == "gpt":
            # By default a file is one document, which one worker reads.
            (settings := Path(scratch) / "settings.yaml").write_text("data.documents: blank_lines\n")
            words += ["--config", settings]
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "contexture", *map(str, words)], check=True, capture_output=True)
        return time.perf_counter() - start


def alone(args: argparse.Namespace, folder: Path, text: Path) -> float:
    """Runs this file as the contender that is measured, and returns the seconds that it prints."""
    own = [sys.executable, __file__, "--family", args.family, "--workers", str(args.workers)]
    command = [*own, "--work", args.contender, "--folder", str(folder)]
    around = {**os.environ, "RAYON_NUM_THREADS": str(args.workers), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=around)
    return float(done.stdout.splitlines()[-1])


def encode_all(args: argparse.Namespace, folder: Path) -> float:
    """The tokenizer alone: lines are in memory, and their ids are dropped."""
    from multiprocessing import get_context

    batches = list(lines_of(folder / "text.txt"))
    if args.family != "elmo":
        encode = _encoder(folder)
        start = time.perf_counter()
        for batch in batches:
            encode(batch)
        return time.perf_counter() - start
    # An ELMo's words are split in Python, and so in processes.
    with get_context("spawn").Pool(args.workers, _open, (folder,)) as pool:
        pool.map(_encode, batches[: args.workers])
        start = time.perf_counter()
        pool.map(_encode, batches, chunksize=1)
        return time.perf_counter() - start


def _encoder(folder: Path) -> Any:
    """Texts → ids by the library itself, as most users call it: Hugging Face `tokenizers` for WordPiece and byte-level
    BPE, and our own for words, which no library has."""
    from contexture.data.tokenizers.registry import load_tokenizer

    tokenizer: Any = load_tokenizer(folder / "vocabulary")
    if tokenizer.kind == "words":
        return tokenizer.encode
    library = tokenizer._tokenizer
    return lambda texts: [each.ids for each in library.encode_batch_fast(texts, add_special_tokens=False)]


def _open(folder: Path) -> None:
    global _tokenizer
    _tokenizer = _encoder(folder)


def _encode(batch: list[str]) -> int:
    return len(_tokenizer(batch))


def map_all(args: argparse.Namespace, folder: Path) -> float:
    """`datasets.map` in as many processes, over the lines of the text, with the same tokenizer."""
    os.environ["RAYON_NUM_THREADS"] = os.environ["TOKENIZERS_PARALLELISM"] = "1"
    import datasets  # pyright: ignore[reportMissingImports]

    encode = _encoder(folder)
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        start = time.perf_counter()
        files = {"train": str(folder / "text.txt")}
        rows = datasets.load_dataset("text", data_files=files, cache_dir=cache, split="train")
        rows.map(
            lambda batch: {"ids": encode(batch["text"])},
            batched=True,
            num_proc=args.workers,
            remove_columns=["text"],
        )
        return time.perf_counter() - start


def measure(args: argparse.Namespace) -> dict[str, Any]:
    from importlib.util import find_spec

    from contexture.data.tokenizers.registry import learn

    contenders = [name for name in CONTENDERS if name != "datasets" or find_spec("datasets")]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        text = folder / "text.txt"
        write_text(text, args.megabytes)
        size = text.stat().st_size / 1e6
        sample = (line for batch, _ in zip(lines_of(text), range(4), strict=False) for line in batch)
        learn(KINDS[args.family], sample, VOCABULARY, True, "spaces").save(folder / "vocabulary")
        speeds: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(args.rounds):
            # No contender always comes first.
            for name in contenders[number % len(contenders) :] + contenders[: number % len(contenders)]:
                args.contender = name
                seconds = prepare(args, folder, text) if name == "prepare" else alone(args, folder, text)
                speeds[name].append(size / seconds)
    ratios = {
        name: [ours / theirs for ours, theirs in zip(speeds["prepare"], speeds[name], strict=True)]
        for name in contenders[1:]
    }
    return {
        "family": args.family,
        "megabytes": round(size, 1),
        "workers": args.workers,
        "megabytes_per_second": {name: round(statistics.median(each), 2) for name, each in speeds.items()},
        "prepare_against": {
            name: {"median": round(statistics.median(each), 2), "low": round(min(each), 2), "high": round(max(each), 2)}
            for name, each in ratios.items()
        },
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--family", choices=RECIPES, default="bert")
    arguments.add_argument("--megabytes", type=float, default=50.0)
    arguments.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--json", action="store_true", help="one JSON object on stdout")
    arguments.add_argument("--work", choices=CONTENDERS, help=argparse.SUPPRESS)
    arguments.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = arguments.parse_args()
    if args.work:
        print(encode_all(args, args.folder) if args.work == "tokenizer" else map_all(args, args.folder))
        return
    result = measure(args)
    if args.json:
        print(json.dumps(result))
        return
    for name, speed in result["megabytes_per_second"].items():
        against = result["prepare_against"].get(name)
        ratio = f", prepare has {against['median']} ({against['low']}–{against['high']}) times that" if against else ""
        print(f"{name:10} {speed:8.2f} MB/s{ratio}")


if __name__ == "__main__":
    main()

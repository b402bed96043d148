"""Long runs with random kills against runs that are left alone: `make soak`, `python benchmarks/soak.py --family gpt`.

For each family a small run of 20,000 steps is trained twice. One is left alone; its memory and its open files are
watched, and must stay flat. The other is killed (SIGKILL, SIGTERM, Ctrl-C in turn) at random moments and started again
by the same command, until it is done. Both must agree to the bit: the loss of every step, and the digest of every array
of the final state, optimizer included.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

ROOT = Path(__file__).resolve().parent.parent
SMALL = "--model.layers 2 --model.hidden 32 --model.heads 2 --model.ffn 64 --data.length 32 --data.batch 8"
FAMILIES = {
    "bert": f"bert.tiny {SMALL} --model.vocab 500",
    "gpt": f"gpt.tiny {SMALL} --model.vocab 500",
    "elmo": "elmo.tiny --model.vocab 500 --model.filters 1 4 2 4 --model.cells 16 --model.projection 6 --data.length 8 "
    "--data.batch 8 --data.negatives 64 --data.word-types 64",
}
COMMON = "--data.dev-fraction 0.1 --optim.warmup 100 --save.every 500 --log.every 50 --evaluate.every 2000"
KILLS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
MOST_GROWTH, MOST_MORE_FILES = 1.05, 4
"""By how much memory may grow, and how many more files may be open, from a fifth of the way to the end."""


class Sample(NamedTuple):
    step: int
    rss: int
    """Bytes."""
    files: int


def write_text(folder: Path) -> None:
    """A few thousand sentences of a small grammar, of which no two runs differ."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abdegiklmnoprstu", k=rng.randint(2, 8))) for _ in range(400)]
    documents = [
        "\n".join(" ".join(rng.choices(words, k=rng.randint(4, 14))) + "." for _ in range(rng.randint(4, 12)))
        for _ in range(400)
    ]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n", "utf-8")


def start(words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with open(log, "ab") as file:
        return subprocess.Popen([sys.executable, "-m", "contexture", *words], stderr=file, stdout=file)


def records(folder: Path) -> list[dict[str, Any]]:
    """The records of metrics.jsonl; a line that is being written is left out."""
    try:
        lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []
    records = []
    for line in lines:
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def newest(folder: Path) -> int:
    steps = [int(step.name) for step in (folder / "checkpoints").glob("[0-9]*") if step.name.isdigit()]
    return max(steps, default=0)


def least(samples: Sequence[Sample]) -> Sample:
    return Sample(samples[0].step, min(each.rss for each in samples), min(each.files for each in samples))


def watched(words: list[str], folder: Path, log: Path) -> list[Sample]:
    """A run that is left alone → a sample each half second."""
    process, samples = start(words, log), []
    while process.poll() is None:
        try:
            seen = psutil.Process(process.pid)
            samples.append(Sample(newest(folder), seen.memory_info().rss, seen.num_fds()))
        except psutil.Error:
            pass
        time.sleep(0.5)
    if process.returncode:
        sys.exit(f"the run in {folder} ended with {process.returncode}: see {log}")
    return samples


def killed(words: list[str], folder: Path, log: Path, steps: int, kills: int, rng: random.Random) -> int:
    """A run that is killed as often, spread over its steps, each time at a random moment: while it starts, while it
    trains, saves or evaluates; and then left to end → how often it was."""
    done = 0
    while True:
        process = start(words, log)
        if done < kills:
            goal, wait = steps * done // kills, rng.uniform(0.0, 6.0)
            while newest(folder) < goal and process.poll() is None:
                time.sleep(0.02)
            try:
                process.wait(wait)
            except subprocess.TimeoutExpired:
                process.send_signal(KILLS[done % len(KILLS)])
                done += 1
        code = process.wait()
        if code == 0:
            return done
        if code not in (75, 130, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT):
            sys.exit(f"the run ended with {code}: see {log}")


def losses(folder: Path) -> list[tuple[int, str, float]]:
    return [(record["step"], record["split"], record["loss"]) for record in records(folder)]


def digests(folder: Path) -> dict[str, int]:
    return json.loads((folder / "checkpoints" / str(newest(folder)) / "digest" / "metadata").read_text("utf-8"))[
        "arrays"
    ]


def soak(family: str, steps: int, kills: int, seed: int, place: Path) -> bool:
    """One family: prints its figures → whether all is well."""
    words = ["pretrain", *FAMILIES[family].split(), "--data.path", str(place / "text.txt"), *COMMON.split()]
    words += ["--steps", str(steps)]
    whole, broken = place / f"{family}-whole", place / f"{family}-killed"
    rng, began = random.Random(seed), time.monotonic()
    samples = watched([*words, "--dir", str(whole)], whole, place / f"{family}-whole.log")
    seconds = time.monotonic() - began
    count = killed([*words, "--dir", str(broken)], broken, place / f"{family}-killed.log", steps, kills, rng)
    same = losses(whole) == losses(broken) and digests(whole) == digests(broken)
    late = [sample for sample in samples if sample.step >= steps // 5]
    late = [sample for sample in late if sample.step <= 0.95 * steps]  # what ends a run (a figure) is no training
    # A checkpoint on its way holds files open: the fewest of some samples are those that stay.
    few = max(len(late) // 8, 1)
    first, middle, last = (least(late[at : at + few]) for at in (0, len(late) // 2, len(late) - few))
    growth, files = last.rss / first.rss, last.files - first.files
    print(
        f"{family}: {steps:,} steps in {seconds:.0f} s; killed {count} times: "
        f"{'equal to the bit' if same else 'NOT THE SAME RUN'} ({len(losses(whole)):,} records, {len(digests(whole))} "
        "arrays)\n"
        f"  memory at 20, 60 and 95 %: {first.rss / 2**20:.0f}, {middle.rss / 2**20:.0f}, {last.rss / 2**20:.0f} MiB "
        f"({growth - 1:+.1%}); open files {first.files}, {middle.files}, {last.files}",
        flush=True,
    )
    return same and growth <= MOST_GROWTH and files <= MOST_MORE_FILES


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--family", nargs="*", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="contexture-soak-") as folder:
        place = Path(folder)
        write_text(place)
        well = [soak(family, given.steps, given.kills, given.seed, place) for family in given.family]
    sys.exit(0 if all(well) else 1)


if __name__ == "__main__":
    main()

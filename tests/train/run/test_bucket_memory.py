"""A training from a bucket, to a bucket, takes as much memory and disk after eighty saves as after some."""

import contextlib
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import ROOT
from tests.helpers.buckets import BUCKET, Server
from tests.helpers.commands import done
from tests.helpers.jobs import finish
from tests.train.run.test_memory import write_text

MEGABYTE = 1 << 20
TRAINED = (
    "--model.layers 2 --model.hidden 32 --model.heads 2 --model.ffn 64 --data.length 32 --data.batch 16 "
    "--data.max-predictions 5 --data.cache-gb 0.001 --save.every 3 --save.max-to-keep 2 --steps 240"
)
LOST = 2.5
"""MB that a save may lose. TensorStore 0.1.86 never frees the lists and dictionaries in what `Spec.to_json` gives, for
which Orbax asks of each array: of 94 arrays 1 MB on a disk, and up to 1.7 in a bucket."""
# Garbage in cycles is collected now and then, and memory goes up and down by it: what is held is looked at here.
COLLECTED = """
import gc, sys, threading, time
def collect():
    while True:
        time.sleep(1)
        gc.collect()
threading.Thread(target=collect, daemon=True).start()
from contexture.__main__ import main
sys.exit(main())
"""


class Taken(NamedTuple):
    """What a process holds at a moment, in MB: resident memory, and files below its temporary folder."""

    step: int
    memory: float
    disk: float


def taken(process: subprocess.Popen, folder: Path, step: int) -> Taken | None:
    """None where the process has just ended."""
    disk = 0
    try:
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        opened = list(Path(f"/proc/{process.pid}/fd").iterdir())
    except (OSError, ValueError, IndexError):
        return None
    # The cache of blocks is a file without a name, which is seen by its descriptor alone.
    for file in opened:
        with contextlib.suppress(OSError):
            if (name := os.readlink(file)).startswith(f"{folder}/") and name.endswith(" (deleted)"):
                disk += file.stat().st_blocks * 512
    # os.walk passes over folders that are removed meanwhile.
    for file in (Path(above) / name for above, _, names in os.walk(folder) for name in names):
        # These grow with the steps, as on a disk.
        if file.name not in ("metrics.jsonl", "log.txt") and "tfevents" not in file.name:
            with contextlib.suppress(OSError):
                disk += file.stat().st_blocks * 512
    return Taken(step, pages * os.sysconf("SC_PAGE_SIZE") / MEGABYTE, disk / MEGABYTE)


@pytest.mark.long
def test_many_saves_take_the_memory_and_disk_of_some(bucket_store: Server, environment, tmp_path: Path) -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("needs Linux's /proc to read a process's memory")
    key = f"memory-{random.randrange(1 << 30)}"
    place = f"{bucket_store.scheme}://{BUCKET}/{key}"
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *letters, *(f"##{c}" for c in letters)]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    # Several times the cache, which holds three blocks.
    write_text(tmp_path / "text.txt", 4)
    shards = ["--input", tmp_path / "text.txt", "--tokenizer", tmp_path / "vocab.txt", "--to", f"{place}/shards"]
    done("prepare", "bert.tiny", *shards)
    (temporary := tmp_path / "tmp").mkdir()
    words = ["pretrain", "bert.tiny", "--data.path", f"{place}/shards", "--dir", f"{place}/run", *TRAINED.split()]
    process = subprocess.Popen(
        [sys.executable, "-c", COLLECTED, *words],
        cwd=ROOT, env={**environment(1), "TMPDIR": str(temporary)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    seen: list[Taken] = []
    at = f"{key}/run/checkpoints/"
    try:
        while process.poll() is None:
            names = [name.removeprefix(at) for name in bucket_store.names(at) if name.endswith("/commit_success.txt")]
            if now := taken(process, temporary, max((int(name.partition("/")[0]) for name in names), default=0)):
                seen.append(now)
            time.sleep(0.5)
        ((code, err),) = finish([process])
    finally:
        process.kill()
    assert code == 0, err
    # The steps of 25 saves each, with 25 between them.
    thirds = [[each for each in seen if low < each.step <= low + 75] for low in (15, 165)]
    memory = [statistics.median(each.memory for each in third) for third in thirds]
    disk = [max(each.disk for each in third) for third in thirds]
    print(f"MB of memory and disk, steps 16 to 90 and 166 to 240: {memory}, {disk}")
    assert disk[1] < min(disk[0] + 0.2, 5), disk
    assert memory[1] < memory[0] + 50 * LOST, memory

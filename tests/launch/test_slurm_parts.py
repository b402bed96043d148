"""The array of docs/corpora.md under SLURM itself, on this machine: a task that is killed costs its part alone."""

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tests.data.pretraining.test_parts import content
from tests.helpers import slurm
from tests.helpers.commands import done

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing())]
PARTS = 4
ENDED = ("COMPLETED", "FAILED", "CANCELLED")


def script() -> str:
    """The page's own, of a small recipe and few parts; its paths are those of the job's folder."""
    page = (ROOT / "docs" / "corpora.md").read_text("utf-8").partition("### A SLURM array")[2]
    block = page.partition("```bash\n")[2].partition("```")[0]
    # Whatever else the page says is run as it is there.
    changes = {"--array=0-99": f"--array=0-{PARTS - 1}", "/100": f"/{PARTS}", "bert.base": "bert.tiny"}
    for old, new in changes.items():
        assert block.count(old) == 1, block
        block = block.replace(old, new)
    return block


@pytest.fixture
def around(tmp_path_factory) -> Iterator[dict[str, str]]:
    """What a job finds around it: the script's `contexture` is that of the tests."""
    with slurm.running(tmp_path_factory.mktemp("slurm")) as cluster:
        yield {**cluster, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{cluster['PATH']}"}


def wait(done: Callable[[], object], what: object = "") -> None:
    deadline = time.monotonic() + 240
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def ended(around: dict[str, str], job: str) -> list[str]:
    """How the tasks of an array ended, or a job without any."""
    lines: list[str] = []

    def all_ended() -> bool:
        lines[:] = slurm.command(around, "scontrol", "--oneliner", "show", "job", job).splitlines()
        return all(any(f"JobState={state}" in line for state in ENDED) for line in lines)

    wait(all_ended, lines)
    # In the order of their numbers.
    lines.sort(key=lambda line: int((re.findall(r"ArrayTaskId=([0-9]+) ", line) or [0])[0]))
    return [re.findall(r"JobState=(\S+)", line)[0] for line in lines]


def kill_part(folder: Path, part: int) -> None:
    """Kills the process that makes a part, in the middle of it."""
    partial = f"shards.parts/.part-{part:05d}-*.partial/tokens.bin"
    wait(lambda: list(folder.glob(partial)) or list(folder.glob("log-*.txt")))
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if f"{part}/{PARTS}" in words and "python" in words[0] and process.cwd() == str(folder):
                process.send_signal(signal.SIGKILL)
                return
    raise AssertionError("the part was made before it could be killed")


def test_the_array_of_the_page_makes_again_what_was_killed_alone(around, tmp_path):
    (tmp_path / "corpus").mkdir()
    for file in range(PARTS):
        lines = (f"w{n * 7919 % 997} w{n * 31 % 89} w{n % 13}.\n" + "\n" * (n % 5 == 0) for n in range(150_000))
        (tmp_path / "corpus" / f"{file}.txt").write_text("".join(lines))
    done("tokenizer", "wordpiece", "--input", tmp_path / "corpus", "--vocab-size", 300, "--to", tmp_path / "vocab")
    (tmp_path / "array.sbatch").write_text(script())
    submit = ["sbatch", "--parsable", f"--chdir={tmp_path}", f"--output={tmp_path}/log-%j.txt"]
    first = slurm.command(around, *submit, tmp_path / "array.sbatch").strip()
    kill_part(tmp_path, 1)
    assert ended(around, first) == ["COMPLETED", "FAILED", "COMPLETED", "COMPLETED"], slurm.log_of(around)
    places = [tmp_path / "shards.parts" / f"part-{part:05d}-of-{PARTS:05d}" for part in range(PARTS)]
    assert [place.is_dir() for place in places] == [True, False, True, True]

    def states() -> list[tuple[int, int]]:
        files = [file for n in (0, 2, 3) for file in sorted(places[n].rglob("*"))]
        return [(file.stat().st_ino, file.stat().st_mtime_ns) for file in files]

    before = states()
    # Submitted again; the join waits for all tasks, as the page says.
    again = slurm.command(around, *submit, tmp_path / "array.sbatch").strip()
    command = "contexture prepare bert.tiny --to shards/ --join"
    join = slurm.command(around, *submit, f"--dependency=afterok:{again}", f"--wrap={command}").strip()
    assert ended(around, again) == ["COMPLETED"] * PARTS, slurm.log_of(around)
    assert ended(around, join) == ["COMPLETED"], slurm.log_of(around)
    assert states() == before and places[1].is_dir()
    words = ["prepare", "bert.tiny", "--input", tmp_path / "corpus", "--tokenizer", tmp_path / "vocab"]
    done(*words, "--to", tmp_path / "one")
    # The manifest has the command, whose paths are written otherwise there.
    made, one = content(tmp_path / "shards"), content(tmp_path / "one")
    assert made.pop("manifest.json") and one.pop("manifest.json") and made == one

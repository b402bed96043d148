"""`python -m tests.mutants`: puts each fault of the tables into a copy of the code, and sees that the tests fail.

The working tree is only read. Each job has a copy of it in a temporary folder, with the same interpreter and the same
cache of compiled programs; a fault is written there, its tests are run, and the file is put back. What is known is kept
in .cache/mutants.json by a digest of the row, of the mutated file and of the tests, so that a run that was stopped goes
on, and a second run looks only at what has changed.
"""

import argparse
import fnmatch
import hashlib
import itertools
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.mutants.origin import PACKAGES
from tests.mutants.row import ROOT, Mutant, Stale
from tests.mutants.tables import MUTANTS
from tests.random_faults import Fault, drawn

KILLED, SURVIVED, STALE, BROKEN, TIMEOUT = "killed", "SURVIVED", "STALE", "BROKEN TESTS", "killed (timeout)"
GOOD = (KILLED, TIMEOUT)
KEPT = ROOT / ".cache" / "mutants.json"
LEAST_TIMEOUT = 240.0
"""Seconds: also of the runs that tests share, which are trained once in each run of the tests."""
NOT_FOUND = int(pytest.ExitCode.USAGE_ERROR)
QUICK, ALL = "not long and not parity", "not long or long"
"""Marks: a test with quick cases must see its fault by these. Both compile programs as the quick suite does."""
_FAILED = ("FAILED tests/", "ERROR tests/")
_STAMPS = itertools.count(1_000_000_000)


def copy_tree(root: Path, to: Path) -> None:
    """The files that git tracks or would track, and beside the copy a link to the folder of real data."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)
    for package in PACKAGES[1:]:  # `contexture.models` is the copy's, and not what the interpreter has installed
        if (to / package).is_dir():
            (to / "contexture" / package).symlink_to(Path("..", package))
    shared, link = root.parent / "shared", to.parent / "shared"
    if shared.is_dir() and not link.exists():
        link.symlink_to(shared.resolve())


def write(file: Path, text: str) -> None:
    """With a time of its own: compiled bytecode of another text of the same length and second would be taken for it."""
    file.write_text(text, "utf-8")
    stamp = next(_STAMPS)
    os.utime(file, (stamp, stamp))


def run_tests(tree: Path, ids: tuple[str, ...], timeout: float, marks: str = QUICK) -> tuple[int | None, str]:
    """pytest's exit code in a tree, None where it took too long; and what failed, with the end of what it said."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=line", "--durations=0"]
    command += ["-m", marks, "--durations-min=60", "-p", "no:cacheprovider", "-p", "tests.mutants.origin", *ids]
    command += ["--basetemp", str(tree.with_name(f"{tree.name}-temporary"))]  # another pytest would clear the usual one
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "PYTEST", "COV"))}
    env["PYTHONPATH"] = str(tree)  # of the commands that tests start
    env.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
    process = subprocess.Popen(
        command, cwd=tree, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        out, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None, ""
    if process.returncode == pytest.ExitCode.NO_TESTS_COLLECTED and marks == QUICK:
        return run_tests(tree, ids, timeout, ALL)
    lines = out.splitlines()
    end = "\n".join([line for line in lines[:-12] if line.startswith(_FAILED)] + lines[-12:])
    if any(line.startswith("ImportError while loading conftest") for line in lines):
        return int(pytest.ExitCode.INTERRUPTED), end  # as where a file of tests cannot be imported
    if not re.search("^ERROR: not found: ", out, re.M):  # the code is another one where a plug-in warns behind it
        return process.returncode, end
    functions = tuple(dict.fromkeys(test.partition("[")[0] for test in ids))
    if functions == ids:
        return NOT_FOUND, end
    # The cases of a test may be made of the code: one of them is gone with the fault.
    return run_tests(tree, functions, timeout, marks)


def failed(output: str, ids: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the tests that pytest's summary says failed; all of a file that cannot be imported; else all."""
    rest = [line.partition(" ")[2] for line in output.splitlines() if line.startswith(_FAILED)]
    named = {max((each for each in ids if line.startswith(each)), key=len, default="") for line in rest}
    files = {line.partition(" - ")[0] for line in rest}
    return tuple(each for each in ids if each in named or each.partition("::")[0] in files) or ids


def verdict(code: int | None, output: str) -> tuple[str, str]:
    """What an exit code of the mutated tests means; words where it means nothing."""
    if code is None:
        return TIMEOUT, ""
    if code == 0:
        return SURVIVED, ""
    if code in (1, 2) or code < 0 or code > 128:  # a failure, an import that fails, a process that died
        return KILLED, ""
    if code == NOT_FOUND and re.search("^ERROR tests/", output, re.M):  # an import that fails, of a test that is named
        return KILLED, ""
    return BROKEN, output


class Runner:
    """Works through rows on copies of the tree."""

    def __init__(self, rows: Sequence[Mutant | Fault], jobs: int, fresh: bool) -> None:
        self.rows, self.jobs, self.total = rows, jobs, len(rows)
        self.kept: dict[str, list[str | float]] = {}
        if KEPT.is_file():
            self.kept = json.loads(KEPT.read_text("utf-8"))
        self.fresh, self.root = fresh, ROOT
        self.results: dict[str, tuple[str, float]] = {}
        self.lock, self.trees = threading.Lock(), queue.Queue[Path]()
        self.sound = set[str]()  # tests that were seen to pass in a copy without a fault
        self.baselines = {row.tests: threading.Lock() for row in rows}

    def key(self, row: Mutant | Fault, mutated: bool = True) -> str:
        """A digest of the row, the file that it mutates and the files of its tests; or of the tests and all the code,
        for how they fare without a fault. Of the copy, so that a change while the rows are run is for the next run."""
        tests = {self.root / test.partition("::")[0] for tests in row.rounds() for test in tests}
        around = {folder / "conftest.py" for test in tests for folder in test.parents if self.root in folder.parents}
        files = [*sorted(tests | around), *sorted((self.root / "tests" / "helpers").rglob("*.py"))]
        if mutated:
            files.append(self.root / row.file)
        else:
            for package in PACKAGES:
                files += sorted((self.root / package).glob("**/*.py"))
        digest = hashlib.sha256(repr(row if mutated else row.tests).encode())
        for file in files:
            digest.update(file.read_bytes() if file.is_file() else b"missing")
        return digest.hexdigest()

    def keep(self, key: str, *result: str | float) -> None:
        with self.lock:
            self.kept[key] = list(result)
            KEPT.parent.mkdir(exist_ok=True)
            part = KEPT.with_name(f"{KEPT.name}.{os.getpid()}.part")
            part.write_text(json.dumps(self.kept, indent=0), "utf-8")
            os.replace(part, KEPT)

    def baseline(self, row: Mutant | Fault, tree: Path) -> tuple[float, str]:
        """(the seconds that the row's tests take without a fault, what is wrong where they do not pass)."""
        if isinstance(row, Fault):
            return row.seconds, "" if row.tests else "no test reaches the line"
        with self.baselines[row.tests]:
            key = self.key(row, mutated=False)
            if key in self.kept:
                return float(self.kept[key][0]), str(self.kept[key][1])
            started = time.monotonic()
            code, output = run_tests(tree, row.rounds()[0], 900.0)
            wrong = "" if code == 0 else output or "no end in 900 s"
            seconds = round(time.monotonic() - started, 1)
            if not wrong:
                self.keep(key, seconds, "")
            return seconds, wrong

    def look(self, row: Mutant | Fault, tree: Path) -> tuple[str, str]:
        try:
            whole = (tree / row.file).read_text("utf-8")
            mutated = row.apply(whole)
        except (Stale, OSError) as error:
            return STALE, str(error)
        seconds, wrong = self.baseline(row, tree)
        if wrong:
            return BROKEN, f"they fail without the fault:\n{wrong}"
        results = []
        for tests in row.rounds():
            results.append(self.judge(row, tree, tests, (whole, mutated), max(LEAST_TIMEOUT, 5 * seconds)))
            if results[-1][0] in GOOD:
                return results[-1]
        return next((result for result in results if result[0] != SURVIVED), (SURVIVED, ""))

    def judge(
        self, row: Mutant | Fault, tree: Path, tests: tuple[str, ...], texts: tuple[str, str], timeout: float
    ) -> tuple[str, str]:
        """What the tests say of a fault. A test sees it that fails with it and passes without it, both in a run of its
        own; others are left out. The tests of a table's row were run without the fault, as its baseline."""
        whole, mutated = texts

        def run(text: str, tests: tuple[str, ...]) -> tuple[int | None, str]:
            write(tree / row.file, text)
            try:
                return run_tests(tree, tests, timeout)
            finally:
                write(tree / row.file, whole)

        while True:
            code, output = run(mutated, tests)
            found, why = verdict(code, output)
            if found not in GOOD or isinstance(row, Mutant):
                return found, why
            seeing = failed(output, tests)
            sound = set(seeing) <= self.sound or run(whole, seeing)[0] == 0
            if sound and (seeing == tests or run(mutated, seeing)[0] != 0):
                self.sound.update(seeing)
                return found, why
            tests = tuple(test for test in tests if test not in seeing)
            if not tests:
                return BROKEN, f"without the fault they fail too, or with it only behind others: {' '.join(seeing)}"

    def work(self, row: Mutant | Fault) -> None:
        tree, started = self.trees.get(), time.monotonic()
        key = self.key(row)
        try:
            if key in self.kept and self.kept[key][0] in GOOD:
                verdict, why, note = str(self.kept[key][0]), "", "known"
            else:
                verdict, why = self.look(row, tree)
                note = f"{time.monotonic() - started:.0f} s"
                if verdict in GOOD:
                    self.keep(key, verdict, row.name)
        except Exception as error:
            verdict, why, note = BROKEN, f"{type(error).__name__}: {error}", "failed"
        finally:
            self.trees.put(tree)
        with self.lock:
            self.results[row.name] = verdict, time.monotonic() - started
            print(f"[{len(self.results):3}/{self.total}] {verdict:12} {note:>6}  {row.name}", flush=True)
            if verdict not in GOOD:
                tests = row.rounds()[0] if row.rounds() else ()
                shown = " ".join(tests[:5]) + (f" and {len(tests) - 5} more" if len(tests) > 5 else "")
                print(
                    f"    {row.file}: {row.old!r} → {row.new!r}\n    {shown}\n    {why}",
                    flush=True,
                )

    def run(self) -> bool:
        """Whether every fault was seen."""
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
            self.root = Path(folder) / "whole" / ROOT.name  # never mutated
            copy_tree(ROOT, self.root)
            for row in self.rows if self.fresh else ():
                self.kept.pop(self.key(row), None)
                self.kept.pop(self.key(row, mutated=False), None)
            for number in range(self.jobs):
                tree = Path(folder) / str(number) / ROOT.name
                shutil.copytree(self.root, tree, symlinks=True)
                (tree.parent / "shared").symlink_to(self.root.parent / "shared")
                self.trees.put(tree)
            with ThreadPoolExecutor(self.jobs) as pool:
                list(pool.map(self.work, self.rows))
        counts = {word: sum(verdict == word for verdict, _ in self.results.values()) for word in
                  (KILLED, TIMEOUT, SURVIVED, STALE, BROKEN)}  # fmt: skip
        slowest = sorted(self.results.items(), key=lambda item: -item[1][1])[:5]
        print(f"{', '.join(f'{n} {word}' for word, n in counts.items() if n)} in {time.monotonic() - started:.0f} s; "
              f"slowest: {', '.join(f'{name} {seconds:.0f} s' for name, (_, seconds) in slowest)}")  # fmt: skip
        return all(verdict in GOOD for verdict, _ in self.results.values())


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="these rows; `lstm.*` takes several")
    parser.add_argument("--jobs", type=int, default=2, help="copies that are worked on at once")
    parser.add_argument("--fresh", action="store_true", help="forget what is known of these rows")
    parser.add_argument("--list", action="store_true", help="the names alone")
    parser.add_argument("--random", type=int, metavar="N", help="faults of N lines drawn by chance")
    parser.add_argument("--seed", type=int, default=0, help="by which they are drawn")
    asked = parser.parse_args(words)
    if asked.random:
        faults = drawn(asked.random, asked.seed)
        runner = Runner(faults, max(asked.jobs, 1), asked.fresh)
        runner.run()
        killed = sum(verdict in GOOD for verdict, _ in runner.results.values())
        print(f"seed {asked.seed}: {killed} of {len(faults)} killed, {killed / len(faults):.1%}")
        return 0
    rows = [row for row in MUTANTS if not asked.only or any(fnmatch.fnmatch(row.name, name) for name in asked.only)]
    if not rows:
        parser.error(f"no row is called {' '.join(asked.only)}; --list shows them")
    if asked.list:
        print("\n".join(row.name for row in rows))
        return 0
    return 0 if Runner(rows, max(asked.jobs, 1), asked.fresh).run() else 1


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.fuzz --minutes 30`: cases for every parser and the command line, until the time is over.

Each target has a child process (`tests.fuzz.worker`), so that a hang or a crash ends that process alone and is named.
The time is shared evenly over the targets. What breaks a law (`tests.fuzz.target`) is made as small as it goes and kept
in tests/fuzz/found/TARGET/DIGEST, where the quick suite replays it.
"""

import argparse
import fnmatch
import hashlib
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.target import FOUND, ROOT, SECONDS, Broken, Sandbox, Target
from tests.fuzz.targets import TARGETS

DEAD = 3 * SECONDS
"""Seconds after which a child that says nothing is killed: it hangs where no alarm reaches it."""
MOST = 6 << 30
"""Bytes of a child's memory beyond which it is killed."""


@dataclass
class Row:
    """What came of a target."""

    cases: int = 0
    seconds: float = 0.0
    faults: dict[str, str] = field(default_factory=dict)
    note: str = ""


def case_of(seed: bytes, target: Target, of: int, number: int) -> bytes:
    """The case of a number, the same in every process. Case 0 is the valid file."""
    return target.mutate(seed, random.Random(f"{of}/{target.name}/{number}")) if number else seed


def keep(target: Target, case: bytes, broken: Broken) -> Path:
    """Writes a case to where the quick suite replays it."""
    file = FOUND / target.name / hashlib.sha256(case).hexdigest()[:16]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(case)
    print(f"\n{target.name}: {broken.law}: {broken.where}\n  {' '.join(broken.message.split())[-400:]}\n"
          f"  again: .venv/bin/python -m tests.fuzz --replay {file.relative_to(ROOT)}", flush=True)  # fmt: skip
    return file


def _memory(child: subprocess.Popen[str]) -> int:
    try:
        pages = int(Path(f"/proc/{child.pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _listen(child: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line)
    lines.put(None)


def fuzz(target: Target, seconds: float, seed: int, row: Row, known: set[str]) -> None:
    """One child after another, until the time is over."""
    first, start = 0, time.monotonic()
    while (left := seconds - (time.monotonic() - start)) > 0.5 and len(row.faults) < 20:
        command = [sys.executable, "-m", "tests.fuzz.worker", target.name, str(seed), str(first), f"{left:.1f}"]
        child = subprocess.Popen(
            [*command, *known], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_listen, args=(child, lines), daemon=True).start()
        complaints: list[str] = []
        threading.Thread(target=lambda c=child, s=complaints: s.extend(c.stderr or ()), daemon=True).start()
        at, heard, why, done = first, time.monotonic(), "", False
        seen: Broken | None = None
        while True:
            try:
                line = lines.get(timeout=0.5)
            except queue.Empty:
                why = "hang" if time.monotonic() - heard > DEAD + 30 * (at == first) else ""
                why = "memory" if _memory(child) > MOST else why
                if not why:
                    continue
                child.kill()
                break
            if line is None:
                break
            heard, message = time.monotonic(), json.loads(line)
            if "note" in message:
                row.note, done = message["note"], True
            elif "done" in message:
                done = True
            elif "broken" in message:
                seen = Broken(*message["broken"])
                known.add(f"{seen.law}: {seen.where}")
                row.faults[f"{seen.law}: {seen.where}"] = str(keep(target, bytes.fromhex(message["case"]), seen))
            else:
                at, row.cases = message["at"], row.cases + (message["at"] - at)
        code = child.wait()
        if not done:
            stderr = "".join(complaints)[-1500:]
            if code == 1:
                raise RuntimeError(f"the child of {target.name} failed, which is no finding:\n{stderr}")
            broken = Broken(why or "crash", f"exit {code}" if not why else "killed", stderr)
            with tempfile.TemporaryDirectory(prefix="fuzz-") as base:
                valid = Sandbox(target, Path(base)).seed
            known.add(f"{broken.law}: {broken.where}")
            row.faults[f"{broken.law}: {broken.where}: {at}"] = str(
                keep(target, case_of(valid, target, seed, at), broken)
            )
            at += 1
        first = at
        if done:
            break
    row.seconds += time.monotonic() - start


def replay(file: Path) -> int:
    """One kept case, in this process; the exit code."""
    (target,) = [target for target in TARGETS if target.name == file.parent.name]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as base:
        broken = Sandbox(target, Path(base)).run(file.read_bytes())
    print(f"{target.name}: {'keeps every law' if broken is None else f'{broken.law}: {broken.where}'}")
    if broken is not None:
        print(broken.message)
    return int(broken is not None)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="in all, shared evenly over the targets")
    parser.add_argument(
        "--only", nargs="+", metavar="TARGET", default=[], help="these targets; `table.*` takes several"
    )
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the cases; by default another each time")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="one kept case, and what it breaks")
    parser.add_argument("--list", action="store_true", help="the targets' names alone")
    asked = parser.parse_args(words)
    if asked.replay:
        return replay(asked.replay)
    chosen = [t for t in TARGETS if not asked.only or any(fnmatch.fnmatch(t.name, name) for name in asked.only)]
    if not chosen:
        parser.error(f"no target is called {' '.join(asked.only)}; --list shows them")
    if asked.list:
        print("\n".join(target.name for target in chosen))
        return 0
    print(f"{len(chosen)} targets, {asked.minutes * 60 / len(chosen):.0f} s each, --seed {asked.seed}", flush=True)
    rows: dict[str, Row] = {}
    end = time.monotonic() + asked.minutes * 60
    for number, target in enumerate(chosen):
        row, known = rows.setdefault(target.name, Row()), set[str]()
        share: Any = max((end - time.monotonic()) / (len(chosen) - number), 1.0)
        fuzz(target, share, asked.seed, row, known)
        print(
            f"{target.name:28} {row.cases:7} cases {row.seconds:6.0f} s {len(row.faults):3} found {row.note}",
            flush=True,
        )
    total = sum(len(row.faults) for row in rows.values())
    print(f"\n{'target':28} {'cases':>7} {'found':>5}")
    for name, row in rows.items():
        print(f"{name:28} {row.cases:7} {len(row.faults):5} {row.note}")
        for signature, file in row.faults.items():
            print(f"    {signature}\n    {file}")
    print(f"{sum(row.cases for row in rows.values())} cases, {total} found")
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())

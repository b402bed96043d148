"""The child process of a target: runs its cases and says on stdout, a line of JSON each, how far it is and what broke.

`python -m tests.fuzz.worker TARGET SEED FIRST SECONDS [KNOWN…]`, started by `tests.fuzz`. KNOWN are faults that were
found already: their cases are passed over.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tests.conftest  # noqa: F401  (a CPU, and the cache of compiled programs)
from tests.fuzz.__main__ import case_of
from tests.fuzz.target import Absent, Sandbox
from tests.fuzz.targets import TARGETS
from tests.helpers.commands import devices

SMALLER = 15.0
"""Seconds in which a case is made smaller."""


def smaller(case: bytes, fails: Callable[[bytes], bool], seconds: float) -> bytes:
    """A case without what it does not need to fail: halves, quarters, … of it are left out for as long as it fails."""
    end, parts = time.monotonic() + seconds, 2
    while parts <= 2 * len(case):
        size = max(len(case) // parts, 1)
        for at in range(0, len(case), size):
            if time.monotonic() > end:
                return case
            less = case[:at] + case[at + size :]
            if fails(less):
                case, parts = less, max(parts // 2, 1)
                break
        else:
            if size == 1:
                break
        parts *= 2
    return case


def main(name: str, of: int, first: int, seconds: float, known: set[str]) -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is not for the parent

    def tell(**told: Any) -> None:
        out.write(json.dumps(told) + "\n")

    (target,) = [target for target in TARGETS if target.name == name]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as base, devices(1):
        try:
            sandbox = Sandbox(target, Path(base))
        except Absent as error:
            return tell(note=f"not on this machine: {error}")
        # What is imported and compiled at first is no case's time or memory.
        if first == 0 and (broken := sandbox.run(sandbox.seed, 60)) is not None:
            tell(broken=[broken.law, "the valid file", broken.message], case=sandbox.seed.hex())
        number, end, reported = first, time.monotonic() + seconds, 0.0
        while time.monotonic() < end:
            if first == number or time.monotonic() - reported > 0.2 or target.slow:
                tell(at=number)
                reported = time.monotonic()
            number = _one(sandbox, of, number, known, tell)
        tell(at=number)
        tell(done=True)


def _one(sandbox: Sandbox, of: int, number: int, known: set[str], tell: Callable[..., None]) -> int:
    case = case_of(sandbox.seed, sandbox.target, of, number)
    broken = sandbox.run(case)
    if broken is not None and (signature := f"{broken.law}: {broken.where}") not in known:
        known.add(signature)

        def fails(less: bytes) -> bool:
            tell(at=number)
            result = sandbox.run(less)
            return result is not None and (result.law, result.where) == (broken.law, broken.where)

        if broken.law != "hang" and broken.law != "memory":
            case = smaller(case, fails, SMALLER)
        tell(broken=[broken.law, broken.where, broken.message], case=case.hex())
    return number + 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), set(sys.argv[5:]))
